"""Trimming: removes the oldest stored fragments of one journal, as its retention or an operator says.

Offsets are bytes. Whole fragments go, from the journal's begin on. A fragment leaves the index first, so that
no read finds it, and then the store, those that end first before the others: after a crash at any point what
is left is contiguous, and the next round removes the rest. What is kept, whatever is asked: the newest stored
fragment, which tells where the journal ends if all else is lost; what the log or a spool file still names;
what the journal's author needs by its register `at`; and what a reader of committed messages needs, which are
the producer index at the new begin and the spans that are still open.
Source: journals.10, journals.15, journals.29, journals.32; ADR 0211.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from broadsheet.base.time import SECOND, Duration, WallTime, in_seconds
from broadsheet.base.types import ByteOffset
from broadsheet.errors import BroadsheetError, RegistersUnknown, ShuttingDown, StoreUnhealthy
from broadsheet.journal.core.fragment import Fragment
from broadsheet.journal.core.registers import needed_from
from broadsheet.journal.core.spec import FragmentSpec
from broadsheet.journal.core.stored_times import NEVER, StoredTimes
from broadsheet.journal.fragments import StoredAt
from broadsheet.journal.keys import is_retention_doubtful
from broadsheet.journal.producer_indexing import Indexing
from broadsheet.journal.remedies import disagreement, registers_lost, silent
from broadsheet.journal.replica import Replica
from broadsheet.journal.spool_file import SpoolFile
from broadsheet.ports import Timer
from broadsheet.runtime.failpoints import passed
from broadsheet.runtime.scope import OneByOne
from broadsheet.runtime.waiting_line import WaitingLine

RETRY: Final = Duration(60 * SECOND)
"""Pause before retention looks again after the store did not answer, or if more bytes are kept."""
KEPT_PAUSE: Final = Duration(3600 * SECOND)
"""Pause before a store is listed again because of content that is old enough, and is kept."""
NAMED: Final = "the log still names what was stored last: try again in a moment"
NAMED_TRIES_MAX: Final = 8
"""How often a trim waits for the log to name less, which a checkpoint does."""
NAMED_WAIT: Final = Duration(SECOND)
PAUSE_MAX: Final = Duration(24 * 3600 * SECOND)
"""The longest pause."""


class Trim(NamedTuple):
    """The result of a trim."""

    begin: ByteOffset
    """The journal's first byte that can still be read."""
    kept: str
    """Why content below the asked offset is kept; empty if there is none."""


