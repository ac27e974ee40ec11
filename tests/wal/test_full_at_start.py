"""A start on a disk that was full: the head segment may be shorter than it is to be, and be full so far."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
from msgspec.structs import replace

from broadsheet.base.time import Duration
from broadsheet.base.types import Buffer
from broadsheet.wal import WALConfig
from broadsheet.wal.config import BLOCK_BYTES
from broadsheet.wal.format import VERSION, SegmentHeader
from broadsheet.wal.record import LogFull
from broadsheet.wal.segments import Segments, segment_name
from simulator.disk import SimDisk, SimFile
from simulator.disk_state import DiskState
from simulator.logimage import batches_of
from tests.wal.harness import DIRECTORY, SMALL, A, Told, abandon, open_log, opened, payloads

T = TypeVar("T")

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
    disk = SimDisk(DiskState(quota_bytes=25_200))
    bench = await open_log(disk, config=CONFIG)
    disk.state.health.is_full = True  # It takes no part of a write either.
    acknowledged = 0
    with contextlib.suppress(LogFull):
        while acknowledged < 100:
            await bench.commit(A, PAYLOAD)
            acknowledged += 1
    assert 0 < acknowledged < 100
    await abandon(bench)

    disk.state.locks.clear()
    with pytest.raises(OSError, match="no space left"):
        await open_log(disk, config=CONFIG, seed=2)
    disk.state.locks.clear()
    disk.state.quota_bytes, disk.state.health.is_full = 1 << 30, False
    for seed in (3, 4):
        bench = await open_log(disk, config=CONFIG, seed=seed)
        found = await bench.found(A)
        await bench.settled()  # Appends wait until there is room again that relief may use.
        await bench.commit(A, PAYLOAD)
        await abandon(bench)
        disk.state.locks.clear()
        assert not found.is_quarantined
        assert payloads(found.records) == [PAYLOAD] * acknowledged
        acknowledged += 1


async def starts_after_damage(disk: SimDisk, content: bytes) -> list[Told]:
    """What three starts find, the first on a full disk: the head of the batch with `content` is damaged."""
    (name,) = (name for name, each in disk.state.image().items() if content in each)
    disk.open(name).write_at(BLOCK_BYTES + 20, [b"?"])
    disk.state.quota_bytes = 0
    starts = []
    for seed in (2, 3, 4):
        disk.state.locks.clear()
        bench = await open_log(disk, seed=seed)
        starts.append(await bench.found(A))
        await bench.settled()
        await abandon(bench)
        disk.state.quota_bytes = 1 << 40
    return starts


async def test_a_cut_batch_that_a_full_disk_kept_where_it_was_is_found_by_the_next_start() -> None:
    """W7: it was the first of its segment, which was free to the next start: nobody was told of the record.

    An acknowledged append was gone, and its bytes were written over.
    """
    disk, count = SimDisk(), 0
    bench = await open_log(disk)
    lap = bench.log.status().lap_head
    while bench.log.status().lap_head == lap:
        count += 1
        await bench.commit(A, bytes([count]) * 7000)
    await bench.settled()
    await abandon(bench)
    for found in await starts_after_damage(disk, bytes([count]) * 7000):
        assert (found.next_offset, found.tail_cut) == (count - 1, True)
        assert payloads(found.suspects) == [bytes([count]) * 7000]
    kept = [content for name, content in disk.state.image().items() if "quarantine-" in name]
    assert any(bytes([count]) * 7000 in content for content in kept), "set aside, not deleted"


async def test_all_runs_of_a_kept_cut_are_suspects_of_every_start() -> None:
    """journals.14: each may have been acknowledged, also one of a new generation."""
    disk, count = SimDisk(), 0
    bench = await open_log(disk)
    lap = bench.log.status().lap_head
    while bench.log.status().lap_head == lap:
        count += 1
        bench.send(A, bytes([count]) * 7000, generation=2 * count)
        await bench.commit(A, bytes([count]) * 5000, generation=2 * count + 1)
    await abandon(bench)
    last = [bytes([count]) * 7000, bytes([count]) * 5000]
    for found in await starts_after_damage(disk, last[0]):
        assert (found.next_offset, found.tail_cut) == (2 * count - 2, True)
        assert payloads(found.suspects) == last


async def test_a_boot_frame_is_never_written_behind_what_is_filled() -> None:
    """W2: filling went over it. A batch behind it then looked like one that had lost its predecessor."""
    disk = SimDisk()
    config = WALConfig(
        segment_bytes=32 << 10,
        segments_initial=3,
        segments_max=4,
        initial_fill_bytes=4 << 10,
        record_bytes_max=4 << 10,
        batch_bytes_max=8 << 10,
    )
    bench = await open_log(disk, config=config)
    await bench.settled()
    await abandon(bench)

    assert batches_of(disk.state.image())[0][1].batch == 1


async def test_a_segment_of_which_a_full_disk_took_half_a_header_is_filled_with_its_header() -> None:
    """W6: filled with zeros from its begin it was nobody's at a start, and all streams were suspect."""
    disk = SimDisk()
    bench = await open_log(disk, config=CONFIG)
    await bench.commit(A, PAYLOAD)
    await bench.settled()
    await abandon(bench)
    image = disk.state.image()
    half = image[f"{DIRECTORY}/segment-00000000.wal"][:3413]
    disk = SimDisk(DiskState.of({**image, f"{DIRECTORY}/segment-00000004.wal": half}))
    for seed in (2, 3):
        bench = await open_log(disk, config=CONFIG, seed=seed)
        assert not (await bench.found(A)).is_quarantined
        await bench.settled()
        await abandon(bench)
        disk = SimDisk(DiskState.of(disk.state.image()))


