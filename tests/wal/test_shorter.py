"""A segment file that was made shorter, emptied or removed is damage, not "never written" (log.20, W2, W6).

The bytes are gone, and their streams may be nowhere else: what is left, or what stands beside the segments,
must tell of it.
"""

import asyncio
import errno
from collections.abc import Callable

import msgspec
import pytest

from broadsheet.base.checksum import crc32c
from broadsheet.base.time import Duration
from broadsheet.base.types import Generation, LogStreamId, Offset
from broadsheet.errors import ConfigError
from broadsheet.wal import Log
from broadsheet.wal.config import BLOCK_BYTES
from broadsheet.wal.copying import copy_forward
from broadsheet.wal.extents import EXTENTS_NAME, SLOT_BYTES, Told, extents_path, pack, unpack
from broadsheet.wal.format import FRAME_ALIGN, RowFlag
from broadsheet.wal.inspection import inspected
from broadsheet.wal.segments import segment_name
from broadsheet.wal.survey import shorter
from simulator.crashstates import crash_states
from simulator.disk import SimDisk
from simulator.disk_state import DiskState, Tape
from simulator.logimage import batches_of
from tests.support.faulty import Fault, FaultyDisk
from tests.wal.harness import DIRECTORY, A, B, abandon, after_power_cut, open_log, payloads
from tests.wal.histories import TINY, noise
from tests.wal.test_crash_states import replayed

LATE = LogStreamId(77)
"""It has records at the very end only."""


def path(index: int) -> str:
    return f"{DIRECTORY}/{segment_name(index)}"


Image = dict[str, bytes]


async def written(*, laps: int = 1) -> tuple[Image, str, int]:
    """A log whose head is in lap `laps`: the disk, the file of the head, and where `LATE` begins in it."""
    disk = SimDisk()
    bench = await open_log(disk, config=TINY)
    await bench.commit(A, b"first of all")
    while bench.log.pool.head < laps:
        offset = await bench.commit(B, noise(1, 6000))
        bench.log.trim(B, offset)
    await bench.commit(A, noise(2, 300))
    await bench.commit(B, b"before the late one")
    await bench.commit(LATE, b"late", noise(3, 6000))
    await abandon(bench)
    last = bench.log._last
    assert last is not None
    return image_of(disk), path(last.index), last.at


def image_of(disk: SimDisk) -> Image:
    """As the page cache has it."""
    return {name: bytes(inode.view) for name, inode in disk.state.files.items()}


def cut(image: Image, name: str, size: int) -> Image:
    return {**image, name: image[name][:size]}


def without(image: Image, name: str) -> Image:
    return {each: content for each, content in image.items() if each != name}


def flags(image: Image) -> dict[int, bool]:
    """What looking at it tells: the streams, and whether each is quarantined; of `LATE` also if gone."""
    with inspected(SimDisk(DiskState.of(image)), DIRECTORY) as log:
        told = {int(s): bool(v.flags & RowFlag.QUARANTINED) for s in log.streams() if (v := log.verdict(s))}
        return {int(LATE): log.lacks_streams} | told


LEFT: dict[str, Callable[[int], int]] = {
    "the last batch is cut off": lambda at: at,
    "the last batch is cut in two": lambda at: at + 5000,
    "two batches are cut off": lambda at: at - 4096,
    "an odd number of bytes is left": lambda _: 4096 + 1000,
    "only the header is left": lambda _: 4096,
    "a part of the header is left": lambda _: 40,
    "the file is empty": lambda _: 0,
    "the file is gone": lambda _: -1,
}
"""How many bytes are left of the file of the head, whose last batch begins there."""


