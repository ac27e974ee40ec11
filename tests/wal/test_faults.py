"""ENOSPC and EIO under real files, by a fault layer: the log refuses, ends, or goes on, and never lies."""

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from broadsheet.runtime.disk import LocalDisk
from broadsheet.wal import LogFull
from simulator.disk import SimDisk
from tests.support.faultfs import FaultFS, Rule, mounted
from tests.wal.harness import A, Bench, abandon, open_log, opened, payloads


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[FaultFS]:
    """A fault layer whose page cache is its own, with the disks on it closed in the end."""
    with mounted(tmp_path, write_back=True) as layer:
        yield layer
        _close()


DISKS: list[LocalDisk] = []


def disk_of(faults: FaultFS) -> LocalDisk:
    DISKS.append(LocalDisk(faults.path))
    return DISKS[-1]


def _close() -> None:
    while DISKS:
        DISKS.pop().close()


async def _until(condition: object, bench: Bench) -> None:
    for _ in range(4_000):
        if condition():  # type: ignore[operator]
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"it does not happen: {bench.log.status()}")


@pytest.mark.needs_fuse
@pytest.mark.parametrize("op", ["fsync", "write"])
async def test_eio_ends_the_process_and_acknowledges_nothing_after_it(faults: FaultFS, op: str) -> None:
    """W5, on real files: one failed sync or write, and the page cache lies about it until the reboot.

    Source: log.16.
    """
    bench = await open_log(disk_of(faults))
    await _until(lambda: not bench.log._reclaimer._is_filling, bench)
    bench.send(A, b"durable")
    await _until(lambda: len(bench.acknowledged) == 1, bench)
    faults.set(Rule(op, error="EIO", path="*00000000.wal", times=1))
    bench.send(A, b"lost" * 1000)
    await _until(lambda: bench.crashes, bench)
    await asyncio.sleep(0.05)
    assert len(bench.acknowledged) == 1
    assert isinstance(bench.crashes[0], OSError)
    await abandon(bench)

    async with opened(disk_of(faults), seed=2) as bench:
        told = payloads((await bench.found(A)).records)
        assert told[:1] == [b"durable"]
    _close()
    faults.reboot()
    async with opened(disk_of(faults), seed=3) as bench:
        assert payloads((await bench.found(A)).records) == told


@pytest.mark.needs_fuse
async def test_enospc_while_the_pool_grows_refuses_and_goes_on_when_space_returns(faults: FaultFS) -> None:
    """W8: a full disk refuses appends, with nothing written; when space returns they go on."""
    bench = await open_log(disk_of(faults))
    await _until(lambda: not bench.log._reclaimer._is_filling, bench)
    faults.set(Rule("create", error="ENOSPC"))
    sent = 0
    try:
        while sent < 100:
            bench.send(A, bytes(8000))
            sent += 1
            await _until(lambda: len(bench.acknowledged) == sent, bench)  # noqa: B023
    except LogFull:
        pass
    assert sent < 30
    assert bench.log.next_offset(A) == sent
    await _until(lambda: bench.log.status().is_out_of_space, bench)
    assert bench.crashes == []
    faults.set()
    await _until(lambda: len(bench.log.status().pinning) and bench.log.status().segment_free_count > 1, bench)
    assert bench.send(A, b"again") == sent
    await _until(lambda: len(bench.acknowledged) == sent + 1, bench)
    await bench.log.close()
    async with opened(disk_of(faults), seed=2) as bench:
        assert len((await bench.found(A)).records) == sent + 1


@pytest.mark.needs_fuse
async def test_enospc_of_a_batch_waits_in_place_and_short_writes_are_continued(faults: FaultFS) -> None:
    """W8, W9: a write that was refused or cut short is repeated whole; nothing is acknowledged meanwhile."""
    bench = await open_log(disk_of(faults))
    await _until(lambda: not bench.log._reclaimer._is_filling, bench)
    faults.set(
        Rule("write", error="ENOSPC", path="*00000000.wal", times=3),
        Rule("write", path="*00000000.wal", short=True),
    )
    bench.send(A, b"x" * 9000)
    await _until(lambda: len(bench.acknowledged) == 1, bench)
    assert faults.hits()[0] == 3
    assert faults.hits()[1] >= 1
    await abandon(bench)
    async with opened(disk_of(faults), seed=2) as bench:
        assert payloads((await bench.found(A)).records) == [b"x" * 9000]


async def test_a_disk_without_space_refuses_the_first_start() -> None:
    """Nothing half-made stays in the way of the next start."""
    disk = SimDisk()
    disk.state.quota_bytes = 20_000
    with pytest.raises(OSError, match="space") as refused:
        await open_log(disk)
    assert refused.value.errno == errno.ENOSPC
    disk.state.quota_bytes = 1 << 30
    async with opened(disk, seed=2) as bench:
        assert await bench.commit(A, b"now") == 0
