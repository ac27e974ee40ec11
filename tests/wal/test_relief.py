"""Relief never competes with load: a full log heals by itself, and says truly why it is full meanwhile."""

import asyncio
import time

import msgspec
import pytest

from broadsheet.base.time import SECOND, Duration
from broadsheet.base.types import Generation, LogStreamId, Offset
from broadsheet.errors import Throttled
from broadsheet.wal import LogFull, StreamQuarantined, WALConfig
from broadsheet.wal.config import BLOCK_BYTES
from broadsheet.wal.format import ENTRY_BYTES, FRAME_BYTES, Row, RowFlag
from broadsheet.wal.stream_replay import StreamReplay
from simulator.crashstates import crash_states, record
from simulator.disk import SimDisk
from simulator.disk_state import Write
from tests.wal.harness import (
    DIRECTORY,
    SMALL,
    A,
    B,
    Bench,
    C,
    abandon,
    after_power_cut,
    open_log,
    opened,
    payloads,
    vouching,
)
from tests.wal.histories import noise, read_image
from tests.wal.one_stream import record_ranges

SEGMENT = f"{DIRECTORY}/segment-00000000.wal"
TIGHT = msgspec.structs.replace(SMALL, segments_max=4)


async def fill(bench: Bench, stream: LogStreamId, length: int = 12_000) -> int:
    """Append until it is refused; how many were taken."""
    for count in range(1000):
        try:
            await bench.commit(stream, bytes(length))
        except LogFull:
            return count
    raise AssertionError("the log is never full")


async def until(bench: Bench, is_so: object, *, seconds: float = 5) -> None:
    """Wait, without appending anything, until `is_so()`."""
    end = asyncio.get_running_loop().time() + seconds
    while not is_so():  # type: ignore[operator]
        assert asyncio.get_running_loop().time() < end, bench.log.status()
        await asyncio.sleep(0.001)


async def test_a_full_log_heals_by_itself_when_load_ends() -> None:
    """The flush that was refused, or could not be made yet, is asked for until its pin is gone.

    It was asked for once per segment, so that a log which was full once stayed full for ever.
    """
    async with opened(SimDisk(), config=TIGHT) as bench:
        log, asked, is_owned = bench.log, [0], [True]

        def flush(stream: LogStreamId) -> None:
            asked[0] += 1
            if not is_owned[0]:
                below = log.next_offset(stream)
                log.append(stream, [b"checkpoint" * 100], relief=True, done=lambda: log.trim(stream, below))

        log.on_flush_request(B, flush)
        await bench.commit(B, bytes(12_000), bytes(12_000), bytes(12_000))  # More than half of a segment.
        taken = await fill(bench, A)
        before = asked[0]
        await until(bench, lambda: asked[0] > before + 2)
        is_owned[0] = False
        await until(bench, lambda: log.status().pinning == [A])
        log.trim(A, Offset(taken))

        await until(bench, lambda: log.status().segment_free_count >= 2)
        await bench.commit(A, bytes(12_000))
        await until(bench, lambda: not log._reclaimer._timer)
        before = asked[0]
        await asyncio.sleep(0.03)
        assert asked[0] == before, "nobody is asked when there is room"


async def test_a_copy_that_is_refused_late_does_not_end_the_asking() -> None:
    """The clock struck while the copier was at work, and when it gave up nobody looked any more."""
    async with opened(SimDisk(), config=TIGHT) as bench:
        asked: list[int] = []
        bench.log.on_flush_request(A, asked.append)
        await fill(bench, A)
        await until(bench, lambda: asked)
        bench.log._reclaimer._is_copying = True
        await asyncio.sleep(0.02)  # Longer than `retry_delay` doubles to.
        bench.log._reclaimer._is_copying = False
        count = len(asked)
        await until(bench, lambda: len(asked) > count)


async def test_a_log_grows_while_a_copy_lasts_longer_than_the_free_segments() -> None:
    """Nobody looked for room during a copy: appends were refused, with "another segment is being filled"."""
    async with opened(SimDisk(), config=SMALL) as bench:
        await bench.settled()
        bench.log._reclaimer._is_copying = True
        while bench.log.status().lap_head < SMALL.segments_max - 1:
            await bench.commit(A, bytes(12_000))
        bench.log._reclaimer._is_copying = False


