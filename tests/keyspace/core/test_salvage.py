"""Salvage: what whole records leave of the map, whichever of them are lost."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.base.types import Offset, Revision
from broadsheet.errors import Corrupt
from broadsheet.keyspace.core.map import OrderedMap
from broadsheet.keyspace.core.record import Record, TransactionRecord, encoded, snapshot
from broadsheet.keyspace.core.recovery import changes_of
from broadsheet.keyspace.core.salvage import Read, Salvage, salvage
from broadsheet.keyspace.core.transaction import KeyValue


def put(revision: int, **values: str) -> TransactionRecord:
    puts = tuple((key, value.encode()) for key, value in values.items())
    return TransactionRecord(Revision(revision), puts, ())


def gone(revision: int, *keys: str) -> TransactionRecord:
    return TransactionRecord(Revision(revision), (), keys)


def run(
    payloads: Iterable[Record | bytes],
    *,
    lost: Iterable[int] = (),
    flipped: Iterable[int] = (),
    first: int = 0,
) -> Salvage:
    """The salvage of records from offset `first` on, without those at `lost`, and with damaged ones."""
    lost, flipped = set(lost), set(flipped)
    reads, end = [], first
    for offset, record in enumerate(payloads, first):
        payload = record if isinstance(record, bytes) else encoded(record)
        end = offset + 1
        if offset not in lost:
            reads.append(Read(Offset(offset), payload, is_whole=offset not in flipped))
    return salvage(
        reads,
        first=Offset(first),
        next_offset=Offset(end),
        created_at=created_at,
    )


def created_at(pair: KeyValue) -> Revision | None:
    """Of an item: what its value says behind a colon, or else that this put creates it."""
    if not pair.key.startswith("items"):
        return None
    told = pair.value.decode().partition(":")[2]
    return Revision(int(told)) if told else pair.mod_revision


def values(found: Salvage) -> dict[str, bytes]:
    return {pair.key: pair.value for pair in found.pairs}


def spans(found: Salvage) -> list[tuple[int, int]]:
    return [(each.begin, each.end) for each in found.lost]


def test_what_is_whole_behind_a_gap_is_applied_and_the_gap_is_told() -> None:
    """One bad sector must not cost the thousand transactions after it."""
    found = run([put(1, a="1"), put(2, b="2"), put(3, c="3"), gone(4, "a")], lost=[1])

    assert values(found) == {"c": b"3"}
    assert spans(found) == [(2, 3)]
    assert (found.sound, found.revision, found.behind) == (1, 4, 2)


def test_a_damaged_payload_is_a_hint_and_never_a_value() -> None:
    """Its checksum fails: each byte of it may be the wrong one."""
    found = run([put(1, a="1"), put(2, b="2"), put(3, c="3")], flipped=[1])

    assert values(found) == {"a": b"1", "c": b"3"}
    assert found.hints == ("b (revision 2)",)
    assert spans(found) == [(2, 3)]


def test_lost_records_at_the_end_are_counted_into_the_revision() -> None:
    """A revision that may have been acknowledged is not given again."""
    found = run([put(1, a="1"), put(2, b="2"), put(3, c="3")], lost=[1, 2])

    assert spans(found) == [(2, 4)]
    assert (found.sound, found.revision) == (1, 3)


def test_a_complete_snapshot_behind_the_gap_leaves_nothing_lost() -> None:
    """It stands for every transaction up to its revision, also for those whose records are damaged."""
    chunks = snapshot(Revision(3), [pair("a", 1), pair("b", 3)], chunk_bytes=1)
    assert len(chunks) == 2

    found = run([put(1, a="1"), put(2, b="2"), put(3, b="v"), *chunks, put(4, c="4")], lost=[1])

    assert values(found) == {"a": b"v", "b": b"v", "c": b"4"}
    assert (found.lost, found.sound, found.revision) == ((), 4, 4)


def test_the_whole_chunks_of_a_damaged_snapshot_count() -> None:
    """The log was trimmed for it: what its other chunks hold is nowhere else."""
    chunks = snapshot(Revision(9), [pair("a", 1), pair("b", 3), pair("c", 9)], chunk_bytes=1)

    found = run([*chunks, put(10, d="4")], flipped=[21], first=20)

    assert values(found) == {"a": b"v", "c": b"v", "d": b"4"}
    assert spans(found) == [(1, 10)]
    assert (found.sound, found.revision) == (0, 10)


def test_an_older_transaction_does_not_undo_a_newer_chunk() -> None:
    """Transactions that were appended before the snapshot stand before it in the log."""
    chunks = snapshot(Revision(9), [pair("a", 8), pair("b", 9)], chunk_bytes=1)

    found = run([put(5, a="old"), gone(6, "a"), *chunks], flipped=[23], first=20)

    assert values(found) == {"a": b"v"}


def test_a_chunk_knows_better_than_its_last_transaction_when_a_key_was_created() -> None:
    """Behind a gap a put of an item begins a new life of it; the chunk has seen what lies in the gap."""
    item = KeyValue("items/a", b"v", Revision(2), Revision(9))
    chunks = snapshot(Revision(9), [pair("a", 1), item], chunk_bytes=1)

    found = run([put(9, **{"items/a": "v"}), *chunks], flipped=[21], first=20)

    assert found.lost
    assert found.pairs == (item,)


def test_parts_of_two_snapshots_are_none() -> None:
    """Their pairs are of two moments: a key could be shown that no moment had."""
    old = snapshot(Revision(3), [pair("a", 1), pair("b", 3)], chunk_bytes=1)
    new = snapshot(Revision(5), [pair("a", 5), pair("c", 4)], chunk_bytes=1)

    found = run([old[0], new[1]], first=7)

    assert found.sound == 0
    assert spans(found) == [(1, 6)]


def test_a_journal_that_was_made_again_behind_the_gap_is_a_new_one() -> None:
    """Its deletion is lost. With the old create revision it would be bound to the old journal's stream."""
    first, again = {"items/j": "1", "k": "1"}, {"items/j": "3", "k": "3"}

    found = run([put(1, **first), gone(2, "items/j"), put(3, **again)], lost=[1])

    created = {pair.key: pair.create_revision for pair in found.pairs}
    assert created == {"items/j": 3, "k": 1}


