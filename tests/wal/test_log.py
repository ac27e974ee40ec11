"""The log as its domains use it: appends, starts, trims, truncations, limits and refusals."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import pytest

from broadsheet.base.types import Buffer, Generation, LogStreamId, Offset
from broadsheet.errors import ConfigError, Corrupt, LocalProtocolError, Throttled, TooLarge
from broadsheet.runtime.turn import Rank
from broadsheet.wal import LogFull, WALConfig
from broadsheet.wal import log as log_module
from broadsheet.wal.format import RowFlag
from broadsheet.wal.record import Run
from simulator.disk import SimDisk, SimFile
from simulator.disk_state import Write
from tests.wal.harness import (
    DIRECTORY,
    SMALL,
    A,
    B,
    C,
    abandon,
    after_power_cut,
    open_log,
    opened,
    payloads,
    read_all,
)

ROOMY = WALConfig(segment_bytes=1 << 20, segments_initial=3, initial_fill_bytes=1 << 20)


async def test_what_was_appended_is_there_after_a_restart() -> None:
    """The purpose of a log."""
    disk = SimDisk()
    async with opened(disk) as bench:
        assert bench.send(A, b"one") == 0
        assert bench.send_many(A, b"two", b"", b"four") == 1
        assert bench.send(B, b"other") == 0
        assert await bench.commit(A, b"three") == 4
        assert bench.acknowledged == [(A, 1), (A, 4), (B, 1), (A, 5)]
        bench.log.check()

    async with opened(disk, seed=2) as bench:
        assert bench.log.streams() == [A, B]
        found = await bench.found(A)
        assert [(r.offset, r.payload) for r in found.records] == [
            (0, b"one"),
            (1, b"two"),
            (2, b""),
            (3, b"four"),
            (4, b"three"),
        ]
        assert (found.first_offset, found.next_offset, found.tail_cut) == (0, 5, False)
        assert bench.log.next_offset(A) == 5
        assert await bench.commit(A, b"four") == 5
        bench.log.check()
    assert await read_all(disk) == {A: [b"one", b"two", b"", b"four", b"three", b"four"], B: [b"other"]}


async def test_all_appends_of_a_turn_are_one_batch_and_the_next_collects_meanwhile() -> None:
    """Group commit: one write and one sync for a turn, however many streams it touched (log.1)."""
    disk = SimDisk()
    async with opened(disk) as bench:
        before = bench.log.status().batch_count
        for stream in range(1, 101):
            bench.send(LogStreamId(stream), b"x" * 100)
        await bench.settled()

        assert bench.log.status().batch_count == before + 1
        assert len(bench.acknowledged) == 100


async def test_an_acknowledgement_follows_all_before_it_in_the_log() -> None:
    """`done` is called in the order of the appends, across streams and batches."""
    async with opened(SimDisk()) as bench:
        for n in range(20):
            bench.send(A if n % 3 else B, bytes([n]))
            if n % 5 == 0:
                await asyncio.sleep(0)
        await bench.settled()

        assert [o for s, o in bench.acknowledged if s == A] == sorted(
            o for s, o in bench.acknowledged if s == A
        )
        assert len(bench.acknowledged) == 20


async def test_many_writers_are_told_in_slices_while_the_next_batch_is_written() -> None:
    """Whoever appends again when told must not keep the disk waiting for the last of 300 (ADR 0033)."""
    async with opened(SimDisk(), config=ROOMY) as bench:
        told: list[tuple[int, int]] = []

        def append(writer: int, left: int) -> None:
            def done() -> None:
                told.append((left, writer))
                if left:
                    append(writer, left - 1)

            bench.log.append(LogStreamId(writer), [b"x"], done=done)

        before = bench.log.status().batch_count
        for writer in range(300):
            append(writer, 5)
        await bench.settled()

        assert bench.log.status().batch_count > before + 6
        assert [left for left, _ in told] == sorted((left for left, _ in told), reverse=True)
        for left in range(6):
            assert [writer for at, writer in told if at == left] == list(range(300))


async def test_a_batch_that_waits_is_on_its_way_when_the_one_before_it_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop turn between the two may receive and sum a megabyte while the disk stands still (ADR 0190).

    Who is told appends before that: its content is in the batch, too, and its answer has left.
    """
    turns, told = [0], list[str]()
    spans: list[tuple[int, int]] = []
    persist = SimFile.persist

    async def noted(file: SimFile, at: int, parts: Sequence[Buffer]) -> None:
        begun = turns[0]
        await persist(file, at, parts)
        spans.append((begun, turns[0]))

    def tick() -> None:
        turns[0] += 1
        ticking[0] = loop.call_soon(tick)

    monkeypatch.setattr(SimFile, "persist", noted)
    loop = asyncio.get_running_loop()
    ticking = [loop.call_soon(tick)]
    async with opened(SimDisk()) as bench:
        spans.clear()

        def done() -> None:
            told.append(f"{turns[0]} first")
            bench.log._turn.at_end(Rank.WIRE, lambda: told.append(f"{turns[0]} answered"))
            bench.log.append(A, [b"second"], done=lambda: None)

        bench.log.append(A, [b"first"], done=done)
        await bench.settled()

        (_, durable), (following, _) = spans
        assert told == [f"{durable} first", f"{durable} answered"]
        assert following == durable
    ticking[0].cancel()


