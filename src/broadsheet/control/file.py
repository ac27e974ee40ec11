"""File: the provider for a single node, which keeps the metastore in one file that is replaced whole.

A file is a crc32c (4 bytes, little endian), then MessagePack of (format, version, document). A write goes to
a second file, which is synced and renamed over the first; then the directory is synced. So a crash leaves the
old version or the new one. There is one write at a time, and a cancelled caller waits until its own is
complete: two writers of the same files could destroy both versions. It does not coordinate with other
processes: the data directory's lock does. Source: design/control.md control.2, control.4.
"""

import asyncio
import errno
from typing import Final

import msgspec

from broadsheet.base.checksum import crc32c
from broadsheet.base.time import MILLISECOND, Duration, in_seconds
from broadsheet.control.core.value import oversize
from broadsheet.control.port import Versioned
from broadsheet.control.size import SizeWarning
from broadsheet.errors import Corrupt, StoreUnhealthy, TooLarge, UnexpectedVersion
from broadsheet.observe.logs import Logger
from broadsheet.ports import NO_DESCRIPTOR, NO_ROOM, NO_SPACE, Disk
from broadsheet.runtime.failpoints import passed
from broadsheet.runtime.scope import Crash, to_the_end

DIRECTORY: Final = "metastore"
NAME: Final = "metastore/document"
REMEDY: Final = (
    "restore this file, and nothing else, from a backup; or move it away, and the metastore begins anew "
    "without its content"
)
"""Of a document that is damaged."""
FORMAT: Final = 1
DESCRIPTOR_RETRY: Final = Duration(50 * MILLISECOND)
"""Pause between attempts to sync the directory while no file descriptor is free."""


class _Content(msgspec.Struct, frozen=True, array_like=True):
    format: int
    version: int
    document: bytes


class FileMetastore:
    """A `Metastore` in one file."""

    def __init__(self, disk: Disk, current: Versioned, *, crash: Crash, logger: Logger | None = None) -> None:
        self._disk, self._current, self._crash = disk, current, crash
        self._size = SizeWarning(logger)
        self._size.saw(len(current.document))
        self._writing = asyncio.Lock()

    @classmethod
    async def open(
        cls, disk: Disk, founding: bytes, *, crash: Crash, logger: Logger | None = None
    ) -> "FileMetastore":
        """Read the metastore's file, or write `founding` as version 1 if there is none.

        A version that was read is written again before it is served. A process that was killed between the
        rename and the sync of the directory leaves a version that only the page cache has.

        Raises:
            Corrupt: the file is damaged, or of another format. Nothing was changed.
        """
        current = await disk.run(lambda: _read(disk))
        if current is None:
            current = Versioned(founding, 1)
            await disk.run(lambda: _write(disk, Versioned(founding, 1)))
        else:
            found = current
            await disk.run(lambda: _write_again(disk, found))
        return cls(disk, current, crash=crash, logger=logger)

    async def read(self) -> Versioned:
        """Like `Metastore.read`."""
        return self._current

    async def compare_and_set(self, version: int, document: bytes) -> Versioned:
        """Like `Metastore.compare_and_set`."""
        if text := oversize(document):
            raise TooLarge(text)
        async with self._writing:
            if version != self._current.version:
                raise UnexpectedVersion(
                    f"metastore: expected version {version}, it is {self._current.version}"
                )
            return await to_the_end(self._replace(Versioned(bytes(document), version + 1)))

    async def _replace(self, following: Versioned) -> Versioned:
        """Write `following` as the metastore's file, and serve it. No cancellation may interrupt this."""
        try:
            await self._disk.run(lambda: _replace(self._disk, following))
        except OSError as error:
            if error.errno in NO_ROOM:
                text = (
                    f"no space, or no descriptor, for the metastore's document: {error}; nothing was changed"
                )
                raise StoreUnhealthy(text) from error
            self._crash(error)  # After a failed sync nobody knows what the disk holds.
            raise
        while True:
            try:
                await self._disk.run(lambda: _make_durable(self._disk))
            except OSError as error:
                if error.errno in NO_DESCRIPTOR:  # Nothing was synced, so no sync has failed.
                    await asyncio.sleep(in_seconds(DESCRIPTOR_RETRY))
                    continue
                self._crash(error)  # Renamed, and perhaps not durable: the next start writes it again.
                raise
            break
        self._current = following
        self._size.saw(len(following.document))
        return following


def _read(disk: Disk) -> Versioned | None:
    if not disk.exists(NAME):
        return None
    file = disk.open(NAME)
    try:
        content = file.read_at(0, file.size())
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        told = f"{NAME}: the disk cannot read it ({error.strerror})"
        raise Corrupt(f"{told}: start again; if it stays so, {REMEDY}") from error
    finally:
        file.close()
    if len(content) < 4 or int.from_bytes(content[:4], "little") != crc32c(content[4:]):
        raise Corrupt(f"{NAME}: the checksum is wrong: {REMEDY}")
    try:
        found = msgspec.msgpack.decode(content[4:], type=_Content)
    except msgspec.DecodeError as error:
        raise Corrupt(
            f"{NAME} is of another format than {FORMAT}, which this version reads: {error}: start the newer"
            " version that wrote it"
        ) from error
    if found.format != FORMAT:
        raise Corrupt(f"{NAME} has format {found.format}, this version reads {FORMAT}")
    return Versioned(found.document, found.version)


def _write_again(disk: Disk, found: Versioned) -> None:
    """Make the metastore's version that was read durable. On a full disk, write the same bytes in place."""
    try:
        _write(disk, found)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        file = disk.open(NAME)
        try:
            file.write_at(0, [file.read_at(0, file.size())])
            file.sync()
        finally:
            file.close()
        disk.sync_dir(DIRECTORY)


def _write(disk: Disk, versioned: Versioned) -> None:
    _replace(disk, versioned)
    _make_durable(disk)


def _replace(disk: Disk, versioned: Versioned) -> None:
    """Write and sync the metastore's second file, and rename it over the first, unchanged if this raises."""
    disk.make_dir(DIRECTORY)
    body = msgspec.msgpack.encode(_Content(FORMAT, versioned.version, versioned.document))
    file = disk.open(f"{NAME}.new", create=True)
    try:
        file.truncate(0)
        file.write_at(0, [crc32c(body).to_bytes(4, "little"), body])
        passed("metastore.file.written")
        file.sync()
    finally:
        file.close()
    passed("metastore.file.synced")
    disk.rename(f"{NAME}.new", NAME)


def _make_durable(disk: Disk) -> None:
    disk.sync_dir(DIRECTORY)
    passed("metastore.file.renamed")
