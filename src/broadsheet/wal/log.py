"""Log: many logical streams in one sequence of segments, with one write and one sync for all of a turn.

Offsets count a stream's entries from 0; generations only rise; all sizes are in bytes. CLOSED --open--> OPEN
--close--> CLOSED; OPEN --a failed write or sync--> DEAD: the process must end. While one batch is being
written, the next one collects. A truncation or a copy unpins the old records only when it is durable itself.
A write that the disk refused because it is full is repeated whole, at the same place. A write that failed
ends the process. One class owns all state; `SegmentReclaimer` frees segments. `append_many`, `append_run`,
`entry` and `truncate` are for replication: so far only tests and the simulator call them. Source:
`docs/protocols/wal.md`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import takewhile
from typing import Final

import msgspec

from broadsheet.base.checksum import crc32c, crc32c_of
from broadsheet.base.marks import hit
from broadsheet.base.time import Duration, Instant, in_seconds, since
from broadsheet.base.types import Buffer, Generation, LogStreamId, Offset, Term
from broadsheet.errors import LocalProtocolError, OffsetNotYetAvailable, Throttled, TooLarge, Trimmed
from broadsheet.ports import NO_SPACE, Disk, Random, Time
from broadsheet.runtime.checking import checker
from broadsheet.runtime.failpoints import passed
from broadsheet.runtime.scope import Crash, Scope
from broadsheet.runtime.slices import Slices
from broadsheet.runtime.turn import Rank, Turn
from broadsheet.wal.batch import JOINED_PAYLOAD_BYTES_MAX, Batch, Encoded, end_mark_bytes
from broadsheet.wal.config import BLOCK_BYTES, WALConfig
from broadsheet.wal.format import (
    BATCH_BYTES,
    BOOT,
    ENTRY,
    ENTRY_BYTES,
    LINK,
    ROW,
    RUN,
    STREAM,
    SYSTEM_STREAM,
    BatchFlag,
    FrameHeader,
    Kind,
    RowFlag,
    aligned,
    boot_nonce,
    frame_bytes,
    is_of_kernel,
    position,
)
from broadsheet.wal.opening import OpenedLog, open_files, set_aside, set_aside_if_room
from broadsheet.wal.pool import Pool
from broadsheet.wal.reading import EntryChain, read_places
from broadsheet.wal.reclaimer import SegmentReclaimer
from broadsheet.wal.record import (
    LogFull,
    LogStatus,
    Record,
    Recovered,
    Run,
    StreamQuarantined,
    entries,
    recovered_of,
)
from broadsheet.wal.recovery import Damage
from broadsheet.wal.segments import LATER
from broadsheet.wal.step_times import Step, StepTimes
from broadsheet.wal.stream import LOST, OPEN, Place, Release, StreamState, Table
from broadsheet.wal.vouching import VouchTimer

Done = Callable[[], None]
"""Called on the loop when the records that were appended with it are durable; otherwise never called."""

COUNT_MAX: Final = (1 << 32) - 1
READ_BYTES: Final = 1 << 20
"""Bytes that a recovering domain reads back in one go."""
KIND_RUN: Final = Kind.RUN
PACK_ENTRY: Final = ENTRY.pack
PACK_RUN: Final = RUN.pack
PACK_LINK: Final = LINK.pack
"""Module globals, because the look-up of an enumeration's member takes as long as packing a header."""


