"""Store commits transactions in order, shows them when they are durable, and survives a full log."""

from collections.abc import Sequence

import msgspec

from broadsheet.base.time import Instant
from broadsheet.base.types import Offset, RequestId, Revision, Token
from broadsheet.errors import Status
from broadsheet.keyspace.core.history import History
from broadsheet.keyspace.core.map import OrderedMap
from broadsheet.keyspace.core.record import TransactionRecord, encoded, snapshot
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
from broadsheet.keyspace.core.transaction import (
    Absent,
    Compare,
    CreateRevisionIs,
    Delete,
    KeyValue,
    Limits,
    ModRevisionIs,
    Operation,
    Outcome,
    Put,
    ValueIs,
)

NOW = Instant(0)
SMALL = Limits(
    key_bytes_max=64, value_bytes_max=512, transaction_bytes_max=1024, map_bytes_max=1024, in_flight_max=4
)


def rev(n: int) -> Revision:
    return Revision(n)


def store(limits: Limits = SMALL) -> Store:
    history = History(Revision(0), transactions_max=8, bytes_max=1 << 20)
    return Store(OrderedMap(), history, next_offset=Offset(0), limits=limits)


def step(machine: Store, event: StoreEvent) -> list[StoreEffect]:
    effects = machine.step(event, NOW)
    machine.check()
    return effects


def transact(
    n: int, operations: Sequence[Operation], compares: Sequence[Compare] = (), *, is_upkeep: bool = False
) -> TransactRequest:
    return TransactRequest(RequestId(n), compares, operations, is_upkeep=is_upkeep)


def done(n: int, revision: int, *, succeeded: bool = True) -> Answer:
    return Answer(RequestId(n), Status.OK, Outcome(succeeded=succeeded, revision=rev(revision)))


def persist(
    token: int, offset: int, revision: int, puts: dict[str, bytes], deletes: tuple[str, ...] = ()
) -> Persist:
    record = TransactionRecord(revision=rev(revision), puts=tuple(puts.items()), deletes=deletes)
    return Persist(token=Token(token), offset=Offset(offset), record=encoded(record))


def put_one(machine: Store, n: int, key: str, value: bytes) -> None:
    """Commit one put, durably."""
    (effect,) = step(machine, transact(n, [Put(key, value)]))
    assert isinstance(effect, Persist)
    step(machine, Persisted(effect.token))


def test_the_first_revision_is_1_and_a_put_is_shown_when_it_is_durable() -> None:
    """control.16: "the first revision is 1"; an answer before the disk's would be a lie after a crash."""
    machine = store()

    assert step(machine, transact(1, [Put("k", b"v")])) == [persist(1, 0, 1, {"k": b"v"})]
    assert machine.shown.get("k") is None
    assert step(machine, Persisted(Token(1))) == [Show(rev(1)), done(1, 1)]
    assert machine.shown.get("k") == KeyValue("k", b"v", rev(1), rev(1))


def test_create_revision_stays_and_mod_revision_moves() -> None:
    """control.16: both are the offsets in history of who created and who last wrote the key."""
    machine = store()
    put_one(machine, 1, "k", b"a")
    put_one(machine, 2, "k", b"b")

    assert machine.shown.get("k") == KeyValue("k", b"b", rev(1), rev(2))


def test_a_deleted_and_recreated_key_has_a_new_create_revision() -> None:
    """Else a fence that compares create_revision would let the old owner of the name through."""
    machine = store()
    put_one(machine, 1, "k", b"a")
    step(machine, transact(2, [Delete("k")]))
    step(machine, Persisted(Token(2)))
    put_one(machine, 3, "k", b"c")

    assert machine.shown.get("k") == KeyValue("k", b"c", rev(3), rev(3))


def test_compares_see_what_is_appended_but_not_yet_durable() -> None:
    """Two brokers that compare the same revision must not both win while the disk is slow."""
    machine = store()
    step(machine, transact(1, [Put("k", b"a")], [Absent("k")]))

    assert step(machine, transact(2, [Put("k", b"b")], [Absent("k")])) == []
    assert step(machine, Persisted(Token(1))) == [Show(rev(1)), done(1, 1), done(2, 1, succeeded=False)]


def test_every_kind_of_compare_is_judged() -> None:
    """control.17: compares on absent, create_revision, mod_revision, value."""
    machine = store()
    put_one(machine, 1, "k", b"a")
    put_one(machine, 2, "k", b"b")
    verdicts: dict[Compare, bool] = {
        Absent("k"): False,
        Absent("x"): True,
        CreateRevisionIs("k", rev(1)): True,
        CreateRevisionIs("k", rev(2)): False,
        CreateRevisionIs("x", rev(0)): True,
        ModRevisionIs("k", rev(2)): True,
        ModRevisionIs("k", rev(1)): False,
        ModRevisionIs("x", rev(0)): True,
        ValueIs("k", b"b"): True,
        ValueIs("k", b"a"): False,
        ValueIs("x", b""): False,
    }

    for compare, verdict in verdicts.items():
        assert step(machine, transact(9, [], [compare])) == [done(9, 2, succeeded=verdict)], compare