@pytest.mark.parametrize("laps", [1, 3, 9])
@pytest.mark.parametrize("what", LEFT)
async def test_what_a_shorter_segment_held_is_never_taken_for_never_written(what: str, laps: int) -> None:
    """Every stream is suspect, and a stream of which nothing is left is not known to be new.

    It was: the log opened as if the lost batches had never been; a journal that only they named began at
    offset 0 and cut its spool. A start that is repeated tells the same (W3), and a repair ends it.
    """
    whole, name, at = await written(laps=laps)
    assert not any(flags(whole).values())
    left = LEFT[what](at)
    image = cut(whole, name, left) if left >= 0 else without(whole, name)
    told = flags(image)
    assert all(told.values()), told
    disk = SimDisk(DiskState.of(image, ("wal",)))
    for seed in (5, 6, 7):
        bench = await open_log(disk, config=TINY, seed=seed)
        for stream in (A, B, LATE):
            found = bench.log.recovered(stream)
            assert found.is_quarantined, f"start {seed}: {stream}"
            is_known = stream in bench.log.streams()
            assert is_known == bench.log.is_quarantined(stream)
            assert is_known != bench.log.is_unknown(stream)
        await abandon(bench)
        disk.state.locks.clear()
    bench = await open_log(disk, config=TINY, seed=8)
    for stream in (A, B, LATE):
        log = bench.log
        log.reset(stream, Offset(50), Generation(log.generation(stream) + 1), lambda: None)
        await bench.commit(stream, b"repaired")
    await abandon(bench)
    disk.state.locks.clear()
    bench = await open_log(disk, config=TINY, seed=9)
    for stream in (A, B, LATE):
        told_after = await bench.found(stream)
        assert (payloads(told_after.records), told_after.is_quarantined) == ([b"repaired"], False)
    await abandon(bench)


@pytest.mark.parametrize("laps", [1, 3])
@pytest.mark.parametrize("what", LEFT)
async def test_one_damaged_block_does_not_hide_a_loss_that_a_start_has_told(what: str, laps: int) -> None:
    """W6: what told of it besides is gone by then, and the boot batch alone had the rows that say so.

    One flipped bit in it lifted every quarantine, and offsets that were acknowledged were given again.
    """
    whole, name, at = await written(laps=laps)
    left = LEFT[what](at)
    image = cut(whole, name, left) if left >= 0 else without(whole, name)
    disk = SimDisk(DiskState.of(image, ("wal",)))
    await abandon(await open_log(disk, config=TINY, seed=5))
    after = image_of(disk)
    written_now = [
        (each, block)
        for each, content in after.items()
        for block in range(0, len(content), BLOCK_BYTES)
        if content[block : block + BLOCK_BYTES] != image.get(each, b"")[block : block + BLOCK_BYTES]
    ]
    assert len(written_now) >= 2
    for each, block in written_now:
        damaged = bytearray(after[each])
        damaged[block + 20] ^= 1
        told = flags({**after, each: bytes(damaged)})
        assert all(told.values()), (each, block, told)


async def test_what_is_left_of_a_batch_that_was_cut_in_two_is_handed_to_its_domain() -> None:
    """A record that still stands there whole may be all that proves the spool's bytes."""
    whole, name, at = await written()
    disk = SimDisk(DiskState.of(cut(whole, name, at + 4000), ("wal",)))
    bench = await open_log(disk, config=TINY, seed=5)
    found = bench.log.recovered(LATE)
    await abandon(bench)

    assert found.is_quarantined
    assert [record.payload for record in found.suspects] == [b"late"]


@pytest.mark.parametrize("laps", [1, 3])
@pytest.mark.parametrize(
    "more",
    [bytes(100), bytes(1 << 20), noise(1, 5000), b"WBat" * 3000],
    ids=["some zeros", "many zeros", "noise", "magic"],
)
async def test_what_stands_behind_the_end_of_a_segment_is_not_looked_at(laps: int, more: bytes) -> None:
    """A file that was made longer has lost nothing, and nothing is ever written into what was added."""
    whole, name, _ = await written(laps=laps)
    image = {each: content + more if each.endswith(".wal") else content for each, content in whole.items()}
    assert flags(image) == flags(whole)
    disk = SimDisk(DiskState.of(image, ("wal",)))
    bench = await open_log(disk, config=TINY, seed=5)
    for n in range(12):
        await bench.commit(B, noise(n, 7000))
        bench.log.trim(B, bench.log.next_offset(B))
    await abandon(bench)

    assert max(end for end in bench.log.segments.filled.values()) == TINY.segment_bytes
    assert image_of(disk)[name][TINY.segment_bytes :] == more


async def test_an_older_batch_behind_the_end_of_a_segment_is_not_taken_for_ours() -> None:
    """A copy of the segment that was appended to it holds batches of this log, whole."""
    whole, name, _ = await written(laps=3)
    assert flags({**whole, name: whole[name] * 2}) == flags(whole)


