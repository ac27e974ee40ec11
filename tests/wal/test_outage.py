"""Reads that fail for a while and then work again: nobody decides anything by them (ADR 0198)."""

import msgspec
import pytest

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import LogStreamId, Offset
from broadsheet.errors import BroadsheetError, ConfigError
from broadsheet.wal.config import BLOCK_BYTES
from broadsheet.wal.extents import SLOTS, Extents, extents_path, unpack
from broadsheet.wal.format import BATCH_BYTES, COUNT_BITS, ERA_MAX, BatchHeader, position
from broadsheet.wal.opening import next_batch
from broadsheet.wal.recovery import Recovery
from broadsheet.wal.scan import Content
from broadsheet.wal.survey import Found, Left, lap_files, survey
from simulator.disk import SimDisk, SimFile
from tests.support.outage import LASTING, PASSING, Outage, blocks_of, outage
from tests.wal.harness import DIRECTORY, A, B, Bench, C, abandon, open_log, payloads
from tests.wal.one_stream import ROOMY
from tests.wal.test_relief import SEGMENT, TIGHT, roll_on
from tests.wal.test_shorter import image_of

__all__ = ["outage"]


CROWDED = msgspec.structs.replace(ROOMY, segments_max=3)


async def crowded(disk: SimDisk) -> Bench:
    """A log with one free segment, which appends may not take: a start does not leave the head for it."""
    bench = await open_log(disk, config=CROWDED)
    while bench.log.status().lap_head < 2:
        await bench.commit(C, bytes(30_000))
    return bench


async def laps(disk: SimDisk, count: int, *, more: int = 0, size: int = 12_000) -> list[bytes]:
    """A log that is killed with a single batch in its last lap, or `more`; what its stream holds."""
    bench = await open_log(disk, config=ROOMY)
    held: list[bytes] = []
    while bench.log.status().lap_head < count:
        held.append(b"record-%d" % len(held) + bytes(size))
        await bench.commit(A, held[-1])
    for _ in range(more):
        held.append(b"record-%d" % len(held))
        await bench.commit(A, held[-1])
    await abandon(bench)
    disk.state.locks.clear()
    return held


async def test_the_only_batch_of_a_new_lap_is_waited_for(outage: Outage) -> None:
    """The survey took the segment for an older one, and a second lap of that number was begun beside it.

    The next start refused: two segments claimed it.
    """
    disk = SimDisk()
    held = await laps(disk, 3)
    name = next(name for name, content in image_of(disk).items() if held[-1] in content)
    outage[name, 1] = PASSING
    for seed in (2, 3):
        bench = await open_log(disk, config=ROOMY, seed=seed)
        found = await bench.found(A)
        assert payloads(found.records) == held
        assert not found.is_quarantined
        await abandon(bench)
        disk.state.locks.clear()


@pytest.mark.parametrize("appends", [0, 3], ids=["killed at once", "went on"])
async def test_a_lap_that_was_begun_twice_is_no_riddle(appends: int, outage: Outage) -> None:
    """The only batch of the last lap could not be read for long, and a start began that lap in another file.

    Then it could be read, and the next start refused: two files claimed the lap, and no remedy fitted. Or the
    start had written over it. Nothing tells of the hidden record any more, but its bytes are kept (W7).
    """
    disk = SimDisk()
    held = await laps(disk, 3)
    name = next(name for name, content in image_of(disk).items() if held[-1] in content)
    outage[name, 1] = LASTING
    bench = await open_log(disk, config=ROOMY, seed=2)
    for n in range(appends):
        held.append(b"later-%d" % n)
        await bench.commit(B, held[-1])
    first, segments = bench.log.status().lap_head, bench.log.segments
    (unread,) = segments.unread
    segments.wanted[unread] += BLOCK_BYTES
    others = [index for index in segments.files if index != unread]
    assert segments.unfilled(but=others) is None, "it is not filled further either, and so not used"
    await abandon(bench)
    outage.clear()
    for seed in (3, 4):
        disk.state.locks.clear()
        bench = await open_log(disk, config=ROOMY, seed=seed)
        assert bench.log.status().lap_head == first
        assert payloads((await bench.found(B)).records) == held[len(held) - appends :]
        assert payloads((await bench.found(A)).records) == held[: -appends - 1]
        await bench.commit(C, b"appends go on")
        kept = [content for name, content in image_of(disk).items() if "quarantine-" in name]
        assert any(held[-appends - 1] in content for content in kept)
        await abandon(bench)


