"""Data path: received bytes become runs, and answers become bytes. Sans-IO; it decides nothing (code.4).

Record boundaries are found in three ways: many equal frames by a numpy stride, other frames by a loop, and
run frames by their table of lengths. Small records are copied out of the slab once, back to back: these bytes
are logged, and the slab becomes free. Large records are views. Measured: the stride is 1.2-5.5 times as fast
as the loop.
"""

import struct
from itertools import accumulate
from typing import Any, Final

import numpy as np
from crc32c import crc32c

from broadsheet.base.types import Buffer
from broadsheet.errors import RemoteProtocolError
from broadsheet.wire.frame import (
    ACK,
    AT_HEAD,
    HEADER,
    HEADER_BYTES,
    RECORD,
    RUN_ACK,
    U64,
    frame,
    header,
)

STRIDE_COUNT_MIN: Final = 48
"""With fewer frames numpy's fixed cost (about 10 us for a run) exceeds the cost of the loop."""
LOOP_COUNT_MAX: Final = 1024
"""Records that the loop takes in one go, which lasts half a millisecond: a read of 1 MiB may hold 60,000."""
COPY_BYTES_MAX: Final = 4096
"""Records up to this mean size are copied together; if it is larger, each record is a view."""
COLUMN_COUNT_MIN: Final = 16
"""So many acknowledgements, or more, are rendered by numpy."""
_CACHE_MAX: Final = 1024

ACK_BODY: Final = struct.Struct("<QQQ")
RUN_ACK_BODY: Final = struct.Struct("<QQQQ")
_HEAD_COLUMNS: Final = struct.Struct("<QQ")

Lengths = int | list[int] | np.ndarray[Any, np.dtype[np.uint32]]
"""The length of all records if they are equal; otherwise the length of each."""

_strides: dict[int, np.dtype[np.void]] = {}


def _stride_dtype(stride: int) -> np.dtype[np.void]:
    """A frame as two header columns and its payload."""
    dtype = _strides.get(stride)
    if dtype is None:
        if len(_strides) >= _CACHE_MAX:
            _strides.clear()
        dtype = _strides[stride] = np.dtype(
            {
                "names": ["low", "high", "payload"],
                "formats": ["<u8", "<u8", f"V{stride - HEADER_BYTES}"],
                "offsets": [0, 8, HEADER_BYTES],
                "itemsize": stride,
            }
        )
    return dtype


def header_crc(view: memoryview, at: int) -> int:
    """The checksum that the header at `at` must carry."""
    return crc32c(view[at : at + 12])


def find_equal(buffer: bytearray, at: int, length: int, count: int) -> int:
    """How many of `count` frames from `at` on have the same header as the first, which was verified."""
    frames = np.frombuffer(buffer, _stride_dtype(HEADER_BYTES + length), count, at)
    low, high = frames["low"], frames["high"]
    same = low == low[0]
    same &= high == high[0]
    return count if same.all() else int(same.argmin())


def copy_equal(buffer: bytearray, at: int, length: int, count: int) -> bytes:
    """The payloads of `count` equal frames, back to back."""
    if not length:
        return b""
    return np.frombuffer(buffer, _stride_dtype(HEADER_BYTES + length), count, at)["payload"].tobytes()


