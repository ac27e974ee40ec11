"""Recovery: builds a `Store` from the records of the log stream.

It reads the last complete snapshot, then every transaction after the snapshot's revision; their revisions
must be dense. Transactions that were appended while a snapshot was encoded lie before it in the log and are
not part of it. Pure. It does not cut, repair or delete: records that do not fit together are `Corrupt`.
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
    """The key space's store that the records describe.

    Args:
        payloads: every record of the stream, in order.
        is_trimmed: whether earlier records were trimmed because a snapshot replaced them.
        next_offset: the offset of the next record.
        transactions_max: how many transactions the history keeps.
        bytes_max: how many bytes the history keeps.

    Raises:
        Corrupt: a record does not decode, a revision is missing, or the log was trimmed and holds no
            complete snapshot.
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
            partial = []  # A new snapshot begins; ignore an earlier one that a crash cut short.
        if record.index != len(partial):
            partial = []  # The start of this snapshot was trimmed: its other chunks are not a whole map.
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
    """Each key that `transaction` changes, with its new pair, if `shown` is the map before it."""
    changes: list[tuple[str, KeyValue | None]] = [(key, None) for key in transaction.deletes]
    for key, value in transaction.puts:
        old = shown.get(key)
        created = transaction.revision if old is None else old.create_revision
        changes.append((key, KeyValue(key, value, created, transaction.revision)))
    return tuple(sorted(changes, key=lambda change: change[0]))
