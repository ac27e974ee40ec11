"""Record: the values that a log returns: records and runs, what recovery found of a stream, the log's status.

Offsets count a stream's entries; sizes are in bytes. It does no IO. Source: log.3, log.11.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import Buffer, Generation, LogStreamId, Offset, Term
from broadsheet.errors import Corrupt, StoreUnhealthy
from broadsheet.wal.format import ENTRY, ENTRY_BYTES, FRAME_ALIGN, RowFlag
from broadsheet.wal.stream_replay import Suspect, Verdict


class LogFull(StoreUnhealthy):
    """No segment has room for the record; none of it was written. Trim, flush or free space, then retry."""


class StreamQuarantined(Corrupt):
    """The stream lost durable records. It takes no appends until `reset` or `drop`."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One entry of a log stream: the payload that was appended, with its offset and term."""

    offset: Offset
    term: Term
    payload: bytes

    @property
    def next_offset(self) -> Offset:
        """The offset after the entry."""
        return Offset(self.offset + 1)


class Run(msgspec.Struct, frozen=True, gc=False):
    """Whole entries of one log stream, back to back, in the form in which they are written and sent."""

    offset: Offset
    """Offset of the first entry."""
    count: int
    """Number of entries."""
    seed: int
    """The stream's chain before the first entry."""
    crc: int
    """The chain after the last entry: the crc32c of `data`, seeded with `seed`."""
    data: bytes
    """For each entry: term (8 bytes), offset (8), length (4), then its payload."""

    @classmethod
    def of(cls, records: Sequence[Buffer], *, offset: Offset, seed: int, term: Term = Term(0)) -> "Run":
        """A run of `records`, with its checksum."""
        data = b"".join(entries(records, offset=offset, term=term))
        return cls(offset, len(records), seed, crc32c(data, seed), data)

    @property
    def next_offset(self) -> Offset:
        """The offset after the last entry."""
        return Offset(self.offset + self.count)

    def records(self) -> Iterator[Record]:
        """The entries of the run, one by one.

        Raises:
            Corrupt: the data is not a sequence of entries, even if its checksum matches.
        """
        at, data = 0, self.data
        for offset in range(self.offset, self.next_offset):
            if at + ENTRY_BYTES > len(data):
                raise Corrupt(f"a run of {self.count} entries from {self.offset} ends inside entry {offset}")
            term, told, length = ENTRY.unpack_from(data, at)
            begin, at = at + ENTRY_BYTES, at + ENTRY_BYTES + length
            if told != offset or at > len(data):
                raise Corrupt(
                    f"entry {offset} of a run from {self.offset} says that it is {told}, {length} bytes long"
                )
            yield Record(Offset(offset), Term(term), data[begin:at])
        if at != len(data):
            raise Corrupt(
                f"a run of {self.count} entries from {self.offset} has {len(data) - at} bytes after its last"
            )

    def since(self, offset: Offset) -> "Run":
        """The part of the run from `offset` on. The run must hold `offset`."""
        if offset == self.offset:
            return self
        at = after_entries(self.data, offset - self.offset)
        if at is None:
            raise Corrupt(f"a run of {self.count} entries from {self.offset} does not consist of entries")
        seed = crc32c(memoryview(self.data)[:at], self.seed)
        return Run(offset, self.next_offset - offset, seed, self.crc, self.data[at:])

    def within(self, bytes_max: int) -> "Run":
        """The first entries of the run, as many as fit into `bytes_max`, and at least one."""
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
    """Where the first `count` entries of a run's `data` end; None if it holds fewer."""
    at = 0
    for _ in range(count):
        if at + ENTRY_BYTES > len(data):
            return None
        at += ENTRY_BYTES + ENTRY.unpack_from(data, at)[2]
    return at if at <= len(data) else None


