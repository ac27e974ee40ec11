"""Columns: many unary frames of equal shape are checked, or made, at once with numpy.

crc32c is affine over the bits of its input. So the checksum of a header is a constant, xor one table entry
for each part that varies. Between frames of equal shape only the two halves of the stream number vary. This
module does no IO and decides nothing. Source: ADR 0044.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from crc32c import crc32c

from broadsheet.base.types import Buffer
from broadsheet.wire import frame as f
from broadsheet.wire.method import Reply

ROWS_MIN: Final = 24
"""With fewer frames the fixed cost of numpy exceeds that of a loop."""

U32Column = np.ndarray[Any, np.dtype[np.uint32]]

_HEADER: Final = np.dtype({"names": ["length", "stream", "word", "crc"], "formats": ["<u4"] * 4})
_HEAD_BYTES: Final = f.HEADER_BYTES + f.CALL_HEAD.size
_STREAM_AT: Final = 4


def _table(place: int) -> U32Column:
    """What the two bytes at `place` of a header add to its checksum."""
    zero = crc32c(bytes(12))
    low, high = (
        np.array(
            [crc32c(bytes(at) + bytes([value]) + bytes(11 - at)) ^ zero for value in range(256)], np.uint32
        )
        for at in (place, place + 1)
    )
    return (high[:, None] ^ low).ravel()


_LOW: Final = _table(_STREAM_AT)
_HIGH: Final = _table(_STREAM_AT + 2)


def header_crcs(length: int, word: int, streams: U32Column) -> U32Column:
    """The checksums of headers that differ only in their stream."""
    crcs: U32Column = np.take(_LOW, streams & np.uint32(0xFFFF))
    crcs ^= np.take(_HIGH, streams >> np.uint32(16))
    crcs ^= np.uint32(crc32c(f.HEADER.pack(length, 0, word, 0)[:12]))
    return crcs


def equal_calls(buffer: bytearray, at: int, stride: int, count: int) -> Sequence[int] | None:
    """The streams of the CALL frames at `at` that are like the first; None if they are few.

    The first has been checked. A frame is like it if it has the same length, word, method and timeout, a
    greater odd stream than the frame before it, and a right checksum. Other frames are left to the loop,
    which reports their errors.
    """
    frames = np.frombuffer(buffer, _parts_dtype(_HEAD_BYTES, stride - _HEAD_BYTES), count, at)
    heads = frames["head"].copy().view("<u4").reshape(count, _HEAD_BYTES // 4)
    length, word, method, timeout = (int(heads[0, place]) for place in (0, 2, 4, 5))
    streams: U32Column = heads[:, 1].copy()
    same = header_crcs(length, word, streams) == heads[:, 3]
    same &= heads[:, 0] == length
    same &= heads[:, 2] == word
    same &= heads[:, 4] == method
    same &= heads[:, 5] == timeout
    same &= (streams & np.uint32(1)).view(np.bool_)[::4]
    same[1:] &= streams[1:] > streams[:-1]
    equal = count if same.all() else int(same.argmin())
    return array("I", streams[:equal].tobytes()) if equal >= ROWS_MIN else None


def has_one_body(view: memoryview, stride: int, count: int, body_bytes: int) -> bool:
    """Whether all of these frames have the same body as the first."""
    parts = _parts_dtype(f.HEADER_BYTES, body_bytes, stride - f.HEADER_BYTES - body_bytes)
    bodies: bytes = np.frombuffer(view, parts, count)["body"].tobytes()
    return bodies == bodies[:body_bytes] * count


def one_form(replies: list[Reply]) -> list[Buffer] | None:
    """The payloads of replies with the same body and one part of the same length; otherwise None."""
    bodies = [reply.body for reply in replies]
    parts = [reply.payload for reply in replies]
    if bodies.count(bodies[0]) < len(replies) or list(map(len, parts)).count(1) < len(replies):
        return None
    payloads = [part[0] for part in parts]
    sizes = list(map(len, payloads))
    return payloads if sizes.count(sizes[0]) == len(replies) else None


def render_rows(kind: int, streams: Sequence[int], body: bytes, payloads: list[Buffer]) -> Buffer:
    """Frames of `kind`, one for each stream, with the same `body`, and payloads of equal length."""
    payload_bytes = len(payloads[0])
    length, word = len(body) + payload_bytes, kind | len(body) << f.WORD_BODY_SHIFT
    heads = np.empty(len(streams), _HEADER)
    numbers = np.array(streams, np.uint32)
    heads["length"], heads["stream"], heads["word"] = length, numbers, word
    heads["crc"] = header_crcs(length, word, numbers)
    out = np.empty(len(streams), _parts_dtype(f.HEADER_BYTES, len(body), payload_bytes))
    out["head"] = heads.view(f"V{f.HEADER_BYTES}")
    if body:
        out["body"] = np.frombuffer(body, f"V{len(body)}")
    if payload_bytes:
        out["payload"] = np.frombuffer(b"".join(payloads), f"V{payload_bytes}")
    return out.tobytes()


@lru_cache(maxsize=1024)
def _parts_dtype(head: int, body: int, payload: int = 0) -> "np.dtype[np.void]":
    """The numpy type of frames of equal parts, one behind another."""
    names, sizes = ("head", "body", "payload"), (head, body, payload)
    offsets = [0, head, head + body]
    chosen = [place for place in range(3) if sizes[place]]
    return np.dtype({
        "names": [names[place] for place in chosen],
        "formats": [f"V{sizes[place]}" for place in chosen],
        "offsets": [offsets[place] for place in chosen],
        "itemsize": sum(sizes),
    })  # fmt: skip
