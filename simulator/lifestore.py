"""Life store: a fragment store whose objects outlive every disk, that fails calls, and judges deletions.

It keeps its objects in the account of what was promised (`lifemodel.py`): they are durable at once, and each
crash state of a disk has those of its moment. It may be shut, fail a share of its calls, or answer late; a
call that fails may have been done. Whoever deletes a fragment must be allowed to (journals.32, J10).
Times are nanoseconds.
"""

import asyncio
import errno
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final

from broadsheet.base.time import WallTime
from broadsheet.base.types import Buffer
from simulator.journalnode import Stored as Listed
from simulator.lifemodel import Account, fragment_of
from simulator.workload import Violation

SECOND_NS: Final = 1_000_000_000


class LifeStore:
    """The `ObjectStore` port of one life."""

    def __init__(
        self,
        account: Account,
        random: Random,
        *,
        note: Callable[[object], None],
        wall: Callable[[], int],
        end_of: Callable[[str], int],
        found: Callable[[Violation], None],
    ) -> None:
        """Serve the objects of `account`.

        Args:
            note: takes in what happened to an object.
            end_of: where a journal ends now, as its node says; a great number where it does not say it.
            found: is told of a deletion that nobody may make.
        """
        self._account, self._random, self._note = account, random, note
        self._wall, self._end_of, self._found = wall, end_of, found
        self.is_shut = False
        """Whether it answers nothing but errors."""
        self.fails_percent = 0
        """How many of a hundred calls fail."""
        self.late_ns = 0
        """How long a call may take."""
        self.calls_left: int | None = None
        """The call of that number fails."""

    def at(self, _url: str) -> "LifeStore":
        """The store at that URL."""
        return self

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        """Store an object, whole or not at all; a call that fails may have stored it."""
        does_fail = self._fails()
        if does_fail and self._random.random() < 0.5:
            raise _failed(name)
        is_new = name not in self._account.stored
        if is_new:
            self._note(("stored", name, b"".join(body), self._wall()))
        await self._wait()
        if does_fail:
            raise _failed(name)
        return is_new

    async def get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """The bytes of [begin, end)."""
        await self._wait()
        if self._fails():
            raise _failed(name)
        found = self._account.stored.get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", name)
        return found.content[begin:end]

    async def list(self, prefix: str) -> Sequence[Listed]:
        """Every object below a prefix."""
        await self._wait()
        if self._fails():
            raise _failed(prefix)
        stored = self._account.stored
        return [
            Listed(name, len(stored[name].content), WallTime(stored[name].at))
            for name in sorted(stored)
            if name.startswith(prefix)
        ]

    async def delete(self, name: str) -> None:
        """Remove an object; a call that fails may have removed it."""
        does_fail = self._fails()
        if does_fail and self._random.random() < 0.5:
            raise _failed(name)
        if name in self._account.stored:
            if (wrong := self._judged(name)) is not None:
                self._found(Violation(wrong))
            self._note(("removed", name))
        await self._wait()
        if does_fail:
            raise _failed(name)

    def _judged(self, name: str) -> str | None:
        """Why an object may not be removed; None: it may."""
        stored, fragment = self._account.stored[name], fragment_of(name)
        it = self._account.of_object(name, stored)
        if it is None or fragment is None:
            return None
        span, end = (fragment.begin, fragment.end), self._end_of(it.name)
        if self._account.may_remove(it, span, at=stored.at, now=self._wall(), end=end):
            return None
        return (
            f"journals.32: {name} of {it.key} is removed, and neither deletion, nor trim (below"
            f" {it.trim_asked}), nor retention ({it.kept}) of it asks for that"
        )

    def _fails(self) -> bool:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left == 0:
                return True
        return self.is_shut or self._random.random() * 100 < self.fails_percent

    async def _wait(self) -> None:
        await asyncio.sleep(self._random.randrange(self.late_ns) / SECOND_NS if self.late_ns else 0)


def _failed(name: str) -> OSError:
    return OSError(errno.EIO, "the store does not answer", name)
