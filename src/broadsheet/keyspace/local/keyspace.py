"""Keyspace: the port's implementation for one node, over one `Store` and one stream of the role's log.

A host drives the store. The performers of its effects append to the log, answer callers, wake watchers and
encode snapshots in a thread. Each watcher reads the store's history from its own cursor, so no queue needs a
bound. This module does not judge transactions (`core.store`) or open the log (`local.role`).
Source: design/control.md control.15-17.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

import msgspec

from broadsheet.base.buggify import buggify
from broadsheet.base.time import MILLISECOND, Duration, in_seconds
from broadsheet.base.types import LogStreamId, Offset, RequestId, Revision
from broadsheet.errors import (
    BY_STATUS,
    BroadsheetError,
    ShuttingDown,
    Status,
    StoreUnhealthy,
    Throttled,
    Unknown,
)
from broadsheet.keyspace.core.record import snapshot
from broadsheet.keyspace.core.store import (
    Answer,
    EncodeSnapshot,
    FlushAsked,
    LogBegun,
    Persist,
    Persisted,
    PersistRefused,
    Show,
    SnapshotEncoded,
    SnapshotState,
    Store,
    StoreEffect,
    StoreEvent,
    TransactRequest,
    TrimLog,
)
from broadsheet.keyspace.core.transaction import Compare, KeyValue, Limits, Operation, Outcome
from broadsheet.keyspace.local.seal_file import Seal, begin_log, remove_seal, write_seal
from broadsheet.keyspace.port import Change, Update
from broadsheet.observe.story import Story
from broadsheet.ports import NO_ROOM, Disk, Time, Timers
from broadsheet.runtime.failpoints import passed
from broadsheet.runtime.host import Host
from broadsheet.runtime.scope import Crash, Scope
from broadsheet.wal.config import KIB, MIB, WALConfig
from broadsheet.wal.log import Log
from broadsheet.wal.record import StreamQuarantined

T = TypeVar("T")

STREAM: Final = LogStreamId(1)
"""The key space's only stream in its role's log."""

STORY_BYTES_MAX: Final = 4096
"""The story shows a step above this size without its keys and values."""
HEAL_RETRY: Final = Duration(50 * MILLISECOND)
"""Pause between two tries to begin the log's stream anew after it lost a record."""
HEALING: Final = "the key space's log lost an old record, and begins anew; try again later"
"""The refusal of every transaction while the stream is begun anew."""


class KeyspaceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of `keyspace/local`."""

    wal: WALConfig = WALConfig(segment_bytes=32 * MIB, initial_fill_bytes=4 * MIB, record_bytes_max=8 * MIB)
    """The role's log. A snapshot of the largest map must fit into it beside the records not yet trimmed."""
    limits: Limits = msgspec.field(default_factory=Limits)
    """Bounds of transactions and of the map."""
    history_transactions_max: int = 8192
    """Transactions in the history, which a late watcher reads one by one."""
    history_bytes_max: int = 16 << 20
    """Bytes of keys and values in the history."""
    snapshot_chunk_bytes: int = MIB
    """A snapshot is written as records of about this size."""

    def __post_init__(self) -> None:
        """Refuse knobs of the key space that contradict each other."""
        if self.snapshot_chunk_bytes < 1:
            raise ValueError(
                f"keyspace.snapshot_chunk_bytes must be at least 1, not {self.snapshot_chunk_bytes}"
            )
        largest = max(
            self.limits.transaction_bytes_max + 16 * self.limits.operations_max,
            self.snapshot_chunk_bytes + self.limits.key_bytes_max + self.limits.value_bytes_max + KIB,
        )
        if largest > self.wal.record_bytes_max or largest > self.wal.segment_bytes // 4:
            raise ValueError(
                f"keyspace: a record of {largest} bytes must fit into the log: raise wal.record_bytes_max "
                f"({self.wal.record_bytes_max}) and wal.segment_bytes ({self.wal.segment_bytes}, four times "
                "a record), or lower limits"
            )


