"""No flipped bit of a log is served silently (W4)."""

import asyncio

import msgspec
import pytest

from broadsheet.base.types import LogStreamId
from broadsheet.errors import BroadsheetError
from broadsheet.wal.format import RowFlag
from simulator.disk import SimDisk
from tests.support.bitflips import Flagged, flip_bits
from tests.wal.harness import abandon, open_log
from tests.wal.histories import TINY, noise, read_image
from tests.wal.one_stream import record_ranges

FLIPS = 3_000


async def _written() -> dict[str, bytes]:
    disk = SimDisk()
    roomy = msgspec.structs.replace(TINY, segments_initial=5)  # Nothing is copied: one place for each record.
    bench = await open_log(disk, config=roomy)
    for n in range(14):
        for stream in range(1, 4):
            if (n + stream) % 3:
                bench.send(LogStreamId(stream), noise(n * stream, 40 + n * 90))
        await bench.settled()
    await abandon(bench)
    return disk.state.image()


def _serve(image: dict[str, bytes]) -> dict[object, object]:
    try:
        verdicts = read_image(image)
    except BroadsheetError:
        return {stream: Flagged() for stream in (1, 2, 3)}
    served: dict[object, object] = {}
    for stream, verdict in verdicts.items():
        content = [(held.offset, held.payload) for held in verdict.held]
        served[stream] = (
            Flagged(content) if verdict.flags & (RowFlag.TAIL_CUT | RowFlag.QUARANTINED) else content
        )
    return served


def _is_prefix(served: object, whole: object) -> bool:
    assert isinstance(whole, list)
    return served is None or (isinstance(served, list) and served == whole[: len(served)])


def search(flips: int, seed: int) -> None:
    """Flip bits of one log; `make soak` asks for more."""
    image = asyncio.run(_written())
    expected = _serve(image)
    ranges = record_ranges(image)
    assert sum(found.end - found.begin for found in ranges) > 15_000
    report = flip_bits(image, ranges, _serve, expected, flips=flips, seed=seed, is_part=_is_prefix)
    print(
        f"{report.flips} flips, {report.in_records} in records: "
        f"{report.detected} detected, {report.harmless} harmless"
    )

    assert report.silent == []
    assert report.in_records >= 0.8 * flips
    assert report.detected >= report.in_records * 0.99


def test_no_flipped_bit_is_served_silently() -> None:
    """A log's share of 10,000 flips; four of five in bytes of acknowledged records, headers included."""
    search(FLIPS, seed=4)


@pytest.mark.soak
def test_no_flipped_bit_is_served_silently_in_100_000() -> None:
    """The same, for `make soak`."""
    search(100_000, seed=5)
