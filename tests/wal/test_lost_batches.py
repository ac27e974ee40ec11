"""Whole batches that were durable and are gone, as a disk that loses writes leaves it, are never silence."""

from itertools import pairwise
from typing import NamedTuple

import pytest

from broadsheet.base.types import Generation, LogStreamId, Offset
from broadsheet.wal.format import BatchHeader, RowFlag, aligned
from broadsheet.wal.scan import Content, batches
from simulator.disk import SimDisk
from simulator.disk_state import DiskState
from simulator.logimage import batches_of
from tests.wal.harness import DIRECTORY, A, B, C, abandon, open_log
from tests.wal.histories import TINY, Kept, noise, read_image

BATCHES = 12


class Written(NamedTuple):
    """A log on a disk: its bytes, its batches in order, and what each stream has in each batch."""

    image: dict[str, bytes]
    batches: list[tuple[str, BatchHeader]]
    records: dict[int, dict[int, bytes]]
    """By stream: payloads by offset."""
    streams_of: dict[int, list[int]]
    """By batch number: streams with a record there."""


async def written() -> Written:
    """Streams that are in every second batch, in every third, in every fourth, and in one only."""
    disk = SimDisk()
    bench = await open_log(disk, config=TINY)
    records: dict[int, dict[int, bytes]] = {stream: {} for stream in range(1, 30)}
    streams_of: dict[int, list[int]] = {}
    for n in range(BATCHES):
        streams = [stream for stream in (2, 3, 4) if n % stream == 0] + [10 + n]
        for stream in streams:
            payload = noise(100 * n + stream, 300)
            records[stream][bench.send(LogStreamId(stream), payload)] = payload
        await bench.settled()
        last = bench.log._last
        assert last is not None
        streams_of[last.sequence] = streams
    await abandon(bench)
    image = disk.state.image()
    found = [
        (name, header)
        for name, content in image.items()
        if name.startswith(f"{DIRECTORY}/segment-")
        for header in batches(Content.of(content))
    ]
    found.sort(key=lambda each: each[1].batch)
    assert all(after.batch == before.batch + 1 for (_, before), (_, after) in pairwise(found))
    return Written(image, found, records, streams_of)


def without(image: dict[str, bytes], gone: list[tuple[str, BatchHeader]]) -> dict[str, bytes]:
    """The same disk, with zeros where these batches were."""
    after = dict(image)
    for name, header in gone:
        end = aligned(header.at + header.length)
        content = after[name]
        after[name] = content[: header.at] + bytes(end - header.at) + content[end:]
    return after


def judge(log: Written, told: dict[int, Kept], lost: list[int]) -> None:
    """Who had records in a lost batch is quarantined; nobody is served what he did not append."""
    for stream, records in log.records.items():
        kept = told.get(stream)
        has_lost = any(stream in log.streams_of.get(number, ()) for number in lost)
        if kept is None:
            assert not records or has_lost, f"stream {stream} is gone"
            only_there = all(
                number in lost for number, streams in log.streams_of.items() if stream in streams
            )
            assert not records or only_there, f"stream {stream} is gone, and had records elsewhere"
            continue
        assert all(records.get(each.offset) == each.payload for each in kept.held)
        is_quarantined = bool(kept.flags & RowFlag.QUARANTINED)
        assert is_quarantined or not has_lost, f"stream {stream} lost records in {lost}, and is not told so"
        assert is_quarantined or len(kept.held) == len(records), f"stream {stream} lost records silently"


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_no_lost_batches_are_silent(count: int) -> None:
    """W2, W6: the rows of the next batch charge the loss of one; behind more, everyone is suspect.

    A stream that is nowhere else is named, too, where one batch is lost; of several, nobody knows its name.
    """
    log = await written()
    for first in range(1, len(log.batches) - count):  # Not the boot frame, and not the last batch.
        gone = log.batches[first : first + count]
        lost = [header.batch for _, header in gone]
        told = read_image(without(log.image, gone))
        judge(log, told, lost)
        if count == 1:
            for stream in log.streams_of.get(lost[0], ()):
                assert told[stream].flags & RowFlag.QUARANTINED, f"stream {stream}, batch {lost}"


@pytest.mark.parametrize("is_named", [False, True])
async def test_behind_several_lost_batches_the_log_may_lack_streams(*, is_named: bool) -> None:
    """W2: a stream of which nothing is left looked as if it had never been there.

    A later batch that names every stream says that it lacks none.
    """
    disk = SimDisk()
    bench = await open_log(disk, config=TINY)
    await bench.commit(A, noise(1, 300))
    await bench.commit(C, noise(2, 300))
    for n in range(3):
        await bench.commit(A, noise(n, 300))
    lost = batches_of(disk.state.image())[3:5]
    while is_named and bench.log.pool.head < 2:
        await bench.commit(B, noise(1, 6000))
    await abandon(bench)
    after = SimDisk(DiskState.of(without(disk.state.image(), lost)))
    bench = await open_log(after, config=TINY, seed=2)
    assert (C in bench.log.streams()) == is_named
    assert bench.log.recovered(C).is_quarantined
    assert bench.log.is_unknown(LogStreamId(99)) != is_named
    await abandon(bench)


async def test_a_damaged_last_batch_behind_a_lost_one_is_no_cut_tail() -> None:
    """W2: what a cut would go back to stood in the lost batch, which was durable."""
    log = await written()
    name, last = log.batches[-1]
    image = without(log.image, log.batches[-2:-1])
    content = bytearray(image[name])
    content[last.at + last.length - 20] ^= 1  # In the last payload.
    image[name] = bytes(content)
    told = read_image(image)

    damaged = log.streams_of[last.batch][-1]
    assert told[damaged].flags & RowFlag.QUARANTINED
    judge(log, told, [log.batches[-2][1].batch, last.batch])