async def test_a_closed_log_has_told_everyone() -> None:
    """Also where they are more than are told in a turn."""
    async with opened(SimDisk(), config=ROOMY) as bench:
        for n in range(300):
            bench.send(LogStreamId(n), b"x")
        await bench.log.close()
        assert len(bench.acknowledged) == 300


async def test_a_payload_of_many_parts_is_written_back_to_back_and_not_copied() -> None:
    """Bytes of a run go to the disk as the views that came from the wire."""
    disk = SimDisk()
    big = bytes(range(256)) * 20
    async with opened(disk) as bench:
        bench.log.append(
            A,
            [memoryview(big)[:100], b"", bytearray(big[100:3000]), memoryview(big)[3000:]],
            done=lambda: None,
        )
        await bench.settled()
    assert await read_all(disk) == {A: [big]}


async def test_an_empty_record_counts() -> None:
    """A record without bytes is a record."""
    disk = SimDisk()
    async with opened(disk) as bench:
        await bench.commit(A, b"", b"", b"x")
    assert await read_all(disk) == {A: [b"", b"", b"x"]}


async def test_a_truncation_voids_what_follows_it_for_good() -> None:
    """No record from before a truncation comes back after it, however often the log is started (log.7)."""
    disk = SimDisk()
    async with opened(disk) as bench:
        await bench.commit(A, b"0", b"1", b"2", b"3", generation=1)
        bench.log.truncate(A, Offset(2), Generation(2), lambda: None)
        assert bench.log.next_offset(A) == 2
        await bench.commit(A, b"2'", generation=2)
    for seed in (2, 3):
        async with opened(disk, seed=seed) as bench:
            found = await bench.found(A)
            assert payloads(found.records) == [b"0", b"1", b"2'"]
            assert (found.generation, found.tail_cut, found.is_quarantined) == (2, False, False)
            bench.log.check()


async def test_a_truncation_is_refused_inside_a_run_without_its_chain_or_a_greater_generation() -> None:
    """What is appended next must link to something, and a branch has a generation of its own."""
    async with opened(SimDisk()) as bench:
        bench.send_many(A, *[b"run"] * 10, generation=3)
        for offset, generation in ((5, 4), (0, 3), (11, 4)):
            with pytest.raises(LocalProtocolError):
                bench.log.truncate(A, Offset(offset), Generation(generation), lambda: None)
        with pytest.raises(LocalProtocolError):
            bench.send(A, b"old", generation=2)

        assert bench.log.next_offset(A) == 10


