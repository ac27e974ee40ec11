"""Disk: the `Disk` port over a simulated disk, for one life of one node, or for a test on any event loop.

Blocking calls take no time. `persist`, `flush` and `run` take a seeded time on the simulated loop; what `run`
does may go on beside the loop, with other work between its calls (`threads.py`). A task that is cancelled
meanwhile waits until they have ended, as it would for a thread. After a life has ended its calls raise
`Gone`, and do not reach the disk. The port checks its callers: the parts of a `persist` must not change
before it returns.
"""

import asyncio
import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar, cast
from zlib import crc32

from broadsheet.base.buggify import buggify
from broadsheet.base.types import Buffer
from broadsheet.ports import DiskLock, File
from broadsheet.runtime.rereading import Rereading
from broadsheet.runtime.workers import Lent
from simulator.disk_state import DiskState, Inode, Resize, Write, parent
from simulator.loop import SimFuture, SimLoop
from simulator.moments import Gone
from simulator.threads import Threads
from simulator.world import Life

T = TypeVar("T")

WRITE_NS: Final = 20_000
SYNC_NS: Final = 150_000
LATE_NS: Final = 30_000_000
"""What a thread that finds no core takes longer."""
SECOND: Final = 1_000_000_000
BESIDE: Final = 3
"""One in so many pieces of blocking work goes on beside the loop: each costs switches of real threads."""


class _SimLent(Lent[T], SimFuture[T]):
    """Work of a simulated thread: who waits for it waits to its end."""


