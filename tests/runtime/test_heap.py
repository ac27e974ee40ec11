"""Garbage in cycles is looked for in small steps: a walk of everything stops every thread of the node.

The collector belongs to the whole process, so each test puts it back as it was.
"""

import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from broadsheet.base.time import Duration
from broadsheet.runtime.garbage import INTERVAL, STEP_BLOCKS, WHOLE_LOOKS_MIN, Heap
from tests.support.hand import HandClock


class Node:
    """Something that may be in a cycle."""

    def __init__(self) -> None:
        self.other: Node | None = None


def kept(blocks: int) -> list[dict[str, list[int]]]:
    """Objects that live, of `blocks` blocks or some more."""
    return [{"x": []} for _ in range(blocks // 3)]


class Walks:
    """Counts the walks of the last generation, with how many objects were in it."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            self.sizes.append(sum([len(gc.get_objects(generation)) for generation in range(3)]))


@pytest.fixture
def walks() -> Iterator[Walks]:
    before, found = gc.get_threshold(), Walks()
    gc.collect()
    gc.callbacks.append(found)
    yield found
    gc.callbacks.remove(found)
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_lives_long_is_not_walked_whatever_comes_and_goes(walks: Walks) -> None:
    """A flood of a thousand requests in flight had all of the node walked twice a second, 0.1 s each."""
    clock = HandClock()
    heap = Heap(clock)
    everything = len(gc.get_objects())
    heap.start()
    for _ in range(20):
        flood = kept(STEP_BLOCKS // 2)
        clock.advance(INTERVAL)
        del flood
    assert not walks.sizes

    grown = kept(2 * STEP_BLOCKS)
    clock.advance(INTERVAL)
    heap.close()

    assert grown
    assert len(walks.sizes) == 1
    assert walks.sizes[0] < everything // 2 + 2 * STEP_BLOCKS, "what was there at the start is not in it"


def test_cycles_among_what_was_frozen_are_found_once_the_heap_has_grown_by_half(walks: Walks) -> None:
    """Else journals that are deleted, and connections that are lost, might stay for the life of the node."""
    clock = HandClock()
    heap = Heap(clock)
    gone, other = Node(), Node()
    gone.other, other.other = other, gone
    is_there = weakref.ref(gone)
    heap.start()
    del gone, other
    for _ in range(WHOLE_LOOKS_MIN):
        clock.advance(INTERVAL)
    grown = []
    for _ in range(200):
        grown.append(kept(2 * STEP_BLOCKS))
        clock.advance(INTERVAL)
        if is_there() is None:
            break

    assert is_there() is None
    assert walks.sizes
    heap.close()


def test_everything_is_walked_once_in_a_minute_at_most(walks: Walks) -> None:
    """A node that opened ten thousand journals was walked whole six times, a quarter of a second each."""
    clock = HandClock()
    heap = Heap(clock)
    everything = len(gc.get_objects())
    heap.start()
    doubled = kept(sys.getallocatedblocks())
    clock.advance(INTERVAL)
    (new,) = walks.sizes
    for _ in range(WHOLE_LOOKS_MIN):
        clock.advance(INTERVAL)
    assert walks.sizes == [new]

    grown = kept(2 * STEP_BLOCKS)
    clock.advance(INTERVAL)
    heap.close()
    assert doubled
    assert grown
    assert walks.sizes[1] > new + everything // 2, "the first was of what was new, the second of all"


def test_nothing_is_walked_while_a_node_starts(walks: Walks) -> None:
    """Of the CPU time that a start with 10,000 journals took, an eighth went into walks for nothing."""
    clock = HandClock()
    heap = Heap(clock)
    heap.hold()
    made = kept(20 * STEP_BLOCKS)
    clock.advance(INTERVAL)
    assert not walks.sizes

    heap.start()
    clock.advance(INTERVAL)
    assert made
    assert not walks.sizes, "what the start made is frozen, and not walked first"
    heap.close()


def test_a_start_that_fails_leaves_the_interpreter_as_it_was() -> None:
    """The collector is the process's, and others may come after us."""
    heap = Heap(HandClock())
    heap.hold()
    assert not gc.isenabled()
    heap.close()

    assert gc.isenabled()


def test_what_a_start_has_made_is_no_growth(walks: Walks) -> None:
    """Else a node would stand still for a walk of everything as soon as it is ready."""
    clock = HandClock()
    heap = Heap(clock)
    heap.start()
    frozen = gc.get_freeze_count()
    made = kept(2 * STEP_BLOCKS)
    heap.settle()
    clock.advance(INTERVAL)
    heap.close()

    assert frozen
    assert made
    assert not walks.sizes


def test_a_closed_heap_leaves_the_interpreter_as_it_was(walks: Walks) -> None:
    """It is the process's, and others may come after us."""
    before, clock = gc.get_threshold(), HandClock()
    heap = Heap(clock, interval=Duration(1))
    heap.start()
    assert gc.get_threshold() != before
    heap.close()
    heap.close()

    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
    assert clock.pending() == []
    assert not walks.sizes
