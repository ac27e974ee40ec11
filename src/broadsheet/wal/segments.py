"""The segment files of a log: names, headers, filling. Blocking: call it off the loop.

Bytes throughout. A file is named before its header is synced and its directory after, so a crash leaves
at worst a file without a header, which the next start removes. How far a file is filled is written down
beside it before anybody uses it so far. It does not know laps. Source: log.8, log.20; ADR 0102.
"""

import errno
from collections.abc import Container, Iterable
from itertools import count
from typing import Final

from broadsheet.base.marks import hit
from broadsheet.ports import Disk, File
from broadsheet.runtime.failpoints import passed
from broadsheet.wal.config import BLOCK_BYTES, MIB
from broadsheet.wal.extents import Extents, Told
from broadsheet.wal.format import VERSION, SegmentHeader

LOCK_NAME: Final = "lock"
SEGMENT_PREFIX, SEGMENT_SUFFIX = "segment-", ".wal"
QUARANTINE_PREFIX: Final = "quarantine-"
FILL_STEP_BYTES: Final = 4 * MIB
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
NO_FILE: Final = (errno.EMFILE, errno.ENFILE)
"""No more open files: nothing was made, and files that are open are sound."""


def segment_name(index: int) -> str:
    """The name of the segment file `index`."""
    return f"{SEGMENT_PREFIX}{index:08d}{SEGMENT_SUFFIX}"


def segment_index(name: str) -> int | None:
    """The index in a segment file's name; None for another name."""
    digits = name.removeprefix(SEGMENT_PREFIX).removesuffix(SEGMENT_SUFFIX)
    if not (digits.isascii() and digits.isdigit()) or name != segment_name(int(digits)):
        return None
    return int(digits)


class Segments:
    """All segment files of one log, open."""

    def __init__(
        self, disk: Disk, directory: str, *, log_id: int, segment_bytes: int, told: Told | None = None
    ) -> None:
        """Begin without a file.

        Args:
            told: how far the files were filled.
        """
        self.disk, self.directory = disk, directory
        self.extents = Extents(disk, directory, log_id=log_id, told=told)
        self.log_id, self.segment_bytes = log_id, segment_bytes
        self.files: dict[int, File] = {}
        self.filled: dict[int, int] = {}
        self.wanted: dict[int, int] = {}
        """How far each file is to be filled."""
        self.kept: dict[int, None] = {}
        """Files with damaged bytes that could not be set aside yet: they are not filled, and not used."""

    def path(self, name: str) -> str:
        """The disk's name of a file of this log."""
        return f"{self.directory}/{name}"

    def adopt(self, index: int, file: File, *, wanted: int) -> None:
        """A file that a former start made; what it has above `wanted` is not ours, and is never used."""
        size = min(file.size(), wanted)
        self.files[index], self.filled[index] = file, size - size % BLOCK_BYTES
        self.wanted[index] = wanted

    def read(self, index: int, at: int, length: int) -> bytes:
        """Some bytes of one file; zeros for each block that the disk cannot read (EIO).

        For what looks after damage: there a sector that cannot be read is a damaged one.
        """
        return read_around(self.files[index], at, length)

    def create(self) -> int:
        """Make the next segment file, with its header and nothing else; its index.

        Raises:
            OSError: the disk refused or failed. ENOSPC leaves nothing behind that a start would not remove.
        """
        index = next(index for index in count() if index not in self.files)
        name = self.path(segment_name(index))
        file = self.disk.open(name, create=True)
        try:
            file.write_at(0, [SegmentHeader(VERSION, self.log_id, self.segment_bytes).pack()])
            file.sync()
            passed("wal.segment.headed")
            self.disk.sync_dir(self.directory)
            passed("wal.segment.named")
        except OSError:
            file.close()
            raise
        self.files[index], self.wanted[index] = file, self.segment_bytes
        self.filled[index] = BLOCK_BYTES  # Last: the loop looks for what is to be filled meanwhile.
        return index

    def fill(self, index: int, end: int) -> None:
        """Fill one file with zeros up to `end`, durably.

        Raises:
            OSError: ENOSPC: what was filled so far counts, and it may be asked for again.
        """
        file, at = self.files[index], self.filled[index]
        if at < BLOCK_BYTES:  # A full disk took a part of the header's block only: it must not become zeros.
            file.write_at(0, [SegmentHeader(VERSION, self.log_id, self.wanted[index]).pack()])
            at = BLOCK_BYTES
        zeros = memoryview(bytes(min(MIB, max(0, end - at))))
        while at < end:
            step = zeros[: min(len(zeros), end - at)]
            file.write_at(at, [step])
            at += len(step)
        file.sync()
        self.extents.raise_to(index, max(self.filled[index], end))
        self.filled[index] = max(self.filled[index], end)

    def witness(self) -> None:
        """Write down how far the files are filled that a former start left, durably: at least so far.

        Raises:
            OSError: the disk refused or failed.
        """
        for index, end in self.filled.items():
            if end > self.extents.filled.get(index, 0):
                self.files[index].sync()  # It may be so long in the page cache only.
                self.extents.raise_to(index, end)

    def accept(self, remains: Iterable[tuple[int, int, int, int]]) -> None:
        """Write down how far the files are filled now, durably: some may be shorter than they were, or gone.

        Args:
            remains: file, lap, begin and end of what must be void before that; it was set aside.

        Raises:
            OSError: the disk refused or failed.
        """
        for index, _, begin, told in remains:
            end = min(
                told, self.wanted[index]
            )  # Also what is left of a block: it may be a whole batch header.
            for at in range(begin, end, MIB):
                self.files[index].write_at(at, [bytes(min(MIB, end - at))])
            self.files[index].sync()
        self.extents.replace(self.filled)

    def unfilled(self, *, but: Container[int] = ()) -> int | None:
        """A file that is not yet as long as it is to be, and is none of `but`."""
        return next(
            (
                index
                for index, end in list(self.filled.items())  # A thread may add one meanwhile.
                if end < self.wanted[index] and index not in but and index not in self.kept
            ),
            None,
        )

    def close(self) -> None:
        """Release all files."""
        for file in self.files.values():
            file.close()
        self.extents.close()


def read_around(file: File, at: int, length: int) -> bytes:
    """Some bytes of a file; zeros for each block that the disk cannot read (EIO).

    For who looks after damage: a sector that cannot be read is a damaged one.
    """
    try:
        return file.read_at(at, length)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    hit("wal.block_unreadable")
    parts: list[bytes] = []
    end = min(at + length, file.size())
    while at < end:
        step = min(end - at, BLOCK_BYTES - at % BLOCK_BYTES)
        try:
            parts.append(file.read_at(at, step))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            parts.append(bytes(step))
        at += step
    return b"".join(parts)
