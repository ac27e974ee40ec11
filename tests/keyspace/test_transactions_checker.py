"""The checker of key space histories says no where there is no order of whole transactions."""

import pytest

from broadsheet.base.types import Revision
from broadsheet.keyspace.core.transaction import KeyValue, ModRevisionIs, Put
from simulator.checkers.transactions import Transaction, check_transactions
from simulator.history import History, Operation
from simulator.workload import Violation


class Story:
    """A history in which each operation ends before the next one begins."""

    def __init__(self) -> None:
        self.now = 0
        self.history = History(self.tick)

    def tick(self) -> int:
        self.now += 1
        return self.now

    def put(self, value: bytes, *keys: str, compare: int | None = None, at: int | None) -> Operation:
        compares = () if compare is None else (ModRevisionIs(keys[0], Revision(compare)),)
        asked = Transaction(compares, tuple(Put(key, value) for key in keys))
        operation = self.history.invoke("c", "map", "transact", asked)
        if at is None:
            self.history.lose(operation)
        else:
            self.history.ok(operation, result=True, version=at)
        return operation

    def read(self, revision: int, **pairs: tuple[bytes, int]) -> None:
        operation = self.history.invoke("c", "map", "read")
        found = tuple(KeyValue(key, value, Revision(1), Revision(at)) for key, (value, at) in pairs.items())
        self.history.ok(operation, found, version=revision)

    def check(self) -> None:
        check_transactions(self.history.operations)


def test_a_sound_history_passes() -> None:
    """Else every verdict of it is worthless."""
    story = Story()
    story.put(b"1", "a", "b", at=1)
    story.put(b"2", "a", compare=1, at=None)
    story.read(2, a=(b"2", 2), b=(b"1", 1))
    story.put(b"3", "b", compare=1, at=3)
    story.read(3, a=(b"2", 2), b=(b"3", 3))
    story.check()


def test_a_lost_transaction_is_seen() -> None:
    """Acknowledged, and not in the map after it."""
    story = Story()
    story.put(b"1", "a", at=1)
    story.put(b"2", "b", at=2)
    story.read(2, a=(b"1", 1))
    with pytest.raises(Violation, match="lost"):
        story.check()


def test_a_torn_transaction_is_seen() -> None:
    """One of two keys; whether it was acknowledged or only seen."""
    story = Story()
    story.put(b"1", "a", "b", at=1)
    story.put(b"2", "a", "b", at=None)
    story.read(2, a=(b"2", 2), b=(b"1", 1))
    with pytest.raises(Violation, match="came later"):
        story.check()


def test_a_compare_that_did_not_hold_is_seen() -> None:
    """Both changed the key that both had seen at the same revision."""
    story = Story()
    story.put(b"1", "a", at=1)
    story.put(b"2", "a", compare=1, at=2)
    story.put(b"3", "a", compare=1, at=3)
    with pytest.raises(Violation, match="compared"):
        story.check()


def test_a_revision_that_goes_back_is_seen() -> None:
    """A restart that forgot the last transaction gives its revision again, or shows an older map."""
    story = Story()
    story.put(b"1", "a", at=1)
    story.put(b"2", "a", at=2)
    story.read(1, a=(b"1", 1))
    with pytest.raises(Violation, match="known before"):
        story.check()
    again = Story()
    again.put(b"1", "a", at=1)
    again.put(b"2", "a", at=1)
    with pytest.raises(Violation, match="given twice"):
        again.check()