@pytest.mark.parametrize("size", [12_000, 15_000], ids=["at once", "after its boot batch"])
async def test_of_two_files_of_a_lap_the_later_one_counts_however_short_it_is(
    size: int, outage: Outage
) -> None:
    """The file that could not be read had more batches, and counted: what was acknowledged since was lost."""
    disk = SimDisk()
    hidden = (await laps(disk, 3, more=3, size=size))[-4]
    name = next(name for name, content in image_of(disk).items() if hidden in content)
    outage.update({(name, block): LASTING for block in range(1, 9)})
    bench = await open_log(disk, config=ROOMY, seed=2)
    held = [bytes(size)]
    await bench.commit(B, held[-1])
    assert bench.log.status().lap_head == 3
    await abandon(bench)
    outage.clear()
    disk.state.locks.clear()
    bench = await open_log(disk, config=ROOMY, seed=3)
    assert payloads((await bench.found(B)).records) == held
    kept = [content for name, content in image_of(disk).items() if "quarantine-" in name]
    assert any(hidden in content for content in kept)
    await abandon(bench)


async def test_batches_that_a_start_could_not_read_do_not_count_behind_those_written_since(
    outage: Outage,
) -> None:
    """Their numbers went on from its own, so they counted again: what it acknowledged was lost silently."""
    disk = SimDisk()
    bench = await open_log(disk, config=ROOMY)
    for n in range(12):
        await bench.commit(A, b"record-%d" % n)
        bench.log.trim(A, Offset(n + 1))
    await abandon(bench)
    disk.state.locks.clear()
    name = next(name for name, content in image_of(disk).items() if b"record-11" in content)
    outage.update(dict.fromkeys(blocks_of(disk, name, first=4), LASTING))
    bench = await open_log(disk, config=ROOMY, seed=2)
    later = [b"later-%d" % n for n in range(2)]
    offset = bench.log.next_offset(A)
    for each in later:
        await bench.commit(A, each)
    await abandon(bench)
    outage.clear()
    for seed in (3, 4):
        disk.state.locks.clear()
        bench = await open_log(disk, config=ROOMY, seed=seed)
        found = await bench.found(A)
        assert payloads(found.records)[-2:] == later
        assert bench.log.next_offset(A) == offset + 2
        assert not found.is_quarantined
        await abandon(bench)


@pytest.mark.parametrize("count", [1, 3, 6])
async def test_a_lap_that_a_start_could_not_read_is_no_head_behind_what_it_wrote(
    count: int, outage: Outage
) -> None:
    """It freed the laps before it, also the one in which the start went on: what that wrote was lost."""
    disk = SimDisk()
    bench = await open_log(disk, config=ROOMY)
    held: list[bytes] = []
    while bench.log.status().lap_head < 3:
        held.append(b"record-%d" % len(held) + bytes(30_000))
        await bench.commit(A, held[-1])
    bench.log.trim(A, Offset(len(held)))
    await bench.commit(A, b"hidden")
    await abandon(bench)
    disk.state.locks.clear()
    name = next(name for name, content in image_of(disk).items() if b"hidden" in content)
    outage.update({(name, block): LASTING for block in range(1, 20)})
    later = [b"later-%d" % n for n in range(count)]
    bench = await open_log(disk, config=ROOMY, seed=2)
    for each in later:
        await bench.commit(B, each)
    assert bench.log.status().lap_head == 2
    await abandon(bench)
    outage.clear()
    for seed in (3, 4):
        disk.state.locks.clear()
        bench = await open_log(disk, config=ROOMY, seed=seed)
        assert payloads((await bench.found(A)).records) == held[:-1]
        assert payloads((await bench.found(B)).records) == later
        assert bench.log.status().quarantined == []
        kept = [content for name, content in image_of(disk).items() if "quarantine-" in name]
        assert any(b"hidden" in content for content in kept)
        await abandon(bench)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