def test_a_journal_that_was_changed_behind_the_gap_is_no_new_one() -> None:
    """Its content stands under its create revision, which a later put tells, also where the first is lost."""
    created = [put(1, **{"items/j": "a"}), put(2, **{"items/k": "b"})]
    changed = [put(3, **{"items/j": "a:1"}), put(4, **{"items/k": "b:2"})]

    found = run([*created, *changed], lost=[1])

    assert {pair.key: pair.create_revision for pair in found.pairs} == {"items/j": 1, "items/k": 2}


def test_a_record_of_a_newer_version_is_not_called_lost() -> None:
    """Another release can read it: whoever accepts its loss would throw it away."""
    with pytest.raises(Corrupt, match="format"):
        run([put(1, a="1"), b"\x09newer"])


def pair(key: str, revision: int) -> KeyValue:
    return KeyValue(key, b"v", Revision(revision), Revision(revision))


@st.composite
def histories(draw: st.DrawFn) -> list[TransactionRecord]:
    keys = st.sampled_from("abc")
    records: list[TransactionRecord] = []
    for revision in range(1, draw(st.integers(1, 12)) + 1):
        key = draw(keys)
        is_put = draw(st.booleans())
        records.append(put(revision, **{key: str(revision)}) if is_put else gone(revision, key))
    return records


@given(histories(), st.sets(st.integers(0, 11)), st.integers(0, 12))
def test_each_key_shows_the_newest_change_that_is_left(
    history: list[TransactionRecord], lost: set[int], snapshot_at: int
) -> None:
    """Oracle: for each key, the last whole record that names it, above the snapshot where there is one."""
    shown = OrderedMap()
    base: dict[str, KeyValue] = {}
    at = min(snapshot_at, len(history))
    for record in history[:at]:
        shown.apply(changes_of(shown, record))
    base = {each.key: each for each in shown.pairs()}
    chunks = snapshot(Revision(at), base.values(), chunk_bytes=1) if at else ()
    expected = {key: each.value for key, each in base.items()}
    for offset, record in enumerate(history):
        if offset in lost or offset < at:
            continue
        expected.update(dict(record.puts))
        for key in record.deletes:
            expected.pop(key, None)

    found = run([*history, *chunks], lost=lost & set(range(len(history))))

    assert values(found) == expected
    missing = {n + 1 for n in lost if at <= n < len(history)}
    told = {revision for begin, end in spans(found) for revision in range(begin, end)}
    assert told >= missing
    assert found.revision >= max([0, *(each.revision for each in history)])
    assert found.lost or not missing
    assert lost or not found.lost


def test_a_whole_snapshot_behind_parts_of_another_counts() -> None:
    """The parts of the old one are passed over, and not all that follows them."""
    old = snapshot(Revision(3), [pair("a", 1), pair("b", 3)], chunk_bytes=1)
    new = snapshot(Revision(5), [pair("a", 5), pair("c", 4)], chunk_bytes=1)

    found = run([old[1], *new], first=7)

    assert found.sound == 5
    assert values(found) == {"a": b"v", "c": b"v"}
