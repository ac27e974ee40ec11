"""A log that has fallen idle vouches for its last batch, so that damage to it is told from a torn write."""

import asyncio

import pytest

from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.wal import LogFull
from broadsheet.wal.format import BATCH_MAGIC, RowFlag
from broadsheet.wal.scan import Content
from broadsheet.wal.survey import survey
from broadsheet.wal.vouching import VouchTimer
from simulator.disk import SimDisk
from tests.wal.harness import DIRECTORY, SMALL, A, B, C, abandon, open_log, opened, vouching
from tests.wal.histories import noise, read_image
from tests.wal.one_stream import record_ranges

SEGMENT = f"{DIRECTORY}/segment-00000000.wal"
AT_ONCE = vouching(SMALL)
NEVER = SMALL


async def test_an_idle_log_vouches_once_and_then_rests() -> None:
    """One batch more, not one for every look at the clock."""
    async with opened(SimDisk(), config=AT_ONCE) as bench:
        before = bench.log.status().batch_count
        await bench.commit(A, b"last")
        await bench.vouched()
        assert bench.log.status().batch_count == before + 2
        await asyncio.sleep(0.02)
        assert bench.log.status().batch_count == before + 2


async def test_a_batch_that_comes_while_the_log_is_about_to_vouch_is_vouched_for_later() -> None:
    """The log fell idle again before its time was up: nobody would start the clock a second time."""
    vouched = asyncio.Event()
    timer = VouchTimer(Duration(MILLISECOND), is_idle=lambda: True, vouch=vouched.set)
    for _ in range(2):
        timer.written(has_records=True)
        timer.rested()

    await asyncio.wait_for(vouched.wait(), 5)


@pytest.mark.parametrize("state", ["is_dead", "is_closed"])
async def test_a_log_that_has_ended_vouches_for_nothing(state: str) -> None:
    """After a failed sync nobody knows what is durable; a closed log has vouched, and may be let go of."""
    async with opened(SimDisk()) as bench:
        await bench.commit(A, b"last")
        setattr(bench.log, state, True)
        bench.log._vouch()
        assert bench.log._idle.is_set()
        setattr(bench.log, state, False)
        bench.log._vouch()
        assert not bench.log._idle.is_set()


async def test_a_start_alone_needs_no_witness() -> None:
    """A boot frame is evidence for what came before it, and nobody was told of it."""
    async with opened(SimDisk(), config=AT_ONCE) as bench:
        await bench.settled()
        before = bench.log.status().batch_count
        await asyncio.sleep(0.01)
        assert bench.log.status().batch_count == before


async def test_a_busy_log_is_not_kept_waiting_by_a_witness() -> None:
    """One append in flight after another: no sync more than without, however long it goes on."""
    config = vouching(SMALL, delay=Duration(20_000_000))
    async with opened(SimDisk(), config=config) as bench:
        before = bench.log.status().batch_count
        end = asyncio.get_running_loop().time() + 0.1
        count = 0
        while asyncio.get_running_loop().time() < end:
            await bench.commit(A, b"x")
            bench.log.trim(A, bench.log.next_offset(A))
            await bench.settled()
            count += 1
        assert count > 50
        # A segment that is freed may have a batch of its own.
        assert bench.log.status().batch_count - before <= count + bench.log.status().lap_head


async def test_a_log_that_rests_a_few_milliseconds_has_vouched() -> None:
    """The default window, which `docs/guarantees.md` states: 4 ms, and as long as two syncs take."""
    config = vouching(SMALL, delay=Duration(2_000_000))
    async with opened(SimDisk(), config=config) as bench:
        await bench.commit(A, b"x")
        begun = asyncio.get_running_loop().time()
        await bench.vouched()
        assert asyncio.get_running_loop().time() - begun < 0.5  # The box may be slow, the log is not.


async def _three(*, is_vouched: bool) -> dict[str, bytes]:
    disk = SimDisk()
    bench = await open_log(disk, config=vouching(SMALL) if is_vouched else SMALL)
    for n in range(2):
        for stream in (A, B, C):
            bench.send(stream, noise(10 * n + stream, 150))
        await bench.settled()
    if is_vouched:
        await bench.vouched()
    await abandon(bench)
    return disk.state.image()


