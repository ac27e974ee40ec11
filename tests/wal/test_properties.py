"""Reliability W1-W9, each by name, and what keeps damage to the streams that it hit."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.base.types import Generation, LogStreamId, Offset
from broadsheet.errors import BroadsheetError, ConfigError
from broadsheet.wal import StreamQuarantined
from broadsheet.wal.config import BLOCK_BYTES
from broadsheet.wal.format import VERSION, SegmentHeader
from broadsheet.wal.scan import FoundFrame, frames
from simulator.disk import SimDisk
from simulator.disk_state import DiskState
from tests.wal.harness import DIRECTORY, A, B, C, abandon, after_power_cut, open_log, opened, payloads
from tests.wal.histories import read_image, run_mix, search

SEGMENT = f"{DIRECTORY}/segment-00000000.wal"


async def _three_streams(*, is_closed: bool = False) -> dict[str, bytes]:
    """A, B and C with three records each, in three batches, and a fourth batch behind them."""
    disk = SimDisk()
    bench = await open_log(disk)
    for n in range(3):
        for stream in (A, B, C):
            bench.send(stream, b"%d.%d" % (stream, n) * 100)
        await bench.settled()
    await bench.commit(C, b"behind")
    await (bench.log.close() if is_closed else abandon(bench))
    return disk.state.image()


def _frames(content: bytes, stream: int) -> list[FoundFrame]:
    found = frames(content, BLOCK_BYTES, len(content), lambda _: True, is_after_hole=True)
    return [frame for frame in found if frame.header.stream == stream]


def _broken(image: dict[str, bytes], at: int, length: int = 1) -> SimDisk:
    content = bytearray(image[SEGMENT])
    for place in range(at, at + length):
        content[place] ^= 0x55
    return SimDisk(DiskState.of({**image, SEGMENT: bytes(content)}))


async def test_w1_an_acknowledgement_leaves_when_the_record_is_on_the_disk() -> None:
    """At that instant the medium alone, without anything unsynced, has the record."""
    disk = SimDisk()
    async with opened(disk) as bench:
        seen: list[bool] = []

        def acknowledged() -> None:
            verdict = read_image(disk.state.image()).get(A)
            seen.append(verdict is not None and verdict.point.next > len(seen))

        for n in range(10):
            bench.log.append(A, [bytes([n]) * 3000], done=acknowledged)
            await bench.settled()
    assert seen == [True] * 10


def test_w2_recovery_yields_a_prefix_of_one_branch_at_least_what_was_acknowledged() -> None:
    """No record from before a truncation comes back after it. `test_crash_states` judges the full number."""
    count, wrong = search("truncations", atoms_max=5)

    assert wrong == []
    assert count > 500


@pytest.mark.parametrize("mix", ["truncations", "copying", "resets"])
def test_w3_recovery_repeated_finds_the_same(mix: str) -> None:
    """Recover, recover again, and again after a power cut."""
    image = run_mix(mix).disk.state.image()

    async def thrice() -> None:
        told = []
        disk = SimDisk(DiskState.of(image))
        for seed in (11, 12, 13):
            bench = await open_log(disk, seed=seed)
            told.append([bench.log.recovered(stream) for stream in bench.log.streams()])
            await abandon(bench)
            disk = after_power_cut(disk)
        assert told[0] == told[1] == told[2]

    asyncio.run(thrice())


@given(st.integers(0, 2**32), st.sampled_from(["flip", "zero", "stale", "misdirected"]))
def test_w4_a_damaged_sector_is_never_served(seed: int, fault: str) -> None:
    """Flipped, zeroed, stale and misdirected sectors: what is served is right, or its stream is flagged.

    The log was closed, so a later batch vouches for every record. Of the very last batch a lost sector may be
    all that ever was, and no single disk can tell (docs/protocols/wal.md, "Limits").
    """
    image = _IMAGE
    draws = random.Random(seed)
    content = bytearray(image[SEGMENT])
    end = len(content.rstrip(b"\0")) // 512
    at = 512 * draws.randrange(end + 1)
    if fault == "flip":
        content[at + draws.randrange(512)] ^= 1 << draws.randrange(8)
    elif fault == "zero":
        content[at : at + 512] = bytes(512)
    elif fault == "stale":
        content[at : at + 512] = _EARLIER[SEGMENT][at : at + 512]
    else:
        source = 512 * draws.randrange(end + 1)
        content[at : at + 512] = image[SEGMENT][source : source + 512]
    expected = {s: [h.payload for h in v.held] for s, v in read_image(image).items()}
    for stream, verdict in read_image({**image, SEGMENT: bytes(content)}).items():
        found = [held.payload for held in verdict.held]
        assert found == expected[stream][: len(found)]
        assert found == expected[stream] or verdict.flags, f"stream {stream} lost records silently"


async def test_w5_after_a_failed_sync_the_log_is_dead() -> None:
    """It tells the process to end, acknowledges nothing more, and takes nothing more."""
    disk = SimDisk()
    bench = await open_log(disk)
    await bench.settled()
    disk.state.health.sync_errors = 1
    await bench.commit(A, b"x")

    assert len(bench.crashes) == 1
    assert bench.acknowledged == []
    with pytest.raises(Exception, match="dead"):
        bench.send(A, b"y")
    await bench.log.close()


async def test_w6_a_stream_with_a_damaged_durable_record_is_quarantined_and_stays_so() -> None:
    """It takes no appends, across restarts, until it is reset; the streams beside it go on."""
    image = await _three_streams()
    disk = _broken(image, _frames(image[SEGMENT], B)[1].payload[0])
    for seed in (2, 3):
        async with opened(disk, seed=seed) as bench:
            found = await bench.found(B)
            assert found.is_quarantined
            assert payloads(found.records) == [b"2.0" * 100]
            assert found.next_offset == 3
            assert bench.log.status().quarantined == [B]
            with pytest.raises(StreamQuarantined):
                bench.send(B, b"more")
            for stream, count in ((A, 3), (C, 4)):
                other = await bench.found(stream)
                assert (len(other.records), other.is_quarantined, other.tail_cut) == (count, False, False)
            await bench.commit(A, b"goes on")
            bench.log.trim(A, Offset(bench.log.next_offset(A) - 3))
    async with opened(disk, seed=4) as bench:
        bench.log.reset(B, Offset(50), Generation(1), lambda: None)
        assert await bench.commit(B, b"repaired", generation=1) == 50
    async with opened(disk, seed=5) as bench:
        assert not bench.log.recovered(B).is_quarantined
        assert payloads((await bench.found(B)).records) == [b"repaired"]


async def test_w6_a_damaged_frame_header_is_charged_to_its_stream_alone() -> None:
    """Where the header of the frame cannot be read, the rows of the batch tell whose it was (log.13)."""
    image = await _three_streams()
    disk = _broken(image, _frames(image[SEGMENT], B)[1].at + 40)
    async with opened(disk, seed=2) as bench:
        flagged = {s: bench.log.recovered(s).is_quarantined for s in (A, B, C)}
    assert flagged == {A: False, B: True, C: False}


async def test_w6_a_damaged_batch_header_loses_nothing() -> None:
    """The frames behind it are verified one by one, and the next batch names their streams (log.5)."""
    image = await _three_streams()
    at = _frames(image[SEGMENT], A)[1].at // BLOCK_BYTES * BLOCK_BYTES
    disk = _broken(image, at + 20)
    async with opened(disk, seed=2) as bench:
        for stream, count in ((A, 3), (B, 3), (C, 4)):
            found = await bench.found(stream)
            assert (len(found.records), found.is_quarantined) == (count, False)


async def test_w6_a_lost_batch_is_charged_by_the_next_one() -> None:
    """All of a batch is gone, headers and frames: its successor names the streams that it touched (log.5)."""
    image = await _three_streams()
    at = _frames(image[SEGMENT], A)[1].at // BLOCK_BYTES * BLOCK_BYTES
    disk = _broken(image, at, BLOCK_BYTES)
    async with opened(disk, seed=2) as bench:
        assert all(bench.log.recovered(s).is_quarantined for s in (A, B, C))


@pytest.mark.parametrize("at", [120, 40], ids=["payload", "frame header"])
async def test_w6_damage_found_while_copying_forward_quarantines_its_stream_at_once(at: int) -> None:
    """Not only the next start tells: what was lost may not be voted with meanwhile, and is set aside (W7)."""
    disk = SimDisk()
    bench = await open_log(disk)
    told: list[int] = []
    for stream in (A, B, C):
        bench.log.on_quarantine(stream, told.append)
    bench.send(B, b"spoilt" * 100)
    await bench.commit(C, b"beside it" * 100)
    content = disk.state.image()[SEGMENT]
    place = _frames(content, B)[0].at + at
    file = disk.open(SEGMENT)
    file.write_at(place, [bytes([content[place] ^ 1])])
    file.sync()
    n = 0
    while not bench.log.status().quarantined and n < 100:
        await bench.commit(A, bytes(8000))
        bench.log.trim(A, Offset(n))
        n += 1
    await bench.settled()
    assert bench.log.status().quarantined == told == [B]
    assert [bench.log.is_quarantined(stream) for stream in (A, B, C)] == [False, True, False]
    assert B not in bench.log.status().pinning
    assert bench.log.status().lap_oldest > 1  # What B lost does not hold its segment any longer.
    (kept,) = bench.log.status().quarantine_files
    assert b"spoilt" * 95 in disk.state.image()[f"{DIRECTORY}/{kept}"]
    with pytest.raises(StreamQuarantined):
        bench.send(B, b"more")
    await bench.commit(A, b"goes on")
    bench.log.check()
    await abandon(bench)

    async with opened(after_power_cut(disk), seed=2) as bench:
        assert bench.log.recovered(B).is_quarantined
        assert payloads((await bench.found(C)).records) == [b"beside it" * 100]
        assert not bench.log.recovered(C).is_quarantined
        bench.log.reset(B, Offset(1), Generation(1), lambda: None)
        assert await bench.commit(B, b"repaired", generation=1) == 1


@pytest.mark.parametrize("at", ["payload", "frame header", "batch header"])
async def test_damage_in_the_last_batch_is_a_cut_tail_that_says_so(at: str) -> None:
    """No later batch vouches for it, so it may have been acknowledged: kv.6 and journals.2 want to know.

    Source: log.11.
    """
    image = await _three_streams()
    last = _frames(image[SEGMENT], C)[-1]
    place = {"payload": last.payload[0], "frame header": last.at + 40, "batch header": last.at & ~4095 | 20}[
        at
    ]
    disk = _broken(image, place)
    for seed in (2, 3):
        async with opened(disk, seed=seed) as bench:
            found = await bench.found(C)
            assert (len(found.records), found.tail_cut, found.is_quarantined) == (3, True, False)
            assert not bench.log.recovered(A).tail_cut
            assert bench.log.status().quarantine_files
    async with opened(disk, seed=4) as bench:
        bench.log.settle(C)
        await bench.commit(C, b"dealt with")
    async with opened(disk, seed=5) as bench:
        assert not bench.log.recovered(C).tail_cut


async def test_w7_damaged_bytes_are_set_aside_before_anything_writes_over_them() -> None:
    """Quarantine, never delete: the very bytes are in a file of their own, once."""
    image = await _three_streams()
    at = _frames(image[SEGMENT], B)[1].at
    disk = _broken(image, at + 120)
    for seed in (2, 3):
        async with opened(disk, seed=seed):
            pass
    kept = [content for name, content in disk.state.image().items() if "quarantine-" in name]
    block = at // BLOCK_BYTES * BLOCK_BYTES
    assert sum(disk.state.image()[SEGMENT][block : block + BLOCK_BYTES] in content for content in kept) == 1


async def test_w8_a_disk_that_fills_up_leaves_a_log_that_reads_and_goes_on() -> None:
    """ENOSPC at any call: what was acknowledged is there, and appends go on when there is space again."""
    for quota in range(70_000, 400_000, 13_000):
        disk = SimDisk()
        disk.state.quota_bytes = quota
        try:
            bench = await open_log(disk)
        except OSError:
            continue
        for _ in range(40):
            try:
                bench.send(A, bytes(5000))
            except BroadsheetError as error:
                assert "full" in str(error) or "space" in str(error)  # noqa: PT017
                break
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        promised = len(bench.acknowledged)
        await abandon(bench)
        disk.state.locks.clear()
        disk.state.quota_bytes = 1 << 40
        async with opened(disk, seed=2) as bench:
            assert len((await bench.found(A)).records) >= promised
            await bench.settled()  # The pool is filled up to its size first.
            await bench.commit(A, b"space again")


async def test_w9_short_writes_never_make_a_record_of_half_its_bytes() -> None:
    """The kernel takes part of a write: the rest is written, or the record is not there."""
    disk = SimDisk()
    bench = await open_log(disk)
    await bench.settled()
    for n in range(10):
        disk.state.health.short_writes = 2
        await bench.commit(A, bytes([n]) * 7000)
    await abandon(bench)
    async with opened(after_power_cut(disk), seed=2) as bench:
        assert payloads((await bench.found(A)).records) == [bytes([n]) * 7000 for n in range(10)]


@pytest.mark.parametrize(("version", "word"), [(VERSION + 1, "newer"), (0, "older")])
async def test_another_version_is_refused_untouched(version: int, word: str) -> None:
    """A program that does not know the format must not repair it."""
    image = await _three_streams()
    header = SegmentHeader(version, 77, 64 << 10).pack()
    disk = SimDisk(DiskState.of({**image, SEGMENT: header + image[SEGMENT][BLOCK_BYTES:]}))
    before = disk.state.image()
    with pytest.raises(ConfigError, match=word):
        await open_log(disk, seed=2)
    assert disk.state.image() == before


async def test_a_segment_of_another_log_is_refused_untouched() -> None:
    """Somebody copied a segment from elsewhere."""
    image = await _three_streams()
    foreign = f"{DIRECTORY}/segment-00000009.wal"
    disk = SimDisk(
        DiskState.of({**image, foreign: SegmentHeader(VERSION, 77, 64 << 10).pack() + bytes(60 << 10)})
    )
    before = disk.state.image()
    with pytest.raises(ConfigError, match="several logs"):
        await open_log(disk, seed=2)
    assert disk.state.image() == before


async def test_a_directory_with_other_files_is_refused() -> None:
    """A log has a directory of its own."""
    disk = SimDisk(DiskState.of({f"{DIRECTORY}/notes.txt": b"mine"}))
    with pytest.raises(ConfigError, match=r"notes\.txt"):
        await open_log(disk)


async def test_many_streams_come_back_from_recycled_segments() -> None:
    """Each segment begins with all streams, so that nothing is forgotten when old ones go."""
    disk = SimDisk()
    bench = await open_log(disk)
    for stream in range(10, 60):
        bench.send(LogStreamId(stream), b"s%d" % stream)
        bench.log.trim(LogStreamId(stream), Offset(1))
    await bench.settled()
    for n in range(80):
        await bench.commit(A, bytes(8000))
        bench.log.trim(A, Offset(n))
    await abandon(bench)
    async with opened(after_power_cut(disk), seed=2) as bench:
        assert len(bench.log.streams()) == 51
        assert bench.log.next_offset(LogStreamId(33)) == 1


_IMAGE = asyncio.run(_three_streams(is_closed=True))


async def _earlier() -> dict[str, bytes]:
    disk = SimDisk()
    bench = await open_log(disk)
    await abandon(bench)
    return disk.state.image()


_EARLIER = asyncio.run(_earlier())
