"""Calls are taken by column only if each of them would be taken alone."""

import pytest

from broadsheet.wire import frame as f
from broadsheet.wire.columns import ROWS_MIN, equal_calls

BODY = b"\x90"


def calls(streams: list[int]) -> bytearray:
    content = f.CALL_HEAD.pack(8, 30_000) + BODY
    return bytearray(b"".join(f.frame(f.CALL, stream, content) for stream in streams))


@pytest.mark.parametrize(
    ("first", "last_stream", "is_taken"), [(7, 5, True), (7, 7, False), (7, 9, False), (1, 0, True)]
)
def test_the_first_call_of_a_column_is_newer_than_all_before_it(
    first: int, last_stream: int, is_taken: bool
) -> None:
    """A stream number that was used before is a broken peer: two calls would have one answer."""
    streams = [first + 2 * n for n in range(ROWS_MIN)]
    buffer = calls(streams)

    found = equal_calls(buffer, 0, len(buffer) // ROWS_MIN, ROWS_MIN, last_stream)
    assert (found is not None and found.tolist() == streams) is is_taken