async def test_every_flipped_byte_of_a_vouched_batch_is_corruption_never_a_cut() -> None:
    """W4 and W6: exhaustive over every acknowledged byte, frame headers and the newest batch included.

    Source: log.12.
    """
    image = await _three(is_vouched=True)
    whole = {s: [h.payload for h in v.held] for s, v in read_image(image).items()}
    assert all(len(records) == 2 for records in whole.values())
    quarantined = 0
    for found in record_ranges(image):
        assert found.file == SEGMENT
        for at in range(found.begin, found.end):
            content = bytearray(image[SEGMENT])
            content[at] ^= 1 << at % 8
            for stream, verdict in read_image({SEGMENT: bytes(content)}).items():
                held = [h.payload for h in verdict.held]
                is_quarantined = bool(verdict.flags & RowFlag.QUARANTINED)
                quarantined += is_quarantined
                assert not verdict.flags & RowFlag.TAIL_CUT, f"byte {at}: stream {stream} calls it a cut"
                assert is_quarantined or held == whole[stream], f"byte {at}: stream {stream} is cut silently"
                assert held == whole[stream][: len(held)]
    assert quarantined >= sum(found.end - found.begin for found in record_ranges(image)) * 0.9


async def test_every_flipped_byte_of_headers_and_witness_loses_nothing_silently() -> None:
    """Batch headers, rows and the witness itself: what is not flagged is whole."""
    image = await _three(is_vouched=True)
    whole = {s: [h.payload for h in v.held] for s, v in read_image(image).items()}
    end = len(image[SEGMENT].rstrip(b"\0"))
    records = [range(found.begin, found.end) for found in record_ranges(image)]
    for at in range(4096, end):
        if image[SEGMENT][at] == 0 or any(at in each for each in records):
            continue
        content = bytearray(image[SEGMENT])
        content[at] ^= 1 << at % 8
        found = read_image({SEGMENT: bytes(content)})
        for stream, payloads_ in whole.items():
            verdict = found[stream]
            held = [h.payload for h in verdict.held]
            assert held == payloads_ or verdict.flags & RowFlag.QUARANTINED, f"byte {at}, stream {stream}"


@pytest.mark.parametrize("at", ["payload", "frame header", "batch header"])
async def test_without_a_witness_damage_in_the_last_batch_may_be_a_torn_write(at: str) -> None:
    """The window that is left: a crash within it makes of damage a cut, which says so for each stream."""
    image = await _three(is_vouched=False)
    last = record_ranges(image)[-1]
    place = {
        "payload": last.end - 9,
        "frame header": last.begin + 40,
        "batch header": last.begin & ~4095 | 20,
    }
    content = bytearray(image[SEGMENT])
    content[place[at]] ^= 1
    verdicts = read_image({SEGMENT: bytes(content)})
    assert verdicts[C].flags == RowFlag.TAIL_CUT
    assert len(verdicts[C].held) == 1
    assert at == "batch header" or not verdicts[A].flags


async def test_a_torn_witness_costs_nothing() -> None:
    """A power cut while it is written: the last batch is whole, and there is nothing to report."""
    image = await _three(is_vouched=True)
    at = max(i for i in range(0, len(image[SEGMENT]), 4096) if image[SEGMENT][i : i + 4] == BATCH_MAGIC)
    for keep in range(0, 4096, 512):
        content = bytearray(image[SEGMENT])
        content[at + keep : at + 4096] = bytes(4096 - keep)
        verdicts = read_image({SEGMENT: bytes(content)})
        assert all(len(v.held) == 2 and not v.flags for v in verdicts.values())


async def test_a_log_that_was_vouched_for_writes_no_second_witness_when_it_is_closed() -> None:
    """A clean stop of an idle log needs no sync at all."""
    disk = SimDisk()
    bench = await open_log(disk, config=AT_ONCE)
    await bench.commit(A, b"x")
    await bench.vouched()
    count = bench.log.status().batch_count
    await bench.log.close()
    assert bench.log.status().batch_count == count


async def test_close_vouches_for_what_was_pending_when_it_began() -> None:
    """The last words of a process are as safe as those before them."""
    disk = SimDisk()
    bench = await open_log(disk, config=NEVER)
    bench.send(A, b"last words")
    await bench.log.close()
    image = disk.state.image()
    (found,) = record_ranges(image)
    content = bytearray(image[SEGMENT])
    content[found.end - 9] ^= 1
    assert read_image({SEGMENT: bytes(content)})[A].flags == RowFlag.QUARANTINED


async def test_a_full_log_vouches_too() -> None:
    """The witness draws on the room that appends cannot take."""
    disk = SimDisk()
    bench = await open_log(disk, config=AT_ONCE)
    with pytest.raises(LogFull):  # noqa: PT012 - which one of them is refused, is not the point.
        for _ in range(200):
            await bench.commit(A, bytes(8000))
    await bench.vouched()
    await abandon(bench)
    image = disk.state.image()
    last = read_image(image)[A].places[-1]
    laps = {name: survey(0, Content.of(image[name]), name).lap for name in image if name.endswith(".wal")}
    (segment,) = [name for name, lap in laps.items() if lap == last.lap]
    content = bytearray(image[segment])
    content[last.at + 500] ^= 1
    assert read_image({**image, segment: bytes(content)})[A].flags == RowFlag.QUARANTINED