@pytest.mark.parametrize("what", ["gone", "empty", "zeros", "one slot is left", "cut"])
async def test_damage_to_the_extents_alone_harms_nobody(what: str) -> None:
    """Every segment has its size: then nothing is missing, and the next start writes them anew."""
    whole, name, at = await written(laps=3)
    extents = extents_path(DIRECTORY)
    content = whole[extents]
    newest = unpack(content, "")
    assert newest is not None
    slot = newest.sequence % 2 * SLOT_BYTES
    changed = {
        "empty": b"",
        "zeros": bytes(len(content)),
        "one slot is left": content[:slot] + bytes(SLOT_BYTES) + content[slot + SLOT_BYTES :],
        "cut": content[:100],
    }
    image = {**whole, extents: changed[what]} if what in changed else without(whole, extents)
    assert flags(image) == flags(whole)
    disk = SimDisk(DiskState.of(image, ("wal",)))
    bench = await open_log(disk, config=TINY, seed=5)
    await abandon(bench)
    after = image_of(disk)

    assert not any(flags(after).values())
    assert all(flags(cut(image, name, at)).values()), "nor does a shorter segment go unnoticed without them"
    again = unpack(after[extents], "")
    assert again is not None
    assert again.filled == newest.filled


async def test_the_extents_of_another_log_are_refused() -> None:
    """Nothing is known then of which segments belong here; nothing is changed."""
    whole, _, _ = await written()
    foreign = pack(Told(12345, 9, {0: 32 << 10}))
    image = {**whole, extents_path(DIRECTORY): foreign + bytes(SLOT_BYTES)}
    with pytest.raises(ConfigError, match="several logs"):
        await open_log(SimDisk(DiskState.of(image, ("wal",))), config=TINY)


async def test_newer_extents_are_refused() -> None:
    """A version that this program does not know may say more than this one understands."""
    slot = bytearray(pack(Told(12345, 9, {0: 32 << 10})))
    slot[8:16] = (99).to_bytes(4, "little") + bytes(4)
    slot[12:16] = crc32c(bytes(slot)).to_bytes(4, "little")
    with pytest.raises(ConfigError, match="log format 99, newer"):
        unpack(bytes(slot) + bytes(SLOT_BYTES), EXTENTS_NAME)


@pytest.mark.parametrize("laps", [1, 3])
async def test_a_start_that_is_cut_before_it_has_written_the_extents_tells_the_same_again(
    laps: int,
) -> None:
    """W3: its boot batch is there, and nobody was told of anything."""
    whole, name, at = await written(laps=laps)
    disk = SimDisk(DiskState.of(cut(whole, name, at), ("wal",)))
    before = image_of(disk)[extents_path(DIRECTORY)]
    bench = await open_log(disk, config=TINY, seed=5)
    await abandon(bench)
    image = {**image_of(disk), extents_path(DIRECTORY): before}

    assert all(flags(image).values())
    assert all(flags(image_of(disk)).values())


@pytest.mark.parametrize("laps", [1, 3])
@pytest.mark.parametrize("what", ["the last batch is cut in two", "an odd number of bytes is left"])
async def test_power_that_fails_while_a_shorter_log_starts_loses_no_suspicion(what: str, laps: int) -> None:
    """W3: what was left of a last block was not voided.

    When the file grew again it was a batch of the new head's lap, and every later start was refused:
    "segments 0 and 3 both claim lap 4: one is a copy: move it away".
    """
    whole, name, at = await written(laps=laps)
    disk = SimDisk(DiskState.of(cut(whole, name, LEFT[what](at)), ("wal",)))
    tape = disk.state.tape = Tape()
    for each in disk.state.files:
        replayed(tape, disk, each)
    tape.mark("there")
    bench = await open_log(disk, config=TINY, seed=5)
    await bench.settled()  # Its files are filled again.
    await abandon(bench)
    states = [state for state in crash_states(tape, atoms_max=6) if state.marks]
    assert len(states) > 50
    for state in states:
        assert all(flags(state.image).values())