class Trimming:
    """The removal of one replica's oldest fragments."""

    def __init__(
        self,
        replica: Replica,
        indexing: Indexing,
        *,
        named_from: Callable[[], ByteOffset | None],
        uploading: asyncio.Semaphore,
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
    ) -> None:
        """Remove fragments of `replica`, never while it is stopped.

        Args:
            named_from: the begin of the first stored fragment that the log still names; None: it names none.
            uploading: bounds the uploads, listings and removals of the node on this store at a time, so that
                readers get their turn. It is held for one of them, so that other journals get theirs.
            spawn: runs a task that a deletion of the journal waits for.
        """
        self._replica, self._indexing, self._named_from, self._spawn = replica, indexing, named_from, spawn
        self._uploading = uploading
        self._turn, self._asked = asyncio.Lock(), OneByOne()
        self._waiting = WaitingLine()
        """Trims that wait until the log names less."""
        self._timer: Timer | None = None
        self._is_retaining = self._is_asked = False
        self._old_at: WallTime | None = None
        """When the oldest stored fragment is old enough; None before the store has told how old they are."""
        self._left_below = ByteOffset(0)
        """Fragments below are out of the index, but the store may still have some."""

    def close(self) -> None:
        """Look no more: the journal is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def consider(self) -> None:
        """Remove what the journal's retention keeps no longer, if there may be anything; else look later.

        It is called when a fragment was stored, and when the log names less than before.
        """
        self._is_asked = True
        self._waiting.wake()
        if self._is_retaining or self._replica.is_closed:
            return
        if self._is_due():
            self._is_retaining = True
            self._spawn(self._retain(), f"retain.{self._replica.name}")
        else:
            self._look_later()

    def on_spec(self) -> None:
        """Look at the retention anew: the journal's spec has changed."""
        self._old_at = None
        self.consider()

    async def trim(self, below: ByteOffset) -> Trim:
        """Remove all that may be removed of what ends at or below an offset, even if the caller leaves.

        Raises:
            StoreUnhealthy: the journal is stopped; or the store does not answer. Some fragments may be
                removed, none of them partly: repeat the call.
            RegistersUnknown: the registers are lost, and may say what is needed. Nothing was removed.
            ShuttingDown: the journal was closed meanwhile. Some fragments may be removed.
        """
        name = self._replica.name

        async def work() -> Trim:
            try:
                return await self._trimmed_in_time(below)
            except OSError as failed:
                self._look_later()
                raise StoreUnhealthy(
                    f"journal {name}: its store does not answer, and may still have some of what was to be"
                    f" removed: {failed}; repeat the call when it answers"
                ) from failed

        def begin() -> Coroutine[Any, Any, Trim]:
            if self._replica.is_closed:
                raise self._closed()
            return work()

        return await self._asked.carried(
            begin, lambda work: self._spawn(work, f"trim.{name}"), cut_off=self._closed
        )

    def _closed(self) -> ShuttingDown:
        return ShuttingDown(f"journal {self._replica.name} was closed")

    @property
    def _has_stopped(self) -> bool:
        """Without a walk over the closed files, which may be 65,536: this is asked after each upload."""
        return self._replica.context.troubles.has_stopped(self._replica)

    async def _trimmed_in_time(self, below: ByteOffset) -> Trim:
        """Trim, and again while the log names what was stored last: a checkpoint is on its way."""
        found = await self._trimmed(below)
        for _ in range(NAMED_TRIES_MAX):
            if found.kept != NAMED:
                break
            await self._considered()
            found = await self._trimmed(below)
        return found

    async def _considered(self) -> None:
        """Wait until the journal's log may name less, for `NAMED_WAIT` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(in_seconds(NAMED_WAIT)):
                await self._waiting.wait()

    def _is_due(self) -> bool:
        replica, spec = self._replica, self._kept_by
        if not (spec.retention or spec.retained_bytes) or not replica.is_listed or self._has_stopped:
            return False
        now = replica.context.time.wall()
        if spec.retention and (self._old_at is None or now >= self._old_at):
            return True
        return replica.index.last_end(self._by_bytes()) is not None

    @property
    def _kept_by(self) -> FragmentSpec:
        """The spec that retention acts by: one without a retention while a later one may be lost."""
        info = self._replica.info
        if is_retention_doubtful(self._replica.context.keyspace, info):
            return replace(info.spec.fragment, retention=Duration(0), retained_bytes=0)
        return info.spec.fragment

    def _by_bytes(self) -> ByteOffset:
        kept = self._kept_by.retained_bytes
        return ByteOffset(max(0, self._replica.end - kept) if kept else 0)

    def _look_later(self) -> None:
        """Look again when the oldest fragment is old enough; sooner if that is over, and it is kept."""
        self.close()
        replica, age = self._replica, self._kept_by.retention
        if replica.is_closed or not (age or self._left_below or self._is_due()):
            return
        wait = RETRY
        if age and self._old_at is not None and not self._left_below and not self._is_due():
            wait = Duration(min(max(0, self._old_at - replica.context.time.wall()), PAUSE_MAX))
        self._timer = replica.context.timers.call_after(wait, self._strike)

    def _strike(self) -> None:
        if self._left_below and not self._is_retaining and not self._replica.is_closed:
            self._is_retaining = self._is_asked = True
            self._spawn(self._retain(), f"retain.{self._replica.name}")
        else:
            self.consider()

    async def _retain(self) -> None:
        """Remove what is too old, or too far below the end. What fails is tried again later."""
        try:
            while self._is_asked and not self._replica.is_closed:
                self._is_asked = False
                await self._retain_once()
        except (OSError, BroadsheetError):
            self._old_at = None  # The store is down, or the journal is stopped: both are told elsewhere.
        finally:
            self._is_retaining = False
            self._look_later()

    async def _retain_once(self) -> None:
        spec, below = self._kept_by, max(self._left_below, self._by_bytes())
        is_time = self._old_at is None or self._replica.context.time.wall() >= self._old_at
        if spec.retention and is_time:
            below = max(below, await self._by_age(spec.retention))

        def is_wanted() -> bool:
            return self._kept_by == spec

        found = await self._trimmed(below, is_wanted)
        if found.kept == NAMED:
            self._old_at = None  # After the next checkpoint it is looked at again.
        elif found.begin < below and self._old_at is not None:
            soon = WallTime(self._replica.context.time.wall() + KEPT_PAUSE)
            self._old_at = min(self._old_at, soon)  # As the newest fragment of an idle journal.

    async def _by_age(self, age: Duration) -> ByteOffset:
        """Below this offset every fragment was stored longer than `age` ago."""
        now = self._replica.context.time.wall()
        listed = await self._listed()
        times = await self._replica.context.disk.run(partial(StoredTimes, listed))
        below = times.before(WallTime(now - age))
        young = [each.modified for each in listed if each.fragment.end > below and each.modified > 0]
        self._old_at = WallTime(max(min(young, default=now) + age, now + RETRY))
        return below

    async def _listed(self) -> Sequence[StoredAt]:
        async with self._uploading:
            return await self._replica.store.listed(self._replica.name)

    async def _trimmed(self, below: ByteOffset, is_wanted: Callable[[], bool] = lambda: True) -> Trim:
        """Remove what ends at or below an offset, unless it is unwanted once the store has listed."""
        replica = self._replica
        async with self._turn:
            end, kept = await self._removable(below)
            end = max(end, self._left_below)
            if end:
                await self._remove(end, is_wanted)
                self._left_below = ByteOffset(0)
        return Trim(replica.begin, kept if replica.begin < min(below, replica.end) else "")

    def _require_going(self) -> None:
        """Refuse to remove anything of a journal that is stopped, or whose store may not be written.

        Raises:
            StoreUnhealthy, ShuttingDown: as `trim`.
        """
        replica = self._replica
        if replica.is_closed:
            raise self._closed()
        why = disagreement(replica.index.first_conflict())
        if self._has_stopped:
            why = replica.stop_reason or replica.log_fault or replica.damage or why
        if why or not replica.may_upload:
            why = why or silent(replica.store.silence)
            raise StoreUnhealthy(f"journal {replica.name}: nothing of it is removed now: {why}")

    async def _removable(self, below: ByteOffset) -> tuple[ByteOffset, str]:
        """Up to which fragment's end content may go, 0 if none; and what stands against more."""
        self._require_going()
        replica = self._replica
        limits = [(below, "whole fragments are removed")]
        local = replica.closed[0].begin if replica.closed else replica.spool.begin
        limits.append((local, "what is not stored yet stays"))
        if newest := replica.index.covering(ByteOffset(replica.index.end - 1)):
            limits.append((newest.begin, "the newest stored fragment stays"))
        if (named := self._named_from()) is not None:
            limits.append((named, NAMED))
        if (needed := self._needed_from()) is not None:
            limits.append((needed, "the commits of its author are needed from there on (register at)"))
        most, why = min(limits)
        end = replica.index.last_end(most)
        if end is not None and (needed := await self._indexing.needed_from(end)) is not None:
            most, why = min((most, why), (needed, self._for_readers()))
            end = replica.index.last_end(most)
        while end is not None and not await self._indexing.provide(end):
            most, why = ByteOffset(end - 1), self._for_readers()
            end = replica.index.last_end(most)
        return end or ByteOffset(0), why

    def _for_readers(self) -> str:
        """Why readers of committed messages need what is kept."""
        ended = f"; it has ended: {reason}" if (reason := self._indexing.end_reason) else ""
        return f"readers of committed messages need a producer index at the begin{ended}"

    def _needed_from(self) -> ByteOffset | None:
        registers = self._replica.log_registers
        if registers is None or self._replica.pipeline.committed_registers is None:
            name = self._replica.name
            raise RegistersUnknown(
                f"journal {name}: nothing of it is removed, because its registers may say what is needed:"
                f" {registers_lost(name)}"
            )
        # Durable or not: what both name stays.
        found = [needed_from(each) for each in (registers, self._replica.pipeline.committed_registers)]
        return min((each for each in found if each is not None), default=None)

    async def _remove(self, end: ByteOffset, is_wanted: Callable[[], bool]) -> None:
        """Remove every fragment that ends at or below `end`, and the producer indexes below it."""
        replica = self._replica
        listed = await self._listed()
        self._require_going()  # Its producer index, for example, may have told meanwhile of a greater offset.
        if not is_wanted():
            end = self._left_below
        doomed = sorted((each.fragment for each in listed if each.fragment.end <= end), key=_by_end)
        self._left_below = end
        replica.index.forget(end)
        replica.store.let_go(replica.name, doomed)
        replica.store.forget_damage(replica.name, below=end)  # Also of what is gone from the store.
        for fragment in doomed:
            async with self._uploading:  # For each: of 100,000 others would wait for minutes.
                if replica.is_closed:  # A later journal of the name may store the same content.
                    raise self._closed()
                passed("journal.trim.before_delete")
                await replica.store.delete(replica.name, fragment)
                passed("journal.trim.after_delete")
        await self._indexing.forget_below(end)


def _by_end(fragment: Fragment) -> tuple[ByteOffset, ByteOffset]:
    return fragment.end, fragment.begin


def offset_at(replica: Replica, stored: StoredTimes, time: WallTime) -> ByteOffset:
    """An offset of a journal at or above which all lies that was appended at or after `time`.

    As near as fragments tell: some older content of the same fragment may lie behind it. A store that is full
    leaves tens of thousands of closed ones, so that they are not walked.
    """
    found = max(replica.begin, stored.before(time))
    count = bisect_left(replica.closed, time, key=_began)
    for spool in (*replica.closed[max(0, count - 1) : count], replica.spool):
        if 0 < spool.first_append < time:
            found = max(found, spool.begin)
    return found


def _began(spool: SpoolFile) -> WallTime:
    return WallTime(spool.first_append or NEVER)
