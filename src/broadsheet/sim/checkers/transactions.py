"""Transactions over an ordered map: is there one order of them, by revision, that explains every answer?

A transaction that changed something has a revision of its own; one of unknown outcome that was seen in some
map has the revision that the map shows. From the known ones the checker demands: whole (all of its keys, or
none), true to its compares, in real-time order, and every map that was read is the state at its revision as
far as known transactions say. Values name their transaction. Linear in the history times the keys of a map.
Source: design/control.md control.15-17; Porcupine's idea of a model, by versions instead of a search.
"""

from collections.abc import Sequence

import msgspec

from broadsheet.keyspace.core.transaction import Compare, KeyValue, ModRevisionIs, Put
from broadsheet.keyspace.core.transaction import Operation as KeyOperation
from broadsheet.sim.history import Operation, Outcome
from broadsheet.sim.workload import Violation


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
    took = _took_effect(operations, maps)
    _check_compares(took)
    for op in maps:
        _check_map(op, took)
    _check_times([op for op in operations if op.outcome is Outcome.OK], took)


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


def _check_compares(took: dict[int, Operation]) -> None:
    """Whoever compared a key with a revision, and succeeded, met no change of it in between."""
    last: dict[str, int] = {}
    for revision in sorted(took):
        transaction = took[revision].argument
        assert isinstance(transaction, Transaction)
        for compare in transaction.compares:
            before = last.get(compare.key, 0)
            if not isinstance(compare, ModRevisionIs) or compare.revision >= before:
                continue
            if compare.revision or not _may_be_deleted(before, revision - 1, took):
                raise Violation(
                    f"{took[revision]} compared {compare.key} with {compare.revision}, it was {before}"
                )
        for each in transaction.operations:
            if isinstance(each, Put):
                last[each.key] = revision
            else:
                last.pop(each.key, None)


def _check_map(seen: Operation, took: dict[int, Operation]) -> None:
    """What one read of the map says is what the transactions up to its revision left."""
    pairs = {pair.key: pair for pair in _pairs(seen)}
    at = seen.version or 0
    for pair in pairs.values():
        if not pair.create_revision <= pair.mod_revision <= at:
            raise Violation(f"{pair} does not fit into a map of revision {at}")
    last: dict[str, tuple[int, bool]] = {}
    for revision in sorted(each for each in took if each <= at):
        transaction = took[revision].argument
        assert isinstance(transaction, Transaction)
        last.update((each.key, (revision, isinstance(each, Put))) for each in transaction.operations)
    for key, (revision, is_put) in last.items():
        found = pairs.get(key)
        if found is not None and (
            found.mod_revision < revision or (found.mod_revision == revision) != is_put
        ):
            raise Violation(f"{key} is of revision {found.mod_revision}, but {took[revision]} came later")
        if found is None and is_put and not _may_be_deleted(revision, at, took):
            raise Violation(f"{key} of {took[revision]} is lost in the map of revision {at}")


def _may_be_deleted(after: int, until: int, took: dict[int, Operation]) -> bool:
    """Whether a revision between has no known author: a delete leaves no value that would name it."""
    return any(revision not in took for revision in range(after + 1, until + 1))


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
