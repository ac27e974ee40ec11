"""What is read of a segment in pieces is what one look at all of it would find, wherever the borders are."""

import asyncio
import errno

import pytest

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import LogStreamId, Offset
from broadsheet.errors import ConfigError
from broadsheet.wal import copying, reading
from broadsheet.wal.config import BLOCK_BYTES
from broadsheet.wal.copying import Pinned, damaged, read_piece
from broadsheet.wal.format import BATCH_BYTES, CHECK, FRAME_BYTES, HEAD_BYTES, ROW, Kind, frame_bytes
from broadsheet.wal.scan import STEP_BYTES, Content, read_batch, read_frame
from broadsheet.wal.segments import Segments
from simulator.disk import SimDisk, SimFile
from simulator.disk_state import DiskState
from tests.wal.harness import A, B, Bench, abandon, after_power_cut, files_open, open_log
from tests.wal.histories import noise

SEGMENT = "wal/segment-00000000.wal"


@pytest.mark.parametrize("behind", range(3))
def test_a_needle_is_found_wherever_it_stands(behind: int) -> None:
    """A frame of the last batch that lies across two steps of the search was taken for none."""
    needle = noise(7, 32)
    for begin in range(STEP_BYTES - len(needle) - 1, STEP_BYTES + 2):
        data = bytearray(behind * STEP_BYTES + begin + len(needle))
        data[behind * STEP_BYTES + begin :] = needle
        content = Content.of(bytes(data))

        assert content.has(needle, 0)
        assert content.has(needle, behind * STEP_BYTES + begin)
        assert not content.has(needle, behind * STEP_BYTES + begin + 1)
        assert not content.has(needle[:-1] + bytes([needle[-1] ^ 1]), 0)


async def _with_records(sizes: list[int]) -> Bench:
    """A log whose first segment holds records of such sizes, each in a batch of its own."""
    bench = await open_log(SimDisk())
    await bench.settled()
    for count, size in enumerate(sizes):
        await bench.commit((A, B)[count % 2], noise(count, size))
    return bench


