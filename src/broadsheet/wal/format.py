"""The bytes of a log on disk, version 3: segment header, batch header with rows, frame around a run.

Little endian, unsigned; a position is `lap << 32 | at`, with `at` bytes into the segment. Laps count
segments in their order of use from 1, batches count from 1, both without a gap for the life of the log.
It does not decide anything: `scan` reads, `recovery` judges. Source: log.3-7; `docs/protocols/wal.md`
has the tables, `tests/wal/golden` the bytes.
"""

from enum import IntEnum, IntFlag
from struct import Struct
from typing import Final, NamedTuple, NewType

from broadsheet.base.checksum import crc32c
from broadsheet.errors import ConfigError
from broadsheet.wal.config import BLOCK_BYTES

VERSION: Final = 3

Position = NewType("Position", int)
"""A place in the log: `lap << 32 | at`."""

AT_BITS: Final = 32
AT_MASK: Final = (1 << AT_BITS) - 1


def position(lap: int, at: int) -> Position:
    """The place `at` bytes into the segment of `lap`."""
    return Position(lap << AT_BITS | at)


def aligned(at: int) -> int:
    """The first block border at or above `at`."""
    return (at + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES


# --- segment header --------------------------------------------------------------------------------------

SEGMENT: Final = Struct("<8sIIQQ32x")
SEGMENT_MAGIC: Final = b"BSWALSEG"


class SegmentHeader(NamedTuple):
    """The constant first block of a segment file."""

    version: int
    log_id: int
    segment_bytes: int

    def pack(self) -> bytes:
        """Its block."""
        bare = SEGMENT.pack(SEGMENT_MAGIC, self.version, 0, self.log_id, self.segment_bytes)
        crc = crc32c(bare)
        whole = SEGMENT.pack(SEGMENT_MAGIC, self.version, crc, self.log_id, self.segment_bytes)
        return whole.ljust(BLOCK_BYTES, b"\0")


def read_segment_header(block: bytes, name: str) -> SegmentHeader | None:
    """The header in `block`; None where it is damaged or was never written.

    Raises:
        ConfigError: a version that this program does not know.
    """
    if len(block) < SEGMENT.size:
        return None
    magic, version, crc, log_id, segment_bytes = SEGMENT.unpack_from(block)
    bare = SEGMENT.pack(magic, version, 0, log_id, segment_bytes)
    if magic != SEGMENT_MAGIC or crc32c(bare) != crc or bare[16:] != block[16 : SEGMENT.size]:
        return None
    if version != VERSION:
        age = "newer" if version > VERSION else "older"
        raise ConfigError(
            f"{name} has log format {version}, {age} than {VERSION}: use the program that wrote it. "
            "Nothing was changed"
        )
    return SegmentHeader(version, log_id, segment_bytes)


# --- batch header and rows -------------------------------------------------------------------------------

BATCH: Final = Struct("<4sBBHQQQQQQQIIIII")
BATCH_CRC: Final = Struct("<I")
BATCH_MAGIC: Final = b"WBat"
BATCH_BYTES: Final = BATCH.size + BATCH_CRC.size
ROW: Final = Struct("<QQQQII")


class BatchFlag(IntFlag):
    """What a batch is besides a batch."""

    FULL = 1
    """Its rows name every stream of the log: who is not named was dropped."""


class RowFlag(IntFlag):
    """What recovery found out about a stream and its domain has not dealt with, or that it is gone."""

    TAIL_CUT = 1
    QUARANTINED = 2
    DROPPED = 4
    END_LOST = 8
    """Quarantined, and batches are gone that say nothing of whom they moved: it may have gone further."""


class Row(NamedTuple):
    """Where a stream stands at the end of a batch."""

    stream: int
    first: int
    next: int
    generation: int
    crc: int
    flags: int


class BatchHeader(NamedTuple):
    """The head of one write."""

    flags: int
    log_id: int
    boot: int
    lap: int
    batch: int
    at: int
    durable: int
    """Position through which everything was durable when this was written."""
    oldest: int
    """Lap below which segments are free."""
    length: int
    """Bytes from the batch's start to the end of its last frame."""
    frame_count: int
    row_count: int
    table_crc: int
    chain: int
    """The physical chain before its first frame."""

    def pack(self) -> bytes:
        """Its bytes, crc last."""
        bare = BATCH.pack(BATCH_MAGIC, VERSION, self.flags, 0, *self[1:])
        return bare + BATCH_CRC.pack(crc32c(bare))


# --- frame and run ---------------------------------------------------------------------------------------

ENTRY: Final = Struct("<QQI")
"""term, offset, length: the head of an entry, before its bytes. A run is entries back to back, and its crc is
that of these bytes, seeded with its predecessor's: so the chain is defined after every entry, whatever the
runs, and depends on nothing else. It is also what is sent and replicated."""
ENTRY_BYTES: Final = ENTRY.size
RUN: Final = Struct("<QQII")
"""offset, generation, count, length: which entries this log has here, and in which generation of its own."""
LINK: Final = Struct("<II")
"""seed, crc: the stream's chain before and after the run."""
FRAME: Final = Struct("<4sBBHQQQQQ")
"""magic, kind, zeros, log id, boot, lap, batch, durable; the same in all frames of a kind in a batch."""
IDENTITY: Final = Struct("<QQQQ")
"""log id, boot, lap, batch, as they stand in every frame of a batch."""
IDENTITY_AT: Final = 8
"""Where in a frame."""
STREAM: Final = Struct("<Q")
CHECK: Final = Struct("<II")
"""physical chain, header crc."""
FRAME_MAGIC: Final = b"WFrm"
HEAD_BYTES: Final = FRAME.size + STREAM.size + RUN.size + LINK.size
"""What the physical chain and the header crc cover."""
FRAME_BYTES: Final = HEAD_BYTES + CHECK.size
FRAME_ALIGN: Final = 8

HEAD: Final = Struct("<4sBBHQQQQQQQQIIIIII")
"""A whole frame header, for reading."""


class Kind(IntEnum):
    """What a frame says."""

    RUN = 1
    COPY = 2
    """A run again, from a segment that is to be freed. It moves no state."""
    TRUNCATE = 3
    """Entries of older generations from its offset on are void. Its seed is the chain before that offset."""
    RESET = 4
    """The whole stream is void; it goes on at its offset, seeded with its seed."""
    DROP = 5
    """The stream is no more."""
    BOOT = 6
    """A start of the process: its payload is nonce and kernel boot id."""


class FrameHeader(NamedTuple):
    """A frame's header, its crc verified."""

    kind: int
    log_id: int
    boot: int
    lap: int
    batch: int
    durable: int
    stream: int
    offset: int
    generation: int
    entries: int
    length: int
    seed: int
    crc: int
    chain: int


SYSTEM_STREAM: Final = (1 << 64) - 1
"""The stream of boot frames; not for domains."""

BOOT: Final = Struct("<Q36sI")
"""Payload of a boot frame: nonce, kernel boot id, flags."""


def boot_nonce(boot_id: bytes, drawn: int) -> int:
    """The nonce of a start on the kernel of that boot id: every batch says so of which kernel it is.

    Args:
        drawn: 32 random bits.
    """
    return crc32c(boot_id) << 32 | drawn


def is_of_kernel(nonce: int, boot_id: bytes) -> bool:
    """Whether a start with that nonce was on the kernel of that boot id."""
    return nonce >> 32 == crc32c(boot_id)


class BootFlag(IntFlag):
    """What a start knows that no row of a stream says."""

    LACKS_STREAMS = 1
    """A part of the log is gone that may have held the only records of a stream, whose name nobody knows."""


def padding(length: int) -> int:
    """Bytes between a payload of `length` and the next frame."""
    return -length % FRAME_ALIGN


def frame_bytes(length: int) -> int:
    """Bytes that a frame with a payload of `length` takes."""
    return FRAME_BYTES + length + padding(length)
