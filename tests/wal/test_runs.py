"""Runs: what replication needs of a log. Content chains, reading back, cuts inside runs, summed runs."""

import asyncio
import random
import time
import tracemalloc
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import Generation, LogStreamId, Offset, Term
from broadsheet.errors import LocalProtocolError, OffsetNotYetAvailable, Throttled, Trimmed
from broadsheet.wal import LogFull, Run, StreamQuarantined, WALConfig
from broadsheet.wal.format import Row
from broadsheet.wal.scan import frames
from broadsheet.wal.stream_replay import FoundRun, StreamReplay
from simulator.disk import SimDisk
from tests.wal.harness import SMALL, A, B, Bench, abandon, after_power_cut, open_log, opened, payloads
from tests.wal.histories import noise

Entries = list[tuple[int, bytes]]
"""Term and bytes of each entry from offset 0 on."""


def naive_chain(entries: Sequence[tuple[int, bytes]], seed: int = 0, begin: int = 0) -> int:
    """The chain as the document defines it, entry by entry, in the plainest words."""
    for offset, (term, payload) in enumerate(entries, begin):
        head = term.to_bytes(8, "little") + offset.to_bytes(8, "little") + len(payload).to_bytes(4, "little")
        seed = crc32c(head + payload, seed)
    return seed


async def read_whole(bench: Bench, begin: int = 0, bytes_max: int = 1 << 20) -> Entries:
    """All of A from `begin` on, in pieces."""
    found: Entries = []
    offset = Offset(begin)
    while runs := await bench.log.read(A, offset, bytes_max):
        for run in runs:
            assert run.offset == offset
            found += [(record.term, record.payload) for record in run.records()]
            offset = run.next_offset
    return found


async def test_equal_entries_have_equal_chains_after_a_truncation() -> None:
    """kv.9: a follower that was on another branch, and now holds the leader's entries, holds them for sure.

    Generations, boots, laps and runs are this log's own business: the leader has others.

    Source: log.3.
    """
    async with opened(SimDisk()) as leader, opened(SimDisk(), seed=2) as follower:
        await leader.commit(A, b"e0", b"e1", b"e2")
        await follower.commit(A, b"e0", b"X1")
        follower.log.truncate(A, Offset(1), Generation(1), lambda: None)
        follower.send_many(A, b"e1", b"e2")
        await follower.settled()

        assert leader.log.next_offset(A) == follower.log.next_offset(A)
        assert (
            leader.log.chain(A) == follower.log.chain(A) == naive_chain([(0, b"e0"), (0, b"e1"), (0, b"e2")])
        )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_chain_depends_on_the_entries_only(data: st.DataObject) -> None:
    """Against the naive fold: after every step, at every offset, and after a restart."""
    steps = data.draw(
        st.lists(
            st.one_of(
                st.tuples(st.just("many"), st.lists(st.binary(max_size=40), min_size=1, max_size=5)),
                st.tuples(st.just("one"), st.binary(max_size=40)),
                st.tuples(st.just("cut"), st.integers(0, 30)),
                st.tuples(st.just("start"), st.none()),
            ),
            min_size=1,
            max_size=12,
        )
    )
    asyncio.run(_against_the_fold(steps))


