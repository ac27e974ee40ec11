"""Callbacks are called in order, a few in each turn of the loop, by number and by time."""

import asyncio
from functools import partial

import pytest

from broadsheet.base.time import MILLISECOND, Instant
from broadsheet.runtime.slices import LOOKS_EVERY, Call, Slices


@pytest.mark.parametrize(("step_ms", "slice_count"), [(0, 20), (1, LOOKS_EVERY)])
async def test_a_turn_has_calls_of_some_number_and_some_time(step_ms: int, slice_count: int) -> None:
    """128 acknowledgements whose callers worked took 5 ms of a turn; 8,000 of any kind take 0.15 s."""
    now, done = [1], list[int]()

    def do(number: int) -> None:
        now[0] += step_ms * MILLISECOND
        done.append(number)
        if number == 50:
            slices.add([partial(do, 100)])

    slices = Slices(20, now=lambda: Instant(now[0]))
    slices.add([partial(do, number) for number in range(60)])
    turns = []
    while not slices.is_quiet:
        turns.append(len(done))
        slices.check()
        slices.add([])
        await asyncio.sleep(0)

    assert turns == list(range(slice_count, 61, slice_count))
    assert done == [*range(60), 100], "what a callback adds is called behind what waits"


async def test_what_is_forgotten_is_not_called() -> None:
    """A log whose disk failed acknowledges nothing more, also if one of its callbacks found out."""
    done = list[int]()
    slices = Slices(20)
    slices.add([partial(done.append, 1), slices.forget, partial(done.append, 2)])

    assert (done, slices.is_quiet) == ([1], True)


def test_behind_a_call_that_raises_the_others_are_called() -> None:
    """What was added later waited for a turn that never came."""
    later: list[Call] = []
    slices = Slices(4, later=later.append)
    done = list[int]()
    with pytest.raises(ZeroDivisionError):
        slices.add([lambda: done.append(1 // len(done)), partial(done.append, 2)])
    slices.check()
    later.pop()()

    assert (done, slices.is_quiet) == ([2], True)


def test_what_a_call_adds_waits_for_its_turn() -> None:
    """A caller that is told appends again, and is told again: the turn would not end before the stack did."""
    later: list[Call] = []
    slices = Slices(4, later=later.append)
    called = 0

    def again() -> None:
        nonlocal called
        called += 1
        slices.add([again])

    slices.add([again])
    assert (called, len(later)) == (4, 1)
    later.pop()()
    assert (called, len(later)) == (8, 1)
