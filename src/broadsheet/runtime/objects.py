"""Objects: the local object store, where each immutable object is a file, stored whole or not at all.

An object is written to a hidden partial file, synced, and linked to its name, which fails if the name is
taken; then its directory is synced. Many processes may share a store. A crash leaves at most a partial file,
which is removed after an hour. Names are paths of `base.names`; the first segment `.partial` is reserved. The
directory is opened at the first use, in a thread. So a store that is down stops only the callers that need
it, and works again when it answers. If the directory is removed while it is open, every call fails until it
is there again with its content. It is not made anew: an empty store would say that no object exists. Nor is
it at a later start, if a `mark` tells that there was one: its file system may not be mounted yet. A store
without its mark is opened only if a file can be written there.
"""

import errno
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from broadsheet.base.names import PARTIAL_SEGMENT, check_file_name, check_prefix
from broadsheet.base.time import WallTime
from broadsheet.base.types import Buffer
from broadsheet.errors import ConfigError, Corrupt
from broadsheet.runtime.directory_tree import Tree
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.syncs import Syncs
from broadsheet.runtime.workers import Workers

PARTIAL_AGE_MAX_S: Final = 3_600
TOKEN_BYTES: Final = 16
POOL_THREADS: Final = 2
COMPARE_BYTES: Final = 1 << 20
"""How much of an object is compared at a time."""


class LocalObject(msgspec.Struct, frozen=True):
    """An entry of the local object store's listing."""

    name: str
    size_bytes: int
    modified: WallTime


