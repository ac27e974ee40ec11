"""The options of a log are checked when they are read: a node must not find out when it is full."""

import msgspec
import pytest

from broadsheet.base.time import MILLISECOND
from broadsheet.wal import WALConfig
from broadsheet.wal.config import BLOCK_BYTES, KIB, MIB


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("segment_bytes", 16 * KIB, 2048 * MIB),
        ("segments_initial", 3, 64),
        ("segments_max", 4, 1000),
        ("segments_reserved", 1, 2),
        ("initial_fill_bytes", BLOCK_BYTES, None),
        ("record_bytes_max", BLOCK_BYTES, None),
        ("batch_bytes_max", BLOCK_BYTES, None),
        ("pending_bytes_max", BLOCK_BYTES, None),
        ("streams_max", 1, 1_000_000),
        ("vouch_delay", 0, None),
        ("retry_delay", MILLISECOND, None),
    ],
)
def test_an_option_is_refused_just_outside_its_bounds(name: str, least: int, most: int | None) -> None:
    """The error tells the value, because an operator wrote it."""

    def with_option(value: int) -> WALConfig:
        return msgspec.structs.replace(WALConfig(), **{name: value})

    for good in (least, least if most is None else most):
        assert getattr(with_option(good), name) == good
    for wrong in (least - 1, *(() if most is None else (most + 1,))):
        with pytest.raises(ValueError, match=rf"must be .*, not .*{wrong}"):
            with_option(wrong)


def test_a_segment_is_made_of_whole_blocks() -> None:
    """A batch begins at one: the rest could never be used."""
    with pytest.raises(ValueError, match="segment_bytes must be a multiple of 4096"):
        WALConfig(segment_bytes=16 * KIB + 512)