async def test_whole_lives_that_a_start_could_not_read_do_not_count_behind_what_it_wrote(
    count: int, outage: Outage
) -> None:
    """A boot batch has the rows of all streams. One that stood behind what was written since made it void."""
    disk = SimDisk()

    async def life(seed: int, *records: bytes, is_trimmed: bool = True) -> None:
        disk.state.locks.clear()
        bench = await open_log(disk, config=ROOMY, seed=seed)
        for record in records:
            offset = await bench.commit(A, record)
            if is_trimmed:
                bench.log.trim(A, Offset(offset + 1))
        await abandon(bench)

    await life(1, b"old-0", b"old-1", b"old-2")
    (name,) = [name for name, content in image_of(disk).items() if b"old-2" in content]
    end = image_of(disk)[name].index(b"old-2") // BLOCK_BYTES + 1
    for seed in (2, 3):
        await life(seed, b"hidden-0", b"hidden-1", b"hidden-2")
    outage.update(dict.fromkeys(blocks_of(disk, name, first=end), LASTING))
    later = [b"later-%d" % n for n in range(count)]
    await life(4, *later, is_trimmed=False)
    outage.clear()
    for seed in (5, 6):
        disk.state.locks.clear()
        bench = await open_log(disk, config=ROOMY, seed=seed)
        found = await bench.found(A)
        assert payloads(found.records) == [b"old-2", *later]
        assert not found.is_quarantined
        kept = [content for name, content in image_of(disk).items() if "quarantine-" in name]
        assert any(b"hidden-2" in content for content in kept)
        await abandon(bench)


@pytest.mark.parametrize("count", [2, 6])
async def test_starts_in_one_outage_write_rising_numbers(count: int, outage: Outage) -> None:
    """The second could not read what the first one wrote, and began the same era: both counted in turns."""
    disk = SimDisk()
    bench = await crowded(disk)
    await bench.commit(A, b"old")
    await abandon(bench)
    (name,) = [name for name, content in image_of(disk).items() if b"old" in content]
    end = image_of(disk)[name].index(b"old") // BLOCK_BYTES + 1
    outage.update(dict.fromkeys(blocks_of(disk, name, first=end), LASTING))
    for seed in (2, 3):
        disk.state.locks.clear()
        bench = await open_log(disk, config=CROWDED, seed=seed)
        told = unpack(image_of(disk)[extents_path(DIRECTORY)], "extents")
        assert told is not None
        assert told.era == seed - 1, "durable before the boot batch, and not when a file is filled next"
        for n in range(count if seed == 2 else 1):
            await bench.commit(A, b"start-%d-%d" % (seed, n))
        await abandon(bench)
    outage.clear()
    for seed in (4, 5):
        disk.state.locks.clear()
        bench = await open_log(disk, config=CROWDED, seed=seed)
        found = await bench.found(A)
        assert payloads(found.records) == [b"old", b"start-3-0"]
        assert not found.is_quarantined
        await abandon(bench)