async def test_a_reset_begins_a_stream_anew_at_any_offset() -> None:
    """A snapshot was installed: what the log had is void, and the chain goes on from the snapshot's."""
    disk = SimDisk()
    async with opened(disk) as bench:
        await bench.commit(A, b"old", generation=1)
        bench.log.reset(A, Offset(1000), Generation(2), lambda: None, crc=77)
        assert await bench.commit(A, b"new", generation=2) == 1000
    async with opened(disk, seed=2) as bench:
        found = await bench.found(A)
        assert (found.first_offset, found.next_offset, payloads(found.records)) == (1000, 1001, [b"new"])


async def test_a_stream_that_the_log_does_not_know_may_begin_with_a_reset() -> None:
    """A snapshot is installed on a new replica: its next record has the offset that the others have."""
    disk = SimDisk()
    async with opened(disk) as bench:
        bench.log.reset(A, Offset(1000), Generation(2), lambda: None, crc=77)
        assert (bench.log.streams(), bench.log.chain(A)) == ([A], 77)
        assert await bench.commit(A, b"new", generation=2) == 1000
    assert await read_all(disk) == {A: [b"new"]}


async def test_a_record_that_fits_a_segment_only_without_the_rows_of_all_streams_is_refused() -> None:
    """The first batch of each segment has a row of every stream: the record was placed where no room was."""
    config = msgspec.structs.replace(SMALL, record_bytes_max=56 << 10, batch_bytes_max=60 << 10)
    async with opened(SimDisk(), config=config) as bench:
        await bench.settled()
        await bench.commit(A, bytes(56 << 10))
        for stream in range(2, 200):
            bench.send(LogStreamId(stream), b"x")
        await bench.settled()
        with pytest.raises(TooLarge, match="does not fit into a segment"):
            bench.send(A, bytes(56 << 10))
        assert await bench.commit(A, b"small") == 1


async def test_a_dropped_stream_is_gone_and_its_id_begins_at_zero() -> None:
    """A journal was deleted, and another of the same id begins."""
    disk = SimDisk()
    async with opened(disk) as bench:
        await bench.commit(A, b"1", b"2")
        bench.log.drop(A)
        await bench.settled()
        assert bench.log.streams() == []
        assert await bench.commit(A, b"again") == 0
        bench.log.drop(B)
    assert await read_all(disk) == {A: [b"again"]}


async def test_a_trim_is_remembered_when_everything_was_trimmed() -> None:
    """Offsets go on where they were, also when no record is left to tell."""
    disk = SimDisk()
    async with opened(disk) as bench:
        await bench.commit(A, b"1", b"2", b"3")
        bench.log.trim(A, Offset(3))
        await bench.commit(B, b"x")
    async with opened(disk, seed=2) as bench:
        found = await bench.found(A)
        assert (found.records, found.first_offset, found.next_offset) == ([], 3, 3)
        assert await bench.commit(A, b"4") == 3
    assert await read_all(disk) == {A: [b"4"], B: [b"x"]}


async def test_segments_are_recycled_and_a_trimmed_log_goes_on_for_ever() -> None:
    """Ten times the pool flows through the pool, which stays as it is."""
    disk = SimDisk()
    async with opened(disk) as bench:
        for n in range(300):
            await bench.commit(A, bytes([n % 256]) * 8000)
            bench.log.trim(A, Offset(n))
            bench.log.check()
        status = bench.log.status()
        assert status.lap_head > 30
        assert status.segment_count <= 5
    assert await read_all(disk) == {A: [bytes([299 % 256]) * 8000]}


async def test_a_full_log_refuses_and_goes_on_after_a_trim() -> None:
    """A refused append leaves no trace: the next one has the offset that it would have had."""
    disk = SimDisk()
    async with opened(disk) as bench:
        done = 0
        with pytest.raises(LogFull):  # noqa: PT012 - which one of them is refused, is not the point.
            for _ in range(200):
                await bench.commit(A, bytes(8000))
                done += 1
        assert bench.log.next_offset(A) == done
        assert bench.log.status().segment_count == SMALL.segments_max
        bench.log.trim(A, Offset(done))
        await bench.settled()

        assert await bench.commit(A, b"again") == done
        bench.log.check()
    assert await read_all(disk) == {A: [b"again"]}


