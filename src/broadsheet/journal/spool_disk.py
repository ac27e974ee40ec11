"""Spool disk: the spool files of a node's journals, of which only some are open at a time.

Counts are descriptors. A file is OPEN <-> RESTING: it rests while nobody uses it, and is opened again by its
next use. So ten thousand journals cost as many descriptors as are in use. Only a file that has nothing
unsynced rests: a write error that the kernel meets while no descriptor is open may be told to nobody. One
that has is synced first, in the background. Files are used by the loop and by threads; the lock is held for a
look, and while a file is closed. Source: ADR 0142.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final, Protocol

from broadsheet.base.time import MILLISECOND, Duration, in_seconds
from broadsheet.base.types import Buffer
from broadsheet.ports import Disk, File
from broadsheet.runtime.scope import Crash

NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
"""The process, or the system, may open no more files now: nothing changed, and it passes."""
FLUSHES_MAX: Final = 4
"""Files that are synced at a time so that they may rest."""
GROWS_AFTER: Final = 64
"""Files that are opened without a refusal before one more may stay open again."""
WAIT_STEP: Final = Duration(5 * MILLISECOND)
"""Pause before those who wait try again, where no file came to rest meanwhile."""


class Opener(Protocol):
    """What makes open files: a disk, or a `SpoolDisk`."""

    def open(self, name: str, *, create: bool = False, exclusive: bool = False) -> File:
        """As `Disk.open`."""
        ...


class SpoolDisk:
    """Spool files, `open_max` of them open."""

    def __init__(
        self,
        disk: Disk,
        *,
        open_max: int,
        busy_max: int,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        crash: Crash,
    ) -> None:
        """Open files of `disk`.

        Args:
            open_max: how many stay open while they are idle.
            busy_max: how many may be open at all; above, opening one is refused as by the system (EMFILE).
            spawn: runs what syncs files in the background.
            crash: ends the process after a sync that failed.
        """
        assert 1 <= open_max <= busy_max, "somebody must be able to write"
        self.disk, self.open_max, self.busy_max = disk, open_max, busy_max
        self._open_max_wanted, self._opened_count = open_max, 0
        self._spawn, self._crash = spawn, crash
        self.lock = Lock()
        self._open: dict[SpoolHandle, None] = {}  # By last use.
        self._flushing: dict[SpoolHandle, None] = {}
        self._waiting: deque[Callable[[], bool]] = deque()
        self._is_serving = False

    @property
    def is_crowded(self) -> bool:
        """Whether more files are open than stay so while they are idle."""
        return len(self._open) > self.open_max

    @property
    def open_count(self) -> int:
        """Files that are open."""
        return len(self._open)

    def open(self, name: str, *, create: bool = False, exclusive: bool = False) -> "SpoolHandle":
        """As `Disk.open`; the file that it gives may rest.

        Raises:
            OSError: as `Disk.open`. EMFILE, ENFILE: no file can rest now.
        """
        return SpoolHandle(self, name, self._opened(name, create=create, exclusive=exclusive))

    def must_wait(self, file: File) -> bool:
        """Whether others wait for a descriptor, and `file` would take one before them."""
        return bool(self._waiting) and not (isinstance(file, SpoolHandle) and file.is_open)

    def wait(self, try_again: Callable[[], bool]) -> None:
        """Have `try_again` called when a file may be open again, in turn, until it returns True."""
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
        if len(self._open) >= self.busy_max:
            self._rest(down_to=self.open_max)
            if len(self._open) >= self.busy_max:
                self._flush_some()
                raise OSError(errno.EMFILE, f"{len(self._open)} spool files are open", name)
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
        """Somebody found no descriptor: let half of the files rest, and keep fewer until it goes well again.

        Returns:
            Whether a descriptor is free now. Else some may be soon: what is unsynced is being synced.
        """
        self._opened_count = 0
        self.open_max = max(1, min(self.open_max, len(self._open) // 2))
        has_room = self._rest(down_to=self.open_max)
        self._flush_some()
        return has_room

    def used(self, handle: "SpoolHandle") -> None:
        """`handle` is open and was used just now. Under the lock."""
        self._open.pop(handle, None)
        self._open[handle] = None

    def forget(self, handle: "SpoolHandle") -> None:
        """`handle` is open no more. Under the lock."""
        self._open.pop(handle, None)

    def make_room(self) -> None:
        """Let the files that were used longest ago rest, as many as are too many; sync what must be first."""
        if len(self._open) > self.open_max:
            self._rest(down_to=self.open_max)
            if len(self._open) > self.open_max:
                self._flush_some()

    def _rest(self, *, down_to: int) -> bool:
        """Close idle, synced files, the oldest first; whether any was closed."""
        closed = 0
        with self.lock:
            for handle in list(self._open):
                if len(self._open) <= down_to:
                    break
                closed += handle.rest()
        return closed > 0

    def _flush_some(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return  # In a thread: the loop's next use looks again.
        with self.lock:
            unsynced = [each for each in self._open if each.is_unsynced and each not in self._flushing]
        for handle in unsynced[: FLUSHES_MAX - len(self._flushing)]:
            self._flushing[handle] = None
            self._spawn(self._flush(handle))

    async def _flush(self, handle: "SpoolHandle") -> None:
        """Sync one, so that it may rest."""
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
    """A file that may rest. The `File` port."""

    def __init__(self, pool: SpoolDisk, name: str, file: File) -> None:
        self._pool, self._name = pool, name
        self._file: File | None = file
        self._use_count = self._written = self._synced = 0
        self._is_closed = False
        with pool.lock:
            pool.used(self)
        pool.make_room()

    @property
    def name(self) -> str:
        """The name that it was opened by."""
        return self._name

    @property
    def is_open(self) -> bool:
        """Whether it has a descriptor now."""
        return self._file is not None

    @property
    def is_unsynced(self) -> bool:
        """Whether something was written since the last sync began."""
        return self._written != self._synced

    def rest(self) -> bool:
        """Close the descriptor where nothing needs it; whether that is so. Under the pool's lock."""
        file = self._file
        if file is None or self._use_count or self.is_unsynced:
            return False
        self._file = None
        self._pool.forget(self)
        file.close()
        return True

    def size(self) -> int:
        """As `File.size`."""
        with self._using() as file:
            return file.size()

    def read_at(self, at: int, length: int) -> bytes:
        """As `File.read_at`."""
        with self._using() as file:
            return file.read_at(at, length)

    def write_at(self, at: int, parts: Sequence[Buffer]) -> None:
        """As `File.write_at`."""
        with self._using() as file:
            self._written += 1
            file.write_at(at, parts)

    def truncate(self, length: int) -> None:
        """As `File.truncate`."""
        with self._using() as file:
            self._written += 1
            file.truncate(length)

    def allocate(self, length: int) -> None:
        """As `File.allocate`."""
        with self._using() as file:
            self._written += 1
            file.allocate(length)

    def sync(self) -> None:
        """As `File.sync`; nothing where all is synced."""
        if self.is_unsynced:
            with self._using() as file:
                written = self._written
                file.sync()
                self._synced = max(self._synced, written)

    async def persist(self, at: int, parts: Sequence[Buffer]) -> None:
        """As `File.persist`."""
        with self._using() as file:
            self._written += 1
            written = self._written
            await file.persist(at, parts)
            self._synced = max(self._synced, written)

    async def flush(self) -> None:
        """As `File.flush`; nothing where all is synced."""
        if self.is_unsynced:
            with self._using() as file:
                written = self._written
                await file.flush()
                self._synced = max(self._synced, written)

    async def uncache(self, begin: int, end: int) -> None:
        """As `File.uncache`; nothing where it rests."""
        with self._pool.lock:
            self._use_count += 1
            file = self._file
        try:
            if file is not None:
                await file.uncache(begin, end)
        finally:
            with self._pool.lock:
                self._use_count -= 1

    def close(self) -> None:
        """As `File.close`."""
        with self._pool.lock:
            self._is_closed = True
            file, self._file = self._file, None
            self._pool.forget(self)
        if file is not None:
            file.close()

    @contextmanager
    def _using(self) -> Iterator[File]:
        """The open file, which does not rest meanwhile.

        Raises:
            OSError: EMFILE, ENFILE: it rested, and cannot be opened now. Nothing changed.
        """
        with self._pool.lock:
            self._use_count += 1
            file = self._file
        try:
            yield file if file is not None else self._awake()
        finally:
            with self._pool.lock:
                self._use_count -= 1
                if self._file is not None:
                    self._pool.used(self)

    def _awake(self) -> File:
        if self._is_closed:
            raise OSError(errno.EBADF, "the file is closed", self._name)
        file = self._pool._opened(self._name, create=False, exclusive=False)  # noqa: SLF001 - its other half.
        with self._pool.lock:
            if self._file is None and not self._is_closed:
                self._file = file
                self._pool.used(self)
                mine: File | None = file
            else:
                mine = self._file
        if mine is not file:
            file.close()  # A thread was first, or it was closed meanwhile.
        if mine is None:
            raise OSError(errno.EBADF, "the file was closed meanwhile", self._name)
        self._pool.make_room()
        return mine