@pytest.mark.parametrize("slot", range(SLOTS))
async def test_an_era_is_not_begun_again_where_one_slot_of_extents_cannot_be_read(
    slot: int, outage: Outage
) -> None:
    """Only the newest slot told of the era. What the second start acknowledged was lost."""
    disk = SimDisk()
    bench = await crowded(disk)
    await bench.commit(A, b"old")
    await abandon(bench)
    (name,) = [name for name, content in image_of(disk).items() if b"old" in content]
    end = image_of(disk)[name].index(b"old") // BLOCK_BYTES + 1
    outage.update(dict.fromkeys(blocks_of(disk, name, first=end), LASTING))
    for seed in (2, 3):
        disk.state.locks.clear()
        bench = await open_log(disk, config=CROWDED, seed=seed)
        for n in range(6 - 4 * (seed - 2)):
            await bench.commit(A, b"start-%d-%d" % (seed, n))
        await abandon(bench)
        outage[extents_path(DIRECTORY), slot] = LASTING
    outage.clear()
    disk.state.locks.clear()
    bench = await open_log(disk, config=CROWDED, seed=4)
    found = await bench.found(A)
    assert payloads(found.records) == [b"old", b"start-3-0", b"start-3-1"]
    assert not found.is_quarantined
    await abandon(bench)


