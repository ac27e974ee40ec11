"""Salvage: what is left of the map where the log lost records of it.

Revisions count transactions, offsets records. Only payloads whose checksum holds count; a damaged one is a
hint for the operator and no more. The base is the newest complete snapshot, else whatever whole chunks there
are. Every whole transaction above it is applied in order of revision, also behind a gap: what it put, it put.
So each key shows the newest change that is still there, and a key that only a lost transaction changed shows
an older state. Pure: it reads nothing and decides nothing. Source: ADR 0124.
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
"""Keys that damaged records name, and that are told."""

IsCreation = Callable[[str, bytes], bool]
"""Whether a put of this value can only have made its key: it was made then, whatever stood there before."""


class Read(msgspec.Struct, frozen=True, gc=False):
    """One record as the log has it."""

    offset: Offset
    payload: bytes
    is_whole: bool


class LostRevisions(msgspec.Struct, frozen=True):
    """Transactions of which nothing is left: `[begin, end)`."""

    begin: Revision
    end: Revision
    why: str


class Salvage(msgspec.Struct, frozen=True):
    """What is left, and what is not."""

    pairs: tuple[KeyValue, ...]
    """The map, in key order."""
    sound: Revision
    """Up to it nothing is missing; 0 where the snapshot is damaged that everything builds on."""
    revision: Revision
    """The greatest that anything sound names, missing records at the end counted in."""
    lost: tuple[LostRevisions, ...]
    behind: int
    """Whole transactions behind the first gap: they are applied."""
    hints: tuple[str, ...]
    """Keys that damaged records seem to name: not believed, only told."""


def salvage(
    reads: Iterable[Read],
    *,
    first: Offset,
    next_offset: Offset,
    is_creation: IsCreation,
) -> Salvage:
    """What the records leave of the map.

    Args:
        reads: everything that was found; of two whole records of one offset the later one counts.
        first: the lowest offset that was not trimmed.
        next_offset: where the next record would go.
        is_creation: see there.

    Raises:
        Corrupt: a whole record is of a newer version: it is not lost, this program cannot read it.
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
    is_founded = bool(base) or first == 0
    shown = OrderedMap()
    for chunk in base or sorted(chunks, key=lambda chunk: chunk.revision):
        shown.apply((pair.key, pair) for pair in chunk.pairs)
    at = base[0].revision if base else Revision(0)
    sound, behind, lost = at, 0, list[LostRevisions]()
    if not is_founded:
        known = max([0, *(chunk.revision for chunk in chunks)])
        end = Revision(known or min(transactions, default=0) or 1)
        why = "the snapshot that stands for them is damaged; of it only the parts are left that are whole"
        lost.append(LostRevisions(Revision(1), Revision(end + 1 if known else end), why))
        at = Revision(lost[0].end - 1)
    for revision in sorted(transactions):
        if revision <= at and is_founded:
            continue  # The snapshot holds it.
        if revision > at + 1:
            why = "their records are damaged or missing"
            lost.append(LostRevisions(Revision(at + 1), revision, why))
        _apply(shown, transactions[revision], is_creation=is_creation if lost else None)
        at = max(at, revision)
        sound, behind = (sound, behind + 1) if lost else (revision, behind)
    reach = _reach(whole, first=first, next_offset=next_offset, founded_at=at)
    if reach > at:
        why = "records behind the last transaction are damaged or missing; each may have been one"
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
    """The greatest revision that the records behind the last whole transaction may have had.

    A snapshot may stand behind transactions that it does not hold, so a missing record before it counts too.

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
    """The complete snapshot of the greatest revision; empty where there is none."""
    best: tuple[SnapshotChunk, ...] = ()
    partial: list[SnapshotChunk] = []
    for chunk in chunks:
        is_next = bool(partial) and (chunk.revision, chunk.count) == (partial[0].revision, partial[0].count)
        if chunk.index == 0:
            partial = []
        elif not is_next or chunk.index != len(partial):
            partial = []  # A chunk between is missing: parts of two snapshots are none.
            continue
        partial.append(chunk)
        if len(partial) == chunk.count and (not best or chunk.revision >= best[0].revision):
            best = tuple(partial)
    return best


def _apply(shown: OrderedMap, transaction: TransactionRecord, *, is_creation: IsCreation | None) -> None:
    """Apply it, but for keys that a newer chunk shows already.

    Args:
        is_creation: behind a gap, where a key that stands there may have been deleted and made again.
    """
    changes: list[tuple[str, KeyValue | None]] = []
    for key, pair in changes_of(shown, transaction):
        old = shown.get(key)
        if old is not None and old.mod_revision >= transaction.revision:
            continue
        if pair is not None and is_creation is not None and is_creation(key, pair.value):
            changes.append((key, msgspec.structs.replace(pair, create_revision=pair.mod_revision)))
        else:
            changes.append((key, pair))
    shown.apply(changes)


def _hints(damaged: Sequence[bytes]) -> tuple[str, ...]:
    """What damaged records seem to be of."""
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
