"""Replay: gives what a block of a journal commits, with the messages that lie before it.

A message may lie far before its acknowledgement. Of the spans that are open a reader keeps what it has just
sequenced, while that fits into half of the allowed memory (`Recent`); what lies before it is read again.
Each such pass gives the messages of the first producer as they come, in the order of the acknowledgements,
and those of as many further producers as fit into the rest of the memory. What is kept are bytes of the
journal, and nothing that was decided about them: so the rows and their order are those that one sequencer
would give, whoever reads and whatever it keeps. Units: byte offsets of the journal. Source: pipelines.5;
ADR 0075, 0212; paper "Message UUIDs".
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from broadsheet.message.columns import Bool, Bytes, Frames, Int, frames_of
from broadsheet.message.producer_state import NOT_OPEN, ProducerIndex
from broadsheet.message.spans import Replay, reopened, replays, sequence
from broadsheet.message.uuid import ProducerId

Read = Callable[[int, int], Iterator[bytes]]
"""Reads the bytes `[begin, end)` of the journal."""
Wanted = Mapping[ProducerId, Replay]
"""The producers whose earlier messages the block commits, in the order of their acknowledgements."""
PORTION_BYTES: Final = 4 << 20
"""Of about so many bytes are the rows that are read, or brought together, at a time: each time costs 1 ms."""
SMALL_BYTES: Final = 1 << 20
"""What is kept of two blocks is put together below this size."""
FRAME_COLUMNS_BYTES: Final = 49
"""What the columns of a frame take in memory, beside its bytes."""
_NOTHING: Final = (1 << 63) - 1
"""An offset above which nothing is committed."""


class Rows(NamedTuple):
    """Some frames of a journal, and where their bytes are."""

    frames: Frames
    shift: Int
    """Frame `i` begins at `raw[frames.begin[i] + shift[i]]`."""
    raw: Bytes

    def take(self, rows: Int) -> "Rows":
        """The frames with these numbers."""
        return Rows(self.frames.take(rows), self.shift[rows], self.raw)


class _Spans:
    """Open spans of producers, and from where on each one goes."""

    def __init__(self, begins: Mapping[ProducerId, int]) -> None:
        self.producers = np.array(sorted(begins), np.int64)
        self.begins = np.array([begins[ProducerId(each)] for each in self.producers.tolist()], np.int64)

    def places(self, frames: Frames) -> Int:
        """Of each frame: the place of its producer in the order of their ids; any place if it has none."""
        return np.minimum(np.searchsorted(self.producers, frames.producer), len(self.producers) - 1)

    def among(self, rows: Rows) -> Rows:
        """The frames of the spans.

        Those before a producer's span are settled. Sequencing them a second time would set the producer's
        clock back, or make messages pending that were rolled back.
        """
        frames, place = rows.frames, self.places(rows.frames)
        ours: Bool = (self.producers[place] == frames.producer) & (frames.begin >= self.begins[place])
        return rows if ours.all() else rows.take(np.flatnonzero(ours))


class Recent:
    """The frames of open spans among what a reader sequenced last, with their bytes.

    Invariant: `begin` is a frame boundary, and all frames of the open spans from there on are kept.
    """

    def __init__(self, begin: int, bytes_max: int) -> None:
        """Keep frames from `begin` on, and of them the newest that take `bytes_max` in memory."""
        self.begin, self.bytes_max = begin, bytes_max
        self.bytes = 0
        self._blocks: list[tuple[int, Rows]] = []
        """What is kept of each block, and where the block ends."""
        self._open: dict[ProducerId, int] = {}

    def among(self, spans: _Spans) -> Iterator[Rows]:
        """The frames of these open spans, in order."""
        for _, rows in self._blocks:
            yield spans.among(rows)

    def add(self, block: Rows, after: ProducerIndex) -> None:
        """Keep what is open after the next block, and drop what is not open any more.

        Args:
            after: the producers' states at the block's end.
        """
        before, self._open = self._open, {p: s.begin for p, s in after.states.items() if s.begin != NOT_OPEN}
        if not self._open:
            self._blocks, self.bytes = [], 0
            return
        spans = _Spans(self._open)
        if any(self._open.get(producer) != begin for producer, begin in before.items()):
            self._blocks = [(end, _apart(spans.among(rows), rows)) for end, rows in self._blocks]
        self._blocks.append((int(after.offset), _apart(spans.among(block), block)))
        self._blocks = [each for each in self._blocks if len(each[1].shift)]
        if len(self._blocks) > 1 and sum(_size(rows) for _, rows in self._blocks[-2:]) < SMALL_BYTES:
            (_, former), (end, latter) = self._blocks[-2:]
            self._blocks[-2:] = [(end, _copied(former, latter))]
        self.bytes = sum(_size(rows) for _, rows in self._blocks)
        while self.bytes > self.bytes_max:
            self.begin, dropped = self._blocks.pop(0)
            self.bytes -= _size(dropped)


def committed(
    index: ProducerIndex,
    frames: Frames,
    content: bytes,
    read: Read,
    start: int,
    *,
    bytes_max: int,
    recent: Recent | None = None,
) -> Generator[Rows, None, ProducerIndex]:
    """Yield the messages that a block commits above `start`, earlier pending messages included.

    Args:
        index: the producers' states at the beginning of the block.
        content: the block's bytes.
        bytes_max: how many bytes of earlier messages are in memory at once, those of `recent` included.
        recent: what the reader keeps of the blocks before. This block is added to it.

    Returns:
        The producers' states after the block.
    """
    block = _Block(index, frames, content, read, recent or Recent(int(index.offset), 0))
    start = max(start, int(index.offset))
    found = sequence(index, frames, start)
    wanted: Wanted = replays(index, frames, start)
    if not wanted:
        yield block.rows.take(found.rows)
    while wanted:
        wanted, start = yield from block.replayed(wanted, start, bytes_max)
    if recent is not None:
        recent.add(block.rows, found.after)
    return found.after


class _Block:
    """A block of a journal's frames, whose acknowledgements commit messages that lie before it."""

    def __init__(
        self, index: ProducerIndex, frames: Frames, content: bytes, read: Read, recent: Recent
    ) -> None:
        self.index, self.read, self.recent = index, read, recent
        self.rows = _placed(frames, content, int(index.offset))

    def replayed(
        self, wanted: Wanted, start: int, bytes_max: int
    ) -> Generator[Rows, None, tuple[Wanted, int]]:
        """Yield the rows above `start`, in one pass over what lies before the block.

        Returns:
            The producers whose messages did not fit, and the end of what the others commit.
        """
        frames = self.rows.frames
        first = next(iter(wanted.values())).at
        yield self.rows.take(sequence(self.index, frames.take(np.arange(first)), start).rows)
        held = _Held(wanted, frames, bytes_max - self.recent.bytes)
        opened = reopened(self.index, wanted)
        state = replace(opened, states={each: opened.states[each] for each in wanted}, forgotten={})
        for rows, is_kept in self._earlier(held.spans, min(PORTION_BYTES, bytes_max // 16)):
            found = sequence(state, rows.frames, _NOTHING)
            state = found.after
            yield held.taken(rows.take(found.pending), is_kept=is_kept)
        left = dict([*wanted.items()][held.count :])
        count = min(replay.at for replay in left.values()) if left else len(frames.begin)
        own = frames.take(np.arange(count))
        start = max(start, int(frames.end[first - 1]) if first else 0)
        found = sequence(replace(self.index, states=self.index.states | state.states), own, start)
        yield from _merged([*held.parts, (self.rows.take(found.rows), found.at)])
        return left, int(own.end[-1])

    def _earlier(self, spans: _Spans, portion_bytes: int) -> Iterator[tuple[Rows, bool]]:
        """The spans' frames before the block, in order, and whether they were kept."""
        at, rest = int(np.min(spans.begins)), bytearray()
        for data in self.read(at, self.recent.begin) if at < self.recent.begin else ():
            rest += data
            if len(rest) < portion_bytes and at + len(rest) < self.recent.begin:
                continue
            content = bytes(rest)
            frames = frames_of(self.index.framing, content, at)
            if not len(frames.begin):
                continue
            yield spans.among(_placed(frames, content, at)), False
            rest = rest[int(frames.end[-1]) - at :]
            at = int(frames.end[-1])
        for rows in self.recent.among(spans):
            yield rows, True


class _Held:
    """The messages of one pass that wait, until those of the producers before them were given.

    The producers are numbered in the order of their acknowledgements. Those of the first do not wait.
    """

    def __init__(self, wanted: Wanted, frames: Frames, bytes_max: int) -> None:
        self.spans = _Spans({producer: replay.begin for producer, replay in wanted.items()})
        self.bytes_max = bytes_max
        self.count = len(wanted)
        """How many producers this pass gives."""
        self.parts: list[tuple[Rows, Int]] = []
        """What is held, and of each message the end of the frame that commits it."""
        numbers = {producer: number for number, producer in enumerate(wanted)}
        self._number = np.array([numbers[ProducerId(each)] for each in self.spans.producers.tolist()])
        self._ack = np.array([replay.at for replay in wanted.values()], np.int64)
        self._clock, self._end = frames.clock[self._ack], frames.end[self._ack]
        self._sizes = np.zeros(len(wanted), np.int64)

    def taken(self, rows: Rows, *, is_kept: bool) -> Rows:
        """Those of these pending messages that the first producer commits; of the others, hold what fits.

        Args:
            is_kept: they are in memory anyway.
        """
        number = self._number[self.spans.places(rows.frames)]
        ours = (rows.frames.clock <= self._clock[number]) & rows.frames.has_data & (number < self.count)
        later = np.flatnonzero(ours & (number > 0))
        if len(later):
            held = rows.take(later)
            if not is_kept:
                held = _copied(held)
                np.add.at(self._sizes, number[later], held.frames.end - held.frames.begin)
            self.parts.append((held, self._end[number[later]]))
            self._drop()
        return rows.take(np.flatnonzero(ours & (number == 0)))

    def _drop(self) -> None:
        """Leave the last producers to another pass if what is held is too much."""
        fitting = 1 + int(np.searchsorted(np.cumsum(self._sizes[1:]), self.bytes_max, "right"))
        if fitting >= self.count:
            return
        self.count = fitting
        parts, self.parts = self.parts, []
        for rows, at in parts:
            stays = np.flatnonzero(at < self._end[fitting])
            self.parts.append((rows if len(stays) == len(at) else _copied(rows.take(stays)), at[stays]))


def _placed(frames: Frames, content: bytes, base: int) -> Rows:
    """Frames whose bytes are in `content`, which begins at `base`."""
    return Rows(frames, np.full(len(frames.begin), -base, np.int64), np.frombuffer(content, np.uint8))


def _merged(parts: list[tuple[Rows, Int]]) -> Iterator[Rows]:
    """All rows of some parts in commit order.

    Args:
        parts: rows, and of each row the end of the frame that commits it.
    """
    if len(parts) == 1:
        yield parts[0][0]
        return
    joined = _Joined([rows for rows, _ in parts])
    begin, end = joined.frames.begin, joined.frames.end
    order = np.lexsort((begin, np.concatenate([at for _, at in parts])))
    portion = np.cumsum((end - begin)[order]) // PORTION_BYTES
    for chosen in np.split(order, np.flatnonzero(np.diff(portion)) + 1):
        yield joined.copied(chosen)


class _Joined:
    """The frames of some parts, one part after the other."""

    def __init__(self, parts: list[Rows]) -> None:
        self.frames = Frames.joined([rows.frames for rows in parts])
        self._part = np.repeat(np.arange(len(parts)), [len(rows.shift) for rows in parts])
        self._low = np.concatenate([rows.frames.begin + rows.shift for rows in parts])
        self._raws = [rows.raw.data for rows in parts]

    def copied(self, chosen: Int | slice) -> Rows:
        """Frames with their bytes back to back in memory of their own. Neighbours are copied as one slice."""
        frames, part, low = self.frames.take(chosen), self._part[chosen], self._low[chosen]
        lengths = frames.end - frames.begin
        high = low + lengths
        is_first = np.ones(len(low), np.bool_)
        is_first[1:] = (low[1:] != high[:-1]) | (part[1:] != part[:-1])
        first = np.flatnonzero(is_first)
        last = np.append(first[1:], len(low))[: len(first)] - 1
        slices = zip(part[first].tolist(), low[first].tolist(), high[last].tolist(), strict=True)
        content = b"".join([self._raws[each][begin:end] for each, begin, end in slices])
        return Rows(frames, np.cumsum(lengths) - lengths - frames.begin, np.frombuffer(content, np.uint8))


def _copied(*parts: Rows) -> Rows:
    """The frames of all parts, with their bytes and no others in memory of their own."""
    return _Joined([*parts]).copied(slice(None))


def _apart(some: Rows, rows: Rows) -> Rows:
    """Some frames of `rows`, without the bytes of the others."""
    return rows if some is rows else _copied(some)


def _size(rows: Rows) -> int:
    return len(rows.raw) + FRAME_COLUMNS_BYTES * len(rows.shift)
