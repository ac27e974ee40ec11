"""The writer: places frames into batches, sends one batch at a time on its way, frees what is free.

OPEN --a failed write or sync--> DEAD; OPEN --closing--> CLOSED. One batch is on its way while the next
collects. What frees records (a truncation, a copy) unpins them only once it is durable itself. A write
that was refused for want of space is repeated in place, whole; a failed one ends the process. It knows
no domain and no callbacks but those that wait for durability. Source: DESIGN 3,
`docs/protocols/wal.md`.
"""

import asyncio
from collections import deque
from typing import Final

from broadsheet.base.checksum import crc32c
from broadsheet.base.marks import hit
from broadsheet.base.time import in_seconds
from broadsheet.errors import LocalProtocolError, TooLarge
from broadsheet.ports import Disk, Random, Time
from broadsheet.runtime.failpoints import passed
from broadsheet.runtime.scope import Crash, Scope
from broadsheet.runtime.turn import Rank, Turn
from broadsheet.wal.acknowledgements import Acknowledgements
from broadsheet.wal.batch import Batch, Encoded
from broadsheet.wal.config import BLOCK_BYTES, WALConfig
from broadsheet.wal.format import (
    BATCH_BYTES,
    BOOT,
    LINK,
    ROW,
    RUN,
    STREAM,
    SYSTEM_STREAM,
    Kind,
    RowFlag,
    frame_bytes,
    position,
)
from broadsheet.wal.opening import Opened
from broadsheet.wal.pool import Pool
from broadsheet.wal.record import LogFull
from broadsheet.wal.segments import NO_SPACE
from broadsheet.wal.space import Space
from broadsheet.wal.stream import StreamState

SHRINKING: Final = 0
"""Segments kept free by what makes a log less full: none."""


