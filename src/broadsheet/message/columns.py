"""Columns: the frames of a span of a journal as numpy columns.

The result is the same as that of `framing.scan` and `uuid.unpack`, which define it; Hypothesis compares the
two. Units: offsets are the journal's, spans are half open, clocks are unsigned 64 bits, and 0 means "no
UUID". This module does not decide which messages are committed. Source: journals.28.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadsheet.message.framing import (
    FRAME_BYTES_MAX,
    HEADER,
    MAGIC,
    Framing,
    Kind,
    line_id,
    next_fixed,
    refuse_long,
)
from broadsheet.message.uuid import TEXT_BYTES, UUID_BYTES

Int = NDArray[np.int64]
Clocks = NDArray[np.uint64]
Bool = NDArray[np.bool_]
Bytes = NDArray[np.uint8]

_DASH_AT: Final = np.array([8, 13, 18, 23])
_DIGIT_AT: Final = np.array([at for at in range(TEXT_BYTES) if at not in (8, 13, 18, 23)])
_GROUPS: Final = ((0, 0, 8), (9, 8, 12), (14, 12, 16), (19, 16, 20), (24, 20, 32))
"""Groups of a UUID's text, as (position in the text, first digit, end of digits)."""
_TWO_DIGITS: Final = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
_IS_BLANK: Final[Bool] = np.isin(np.arange(256), list(b" \t\n\r\v\f"))
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

    def take(self, rows: Int | Bool | slice) -> "Frames":
        """The frames at `rows`, as columns."""
        return Frames(
            self.begin[rows],
            self.end[rows],
            self.producer[rows],
            self.clock[rows],
            self.flags[rows],
            self.has_data[rows],
        )

    @staticmethod
    def joined(parts: "list[Frames]") -> "Frames":
        """The frames of all `parts`, one part after the other."""
        return Frames(
            np.concatenate([part.begin for part in parts]),
            np.concatenate([part.end for part in parts]),
            np.concatenate([part.producer for part in parts]),
            np.concatenate([part.clock for part in parts]),
            np.concatenate([part.flags for part in parts]),
            np.concatenate([part.has_data for part in parts]),
        )


def frames_of(framing: Framing, content: bytes | memoryview, base: int) -> Frames:
    """The whole frames of `content` as columns, its first byte at `base`. A partial last frame is left out.

    Raises:
        Corrupt: `FRAME_BYTES_MAX` bytes follow each other without the end of a frame.
    """
    raw = np.frombuffer(content, np.uint8)
    return (
        _lines(framing, raw, base) if framing.kind is Kind.JSON_LINES else _fixed(bytes(content), raw, base)
    )


def ids_of(uuids: Bytes) -> tuple[Int, Clocks, Int]:
    """Columns producer, clock and flags of UUIDs of shape (count, 16); zeros if a UUID is not version 1."""
    words = np.ascontiguousarray(uuids).view(">u8").astype(np.uint64)
    high, low = words[:, 0], words[:, 1]
    time = (high & 0xFFF) << 48 | (high >> 16 & 0xFFFF) << 32 | high >> 32
    sequence = low >> 48
    clock = time << 4 | sequence >> 10 & 0xF
    valid = (high >> 12 & 0xF == 1) & (sequence >> 14 == 2) & (clock != 0)
    producer = (low & 0xFFFFFFFFFFFF).astype(np.int64)
    flags = (sequence & 0x3FF).astype(np.int64)
    return np.where(valid, producer, 0), np.where(valid, clock, np.uint64(0)), np.where(valid, flags, 0)


def uuids_of(producer: int | Int, clocks: Clocks, flags: int | Int) -> Bytes:
    """The inverse of `ids_of`, of one publisher or of several: shape (count, 16)."""
    time = clocks >> 4
    high = (time & 0xFFFFFFFF) << 32 | (time >> 32 & 0xFFFF) << 16 | time >> 48 & 0xFFF | 0x1000
    low = (np.asarray(flags, np.uint64) | 0x8000 | (clocks & 0xF) << 10) << 48 | np.asarray(
        producer, np.uint64
    )
    words = np.empty((len(clocks), 2), ">u8")
    words[:, 0], words[:, 1] = high, low
    return words.view(np.uint8).reshape(-1, UUID_BYTES)


def texts_of(uuids: Bytes) -> Bytes:
    """The 36 characters of each UUID: shape (count, 36)."""
    texts = np.full((len(uuids), TEXT_BYTES), ord("-"), np.uint8)
    digits = np.ascontiguousarray(_TWO_DIGITS[uuids]).view(np.uint8)
    for at, begin, end in _GROUPS:
        texts[:, at : at + end - begin] = digits[:, begin:end]
    return texts


