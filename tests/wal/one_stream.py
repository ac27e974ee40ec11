"""Bit flips in a log that holds one stream: an acceptor's, a key space's.

Whoever starts on a damaged log must find the state that was written last, or say that it is not sure: a
`Flagged` state is at most one that the log once was in. Source: W4.
"""

from collections.abc import Callable, Sequence

from broadsheet.base.types import LogStreamId
from broadsheet.errors import BroadsheetError
from broadsheet.wal.config import BLOCK_BYTES, KIB, WALConfig
from broadsheet.wal.format import Kind, RowFlag
from broadsheet.wal.scan import frames
from tests.support.bitflips import Flagged, Range, flip_bits
from tests.wal.histories import Kept, read_image

ROOMY = WALConfig(
    segment_bytes=256 * KIB, segments_initial=3, initial_fill_bytes=256 * KIB, record_bytes_max=32 * KIB
)
"""Nothing is copied forward, so every record stands in one place."""


def record_ranges(image: dict[str, bytes], first: int = 0) -> list[Range]:
    """Where the records from offset `first` on lie, headers included."""
    return [
        Range(name, frame.at, frame.at + len(frame.head_crc_input) + 8 + frame.header.length)
        for name, content in image.items()
        for frame in frames(content, BLOCK_BYTES, len(content), lambda _: True, is_after_hole=True)
        if frame.header.kind == Kind.RUN and frame.header.offset >= first
    ]


def served(
    image: dict[str, bytes], stream: LogStreamId, restore: Callable[[Kept], object]
) -> dict[object, object]:
    """What `restore` makes of `stream`; flagged where it is gone, quarantined, cut, or `restore` refuses."""
    try:
        verdict = read_image(image).get(stream)
        if verdict is None or verdict.flags & RowFlag.QUARANTINED:
            return {stream: Flagged()}
        state = restore(verdict)
    except BroadsheetError:
        return {stream: Flagged()}
    return {stream: Flagged(state) if verdict.flags & RowFlag.TAIL_CUT else state}


def search_one_stream(
    image: dict[str, bytes],
    stream: LogStreamId,
    restore: Callable[[Kept], object],
    states: Sequence[object],
    *,
    flips: int,
    seed: int,
    record_bytes_min: int,
) -> None:
    """Flip bits of a log whose states were `states`; fail where one is served silently.

    Args:
        record_bytes_min: what the untrimmed records must come to, for the search to mean anything.
    """
    expected: dict[object, object] = {stream: states[-1]}
    assert served(image, stream, restore) == expected
    first = read_image(image)[stream].first
    assert first > 0, "something was trimmed"
    ranges = record_ranges(image, first=first)
    assert sum(found.end - found.begin for found in ranges) > record_bytes_min
    report = flip_bits(
        image,
        ranges,
        lambda damaged: served(damaged, stream, restore),
        expected,
        flips=flips,
        seed=seed,
        is_part=lambda state, _: state is None or state in states,
    )
    print(f"{report.flips} flips, {report.in_records} in records: {report.detected} detected")

    assert report.silent == []
    assert report.in_records >= 0.8 * flips
    assert report.detected >= 0.95 * report.in_records
