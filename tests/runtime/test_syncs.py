"""No sync is believed once another one of the same inode has failed; a machine without FUSE tests it too."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from broadsheet.runtime.disk import LocalDisk, LocalFile
from broadsheet.runtime.objects import LocalObjects
from broadsheet.runtime.syncs import HELD_MAX, Syncs
from tests.support.faultfs import Rule, mounted


def refuses(file: LocalFile) -> None:
    for use in (file.sync, lambda: file.write_at(0, (b"x",)), lambda: file.truncate(0)):
        with pytest.raises(OSError, match="failed before") as caught:
            use()
        assert caught.value.errno == errno.EIO


def fail(file: LocalFile) -> None:
    """As the kernel does once, of a device that lost its pages."""
    with pytest.raises(OSError, match="write or sync failed"), file._inode.failing(file._fd, file.name):
        raise OSError(errno.EIO, "write-back failed")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_failed_sync_is_remembered_by_every_handle_of_the_file(tmp_path: Path) -> None:
    """The kernel tells one descriptor; a checkpoint through another would call lost bytes synced.

    Opened before or after, under another name, through another disk of the process: one inode.
    """
    syncs = Syncs()
    disk, other = LocalDisk(tmp_path, syncs=syncs), LocalDisk(tmp_path, syncs=syncs)
    file, before = disk.open("log", create=True), disk.open("log")
    beside = disk.open("beside", create=True)
    fail(file)
    disk.rename("log", "renamed")

    for handle in (file, before, disk.open("renamed"), other.open("renamed")):
        refuses(handle)
    beside.sync()
    del before, file
    refuses(disk.open("renamed"))
    for each in (disk, other, syncs):
        each.close()


def test_a_removed_file_takes_its_failure_with_it(tmp_path: Path) -> None:
    """Its number goes to a new file, which has failed nothing; until then it is held."""
    disk = LocalDisk(tmp_path)
    failed = [disk.open(f"failed{n}", create=True) for n in range(2)]
    for file in failed:
        fail(file)
        file.close()
    (tmp_path / "failed0").unlink()  # By somebody else: its number stays taken.
    fresh = [disk.open(f"fresh{n}", create=True) for n in range(50)]
    for file in fresh:
        file.sync()
    disk.remove("failed1")

    again = disk.open("failed1", create=True)
    again.sync()
    disk.close()


def test_failed_files_that_are_removed_leave_no_descriptor(tmp_path: Path) -> None:
    """A store on a dying disk is asked again and again."""
    disk = LocalDisk(tmp_path)
    before = descriptors()
    for _ in range(3 * HELD_MAX):
        file = disk.open("partial", create=True)
        fail(file)
        file.close()
        disk.remove("partial")
    for number in range(3 * HELD_MAX):
        file = disk.open(f"kept{number}", create=True)
        fail(file)
        file.close()

    assert descriptors() - before == HELD_MAX
    disk.close()


async def test_an_object_that_is_there_is_put_again_by_its_own_bytes_only(tmp_path: Path) -> None:
    """The process before may have failed to sync the entry: made again, the next sync covers it."""
    objects = LocalObjects(tmp_path)
    await objects.put_if_absent("d/name", (b"one", b"two"))
    before = (tmp_path / "d/name").stat().st_ino
    assert not await objects.put_if_absent("d/name", (b"onet", b"w"))
    assert not await objects.put_if_absent("d/name", (b"onetwo", b"three"))
    assert not await objects.put_if_absent("d/name", (b"ONEtwo",))
    assert (tmp_path / "d/name").stat().st_ino == before

    assert not await objects.put_if_absent("d/name", (b"onetwo",))
    assert (tmp_path / "d/name").stat().st_ino != before
    assert await objects.get("d/name") == b"onetwo"
    assert list((tmp_path / ".partial").iterdir()) == []
    objects.close()


async def test_a_store_whose_own_name_may_be_lost_stores_nothing(tmp_path: Path) -> None:
    """It was made, and the sync of the directory above failed: a power cut may take it with all objects."""
    syncs = Syncs()
    (tmp_path / "store").mkdir()
    above = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="sync failed"), syncs.of(above).failing(above, "above"):
        raise OSError(errno.EIO, "write-back failed")
    os.close(above)
    objects = LocalObjects(tmp_path / "store", syncs=syncs)

    with pytest.raises(OSError, match="failed before"):
        await objects.put_if_absent("d/name", (b"one",))
    objects.close()
    assert [held for _, held in syncs._failed.values() if held >= 0], "it is shared, and goes on without"
    syncs.close()


@pytest.mark.needs_fuse
async def test_of_two_syncs_at_a_time_none_is_believed_where_one_fails(tmp_path: Path) -> None:
    """A batch's sync beside that of a fill: one gets the error, the other 0, and both lost their bytes."""
    with mounted(tmp_path) as faults:
        disk = LocalDisk(faults.path)
        file, other = disk.open("log", create=True), disk.open("log")
        file.write_at(0, (b"x",))
        faults.set(Rule("fsync", error="EIO", times=1, delay_ms=100))
        results = await asyncio.gather(
            file.flush(), other.flush(), file.persist(0, (b"y",)), return_exceptions=True
        )

        assert [type(result) for result in results] == [OSError] * 3
        assert faults.hits() == [1]
        for each in (file, other, disk):
            each.close()


@pytest.mark.needs_fuse
def test_a_directory_that_failed_once_fails_every_later_sync(tmp_path: Path) -> None:
    """A create that was lost stays lost: make_dir, sync_dir and other disks of the process all say so."""
    with mounted(tmp_path) as faults:
        syncs = Syncs()
        disk = LocalDisk(faults.path, syncs=syncs)
        disk.make_dir("d")
        faults.set(Rule("fsyncdir", error="EIO", path="/d", times=1))
        with pytest.raises(OSError, match="sync failed"):
            disk.sync_dir("d")
        other = LocalDisk(faults.path, syncs=syncs)
        for use in (disk.sync_dir, other.sync_dir):
            with pytest.raises(OSError, match="failed before"):
                use("d")
        with pytest.raises(OSError, match="failed before"):
            disk.make_dir("d/e")

        disk.sync_dir("")
        for each in (disk, other, syncs):
            each.close()
