"""What a log holds on to is given back: streams of a segment, and what a start found."""

import errno
from pathlib import Path

import pytest

from broadsheet.base.types import LogStreamId, Offset
from broadsheet.runtime.disk import LocalDisk
from broadsheet.wal.extents import SLOT_BYTES, SLOTS, Extents, extents_path
from broadsheet.wal.pool import Pool
from broadsheet.wal.record import after_entries, entries
from simulator.disk import SimDisk
from tests.support.faulty import Fault, FaultyDisk
from tests.wal.harness import DIRECTORY, A, B, abandon, open_log, opened


def test_streams_that_left_the_oldest_segment_are_looked_at_once() -> None:
    """The reclaimer asks in every round, and would walk through all that ever wrote there."""
    pool = Pool()
    for lap in (1, 2):
        pool.adopt(lap, lap, 4096)
    for stream in range(1000):
        pool.pin(1, 8, stream=stream)
    pool.unpin(1, 8000, runs=1000)

    assert pool.pinning({}, None) == []
    assert not pool.laps[1].streams


async def test_what_a_start_found_of_a_stream_is_kept_until_its_domain_forgets_it() -> None:
    """Suspects hold whole payloads: a process would hold them as long as it lives."""
    disk = SimDisk()
    bench = await open_log(disk)
    await bench.commit(A, b"one")
    await bench.commit(B, b"other")
    await abandon(bench)
    disk.state.locks.clear()
    bench = await open_log(disk, seed=2)
    bench.log.forget(A)

    assert bench.log.recovered(A).end_offset == 0
    assert bench.log.recovered(B).end_offset == 1
    await bench.log.close()


async def test_a_trim_of_a_closed_log_does_nothing() -> None:
    """A domain that closes late may still trim: the log's files are no longer its own."""
    bench = await open_log(SimDisk())
    await bench.commit(A, b"one", b"two")
    await bench.log.close()
    before = bench.log.states[A].row()

    bench.log.trim(A, Offset(2))
    await bench.settled()
    assert bench.log.states[A].row() == before
    assert not bench.crashes


async def test_a_stream_that_nobody_flushes_keeps_none_behind_it_from_being_asked() -> None:
    """log.10: the segment is freed only when all have flushed, and the first may have no domain any more."""
    asked: list[LogStreamId] = []
    async with opened(SimDisk()) as bench:
        await bench.commit(A, b"one")
        await bench.commit(B, b"two")
        bench.log.on_flush_request(B, asked.append)
        await bench.log._reclaimer._ask(bench.log.pool.oldest)
    assert asked == [B]


def test_the_file_of_extents_takes_its_room_with_the_first_slot(tmp_path: Path) -> None:
    """W2: the other slot is written when a segment grows, and a full disk would refuse it then."""
    disk = LocalDisk(tmp_path)
    disk.make_dir(DIRECTORY)
    extents = Extents(disk, DIRECTORY, log_id=7, told=None)
    extents.raise_to(0, 64 << 10)

    assert (tmp_path / extents_path(DIRECTORY)).stat().st_blocks * 512 >= SLOTS * SLOT_BYTES
    extents.close()
    disk.close()


def test_the_file_of_extents_takes_its_room_also_after_a_full_disk_had_none(tmp_path: Path) -> None:
    """log.20: a slot alone was written once there was room, and the next full disk could refuse the other."""
    disk = LocalDisk(tmp_path)
    disk.make_dir(DIRECTORY)
    full = FaultyDisk(disk, [Fault("write_at", errno.ENOSPC, extents_path(DIRECTORY), times=1)])
    extents = Extents(full, DIRECTORY, log_id=7, told=None)
    with pytest.raises(OSError, match="No space"):
        extents.raise_to(0, 64 << 10)
    extents.raise_to(0, 64 << 10)

    assert (tmp_path / extents_path(DIRECTORY)).stat().st_blocks * 512 >= SLOTS * SLOT_BYTES
    extents.close()
    disk.close()


def test_entries_that_are_not_there_have_no_end() -> None:
    """A cut at an entry that the run does not hold is damage to be told, and no error of the process."""
    data = b"".join(entries([b"first", b"second"], offset=0, term=0))

    assert after_entries(data, 2) == len(data)
    assert after_entries(data, 3) is None
    assert after_entries(data[:-1], 2) is None
    assert after_entries(b"", 1) is None
