"""Transactions over an ordered map: is there one order of them, by revision, that explains every answer?

A transaction that changed something has a revision of its own; one of unknown outcome that was seen in some
map has the revision that the map shows. From the known ones the checker demands: whole (all of its keys, or
none), true to its compares, in real-time order, and every map that was read is the state at its revision as
far as known transactions say. Values name their transaction. Costs maps times keys times a logarithm.
Source: design/control.md control.15-17; Porcupine's idea of a model, by versions instead of a search.
"""

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from broadsheet.keyspace.core.transaction import Compare, KeyValue, ModRevisionIs, Put
from broadsheet.keyspace.core.transaction import Operation as KeyOperation
from simulator.history import Operation, Outcome
from simulator.workload import Violation


class Transaction(msgspec.Struct, frozen=True):
    """The argument of a `transact`."""

    compares: tuple[Compare, ...]
    operations: tuple[KeyOperation, ...]


def check_transactions(operations: Sequence[Operation]) -> None:
    """Check all of a history: `transact` of a `Transaction` and `read` of the whole map.

    Raises:
        Violation: there is no such order.
    """
    maps = [op for op in operations if op.name == "read" and op.outcome is Outcome.OK]
    line = _Line(_took_effect(operations, maps))
    line.check_compares()
    for op in maps:
        line.check_map(op)
    _check_times([op for op in operations if op.outcome is Outcome.OK], line.took)


def _took_effect(operations: Sequence[Operation], maps: Sequence[Operation]) -> dict[int, Operation]:
    """The transactions by revision: those that were acknowledged, and those that were seen."""
    by_value: dict[bytes, Operation] = {}
    took: dict[int, Operation] = {}
    for op in operations:
        if not isinstance(op.argument, Transaction):
            continue
        by_value.update((put.value, op) for put in op.argument.operations if isinstance(put, Put))
        has_changed = op.outcome is Outcome.OK and op.result is True and _puts(op)
        if has_changed and took.setdefault(op.version or 0, op) is not op:
            raise Violation(f"revision {op.version} was given twice: {took[op.version or 0]} and {op}")
    for seen in maps:
        for pair in _pairs(seen):
            author = by_value.get(pair.value)
            if author is None:
                raise Violation(
                    f"{pair.key} has a value that nobody put: {pair.value[:40]!r} in {seen.number}"
                )
            if author.outcome is Outcome.REJECTED or (author.outcome is Outcome.OK and not author.result):
                raise Violation(f"{author} was refused, and {pair.key} shows it")
            if took.setdefault(pair.mod_revision, author) is not author:
                raise Violation(f"revision {pair.mod_revision} is of {author} and {took[pair.mod_revision]}")
            if author.outcome is Outcome.OK and author.version != pair.mod_revision:
                raise Violation(f"{author} is shown at revision {pair.mod_revision}")
    return took


class _Line:
    """The known transactions in the order of their revisions."""

    def __init__(self, took: dict[int, Operation]) -> None:
        self.took = took
        self.revisions = sorted(took)
        self.of_key: dict[str, tuple[list[int], list[bool]]] = {}
        """For each key the revisions that wrote it, and whether each put it."""
        for revision in self.revisions:
            for each in self.transaction(revision).operations:
                revisions, puts = self.of_key.setdefault(each.key, ([], []))
                revisions.append(revision)
                puts.append(isinstance(each, Put))

    def transaction(self, revision: int) -> Transaction:
        """The one that made `revision`."""
        found = self.took[revision].argument
        assert isinstance(found, Transaction)
        return found

    def last(self, key: str, at: int) -> tuple[int, bool]:
        """The last revision up to `at` that wrote `key`, and whether it put it; 0 where there is none."""
        revisions, puts = self.of_key[key]
        index = bisect_right(revisions, at) - 1
        return (revisions[index], puts[index]) if index >= 0 else (0, False)

    def has_gap(self, after: int, until: int) -> bool:
        """Whether a revision between has no known author: a delete leaves no value that would name it."""
        known = bisect_right(self.revisions, until) - bisect_right(self.revisions, after)
        return known < until - after

    def check_compares(self) -> None:
        """Whoever compared a key with a revision, and succeeded, met no change of it in between."""
        for revision in self.revisions:
            for compare in self.transaction(revision).compares:
                if not isinstance(compare, ModRevisionIs) or compare.key not in self.of_key:
                    continue
                before, is_put = self.last(compare.key, revision - 1)
                if not is_put or compare.revision >= before:
                    continue
                if compare.revision or not self.has_gap(before, revision - 1):
                    op = self.took[revision]
                    raise Violation(f"{op} compared {compare.key} with {compare.revision}, it was {before}")

    def check_map(self, seen: Operation) -> None:
        """What one read of the map says is what the transactions up to its revision left."""
        pairs = {pair.key: pair for pair in _pairs(seen)}
        at = seen.version or 0
        for pair in pairs.values():
            if not pair.create_revision <= pair.mod_revision <= at:
                raise Violation(f"{pair} does not fit into a map of revision {at}")
        for key in self.of_key:
            revision, is_put = self.last(key, at)
            found = pairs.get(key)
            if revision and found is not None:
                if found.mod_revision < revision or (found.mod_revision == revision) != is_put:
                    text = f"{key} is of revision {found.mod_revision}, but {self.took[revision]} came later"
                    raise Violation(text)
                before, was_there = self.last(key, revision - 1)
                if (
                    is_put
                    and was_there
                    and found.create_revision > before
                    and not self.has_gap(before, revision)
                ):
                    raise Violation(f"{found} was put over one of revision {before}, and says that it is new")
            elif is_put and not self.has_gap(revision, at):
                raise Violation(f"{key} of {self.took[revision]} is lost in the map of revision {at}")


def _check_times(known: Sequence[Operation], took: dict[int, Operation]) -> None:
    """No answer is older than one that was known before it was asked for; no change is at such a revision."""
    calls = sorted(known, key=lambda op: op.invoked_at)
    returns = sorted(known, key=lambda op: op.returned_at or 0)
    floor, at = 0, 0
    for op in calls:
        while (returns[at].returned_at or 0) < op.invoked_at:
            floor, at = max(floor, returns[at].version or 0), at + 1
        is_change = took.get(op.version or 0) is op
        if (op.version or 0) < floor + is_change:
            raise Violation(f"older than revision {floor}, which was known before: {op}")


def _puts(op: Operation) -> bool:
    assert isinstance(op.argument, Transaction)
    return any(isinstance(each, Put) for each in op.argument.operations)


def _pairs(seen: Operation) -> tuple[KeyValue, ...]:
    assert isinstance(seen.result, tuple)
    return seen.result
