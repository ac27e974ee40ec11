"""A story tells the last steps of a machine, and keeps no payload to do so."""

import sys

import pytest

from broadsheet.base.machine import Effect, Event
from broadsheet.base.time import Instant
from broadsheet.observe.story import Story


class Moved(Event, frozen=True):
    """A test's event."""

    to: str
    payload: object = None


class Go(Effect, frozen=True):
    """A test's effect."""

    to: str


def test_the_oldest_steps_are_forgotten() -> None:
    """A story is bounded, whatever the machine does."""
    story = Story("m", steps_max=2)
    for number in range(5):
        story.tell(Instant(number), Moved(to=str(number)), [Go(to=str(number))])

    assert story.lines() == [
        "3 Moved(to='3', payload=None) -> [Go(to='3')]",
        "4 Moved(to='4', payload=None) -> [Go(to='4')]",
    ]


def test_states_before_and_after_are_told() -> None:
    """Where the state moved is what one looks for."""
    state = ["open"]
    story = Story("m", steps_max=3)
    story.watch(lambda: state[0])
    for after in ("open", "fenced", "closed"):
        state[0] = after
        story.tell(Instant(0), Moved(to=after), [])

    assert ["[... -> open]" in line for line in story.lines()] == [True, False, False]
    assert "[open -> fenced]" in story.lines()[1]
    story.refuse(Instant(1), Moved(to="x"), ValueError("no"))
    assert story.lines()[-1] == "1 Moved(to='x', payload=None) refused: ValueError('no')"


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (memoryview(b"secret"), "<6 bytes>"),
        (b"s" * 1000, "<1000 bytes>"),
        (bytearray(b"short"), "bytearray(b'short')"),
        (tuple(range(20)), "[0, 1, 2, 3, 4, 5, 6, 7, and 12 more]"),
        ((memoryview(b"ab"), 1), "[<2 bytes>, 1]"),
    ],
)
def test_payload_is_told_by_its_length(payload: object, shown: str) -> None:
    """Slabs are recycled: a view would show another's bytes, and a log must not hold a user's (code.10)."""
    story = Story("m")
    story.tell(Instant(0), Moved(to="x", payload=payload), [])

    assert story.lines() == [f"0 Moved(to='x', payload={shown}) -> []"]


def test_a_step_with_much_payload_is_kept_as_text_where_a_bound_is_named() -> None:
    """256 steps of a metastore with a document of 8 MiB held 1.5 GiB, and nobody had asked for a story."""
    story = Story("m", payload_bytes_max=100)
    much, little = bytes(101), bytes(90)
    before = sys.getrefcount(much)
    story.tell(Instant(1), Moved(to="1", payload=(much,)), [Go(to="x")] * 9)
    story.tell(Instant(2), Moved(to="2", payload=little), [])
    story.refuse(Instant(3), Moved(to="3", payload=memoryview(much)), ValueError("no"))

    assert sys.getrefcount(much) == before
    effects = ", ".join(["Go(to='x')"] * 8)
    assert story.lines() == [
        f"1 Moved(to='1', payload=[<101 bytes>]) -> [{effects}, and 1 more]",
        "2 Moved(to='2', payload=<90 bytes>) -> []",
        "3 Moved(to='3', payload=<101 bytes>) refused: ValueError('no')",
    ]