class LocalObjects:
    """Objects below one directory, each a file."""

    def __init__(
        self,
        root: Path,
        *,
        syncs: Syncs | None = None,
        mark: Path | None = None,
        is_only_read: bool = False,
    ) -> None:
        """Note the store's directory; the first use makes it if absent, and opens it.

        Args:
            syncs: like that of `LocalDisk`.
            mark: a file elsewhere that is made when the store is opened; if it is there, the store was.
            is_only_read: nothing is made or removed; a directory that is no store is refused.
        """
        self._root, self._is_alone, self._mark = root, syncs is None, mark
        self._is_only_read = is_only_read
        self._syncs = Syncs() if syncs is None else syncs  # It outlives an opening that failed.
        self._workers = Workers("objects", POOL_THREADS)
        self._putting = Workers("objects-put", POOL_THREADS)
        """Puts have threads of their own: to compress and write a gibibyte takes a minute; no read waits."""
        self._opening = threading.Lock()
        self._opened: LocalDisk | None = None
        self._removed: list[LocalDisk] = []
        """Open to the end: another thread may be about to use their descriptors."""
        self._is_closed = False
        self._durable_directories: dict[str, None] = {"": None}

    @property
    def _disk(self) -> LocalDisk:
        """The object store's directory, open. Blocking.

        Raises:
            OSError: the directory cannot be made or opened now.
        """
        with self._opening:
            if self._opened is not None and self._opened.tree.is_removed():
                self._must_be_open()
                self._must_be_there()
                self._removed.append(self._opened)
                self._opened, self._durable_directories = None, {"": None}
            if self._opened is None:
                self._must_be_open()
                if self._is_only_read or (self._mark is not None and self._mark.exists()):
                    self._must_be_there()
                disk = self._open()
                try:
                    if not self._is_only_read:
                        disk.make_dir(PARTIAL_SEGMENT)
                        _sweep(disk)
                    if self._mark is not None and not self._mark.exists():
                        _try_to_write(disk)
                    self._must_be_open()  # `close` may have been called while a network directory hung.
                except BaseException:
                    disk.close()
                    raise
                self._opened = disk
                if self._mark is not None:
                    with suppress(OSError):  # On a full disk: the next opening makes it.
                        self._mark.parent.mkdir(exist_ok=True)
                        with closing(Tree(self._mark.parent, self._syncs)) as marks:  # Syncs its name, too.
                            self._mark.touch()
                            marks.sync_dir("")
            return self._opened

    def _open(self) -> LocalDisk:
        try:
            return LocalDisk(self._root, syncs=self._syncs, pool_threads=POOL_THREADS)
        except FileNotFoundError as error:  # Callers would take that for the answer that an object is absent.
            text = "the store's directory cannot be made: No such file or directory"
            raise OSError(errno.ESTALE, text, str(error.filename)) from error

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        """Store `body` durably under `name`, whole or not at all; False if the name is taken."""
        _check_object_name(name)
        return await self._putting.do(lambda: self._put_anew(name, body))

    async def get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """The bytes of [begin, end) of an object, fewer where it ends before.

        Raises:
            FileNotFoundError: there is no such object.
            Corrupt: the disk cannot read a sector of it (EIO). The store does answer, and goes on.
        """
        _check_object_name(name)
        assert 0 <= begin <= (begin if end is None else end), f"[{begin}, {end}) is no range"
        return await self._workers.do(lambda: self._get(name, begin, end))

    async def list(self, prefix: str) -> Sequence[LocalObject]:
        """Every object whose name starts with `prefix`, sorted by name."""
        check_prefix(prefix)
        return await self._workers.do(lambda: sorted(self._walk(prefix), key=lambda found: found.name))

    async def delete(self, name: str) -> None:
        """Remove an object durably; no error if it is absent."""
        _check_object_name(name)
        await self._workers.do(lambda: self._delete(name))

    def close(self) -> None:
        """Close the object store; idempotent. A thread that opens its directory now closes that by itself."""
        self._is_closed = True
        if self._opening.acquire(blocking=False):
            try:
                for disk in (*self._removed, *([self._opened] if self._opened is not None else [])):
                    disk.close()
            finally:
                self._opening.release()
        if self._is_alone:
            self._syncs.close()
        self._workers.close()
        self._putting.close()

    def _must_be_open(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, "the object store is closed", str(self._root))

    def _must_be_there(self) -> None:
        if not (self._root / PARTIAL_SEGMENT).is_dir():
            text = (
                "the store's directory was removed, or is not mounted: put it back with its content; if that"
                f" is lost, make an empty directory {PARTIAL_SEGMENT} in it"
            )
            raise OSError(errno.ESTALE, text, str(self._root))

    def _put_anew(self, name: str, body: Iterable[Buffer]) -> bool:
        """Call `_put`, and once more if a directory that we had made was removed meanwhile."""
        try:
            return self._put(name, body)
        except FileNotFoundError:
            self._durable_directories = {"": None}
            self._disk.make_dir(PARTIAL_SEGMENT)
            return self._put(name, body)

    def _put(self, name: str, body: Iterable[Buffer]) -> bool:
        directory = name.rpartition("/")[0]
        if directory not in self._durable_directories:
            self._disk.make_dir(directory)
            self._durable_directories[directory] = None
        partial = f"{PARTIAL_SEGMENT}/{os.urandom(TOKEN_BYTES).hex()}"
        file = self._disk.open(partial, create=True, exclusive=True)
        try:
            at = 0
            for piece in body:
                file.write_at(at, (piece,))
                at += len(piece)
            file.sync()
            is_new = self._link(partial, name)
            if not is_new and self._holds(name, body):
                # A process before this one may have failed to sync the directory, and no later sync
                # covers an entry that was lost so. An entry that is made again is covered.
                self._disk.rename(partial, name)
        finally:
            file.close()
            with suppress(FileNotFoundError):
                self._disk.remove(partial)
        self._disk.sync_dir(directory)  # Even if it existed: its writer may have crashed before this sync.
        return is_new

    def _link(self, partial: str, name: str) -> bool:
        tree = self._disk.tree
        with tree.parent(partial) as (source, from_name), tree.parent(name) as (target, to_name):
            try:
                os.link(from_name, to_name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
            except FileExistsError:
                return False
        return True

    def _holds(self, name: str, body: Iterable[Buffer]) -> bool:
        file = self._disk.open(name)
        try:
            at = 0
            for part in body:
                view = memoryview(part).cast("B")
                for begin in range(0, len(view), COMPARE_BYTES):
                    piece = view[begin : begin + COMPARE_BYTES]
                    if file.read_at(at, len(piece)) != piece:
                        return False
                    at += len(piece)
            return at == file.size()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False  # The disk cannot read a sector of it.
        finally:
            file.close()

    def _get(self, name: str, begin: int, end: int | None) -> bytes:
        file, stop = self._disk.open(name), end
        try:
            stop = file.size() if end is None else min(end, file.size())
            return file.read_at(begin, stop - begin) if begin < stop else b""
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise Corrupt(f"the disk cannot read [{begin}, {stop}) of {name}: {error}") from error
        finally:
            file.close()

    def _delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._disk.remove(name)
            self._disk.sync_dir(name.rpartition("/")[0])

    def _walk(self, prefix: str) -> Iterator[LocalObject]:
        tree, pending = self._disk.tree, [prefix.rpartition("/")[0]]
        while pending:
            directory = pending.pop()
            for entry in tree.scan(directory):
                name = f"{directory}/{entry.name}" if directory else entry.name
                if name == PARTIAL_SEGMENT:
                    continue
                if entry.is_directory and f"{name}/".startswith(prefix[: len(name) + 1]):
                    pending.append(name)
                elif not entry.is_directory and name.startswith(prefix):
                    yield LocalObject(name, entry.size_bytes, entry.modified)


def _sweep(disk: LocalDisk) -> None:
    """Remove old partial files of crashed writers."""
    oldest = WallTime(time.time_ns() - PARTIAL_AGE_MAX_S * 1_000_000_000)
    for entry in disk.tree.scan(PARTIAL_SEGMENT):
        if entry.modified < oldest:
            with suppress(FileNotFoundError):
                disk.remove(f"{PARTIAL_SEGMENT}/{entry.name}")


def _try_to_write(disk: LocalDisk) -> None:
    """Write a file and remove it: a store that can only be read would take no object."""
    name = f"{PARTIAL_SEGMENT}/{os.urandom(TOKEN_BYTES).hex()}"
    file = disk.open(name, create=True, exclusive=True)
    try:
        file.write_at(0, (b"x",))
        file.sync()
    finally:
        file.close()
        disk.remove(name)


def local_root(url: str, *, confined_to: Path | None = None) -> Path:
    """The directory of a `file:///directory/` URL.

    Args:
        confined_to: the directory that must contain it, so that a journal's spec, which a user writes, cannot
            reach others.

    Raises:
        ConfigError: `url` has another form, or its directory is outside of `confined_to`.
    """
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"store {url!r}: a local store is file:///directory/, without host or query")
    if not parts.path.endswith("/"):
        raise ConfigError(f"store {url!r}: its path must end in /")
    root = Path(os.path.normpath(unquote(parts.path)))
    if confined_to is not None and not root.resolve().is_relative_to(confined_to.resolve()):
        raise ConfigError(f"store {url!r} is outside {confined_to}")
    return root


def _check_object_name(name: str) -> None:
    check_file_name(name)
    assert name.split("/", 1)[0] != PARTIAL_SEGMENT, f"{PARTIAL_SEGMENT} is the store's own"
