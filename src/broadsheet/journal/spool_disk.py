"""Spool disk: the spool files of a node's journals, of which only some are open at a time.

Counts are descriptors. A file is OPEN <-> RESTING: the descriptor of an idle file is closed, and opened again
on the next use. So ten thousand journals need only as many descriptors as are in use. Only a file without
unsynced bytes rests, because the kernel may report a write error to nobody while no descriptor is open; a
file with unsynced bytes is synced first, in the background. The loop and threads use the files; the lock is
held only for short looks and while a file is closed. Source: ADR 0142.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from itertools import islice
from threading import Lock
from typing import Any, Final, Protocol

from broadsheet.base.time import MILLISECOND, Duration, in_seconds
from broadsheet.base.types import Buffer
from broadsheet.ports import NO_DESCRIPTOR, Disk, File
from broadsheet.runtime.scope import Crash

FLUSHES_MAX: Final = 4
"""Files that are synced at a time, so that they may rest."""
GROWS_AFTER: Final = 64
"""After this many opens without a refusal, one more idle file may stay open."""
WAIT_STEP: Final = Duration(5 * MILLISECOND)
"""The longest pause before waiting callers try again."""


class Opener(Protocol):
    """Opens spool files: a disk, or a `SpoolDisk`."""

    def open(self, name: str, *, create: bool = False, exclusive: bool = False) -> File:
        """See `Disk.open`."""
        ...


class SpoolDisk:
    """Opens spool files, and keeps at most `open_max` idle ones open."""

    def __init__(
        self,
        disk: Disk,
        *,
        open_max: int,
        busy_max: int,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        crash: Crash,
    ) -> None:
        """Open spool files of `disk`.

        Args:
            open_max: how many files stay open while they are idle.
            busy_max: how many files may be open at all; one more is refused with EMFILE, as by the system.
            spawn: runs a background task that syncs files.
            crash: ends the process after a failed sync.
        """
        assert 1 <= open_max <= busy_max, "at least one file can be open"
        self.disk, self.open_max, self.busy_max = disk, open_max, busy_max
        self._open_max_wanted, self._opened_count = open_max, 0
        self._spawn, self._crash = spawn, crash
        self.lock = Lock()
        self._synced: dict[SpoolHandle, None] = {}
        """Open files without unsynced bytes, by last use. Only these may rest."""
        self._unsynced: dict[SpoolHandle, None] = {}
        """Open files with unsynced bytes, by last use."""
        self._flushing: dict[SpoolHandle, None] = {}
        self._waiting: deque[Callable[[], bool]] = deque()
        self._is_serving = False

    @property
    def is_crowded(self) -> bool:
        """Whether more files are open than `open_max`."""
        return self.open_count > self.open_max

    @property
    def open_count(self) -> int:
        """How many files are open."""
        return len(self._synced) + len(self._unsynced)

    def open(self, name: str, *, create: bool = False, exclusive: bool = False) -> "SpoolHandle":
        """Like `Disk.open`, but the spool file may rest.

        Its descriptor is closed while it is idle and opened again on the next use.

        Raises:
            OSError: as `Disk.open`. EMFILE, ENFILE: no file can rest now.
        """
        return SpoolHandle(self, name, self._opened(name, create=create, exclusive=exclusive))

    def must_wait(self, file: File) -> bool:
        """Whether callers wait for a descriptor, and a use of `file` would take one before them."""
        return bool(self._waiting) and not (isinstance(file, SpoolHandle) and file.is_open)

    def wait(self, try_again: Callable[[], bool]) -> None:
        """Call `try_again` when a descriptor may be free, until it returns True; callers wait in line."""
        self._waiting.append(try_again)
        self._flush_some()
        if not self._is_serving:
            self._is_serving = True
            self._spawn(self._serve())

    async def _serve(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(in_seconds(WAIT_STEP))
                self._flush_some()
                self._admit()
        finally:
            self._is_serving = False

    def _admit(self) -> None:
        while self._waiting and self._waiting[0]():
            self._waiting.popleft()

    def _opened(self, name: str, *, create: bool, exclusive: bool) -> File:
        if self.open_count >= self.busy_max:
            self._rest(down_to=self.open_max)
            if self.open_count >= self.busy_max:
                self._flush_some()
                raise OSError(errno.EMFILE, f"{self.open_count} spool files are open", name)
        try:
            file = self.disk.open(name, create=create, exclusive=exclusive)
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR or not self.relieve():
                raise
            return self.disk.open(name, create=create, exclusive=exclusive)
        self._opened_count += 1
        if self._opened_count >= GROWS_AFTER:
            self._opened_count = 0
            self.open_max = min(self.open_max + 1, self._open_max_wanted)
        return file

    def relieve(self) -> bool:
        """Let half of the spool files rest, because no descriptor was free, and keep fewer open a while.

        Returns:
            Whether a descriptor is free now. Otherwise some may be soon: unsynced files are being synced.
        """
        self._opened_count = 0
        self.open_max = max(1, min(self.open_max, self.open_count // 2))
        has_room = self._rest(down_to=self.open_max)
        self._flush_some()
        return has_room

    def used(self, handle: "SpoolHandle") -> None:
        """Note that `handle` is open and was used just now. Under the lock."""
        self.forget(handle)
        (self._unsynced if handle.is_unsynced else self._synced)[handle] = None

    def forget(self, handle: "SpoolHandle") -> None:
        """Note that `handle` is no longer open. Under the lock."""
        self._synced.pop(handle, None)
        self._unsynced.pop(handle, None)

    def let_rest(self, files: Iterable[File]) -> bool:
        """If too many files are open, sync these, so that they may rest; returns whether it did. Blocking."""
        if not self.is_crowded:
            return False
        for each in files:
            each.sync()
        self.make_room()
        return True

    def make_room(self) -> None:
        """Let files above `open_max` rest, those used longest ago first; begin to sync unsynced ones."""
        if self.is_crowded:
            self._rest(down_to=self.open_max)
            if self.is_crowded:
                self._flush_some()

    def _rest(self, *, down_to: int) -> bool:
        """Close idle, synced spool files, those used longest ago first; whether any was closed."""
        closed = 0
        with self.lock:
            for handle in list(self._synced):
                if self.open_count <= down_to:
                    break
                closed += handle.rest()
        return closed > 0

    def _flush_some(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return  # In a thread, which cannot spawn tasks: the loop's next use tries again.
        with self.lock:
            waiting = (each for each in self._unsynced if each not in self._flushing)
            oldest = list(islice(waiting, FLUSHES_MAX - len(self._flushing)))
        for handle in oldest:
            self._flushing[handle] = None
            self._spawn(self._flush(handle))

    async def _flush(self, handle: "SpoolHandle") -> None:
        """Sync a spool file, so that it may rest."""
        try:
            await handle.flush()
        except OSError as error:
            if error.errno not in (*NO_DESCRIPTOR, errno.EBADF):
                self._crash(error)
            return
        finally:
            self._flushing.pop(handle, None)
        self.make_room()
        self._admit()


class SpoolHandle:
    """A spool file that may rest; implements the `File` port."""

    def __init__(self, pool: SpoolDisk, name: str, file: File) -> None:
        self._pool, self._name = pool, name
        self._file: File | None = file
        self._use_count, self._written, self._synced = 1, 0, 0
        self._is_closed = False
        with pool.lock:
            pool.used(self)
        pool.make_room()
        self._use_count = 0  # Not before: among unsynced files it would be the one that rests.

    @property
    def name(self) -> str:
        """The name by which the file was opened."""
        return self._name

    @property
    def is_open(self) -> bool:
        """Whether the file has a descriptor now."""
        return self._file is not None

    @property
    def is_unsynced(self) -> bool:
        """Whether bytes were written since the last sync began."""
        return self._written != self._synced

    def rest(self) -> bool:
        """Close the spool's descriptor if it is idle and synced; whether it did. Under the lock."""
        file = self._file
        if file is None or self._use_count or self.is_unsynced:
            return False
        self._file = None
        self._pool.forget(self)
        file.close()
        return True

    def size(self) -> int:
        """See `File.size`."""
        with self as file:
            return file.size()

    def read_at(self, at: int, length: int) -> bytes:
        """See `File.read_at`."""
        with self as file:
            return file.read_at(at, length)

    def write_at(self, at: int, parts: Sequence[Buffer]) -> None:
        """See `File.write_at`."""
        with self as file:
            try:
                file.write_at(at, parts)
            finally:
                self._written += 1  # Not before: a sync that ends meanwhile does not cover it.

    def truncate(self, length: int) -> None:
        """See `File.truncate`."""
        with self as file:
            try:
                file.truncate(length)
            finally:
                self._written += 1

    def allocate(self, length: int) -> None:
        """See `File.allocate`."""
        with self as file:
            try:
                file.allocate(length)
            finally:
                self._written += 1

    def reserve(self, begin: int, end: int) -> bool:
        """See `File.reserve`. Nothing of it must be synced."""
        with self as file:
            return file.reserve(begin, end)

    def sync(self) -> None:
        """Like `File.sync`, but does nothing if everything is synced."""
        if self.is_unsynced:
            with self as file:
                written = self._written
                file.sync()
                self._synced = max(self._synced, written)

    async def persist(self, at: int, parts: Sequence[Buffer]) -> None:
        """See `File.persist`."""
        with self as file:
            self._written += 1
            written = self._written
            await file.persist(at, parts)
            self._synced = max(self._synced, written)

    async def flush(self) -> None:
        """Like `File.flush`, but does nothing if everything is synced."""
        if self.is_unsynced:
            with self as file:
                written = self._written
                await file.flush()
                self._synced = max(self._synced, written)

    async def write_back(self, begin: int, end: int) -> None:
        """Like `File.write_back`, but does nothing if the file rests: then it is synced."""
        await self._hint(lambda file: file.write_back(begin, end))

    async def uncache(self, begin: int, end: int) -> None:
        """Like `File.uncache`, but does nothing if the file rests."""
        await self._hint(lambda file: file.uncache(begin, end))

    async def _hint(self, give: Callable[[File], Awaitable[None]]) -> None:
        """Give a hint about the spool file if it is open; it need not be opened for one."""
        with self._pool.lock:
            self._use_count += 1
            file = self._file
        try:
            if file is not None:
                await give(file)
        finally:
            with self._pool.lock:
                self._use_count -= 1
            if self._is_closed:
                self._close_when_idle()

    def close(self) -> None:
        """See `File.close`. While a thread uses the file, its descriptor stays open until that ends."""
        with self._pool.lock:
            self._is_closed = True
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        """Close a spool file if asked to and idle: another file may get a closed descriptor's number."""
        with self._pool.lock:
            if not self._is_closed or self._use_count:
                return
            file, self._file = self._file, None
            self._pool.forget(self)
        if file is not None:
            file.close()

    def __enter__(self) -> File:
        """The open spool file, which does not rest until the block ends.

        Raises:
            OSError: EMFILE, ENFILE: the file rested, and cannot be opened now. Nothing changed.
        """
        with self._pool.lock:
            self._use_count += 1
            file = None if self._is_closed else self._file
        if file is not None:
            return file
        try:
            return self._awake()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_error: object) -> None:
        """End a block that uses the file."""
        with self._pool.lock:
            self._use_count -= 1
            if self._file is not None:
                self._pool.used(self)
        if self._is_closed:
            self._close_when_idle()

    def _awake(self) -> File:
        if self._is_closed:
            raise OSError(errno.EBADF, "the spool file is closed", self._name)
        file = self._pool._opened(self._name, create=False, exclusive=False)  # noqa: SLF001 - its other half.
        with self._pool.lock:
            if self._file is None and not self._is_closed:
                self._file = file
                self._pool.used(self)
                mine: File | None = file
            else:
                mine = self._file
        if mine is not file:
            file.close()  # Another thread opened it first, or it was closed meanwhile.
        if mine is None:
            raise OSError(errno.EBADF, "the spool file was closed meanwhile", self._name)
        self._pool.make_room()
        return mine
