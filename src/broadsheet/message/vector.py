"""Whole spans of messages at once, in numpy: frames as columns, and what of them is committed.

The same answer as `framing.scan` and `sequencer.Sequencer`, which say what is right; Hypothesis compares them. Columns are as in
`Frames`; offsets are the journal's, spans half open, clocks unsigned 64 bits with 0 for "no UUID".
How `sequence` works: sort by producer, keeping journal order; cut each producer's messages into *spans* that end at an acknowledgement or
at a committed OUTSIDE message, because after either the producer's state is exactly that message's clock; then everything else is a
comparison with a running maximum inside a span. It reads nothing: what began before the first frame is asked for by `replays`.
Source: paper "Message UUIDs"; reference/gazette 3.2; pipelines.2; journals.29.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadsheet.base.types import ByteOffset
from broadsheet.message import producer_state as ps
from broadsheet.message.framing import (
    FRAME_BYTES_MAX,
    HEADER,
    MAGIC,
    Framing,
    Kind,
    line_has_data,
    line_id,
    next_fixed,
    refuse_long,
)
from broadsheet.message.uuid import TEXT_BYTES, UUID_BYTES, Clock, Flag, ProducerId

Int = NDArray[np.int64]
Clocks = NDArray[np.uint64]
Bool = NDArray[np.bool_]
Bytes = NDArray[np.uint8]

_DASH_AT: Final = np.array([8, 13, 18, 23])
_DIGIT_AT: Final = np.array([at for at in range(TEXT_BYTES) if at not in (8, 13, 18, 23)])
_NO_DIGIT: Final = 0xFF
_DIGITS: Final[Bytes] = np.full(256, _NO_DIGIT, np.uint8)
_DIGITS[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_DIGITS[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)


class Frames(NamedTuple):
    """Frames of one journal as columns, in journal order."""

    begin: Int
    end: Int
    producer: Int
    clock: Clocks
    flags: Int
    has_data: Bool

    def take(self, rows: Int | Bool) -> "Frames":
        """The frames at `rows`."""
        return Frames(*(column[rows] for column in self))

    @staticmethod
    def joined(parts: "list[Frames]") -> "Frames":
        """One after the other."""
        return Frames(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class Sequenced(NamedTuple):
    """What of a span is committed, and what is known behind it."""

    rows: Int
    """Positions of the committed messages that hold data, in commit order."""
    index: ps.ProducerIndex
    """The index behind the last frame."""
    duplicate_count: int
    """Messages at or below a clock that was seen before."""
    rolled_back_count: int
    """Pending messages of this span that an acknowledgement of a smaller clock took back."""


def frames_of(framing: Framing, content: bytes | memoryview, base: int) -> Frames:
    """The whole frames of `content`, whose first byte stands at `base`; a partial last one is left.

    Raises:
        Corrupt: no frame ends within the limit.
    """
    raw = np.frombuffer(content, np.uint8)
    return _lines(framing, raw, base) if framing.kind is Kind.JSON_LINES else _fixed(bytes(content), raw, base)


def ids_of(uuids: Bytes) -> tuple[Int, Clocks, Int]:
    """Columns producer, clock and flags of an array of shape (count, 16); zeros where one is not of version 1."""
    words = np.ascontiguousarray(uuids).view(">u8").astype(np.uint64)
    high, low = words[:, 0], words[:, 1]
    time = (high & 0xFFF) << 48 | (high >> 16 & 0xFFFF) << 32 | high >> 32
    sequence = low >> 48
    clock = time << 4 | sequence >> 10 & 0xF
    valid = (high >> 12 & 0xF == 1) & (sequence >> 14 == 2) & (clock != 0)
    producer = (low & 0xFFFFFFFFFFFF).astype(np.int64)
    flags = (sequence & 0x3FF).astype(np.int64)
    return np.where(valid, producer, 0), np.where(valid, clock, np.uint64(0)), np.where(valid, flags, 0)


def uuids_of(producer: int, clocks: Clocks, flags: int) -> Bytes:
    """The inverse of `ids_of` for one publisher: shape (count, 16)."""
    time = clocks >> 4
    high = (time & 0xFFFFFFFF) << 32 | (time >> 32 & 0xFFFF) << 16 | time >> 48 & 0xFFF | 0x1000
    low = (np.uint64(0x8000 | flags) | (clocks & 0xF) << 10) << 48 | np.uint64(producer)
    words = np.empty((len(clocks), 2), ">u8")
    words[:, 0], words[:, 1] = high, low
    return words.view(np.uint8).reshape(-1, UUID_BYTES)


def texts_of(uuids: Bytes) -> Bytes:
    """The 36 characters of each UUID: shape (count, 36)."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    texts = np.full((len(uuids), TEXT_BYTES), ord("-"), np.uint8)
    nibbles = np.empty((len(uuids), 2 * UUID_BYTES), np.uint8)
    nibbles[:, 0::2], nibbles[:, 1::2] = uuids >> 4, uuids & 0xF
    texts[:, _DIGIT_AT] = digits[nibbles]
    return texts


