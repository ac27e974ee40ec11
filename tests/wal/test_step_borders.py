"""Recovery reads a segment in steps of 1 MiB: what stands at the border of two steps is found."""

import msgspec
import pytest

from broadsheet.wal.scan import STEP_BYTES
from simulator.disk import SimDisk
from tests.wal.harness import SMALL, A, abandon, after_power_cut, open_log, opened, payloads
from tests.wal.histories import noise

LARGE = msgspec.structs.replace(SMALL, segment_bytes=2 * STEP_BYTES, initial_fill_bytes=2 * STEP_BYTES)


@pytest.mark.parametrize("behind", [0, 1, 2])
async def test_a_batch_at_the_border_of_two_steps_is_recovered(behind: int) -> None:
    """W2: the batch that begins exactly at 1 MiB, as the last one and with others behind it."""
    disk = SimDisk()
    bench = await open_log(disk, config=LARGE)
    last, count = bench.log._last, 0
    while last is not None and last.end < STEP_BYTES:
        size = 15_000 if STEP_BYTES - last.end > 40_000 else 100  # At the end one block for each batch.
        await bench.commit(A, noise(count, size))
        last, count = bench.log._last, count + 1
    assert last is not None
    assert last.end == STEP_BYTES
    for n in range(1 + behind):
        await bench.commit(A, noise(count + n, 100))
    acknowledged = count + 1 + behind
    await abandon(bench)

    async with opened(after_power_cut(disk), config=LARGE, seed=2) as again:
        found = await again.found(A)
        assert again.log.quarantine_files == []
        assert not found.tail_cut
        assert not found.is_quarantined
        assert [len(each) for each in payloads(found.records)[-2:]] == [100, 100]
        assert found.next_offset == len(found.records) == acknowledged
