"""Directed scenarios of the log. Each says what went wrong, or None; planted bugs are tested by them too."""

import asyncio
import contextlib

import msgspec

from broadsheet.base.types import Generation, LogStreamId, Offset
from broadsheet.wal import LogFull
from broadsheet.wal.format import BATCH_MAGIC, RowFlag
from broadsheet.wal.segments import segment_name
from simulator.disk import SimDisk
from simulator.disk_state import DiskState
from tests.wal.harness import DIRECTORY, SMALL, A, B, abandon, after_power_cut, open_log, payloads, vouching
from tests.wal.histories import read_image

SEGMENT = f"{DIRECTORY}/segment-00000000.wal"


async def sync_fails_and_the_page_cache_lies() -> str | None:
    """EIO from a sync; the next process reads bytes that the disk never had (log.16)."""
    disk = SimDisk()
    bench = await open_log(disk)
    await bench.commit(A, b"durable")
    acknowledged = list(bench.acknowledged)
    disk.state.health.sync_errors = 1
    await bench.commit(A, b"only the page cache has this" * 100)
    if not bench.crashes:
        return "the process went on after a failed sync"
    if bench.acknowledged != acknowledged:
        return "something was acknowledged after a failed sync"
    await bench.log.close()
    disk.state.locks.clear()
    bench = await open_log(disk, seed=2)
    told = payloads((await bench.found(A)).records)
    if len(told) != 2:
        return f"the page cache does not lie: {len(told)} records were read"
    await bench.commit(B, b"life goes on")
    await abandon(bench)
    bench = await open_log(after_power_cut(disk), seed=3)
    found = await bench.found(A)
    await abandon(bench)
    if found.is_quarantined or payloads(found.records) != told:
        return f"a start told of {len(told)} records, and after a power cut there are {len(found.records)}"
    return None


async def torn_tail_and_the_same_bytes_again() -> str | None:
    """A torn batch: its head is lost, its last record is not. The next life appends its first one again."""
    disk = SimDisk()
    first, second = b"1" * 5000, b"2" * 5000
    bench = await open_log(disk)
    await bench.commit(A, b"0")
    before = dict(disk.state.image())
    bench.send(A, first)
    await bench.commit(A, second)
    await abandon(bench)
    after = disk.state.image()
    at = next(i for i in range(len(after[SEGMENT])) if after[SEGMENT][i] != before[SEGMENT][i])
    torn = bytearray(after[SEGMENT])
    torn[at : at + 512] = before[SEGMENT][at : at + 512]
    disk = SimDisk(DiskState.of({**after, SEGMENT: bytes(torn)}))
    bench = await open_log(disk, seed=2)
    found = await bench.found(A)
    if payloads(found.records) != [b"0"] or not found.tail_cut:
        return f"after the tear: {[p[:1] for p in payloads(found.records)]}, tail_cut {found.tail_cut}"
    await bench.commit(A, first)
    await abandon(bench)
    disk.state.locks.clear()
    bench = await open_log(disk, seed=3)
    found = await bench.found(A)
    await abandon(bench)
    if payloads(found.records) != [b"0", first]:
        return f"a record of the torn batch came back: {[p[:1] for p in payloads(found.records)]}"
    return None


async def torn_record_before_a_whole_one(*, is_same: bool, is_trimmed: bool = False) -> str | None:
    """A torn batch: its first record is lost, the second is whole. The next life appends at the same offset.

    Byte-identical or not: the second must neither come back behind it, nor make its stream look damaged.

    Args:
        is_trimmed: no record before the torn batch is left.
    """
    disk = SimDisk()
    first, second = b"1" * 5000, b"2" * 5000
    again = first if is_same else b"3" * 5000
    bench = await open_log(disk)
    await bench.commit(A, b"0")
    if is_trimmed:
        bench.log.trim(A, Offset(1))
        await bench.commit(B, b"with the trim")
    before = [] if is_trimmed else [b"0"]
    bench.send(A, first)
    await bench.commit(A, second)
    await abandon(bench)
    image = disk.state.image()
    torn = bytearray(image[SEGMENT])
    at = torn.index(first) + 1000
    torn[at : at + 512] = bytes(512)
    disk = SimDisk(DiskState.of({**image, SEGMENT: bytes(torn)}))
    for seed, later in ((2, []), (3, [again]), (4, [again]), (5, [again])):
        expected = before + later
        bench = await open_log(disk, seed=seed)
        found = await bench.found(A)
        if payloads(found.records) != expected or not found.tail_cut or found.is_quarantined:
            told = [p[:1] for p in payloads(found.records)]
            await abandon(bench)
            return f"start {seed} tells {told}, tail_cut {found.tail_cut}, quarantined {found.is_quarantined}"
        if seed == 2:
            await bench.commit(A, again)
        await abandon(bench)
        disk.state.locks.clear()
    return None


