"""Messages: what publishers sent, against what readers of committed messages were shown.

P10: a message that was acknowledged, or whose transaction was, is shown once to everybody who reads later.
One that was rolled back, or refused, is never shown; one whose outcome is unknown once or never. Messages of
one publish or transaction stand in a journal in their order. A transaction is shown in all of its journals or
in none, once a later publisher of its commit journal has taken over. A publisher that begins is told the
positions of the newest transaction.
"""

from collections.abc import Sequence
from typing import NamedTuple

from simulator.history import Operation, Outcome
from simulator.violation import Violation


class Sent(NamedTuple):
    """The argument of a publish or a transaction: the ids of its messages, by journal."""

    ids: dict[str, tuple[str, ...]]


class Begun(NamedTuple):
    """The result of a publisher's beginning: the transaction whose positions it was told, by its number."""

    newest: int | None


class Shown(NamedTuple):
    """The result of a read from the begin, or of one that went on from a kept position."""

    ids: tuple[str, ...]


def check_messages(operations: Sequence[Operation]) -> None:
    """Check a history.

    Raises:
        Violation: says which message of which journal.
    """
    sent = [each for each in operations if isinstance(each.argument, Sent)]
    reads = [each for each in operations if isinstance(each.result, Shown) and each.outcome is Outcome.OK]
    for read in reads:
        _check_read(read, sent)
    _check_prefixes(reads)
    _check_whole(operations, sent, reads)
    _check_begun(operations, sent)


def _check_read(read: Operation, sent: Sequence[Operation]) -> None:
    shown = _shown(read)
    places = {message: at for at, message in enumerate(shown)}
    if len(places) != len(shown):
        twice = next(message for at, message in enumerate(shown) if places[message] != at)
        raise Violation(f"P10 {read.key}: message {twice} was shown twice to {read.client}")
    for operation in sent:
        ids = _ids(operation).get(read.key, ())
        found = [places[message] for message in ids if message in places]
        if found != sorted(found):
            raise Violation(f"P10 {read.key}: messages {ids} were shown in another order to {read.client}")
        if operation.outcome is Outcome.REJECTED and found:
            raise Violation(f"P10 {read.key}: of {ids}, which was rolled back, {read.client} was shown some")
        was_before = operation.returned_at is not None and operation.returned_at < read.invoked_at
        if operation.outcome is Outcome.OK and was_before and len(found) != len(ids):
            raise Violation(f"P10 {read.key}: of {ids}, which was acknowledged, {read.client} missed some")
        if operation.name == "transact" and found and len(found) != len(ids):
            raise Violation(f"P10 {read.key}: of transaction {ids} {read.client} was shown a part")
    known = {message for operation in sent for message in _ids(operation).get(read.key, ())}
    if strange := [message for message in shown if message not in known]:
        raise Violation(f"P10 {read.key}: nobody published {strange[0]}")


def _check_prefixes(reads: Sequence[Operation]) -> None:
    """The committed messages of a journal have one order, which only grows (journals.29)."""
    longest: dict[str, tuple[str, ...]] = {}
    for read in reads:
        longest[read.key] = max(longest.get(read.key, ()), _shown(read), key=len)
    for read in reads:
        shown = _shown(read)
        if longest[read.key][: len(shown)] != shown:
            raise Violation(f"P10 {read.key}: two readers were shown messages in two orders")


def _check_whole(
    operations: Sequence[Operation], sent: Sequence[Operation], reads: Sequence[Operation]
) -> None:
    """What the last readers see, after the last publisher has finished what others committed."""
    finished = [each for each in operations if each.name == "finish" and each.outcome is Outcome.OK]
    if not finished:
        return
    since = min(each.returned_at or 0 for each in finished)
    last = {read.key: set(_shown(read)) for read in reads if read.invoked_at > since}
    for operation in sent:
        if operation.name != "transact":
            continue
        ids = _ids(operation)
        seen = {journal for journal in ids if journal in last and set(ids[journal]) <= last[journal]}
        unseen = {journal for journal in ids if journal in last} - seen
        if seen and unseen:
            raise Violation(f"P10: a transaction is shown in {sorted(seen)} and not in {sorted(unseen)}")


def _check_begun(operations: Sequence[Operation], sent: Sequence[Operation]) -> None:
    """Nobody goes on from an input that was not committed, nor from an older one than was acknowledged."""
    transactions = {each.number: each for each in sent if each.name == "transact"}
    for begun in operations:
        if not isinstance(begun.result, Begun):
            continue
        newest = None if begun.result.newest is None else transactions[begun.result.newest]
        if newest is not None and newest.outcome is Outcome.REJECTED:
            raise Violation(f"P10: {begun.client} was told positions of {newest}, which was rolled back")
        since = -1 if newest is None else newest.returned_at
        for each in transactions.values():
            was_before = each.returned_at is not None and each.returned_at < begun.invoked_at
            is_newer = since is not None and each.invoked_at > since
            if each.outcome is Outcome.OK and was_before and is_newer:
                raise Violation(f"P10: {begun.client} was told positions of {newest}, and not of {each}")


def _ids(operation: Operation) -> dict[str, tuple[str, ...]]:
    assert isinstance(operation.argument, Sent)
    return operation.argument.ids


def _shown(read: Operation) -> tuple[str, ...]:
    assert isinstance(read.result, Shown)
    return read.result.ids
