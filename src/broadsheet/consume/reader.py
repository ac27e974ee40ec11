"""Reader: `client.messages()`, the committed messages of a journal, each once, from a position on.

    async for message in client.messages("events/clicks", start=kept):
        handle(message.json())
        kept = message.position

The journal is read in blocks. A block's messages have one order, that of `message.position`, which does not
depend on where blocks are cut: so a reader that starts from a kept position gives exactly what follows it. A
message whose acknowledgement lies in a block, and which lies far before it, is fetched from its own offset.
Units: byte offsets, seconds. Source: pipelines.2, 5, 19; journals.29.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Final

import numpy as np

from broadsheet.base.types import ByteOffset
from broadsheet.consume.message import Message
from broadsheet.errors import InvalidArgument, NotFound
from broadsheet.journal.client import Journals
from broadsheet.journal.client_requests import name_of
from broadsheet.journal.core.spec import framing_of
from broadsheet.journal.messages import Chunk
from broadsheet.message.columns import Frames, frames_of
from broadsheet.message.framing import HEADER, JSON_LINES, Framing, Kind, may_have_frame
from broadsheet.message.position import Position
from broadsheet.message.producer_state import ProducerIndex, beginning, begun, thinned
from broadsheet.message.replay import Read, Rows, committed
from broadsheet.message.spans import replays
from broadsheet.message.stored_index import index_from
from broadsheet.message.uuid import UUID_BYTES, Clock, Flag, MessageId, ProducerId

PATIENCE_SECONDS: Final = 120.0
BLOCK_BYTES: Final = 1 << 20
"""How much of a journal is sequenced at a time, while the reader is behind: some 3 ms of the loop."""
MESSAGES_IN_A_ROW: Final = 4096
"""How many messages are made at a time, 2 us and 500 bytes each: a block may have half a million."""
AHEAD_BYTES_MAX: Final = 16 << 20
"""Up to here the bytes before a block are fetched at once; above, a thread reads them piece by piece."""
REPLAY_BYTES_MAX: Final = 64 << 20
"""How many bytes of messages from before a block are in memory at once."""
THIN_BYTES: Final = 64 << 20
"""After so many bytes producers that the node has dropped are dropped here as well."""
EARLIEST: Final = "earliest"
LATEST: Final = "latest"


class MessageReader:
    """Gives the messages of one journal. Made by `Client.messages`; iterate it."""

    def __init__(
        self,
        journals: Journals,
        journal: str,
        start: Position | int | str = EARLIEST,
        *,
        is_committed: bool = True,
        block: bool = False,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """Read `journal`; arguments as `Client.messages`."""
        if not isinstance(start, Position | int) and start not in (EARLIEST, LATEST):
            raise InvalidArgument(f"start {start!r}: 'earliest', 'latest', an offset, or a kept position")
        if isinstance(start, int) and start < 0:
            raise InvalidArgument(f"start {start}: an offset is 0 or more")
        self.journal = name_of(journal)
        self._journals, self._start = journals, start
        self._is_committed, self._block, self._patience = is_committed, block, patience
        self.position: Position | None = start if isinstance(start, Position) else None
        """Behind the last message that was given; None before the reader knows where it starts."""

    async def __aiter__(self) -> AsyncIterator[Message]:
        """The messages one by one; errors as `batches`. Iterated again, it goes on behind the last one."""
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for message in batch:
                    self.position = message.position
                    yield message

    async def batches(self) -> AsyncGenerator[Sequence[Message]]:
        """The messages as they become known together; `position` passes them when the next are asked for.

        Raises:
            NotFound: the journal was deleted, or made again since the position was kept.
            Corrupt, Trimmed: bytes that are needed are damaged or gone. SpanForgotten: an acknowledgement
                came for messages that had been given up.
            DeadlineExceeded: the node was away for longer than the patience.
        """
        info = await self._journals.get(self.journal, timeout=self._patience)
        head = await self._journals.end(self.journal, timeout=self._patience)  # It is open from here on.
        here = self.position = await self._begin(info.create_revision)
        span = _Span(here)
        index = await self._index_at(framing_of(info.spec) or JSON_LINES, here.offset)
        index = beginning(index, here.begin)
        thin_at, rest, looked = index.offset + THIN_BYTES, bytearray(), 0
        reading = self._journals.read(
            self.journal,
            index.offset,
            block=self._block,
            patience=self._patience,
            create_revision=here.create_revision,
        )
        async with aclosing(reading) as chunks:
            async for chunk in chunks:
                rest += chunk.data
                if len(rest) < BLOCK_BYTES and chunk.end < head:
                    continue
                if not may_have_frame(index.framing, rest, looked):
                    looked = len(rest)
                    continue
                content = bytes(rest)
                frames = frames_of(index.framing, content, index.offset)
                if not len(frames.begin):
                    continue
                rest, looked = rest[int(frames.end[-1]) - index.offset :], 0
                async with aclosing(self._rows(index, frames, content, span.here.offset)) as found:
                    async for rows in found:
                        if isinstance(rows, ProducerIndex):
                            index = rows
                            continue
                        for part in _portions(rows):
                            if messages := span.messages(self.journal, index.framing, part):
                                yield messages
                                self.position = messages[-1].position  # Not before: a caller may give up.
                            await asyncio.sleep(0)
                self.position = span.passed(index.offset)
                if index.offset >= thin_at:
                    stored = await self._index_at(index.framing, index.offset)
                    index, thin_at = thinned(index, stored), index.offset + THIN_BYTES

    async def _begin(self, create_revision: int) -> Position:
        """Where to start.

        Raises:
            NotFound: the kept position is of another journal of the name.
        """
        start = self._start if self.position is None else self.position
        if isinstance(start, Position):
            if start.create_revision != create_revision:
                raise NotFound(
                    f"journal {self.journal} was deleted and made again since the position was kept (create "
                    f"revision {start.create_revision}, now {create_revision}): start at 'earliest'"
                )
            return start
        begin = (await self._journals.status(self.journal, timeout=self._patience)).begin or 0
        if start == LATEST:
            start = await self._journals.end(self.journal, timeout=self._patience)
        return Position(start if isinstance(start, int) else begin, create_revision, begin=begin)

    async def _index_at(self, framing: Framing, offset: int) -> ProducerIndex:
        """The newest producer index at or below `offset`."""
        found = await self._journals.producer_index(self.journal, offset, patience=self._patience)
        return index_from(found.encoded, found.offset, framing=framing, journal=self.journal, asked=offset)

    async def _rows(
        self, index: ProducerIndex, frames: Frames, content: bytes, start: int
    ) -> AsyncGenerator[Rows | ProducerIndex]:
        """The rows that a block gives, piece by piece, then the index behind it."""
        if not self._is_committed:
            chosen = frames.take((frames.end > start) & frames.has_data & (frames.flags != Flag.ACK))
            shift = np.full(len(chosen.begin), -int(index.offset), np.int64)
            yield Rows(chosen, shift, np.frombuffer(content, np.uint8))
            yield begun(index.framing, ByteOffset(int(frames.end[-1])))
            return
        wanted = replays(index, frames, max(start, index.offset))
        low = min((replay.begin for replay in wanted.values()), default=index.offset)
        is_near = index.offset - low <= AHEAD_BYTES_MAX
        ahead = await self._bytes(low, index.offset) if wanted and is_near else b""

        def near(begin: int, end: int) -> Iterator[bytes]:
            yield ahead[begin - low : end - low]

        is_over = threading.Event()
        read: Read = near if is_near else self._far(asyncio.get_running_loop(), is_over)
        found = committed(index, frames, content, read, start, bytes_max=REPLAY_BYTES_MAX)
        try:
            while True:
                rows = _following(found) if is_near else await asyncio.to_thread(_following, found)
                yield rows
                if isinstance(rows, ProducerIndex):
                    return
        finally:
            is_over.set()

    async def _bytes(self, begin: int, end: int) -> bytes:
        return b"".join([chunk.data async for chunk in self._read(begin, end)])

    def _read(self, begin: int, end: int) -> AsyncGenerator[Chunk]:
        """Bytes that are known to be committed, of this journal and no later one of its name."""
        assert self.position is not None, "a reader that has a block knows where it is"
        return self._journals.read(
            self.journal,
            begin,
            end=end,
            is_whole=True,
            patience=self._patience,
            create_revision=self.position.create_revision,
        )

    def _far(self, loop: asyncio.AbstractEventLoop, is_over: threading.Event) -> Read:
        """Reads bytes from another thread than the loop's, until nobody wants them any more."""

        def read(begin: int, end: int) -> Iterator[bytes]:
            chunks = self._read(begin, end)
            try:
                while not is_over.is_set():
                    chunk = asyncio.run_coroutine_threadsafe(anext(chunks, None), loop).result()
                    if chunk is None:
                        return
                    yield chunk.data
            finally:
                with suppress(RuntimeError):  # The loop has ended.
                    asyncio.run_coroutine_threadsafe(chunks.aclose(), loop)

        return read