async def torn_record_and_the_same_bytes_again() -> str | None:
    """The scenario above, byte for byte the same."""
    return await torn_record_before_a_whole_one(is_same=True)


async def torn_record_and_other_bytes() -> str | None:
    """The scenario above, with another record."""
    return await torn_record_before_a_whole_one(is_same=False)


async def stale_sectors_of_another_boot() -> str | None:
    """Two lives write the same batch at the same place; the second write loses its last sectors.

    There stands the last record of the first life then, which a start has already declared void.
    """
    disk = SimDisk()
    first, stale, fresh = b"1" * 5000, b"2" * 5000, b"3" * 5000
    bench = await open_log(disk)
    await bench.commit(A, b"0")
    before = disk.state.image()[SEGMENT]
    bench.send(A, first)
    await bench.commit(A, stale)
    await abandon(bench)
    torn = bytearray(disk.state.image()[SEGMENT])
    at = next(i for i in range(len(torn)) if torn[i] != before[i])
    torn[at : at + 512] = before[at : at + 512]
    disk = SimDisk(DiskState.of({**disk.state.image(), SEGMENT: bytes(torn)}))
    bench = await open_log(disk, seed=2)
    if payloads((await bench.found(A)).records) != [b"0"]:
        return "the torn batch was not cut"
    bench.send(A, first)
    await bench.commit(A, fresh)
    await abandon(bench)
    mixed = bytearray(disk.state.image()[SEGMENT])
    begin = (mixed.index(fresh) - 96) // 512 * 512
    mixed[begin : begin + 6144] = torn[begin : begin + 6144]
    disk = SimDisk(DiskState.of({**disk.state.image(), SEGMENT: bytes(mixed)}))
    bench = await open_log(disk, seed=3)
    told = payloads((await bench.found(A)).records)
    await abandon(bench)
    if told != [b"0", first, fresh][: len(told)] or not told:
        return f"a record of another life came back: {[p[:1] for p in told]}"
    return None


async def lost_batch_with_a_truncation() -> str | None:
    """Damage takes a whole batch that began a new branch; what stands around it fits by its offsets alone."""
    disk = SimDisk()
    bench = await open_log(disk)
    await bench.commit(A, b"0", b"1", b"2", b"3", generation=1)
    before = disk.state.image()[SEGMENT]
    bench.log.truncate(A, Offset(2), Generation(2), lambda: None)
    await bench.commit(A, b"2'", generation=2)
    truncated = disk.state.image()[SEGMENT]
    await bench.commit(A, b"3'", generation=2)
    image = disk.state.image()
    await bench.log.close()
    for whole in (image, disk.state.image()):  # With and without a batch that vouches for the last one.
        lost = bytearray(whole[SEGMENT])
        for at in range(0, len(before), 4096):
            if truncated[at : at + 4096] != before[at : at + 4096]:
                lost[at : at + 4096] = before[at : at + 4096]
        damaged = SimDisk(DiskState.of({**whole, SEGMENT: bytes(lost)}))
        bench = await open_log(damaged, seed=2)
        found = await bench.found(A)
        await abandon(bench)
        if not found.is_quarantined:
            return f"A is served as {payloads(found.records)}, though a durable batch of it is lost"
    return None