class Writer:
    """The writing half of one log."""

    def __init__(
        self,
        opened: Opened,
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
        """Begin where recovery ended; `start` must follow."""
        self.directory, self.config = directory, config
        self.record_bytes_max, self.pending_bytes_max = config.record_bytes_max, config.pending_bytes_max
        self.disk, self._time, self._turn, self._crash = disk, time, turn, crash
        self.tasks = tasks
        self._lock, self.segments = opened.lock, opened.segments
        self.quarantine_files = opened.quarantine_files
        self._boot = random.getrandbits(64)
        self._boot_id = time.boot_id().encode("ascii", "replace")[:36]
        self.pool = Pool()
        self.streams: dict[int, StreamState] = {}
        self.changed: dict[int, None] = {}
        """Streams whose row must stand in the next batch that opens."""
        self._queue: deque[Batch] = deque()
        """Batches that wait; only the last one may be open."""
        self._writing: Batch | None = None
        self._acknowledgements = Acknowledgements()
        self.last: Batch | None = None
        """The batch that was opened last."""
        self._pinning: tuple[int, list[int]] = (0, [])
        self._chain = self._durable = 0
        self.durable_lap = self._oldest = self._told = self._advertised = 0
        self.pending_bytes = self.synced_bytes = self.batch_count = self.sync_ns = 0
        self.is_asked = self.is_dead = self.is_closed = self.is_out_of_space = False
        self.idle = asyncio.Event()
        self.idle.set()
        self.space = Space(self)
        self.is_same_boot = False
        self._opened_result = opened.result
        self._adopt(opened)

    def check(self) -> None:
        """Assert every invariant: simulator and tests."""
        self.pool.check()
        pins = dict.fromkeys(self.pool.laps, 0)
        for state in self.streams.values():
            state.check()
            for lap in state.laps:
                pins[lap] += 1
        for lap, use in self.pool.laps.items():
            assert use.pins >= pins[lap], f"lap {lap} has {pins[lap]} runs and {use.pins} pins"
        assert self._oldest <= self.durable_lap, "a lap that the last durable batch needs is not past"
        assert all(batch.is_sealed for batch in list(self._queue)[:-1]), "only the last batch is open"
        waiting = [batch for batch in (self._writing, *self._queue) if batch is not None]
        counted = sum(batch.payload_bytes for batch in waiting)
        assert self.is_dead or self.pending_bytes == counted, (
            f"{counted} bytes wait, not {self.pending_bytes}"
        )

    async def close(self) -> None:
        """Write what waits, wait until it is durable, and release the files. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        if not self.is_dead and not self.is_out_of_space:
            if self.batch_count > 1:
                self.mark_end()  # So that the last records are known durable, and damage to them is damage.
            if self._queue:
                self.ask()
            await self.idle.wait()
        await self.tasks.close()
        self.release()

    # --- start --------------------------------------------------------------------------------------------

    def _adopt(self, opened: Opened) -> None:
        """Take over what recovery found."""
        result, filled, wanted = opened.result, self.segments.filled, self.segments.wanted
        if result is not None:
            for lap, index in result.laps.items():
                self.pool.adopt(lap, index, filled[index])
            for stream, verdict in result.verdicts.items():
                self.streams[stream] = StreamState.restored(stream, verdict)
                for run in verdict.held:
                    self.pool.pin(run.lap, len(run.payload))
            self._chain = result.chain
            self.durable_lap = self._oldest = self._advertised = result.last.lap
            self._oldest = self._told = self._advertised = self.pool.oldest
            self._durable = position(result.last.lap, result.tail_at)
            self.is_same_boot = result.boot_id == self._boot_id.decode()
        for index in opened.free:
            if filled[index] >= wanted[index]:
                self.pool.add_free(index, filled[index])

    async def start(self) -> None:
        """Write the boot frame, the first of this process, and wait until it is durable."""
        payload = BOOT.pack(self._boot, self._boot_id)
        result = self._opened_result
        if result is not None:
            batch = self._begin(result.last.lap, result.tail_at, result.last.batch + 1, is_full=True)
        if result is None or not batch.room_for(SYSTEM_STREAM, len(payload)):
            if not self.pool.free:
                await self.space.first_segment()
            self.pool.roll()
            batch = self._begin(
                self.pool.head, BLOCK_BYTES, 1 if result is None else result.last.batch + 1, is_full=True
            )
        run = RUN.pack(0, 0, 0, len(payload))
        crc = crc32c(payload, crc32c(run, 0))
        body = STREAM.pack(SYSTEM_STREAM) + run + LINK.pack(0, crc)
        batch.frames.append((Kind.BOOT, body, [payload], len(payload)))
        batch.size += frame_bytes(len(payload))
        self._queue.append(batch)
        self.last = batch
        self.flush()
        await self.idle.wait()
        if self.is_dead:
            raise OSError(f"the log of {self.directory} cannot be written")
        self.space.begin()

    def _begin(self, lap: int, at: int, sequence: int, *, is_full: bool) -> Batch:
        use = self.pool.laps[lap]
        batch = Batch(
            lap=lap,
            use=use,
            at=at,
            limit=self.pool.rooms[use.index],
            bytes_max=self.config.batch_bytes_max,
            sequence=sequence,
            boot=self._boot,
            is_full=is_full,
        )
        batch.name(self.streams if is_full else self.changed)
        return batch

    # --- placing ------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Refuse what comes after the end."""
        if self.is_dead or self.is_closed:
            raise LocalProtocolError(f"the log of {self.directory} is closed")

    def new_stream(self, stream: int) -> StreamState:
        """A stream that is not there yet; the caller puts it there once it is placed."""
        if not 0 <= stream < SYSTEM_STREAM:
            raise LocalProtocolError(f"stream {stream} is not an unsigned 64 bit number below 2**64 - 1")
        if len(self.streams) >= self.config.streams_max:
            raise TooLarge(f"the log of {self.directory} has {self.config.streams_max} streams, its limit")
        return StreamState(stream)

    def place(self, stream: int, length: int, *, keep: int) -> Batch:
        """The open batch, with room for one more frame.

        Raises:
            LogFull: there is no room. Nothing changed.
        """
        last = self.last
        assert last is not None
        if not last.is_sealed and last.room_for(stream, length):
            return last
        if self.is_out_of_space and keep:
            raise LogFull(f"the disk of {self.directory} has no space left. Free some; appends then go on")
        batch = self._begin(last.lap, last.end, last.sequence + 1, is_full=False)
        batch.name(last.touched)
        if not batch.room_for(stream, length):
            self._roll_for(length, keep)
            batch = self._begin(self.pool.head, BLOCK_BYTES, last.sequence + 1, is_full=True)
        self._seal(last)
        self.changed.clear()
        self._queue.append(batch)
        self.last = batch
        self.idle.clear()
        return batch

    def _seal(self, batch: Batch) -> None:
        """Fix what `batch` says: free is what its rows, and those of batches before it, tell to be trimmed.

        A trim that only a later batch tells of must not free anything yet: after a crash between the two, the
        trimmed records would be wanted, and gone.
        """
        if not batch.is_sealed:
            if all(stream in batch.named for stream in self.changed):
                self._told = self._oldest
            batch.seal(self.streams, oldest=self._told)

    def _roll_for(self, length: int, keep: int) -> None:
        """Move the head into the next free segment, which must take a frame of `length`."""
        pool = self.pool
        needed = BLOCK_BYTES + BATCH_BYTES + ROW.size * (len(self.streams) + 1) + frame_bytes(length)
        if needed > self.segments.segment_bytes:
            raise TooLarge(f"a record of {length} bytes does not fit into a segment")
        if not pool.may_roll(keep=keep) or pool.rooms[pool.free[0]] < needed:
            self.space.look()
            used = f"{len(pool.laps)} segments in use, {len(pool.free)} free"
            held = f"the oldest is held by streams {self.pinning()[:8]}. Let them flush or trim"
            raise LogFull(f"the log of {self.directory} is full: {used}; {held}")
        pool.roll()
        hit("wal.rolled")
        self.space.look()

    def pinning(self) -> list[int]:
        """The streams with records in the oldest segment. It looks at all once, then at those it found."""
        lap, (known, asked) = self.pool.oldest, self._pinning
        if known != lap or lap == self.pool.head:
            asked = list(self.streams)
        found = [each for each in asked if each in self.streams and lap in self.streams[each].laps]
        self._pinning = lap, found
        return found

    def say(self, batch: Batch, kind: Kind, packed: bytes, run: bytes, *, seed: int) -> None:
        """Place a frame without payload, which moves no chain."""
        (stream,) = STREAM.unpack(packed)
        batch.add(stream, (kind, packed + run + LINK.pack(seed, crc32c(run, seed)), (), 0))

    def place_copy(self, stream: int, end: int, body: bytes, payload: bytes) -> bool:
        """Copy a run forward; False where it was given up meanwhile. For `Space`."""
        state = self.streams.get(stream)
        if state is None or self.is_dead or self.is_closed:
            return False
        batch = self.place(stream, len(payload), keep=SHRINKING)
        old = state.move(end, batch.lap)
        if old is None:
            self.ask()
            return False
        batch.add(stream, (Kind.COPY, body, (payload,), len(payload)))
        batch.releases.append(old)
        batch.use.pin(len(payload))
        self.pending_bytes += len(payload)
        self.ask()
        return True

    def quarantine(self, stream: int) -> None:
        """`stream` has lost what was durable: it takes nothing more, and the next batch says so (W6)."""
        self.streams[stream].flags |= RowFlag.QUARANTINED
        self.changed[stream] = None
        try:
            self.place(stream, 0, keep=SHRINKING).touch(stream)
            self.ask()
        except LogFull:
            hit("wal.no_room_for_marker")  # Then the next batch, or the next start, says so.

    def mark_end(self) -> None:
        """Have a batch of nothing, which says what is durable and free by now."""
        try:
            self.place(SYSTEM_STREAM, 0, keep=SHRINKING)
        except LogFull:
            hit("wal.no_room_for_marker")

    def advance_oldest(self) -> None:
        """Let the next batch say that older laps are free; have one where that frees any."""
        self._oldest = max(self._oldest, self.pool.past(self.durable_lap))
        if self._oldest > self._advertised and not self.is_asked:
            self.ask()

    # --- writing ------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Flush at the end of this turn."""
        if not self.is_asked:
            self.is_asked = True
            self._turn.at_end(Rank.LOG, self.flush)

    def flush(self) -> None:
        """Send the oldest waiting batch on its way, unless one is."""
        self.is_asked = False
        if self._writing is not None or self.is_dead:
            return
        if not self._queue and self._oldest > self._advertised and self.last is not None:
            self.mark_end()
        if not self._queue:
            self._rest()
            return
        batch = self._queue.popleft()
        self._seal(batch)
        encoded = batch.encode(log_id=self.segments.log_id, durable=self._durable, chain=self._chain)
        batch.frames.clear()
        self._chain = encoded.chain
        self._writing = batch
        self.idle.clear()
        self.tasks.spawn(self._write(batch, encoded), name="write")

    async def _write(self, batch: Batch, encoded: Encoded) -> None:
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
                    return
                hit("wal.write_refused")
                self.is_out_of_space = True
                if self.is_closed:
                    self.idle.set()  # Nobody waits for space at shutdown; what waits was not acknowledged.
                    return
                await asyncio.sleep(in_seconds(self.config.retry_delay))
        if self.is_dead:
            return  # Another file failed meanwhile: the process is ending, and promises nothing more.
        self.is_out_of_space = False
        self.sync_ns = self._time.now() - begun
        passed("wal.batch.durable")
        self._written(batch, encoded)
        await self._acknowledgements.tell()
        passed("wal.batch.acknowledged")
        self.space.look()
        if self._oldest <= self._advertised:
            self._rest()

    def _written(self, batch: Batch, encoded: Encoded) -> None:
        """A batch is durable: free what it frees. Everyone who waits for it may be told."""
        self.batch_count += 1
        self.synced_bytes += encoded.size
        self._durable, self.durable_lap = position(batch.lap, batch.at + encoded.size), batch.lap
        self.pending_bytes -= batch.payload_bytes
        for gone in batch.releases:
            self.pool.unpin(*gone)
        self._advertised = batch.oldest
        if self.pool.retire(batch.oldest):
            hit("wal.segment_freed")
        self.advance_oldest()
        self._writing = None
        self._acknowledgements.add(batch.done)
        batch.done = []
        if self._queue:
            self.ask()

    def _rest(self) -> None:
        """Be idle where nothing is left to write and nobody to be told."""
        if self._writing is None and not self._queue and self._acknowledgements.is_quiet:
            self.idle.set()

    def die(self, error: OSError) -> None:
        """A write or sync failed: what the disk has is unknown, and a retry would prove nothing."""
        self.is_dead = True
        self._queue.clear()
        self._acknowledgements.forget()
        self.idle.set()
        self._crash(error)

    def release(self) -> None:
        """Let go of files and lock."""
        self.segments.close()
        self._lock.release()
