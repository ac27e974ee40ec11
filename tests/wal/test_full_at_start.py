"""A start on a disk that was full: the head segment may be shorter than it is to be, and be full so far."""

import contextlib

import pytest

from broadsheet.base.time import Duration
from broadsheet.sim.disk import SimDisk
from broadsheet.sim.medium import Medium
from broadsheet.wal import WALConfig
from broadsheet.wal.record import LogFull
from tests.wal.harness import A, abandon, open_log, payloads

CONFIG = WALConfig(
    segment_bytes=64 << 10,
    segments_initial=3,
    segments_max=6,
    initial_fill_bytes=16 << 10,
    record_bytes_max=4 << 10,
    batch_bytes_max=32 << 10,
    retry_delay=Duration(1_000_000),
)
PAYLOAD = b"acknowledged" * 80


async def test_a_start_never_takes_the_half_filled_head_for_a_free_segment() -> None:
    """W2: a disk without space leaves the first segment unfilled.

    A restart whose boot frame did not fit into it wrote that over the head's first batch.
    """
    disk = SimDisk(Medium(quota_bytes=25_200))
    bench = await open_log(disk, config=CONFIG)
    acknowledged = 0
    with contextlib.suppress(LogFull):
        while acknowledged < 100:
            await bench.commit(A, PAYLOAD)
            acknowledged += 1
    assert 0 < acknowledged < 100
    await abandon(bench)

    disk.medium.locks.clear()
    with pytest.raises(OSError, match="no space left"):
        await open_log(disk, config=CONFIG, seed=2)
    disk.medium.locks.clear()
    disk.medium.quota_bytes = 1 << 30
    for seed in (3, 4):
        bench = await open_log(disk, config=CONFIG, seed=seed)
        found = await bench.found(A)
        await bench.settled()  # Appends wait until there is room again that relief may use.
        await bench.commit(A, PAYLOAD)
        await abandon(bench)
        disk.medium.locks.clear()
        assert not found.is_quarantined
        assert payloads(found.records) == [PAYLOAD] * acknowledged
        acknowledged += 1
