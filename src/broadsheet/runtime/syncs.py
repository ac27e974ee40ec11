"""Syncs: which inodes have failed a write or sync. After a failure no later sync of the inode is trusted.

An inode is known by device and number. The kernel reports a failed write-back once for each open file, and
marks the pages clean. Every other sync of that inode, concurrent or later, through any descriptor, then
returns 0 although the bytes never reached the disk (log.16). So syncs of one inode run one at a time, and all
handles share its state. This holds for files and directories. Calls block, and may come from any thread.
    inode: TRUSTED --failed write or sync--> FAILED, until the process ends or the last name is removed
This module does not know names or contents. Source: fsync(2), errseq in Linux 4.13; ADR 0160.
"""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

HELD_MAX: Final = 16
"""Failed inodes whose descriptor is kept, so that no new file gets their number."""

Key = tuple[int, int]


class Inode:
    """The state of one file or directory, shared by all its handles in this process."""

    def __init__(self, syncs: "Syncs", key: Key) -> None:
        self._syncs, self._key = syncs, key
        self._turn = Lock()
        self.failed_by: OSError | None = None
        """The write or sync that has failed."""

    def sync(self, fd: int, name: str, call: Callable[[int], None]) -> None:
        """Make all writes through any descriptor durable, by `call` (fsync or fdatasync) on `fd`.

        Raises:
            OSError: EIO: this sync failed, or an earlier one, or one that ran while this one waited.
        """
        with self._turn, self.failing(fd, name):
            call(fd)

    def failing(self, fd: int, name: str, harmless: tuple[int, ...] = ()) -> "_Failing":
        """Mark the inode as failed for good after any error of the block except the `harmless` ones."""
        return _Failing(self, fd, name, harmless)

    def fail(self, error: OSError, fd: int) -> None:
        """Trust no later sync: `error` is of a write or a sync."""
        self.failed_by = error
        self._syncs.keep(self, self._key, fd)


class _Failing:
    """Blocks that write or sync one inode through one descriptor. It has no state, and is entered again."""

    __slots__ = ("_fd", "_harmless", "_inode", "_name")

    def __init__(self, inode: Inode, fd: int, name: str, harmless: tuple[int, ...]) -> None:
        self._inode, self._fd, self._name, self._harmless = inode, fd, name, harmless

    def __enter__(self) -> None:
        if (error := self._inode.failed_by) is not None:
            text = f"failed before ({error}), and no later sync is trusted: restart this process"
            raise OSError(errno.EIO, text, self._name)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError) and error.errno not in self._harmless:
            self._inode.fail(error, self._fd)
            raise OSError(errno.EIO, f"write or sync failed: {error}", self._name) from error


class Syncs:
    """The inodes of one process; every disk and object store of the process shares them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._inodes: WeakValueDictionary[Key, Inode] = WeakValueDictionary()
        self._failed: dict[Key, tuple[Inode, int]] = {}

    def of(self, fd: int) -> Inode:
        """The inode that `fd` has open."""
        found = os.fstat(fd)
        key = found.st_dev, found.st_ino
        with self._lock:
            inode = self._inodes.get(key)
            if inode is None:
                inode = self._inodes[key] = Inode(self, key)
            return inode

    def sync_directory(self, fd: int, name: str) -> None:
        """Make creates, renames and removes in a directory durable.

        Raises:
            OSError: EIO, as of a file.
        """
        self.of(fd).sync(fd, name, os.fsync)

    def keep(self, inode: Inode, key: Key, fd: int) -> None:
        """Remember a failed inode, and hold its number."""
        with self._lock:
            held = -1
            if sum(kept >= 0 for _, kept in self._failed.values()) < HELD_MAX:
                with suppress(OSError):  # No descriptor is left: at worst a new file is distrusted.
                    held = os.dup(fd)
            self._failed[key] = inode, held

    def removed(self, parent: int, last: str) -> None:
        """Unlink `last` in the directory `parent`; with its last name an inode is forgotten."""
        if not self._failed:
            os.unlink(last, dir_fd=parent)
            return
        found = os.stat(last, dir_fd=parent, follow_symlinks=False)
        os.unlink(last, dir_fd=parent)
        if found.st_nlink == 1:
            self._forget((found.st_dev, found.st_ino))

    def close(self) -> None:
        """Let go of the descriptors; what failed stays failed. Idempotent."""
        with self._lock:
            held = [fd for _, fd in self._failed.values() if fd >= 0]
            self._failed = {key: (inode, -1) for key, (inode, _) in self._failed.items()}
        for fd in held:
            os.close(fd)

    def _forget(self, key: Key) -> None:
        with self._lock:
            self._inodes.pop(key, None)
            _, held = self._failed.pop(key, (None, -1))
        if held >= 0:
            os.close(held)
