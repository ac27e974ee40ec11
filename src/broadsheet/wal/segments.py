"""Segments: the segment files of a log, their names, headers and filling. Blocking: call it off the loop.

All sizes are in bytes. A new file is made first, then its header is synced, then its directory. So a crash
leaves at worst a file without a header, which the next start removes. The extents file records how far a file
is filled before a batch is written there. This module does not know laps. Source: log.8, log.20; ADR 0102.
"""

import errno
from collections.abc import Container, Mapping, Sequence
from itertools import count
from typing import Final

from broadsheet.base.marks import hit
from broadsheet.errors import ConfigError
from broadsheet.ports import NO_ROOM, NO_SPACE, Disk, File
from broadsheet.runtime.failpoints import passed
from broadsheet.runtime.rereading import DISK_AWAY
from broadsheet.wal.config import BLOCK_BYTES, MIB
from broadsheet.wal.extents import Extents, Told
from broadsheet.wal.format import VERSION, SegmentHeader

LOCK_NAME: Final = "lock"
SEGMENT_PREFIX, SEGMENT_SUFFIX = "segment-", ".wal"
QUARANTINE_PREFIX: Final = "quarantine-"
FILL_STEP_BYTES: Final = 4 * MIB
LATER: Final = (*NO_ROOM, DISK_AWAY)
"""Errors after which damage stays where it is, and is set aside later."""


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
        """Begin without a segment file.

        Args:
            told: how far the files were filled, as the extents file says; None if it says nothing.
        """
        self.disk, self.directory = disk, directory
        self.extents = Extents(disk, directory, log_id=log_id, told=told)
        self.log_id, self.segment_bytes = log_id, segment_bytes
        self.files: dict[int, File] = {}
        self.filled: dict[int, int] = {}
        self.wanted: dict[int, int] = {}
        """How far each file is to be filled."""
        self.kept: dict[int, None] = {}
        """Files with damaged bytes that could not be set aside yet: they are neither filled nor used."""
        self.remains: Sequence[tuple[int, int, int, int]] = ()
        """File, lap, begin and end of the bytes left in shortened files: set aside, but not zeroed yet."""
        self.shortened: dict[int, None] = {}
        """Files that are gone, or shorter than they were. Until `accept`, only their lengths tell of a loss,
        so they are neither made nor filled. Nor are those whose remains could not be zeroed."""
        self.unread: dict[int, None] = {}
        """Files that count as free, but whose first batch the disk could not read: a newer lap may begin
        there. And the file of the head, if the disk could not read all that is behind its last batch: more
        batches may stand there. Nothing is written to them by this start, to the head only if no other
        segment is free for appends."""
        self._is_evidence_kept = False
        """Some remains could not be zeroed, so the extents must go on to say that files are shorter."""

    def path(self, name: str) -> str:
        """The path on the disk of a file of this log."""
        return f"{self.directory}/{name}"

    def adopt(self, index: int, file: File, *, wanted: int) -> None:
        """Take a file of an earlier start. Bytes above `wanted` are not the log's, and are never used."""
        size = min(file.size(), wanted)
        self.files[index], self.filled[index] = file, size - size % BLOCK_BYTES
        self.wanted[index] = wanted

    def size(self, index: int) -> int:
        """The length of one file, at most `wanted`. A file that somebody cut may end inside a block."""
        return min(self.files[index].size(), self.wanted[index])

    def read(self, index: int, at: int, length: int) -> bytes:
        """Some bytes of one file; zeros for each block that the disk cannot read (EIO).

        The callers look for damage: for them, an unreadable sector is a damaged one.
        """
        return read_around(self.files[index], at, length)

    def create(self) -> int:
        """Make the next segment file with only its header; the index of the file.

        Raises:
            OSError: the disk refused or failed. ENOSPC leaves nothing behind that a start would not remove.
        """
        if not self.shortened:  # Without extents, a file that a full disk leaves empty would look shortened.
            self.witness()
        index = next(index for index in count() if index not in self.files and index not in self.shortened)
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
        self.filled[index] = BLOCK_BYTES  # Last, because the loop may look for unfilled files meanwhile.
        return index

    def fill(self, index: int, end: int) -> None:
        """Fill one segment file with zeros up to `end`, durably.

        Raises:
            OSError: the disk refused or failed. After ENOSPC it may be repeated: the filled part counts.
        """
        file, at = self.files[index], self.size(index)  # Not rounded: a batch may end inside the last block.
        if at < BLOCK_BYTES:  # A full disk took only a part of the header's block: do not fill it with zeros.
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
        """Record durably that the segment files are filled as far as the earlier start left them, or more.

        Raises:
            OSError: the disk refused or failed.
        """
        for index, end in self.filled.items():
            self.extents.raise_to(index, end)

    def write_ends(self) -> None:
        """Make the lengths durable that no extents name yet. Once the log is open, batches are written there.

        Raises:
            OSError: the disk refused or failed.
        """
        for index, end in self.filled.items():
            if end > self.extents.filled.get(index, 0):
                self._write_end(index, end)

    def _write_end(self, index: int, end: int) -> None:
        """Make the segment's length durable that an earlier start may have left in the page cache only.

        A sync that failed there left its pages clean, so that a sync alone would write nothing. The last
        block is written again as it is, unless the disk cannot read it: then nothing is written over it.
        """
        file, at = self.files[index], end - BLOCK_BYTES
        try:
            content = file.read_at(at, BLOCK_BYTES)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        else:
            file.write_at(at, [content])
        file.sync()

    def spare(self, ends: Mapping[int, int]) -> None:
        """Exclude from the remains the bytes that this start has written, up to `ends`."""
        self.remains = [
            (index, lap, max(begin, ends.get(index, 0)), end) for index, lap, begin, end in self.remains
        ]

    def accept(self, *, is_kept: bool) -> None:
        """Record durably how far the segment files are filled: some may be shorter than they were, or gone.

        The remains in a file that may be used are zeroed first, and not later: by then batches may be there.

        Args:
            is_kept: damage in the `kept` files is not set aside yet. They are left alone, and are not used.

        Raises:
            OSError: the disk failed. A full disk is no error: the next start suspects every stream once more.
        """
        kept = self.kept if is_kept else {}
        void = [each for each in self.remains if each[0] not in kept]
        self.remains = [each for each in self.remains if each[0] in kept]
        try:
            self.witness()
            for each in void:
                self._void(*each)
            if not is_kept and not self._is_evidence_kept:
                self.extents.replace(self.filled)
        except OSError as error:
            if error.errno not in NO_SPACE:
                self.remains = [*self.remains, *void]  # The caller tries again, or the process ends.
                raise
            hit("wal.extents_refused")
            # Their ends are not void. A batch that was cut in two would be whole again if they grew.
            refused = dict.fromkeys(index for index, *_ in void)
            self.shortened = {**self.shortened, **refused} if self._is_evidence_kept else refused
            self._is_evidence_kept = True
            return
        if not self._is_evidence_kept:
            self.shortened = {}

    def _void(self, index: int, _lap: int, begin: int, told: int) -> None:
        end = min(told, self.wanted[index])  # Not rounded: a part of a block may hold a whole batch header.
        for at in range(begin, end, MIB):
            self.files[index].write_at(at, [bytes(min(MIB, end - at))])
        self.files[index].sync()

    def unfilled(self, *, but: Container[int] = ()) -> int | None:
        """A segment file, not in `but`, shorter than `wanted` and without evidence; None if none is."""
        return next(
            (
                index
                for index, end in list(self.filled.items())  # A thread may add one meanwhile.
                if end < self.wanted[index]
                and index not in but
                and index not in self.kept
                and index not in self.shortened
                and index not in self.unread
            ),
            None,
        )

    def close(self) -> None:
        """Release all files."""
        for file in self.files.values():
            file.close()
        self.extents.close()