async def test_a_trim_that_a_start_could_not_read_costs_no_record(outage: Outage) -> None:
    """The start counted the trimmed records again. A later one could read the trim, and missed them."""
    disk = SimDisk()
    bench = await open_log(disk, config=ROOMY)
    held = [b"one", b"two"]
    await bench.commit(A, *held)
    bench.log.trim(A, Offset(2))
    for payload in (b"with the trim", b"behind it"):
        await bench.commit(B, payload)
    await abandon(bench)
    (name,) = [name for name, content in image_of(disk).items() if b"with the trim" in content]
    outage[name, image_of(disk)[name].index(b"with the trim") // BLOCK_BYTES] = LASTING
    for seed in (2, 3, 4):
        disk.state.locks.clear()
        bench = await open_log(disk, config=ROOMY, seed=seed)
        found = await bench.found(A)
        assert payloads(found.records) == held
        assert not found.is_quarantined
        await abandon(bench)
        outage.clear()


async def test_what_a_start_acknowledges_can_be_read_while_the_outage_lasts(outage: Outage) -> None:
    """It stood behind the last batch that the start read, in blocks that it could not: the next lost it."""
    disk = SimDisk()
    bench = await open_log(disk, config=ROOMY)
    await bench.commit(A, b"old")
    await bench.commit(A, b"hidden")
    await abandon(bench)
    (name,) = [name for name, content in image_of(disk).items() if b"hidden" in content]
    first = image_of(disk)[name].index(b"hidden") // BLOCK_BYTES
    outage.update(dict.fromkeys(blocks_of(disk, name, first=first), LASTING))
    held = [b"old"]
    for seed in (2, 3, 4):
        disk.state.locks.clear()
        bench = await open_log(disk, config=ROOMY, seed=seed)
        assert payloads((await bench.found(A)).records) == held
        assert bench.log.status().quarantined == []
        held.append(b"start-%d" % seed)
        await bench.commit(A, held[-1])
        await abandon(bench)
        if seed == 3:
            outage.clear()
    kept = [content for name, content in image_of(disk).items() if "quarantine-" in name]
    assert any(b"hidden" in content for content in kept), "nothing was written over it"


async def test_records_that_a_start_could_not_read_and_cut_are_no_damage_when_they_can_be_read(
    outage: Outage,
) -> None:
    """The start knew no chain behind these records. So its boot batch seemed to be of another branch."""
    disk = SimDisk()
    bench = await open_log(disk, config=ROOMY)
    await bench.commit(B, b"old")
    await bench.commit(A, b"x" * 5000, b"cut")
    await abandon(bench)
    (name,) = [name for name, content in image_of(disk).items() if b"cut" in content]
    outage[name, image_of(disk)[name].index(b"cut") // BLOCK_BYTES] = LASTING
    for seed in (2, 3, 4):
        disk.state.locks.clear()
        bench = await open_log(disk, config=ROOMY, seed=seed)
        found = await bench.found(A)
        assert (payloads(found.records), found.tail_cut, found.is_quarantined) == ([], True, False)
        assert payloads((await bench.found(B)).records) == [b"old"]
        await abandon(bench)
        outage.clear()


async def test_a_boot_batch_that_is_lost_after_an_outage_costs_no_stream(outage: Outage) -> None:
    """The numbers of batches leap at such a start. That is no loss of the batches between."""
    disk = SimDisk()
    bench = await open_log(disk, config=ROOMY)
    for stream in (A, B, C):
        await bench.commit(stream, b"old")
    await abandon(bench)
    disk.state.locks.clear()
    (name,) = [name for name, content in image_of(disk).items() if b"old" in content]
    outage[name, 60] = LASTING
    bench = await open_log(disk, config=ROOMY, seed=2)
    boot = bench.log._last
    assert boot is not None
    await bench.commit(A, b"new")
    await abandon(bench)
    outage.clear()
    disk.state.locks.clear()
    disk.open(name).write_at(boot.at, [bytes(BLOCK_BYTES)])
    bench = await open_log(disk, config=ROOMY, seed=3)
    assert bench.log.status().quarantined == []
    assert payloads((await bench.found(A)).records) == [b"old", b"new"]
    await abandon(bench)


@pytest.mark.parametrize("hidden", [2, 3, 20])
async def test_lost_batches_behind_an_outage_are_counted_from_what_their_start_had_read(
    hidden: int, outage: Outage
) -> None:
    """W2: batches that can be read again stand in for those that are lost, and no number was missing.

    An acknowledged record was gone without a word, because its stream has no row in what is left.
    """
    disk = SimDisk()
    bench = await open_log(disk, config=ROOMY)
    for stream in (A, B):
        await bench.commit(stream, b"old")
    for _ in range(hidden):
        await bench.commit(B, b"hidden")
    await abandon(bench)
    disk.state.locks.clear()
    (name,) = [name for name, content in image_of(disk).items() if b"old" in content]
    first = image_of(disk)[name].index(b"hidden") // BLOCK_BYTES
    outage.update(dict.fromkeys(blocks_of(disk, name, first=first), LASTING))
    bench = await open_log(disk, config=ROOMY, seed=2)
    for stream in (A, B, B, B):
        await bench.commit(stream, b"acknowledged")
    await abandon(bench)
    outage.clear()
    disk.state.locks.clear()
    (name,) = [name for name, content in image_of(disk).items() if b"acknowledged" in content]
    disk.open(name).write_at(BLOCK_BYTES, [bytes(3 * BLOCK_BYTES)])
    bench = await open_log(disk, config=ROOMY, seed=3)
    assert [(await bench.found(stream)).is_quarantined for stream in (A, B)] == [True, True]
    await abandon(bench)


async def test_what_a_start_could_not_read_frees_nothing_that_it_read(outage: Outage) -> None:
    """A batch behind those written since freed the laps before: all streams with records there were lost."""
    disk = SimDisk()
    held = await laps(disk, 3)
    bench = await open_log(disk, config=ROOMY, seed=2)
    bench.log.trim(A, Offset(len(held)))
    for _ in range(6):
        await bench.commit(B, b"hidden")
    assert bench.log.status().lap_oldest == 3
    await abandon(bench)
    disk.state.locks.clear()
    name = next(name for name, content in image_of(disk).items() if b"hidden" in content)
    first = image_of(disk)[name].index(b"hidden") // BLOCK_BYTES
    outage.update(dict.fromkeys(blocks_of(disk, name, first=first), LASTING))
    bench = await open_log(disk, config=ROOMY, seed=3)
    await bench.commit(B, b"later")
    await abandon(bench)
    outage.clear()
    disk.state.locks.clear()
    bench = await open_log(disk, config=ROOMY, seed=4)
    assert payloads((await bench.found(A)).records) == held
    assert payloads((await bench.found(B)).records) == [b"later"]
    await abandon(bench)


async def test_a_lap_ends_where_the_start_that_left_it_read_its_end(outage: Outage) -> None:
    """A batch that it could not read came before its own: a stream was dropped, to which it appended."""
    disk = SimDisk()
    bench = await open_log(disk, config=ROOMY)
    for stream in range(4, 120):
        bench.send(LogStreamId(stream), b"so that a boot batch needs two blocks")
    await bench.commit(B, b"kept")
    while (last := bench.log._last) is not None and last.end < ROOMY.segment_bytes - BLOCK_BYTES:
        await bench.commit(A, b"one block")
    bench.log.drop(B)
    await bench.settled()
    assert bench.log.status().lap_head == 1
    await abandon(bench)
    disk.state.locks.clear()
    name = next(name for name, content in image_of(disk).items() if b"kept" in content)
    outage[name, ROOMY.segment_bytes // BLOCK_BYTES - 1] = LASTING
    bench = await open_log(disk, config=ROOMY, seed=2)
    await bench.commit(B, b"later")
    assert bench.log.status().lap_head == 2
    await abandon(bench)
    outage.clear()
    disk.state.locks.clear()
    bench = await open_log(disk, config=ROOMY, seed=3)
    found = await bench.found(B)
    assert payloads(found.records) == [b"kept", b"later"]
    assert not found.is_quarantined
    await abandon(bench)


@pytest.mark.parametrize("further", range(1, 7))
async def test_a_lap_that_was_begun_twice_is_none_either_when_the_lap_before_is_gone(
    further: int, outage: Outage
) -> None:
    """Only the lap before told which is the later one. Once that was written over, each start was refused."""
    disk = SimDisk()
    hidden = (await laps(disk, 3, more=3))[-4]
    name = next(name for name, content in image_of(disk).items() if hidden in content)
    outage.update({(name, block): LASTING for block in range(1, 9)})
    bench = await open_log(disk, config=ROOMY, seed=2)
    bench.log.trim(A, bench.log.next_offset(A))
    while bench.log.status().lap_head < 3 + further:
        offset = await bench.commit(B, last := bytes(20_000))
        bench.log.trim(B, offset)
    await abandon(bench)
    outage.clear()
    disk.state.locks.clear()
    bench = await open_log(disk, config=ROOMY, seed=3)
    found = await bench.found(B)
    assert payloads(found.records)[-1] == last
    assert not found.is_quarantined
    await abandon(bench)


def ends_behind(outage: Outage, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the outage when the start comes to the file behind `name`: the survey has read `name` by then."""
    read = SimFile._read

    def reading(self: SimFile, at: int, length: int) -> bytes:
        if self.name.endswith(".wal") and self.name > name:
            outage.clear()
        return read(self, at, length)

    monkeypatch.setattr(SimFile, "_read", reading)


async def test_a_log_whose_batches_can_be_read_too_late_is_not_taken_for_a_new_one(
    outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The survey saw no batch. The blocks were read once more, with success, and a new log was begun."""
    disk = SimDisk()
    held = [b"there"]
    bench = await open_log(disk, config=ROOMY)
    await bench.commit(A, *held)
    await abandon(bench)
    disk.state.locks.clear()
    image = image_of(disk)
    outage.update({(SEGMENT, block): LASTING for block in range(1, 40)})
    with monkeypatch.context() as patch:
        ends_behind(outage, SEGMENT, patch)
        with pytest.raises(ConfigError, match="Start again; if it stays so"):
            await open_log(disk, config=ROOMY, seed=2)
    assert outage == {}, "the blocks could be read again"
    assert image_of(disk) == image, "nothing was changed"
    bench = await open_log(disk, config=ROOMY, seed=3)
    assert payloads((await bench.found(A)).records) == held
    await abandon(bench)


async def test_a_lap_that_can_be_read_too_late_is_not_written_over(
    outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The survey saw nothing in its file, whose first block was read once more: so the file was free."""
    disk = SimDisk()
    held = await laps(disk, 3)
    image = image_of(disk)
    name = next(name for name, content in image.items() if held[len(held) // 2] in content)
    outage.update(dict.fromkeys(blocks_of(disk, name, first=1)[:-1], LASTING))
    with monkeypatch.context() as patch:
        ends_behind(outage, name, patch)
        bench = await open_log(disk, config=ROOMY, seed=2)
    assert outage == {}, "the blocks could be read again"
    assert bench.log.is_quarantined(A)
    (index,) = bench.log.segments.unread
    assert bench.log.segments.files[index].name == name
    assert index not in bench.log.pool.free
    await abandon(bench)


async def test_a_middle_lap_of_which_nothing_could_be_read_is_not_used_again(outage: Outage) -> None:
    """It had no batch, so it counted as free, and was written over: durable records, readable soon."""
    disk = SimDisk()
    held = await laps(disk, 3)
    name = next(name for name, content in image_of(disk).items() if held[len(held) // 2] in content)
    outage.update(dict.fromkeys(blocks_of(disk, name, first=1), PASSING))
    bench = await open_log(disk, config=ROOMY, seed=2)
    assert payloads((await bench.found(A)).records) == held
    await abandon(bench)


async def test_batches_that_vanish_within_a_start_refuse_it() -> None:
    """The survey had read them, and the walk did not: the node ended with an assertion."""
    disk = SimDisk()
    bench = await open_log(disk, config=ROOMY)
    await bench.commit(A, b"there")
    await abandon(bench)
    (name,) = [name for name, content in image_of(disk).items() if b"WBat" in content]
    content = Content.of(image_of(disk)[name])
    found = survey(0, content, name)
    with pytest.raises(ConfigError, match="start again"):
        Recovery(lambda _: Content.of(bytes(content.size)), log_id=1).run([found])


async def test_a_middle_lap_that_stays_unreadable_refuses_the_start(outage: Outage) -> None:
    """Its header could be read, so it counted as free, and the start wrote over it."""
    disk = SimDisk()
    held = await laps(disk, 3)
    image = image_of(disk)
    name = next(name for name, content in image.items() if held[len(held) // 2] in content)
    outage.update(dict.fromkeys(blocks_of(disk, name, first=1), LASTING))
    with pytest.raises(ConfigError, match="Start again; if it stays so"):
        await open_log(disk, config=ROOMY, seed=2)
    assert image_of(disk) == image, "nothing was changed"
    outage.clear()
    bench = await open_log(disk, config=ROOMY, seed=3)
    assert payloads((await bench.found(A)).records) == held
    await abandon(bench)


async def test_a_disk_that_reads_nothing_is_not_started_and_not_changed() -> None:
    """Longer than the disk's patience: it refuses, and the start after the outage has every record."""
    disk = SimDisk()
    held = await laps(disk, 3)
    image = image_of(disk)
    disk.state.health.read_errors = LASTING
    with pytest.raises((OSError, BroadsheetError), match="answers no read"):
        await open_log(disk, config=ROOMY, seed=2)
    disk.state.health.read_errors = 0
    disk.state.locks.clear()
    assert {name: content for name, content in image_of(disk).items() if name in image} == image
    bench = await open_log(disk, config=ROOMY, seed=3)
    assert payloads((await bench.found(A)).records) == held
    await abandon(bench)


async def test_a_reader_waits_and_quarantines_nothing(outage: Outage) -> None:
    """A live read took the failure for damage: its stream took no appends any more."""
    disk = SimDisk()
    bench = await open_log(disk, config=ROOMY)
    await bench.commit(A, b"there")
    name = next(name for name in image_of(disk) if name.endswith("0.wal"))
    outage[name, image_of(disk)[name].index(b"there") // BLOCK_BYTES] = PASSING
    assert [run.count for run in await bench.log.read(A, bench.log.recovered(A).first_offset, 100)] == [1]
    assert not bench.log.is_quarantined(A)
    await abandon(bench)


async def test_a_copy_from_a_disk_that_is_away_is_made_later() -> None:
    """The copier set zeros aside in place of the records, and quarantined their streams."""
    disk = SimDisk()
    bench = await open_log(disk, config=TIGHT)
    await bench.commit(B, b"old")
    disk.state.health.read_errors = 100
    await roll_on(bench, 40)
    assert bench.crashes == []
    assert not bench.log.is_quarantined(B)
    assert disk.state.health.read_errors == 0
    assert [record.payload async for record in bench.log.records(B)] == [b"old"]
    await abandon(bench)


async def test_a_sector_that_cannot_be_read_is_damage_of_its_streams_not_the_end_of_the_node(
    outage: Outage,
) -> None:
    """EIO from a read while copying: the disk has lost some bytes, and tells."""
    disk = SimDisk()
    bench = await open_log(disk, config=TIGHT)
    await bench.commit(B, b"lost")
    place = SEGMENT, disk.state.image()[SEGMENT].index(b"lost") // BLOCK_BYTES
    outage[place] = LASTING
    await roll_on(bench, 8)
    assert bench.crashes == []
    assert bench.log.is_quarantined(B)
    del outage[place]
    await roll_on(bench, 20)
    await abandon(bench)


def test_a_file_is_the_lap_of_its_newest_batch() -> None:
    """A start could not read what the file held of a greater lap, and wrote over its first batches."""

    def batch(lap: int, number: int, at: int) -> bytes:
        header = BatchHeader(0, 1, 1, lap, number, at, 0, 1, BATCH_BYTES, 0, 0, crc32c(b""), 0)
        return header.pack().ljust(BLOCK_BYTES, b"\0")

    era = 1 << COUNT_BITS
    content = bytes(BLOCK_BYTES) + batch(4, era + 7, 4096) + batch(4, era + 8, 8192) + batch(5, 9, 12288)
    found = survey(0, Content.of(content), "a file")
    assert (found.lap, list(found.batches)) == (4, [4096, 8192])


def test_a_lap_of_which_only_what_is_left_over_can_be_read_is_none() -> None:
    """A later lap says that it ended before. Its walk met no batch, and the node ended with an assertion."""

    def surveyed(file: int, lap: int, number: int, at: int, durable: int) -> Found:
        header = BatchHeader(0, 1, 1, lap, number, at, durable, 1, BATCH_BYTES, 0, 0, crc32c(b""), 0)
        return survey(file, Content.of(bytes(at) + header.pack().ljust(BLOCK_BYTES, b"\0")), "a file")

    later = surveyed(1, 2, (1 << COUNT_BITS) + 3, 4096, position(1, 12288))
    laps, left = lap_files([surveyed(0, 1, 3, 12288, 0), later])
    assert laps == {2: later}
    assert left == [Left(0, 1, 12288, 16384)]


def test_a_copy_of_a_segment_refuses_the_start() -> None:
    """Neither of them is the later one."""
    header = BatchHeader(0, 1, 1, 4, 7, 4096, 0, 1, BATCH_BYTES, 0, 0, crc32c(b""), 0)
    found = survey(0, Content.of(bytes(BLOCK_BYTES) + header.pack().ljust(BLOCK_BYTES, b"\0")), "a file")
    with pytest.raises(ConfigError, match="segments 0 and 1 both claim lap 4: one is a copy"):
        lap_files([found, found._replace(file=1)])


def test_an_era_is_above_that_of_each_batch_which_a_start_saw() -> None:
    """Its survey may have read a batch that its walk could not: no era may be begun twice."""
    header = BatchHeader(0, 1, 1, 4, (1 << COUNT_BITS) + 9, 4096, 0, 1, BATCH_BYTES, 0, 0, crc32c(b""), 0)
    found = survey(0, Content.of(bytes(BLOCK_BYTES) + header.pack().ljust(BLOCK_BYTES, b"\0")), "a file")
    extents = Extents(SimDisk(), DIRECTORY, log_id=1, told=None)
    assert next_batch([found], header, extents, is_blind=False) == (1 << COUNT_BITS) + 10
    assert next_batch([found], header._replace(batch=7), extents, is_blind=True) == (2 << COUNT_BITS) + 8
    extents.era = ERA_MAX
    assert next_batch([found], header, extents, is_blind=True) == (ERA_MAX << COUNT_BITS) + 10