async def trim_while_a_batch_waits() -> str | None:
    """Two batches wait when a stream is trimmed that alone pins the oldest segment; a crash between them."""
    disk = SimDisk()
    bench = await open_log(disk)
    await bench.commit(B, b"old")
    n = 0
    while bench.log.status().lap_head < 2:
        await bench.commit(A, bytes(12_000))
        bench.log.trim(A, Offset(n))
        n += 1
    await bench.settled()
    told: list[str] = []

    def look() -> None:
        verdict = read_image(disk.state.image())[B]
        if verdict.flags or (verdict.first, verdict.point.next) not in ((0, 1), (1, 1)):
            told.append(f"B stands at [{verdict.first}, {verdict.point.next}), flags {verdict.flags}")

    for _ in range(3):  # The third does not fit into the batch of the first two, which is sealed then.
        bench.log.append(A, [bytes(12_000)], done=look)
    bench.log.trim(B, Offset(1))
    await bench.settled()
    bench.log.check()
    is_freed = bench.log.status().lap_oldest > 1
    await abandon(bench)
    return told[0] if told else None if is_freed else "what was trimmed is not freed"


async def frames_of_another_lap_behind_the_head() -> str | None:
    """Recycled segments: behind the head stand whole frames of a former lap, and they are free space."""
    disk = SimDisk()
    bench = await open_log(disk)
    for n in range(60):
        await bench.commit(A, bytes([n]) * 6000)
        bench.log.trim(A, Offset(n))
    if bench.log.status().lap_head <= SMALL.segments_max:
        return "no segment was recycled"
    await abandon(bench)
    data = max(c for name, c in disk.state.image().items() if name.endswith(".wal"))
    if data.count(BATCH_MAGIC) < 2:
        return "nothing stands behind the head"
    disk = after_power_cut(disk)
    for seed in (2, 3):
        bench = await open_log(disk, seed=seed)
        found = await bench.found(A)
        if payloads(found.records)[-1:] != [bytes([59]) * 6000] or found.tail_cut or found.is_quarantined:
            return f"offsets {found.first_offset}..{found.next_offset}, tail_cut {found.tail_cut}"
        if found.next_offset != 60 or len(found.records) > 2:
            return f"{len(found.records)} records up to {found.next_offset}"
        await abandon(bench)
        disk.state.locks.clear()
    return None


async def one_stream_pins_while_another_writes(*, flushes: bool) -> str | None:
    """A stream with one old record, beside one that writes ten times the pool."""
    disk = SimDisk()
    bench = await open_log(disk)
    await bench.commit(B, b"the old record")
    asked: list[LogStreamId] = []

    def flush(stream: LogStreamId) -> None:
        asked.append(stream)
        if flushes:
            bench.log.trim(stream, Offset(1))

    bench.log.on_flush_request(B, flush)
    written, pool = 0, SMALL.segments_max * SMALL.segment_bytes
    n = 0
    while written < 10 * pool:
        await bench.commit(A, bytes([n % 256]) * 12_000)
        bench.log.trim(A, Offset(n))
        written, n = written + 12_000, n + 1
        bench.log.check()
    if not asked:
        return "nobody was asked to flush"
    if bench.log.status().segment_count > SMALL.segments_max:
        return f"the pool grew to {bench.log.status().segment_count}"
    await abandon(bench)
    bench = await open_log(after_power_cut(disk), seed=2)
    kept = payloads((await bench.found(B)).records)
    last = await bench.found(A)
    await abandon(bench)
    if kept != ([] if flushes else [b"the old record"]) or last.next_offset != n or last.is_quarantined:
        return f"kept {kept}, next offset {last.next_offset} of {n}"
    return None


async def pinned_copies_forward() -> str | None:
    """The scenario above, where nobody flushes."""
    return await one_stream_pins_while_another_writes(flushes=False)