async def test_appends_cannot_take_the_room_that_relief_has_moved_the_head_into() -> None:
    """After one truncation in a full log appends took the rest of its segment, and nothing could help.

    Source: log.10.
    """
    async with opened(SimDisk(), config=TIGHT) as bench:
        log = bench.log
        await bench.commit(B, b"x")
        taken = await fill(bench, A)
        head = log.status().lap_head
        while log.status().lap_head == head:
            log.append(B, [bytes(4000)], relief=True, done=lambda: None)
            await bench.settled()
        for _ in range(10):
            with pytest.raises(LogFull):
                bench.send(A, b"small")
        assert log.next_offset(A) == taken
        for _ in range(8):  # A checkpoint each of many journals.
            log.append(B, [bytes(1000)], relief=True, done=lambda: None)
            await bench.settled()
        log.check()
        log.trim(A, Offset(taken))
        log.trim(B, log.next_offset(B))
        await bench.settled()
        assert await bench.commit(A, b"again") == taken


async def test_a_restart_of_a_full_log_does_not_open_the_reserve_to_appends() -> None:
    """Else a supervisor that restarts a full node would use up what could relieve it."""
    disk = SimDisk()
    bench = await open_log(disk, config=TIGHT)
    taken = await fill(bench, A)
    for _ in range(3):
        bench.log.append(B, [bytes(1000)], relief=True, done=lambda: None)
        await bench.settled()
    await abandon(bench)
    for seed in range(2, 5):
        disk.state.locks.clear()
        bench = await open_log(disk, config=TIGHT, seed=seed)
        await bench.settled()
        with pytest.raises(LogFull):
            bench.send(A, bytes(100))
        await abandon(bench)
    disk.state.locks.clear()
    async with opened(disk, config=TIGHT, seed=99) as bench:
        bench.log.append(B, [b"checkpoint"], relief=True, done=lambda: None)
        bench.log.trim(A, Offset(taken))
        await bench.settled()
        assert await bench.commit(A, b"again") == taken


async def test_relief_is_not_throttled_by_what_waits_for_the_disk() -> None:
    """A checkpoint that load keeps out is a log that load fills up."""
    config = msgspec.structs.replace(SMALL, pending_bytes_max=20_000)
    async with opened(SimDisk(), config=config) as bench:
        with pytest.raises(Throttled):  # noqa: PT012 - one of them.
            for _ in range(4):
                bench.send(A, bytes(8000))
        bench.log.append(A, [bytes(8000)], relief=True, done=lambda: None)
        await bench.settled()
        assert bench.log.next_offset(A) == 3


async def test_a_log_that_cannot_grow_copies_what_nobody_flushes_and_goes_on() -> None:
    """Most of the oldest segment is held by a stream that never flushes: others must not wait (log.9)."""
    disk = SimDisk()
    bench = await open_log(disk, config=TIGHT)
    held = [bytes([n]) * 12_000 for n in range(3)]
    await bench.commit(B, *held)
    refused = 0
    while bench.log.status().lap_head < 40:
        try:
            await bench.commit(A, bytes(8000))
        except LogFull:
            refused += 1
            assert refused < 1000, bench.log.status()
            await asyncio.sleep(0.002)
        bench.log.trim(A, bench.log.next_offset(A))
        bench.log.check()
    await abandon(bench)
    async with opened(after_power_cut(disk), config=TIGHT, seed=2) as bench:
        assert payloads((await bench.found(B)).records) == held


async def test_a_log_whose_segments_were_configured_smaller_still_copies_its_older_records() -> None:
    """`TooLarge` came out of the copier, where nobody expects it: the node ended, again after each start."""
    disk = SimDisk()
    large = msgspec.structs.replace(
        SMALL, segment_bytes=128 << 10, initial_fill_bytes=128 << 10, record_bytes_max=32 << 10
    )
    bench = await open_log(disk, config=large)
    await bench.commit(A, noise(1, 30_000))
    await bench.log.close()
    small = msgspec.structs.replace(
        SMALL, segment_bytes=16 << 10, record_bytes_max=4 << 10, batch_bytes_max=8 << 10, segments_max=8
    )
    bench = await open_log(disk, config=small, seed=2)
    first = bench.log.status().lap_oldest
    for n in range(400):
        await bench.commit(B, noise(n, 3000))
        bench.log.trim(B, bench.log.next_offset(B))
        assert bench.crashes == []
    assert bench.log.status().lap_oldest > first + 5
    assert [record.payload async for record in bench.log.records(A)] == [noise(1, 30_000)]
    await abandon(bench)


