"""What a log gives back: records, what recovery made of a stream, and the state of the log for `doctor`."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import Buffer, Generation, LogStreamId, Offset, Term
from broadsheet.errors import Corrupt, StoreUnhealthy
from broadsheet.wal.format import ENTRY, ENTRY_BYTES, RowFlag
from broadsheet.wal.stream_replay import Suspect, Verdict


class LogFull(StoreUnhealthy):
    """No segment can take the record; nothing of it was written. Trim, flush or free space, then retry."""


class StreamQuarantined(Corrupt):
    """The stream lost records that were durable. It takes no appends until `reset` or `drop`."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One entry of a stream: what was appended."""

    offset: Offset
    term: Term
    payload: bytes

    @property
    def next_offset(self) -> Offset:
        """The offset after it."""
        return Offset(self.offset + 1)


class Run(msgspec.Struct, frozen=True, gc=False):
    """Whole entries of one stream, back to back, as they are written, sent and replicated."""

    offset: Offset
    """Of its first entry."""
    count: int
    seed: int
    """The stream's chain before its first entry."""
    crc: int
    """The chain after its last entry: the crc32c of `data`, seeded with `seed`."""
    data: bytes
    """Of each entry: term 8, offset 8, length 4, then its bytes."""

    @classmethod
    def of(cls, records: Sequence[Buffer], *, offset: Offset, seed: int, term: Term = Term(0)) -> "Run":
        """A run of `records`, summed."""
        data = b"".join(entries(records, offset=offset, term=term))
        return cls(offset, len(records), seed, crc32c(data, seed), data)

    @property
    def next_offset(self) -> Offset:
        """The offset after its last entry."""
        return Offset(self.offset + self.count)

    def records(self) -> Iterator[Record]:
        """Its entries, one by one.

        Raises:
            Corrupt: it is not of entries, whatever its sum says.
        """
        at, data = 0, self.data
        for offset in range(self.offset, self.next_offset):
            if at + ENTRY_BYTES > len(data):
                raise Corrupt(f"a run of {self.count} entries from {self.offset} ends within entry {offset}")
            term, told, length = ENTRY.unpack_from(data, at)
            begin, at = at + ENTRY_BYTES, at + ENTRY_BYTES + length
            if told != offset or at > len(data):
                raise Corrupt(f"entry {offset} of a run from {self.offset} says {told}, {length} bytes")
            yield Record(Offset(offset), Term(term), data[begin:at])
        if at != len(data):
            raise Corrupt(f"a run of {self.count} entries from {self.offset} has {len(data) - at} bytes more")

    def since(self, offset: Offset) -> "Run":
        """Its part from `offset` on, which it holds."""
        if offset == self.offset:
            return self
        at = after_entries(self.data, offset - self.offset)
        if at is None:
            raise Corrupt(f"a run of {self.count} entries from {self.offset} is not of entries")
        seed = crc32c(memoryview(self.data)[:at], self.seed)
        return Run(offset, self.next_offset - offset, seed, self.crc, self.data[at:])

    def within(self, bytes_max: int) -> "Run":
        """Its first entries, as many as `bytes_max` holds, and at least one."""
        if len(self.data) <= bytes_max:
            return self
        at = count = 0
        while count < self.count:
            length = ENTRY_BYTES + ENTRY.unpack_from(self.data, at)[2]
            if count and at + length > bytes_max:
                break
            at, count = at + length, count + 1
        data = self.data[:at]
        return Run(self.offset, count, self.seed, crc32c(data, self.seed), data)


def entries(records: Sequence[Buffer], *, offset: int, term: int) -> list[Buffer]:
    """The parts of a run of `records`: a head before each."""
    parts: list[Buffer] = []
    pack = ENTRY.pack
    for record in records:
        parts += (pack(term, offset, len(record)), record)
        offset += 1
    return parts


def after_entries(data: bytes, count: int) -> int | None:
    """Where the first `count` entries of a run's `data` end; None where it does not hold so many."""
    at = 0
    for _ in range(count):
        if at + ENTRY_BYTES > len(data):
            return None
        at += ENTRY_BYTES + ENTRY.unpack_from(data, at)[2]
    return at if at <= len(data) else None


class Recovered(msgspec.Struct, frozen=True):
    """What the last start found of one stream."""

    stream: LogStreamId
    first_offset: Offset
    """The lowest offset that was not trimmed. A trim since the last durable batch may be undone."""
    end_offset: Offset
    """The offset after the last record that is there: all from `first_offset` to it can be read back."""
    next_offset: Offset
    """Where the next append goes. Above `end_offset` where the stream is quarantined."""
    generation: Generation
    """The stream's generation: appends carry this or a greater one."""
    record_generation: Generation | None
    """That of its last record; None where there is none."""
    crc: int
    """The stream's chain crc after its last record: what its next run is seeded with."""
    tail_cut: bool
    """It may have lost acknowledged records at its end (kv.6, journals.2), until `settle` or `reset`."""
    is_quarantined: bool
    """It lost records that were known durable: it must not serve, vote or lead until it was repaired (W6)."""
    is_end_lost: bool = False
    """It is quarantined, and may have had records from `next_offset` on: batches are gone."""
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
        return Recovered(
            stream, nothing, nothing, nothing, Generation(0), None, 0, tail_cut=False, is_quarantined=False
        )
    return Recovered(
        stream=stream,
        first_offset=Offset(verdict.first),
        end_offset=Offset(max(verdict.first, verdict.held[-1].end) if verdict.held else verdict.first),
        next_offset=Offset(verdict.point.next),
        generation=Generation(verdict.point.generation),
        record_generation=Generation(verdict.held[-1].generation) if verdict.held else None,
        crc=verdict.point.crc,
        tail_cut=bool(verdict.flags & RowFlag.TAIL_CUT),
        is_quarantined=bool(verdict.flags & RowFlag.QUARANTINED),
        is_end_lost=bool(verdict.flags & RowFlag.END_LOST),
        suspects=[
            record
            for each in verdict.suspects
            if isinstance(each, Suspect)
            for record in suspect_records(each)
        ],
    )


def suspect_records(run: Suspect) -> Iterator[Record]:
    """What may have been the entries of a run: of one, all bytes behind the head, whatever the head says."""
    if run.end - run.offset == 1:
        term = ENTRY.unpack_from(run.data)[0] if len(run.data) >= ENTRY_BYTES else 0
        yield Record(Offset(run.offset), Term(term), run.data[ENTRY_BYTES:])
        return
    with suppress(Corrupt):
        yield from Run(Offset(run.offset), run.end - run.offset, 0, 0, run.data).records()
