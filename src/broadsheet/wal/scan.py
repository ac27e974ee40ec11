"""Scan: the batch headers and frames that are found in a segment's bytes, damaged or not.

All sizes are in bytes. Batch headers begin at block borders. The scan verifies each checksum that can be
verified alone, and goes on behind damage. It does not decide whether something is missing: `recovery` does.
It keeps no state. Source: log.17.
"""

from collections.abc import Callable, Iterator, Sequence
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
    Kind,
    Row,
    frame_bytes,
)

STEP_BYTES: Final = 1 << 20
"""Bytes read at a time in a search. Reusing the memory is four times as fast as touching fresh pages."""


class Content:
    """The bytes of one segment file, read piece by piece."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        """Read by `read(begin, end)`."""
        self.read, self.size = read, size

    @classmethod
    def of(cls, data: bytes) -> "Content":
        """Content that is in memory already."""
        return cls(lambda begin, end: data[begin:end], len(data))

    def has(self, needle: bytes, at: int) -> bool:
        """Whether `needle`, which begins with 16 random bytes, occurs anywhere from `at` on."""
        rare, zeros = needle[:16], bytes(STEP_BYTES + len(needle) - 1)
        for begin in range(at, self.size, STEP_BYTES):
            window = self.read(begin, min(self.size, begin + STEP_BYTES + len(needle) - 1))
            # Free space is zeros. Comparing them whole is twenty times as fast as searching in them.
            if window != zeros and rare in window and needle in window:
                return True
        return False


class FoundFrame(NamedTuple):
    """A frame of a log whose header is whole."""

    at: int
    header: FrameHeader
    head_crc_input: memoryview
    """The bytes that the physical chain covers."""
    is_after_hole: bool
    """Whether the bytes before the frame could not be read, so that its chain cannot be checked."""
    is_payload_whole: bool
    """Whether the checksum of the payload matches."""

    @property
    def end(self) -> int:
        """Where the next frame begins."""
        return self.at + frame_bytes(self.header.length)

    @property
    def payload(self) -> tuple[int, int]:
        """Begin and end of the payload."""
        return self.at + FRAME_BYTES, self.at + FRAME_BYTES + self.header.length


def read_batch(content: Content, at: int) -> BatchHeader | None:
    """The header of the log's batch at `at`, rows verified; None if there is none, or a damaged one."""
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
    """Every whole batch header of a segment, of any log and lap, in order of place.

    Every block is examined, even if the segment seems free: one stale sector must not hide a lap.
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
    """The frame header at `at`; None if there is no frame, or a damaged one."""
    if data[at : at + 4] != FRAME_MAGIC or at + FRAME_BYTES > len(data):
        return None
    _, kind, _, _, *rest, chain, crc = HEAD.unpack_from(data, at)
    if crc32c(memoryview(data)[at : at + HEAD_BYTES]) != crc:
        return None
    return FrameHeader._make((kind, *rest, chain))


def frames(
    data: bytes, begin: int, end: int, accepts: Callable[[FrameHeader], bool], *, is_after_hole: bool
) -> Iterator[FoundFrame]:
    """A segment's frames in [begin, end) that `accepts` takes. Goes on behind bytes that it cannot read.

    Args:
        is_after_hole: whether the bytes before `begin` could not be read.
    """
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
    """The bytes behind the first damaged frame header of [begin, end); None if all headers are whole."""
    at = begin
    while at + FRAME_BYTES <= end:
        header = read_frame(data, at)
        if header is None:
            return data[at + FRAME_BYTES : next_magic(data, at + FRAME_ALIGN, end)]
        at += frame_bytes(header.length)
    return None


def first_gap(at: int, headers: Sequence[FrameHeader], end: int) -> tuple[int, int] | None:
    """The first entries of [at, end) that no run of a batch has; None if it has them all."""
    for header in headers:
        if header.kind in (Kind.TRUNCATE, Kind.RESET):
            at = header.offset
        elif header.kind == Kind.RUN:
            if header.offset > at:
                return at, header.offset
            at = header.offset + header.entries
    return (at, end) if at < end else None


def is_chained(frame: FoundFrame, chain: int) -> bool:
    """Whether the physical chain before the frame is `chain`."""
    return crc32c(frame.head_crc_input, chain) == frame.header.chain


def next_magic(data: bytes, at: int, end: int) -> int:
    """The next aligned place in [at, end) where a frame may begin; `end` if there is none."""
    while (at := data.find(FRAME_MAGIC, at, end)) >= 0:
        if at % FRAME_ALIGN == 0:
            return at
        at += 1
    return end


assert HEAD.size == FRAME_BYTES == HEAD_BYTES + CHECK.size, "the two views of a frame header agree"