class OneAtATime(SimDisk):
    """Counts how many threads change the files of a log, or their accounts, at once."""

    def __init__(self, disk_state: DiskState | None = None) -> None:
        super().__init__(disk_state)
        self.most = self._count = 0
        self.done: list[str] = []

    async def run(self, work: Callable[[], T]) -> T:
        name = getattr(work, "__qualname__", "").partition(".<locals>")[0]
        if name not in {"Log._accept_extents", "Segments.create", "SegmentReclaimer._fill_all"}:
            return await super().run(work)
        self.done.append(name)
        self._count += 1
        self.most = max(self.most, self._count)
        try:
            for _ in range(100):  # A thread takes its time, and the loop goes on.
                await asyncio.sleep(0)
            return await super().run(work)
        finally:
            self._count -= 1


async def test_no_file_grows_before_a_start_has_said_how_far_all_are_filled() -> None:
    """W6: a segment that was made meanwhile, in another thread, ended the start.

    What is left of a batch that was cut in two is made void before its file grows.
    """
    disk = OneAtATime()
    for seed in (1, 2, 3):
        disk.done.clear()
        bench = await open_log(disk, config=SMALL, seed=seed)
        assert disk.done == ["Log._accept_extents"]
        await bench.settled()
        await abandon(bench)
        disk.state.locks.clear()
    assert disk.most == 1


async def test_files_grow_and_are_accounted_for_by_one_thread_at_a_time() -> None:
    """W6: on a disk that was full both are tried again at once, and one undid what the other had written."""
    disk = SimDisk()
    bench = await open_log(disk, config=SMALL)
    await bench.commit(A, b"first")
    await bench.commit(A, b"torn" * 100)
    await abandon(bench)
    image = disk.state.image()
    name = next(name for name, content in image.items() if b"torn" in content)
    at = image[name].rindex(b"WBat")
    image[name] = image[name][:at] + b"?" + image[name][at + 1 :]
    full = OneAtATime(DiskState.of(image, ("wal",)))
    full.state.quota_bytes = full.state.used()
    bench = await open_log(full, config=replace(SMALL, segments_initial=6), seed=5)
    full.state.quota_bytes = 1 << 30
    for _ in range(1000):
        await bench.commit(A, b"meanwhile")
        if not bench.log.status().is_out_of_space:
            break
    await bench.settled()
    assert full.done.count("Log._accept_extents") == 2
    assert full.most == 1
    await abandon(bench)


class Slow(SimDisk):
    """Its threads have done their work, and nobody hears of it."""

    async def run(self, work: Callable[[], T]) -> T:
        done = await super().run(work)
        await asyncio.Event().wait()
        return done


async def test_a_start_that_is_cancelled_keeps_no_lock() -> None:
    """The thread goes on: the log that it opened was let go of by nobody, and the next start refused."""
    disk = Slow()
    starting = asyncio.create_task(open_log(disk, config=SMALL))
    for _ in range(1000):
        if disk.state.locks:
            break
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert disk.state.locks == {}


