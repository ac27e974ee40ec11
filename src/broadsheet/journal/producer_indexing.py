"""Producer indexing: makes and stores the producer indexes of one journal as its committed end advances.

Offsets are bytes. Index points are frame boundaries: the last one at or below each end of a fragment, one
every 16 MiB, and the first offset after a hole. Each index is computed from the previous one and the bytes
between them, names the previous one's checksum, and is stored once under `<store>/.broadsheet/<journal>/`
(journals.29). A restartable procedure: it begins at the newest undamaged index in the store. A damaged index
is skipped, because it can be computed again from the one before it. Journals without a framing have no index.
Content that does not parse ends the indexing, with the reason; indexes that are stored already remain. No
reader of messages passes such content: a trim beyond it lets the index go on behind it, as behind a hole.
Source: journals.25, journals.29; message/producer_state.py.
"""

import asyncio
import re
from bisect import bisect_left, insort
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from broadsheet.base.checksum import crc32c
from broadsheet.base.marks import hit
from broadsheet.base.types import ByteOffset
from broadsheet.errors import (
    BroadsheetError,
    Corrupt,
    ShuttingDown,
    Throttled,
    Trimmed,
)
from broadsheet.journal.block_cache import Flights
from broadsheet.journal.committed_reads import next_begin, read_chunk, require_committed, trimmed
from broadsheet.journal.core.spec import framing_of
from broadsheet.journal.remedies import lost_index
from broadsheet.journal.replica import Replica
from broadsheet.journal.spool_file import first_above
from broadsheet.message.framing import FRAME_BYTES_MAX
from broadsheet.message.producer_state import (
    INDEX_BYTES_EVERY,
    ProducerIndex,
    begun,
    behind_hole,
    oldest_open,
    pruned,
)
from broadsheet.message.spans import update
from broadsheet.message.stored_index import BEGIN_BYTES, decode, encode, verify
from broadsheet.runtime.failpoints import passed
from broadsheet.runtime.waiting_line import WaitingLine

PRODUCERS_MAX: Final = 200_000
"""Producers of one journal that are remembered, some 300 bytes each. Above, its index ends there.

To copy or to free the states of a million holds every thread for a tenth of a second."""
_NAME: Final = re.compile(r"([0-7][0-9a-f]{15})-([0-9a-f]{8})\.index")


UPDATE_BYTES: Final = 512 << 10
"""Bytes that one update of an index takes: each is a turn of a thread."""
ENDED: Final = "its producer index has ended: "
VERIFIED_BYTES: Final = 1 << 20
"""Bytes of a stored index that are in memory at a time while it is verified."""


class FoundIndex(NamedTuple):
    """A stored producer index that is undamaged; without a name the empty one at 0."""

    offset: ByteOffset
    """Its index point."""
    previous: ByteOffset | None
    """The index point before it."""
    size: int = 0
    """The bytes that it has."""
    name: str = ""


def greatest_point(names: Iterable[str]) -> ByteOffset:
    """The greatest offset that the names of stored indexes tell; 0 if there is none."""
    found = (match for name in names if (match := _NAME.fullmatch(name)) is not None)
    return max((ByteOffset(int(each.group(1), 16)) for each in found), default=ByteOffset(0))


