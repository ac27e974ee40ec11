"""The bytes of the format, pinned: a later version must read what this one wrote (log.19)."""

import asyncio
import random
from pathlib import Path

from broadsheet.base.types import Generation, LogStreamId, Offset
from broadsheet.wal.format import BATCH_BYTES, ROW, BatchHeader, Kind
from broadsheet.wal.quick_scan import sound_runs
from broadsheet.wal.recovery import held_of, of_batch
from broadsheet.wal.scan import Content, batches, frames, is_chained
from broadsheet.wal.stream_replay import FoundRun
from simulator.disk import SimDisk
from simulator.disk_state import DiskState
from tests.wal.harness import DIRECTORY, A, B, C, opened, payloads

GOLDEN = Path(__file__).parent / "golden"
SEGMENT = f"{DIRECTORY}/segment-00000000.wal"
FLIP_STEP_BITS = 13
"""Every byte has its turn, and every bit of a byte."""
QUICK_MIN = 2


async def _write() -> bytes:
    """Every kind of frame but a copy, from fixed entropy."""
    disk = SimDisk()
    async with opened(disk, seed=2026) as bench:
        await bench.commit(A, b"first", b"second", generation=1)
        await bench.commit(B, random.Random(1).randbytes(1500))
        bench.log.truncate(A, Offset(1), Generation(2), lambda: None)
        await bench.commit(A, b"second again", generation=2)
        bench.log.reset(B, Offset(40), Generation(3), lambda: None, crc=7)
        bench.send_many(C, b"run", b"of", b"three", b"four")
        entry = await bench.log.entry(C, Offset(3))
        assert entry is not None
        bench.log.truncate(C, Offset(3), Generation(4), lambda: None, chain=entry.seed)
        await bench.commit(LogStreamId(9), b"to be dropped")
        bench.log.drop(LogStreamId(9))
        bench.log.trim(A, Offset(1))
        await bench.commit(B, b"forty", generation=3)
    return disk.state.image()[SEGMENT]


def test_the_log_writes_the_golden_bytes() -> None:
    """Whoever changes the format raises its version, and keeps the reader of this one (log.4)."""
    written = asyncio.run(_write()).rstrip(b"\0")

    assert written == (GOLDEN / "version-3.wal").read_bytes().rstrip(b"\0")


async def test_the_golden_log_is_read() -> None:
    """A data directory of this release opens in every later one."""
    content = (GOLDEN / "version-3.wal").read_bytes().ljust(64 << 10, b"\0")
    async with opened(SimDisk(DiskState.of({SEGMENT: content})), seed=1) as bench:
        assert bench.log.streams() == [A, B, C]
        assert payloads((await bench.found(C)).records) == [b"run", b"of", b"three"]
        first, second = await bench.found(A), await bench.found(B)
        assert (first.first_offset, payloads(first.records), first.generation) == (1, [b"second again"], 2)
        assert (second.first_offset, payloads(second.records), second.next_offset) == (40, [b"forty"], 41)
        assert not first.tail_cut
        assert not second.is_quarantined


def test_a_batch_is_read_quickly_only_where_the_thorough_reading_finds_it_sound() -> None:
    """A start believes the quick one: one flipped bit that it passes over would be served (W4)."""
    golden = (GOLDEN / "version-3.wal").read_bytes()
    quick = 0
    for bit in (None, *range(0, len(golden.rstrip(b"\0")) * 8, FLIP_STEP_BITS)):
        content = bytearray(golden)
        if bit is not None:
            content[bit // 8] ^= 1 << bit % 8
        read = Content.of(bytes(content))
        for batch in batches(read):
            data = read.read(batch.at, batch.at + batch.length)
            sound = sound_runs(data, batch)
            if sound is not None:
                assert sound == _thorough(data, batch), f"bit {bit}, batch {batch.batch}"
                quick += bit is None
    assert quick >= QUICK_MIN, "most batches have runs only"


def _thorough(data: bytes, batch: BatchHeader) -> tuple[list[tuple[int, FoundRun]], int] | None:
    """What `sound_runs` tells, frame by frame; None where anything is damaged, or no run."""
    begin, chain = BATCH_BYTES + ROW.size * batch.row_count, batch.chain
    found: list[tuple[int, FoundRun]] = []
    for frame in frames(data, begin, batch.length, of_batch(batch), is_after_hole=False):
        if not frame.is_payload_whole or frame.is_after_hole or not is_chained(frame, chain):
            return None
        if frame.header.kind != Kind.RUN:
            return None
        chain = frame.header.chain
        found.append((frame.header.stream, held_of(frame, batch.at)))
    return (found, chain) if len(found) == batch.frame_count else None
