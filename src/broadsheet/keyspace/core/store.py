"""Store: the key space of one node, committed by its log.

Revisions count committed transactions from 1; offsets are the log stream's, one per record. Compares read
the head, which includes every appended transaction, durable or not. A transaction is answered and becomes
visible once it is durable. A failed compare is answered once the state that it read is durable: otherwise a
crash could take that state back after the answer. A flush request starts a snapshot of the visible map; a
trim follows it.
Automaton: one state. Beside it a snapshot goes IDLE -> ENCODING -> WRITING -> IDLE, one chunk at a time; a
snapshot that the log refused begins again after a pause.
The store does not wait, read a clock, encode snapshots (slow work, done by the host) or serve watchers
(`keyspace.local`). Source: control.15-17; code.3.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar, Final

from broadsheet.base.machine import Effect, Event, Tick
from broadsheet.base.marks import hit
from broadsheet.base.time import MILLISECOND, Duration, Instant, after
from broadsheet.base.types import Offset, RequestId, Revision, Token
from broadsheet.errors import Status
from broadsheet.keyspace.core.history import Changes, History
from broadsheet.keyspace.core.map import OrderedMap, size
from broadsheet.keyspace.core.record import TransactionRecord, encoded
from broadsheet.keyspace.core.transaction import (
    Absent,
    Compare,
    CreateRevisionIs,
    KeyValue,
    Limits,
    ModRevisionIs,
    Operation,
    Outcome,
    Put,
    ValueIs,
    refusal,
)

SNAPSHOT_RETRY: Final = Duration(200 * MILLISECOND)
"""Pause before a snapshot begins again after the log had no room for it."""


class TransactRequest(Event, frozen=True):
    """A client asks the key space for `operations`, on condition that all `compares` hold."""

    request: RequestId
    compares: Sequence[Compare]
    operations: Sequence[Operation]
    is_upkeep: bool = False
    """The transaction concerns something that the map names already, or removes it: a full map accepts it."""


class Persisted(Event, frozen=True):
    """Every record of the key space up to and including that of `token` is durable."""

    token: Token


class PersistRefused(Event, frozen=True):
    """The log refused the key space's record of `token`: nothing of it, or of a later one, was written."""

    token: Token
    message: str = "the keyspace log is full: free space"


class FlushAsked(Event, frozen=True):
    """The key space's records keep old segments of the log in use: write a snapshot, so that they can go."""


class LogBegun(Event, frozen=True):
    """The key space's stream was reset and holds the whole map; the next record goes to `next_offset`."""

    next_offset: Offset


class SnapshotEncoded(Event, frozen=True):
    """The key space's snapshot of the last `EncodeSnapshot`, as encoded records."""

    chunks: tuple[bytes, ...]


class Persist(Effect, frozen=True):
    """The map wants `record` in its log stream at `offset`; `PersistRefused` if that is not the next one."""

    token: Token
    offset: Offset
    record: bytes
    is_relief: bool = False
    """The record will let the log free more than it occupies, so it may use the log's relief reserve."""


class Answer(Effect, frozen=True):
    """Answer a request to the key space: with `outcome` if `status` is OK, otherwise with `message`."""

    request: RequestId
    status: Status
    outcome: Outcome | None = None
    message: str = ""


class Show(Effect, frozen=True):
    """Readers of the key space see `revision` now: wake the watchers."""

    revision: Revision


class EncodeSnapshot(Effect, frozen=True):
    """Encode the key space's `pairs` as of `revision` in a thread, then report `SnapshotEncoded`."""

    revision: Revision
    pairs: tuple[KeyValue, ...]


class TrimLog(Effect, frozen=True):
    """The key space's records below offset `below` are no longer needed."""

    below: Offset


class SnapshotState(Enum):
    """How far a snapshot of the key space has come."""

    IDLE = "idle"
    ENCODING = "encoding"
    WRITING = "writing"


