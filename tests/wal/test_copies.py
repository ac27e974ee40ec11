"""What happens to a stream while its records are being copied forward."""

import asyncio
import collections
import gc
import time
from collections.abc import Callable
from typing import TypeVar

from broadsheet.base.types import Generation, LogStreamId, Offset
from broadsheet.wal import WALConfig
from broadsheet.wal.config import BLOCK_BYTES
from broadsheet.wal.copying import copy_forward
from broadsheet.wal.reclaimer import ASKED_PER_TURN
from simulator.disk import SimDisk
from tests.wal.harness import A, B, C, abandon, after_power_cut, open_log, opened, payloads

T = TypeVar("T")


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


async def test_a_copy_ends_when_its_segment_is_cut_to_its_header_meanwhile() -> None:
    """Somebody cuts the file. The copier read the same empty place again and again, without end."""
    disk = SimDisk()
    bench = await open_log(disk)
    log = bench.log
    await bench.commit(B, b"what is cut")
    lap = log.status().lap_head
    while log.status().lap_head == lap:
        await bench.commit(A, b"the next lap" * 1000)

    copying = asyncio.ensure_future(copy_forward(log, lap))
    await asyncio.sleep(0)
    log.segments.files[log.pool.laps[lap].index].truncate(BLOCK_BYTES)
    await asyncio.wait_for(copying, 10)

    assert log.is_quarantined(B)
    await abandon(bench)


class WeighedDisk(SimDisk):
    """It counts the CPU of its blocking work, which a real disk does in a thread: it is not the loop's."""

    def __init__(self) -> None:
        super().__init__()
        self.cpu = 0.0

    async def run(self, work: Callable[[], T]) -> T:
        def weighed() -> T:
            begun = time.thread_time()
            try:
                return work()
            finally:
                self.cpu += time.thread_time() - begun

        return await super().run(weighed)


async def test_copying_a_segment_of_small_records_never_holds_the_loop_for_long() -> None:
    """20,000 runs of 172 bytes: not one turn of the loop takes 5 ms of its thread's CPU."""
    config = WALConfig(segment_bytes=8 << 20, segments_initial=3, initial_fill_bytes=8 << 20)
    disk = WeighedDisk()
    async with opened(disk, config=config) as bench:
        log = bench.log
        log._check = None  # It looks at every run, which production never does.
        await bench.settled()
        for n in range(20_000):
            log.append(LogStreamId(n % 2), [b"x" * 172], done=lambda: None)
            if n % 500 == 499:
                await bench.settled()
        log.trim(B, log.next_offset(B))
        while log.status().lap_head < 3:
            await bench.commit(C, bytes(1 << 20))
        lap, gc_was = log.status().lap_oldest, gc.isenabled()
        turns: list[float] = []
        gc.disable()  # A collection of all that other tests left is not the copier's.
        try:
            copying = asyncio.ensure_future(copy_forward(log, lap))
            while not copying.done():
                begun = time.thread_time() - disk.cpu
                await asyncio.sleep(0)
                turns.append(time.thread_time() - disk.cpu - begun)
        finally:
            if gc_was:
                gc.enable()
        await copying
        await bench.settled()

        assert log.status().lap_oldest > lap
        assert len(turns) > 100
        turns.sort()
        assert turns[-3] < 0.005, f"{[round(1000 * t, 1) for t in turns[-5:]]} ms"


async def test_ten_thousand_streams_are_asked_to_flush_a_few_a_turn() -> None:
    """Each of them may begin a checkpoint when it is asked."""
    config = WALConfig(segment_bytes=4 << 20, segments_initial=3, initial_fill_bytes=4 << 20)
    async with opened(SimDisk(), config=config) as bench:
        log, turn, asked = bench.log, 0, dict[int, int]()
        log._check = None

        def flush(stream: LogStreamId) -> None:
            asked.setdefault(stream, turn)

        for n in range(10_000):
            log.append(LogStreamId(n), [b"x"], done=lambda: None)
            log.on_flush_request(LogStreamId(n), flush)
        await bench.settled()
        log.append(LogStreamId(0), [bytes(1 << 20)], done=lambda: None)
        while len(asked) < 10_000:
            if log.pool.head < 3:
                log.append(A, [bytes(1 << 20)], done=lambda: None)
            await asyncio.sleep(0)
            turn += 1
            assert turn < 10_000

        counts = collections.Counter(asked.values())
        assert max(counts.values()) <= 2 * ASKED_PER_TURN
