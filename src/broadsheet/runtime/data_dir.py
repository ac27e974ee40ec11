"""Data directory: its owner, its format, and the reasons why it may not be opened.

A directory is Broadsheet's if it holds `broadsheet.json` (format version, node, release), which is written
once, by rename. One process holds its `LOCK`. A directory that is foreign, half-written, of another format,
node or user, or in use, is refused and left untouched. If a first start was cut off before it wrote the
format file, the directory is begun again. Each role has one subdirectory of the root. Source: node.10.
"""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from broadsheet.errors import ConfigError
from broadsheet.ports import Disk, DiskLock

FORMAT_VERSION: Final = 1
"""Rises with every change that an older version could not read."""

FORMAT_FILE: Final = "broadsheet.json"
FORMAT_FILE_NEW: Final = "broadsheet.json.new"
LOCK_FILE: Final = "LOCK"
OURS_BEFORE_FORMAT: Final = (LOCK_FILE, FORMAT_FILE_NEW)
"""Files that a first start may leave before it has written the format file: nobody needs them."""
LOCKED: Final = "is locked by another process"
"""A part of the error if another process has the directory; the parent of a node searches for this text."""
LOCK_LOOKS: Final = 4
LOCK_LOOK_SECONDS: Final = 0.005
MODE: Final = 0o700
FORMAT_BYTES_MAX: Final = 4096


class Format(msgspec.Struct, frozen=True):
    """The content of `broadsheet.json`. Unknown fields pass: only a newer `format` is refused."""

    format: int
    """`FORMAT_VERSION` of the release that wrote it."""
    node: str
    """The node whose data these are."""
    version: str
    """The release that made the directory."""


def prepare(root: Path) -> None:
    """Make the data directory, private to this user, and durable.

    Raises:
        ConfigError: the path is not a directory, belongs to another user, or cannot be made.
    """
    root = root.absolute()
    missing = [path for path in root.parents if not path.exists()]
    try:
        root.mkdir(mode=MODE, parents=True, exist_ok=True)
        for path in (
            root,
            *missing,
        ):  # The root's also where it was there: who made it may have been cut off.
            with suppress(PermissionError):  # In a directory that we may not read, another user made it.
                sync_directory(path.parent)
        found = root.stat()
    except OSError as error:
        raise ConfigError(f"cannot make data directory {root}: {error.strerror}") from error
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"data directory {root} belongs to uid {found.st_uid}, not {os.geteuid()}: "
            "run as its owner, or chown it"
        )
    if found.st_mode & 0o077:
        root.chmod(MODE)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Blocking.

    Raises:
        OSError: the directory cannot be read or synced.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class DataDir:
    """A data directory that this process owns until `release`."""

    def __init__(self, form: Format, lock: DiskLock) -> None:
        self.form = form
        self._lock = lock

    def release(self) -> None:
        """Release the lock, so that another process may take the directory; idempotent."""
        self._lock.release()


def claim(disk: Disk, *, root: str, node: str, version: str) -> DataDir:
    """Take the data directory at the root of `disk`, and write its format file if it is new.

    Args:
        root: the name of the directory in messages.

    Raises:
        ConfigError: the directory may not be opened; nothing in it has changed.
    """
    names = disk.list("")
    if FORMAT_FILE not in names and any(name not in OURS_BEFORE_FORMAT for name in names):
        strangers = ", ".join([name for name in names if name not in OURS_BEFORE_FORMAT][:3])
        raise ConfigError(
            f"data directory {root} is not Broadsheet's: it holds {strangers} but no {FORMAT_FILE}. "
            "Name an empty or absent directory, or restore the missing file"
        )
    if FORMAT_FILE in names:
        _read(disk, root, node)  # Refuse before anything changes, even the lock file.
    lock = _lock(disk)
    if lock is None:
        raise ConfigError(
            f"data directory {root} {LOCKED}: stop that one first (`broadsheet down`, or the process of"
            " `broadsheet serve`)"
        )
    try:
        if not disk.exists(FORMAT_FILE):
            _write(disk, Format(format=FORMAT_VERSION, node=node, version=version))
        form = _read(disk, root, node)
    except BaseException:
        lock.release()
        raise
    return DataDir(form, lock)


@contextmanager
def usable(root: Path) -> Iterator[None]:
    """Report an error of the disk during the start as one of the data directory.

    Raises:
        ConfigError: the disk refused something; the text has its reason.
    """
    try:
        yield
    except OSError as error:
        file = f" ({error.filename})" if error.filename else ""
        raise ConfigError(
            f"a node cannot start in data directory {root}: {error.strerror or error}{file}; "
            "make room, or choose a directory that you may write"
        ) from error


def node_of(disk: Disk, root: str) -> str:
    """The node that owns the data of a data directory.

    Raises:
        ConfigError: the directory is not Broadsheet's, or its format file is damaged.
    """
    if not disk.exists(FORMAT_FILE):
        raise ConfigError(f"{root} is not a data directory: it holds no {FORMAT_FILE}")
    return _form(disk, root).node


def check_format(disk: Disk, root: str, node: str) -> None:
    """Refuse a directory that a node could not open; only looks.

    Raises:
        ConfigError: it is of another format, or of another node, or its format file is damaged.
    """
    _read(disk, root, node)


def is_locked(disk: Disk) -> bool:
    """Whether a process owns the directory right now."""
    if not disk.exists(LOCK_FILE):
        return False
    lock = _lock(disk)
    if lock is not None:
        lock.release()
    return lock is None


def _lock(disk: Disk) -> DiskLock | None:
    """The lock of a data directory; None if another process keeps it.

    `is_locked` of another process takes the lock for a moment, so one failed attempt proves nothing.
    """
    for look in range(LOCK_LOOKS):
        if look:
            time.sleep(LOCK_LOOK_SECONDS)
        with suppress(BlockingIOError):
            return disk.lock(LOCK_FILE)
    return None


def _form(disk: Disk, root: str) -> Format:
    file = disk.open(FORMAT_FILE)
    try:
        content = file.read_at(0, FORMAT_BYTES_MAX)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise ConfigError(
            f"data directory {root}: the disk cannot read {FORMAT_FILE} ({error.strerror}). Start again; if "
            "it stays so, restore this file from a backup, and nothing else"
        ) from error
    finally:
        file.close()
    try:
        return msgspec.json.decode(content, type=Format)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"data directory {root} is half-written: {FORMAT_FILE} is damaged ({error}). "
            "Restore this file from a backup, and nothing else"
        ) from error


def _read(disk: Disk, root: str, node: str) -> Format:
    form = _form(disk, root)
    if form.format < FORMAT_VERSION:
        raise ConfigError(
            f"data directory {root} has format {form.format}, older than this version's {FORMAT_VERSION}: "
            f"open it with the release that wrote it ({form.version})"
        )
    if form.format > FORMAT_VERSION:
        raise ConfigError(
            f"data directory {root} has format {form.format}, newer than this version's {FORMAT_VERSION}: "
            f"it was written by {form.version} or later; start that release"
        )
    if form.node != node:
        raise ConfigError(f"data directory {root} holds the data of node {form.node}, not of {node}")
    return form


def _write(disk: Disk, form: Format) -> None:
    file = disk.open(FORMAT_FILE_NEW, create=True)
    try:
        file.truncate(0)
        file.write_at(0, [msgspec.json.encode(form) + b"\n"])
        file.sync()
    finally:
        file.close()
    disk.rename(FORMAT_FILE_NEW, FORMAT_FILE)
    disk.sync_dir("")