class Log:
    """One physical log. Made by `open`; every method but `open` and `close` is synchronous, on the loop."""

    is_same_boot: bool = False
    """Whether the kernel has not rebooted since the last process wrote to this log (journals.2)."""
    has_lost_cache: bool = False
    """Whether it has rebooted since the log lost what a stream still lacks, so that no page cache has it."""

    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: str,
        *,
        config: WALConfig,
        time: Time,
        random: Random,
        turn: Turn,
        scope: Scope,
        crash: Crash,
    ) -> "Log":
        """Lock, recover and start a log, or make a new one.

        When it returns, everything that `recovered` tells is durable. Before, some of it may have been in the
        page cache only.

        Args:
            directory: made if absent; holds nothing but this log.
            scope: runs the log's background tasks; the log is closed with it.
            crash: ends the process after a failed write or sync.

        Raises:
            ConfigError: the directory is locked by another process, has foreign files, or a log of a newer or
            unknown version. Nothing was changed.
            OSError: the disk failed. Durable records are still durable.
        """
        log_id = random.getrandbits(64) | 1
        opened = await open_files(disk, directory, config, log_id)
        tasks = scope.child("wal")
        log = cls(
            opened,
            disk,
            directory,
            config=config,
            time=time,
            random=random,
            turn=turn,
            tasks=tasks,
            crash=crash,
        )
        try:
            await log._start()
        except BaseException:
            log._release()
            raise
        scope.defer(log.close)
        return log

    def __init__(
        self,
        opened: OpenedLog,
        disk: Disk,
        directory: str,
        *,
        config: WALConfig,
        time: Time,
        random: Random,
        turn: Turn,
        tasks: Scope,
        crash: Crash,
    ) -> None:
        """Take over what recovery found; `_start` must follow. Use `open`."""
        self.directory, self.config = directory, config
        self._record_bytes_max, self._pending_bytes_max = config.record_bytes_max, config.pending_bytes_max
        self.disk, self._time, self._turn, self._crash = disk, time, turn, crash
        self.tasks, self._lock, self.segments = tasks, opened.lock, opened.segments
        self.quarantine_files = opened.quarantine_files
        self._boot_id = time.boot_id().encode("ascii", "replace")[:36]
        self._boot = boot_nonce(self._boot_id, random.getrandbits(32))
        self.pool = Pool(reserved=config.segments_reserved)
        self.states: dict[int, StreamState] = {}
        self._table = Table()
        self._changed: dict[int, None] = {}
        """Streams that must have a row in the next batch that opens."""
        self._queue: deque[Batch] = deque()
        """Batches that wait to be written; only the last one may be open."""
        self._writing: Batch | None = None
        self._acknowledgements = Slices(now=time.now, later=self._tell_later)
        self._last: Batch | None = None
        """The batch that was opened last."""
        self._on_quarantine: dict[int, Callable[[LogStreamId], None]] = {}
        self._chain = self._durable = 0
        self.durable_lap = self._oldest = self._told = self._advertised = 0
        self._pending_bytes = self._sync_ns = 0
        self.batch_count = self.record_count = self.synced_bytes = 0
        """What this process has made durable."""
        self._queue_times, self._sync_times = StepTimes(), StepTimes()
        self.step_times = {Step.QUEUE: self._queue_times, Step.SYNC: self._sync_times}
        self._is_asked = self.is_dead = self.is_closed = self._is_out_of_space = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._witness = VouchTimer(config.vouch_delay, is_idle=self._idle.is_set, vouch=self._vouch)
        self._reclaimer = SegmentReclaimer(self)
        self._check = checker(self.check)
        self._opened_result, self._first_batch = opened.result, opened.next_batch
        self._kept = opened.kept
        self.lacks_streams = opened.lacks_streams
        """The log may have held streams of which nothing is left. So if it does not know a stream, that does
        not prove that the stream never existed."""
        self._loss = 0
        """Flags of `BatchFlag` about what the log lost, for batches that have rows for all streams."""
        self._adopt(opened)
        verdicts = opened.result.verdicts if opened.result is not None else {}
        self._recovered = {
            stream: recovered_of(LogStreamId(stream), verdict, is_same_boot=self.is_same_boot)
            for stream, verdict in verdicts.items()
        }

    def streams(self) -> list[LogStreamId]:
        """Every stream that was appended to and not dropped, sorted."""
        return sorted(LogStreamId(stream) for stream in self.states)

    def recovered(self, stream: LogStreamId) -> Recovered:
        """What the last start found of `stream`; empty if the log had nothing of it. Kept until `forget`."""
        found = self._recovered.get(stream) or recovered_of(stream, None)
        if found.is_quarantined or not (self.is_quarantined(stream) or self.is_unknown(stream)):
            return found
        return msgspec.structs.replace(found, is_quarantined=True)  # Damage was found since.

    def forget(self, stream: LogStreamId) -> None:
        """Release the memory that `recovered` needs for `stream`; its domain has read the answer."""
        self._recovered.pop(stream, None)

    def append(
        self,
        stream: LogStreamId,
        parts: Sequence[Buffer],
        *,
        term: Term = Term(0),
        generation: Generation = Generation(0),
        relief: bool = False,
        done: Done,
    ) -> Offset:
        """Add one entry to the log's batch of this turn.

        Args:
            parts: the payload, borrowed until `done` is called. It is checksummed now, and written uncopied.
            term: the domain's term; a part of the entry, and of the chain.
            generation: the stream's generation, or a greater one. 0 means the stream's own.
            relief: the record makes the log less full, as a checkpoint does, and may use the reserved room.
            done: called on the loop when this record, and all records before it in this log, are durable.

        Returns:
            The offset of the entry. Offsets are dense: it is the stream's `next_offset` from before the call.

        Raises:
            LogFull: no room. Nothing was written, and no offset was used.
            Throttled: too many bytes wait for the disk. Nothing was written.
            TooLarge: above `record_bytes_max`, or too many streams. Nothing was written.
            StreamQuarantined: the stream lost durable records. Nothing was written.
            LocalProtocolError: a generation below the stream's, or the log is closed or dead.
        """
        state = self.states.get(stream)
        length = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        size = length + ENTRY_BYTES
        pending_bytes = self._pending_bytes + size
        if (
            state is None
            or state.flags
            or generation != state.generation
            or length > self._record_bytes_max
            or pending_bytes > self._pending_bytes_max
            or self.is_dead
            or self.is_closed
        ):
            state, generation = self._admitted(stream, state, size, generation=generation, is_relief=relief)
        offset, seed = state.next, state.crc
        head = PACK_ENTRY(term, offset, length)
        crc = crc32c(head, seed)
        for part in parts:
            crc = crc32c(part, crc)
        body = state.packed + PACK_RUN(offset, generation, 1, size) + PACK_LINK(seed, crc)
        frame = (KIND_RUN, body, (head, *parts), size)
        batch = self._last
        assert batch is not None
        if not batch.take(stream, frame):
            batch = self._place(stream, size, is_relief=relief)
            batch.add(stream, frame)
        batch.done.append(done)
        if not offset:
            self.states[stream] = state  # The stream is new.
        state.append(offset + 1, generation, crc, size, batch.lap, at=batch.frame_at | OPEN)
        batch.use.pin(size)
        self._pending_bytes = pending_bytes
        if not self._is_asked:
            self._ask()
        return Offset(offset)

    def append_many(
        self,
        stream: LogStreamId,
        records: Sequence[Buffer],
        *,
        term: Term = Term(0),
        generation: Generation = Generation(0),
        relief: bool = False,
        done: Done,
    ) -> Offset:
        """Add many entries to the log as one run: all or none, with one call of `done` for all.

        Args:
            records: one for each entry; borrowed until `done` is called. Together at most `record_bytes_max`.

        Returns:
            The offset of the first entry; the others follow.

        Raises:
            LogFull, Throttled, TooLarge, StreamQuarantined, LocalProtocolError: as `append`.
        """
        if not records:
            raise LocalProtocolError(f"append_many to stream {stream} without a record")
        offset = self.next_offset(stream)
        parts: Sequence[Buffer] = entries(records, offset=offset, term=term)
        size = len(records) * ENTRY_BYTES + sum(map(len, records))
        if size <= JOINED_PAYLOAD_BYTES_MAX * len(records):
            parts = (b"".join(parts),)
        crc = crc32c_of(parts, self.chain(stream))
        self._append_run(
            stream, parts, size, count=len(records), crc=crc, generation=generation, relief=relief, done=done
        )
        return offset

    def append_run(
        self,
        stream: LogStreamId,
        run: Run,
        *,
        generation: Generation = Generation(0),
        relief: bool = False,
        done: Done,
    ) -> Offset:
        """Add a received run to the log, with the checksum that it came with.

        The caller must have verified that checksum: every later reader would take a wrong one for damage.
        This method checks by offset and seed that the run continues the stream.

        Raises:
            LocalProtocolError: the run does not begin at the next offset, or continues another branch.
            LogFull, Throttled, TooLarge, StreamQuarantined: as `append`.
        """
        offset, chain = self.next_offset(stream), self.chain(stream)
        if (run.offset, run.seed) != (offset, chain):
            raise LocalProtocolError(
                f"stream {stream} ends at {offset} with chain {chain:08x}; the run begins at {run.offset} "
                f"with {run.seed:08x}"
            )
        self._append_run(
            stream,
            (run.data,),
            len(run.data),
            count=run.count,
            crc=run.crc,
            generation=generation,
            relief=relief,
            done=done,
        )
        return offset

    def _append_run(
        self,
        stream: LogStreamId,
        parts: Sequence[Buffer],
        size: int,
        *,
        count: int,
        crc: int,
        generation: Generation,
        relief: bool,
        done: Done,
    ) -> None:
        if not 1 <= count <= COUNT_MAX:
            raise LocalProtocolError(f"a run of {count} entries for log stream {stream}, not 1..{COUNT_MAX}")
        state, generation = self._admitted(
            stream, self.states.get(stream), size, generation=generation, is_relief=relief
        )
        offset, seed = state.next, state.crc
        batch = self._place(stream, size, is_relief=relief)
        body = state.packed + PACK_RUN(offset, generation, count, size) + PACK_LINK(seed, crc)
        batch.add(stream, (KIND_RUN, body, parts, size))
        batch.done.append(done)
        self.states[stream] = state
        state.append(offset + count, generation, crc, size, batch.lap, at=batch.frame_at | OPEN)
        batch.use.pin(size)
        self._pending_bytes += size
        self._ask()

    def _admitted(
        self,
        stream: LogStreamId,
        state: StreamState | None,
        size: int,
        *,
        generation: Generation,
        is_relief: bool,
    ) -> tuple[StreamState, Generation]:
        """Refuse a wrong append to the log; for a valid one, the state and the generation of its stream."""
        self._check_open()
        if size > self._record_bytes_max + ENTRY_BYTES:
            raise TooLarge(f"a log's run of {size} bytes is above record_bytes_max {self._record_bytes_max}")
        if self._pending_bytes + size > self._pending_bytes_max and not is_relief:
            raise Throttled(
                f"{self._pending_bytes} bytes wait for the disk of {self.directory}, and {size} more exceed "
                f"pending_bytes_max {self._pending_bytes_max}: try again later"
            )
        if state is None:
            state = self._new_stream(stream)
        elif state.flags and state.is_quarantined:
            raise self._lost(stream)
        if generation < state.generation:
            if generation:
                raise LocalProtocolError(
                    f"stream {stream} is at generation {state.generation}, not {generation}"
                )
            generation = Generation(state.generation)
        return state, generation

    def next_offset(self, stream: LogStreamId) -> Offset:
        """Where the next append to `stream` goes."""
        state = self.states.get(stream)
        return Offset(state.next if state is not None else 0)

    def generation(self, stream: LogStreamId) -> Generation:
        """The generation of `stream`, which appends carry or exceed; 0 if the log has no such stream."""
        state = self.states.get(stream)
        return Generation(state.generation if state is not None else 0)

    def chain(self, stream: LogStreamId) -> int:
        """The chain crc of `stream` after its last record, durable or not."""
        state = self.states.get(stream)
        return state.crc if state is not None else 0

    async def read(self, stream: LogStreamId, from_offset: Offset, bytes_max: int) -> list[Run]:
        """Read untrimmed, durable entries of a log stream from `from_offset` on, and verify them.

        Args:
            bytes_max: of entries with their heads. At least one entry is read, unless the stream ends there.

        Returns:
            Runs without a gap; empty at the stream's end.

        Raises:
            Trimmed: the entry at `from_offset` was trimmed.
            OffsetNotYetAvailable: `from_offset` is above the stream's end.
            StreamQuarantined: the entry is damaged, or lies behind damage. The stream is quarantined now.
            LocalProtocolError: the log is closed or dead.
        """
        while True:
            self._check_open()
            state = self.states.get(stream)
            end = state.next if state is not None else 0
            if from_offset > end:
                raise OffsetNotYetAvailable(f"stream {stream} ends at {end}: {from_offset} is not there yet")
            if state is not None and from_offset < state.first:
                raise Trimmed(f"stream {stream} begins at {state.first}: {from_offset} was trimmed")
            if state is None or from_offset == end:
                return []
            places = self._durable_places(state, from_offset, bytes_max)
            if places is None:
                raise self._lost(stream)
            if not places:
                await self._until_durable()
                continue
            found = await self._read_places(stream, places)
            known = list(state.runs(from_offset, places[-1].end))
            if self.states.get(stream) is not state or known != places or from_offset < state.first:
                continue  # Truncated, trimmed or copied meanwhile: the bytes that were read may be void.
            runs = [run for run in takewhile(lambda run: run is not None, found) if run is not None]
            if len(runs) < len(found):
                hit("wal.read_found_damage")
                if not await self._lose(state, places[len(runs)]):
                    continue  # Trimmed, reset or dropped meanwhile: the damaged run belongs to no stream.
            if not runs:
                raise self._lost(stream)
            runs[0] = runs[0].since(from_offset)
            runs[0] = runs[0].within(bytes_max)
            return runs if runs[0].next_offset == places[0].end else runs[:1]

    def _durable_places(self, state: StreamState, offset: int, bytes_max: int) -> list[Place] | None:
        """The places of a log's next durable entries; none if not durable yet, None if they are lost."""
        places: list[Place] = []
        size = 0
        for place in state.runs(offset, state.next):
            if place.lap == LOST:
                break
            if place.at & OPEN or position(place.lap, place.at) >= self._durable:
                return places
            if places and size + place.length > bytes_max:
                return places
            places.append(place)
            size += place.length
        return places or None

    async def _read_places(self, stream: LogStreamId, places: Sequence[Place]) -> list[Run | None]:
        files = {place.lap: self.segments.files[self.pool.laps[place.lap].index] for place in places}
        log_id = self.segments.log_id
        return await self.disk.run(lambda: read_places(files, log_id, stream, places))

    async def _until_durable(self) -> None:
        durable = asyncio.get_running_loop().create_future()
        self.on_durable(lambda: None if durable.done() else durable.set_result(None))
        self._ask()
        await durable

    async def _lose(self, state: StreamState, place: Place) -> bool:
        """Set aside the damaged run at `place`. If its stream still holds it, quarantine that: True."""
        use = self.pool.laps.get(place.lap)
        if use is not None:
            damage = Damage(use.index, place.lap, place.at, place.at + frame_bytes(place.length))
            try:
                made = await self.disk.run(lambda: set_aside_if_room(self.segments, [damage]))
            except OSError as error:
                self.die(error)
                raise
            self.quarantine_files.extend(made)
        self._check_open()
        is_there = state.place(place.begin, place.lap, place.at) == place
        if is_held := is_there and self.states.get(state.stream) is state:
            self.quarantine(state.stream)
        return is_held

    def _lost(self, stream: LogStreamId) -> StreamQuarantined:
        return StreamQuarantined(f"stream {stream} of {self.directory} lost records: repair it, then `reset`")

    async def entry(self, stream: LogStreamId, offset: Offset) -> EntryChain | None:
        """A log stream's entry at `offset`: term, chain before and after it. None at the stream's end.

        Raises:
            As `read`.
        """
        for run in await self.read(stream, offset, 1):
            for record in run.records():
                return EntryChain(record.offset, record.term, run.seed, run.crc)
        return None

    async def records(self, stream: LogStreamId, *, bytes_max: int = READ_BYTES) -> AsyncIterator[Record]:
        """Every untrimmed entry that `stream` has now, read back piece by piece. A domain recovers with this.

        Raises:
            StreamQuarantined: new damage was found. Damage that was known before ends the iteration instead.
        """
        state = self.states.get(stream)
        if state is None:
            return
        offset, end = Offset(state.first), state.ends[-1] if state.ends else state.first
        is_known = state.is_quarantined
        while offset < end:
            try:
                runs = await self.read(stream, offset, bytes_max)
            except StreamQuarantined:
                if is_known:
                    return
                raise
            for run in runs:
                for record in run.records():
                    yield record
            offset = runs[-1].next_offset if runs else Offset(end)  # None: it was dropped meanwhile.

    def truncate(
        self,
        stream: LogStreamId,
        from_offset: Offset,
        generation: Generation,
        done: Done,
        *,
        chain: int | None = None,
    ) -> None:
        """Void every entry from `from_offset` on with a TRUNCATE frame; the next append gets that offset.

        Args:
            from_offset: any untrimmed offset, or the next one.
            generation: greater than the stream's generation, and its generation from then on.
            chain: the chain before `from_offset`, as `entry` tells it. Needed if the offset is inside a run.

        Raises:
            LocalProtocolError: the offset was trimmed or is above the end; the generation is not greater; or
            the chain is missing, or differs from the known one. Nothing changed.
            LogFull: no room. Nothing changed.
        """
        self._check_open()
        state = self.states.get(stream)
        known = state.boundary(from_offset) if state is not None else None
        crc = chain if known is None else known
        if (
            state is None
            or crc is None
            or (chain is not None and chain != crc)
            or not state.first <= from_offset <= state.next
            or generation <= state.generation
        ):
            where = f"{state.first}..{state.next} of generation {state.generation}" if state else "absent"
            raise LocalProtocolError(
                f"cannot truncate stream {stream}, which is {where}, from {from_offset} with generation "
                f"{generation} and chain {chain}: inside a run its chain is needed, see `entry`"
            )
        if state.is_quarantined:
            raise self._lost(stream)
        if self._last is not None and stream in self._last.touched:
            self._seal(self._last)  # A torn write would not tell whether this cuts a branch of that batch.
        batch = self._place(stream, 0, is_relief=True)
        self._say(batch, Kind.TRUNCATE, state.packed, RUN.pack(from_offset, generation, 0, 0), seed=crc)
        batch.done.append(done)
        batch.releases.extend(state.truncate(from_offset, generation, crc))
        state.flags &= ~RowFlag.TAIL_CUT
        self._ask()

    def reset(
        self, stream: LogStreamId, next_offset: Offset, generation: Generation, done: Done, *, crc: int = 0
    ) -> None:
        """Void a whole log stream and begin it anew at `next_offset`, as after a repair or a snapshot.

        This ends quarantine and clears `tail_cut`.

        Args:
            generation: greater than the stream's generation, if the stream has records or is quarantined.
            crc: the chain crc that the next run is seeded with.

        Raises:
            LogFull: no room. Nothing changed.
        """
        self._check_open()
        state = self.states.get(stream)
        if state is not None and (state.ends or state.is_quarantined) and generation <= state.generation:
            raise LocalProtocolError(
                f"stream {stream} is at generation {state.generation}: reset with a greater one"
            )
        if state is None:
            state = self._new_stream(stream)
        batch = self._place(stream, 0, is_relief=True)
        self._say(batch, Kind.RESET, state.packed, RUN.pack(next_offset, generation, 0, 0), seed=crc)
        batch.done.append(done)
        self.states[stream] = state
        batch.releases.extend(state.reset(next_offset, generation, crc))
        self._ask()

    def trim(self, stream: LogStreamId, below: Offset) -> None:
        """Give up a log stream's entries below `below`: their domain holds them durably elsewhere.

        The next batch records this. Until that batch is durable, a restart may bring the entries back.
        """
        state = self.states.get(stream)
        if state is None or self.is_dead or self.is_closed:
            return
        self._unpin(state, state.trim(below))
        self._changed[stream] = None
        self._advance_oldest()

    def drop(self, stream: LogStreamId) -> None:
        """Forget a whole log stream, with the next batch. The id may then begin anew at offset 0."""
        self._check_open()
        state = self.states.get(stream)
        if state is None:
            self._forget_callbacks(stream)
            return
        batch = self._place(stream, 0, is_relief=True)
        run = RUN.pack(state.next, state.generation, 0, 0)
        self._say(batch, Kind.DROP, state.packed, run, seed=state.crc)
        batch.releases.extend(state.reset(0, 0, 0))
        del self.states[stream]
        self._recovered.pop(stream, None)
        self._forget_callbacks(stream)
        self._ask()

    def _forget_callbacks(self, stream: LogStreamId) -> None:
        self._reclaimer.forget(stream)
        self._on_quarantine.pop(stream, None)

    def settle(self, stream: LogStreamId) -> None:
        """Clear `tail_cut`, with the next batch: the domain has dealt with records that may be missing."""
        self._check_open()
        if (state := self.states.get(stream)) is not None and state.flags & RowFlag.TAIL_CUT:
            state.flags &= ~RowFlag.TAIL_CUT
            self._mark(stream)

    def on_flush_request(self, stream: LogStreamId, callback: Callable[[LogStreamId], None]) -> None:
        """Call `callback` when `stream` pins the oldest segment and free segments run short.

        The domain should make its records durable elsewhere and `trim` them, or they are copied forward.
        """
        self._reclaimer.callbacks[stream] = callback

    def on_quarantine(self, stream: LogStreamId, callback: Callable[[LogStreamId], None]) -> None:
        """Call `callback`, on the loop, when damage to records of `stream` is found while the log is open.

        The stream takes no appends from then on (W6). Damage that the start found is told by `recovered`.
        """
        self._on_quarantine[stream] = callback

    def is_quarantined(self, stream: LogStreamId) -> bool:
        """Whether `stream` has lost durable records and has been neither `reset` nor dropped since."""
        state = self.states.get(stream)
        return state is not None and state.is_quarantined

    def is_unknown(self, stream: LogStreamId) -> bool:
        """Whether the log has nothing of `stream`, but may have lost all records of it.

        Its domain must find out elsewhere whether the stream existed. `reset`, or an append, makes it known.
        """
        return self.lacks_streams and stream not in self.states

    def status(self) -> LogStatus:
        """The state of this log."""
        pool = self.pool
        flagged = [state for state in self.states.values() if state.flags]
        return LogStatus(
            directory=self.directory,
            log_id=self.segments.log_id,
            segment_bytes=self.segments.segment_bytes,
            segment_count=len(self.segments.files),
            segment_free_count=len(pool.free),
            lap_oldest=pool.oldest,
            lap_head=pool.head,
            batch_count=self.batch_count,
            synced_bytes=self.synced_bytes,
            pending_bytes=self._pending_bytes,
            sync_ns_last=self._sync_ns,
            pinning=[LogStreamId(stream) for stream in self.pinning()],
            quarantined=[LogStreamId(s.stream) for s in flagged if s.is_quarantined],
            tail_cut=[LogStreamId(s.stream) for s in flagged if s.flags & RowFlag.TAIL_CUT],
            quarantine_files=list(self.quarantine_files),
            is_out_of_space=self._is_out_of_space or self._reclaimer.is_refused or bool(self.segments.kept),
        )

    @property
    def shortage(self) -> str:
        """Why records are refused for want of room, with the remedy; empty if none is."""
        return self._reclaimer.shortage(is_out_of_space=self._is_out_of_space)

    async def close(self) -> None:
        """Write the log's pending batches, wait until they are durable, and release the files. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        self._witness.cancel()
        self._reclaimer.close()
        if not self.is_dead and not self._is_out_of_space:
            if self._queue:
                self._ask()
            await self._idle.wait()
        if not self.is_dead and not self._is_out_of_space and self._witness.is_wanted:
            self._mark_end()  # Damage to the last records then counts as corruption, not as a torn write.
            self._ask()
            await self._idle.wait()
        self._witness.cancel()
        await self.tasks.close()
        self._release()

    def check(self) -> None:
        """Assert every invariant of the log, for the simulator and the tests."""
        self.pool.check()
        pins = dict.fromkeys(self.pool.laps, 0)
        is_open = self._last is not None and not self._last.is_sealed
        for state in self.states.values():
            state.check()
            is_new = is_open and self._last is not None and dict.__contains__(self._last.named, state.stream)
            assert is_new or state.stream in self._changed or self._table.row(state.stream) == state.row(), (
                f"the table says otherwise of stream {state.stream}"
            )
            for lap in state.laps:
                if lap != LOST:
                    pins[lap] += 1
                    assert lap == self.pool.head or state.stream in self.pool.laps[lap].streams, (
                        f"lap {lap} does not know that stream {state.stream} pins it"
                    )
        for lap, use in self.pool.laps.items():
            assert use.pins >= pins[lap], f"lap {lap} has {pins[lap]} runs and {use.pins} pins"
        assert self._oldest <= self.durable_lap, "a lap that the last durable batch needs is not past"
        assert all(batch.is_sealed for batch in list(self._queue)[:-1]), "only the last batch is open"
        waiting = [batch for batch in (self._writing, *self._queue) if batch is not None]
        counted = sum(batch.payload_bytes for batch in waiting)
        assert self.is_dead or self._pending_bytes == counted, (
            f"{counted} bytes wait, not {self._pending_bytes}"
        )

    # --- start --------------------------------------------------------------------------------------------

    def _adopt(self, opened: OpenedLog) -> None:
        """Fill pool, table and stream states with what recovery found."""
        result, filled, wanted = opened.result, self.segments.filled, self.segments.wanted
        if result is not None:
            for lap, index in result.laps.items():
                self.pool.adopt(lap, index, filled[index])
            for stream, verdict in result.verdicts.items():
                self.states[stream] = state = StreamState.restored(stream, verdict)
                self._table.put(stream, state.row())
                for run in verdict.held:
                    self.pool.pin(run.lap, run.length, stream=stream)
            self._chain = result.chain
            self.durable_lap = result.last.lap
            self._advertised = self.pool.oldest
            self._durable = position(result.last.lap, result.tail_at)
            self.is_same_boot = is_of_kernel(result.last.boot, self._boot_id)
        if self.lacks_streams or any(state.is_quarantined for state in self.states.values()):
            self.has_lost_cache = not self.is_same_boot or (result is not None and result.is_cache_lost)
            self._loss = int(BatchFlag.LACKS_STREAMS) if self.lacks_streams else 0
            self._loss |= int(BatchFlag.CACHE_LOST) if self.has_lost_cache else 0
        self.segments.kept = dict.fromkeys(each.file for each in opened.kept)
        for use in self.pool.laps.values():
            if use.index in self.segments.kept:
                use.pin(0)  # Its damaged bytes are not set aside yet: nothing may write over them.
        self._oldest = self.pool.past(self.durable_lap)  # The boot batch has the rows that say so.
        for index in opened.free:
            if filled[index] >= wanted[index] and index not in self.segments.kept:
                self.pool.add_free(index, filled[index])

    async def _start(self) -> None:
        """Write the boot frame, the first of this process, and wait until it is durable."""
        payload = BOOT.pack(self._boot, self._boot_id, 0)
        result = self._opened_result
        if result is not None:
            batch = self._begin(result.last.lap, result.tail_at, self._first_batch, is_full=True)
            is_unread = batch.index in self.segments.unread and self.pool.may_roll(is_relief=False)
            if is_unread or batch.index in self.segments.kept:
                batch.filled = 0  # No batch may write over bytes that could not be read, or not be kept yet.
        if result is None or not self._has_room(batch, SYSTEM_STREAM, len(payload), is_relief=True):
            if not self.pool.free:
                rows = aligned(ROW.size * (len(self.states) + 1))
                await self._reclaimer.first_segment(2 * BLOCK_BYTES + rows)
            self.pool.roll()
            batch = self._begin(self.pool.head, BLOCK_BYTES, self._first_batch, is_full=True)
        body = STREAM.pack(SYSTEM_STREAM) + RUN.pack(0, 0, 0, len(payload)) + LINK.pack(0, crc32c(payload))
        batch.frames.append((Kind.BOOT, body, [payload], len(payload)))
        batch.size += frame_bytes(len(payload))
        batch.body += frame_bytes(len(payload))
        await self._write_first(batch)
        if self.segments.shortened:
            await self._repeat_first(self._last or batch)  # One that frees segments may follow it at once.
        # Every stream and every loss is recorded durably: now the evidence may be removed.
        self.segments.spare({use.index: use.end for use in self.pool.laps.values()})
        await self.disk.run(self._accept_extents)
        self._reclaimer.begin()
        if self._kept:
            self.tasks.spawn(self._set_aside(), name="set-aside")

    async def _repeat_first(self, last: Batch) -> None:
        """Repeat the boot batch's rows, if there is room: soon nothing else tells that a file is shorter."""
        again = self._begin(last.lap, last.end, last.sequence + 1, is_full=True)
        if not self._has_room(again, SYSTEM_STREAM, 0, is_relief=True):
            if not self.pool.free:
                return
            self.pool.roll()
            again = self._begin(self.pool.head, BLOCK_BYTES, last.sequence + 1, is_full=True)
        await self._write_first(again)

    async def _write_first(self, batch: Batch) -> None:
        """Write a batch of the start, and wait until it is durable."""
        self._queue.append(batch)
        self._last = batch
        self._flush()
        await self._idle.wait()
        if self.is_dead:
            raise OSError(f"the log of {self.directory} cannot be written")

    async def _set_aside(self) -> None:
        """Set aside the damage that the disk had no space for at the start, when it has space again."""
        kept, self._kept = self._kept, []
        while not self.is_closed and not self.is_dead:
            await asyncio.sleep(in_seconds(self.config.retry_delay))
            try:
                self.quarantine_files.extend(await self.disk.run(lambda: set_aside(self.segments, kept)))
                await self._reclaimer.alone(self._accept_extents)
            except OSError as error:
                if error.errno not in LATER:
                    self.die(error)
                    return
                continue
            files, self.segments.kept = list(self.segments.kept), {}  # The files may be filled from now on.
            self._use_again(files)
            return

    def _use_again(self, files: Sequence[int]) -> None:
        """Use these segment files again: their damaged bytes are kept elsewhere now."""
        for lap, use in self.pool.laps.items():
            if use.index in files:
                self.pool.unpin(lap, 0)
        for index in files:
            self.filled(index)
        self._advance_oldest()
        self._reclaimer.grow()

    def _accept_extents(self) -> None:
        """Record how far the files are filled now: some may be shorter, or gone."""
        self.segments.accept(is_kept=bool(self._kept))

    def _begin(self, lap: int, at: int, sequence: int, *, is_full: bool) -> Batch:
        use = self.pool.laps[lap]
        batch = Batch(
            lap=lap,
            use=use,
            at=at,
            filled=self.pool.rooms[use.index],
            bytes_max=self.config.batch_bytes_max,
            sequence=sequence,
            boot=self._boot,
            everyone=self.states if is_full else None,
            loss=self._loss,
            opened_at=self._time.now(),
        )
        if not self.pool.may_append():
            batch.limit = 0
        batch.name(self._changed)
        return batch

    # --- placing ------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.is_dead or self.is_closed:
            raise LocalProtocolError(f"the log of {self.directory} is {'dead' if self.is_dead else 'closed'}")

    def _new_stream(self, stream: int) -> StreamState:
        """The state of a new stream; the caller adds it to `states` when its first frame is placed."""
        if not 0 <= stream < SYSTEM_STREAM:
            raise LocalProtocolError(f"stream {stream} is not an unsigned 64 bit number below 2**64 - 1")
        if len(self.states) >= self.config.streams_max:
            raise TooLarge(f"the log of {self.directory} has streams_max {self.config.streams_max} streams")
        return StreamState(stream)

    def _place(self, stream: int, length: int, *, is_relief: bool) -> Batch:
        """The open batch, with room for one more frame; a new batch, or a new segment, if that is needed.

        Args:
            is_relief: the frame makes the log less full, and may use the room that is kept from appends.

        Raises:
            LogFull: there is no room. Nothing changed.
        """
        last = self._last
        assert last is not None
        if not last.is_sealed and self._has_room(last, stream, length, is_relief=is_relief):
            return last
        if self._is_out_of_space and not is_relief:
            raise self._reclaimer.full(is_out_of_space=self._is_out_of_space)
        # The first batch of a segment may be the only one with a row for some stream. So the second batch
        # repeats all rows: the loss of one batch must not hide a stream.
        is_second = last.at == BLOCK_BYTES and (is_relief or self.pool.may_append())
        batch = self._begin(last.lap, last.end, last.sequence + 1, is_full=is_second)
        batch.name(last.touched)
        if not self._has_room(batch, stream, length, is_relief=is_relief):
            self._roll_for(stream, length, is_relief=is_relief)
            batch = self._begin(self.pool.head, BLOCK_BYTES, last.sequence + 1, is_full=True)
        self._seal(last)
        self._changed.clear()
        self._queue.append(batch)
        self._last = batch
        self._idle.clear()
        return batch

    def _has_room(self, batch: Batch, stream: int, length: int, *, is_relief: bool) -> bool:
        kept = self._kept_for_end(stream, len(batch.touched)) if self.pool.is_used_up else 0
        return batch.room_for(stream, length, is_relief=is_relief, kept=kept)

    def _kept_for_end(self, stream: int, touched: int = 0) -> int:
        """Room that stays behind each batch of a full log, for the batch that frees segments (ADR 0111)."""
        is_freeing = stream == SYSTEM_STREAM and self._oldest > self._advertised
        return 0 if is_freeing else end_mark_bytes(len(self.states) + touched + 2)

    def _seal(self, batch: Batch) -> None:
        """Seal `batch`. It may free a segment only if rows of this batch or earlier ones record the trim.

        Otherwise recovery, after a crash between the two batches, would want the trimmed records, and their
        segment would be overwritten. A reset or drop hides the trim before it, and a torn write may lose it.
        """
        if not batch.is_sealed:
            if not batch.hides_trims and all(map(batch.named.__contains__, self._changed)):
                self._told = self._oldest
            changed = [*filter(self.states.__contains__, self._changed)]
            batch.seal(self.states, self._table, changed=changed, oldest=self._told)
            batch.use.streams.update(batch.touched)
            batch.use.end = batch.end

    def _roll_for(self, stream: int, length: int, *, is_relief: bool) -> None:
        """Move the head into the next free segment that has room for a frame of `length` bytes."""
        pool = self.pool
        needed = BLOCK_BYTES + BATCH_BYTES + ROW.size * (len(self.states) + 1) + frame_bytes(length)
        if needed > self.segments.segment_bytes:
            raise TooLarge(
                f"a record of {length} bytes does not fit into a segment of {self.segments.segment_bytes}"
            )
        if len(pool.free) == 1:
            needed = aligned(needed) + self._kept_for_end(stream)
        fits = next((index for index in pool.free if pool.rooms[index] >= needed), None)
        if not pool.may_roll(is_relief=is_relief) or fits is None:
            self._reclaimer.look()
            if fits is None and pool.free:  # The free files are too small: make a larger one.
                self._reclaimer.grow()
            raise self._reclaimer.full(is_out_of_space=self._is_out_of_space)
        pool.prefer(fits)
        pool.roll()
        hit("wal.rolled")
        self._reclaimer.look()

    def pinning(self, count_max: int | None = None) -> list[int]:
        """The streams with records in the oldest segment, at most `count_max` of them."""
        return self.pool.pinning(self.states, count_max)

    def _unpin(self, state: StreamState, gone: Sequence[Release]) -> None:
        """Release runs of `state` whose room may be used before any further batch is durable."""
        for each in gone:
            self.pool.unpin(*each)
            if each.lap not in state.laps and each.lap != self.pool.head:
                self.pool.laps[each.lap].streams.pop(state.stream, None)

    def _say(self, batch: Batch, kind: Kind, packed: bytes, run: bytes, *, seed: int) -> None:
        """Place a frame without payload: its chain is `seed` before and after it."""
        (stream,) = STREAM.unpack(packed)
        batch.add(stream, (kind, packed + run + LINK.pack(seed, seed), (), 0))
        batch.hides_trims |= kind in (Kind.RESET, Kind.DROP)

    def place_copy(self, place: Place, header: FrameHeader, data: bytes) -> bool:
        """Copy the run at `place` forward; False if it was trimmed or voided meanwhile. For the copier.

        Args:
            header: the header of the run's old frame.
            data: the entries of the run that no truncation has voided.
        """
        stream = header.stream
        state = self.states.get(stream)
        if state is None or self.is_dead or self.is_closed:
            return False
        batch = self._place(stream, len(data), is_relief=True)
        old = state.move(place, batch.lap, len(data), batch.body | OPEN)
        if old is None:
            self._ask()
            return False
        run = RUN.pack(place.begin, header.generation, place.end - place.begin, len(data))
        body = state.packed + run + LINK.pack(header.seed, place.crc)
        batch.add(stream, (Kind.COPY, body, (data,), len(data)))
        batch.copied.append((state, place.begin))
        batch.releases.append(old)
        batch.use.pin(len(data))
        self._pending_bytes += len(data)
        self._ask()
        return True

    def filled(self, index: int) -> None:
        """Use a file that was filled further: as more room of its segment, or as a free one."""
        pool, end = self.pool, self.segments.filled[index]
        if index in pool.rooms:
            pool.rooms[index] = end
        elif end >= self.segments.wanted[index]:
            pool.add_free(index, end)
        self._open_to_appends()

    def _open_to_appends(self) -> None:
        """Allow appends into the head again if the segments reserved for relief are free."""
        if self._last is not None and self.pool.may_append():
            self._last.limit = self._last.filled

    def quarantine(self, stream: int) -> None:
        """Mark that `stream` lost durable records: it takes no append, and the next batch says so (W6)."""
        state = self.states[stream]
        if state.is_quarantined:
            return
        hit("wal.quarantined")
        if (callback := self._on_quarantine.get(stream)) is not None:
            asyncio.get_running_loop().call_soon(callback, LogStreamId(stream))
        state.flags |= RowFlag.QUARANTINED
        self._mark(stream)

    def _mark(self, stream: int) -> None:
        """Have the next batch record the flags of `stream`; a later one, if there is no room."""
        self._changed[stream] = None
        try:
            self._place(stream, 0, is_relief=True).touch(stream)
            self._ask()
        except LogFull:
            hit("wal.no_room_for_marker")  # If no batch follows, the next start finds the same again.

    def lose(self, stream: int, lap: int) -> None:
        """Unpin the damaged runs of `stream` in `lap`, once a batch that says so is durable (W7)."""
        state = self.states.get(stream)
        if state is None or not state.is_quarantined or self.is_dead or self.is_closed:
            return  # The stream was reset or dropped; or the log ends, and the next start finds it.
        try:
            batch = self._place(stream, 0, is_relief=True)
        except LogFull:
            hit("wal.no_room_for_marker")
            return  # A later copy finds the damage, and sets it aside, once more.
        batch.touch(stream)
        if (gone := state.lose(lap)) is not None:
            batch.releases.append(gone)
        self._ask()

    def on_durable(self, done: Done) -> None:
        """Call `done` when every frame that was placed so far is durable."""
        last = self._queue[-1] if self._queue else self._writing
        if last is not None:
            last.done.append(done)
        else:
            asyncio.get_running_loop().call_soon(done)

    def _mark_end(self) -> bool:
        """Place an empty batch: its head says what is durable and free by now. False if there is no room."""
        try:
            self._place(SYSTEM_STREAM, 0, is_relief=True)
        except LogFull:
            hit("wal.no_room_for_marker")
            return False
        return True

    def _advance_oldest(self) -> None:
        """Let the next batch say that older laps are free, and ask for a batch if that frees any."""
        self._oldest = max(self._oldest, self.pool.past(self.durable_lap))
        if self._oldest > self._advertised:
            self._ask()

    # --- writing ------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Ask for a flush at the end of this turn."""
        if not self._is_asked:
            self._is_asked = True
            self._turn.at_end(Rank.LOG, self._flush)

    def _flush(self) -> None:
        """Begin to write the oldest waiting batch, unless one is being written."""
        self._is_asked = False
        if (following := self._take()) is not None:
            self.tasks.spawn(self._write(*following), name="write")

    def _take(self) -> tuple[Batch, Encoded] | None:
        """The oldest waiting batch, sealed and encoded; None if one is being written or none waits."""
        if self._writing is not None or self.is_dead or self.tasks.is_closed:
            return None
        if not self._queue and self._oldest > self._advertised and self._last is not None:
            self._mark_end()
        if not self._queue:
            self._rest()
            return None
        batch = self._writing = self._queue.popleft()
        self._seal(batch)
        encoded = batch.encode(log_id=self.segments.log_id, durable=self._durable, chain=self._chain)
        batch.frames.clear()
        self._chain = encoded.chain
        self._idle.clear()
        return batch, encoded

    async def _write(self, batch: Batch, encoded: Encoded) -> None:
        """Write batch after batch; when one is durable, answers leave and the next one begins (ADR 0190)."""
        while await self._persist(batch, encoded):
            self._written(batch, encoded)
            self._after_telling()
            following = self._take()
            self._turn.end()
            if following is None:
                return
            batch, encoded = following

    async def _persist(self, batch: Batch, encoded: Encoded) -> bool:
        """Write a batch and sync it; False if the log ends and must acknowledge nothing more."""
        file = self.segments.files[batch.index]
        begun = self._time.now()
        while True:
            try:
                passed("wal.batch.write")
                await file.persist(batch.at, encoded.parts)
                break
            except OSError as error:
                if error.errno not in NO_SPACE:
                    self.die(error)
                    return False
                hit("wal.write_refused")
                self._is_out_of_space = True
                if self.is_closed:
                    self._idle.set()  # A shutdown does not wait for space: no such record was acknowledged.
                    return False
                await asyncio.sleep(in_seconds(self.config.retry_delay))
        if self.is_dead:
            return False  # Another file failed meanwhile: the process ends, and acknowledges nothing more.
        self._is_out_of_space = False
        self._sync_ns = self._time.now() - begun
        self._queue_times.seen(since(Instant(batch.opened_at), begun))
        self._sync_times.seen(Duration(self._sync_ns))
        passed("wal.batch.durable")
        return True

    def _tell_later(self, tell: Done) -> None:
        self.tasks.spawn(self._tell(tell), name="tell")

    async def _tell(self, tell: Done) -> None:
        tell()  # A task begins in the next turn of the loop.
        if self._acknowledgements.is_quiet:
            self._after_telling()

    def _after_telling(self) -> None:
        passed("wal.batch.acknowledged")
        if self._check is not None:
            self._check()
        self._reclaimer.look()
        if self._oldest <= self._advertised:
            self._rest()

    def _written(self, batch: Batch, encoded: Encoded) -> None:
        """Account for a batch that is durable: unpin, free segments, and acknowledge its records."""
        self.batch_count += 1
        self.record_count += encoded.frame_count
        self.synced_bytes += encoded.size
        self._durable, self.durable_lap = position(batch.lap, batch.at + encoded.size), batch.lap
        self._pending_bytes -= batch.payload_bytes
        for gone in batch.releases:
            self.pool.unpin(*gone)
        self._advertised = batch.oldest
        if self.pool.retire(batch.oldest):
            hit("wal.segment_freed")
            self._open_to_appends()
        self._advance_oldest()
        self._writing = None
        # The boot batch (the first) needs no voucher: nobody was told that its records are durable.
        self._witness.written(has_records=encoded.frame_count > 0 and self.batch_count > 1)
        self._acknowledgements.add(batch.done)
        batch.done = []

    def _rest(self) -> None:
        """Become idle if nothing is left to write and every callback was called."""
        if self._writing is None and not self._queue and self._acknowledgements.is_quiet:
            self._idle.set()
            self._witness.rested()

    def _vouch(self) -> None:
        """Write an empty batch after the log was idle: it proves that the last records were durable."""
        if not self.is_dead and not self.is_closed:
            hit("wal.vouched")
            if self._oldest > self._advertised or self._mark_end():  # `_take` seals a freeing batch at once.
                self._ask()

    def die(self, error: OSError) -> None:
        """End the process: after a failed write or sync, even a successful retry proves nothing durable."""
        self.is_dead = True
        self._queue.clear()
        self._acknowledgements.forget()
        self._idle.set()
        self._crash(error)

    def _release(self) -> None:
        self.segments.close()
        self._lock.release()
