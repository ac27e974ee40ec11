"""Columns: checksums of many headers at once, and unary frames that arrive or leave in rows.

crc32c is affine over the bits of its input, so the checksum of a header is a constant xor one table entry
for each byte that varies; in a run of equal frames that is the stream's four. Sans-IO, and decides
nothing.
Source: reference/performance.md F; ADR 0044.
"""

from typing import Any, Final

import numpy as np
from crc32c import crc32c

from broadsheet.base.types import Buffer
from broadsheet.wire import frame as f

ROWS_MIN: Final = 24
"""Below it the fixed cost of numpy exceeds the loop's."""

U32Column = np.ndarray[Any, np.dtype[np.uint32]]

_HEADER: Final = np.dtype({"names": ["length", "stream", "word", "crc"], "formats": ["<u4"] * 4})
_STREAM_AT: Final = 4


def _table(place: int) -> U32Column:
    """What a byte at `place` of a header adds to its checksum."""
    zero = crc32c(bytes(12))
    rows = [crc32c(bytes(place) + bytes([value]) + bytes(11 - place)) ^ zero for value in range(256)]
    return np.array(rows, np.uint32)


_TABLES: Final = [_table(_STREAM_AT + place) for place in range(4)]


def header_crcs(length: int, word: int, streams: U32Column) -> U32Column:
    """The checksums of headers that differ in their stream only."""
    crcs: U32Column = np.full(len(streams), crc32c(f.HEADER.pack(length, 0, word, 0)[:12]), np.uint32)
    for place, table in enumerate(_TABLES):
        crcs ^= table[streams >> np.uint32(8 * place) & np.uint32(255)]
    return crcs


def equal_calls(buffer: bytearray, at: int, stride: int, count: int, last_stream: int) -> U32Column | None:
    """The streams of the CALL frames at `at` that are like the first one, where these are many.

    A frame is like the first if it has its length, word, method and timeout, a greater odd stream than the
    one before it, and a right checksum. What is not is left to the loop, which knows what to say.
    """
    columns = np.frombuffer(buffer, np.uint8, stride * count, at).reshape(count, stride)
    heads = columns[:, :24].copy().view("<u4")
    streams: U32Column = heads[:, 1]
    same = (heads[:, (0, 2, 4, 5)] == heads[0, (0, 2, 4, 5)]).all(axis=1)
    same[0] &= int(streams[0]) > last_stream
    same[1:] &= streams[1:] > streams[:-1]
    same &= streams & np.uint32(1) == 1
    same &= header_crcs(int(heads[0, 0]), int(heads[0, 2]), streams) == heads[:, 3]
    equal = count if same.all() else int(same.argmin())
    return streams[:equal] if equal >= ROWS_MIN else None


def has_one_body(view: memoryview, stride: int, count: int, body_bytes: int) -> bool:
    """Whether all of these frames have the very body of the first."""
    bodies = np.frombuffer(view, np.uint8, stride * count).reshape(count, stride)[:, 16 : 16 + body_bytes]
    return bool((bodies == bodies[0]).all())


def render_rows(
    kind: int, streams: list[int], body: bytes, payloads: list[Buffer], payload_bytes: int
) -> Buffer:
    """Frames of `kind` with one `body`, one for each stream and payload, which all have `payload_bytes`."""
    count, begin = len(streams), f.HEADER_BYTES + len(body)
    column = np.array(streams, np.uint32)
    length, word = len(body) + payload_bytes, kind | len(body) << f.WORD_BODY_SHIFT
    heads = np.empty(count, _HEADER)
    heads["length"], heads["stream"], heads["word"] = length, column, word
    heads["crc"] = header_crcs(length, word, column)
    out = np.empty((count, f.HEADER_BYTES + length), np.uint8)
    out[:, : f.HEADER_BYTES] = heads.view(np.uint8).reshape(-1, f.HEADER_BYTES)
    out[:, f.HEADER_BYTES : begin] = np.frombuffer(body, np.uint8)
    out[:, begin:] = np.frombuffer(b"".join(payloads), np.uint8).reshape(count, payload_bytes)
    return out.tobytes()
