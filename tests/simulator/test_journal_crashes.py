"""Journals in tier 3: histories are judged, and the model notices what must not be."""

import pytest

from broadsheet.base.types import ByteOffset, JournalName
from broadsheet.journal.core.attempts import Attempts, Remembered
from broadsheet.journal.core.registers import Condition
from simulator.disk import SimDisk
from simulator.disk_state import Write
from simulator.journalmodel import JournalModel, Promised, Standing, judge_attempts
from simulator.plan import Tier
from simulator.runner import run_seed

NAME = JournalName("j")
MINE = b"sixteen bytes..."


def test_a_history_of_journals_is_judged_the_same_each_time() -> None:
    """simulation.1: a failure that does not come again helps nobody."""
    one, again = (run_seed("journal", Tier.CRASHES, 9) for _ in range(2))

    assert one.violation is None
    assert one.digest == again.digest
    assert one.is_counting


def model() -> JournalModel:
    """Three appends: one sets a register, one checks it, one has left."""
    found = JournalModel()
    found.note(NAME, b"first", Condition(union={"r": "1"}, attempt=MINE))
    found.note(NAME, b"second", Condition(check={"r": "1"}, offset=ByteOffset(14)))
    found.note(NAME, b"third", is_left=True)
    return found


def judged(numbers: tuple[int, ...], *marks: object) -> str | None:
    """What is wrong with a journal in which these appends stand in a row."""
    it = model()
    found = it.parse(NAME, b"".join(it.appends[number].content for number in numbers))
    return found if isinstance(found, str) else it.judge(NAME, found, Promised(marks))


def test_what_was_promised_is_sound() -> None:
    """An unknown append may be there or not."""
    assert judged((0, 1), ("acknowledged", 0, 0)) is None
    assert judged((0,), ("acknowledged", 0, 0)) is None


@pytest.mark.parametrize(
    ("numbers", "marks", "wrong"),
    [
        ((), (("acknowledged", 0, 0),), "J2"),
        ((0,), (("refused", 0),), "J3"),
        ((2,), (), "J3"),
        ((0, 0), (), "J5"),
        ((1,), (), "J7"),
    ],
)
def test_a_broken_promise_is_told(numbers: tuple[int, ...], marks: tuple[object, ...], wrong: str) -> None:
    """simulation.9: a checker that cannot fail sees nothing."""
    assert str(judged(numbers, *marks)).startswith(wrong)


def test_an_append_in_part_is_told() -> None:
    """J5: whole, or not at all."""
    it = model()

    assert "in part" in str(it.parse(NAME, it.appends[0].content[:-1]))
    assert "nobody" in str(it.parse(NAME, b"what is this"))


def test_a_client_is_told_of_its_attempt_as_it_stands() -> None:
    """C2: who lost an answer asks, also behind a checkpoint and a restart."""
    it = model()
    found = [Standing(it.appends[0], 0)]
    right, other = (Remembered(MINE, ByteOffset(at), ByteOffset(14 + at)) for at in (0, 1))

    assert judge_attempts(Attempts([right]), found, it.appends, is_whole=True) is None
    assert judge_attempts(Attempts([other]), found, it.appends, is_whole=True) is not None
    assert judge_attempts(Attempts([right]), [], it.appends, is_whole=True) is not None
    assert judge_attempts(Attempts(), found, it.appends, is_whole=False) is not None
    forgotten = Attempts(known_from=ByteOffset(14))
    assert judge_attempts(forgotten, found, it.appends, is_whole=False) is None
    assert judge_attempts(forgotten, found, it.appends, is_whole=True) is not None


def test_a_fork_of_a_disk_goes_its_own_way_and_damage_is_there_at_once() -> None:
    """Each damaged disk is made of the one that the last process left, page cache and all."""
    disk = SimDisk()
    file = disk.open("a", create=True)
    file.write_at(0, (b"synced",))
    file.sync()
    disk.sync_dir("")
    file.write_at(0, (b"s-nced",))
    state = disk.state.fork()
    state.damage(state.files["a"], b"s-nceX")

    assert (bytes(state.files["a"].view), state.image()) == (b"s-nceX", {"a": b"s-nceX"})
    assert not state.files["a"].dirty, "or a power cut would bring the right bytes back"
    assert bytes(disk.state.files["a"].view) == b"s-nced"
    assert disk.state.files["a"].dirty[0][1] == Write(0, b"s-nced")
