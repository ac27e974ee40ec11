"""Real power cuts: what a log acknowledged survives them, on ext4, under a kernel that forgets."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broadsheet.base.types import LogStreamId
from broadsheet.runtime.disk import LocalDisk
from tests.support.powercut import Volume, ext4_volume
from tests.wal.appender import ACK, STREAMS, payload_of
from tests.wal.harness import SMALL, opened

pytestmark = [pytest.mark.needs_root, pytest.mark.needs_ext4]

CYCLES = 10


def _cycle(volume: Volume, seed: int, mode: str) -> dict[int, int]:
    """Append until the power fails; what was acknowledged by then."""
    command = [sys.executable, "-m", "tests.wal.appender", str(volume.path / "node"), str(seed), mode]
    said = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said += process.stdout.read(ACK.size * random.Random(seed).randrange(40, 200))
        time.sleep(random.Random(seed).random() * 0.02)
        volume.cut(process)
        said += process.stdout.read()
    acknowledged: dict[int, int] = {}
    for stream, end in ACK.iter_unpack(said[: len(said) // ACK.size * ACK.size]):
        acknowledged[stream] = max(end, acknowledged.get(stream, 0))
    return acknowledged


async def _lost(volume: Volume, acknowledged: dict[int, int], seed: int) -> list[str]:
    """What the log, read again, has lost or changed."""
    disk = LocalDisk(volume.path / "node")
    problems: list[str] = []
    async with opened(disk, config=SMALL, seed=seed) as bench:
        for stream in STREAMS:
            found = bench.log.recovered(LogStreamId(stream))
            if found.is_quarantined:
                problems.append(f"stream {stream} is quarantined")
            if found.next_offset < acknowledged.get(stream, 0):
                problems.append(f"stream {stream}: {found.next_offset} of {acknowledged[stream]}")
            problems += [
                f"stream {stream}: wrong bytes at {record.offset}"
                for record in found.records
                if record.payload != payload_of(stream, record.offset)
            ]
    disk.close()
    return problems


async def cut_power(directory: Path, cycles: int, mode: str = "synced") -> tuple[int, int, list[str]]:
    """Cut the power under one log that goes on; acknowledged, cycles with a loss, the problems."""
    highest: dict[int, int] = {}
    losses, problems = 0, []
    with ext4_volume(directory, size_mib=32) as volume:
        for cycle in range(cycles):
            acknowledged = _cycle(volume, 2 * cycle + 1, mode)
            highest.update(acknowledged)  # Offsets go on from cycle to cycle.
            found = await _lost(volume, acknowledged, 2 * cycle + 2)
            losses += bool(found)
            problems += [f"cycle {cycle}: {problem}" for problem in found]
    return sum(highest.values()), losses, problems


async def test_no_acknowledged_record_is_lost_in_power_cuts(tmp_path: Path) -> None:
    """The promise of `fsynced`. `make soak` asks for 500 cycles."""
    total, _, problems = await cut_power(tmp_path, CYCLES)

    assert problems == []
    assert total >= 1_000


async def test_without_syncs_power_cuts_lose_acknowledged_records(tmp_path: Path) -> None:
    """The negative control: cuts that lose nothing would prove nothing."""
    _, losses, _ = await cut_power(tmp_path, 3, "unsynced")

    assert losses >= 1


@pytest.mark.soak
async def test_no_acknowledged_record_is_lost_in_500_power_cuts(tmp_path: Path) -> None:
    """The same, for `make soak`."""
    total, _, problems = await cut_power(tmp_path, 500)

    assert problems == []
    assert total >= 50_000
