"""Lifecycle of journals in tier 3: histories are judged, and the model notices what must not be."""

import asyncio

import pytest

from broadsheet.base.time import SECOND, Duration
from broadsheet.base.types import JournalName
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.journal.messages import SpecChange
from simulator.entropy import stream
from simulator.journalmodel import JournalModel, Standing
from simulator.lifemodel import MADE_LABEL, Account, judged, missing
from simulator.lifestore import LifeStore
from simulator.plan import Tier
from simulator.runner import run_seed
from simulator.violation import Violation

NAME = JournalName("j")
FRAGMENT = "j/0000000000000000-000000000000000e-" + "0" * 40 + ".raw"
"""It holds the first append."""


def test_a_history_of_lifecycles_is_judged_the_same_each_time() -> None:
    """simulation.1: a failure that does not come again helps nobody."""
    one, again = (run_seed("lifecycle", Tier.CRASHES, 1) for _ in range(2))

    assert one.violation is None
    assert one.digest == again.digest
    assert one.is_counting


def spec(number: int, *, age: int = 0, kept: int = 0) -> JournalSpec:
    """Of one incarnation."""
    fragment = FragmentSpec(retention=Duration(age * SECOND), retained_bytes=kept)
    return JournalSpec(NAME, fragment, {MADE_LABEL: str(number)})


def account(*marks: object, age: int = 0, kept: int = 0) -> Account:
    """A journal with two appends, the first of which was acknowledged and stored."""
    model = JournalModel()
    model.note(JournalName("j#0"), b"first")
    model.note(JournalName("j#0"), b"second")
    told = spec(0, age=age, kept=kept)
    return Account(
        model,
        [
            ("asked", 0, NAME, told),
            ("made", 0, 1, told),
            ("acknowledged", 0, 0),
            ("stored", FRAGMENT, model.appends[0].content, 0),
            *marks,
        ],
    )


def test_an_acknowledged_append_is_missed_until_it_may_be_gone() -> None:
    """J2, and journals.32: after a removal that might be, or an accepted loss, nothing is promised of it."""
    it = account()
    first = it.model.appends[0]

    assert missing(it.incarnations[0], [], it.model) == [Standing(first, 0)]
    assert missing(it.incarnations[0], [Standing(first, 0)], it.model) == []
    for mark in (("removed", FRAGMENT), ("lost", 0, 0, ()), ("lost", 0, 99, ((0, 14),)), ("trimmed", 0, 14)):
        it = account(mark)
        assert missing(it.incarnations[0], [], it.model) == []


@pytest.mark.parametrize(
    ("marks", "begin", "wrong"),
    [
        ((), 0, None),
        ((), 1, "J2"),
        ((("refused", 0),), 0, "J3"),
    ],
)
def test_a_broken_promise_is_told(marks: tuple[object, ...], begin: int, wrong: str | None) -> None:
    """simulation.9: a checker that cannot fail sees nothing."""
    it = account(*marks)

    assert (judged(it.incarnations[0], [Standing(it.model.appends[0], begin)]) or "").startswith(wrong or "")


def test_what_a_deleted_journal_had_is_not_the_next_ones() -> None:
    """J1: each make of a journal is another one."""
    it = account(("doomed", 0), ("deleted", 0, 5, 6), ("asked", 1, NAME, spec(1)), ("made", 1, 7, spec(1)))
    first = it.model.appends[0].content

    (found,) = it.parse(it.incarnations[1], 0, first, is_cut=False)
    assert "J1" in str(found)
    assert it.must_be(NAME) is it.incarnations[1]
    assert it.shown(spec(0), 1) is it.incarnations[0]
    assert it.incarnations[0].is_gone


def test_a_loss_of_the_map_undoes_what_it_told_and_nothing_else() -> None:
    """control.16: an alteration outside of the lost revisions holds."""
    change = SpecChange(retained_bytes=2048)
    altered = (("altering", 0, change), ("altered", 0, change, spec(0, kept=2048), 5))

    it = account(*altered, ("map lost", ((5, 6),))).incarnations[0]
    assert it.specs == [spec(0, kept=2048), spec(0, kept=2048), spec(0)]
    assert [each.bytes for each in it.kept] == [2048], "the older retention does not act again"
    it = account(*altered, ("map lost", ((6, 7),))).incarnations[0]
    assert spec(0) not in it.specs
    assert it.is_made
    assert not account(("map lost", ((1, 2),))).incarnations[0].is_made


async def _deletes(it: Account, *, wall: int, end: int) -> list[Violation]:
    found: list[Violation] = []
    store = LifeStore(
        it, stream(0, "store"), note=it.note, wall=lambda: wall, end_of=lambda _: end, found=found.append
    )
    await store.delete(FRAGMENT)
    return found


@pytest.mark.parametrize(
    ("it", "wall", "end", "may_go"),
    [
        (account(), 1 << 60, 1 << 60, False),
        (account(("trimming", 0, 14)), 0, 20, True),
        (account(("trimming", 0, 13)), 0, 20, False),
        (account(("doomed", 0)), 0, 20, True),
        (account(age=60), 60 * SECOND, 20, True),
        (account(age=60), 60 * SECOND - 1, 20, False),
        (account(kept=1024), 0, 14 + 1024, True),
        (account(kept=1024), 0, 13 + 1024, False),
    ],
)
def test_a_stored_fragment_goes_by_deletion_trim_or_retention_alone(
    it: Account, wall: int, end: int, *, may_go: bool
) -> None:
    """journals.32: whoever removes another one takes what was acknowledged."""
    assert (asyncio.run(_deletes(it, wall=wall, end=end)) == []) == may_go
