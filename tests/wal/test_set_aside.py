"""What was damaged is kept (W7): durably, in few files, and without a cost that grows while the disk is full.

What a domain does in the same turn counts: who has given up a damaged run meanwhile has lost nothing.
"""

import asyncio
from collections.abc import Callable

import pytest

from broadsheet.base.types import Generation, LogStreamId, Offset
from broadsheet.errors import Trimmed
from broadsheet.wal import Log, LogFull, copying
from broadsheet.wal.config import BLOCK_BYTES
from broadsheet.wal.copying import damaged
from broadsheet.wal.opening import JOIN_GAP_BYTES, set_aside
from broadsheet.wal.recovery import Damage
from broadsheet.wal.segments import QUARANTINE_PREFIX, Segments
from simulator.disk import SimDisk, SimFile
from tests.wal.harness import A, B, C, abandon, after_power_cut, files_open, open_log, opened, payloads
from tests.wal.histories import read_image
from tests.wal.test_relief import SEGMENT, TIGHT, _with_a_damaged_record, roll_on


class KilledError(Exception):
    """The process ends here."""


async def test_a_full_disk_that_cannot_keep_what_is_damaged_leaks_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is tried again until there is space: a descriptor for each attempt would end the node in minutes."""
    disk, bench = await _with_a_damaged_record()
    await bench.settled()
    is_open = files_open(monkeypatch)
    disk.state.quota_bytes = 0
    for _ in range(100):
        try:
            await bench.commit(A, bytes(8000))
        except LogFull:
            await asyncio.sleep(0.001)
        bench.log.trim(A, bench.log.next_offset(A))
    assert bench.log.is_quarantined(B)
    assert not is_open
    disk.state.quota_bytes = 1 << 40
    await abandon(bench)


async def test_what_a_full_disk_could_not_keep_pins_its_segment_only_until_it_is_kept() -> None:
    """The disk has space again, and the bytes are set aside: the log must not stay full for ever."""
    disk, bench = await _with_a_damaged_record()
    await bench.settled()
    await abandon(bench)
    disk.state.locks.clear()
    disk.state.quota_bytes = 0
    bench = await open_log(disk, config=TIGHT, seed=2)
    pinned = bench.log.status().lap_oldest
    assert not bench.log.status().quarantine_files
    disk.state.quota_bytes = 1 << 40
    async with asyncio.timeout(10):
        while not bench.log.status().quarantine_files:  # noqa: ASYNC110 - the log tries again by itself.
            await asyncio.sleep(0.001)
    bench.log.drop(B)
    bench.log.drop(C)
    await roll_on(bench, 10)
    await bench.settled()

    assert bench.log.status().lap_oldest > pinned
    assert not bench.crashes
    await abandon(bench)


async def test_a_failed_sync_of_what_a_reader_sets_aside_ends_the_process() -> None:
    """The error went to the reader, who tried again; no later sync of that file is trusted (W5, log.16)."""
    disk, bench = await _with_a_damaged_record()
    await bench.settled()
    disk.state.health.sync_errors = 1
    with pytest.raises(OSError, match="fsync failed"):
        await bench.log.read(B, Offset(0), 100)

    assert [type(error) for error in bench.crashes] == [OSError]
    await abandon(bench)


async def test_whole_records_behind_a_lost_one_are_kept_when_their_segment_is_written_over() -> None:
    """Nobody may read them, so they pin nothing; but only they tell an operator what the stream held (W7)."""
    disk = SimDisk()
    bench = await open_log(disk, config=TIGHT)
    for payload in (b"lost" * 200, b"whole" * 200, b"end" * 200):
        await bench.commit(B, payload)
    await abandon(bench)
    at = disk.state.image()[SEGMENT].index(b"lost" * 200)
    disk.open(SEGMENT).write_at(at + 100, [b"?"])
    disk.state.locks.clear()
    bench = await open_log(disk, config=TIGHT, seed=2)
    assert payloads((await bench.found(B)).records) == []
    bench.log.drop(B)
    await roll_on(bench, 10)
    await abandon(bench)

    image = disk.state.image()
    for payload in (b"whole" * 200, b"end" * 200):
        assert [name for name, content in image.items() if payload in content and QUARANTINE_PREFIX in name]
        assert payload not in image[SEGMENT]


async def test_bytes_that_a_killed_start_has_set_aside_are_durable_before_the_next_start_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page cache shows them whole; the log then writes over the only durable copy."""
    disk = SimDisk()
    async with opened(disk) as bench:
        await bench.commit(A, b"a" * 5000)
        await bench.commit(B, b"damaged" * 700)
        await bench.commit(C, b"c")
    disk = after_power_cut(disk)
    at = disk.state.image()[SEGMENT].index(b"damaged" * 600)
    file = disk.open(SEGMENT)
    file.write_at(at + 100, [b"?"])
    file.sync()
    sync = SimFile.sync

    def killed(self: SimFile) -> None:
        if QUARANTINE_PREFIX in self.name:
            raise KilledError
        sync(self)

    with monkeypatch.context() as patch:
        patch.setattr(SimFile, "sync", killed)
        with pytest.raises(KilledError):
            await open_log(disk, seed=2)
    disk.state.locks.clear()
    bench = await open_log(disk, seed=3)
    assert bench.log.is_quarantined(B)
    await abandon(bench)
    kept = [content for name, content in after_power_cut(disk).state.image().items() if "quarantine" in name]
    assert any(b"damaged" * 500 in content for content in kept)


