"""Disk: the production disk: files below one root, written with pwritev and made durable with fdatasync.

`persist` takes one hop: it writes and syncs on a thread of the file's directory, so that a log, which is a
directory, has one writer thread (node.10). `flush` and `run` use a pool that a log never waits for. Positions
and lengths are in bytes. Payloads are not copied.

A file or directory whose sync failed has failed for good: every concurrent or later write and sync of it, by
any handle of this process, raises EIO (`runtime.syncs`). ENOSPC and EDQUOT of a write do not fail the file.
If a sync meets them, the file fails, and they become EIO. So ENOSPC always means "refused; the rest of the
file is unchanged".
"""

import asyncio
import errno
import fcntl
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from broadsheet.base.time import SECOND
from broadsheet.base.types import Buffer
from broadsheet.ports import NO_SPACE
from broadsheet.runtime.blocks import begin_writing, reserve_blocks
from broadsheet.runtime.directory_tree import ABSENT, FILE_MODE, Tree
from broadsheet.runtime.rereading import Rereading
from broadsheet.runtime.syncs import Inode, Syncs
from broadsheet.runtime.workers import Workers

T = TypeVar("T")

IOV_MAX: Final = os.sysconf("SC_IOV_MAX") if "SC_IOV_MAX" in os.sysconf_names else 1024
ZEROS_BYTES: Final = 1 << 20
WRITERS_MAX: Final = 8
"""Directories with a writer thread of their own, in order of first use; later ones share `SHARED_WRITERS`."""
SHARED_WRITERS: Final = 2
POOL_THREADS: Final = 4
WITNESSES: Final = 8
"""How many places of a file, and how many files, are asked whether the disk reads anything."""
PAGE_BYTES: Final = 4096