def test_a_segment_may_be_made_by_a_thread_while_the_loop_looks_for_room() -> None:
    """A KeyError, or "dictionary changed size during iteration", ended the node."""
    disk = SimDisk()
    disk.make_dir("log")
    segments = Segments(disk, "log", log_id=1, segment_bytes=64 << 10)
    segments.create()
    segments.fill(0, 64 << 10)

    class Wanted(dict[int, int]):
        def __setitem__(self, index: int, wanted: int) -> None:
            segments.unfilled()  # As the loop may, at this moment.
            super().__setitem__(index, wanted)

    segments.wanted = Wanted(segments.wanted)
    assert segments.create() == 1

    class Making(dict[int, None]):
        def __contains__(self, index: object) -> bool:
            if len(segments.files) == 2:
                segments.create()
            return False

    assert segments.unfilled(but=Making()) == 1


async def test_a_log_whose_first_start_was_killed_keeps_its_files_over_a_power_cut() -> None:
    """W1, W6: the second start found the file of extents in the page cache, and nobody synced its name.

    After the power cut it was gone, one segment was not filled yet, and every stream was suspect.
    """
    config = replace(CONFIG, initial_fill_bytes=32 << 10)
    first: list[DiskState] = []
    disk = SimDisk(reach=lambda _: first.append(disk.state.fork()))
    await abandon(await open_log(disk, config=config))
    for state in first:
        if "wal/extents" not in state.files or not state.files["wal/extents"].view:
            continue
        state.quota_bytes = state.used()  # The next segment, whose name is synced, is not made.
        images: list[dict[str, bytes]] = []
        bench = await open_log(SimDisk(state), config=config, seed=2)
        bench.log.append(A, [b"told"], done=lambda: images.append(state.image()))  # noqa: B023
        await bench.settled()
        await abandon(bench)
        async with opened(SimDisk(DiskState.of(images[0], ("wal",))), config=config, seed=3) as bench:
            found = await bench.found(A)
            assert payloads(found.records) == [b"told"]
            assert not found.is_quarantined


def _begun_without_extents(disk: SimDisk) -> None:
    """What a first start leaves that filled its segment, and then found no room for extents."""
    header = SegmentHeader(VERSION, 7, SMALL.segment_bytes).pack()
    disk.make_dir(DIRECTORY)
    first = disk.open(f"{DIRECTORY}/{segment_name(0)}", create=True)
    first.write_at(0, [header.ljust(SMALL.segment_bytes, b"\0")])
    first.sync()
    disk.sync_dir(DIRECTORY)


async def test_a_log_that_began_on_a_disk_too_full_for_its_extents_loses_nothing_by_a_kill() -> None:
    """The file that it could not make was left empty, and looked shortened: every stream was quarantined."""
    disk = SimDisk()
    _begun_without_extents(disk)
    disk.state.quota_bytes = disk.state.used()
    bench = await open_log(disk)
    await bench.commit(A, b"acknowledged")
    await abandon(bench)
    disk.state.quota_bytes = 1 << 40
    for seed in (2, 3):
        disk.state.locks.clear()
        bench = await open_log(disk, seed=seed)
        found = await bench.found(A)
        assert payloads(found.records) == [b"acknowledged"]
        assert not found.is_quarantined
        await abandon(bench)


async def test_a_log_without_extents_writes_its_head_only_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """W1: a thread that was about to name the head wrote its last block again, as it had read it before.

    The batch that came there in between was acknowledged, and gone.
    """
    disk, write = SimDisk(), SimFile.write_at
    _begun_without_extents(disk)
    disk.state.quota_bytes = disk.state.used()
    bench = await open_log(disk)
    written: list[int] = []

    def noted(self: SimFile, at: int, parts: Sequence[Buffer]) -> None:
        if self.name == f"{DIRECTORY}/{segment_name(0)}":
            written.append(at)
        write(self, at, parts)

    monkeypatch.setattr(SimFile, "write_at", noted)
    await bench.commit(A, b"on a full disk")
    disk.state.quota_bytes = 1 << 40
    for _ in range(1000):
        if len(bench.log.segments.files) == SMALL.segments_initial:
            break
        await asyncio.sleep(0.001)
    await bench.commit(A, b"with extents")
    assert bench.log.segments.extents.filled[0] == SMALL.segment_bytes
    assert not written
    await abandon(bench)