def test_a_transaction_that_changes_nothing_takes_no_revision() -> None:
    """Revisions order changes; an empty one would wake every mirror for nothing."""
    machine = store()
    put_one(machine, 1, "k", b"a")

    assert step(machine, transact(2, [Delete("x")])) == [done(2, 1)]


def test_one_transaction_holds_8192_operations_and_no_more() -> None:
    """control.17 promises at least 4,096; above the limit nothing is done."""
    machine = store(Limits())
    puts = [Put(f"k{n:05}", b"v") for n in range(8192)]

    (effect,) = step(machine, transact(1, puts))
    assert isinstance(effect, Persist)
    assert step(machine, Persisted(effect.token)) == [Show(rev(1)), done(1, 1)]
    assert [pair.mod_revision for pair in machine.shown.range("k")] == [1] * 8192
    (answer,) = step(machine, transact(2, [*puts, Put("one more", b"")]))
    assert isinstance(answer, Answer)
    assert answer.status is Status.TOO_LARGE
    assert "operations_max 8192" in answer.message


def test_a_bad_request_is_refused_by_name_and_changes_nothing() -> None:
    """control.17: "leases refused by name"; every limit says its name and its value."""
    machine = store()
    cases: list[tuple[list[Operation], Status, str]] = [
        ([Put("k", b"", lease=7)], Status.UNSUPPORTED, "lease 7"),
        ([Put("", b"")], Status.INVALID_ARGUMENT, "empty"),
        ([Put("k\ud800", b"")], Status.INVALID_ARGUMENT, "Unicode"),
        ([Put("k" * 65, b"")], Status.TOO_LARGE, "key_bytes_max 64"),
        ([Put("ü" * 33, b"")], Status.TOO_LARGE, "key_bytes_max 64"),
        ([Put("k", bytes(513))], Status.TOO_LARGE, "value_bytes_max 512"),
        ([Put("a", bytes(512)), Put("b", bytes(512))], Status.TOO_LARGE, "transaction_bytes_max 1024"),
        ([Put(f"{n:02}" + "ü" * 31, b"") for n in range(17)], Status.TOO_LARGE, "1088 bytes are above"),
        ([Put("k", b""), Delete("k")], Status.INVALID_ARGUMENT, "two operations"),
    ]

    for operations, status, words in cases:
        (answer,) = step(machine, transact(1, operations))
        assert isinstance(answer, Answer)
        assert (answer.status, words in answer.message) == (status, True), answer
    assert machine.revision == 0


def test_a_transaction_of_too_many_compares_is_refused() -> None:
    """Each costs a part of a step of the one loop; the error names the option."""
    machine = store(msgspec.structs.replace(SMALL, compares_max=2))
    (answer,) = step(machine, transact(1, [Put("k", b"")], [Absent("k")] * 3))
    assert isinstance(answer, Answer)
    assert (answer.status, "compares_max 2" in answer.message) == (Status.TOO_LARGE, True), answer
    (effect,) = step(machine, transact(2, [Put("k", b"")], [Absent("k")] * 2))
    assert isinstance(effect, Persist)


def test_a_full_map_refuses_what_is_new_and_not_the_upkeep_of_what_is_there() -> None:
    """The mark of a deletion makes a map greater: without a reserve nobody could make room."""
    machine = store(msgspec.structs.replace(SMALL, map_reserve_bytes=100))
    put_one(machine, 1, "a", bytes(510))
    put_one(machine, 2, "b", bytes(511))

    (answer,) = step(machine, transact(3, [Put("a", bytes(512))]))
    assert isinstance(answer, Answer)
    assert answer.status is Status.TOO_LARGE
    (effect,) = step(machine, transact(4, [Put("c", bytes(100))], is_upkeep=True))
    assert isinstance(effect, Persist)
    (answer,) = step(machine, transact(5, [Put("d", b"")], is_upkeep=True))
    assert isinstance(answer, Answer)
    assert "map_reserve_bytes" in answer.message
    (effect,) = step(machine, transact(6, [Put("a", bytes(509))]))
    assert isinstance(effect, Persist), "the map is above its limit still, and smaller than it was"


def test_the_map_has_a_limit_and_still_shrinks_at_it() -> None:
    """A map that no snapshot can hold could never let go of the log; deleting must always work."""
    machine = store()
    put_one(machine, 1, "a", bytes(510))
    put_one(machine, 2, "b", bytes(510))

    (answer,) = step(machine, transact(3, [Put("c", bytes(100))]))
    assert isinstance(answer, Answer)
    assert answer.status is Status.TOO_LARGE
    (effect,) = step(machine, transact(4, [Delete("a")]))
    assert isinstance(effect, Persist)