class SimDisk:
    """One node's disk, as one of its processes sees it."""

    def __init__(
        self,
        disk_state: DiskState | None = None,
        *,
        life: Life | None = None,
        power_cut: Callable[[], None] | None = None,
        reach: Callable[[str], None] | None = None,
    ) -> None:
        """Open the disk.

        Args:
            life: whose port this is; None in a test without a world.
            power_cut: what cuts the power of this node when `CRASH_IN_IO` strikes.
            reach: told of each moment `disk.OPERATION`.
        """
        self.state = disk_state if disk_state is not None else DiskState()
        self._life, self._power_cut, self._reach = life, power_cut, reach
        self._owner = life if life is not None else object()
        self._threads: Threads | None = None
        self._waited_ns = 0
        self._is_in_work = False
        self.rereading = Rereading(now=self._now, pause=self._pause)

    def open(self, name: str, *, create: bool = False, exclusive: bool = False) -> File:
        """Open a file; see the port."""
        self.enter("open", name)
        disk_state = self.state
        if name in disk_state.directories:
            raise IsADirectoryError(errno.EISDIR, "is a directory", name)
        inode = disk_state.files.get(name)
        if inode is None:
            if not create or parent(name) not in disk_state.directories:
                raise FileNotFoundError(errno.ENOENT, "no such file", name)
            inode = disk_state.create(name)
        elif exclusive:
            raise FileExistsError(errno.EEXIST, "file exists", name)
        return SimFile(self, name, inode)

    def exists(self, name: str) -> bool:
        """Whether the name is there."""
        self.gate()
        return name in self.state.files or name in self.state.directories

    def list(self, directory: str) -> list[str]:
        """The sorted names in a directory."""
        self.gate()
        names = [*self.state.files, *self.state.directories]
        return sorted(name.rpartition("/")[2] for name in names if name and parent(name) == directory)

    def make_dir(self, name: str) -> None:
        """Make a directory, durably."""
        self.enter("make_dir", name)
        self.state.make_dir(name)

    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        self.enter("rename", old, new)
        if old not in self.state.files or parent(new) not in self.state.directories:
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", old, None, new)
        self.state.rename(old, new)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self.enter("remove", name)
        if name not in self.state.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        self.state.remove(name)

    def remove_dir(self, name: str) -> None:
        """Remove an empty directory; see the port."""
        self.enter("remove_dir", name)
        if name not in self.state.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", name)
        if self.list(name):
            raise OSError(errno.ENOTEMPTY, "directory not empty", name)
        self.state.remove_dir(name)

    def sync_dir(self, directory: str) -> None:
        """Make the directory's changes durable."""
        self.enter("sync_dir", directory)
        if directory not in self.state.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        self.state.sync_dir(directory)

    def free(self) -> int:
        """Bytes that may still be written."""
        self.gate()
        return 0 if self.state.health.is_full else max(0, self.state.quota_bytes - self.state.used())

    def size(self) -> int:
        """Bytes that it may hold."""
        self.gate()
        return self.state.quota_bytes

    def lock(self, name: str) -> DiskLock:
        """Take a lock file, which dies with the life."""
        self.gate()
        holder = self.state.locks.get(name)
        if holder is not None and not (isinstance(holder, Life) and holder.is_dead):
            raise BlockingIOError(errno.EWOULDBLOCK, "another process holds the lock", name)
        if name not in self.state.files:
            self.state.create(name)
        self.state.locks[name] = self._owner
        return _Lock(self.state, name, self._owner)

    async def run(self, work: Callable[[], T]) -> T:
        """Do blocking work, as if in a thread; it syncs, so that a slow disk makes it slow."""
        disk_state, loop = self.state, asyncio.get_running_loop()
        delay_ns = disk_state.draws.below(WRITE_NS) + disk_state.health.slow_ns
        if self._life is None or not isinstance(loop, SimLoop):
            return await self.later(delay_ns, partial(self._in_work, work))
        if disk_state.draws.below(BESIDE) and not disk_state.health.may_fail_reads:
            return await self.later(delay_ns, work)
        return await self._beside(self._life, loop, delay_ns, work)

    def _beside(self, life: Life, loop: SimLoop, delay_ns: int, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Do `work` in a thread, which gives the turn back now and then."""
        future: Lent[T] = _SimLent(loop=loop)
        self._threads = loop.threads
        thread = loop.threads.take()
        thread.begin(work, self.state.draws)
        life.on_end.append(thread.end)

        def go() -> None:
            thread.step()
            if thread.parked_ns is not None:
                loop.call_later(thread.parked_ns / SECOND, go)
                return
            life.on_end.remove(thread.end)
            loop.threads.give(thread)
            error = thread.error
            if isinstance(error, Exception):
                future.set_exception(error)
            elif error is not None:
                raise error
            else:
                future.set_result(cast(T, thread.result))

        loop.call_later(delay_ns / SECOND, go)
        return future

    # -- for the file

    def _now(self) -> int:
        """World time; in a test without a world, as long as its work has waited so far."""
        if self._life is None or self._life.clock is None:
            return self._waited_ns
        return self._life.clock.now()

    def _pause(self, length: int) -> bool:
        if self._threads is not None and self._threads.running is not None:
            return self._threads.running.pause(length)
        self._waited_ns += length if self._is_in_work else 0
        return self._is_in_work

    def _in_work(self, work: Callable[[], T]) -> T:
        """Do work that may wait, in a test without a world: no time passes meanwhile."""
        self._is_in_work = True
        try:
            return work()
        finally:
            self._is_in_work = False

    def gate(self) -> None:
        """Stop a dead process."""
        if self._threads is not None and self._threads.running is not None:
            self._threads.running.calls()
        if self._life is not None and self._life.is_dead:
            raise Gone(repr(self._life))

    def enter(self, operation: str, *what: object) -> None:
        """Begin an operation that changes something: it may be the one in which the power fails."""
        self.gate()
        disk_state = self.state
        disk_state.note(operation, *what)
        if self._power_cut is not None and disk_state.health.power_fails():
            self._power_cut()
            raise Gone(f"power cut in {operation} of {what}")
        if self._reach is not None:
            self._reach(f"disk.{operation}")

    def later(self, delay_ns: int, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Do `work` after a while, unless this life has ended by then."""
        loop = asyncio.get_running_loop()
        future: Lent[T] = _SimLent(loop=loop) if isinstance(loop, SimLoop) else Lent(loop=loop)

        def do() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - it belongs to whoever awaits.
                if not future.done():
                    future.set_exception(error)
                return
            if not future.done():
                future.set_result(result)

        if self._life is None:
            loop.call_soon(do)
        else:
            late_ns = LATE_NS if buggify("disk.thread_late") else 0
            loop.call_later((delay_ns + late_ns) / SECOND, do)
        return future


class _Lock:
    """A held lock file."""

    def __init__(self, disk_state: DiskState, name: str, owner: object) -> None:
        self._disk_state, self._name, self._owner = disk_state, name, owner

    def release(self) -> None:
        """Give it up."""
        if self._disk_state.locks.get(self._name) is self._owner:
            del self._disk_state.locks[self._name]


class SimFile:
    """An open file."""

    def __init__(self, disk: SimDisk, name: str, inode: Inode) -> None:
        self._disk, self._name, self._inode = disk, name, inode
        self._is_closed = False

    @property
    def name(self) -> str:
        """The name that it was opened by."""
        return self._name

    def size(self) -> int:
        """Length in bytes."""
        self._check()
        return len(self._inode.view)

    def read_at(self, at: int, length: int) -> bytes:
        """Bytes of the view."""
        self._check()
        assert at >= 0, f"{self._name}: {at} is no place in a file"
        try:
            return self._read(at, length)
        except OSError as error:
            return self._disk.rereading.again(
                error, partial(self._read, at, length), (partial(self._read, at, 0),)
            )

    def _read(self, at: int, length: int) -> bytes:
        if self._disk.state.health.fails_read():
            raise OSError(errno.EIO, "read failed", self._name)
        return bytes(memoryview(self._inode.view)[at : at + length])

    def write_at(self, at: int, parts: Sequence[Buffer]) -> None:
        """Write into the page cache."""
        self._check()
        self._write(at, b"".join(parts))

    def truncate(self, length: int) -> None:
        """Set the length."""
        self._check()
        self._disk.enter("truncate", self._name, length)
        self._reserve(length - len(self._inode.view))
        self._disk.state.change(self._inode, Resize(length))

    def allocate(self, length: int) -> None:
        """Make the file `length` zero bytes long."""
        self._check()
        self._disk.enter("allocate", self._name, length)
        size = len(self._inode.view)
        self._reserve(length - size)
        if length < size:
            self._disk.state.change(self._inode, Write(0, bytes(length)))
            return
        self._disk.state.change(self._inode, Resize(0))
        self._disk.state.change(self._inode, Resize(length))

    def reserve(self, begin: int, end: int) -> bool:
        """Changes nothing that could be seen; half of the file systems cannot."""
        self._check()
        assert 0 <= begin < end, f"{self._name}: nothing to reserve in [{begin}, {end})"
        return bool(self._inode.sequence % 2)

    def sync(self) -> None:
        """Make everything written so far durable."""
        self._check()
        self._sync(self._inode.sequence)

    async def persist(self, at: int, parts: Sequence[Buffer]) -> None:
        """Write, then sync."""
        self._check()
        content = b"".join(parts)
        disk, disk_state = self._disk, self._disk.state

        def write() -> int:
            if b"".join(parts) != content:
                raise AssertionError(f"{self._name}: a buffer changed while it was being written")
            self._write(at, content)
            return self._inode.sequence

        def do() -> None:
            sequence = write()
            self._sync(sequence)

        draws = disk_state.draws
        if draws.below(4) and not disk_state.health.short_writes:
            await disk.later(SYNC_NS + draws.below(SYNC_NS) + disk_state.health.slow_ns, do)
            return
        sequence = await disk.later(draws.below(WRITE_NS), write)
        await disk.later(
            SYNC_NS + draws.below(SYNC_NS) + disk_state.health.slow_ns, lambda: self._sync(sequence)
        )

    async def flush(self) -> None:
        """Sync, off the loop."""
        self._check()
        disk_state, sequence = self._disk.state, self._inode.sequence
        delay = SYNC_NS + disk_state.draws.below(SYNC_NS) + disk_state.health.slow_ns
        await self._disk.later(delay, lambda: self._sync(sequence))

    async def write_back(self, begin: int, end: int) -> None:
        """Changes nothing: a power cut leaves any of the bytes that are not synced, hinted at or not."""

    async def uncache(self, begin: int, end: int) -> None:
        """There is no cache that could be told from the disk while no power is cut."""

    def close(self) -> None:
        """Release it."""
        self._is_closed = True

    def _check(self) -> None:
        self._disk.gate()
        if self._is_closed:
            raise ValueError(f"{self._name} is closed")

    def _reserve(self, more: int) -> None:
        disk_state = self._disk.state
        if more > 0 and (disk_state.health.refuses() or disk_state.used() + more > disk_state.quota_bytes):
            raise OSError(errno.ENOSPC, "no space left on device", self._name)

    def _write(self, at: int, content: bytes) -> None:
        assert at >= 0, f"{self._name}: {at} is no place in a file"
        self._disk.enter("write", self._name, at, len(content), crc32(content))
        disk_state, inode = self._disk.state, self._inode
        growth = max(0, at + len(content) - len(inode.view))
        try:
            self._reserve(growth)
        except OSError:
            part = disk_state.draws.below(len(content) + 1) if disk_state.draws.below(2) else 0
            if part and not disk_state.health.is_full:
                disk_state.change(inode, Write(at, content[:part]))
            raise
        if len(content) > 1 and disk_state.health.took("short_writes"):
            part = 1 + disk_state.draws.below(len(content) - 1)
            disk_state.change(inode, Write(at, content[:part]))
            at, content = at + part, content[part:]
            self._disk.enter("write", self._name, at, len(content))
        disk_state.change(inode, Write(at, content))

    def _sync(self, through: int) -> None:
        self._disk.enter("sync", self._name)
        self._disk.state.sync(self._inode, through)
        self._disk.state.note("synced", self._name)