def _lines(framing: Framing, raw: Bytes, base: int) -> Frames:
    ends = np.flatnonzero(raw == ord("\n")) + 1
    begins = np.concatenate((np.zeros(1, np.int64), ends[:-1])) if len(ends) else ends
    _refuse_longest(ends - begins, base)
    refuse_long(len(raw) - (int(ends[-1]) if len(ends) else 0), base + (int(ends[-1]) if len(ends) else 0))
    prefix, closing = framing.prefix(), framing.closing()
    head = len(prefix) + TEXT_BYTES + 1
    texts = np.zeros((len(ends), head), np.uint8)
    long_enough = np.flatnonzero(ends - begins > head)
    texts[long_enough] = np.lib.stride_tricks.sliding_window_view(raw, head)[begins[long_enough]] if len(
        long_enough
    ) else texts[long_enough]
    by_place = (texts[:, : len(prefix)] == np.frombuffer(prefix, np.uint8)).all(axis=1)
    by_place &= texts[:, -1] == ord('"')
    text = texts[:, len(prefix) : -1]
    by_place &= (text[:, _DASH_AT] == ord("-")).all(axis=1)
    nibbles = _DIGITS[text[:, _DIGIT_AT]]
    by_place &= (nibbles != _NO_DIGIT).all(axis=1)
    producer, clock, flags = ids_of(nibbles[:, 0::2] << 4 | nibbles[:, 1::2] & 0xF)
    by_place &= clock != 0
    producer[~by_place], clock[~by_place], flags[~by_place] = 0, 0, 0
    carrier = head + len(closing) - 1 + 1 + 1  # Closing braces of the path, of the object, and the newline.
    has_data = ends - begins > carrier
    for at in np.flatnonzero(~by_place | ~has_data).tolist():
        line = raw[begins[at] : ends[at] - 1].tobytes()
        producer[at], clock[at], flags[at] = line_id(framing, line)
        has_data[at] = line_has_data(framing, line)
    for at in np.flatnonzero(has_data & (ends - begins <= carrier + 64)).tolist():
        has_data[at] = line_has_data(framing, raw[begins[at] : ends[at] - 1].tobytes())
    return Frames(begins + base, ends + base, producer, clock, flags, has_data)


def _refuse_longest(lengths: Int, base: int) -> None:
    if len(lengths):
        refuse_long(int(lengths.max()), base)


def _fixed(content: bytes, raw: Bytes, base: int) -> Frames:
    begins, ends = _fixed_bounds(content, raw)
    has_uuid = np.flatnonzero(ends - begins >= HEADER.size + UUID_BYTES)
    uuids = np.zeros((len(begins), UUID_BYTES), np.uint8)
    if len(has_uuid):
        windows = np.lib.stride_tricks.sliding_window_view(raw, UUID_BYTES)
        uuids[has_uuid] = windows[begins[has_uuid] + HEADER.size]
    producer, clock, flags = ids_of(uuids)
    bare = HEADER.size + np.where(clock != 0, UUID_BYTES, 0)
    return Frames(begins + base, ends + base, producer, clock, flags, ends - begins > bare)


