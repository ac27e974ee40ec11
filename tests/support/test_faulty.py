"""The failing ports fail as planned, and only so."""

import errno
from pathlib import Path

import pytest

from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.objects import LocalObjects
from tests.support.faulty import Fault, FaultyDisk, FaultyObjects


async def test_a_planned_fault_hits_its_call_and_leaves_it_undone(tmp_path: Path) -> None:
    """The second persist of the log fails; others, and other files, do not."""
    disk = FaultyDisk(LocalDisk(tmp_path), [Fault("persist", errno.ENOSPC, name="log", after=1, times=1)])
    log, other = disk.open("log", create=True), disk.open("other", create=True)
    await log.persist(0, (b"a",))
    await other.persist(0, (b"o",))
    with pytest.raises(OSError, match="planned") as caught:
        await log.persist(1, (b"b",))
    await log.persist(1, (b"c",))

    assert caught.value.errno == errno.ENOSPC
    assert log.read_at(0, 10) == b"ac"
    assert disk.faults.faults_hit == {"persist": 1}


async def test_a_partial_write_leaves_half(tmp_path: Path) -> None:
    """As a disk does that fills up within a batch."""
    disk = FaultyDisk(LocalDisk(tmp_path), [Fault("write_at", errno.ENOSPC, partly=True)])
    log = disk.open("log", create=True)
    with pytest.raises(OSError, match="planned"):
        await log.persist(0, (b"abcd", b"efgh"))

    assert log.read_at(0, 10) == b"abcd"


async def test_a_failing_sync_leaves_the_bytes_in_doubt(tmp_path: Path) -> None:
    """They are in the page cache, where the next reader finds them."""
    disk = FaultyDisk(LocalDisk(tmp_path), [Fault("sync", errno.EIO)])
    log = disk.open("log", create=True)
    for attempt in (log.persist(0, (b"abcd",)), log.flush()):
        with pytest.raises(OSError, match="planned"):
            await attempt

    assert log.read_at(0, 10) == b"abcd"


def test_space_is_used_by_growing_only(tmp_path: Path) -> None:
    """A recycled segment can be written though the disk is full."""
    disk = FaultyDisk(LocalDisk(tmp_path))
    log = disk.open("log", create=True)
    disk.space = 10
    log.write_at(0, (b"12345678",))
    with pytest.raises(OSError, match="space is used up"):
        log.write_at(6, (b"12345",))
    log.write_at(0, (b"ABCDEFGH",))
    log.write_at(8, (b"IJ",))

    assert log.read_at(0, 20) == b"ABCDEFGHIJ"
    assert disk.free() == 0


async def test_a_put_may_be_stored_and_still_be_answered_by_an_error(tmp_path: Path) -> None:
    """That is what a lost response looks like: the caller must repeat it."""
    objects = FaultyObjects(LocalObjects(tmp_path))
    objects.plan(
        Fault("put_if_absent", errno.EIO, times=1, partly=True),
        Fault("get", errno.EIO, times=1, delay=Duration(MILLISECOND)),
    )
    with pytest.raises(OSError, match="planned"):
        await objects.put_if_absent("name", (b"x",))

    assert not await objects.put_if_absent("name", (b"x",))
    with pytest.raises(OSError, match="planned"):
        await objects.get("name")
    assert await objects.get("name") == b"x"
