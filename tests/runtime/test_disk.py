"""What the production disk keeps beyond its port's words."""

import asyncio
import errno
import os
import threading
import tracemalloc
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path

import pytest

from broadsheet.runtime import disk as disk_module
from broadsheet.runtime.disk import WRITERS_MAX, LocalDisk
from broadsheet.runtime.syncs import Syncs
from broadsheet.runtime.workers import Workers


def writer_threads() -> set[threading.Thread]:
    """Those alive; by identity, for a disk that was closed before may have left one of the same name."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("disk-writer")}


async def test_closing_under_a_write_waits_for_it(tmp_path: Path) -> None:
    """A descriptor closed under a write may be another file's by the time the kernel gets to it."""
    disk = LocalDisk(tmp_path)
    file = disk.open("log", create=True)
    task = asyncio.ensure_future(file.persist(0, (b"x" * 4_000_000,)))
    await asyncio.sleep(0)
    file.close()
    other = disk.open("other", create=True)
    await task

    assert other.size() == 0
    assert (tmp_path / "log").stat().st_size == 4_000_000
    with pytest.raises(AssertionError, match="log is closed"):
        await file.persist(0, (b"y",))
    other.close()
    disk.close()


async def test_a_directory_has_one_writer_and_threads_are_bounded(tmp_path: Path) -> None:
    """A log, which is a directory, is written by one thread; a thousand journals start few."""
    disk = LocalDisk(tmp_path)
    before = writer_threads()
    for number in range(WRITERS_MAX + 10):
        disk.make_dir(f"d{number}")
        for name in ("one", "two"):
            file = disk.open(f"d{number}/{name}", create=True)
            await file.persist(0, (b"x",))
            file.close()
    started = writer_threads() - before

    assert (
        sum(1 for thread in started if thread.name.startswith("disk-writer-shared"))
        == disk_module.SHARED_WRITERS
    )
    assert len(started) == WRITERS_MAX + disk_module.SHARED_WRITERS
    disk.close()


async def test_an_error_of_the_write_reaches_the_caller_of_persist(tmp_path: Path) -> None:
    """It happens on another thread."""
    disk = LocalDisk(tmp_path)
    file = disk.open("log", create=True)
    read_only = os.open(tmp_path / "log", os.O_RDONLY)
    os.dup2(read_only, file._fd)
    with pytest.raises(OSError, match="write or sync failed") as caught:
        await file.persist(0, (b"x",))

    assert caught.value.errno == errno.EIO
    with pytest.raises(OSError, match="failed before"):
        await file.flush()
    os.close(read_only)
    file.close()
    disk.close()


def test_files_and_directories_are_the_owners_alone(tmp_path: Path) -> None:
    """Journals hold what their users wrote."""
    disk = LocalDisk(tmp_path / "root")
    disk.make_dir("d")
    disk.open("d/log", create=True).close()

    for path, mode in (("", 0o700), ("d", 0o700), ("d/log", 0o600)):
        assert (tmp_path / "root" / path).stat().st_mode & 0o777 == mode
    disk.close()


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    """Opening a pipe would wait for its other end, on the loop."""
    os.mkfifo(tmp_path / "pipe")
    disk = LocalDisk(tmp_path)
    with pytest.raises(OSError, match="not a regular file"):
        disk.open("pipe")
    disk.close()


async def test_work_off_the_loop_ends_before_its_cancelled_caller_goes_on() -> None:
    """Cancelled twice, even: the work holds what it was lent."""
    workers = Workers("test", 1)
    begun, go, log = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        go.wait()
        log.append("work")

    async def caller() -> None:
        try:
            await workers.do(work)
        finally:
            log.append("caller")

    task = asyncio.ensure_future(caller())
    await asyncio.get_running_loop().run_in_executor(None, begun.wait)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert log == ["work", "caller"]
    workers.close()
    workers.close()


async def test_an_odd_error_of_the_work_does_not_hang_its_caller() -> None:
    """A future refuses a StopIteration; the caller must hear of it all the same."""
    workers = Workers("test", 1)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await workers.do(lambda: next(iter(())))
    workers.close()


async def test_persist_does_not_copy_its_parts(tmp_path: Path) -> None:
    """A batch of 1 MiB and more goes to the kernel from where it is."""
    disk = LocalDisk(tmp_path)
    file = disk.open("log", create=True)
    slab = memoryview(bytearray(16 << 20))
    parts = [slab[at : at + (1 << 20)] for at in range(0, len(slab), 1 << 20)]
    await file.persist(0, parts)
    tracemalloc.start()
    try:
        await file.persist(0, parts)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 256 << 10
    file.close()
    disk.close()