async def damage_after_a_rest() -> str | None:
    """The log rests, the process is killed, and one bit of its newest record is flipped."""
    disk = SimDisk()
    bench = await open_log(disk, config=vouching(SMALL))
    await bench.commit(A, b"acknowledged")
    for _ in range(200):
        await asyncio.sleep(0.0001)
    await bench.settled()
    await abandon(bench)
    content = bytearray(disk.state.image()[SEGMENT])
    content[content.index(b"acknowledged")] ^= 1
    (verdict,) = read_image({SEGMENT: bytes(content)}).values()
    if not verdict.flags & RowFlag.QUARANTINED:
        return f"an acknowledged record is gone, and its stream has flags {verdict.flags}"
    return None


async def relief_of_a_full_log() -> str | None:
    """Relief moves the head of a full log; appends go on trying; then relief must still have room."""
    disk = SimDisk()
    bench = await open_log(disk, config=msgspec.structs.replace(SMALL, segments_max=4))
    log, taken, relieved = bench.log, 0, 0
    for n in range(200):
        try:
            await bench.commit(A, bytes(8000))
            taken += 1
        except LogFull:
            if relieved < 8:
                log.append(B, [bytes(2000)], relief=True, done=lambda: None)
                await bench.settled()
                relieved += 1
            elif n > 100:
                break
    await bench.log.close()
    if relieved < 8:
        return f"relief was refused after {relieved} records"
    return None


async def flush_that_is_not_made_at_once() -> str | None:
    """Whoever pins the oldest segment cannot flush when it is asked first. Nobody writes any more."""
    disk = SimDisk()
    bench = await open_log(disk, config=msgspec.structs.replace(SMALL, segments_max=4))
    log, asked = bench.log, 0

    def flush(stream: LogStreamId) -> None:
        nonlocal asked
        asked += 1
        if asked > 2:
            log.trim(stream, log.next_offset(stream))

    log.on_flush_request(A, flush)
    with contextlib.suppress(LogFull):
        for _ in range(200):
            await bench.commit(A, bytes(8000))
    for _ in range(200):
        if log.status().segment_free_count > 2:
            break
        await asyncio.sleep(0.001)
    free = log.status().segment_free_count
    await abandon(bench)
    return None if free > 2 else f"asked {asked} times, and then forgotten: {free} segments are free"


async def damage_found_while_copying() -> str | None:
    """An old record is damaged, and its segment is wanted: its bytes are kept, and then it pins nothing."""
    disk = SimDisk()
    bench = await open_log(disk, config=msgspec.structs.replace(SMALL, segments_max=4))
    await bench.commit(B, b"an old record")
    at = disk.state.image()[SEGMENT].index(b"an old record")
    file = disk.open(SEGMENT)
    file.write_at(at, [b"@"])
    file.sync()
    refused = 0
    while bench.log.status().lap_head < 12 and refused < 100:
        try:
            await bench.commit(A, bytes(8000))
        except LogFull:
            refused += 1
            await asyncio.sleep(0.001)
        bench.log.trim(A, bench.log.next_offset(A))
    lap = bench.log.status().lap_head
    await abandon(bench)
    if lap < 12:
        return f"one damaged record fills the log: the head stands still in lap {lap}"
    image = after_power_cut(disk).state.image()
    if not any(b"@n old record" in content for name, content in image.items() if "quarantine-" in name):
        return "the damaged bytes are gone"
    if not read_image(image)[B].flags & RowFlag.QUARANTINED:
        return "after a power cut nothing tells that B lost a record"
    return None


async def head_made_shorter() -> str | None:
    """The head of a log is cut while nobody runs; the last batch of A, and all that B ever had, is gone."""
    disk = SimDisk()
    bench = await open_log(disk)
    while bench.log.status().lap_head < 5:
        bench.log.trim(A, await bench.commit(A, bytes(8000)))
    last = bench.log._last
    assert last is not None
    await bench.commit(B, b"all that B ever had")
    await abandon(bench)
    image = disk.state.image()
    name = f"{DIRECTORY}/{segment_name(last.index)}"
    found = read_image({**image, name: image[name][: last.end]})
    return None if found[A].flags & RowFlag.QUARANTINED else "a lost end is taken for one never written"


def run(scenario: object) -> str | None:
    """Play one scenario."""
    return asyncio.run(scenario())  # type: ignore[operator, no-any-return]
