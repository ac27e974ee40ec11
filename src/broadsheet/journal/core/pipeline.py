"""Pipeline: orders the appends of one journal, and answers each once it is durable and readers may see it.

Offsets are bytes. The next append begins at `adopted_end`; readers see the bytes below `committed_end`.
Tokens rise by one with each `Persist`. Times are instants.

    OPEN --EpochLost--> LOST (for good); OPEN --Closed--> CLOSED (for good); OPEN <-> full (a flag).
    BEHIND: a greater offset than the head is known to exist (journals.15): content is refused, reads go on.
    A pipeline starts there, or OPEN --FellBehind--> BEHIND (for good): adopted appends are still answered.

An append: submitted -> evaluated against the adopted head -> persisted -> (registers put) -> committed and
answered. Answers leave in the order of evaluation, refusals too (journals.9). The committed end never passes
an append whose registers are not yet put (journals.11).

A streaming append: opened -> staged beside the tail while others go on -> whole -> evaluated -> granted the
tail, copied and synced there -> persisted like any other. Appends that arrive while it owns the tail wait for
the disk, never for a client (journals.17).

The pipeline does not see content, files, peers or the fragment store. With R=1 `Persisted` reports a sync of
the one replica's log. Source: journals.5, 9, 11, 12, 17, 20, 24; Gazette, "Append State Machine".
"""

from collections.abc import Callable
from typing import Any, Final

from broadsheet.base.machine import Tick
from broadsheet.base.marks import hit
from broadsheet.base.time import MILLISECOND, Duration, Instant, after
from broadsheet.base.types import ByteOffset, Token
from broadsheet.errors import Status
from broadsheet.journal.core.append_admission import Limits, PendingAppend, verdict
from broadsheet.journal.core.attempts import Attempts, Remembered
from broadsheet.journal.core.pipeline_events import (
    Abort,
    Advance,
    AttemptAsked,
    ChunkStaged,
    Closed,
    EpochLost,
    FellBehind,
    Fullness,
    Grant,
    Input,
    LengthChanged,
    Output,
    Persist,
    Persisted,
    PersistRefused,
    PutRegisters,
    RegistersPut,
    Reply,
    Roll,
    RollAsked,
    Rollback,
    Stage,
    State,
    StreamEnded,
    StreamFailed,
    StreamOpened,
    StreamPlaced,
    Submitted,
)
from broadsheet.journal.core.queue import Queue
from broadsheet.journal.core.registers import RegisterState, changed
from broadsheet.journal.core.staging import Staging
from broadsheet.journal.core.tail import Tail

PUT_RETRY: Final = Duration(50 * MILLISECOND)
"""Pause before a registers put with an unknown outcome is repeated, with the same version."""


