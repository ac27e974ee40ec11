"""Staging area: holds the content of streaming appends until it is whole and copied to the journal's tail.

Lengths are bytes. Small content is kept in memory, larger content in a file of its own. The files are never
synced, because staged content is not acknowledged; a start removes the files of an earlier process. A
checksum of the content is computed as it is staged and compared when it is copied. The staged content of a
node is bounded (`JournalsConfig`). A caller may use as much of the bound as all callers together leave free,
and each of its connections as much of that as the caller leaves free: so nobody takes everything (ADR 0154).

The staging area does not decide the order or the outcome of appends. Source: journals.17, journals.20.
"""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import Buffer
from broadsheet.errors import Throttled
from broadsheet.journal.config import JournalsConfig
from broadsheet.ports import Disk, File
from broadsheet.wal.segments import read_around

DIRECTORY: Final = "journals/staged"
SLICE_BYTES: Final = 1 << 20
"""Bytes that are copied and summed on the loop at a time: about a millisecond."""


class StagedBy(NamedTuple):
    """The caller of a streaming append, and its connection, whose share it uses."""

    caller: str
    connection: int


class Used:
    """How many streams and bytes one caller, or one of its connections, has staged."""

    __slots__ = ("count", "length")

    def __init__(self) -> None:
        self.count = self.length = 0


