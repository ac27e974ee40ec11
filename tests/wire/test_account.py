"""Callers share what a node can have in flight, and nobody is left without a share."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.base.time import Instant
from broadsheet.errors import Throttled
from broadsheet.runtime.turn import Turn
from broadsheet.wire.account import (
    KEPT_BYTES_MIN,
    SHARE_OF_CONTROL,
    TASKS_MIN,
    Accounts,
    Holding,
    Owned,
)
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.server_connection import Backpressure
from tests.wire.harness import LoopPorts, until

LIMITS = WireLimits()
MIB = 1 << 20


def accounts(limits: WireLimits = LIMITS) -> Accounts:
    return Accounts(limits, Turn(LoopPorts().timers))


def greedy(node: Accounts, *takers: Holding) -> None:
    """Each takes a MiB in its turn, for as long as it has room."""
    while sum([node.has_room(each, MIB) and node.take(each, MIB) for each in takers]):
        pass


async def test_one_caller_with_many_connections_takes_half_and_leaves_as_much() -> None:
    """The next caller must find room at once, not when the first one's requests have ended."""
    node = accounts()
    greedy(node, *[node.enter("first", is_control=False) for _ in range(100)])

    free = LIMITS.node_in_flight_bytes_max - LIMITS.reserve_bytes - node.used_bytes
    assert 0 <= free - node.used_bytes <= 4 * MIB
    node.check()


@pytest.mark.parametrize("count", [1, 2, 10])
async def test_a_connection_leaves_as_much_of_its_account_as_it_takes(count: int) -> None:
    """Without tokens all programs of a machine are one caller: one must not take all from the others."""
    node = accounts()
    greedy(node, *[node.enter("machine", is_control=False) for _ in range(count)])
    newcomer = node.enter("machine", is_control=False)

    share = (LIMITS.node_in_flight_bytes_max - LIMITS.reserve_bytes) // (2 * count + 1)
    assert node.has_room(newcomer, share - 2 * MIB)


async def test_many_connections_of_one_caller_have_no_more_than_one_share() -> None:
    """Else a flood of connections would be a flood of shares."""
    node = accounts()
    flood = [node.enter("flood", is_control=False) for _ in range(50)]
    others = [node.enter(str(number), is_control=False) for number in range(3)]
    greedy(node, *flood, *others)

    half = (LIMITS.node_in_flight_bytes_max - LIMITS.reserve_bytes) // 2
    assert sum([each.used_bytes for each in flood]) <= half + 4 * MIB
    assert min([each.used_bytes for each in others]) >= half // 5 - 4 * MIB


async def test_a_byte_that_no_request_owns_is_named() -> None:
    """Planted: bytes that stayed on an account for ever showed as a node that hangs, after hours."""
    owned = Owned(used_bytes=5)
    node = accounts()
    holding = node.enter("caller", is_control=False, owned=lambda: owned)
    node.take(holding, 5)
    node.check()
    owned = Owned()
    with pytest.raises(AssertionError, match="caller owns 0 used_bytes, and 5 are counted"):
        node.check()
    node.leave(holding)
    with pytest.raises(AssertionError, match="that is gone owns 0 used_bytes, and 5 are counted"):
        node.check()
    node.give(holding, 5)

    node.check()
    assert not node.by_name


async def test_callers_that_take_all_they_may_have_equal_shares() -> None:
    """Max-min: n callers with a connection each have a (n+2)th, and there is room for one more (wire.6)."""
    node = accounts()
    takers = [node.enter(str(number), is_control=False) for number in range(5)]
    greedy(node, *takers)

    share = (LIMITS.node_in_flight_bytes_max - LIMITS.reserve_bytes) // 7
    assert all(abs(each.used_bytes - share) <= 2 * MIB for each in takers)
    newcomer = node.enter("new", is_control=False)
    greedy(node, newcomer)
    assert newcomer.used_bytes >= share * 2 // 3 - 2 * MIB
    node.check()