def _windows(raw: Bytes, begins: Int, width: int) -> Bytes:
    """The `width` bytes from each of `begins` on, copied at once: shape (count, width)."""
    items = np.ndarray((len(raw) - width + 1,), np.dtype((np.void, width)), raw.data, strides=(1,))
    return items[begins].view(np.uint8).reshape(-1, width)


def _lines(framing: Framing, raw: Bytes, base: int) -> Frames:
    ends = np.flatnonzero(raw == ord("\n")) + 1
    begins = np.concatenate((np.zeros(1, np.int64), ends[:-1])) if len(ends) else ends
    if len(ends):
        longest = int(np.argmax(ends - begins))
        refuse_long(int(ends[longest] - begins[longest]), base + int(begins[longest]))
    refuse_long(len(raw) - (int(ends[-1]) if len(ends) else 0), base + (int(ends[-1]) if len(ends) else 0))
    prefix = framing.prefix()
    head = len(prefix) + TEXT_BYTES + 1
    producer, clock = np.zeros(len(ends), np.int64), np.zeros(len(ends), np.uint64)
    flags, is_ours = np.zeros(len(ends), np.int64), np.zeros(len(ends), np.bool_)
    # A shorter line has no room for a UUID at its field: a MiB of them would take 200 MiB here, and seconds
    # to parse.
    rows = np.flatnonzero(ends - begins > head)
    if len(rows):
        texts = _windows(raw, begins[rows], head)
        text = texts[:, len(prefix) : -1]
        nibbles = _DIGITS[text[:, _DIGIT_AT]]
        uuids = (nibbles[:, 0::2] << 4 | nibbles[:, 1::2] & 0xF).astype(np.uint8, copy=False)
        producer[rows], clock[rows], flags[rows] = ids_of(uuids)
        by_place = (texts[:, : len(prefix)] == np.frombuffer(prefix, np.uint8)).all(axis=1)
        by_place &= (texts[:, -1] == ord('"')) & (clock[rows] != 0)
        by_place &= (text[:, _DASH_AT] == ord("-")).all(axis=1) & (nibbles != _NO_DIGIT).all(axis=1)
        is_ours[rows] = by_place
        for at in rows[~by_place].tolist():
            producer[at], clock[at], flags[at] = line_id(framing, raw[begins[at] : ends[at] - 1].tobytes())
    has_data = np.ones(len(ends), np.bool_)
    if not is_ours.all():
        has_data = np.logical_or.reduceat(~_IS_BLANK[raw[: ends[-1]]], begins)
    return Frames(begins + base, ends + base, producer, clock, flags, has_data)


def _fixed(content: bytes, raw: Bytes, base: int) -> Frames:
    begins, ends = _fixed_bounds(content, raw, base)
    has_uuid = np.flatnonzero(ends - begins >= HEADER.size + UUID_BYTES)
    uuids = np.zeros((len(begins), UUID_BYTES), np.uint8)
    if len(has_uuid):
        uuids[has_uuid] = _windows(raw, begins[has_uuid] + HEADER.size, UUID_BYTES)
    producer, clock, flags = ids_of(uuids)
    return Frames(begins + base, ends + base, producer, clock, flags, ends - begins > HEADER.size)


def _fixed_bounds(content: bytes, raw: Bytes, base: int) -> tuple[Int, Int]:
    """The bounds of all frames, by columns while frames follow each other without gaps, then one by one."""
    begins, ends = _chain(raw)
    at = int(ends[-1]) if len(ends) else 0
    more: list[tuple[int, int]] = []
    while (begin := next_fixed(content, at)) >= 0:
        end = begin + HEADER.size + HEADER.unpack_from(content, begin)[1]
        if end > len(content):
            break
        more.append((begin, end))
        at = end
    if begin < 0:
        refuse_long(len(content) - at, base + at)
    if more:
        rest = np.array(more, np.int64)
        begins, ends = np.concatenate((begins, rest[:, 0])), np.concatenate((ends, rest[:, 1]))
    return begins, ends


def _chain(raw: Bytes) -> tuple[Int, Int]:
    found = np.flatnonzero(raw[: max(0, len(raw) - HEADER.size + 1)] == MAGIC[0])
    for at in (1, 2, 3):
        found = found[raw[found + at] == MAGIC[at]]
    lengths = np.zeros(len(found), np.int64)
    for at in range(4):
        lengths |= raw[found + 4 + at].astype(np.int64) << 8 * at
    ends = found + HEADER.size + lengths
    expected = np.concatenate((np.zeros(1, np.int64), ends[:-1])) if len(found) else found
    good = (found == expected) & (ends <= len(raw)) & (ends - found <= FRAME_BYTES_MAX)
    count = len(good) if good.all() else int(np.argmin(good))
    return found[:count], ends[:count]