async def test_a_full_log_takes_a_record_that_makes_it_less_full() -> None:
    """A checkpoint is what allows a trim: refused for want of room, it would keep the log full for ever."""
    async with opened(SimDisk()) as bench:
        with pytest.raises(LogFull):  # noqa: PT012 - which one of them is refused, is not the point.
            for _ in range(200):
                await bench.commit(A, bytes(8000))
        heard: list[str] = []

        bench.log.append(B, [bytes(8000)], relief=True, done=lambda: heard.append("durable"))
        await bench.settled()
        assert heard == ["durable"]


async def test_a_full_log_can_be_started_again_and_again() -> None:
    """The segment that is kept has room for the boot frames of many starts."""
    disk = SimDisk()
    async with opened(disk) as bench:
        with pytest.raises(LogFull):  # noqa: PT012 - which one of them is refused, is not the point.
            for _ in range(200):
                await bench.commit(A, bytes(8000))
    for seed in range(2, 40):
        async with opened(disk, seed=seed) as bench:
            count = len((await bench.found(A)).records)
            assert count > 20


async def test_limits_are_refused_and_nothing_changes() -> None:
    """Sizes, counts and numbers of streams have a limit each."""
    config = WALConfig(
        segment_bytes=64 << 10,
        segments_initial=3,
        record_bytes_max=8192,
        pending_bytes_max=20_000,
        streams_max=2,
    )
    async with opened(SimDisk(), config=config) as bench:
        with pytest.raises(TooLarge):
            bench.send(A, bytes(8193))
        with pytest.raises(Throttled):  # noqa: PT012 - one of them.
            for _ in range(4):
                bench.send(A, bytes(8000))
        assert bench.log.next_offset(A) == 2
        await bench.settled()
        bench.send(B, b"")
        with pytest.raises(TooLarge):
            bench.send(C, b"")
        with pytest.raises(LocalProtocolError):
            bench.send_many(A)
        with pytest.raises(LocalProtocolError):
            bench.send(LogStreamId((1 << 64) - 1), b"")
        assert bench.log.streams() == [A, B]


async def test_a_second_process_is_refused() -> None:
    """Two writers of one log would overwrite each other."""
    disk = SimDisk()
    async with opened(disk):
        with pytest.raises(ConfigError, match="in use"):
            async with opened(disk):
                pass


async def test_a_closed_log_takes_nothing() -> None:
    """After `close` an append is the caller's mistake, not a loss."""
    async with opened(SimDisk()) as bench:
        pass
    with pytest.raises(LocalProtocolError):
        bench.send(A, b"late")
    await bench.log.close()


async def test_close_makes_what_is_pending_durable_and_acknowledges_it() -> None:
    """A clean shutdown loses nothing that it was given."""
    disk = SimDisk()
    async with opened(disk) as bench:
        bench.send(A, b"last words")
    assert bench.acknowledged == [(A, 1)]
    assert await read_all(after_power_cut(disk)) == {A: [b"last words"]}


async def test_the_log_knows_whether_the_kernel_rebooted() -> None:
    """journals.2 asks it: the page cache lives through a kill, not through a reboot."""
    disk = SimDisk()
    async with opened(disk) as bench:
        assert not bench.log.is_same_boot
    async with opened(disk, seed=2) as bench:
        assert bench.log.is_same_boot
    async with opened(disk, seed=3, boot_id="kernel-2") as bench:
        assert not bench.log.is_same_boot


