"""Provider `file` under cancellation and failing disks: one writer at a time, and no outcome unheard."""

import asyncio
import errno
import threading
from pathlib import Path

import msgspec
import pytest

from broadsheet.base.checksum import crc32c
from broadsheet.control.file import NAME, FileMetastore
from broadsheet.control.port import Versioned
from broadsheet.errors import Corrupt, StoreUnhealthy, UnexpectedVersion
from broadsheet.runtime.disk import LocalDisk
from simulator.disk import SimDisk
from simulator.disk_state import DiskState
from simulator.entropy import Draws
from tests.support.faulty import Fault, FaultyDisk


class HeldDisk(FaultyDisk):
    """A disk whose renames wait, in their thread, until they are let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalDisk(root))
        self.reached, self.go = threading.Event(), threading.Event()
        self.go.set()

    def hold(self) -> None:
        self.reached.clear()
        self.go.clear()

    def rename(self, old: str, new: str) -> None:
        self.reached.set()
        assert self.go.wait(30)
        super().rename(old, new)


async def until(reached: threading.Event) -> None:
    await asyncio.get_running_loop().run_in_executor(None, reached.wait, 30)
    assert reached.is_set()


@pytest.fixture
def crashes() -> list[BaseException]:
    return []


async def opened(disk: FaultyDisk, crashes: list[BaseException]) -> FileMetastore:
    return await FileMetastore.open(disk, b"founded", crash=crashes.append)


async def test_a_cancelled_write_keeps_its_lock_until_its_thread_has_ended(
    tmp_path: Path, crashes: list[BaseException]
) -> None:
    """control.4: two threads in one file killed the node in 13 of 13 tries, or left the loser's document.

    Cancelled twice: the caller's task may be asked again while it waits.
    """
    disk = HeldDisk(tmp_path)
    metastore = await opened(disk, crashes)
    disk.hold()
    first = asyncio.ensure_future(metastore.compare_and_set(1, b"first"))
    await until(disk.reached)
    first.cancel()
    second = asyncio.ensure_future(metastore.compare_and_set(1, b"second"))
    for _ in range(10):
        await asyncio.sleep(0)
    first.cancel()
    for _ in range(10):
        await asyncio.sleep(0)

    assert not first.done()
    assert not second.done()
    disk.go.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    with pytest.raises(UnexpectedVersion, match="expected version 1, it is 2"):
        await second
    assert await metastore.read() == Versioned(b"first", 2)
    assert await (await opened(FaultyDisk(LocalDisk(tmp_path)), crashes)).read() == Versioned(b"first", 2)
    assert crashes == []


async def test_a_write_that_nobody_awaits_any_more_still_ends_the_node_where_its_sync_fails(
    tmp_path: Path, crashes: list[BaseException]
) -> None:
    """A failed sync ends the process, also if the client that asked for it has gone."""
    disk = HeldDisk(tmp_path)
    metastore = await opened(disk, crashes)
    disk.hold()
    disk.plan(Fault("sync_dir", errno.EIO, times=1))
    task = asyncio.ensure_future(metastore.compare_and_set(1, b"first"))
    await until(disk.reached)
    task.cancel()
    disk.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert [type(error) for error in crashes] == [OSError]
    assert (await metastore.read()).version == 1


async def test_a_full_disk_refuses_and_changes_nothing(tmp_path: Path, crashes: list[BaseException]) -> None:
    """The old document stays, and the next write finds it."""
    disk = FaultyDisk(LocalDisk(tmp_path))
    metastore = await opened(disk, crashes)
    disk.plan(Fault("write_at", errno.ENOSPC, times=1, partly=True))
    with pytest.raises(StoreUnhealthy, match="no space"):
        await metastore.compare_and_set(1, b"first" * 1000)

    assert await metastore.read() == Versioned(b"founded", 1)
    assert (await metastore.compare_and_set(1, b"second")).version == 2
    assert crashes == []


@pytest.mark.parametrize("call", ["open", "rename"])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
async def test_a_node_without_descriptors_refuses_and_lives_on(
    tmp_path: Path, crashes: list[BaseException], call: str, code: int
) -> None:
    """Any error but a full disk ended the node, also one that came before anything had changed."""
    disk = FaultyDisk(LocalDisk(tmp_path))
    metastore = await opened(disk, crashes)
    disk.plan(Fault(call, code, times=1))
    with pytest.raises(StoreUnhealthy, match="no descriptor"):
        await metastore.compare_and_set(1, b"first")

    assert await metastore.read() == Versioned(b"founded", 1)
    assert (await metastore.compare_and_set(1, b"second")).version == 2
    assert crashes == []


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
async def test_a_document_in_its_place_waits_for_a_descriptor_to_be_made_durable(
    tmp_path: Path, crashes: list[BaseException], code: int
) -> None:
    """The directory is opened to be synced: without a descriptor for that one moment the node ended."""
    disk = FaultyDisk(LocalDisk(tmp_path))
    metastore = await opened(disk, crashes)
    disk.plan(Fault("sync_dir", code, times=3))

    assert (await metastore.compare_and_set(1, b"first")).version == 2
    assert disk.faults.faults_hit == {"sync_dir": 3}
    assert await metastore.read() == Versioned(b"first", 2)
    assert crashes == []


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_start_serves_no_version_that_only_the_page_cache_has(
    is_full: bool, crashes: list[BaseException]
) -> None:
    """Killed between rename and directory sync, read after the restart, and gone after a power cut.

    Found by `sim metastore-file`: the version was then written once more, with another document.
    """
    for seed in range(40):
        disk_state = DiskState(Draws(seed, "medium"))
        metastore = await FileMetastore.open(SimDisk(disk_state), b"founded", crash=crashes.append)
        await metastore.compare_and_set(1, b"second")
        faulty = FaultyDisk(SimDisk(disk_state))
        dying = await FileMetastore.open(faulty, b"", crash=crashes.append)
        faulty.plan(Fault("sync_dir", errno.EIO))
        with pytest.raises(OSError, match="planned"):
            await dying.compare_and_set(2, b"third")
        again = FaultyDisk(SimDisk(disk_state))
        again.space = 0 if is_full else None
        served = await (await FileMetastore.open(again, b"", crash=crashes.append)).read()
        disk_state.power_cut()

        after = await FileMetastore.open(SimDisk(disk_state), b"", crash=crashes.append)
        assert await after.read() == served, seed


async def test_a_document_that_the_disk_cannot_read_is_damaged(crashes: list[BaseException]) -> None:
    """The start named neither the file nor a way out: `Input/output error; make room`."""
    disk = FaultyDisk(SimDisk())
    await opened(disk, crashes)
    disk.plan(Fault("read_at", errno.EIO, NAME))

    with pytest.raises(Corrupt, match=r"metastore/document: .* restore this file.* or move it away"):
        await opened(disk, crashes)


async def test_a_document_of_a_newer_shape_is_told_from_damage(crashes: list[BaseException]) -> None:
    """Its checksum is right, and the start ended with the decoder's own error."""
    disk = SimDisk()
    disk.make_dir("metastore")
    body = msgspec.msgpack.encode({"format": 2, "pages": []})
    file = disk.open(NAME, create=True)
    file.write_at(0, [crc32c(body).to_bytes(4, "little"), body])
    file.close()

    with pytest.raises(Corrupt, match="another format than 1"):
        await FileMetastore.open(disk, b"founded", crash=crashes.append)
    assert disk.open(NAME).read_at(4, 100) == body, "nothing was changed"