def test_too_many_in_flight_are_throttled() -> None:
    """A slow disk must not become an unbounded queue."""
    machine = store()
    for n in range(4):
        step(machine, transact(n, [Put("k", b"%d" % n)]))

    (answer,) = step(machine, transact(9, [Put("k", b"")]))
    assert isinstance(answer, Answer)
    assert answer.status is Status.THROTTLED


def test_a_full_log_takes_back_the_whole_unwritten_tail() -> None:
    """A later transaction was judged against the refused one, so it falls with it; nothing else does."""
    machine = store()
    step(machine, transact(1, [Put("a", b"1")]))
    step(machine, transact(2, [Put("b", b"2")]))
    step(machine, transact(3, [Put("c", b"3")], [ModRevisionIs("b", rev(2))]))

    refused = step(machine, PersistRefused(Token(2)))
    assert [(e.request, e.status) for e in refused if isinstance(e, Answer)] == [
        (3, Status.STORE_UNHEALTHY),
        (2, Status.STORE_UNHEALTHY),
    ]
    assert step(machine, PersistRefused(Token(3))) == []  # The host refused the later record as well.
    assert step(machine, transact(4, [Put("b", b"4")], [Absent("b")])) == [persist(4, 1, 2, {"b": b"4"})]
    assert step(machine, Persisted(Token(4))) == [Show(rev(2)), done(1, 1), done(4, 2)]


def test_a_flush_request_becomes_a_snapshot_and_then_a_trim() -> None:
    """The log recycles segments only when this stream lets go of them (log.9)."""
    machine = store()
    put_one(machine, 1, "a", b"1")
    step(machine, transact(2, [Put("b", b"2")]))  # On its way, so not in the snapshot, and kept.

    (encode,) = step(machine, FlushAsked())
    assert encode == EncodeSnapshot(rev(1), (KeyValue("a", b"1", rev(1), rev(1)),))
    assert step(machine, FlushAsked()) == []
    (write,) = step(machine, SnapshotEncoded(snapshot(encode.revision, encode.pairs, chunk_bytes=1)))
    assert isinstance(write, Persist)
    assert step(machine, Persisted(write.token)) == [Show(rev(2)), done(2, 2), TrimLog(Offset(1))]
    assert machine.snapshot is SnapshotState.IDLE


def test_a_snapshot_that_the_log_refuses_is_given_up_and_asked_for_again() -> None:
    """ENOSPC while snapshotting must not wedge the key space."""
    machine = store()
    put_one(machine, 1, "a", b"1")
    step(machine, FlushAsked())
    (write,) = step(machine, SnapshotEncoded(snapshot(rev(1), machine.shown.pairs(), chunk_bytes=999)))
    assert isinstance(write, Persist)

    assert step(machine, PersistRefused(write.token)) == []
    assert machine.snapshot is SnapshotState.IDLE
    assert machine.deadline() is not None
    assert len(step(machine, FlushAsked())) == 1
    assert machine.deadline() is None, "one is under way, and no second one is wanted"


def test_a_snapshot_whose_chunk_falls_with_an_earlier_record_is_given_up_and_begun_again() -> None:
    """It waited for that chunk for ever, and a key space that snapshots no more fills its log."""
    machine = store()
    put_one(machine, 1, "a", b"1")
    step(machine, FlushAsked())
    (earlier,) = step(machine, transact(2, [Put("b", b"2")]))
    (chunk,) = step(machine, SnapshotEncoded(snapshot(rev(1), machine.shown.pairs(), chunk_bytes=999)))
    assert isinstance(earlier, Persist)
    assert isinstance(chunk, Persist)

    (answer,) = step(machine, PersistRefused(earlier.token))
    assert isinstance(answer, Answer)
    assert answer.status is Status.STORE_UNHEALTHY
    assert machine.snapshot is SnapshotState.IDLE
    assert machine.deadline() is not None
    assert step(machine, PersistRefused(chunk.token)) == []


def test_a_page_is_the_first_pairs_behind_a_key() -> None:
    """Who lists ten thousand journals asks page by page, and must meet each once."""
    pairs = OrderedMap()
    names = ["a/1", "b/1", "b/2", "b/3", "c/1"]
    pairs.apply([(name, KeyValue(name, b"", rev(1), rev(1))) for name in names])

    def page(prefix: str, after: str, count_max: int) -> list[str]:
        return [pair.key for pair in pairs.page(prefix, after=after, count_max=count_max)]

    assert page("b/", "", 2) == ["b/1", "b/2"]
    assert page("b/", "b/2", 2) == ["b/3"]
    assert page("", "a/1", 3) == ["b/1", "b/2", "b/3"]
    assert page("c/", "c/1", 9) == []
