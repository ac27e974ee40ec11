"""Directory tree: names below one root, opened without following links, so that none leads outside.

Every name is validated (`base.names`) and then opened directory by directory with O_NOFOLLOW. So neither `..`
nor a symbolic link in the tree leads outside (access.7). Blocking. The production disk and the local object
store use it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from broadsheet.base.names import check_file_name
from broadsheet.base.time import WallTime
from broadsheet.runtime.syncs import Syncs

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
ABSENT: Final = (FileNotFoundError, NotADirectoryError)
_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class DirectoryEntry(NamedTuple):
    """A regular file or a directory, as a directory names it."""

    name: str
    is_directory: bool
    size_bytes: int
    modified: WallTime


class Tree:
    """One root directory, held open."""

    def __init__(self, root: Path, syncs: Syncs) -> None:
        """Create `root` and its parents durably if absent, and keep `root` open.

        The directory above is synced even if `root` exists, as in `make_dir`.

        Raises:
            OSError: the directory cannot be made or opened.
        """
        self.root, self.syncs = root.absolute(), syncs
        missing = [path for path in (self.root, *self.root.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
            self._sync_path(path.parent)
        above = self.root.parent
        if not missing and above.stat().st_dev == self.root.stat().st_dev:  # A mount point is no entry.
            with suppress(PermissionError):  # In a directory that we may not read, another user made it.
                self._sync_path(above)
        self._fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @contextmanager
    def parent(self, name: str) -> Iterator[tuple[int, str]]:
        """The descriptor of the directory that contains `name`, and the last segment of `name`.

        Raises:
            InvalidArgument: `name` is not a clean relative path.
            FileNotFoundError: a directory on the way is absent.
            OSError: a segment on the way is not a directory, or is a link.
        """
        check_file_name(name)
        *directories, last = name.split("/")
        fd = self._walk(directories)
        try:
            yield fd, last
        finally:
            if fd != self._fd:
                os.close(fd)

    @contextmanager
    def directory(self, name: str) -> Iterator[int]:
        """The descriptor of the directory `name`; the empty name is the root. Raises as `parent`."""
        if name:
            check_file_name(name)
        fd = self._walk(name.split("/") if name else [])
        try:
            yield fd
        finally:
            if fd != self._fd:
                os.close(fd)

    def names(self, name: str) -> list[str]:
        """The sorted names in a directory; empty if it is absent."""
        try:
            with self.directory(name) as fd:
                return sorted(os.listdir(fd))  # noqa: PTH208 - a descriptor, not a path.
        except FileNotFoundError:
            return []

    def scan(self, name: str) -> list[DirectoryEntry]:
        """The files and directories of a directory, unsorted, no links or devices; empty if it is absent."""
        found = []
        with suppress(*ABSENT), self.directory(name) as fd, os.scandir(fd) as entries:
            for entry in entries:
                is_directory = entry.is_dir(follow_symlinks=False)
                if not is_directory and not entry.is_file(follow_symlinks=False):
                    continue
                with suppress(FileNotFoundError):  # It was removed during the scan.
                    status = entry.stat(follow_symlinks=False)
                    modified = WallTime(status.st_mtime_ns)
                    found.append(DirectoryEntry(entry.name, is_directory, status.st_size, modified))
        return found

    def make_dir(self, name: str) -> None:
        """Create a directory of the tree and its parents if absent, and sync each parent.

        A parent is synced even if the directory exists: the process that made it may have crashed before its
        sync.
        """
        check_file_name(name)
        segments = name.split("/")
        for count, segment in enumerate(segments):
            with self.directory("/".join(segments[:count])) as fd:
                with suppress(FileExistsError):
                    os.mkdir(segment, DIRECTORY_MODE, dir_fd=fd)
                self.syncs.sync_directory(fd, name)
        with self.directory(name):
            pass  # Fail now, not at the first use, if it is a file or a link.

    def sync_dir(self, name: str) -> None:
        """Make creates, renames and removes in a directory durable.

        Raises:
            OSError: EIO: this sync failed, or an earlier sync of this directory did.
        """
        with self.directory(name) as fd:
            self.syncs.sync_directory(fd, name)

    def remove(self, name: str) -> None:
        """Remove a file. Durable after `sync_dir`."""
        with self.parent(name) as (parent, last):
            self.syncs.removed(parent, last)

    def free(self) -> int:
        """Bytes that a process without privileges may still write."""
        status = os.fstatvfs(self._fd)
        return status.f_bavail * status.f_frsize

    def size(self) -> int:
        """Bytes in use, or free for a process without privileges."""
        status = os.fstatvfs(self._fd)
        return (status.f_blocks - status.f_bfree + status.f_bavail) * status.f_frsize

    def is_removed(self) -> bool:
        """Whether the root was removed, or its server knows it no more, while it was open here."""
        try:
            return os.fstat(self._fd).st_nlink == 0
        except OSError:  # ESTALE of a network file system, for one.
            return True

    def close(self) -> None:
        """Close the root; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _walk(self, segments: list[str]) -> int:
        fd = self._fd
        for segment in segments:
            try:
                below = os.open(segment, _DIRECTORY_FLAGS, dir_fd=fd)
            finally:
                if fd != self._fd:
                    os.close(fd)
            fd = below
        return fd

    def _sync_path(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.syncs.sync_directory(fd, str(path))
        finally:
            os.close(fd)
