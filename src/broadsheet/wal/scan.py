"""Reading a segment's bytes: batch headers at block borders, frames between them, damaged or not.

Bytes throughout. It verifies each checksum that can be verified alone and goes on behind damage;
whether something is missing, and what that means, is for `recovery`. It keeps no state. Source: log.17.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from broadsheet.base.checksum import crc32c
from broadsheet.wal.config import BLOCK_BYTES
from broadsheet.wal.format import (
    BATCH,
    BATCH_BYTES,
    BATCH_CRC,
    BATCH_MAGIC,
    CHECK,
    FRAME_ALIGN,
    FRAME_BYTES,
    FRAME_MAGIC,
    HEAD,
    HEAD_BYTES,
    ROW,
    VERSION,
    BatchHeader,
    FrameHeader,
    Row,
    frame_bytes,
)

STEP_BYTES: Final = 1 << 20
"""Read at a time where most is free space: memory that is used again is four times as fast as fresh pages."""


class Content:
    """The bytes of one segment file, read piece by piece."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        """Read by `read(begin, end)`."""
        self.read, self.size = read, size

    @classmethod
    def of(cls, data: bytes) -> "Content":
        """What is in memory already."""
        return cls(lambda begin, end: data[begin:end], len(data))

    def has(self, needle: bytes, at: int) -> bool:
        """Whether `needle`, which begins with 16 random bytes, stands anywhere behind `at`."""
        rare, zeros = needle[:16], bytes(STEP_BYTES + len(needle) - 1)
        for begin in range(at, self.size, STEP_BYTES):
            window = self.read(begin, min(self.size, begin + STEP_BYTES + len(needle) - 1))
            # Zeros are compared, because searching them byte by byte takes twenty times as long.
            if window != zeros and rare in window and needle in window:
                return True
        return False


class FoundFrame(NamedTuple):
    """A frame whose header is whole."""

    at: int
    header: FrameHeader
    head_crc_input: memoryview
    """What the physical chain covers."""
    is_after_hole: bool
    """Bytes before it could not be read, so its chain cannot be checked."""
    is_payload_whole: bool

    @property
    def end(self) -> int:
        """Where the next frame begins."""
        return self.at + frame_bytes(self.header.length)

    @property
    def payload(self) -> tuple[int, int]:
        """Where its payload lies."""
        return self.at + FRAME_BYTES, self.at + FRAME_BYTES + self.header.length


def read_batch(content: Content, at: int) -> BatchHeader | None:
    """The head of the batch at `at`, its rows verified; None where there is none, or a damaged one."""
    head = content.read(at, at + BATCH_BYTES)
    if head[:4] != BATCH_MAGIC or len(head) < BATCH_BYTES:
        return None
    (crc,) = BATCH_CRC.unpack_from(head, BATCH.size)
    if crc32c(memoryview(head)[: BATCH.size]) != crc:
        return None
    _, version, flags, _, *rest = BATCH.unpack_from(head)
    header = BatchHeader(flags, *rest)
    table_end = at + BATCH_BYTES + ROW.size * header.row_count
    if version != VERSION or header.at != at or max(at + header.length, table_end) > content.size:
        return None
    if crc32c(content.read(at + BATCH_BYTES, table_end)) != header.table_crc:
        return None
    return header


def rows(batch: bytes, count: int) -> list[Row]:
    """The `count` rows of a batch that `read_batch` has verified."""
    table = memoryview(batch)[BATCH_BYTES : BATCH_BYTES + ROW.size * count]
    return [Row._make(row) for row in ROW.iter_unpack(table)]


def batches(content: Content) -> Iterator[BatchHeader]:
    """Every whole batch header of a segment, of whatever log and lap, in order of place.

    Each block is looked at, also in segments that seem free: one stale sector must not hide a lap.
    """
    for begin in range(0, content.size, STEP_BYTES):
        window = content.read(begin, min(content.size, begin + STEP_BYTES))
        firsts = window[0::BLOCK_BYTES]
        block = firsts.find(BATCH_MAGIC[0], 0 if begin else 1)
        while block >= 0:
            at = block * BLOCK_BYTES
            is_magic = window[at : at + 4] == BATCH_MAGIC
            if is_magic and (found := read_batch(content, begin + at)) is not None:
                yield found
            block = firsts.find(BATCH_MAGIC[0], block + 1)


def read_frame(data: bytes, at: int) -> FrameHeader | None:
    """The frame header at `at`; None where there is none, or a damaged one."""
    if data[at : at + 4] != FRAME_MAGIC or at + FRAME_BYTES > len(data):
        return None
    _, kind, _, _, *rest, chain, crc = HEAD.unpack_from(data, at)
    if crc32c(memoryview(data)[at : at + HEAD_BYTES]) != crc:
        return None
    return FrameHeader._make((kind, *rest, chain))


def frames(
    data: bytes, begin: int, end: int, accepts: Callable[[FrameHeader], bool], *, is_after_hole: bool
) -> Iterator[FoundFrame]:
    """The frames of [begin, end) that `accepts`, each whole within it. Goes on behind what it cannot read."""
    view = memoryview(data)
    at = begin
    while at + FRAME_BYTES <= end:
        header = read_frame(data, at)
        if header is None or not accepts(header) or at + FRAME_BYTES + header.length > end:
            is_after_hole = True
            at = next_magic(data, at + FRAME_ALIGN, end)
            continue
        body = at + FRAME_BYTES
        crc = crc32c(view[body : body + header.length], header.seed)
        yield FoundFrame(at, header, view[at : at + HEAD_BYTES], is_after_hole, crc == header.crc)
        is_after_hole = False
        at += frame_bytes(header.length)


def unread_frame(data: bytes, begin: int, end: int) -> bytes | None:
    """What stands behind the first damaged frame header of [begin, end); None where all are whole."""
    at = begin
    while at + FRAME_BYTES <= end:
        header = read_frame(data, at)
        if header is None:
            return data[at + FRAME_BYTES : next_magic(data, at + FRAME_ALIGN, end)]
        at += frame_bytes(header.length)
    return None


def is_chained(frame: FoundFrame, chain: int) -> bool:
    """Whether the frame follows what gave `chain`."""
    return crc32c(frame.head_crc_input, chain) == frame.header.chain


def next_magic(data: bytes, at: int, end: int) -> int:
    """The next aligned place in [at, end) where a frame may begin; `end` where there is none."""
    while (at := data.find(FRAME_MAGIC, at, end)) >= 0:
        if at % FRAME_ALIGN == 0:
            return at
        at += 1
    return end


assert HEAD.size == FRAME_BYTES == HEAD_BYTES + CHECK.size, "the two views of a frame header agree"