def test_workers_outlive_a_loop() -> None:
    """A loop may end while its work is on the way; the next loop's work must not wait for ever."""
    workers = Workers("test", 1)
    go = threading.Event()

    async def abandon() -> None:
        work = workers.do(go.wait)
        work.send(None)  # It is in the queue, and nobody will ever resume it.
        abandoned.append(work)

    abandoned: list[Coroutine[object, object, bool]] = []
    asyncio.run(abandon())
    go.set()

    assert asyncio.run(workers.do(lambda: 42)) == 42
    workers.close()
    with suppress(RuntimeError):
        abandoned[0].close()  # Its cancellation asks for the loop that is closed.


def test_a_scan_names_every_file_whatever_stands_among_them(tmp_path: Path) -> None:
    """A link or a pipe that somebody left must not hide what comes behind it."""
    for n in range(8):
        (tmp_path / f"link{n}").symlink_to(tmp_path)
        (tmp_path / f"file{n}").touch()
        os.mkfifo(tmp_path / f"pipe{n}")
        (tmp_path / f"directory{n}").mkdir()
    disk = LocalDisk(tmp_path)

    found = sorted((each.name, each.is_directory) for each in disk.tree.scan(""))
    assert found == sorted([
        *((f"file{n}", False) for n in range(8)),
        *((f"directory{n}", True) for n in range(8)),
    ])  # fmt: skip
    disk.close()


def test_what_a_disk_shares_outlives_it(tmp_path: Path) -> None:
    """The process knows of failed syncs in one place: the first disk that closes must not forget them."""
    syncs = Syncs()
    one, two = LocalDisk(tmp_path / "a", syncs=syncs), LocalDisk(tmp_path / "b", syncs=syncs)
    file = two.open("f", create=True)
    with pytest.raises(OSError, match="disk is on fire"), syncs.of(file._fd).failing(file._fd, "f"):
        raise OSError(errno.EIO, "disk is on fire")
    file.close()
    del file
    one.close()
    assert [fd >= 0 for _, fd in syncs._failed.values()] == [True], "no new file gets its number"

    again = two.open("f")
    with pytest.raises(OSError, match="failed before"):
        again.sync()
    again.close()
    two.close()
    syncs.close()


async def test_a_kernel_that_takes_no_byte_is_an_error_and_no_endless_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's thread would spin for ever, and its caller wait."""
    disk = LocalDisk(tmp_path)
    file = disk.open("f", create=True)
    takes = iter([1, 2, 0, 0])
    monkeypatch.setattr(os, "pwritev", lambda *_: next(takes, 1))

    with pytest.raises(OSError, match="takes no byte at 3"):
        file.write_at(0, [b"ab", b"cd"])
    monkeypatch.undo()
    file.close()
    disk.close()


async def test_a_closed_disk_leaves_no_descriptor(tmp_path: Path) -> None:
    """Clients, tests and simulations open many in one process."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only how many.
    for _ in range(5):
        disk = LocalDisk(tmp_path)
        disk.make_dir("a/b")
        file = disk.open("a/b/f", create=True)
        await file.persist(0, [b"x"])
        file.close()
        disk.close()

    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_reserved_blocks_are_given_back_when_the_file_is_cut_to_its_length(tmp_path: Path) -> None:
    """A closed fragment waits for its upload: it must not hold more of the disk than its content."""
    disk = LocalDisk(tmp_path)
    file = disk.open("spool", create=True)
    file.write_at(0, (bytes(100_000),))
    file.sync()
    before = (tmp_path / "spool").stat().st_blocks

    assert file.reserve(100_000, 100_000 + (4 << 20))
    assert ((tmp_path / "spool").stat().st_blocks - before) * 512 >= 4 << 20
    assert file.size() == 100_000
    file.truncate(100_000)
    assert (tmp_path / "spool").stat().st_blocks == before
    file.close()
    disk.close()


def test_a_reservation_that_the_file_system_refuses_is_no_error(tmp_path: Path) -> None:
    """Not every file system has blocks to give; a hint that fails must not end a node (W5)."""
    disk = LocalDisk(tmp_path)
    file = disk.open("spool", create=True)

    assert not file.reserve(0, 1 << 62)
    file.write_at(0, (b"abc",))
    file.sync()
    assert file.read_at(0, 3) == b"abc"
    file.close()
    disk.close()


async def test_the_size_of_a_disk_is_what_is_used_and_what_is_left(tmp_path: Path) -> None:
    """An operator reads beside it how much is free: what is kept for root belongs to neither."""
    disk = LocalDisk(tmp_path)
    status = os.statvfs(tmp_path)
    used = (status.f_blocks - status.f_bfree) * status.f_frsize
    size, free = disk.tree.size(), disk.tree.free()
    disk.close()

    assert abs(size - free - used) < (1 << 30), "others write to this disk meanwhile"
    assert size <= status.f_blocks * status.f_frsize
