"""The log: many logical streams in one sequence of segments, one write and one sync for all of a turn.

Offsets count a stream's entries from 0; generations rise; bytes elsewhere. CLOSED --open--> OPEN
--close--> CLOSED; OPEN --a failed write or sync--> DEAD: the process must end. It checks what callers
ask and moves the streams; `Writer` places and writes. It does not read back: what was written is read
once, by recovery. Source: DESIGN 3, `docs/protocols/wal.md`.
"""

from collections.abc import Callable, Sequence
from typing import Final

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import Buffer, Generation, LogStreamId, Offset
from broadsheet.errors import LocalProtocolError, Throttled, TooLarge
from broadsheet.ports import Disk, Random, Time
from broadsheet.runtime.scope import Crash, Scope
from broadsheet.runtime.turn import Turn
from broadsheet.wal.config import WALConfig
from broadsheet.wal.format import LINK, RUN, Kind, RowFlag
from broadsheet.wal.opening import Opened, open_blocking
from broadsheet.wal.pool import SEGMENTS_KEPT
from broadsheet.wal.record import LogStatus, Recovered, StreamQuarantined, recovered_of
from broadsheet.wal.stream import StreamState
from broadsheet.wal.writer import SHRINKING, Writer

Done = Callable[[], None]
"""Called on the loop once what was appended with it is durable; never if that does not happen."""

COUNT_MAX: Final = (1 << 32) - 1
KIND_RUN: Final = Kind.RUN
PACK_RUN: Final = RUN.pack
PACK_LINK: Final = LINK.pack
"""Names of their own, because to look up a member of an enumeration takes as long as to pack a header."""