@pytest.mark.parametrize("piece_bytes", [*range(1000, 1200, 8), 4096, 5000, 9000])
async def test_pieces_of_any_length_hold_every_run_once(
    piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run at the border of two pieces that neither holds would be charged to its stream as lost."""
    bench = await _with_records([100, 700, 40, 3000, 900, 5, 0, 1500])
    segments, lap = bench.log.segments, bench.log.pool.head

    def runs() -> list[Pinned]:
        found, at = [], BLOCK_BYTES
        while at < segments.filled[0]:
            piece = read_piece(segments, 0, at, lap=lap)
            assert piece.end > at
            found += piece.runs
            at = piece.end
        return found

    whole = runs()
    monkeypatch.setattr(copying, "PIECE_BYTES", piece_bytes)

    assert [len(each.data) for each in whole] == [120, 720, 60, 3020, 920, 25, 20, 1520]
    assert runs() == whole
    await abandon(bench)


async def test_only_the_damaged_batch_of_a_segment_is_set_aside() -> None:
    """W7 keeps what was damaged; a whole segment for one bit would fill the disk, and hide the place."""
    bench = await _with_records([100, 700, 100, 3000])
    log, lap = bench.log, bench.log.pool.head
    place = next(iter(bench.log.states[A].runs(0, 1)))
    inode = log.segments.disk.state.files[SEGMENT]  # type: ignore[attr-defined]
    inode.view[place.at + FRAME_BYTES + 30] ^= 1
    begin, end = place.at - place.at % BLOCK_BYTES, log.pool.laps[lap].end

    assert log._last is not None
    assert end == log._last.end
    found = damaged(log.segments, 0, lap=lap, end=end)
    assert [(each.lap, each.begin, each.end) for each in found] == [(lap, begin, begin + BLOCK_BYTES)]
    await abandon(bench)


async def test_batches_of_an_earlier_use_of_a_segment_tell_nothing_of_its_damage() -> None:
    """They stand behind the head of a recycled file, and each would be set aside, though nothing is lost."""
    bench = await _with_records([100, 700, 3000])
    log, lap = bench.log, bench.log.pool.head

    found = damaged(log.segments, 0, lap=lap + 1, end=0)
    assert [(each.lap, each.begin, each.end) for each in found] == [
        (lap + 1, BLOCK_BYTES, log.segments.size(0))
    ]
    await abandon(bench)


@pytest.mark.parametrize("first", [0, 2])
async def test_neighbours_are_read_in_one_go(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catch-up of small runs that read one by one would cost a call of the disk for each."""
    bench = await _with_records([300] * 10)
    log, reads = bench.log, [0]
    places = list(log.states[A].runs(first, 5))
    read_at = SimFile.read_at

    def counted(self: SimFile, at: int, length: int) -> bytes:
        reads[0] += 1
        return read_at(self, at, length)

    monkeypatch.setattr(SimFile, "read_at", counted)
    length = places[-1].at + frame_bytes(places[-1].length) - places[0].at
    for bytes_max, count in ((length, 1), (length - 1, 2)):
        reads[0] = 0
        monkeypatch.setattr(reading, "JOINED_READ_BYTES_MAX", bytes_max)
        runs = reading.read_places({log.pool.head: log.segments.files[0]}, log.segments.log_id, A, places)
        assert [run and run.offset for run in runs] == list(range(first, 5))
        assert reads[0] == count
    await abandon(bench)


async def test_a_frame_of_a_newer_kind_is_refused_and_nothing_is_left_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program that skips what it does not know would go on without what the frame says."""
    bench = await _with_records([300])
    (place,) = bench.log.states[A].runs(0, 1)
    disk = bench.log.segments.disk
    assert isinstance(disk, SimDisk)
    await abandon(bench)
    image = dict(after_power_cut(disk).state.image())
    content = bytearray(image[SEGMENT])
    header = read_frame(bytes(content), place.at)
    assert header is not None
    content[place.at + 4] = max(Kind) + 1
    _resum(content, place.at)
    disk = SimDisk(DiskState.of({**image, SEGMENT: bytes(content)}))
    is_open = files_open(monkeypatch)
    with pytest.raises(ConfigError, match="of a newer version"):
        await open_log(disk, seed=2)
    assert is_open == {}
    assert disk.state.image()[SEGMENT] == bytes(content)
    assert not disk.state.locks


def test_a_file_that_is_longer_already_is_left_as_it_is() -> None:
    """Filling is asked for again after a refusal: it must not begin anew, or fail."""
    disk = SimDisk()
    disk.make_dir("wal")
    segments = Segments(disk, "wal", log_id=1, segment_bytes=64 << 10)
    index = segments.create()
    segments.fill(index, 32 << 10)
    segments.files[index].write_at(20 << 10, [b"kept"])
    segments.fill(index, 16 << 10)

    assert segments.filled[index] == 32 << 10
    assert segments.read(index, 20 << 10, 4) == b"kept"


def test_the_last_block_of_a_file_that_cannot_be_read_is_not_written_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A start makes the length of each file durable. Another error than EIO says nothing of the sector."""
    disk = SimDisk()
    disk.make_dir("wal")
    segments = Segments(disk, "wal", log_id=1, segment_bytes=64 << 10)
    index = segments.create()
    segments.files[index].write_at(4096, [b"content" * 1000])
    segments.files[index].sync()
    segments.filled[index] = 8192
    failure = errno.EIO

    def unreadable(self: SimFile, _at: int, _length: int) -> bytes:
        raise OSError(failure, "unreadable", self.name)

    monkeypatch.setattr(SimFile, "read_at", unreadable)
    before = disk.state.image()
    segments.write_ends()
    after = disk.state.image()
    assert after[segments.files[index].name] == before[segments.files[index].name]
    segments.filled[index], failure = 12288, errno.EACCES
    with pytest.raises(OSError, match="unreadable"):
        segments.write_ends()


def test_each_file_whose_remains_a_full_disk_could_not_make_void_stays_as_short_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of them grew when the second was refused, and a batch that was cut in two was whole again."""
    disk = SimDisk()
    disk.make_dir("wal")
    segments = Segments(disk, "wal", log_id=1, segment_bytes=64 << 10)
    for index in (segments.create(), segments.create()):
        segments.fill(index, 16 << 10)
    segments.remains = [(0, 1, 8192, 16384), (1, 1, 8192, 16384)]
    segments.kept = {1: None}

    def full(self: SimFile, _at: int, _parts: object) -> None:
        raise OSError(errno.ENOSPC, "no space left", self.name)

    monkeypatch.setattr(SimFile, "write_at", full)
    for is_kept in (True, False):
        segments.accept(is_kept=is_kept)
    segments.kept = {}

    assert list(segments.shortened) == [0, 1]
    assert segments.unfilled() is None


async def test_only_the_very_run_of_a_place_is_found() -> None:
    """A copier that takes another run for the one it looks for would write it under the wrong offsets."""
    bench = await open_log(SimDisk())
    await bench.settled()
    bench.send_many(A, b"1", b"2", b"3")
    await bench.settled()
    await bench.commit(A, b"4")
    state, lap = bench.log.states[A], bench.log.pool.head
    first, second = state.runs(0, 4)

    assert state.place(0, lap, first.at) == first
    assert state.place(3, lap, second.at) == second
    for begin, at in ((1, first.at), (2, first.at), (0, second.at), (3, first.at), (4, second.at)):
        assert state.place(begin, lap, at) is None
    assert state.place(0, lap + 1, first.at) is None
    await abandon(bench)


async def test_what_the_copier_waits_for_is_written_though_its_run_was_given_up() -> None:
    """Its frame stands in a batch already: a copier that waits for that batch would wait for ever."""
    bench = await _with_records([300])
    log = bench.log
    (place,) = log.states[A].runs(0, 1)
    data = log.segments.read(0, place.at, frame_bytes(place.length))
    header = read_frame(data, 0)
    assert header is not None
    log.trim(A, Offset(1))
    is_durable = asyncio.Event()

    assert not log.place_copy(place, header, data[FRAME_BYTES : FRAME_BYTES + header.length])
    log.on_durable(is_durable.set)
    await bench.settled()
    assert is_durable.is_set()
    await abandon(bench)


def _resum(content: bytearray, at: int) -> None:
    """Give the header at `at`, the first of its batch, sums that fit."""
    head = bytes(content[at : at + HEAD_BYTES])
    batch = read_batch(Content.of(bytes(content)), at - at % BLOCK_BYTES)
    assert batch is not None
    content[at + HEAD_BYTES : at + FRAME_BYTES] = CHECK.pack(crc32c(head, batch.chain), crc32c(head))


async def test_a_batch_whose_table_is_damaged_is_none() -> None:
    """Its rows say where streams stand: a wrong one would void what was acknowledged."""
    bench = await _with_records([300])
    (place,) = bench.log.states[A].runs(0, 1)
    at = place.at - place.at % BLOCK_BYTES
    content = bytearray(bench.log.segments.read(0, 0, bench.log.segments.filled[0]))
    header = read_batch(Content.of(bytes(content)), at)
    assert header is not None
    assert header.row_count
    for place_of_row in range(at + BATCH_BYTES, at + BATCH_BYTES + ROW.size * header.row_count):
        content[place_of_row] ^= 4
        assert read_batch(Content.of(bytes(content)), at) is None
        content[place_of_row] ^= 4
    await abandon(bench)


async def test_a_batch_that_names_many_streams_is_no_damage() -> None:
    """The first of a segment has a row of each stream: its frames are counted behind them, not among them."""
    bench = await open_log(SimDisk())
    await bench.settled()
    for stream in range(10, 310):
        bench.send(LogStreamId(stream), b"x")
    await bench.settled()
    log, first_lap = bench.log, bench.log.pool.head
    while log.pool.head == first_lap:
        await bench.commit(A, bytes(4000))
    await bench.commit(A, bytes(4000))
    lap, index = log.pool.head, log.pool.laps[log.pool.head].index
    place = list(log.states[A].runs(0, log.next_offset(A)))[-1]
    inode = log.segments.disk.state.files[f"wal/segment-{index:08}.wal"]  # type: ignore[attr-defined]
    inode.view[place.at + FRAME_BYTES + 22] ^= 1

    (found,) = damaged(log.segments, index, lap=lap, end=log.pool.laps[lap].end)
    assert found.begin < place.at < found.end
    await abandon(bench)