async def test_what_a_trim_asks_for_in_the_turn_of_a_close_ends_nothing() -> None:
    """The flush at the end of the turn came after the log had let go of its tasks and files."""
    disk, errors = SimDisk(), list[object]()
    bench = await open_log(disk, config=vouching(SMALL))
    while bench.log.pool.head < 2:
        await bench.commit(A, noise(1, 12_000))
    await bench.commit(B, b"the head is another segment")
    await bench.vouched()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    bench.log.trim(A, bench.log.next_offset(A))
    await bench.log.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert errors == []
    assert bench.crashes == []


async def test_requests_to_flush_are_repeated_after_twice_the_time_up_to_a_bound() -> None:
    """Whoever cannot flush yet is not asked a thousand times a second, and not after an hour either."""
    config = msgspec.structs.replace(TIGHT, retry_delay=Duration(SECOND))
    async with opened(SimDisk(), config=config) as bench:
        reclaimer, loop = bench.log._reclaimer, asyncio.get_running_loop()
        waits = []
        for count in range(1, 7):
            reclaimer._asked_count = count
            reclaimer._arm()
            assert reclaimer._timer is not None
            waits.append(round(reclaimer._timer.when() - loop.time()))
            reclaimer.close()
    assert waits == [1, 2, 4, 8, 8, 8]


async def test_nobody_is_asked_while_a_segment_is_copied_or_after_a_failure_of_the_disk() -> None:
    """Two copiers of one segment would use up the room that one of them needs; a dead log writes nothing."""
    async with opened(SimDisk(), config=TIGHT) as bench:
        asked: list[int] = []
        log, reclaimer = bench.log, bench.log._reclaimer
        log.on_flush_request(A, asked.append)
        await fill(bench, A)
        await until(bench, lambda: asked)

        async def is_asked() -> bool:
            reclaimer.close()
            count = len(asked)
            reclaimer.look()
            await asyncio.sleep(0)
            return len(asked) > count

        assert await is_asked()
        reclaimer._is_copying = True
        assert not await is_asked()
        reclaimer._is_copying, log.is_dead = False, True
        assert not await is_asked()
        log.is_dead = False
        assert await is_asked()


@pytest.mark.parametrize(
    ("free", "asked", "is_copied"),
    [(1, 1, True), (2, 1, False), (2, 2, True)],
    ids=["short", "first", "again"],
)
async def test_a_mostly_dead_segment_is_copied_at_once_only_where_the_reserve_is_all_that_is_free(
    free: int, asked: int, *, is_copied: bool
) -> None:
    """Else its streams are asked first, once: a flush that was made anyway is cheaper than a copy."""
    async with opened(SimDisk()) as bench:
        pool, reclaimer = bench.log.pool, bench.log._reclaimer
        await bench.commit(B, b"old")
        reclaimer._asked_at, reclaimer._asked_count = pool.head, asked
        while len(pool.free) > free:
            pool.free.pop()
        assert reclaimer._may_copy(is_mostly_dead=True) == is_copied


async def test_a_log_full_of_what_nobody_flushes_comes_to_rest() -> None:
    """Copying where nothing can be gained would write for ever."""
    async with opened(SimDisk(), config=TIGHT) as bench:
        await fill(bench, A)
        await asyncio.sleep(0.05)
        before = bench.log.status().synced_bytes
        await asyncio.sleep(0.2)
        assert bench.log.status().synced_bytes == before


async def test_a_full_log_names_the_streams_that_hold_it_in_microseconds() -> None:
    """10,000 streams, one of which pins the oldest segment: load is refused at the speed of memory."""
    config = WALConfig(
        segment_bytes=4 << 20, segments_initial=3, segments_max=3, initial_fill_bytes=4 << 20,
        vouch_delay=SMALL.vouch_delay, pending_bytes_max=1 << 30,
    )  # fmt: skip
    async with opened(SimDisk(), config=config) as bench:
        log = bench.log
        await bench.settled()
        for n in range(10_000):
            log.append(LogStreamId(n), [b"x"], done=lambda: None)
        await bench.settled()
        assert log.status().lap_head == 1
        for n in range(10_000):
            if n not in (77, 5000):
                log.trim(LogStreamId(n), Offset(1))
        await fill(bench, LogStreamId(77), 1 << 20)
        with pytest.raises(LogFull, match=r"the oldest is held by streams \[77, 5000\]"):
            bench.send(LogStreamId(3), bytes(1 << 20))
        begun = time.thread_time()
        for _ in range(200):
            with pytest.raises(LogFull):
                bench.send(LogStreamId(3), bytes(1 << 20))
        assert (time.thread_time() - begun) / 200 < 0.001


