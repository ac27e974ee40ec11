"""Batch: the frames and rows of one write, collected until the batch is sealed and encoded.

All sizes are in bytes. OPEN --seal--> SEALED --encode--> bytes. The place of a batch is fixed when it opens.
While it is open, `room_for` tells exactly whether a frame still fits, so an append is refused before anything
has changed. A row holds the state of one stream at the end of the batch. A batch has rows for the streams
that it changes, and for those that the batch before it changed, so that the loss of one batch can be charged
to its streams. The first batches of a segment and the first batch of a boot have rows for all streams. This
module does no IO. Source: log.2, log.5.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    RowFlag,
    aligned,
)
from broadsheet.wal.pool import Lap
from broadsheet.wal.stream import Release, StreamState, Table

JOINED_PAYLOAD_BYTES_MAX: Final = 1024
"""Payloads up to this are joined with their headers: a small copy is cheaper than a vector entry."""

ZEROS: Final = bytes(BLOCK_BYTES)
ROW_BYTES: Final = ROW.size
FIXED_BYTES: Final = BATCH_BYTES + FRAME_BYTES


Frame = tuple[Kind, bytes, Sequence[Buffer], int]
"""A frame of an open batch: kind; stream, run and link, packed for the header; payload; payload length.

This is a bare tuple, because every append makes one: a named tuple costs half a microsecond more.
"""


class Encoded(NamedTuple):
    """The bytes of a sealed batch of the log."""

    parts: list[Buffer]
    size: int
    """A multiple of 4 KiB."""
    chain: int
    """The physical chain after its last frame."""
    frame_count: int


class Everyone(dict[int, None]):
    """The streams of a batch that has rows for all of them: its own keys, and every stream of the log."""

    __slots__ = ("_streams",)

    def __init__(self, streams: Mapping[int, object]) -> None:
        super().__init__()
        self._streams = streams

    def __contains__(self, stream: object) -> bool:
        return super().__contains__(stream) or stream in self._streams


class Batch:
    """One batch of the log that is being collected for a write."""

    __slots__ = (
        "at", "body", "boot", "bytes_max", "copied", "done", "filled", "flags", "frame_at", "frames",
        "hides_trims", "index", "is_full", "is_sealed", "lap", "limit", "named", "oldest", "opened_at",
        "payload_bytes", "releases", "row_count", "sequence", "size", "table", "touched", "use",
    )  # fmt: skip

    def __init__(
        self,
        *,
        lap: int,
        use: Lap,
        at: int,
        filled: int,
        bytes_max: int,
        sequence: int,
        boot: int,
        everyone: Mapping[int, object] | None,
        loss: int = 0,
        opened_at: int = 0,
    ) -> None:
        """Open the batch `at` bytes into the segment of `use`, which is filled up to `filled`.

        Args:
            everyone: all streams, if the batch has rows for all of them; otherwise None.
            loss: flags of `BatchFlag` about what the log lost, for a batch that has rows for all streams.
            bytes_max: the size above which a batch takes no further frame. The first frame is always taken.
        """
        self.lap, self.use, self.at, self.sequence = lap, use, at, sequence
        self.opened_at = opened_at
        self.filled = self.limit = filled
        """`filled` is the end up to which relief may write into the segment. `limit` is the same end for
        appends, and 0 while appends are refused."""
        self.bytes_max = bytes_max
        self.index = use.index
        self.boot, self.is_full = boot, everyone is not None
        self.flags = int(BatchFlag.FULL) | loss if self.is_full else 0
        self.frames: list[Frame] = []
        self.done: list[Callable[[], None]] = []
        self.releases: list[Release] = []
        """Runs that are unpinned once this batch is durable."""
        self.named: dict[int, None] = {} if everyone is None else Everyone(everyone)
        self.touched: dict[int, None] = {}
        """`named`: the streams that have a row. `touched`: those of them that this batch changes."""
        self.table = b""
        """The packed rows; empty until the batch is sealed."""
        self.row_count = 0
        self.oldest = 0
        """All laps below this one are free, according to the rows of this batch and of earlier ones."""
        self.is_sealed = self.hides_trims = False
        """`hides_trims`: a stream begins anew in this batch, so no row tells what was trimmed of it."""
        self.payload_bytes = 0
        self.body = self.frame_at = 0
        """`body`: bytes of all frames. `frame_at`: bytes of the frames before the one that was taken last."""
        self.copied: list[tuple[StreamState, int]] = []
        """The runs that were copied into this batch: stream, and first offset."""
        self.size = BATCH_BYTES + ROW_BYTES * len(everyone or ())
        """Bytes from the start of the batch to the end of its last frame."""

    @property
    def end(self) -> int:
        """Where the next batch may begin."""
        return aligned(self.at + self.size)

    def name(self, streams: Iterable[int]) -> None:
        """Add rows for `streams`, which this batch does not change."""
        if not self.is_full:  # Nearly every batch; it follows one that may have changed hundreds of streams.
            known = len(self.named)
            self.named.update(dict.fromkeys(streams))
            self.size += ROW_BYTES * (len(self.named) - known)
            return
        for stream in streams:
            if stream not in self.named:
                self.size += ROW_BYTES
            self.named[stream] = None

    def touch(self, stream: int) -> None:
        """Add a row for `stream`, which this batch changes."""
        self.name((stream,))
        self.touched[stream] = None

    def room_for(self, stream: int, length: int, *, is_relief: bool, kept: int = 0) -> bool:
        """Whether one more frame of `stream` fits into the segment and below the limit of a batch.

        Args:
            kept: bytes that must stay free behind the batch.
        """
        size = self.size + FRAME_BYTES + length + -length % FRAME_ALIGN
        if stream not in self.named:
            size += ROW_BYTES
        limit = self.filled if is_relief else self.limit
        end = aligned(self.at + size) + kept if kept else self.at + size
        return end <= limit and (size <= self.bytes_max or not self.frames)

    def take(self, stream: int, frame: Frame) -> bool:
        """Place a frame in the batch; False, with nothing changed, if there is no room or it is sealed.

        The checks of `room_for` are repeated here, in one function, because this is the path of every append.
        """
        length, named = frame[3], self.named
        taken = FRAME_BYTES + length + -length % FRAME_ALIGN
        size = self.size + taken
        if stream not in named:
            size += ROW_BYTES
        if self.is_sealed or self.at + size > self.limit or (size > self.bytes_max and self.frames):
            return False
        named[stream] = self.touched[stream] = None
        self.frames.append(frame)
        self.size = size
        self.frame_at = self.body
        self.body += taken
        self.payload_bytes += length
        return True

    def add(self, stream: int, frame: Frame) -> None:
        """Place a frame after `room_for` has said that it fits."""
        limit, self.limit = self.limit, self.filled
        is_taken = self.take(stream, frame)
        self.limit = limit
        assert is_taken, f"batch {self.sequence} has no room for {frame[3]} bytes, or is sealed"

    def seal(
        self, streams: dict[int, StreamState], table: Table, *, changed: Iterable[int], oldest: int
    ) -> None:
        """Take no more frames, and pack the rows: the batch ends with `streams` in their present state.

        Args:
            table: the rows of all streams after the batches before this one.
            changed: streams that changed without a frame, for example by a trim.
            oldest: the lap below which all laps are free.
        """
        assert not self.is_sealed, f"batch {self.sequence} is sealed already"
        self.is_sealed, self.oldest = True, oldest
        if self.is_full:
            self.name(changed)
        rows = [
            state.row() if (state := streams.get(stream)) is not None else _dropped(stream)
            for stream in self.named
        ]
        table.put_all(self.named, rows)
        is_dropped = not self.named.keys() <= streams.keys()
        dropped = [stream for stream in self.named if stream not in streams] if is_dropped else []
        for stream in dropped:
            table.drop(stream)
        if self.is_full:
            rows = [*map(_dropped, dropped), table.packed()]
        self.table = b"".join(rows)
        self.row_count = len(self.table) // ROW_BYTES
        base = self.at + BATCH_BYTES + ROW_BYTES * self.row_count
        assert base + self.body == self.at + self.size, f"batch {self.sequence} has no room for its rows"
        for stream in self.touched:
            if stream in streams:
                streams[stream].sealed(base)
        for state, end in self.copied:
            state.moved(end, base)

    def encode(self, *, log_id: int, durable: int, chain: int) -> Encoded:
        """The bytes of the log's batch. Payloads above 1 KiB are passed on without a copy.

        Args:
            durable: position through which the log is durable now.
            chain: the physical chain before the first frame.
        """
        assert self.is_sealed
        table = self.table
        size = self.size
        header = BatchHeader(
            flags=self.flags,
            log_id=log_id,
            boot=self.boot,
            lap=self.lap,
            batch=self.sequence,
            at=self.at,
            durable=durable,
            oldest=self.oldest,
            length=size,
            frame_count=len(self.frames),
            row_count=self.row_count,
            table_crc=crc32c(table),
            chain=chain,
        )
        small: list[Buffer] = [header.pack(), table]
        parts: list[Buffer] = []
        common, common_kind = b"", None
        for kind, body, payload, length in self.frames:
            if kind is not common_kind:  # Nearly all frames of a batch are of one kind.
                common_kind = kind
                common = FRAME.pack(
                    FRAME_MAGIC, kind, 0, 0, log_id, self.boot, self.lap, self.sequence, durable
                )
            head = common + body
            chain = crc32c(head, chain)
            head += CHECK.pack(chain, crc32c(head))
            if length <= JOINED_PAYLOAD_BYTES_MAX:
                small.append(head)
                small += payload
            else:
                if small:
                    small.append(head)
                    head = b"".join(small)
                    small.clear()
                parts.append(head)
                parts += payload
            if pad := -length % FRAME_ALIGN:
                small.append(ZEROS[:pad])
        end = aligned(size)
        small.append(ZEROS[: end - size])
        parts.append(b"".join(small))
        return Encoded(parts, end, chain, len(self.frames))


def end_mark_bytes(rows: int) -> int:
    """The bytes of a batch without frames, with at most so many rows and one more."""
    return aligned(FIXED_BYTES + ROW_BYTES * (rows + 1))


def _dropped(stream: int) -> bytes:
    return ROW.pack(stream, 0, 0, 0, 0, RowFlag.DROPPED)