class LocalFile:
    """An open file of a `LocalDisk`."""

    def __init__(
        self, fd: int, name: str, *, inode: Inode, writer: Workers, pool: Workers, disk: "LocalDisk"
    ) -> None:
        """Take over the descriptor `fd`."""
        self._fd, self._name, self._inode, self._writer, self._pool = fd, name, inode, writer, pool
        self._disk = disk
        self._writing = inode.failing(fd, name, NO_SPACE)
        self._on_way = 0
        self._is_closed = False

    @property
    def name(self) -> str:
        """The name that it was opened by."""
        return self._name

    def size(self) -> int:
        """Length in bytes."""
        return os.fstat(self._fd).st_size

    def read_at(self, at: int, length: int) -> bytes:
        """The bytes of [at, at + length) of a file, fewer only at its end.

        Raises:
            OSError: as `runtime.rereading` says: in a thread, EIO means a bad sector.
        """
        try:
            return self._read(at, length)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            elsewhere = self._disk.elsewhere(self._name, at, at + length)
            return self._disk.rereading.again(error, partial(self._read, at, length), elsewhere)

    def _read(self, at: int, length: int) -> bytes:
        first = os.pread(self._fd, length, at)
        if len(first) == length or not first:
            return first
        parts, got = [first], len(first)
        while got < length and (more := os.pread(self._fd, length - got, at + got)):
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def write_at(self, at: int, parts: Sequence[Buffer]) -> None:
        """Write `parts` back to back from `at` on, all of them."""
        with self._writing:
            _write_all(self._fd, at, parts)

    def truncate(self, length: int) -> None:
        """Cut or extend with zeros to `length` bytes. Durable after the next sync."""
        with self._writing:
            os.ftruncate(self._fd, length)

    def allocate(self, length: int) -> None:
        """Write zeros over [0, length), so that a later overwrite journals no metadata."""
        zeros = bytes(min(ZEROS_BYTES, length))
        for at in range(0, length, ZEROS_BYTES):
            self.write_at(at, (memoryview(zeros)[: length - at],))

    def reserve(self, begin: int, end: int) -> bool:
        """Have blocks given to [begin, end) beyond the end of the file, whose length stays (ADR 0192)."""
        assert 0 <= begin < end, f"{self._name}: nothing to reserve in [{begin}, {end})"
        return reserve_blocks(self._fd, begin, end)

    def sync(self) -> None:
        """Make everything written before this call durable."""
        self._inode.sync(self._fd, self._name, os.fdatasync)

    async def persist(self, at: int, parts: Sequence[Buffer]) -> None:
        """`write_at`, then `sync`, in one hop to the directory's writer."""
        await self._away(self._writer, partial(self._write_and_sync, at, parts))

    async def flush(self) -> None:
        """`sync`, on the pool."""
        await self._away(self._pool, self.sync)

    async def write_back(self, begin: int, end: int) -> None:
        """Have the kernel begin to write [begin, end) to the disk, on the pool."""
        await self._away(self._pool, lambda: begin_writing(self._fd, begin, end))

    async def uncache(self, begin: int, end: int) -> None:
        """Give the pages of [begin, end) that are clean back to the kernel, on the pool."""
        assert begin < end, "a length of 0 would be the rest of the file"
        advice = os.POSIX_FADV_DONTNEED
        await self._away(self._pool, lambda: os.posix_fadvise(self._fd, begin, end - begin, advice))

    def close(self) -> None:
        """Release the file without a sync, when running operations have ended. Idempotent."""
        self._is_closed = True
        self._close_when_idle()

    def _write_and_sync(self, at: int, parts: Sequence[Buffer]) -> None:
        self.write_at(at, parts)
        self.sync()

    async def _away(self, workers: Workers, work: Callable[[], None]) -> None:
        assert not self._is_closed, f"{self._name} is closed"
        self._on_way += 1
        try:
            await workers.do(work)
        finally:
            self._on_way -= 1
            self._close_when_idle()

    def _close_when_idle(self) -> None:
        """Close if asked to and idle: the number of a closed descriptor may be given to another file."""
        if self._is_closed and self._on_way == 0 and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LocalLock:
    """An flock on a lock file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        """Release the lock; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LocalDisk:
    """One directory tree of this machine."""

    def __init__(self, root: Path, *, syncs: Syncs | None = None, pool_threads: int = POOL_THREADS) -> None:
        """Keep the disk's `root` open; it is made if absent.

        Args:
            syncs: the process's record of failed syncs, shared by its disks; None to begin a new one.

        Raises:
            OSError: the directory cannot be made or opened.
        """
        self._is_alone = syncs is None
        self.tree = Tree(root, Syncs() if syncs is None else syncs)
        self._pool = Workers("disk-pool", pool_threads)
        self._shared = Workers("disk-writer-shared", SHARED_WRITERS)
        self._writers: dict[str, Workers] = {}
        self.rereading = Rereading(now=time.monotonic_ns, pause=_pause)
        self._opened: deque[str] = deque(maxlen=WITNESSES)
        """The names that were opened last: where the disk is asked whether it reads anything."""

    def open(self, name: str, *, create: bool = False, exclusive: bool = False) -> LocalFile:
        """Open a file of this machine's disk for reading and writing.

        Raises:
            FileNotFoundError: the file is absent and `create` is false.
            FileExistsError: the file exists and `exclusive` is true.
            OSError: `name` is a link, a directory, or otherwise not a regular file.
        """
        assert create or not exclusive, "exclusive says how to create"
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        flags |= (os.O_CREAT if create else 0) | (os.O_EXCL if exclusive else 0)
        with self.tree.parent(name) as (parent, last):
            fd = os.open(last, flags, FILE_MODE, dir_fd=parent)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", name)
        inode = self.tree.syncs.of(fd)
        self._opened.append(name)
        return LocalFile(fd, name, inode=inode, writer=self._writer_of(name), pool=self._pool, disk=self)

    def exists(self, name: str) -> bool:
        """Whether a file or directory of that name is there."""
        try:
            with self.tree.parent(name) as (parent, last):
                os.stat(last, dir_fd=parent, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, directory: str) -> list[str]:
        """The sorted names in `directory`, the root where it is empty; none where it is absent."""
        return self.tree.names(directory)

    def make_dir(self, name: str) -> None:
        """Create the directory and its parents where absent, and sync each parent."""
        self.tree.make_dir(name)

    def rename(self, old: str, new: str) -> None:
        """Replace `new` by `old` atomically. Durable after `sync_dir` of both directories."""
        with self.tree.parent(old) as (source, from_name), self.tree.parent(new) as (target, to_name):
            os.rename(from_name, to_name, src_dir_fd=source, dst_dir_fd=target)

    def remove(self, name: str) -> None:
        """Remove a file. Durable after `sync_dir`."""
        self.tree.remove(name)

    def remove_dir(self, name: str) -> None:
        """Remove an empty directory. Durable after `sync_dir` of the one above it."""
        with self.tree.parent(name) as (parent, last):
            os.rmdir(last, dir_fd=parent)

    def sync_dir(self, directory: str) -> None:
        """Make creates, renames and removes in `directory`, the root where it is empty, durable."""
        self.tree.sync_dir(directory)

    def free(self) -> int:
        """Bytes that may still be written."""
        return self.tree.free()

    def size(self) -> int:
        """Bytes in use on the root's file system, or free there."""
        return self.tree.size()

    def lock(self, name: str) -> LocalLock:
        """Take the lock file `name`, created where absent, without waiting.

        Raises:
            BlockingIOError: another process, or another holder in this one, has it.
        """
        with self.tree.parent(name) as (parent, last):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(last, flags, FILE_MODE, dir_fd=parent)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return LocalLock(fd)

    async def run(self, work: Callable[[], T]) -> T:
        """Do blocking `work` on the pool."""
        return await self._pool.do(work)

    def elsewhere(self, name: str, begin: int, end: int) -> Iterator[Callable[[], bytes]]:
        """Reads of the disk, past the page cache, that do not touch [begin, end) of `name`.

        First other blocks of that file, because they are of the same device; then of files opened lately. One
        that cannot be opened is no read that works: a disk that is away may not open files either.
        """
        for each in dict.fromkeys([name, *list(self._opened)]):
            try:
                with self.tree.parent(each) as (parent, last):
                    fd = os.open(last, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=parent)
            except ABSENT:
                continue  # It is gone: that tells nothing of reads.
            except OSError as error:
                yield partial(_unopened, error)
                continue
            try:
                size = os.fstat(fd).st_size
                places = [size * n // WITNESSES // PAGE_BYTES * PAGE_BYTES for n in range(WITNESSES)]
                for at in dict.fromkeys(places if each == name else places[:1]):
                    if at < size and (each != name or at >= end or at + PAGE_BYTES <= begin):
                        yield partial(_read_uncached, fd, at)
            finally:
                os.close(fd)

    def close(self) -> None:
        """Close the root and end the threads; open files stay usable for blocking calls. Idempotent."""
        self.tree.close()
        if self._is_alone:
            self.tree.syncs.close()
        for workers in (self._pool, self._shared, *self._writers.values()):
            workers.close()

    def _writer_of(self, name: str) -> Workers:
        directory = name.rpartition("/")[0]
        if directory not in self._writers and len(self._writers) >= WRITERS_MAX:
            return self._shared
        return self._writers.setdefault(directory, Workers(f"disk-writer-{len(self._writers)}", 1))


def _pause(length: int) -> bool:
    """Wait, unless this is the thread of a loop, which must not."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        time.sleep(length / SECOND)
        return True
    return False


def _unopened(error: OSError) -> bytes:
    raise error


def _read_uncached(fd: int, at: int) -> bytes:
    """A page as the device has it, if it is clean in the page cache.

    The whole file leaves the cache: the kernel keeps a page that is only a part of a larger folio.
    """
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return os.pread(fd, PAGE_BYTES, at)


def _write_all(fd: int, at: int, parts: Sequence[Buffer]) -> None:
    for start in range(0, len(parts), IOV_MAX):
        chunk = parts if len(parts) <= IOV_MAX else parts[start : start + IOV_MAX]
        length = sum(map(len, chunk))
        written = os.pwritev(fd, chunk, at) if length else 0
        if written < length:
            _write_rest(fd, at, chunk, written)
        at += length


def _write_rest(fd: int, at: int, parts: Sequence[Buffer], written: int) -> None:
    """Go on after a short write of `written` bytes of `parts`."""
    left = [memoryview(part) for part in parts]
    while True:
        at += written
        skipped = 0
        while skipped < len(left) and written >= len(left[skipped]):
            written -= len(left[skipped])
            skipped += 1
        left = list(islice(left, skipped, None))
        if not left:
            return
        left[0] = left[0][written:]
        written = os.pwritev(fd, left, at)
        if written == 0:
            raise OSError(errno.EIO, f"the kernel takes no byte at {at}")