async def test_the_error_of_a_full_log_names_the_true_cause() -> None:
    """Whether a stream pins it, or the disk has no space; each with its remedy."""
    disk = SimDisk()
    async with opened(disk, config=TIGHT) as bench:
        await fill(bench, A)
        with pytest.raises(
            LogFull, match=r"segments_max 4; the oldest is held by streams \[1\].*wal\.segments_max"
        ):
            bench.send(A, bytes(12_000))
    disk = SimDisk()
    bench = await open_log(disk, config=TIGHT)
    await bench.settled()
    disk.state.quota_bytes = 0
    await fill(bench, A)
    with pytest.raises(LogFull, match=r"the disk has no space for another; .* Free space"):
        bench.send(A, bytes(12_000))
    disk.state.quota_bytes = 1 << 40
    await bench.log.close()


# --- damage -------------------------------------------------------------------------------------------


async def _with_a_damaged_record(*, config: WALConfig = TIGHT, size: int = 700) -> tuple[SimDisk, Bench]:
    disk = SimDisk()
    bench = await open_log(disk, config=config)
    bench.send(B, b"B" * size)
    bench.send(C, b"C" * 500)
    await bench.commit(B, b"b" * size)
    (place, *_) = [r for r in record_ranges(disk.state.image()) if r.end - r.begin > size]
    file = disk.open(SEGMENT)
    file.write_at(place.begin + FRAME_BYTES + ENTRY_BYTES + 8, [b"?"])
    file.sync()
    return disk, bench


async def roll_on(bench: Bench, laps: int) -> None:
    """Write and trim until the head has gone so far."""
    end, refused = bench.log.status().lap_head + laps, 0
    while bench.log.status().lap_head < end:
        try:
            await bench.commit(A, bytes(8000))
        except LogFull:
            refused += 1
            assert refused < 1000, bench.log.status()
            await asyncio.sleep(0.002)
        bench.log.trim(A, bench.log.next_offset(A))


@pytest.mark.parametrize("size", [700, 15_000], ids=["small", "large"])
async def test_a_damaged_old_record_pins_nobody_and_ends_nothing(size: int) -> None:
    """One bad sector of a stream that nobody repairs, and the log goes on ten times round (log.14)."""
    disk, bench = await _with_a_damaged_record(size=size)
    told: list[int] = []
    bench.log.on_quarantine(B, told.append)
    await roll_on(bench, 40)
    await bench.settled()
    assert bench.crashes == []
    assert told == [B], "its domain is told, once"
    with pytest.raises(StreamQuarantined):
        bench.send(B, b"more")
    with pytest.raises(StreamQuarantined, match="lost records"):
        await bench.log.read(B, Offset(0), 1 << 20)
    (behind,) = await bench.log.read(B, Offset(1), 1 << 20)
    assert [record.payload for record in behind.records()] == [b"b" * size], "what is sound is still read"
    bench.log.check()
    kept = [content for name, content in disk.state.image().items() if "quarantine-" in name]
    assert any(b"B" * 8 + b"?" + b"B" * (size - 9) in content for content in kept), (
        "set aside, not deleted (W7)"
    )
    await abandon(bench)
    for seed in (2, 3):
        bench = await open_log(after_power_cut(disk), config=TIGHT, seed=seed)
        found = await bench.found(B)
        assert found.is_quarantined
        assert not found.tail_cut
        assert found.next_offset == 2
        assert [record.payload for record in found.suspects] == [b"b" * size], "what is sound was copied"
        assert payloads((await bench.found(C)).records) == [b"C" * 500]
        await roll_on(bench, 20)
        assert bench.log.is_quarantined(B)
        await abandon(bench)


