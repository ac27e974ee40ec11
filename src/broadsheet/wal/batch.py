"""A batch being collected: its place is fixed when it opens, its bytes when it is sealed and encoded.

Bytes throughout. OPEN --seal--> SEALED --encode--> bytes. While it is open, `room_for` answers exactly
whether a frame still fits, so that an append is refused before anything changed. The rows say where
each stream stands at the end of the batch: those that the batch touches, those that the batch before it
touched (so that the loss of one batch can be charged), and all streams where it is the first of a
segment or of a boot. It does no IO. Source: DESIGN 3.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import Buffer
from broadsheet.wal.config import BLOCK_BYTES
from broadsheet.wal.format import (
    BATCH_BYTES,
    CHECK,
    FRAME,
    FRAME_ALIGN,
    FRAME_BYTES,
    FRAME_MAGIC,
    ROW,
    BatchFlag,
    BatchHeader,
    Kind,
    Row,
    RowFlag,
    aligned,
    padding,
)
from broadsheet.wal.stream import Release, StreamState

JOIN_BYTES_MAX: Final = 1024
"""Payloads up to this are joined with their headers: a small copy is cheaper than a vector entry."""

ZEROS: Final = bytes(BLOCK_BYTES)
ROW_BYTES: Final = ROW.size
FIXED_BYTES: Final = BATCH_BYTES + FRAME_BYTES


class Frame(NamedTuple):
    """A frame of an open batch."""

    kind: Kind
    body: bytes
    """stream, run and link, as they stand in the header."""
    parts: Sequence[Buffer]
    length: int


class Encoded(NamedTuple):
    """A batch as it is written."""

    parts: list[Buffer]
    size: int
    """A multiple of 4 KiB."""
    chain: int
    """The physical chain after its last frame."""


class Batch:
    """One write to be."""

    def __init__(
        self, *, lap: int, index: int, at: int, limit: int, sequence: int, boot: int, is_full: bool
    ) -> None:
        """Open at `at` of the segment file `index`, which may be written up to `limit`."""
        self.lap, self.index, self.at, self.limit, self.sequence = lap, index, at, limit, sequence
        self.boot, self.is_full = boot, is_full
        self.frames: list[Frame] = []
        self.done: list[Callable[[], None]] = []
        self.releases: list[Release] = []
        """What may be unpinned once this batch is durable."""
        self.named: dict[int, None] = {}
        self.touched: dict[int, None] = {}
        self.rows: list[Row] = []
        self.is_sealed = False
        self.frames_bytes = self.payload_bytes = 0

    @property
    def size(self) -> int:
        """Bytes up to the end of its last frame."""
        return BATCH_BYTES + ROW.size * len(self.named) + self.frames_bytes

    @property
    def end(self) -> int:
        """Where the next batch may begin."""
        return aligned(self.at + self.size)

    def name(self, streams: Sequence[int]) -> None:
        """Have rows for `streams`, untouched."""
        self.named.update(dict.fromkeys(streams))

    def room_for(self, stream: int, length: int, *, batch_bytes_max: int) -> bool:
        """Whether one more frame of `stream` fits into the segment and below the limit of a batch."""
        size = FIXED_BYTES + ROW_BYTES * len(self.named) + self.frames_bytes + length
        size += -length % FRAME_ALIGN + (0 if stream in self.named else ROW_BYTES)
        return self.at + size <= self.limit and (size <= batch_bytes_max or not self.frames)

    def touch(self, stream: int) -> None:
        """Something about `stream` changed: say where it stands."""
        self.named[stream] = None
        self.touched[stream] = None

    def add(self, stream: int, frame: Frame) -> None:
        """Place a frame, which `room_for` has granted."""
        assert not self.is_sealed, f"batch {self.sequence} is sealed"
        self.named[stream] = self.touched[stream] = None
        self.frames.append(frame)
        length = frame[3]
        self.frames_bytes += FRAME_BYTES + length + -length % FRAME_ALIGN
        self.payload_bytes += length

    def seal(self, streams: dict[int, StreamState]) -> None:
        """Take no more frames: `streams` now stand where they stand at its end."""
        if self.is_sealed:
            return
        self.is_sealed = True
        self.rows = [
            streams[stream].row() if stream in streams else Row(stream, 0, 0, 0, 0, RowFlag.DROPPED)
            for stream in self.named
        ]

    def encode(self, *, log_id: int, durable: int, oldest: int, chain: int) -> Encoded:
        """Its bytes, given what is durable and free now. Payloads above 1 KiB are passed on uncopied."""
        assert self.is_sealed
        table = b"".join([ROW.pack(*row) for row in self.rows])
        size = BATCH_BYTES + len(table) + self.frames_bytes
        header = BatchHeader(
            flags=BatchFlag.FULL if self.is_full else 0,
            log_id=log_id,
            boot=self.boot,
            lap=self.lap,
            batch=self.sequence,
            at=self.at,
            durable=durable,
            oldest=oldest,
            length=size,
            frame_count=len(self.frames),
            row_count=len(self.rows),
            table_crc=crc32c(table),
            chain=chain,
        )
        heads = {
            kind: FRAME.pack(
                FRAME_MAGIC, kind, 0, 0, log_id, self.boot, self.lap, self.sequence, durable
            )
            for kind in Kind
        }  # fmt: skip
        small: list[Buffer] = [header.pack(), table]
        parts: list[Buffer] = []
        for kind, body, payload, length in self.frames:
            head = heads[kind] + body
            chain = crc32c(head, chain)
            small.append(head + CHECK.pack(chain, crc32c(head)))
            if length > JOIN_BYTES_MAX:
                parts.append(b"".join(small))
                parts.extend(payload)
                small = []
            else:
                small.extend(payload)
            if pad := padding(length):
                small.append(ZEROS[:pad])
        end = aligned(size)
        small.append(ZEROS[: end - size])
        parts.append(b"".join(small))
        return Encoded(parts, end, chain)