class Recovered(msgspec.Struct, frozen=True):
    """What the last start found of one log stream."""

    stream: LogStreamId
    first_offset: Offset
    """The lowest offset that was not trimmed. A trim after the last durable batch may be undone."""
    end_offset: Offset
    """The offset after the last record that was found: all from `first_offset` to here can be read back."""
    next_offset: Offset
    """The offset of the next append. It may be above `end_offset` if the stream is quarantined."""
    generation: Generation
    """The stream's generation: appends carry this or a greater one."""
    record_generation: Generation | None
    """The generation of the last record; None if there is no record."""
    crc: int
    """The stream's chain crc after its last record. The next run is seeded with it."""
    tail_cut: bool
    """The stream may have lost acknowledged records at its end (kv.6, journals.2). Cleared by `settle` and
    `reset`."""
    is_quarantined: bool
    """The stream lost records that were known durable: it must not serve, vote or lead till repaired (W6)."""
    is_cut_doubtful: bool = False
    """The records that were cut may have been acknowledged: no reboot came before the start that found the
    cut first. Otherwise a power cut tore them."""
    is_end_lost: bool = False
    """The stream is quarantined, and batches are gone that may have held records from `next_offset` on."""
    suspects: list[Record] = []
    """Records behind the damage, by offset: some are whole, some fail their checksum. The log vouches for
    none of them; a domain may take only those that its own checksums prove. The start that finds the damage
    tells them. Until the domain has dealt with a cut, later starts tell them again, from the files in which
    they were set aside. Of a quarantined stream later starts may tell fewer."""


class LogStatus(msgspec.Struct, frozen=True):
    """The state of one log, for `status`, metrics and `doctor`."""

    directory: str
    log_id: int
    segment_bytes: int
    segment_count: int
    """Segment files, including those that are being filled."""
    segment_free_count: int
    """Segments that the head may move into."""
    lap_oldest: int
    lap_head: int
    batch_count: int
    """Batches written by this process."""
    synced_bytes: int
    """Bytes made durable by this process, including headers and padding."""
    pending_bytes: int
    """Payload bytes that are not durable yet."""
    sync_ns_last: int
    """How long the last write and sync took."""
    pinning: list[LogStreamId]
    """Streams that pin the oldest segment."""
    quarantined: list[LogStreamId]
    tail_cut: list[LogStreamId]
    quarantine_files: list[str]
    """Files of damaged bytes that were set aside; an operator may delete them after a repair."""
    is_out_of_space: bool
    """The disk refused space, and the log waits for it."""


def recovered_of(stream: LogStreamId, verdict: Verdict | None, *, is_same_boot: bool = False) -> Recovered:
    """The verdict on `stream` in the form for its domain; empty if the log had nothing of the stream.

    Args:
        is_same_boot: the kernel has not rebooted since the log was written.
    """
    if verdict is None:
        nothing = Offset(0)
        return Recovered(
            stream, nothing, nothing, nothing, Generation(0), None, 0, tail_cut=False, is_quarantined=False
        )
    tail_cut = bool(verdict.flags & RowFlag.TAIL_CUT)
    return Recovered(
        stream=stream,
        first_offset=Offset(verdict.first),
        end_offset=Offset(max(verdict.first, verdict.held[-1].end) if verdict.held else verdict.first),
        next_offset=Offset(verdict.point.next),
        generation=Generation(verdict.point.generation),
        record_generation=Generation(verdict.held[-1].generation) if verdict.held else None,
        crc=verdict.point.crc,
        tail_cut=tail_cut,
        is_quarantined=bool(verdict.flags & RowFlag.QUARANTINED),
        is_cut_doubtful=tail_cut and (is_same_boot or verdict.is_cut_told),
        is_end_lost=bool(verdict.flags & RowFlag.END_LOST),
        suspects=[
            record
            for each in verdict.suspects
            if isinstance(each, Suspect)
            for record in suspect_records(each)
        ],
    )


def suspect_records(run: Suspect) -> Iterator[Record]:
    """The records that a suspect run may have held.

    If the run had one entry, all bytes behind the entry's head are its payload, whatever length the head
    says: the head may be the damaged part. But padding that a damaged frame header left behind the payload is
    cut off.
    """
    if run.end - run.offset == 1:
        if len(run.data) < ENTRY_BYTES:
            yield Record(Offset(run.offset), Term(0), b"")
            return
        term, offset, length = ENTRY.unpack_from(run.data)
        payload = run.data[ENTRY_BYTES:]
        if offset == run.offset and 0 < len(payload) - length < FRAME_ALIGN:
            payload = payload[:length]
        yield Record(Offset(run.offset), Term(term), payload)
        return
    with suppress(Corrupt):
        yield from Run(Offset(run.offset), run.end - run.offset, 0, 0, run.data).records()
