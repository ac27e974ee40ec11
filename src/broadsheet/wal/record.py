"""What a log gives back: records, what recovery made of a stream, and the state of the log for `doctor`."""

import msgspec

from broadsheet.base.types import Generation, LogStreamId, Offset
from broadsheet.errors import Corrupt, StoreUnhealthy
from broadsheet.wal.format import RowFlag
from broadsheet.wal.tale import Held, Verdict


class LogFull(StoreUnhealthy):
    """No segment can take the record; nothing of it was written. Trim, flush or free space, then retry."""


class StreamQuarantined(Corrupt):
    """The stream lost records that were durable. It takes no appends until `reset` or `drop`."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One append, as it was: `count` entries from `offset` on, in one payload."""

    offset: Offset
    count: int
    generation: Generation
    payload: bytes

    @property
    def next_offset(self) -> Offset:
        """The offset after its last entry."""
        return Offset(self.offset + self.count)


class Recovered(msgspec.Struct, frozen=True):
    """What the last start found of one stream."""

    stream: LogStreamId
    records: list[Record]
    """In order, without a gap, from `first_offset` up to `next_offset` (quarantined: up to the damage)."""
    first_offset: Offset
    """The lowest offset that was not trimmed. A trim since the last durable batch may be undone."""
    next_offset: Offset
    """Where the next append goes. Above the last record where the stream is quarantined."""
    generation: Generation
    """The stream's generation: appends carry this or a greater one."""
    crc: int
    """The stream's chain crc after its last record: what its next run is seeded with."""
    tail_cut: bool
    """It may have lost acknowledged records at its end (kv.6, journals.2), until `settle` or `reset`."""
    is_quarantined: bool
    """It lost records that were known durable: it must not serve, vote or lead until it was repaired (W6)."""
    suspects: list[Record] = []
    """By offset, what stands behind the damage: whole records, and records that fail their checksum. The log
    vouches for none of them; a domain takes only what sums of its own prove. Told by the start that finds the
    damage, and not for sure by later ones."""


class LogStatus(msgspec.Struct, frozen=True):
    """The state of one log, for `status`, metrics and `doctor`."""

    directory: str
    log_id: int
    segment_bytes: int
    segment_count: int
    """Segment files, those being prefilled included."""
    segment_free_count: int
    """Segments that the head may move into."""
    lap_oldest: int
    lap_head: int
    batch_count: int
    """Batches written by this process."""
    synced_bytes: int
    """Bytes made durable by this process, headers and padding included."""
    pending_bytes: int
    """Bytes waiting for the batch on its way."""
    sync_ns_last: int
    """How long the last write and sync took."""
    stream_count: int
    pinning: list[LogStreamId]
    """Streams that hold the oldest segment."""
    quarantined: list[LogStreamId]
    tail_cut: list[LogStreamId]
    quarantine_files: list[str]
    """Damaged bytes that were set aside; an operator may delete them after a repair."""
    is_out_of_space: bool
    """The disk refused space, and the log waits for it."""


def recovered_of(stream: LogStreamId, verdict: Verdict | None) -> Recovered:
    """What a domain is told of `stream`; an empty one where the log had nothing of it."""
    if verdict is None:
        nothing = Offset(0)
        return Recovered(stream, [], nothing, nothing, Generation(0), 0, tail_cut=False, is_quarantined=False)
    return Recovered(
        stream=stream,
        records=[_record(held) for held in verdict.held],
        first_offset=Offset(verdict.first),
        next_offset=Offset(verdict.point.next),
        generation=Generation(verdict.point.generation),
        crc=verdict.point.crc,
        tail_cut=bool(verdict.flags & RowFlag.TAIL_CUT),
        is_quarantined=bool(verdict.flags & RowFlag.QUARANTINED),
        suspects=[_record(held) for held in verdict.suspects],
    )


def _record(held: Held) -> Record:
    return Record(Offset(held.offset), held.end - held.offset, Generation(held.generation), held.payload)
