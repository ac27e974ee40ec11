"""Real power cuts: what a log acknowledged survives them, on ext4, under a kernel that forgets."""

import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from broadsheet.base.types import LogStreamId
from broadsheet.runtime.disk import LocalDisk
from tests.support.powercut import Volume, ext4_volume
from tests.wal.appender import STREAMS, WORD, Said, payload_of
from tests.wal.harness import SMALL, opened

pytestmark = [pytest.mark.needs_root, pytest.mark.needs_ext4]

CYCLES = 10
ACKNOWLEDGED_MIN: Final = 1_000
"""Below this a run without losses says nothing (simulation.4)."""


@dataclass
class Tally:
    """What the appends of all cycles came to (simulation.4: no line says "zero lost" without these)."""

    cycles: int = 0
    acknowledged: int = 0
    unknown: int = 0
    """Sent, and neither acknowledged nor rejected when the power failed."""
    rejected: int = 0
    cycles_with_loss: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """One line."""
        lost = f"{len(self.problems)} lost or wrong" if self.problems else "zero lost"
        return (
            f"{self.cycles} power cuts: {self.acknowledged} acknowledged, {self.unknown} unknown, "
            f"{self.rejected} rejected: {lost}"
        )


def _cycle(volume: Volume, seed: int, mode: str, tally: Tally) -> dict[int, int]:
    """Append until the power fails; per stream, the highest offset acknowledged by then."""
    command = [sys.executable, "-m", "tests.wal.appender", str(volume.path / "node"), str(seed), mode]
    said = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said += process.stdout.read(WORD.size * random.Random(seed).randrange(200, 600))
        time.sleep(random.Random(seed).random() * 0.02)
        volume.cut(process)
        said += process.stdout.read()
    counts = dict.fromkeys(Said, 0)
    highest: dict[int, int] = {}
    for word, stream, end in WORD.iter_unpack(said[: len(said) // WORD.size * WORD.size]):
        counts[Said(word)] += 1
        if word == Said.ACKNOWLEDGED:
            highest[stream] = max(end, highest.get(stream, 0))
    tally.cycles += 1
    tally.acknowledged += counts[Said.ACKNOWLEDGED]
    tally.rejected += counts[Said.REJECTED]
    tally.unknown += counts[Said.SENT] - counts[Said.ACKNOWLEDGED] - counts[Said.REJECTED]
    return highest


async def _lost(volume: Volume, acknowledged: dict[int, int], seed: int) -> list[str]:
    """What the log, read again, has lost or changed."""
    disk = LocalDisk(volume.path / "node")
    problems: list[str] = []
    async with opened(disk, config=SMALL, seed=seed) as bench:
        for stream in STREAMS:
            found = await bench.found(LogStreamId(stream))
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


async def cut_power(directory: Path, cycles: int, mode: str = "synced") -> Tally:
    """Cut the power again and again under one log that goes on."""
    tally = Tally()
    with ext4_volume(directory, size_mib=32) as volume:
        for cycle in range(cycles):
            highest = _cycle(volume, 2 * cycle + 1, mode, tally)
            found = await _lost(volume, highest, 2 * cycle + 2)
            tally.cycles_with_loss += bool(found)
            tally.problems += [f"cycle {cycle}: {problem}" for problem in found]
    print(tally)
    return tally


async def test_no_acknowledged_record_is_lost_in_power_cuts(tmp_path: Path) -> None:
    """The promise of `fsynced`. `make soak` asks for 500 cycles."""
    tally = await cut_power(tmp_path, CYCLES)

    assert tally.problems == []
    assert tally.acknowledged >= ACKNOWLEDGED_MIN, tally


async def test_without_syncs_power_cuts_lose_acknowledged_records(tmp_path: Path) -> None:
    """The negative control: cuts that lose nothing would prove nothing."""
    tally = await cut_power(tmp_path, 3, "unsynced")

    assert tally.cycles_with_loss >= 1


@pytest.mark.soak
async def test_no_acknowledged_record_is_lost_in_500_power_cuts(tmp_path: Path) -> None:
    """The same, for `make soak`."""
    tally = await cut_power(tmp_path, 500)

    assert tally.problems == []
    assert tally.acknowledged >= 50 * ACKNOWLEDGED_MIN, tally