class _Span:
    """Counts what was given since an offset up to which everything was."""

    def __init__(self, here: Position) -> None:
        self.here = here._replace(delivered=0)
        self._skip = here.delivered
        """Messages that the reader of the kept position has had already."""
        self._count = 0

    def messages(self, journal: str, framing: Framing, rows: Rows) -> list[Message]:
        """The messages of `rows` that were not given before."""
        skipped = min(self._skip, len(rows.frames.begin))
        self._skip -= skipped
        first, self._count = self._count + skipped, self._count + len(rows.frames.begin)
        frames, shift = rows.frames.take(np.arange(skipped, len(rows.frames.begin))), rows.shift[skipped:]
        is_json, raw = framing.kind is Kind.JSON_LINES, rows.raw.data
        head = 0 if is_json else HEADER.size + np.where(frames.clock != 0, UUID_BYTES, 0)
        begins, ends = frames.begin + shift + head, frames.end + shift - (1 if is_json else 0)
        offset, create_revision, _, begun_at = self.here
        columns = (*(frames[:5]), begins, ends)
        return [
            Message(
                journal=journal,
                value=bytes(raw[low:high]),
                offset=begin,
                end=end,
                id=MessageId(ProducerId(producer), Clock(clock), flags),
                position=Position(offset, create_revision, number, begun_at),
                framing=framing,
            )
            for number, (begin, end, producer, clock, flags, low, high) in enumerate(
                zip(*(column.tolist() for column in columns), strict=True), first + 1
            )
        ]

    def passed(self, offset: int) -> Position:
        """Everything that is committed at or below `offset` was given; returns the position there."""
        if offset > self.here.offset:
            self.here, self._count = self.here._replace(offset=offset), 0
        return self.here._replace(delivered=self._count + self._skip)


def _portions(rows: Rows) -> Iterator[Rows]:
    """The rows of a block, `MESSAGES_IN_A_ROW` at a time."""
    for at in range(0, len(rows.shift), MESSAGES_IN_A_ROW):
        chosen = np.arange(at, min(at + MESSAGES_IN_A_ROW, len(rows.shift)))
        yield Rows(rows.frames.take(chosen), rows.shift[chosen], rows.raw)


def _following(found: Generator[Rows, None, ProducerIndex]) -> Rows | ProducerIndex:
    """The next rows, or the index at the end."""
    try:
        return next(found)
    except StopIteration as ended:
        index: ProducerIndex = ended.value
        return index