def test_many_damaged_runs_of_a_segment_are_set_aside_in_few_files() -> None:
    """Behind one bad sector may stand 100,000 runs of its stream: a file and a sync each took minutes."""
    disk = SimDisk()
    disk.make_dir("wal")
    segments = Segments(disk, "wal", log_id=1, segment_bytes=4 * JOIN_GAP_BYTES)
    index = segments.create()
    segments.fill(index, segments.segment_bytes)
    places = [Damage(index, 1, at, at + 200) for at in range(8192, 500_000, 400)]
    far = Damage(index, 1, 3 * JOIN_GAP_BYTES, 3 * JOIN_GAP_BYTES + 1000)

    made = set_aside(segments, [far, *places])

    image = disk.state.image()
    assert sorted(len(image[f"wal/{name}"]) for name in made) == [1000, places[-1].end - places[0].begin]
    assert set_aside(segments, [far, *places]) == [], "the second start makes none"


def test_where_no_batch_can_be_read_all_is_set_aside_that_may_have_been_written() -> None:
    """W7: a segment of an earlier process may be written to its end; of its own one knows how far."""
    disk = SimDisk()
    disk.make_dir("wal")
    segments = Segments(disk, "wal", log_id=1, segment_bytes=64 << 10)
    index = segments.create()
    segments.fill(index, segments.segment_bytes)

    for end, until in ((0, segments.segment_bytes), (8192, 8192)):
        assert damaged(segments, index, lap=1, end=end) == [Damage(index, 1, BLOCK_BYTES, until)]


def _drop(log: Log) -> None:
    log.drop(B)


def _trim(log: Log) -> None:
    log.trim(B, log.next_offset(B))


def _reset(log: Log) -> None:
    if log.generation(B) < 5:
        log.reset(B, log.next_offset(B), Generation(5), lambda: None)


