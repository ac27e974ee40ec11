"""Calls are taken by column only if each of them would be taken alone."""

import numpy as np
import pytest

from broadsheet.base.checksum import crc32c
from broadsheet.wire import frame as f
from broadsheet.wire.columns import ROWS_MIN, equal_calls, header_crcs

BODY = b"\x90"


def calls(streams: list[int]) -> bytearray:
    content = f.CALL_HEAD.pack(8, 30_000) + BODY
    return bytearray(b"".join(f.frame(f.CALL, stream, content) for stream in streams))


@pytest.mark.parametrize(("place", "stream"), [(-1, 2), (-1, 7), (10, 7), (-1, 8)])
def test_a_call_whose_number_is_not_new_and_odd_ends_the_row(place: int, stream: int) -> None:
    """A stream number that was used before is a broken peer: two calls would have one answer."""
    streams = [7 + 2 * n for n in range(ROWS_MIN + 20)]
    whole = calls(streams)
    stride = len(whole) // len(streams)
    found = equal_calls(whole, 0, stride, len(streams))
    assert found is not None
    assert list(found) == streams

    streams[place] = stream
    few = equal_calls(calls(streams), 0, stride, len(streams))
    assert few is None if place == 10 else few is not None and list(few) == streams[:place]


def test_checksums_by_column_are_those_of_the_headers() -> None:
    """A wrong table would cost every call its fast way, or end the node at a stream whose number is great."""
    streams = [0, 1, 0xFE, 0xFF, 0x100, 0xFEFF, 0xFFFF, 0x1_0001, 0xFF_FFFF, f.STREAM_MAX]
    found = header_crcs(77, 5, np.array(streams, np.uint32))

    assert found.tolist() == [crc32c(f.HEADER.pack(77, stream, 5, 0)[:12]) for stream in streams]