class LocalKeyspace:
    """The key space of one node. `KeyspaceRole` makes it and offers it as a `Keyspace`."""

    def __init__(
        self,
        store: Store,
        log: Log,
        *,
        next_offset: Offset,
        time: Time,
        timers: Timers,
        disk: Disk,
        scope: Scope,
        crash: Crash,
        chunk_bytes: int = MIB,
    ) -> None:
        """Serve `store`, whose next record goes to `next_offset` of the log."""
        self._store, self._log, self._disk, self._scope = store, log, disk, scope
        self._next_offset, self._chunk_bytes = next_offset, chunk_bytes
        self._waiters: dict[RequestId, asyncio.Future[Outcome]] = {}
        self._next_request = RequestId(1)
        self._changed = asyncio.Event()
        self._is_closed = self._is_healing = False
        self._host: Host[StoreEvent, StoreEffect] = Host(
            store,
            {
                Persist: self._persist,
                Answer: self._answer,
                Show: self._show,
                EncodeSnapshot: self._encode_snapshot,
                TrimLog: self._trim,
            },
            time=time,
            timers=timers,
            crash=lambda error, _: crash(error),
            story=Story("keyspace", payload_bytes_max=STORY_BYTES_MAX),
        )
        scope.defer(self.close)
        log.on_flush_request(STREAM, lambda _: self.flush_asked())
        log.on_quarantine(STREAM, lambda _: self._heal())

    @property
    def key_count(self) -> int:
        """How many keys the map holds."""
        return len(self._store.shown)

    @property
    def held_bytes(self) -> int:
        """Bytes of keys and values."""
        return self._store.shown.held_bytes

    @property
    def log(self) -> Log:
        """The role's log."""
        return self._log

    @property
    def refusal(self) -> str:
        """Why transactions are refused now; empty if they are not."""
        return HEALING if self._is_healing else self._log.shortage

    @property
    def revision(self) -> Revision:
        """The revision of the state that readers see."""
        return self._store.revision

    def get(self, key: str) -> KeyValue | None:
        """The key as of `revision`, or None."""
        return self._store.shown.get(key)

    def range(self, prefix: str) -> list[KeyValue]:
        """Every key that starts with `prefix`, in key order, as of `revision`."""
        return self._store.shown.range(prefix)

    def page(self, prefix: str, *, after: str, count_max: int) -> list[KeyValue]:
        """See `Keyspace.page`."""
        return self._store.shown.page(prefix, after=after, count_max=count_max)

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, is_upkeep: bool = False
    ) -> Outcome:
        """See `Keyspace.transact`. A caller that is cancelled does not learn the outcome."""
        if self._is_closed:
            raise ShuttingDown("the key space is closed: nothing was done")
        request = self._next_request
        self._next_request = RequestId(request + 1)
        waiter: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiters[request] = waiter
        self._host.deliver(TransactRequest(request, tuple(compares), tuple(operations), is_upkeep=is_upkeep))
        try:
            return await waiter
        finally:
            self._waiters.pop(request, None)

    async def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[Update]:
        """See `Keyspace.watch`."""
        cursor = from_revision
        while not self._is_closed:
            history = self._store.history
            if cursor < history.first:  # Always so for 0.
                # Go on from the reload's own revision: more may have become visible while it was consumed.
                yield (update := self._reload(prefix))
                cursor = Revision(update.revision + 1)
                continue
            if (end := history.end) <= cursor:
                await self._changed.wait()
                continue
            changes: tuple[Change, ...] = ()
            while cursor < end and not changes:
                changes = tuple(
                    Change(key, pair) for key, pair in history.at(cursor) if key.startswith(prefix)
                )
                cursor = Revision(cursor + 1)
            yield Update(Revision(cursor - 1), changes)

    def flush_asked(self) -> None:
        """Note that the log asks this stream to free old segments."""
        self._host.deliver(FlushAsked())

    async def close(self) -> None:
        """Answer Unknown to all callers that wait for the key space; end its watches. Idempotent."""
        self._is_closed = True
        self._host.close()
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(Unknown("the key space closed before the outcome was durable: look"))
        self._waiters.clear()
        self._wake()

    def _reload(self, prefix: str) -> Update:
        changes = tuple(Change(pair.key, pair) for pair in self.range(prefix))
        return Update(self.revision, changes, is_reload=True)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _persist(self, effect: Persist) -> None:
        if self._is_healing:
            self._host.deliver(PersistRefused(effect.token, HEALING))
            return
        if effect.offset != self._next_offset or buggify("keyspace.log_refuses"):
            self._host.deliver(PersistRefused(effect.token))  # An earlier record was refused.
            return
        passed("keyspace.append")
        durable = Persisted(effect.token)
        try:
            offset = self._log.append(
                STREAM, (effect.record,), done=lambda: self._durable(durable), relief=effect.is_relief
            )
        except (StoreUnhealthy, Throttled, StreamQuarantined) as error:
            self._host.deliver(PersistRefused(effect.token, f"the key space's log: {error}"))
            if isinstance(error, StreamQuarantined):
                self._heal()
            return
        assert offset == effect.offset, f"the log put the record at {offset}, not {effect.offset}"
        self._next_offset = Offset(offset + 1)

    def _heal(self) -> None:
        """Begin the log's stream anew, because it lost an old record: memory holds the whole map."""
        # A closed scope has cancelled its tasks and takes no new one, though `close` has not been called yet.
        if not self._is_healing and not self._scope.is_closed:
            self._is_healing = True
            self._scope.spawn(self._begin_anew(), name="heal")

    async def _begin_anew(self) -> None:
        store = self._store
        while True:
            if store.is_idle and store.snapshot is SnapshotState.IDLE:
                break
            await asyncio.sleep(in_seconds(HEAL_RETRY))  # Earlier appends will be durable soon.
        revision, pairs, disk = store.revision, store.shown.frozen(), self._disk
        chunks = await disk.run(lambda: snapshot(revision, pairs, chunk_bytes=self._chunk_bytes))
        seal = Seal(self._log.generation(STREAM), [*chunks])
        await _insisted(lambda: disk.run(lambda: write_seal(disk, seal)))
        self._next_offset = await _insisted(lambda: begin_log(self._log, STREAM, seal))
        # Tried again by itself: while a log is begun anew without a seal, a crash would lose the map.
        await _insisted(lambda: disk.run(lambda: remove_seal(disk)))
        self._is_healing = False
        self._host.deliver(LogBegun(self._next_offset))

    def _durable(self, event: Persisted) -> None:
        passed("keyspace.durable")
        self._host.deliver(event)

    def _answer(self, effect: Answer) -> None:
        waiter = self._waiters.get(effect.request)
        if waiter is None or waiter.done():
            return  # The caller was cancelled, and no longer waits.
        if effect.status is Status.OK and effect.outcome is not None:
            waiter.set_result(effect.outcome)
        else:
            waiter.set_exception(BY_STATUS[effect.status](effect.message))

    def _show(self, _: Show) -> None:
        self._wake()

    def _encode_snapshot(self, effect: EncodeSnapshot) -> None:
        if not self._scope.is_closed:  # If it is closed, the log asks again after the next start.
            self._scope.spawn(self._encode(effect), name="snapshot")

    async def _encode(self, effect: EncodeSnapshot) -> None:
        chunks = await self._disk.run(
            lambda: snapshot(effect.revision, effect.pairs, chunk_bytes=self._chunk_bytes)
        )
        passed("keyspace.snapshot")
        self._host.deliver(SnapshotEncoded(chunks))

    def _trim(self, effect: TrimLog) -> None:
        passed("keyspace.trim")
        self._log.trim(STREAM, effect.below)


async def _insisted(attempt: Callable[[], Awaitable[T]]) -> T:
    """Make the attempt again until the key space's log has room, and the disk space and a descriptor.

    Raises:
        OSError: any other: nobody knows which bytes reached the disk, so the process must end (W5).
    """
    while True:
        try:
            return await attempt()
        except BroadsheetError:
            pass
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        await asyncio.sleep(in_seconds(HEAL_RETRY))
