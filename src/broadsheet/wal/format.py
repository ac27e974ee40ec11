"""Format: the bytes of a log on disk, version 3: segment header, batch header with rows, frame around a run.

Integers are little endian and unsigned. A position is `lap << 32 | at`, with `at` in bytes from the start of
the segment. Laps count the uses of segments, and begin at 1. The number of a batch is `era << 48 | count`:
writes are counted from 1 without a gap, and an era begins with each start that could not read all blocks. So
what such a start did not see has smaller numbers than what it wrote (ADR 0118). This module decides nothing:
`scan` reads, `recovery` judges. Source: log.3-7;
`docs/protocols/wal.md` has the tables, `tests/wal/golden` the bytes.
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


def position(lap: int, at: int) -> Position:
    """The place `at` bytes into the segment of `lap`."""
    return Position(lap << AT_BITS | at)


def aligned(at: int) -> int:
    """The first block border at or above `at`."""
    return (at + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES


COUNT_BITS: Final = 48
ERA_MAX: Final = (1 << 64 - COUNT_BITS) - 1


def era_of(batch: int) -> int:
    """The era of a batch: how many starts before it could not read all blocks, and at most `ERA_MAX`."""
    return batch >> COUNT_BITS


def batches_between(before: int, after: int) -> int:
    """How many writes came between two batches, whatever their eras."""
    return after % (1 << COUNT_BITS) - before % (1 << COUNT_BITS) - 1


def batch_after(batch: int, era: int) -> int:
    """The number of the next write, in `era`."""
    return era << COUNT_BITS | batch % (1 << COUNT_BITS) + 1


# --- segment header --------------------------------------------------------------------------------------

SEGMENT: Final = Struct("<8sIIQQ32x")
SEGMENT_MAGIC: Final = b"BSWALSEG"


class SegmentHeader(NamedTuple):
    """The first block of a segment file, which never changes."""

    version: int
    log_id: int
    segment_bytes: int

    def pack(self) -> bytes:
        """The bytes of the block."""
        bare = SEGMENT.pack(SEGMENT_MAGIC, self.version, 0, self.log_id, self.segment_bytes)
        crc = crc32c(bare)
        whole = SEGMENT.pack(SEGMENT_MAGIC, self.version, crc, self.log_id, self.segment_bytes)
        return whole.ljust(BLOCK_BYTES, b"\0")


def read_segment_header(block: bytes, name: str) -> SegmentHeader | None:
    """The segment header in `block`; None if it is damaged or was never written.

    Raises:
        ConfigError: a version that this program does not know.
    """
    if len(block) < SEGMENT.size:
        return None
    magic, version, crc, log_id, segment_bytes = SEGMENT.unpack_from(block)
    bare = SEGMENT.pack(magic, version, 0, log_id, segment_bytes)
    if magic != SEGMENT_MAGIC or crc32c(bare) != crc or bare[16:] != block[16 : SEGMENT.size]:
        return None
    require_version(version, name)
    return SegmentHeader(version, log_id, segment_bytes)


def require_version(version: int, name: str) -> None:
    """Refuse the log's file `name` if another version of the format wrote it.

    Raises:
        ConfigError: a version that this program does not know.
    """
    if version != VERSION:
        age = "newer" if version > VERSION else "older"
        raise ConfigError(
            f"{name} has log format {version}, {age} than {VERSION}: use the program that wrote it. "
            "Nothing was changed"
        )


# --- batch header and rows -------------------------------------------------------------------------------

BATCH: Final = Struct("<4sBBHQQQQQQQIIIII")
BATCH_CRC: Final = Struct("<I")
BATCH_MAGIC: Final = b"WBat"
BATCH_BYTES: Final = BATCH.size + BATCH_CRC.size
ROW: Final = Struct("<QQQQII")


class BatchFlag(IntFlag):
    """Properties of a batch of the log."""

    FULL = 1
    """The batch has a row for every stream of the log. A stream without a row was dropped. Only such a batch
    carries the flags below."""
    LACKS_STREAMS = 2
    """A part of the log is gone that may have held the only records of a stream of unknown number."""
    CACHE_LOST = 4
    """The kernel has rebooted since the log lost records that a stream still lacks, so the page cache does
    not hold them either."""


class RowFlag(IntFlag):
    """Findings of recovery that the stream's domain has not dealt with, and the mark of a dropped stream."""

    TAIL_CUT = 1
    """The last batch was torn, and the stream may have lost acknowledged records in it."""
    QUARANTINED = 2
    """The stream has lost records that were known durable."""
    DROPPED = 4
    """The stream was dropped."""
    END_LOST = 8
    """Quarantined. Batches are gone, and nothing tells which streams they changed: this one may be longer."""


