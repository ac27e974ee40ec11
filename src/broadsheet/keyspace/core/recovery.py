"""Recovery: from the records of the log stream to a `Store`.

Reads the last complete snapshot, then every transaction after its revision; these must be dense. A snapshot
may stand behind transactions that it does not hold: they were appended while it was encoded. Pure.
It does not cut or repair: what cannot be explained is `Corrupt`, and nothing is deleted.
Source: design/control.md control.15-16.
"""

from collections.abc import Iterable

from broadsheet.base.types import Offset, Revision
from broadsheet.errors import Corrupt
from broadsheet.keyspace.core.history import Changes, History
from broadsheet.keyspace.core.map import OrderedMap
from broadsheet.keyspace.core.record import SnapshotChunk, TransactionRecord, decoded
from broadsheet.keyspace.core.store import Store
from broadsheet.keyspace.core.transaction import KeyValue, Limits


def recovered(
    payloads: Iterable[bytes],
    *,
    is_trimmed: bool,
    next_offset: Offset,
    limits: Limits,
    transactions_max: int,
    bytes_max: int,
) -> Store:
    """The store that the records describe.

    Args:
        payloads: every record of the stream, in order.
        is_trimmed: whether records before the first one were deleted on purpose.
        next_offset: where the next record will go.
        transactions_max: how many transactions the history keeps.
        bytes_max: how many bytes the history keeps.

    Raises:
        Corrupt: a record is unreadable, a revision is missing, or the snapshot that trimming relied on is.
    """
    base: tuple[SnapshotChunk, ...] = ()
    partial: list[SnapshotChunk] = []
    transactions: list[TransactionRecord] = []
    for payload in payloads:
        record = decoded(payload)
        if isinstance(record, TransactionRecord):
            transactions.append(record)
            continue
        if record.index == 0:
            partial = []  # A new snapshot; one before it that a crash cut short counts for nothing.
        if record.index != len(partial):
            partial = []
            continue
        partial.append(record)
        if len(partial) == record.count:
            base, partial = tuple(partial), []
    if is_trimmed and not base:
        raise Corrupt("the keyspace log was trimmed, but holds no complete snapshot: restore from a backup")
    shown = OrderedMap()
    shown.apply((pair.key, pair) for chunk in base for pair in chunk.pairs)
    revision = base[0].revision if base else Revision(0)
    history = History(revision, transactions_max=transactions_max, bytes_max=bytes_max)
    for transaction in transactions:
        if transaction.revision <= revision:
            continue  # The snapshot holds it.
        if transaction.revision != history.end:
            raise Corrupt(f"keyspace revision {history.end} is missing: {transaction.revision} follows")
        changes = changes_of(shown, transaction)
        shown.apply(changes)
        history.add(transaction.revision, changes)
    return Store(shown, history, next_offset=next_offset, limits=limits)


def changes_of(shown: OrderedMap, transaction: TransactionRecord) -> Changes:
    """What a transaction leaves of each key that it changes, over what is shown."""
    changes: list[tuple[str, KeyValue | None]] = [(key, None) for key in transaction.deletes]
    for key, value in transaction.puts:
        old = shown.get(key)
        created = transaction.revision if old is None else old.create_revision
        changes.append((key, KeyValue(key, value, created, transaction.revision)))
    return tuple(sorted(changes, key=lambda change: change[0]))