async def test_a_small_request_gets_through_whatever_the_others_hold() -> None:
    """The floor: a caller with next to nothing in flight is never held back."""
    node = accounts()
    for number in range(200):
        taker = node.enter(str(number), is_control=False)
        greedy(node, taker)
        node.take(taker, MIB)
    newcomer = node.enter("new", is_control=False)

    assert node.has_room(newcomer, LIMITS.floor_bytes)


@pytest.mark.parametrize("busy_bytes", [0, LIMITS.node_in_flight_bytes_max])
async def test_what_handlers_keep_is_shared_whatever_else_is_in_flight(busy_bytes: int) -> None:
    """Operators and peers upload documents: a node that is busy with appends must take them, too."""
    node = accounts()
    node.take(node.enter("busy", is_control=False), busy_bytes)
    flood = [node.enter("operator", is_control=True) for _ in range(20)]
    other = node.enter("peer", is_control=True)
    for holding in (*flood, other):
        while node.keep_refusal(holding, MIB) is None:
            node.keep(holding, MIB)
    small = node.enter("new", is_control=True)

    kept = [sum([each.kept_bytes for each in flood]), other.kept_bytes]
    assert kept[0] <= LIMITS.node_in_flight_bytes_max // 2 <= kept[0] + 2 * MIB
    assert kept[1] >= LIMITS.node_in_flight_bytes_max // 6 - MIB
    assert node.kept_bytes == sum(kept) < LIMITS.node_in_flight_bytes_max
    node.keep(node.enter("the rest", is_control=True), LIMITS.node_in_flight_bytes_max - sum(kept))
    assert node.keep_refusal(small, LIMITS.floor_bytes) is None
    assert isinstance(node.keep_refusal(small, LIMITS.floor_bytes + 1), Throttled)
    node.check()


async def test_a_connection_leaves_its_caller_as_much_to_keep_as_it_keeps() -> None:
    """Without tokens all nodes and operators of a machine are one caller."""
    node = accounts(WireLimits(reserve_bytes=MIB, node_in_flight_bytes_max=10 * MIB))
    first, second = (node.enter("machine", is_control=True) for _ in range(2))
    while node.keep_refusal(first, MIB) is None:
        node.keep(first, MIB)

    assert 0 <= first.kept_bytes - KEPT_BYTES_MIN // 3 <= MIB, "a small budget is not that of documents"
    assert node.keep_refusal(second, first.kept_bytes - 2 * MIB) is None


class Waits(Backpressure):
    """It waits for room, and nothing else."""

    def __init__(self, holding: Holding) -> None:
        self.holding, self.is_held = holding, True

    def ease(self) -> None:
        self.is_held = False


async def test_a_caller_without_room_keeps_no_other_caller_waiting() -> None:
    """wire.6: it came first and wants more than there is room for; who waits behind it would fit."""
    node = accounts()
    first, second, third = [node.enter(name, is_control=False) for name in ("first", "second", "third")]
    greedy(node, first, second, third)
    large, small = Waits(first), Waits(second)
    node.wait(large, LIMITS.node_in_flight_bytes_max)
    node.wait(small, MIB)
    node.give(third, third.used_bytes)

    await until(lambda: not small.is_held)
    assert large.is_held
    assert node.is_waiting(large)


async def test_a_small_request_passes_a_frame_of_its_caller_that_has_no_room() -> None:
    """The floor holds for whoever was held back too: the large frame may wait for other callers for ever."""
    node = accounts()
    hogs = [node.enter(str(number), is_control=False) for number in range(200)]
    mine = [node.enter("mine", is_control=False) for _ in range(3)]
    greedy(node, *hogs)
    node.take(mine[0], MIB)
    large, small = Waits(mine[1]), Waits(mine[2])
    node.wait(large, 4 * MIB)
    node.wait(small)
    node.give(mine[0], MIB)

    await until(lambda: not small.is_held)
    assert large.is_held
    assert node.is_waiting(large)
    node.check()