async def test_a_killed_process_loses_only_what_was_not_acknowledged() -> None:
    """Kill -9 between write and answer."""
    disk = SimDisk()
    async with opened(disk) as bench:
        await bench.commit(A, b"kept")
        bench.send(A, b"in flight")
        await asyncio.sleep(0)
        await abandon(bench)
    found = await read_all(after_power_cut(disk))
    assert found[A][:1] == [b"kept"]
    assert disk.exists(f"{DIRECTORY}/segment-00000000.wal")


async def test_a_dropped_stream_without_records_leaves_no_callback() -> None:
    """Each journal that was deleted before its first record kept its replica in memory."""
    async with opened(SimDisk()) as bench:
        bench.log.on_flush_request(A, lambda _: None)
        bench.log.drop(A)

        assert bench.log._reclaimer.callbacks == {}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("segment_bytes", 5000),
        ("segment_bytes", 12 << 10),
        ("segment_bytes", 4096 << 20),
        ("segments_initial", 2),
        ("record_bytes_max", 4095),
        ("streams_max", 0),
        ("retry_delay", 0),
    ],
)
def test_a_setting_out_of_range_is_named(setting: str, value: int) -> None:
    """A full disk that is asked again without a pause would take the processor too."""
    with pytest.raises(ValueError, match=f"{setting} must be"):
        WALConfig(**{setting: value})  # type: ignore[arg-type]


def test_the_smallest_log_is_taken() -> None:
    """Tests and small machines use it; its bounds are those that the text names."""
    assert WALConfig(segment_bytes=16 << 10, initial_fill_bytes=4096, record_bytes_max=4096).segments_max


async def test_a_truncation_deals_with_a_tail_that_was_cut() -> None:
    """Its domain has looked and gone on: it must not be told of the same cut after each start."""
    disk = SimDisk()
    async with opened(disk) as bench:
        await bench.commit(A, b"1", b"2")
        bench.log.states[A].flags |= RowFlag.TAIL_CUT
        await bench.commit(B, b"1")
    for is_dealt_with in (False, True):
        async with opened(disk, seed=2 + is_dealt_with) as bench:
            assert (await bench.found(A)).tail_cut
            if is_dealt_with:
                bench.log.truncate(A, Offset(1), Generation(1), lambda: None)
                await bench.settled()
    async with opened(disk, seed=4) as bench:
        found = await bench.found(A)
        assert (payloads(found.records), found.tail_cut) == ([b"1"], False)


async def test_a_closed_log_asks_nobody_to_flush() -> None:
    """A timer that goes off later would find a node that has stopped."""
    bench = await open_log(SimDisk())
    await bench.settled()
    bench.log.on_flush_request(A, lambda _: None)
    with suppress(LogFull):
        for _ in range(100):
            await bench.commit(A, bytes(10_000))
    assert bench.log._reclaimer._timer is not None
    await bench.log.close()

    assert bench.log._reclaimer._timer is None


async def test_a_batch_fills_its_last_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a former use of the segment left behind it must not be read with it."""
    writes: list[tuple[int, int]] = []
    persist = SimFile.persist

    async def noted(file: SimFile, at: int, parts: Sequence[Buffer]) -> None:
        writes.append((at % 4096, sum(len(part) for part in parts) % 4096))
        await persist(file, at, parts)

    monkeypatch.setattr(SimFile, "persist", noted)
    async with opened(SimDisk()) as bench:
        for size in (1, 500, 3000, 4096, 9000):
            await bench.commit(A, bytes(size))

    assert len(writes) >= 5
    assert writes == [(0, 0)] * len(writes)


async def test_an_append_of_many_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count has four bytes in a frame: a run that is longer cannot be told."""
    monkeypatch.setattr(log_module, "COUNT_MAX", 3)
    async with opened(SimDisk()) as bench:
        assert bench.send_many(A, b"1", b"2", b"3") == 0
        with pytest.raises(LocalProtocolError, match="a run of 4 entries"):
            bench.send_many(A, b"1", b"2", b"3", b"4")
        assert bench.log.next_offset(A) == 3