class _Pending:
    """A record of the key space that is not known to be durable, and the answers that wait for it."""

    __slots__ = ("answers", "changes", "offset", "revision", "token")

    def __init__(self, token: Token, offset: Offset, revision: Revision, changes: Changes) -> None:
        self.token, self.offset, self.revision, self.changes = token, offset, revision, changes
        self.answers: list[Answer] = []


StoreEvent = TransactRequest | Persisted | PersistRefused | FlushAsked | LogBegun | SnapshotEncoded
StoreEffect = Persist | Answer | Show | EncodeSnapshot | TrimLog


class Store:
    """The key space's visible map, its transactions that are not durable yet, and its history."""

    def __init__(self, shown: OrderedMap, history: History, *, next_offset: Offset, limits: Limits) -> None:
        """Start with the state that `core.recovery` built; its revision is `history.end - 1`."""
        self.shown, self.history, self.limits = shown, history, limits
        self.revision = Revision(history.end - 1)
        self.snapshot = SnapshotState.IDLE
        self._head: dict[str, tuple[KeyValue | None, Revision]] = {}
        self._head_revision, self._head_bytes = self.revision, shown.held_bytes
        self._pending: deque[_Pending] = deque()
        self._waiting_count = 0
        self._next_offset, self._next_token = next_offset, Token(1)
        self._keep_from, self._last_chunk = next_offset, Token(0)
        self._chunks: deque[bytes] = deque()  # Of the snapshot that is being written.
        self._again_at: Instant | None = None
        self._now = Instant(0)

    def step(self, event: StoreEvent | Tick, now: Instant) -> list[StoreEffect]:
        """Apply one event; return what the host must now do, in order."""
        self._now = now
        handler = self._handlers.get(type(event))
        return [] if handler is None else handler(self, event)

    def deadline(self) -> Instant | None:
        """When to begin again a snapshot that the log refused."""
        return self._again_at

    @property
    def is_idle(self) -> bool:
        """Whether every appended record is durable."""
        return not self._pending

    def check(self) -> None:
        """Assert the key space's invariants."""
        self.shown.check()
        assert self.history.end == self.revision + 1, "history reaches to what is shown"
        assert self._head_revision >= self.revision, "what is shown was appended"
        assert self._waiting_count == sum(len(p.answers) for p in self._pending), "each waits for one record"
        assert [p.offset for p in self._pending] == list(
            range(self._next_offset - len(self._pending), self._next_offset)
        ), "pending records are the dense end of the stream"
        revisions = [p.revision for p in self._pending if p.changes]
        assert revisions == list(range(self.revision + 1, self._head_revision + 1)), "revisions are dense"
        expected = self.shown.held_bytes
        for key, (pair, revision) in self._head.items():
            assert revision > self.revision, f"{key} is shown, so it is no longer ahead"
            old = self.shown.get(key)
            expected += (size(pair) if pair else 0) - (size(old) if old else 0)
        assert self._head_bytes == expected, "the head's bytes are counted right"

    def _on_transact(self, event: TransactRequest) -> list[StoreEffect]:
        if self._waiting_count >= self.limits.in_flight_max:
            text = f"{self._waiting_count} transactions of the key space wait for the disk (in_flight_max)"
            return [Answer(event.request, Status.THROTTLED, message=text)]
        if (bad := refusal(event.compares, event.operations, self.limits)) is not None:
            return [Answer(event.request, bad.status, message=str(bad))]
        if not all(self._holds(compare) for compare in event.compares):
            return self._answer_when_durable(event.request, succeeded=False)
        revision = Revision(self._head_revision + 1)
        changes = self._changes(event.operations, revision)
        if not changes:
            return self._answer_when_durable(event.request, succeeded=True)
        grown = self._head_bytes + sum(self._growth(key, pair) for key, pair in changes)
        most = self.limits.map_bytes_max + (self.limits.map_reserve_bytes if event.is_upkeep else 0)
        # A map above the limit still accepts a transaction that does not grow it: deletes make room.
        if grown > max(most, self._head_bytes):
            hit("keyspace.map_full")
            of = " and map_reserve_bytes together" if event.is_upkeep else ""
            text = (
                f"the key space would hold {grown} bytes, above map_bytes_max{of}, {most}: "
                "delete some journals"
            )
            return [Answer(event.request, Status.TOO_LARGE, message=text)]
        self._head_bytes, self._head_revision = grown, revision
        self._head.update((key, (pair, revision)) for key, pair in changes)
        record = TransactionRecord(
            revision=revision,
            puts=tuple((key, pair.value) for key, pair in changes if pair is not None),
            deletes=tuple(key for key, pair in changes if pair is None),
        )
        persist = self._append(encoded(record), revision, changes)
        self._wait(Answer(event.request, Status.OK, Outcome(succeeded=True, revision=revision)))
        return [persist]

    def _on_persisted(self, event: Persisted) -> list[StoreEffect]:
        effects: list[StoreEffect] = []
        before = self.revision
        while self._pending and self._pending[0].token <= event.token:
            pending = self._pending.popleft()
            if pending.changes:
                self._show(pending)
            effects += pending.answers
            self._waiting_count -= len(pending.answers)
            if self.snapshot is SnapshotState.WRITING and pending.token == self._last_chunk:
                effects.append(self._next_chunk())
        if self.revision > before:
            effects.insert(0, Show(self.revision))  # First, so that an answered caller reads its own write.
        return effects

    def _on_persist_refused(self, event: PersistRefused) -> list[StoreEffect]:
        if not self._pending or self._pending[-1].token < event.token:
            return []  # The refusal of an earlier record has already taken this one back.
        hit("keyspace.persist_refused")
        effects: list[StoreEffect] = []
        while self._pending and self._pending[-1].token >= event.token:
            pending = self._pending.pop()
            self._next_offset = pending.offset
            self._waiting_count -= len(pending.answers)
            effects += [
                Answer(answer.request, Status.STORE_UNHEALTHY, message=event.message)
                for answer in pending.answers
            ]
            if self.snapshot is SnapshotState.WRITING and not pending.changes:
                # A record without changes is a chunk. A snapshot that lacks one is void, so begin again.
                self._chunks.clear()
                self.snapshot = SnapshotState.IDLE
                self._again_at = after(self._now, SNAPSHOT_RETRY)
        self._rewind_head()
        return effects

    def _on_flush_asked(self, _: FlushAsked) -> list[StoreEffect]:
        if self.snapshot is not SnapshotState.IDLE:
            return []  # The snapshot under way will free the same segments.
        self.snapshot, self._again_at = SnapshotState.ENCODING, None
        # The snapshot lacks the pending transactions, so the trim after it must keep their records.
        self._keep_from = self._pending[0].offset if self._pending else self._next_offset
        return [EncodeSnapshot(revision=self.revision, pairs=self.shown.frozen())]

    def _on_snapshot_encoded(self, event: SnapshotEncoded) -> list[StoreEffect]:
        assert self.snapshot is SnapshotState.ENCODING, "one snapshot is encoded at a time"
        assert event.chunks, "a snapshot has at least one chunk"
        self.snapshot = SnapshotState.WRITING
        self._chunks.extend(event.chunks)
        return [self._next_chunk()]

    def _next_chunk(self) -> Persist | TrimLog:
        """Write one snapshot chunk, the next once it is durable: a large map must block no log or loop."""
        if not self._chunks:
            self.snapshot = SnapshotState.IDLE
            hit("keyspace.snapshot")
            return TrimLog(below=self._keep_from)
        persist = self._append(self._chunks.popleft(), self._head_revision, (), is_relief=True)
        self._last_chunk = persist.token
        return persist

    def _on_tick(self, _: Tick) -> list[StoreEffect]:
        if self._again_at is None or self._now < self._again_at:
            return []
        self._again_at = None
        return self._on_flush_asked(FlushAsked())

    def _on_log_begun(self, event: LogBegun) -> list[StoreEffect]:
        assert not self._pending, "a stream is reset only while no record waits for the disk"
        self._next_offset = self._keep_from = event.next_offset
        return []

    def _append(
        self, record: bytes, revision: Revision, changes: Changes, *, is_relief: bool = False
    ) -> Persist:
        persist = Persist(
            token=self._next_token, offset=self._next_offset, record=record, is_relief=is_relief
        )
        self._pending.append(_Pending(persist.token, persist.offset, revision, changes))
        self._next_token = Token(self._next_token + 1)
        self._next_offset = Offset(self._next_offset + 1)
        return persist

    def _wait(self, answer: Answer) -> None:
        self._pending[-1].answers.append(answer)
        self._waiting_count += 1

    def _answer_when_durable(self, request: RequestId, *, succeeded: bool) -> list[StoreEffect]:
        """Answer a transaction that changed nothing, once the state that it read is durable."""
        answer = Answer(request, Status.OK, Outcome(succeeded=succeeded, revision=self._head_revision))
        if not self._pending:
            return [answer]
        self._wait(answer)
        return []

    def _show(self, pending: _Pending) -> None:
        assert pending.revision == self.revision + 1, "transactions are shown in order"
        self.shown.apply(pending.changes)
        self.history.add(pending.revision, pending.changes)
        self.revision = pending.revision
        for key, _ in pending.changes:
            if self._head[key][1] == pending.revision:
                del self._head[key]

    def _rewind_head(self) -> None:
        """Compute the head again from the visible map and the records that are still pending."""
        self._head.clear()
        self._head_revision = self.revision
        for pending in self._pending:
            if pending.changes:
                self._head_revision = pending.revision
                self._head.update((key, (pair, pending.revision)) for key, pair in pending.changes)
        self._head_bytes = self.shown.held_bytes + sum(
            (size(pair) if pair else 0) - (size(old) if (old := self.shown.get(key)) else 0)
            for key, (pair, _) in self._head.items()
        )

    def _at_head(self, key: str) -> KeyValue | None:
        ahead = self._head.get(key)
        return self.shown.get(key) if ahead is None else ahead[0]

    def _holds(self, compare: Compare) -> bool:
        pair = self._at_head(compare.key)
        match compare:
            case Absent():
                return pair is None
            case CreateRevisionIs():
                return compare.revision == (pair.create_revision if pair else 0)
            case ModRevisionIs():
                return compare.revision == (pair.mod_revision if pair else 0)
            case ValueIs():
                return pair is not None and pair.value == compare.value

    def _changes(self, operations: Sequence[Operation], revision: Revision) -> Changes:
        """Each key that `operations` change, in key order, with its new pair; no deletes of absent keys."""
        changes: list[tuple[str, KeyValue | None]] = []
        for operation in operations:
            old = self._at_head(operation.key)
            if isinstance(operation, Put):
                created = revision if old is None else old.create_revision
                pair = KeyValue(operation.key, operation.value, created, revision)
                changes.append((operation.key, pair))
            elif old is not None:
                changes.append((operation.key, None))
        return tuple(sorted(changes, key=lambda change: change[0]))

    def _growth(self, key: str, pair: KeyValue | None) -> int:
        old = self._at_head(key)
        return (size(pair) if pair else 0) - (size(old) if old else 0)

    _handlers: ClassVar[dict[type, Callable[["Store", Any], list[StoreEffect]]]] = {
        TransactRequest: _on_transact,
        Persisted: _on_persisted,
        PersistRefused: _on_persist_refused,
        FlushAsked: _on_flush_asked,
        SnapshotEncoded: _on_snapshot_encoded,
        LogBegun: _on_log_begun,
        Tick: _on_tick,
    }