class Indexing:
    """The producer index of one replica's journal."""

    def __init__(
        self, replica: Replica, *, spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
    ) -> None:
        """Index `replica`'s journal, if it has a framing.

        Args:
            spawn: runs a task that writes to the store; a deletion waits for such tasks, even if the caller
                that caused them is gone.
        """
        self._replica, self._spawn = replica, spawn
        self._framing = framing_of(replica.info.spec)
        self._points: list[ByteOffset] = []
        """The index points, ascending: there may be 65,536, so no call copies them."""
        self._names: dict[ByteOffset, str] = {}
        """Their files."""
        self._is_loaded = False
        self._index: ProducerIndex | None = None
        """None before `_load`, and while other indexes have its memory."""
        self._indexed = self._reached = ByteOffset(0)
        """The last frame boundary, and the end of the bytes, that were processed."""
        self._sum = 0
        self._unfinished = b""
        self._turn = asyncio.Lock()
        self._readers = WaitingLine()
        """Those that wait for the task that catches up."""
        self._is_catching_up = False
        """Whether such a task is there."""
        self._failure: Exception | None = None
        """Why the last such task that ended did not catch up."""
        self._flights = Flights()
        self.end_reason = ""
        """Why the indexing has ended."""
        self._ended_at: ByteOffset | None = None
        """Up to where it came, if no reader of messages passes that place either; a trim may."""

    def give_back(self) -> bool:
        """Forget the producers; False while the index is at work. The next index point reads them again."""
        if self._turn.locked():
            return False
        self._index, self._unfinished = None, b""
        return True

    def close(self) -> None:
        """Hold no memory any more: the journal is closed, and no task of it is left."""
        self._replica.context.index_memory.release(self)
        self._index, self._unfinished = None, b""

    def is_behind(self) -> bool:
        """Whether an index point may be made."""
        return self._framing is not None and not self.end_reason and self._next_target() is not None

    async def needed_from(self, begin: ByteOffset) -> ByteOffset | None:
        """The offset from which on readers of committed messages need a journal that shall begin at `begin`.

        That is the newest index point, or the begin of the oldest span that is open there. None: they need
        nothing below `begin`: the journal has no framing, or they can go on from no place below.

        Raises:
            OSError: the store does not answer. Throttled: the indexes of other journals have the memory.
            ShuttingDown: the journal was closed meanwhile.
        """
        if self._framing is None:
            return None
        async with self._turn:
            try:
                if not self._is_loaded and not self.end_reason:
                    await self._load()
                if self._is_lost or self._is_impassable(begin):
                    return None
                newest = self._points[-1] if self._points else ByteOffset(0)
                if self._index is None or self._index.offset != newest:  # It was not stored, or given back.
                    await self._begin()
            except Corrupt as error:
                self._end(error)
                return None if self._is_lost else self._replica.begin
            index, newest = self._index, self._points[-1] if self._points else ByteOffset(0)
        assert index is not None, "it was read, or made"
        opened = await self._replica.context.disk.run(partial(oldest_open, index))
        return newest if opened is None else min(newest, opened)

    @property
    def _is_lost(self) -> bool:
        """Whether no reader of committed messages can begin anywhere: no index is left, and not all bytes."""
        return bool(self.end_reason) and not self._points and self._replica.begin > 0

    def _is_impassable(self, begin: ByteOffset) -> bool:
        """Whether the indexing ended below `begin`, at a place that no reader of messages passes either."""
        return self._ended_at is not None and begin > self._ended_at

    async def provide(self, begin: ByteOffset) -> bool:
        """Have the store keep the index for readers who begin at `begin`; False: it has no undamaged one.

        Where the indexing ended at a place below that nobody passes, it goes on there, as behind lost bytes.

        Raises:
            OSError: the store does not answer. Throttled, ShuttingDown: as `needed_from`.
        """
        if self._framing is None or self._is_lost:
            return True
        try:
            async with self._turn:
                if self._is_impassable(begin) and begin not in self._names:
                    if self._index is None:
                        await self._begin()
                    assert self._index is not None, "it was read, or made"
                    self._unfinished = b""
                    await self._store(behind_hole(self._index, begin))
                    self._go_on()
            return begin in self._names and bool(await self._verified(self._names[begin]))
        except Corrupt:
            return False  # It is damaged: readers are given the one before, and need what is behind that.

    def _end(self, error: Exception) -> None:
        """Index no more, because of an error."""
        self.end_reason = str(error)
        self._ended_at = (
            None if self._index is None else self._reached
        )  # Readers have room for more producers.
        self._replica.notice = self._replica.notice or f"{ENDED}{self.end_reason}"

    def _go_on(self) -> None:
        """Index again."""
        if self._replica.notice == f"{ENDED}{self.end_reason}":
            self._replica.notice = ""
        self.end_reason, self._ended_at = "", None

    async def forget_below(self, offset: ByteOffset) -> None:
        """Remove the producer indexes of index points below `offset`, which is one.

        Raises:
            OSError: the store does not answer: repeat the call.
        """
        async with self._turn:
            while self._points and (point := self._points[0]) < offset:
                await self._replica.store.delete_side(self._replica.name, self._names[point])
                del self._points[0], self._names[point]

    async def catch_up(self) -> None:
        """Make every producer index that the committed bytes allow.

        Raises:
            OSError: the store does not answer: repeat the call.
            StoreUnhealthy: no file could be opened: repeat the call. ShuttingDown: the journal was closed.
            Throttled: the indexes of other journals have the memory: repeat the call.
        """
        try:
            async with self._turn:
                await self._catch_up()
        except (Corrupt, Trimmed) as error:
            self._end(error)

    async def _catch_up(self) -> None:
        if not self._is_loaded:
            await self._load()
        while not self._replica.is_closed and (target := self._next_target()) is not None:
            if self._index is None:
                await self._begin()
            else:
                await self._advance(target)

    async def points(self) -> Sequence[ByteOffset]:
        """Every producer index point, ascending. The caller does not change them; they grow later.

        Raises:
            OSError: the store does not answer. ShuttingDown: the journal was closed meanwhile.
        """
        if self._framing is not None and not self._is_loaded and not self.end_reason:
            await self._caught_up()
        return self._points

    async def _caught_up(self) -> None:
        """Index producers in a task that no cancelled reader ends: a deletion must wait for its writes.

        All readers wait for the same task: of each that came and left while the store is slow, one would be
        left behind.
        """
        if not self._is_catching_up:
            self._is_catching_up = True
            task = self._spawn(self._catch_up_for_readers(), f"index.{self._replica.name}")
            task.add_done_callback(self._on_caught_up)  # Also of one that is cancelled before it begins.
        await self._readers.wait()
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # All readers raise it, and it would grow.

    async def _catch_up_for_readers(self) -> None:
        try:
            await self.catch_up()
        except (BroadsheetError, OSError) as error:
            self._failure = error
        else:
            self._failure = None

    def _on_caught_up(self, task: asyncio.Task[None]) -> None:
        self._is_catching_up = False
        if task.cancelled():
            self._failure = ShuttingDown(f"journal {self._replica.name} was closed")
        self._readers.wake()

    async def at(self, offset: ByteOffset) -> FoundIndex:
        """The last undamaged producer index at or below `offset`; an empty one at 0 if there is none.

        Raises:
            OffsetNotYetAvailable: `offset` is above the committed end.
            Trimmed: `offset` is below the journal's begin.
            Corrupt: no index can be used, and the journal's first bytes are gone (journals.29).
            ShuttingDown: the journal was closed meanwhile.
            OSError: the store does not answer.
        """
        replica = self._replica
        require_committed(replica, offset)
        points = await self.points()
        damage = ""
        limit = ByteOffset(offset + 1)
        while count := bisect_left(points, limit):  # Again after each wait: there may be others by now.
            limit = point = points[count - 1]
            name = self._names[point]
            previous = points[count - 2] if count > 1 else None
            try:
                size = await self._flights.join(point, partial(self._verified, name))
            except Corrupt as error:
                hit("journal.index_passed_over")
                damage = f" ({error})"
                continue
            assert isinstance(size, int), "lengths are joined under the point"
            return FoundIndex(point, previous, size, name)
        replica.require_listed()
        if offset < replica.begin:
            raise trimmed(replica, offset)
        if replica.begin > 0:
            way_out = (
                "read its bytes, or begin at an index point" if self._points else lost_index(replica.name)
            )
            raise Corrupt(
                f"journal {replica.name}: no producer index at or below {offset}{damage}, and its bytes"
                f" before {replica.begin} are gone: {way_out}"
            )
        return FoundIndex(ByteOffset(0), previous=None)

    async def part(self, found: FoundIndex, begin: int, end: int) -> bytes:
        """Bytes of a producer index that `at` found, from `begin` on: at least one, none at or behind `end`.

        Raises:
            Trimmed: the journal begins above the index now. Corrupt: they are no longer there.
            OSError: the store does not answer. ShuttingDown: the journal was closed meanwhile.
        """
        try:
            content = await self._get(found.name, begin, end)
        except Corrupt:
            if found.offset < self._replica.begin:
                raise trimmed(self._replica, found.offset) from None  # A trim has removed it meanwhile.
            raise
        if content:
            return content
        raise Corrupt(f"journal {self._replica.name}: producer index {found.name} ends at {begin}")

    async def _verified(self, name: str) -> int:
        """The length of the stored producer index `name`, undamaged. It is read a range at a time.

        Raises:
            Corrupt: it is missing or damaged.
        """
        size, total, begin = 0, 0, b""
        while part := await self._get(name, size, size + VERIFIED_BYTES):
            size, total, begin = size + len(part), crc32c(part, total), begin or part[:BEGIN_BYTES]
        try:
            verify(begin, size, total)
        except Corrupt as error:
            raise Corrupt(f"journal {self._replica.name}: producer index {name}: {error}") from error
        return size

    async def _get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """The bytes [begin, end) of the stored producer index `name`, or fewer if it ends before.

        Raises:
            Corrupt: it is missing. ShuttingDown: the journal was closed meanwhile.
        """
        try:
            return await self._replica.store.get_side(self._replica.name, name, begin, end)
        except FileNotFoundError as error:
            if self._replica.is_closed:  # A deletion removes indexes while they are read: that is no damage.
                raise ShuttingDown(f"journal {self._replica.name} was closed") from error
            raise Corrupt(f"journal {self._replica.name}: producer index {name} is missing") from error

    async def _load(self) -> None:
        """Learn the store's producer index points, and begin at the newest one."""
        self._replica.require_listed()
        for name in await self._replica.store.list_side(self._replica.name):
            match = _NAME.fullmatch(name)
            if match is not None:
                self._names[ByteOffset(int(match.group(1), 16))] = name
        self._points[:] = sorted(self._names)
        self._replica.on_named(max(self._points, default=ByteOffset(0)))
        await self._begin()
        self._is_loaded = True

    async def _begin(self) -> None:
        """Begin at the newest undamaged producer index in the store, or at the journal's origin."""
        assert self._framing is not None
        while self._points:
            point = self._points[-1]
            try:
                stored = await self._get(self._names[point])
                # Of many producers it takes a second, so a thread does it.
                index = await self._replica.context.disk.run(partial(decode, stored))
            except Corrupt:
                hit("journal.index_passed_over")
                del self._points[-1], self._names[point]  # It is computed again from the one before it.
                continue
            self._sum = int.from_bytes(stored[-4:], "little")
            self._hold(index, b"")
            return
        name, origin = self._replica.name, self._replica.origin
        if self._replica.begin > origin:
            raise Corrupt(
                f"journal {name}: no producer index, and it does not begin at {origin}: {lost_index(name)}"
            )
        self._sum = 0
        self._hold(begun(self._framing, origin), b"")
        if origin and self._index is not None:
            await self._store(self._index)  # Readers need an index point there: they cannot begin at 0.

    def _hold(self, index: ProducerIndex, unfinished: bytes) -> None:
        """Make `index` the newest producer index; `unfinished` is the begin of a frame above it.

        Raises:
            Corrupt: it has too many producers. Throttled: the indexes of other journals have the memory.
            ShuttingDown: the journal was closed.
        """
        name, count = self._replica.name, len(index.states) + len(index.forgotten)
        memory = self._replica.context.index_memory
        if self._replica.is_closed:
            raise ShuttingDown(f"journal {name} was closed while its producer index was made")
        most = min(PRODUCERS_MAX, memory.producers_max)
        if count > most:
            self.close()  # The memory is others' too.
            way_out = "" if most == PRODUCERS_MAX else "raise journals.index_producers_max, or "
            raise Corrupt(
                f"journal {name}: more than {most} producers below {index.offset}: readers look for"
                " themselves from its last index point on, and a trim keeps what is above:"
                f" {way_out}publish to another journal"
            )
        try:
            memory.hold(self, count)
        except Throttled as error:
            self.close()
            raise Throttled(f"journal {name}: {error}") from None
        self._index, self._unfinished = index, unfinished
        self._indexed, self._reached = index.offset, ByteOffset(index.offset + len(unfinished))

    def _next_target(self) -> ByteOffset | None:
        """Where the next producer index ends: at the next roll, or 16 MiB on; None if not committed yet."""
        if not self._is_loaded:
            return ByteOffset(0)
        replica = self._replica
        last = self._points[-1] if self._points else ByteOffset(0)
        limit = ByteOffset(max(last, self._indexed) + INDEX_BYTES_EVERY)
        # If a frame crosses a roll, the index point below the frame serves that roll as well.
        beyond = self._reached
        stored = replica.index.next_end(beyond)
        at = first_above(replica.closed, beyond)
        closed = replica.closed[at].end if at < len(replica.closed) else None
        target = min(each for each in (stored, closed, limit) if each is not None)
        return target if beyond < target <= replica.end else None

    async def _advance(self, target: ByteOffset) -> None:
        """Index the producers below `target`, and store the index at the last frame boundary there."""
        replica, index = self._replica, self._index
        assert index is not None
        at = ByteOffset(index.offset + len(self._unfinished))
        while at < target:
            try:
                chunk = await read_chunk(replica, at, target, bytes_max=UPDATE_BYTES)
            except Trimmed:
                self._unfinished = b""
                await self._store(behind_hole(index, next_begin(replica, at)))
                return
            at = chunk.end
            content, before = self._unfinished + chunk.data, index
            index = await replica.context.disk.run(partial(update, before, content))
            unfinished = content[index.offset - before.offset :]
            if len(unfinished) > FRAME_BYTES_MAX:
                raise Corrupt(
                    f"journal {replica.name}: no frame ends within {FRAME_BYTES_MAX} bytes of {index.offset}"
                )
            self._hold(index, unfinished)
        if index.offset not in self._names and index.offset:
            await self._store(index)

    async def _store(self, index: ProducerIndex) -> None:
        replica, previous = self._replica, self._sum
        index = await replica.context.disk.run(partial(pruned, index))
        stored, total = await replica.context.disk.run(partial(encode, index, previous=previous))

        name = f"{index.offset:016x}-{total:08x}.index"
        passed("journal.index.before_write")
        await replica.store.put_side(replica.name, name, stored)
        passed("journal.index.after_write")
        self._sum = total
        insort(self._points, index.offset)
        self._names[index.offset] = name
        self._hold(index, self._unfinished)