def _fixed_bounds(content: bytes, raw: Bytes) -> tuple[Int, Int]:
    """Every magic word, where they make one chain; else one frame after the other."""
    if len(raw) >= HEADER.size and content[:4] == MAGIC:
        length = HEADER.unpack_from(content)[1] + HEADER.size
        count = len(raw) // length
        same = raw[: count * length].reshape(count, length)[:, : HEADER.size]
        if length <= FRAME_BYTES_MAX and count * length == len(raw) and (same == raw[: HEADER.size]).all():
            begins = np.arange(count, dtype=np.int64) * length
            return begins, begins + length
    at, begins_list, ends_list = 0, [], []
    unpack = HEADER.unpack_from
    while True:
        begin = at
        if content[at : at + 4] != MAGIC or at + 8 > len(content) or unpack(content, at)[1] + 8 > FRAME_BYTES_MAX:
            begin = next_fixed(content, at)
        if begin < 0:
            refuse_long(len(content) - at, at)
            break
        end = begin + HEADER.size + unpack(content, begin)[1]
        if end > len(content):
            break
        begins_list.append(begin)
        ends_list.append(end)
        at = end
    return np.array(begins_list, np.int64), np.array(ends_list, np.int64)


def replays(index: ps.ProducerIndex, frames: Frames, start: int) -> dict[ProducerId, ByteOffset]:
    """Which open spans of `index` the frames commit at or above `start`, and where each begins.

    The caller reads from the smallest of these up to `index.offset`, keeps the frames of these producers, puts them in front and
    calls `sequence` with `index` for which `reopened` was called.
    """
    wanted: dict[ProducerId, ByteOffset] = {}
    open_now = {producer: state for producer, state in index.states.items() if state.begin != ps.NOT_OPEN}
    if not open_now:
        return wanted
    ours = np.isin(frames.producer, np.fromiter(open_now, np.int64, len(open_now)))
    for at in np.flatnonzero(ours & (frames.flags != Flag.CONTINUE) & (frames.clock != 0)).tolist():
        producer, clock = ProducerId(int(frames.producer[at])), int(frames.clock[at])
        state = open_now.get(producer)
        is_ack = frames.flags[at] == Flag.ACK
        if state is None or (not is_ack and clock <= state.last_ack):
            continue
        del open_now[producer]  # This message decides about the span, whatever comes later.
        if is_ack and clock > state.last_ack and frames.begin[at] >= start:
            wanted[producer] = state.begin
    return wanted


def reopened(index: ps.ProducerIndex, producers: dict[ProducerId, ByteOffset]) -> ps.ProducerIndex:
    """`index` as it was for `producers` just before their open spans began."""
    states = dict(index.states)
    for producer in producers:
        old = states[producer]
        states[producer] = ps.ProducerState(
            last_ack=old.last_ack, last=old.last_ack, begin=ps.NOT_OPEN, seen=old.seen
        )
    return ps.ProducerIndex(
        framing=index.framing, offset=index.offset, newest=index.newest, states=states, forgotten=index.forgotten
    )


def sequence(index: ps.ProducerIndex, frames: Frames, start: int = 0) -> Sequenced:
    """What `frames`, which follow `index`, commit at or above `start`.

    Args:
        start: an acknowledgement below it belongs to an earlier span; its messages are not given.

    Raises:
        SpanForgotten: an acknowledgement at or above `start` is for a span that was given up.
    """
    from broadsheet.message.spans import producer_spans  # noqa: PLC0415 - the two modules are one algorithm.

    return producer_spans(index, frames, start)


def advanced(index: ps.ProducerIndex, content: bytes | memoryview) -> ps.ProducerIndex:
    """`producer_state.update`."""
    frames = frames_of(index.framing, content, index.offset)
    if not len(frames.begin):
        return index
    after = sequence(index, frames, start=int(frames.end[-1])).index
    newest = max(after.newest, int(frames.clock.max()))
    return ps.ProducerIndex(
        framing=index.framing,
        offset=ByteOffset(int(frames.end[-1])),
        newest=Clock(newest),
        states=after.states,
        forgotten=after.forgotten,
    )
