"""What every Keyspace does, whoever keeps it. `local` runs it now; over our KV and over etcd run the same."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.base.types import Revision
from broadsheet.errors import InvalidArgument, TooLarge, Unsupported
from broadsheet.keyspace.core.transaction import Absent, Delete, ModRevisionIs, Put, ValueIs
from broadsheet.keyspace.port import Keyspace, Update

SOON = Duration(50 * MILLISECOND)


async def take(updates: AsyncIterator[Update], revision: int) -> list[Update]:
    """Every update up to the one that reaches `revision`."""
    taken: list[Update] = []
    while not taken or taken[-1].revision < revision:
        async with asyncio.timeout(5):
            taken.append(await anext(updates))
    return taken


async def first_revision_is_1(keyspace: Keyspace) -> None:
    """control.16."""
    assert keyspace.revision == 0
    outcome = await keyspace.transact([Absent("k")], [Put("k", b"v")])

    assert (outcome.succeeded, outcome.revision, keyspace.revision) == (True, 1, 1)


async def what_is_answered_is_shown(keyspace: Keyspace) -> None:
    """A broker reads its own writes."""
    outcome = await keyspace.transact([], [Put("a/1", b"x"), Put("a/2", b"y"), Put("b", b"z")])

    assert [(p.key, p.value, p.mod_revision) for p in keyspace.range("a/")] == [
        ("a/1", b"x", outcome.revision),
        ("a/2", b"y", outcome.revision),
    ]
    assert keyspace.get("absent") is None


async def a_page_is_a_part_of_the_range(keyspace: Keyspace) -> None:
    """A listing reads its way through ten thousand keys in steps that cost what they return."""
    await keyspace.transact([], [Put(key, b"") for key in ("a", "a/1", "a/2", "a/3", "b/1")])
    whole = keyspace.range("a/")

    assert keyspace.page("a/", after="", count_max=2) == whole[:2]
    assert keyspace.page("a/", after="a/1", count_max=9) == whole[1:]
    assert keyspace.page("a/", after="a/3", count_max=9) == []
    assert keyspace.page("", after="a/3", count_max=9) == keyspace.range("b")


async def a_failed_compare_changes_nothing(keyspace: Keyspace) -> None:
    """control.17: whole, or not at all."""
    await keyspace.transact([], [Put("k", b"v")])
    outcome = await keyspace.transact([ValueIs("k", b"other")], [Put("k", b"w"), Put("n", b"")])

    assert (outcome.succeeded, outcome.revision) == (False, 1)
    assert keyspace.range("") == [keyspace.get("k")]


async def of_concurrent_claims_one_wins(keyspace: Keyspace) -> None:
    """Two primaries that compare the same revision must not both get the epoch."""
    outcomes = await asyncio.gather(
        *(
            keyspace.transact([ModRevisionIs("epoch/J", Revision(0))], [Put("epoch/J", b"%d" % n)])
            for n in range(20)
        )
    )

    assert [outcome.succeeded for outcome in outcomes].count(True) == 1


async def a_watch_tells_whole_transactions_in_order(keyspace: Keyspace) -> None:
    """control.15: whole committed transactions with values, applied at their revision."""
    await keyspace.transact([], [Put("a/1", b"x"), Put("b", b"")])
    updates = aiter(keyspace.watch("a/", Revision(1)))
    await keyspace.transact([], [Put("a/1", b"y"), Put("a/2", b"y")])
    await keyspace.transact([], [Delete("a/1")])

    told = [(u.revision, [(c.key, c.now and c.now.value) for c in u.changes]) for u in await take(updates, 3)]
    assert told == [(1, [("a/1", b"x")]), (2, [("a/1", b"y"), ("a/2", b"y")]), (3, [("a/1", None)])]


async def a_watch_from_0_begins_with_the_present(keyspace: Keyspace) -> None:
    """A mirror starts by a range scan at one revision."""
    await keyspace.transact([], [Put("a", b"x")])
    updates = aiter(keyspace.watch("", Revision(0)))

    (update,) = await take(updates, 1)
    assert update.is_reload
    assert [change.now for change in update.changes] == [keyspace.get("a")]


async def a_watch_from_0_tells_what_came_while_its_present_was_read(keyspace: Keyspace) -> None:
    """control.15: a mirror that is slow with its first update never saw the key that was put meanwhile."""
    await keyspace.transact([], [Put("a", b"x")])
    updates = aiter(keyspace.watch("", Revision(0)))
    (present,) = await take(updates, 1)
    await keyspace.transact([], [Put("b", b"y")])
    await keyspace.transact([], [Put("c", b"z")])

    told = [(u.revision, [c.key for c in u.changes]) for u in await take(updates, 3)]
    assert [change.key for change in present.changes] == ["a"]
    assert told == [(2, ["b"]), (3, ["c"])]


async def revisions_without_the_prefix_advance_a_mirror(keyspace: Keyspace) -> None:
    """control.15: progress, so that waiting for a revision always ends."""
    updates = aiter(keyspace.watch("a/", Revision(1)))
    for n in range(5):
        await keyspace.transact([], [Put("b", b"%d" % n)])

    told = await take(updates, 5)
    assert all(not update.changes for update in told)


async def leases_are_refused_by_name(keyspace: Keyspace) -> None:
    """control.17, without leases for now: a caller must not believe that its key will expire."""
    with pytest.raises(Unsupported, match="lease 5"):
        await keyspace.transact([], [Put("a", b""), Put("k", b"", lease=5)])
    assert keyspace.revision == 0


async def bad_input_is_refused_and_changes_nothing(keyspace: Keyspace) -> None:
    """A clear error with the limit in it."""
    with pytest.raises(TooLarge, match="key_bytes_max"):
        await keyspace.transact([], [Put("k" * 10_000, b"")])
    with pytest.raises(InvalidArgument, match="two operations"):
        await keyspace.transact([], [Put("k", b""), Delete("k")])
    assert keyspace.revision == 0


async def four_thousand_operations_are_one_revision(keyspace: Keyspace) -> None:
    """control.17: at least 4,096 operations."""
    outcome = await keyspace.transact([], [Put(f"k{n}", b"v") for n in range(4096)])

    assert (outcome.revision, len(keyspace.range("k"))) == (1, 4096)


ALL = (
    first_revision_is_1,
    what_is_answered_is_shown,
    a_failed_compare_changes_nothing,
    of_concurrent_claims_one_wins,
    a_watch_tells_whole_transactions_in_order,
    a_watch_from_0_begins_with_the_present,
    a_watch_from_0_tells_what_came_while_its_present_was_read,
    revisions_without_the_prefix_advance_a_mirror,
    leases_are_refused_by_name,
    bad_input_is_refused_and_changes_nothing,
    four_thousand_operations_are_one_revision,
)
