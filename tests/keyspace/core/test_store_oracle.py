"""Store against a plain dict: whatever the disk and the crashes do, the map is the committed prefix."""

from hypothesis import given, settings
from hypothesis import strategies as st

from broadsheet.base.time import Instant
from broadsheet.base.types import Offset, RequestId, Revision, Token
from broadsheet.errors import Status
from broadsheet.keyspace.core.record import SnapshotChunk, TransactionRecord, decoded, snapshot
from broadsheet.keyspace.core.recovery import recovered
from broadsheet.keyspace.core.store import (
    Answer,
    EncodeSnapshot,
    FlushAsked,
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
from broadsheet.keyspace.core.transaction import Absent, Delete, KeyValue, Limits, ModRevisionIs, Put

NOW = Instant(0)
LIMITS = Limits(
    key_bytes_max=64, value_bytes_max=512, transaction_bytes_max=1024, map_bytes_max=1024, in_flight_max=4
)

KEYS = st.sampled_from(["a", "b", "ab", "c"])
OPERATION = st.builds(Put, KEYS, st.binary(max_size=3)) | st.builds(Delete, KEYS)
COMPARE = st.builds(Absent, KEYS) | st.builds(ModRevisionIs, KEYS, st.integers(0, 6).map(Revision))
TRANSACT = st.builds(
    TransactRequest,
    st.just(RequestId(0)),
    st.lists(COMPARE, max_size=1),
    st.lists(OPERATION, max_size=3, unique_by=lambda operation: operation.key),
)
ACTION = TRANSACT | st.sampled_from(["sync", "sync one", "flush", "encode", "full", "crash"])


class Rig:
    """A store, a log stream that loses what is not synced, and the naive model of what was committed."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.first = self.durable = 0
        self.states: list[dict[str, KeyValue]] = [{}]
        self.tokens: dict[int, Token] = {}
        self.answered = 0
        self.encode: EncodeSnapshot | None = None
        self.is_full = False
        self.machine = self.recovered()

    def recovered(self) -> Store:
        return recovered(
            self.records[self.first : self.durable],
            is_trimmed=self.first > 0,
            next_offset=Offset(self.durable),
            limits=LIMITS,
            transactions_max=4,
            bytes_max=1 << 20,
        )

    def act(self, action: TransactRequest | str) -> None:
        if isinstance(action, TransactRequest):
            self.step(action)
        elif action == "full":
            self.is_full = True
            self.step(TransactRequest(RequestId(0), [], [Put("a", b"full")]))
            self.is_full = False
        elif action.startswith("sync") and self.durable < len(self.records):
            self.durable = len(self.records) if action == "sync" else self.durable + 1
            self.step(Persisted(self.tokens[self.durable - 1]))
        elif action == "flush":
            self.step(FlushAsked())
        elif action == "encode" and self.machine.snapshot is SnapshotState.ENCODING:
            assert self.encode is not None
            self.step(SnapshotEncoded(snapshot(self.encode.revision, self.encode.pairs, chunk_bytes=1)))
        elif action == "crash":
            self.crash()

    def step(self, event: StoreEvent) -> None:
        effects = self.machine.step(event, NOW)
        self.machine.check()
        for effect in effects:
            self.perform(effect)

    def perform(self, effect: StoreEffect) -> None:
        match effect:
            case Persist() if self.is_full or effect.offset != len(self.records):
                self.step(PersistRefused(effect.token))
            case Persist():
                self.tokens[effect.offset] = effect.token
                self.records.append(effect.record)
                self.learn(effect.record)
            case Answer(outcome=None):
                assert effect.status in (Status.STORE_UNHEALTHY, Status.THROTTLED), effect
            case Answer(outcome=outcome) if outcome is not None:
                self.answered = max(self.answered, outcome.revision)
                assert self.machine.revision >= outcome.revision, "an answer may not run ahead of the map"
            case EncodeSnapshot():
                self.encode = effect
            case TrimLog():
                assert effect.below <= self.durable, "a trim rests on durable records"
                self.first = max(self.first, effect.below)
            case Show():
                assert self.shown() == self.states[effect.revision]

    def learn(self, payload: bytes) -> None:
        record = decoded(payload)
        if isinstance(record, SnapshotChunk):
            return
        assert isinstance(record, TransactionRecord)
        assert record.revision == len(self.states)
        model = dict(self.states[-1])
        for key, value in record.puts:
            created = model[key].create_revision if key in model else record.revision
            model[key] = KeyValue(key, value, created, record.revision)
        for key in record.deletes:
            del model[key]
        self.states.append(model)

    def crash(self) -> None:
        """Lose what is not durable and start again."""
        del self.records[self.durable :]
        self.machine = self.recovered()
        self.machine.check()
        del self.states[self.machine.revision + 1 :]
        assert self.machine.revision >= self.answered, "what was answered is there"
        assert self.shown() == self.states[-1]

    def shown(self) -> dict[str, KeyValue]:
        pairs = self.machine.shown.pairs()
        assert pairs == sorted(pairs, key=lambda pair: pair.key)
        return {pair.key: pair for pair in pairs}


@settings(max_examples=300, deadline=None)
@given(st.lists(ACTION, max_size=40))
def test_any_interleaving_equals_a_dict_that_commits_in_order(script: list[TransactRequest | str]) -> None:
    """After each crash the map is what was durable, every answered revision included."""
    rig = Rig()
    for action in script:
        rig.act(action)

    rig.crash()
