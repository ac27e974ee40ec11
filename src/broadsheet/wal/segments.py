"""The segment files of a log: names, headers, filling. Blocking: call it off the loop.

Bytes throughout. A file is named before its header is synced and its directory after, so a crash leaves
at worst a file without a header, which the next start removes. How far a file is filled is written down
beside it before anybody uses it so far. It does not know laps. Source: log.8, log.20; ADR 0102.
"""

import errno
from collections.abc import Container, Mapping, Sequence
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
        self.remains: Sequence[tuple[int, int, int, int]] = ()
        """File, lap, begin and end of what is left where files are shorter; set aside, and not void yet."""
        self._is_evidence_kept = False
        """Not all of it could be made void: the extents go on to say that files are shorter."""

    def path(self, name: str) -> str:
        """The disk's name of a file of this log."""
        return f"{self.directory}/{name}"

    def adopt(self, index: int, file: File, *, wanted: int) -> None:
        """A file that a former start made; what it has above `wanted` is not ours, and is never used."""
        size = min(file.size(), wanted)
        self.files[index], self.filled[index] = file, size - size % BLOCK_BYTES
        self.wanted[index] = wanted

    def size(self, index: int) -> int:
        """How long one file is, as far as it is ours: where somebody cut it, with what is left of a block."""
        return min(self.files[index].size(), self.wanted[index])

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
        file, at = self.files[index], self.size(index)  # A batch may end in what there is of a last block.
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

    def spare(self, ends: Mapping[int, int]) -> None:
        """What this start has written, up to `ends`, is not of what is left."""
        self.remains = [
            (index, lap, max(begin, ends.get(index, 0)), end) for index, lap, begin, end in self.remains
        ]

    def accept(self, *, is_kept: bool) -> None:
        """Write down, durably, how far the files are filled now: some may be shorter than they were, or gone.

        What is left in a file that may be used is made void before that, or never: batches may stand there.

        Args:
            is_kept: damage in the `kept` files is not set aside yet. They wait, and nobody uses them.

        Raises:
            OSError: the disk failed. Where it has no space, the next start suspects every stream once more.
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
                self.remains = [*self.remains, *void]  # The caller tries again, or ends.
                raise
            hit("wal.extents_refused")
            self._is_evidence_kept = True

    def _void(self, index: int, _lap: int, begin: int, told: int) -> None:
        end = min(told, self.wanted[index])  # Also what is left of a block: it may be a whole batch header.
        for at in range(begin, end, MIB):
            self.files[index].write_at(at, [bytes(min(MIB, end - at))])
        self.files[index].sync()

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