async def test_smaller_frames_of_the_others_do_not_take_what_the_first_in_line_waits_for() -> None:
    """They never stood in line: each took the room that the last one gave back, before the first was asked.

    26 connections that sent frames of 140 KB one behind another kept a frame of 900 KB waiting for ever.
    """
    node = accounts()
    busy = [node.enter("machine", is_control=False) for _ in range(200)]
    small = node.enter("machine", is_control=False)
    greedy(node, *busy)
    first = Waits(node.enter("machine", is_control=False))
    node.wait(first, 4 * MIB)

    async def go_on() -> int:
        """Each of those that are busy ends a frame and begins the next; how many had room."""
        count = 0
        for each in [each for each in busy if each.used_bytes]:
            node.give(each, MIB)
            if node.has_room(each, MIB):
                count += 1
                node.take(each, MIB)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        node.check()
        return count

    assert await go_on()
    assert node.is_waiting(first)
    node.press(first, Instant(0))
    assert not node.has_room(busy[-1], MIB)
    assert node.has_room(small), "a small request waits for no large frame"
    await go_on()
    assert not first.is_held
    assert node.has_room(busy[-1], MIB)


async def test_no_room_is_saved_for_a_frame_that_other_callers_leave_no_room_for() -> None:
    """Else the smaller frames of its caller would wait with it for as long as the node is full."""
    node = accounts()
    greedy(node, *[node.enter(str(number), is_control=False) for number in range(200)])
    mine, other = [node.enter("mine", is_control=False) for _ in range(2)]
    first = Waits(mine)
    node.wait(first, 4 * MIB)
    node.press(first, Instant(0))

    assert node.has_room(other, 128 << 10)
    node.check()


async def test_who_leaves_the_line_gives_up_what_was_saved_for_it() -> None:
    """Otherwise a caller could have no large frame until it has no connection left."""
    node = accounts()
    busy = [node.enter("machine", is_control=False) for _ in range(200)]
    greedy(node, *busy)
    first, second = [Waits(node.enter("machine", is_control=False)) for _ in range(2)]
    node.wait(first, 4 * MIB)
    node.wait(second, 128 << 10)
    node.press(first, Instant(0))
    node.give(busy[0], MIB)
    await asyncio.sleep(0.01)
    assert first.is_held
    assert second.is_held
    node.forget(first)

    await until(lambda: not second.is_held)
    node.check()


async def test_the_reserve_is_for_control() -> None:
    """Replication and operators go on where clients have taken all that they may (wire.6)."""
    node = accounts()
    for number in range(20):
        greedy(node, node.enter(str(number), is_control=False))
    peer, client = node.enter("peer", is_control=True), node.enter("client", is_control=False)

    assert not node.has_room(client, 4 * MIB)
    assert node.has_room(peer, 4 * MIB)
    greedy(node, peer)
    assert peer.used_bytes >= LIMITS.reserve_bytes * SHARE_OF_CONTROL // (SHARE_OF_CONTROL + 2) - 2 * MIB


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(0, 40 * MIB), st.booleans()), min_size=1, max_size=60
    )
)
async def test_whoever_has_room_holds_no_more_than_its_share(steps: list[tuple[str, int, bool]]) -> None:
    """Oracle: what is promised in the module's own words, after every take and give."""
    node = accounts()
    held = {name: node.enter(name, is_control=False) for name in "abcd"}
    for name, size, gives in steps:
        each = held[name]
        if gives:
            node.give(each, each.used_bytes)
        elif node.take(each, size):
            free = LIMITS.node_in_flight_bytes_max - LIMITS.reserve_bytes - node.used_bytes
            assert each.used_bytes <= max(LIMITS.floor_bytes, free)
        node.check()


async def test_tasks_are_shared_as_bytes_are() -> None:
    """A caller that starts tasks without end must not use up what others need."""
    limits = WireLimits(node_tasks_max=1000)
    node = accounts(limits)
    hog, other = node.enter("hog", is_control=False), node.enter("other", is_control=False)
    while node.task_refusal(hog) is None:
        node.started(hog)

    assert 333 <= hog.task_count <= 335, "a third: its account may have half, and one connection half of that"
    while node.task_refusal(other) is None:
        node.started(other)
    assert other.task_count >= TASKS_MIN
