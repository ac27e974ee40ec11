"""Recovery takes whole snapshots and dense transactions, and refuses anything else."""

from collections.abc import Iterable

import pytest

from broadsheet.base.types import Offset, Revision
from broadsheet.errors import Corrupt
from broadsheet.keyspace.core.history import History
from broadsheet.keyspace.core.record import Record, TransactionRecord, encoded, snapshot
from broadsheet.keyspace.core.recovery import recovered
from broadsheet.keyspace.core.store import Store
from broadsheet.keyspace.core.transaction import KeyValue, Limits


def put(revision: int, key: str, value: bytes = b"v") -> TransactionRecord:
    return TransactionRecord(Revision(revision), ((key, value),), ())


def run(records: Iterable[Record | bytes], *, is_trimmed: bool = False) -> Store:
    payloads = [each if isinstance(each, bytes) else encoded(each) for each in records]
    return recovered(
        payloads,
        is_trimmed=is_trimmed,
        next_offset=Offset(len(payloads)),
        limits=Limits(),
        transactions_max=8,
        bytes_max=1 << 20,
    )


def pair(key: str, revision: int) -> KeyValue:
    return KeyValue(key, b"v", Revision(revision), Revision(revision))


@pytest.mark.parametrize("revisions", [(2,), (1, 3), (1, 2, 2), (2, 1)])
def test_a_missing_revision_is_corrupt(revisions: tuple[int, ...]) -> None:
    """A map without one transaction is one that nobody ever saw."""
    with pytest.raises(Corrupt, match=r"revision \d is missing"):
        run(put(revision, "a") for revision in revisions)


def test_transactions_that_a_snapshot_holds_are_passed_over() -> None:
    """It may stand behind some that it does not hold: they were appended while it was encoded."""
    chunks = snapshot(Revision(2), [pair("a", 1), pair("b", 2)], chunk_bytes=1)
    store = run([encoded(put(2, "b")), *chunks[:1], encoded(put(3, "c")), *chunks[1:], encoded(put(4, "a"))])

    assert (store.revision, [each.key for each in store.shown.frozen()]) == (4, ["a", "b", "c"])


def test_parts_of_a_snapshot_are_none() -> None:
    """Those of two are of two moments; one that a crash cut short counts for nothing."""
    chunks = snapshot(Revision(2), [pair("a", 1), pair("b", 2)], chunk_bytes=1)

    for records in (chunks[:1], chunks[1:], [*chunks[1:], *chunks[:1]]):
        assert run(records).revision == 0
        with pytest.raises(Corrupt, match="no complete snapshot"):
            run(records, is_trimmed=True)
    assert run([*chunks[1:], *chunks], is_trimmed=True).revision == 2


def test_a_whole_snapshot_behind_one_that_a_crash_cut_short_counts() -> None:
    """The log is trimmed for its sake, so a start that passed it over would have no map at all."""
    torn = snapshot(Revision(2), [pair("a", 1), pair("b", 2), pair("c", 2)], chunk_bytes=1)
    whole = snapshot(Revision(3), [pair("a", 1), pair("b", 3)], chunk_bytes=1)

    for length in range(1, len(torn)):
        for records in ((*torn[:length], *whole), (*whole, *torn[:length], *whole)):
            store = run([*records, encoded(put(4, "d"))], is_trimmed=True)
            assert (store.revision, [each.key for each in store.shown.pairs()]) == (4, ["a", "b", "d"])


def test_a_history_keeps_the_last_transaction_however_large() -> None:
    """A watcher is told of what has just happened; everything older goes for it."""
    history = History(Revision(0), transactions_max=8, bytes_max=10)
    for n, size in enumerate((1, 1, 100, 200), 1):
        history.add(Revision(n), (("k", KeyValue("k", bytes(size), Revision(n), Revision(n))),))

    assert (history.first, history.end) == (4, 5)
