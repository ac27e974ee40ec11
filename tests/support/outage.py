"""Outage: blocks of a simulated disk whose next reads fail, so many times; then they work again."""

import errno

import pytest

from broadsheet.wal.config import BLOCK_BYTES
from simulator.disk import SimDisk, SimFile

PASSING = 10
"""Failed reads of one place that the disk's patience covers."""
LASTING = 10_000

Outage = dict[tuple[str, int], int]
"""How many reads of each block fail, by the file's name."""


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    """Of all simulated disks; nothing fails yet."""
    left: Outage = {}
    read = SimFile._read

    def failing(self: SimFile, at: int, length: int) -> bytes:
        blocks = [(self.name, block) for block in range(at // BLOCK_BYTES, -(-(at + length) // BLOCK_BYTES))]
        if hit := [block for block in blocks if left.get(block)]:
            left.update({block: left[block] - 1 for block in hit})
            raise OSError(errno.EIO, "the disk is away", self.name)
        return read(self, at, length)

    monkeypatch.setattr(SimFile, "_read", failing)
    return left


def blocks_of(disk: SimDisk, name: str, *, first: int = 0) -> list[tuple[str, int]]:
    """The blocks of a file, from the `first` on."""
    size = len(disk.state.files[name].view)
    return [(name, block) for block in range(first, -(-size // BLOCK_BYTES))]