def require_readable(file: File) -> None:
    """Refuse a segment of which the disk reads no block behind the header: it looks unused.

    It would be written over, and may hold a lap that later laps follow.

    Raises:
        ConfigError: every such block is unreadable (EIO). Nothing was changed.
    """
    error: OSError | None = None
    size = file.size()
    for at in range(BLOCK_BYTES if size > BLOCK_BYTES else 0, size, BLOCK_BYTES):
        try:
            file.read_at(at, BLOCK_BYTES)
        except OSError as raised:
            if raised.errno != errno.EIO:
                raise
            error = raised
        else:
            return
    if error is not None:
        raise unreadable(file, error)


def unreadable(file: File, error: OSError) -> ConfigError:
    """The refusal of a file that may hold records, though the disk cannot read it now."""
    return ConfigError(
        f"{file.name}: the disk cannot read it ({error.strerror}). Start again; if it stays so, move this "
        "file away: the log goes on without what it held"
    )


def read_around(file: File, at: int, length: int, unread: list[int] | None = None) -> bytes:
    """Some bytes of a segment file; zeros for each block that the disk cannot read (EIO).

    For callers that look for damage: an unreadable sector is a damaged one.

    Args:
        unread: gets the places of these blocks.
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
            if unread is not None:
                unread.append(at)
        at += step
    return b"".join(parts)