class Row(NamedTuple):
    """The state of a log stream at the end of a batch."""

    stream: int
    first: int
    next: int
    generation: int
    crc: int
    flags: int


class BatchHeader(NamedTuple):
    """The header of a batch of the log."""

    flags: int
    log_id: int
    boot: int
    lap: int
    batch: int
    at: int
    durable: int
    """Position through which the log was durable when this batch was written."""
    oldest: int
    """All laps below this one are free."""
    length: int
    """Bytes from the batch's start to the end of its last frame."""
    frame_count: int
    row_count: int
    table_crc: int
    chain: int
    """The physical chain before its first frame."""

    def pack(self) -> bytes:
        """The bytes of the header, with its crc last."""
        bare = BATCH.pack(BATCH_MAGIC, VERSION, self.flags, 0, *self[1:])
        return bare + BATCH_CRC.pack(crc32c(bare))


# --- frame and run ---------------------------------------------------------------------------------------

ENTRY: Final = Struct("<QQI")
"""term, offset, length: the head of an entry, before its bytes. A run is entries back to back. Its crc is the
crc of these bytes, seeded with the crc of the run before it. So the chain has a value after every entry, and
that value does not depend on how the entries were grouped into runs. Runs are also sent and replicated so."""
ENTRY_BYTES: Final = ENTRY.size
RUN: Final = Struct("<QQII")
"""offset, generation, count, length: the entries of the run, and this log's generation of the stream."""
LINK: Final = Struct("<II")
"""seed, crc: the stream's chain before and after the run."""
FRAME: Final = Struct("<4sBBHQQQQQ")
"""magic, kind, zeros, log id, boot, lap, batch, durable; the same in all frames of a kind in a batch."""
IDENTITY: Final = Struct("<QQQQ")
"""log id, boot, lap, batch: these bytes are equal in every frame of a batch."""
IDENTITY_AT: Final = 8
"""Where they begin in a frame."""
STREAM: Final = Struct("<Q")
CHECK: Final = Struct("<II")
"""physical chain, header crc."""
FRAME_MAGIC: Final = b"WFrm"
HEAD_BYTES: Final = FRAME.size + STREAM.size + RUN.size + LINK.size
"""Bytes of a frame header that the physical chain and the header crc cover."""
FRAME_BYTES: Final = HEAD_BYTES + CHECK.size
FRAME_ALIGN: Final = 8

HEAD: Final = Struct("<4sBBHQQQQQQQQIIIIII")
"""A whole frame header, for reading."""


class Kind(IntEnum):
    """The meaning of a frame in a log."""

    RUN = 1
    """Entries were appended."""
    COPY = 2
    """A run, copied from a segment that is to be freed. It does not change the state of its stream."""
    TRUNCATE = 3
    """Entries of older generations from its offset on are void. Its seed is the chain before that offset."""
    RESET = 4
    """The whole stream is void. It begins anew at the frame's offset, with the frame's seed as its chain."""
    DROP = 5
    """The stream was dropped."""
    BOOT = 6
    """A start of the process: the payload is nonce, kernel boot id and zeros."""


def newer_kind(kind: int) -> ConfigError:
    """The refusal of a log that has a frame of unknown `kind`."""
    return ConfigError(
        f"a log's frame of kind {kind} is of a newer version: use the program that wrote it. "
        "Nothing was changed"
    )


class FrameHeader(NamedTuple):
    """The header of a log's frame whose crc was verified."""

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
"""The stream number of boot frames; no domain may use it."""

BOOT: Final = Struct("<Q36sI")
"""Payload of a boot frame: nonce, kernel boot id, zeros."""


def boot_nonce(boot_id: bytes, drawn: int) -> int:
    """The nonce of a log's start: a checksum of the kernel's boot id, then random bits.

    Every batch carries the nonce, so every batch tells on which boot of the kernel it was written.

    Args:
        drawn: 32 random bits.
    """
    return crc32c(boot_id) << 32 | drawn


def is_of_kernel(nonce: int, boot_id: bytes) -> bool:
    """Whether the start with this nonce ran on the kernel with this boot id."""
    return nonce >> 32 == crc32c(boot_id)


def padding(length: int) -> int:
    """Bytes between a payload of `length` bytes and the next frame."""
    return -length % FRAME_ALIGN


def frame_bytes(length: int) -> int:
    """Bytes that a frame with a payload of `length` bytes occupies."""
    return FRAME_BYTES + length + padding(length)