class Log:
    """One physical log. Made by `open`; every method but `open` and `close` is synchronous, on the loop."""

    is_same_boot: bool
    """Whether the kernel has not rebooted since the last process wrote to this log (journals.2)."""

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

        When it returns, all that `recovered` tells is durable, whatever the page cache said before.

        Args:
            directory: made where absent; holds nothing but this log.
            scope: its background tasks run there, and it is closed with it.
            crash: ends the process after a failed write or sync.

        Raises:
            ConfigError: locked by another process, foreign, or of a newer or unknown version. Nothing was
            changed.
            OSError: the disk failed. What was durable still is.
        """
        log_id = random.getrandbits(64) | 1
        opened = await disk.run(lambda: open_blocking(disk, directory, config, log_id))
        tasks = scope.child("wal")
        writer = Writer(
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
            await writer.start()
        except BaseException:
            writer.release()
            raise
        log = cls(writer, opened)
        scope.defer(log.close)
        return log

    def __init__(self, writer: Writer, opened: Opened) -> None:
        """Serve what `open` has opened."""
        self._writer = writer
        verdicts = opened.result.verdicts if opened.result is not None else {}
        self._recovered = {
            stream: recovered_of(LogStreamId(stream), verdict) for stream, verdict in verdicts.items()
        }
        self.is_same_boot = writer.is_same_boot

    def streams(self) -> list[LogStreamId]:
        """Every stream that was appended to and not dropped, sorted."""
        return sorted(LogStreamId(stream) for stream in self._writer.streams)

    def recovered(self, stream: LogStreamId) -> Recovered:
        """What the last start found of `stream`, empty where there was none. Kept until `forget`."""
        return self._recovered.get(stream) or recovered_of(stream, None)

    def forget(self, stream: LogStreamId) -> None:
        """Release the memory of what `recovered` tells of `stream`; its domain has read it."""
        self._recovered.pop(stream, None)

    def append(
        self,
        stream: LogStreamId,
        parts: Sequence[Buffer],
        *,
        count: int = 1,
        generation: Generation = Generation(0),
        done: Done,
    ) -> Offset:
        """Add one record of `count` entries to this turn's batch.

        Args:
            parts: the payload, borrowed until `done` is called. It is checksummed now, and written uncopied.
            count: entries that the payload stands for; offsets advance by it. At least 1.
            generation: not below the stream's. (0 is taken as "the stream's own".)
            done: called on the loop when this record, and all before it in this log, are durable.

        Returns:
            The offset of its first entry. Dense: the stream's previous next offset.

        Raises:
            LogFull: no room. Nothing was written, and no offset was used.
            Throttled: too many bytes wait for the disk. Nothing was written.
            TooLarge: above `record_bytes_max`, or too many streams. Nothing was written.
            StreamQuarantined: see there. Nothing was written.
            LocalProtocolError: a generation below the stream's, or the log is closed or dead.
        """
        writer = self._writer
        state = writer.streams.get(stream)
        length = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        pending_bytes = writer.pending_bytes + length
        if (
            state is None
            or state.flags
            or count != 1
            or generation != state.generation
            or length > writer.record_bytes_max
            or pending_bytes > writer.pending_bytes_max
            or writer.is_dead
            or writer.is_closed
        ):
            state, generation = self._admitted(stream, state, length, count=count, generation=generation)
        offset, seed = state.next, state.crc
        run = PACK_RUN(offset, generation, count, length)
        crc = crc32c(run, seed)
        for part in parts:
            crc = crc32c(part, crc)
        frame = (KIND_RUN, state.packed + run + PACK_LINK(seed, crc), parts, length)
        batch = writer.last
        assert batch is not None
        if not batch.take(stream, frame):
            batch = writer.place(stream, length, keep=SEGMENTS_KEPT)
            batch.add(stream, frame)
        batch.done.append(done)
        if not offset:
            writer.streams[stream] = state  # A new one.
        state.append(offset + count, generation, crc, length, batch.lap)
        batch.use.pin(length)
        writer.pending_bytes = pending_bytes
        if not writer.is_asked:
            writer.ask()
        return Offset(offset)

    def _admitted(
        self,
        stream: LogStreamId,
        state: StreamState | None,
        length: int,
        *,
        count: int,
        generation: Generation,
    ) -> tuple[StreamState, Generation]:
        """All that may be wrong with an append, and the rarer ones that are right."""
        writer = self._writer
        if writer.is_dead or writer.is_closed or count < 1 or count > COUNT_MAX:
            state_word = "dead" if writer.is_dead else "closed" if writer.is_closed else "open"
            raise LocalProtocolError(
                f"append of {count} to stream {stream}: the log of {writer.directory} is {state_word}"
            )
        if length > writer.record_bytes_max:
            raise TooLarge(f"a record of {length} bytes is above record_bytes_max {writer.record_bytes_max}")
        if writer.pending_bytes + length > writer.pending_bytes_max:
            raise Throttled(f"{writer.pending_bytes} bytes wait for the disk of {writer.directory}")
        if state is None:
            state = writer.new_stream(stream)
        elif state.flags and state.is_quarantined:
            raise StreamQuarantined(
                f"stream {stream} of {writer.directory} lost records: repair it, then `reset`"
            )
        if generation < state.generation:
            if generation:
                raise LocalProtocolError(
                    f"stream {stream} is at generation {state.generation}, not {generation}"
                )
            generation = Generation(state.generation)
        return state, generation

    def next_offset(self, stream: LogStreamId) -> Offset:
        """Where the next append to `stream` goes."""
        state = self._writer.streams.get(stream)
        return Offset(state.next if state is not None else 0)

    def chain(self, stream: LogStreamId) -> int:
        """The chain crc of `stream` after its last record, durable or not."""
        state = self._writer.streams.get(stream)
        return state.crc if state is not None else 0

    def truncate(self, stream: LogStreamId, from_offset: Offset, generation: Generation, done: Done) -> None:
        """Void every record from `from_offset` on, by a record that says so; the next append goes there.

        Args:
            from_offset: where a record begins, or the next offset.
            generation: greater than the stream's; it becomes the stream's.

        Raises:
            LocalProtocolError: inside a record, below the trimmed part, or not a greater generation.
            LogFull: no room. Nothing changed.
        """
        self._writer.check_open()
        state = self._writer.streams.get(stream)
        crc = state.boundary(from_offset) if state is not None else None
        if state is None or crc is None or from_offset < state.first or generation <= state.generation:
            where = f"{state.first}..{state.next} of generation {state.generation}" if state else "absent"
            raise LocalProtocolError(
                f"cannot truncate stream {stream}, which is {where}, from {from_offset} with generation "
                f"{generation}"
            )
        if state.is_quarantined:
            raise StreamQuarantined(
                f"stream {stream} of {self._writer.directory} lost records: repair it, then `reset`"
            )
        batch = self._writer.place(stream, 0, keep=SHRINKING)
        self._writer.say(
            batch, Kind.TRUNCATE, state.packed, RUN.pack(from_offset, generation, 0, 0), seed=crc
        )
        batch.done.append(done)
        batch.releases.extend(state.truncate(from_offset, generation))
        state.flags &= ~RowFlag.TAIL_CUT
        self._writer.ask()

    def reset(
        self, stream: LogStreamId, next_offset: Offset, generation: Generation, done: Done, *, crc: int = 0
    ) -> None:
        """Void `stream` whole and begin it anew at `next_offset`, as after a repair or a snapshot.

        Ends quarantine and `tail_cut`.

        Args:
            generation: greater than the stream's where it has records.
            crc: the chain crc that the next run is seeded with.

        Raises:
            LogFull: no room. Nothing changed.
        """
        self._writer.check_open()
        state = self._writer.streams.get(stream)
        if state is not None and (state.ends or state.is_quarantined) and generation <= state.generation:
            raise LocalProtocolError(
                f"stream {stream} is at generation {state.generation}: reset with a greater one"
            )
        if state is None:
            state = self._writer.new_stream(stream)
        batch = self._writer.place(stream, 0, keep=SHRINKING)
        self._writer.say(batch, Kind.RESET, state.packed, RUN.pack(next_offset, generation, 0, 0), seed=crc)
        batch.done.append(done)
        self._writer.streams[stream] = state
        batch.releases.extend(state.reset(next_offset, generation, crc))
        self._writer.ask()

    def trim(self, stream: LogStreamId, below: Offset) -> None:
        """Give up every record that lies wholly below `below`: its domain holds it durably elsewhere.

        Stands in the next batch; until then a restart may bring them back.
        """
        state = self._writer.streams.get(stream)
        if state is None or self._writer.is_dead or self._writer.is_closed:
            return
        for gone in state.trim(below):
            self._writer.pool.unpin(*gone)
        self._writer.changed[stream] = None
        self._writer.advance_oldest()

    def drop(self, stream: LogStreamId) -> None:
        """Forget `stream` whole, with the next batch. The same id may then begin anew at offset 0."""
        self._writer.check_open()
        state = self._writer.streams.get(stream)
        if state is None:
            self._writer.space.forget(stream)
            return
        batch = self._writer.place(stream, 0, keep=SHRINKING)
        self._writer.say(
            batch, Kind.DROP, state.packed, RUN.pack(state.next, state.generation, 0, 0), seed=state.crc
        )
        batch.releases.extend(state.reset(0, 0, 0))
        del self._writer.streams[stream]
        self._recovered.pop(stream, None)
        self._writer.space.forget(stream)
        self._writer.ask()

    def settle(self, stream: LogStreamId) -> None:
        """Clear `tail_cut`, with the next batch: its domain has dealt with what may be missing."""
        self._writer.check_open()
        state = self._writer.streams.get(stream)
        if state is None or not state.flags & RowFlag.TAIL_CUT:
            return
        batch = self._writer.place(stream, 0, keep=SHRINKING)
        state.flags &= ~RowFlag.TAIL_CUT
        batch.touch(stream)
        self._writer.ask()

    def on_flush_request(self, stream: LogStreamId, callback: Callable[[LogStreamId], None]) -> None:
        """Call `callback` when `stream` holds the oldest segment and room grows short.

        It should make what it can durable elsewhere and `trim`. Where it does not, its records are copied
        forward.
        """
        self._writer.space.callbacks[stream] = callback

    def status(self) -> LogStatus:
        """The state of this log."""
        pool = self._writer.pool
        return LogStatus(
            directory=self._writer.directory,
            log_id=self._writer.segments.log_id,
            segment_bytes=self._writer.segments.segment_bytes,
            segment_count=len(self._writer.segments.files),
            segment_free_count=len(pool.free),
            lap_oldest=pool.oldest,
            lap_head=pool.head,
            batch_count=self._writer.batch_count,
            synced_bytes=self._writer.synced_bytes,
            pending_bytes=self._writer.pending_bytes,
            sync_ns_last=self._writer.sync_ns,
            stream_count=len(self._writer.streams),
            pinning=[LogStreamId(stream) for stream in self._writer.pinning()],
            quarantined=[LogStreamId(s.stream) for s in self._writer.streams.values() if s.is_quarantined],
            tail_cut=[
                LogStreamId(s.stream) for s in self._writer.streams.values() if s.flags & RowFlag.TAIL_CUT
            ],
            quarantine_files=list(self._writer.quarantine_files),
            is_out_of_space=self._writer.is_out_of_space or self._writer.space.is_refused,
        )

    async def close(self) -> None:
        """Write what is pending, wait until it is durable, and release the files. Idempotent."""
        await self._writer.close()

    def check(self) -> None:
        """Assert every invariant: for the simulator and tests."""
        self._writer.check()
