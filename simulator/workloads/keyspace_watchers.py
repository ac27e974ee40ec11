"""Keyspace watchers: slow readers of a key space's changes, each with a mirror of one prefix.

A watcher takes one update, waits for a time between nothing and half a second, and takes the next; now and
then it breaks off, and goes on behind its mirror. So it is late by one revision, or by more than the history
holds. Whenever it has caught up, its mirror must be what the key space shows. Every update must follow from
the mirror: whole, in order, with the create revisions of the keys. The workload asks `is_stuck` once nothing
fails any more. Source: control.15; the promises of `keyspace/port.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, cast

from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.base.types import Revision
from broadsheet.keyspace.core.transaction import KeyValue
from broadsheet.keyspace.port import Keyspace, Update
from broadsheet.ports import Random
from simulator.workload import Violation

LATE_MAX_MS: Final = 500
PATIENCE_NS: Final = 2 * LATE_MAX_MS * MILLISECOND
"""A watcher that is behind for so long without an update waits for one that does not come."""
WAIT: Final = Duration(30 * MILLISECOND)


class Mirror:
    """The keys of one prefix, as the updates of a watch leave them."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.revision = Revision(0)
        self.pairs: dict[str, KeyValue] = {}

    def apply(self, update: Update) -> None:
        """The next update.

        Raises:
            Violation: it does not follow.
        """
        before, self.revision = self.revision, update.revision
        told = f"watch of {self.prefix!r} at {before}: {update}"
        if update.revision < before or (update.revision == before and not update.is_reload):
            raise Violation(f"{told} goes back, or comes twice")
        keys = [change.key for change in update.changes]
        if keys != sorted(dict.fromkeys(keys)) or any(not key.startswith(self.prefix) for key in keys):
            raise Violation(f"{told} has keys of another prefix, or out of order")
        if update.is_reload:
            self.pairs = {}
        for key, pair in ((change.key, change.now) for change in update.changes):
            known = self.pairs.get(key)
            if pair is None:
                if known is None:
                    raise Violation(f"{told} deletes {key}, which is not there")
                del self.pairs[key]
                continue
            if not update.is_reload:
                created = known.create_revision if known is not None else update.revision
                if (pair.create_revision, pair.mod_revision) != (created, update.revision):
                    raise Violation(f"{told} changes {known} to {pair}")
            self.pairs[key] = pair

    def compare(self, shown: list[KeyValue]) -> None:
        """Raise where the mirror is not what the key space shows at the same revision."""
        mine = [self.pairs[key] for key in sorted(self.pairs)]
        if mine != shown:
            odd = [pair for pair in (*mine, *shown) if (pair in mine) != (pair in shown)]
            raise Violation(
                f"watch of {self.prefix!r}: the mirror of revision {self.revision} differs in {odd}"
            )


class Watcher:
    """One that watches, in the process of the key space."""

    def __init__(self, keyspace: Keyspace, prefix: str, random: Random) -> None:
        self.keyspace, self.random = keyspace, random
        self.mirror = Mirror(prefix)
        self._behind: tuple[int, int] | None = None
        """Where it stood, and since when it was seen behind there."""

    async def work(self, fail: Callable[[Exception], None]) -> None:
        """Watch until the key space closes."""
        try:
            while await self._watch():
                await self._pause()
        except Violation as error:
            fail(error)

    def is_stuck(self, now: int) -> bool:
        """Whether it has been behind for too long without an update."""
        at = self.mirror.revision
        if at >= self.keyspace.revision:
            self._behind = None
        elif self._behind is None or self._behind[0] != at:
            self._behind = (at, now)
        return self._behind is not None and now - self._behind[1] > PATIENCE_NS

    async def _watch(self) -> bool:
        """Some updates. False: the key space was closed."""
        mirror, random = self.mirror, self.random
        begin = Revision(0 if random.random() < 0.1 else mirror.revision + 1)
        is_first = True
        watch = cast(AsyncGenerator[Update, None], self.keyspace.watch(mirror.prefix, begin))
        async with aclosing(watch) as updates:
            async for update in updates:
                if is_first and begin == 0 and not update.is_reload:
                    raise Violation(f"watch of {mirror.prefix!r} from 0 begins with {update}")
                is_first = False
                mirror.apply(update)
                if mirror.revision == self.keyspace.revision:
                    mirror.compare(self.keyspace.range(mirror.prefix))
                await self._pause()
                if random.random() < 0.05:
                    return True
        return False

    async def _pause(self) -> None:
        """From one turn of the loop to longer than the history holds."""
        chance = self.random.random()
        if chance < 0.5:
            await asyncio.sleep(0)
        elif chance < 0.9:
            await asyncio.sleep(self.random.randrange(0, 50) / 1000)
        else:
            await asyncio.sleep(self.random.randrange(0, LATE_MAX_MS) / 1000)
