"""Suspects: what stands behind the damage is handed to the domain, which may prove it by sums of its own."""

import time
from collections.abc import Callable

import pytest

from broadsheet.base.types import LogStreamId
from broadsheet.wal import WALConfig
from broadsheet.wal.config import MIB
from broadsheet.wal.format import BATCH_MAGIC, ENTRY_BYTES, FRAME_BYTES
from simulator.disk import SimDisk
from simulator.disk_state import Write
from tests.wal.harness import A, B, abandon, open_log, opened, payloads

FIRST, SECOND, THIRD = b"first-record", b"second-record", b"third-record"


async def written(*, in_one_batch: bool) -> SimDisk:
    """Three records of A, and one of B with each, after kill -9."""
    disk = SimDisk()
    bench = await open_log(disk)
    if in_one_batch:
        for payload in (FIRST, SECOND, THIRD):
            bench.send(A, payload)
            bench.send(B, payload[::-1])
        await bench.settled()
    else:
        for payload in (FIRST, SECOND, THIRD):
            await bench.commit(A, payload)
            await bench.commit(B, payload[::-1])
    await abandon(bench)
    disk.state.locks.clear()
    return disk


def flip(disk: SimDisk, payload: bytes) -> None:
    """One bit of a payload."""
    for name, inode in disk.state.files.items():
        if name.endswith(".wal") and (at := bytes(inode.view).find(payload)) >= 0:
            disk.state.change(inode, Write(at, bytes((payload[0] ^ 1,))))
            return
    raise AssertionError(f"{payload!r} is nowhere")


@pytest.mark.parametrize("in_one_batch", [True, False])
async def test_what_stands_behind_a_damaged_record_is_told_in_order(*, in_one_batch: bool) -> None:
    """The damaged payload itself, with its flipped bit, and the whole record behind it."""
    disk = await written(in_one_batch=in_one_batch)
    flip(disk, SECOND)

    async with opened(disk, seed=2) as bench:
        found = await bench.found(A)
        assert found.is_quarantined or found.tail_cut
        assert payloads(found.records) == [FIRST]
        assert [(each.offset, each.payload) for each in found.suspects] == [
            (1, bytes((SECOND[0] ^ 1,)) + SECOND[1:]),
            (2, THIRD),
        ]
        other = await bench.found(B)
        assert not other.suspects
        assert not other.is_quarantined


async def test_a_healthy_stream_has_no_suspects() -> None:
    """Nothing is kept in memory for streams without damage."""
    disk = await written(in_one_batch=True)

    async with opened(disk, seed=2) as bench:
        assert [bench.log.recovered(stream).suspects for stream in (A, B)] == [[], []]


async def test_bytes_behind_a_damaged_frame_header_are_told_to_the_stream_that_lost_them() -> None:
    """Nothing was told of such a record, so its domain could prove nothing by it."""
    disk = await written(in_one_batch=False)
    for name, inode in disk.state.files.items():
        if name.endswith(".wal") and (at := bytes(inode.view).find(THIRD)) >= 0:
            disk.state.change(inode, Write(at - ENTRY_BYTES - FRAME_BYTES, b"X"))

    async with opened(disk, seed=2) as bench:
        found = await bench.found(A)
        assert payloads(found.records) == [FIRST, SECOND]
        assert [(each.offset, each.payload) for each in found.suspects] == [(2, THIRD)]
        assert not (await bench.found(B)).suspects


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_record_with_a_damaged_header_is_told_also_where_others_stand_behind_it(lost: int) -> None:
    """The record behind it hid the gap: an acknowledged append was put aside that its own sum would prove."""
    disk = await written(in_one_batch=True)
    content = (FIRST, SECOND, THIRD)
    for name, inode in disk.state.files.items():
        if name.endswith(".wal") and (at := bytes(inode.view).find(content[lost])) >= 0:
            disk.state.change(inode, Write(at - ENTRY_BYTES - FRAME_BYTES, b"X"))

    async with opened(disk, seed=2) as bench:
        found = await bench.found(A)
        assert payloads(found.records) == list(content[:lost])
        told = [(each.offset, each.payload) for each in found.suspects]
        assert told == [(at, content[at]) for at in (1, 2)][lost - 1 :]


async def test_the_first_record_of_a_stream_is_told_though_its_header_is_damaged() -> None:
    """No earlier batch tells of the stream, so the bytes were charged to nobody."""
    disk = SimDisk()
    bench = await open_log(disk)
    await bench.commit(B, FIRST)
    await bench.commit(A, THIRD)
    await abandon(bench)
    disk.state.locks.clear()
    for name, inode in disk.state.files.items():
        if name.endswith(".wal") and (at := bytes(inode.view).find(THIRD)) >= 0:
            disk.state.change(inode, Write(at - ENTRY_BYTES - FRAME_BYTES, b"X"))

    async with opened(disk, seed=2) as bench:
        found = await bench.found(A)
        assert found.tail_cut
        assert [(each.offset, each.payload) for each in found.suspects] == [(0, THIRD)]


def without_header(disk: SimDisk) -> SimDisk:
    """One bit of the header of the newest batch."""
    for name, inode in disk.state.files.items():
        if name.endswith(".wal") and (at := bytes(inode.view).find(FIRST)) >= 0:
            place = bytes(inode.view).rfind(BATCH_MAGIC, 0, at)
            disk.state.change(inode, Write(place + 8, bytes((inode.view[place + 8] ^ 1,))))
    return disk