async def test_damage_that_cannot_be_set_aside_pins_its_segment_until_there_is_space() -> None:
    """W7 on a full disk: no bytes go before they are kept, nothing ends, and it is tried again."""
    disk, bench = await _with_a_damaged_record()
    disk.state.quota_bytes = 0
    before = bench.log.status().lap_oldest
    for _ in range(200):
        try:
            await bench.commit(A, bytes(8000))
        except LogFull:
            await asyncio.sleep(0.001)
        bench.log.trim(A, bench.log.next_offset(A))
    assert bench.log.status().lap_oldest == before
    assert bench.log.is_quarantined(B)
    assert bench.crashes == []
    disk.state.quota_bytes = 1 << 40
    await until(bench, lambda: bench.log.status().lap_oldest > before)
    assert bench.log.status().quarantine_files
    await roll_on(bench, 20)
    await abandon(bench)


async def test_a_reset_while_damage_is_set_aside_is_not_undone_by_it() -> None:
    """The domain is told at once, and repairs at once: what it begins anew must not be lost with the old."""
    _, bench = await _with_a_damaged_record()

    def repair(stream: LogStreamId) -> None:
        from broadsheet.base.types import Generation

        bench.log.reset(stream, Offset(2), Generation(1), lambda: None)
        bench.log.append(stream, [b"repaired"], generation=Generation(1), done=lambda: None)

    bench.log.on_quarantine(B, repair)
    await roll_on(bench, 20)
    assert not bench.log.is_quarantined(B)
    assert bench.log.next_offset(B) == 3
    bench.log.check()
    await bench.log.close()


async def test_no_crash_while_damage_is_set_aside_hides_it_or_loses_anything_else() -> None:
    """Power may fail before, while and after it is kept, its stream quarantined and its segment freed."""
    disk = SimDisk()
    tape = record(disk)
    bench = await open_log(disk, config=vouching(TIGHT))
    bench.send(B, b"B" * 700)
    bench.send(C, b"C" * 500)
    await bench.commit(B, b"b" * 700)
    await bench.vouched()
    (place, *_) = [r for r in record_ranges(disk.state.image()) if r.end - r.begin > 700]
    file = disk.open(SEGMENT)
    file.write_at(place.begin + FRAME_BYTES + ENTRY_BYTES + 8, [b"?"])
    file.sync()
    begun = len(tape.steps)
    await roll_on(bench, 14)
    await abandon(bench)
    count = freed = 0
    for state in crash_states(tape, atoms_max=5, first=begun):
        verdicts = read_image(state.image)
        held = [h.payload for h in verdicts[C].held]
        assert (held, verdicts[C].flags) == ([b"C" * 500], 0)
        assert verdicts[B].flags == RowFlag.QUARANTINED
        assert (verdicts[B].point.next, verdicts[B].held) == (2, [])
        is_there = b"B" * 8 + b"?" + b"B" * 691
        assert any(is_there in content for content in state.image.values()), "damaged bytes were deleted (W7)"
        freed += not any(is_there in c for name, c in state.image.items() if name.endswith(".wal"))
        count += 1
    assert count > 100
    assert freed > 20


def test_a_stream_that_only_the_last_batch_names_stays_quarantined_where_it_stood() -> None:
    """Its damaged record was set aside and its segment freed: that is no torn write."""
    replay = StreamReplay(B)
    replay.row(Row(B, first=0, next=2, generation=1, crc=77, flags=RowFlag.QUARANTINED), 7)
    verdict = replay.judge(7, is_suspect=False)
    assert (verdict.flags, verdict.point.next) == (RowFlag.QUARANTINED, 2)


async def full_with_relief(bench: Bench, *, blocks_left: int = 1) -> int:
    """Fill the log with appends, and what is kept for relief with resets; the appends that were taken."""
    log = bench.log
    taken = await fill(bench, A)
    count = 1
    while (last := log._last) is not None:
        if not log.pool.free and last.filled - last.end <= blocks_left * BLOCK_BYTES:
            break
        log.reset(B, Offset(count), Generation(count), lambda: None)
        await bench.settled()
        count += 1
    return taken


@pytest.mark.parametrize("segments_max", [3, 4])
async def test_a_log_that_relief_has_filled_is_not_full_any_more_when_all_of_it_is_trimmed(
    segments_max: int,
) -> None:
    """W8: no block was left for the batch that says so. It stayed full for ever, with nothing in it."""
    async with opened(SimDisk(), config=msgspec.structs.replace(SMALL, segments_max=segments_max)) as bench:
        taken = await full_with_relief(bench)
        with pytest.raises(LogFull):
            bench.log.reset(B, Offset(9999), Generation(9999), lambda: None)
        assert not bench.log._mark_end(), "a voucher frees nothing, and does not take the last block"

        bench.log.trim(A, Offset(taken))

        await until(bench, lambda: bench.log.status().segment_free_count >= 2)
        await bench.commit(A, bytes(12_000))