class Pipeline:
    """The appends of one journal at its primary."""

    def __init__(
        self,
        *,
        head: ByteOffset,
        fragment_begin: ByteOffset,
        fragment_length: int,
        registers: RegisterState | None,
        attempts: Attempts | None = None,
        is_behind: bool = False,
        limits: Limits,
    ) -> None:
        """Start a pipeline epoch whose keys are already in the Keyspace.

        Args:
            head: the end of the bytes that recovery found.
            registers: the state at the head; None if it is lost (journals.12).
            attempts: of the last conditional appends; None if they are not known.
            is_behind: a key or a stored fragment names a greater offset than the head (journals.15).
        """
        self.state = State.BEHIND if is_behind else State.OPEN
        self.adopted_end = self.committed_end = head
        self.fragment_begin, self.fragment_length = fragment_begin, fragment_length
        self.adopted_registers = self.committed_registers = registers
        self.attempts = attempts if attempts is not None else Attempts(known_from=head)
        """The attempts of committed appends."""
        self._adopted_attempts: dict[bytes, None] = {}  # Of appends that are adopted and not yet committed.
        self.limits, self.is_full = limits, False
        self.closing_status = Status.SHUTTING_DOWN
        self._queue, self._tail, self._staging = Queue(), Tail(), Staging(limits)
        self._token = self._persisted = Token(0)
        self._put_version = self._put_done = registers.version if registers else 0
        self._put_again_at: Instant | None = None
        self._dispatch: dict[type, Callable[[Any, Instant, list[Output]], None]] = {
            Submitted: self._on_submitted,
            AttemptAsked: self._on_attempt_asked,
            Persisted: self._on_persisted,
            PersistRefused: self._on_persist_refused,
            RegistersPut: self._on_registers_put,
            StreamOpened: self._on_stream_opened,
            ChunkStaged: self._on_chunk_staged,
            StreamEnded: self._on_stream_ended,
            StreamPlaced: self._on_stream_placed,
            StreamFailed: self._on_stream_failed,
            RollAsked: self._on_roll_asked,
            LengthChanged: self._on_length_changed,
            Fullness: self._on_fullness,
            FellBehind: self._on_fell_behind,
            EpochLost: self._on_epoch_lost,
            Closed: self._on_closed,
            Tick: self._on_tick,
        }

    @property
    def pending_count(self) -> int:
        """How many runs and requests are not answered."""
        queue = self._queue
        waiting = len(queue.entries) + len(queue.waiting) + len(self._staging.clocks)
        return waiting + (self._tail.owner is not None)

    @property
    def is_busy(self) -> bool:
        """Whether some adopted append is not durable yet."""
        return self._persisted < self._token

    def step(self, event: Input | Tick, now: Instant) -> list[Output]:
        """Apply one event; return what the host must now do, in order."""
        effects: list[Output] = []
        self._dispatch[type(event)](event, now, effects)
        return effects

    def deadline(self) -> Instant | None:
        """When a slow client is aborted, or a put with an unknown outcome repeated."""
        put = self._put_again_at
        if not self._staging.clocks:
            return put
        return min((each for each in (self._staging.due, put) if each is not None), default=None)

    def check(self) -> None:
        """Assert the pipeline's invariants."""
        assert self.fragment_begin <= self.adopted_end, "a fragment begins at or below the head"
        assert self.committed_end <= self.adopted_end, "commits what it adopted"
        assert self._persisted <= self._token, "persists what it asked for"
        assert self._put_done <= self._put_version, "puts what it asked for"
        version = self.committed_registers.version if self.committed_registers else 0
        self._queue.check(committed_end=self.committed_end, adopted_end=self.adopted_end, version=version)
        assert version <= self._put_done, "no shown change that is not put"
        self._staging.check()
        assert self._tail.owner or not self._queue.waiting, "nobody waits without an owner"
        self.attempts.check()
        adopted = [entry.attempt for entry in self._queue.entries if entry.token and entry.attempt]
        assert adopted == list(self._adopted_attempts), "knows the attempts of what it adopted"
        assert not any(map(self.attempts.find, adopted)), "an attempt takes effect once"
        if self.state is not State.OPEN:
            assert self.state is State.BEHIND or not self._queue.entries, "a closed pipeline owes no answer"

    def _on_submitted(self, event: Submitted, _now: Instant, effects: list[Output]) -> None:
        status = self._admits(event.length)
        if status is not Status.OK:
            effects.append(self._refusal(event.run, status))
            return
        entry = PendingAppend(event.run, count=event.count, length=event.length, condition=event.condition)
        self._queue.pending_bytes += entry.pending_bytes
        self._take(entry, effects)

    def _on_attempt_asked(self, event: AttemptAsked, now: Instant, effects: list[Output]) -> None:
        status = self._admits(0)
        if status is not Status.OK:
            effects.append(self._refusal(event.run, status))
            return
        entry = PendingAppend(event.run, count=1, length=0, condition=None)
        entry.settles = event.attempt, now
        self._take(entry, effects)

    def _take(self, entry: PendingAppend, effects: list[Output]) -> None:
        """Evaluate `entry`, or queue it while a stream owns the tail: the head is not known before."""
        if self._tail.owner is not None:
            self._queue.waiting.append(entry)
            return
        self._evaluate(entry, effects)
        if not entry.token:
            self._answer(effects)

    def _refusal(self, run: object, status: Status) -> Reply:
        """A refusal that reveals no state but the committed end."""
        return Reply(run=run, status=status, begin=self.committed_end, end=self.committed_end)

    def _admits(self, length: int) -> Status:
        """Whether a new append may enter the pipeline's queue at all, before it is evaluated."""
        if self.state is State.LOST:
            return Status.FENCED
        if self.state is State.CLOSED:
            return self.closing_status
        if length and self.is_full:  # Barriers need no space, and are still answered.
            return Status.STORE_UNHEALTHY
        if self.pending_count >= self.limits.pending_count_max:
            return Status.THROTTLED
        if length and self._queue.pending_bytes + length > self.limits.pending_bytes_max:
            return Status.THROTTLED
        return Status.OK

    def _evaluate(self, entry: PendingAppend, effects: list[Output]) -> None:
        """Adopt or refuse the append `entry` at the head, queue its answer; a whole stream gets the tail."""
        entry.status = self._verdict(entry)
        if entry.stream is not None and entry.length and entry.status is Status.OK:
            self._roll()
            self._tail.grant(entry)
            effects.append(
                Grant(stream=entry.stream, begin=self.adopted_end, fragment_begin=self.fragment_begin)
            )
            return
        entry.begin = entry.end = self.adopted_end
        entry.token, entry.registers = Token(0), None
        self._queue.entries.append(entry)
        if entry.settles:  # Only now: an earlier copy of the attempt that waited may have taken effect.
            self.attempts.settle(*entry.settles)
        if entry.status is Status.OK and entry.length:
            self._adopt(entry, effects)

    def _verdict(self, entry: PendingAppend) -> Status:
        if self.is_full and entry.stream is not None and entry.length:
            return Status.STORE_UNHEALTHY  # It was admitted before the disk was full.
        # Look for the attempt before the condition: its own first try has changed the head and the registers.
        attempt = entry.attempt
        if attempt and (attempt in self._adopted_attempts or self.attempts.find(attempt) is not None):
            hit("journal.pipeline.attempt_again")
            return Status.ALREADY_EXISTS
        if attempt and self.attempts.is_settled(attempt):
            hit("journal.pipeline.attempt_settled")
            return Status.CANCELLED
        return verdict(entry, self.adopted_end, self.adopted_registers, is_behind=self.state is State.BEHIND)

    def _adopt(self, entry: PendingAppend, effects: list[Output]) -> None:
        if entry.stream is None:
            self._roll()
        entry.begin = self.adopted_end
        entry.end = self.adopted_end = ByteOffset(entry.begin + entry.length)
        if entry.condition is not None and self.adopted_registers is not None:
            entry.registers = changed(entry.condition, self.adopted_registers, entry.end)
        if entry.registers is not None:
            self.adopted_registers = entry.registers
        if entry.attempt:
            self._adopted_attempts[entry.attempt] = None
        self._token = entry.token = Token(self._token + 1)
        effects.append(
            Persist(
                token=entry.token,
                run=entry.run,
                begin=entry.begin,
                end=entry.end,
                fragment_begin=self.fragment_begin,
                registers=entry.registers,
                stream=entry.stream,
                attempt=entry.attempt,
            )
        )

    def _roll(self) -> None:
        """Begin a new fragment if the open one is strictly longer than `fragment_length`, as Gazette does."""
        if self.adopted_end - self.fragment_begin > self.fragment_length:
            self.fragment_begin = self.adopted_end

    def _on_persisted(self, event: Persisted, _now: Instant, effects: list[Output]) -> None:
        if event.token <= self._persisted:
            return  # Tokens are cumulative: an older one tells nothing new.
        assert event.token <= self._token, f"persisted token {event.token} was never asked for"
        self._persisted = event.token
        self._answer(effects)

    def _answer(self, effects: list[Output]) -> None:
        """Commit and answer appends from the front of the queue, as far as all is durable and put."""
        entries, before = self._queue.entries, self.committed_end
        replies: list[Output] = []
        while entries:
            entry = entries[0]
            if entry.token > self._persisted:
                break
            if entry.registers is not None and entry.registers.version > self._put_done:
                # Registers that the Keyspace does not have would be lost with this replica (journals.11).
                self._put(replies)
                break
            self._queue.pop()
            if entry.token:
                self.committed_end = entry.end
                if entry.registers is not None:
                    self.committed_registers = entry.registers
                if entry.attempt:
                    del self._adopted_attempts[entry.attempt]
                    self.attempts.remember(Remembered(entry.attempt, entry.begin, entry.end))
            replies.append(Reply(run=entry.run, status=entry.status, begin=entry.begin, end=entry.end))
        if self.committed_end > before:  # Before the replies: an answered client can read its own append.
            effects.append(Advance(end=self.committed_end))
        effects += replies

    def _put(self, effects: list[Output]) -> None:
        """Put the newest durable registers, unless a put is under way."""
        if self._put_version > self._put_done:
            return
        newest = self._queue.durable_registers(self._persisted)
        assert newest is not None, "an append waits for a put"
        self._put_version = newest.version
        effects.append(PutRegisters(registers=newest))

    def _on_registers_put(self, event: RegistersPut, now: Instant, effects: list[Output]) -> None:
        if self.state in (State.LOST, State.CLOSED) or event.version <= self._put_done:
            return  # The answer to a put that was repeated.
        assert event.version == self._put_version, "only one put is under way"
        if not event.is_known:
            hit("journal.pipeline.put_unknown")
            self._put_again_at = after(now, PUT_RETRY)
            return
        self._put_done = event.version
        self._put_again_at = None
        self._answer(effects)

    def _on_persist_refused(self, event: PersistRefused, _now: Instant, effects: list[Output]) -> None:
        """Refuse every append from `event.token` on, and evaluate the barriers and refusals among them again.

        Their answers described a head that is now taken back (journals.9).
        """
        taken = self._queue.take_from(event.token)
        if not taken:
            return  # A repeated report: the entries are gone already.
        hit("journal.pipeline.persist_refused")
        self.adopted_end = taken[0].begin
        self.fragment_begin = min(self.fragment_begin, self.adopted_end)
        self.adopted_registers = self._queue.last_registers() or self.committed_registers
        self._token = Token(event.token - 1)  # Otherwise `is_busy` would wait for tokens that never come.
        for entry in taken:
            if entry.token:
                self._adopted_attempts.pop(entry.attempt, None)
        effects.append(Rollback(end=self.adopted_end, fragment_begin=self.fragment_begin))
        for entry in taken:
            if not entry.token and entry.stream is None:
                self._evaluate(entry, effects)
                continue
            # A stream that was refused early has no content, so the new head cannot decide over it.
            entry.status, entry.token, entry.registers = event.status, Token(0), None
            entry.begin = entry.end = self.adopted_end
            self._queue.entries.append(entry)
        self._answer(effects)

    def _on_stream_opened(self, event: StreamOpened, now: Instant, effects: list[Output]) -> None:
        status = self._admits(1)
        if status is not Status.OK:
            effects.append(Abort(stream=event.stream, status=status))
            effects.append(self._refusal(event.run, status))
            return
        entry = PendingAppend(event.run, count=1, length=0, condition=event.condition, stream=event.stream)
        verdict = self._early_verdict(entry)
        if verdict is not Status.OK:
            hit("journal.pipeline.stream_refused_early")
            effects.append(Abort(stream=event.stream, status=verdict))
            self._evaluate(entry, effects)
            self._answer(effects)
            return
        self._staging.begin(event.stream, entry, now)
        effects.append(Stage(stream=event.stream))

    def _early_verdict(self, entry: PendingAppend) -> Status:
        """The refusal that a streaming append would meet now: its content need not be read. OK if none.

        While another stream owns the tail the head is not known, so nothing is refused. An offset above the
        head is not refused either: other appends may reach it before the content is whole.
        """
        if self.state is State.OPEN and self._tail.owner is not None:
            return Status.OK
        found = self._verdict(entry)
        offset = entry.condition.offset if entry.condition is not None else None
        if found is Status.WRONG_APPEND_OFFSET and offset is not None and offset > self.adopted_end:
            return Status.OK
        return found

    def _on_chunk_staged(self, event: ChunkStaged, now: Instant, effects: list[Output]) -> None:
        """Abort a client that is too slow or sends too much (`core.staging`)."""
        status = self._staging.staged(event.stream, event.length, now)
        if status is not Status.OK:
            effects.append(Abort(stream=event.stream, status=status))

    def _on_stream_ended(self, event: StreamEnded, _now: Instant, effects: list[Output]) -> None:
        """Evaluate the stream, whose content is whole, as soon as the tail is free."""
        entry = self._staging.end(event.stream)
        if entry is not None:
            entry.length, entry.is_whole = event.length, True
            self._take(entry, effects)

    def _on_stream_placed(self, event: StreamPlaced, _now: Instant, effects: list[Output]) -> None:
        if not self._tail.is_owned_by(event.stream):
            return  # The pipeline ended while the content was being synced.
        entry = self._tail.release()
        entry.begin = entry.end = self.adopted_end
        self._queue.entries.append(entry)
        self._adopt(entry, effects)
        self._drain(effects)

    def _on_stream_failed(self, event: StreamFailed, _now: Instant, effects: list[Output]) -> None:
        """Refuse a streaming append: its client gave up, was slow or is gone, or the disk is full."""
        if self._tail.is_owned_by(event.stream):
            hit("journal.pipeline.placing_failed")
            entry: PendingAppend | None = self._tail.release()
        else:
            hit("journal.pipeline.stream_failed")
            entry = self._staging.end(event.stream) or self._queue.withdraw(event.stream)
        if entry is not None:
            effects.append(self._refusal(entry.run, event.status))
        self._drain(effects)

    def _drain(self, effects: list[Output]) -> None:
        """Evaluate the waiting appends, up to the next stream that takes the tail."""
        while self._queue.waiting and self._tail.owner is None:
            self._evaluate(self._queue.waiting.popleft(), effects)
        self._answer(effects)

    def _on_roll_asked(self, _event: RollAsked, _now: Instant, effects: list[Output]) -> None:
        """Close the open fragment, unless a stream owns the tail: its content is being written there.

        The host asks again later, also if it could not do it. A fragment without content is not closed.
        """
        if self.state is State.OPEN and self._tail.owner is None:
            self.fragment_begin = self.adopted_end
            effects.append(Roll(fragment_begin=self.fragment_begin))

    def _on_length_changed(self, event: LengthChanged, _now: Instant, _effects: list[Output]) -> None:
        self.fragment_length = event.length

    def _on_fullness(self, event: Fullness, _now: Instant, effects: list[Output]) -> None:
        self.is_full = event.is_full
        if self.is_full:  # Staged content takes space, and would be refused at its end anyway.
            effects += [Abort(stream=each, status=Status.STORE_UNHEALTHY) for each in self._staging.stop()]

    def _on_fell_behind(self, _event: FellBehind, _now: Instant, effects: list[Output]) -> None:
        """Accept no more content: abort streams now; waiting appends are refused when they are evaluated."""
        if self.state is not State.OPEN:
            return
        self.state, status = State.BEHIND, Status.INDEX_HAS_GREATER_OFFSET
        effects += [Abort(stream=each, status=status) for each in self._staging.stop()]
        if self._tail.owner is not None and self._tail.owner.stream is not None:
            effects.append(Abort(stream=self._tail.owner.stream, status=status))

    def _on_tick(self, _event: Tick, now: Instant, effects: list[Output]) -> None:
        for stream in self._staging.slow(now):
            hit("journal.pipeline.slow_client")
            effects.append(Abort(stream=stream, status=Status.TOO_SLOW))
        if self._put_again_at is not None and self._put_again_at <= now:
            self._put_again_at = None
            # Not a newer version, also if one is durable by now: the put in doubt could still come behind it.
            effects.append(PutRegisters(registers=self._queue.registers_of(self._put_version)))

    def _on_epoch_lost(self, _event: EpochLost, _now: Instant, effects: list[Output]) -> None:
        """End for good: the epoch key was changed, so another pipeline may acknowledge now (journals.1)."""
        self._end(State.LOST, Status.FENCED, effects)

    def _on_closed(self, event: Closed, _now: Instant, effects: list[Output]) -> None:
        """End for good: the journal is being deleted or reopened, or the node shuts down."""
        self._end(State.CLOSED, event.status, effects)

    def _end(self, state: State, status: Status, effects: list[Output]) -> None:
        """Answer every append: those that may be durable with UNKNOWN, all others with `status`."""
        if self.state in (State.LOST, State.CLOSED):
            return
        self.state, self.closing_status, self._put_again_at = state, status, None
        unplaced = [*self._queue.waiting, *self._staging.take_all()]
        if self._tail.owner is not None:
            unplaced.insert(0, self._tail.release())
        for entry in self._queue.entries:
            outcome = Status.UNKNOWN if entry.token else status
            effects.append(self._refusal(entry.run, outcome))
        for entry in unplaced:
            if entry.stream is not None:
                effects.append(Abort(stream=entry.stream, status=status))
            effects.append(self._refusal(entry.run, status))
        self._queue.clear()
        self._adopted_attempts.clear()
        self.adopted_end, self.adopted_registers = self.committed_end, self.committed_registers
        self.fragment_begin = min(self.fragment_begin, self.committed_end)
