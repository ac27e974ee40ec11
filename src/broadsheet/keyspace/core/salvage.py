"""Salvage: rebuilds as much of the map as possible after the log lost records of it.

Revisions count transactions, offsets count records. Only payloads with a right checksum are applied; damaged
ones only yield hints for the operator. The base is the newest complete snapshot or, without one, all whole
chunks. Every whole transaction above the base is applied in order of revision, also after a gap, because its
puts hold the full values. So each key shows its newest surviving change, and a key that only a lost
transaction changed shows an older state. Pure: it does no IO and decides nothing. Source: ADR 0124.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from broadsheet.base.types import Offset, Revision
from broadsheet.errors import Corrupt
from broadsheet.keyspace.core.map import OrderedMap
from broadsheet.keyspace.core.record import Record, SnapshotChunk, TransactionRecord, decoded
from broadsheet.keyspace.core.recovery import changes_of
from broadsheet.keyspace.core.transaction import KeyValue

HINTS_MAX: Final = 64
"""At most this many keys from damaged records are reported."""

CreatedAt = Callable[[KeyValue], Revision | None]
"""When the key of a pair was created, by its value alone; None: the value does not tell."""


class Read(msgspec.Struct, frozen=True, gc=False):
    """One record of the key space, as the salvage found it in the log."""

    offset: Offset
    payload: bytes
    is_whole: bool


class LostRevisions(msgspec.Struct, frozen=True):
    """The key space's transactions `[begin, end)`, of which nothing is left."""

    begin: Revision
    end: Revision
    why: str


class Salvage(msgspec.Struct, frozen=True):
    """The salvaged map of the key space, and what is missing from it."""

    pairs: tuple[KeyValue, ...]
    """The map, in key order."""
    sound: Revision
    """Up to this revision nothing is missing; 0 if the base snapshot itself is damaged."""
    revision: Revision
    """The greatest revision that may have existed: missing records at the end count as transactions."""
    lost: tuple[LostRevisions, ...]
    behind: int
    """How many whole transactions after the first gap were applied."""
    hints: tuple[str, ...]
    """Keys that damaged records seem to name; they are reported, and not applied."""


def salvage(
    reads: Iterable[Read],
    *,
    first: Offset,
    next_offset: Offset,
    created_at: CreatedAt,
) -> Salvage:
    """The map of the key space that the surviving records describe.

    Args:
        reads: every record that was found; of two whole records with one offset the later one counts.
        first: the lowest offset that was not trimmed.
        next_offset: the offset that the next record would get.
        created_at: see `CreatedAt`.

    Raises:
        Corrupt: a whole record is of a newer version. It is not lost: a newer release can read it.
    """
    whole: dict[int, Record] = {}
    damaged: list[bytes] = []
    for read in reads:
        if read.is_whole:
            whole[read.offset] = decoded(read.payload)
        else:
            damaged.append(read.payload)
    records = [whole[offset] for offset in sorted(whole)]
    transactions = {each.revision: each for each in records if isinstance(each, TransactionRecord)}
    chunks = [each for each in records if isinstance(each, SnapshotChunk)]
    base = _newest(chunks)
    is_founded = bool(base) or first == 0  # Without a snapshot, the records suffice only if none was trimmed.
    shown = OrderedMap()
    for chunk in base or sorted(chunks, key=lambda chunk: chunk.revision):
        shown.apply((pair.key, pair) for pair in chunk.pairs)
    at = base[0].revision if base else Revision(0)
    sound, behind, lost = at, 0, list[LostRevisions]()
    if not is_founded:
        known = max([0, *(chunk.revision for chunk in chunks)])
        end = Revision(known or min(transactions, default=0) or 1)
        why = "the snapshot that replaced their records is damaged; only its undamaged parts are left"
        lost.append(LostRevisions(Revision(1), Revision(end + 1 if known else end), why))
        at = Revision(lost[0].end - 1)
    for revision in sorted(transactions):
        if revision <= at and is_founded:
            continue  # The snapshot holds it.
        if revision > at + 1:
            why = "their records are damaged or missing"
            lost.append(LostRevisions(Revision(at + 1), revision, why))
        _apply(shown, transactions[revision], created_at=created_at if lost else None)
        at = max(at, revision)
        sound, behind = (sound, behind + 1) if lost else (revision, behind)
    reach = _reach(whole, first=first, next_offset=next_offset, founded_at=at)
    if reach > at:
        why = "records after the last readable transaction are damaged or missing; each may have been one"
        lost.append(LostRevisions(Revision(at + 1), Revision(reach + 1), why))
        at = reach
    return Salvage(
        pairs=tuple(shown.pairs()),
        sound=sound if is_founded else Revision(0),
        revision=at,
        lost=tuple(lost),
        behind=behind,
        hints=_hints(damaged) if lost else (),
    )


def _reach(whole: dict[int, Record], *, first: Offset, next_offset: Offset, founded_at: Revision) -> Revision:
    """The greatest revision that the records after the last whole transaction may have had.

    A missing record before a snapshot counts too: transactions that were appended while the snapshot was
    encoded lie before it and are not part of it.

    Args:
        founded_at: the revision of the snapshot, or of the last transaction.
    """
    last = max((at for at, each in whole.items() if isinstance(each, TransactionRecord)), default=None)
    begin = first if last is None else last + 1
    missing = sum(offset not in whole for offset in range(begin, next_offset))
    known = whole.get(last) if last is not None else None
    if isinstance(known, TransactionRecord):
        return Revision(known.revision + missing)
    return Revision(missing if first == 0 else founded_at + missing)


def _newest(chunks: Sequence[SnapshotChunk]) -> tuple[SnapshotChunk, ...]:
    """The complete snapshot of the greatest revision of the key space; empty if there is none."""
    best: tuple[SnapshotChunk, ...] = ()
    partial: list[SnapshotChunk] = []
    for chunk in chunks:
        is_next = bool(partial) and (chunk.revision, chunk.count) == (partial[0].revision, partial[0].count)
        if chunk.index == 0:
            partial = []
        elif not is_next or chunk.index != len(partial):
            partial = []  # A chunk is missing in between: parts of two snapshots do not make one.
            continue
        partial.append(chunk)
        if len(partial) == chunk.count and (not best or chunk.revision >= best[0].revision):
            best = tuple(partial)
    return best


def _apply(shown: OrderedMap, transaction: TransactionRecord, *, created_at: CreatedAt | None) -> None:
    """Apply `transaction` to the salvaged map, except to keys that a newer snapshot chunk has set already.

    Args:
        created_at: given after a gap, because a lost transaction may have deleted a key that `shown` still
            holds, or created one that it lacks.
    """
    changes: list[tuple[str, KeyValue | None]] = []
    for key, pair in changes_of(shown, transaction):
        old = shown.get(key)
        if old is not None and old.mod_revision >= transaction.revision:
            continue
        if pair is not None and created_at is not None and (created := created_at(pair)) is not None:
            changes.append((key, msgspec.structs.replace(pair, create_revision=created)))
        else:
            changes.append((key, pair))
    shown.apply(changes)


def _hints(damaged: Sequence[bytes]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for payload in damaged:
        try:
            record = decoded(payload)
        except Corrupt:
            continue
        if isinstance(record, TransactionRecord):
            for key in (*(key for key, _ in record.puts), *record.deletes):
                found[f"{key} (revision {record.revision})"] = None
    return tuple(found)[:HINTS_MAX]