def take_records(  # noqa: PLR0917 - the hot loop's own variables.
    buffer: bytearray,
    view: memoryview,
    at: int,
    end: int,
    crcs: dict[int, int],
    count_max: int,
    length_max: int,
) -> tuple[int, int, int, Lengths, tuple[Buffer, ...]]:
    """Take whole RECORD frames of one stream from `at` on; the first is whole and its header verified.

    Args:
        crcs: verified header checksums of this stream by length, so that each is computed once.

    Returns:
        The place after the last frame taken; count, bytes and lengths of the records; and their content.

    Raises:
        RemoteProtocolError: a header's checksum or length is wrong. Nothing was taken.
    """
    unpack = HEADER.unpack_from
    length, stream, _word, _crc = unpack(buffer, at)
    stride = HEADER_BYTES + length
    count = min((end - at) // stride, count_max)
    if (
        count >= STRIDE_COUNT_MIN  # Two cheap probes before numpy's fixed cost.
        and unpack(buffer, at + stride)[0] == length
        and unpack(buffer, at + (STRIDE_COUNT_MIN - 1) * stride)[0] == length
    ):
        equal = find_equal(buffer, at, length, count)
        if equal >= STRIDE_COUNT_MIN:
            parts = _equal_parts(buffer, view, at, length, equal)
            return at + equal * stride, equal, equal * length, length, parts
    lengths: list[int] = []
    pieces: list[Buffer] = []
    known = crcs.get
    count_max = min(count_max, LOOP_COUNT_MAX)
    while end - at >= HEADER_BYTES and len(lengths) < count_max:
        length, other, word, crc = unpack(buffer, at)
        if other != stream or word != RECORD:
            break
        if known(length) != crc:
            _verify(view, at, crc, length, crcs, length_max)
        begin = at + HEADER_BYTES
        stop = begin + length
        if stop > end:
            break
        lengths.append(length)
        pieces.append(view[begin:stop])
        at = stop
    size = sum(lengths)
    if size <= COPY_BYTES_MAX * len(lengths):
        return at, len(lengths), size, lengths, (b"".join(pieces),)
    return at, len(lengths), size, lengths, tuple(pieces)


def _equal_parts(buffer: bytearray, view: memoryview, at: int, length: int, count: int) -> tuple[Buffer, ...]:
    if length <= COPY_BYTES_MAX:
        return (copy_equal(buffer, at, length, count),)
    stride = HEADER_BYTES + length
    return tuple([view[p + HEADER_BYTES : p + stride] for p in range(at, at + count * stride, stride)])


def _verify(  # noqa: PLR0917 - the hot loop's own variables.
    view: memoryview, at: int, crc: int, length: int, crcs: dict[int, int], length_max: int
) -> None:
    if header_crc(view, at) != crc:
        raise RemoteProtocolError("the checksum of a frame's header is wrong")
    if length > length_max:
        raise RemoteProtocolError(f"a frame of {length} bytes is above the limit of {length_max}")
    if len(crcs) >= _CACHE_MAX:
        crcs.clear()
    crcs[length] = crc


def run_lengths(body: memoryview, payload_bytes: int, count_max: int) -> tuple[int | None, int, Lengths]:
    """The table of a run frame: wanted offset, count, lengths.

    Raises:
        RemoteProtocolError: the lengths do not add up to the payload, or the table is empty or too long.
    """
    count, rest = divmod(len(body) - 8, 4)
    if rest or not 1 <= count <= count_max:
        raise RemoteProtocolError(
            f"a run frame with a table of {len(body) - 8} bytes: it must have 4 for each of 1 to {count_max} "
            "records"
        )
    at = U64.unpack_from(body)[0]
    lengths = np.frombuffer(body[8:], "<u4")
    size = int(lengths.sum(dtype=np.uint64))
    if size != payload_bytes:
        raise RemoteProtocolError(
            f"a run frame's lengths add up to {size}, and its payload has {payload_bytes} bytes"
        )
    return (None if at == AT_HEAD else at), count, lengths.copy()


def render_acks(stream: int, sequence: int, count: int, lengths: Lengths, begin: int) -> bytes:
    """One ACK frame for each record of a run whose first byte has the offset `begin`."""
    head = header(ACK, stream, body_bytes=24)
    if count < COLUMN_COUNT_MIN:
        each = [lengths] * count if isinstance(lengths, int) else [int(length) for length in lengths]
        bounds = list(accumulate(each, initial=begin))
        pack = ACK_BODY.pack
        return b"".join([head + pack(sequence + i, bounds[i], bounds[i + 1]) for i in range(count)])
    out = np.empty((count, 5), "<u8")
    out[:, 0], out[:, 1] = _HEAD_COLUMNS.unpack(head)
    out[:, 2] = np.arange(sequence, sequence + count, dtype=np.uint64)
    bounds_column = np.empty(count + 1, "<u8")
    bounds_column[0] = begin
    if isinstance(lengths, int):
        bounds_column[1:] = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(lengths) + np.uint64(begin)
    else:
        np.cumsum(np.asarray(lengths, np.uint64), out=bounds_column[1:])
        bounds_column[1:] += np.uint64(begin)
    out[:, 3], out[:, 4] = bounds_column[:-1], bounds_column[1:]
    return out.tobytes()


def render_run_ack(stream: int, sequence: int, count: int, *, begin: int, end: int) -> bytes:
    """The one answer to a run frame."""
    return frame(RUN_ACK, stream, RUN_ACK_BODY.pack(sequence, count, begin, end))