@pytest.mark.parametrize("left", [0, 40, 4096, 4096 + 200, -1])
async def test_power_that_fails_while_a_log_of_one_segment_starts_loses_no_suspicion(left: int) -> None:
    """W3: no other segment was free, so the start filled the shorter one, for its boot batch.

    Had it been killed before that batch, the file was as long as ever: the next start took the log for a new
    one, and each journal began at offset 0.
    """
    disk = SimDisk(DiskState(quota_bytes=TINY.segment_bytes + 8300))
    bench = await open_log(disk, config=TINY)
    await bench.commit(LATE, b"late")
    await abandon(bench)
    names = [name for name in image_of(disk) if name.endswith(".wal") and name != path(0)]
    image = {name: content for name, content in image_of(disk).items() if name not in names}
    image = cut(image, path(0), left) if left >= 0 else without(image, path(0))
    disk = SimDisk(DiskState.of(image, ("wal",)))
    tape = disk.state.tape = Tape()
    for each in disk.state.files:
        replayed(tape, disk, each)
    tape.mark("there")
    bench = await open_log(disk, config=TINY, seed=5)
    await bench.settled()
    await abandon(bench)
    states = [state for state in crash_states(tape, atoms_max=6) if state.marks]
    assert len(states) > 50
    for state in states:
        assert flags(state.image)[LATE]


@pytest.mark.parametrize("what", ["the last batch is cut in two", "an odd number of bytes is left"])
async def test_what_is_left_of_a_batch_that_a_full_disk_keeps_from_being_made_void_stays_short(
    what: str,
) -> None:
    """W6: a disk that copies on write may refuse space to an overwrite, too.

    The file grew all the same, what was left was a batch of the new head's lap, and every later start was
    refused: "segments 0 and 3 both claim lap 4: one is a copy: move it away".
    """
    whole, name, at = await written(laps=3)
    image = cut(whole, name, LEFT[what](at))
    disk = SimDisk(DiskState.of(image, ("wal",)))
    faulty = FaultyDisk(disk, [Fault("write_at", errno.ENOSPC, name, times=1)])
    bench = await open_log(faulty, config=TINY, seed=5)
    await begun_anew(bench.log, A)
    await bench.commit(A, b"acknowledged")
    await bench.settled()
    assert image_of(disk)[name] == image[name], "it is neither made void nor filled"
    await abandon(bench)
    disk.state.locks.clear()

    for seed in (6, 7):
        bench = await open_log(disk, config=TINY, seed=seed)
        assert payloads((await bench.found(A)).records) == [b"acknowledged"]
        assert bench.log.recovered(LATE).is_quarantined
        await bench.settled()
        await abandon(bench)
        disk.state.locks.clear()
    assert len(image_of(disk)[name]) == TINY.segment_bytes


ROOM = msgspec.structs.replace(
    TINY,
    segment_bytes=128 << 10,
    initial_fill_bytes=128 << 10,
    segments_initial=5,
    retry_delay=Duration(1_000_000),
)
"""Room for many batches in one segment."""


async def begun_anew(log: Log, stream: LogStreamId) -> None:
    """As a domain does that has repaired what was suspect."""
    offset, generation = log.next_offset(stream), log.generation(stream)
    log.reset(stream, offset, Generation(generation + 1), lambda: None)


@pytest.mark.parametrize("what", ["the end of the head is cut off", "the head is gone"])
async def test_what_is_acknowledged_while_a_full_disk_keeps_damage_in_place_stays(what: str) -> None:
    """W2: once there was space for the damage of one file, zeros went over the new batches of another.

    What is left where a file is shorter is made void before anything is written there. Where the disk was too
    full to set other damage aside, that was put off, and the file was used meanwhile.
    """
    disk = SimDisk()
    bench = await open_log(disk, config=ROOM)
    await bench.commit(A, b"first")
    await bench.log.close()
    image, head = image_of(disk), path(0)
    image = cut(image, head, ROOM.segment_bytes - 4096) if "cut" in what else without(image, head)
    free = path(4)
    image[free] = b"?" + image[free][1:]
    disk = SimDisk(DiskState.of(image, ("wal",)))
    disk.state.quota_bytes = disk.state.used()
    bench = await open_log(disk, config=ROOM, seed=5)
    assert bench.log.status().is_out_of_space
    await begun_anew(bench.log, A)
    wanted = [b"acknowledged 1", b"acknowledged 2", b"acknowledged 3"]
    for payload in wanted:
        await bench.commit(A, payload)
    disk.state.quota_bytes = 1 << 40
    for _ in range(2000):
        if not bench.log.status().is_out_of_space:
            break
        await bench.commit(B, b"meanwhile")
    assert bench.log.status().quarantine_files
    assert [record.payload async for record in bench.log.records(A)] == wanted
    assert bench.crashes == []
    await abandon(bench)
    disk.state.locks.clear()
    bench = await open_log(disk, config=ROOM, seed=6)
    told = await bench.found(A)
    assert (payloads(told.records), told.is_quarantined) == (wanted, False)
    await abandon(bench)