async def test_a_full_log_takes_a_truncation() -> None:
    """It is what a replica does with entries that its leader does not have: it cannot wait for room."""
    async with opened(SimDisk()) as bench:
        with pytest.raises(LogFull):  # noqa: PT012 - which one of them is refused, is not the point.
            for _ in range(200):
                await bench.commit(A, bytes(8000))
        heard: list[str] = []
        bench.log.truncate(A, Offset(3), Generation(1), lambda: heard.append("durable"))
        await bench.settled()

        assert heard == ["durable"]


async def test_a_dropped_stream_leaves_no_callback() -> None:
    """The id may begin anew, for somebody else: nobody must be asked to flush it, or told of its damage."""
    async with opened(SimDisk()) as bench:
        await bench.commit(A, b"1")
        bench.log.on_flush_request(A, lambda _: None)
        bench.log.on_quarantine(A, lambda _: None)
        bench.log.drop(A)

        assert bench.log._reclaimer.callbacks == {}
        assert bench.log._on_quarantine == {}


async def test_a_log_that_cannot_grow_says_so() -> None:
    """`status` names a full disk also while batches still fit into what is filled."""
    disk = SimDisk()
    async with opened(disk) as bench:
        assert not bench.log.status().is_out_of_space
        disk.state.quota_bytes = disk.state.used()
        with pytest.raises(LogFull):  # noqa: PT012 - which one of them is refused, is not the point.
            for _ in range(200):
                await bench.commit(A, bytes(8000))
        assert bench.log.status().is_out_of_space
        disk.state.quota_bytes = 1 << 40


async def test_a_log_keeps_the_size_of_its_segments() -> None:
    """Another configuration counts for the segments that are made from now on."""
    disk = SimDisk()
    async with opened(disk) as bench:
        await bench.commit(A, b"1")
    larger = msgspec.structs.replace(ROOMY, segments_initial=6)
    async with opened(disk, config=larger, seed=2) as bench:
        await bench.settled()

        assert bench.log.segments.wanted[0] == SMALL.segment_bytes
        assert max(bench.log.segments.wanted.values()) == ROOMY.segment_bytes


def test_a_run_whose_entries_stand_elsewhere_is_corrupt() -> None:
    """Its sum may be right, and its writer wrong: its entries say where they belong."""
    run = Run.of([b"one", b"", b"three"], offset=Offset(5), seed=7)
    assert [each.offset for each in run.records()] == [5, 6, 7]
    assert run.since(Offset(5)) == run

    for wrong in (
        msgspec.structs.replace(run, offset=Offset(6)),
        msgspec.structs.replace(run, data=run.data[:-1]),
    ):
        with pytest.raises(Corrupt):
            list(wrong.records())


async def test_the_kernel_is_known_when_the_boot_frame_is_long_gone() -> None:
    """journals.2: its segment is used again, and a kill -9 was taken for a power cut.

    Then what a flipped bit hides of the newest batch is cut off and not kept.
    """
    disk = SimDisk()
    bench = await open_log(disk)
    first = bench.log.status().lap_head
    while bench.log.status().lap_oldest == first:
        offset = await bench.commit(A, bytes(12 << 10))
        bench.log.trim(A, Offset(offset + 1))
        await bench.settled()
    await abandon(bench)
    async with opened(disk, seed=2) as again:
        assert again.log.is_same_boot
    async with opened(disk, seed=3, boot_id="kernel-2") as after:
        assert not after.log.is_same_boot


async def test_the_kernel_is_known_when_the_boot_frame_is_damaged() -> None:
    """W6: one flipped bit in it made every kill a power cut."""
    disk = SimDisk()
    bench = await open_log(disk)
    await bench.commit(A, b"one")
    await bench.commit(A, b"two")
    await abandon(bench)
    inode = next(inode for name, inode in disk.state.files.items() if name.endswith("00000000.wal"))
    at = bytes(inode.view).index(b"kernel-1")
    disk.state.change(inode, Write(at, b"K"))
    async with opened(disk, seed=2) as again:
        assert again.log.is_same_boot