async def test_the_room_that_is_kept_for_freeing_is_not_used_up_by_a_batch_that_frees_nothing() -> None:
    """The log rested when a stream was trimmed, and vouched before another one was, in the same turn.

    The trim of the second one made the voucher, which stood where the freeing batch should, free nothing.
    """
    async with opened(SimDisk(), config=TIGHT) as bench:
        log = bench.log
        for _ in range(8):
            await bench.commit(A, bytes(12_000))  # The oldest segment is of A alone.
        await bench.commit(C, b"trimmed last")
        taken = 8 + await full_with_relief(bench)

        log.trim(A, Offset(taken))
        log._vouch()
        log.trim(C, Offset(1))

        await until(bench, lambda: log.status().segment_free_count >= 2)
        await bench.commit(A, bytes(12_000))


async def test_a_cut_that_is_dealt_with_while_the_log_is_full_is_noted_when_there_is_room() -> None:
    """LogFull came out of it, and ended the start of a metastore or key space whose head was full."""
    disk = SimDisk()
    bench = await open_log(disk, config=TIGHT)
    await bench.commit(C, b"cut")
    await abandon(bench)
    name = next(name for name in disk.state.files if b"cut" in bytes(disk.state.files[name].view))
    inode = disk.state.files[name]
    disk.state.change(inode, Write(bytes(inode.view).find(b"cut"), b"?"))
    disk.state.locks.clear()
    bench = await open_log(disk, config=TIGHT, seed=2)
    assert (await bench.found(C)).tail_cut
    taken = await full_with_relief(bench)
    bench.log.settle(C)
    assert not bench.log.status().tail_cut
    bench.log.trim(A, Offset(taken))
    await until(bench, lambda: bench.log.status().segment_free_count >= 2)
    await bench.commit(A, b"next batch")
    await abandon(bench)
    disk.state.locks.clear()

    async with opened(disk, config=TIGHT, seed=3) as bench:
        assert not (await bench.found(C)).tail_cut


async def test_a_start_on_a_full_disk_frees_what_was_trimmed_before_it() -> None:
    """W8: a kill came before the batch that frees it, and the boot batch took the room for that one."""
    disk = SimDisk()
    bench = await open_log(disk, config=TIGHT)
    log = bench.log
    taken = await full_with_relief(bench, blocks_left=2)
    log.trim(A, Offset(taken))
    log.reset(B, Offset(9999), Generation(9999), lambda: setattr(log, "is_dead", True))
    await until(bench, lambda: log.is_dead)
    assert log.status().segment_free_count == 0
    await abandon(bench)
    disk.state.locks.clear()
    disk.state.quota_bytes = disk.state.used()

    async with opened(disk, config=TIGHT, seed=2) as bench:
        assert bench.log.status().segment_free_count >= 2
        await bench.commit(A, bytes(12_000))


async def test_a_start_that_frees_nothing_leaves_the_room_for_the_batch_that_frees() -> None:
    """W8: its boot batch took the last block, and what was trimmed after it could not be freed any more."""
    disk = SimDisk()
    bench = await open_log(disk, config=TIGHT)
    taken = await full_with_relief(bench)
    await abandon(bench)
    disk.state.locks.clear()

    async with opened(disk, config=TIGHT, seed=2) as bench:
        bench.log.trim(A, Offset(taken))
        await until(bench, lambda: bench.log.status().segment_free_count >= 2)
        await bench.commit(A, bytes(12_000))


async def test_a_truncation_at_the_first_entry_releases_the_run_that_was_trimmed_in_part() -> None:
    """The run has no entry any more. It pinned its segment, and so all younger ones, until a later trim."""
    async with opened(SimDisk()) as bench:
        log = bench.log
        bench.send_many(A, b"a", b"b", b"c", b"d")
        await bench.settled()
        found = await log.entry(A, Offset(2))
        assert found is not None
        log.trim(A, Offset(2))

        log.truncate(A, Offset(2), Generation(1), lambda: None, chain=found.seed)
        await bench.settled()

        assert sum(use.pins for use in log.pool.laps.values()) == 0
        await bench.commit(A, b"e", generation=1)
        told = [run.records() for run in await log.read(A, Offset(2), 100)]
        assert payloads([record for records in told for record in records]) == [b"e"]
