"""What happens to a stream while its records are being copied forward."""

import asyncio

from broadsheet.base.types import Generation, Offset
from broadsheet.sim.disk import SimDisk
from broadsheet.wal.copying import copy_forward
from tests.wal.harness import A, B, abandon, after_power_cut, open_log, payloads


async def test_a_copy_never_takes_the_place_of_a_record_of_another_branch() -> None:
    """W2: a truncation while the copies are read, and a new record that ends at the same offset.

    The copy was taken for the new record by its end alone: its own segment was no longer pinned, and was
    written over.
    """
    disk = SimDisk()
    bench = await open_log(disk)
    log = bench.log
    await bench.commit(B, b"old branch")
    lap = log.status().lap_head
    while log.status().lap_head == lap:
        await bench.commit(A, b"the next lap" * 1000)
    log.trim(A, log.next_offset(A))
    copying = asyncio.ensure_future(copy_forward(log, lap))
    await asyncio.sleep(0)
    log.truncate(B, Offset(0), Generation(1), lambda: None)
    bench.send(B, b"new branch", generation=1)
    await copying
    await bench.settled()
    for n in range(40):  # Ten times round the pool.
        log.trim(A, log.next_offset(A))
        await bench.commit(A, bytes([n]) * 12_000)

    await abandon(bench)
    bench = await open_log(after_power_cut(disk), seed=2)
    found = await bench.found(B)
    await abandon(bench)
    assert payloads(found.records) == [b"new branch"]
    assert not found.is_quarantined