class StagingArea:
    """The staged content of all streams of one node."""

    def __init__(
        self, disk: Disk, config: JournalsConfig, *, spawn: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        """Stage appends on `disk`, within the bounds of `config`; `spawn` runs the removal of their files."""
        self.disk = disk
        self.memory_bytes = config.staged_memory_bytes
        self._count_max, self._bytes_max = config.staged_count_max, config.staged_bytes_max
        self._number = self.count = self.length = 0
        self._spawn = spawn
        self._is_removing = False
        self._left: list[str] = []  # Files that are to be removed.
        self._kept: list[str] = []  # Files that could not be removed yet.
        self._used: dict[str | StagedBy, Used] = {}
        """By caller and by connection; only those that have staged something."""

    def clear(self) -> None:
        """Remove the files of an earlier process. Blocking; call it before the first `open`."""
        self.disk.make_dir(DIRECTORY)
        for name in self.disk.list(DIRECTORY):
            with suppress(IsADirectoryError, FileNotFoundError):  # A directory is somebody else's.
                self.disk.remove(f"{DIRECTORY}/{name}")

    def open(self, by: StagedBy | None = None) -> "Staged":
        """Make room for one streaming append.

        Args:
            by: whose share it uses; None: no share, only the bound of the node.

        Raises:
            Throttled: too many streams are staged, of all callers or of this one.
        """
        if self.count >= self._count_max:
            raise Throttled(
                f"{self.count} streaming appends are staged, and staged_count_max is {self._count_max};"
                " try again later"
            )
        if by is not None:
            mine, free = self._used_by(by), self._count_max - self.count
            if mine[0].count >= free or mine[1].count >= free - mine[0].count:
                raise Throttled(
                    f"{mine[0].count} streaming appends of this caller are staged, {mine[1].count} of them on"
                    f" this connection: its share of staged_count_max {self._count_max}; try again later"
                )
        kept, self._kept = self._kept, []
        for name in kept:
            self.remove(name)
        self.count += 1
        self._number += 1
        self._count(by, 1, 0)
        return Staged(self, f"{DIRECTORY}/{self._number:016x}", by)

    def reserve(self, length: int, by: StagedBy | None) -> None:
        """Count `length` more staged bytes.

        Raises:
            Throttled: too many bytes are staged, of all callers or of this one.
        """
        if self.length + length > self._bytes_max:
            raise Throttled(
                f"{self.length} bytes of streaming appends are staged, and staged_bytes_max is"
                f" {self._bytes_max}; try again later"
            )
        if by is not None:
            mine, free = self._used_by(by), self._bytes_max - self.length
            if mine[0].length + length > max(self.memory_bytes, free) or mine[1].length + length > max(
                self.memory_bytes, free - mine[0].length
            ):
                raise Throttled(
                    f"{mine[0].length} bytes of streaming appends of this caller are staged: its share of"
                    f" staged_bytes_max {self._bytes_max}; try again later"
                )
        self.length += length
        self._count(by, 0, length)

    def unreserve(self, length: int, by: StagedBy | None) -> None:
        """Take back a `reserve`, because the bytes were not written."""
        self.length -= length
        self._count(by, 0, -length)

    def release(self, length: int, by: StagedBy | None) -> None:
        """Free the room of a stream of `length` bytes."""
        self.count -= 1
        self.length -= length
        self._count(by, -1, -length)

    def _used_by(self, by: StagedBy) -> tuple[Used, Used]:
        return self._used.get(by.caller) or Used(), self._used.get(by) or Used()

    def _count(self, by: StagedBy | None, count: int, length: int) -> None:
        if by is None:
            return
        for key in (by.caller, by):
            used = self._used.setdefault(key, Used())
            used.count += count
            used.length += length
            if not used.count and not used.length:
                del self._used[key]

    def remove(self, name: str) -> None:
        """Remove a staged file soon; if the system refuses, when the next stream opens, or at a start.

        A thread does it: the system takes 50 ms to remove a file of 256 MiB, and a client may give up many at
        once.
        """
        self._left.append(name)
        if not self._is_removing:
            self._is_removing = True
            self._spawn(self._remove_left())

    async def _remove_left(self) -> None:
        try:
            while self._left:
                left, self._left = self._left, []
                self._kept += await self.disk.run(partial(_not_removed, self.disk, left))
        finally:
            self._is_removing = False


def _not_removed(disk: Disk, names: Sequence[str]) -> list[str]:
    """Remove staged files; returns those that the system does not let go now."""
    kept = []
    for name in names:
        try:
            disk.remove(name)
        except FileNotFoundError:
            continue
        except OSError:
            kept.append(name)
    return kept


class Staged:
    """The staged content of one streaming append."""

    def __init__(self, area: StagingArea, name: str, by: StagedBy | None) -> None:
        self.length = 0
        self._area, self._name, self._by = area, name, by
        self._parts: list[bytes] = []
        self._file: File | None = None
        self._crc = 0
        self._is_closed = False

    def put(self, chunk: Buffer) -> None:
        """Stage one chunk of a streaming append.

        Raises:
            Throttled: too much is staged.
            OSError: there is no space, or no descriptor. The chunk is not staged.
        """
        assert not self._is_closed, "nothing is staged after the end"
        length = len(chunk)
        self._area.reserve(length, self._by)
        try:
            self._write(chunk)
        except BaseException:
            self._area.unreserve(length, self._by)
            raise
        self._crc = crc32c(chunk, self._crc)
        self.length += length

    def _write(self, chunk: Buffer) -> None:
        if self._file is None:
            if self.length + len(chunk) <= self._area.memory_bytes:
                self._parts.append(bytes(chunk))
                return
            self._file = self._area.disk.open(self._name, create=True, exclusive=True)
            if self._parts:
                self._file.write_at(0, self._parts)
                self._parts = []
        self._file.write_at(self.length, (chunk,))

    def slices(self) -> Iterator[bytes]:
        """The staged content, up to `SLICE_BYTES` at a time. Unreadable sectors are zeros, as `crc` shows.

        Raises:
            OSError: the content cannot be read now.
        """
        if self._file is None:
            yield b"".join(self._parts)
            return
        for at in range(0, self.length, SLICE_BYTES):
            yield read_around(self._file, at, min(SLICE_BYTES, self.length - at))

    @property
    def crc(self) -> int:
        """crc32c of the content."""
        return self._crc

    def close(self) -> None:
        """Drop the staged content. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._area.release(self.length, self._by)
        self._parts = []
        if self._file is not None:
            self._file.close()
            self._area.remove(self._name)