async def test_a_batch_that_follows_the_boot_batch_at_once_is_not_made_void() -> None:
    """W2: where a segment becomes free at a start, the batch that says so was written over with zeros."""
    disk = SimDisk()
    bench = await open_log(disk, config=ROOM)
    while bench.log.pool.head < 2:
        await bench.commit(B, noise(1, 6000))
    await bench.settled()
    bench.log.drop(B)
    bench.send(A, b"there")
    for _ in range(1000):
        if bench.acknowledged[-1][0] == A:
            break
        await asyncio.sleep(0)
    image = image_of(disk)  # The drop is durable, and the batch that frees the first segment is not.
    await abandon(bench)
    head = path(1)
    assert [batch.oldest for _, batch in batches_of(image)][-1] == 1
    disk = SimDisk(DiskState.of(cut(image, head, len(image[head]) - 4096), ("wal",)))
    bench = await open_log(disk, config=ROOM, seed=5)
    await bench.settled()
    assert bench.log._last is not None
    told = [(batch.batch, batch.oldest) for _, batch in batches_of(image_of(disk))]
    assert told[-1] == (bench.log._last.sequence, 2)
    await abandon(bench)


async def test_the_batch_that_repeats_the_rows_of_a_start_is_written_behind_all_others() -> None:
    """W2: it was written over the one that frees a segment, under its number, which may have been durable."""
    disk = SimDisk()
    bench = await open_log(disk, config=TINY)
    last = bench.log._last
    while bench.log.pool.head < 2 or last is None or last.end < TINY.segment_bytes - BLOCK_BYTES:
        bench.log.trim(B, await bench.commit(B, noise(1, 3000)))
        last = bench.log._last
    bench.log.drop(B)  # The head has no room for a start, and holds nothing that it must keep.
    await bench.settled()
    head, (other, *_) = bench.log.pool.laps[bench.log.pool.head].index, bench.log.pool.free
    image = image_of(disk)
    await abandon(bench)
    disk = SimDisk(DiskState.of(cut(image, path(other), BLOCK_BYTES), ("wal",)))
    bench = await open_log(disk, config=TINY, seed=5)
    assert head in bench.log.pool.free, "a batch of the start has freed it"
    found = [batch for _, batch in batches_of(image_of(disk)) if batch.lap == bench.log.pool.head]
    first = found[0].batch
    assert [batch.batch for batch in found] == [first, first + 1, first + 2]
    await abandon(bench)