@pytest.mark.parametrize("give_up", [_drop, _trim, _reset])
async def test_who_gives_up_a_damaged_run_while_the_copier_looks_has_lost_nothing(
    give_up: Callable[[Log], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked to flush just then. A dropped stream ended the node; a trimmed one was quarantined."""
    _, bench = await _with_a_damaged_record()
    await bench.settled()
    look = copying._set_aside

    async def meanwhile(log: copying.Copied, lap: int, index: int) -> None:
        asyncio.get_running_loop().call_soon(give_up, bench.log)
        await look(log, lap, index)

    monkeypatch.setattr(copying, "_set_aside", meanwhile)
    await roll_on(bench, 10)
    await bench.settled()
    assert bench.crashes == []
    assert not bench.log.is_quarantined(B)
    bench.log.check()
    await abandon(bench)


@pytest.mark.parametrize("give_up", [_drop, _trim, _reset])
async def test_who_gives_up_a_damaged_run_while_its_bytes_are_set_aside_is_not_quarantined(
    give_up: Callable[[Log], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its domain may have begun the stream anew meanwhile, and all of it is sound."""
    _, bench = await _with_a_damaged_record()
    run = SimDisk.run

    async def late(self: SimDisk, work: Callable[[], object]) -> object:
        result = await run(self, work)
        if isinstance(result, list) and result and isinstance(result[0], str):  # The names of what was kept.
            give_up(bench.log)
        return result

    monkeypatch.setattr(SimDisk, "run", late)
    if give_up is _drop:
        assert await bench.log.read(B, Offset(0), 1 << 20) == []
    else:
        with pytest.raises(Trimmed):
            await bench.log.read(B, Offset(0), 1 << 20)
    await bench.settled()
    assert not bench.log.is_quarantined(B)
    await bench.commit(B, b"it goes on")
    await abandon(bench)


async def test_a_damaged_first_batch_of_the_oldest_segment_hides_no_stream_and_is_no_cut_tail() -> None:
    """W6: it tells of all streams, and may be the only one that does: the second batch tells it once more."""
    disk = SimDisk()
    bench = await open_log(disk)
    log = bench.log
    await bench.commit(B, b"given up")
    log.trim(B, Offset(1))
    for n in range(3):
        await bench.commit(A, bytes([n]) * 11_000)
    log.trim(A, Offset(3))
    await bench.commit(A, b"acknowledged" * 1100)
    assert log.status().lap_oldest == 2, "the record stands in the first batch of the oldest segment"
    await log.close()
    image = disk.state.image()
    name = next(each for each, content in image.items() if b"acknowledged" in content)
    damaged = bytearray(image[name])
    damaged[4096:8192] = bytes(4096)

    bench = await open_log(SimDisk(after_power_cut(disk).state.of({**image, name: bytes(damaged)})), seed=2)

    found = await bench.found(A)
    assert found.is_quarantined, "a later batch vouches for it: that is damage"
    assert not found.tail_cut
    assert (found.first_offset, found.next_offset) == (3, 4)
    assert bench.log.streams() == [A, B]
    assert bench.log.next_offset(B) == 1
    await abandon(bench)


async def test_a_reset_whose_frame_a_power_cut_took_has_voided_nothing() -> None:
    """W2: it was not acknowledged, and what stood there before was."""
    disk = SimDisk()
    bench = await open_log(disk)
    await bench.commit(A, b"one", b"two")
    bench.send(B, b"b" * 5000)
    bench.log.reset(A, Offset(50), Generation(1), lambda: None)
    at = bench.send(A, b"a" * 5000)
    await bench.settled()
    await abandon(bench)
    image = disk.state.image()
    torn = bytearray(image[SEGMENT])
    begin = torn.index(b"b" * 5000) // 4096 * 4096 + 4096  # What the first block of the batch is followed by.
    torn[begin : torn.index(b"a" * 5000) + 5000] = bytes(torn.index(b"a" * 5000) + 5000 - begin)
    assert at == 50

    for seed in (2, 3):
        disk = SimDisk(disk.state.of({**image, SEGMENT: bytes(torn)})) if seed == 2 else disk
        bench = await open_log(disk, seed=seed)
        found = await bench.found(A)
        assert payloads(found.records) == [b"one", b"two"]
        assert (found.first_offset, found.next_offset) == (0, 2)
        assert not found.is_quarantined
        await abandon(bench)
        disk.state.locks.clear()
    assert LogStreamId(A) in read_image(disk.state.image())


def test_what_was_half_set_aside_is_set_aside_again() -> None:
    """A start that was killed in between left a file of the right length and of zeros."""
    disk = SimDisk()
    disk.make_dir("wal")
    segments = Segments(disk, "wal", log_id=1, segment_bytes=1 << 20)
    index = segments.create()
    segments.fill(index, segments.segment_bytes)
    segments.files[index].write_at(8192, [b"damaged" * 100])
    place = Damage(index, 1, 8192, 8192 + 700)
    (name,) = set_aside(segments, [place])
    disk.open(f"wal/{name}").write_at(0, [bytes(700)])

    assert set_aside(segments, [place]) == [name]
    assert disk.state.image()[f"wal/{name}"] == b"damaged" * 100


async def test_a_header_that_was_repaired_is_durable_when_the_log_is_open() -> None:
    """Else each power cut would find the same damage, and set it aside, for ever."""
    disk = SimDisk()
    async with opened(disk) as bench:
        for n in range(20):  # The head goes on in another file, whose syncs do not cover this one.
            await bench.commit(A, bytes([n]) * 5000)
        assert bench.log.pool.laps[bench.log.pool.head].index != 0
    good = after_power_cut(disk).state.image()[SEGMENT][:4096]
    disk = after_power_cut(disk)
    file = disk.open(SEGMENT)
    file.write_at(8, [b"????"])
    file.sync()
    bench = await open_log(disk, seed=2)

    assert after_power_cut(disk).state.image()[SEGMENT][:4096] == good
    await abandon(bench)
