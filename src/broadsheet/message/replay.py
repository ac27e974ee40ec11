"""Replay: fetches messages that lie before a block of a journal and whose acknowledgement lies in the block.

If the messages fit into the allowed memory, they are read at once. Otherwise they are read for a few
producers at a time, in the order of the acknowledgements. The messages of a producer that does not fit alone
are streamed, a few MiB at a time. The rows and their order are the same in all three cases: those that one
sequencer would give. Units: byte offsets of the journal. Source: pipelines.5; paper "Message UUIDs".
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from broadsheet.message.columns import Bytes, Frames, Int, frames_of
from broadsheet.message.producer_state import ProducerIndex
from broadsheet.message.spans import Replay, reopened, replays, sequence
from broadsheet.message.uuid import Flag, ProducerId

Read = Callable[[int, int], Iterator[bytes]]
"""Reads the bytes `[begin, end)` of the journal."""
Wanted = Mapping[ProducerId, Replay]
"""The producers whose earlier messages the block commits, in the order of their acknowledgements."""


class Rows(NamedTuple):
    """Committed messages in commit order, and where their bytes are."""

    frames: Frames
    shift: Int
    """Frame `i` begins at `raw[frames.begin[i] + shift[i]]`."""
    raw: Bytes


def committed(
    index: ProducerIndex, frames: Frames, content: bytes, read: Read, start: int, *, bytes_max: int
) -> Generator[Rows, None, ProducerIndex]:
    """Yield the messages that a block commits above `start`, earlier pending messages included.

    A block is sequenced once if it commits no message that lies before it. Otherwise it is sequenced again
    with the earlier messages in front of it.

    Args:
        index: the producers' states at the beginning of the block.
        content: the block's bytes.
        bytes_max: how many bytes of earlier messages are in memory at once.

    Returns:
        The producers' states after the block.
    """
    block, start = _Block(index, frames, content, read), max(start, int(index.offset))
    wanted = replays(index, frames, start)
    if not wanted:
        found = sequence(index, frames, start)
        yield Rows(frames.take(found.rows), block.shift[found.rows], np.frombuffer(content, np.uint8))
        return found.after
    after = sequence(index, frames, start).after
    held = block.held(wanted, bytes_max)
    if held is not None:
        yield block.rows(len(frames.begin), start, wanted, held)
        return after
    for group, size in _groups(wanted, block.pending_bytes(wanted), bytes_max):
        at = max(replay.at for replay in group.values())
        held = block.held(group, bytes_max) if size <= bytes_max else None
        if held is not None:
            yield block.rows(at + 1, start, group, held)
        else:
            ((producer, replay),) = group.items()
            yield block.rows(at, start)
            yield from block.streamed(producer, replay)
            yield block.rows(at + 1, max(start, block.end_before(at)))
        start = int(frames.end[at])
    yield block.rows(len(frames.begin), start)
    return after


class _Block:
    """A block of a journal's frames, whose acknowledgements commit messages that lie before it."""

    def __init__(self, index: ProducerIndex, frames: Frames, content: bytes, read: Read) -> None:
        self.index, self.frames, self.content, self.read = index, frames, content, read
        self.shift = np.full(len(frames.begin), -int(index.offset), np.int64)

    def end_before(self, at: int) -> int:
        """Where the frame before frame `at` ends."""
        return int(self.frames.end[at - 1]) if at else int(self.index.offset)

    def held(self, wanted: Wanted, bytes_max: int) -> "list[tuple[Frames, bytes]] | None":
        """The wanted producers' frames before the block; None if they have more than `bytes_max`."""
        kept: list[tuple[Frames, bytes]] = []
        held_bytes = 0
        for ours, content in self._earlier(wanted):
            held_bytes += len(content)
            if held_bytes > bytes_max:
                return None
            kept.append((ours, content))
        return kept

    def rows(
        self, count: int, start: int, wanted: Wanted | None = None, held: Sequence[tuple[Frames, bytes]] = ()
    ) -> Rows:
        """The rows above `start` that the first `count` frames of the block commit, in commit order.

        Args:
            wanted: the open spans that are replayed.
            held: the frames of these spans that lie before the block, with their bytes.
        """
        frames, shift = self.frames.take(np.arange(count)), self.shift[:count]
        if held:
            before = Frames.joined([ours for ours, _ in held])
            lengths = before.end - before.begin
            frames = Frames.joined([before, frames])
            shift = np.concatenate((np.cumsum(lengths) - lengths - before.begin, shift + int(lengths.sum())))
        rows = sequence(reopened(self.index, wanted or {}), frames, start).rows
        raw = np.frombuffer(b"".join([*(content for _, content in held), self.content]), np.uint8)
        return Rows(frames.take(rows), shift[rows], raw)

    def pending_bytes(self, wanted: Wanted) -> dict[ProducerId, int]:
        """How many bytes each wanted producer has pending before the block."""
        sizes = dict.fromkeys(wanted, 0)
        for ours, _ in self._earlier(wanted):
            for producer in np.unique(ours.producer).tolist():
                chosen = ours.producer == producer
                sizes[ProducerId(producer)] += int((ours.end[chosen] - ours.begin[chosen]).sum())
        return sizes

    def streamed(self, producer: ProducerId, replay: Replay) -> Iterator[Rows]:
        """The rows before the block that one acknowledgement of `producer` commits, a few MiB at a time."""
        acknowledged = self.frames.clock[replay.at]
        greatest = np.uint64(self.index.states[producer].last_ack)
        for ours, content in self._earlier({producer: replay}):
            lengths = ours.end - ours.begin
            clock = np.where(ours.flags == Flag.CONTINUE, ours.clock, np.uint64(0))
            running = np.maximum(np.maximum.accumulate(clock), greatest)
            is_new = clock > np.concatenate((np.array([greatest]), running[:-1]))
            greatest = running[-1]
            rows = np.flatnonzero(is_new & (clock <= acknowledged) & ours.has_data)
            shift = np.cumsum(lengths) - lengths - ours.begin
            yield Rows(ours.take(rows), shift[rows], np.frombuffer(content, np.uint8))

    def _earlier(self, wanted: Wanted) -> Iterator[tuple[Frames, bytes]]:
        """Read the wanted producers' frames before the block, with their bytes, a few MiB at a time."""
        producers = np.array(sorted(wanted), np.int64)
        begins = np.array([wanted[ProducerId(each)].begin for each in producers.tolist()], np.int64)
        at, rest = int(np.min(begins)), bytearray()
        for data in self.read(at, self.index.offset):
            rest += data
            content = bytes(rest)
            frames = frames_of(self.index.framing, content, at)
            if not len(frames.begin):
                continue
            place = np.minimum(np.searchsorted(producers, frames.producer), len(producers) - 1)
            # Frames before the producer's open span are settled. Sequencing them a second time would set
            # the producer's clock back, or make messages pending that were rolled back.
            ours = frames.take((producers[place] == frames.producer) & (frames.begin >= begins[place]))
            if len(ours.begin):
                yield ours, _taken(content, ours, at)
            rest = rest[int(frames.end[-1]) - at :]
            at = int(frames.end[-1])


def _taken(content: bytes, frames: Frames, base: int) -> bytes:
    """The bytes of the frames back to back. Neighbours are copied as one slice."""
    breaks = np.flatnonzero(frames.begin[1:] != frames.end[:-1]) + 1
    lows = frames.begin[np.concatenate((np.zeros(1, np.int64), breaks))] - base
    highs = frames.end[np.concatenate((breaks, np.array([len(frames.end)]))) - 1] - base
    return b"".join([content[low:high] for low, high in zip(lows.tolist(), highs.tolist(), strict=True)])


def _groups(wanted: Wanted, sizes: Mapping[ProducerId, int], bytes_max: int) -> Iterator[tuple[Wanted, int]]:
    """The producers to replay, in groups of at most `bytes_max`, in the order of their acknowledgements.

    Each group comes with its size in bytes. A group above the limit has a single producer.
    """
    group: dict[ProducerId, Replay] = {}
    size = 0
    for producer, replay in wanted.items():
        if group and size + sizes[producer] > bytes_max:
            yield group, size
            group, size = {}, 0
        group[producer] = replay
        size += sizes[producer]
    if group:
        yield group, size