async def cut_in_padding(*, laps: int, lap: int) -> tuple[Image, list[bytes]]:
    """A log of which lap `lap` lost only zeros, behind its last batch's last byte; what it holds."""
    disk = SimDisk()
    bench = await open_log(disk, config=TINY)
    held: list[bytes] = []
    while bench.log.pool.head < laps or len(held) < 2:
        held.append(noise(len(held), 5000))
        await bench.commit(A, held[-1])
    await bench.settled()
    name = path(bench.log.pool.laps[lap].index)
    await abandon(bench)
    image = image_of(disk)
    left = -(-len(image[name].rstrip(b"\0")) // FRAME_ALIGN) * FRAME_ALIGN  # What a batch counts as its own.
    assert left % 4096
    return cut(image, name, left), held


@pytest.mark.parametrize(("laps", "lap"), [(1, 1), (2, 1), (3, 2)])
async def test_a_file_that_lost_only_zeros_grows_again_without_harm(laps: int, lap: int) -> None:
    """W2: it was filled from the last whole block on, over the end of the batch that stands there."""
    image, held = await cut_in_padding(laps=laps, lap=lap)
    disk = SimDisk(DiskState.of(image, ("wal",)))
    for seed in (5, 6):
        bench = await open_log(disk, config=TINY, seed=seed)
        await bench.settled()
        told = await bench.found(A)
        assert payloads(told.records) == held
        assert told.is_quarantined == (laps == lap), "behind the head there may have been more"
        await abandon(bench)
        disk.state.locks.clear()


async def test_a_record_in_a_part_of_a_block_is_copied_forward_and_not_taken_for_damage() -> None:
    """W6: on a full disk the file stays as short as it is, and its last record counted as unreadable."""
    image, held = await cut_in_padding(laps=2, lap=1)
    disk = SimDisk(DiskState.of(image, ("wal",)))
    disk.state.quota_bytes = disk.state.used()
    bench = await open_log(disk, config=TINY, seed=5)
    await copy_forward(bench.log, 1)
    await bench.settled()
    assert not bench.log.is_quarantined(A)
    assert payloads((await bench.found(A)).records) == held
    await abandon(bench)


async def test_a_log_that_lacks_streams_says_so_after_the_segment_of_its_start_was_used_again() -> None:
    """J1, J2: only the start's own frame said so, and other streams went on until its segment was free.

    A journal that no start had opened meanwhile was then taken for one that never was: it began at offset 0,
    over what was acknowledged.
    """
    whole, name, at = await written()
    disk = SimDisk(DiskState.of(cut(whole, name, at), ("wal",)))
    bench = await open_log(disk, config=TINY, seed=5)
    log = bench.log
    for stream in (A, B):
        log.reset(stream, Offset(50), Generation(log.generation(stream) + 1), lambda: None)
    await bench.settled()
    begun = log.pool.head
    while log.pool.oldest <= begun:
        for stream in (A, B):
            log.trim(stream, await bench.commit(stream, noise(1, 6000)))
    await abandon(bench)
    disk.state.locks.clear()

    bench = await open_log(disk, config=TINY, seed=6)
    assert bench.log.is_unknown(LATE)
    assert bench.log.recovered(LATE).is_quarantined
    await abandon(bench)


async def test_a_log_knows_of_a_reboot_since_its_loss_until_the_loss_is_dealt_with() -> None:
    """J2: the second start on a kernel took the first one's word that the page cache was kept."""
    whole, name, at = await written()
    disk = SimDisk(DiskState.of(cut(whole, name, at), ("wal",)))
    told: list[tuple[bool, bool]] = []
    for boot_id in ("kernel-1", "kernel-2", "kernel-2", "kernel-2"):
        bench = await open_log(disk, config=TINY, seed=5 + len(told), boot_id=boot_id)
        told.append((bench.log.is_same_boot, bench.log.has_lost_cache))
        await abandon(bench)
        disk.state.locks.clear()
    assert told == [(True, False), (False, True), (True, True), (True, True)]


@pytest.mark.parametrize("part", ["a part", "the header"])
async def test_a_length_that_only_the_page_cache_has_is_written_before_it_is_told(part: str) -> None:
    """A sync that fails leaves its pages clean: the next start's sync of the file writes nothing.

    It then told that the file was filled; after a power cut it was shorter, and every stream was suspect.
    """
    disk = SimDisk()
    bench = await open_log(disk, config=TINY)
    await bench.commit(A, b"acknowledged")
    segments = bench.log.segments
    if part == "a part":
        index = segments.create()
        disk.state.health.sync_errors = 1
        with pytest.raises(OSError, match="fsync failed"):
            segments.fill(index, TINY.segment_bytes)
    else:
        disk.state.health.sync_errors = 1
        with pytest.raises(OSError, match="fsync failed"):
            segments.create()
    await abandon(bench)

    bench = await open_log(disk, config=TINY, seed=2)
    await bench.commit(A, b"and again")
    await abandon(bench)
    bench = await open_log(after_power_cut(disk), config=TINY, seed=3, boot_id="kernel-2")
    assert not bench.log.recovered(A).is_quarantined
    assert not bench.log.is_unknown(LATE)
    assert payloads((await bench.found(A)).records) == [b"acknowledged", b"and again"]
    await abandon(bench)


def test_of_a_log_that_was_never_begun_no_file_is_missing() -> None:
    """Its first start would not use these files, and hold every stream for lost."""
    assert shorter([], None) == []