async def test_a_damaged_record_of_a_batch_whose_header_is_damaged_too_is_told() -> None:
    """A later batch vouches for it: it was acknowledged, and only its own sum can prove these bytes."""
    disk = await written(in_one_batch=True)
    bench = await open_log(disk, seed=2)
    await bench.commit(B, b"names the streams of the batch before it")
    await abandon(bench)
    disk.state.locks.clear()
    without_header(disk)
    flip(disk, SECOND)

    async with opened(disk, seed=3) as bench:
        found = await bench.found(A)
        assert found.is_quarantined
        assert payloads(found.records) == [FIRST]
        assert payloads(found.suspects) == [bytes((SECOND[0] ^ 1,)) + SECOND[1:], THIRD]


async def test_a_start_that_found_the_disk_full_leaves_the_suspects_to_the_next() -> None:
    """It could set nothing aside, and began in another segment: nobody looked behind the old one again."""
    disk = without_header(await written(in_one_batch=True))
    disk.state.quota_bytes = disk.state.used()
    for seed in (2, 3):
        bench = await open_log(disk, seed=seed)
        found = await bench.found(A)
        assert found.tail_cut
        assert payloads(found.suspects) == [FIRST, SECOND, THIRD]
        assert bool(bench.log.quarantine_files) == (seed == 3)
        await abandon(bench)
        disk.state.locks.clear()
        disk.state.quota_bytes = 1 << 40


async def test_a_start_that_was_killed_before_its_domain_looked_leaves_the_suspects_to_the_next() -> None:
    """Its boot batch stands where they stood: a second start cut them off, though their sums prove them."""
    disk = without_header(await written(in_one_batch=True))
    told = []
    for seed in (2, 3, 4):
        bench = await open_log(disk, seed=seed)
        found = await bench.found(A)
        assert found.tail_cut
        told.append([(each.offset, each.payload) for each in found.suspects])
        await abandon(bench)
        disk.state.locks.clear()
    assert told == [[(0, FIRST), (1, SECOND), (2, THIRD)]] * 3

    async with opened(disk, seed=5) as bench:
        bench.log.settle(A)
    async with opened(disk, seed=6) as bench:
        assert not (await bench.found(A)).suspects, "what was dealt with is told no more"


def with_damage_in_place(disk: SimDisk) -> SimDisk:
    """One bit of each record of the newest batch, whose header stays: the start writes behind that batch."""
    for payload in (FIRST, SECOND, THIRD):
        flip(disk, payload)
    return disk


@pytest.mark.parametrize("damaged", [without_header, with_damage_in_place])
async def test_the_suspects_of_a_cut_that_was_dealt_with_are_not_told_at_the_next_cut(
    damaged: Callable[[SimDisk], SimDisk],
) -> None:
    """A journal looked for the content of their claims, which it had given up, and took it for a new loss."""
    disk = damaged(await written(in_one_batch=True))
    bench = await open_log(disk, seed=2)
    assert len((await bench.found(A)).suspects) == 3
    bench.log.settle(A)
    await bench.settled()
    await bench.commit(A, b"of-the-next-cut")
    await abandon(bench)
    disk.state.locks.clear()
    flip(disk, b"of-the-next-cut")
    for seed in (3, 4):
        bench = await open_log(disk, seed=seed)
        found = await bench.found(A)
        assert found.tail_cut
        assert [(each.offset, each.payload[1:]) for each in found.suspects] == [(0, b"f-the-next-cut")]
        await abandon(bench)
        disk.state.locks.clear()


async def test_suspects_outlive_a_start_that_copies_their_stream_forward() -> None:
    """The copies were younger than the suspects, which were therefore taken for those of an older cut."""
    disk = SimDisk()
    bench = await open_log(disk)
    await bench.commit(A, FIRST, SECOND)
    await bench.commit(A, THIRD)
    await abandon(bench)
    disk.state.locks.clear()
    flip(disk, THIRD)
    bench = await open_log(disk, seed=2)
    told = (await bench.found(A)).suspects
    assert payloads(told) == [bytes((THIRD[0] ^ 1,)) + THIRD[1:]]
    log, lap = bench.log, bench.log.pool.oldest
    while log.pool.oldest == lap:
        await bench.commit(B, bytes(8000))
        log.trim(B, log.next_offset(B))
        await bench.settled()
    await abandon(bench)
    disk.state.locks.clear()

    async with opened(disk, seed=3) as bench:
        found = await bench.found(A)
        assert found.tail_cut
        assert found.suspects == told


async def test_a_damaged_frame_header_among_many_streams_costs_a_start_little() -> None:
    """The frames were searched once for each stream: with 60,000 of them a start would take minutes."""
    config = WALConfig(segment_bytes=4 * MIB, segments_initial=3, initial_fill_bytes=4 * MIB)
    disk = SimDisk()
    bench = await open_log(disk, config=config)
    for stream in range(10_000):
        bench.send(LogStreamId(stream), b"record-%08d" % stream)
    await bench.settled()
    await abandon(bench)
    disk.state.locks.clear()
    inode = next(each for name, each in disk.state.files.items() if b"record-00000077" in bytes(each.view))
    at = bytes(inode.view).find(b"record-00000077")
    disk.state.change(inode, Write(at - ENTRY_BYTES - FRAME_BYTES, b"X"))

    begun = time.process_time()
    async with opened(disk, seed=2, config=config) as bench:
        assert bench.log.recovered(LogStreamId(77)).suspects
        assert time.process_time() - begun < 3