async def _against_the_fold(steps: Sequence[tuple[str, object]]) -> None:
    disk = SimDisk()
    bench = await open_log(disk)
    model: Entries = []
    generation = 0
    for number, (verb, value) in enumerate(steps):
        log, term = bench.log, Term(number // 3)
        if verb == "many":
            assert isinstance(value, list)
            log.append_many(A, value, term=term, done=lambda: None)
            model += [(term, each) for each in value]
        elif verb == "one":
            assert isinstance(value, bytes)
            log.append(A, [value], term=term, done=lambda: None)
            model.append((term, value))
        elif verb == "cut" and model:
            assert isinstance(value, int)
            at = value % (len(model) + 1)
            entry = await log.entry(A, Offset(at))
            generation += 1
            del model[at:]
            log.truncate(
                A,
                Offset(at),
                Generation(generation),
                lambda: None,
                chain=None if entry is None else entry.seed,
            )
        else:
            await bench.settled()
            await abandon(bench)
            bench = await open_log(disk, seed=100 + number)
        bench.log.check()
        assert bench.log.chain(A) == naive_chain(model)
    assert await read_whole(bench) == model
    for at in range(len(model)):
        entry = await bench.log.entry(A, Offset(at))
        assert entry is not None
        assert (entry.term, entry.seed, entry.crc) == (
            model[at][0],
            naive_chain(model[:at]),
            naive_chain(model[: at + 1]),
        )
    await abandon(bench)


async def test_a_cut_inside_a_run_lasts_and_is_continued() -> None:
    """What stands before it counts on, in the same frame; what stands behind it never comes back (log.7)."""
    disk = SimDisk()
    bench = await open_log(disk)
    bench.send_many(A, b"0", b"1", b"2", b"3")
    entry = await bench.log.entry(A, Offset(2))
    assert entry is not None
    bench.log.truncate(A, Offset(2), Generation(1), lambda: None, chain=entry.seed)
    assert payloads((await bench.found(A)).records) == []
    await bench.commit(A, b"2'", generation=1)
    for seed in (2, 3):
        await abandon(bench)
        bench = await open_log(after_power_cut(disk), seed=seed)
        found = await bench.found(A)
        assert payloads(found.records) == [b"0", b"1", b"2'"]
        assert (found.generation, found.tail_cut, found.is_quarantined) == (1, False, False)
        assert bench.log.chain(A) == naive_chain([(0, b"0"), (0, b"1"), (0, b"2'")])
    await abandon(bench)


async def test_a_truncation_with_a_wrong_chain_is_refused() -> None:
    """Another branch than the caller believes: what it appends next would be on neither."""
    async with opened(SimDisk()) as bench:
        await bench.commit(A, b"0", b"1")
        with pytest.raises(LocalProtocolError):
            bench.log.truncate(A, Offset(1), Generation(1), lambda: None, chain=bench.log.chain(A))
        assert bench.log.next_offset(A) == 2


async def test_byte_identical_entries_do_not_revive_what_a_truncation_voided() -> None:
    """The chain of the second branch is that of the first: only the frames' generations tell them apart."""
    disk = SimDisk()
    bench = await open_log(disk)
    await bench.commit(A, b"0", b"1", b"2")
    bench.log.truncate(A, Offset(1), Generation(1), lambda: None)
    await bench.commit(A, b"1", generation=1)  # The same bytes, and no "2" after them.
    for seed in (2, 3):
        await abandon(bench)
        bench = await open_log(after_power_cut(disk), seed=seed)
        found = await bench.found(A)
        assert payloads(found.records) == [b"0", b"1"]
        assert (found.next_offset, found.is_quarantined, found.tail_cut) == (2, False, False)
    await abandon(bench)


async def test_a_summed_run_is_taken_as_it_is() -> None:
    """What a leader has sent is written byte for byte, and the chain goes on."""
    async with opened(SimDisk()) as leader, opened(SimDisk(), seed=2) as follower:
        leader.send_many(A, b"0", b"", b"2" * 500)
        await leader.commit(A, b"3")
        for run in await leader.log.read(A, Offset(0), 1 << 20):
            follower.log.append_run(A, run, done=lambda: None)
        await follower.settled()

        assert follower.log.chain(A) == leader.log.chain(A)
        assert await read_whole(follower) == await read_whole(leader)
        assert Run.of([b"3"], offset=Offset(3), seed=naive_chain([(0, b"0"), (0, b""), (0, b"2" * 500)])) in (
            await follower.log.read(A, Offset(3), 1 << 20)
        )


async def test_a_summed_run_of_another_place_or_branch_is_refused() -> None:
    """It would make a chain that no replica has."""
    async with opened(SimDisk()) as bench:
        await bench.commit(A, b"0")
        chain = bench.log.chain(A)
        for run in (
            Run.of([b"1"], offset=Offset(2), seed=chain),
            Run.of([b"1"], offset=Offset(1), seed=chain ^ 1),
            Run.of([], offset=Offset(1), seed=chain),
        ):
            with pytest.raises(LocalProtocolError):
                bench.log.append_run(A, run, done=lambda: None)
        bench.log.append_run(A, Run.of([b"1"], offset=Offset(1), seed=chain), done=lambda: None)
        await bench.settled()
        assert await read_whole(bench) == [(0, b"0"), (0, b"1")]


async def test_many_entries_are_one_append() -> None:
    """Whole or not at all, one frame, and one acknowledgement (log.2)."""
    disk = SimDisk()
    config = msgspec.structs.replace(SMALL, pending_bytes_max=20_000)
    async with opened(disk, config=config) as bench:
        assert bench.send_many(A, *[b"%d" % n for n in range(100)]) == 0
        await bench.settled()
        assert bench.acknowledged == [(A, 100)]
        with pytest.raises(Throttled):  # noqa: PT012 - one of them.
            for _ in range(10_000):
                bench.send_many(A, *[bytes(100)] * 100)
        assert bench.log.next_offset(A) % 100 == 0
    image = disk.state.image()["wal/segment-00000000.wal"]
    first = [f.header.entries for f in frames(image, 4096, len(image), lambda _: True, is_after_hole=True)]
    assert first[1] == 100


@pytest.mark.parametrize("bytes_max", [1, 50, 3000, 1 << 20])
async def test_a_catch_up_reads_everything_whatever_moves_meanwhile(bytes_max: int) -> None:
    """kv.9: from any offset, across laps, while records are appended, copied forward and trimmed."""
    disk = SimDisk()
    draws = random.Random(4)
    async with opened(disk) as bench:
        model: Entries = []
        bench.send(B, b"pins the first segment")
        for n in range(12):
            many = [noise(n * 9 + m, draws.randrange(1500)) for m in range(draws.randrange(1, 6))]
            bench.send_many(A, *many)
            model += [(0, each) for each in many]
        for begin in (0, 1, 7, len(model)):
            assert await read_whole(bench, begin, bytes_max) == model[begin:]
        reader = asyncio.ensure_future(read_whole(bench, 5, bytes_max))
        for n in range(30):
            await bench.commit(LogStreamId(9), bytes(9000))
            bench.log.trim(LogStreamId(9), Offset(n))
        assert await reader == model[5:]
        bench.log.trim(A, Offset(3))
        with pytest.raises(Trimmed):
            await bench.log.read(A, Offset(2), bytes_max)
        with pytest.raises(OffsetNotYetAvailable):
            await bench.log.read(A, Offset(len(model) + 1), bytes_max)


async def test_damage_found_by_a_reader_quarantines_its_stream() -> None:
    """W6: what was durable and is not there may not be voted with; nobody is told other bytes."""
    disk = SimDisk()
    bench = await open_log(disk)
    told: list[int] = []
    bench.log.on_quarantine(A, told.append)
    await bench.commit(A, b"sound", b"spoilt" * 10, b"behind")
    await bench.commit(B, b"beside it")
    segment = "wal/segment-00000000.wal"
    at = disk.state.image()[segment].index(b"spoilt")
    file = disk.open(segment)
    file.write_at(at, [b"S"])
    file.sync()

    (sound,) = await bench.log.read(A, Offset(0), 1 << 20)
    assert payloads(list(sound.records())) == [b"sound"]
    with pytest.raises(StreamQuarantined):
        await bench.log.read(A, Offset(1), 1 << 20)
    await bench.settled()
    assert told == [A]
    assert bench.log.is_quarantined(A)
    assert not bench.log.is_quarantined(B)
    assert b"Spoilt" in b"".join(c for name, c in disk.state.image().items() if "quarantine" in name)
    assert len(bench.log.status().quarantine_files) == 1
    await abandon(bench)


async def test_a_run_that_was_cut_inside_is_copied_forward_as_what_is_left_of_it() -> None:
    """The copy must not carry what a truncation voided: the same offsets are another branch's by now."""
    disk = SimDisk()
    bench = await open_log(disk)
    bench.send_many(A, b"0", b"1", b"2", b"3")
    entry = await bench.log.entry(A, Offset(2))
    assert entry is not None
    bench.log.truncate(A, Offset(2), Generation(1), lambda: None, chain=entry.seed)
    bench.send_many(A, b"2", b"3'", generation=1)
    lap = bench.log.status().lap_head
    n = 0
    while bench.log.status().lap_oldest <= lap:
        await bench.commit(B, bytes(9000))
        bench.log.trim(B, Offset(n))
        n += 1
    await bench.settled()
    bench.log.check()
    expected = [(0, b"0"), (0, b"1"), (0, b"2"), (0, b"3'")]
    assert await read_whole(bench) == expected
    await abandon(bench)
    async with opened(after_power_cut(disk), seed=2) as again:
        assert await read_whole(again) == expected
        assert not again.log.recovered(A).is_quarantined


async def test_a_start_holds_no_payload_and_reads_piece_by_piece() -> None:
    """A log of gigabytes must not take gigabytes of memory: who wants records reads them in pieces.

    Source: log.17.
    """
    disk = SimDisk()
    config = WALConfig(
        segment_bytes=1 << 20, segments_initial=20, segments_max=20, initial_fill_bytes=1 << 20
    )
    async with opened(disk, config=config) as bench:
        for n in range(250):
            await bench.commit(A, noise(n, 60_000))
    tracemalloc.start()
    try:
        async with opened(disk, config=config, seed=2) as bench:
            last = 0
            async for record in bench.log.records(A, bytes_max=200_000):
                last = record.offset
            peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert last == 249
    assert peak < 5 << 20, f"{peak} bytes for a log of 15 MB"


async def test_a_record_that_only_newer_larger_segments_hold_is_taken() -> None:
    """An operator raised `segment_bytes`: old, small files at the head of the queue refused for ever."""
    disk = SimDisk()
    async with opened(disk) as bench:
        await bench.commit(A, b"old")
    larger = msgspec.structs.replace(
        SMALL, segment_bytes=1 << 20, segments_max=8, record_bytes_max=256 << 10, batch_bytes_max=512 << 10
    )
    async with opened(disk, config=larger, seed=2) as bench:
        for _ in range(50):
            await bench.settled()
            try:
                bench.send(A, bytes(200 << 10))
                break
            except LogFull:
                continue
        else:
            raise AssertionError(bench.log.status())
        await bench.settled()
        bench.log.check()
        assert len(await read_whole(bench)) == 2


def test_recovery_looks_at_each_trimmed_run_once() -> None:
    """It looked at all that were trimmed before, for each row: 190,000 records took a minute to open."""
    count = 120_000
    replay = StreamReplay(1)
    begun = time.process_time()
    for n in range(count):
        replay.run(FoundRun(n, n + 1, 0, n, n + 1, 100, 1, 0, n))
    for n in range(count):
        replay.row(Row(1, n + 1, count, 0, count, 0), count)
    assert time.process_time() - begun < 5
    assert not replay.held


async def test_a_reader_never_returns_what_a_truncation_has_voided_meanwhile() -> None:
    """kv.9: what a follower is sent must be of the branch that the leader is on when it sends it."""
    async with opened(SimDisk()) as bench:
        await bench.commit(A, b"0", b"old", b"older")
        reader = asyncio.ensure_future(bench.log.read(A, Offset(0), 1 << 20))
        await asyncio.sleep(0)
        bench.log.truncate(A, Offset(1), Generation(1), lambda: None)
        bench.send(A, b"new", generation=1)
        found = [record.payload for run in await reader for record in run.records()]
        assert found == [b"0", b"new"][: len(found)]
        assert found


async def test_a_cut_that_names_another_chain_is_found_out_by_the_first_reader() -> None:
    """Inside a run the log takes the chain that it is told; nothing is ever served under a wrong one."""
    async with opened(SimDisk()) as bench:
        bench.send_many(A, b"0", b"1", b"2")
        await bench.settled()
        bench.log.truncate(A, Offset(1), Generation(1), lambda: None, chain=77)
        await bench.settled()
        with pytest.raises(StreamQuarantined):
            await bench.log.read(A, Offset(0), 1 << 20)