async def test_behind_lost_first_batches_every_stream_that_no_later_row_names_is_damage() -> None:
    """W2: frames of such a stream are salvaged, and nothing tells whether they are all. One was lost."""
    disk = SimDisk()
    bench = await open_log(disk, config=TINY)
    for stream, payload in ((C, b"salvaged"), (C, b"lost"), (B, b"names the streams before"), (A, b"whole")):
        await bench.commit(stream, payload)
    await abandon(bench)
    *boot, first, second, third, _ = batches_of(disk.state.image())
    image = without(disk.state.image(), [*boot, second, third])
    name, header = first
    content = bytearray(image[name])
    content[header.at + 8] ^= 1
    told = read_image({**image, name: bytes(content)})

    assert [each.payload for each in told[A].held] == [b"whole"]
    assert told[C].flags & RowFlag.QUARANTINED


async def test_a_stream_that_began_behind_lost_batches_is_sound() -> None:
    """W6: a batch since has a row of each stream that may have lost something; a new one is none of them."""
    disk = SimDisk()
    bench = await open_log(disk, config=TINY)
    for number in range(4):
        await bench.commit(A, noise(number, 300))
    lost = batches_of(disk.state.image())[-3:-1]
    while bench.log.pool.head < 2:
        await bench.commit(B, noise(1, 6000))
    await bench.commit(B, b"before the last")
    await bench.commit(C, b"new")
    await abandon(bench)
    told = read_image(without(disk.state.image(), lost))

    assert told[A].flags & RowFlag.QUARANTINED
    assert ([each.payload for each in told[C].held], told[C].flags) == ([b"new"], 0)


@pytest.mark.parametrize("laps", [2, 8])
async def test_a_damaged_header_of_the_first_batch_in_a_segment_is_told(laps: int) -> None:
    """W2: a batch in a segment that was never used, or used long ago, whose frames alone are left.

    Nothing vouches for it and nothing links to it: the frames behind its damaged header are the only sign
    that there was a record, which was acknowledged.
    """
    disk = SimDisk()
    bench = await open_log(disk, config=TINY)
    while bench.log.pool.head < laps:
        offset = await bench.commit(A, noise(1, 6000))
        bench.log.trim(A, offset)
    await abandon(bench)
    last = bench.log._last
    assert last is not None
    name = f"{DIRECTORY}/segment-{last.index:08d}.wal"
    content = bytearray(disk.state.image()[name])
    content[last.at + 1] ^= 1
    told = read_image({**disk.state.image(), name: bytes(content)})

    assert [each.offset for each in told[A].held] != [offset]
    assert told[A].flags & (RowFlag.TAIL_CUT | RowFlag.QUARANTINED)


async def test_a_lost_segment_behind_which_only_a_torn_batch_stands_is_damage() -> None:
    """W2, W6: the torn batch says which segments are needed; a stream that began below must not begin anew.

    It was told as cut back to nothing, though all but its last record had been acknowledged long ago.
    """
    disk = SimDisk()
    bench = await open_log(disk, config=TINY)
    while bench.log.pool.head < 3:
        await bench.commit(A, noise(bench.log.pool.head, 6000))
        if bench.log.pool.head < 3:
            bench.log.trim(A, Offset(bench.log.next_offset(A) - 1))
    await abandon(bench)
    last = bench.log._last
    assert last is not None
    found = [(n, h) for n, h in batches_of(disk.state.image()) if h.lap < last.lap]
    assert next(h for _, h in batches_of(disk.state.image()) if h.lap == last.lap).oldest == last.lap - 1
    image = without(disk.state.image(), found)
    name = f"{DIRECTORY}/segment-{last.index:08d}.wal"
    content = bytearray(image[name])
    content[last.at + last.size - 100] ^= 1  # In the only record of the last batch.

    told = read_image({**image, name: bytes(content)})

    assert told[A].flags & RowFlag.QUARANTINED


async def test_a_lost_truncation_inside_a_run_leaves_nothing_of_the_run_in_doubt() -> None:
    """A later truncation cut the run once more, and took a voided entry for a good one."""
    disk = SimDisk()
    bench = await open_log(disk, config=TINY)
    log = bench.log
    await bench.commit(B, b"another")
    bench.send_many(A, b"zero", b"void", b"void, too")
    await bench.settled()
    entry = await log.entry(A, Offset(1))
    assert entry is not None
    log.truncate(A, Offset(1), Generation(1), lambda: None, chain=entry.seed)
    await bench.settled()
    last = log._last
    assert last is not None
    lost = last.sequence
    bench.send(B, b"names the streams of the batch before it")
    await bench.settled()
    bench.send(A, b"one", generation=1)
    await bench.settled()
    log.truncate(A, Offset(2), Generation(2), lambda: None)
    await bench.settled()
    await bench.commit(A, b"two", generation=2)
    await abandon(bench)
    image = disk.state.image()
    gone = [(name, header) for name, header in batches_of(image) if header.batch == lost]
    assert len(gone) == 1

    whole, told = read_image(image)[A], read_image(without(image, gone))[A]

    assert [each.payload for each in whole.held] == [b"zero", b"one", b"two"]
    assert told.flags & RowFlag.QUARANTINED, "with the truncation the proof is lost of what it left"
