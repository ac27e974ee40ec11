"""Extents: a file that says how far each segment file was filled. Blocking.

All sizes are in bytes. A segment that was shortened, emptied or removed cannot tell what it held. Without
this file its batches would look as if they had never been written. So no batch is written to a part of a
segment before this file names that part durably. The file has two slots, written in turn and in place: a torn
write leaves the other slot, and a full disk accepts the write, because the file never grows. It does not know
laps, and it does not judge what is missing: `recovery` does. Source: log.20; ADR 0102;
`docs/protocols/wal.md`.
"""

from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

from broadsheet.base.checksum import crc32c
from broadsheet.ports import Disk, File
from broadsheet.runtime.failpoints import passed
from broadsheet.wal.config import BLOCK_BYTES, SEGMENTS_MAX
from broadsheet.wal.format import VERSION, require_version

EXTENTS_NAME: Final = "extents"
EXTENTS_MAGIC: Final = b"BSWALEXT"
SLOT_BYTES: Final = BLOCK_BYTES
SLOTS: Final = 2
HEAD: Final = Struct("<8sIIQQII")
"""magic, version, crc of the slot with this field zero, log id, sequence, count of segments, era."""
CRC_AT: Final = 12
BLOCKS: Final = Struct("<I")
"""For each segment, by index: how many blocks of 4 KiB are filled."""


class Told(NamedTuple):
    """The content of one slot of a log's file of extents."""

    log_id: int
    sequence: int
    filled: dict[int, int]
    """Bytes filled, by index of the segment. Files that were never filled are missing."""
    era: int = 0
    """The newest era of batch numbers, though the disk may read no batch of it."""


class Extents:
    """The file of extents of one log."""

    def __init__(self, disk: Disk, directory: str, *, log_id: int, told: Told | None) -> None:
        """Go on from the slot that the start has read; None if the file was absent or unreadable."""
        self._disk, self._directory, self._log_id = disk, directory, log_id
        self._sequence = told.sequence if told is not None else 0
        self.filled = dict(told.filled) if told is not None else {}
        self.era = told.era if told is not None else 0
        self._is_told = told is not None
        self._file: File | None = None

    def raise_to(self, index: int, end: int) -> None:
        """Record durably that the segment `index` is filled up to `end`. The caller has synced the segment.

        Raises:
            OSError: the disk refused or failed. The segment must not be used further than before.
        """
        if self.filled.get(index, 0) < end:
            filled = {**self.filled, index: end}
            self._write(filled)
            self.filled = filled

    def replace(self, filled: Mapping[int, int]) -> None:
        """Record `filled` in place of what was recorded. The boot batch says durably by now what is missing.

        Raises:
            OSError: the disk refused or failed. One slot, or both, may be as before.
        """
        if self.filled != filled:
            for _ in range(SLOTS):  # A start that can read only the older slot must not find the loss again.
                self._write(filled)
            self.filled = dict(filled)

    def begin_era(self, era: int) -> None:
        """Record durably that a log's era begins: the next start may not be able to read a batch of it.

        Raises:
            OSError: the disk refused or failed.
        """
        self.era = era
        if self._is_told:  # Otherwise a slot without lengths would hide that segments are shorter.
            for _ in range(SLOTS):  # A start that can read only the older slot must not begin it again.
                self._write(self.filled)

    def renew(self) -> None:
        """Make the file and its name durable: a first start that was killed may have synced neither.

        Raises:
            OSError: the disk refused or failed.
        """
        self._write(self.filled)
        self._disk.sync_dir(self._directory)

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            self._file.close()

    def _write(self, filled: Mapping[int, int]) -> None:
        if self._file is None:
            self._file = self._disk.open(extents_path(self._directory), create=True)
        if self._file.size() < SLOTS * SLOT_BYTES:
            self._file.write_at(0, [bytes(SLOTS * SLOT_BYTES)])  # It never grows later.
        sequence = self._sequence + 1
        slot = pack(Told(self._log_id, sequence, dict(filled), self.era))
        self._file.write_at(sequence % SLOTS * SLOT_BYTES, [slot])
        self._file.sync()
        if self._sequence == 0:
            self._disk.sync_dir(self._directory)
        self._sequence = sequence
        passed("wal.extents.written")


def extents_path(directory: str) -> str:
    """The path of the file on the disk."""
    return f"{directory}/{EXTENTS_NAME}"


def pack(told: Told) -> bytes:
    """The bytes of one slot of a log's file of extents."""
    count = min(max(told.filled, default=-1) + 1, SEGMENTS_MAX)
    blocks = b"".join(BLOCKS.pack(told.filled.get(index, 0) // BLOCK_BYTES) for index in range(count))

    def whole(crc: int) -> bytes:
        head = HEAD.pack(EXTENTS_MAGIC, VERSION, crc, told.log_id, told.sequence, count, told.era)
        return (head + blocks).ljust(SLOT_BYTES, b"\0")

    return whole(crc32c(whole(0)))


def unpack(content: bytes, name: str) -> Told | None:
    """The newest whole slot of the file's content; None if no slot is whole.

    Raises:
        ConfigError: a version that this program does not know.
    """
    slots = [_slot(content[at : at + SLOT_BYTES], name) for at in range(0, SLOTS * SLOT_BYTES, SLOT_BYTES)]
    return max((slot for slot in slots if slot is not None), key=lambda slot: slot.sequence, default=None)


def _slot(slot: bytes, name: str) -> Told | None:
    if len(slot) < SLOT_BYTES:
        return None
    magic, version, crc, log_id, sequence, count, era = HEAD.unpack_from(slot)
    if magic != EXTENTS_MAGIC or crc32c(slot[:CRC_AT] + bytes(4) + slot[CRC_AT + 4 :]) != crc:
        return None
    require_version(version, name)
    blocks = BLOCKS.iter_unpack(slot[HEAD.size : HEAD.size + BLOCKS.size * min(count, SEGMENTS_MAX)])
    filled = {index: n * BLOCK_BYTES for index, (n,) in enumerate(blocks) if n}
    return Told(log_id, sequence, filled, era)
