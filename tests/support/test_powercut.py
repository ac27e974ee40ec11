"""The power cut is real: what was synced survives it, what was not is lost."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.powercut import ext4_volume

pytestmark = [pytest.mark.needs_root, pytest.mark.needs_ext4]

WRITER = """
import os, sys
from pathlib import Path
from broadsheet.runtime.disk import LocalDisk
disk = LocalDisk(Path(sys.argv[1]))
file = disk.open("log", create=True)
disk.sync_dir("")
for number in range(1_000_000):
    file.write_at(8 * number, (number.to_bytes(8, "little"),))
    if sys.argv[2] == "synced":
        file.sync()
    os.write(1, number.to_bytes(8, "little"))
"""


def _acknowledged_and_kept(volume_directory: Path, mode: str, cycles: int) -> list[tuple[int, int]]:
    found = []
    with ext4_volume(volume_directory, size_mib=32) as volume:
        for cycle in range(cycles):
            command = [sys.executable, "-c", WRITER, str(volume.path / f"node{cycle}"), mode]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                said = process.stdout.read(8 * 100)
                volume.cut(process)
                said += process.stdout.read()
            log = volume.path / f"node{cycle}" / "log"
            kept = log.read_bytes() if log.exists() else b""
            count = 0
            while kept[8 * count : 8 * count + 8] == count.to_bytes(8, "little"):
                count += 1
            found.append((len(said) // 8, count))
    return found


def test_what_was_synced_survives_a_power_cut(tmp_path: Path) -> None:
    """The promise that every acknowledgement rests on, on a real file system."""
    for acknowledged, kept in _acknowledged_and_kept(tmp_path, "synced", 3):
        assert kept >= acknowledged >= 100


def test_what_was_not_synced_is_lost_in_a_power_cut(tmp_path: Path) -> None:
    """The negative control: a cut that loses nothing would prove nothing."""
    assert any(kept < acknowledged for acknowledged, kept in _acknowledged_and_kept(tmp_path, "unsynced", 3))
