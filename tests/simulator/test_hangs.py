"""A hang is a verdict: which client, which call, since when, and what it waits for."""

import asyncio

import pytest

from simulator.hangs import verdict, waits_for, watched
from simulator.history import History
from simulator.trace import Trace
from simulator.workload import Violation
from simulator.world import World


def test_a_verdict_names_the_client_its_call_since_when_and_its_wait() -> None:
    """Whoever reads it must not have to run the seed again to learn where to look."""
    history = History(lambda: 12_500_000_000, lambda *_: None)
    history.invoke("client1", "document", "set", (3, b"x"))

    text = verdict("no progress", ["client1", "client2"], history.operations, {"client1": "_begin:7"})

    assert text.splitlines() == [
        "no progress",
        "client1: set of document (3, b'x') is open since 12.500000 s",
        "client1 waits for _begin:7",
        "client2 waits for what nobody knows",
    ]


def test_the_wait_of_a_task_goes_through_the_tasks_that_it_waits_for() -> None:
    """The outermost await says which call, the innermost which future: both are wanted."""

    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    async def gathering() -> None:
        await asyncio.gather(forever())

    async def find() -> str:
        task = asyncio.ensure_future(gathering())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = waits_for(task)
        task.cancel()
        return found

    outer, inner = [part.rpartition(".")[2].partition(":")[0] for part in asyncio.run(find()).split(" > ")]
    assert (outer, inner) == ("gathering", "forever")


def test_calls_that_let_no_time_pass_are_a_verdict() -> None:
    """Two queues that give each other the same work would otherwise run until somebody looks."""
    world = World(1, Trace(None))

    def again() -> None:
        world.soon(None, again)

    world.soon(None, again)

    with pytest.raises(Violation, match=r"time stands still at 0\.000000 s .*again"):
        world.run(1_000_000_000)


def test_many_calls_at_different_instants_are_no_standstill() -> None:
    """A long run is many calls, too: only those count between which no time passes."""
    world, count = World(1, Trace(None)), [0]

    def later() -> None:
        count[0] += 1
        world.at(world.now + 1, None, later)

    world.at(1, None, later)
    world.run(600_000)

    assert count[0] == 600_000


def test_a_call_that_never_returns_is_stopped_and_is_a_verdict() -> None:
    """A loop within one call lets nothing else run, and no count of calls can see it."""
    world = World(1, Trace(None))

    def spin() -> None:
        while True:
            try:
                sum(range(1000))
            except Exception:  # noqa: BLE001 - as the edge of a door does: it must not hide the verdict.
                continue

    world.soon(None, spin)
    with watched(world, seconds=0.2):
        world.run(1_000_000_000)

    assert isinstance(world.failure, Violation)
    assert "spin" in str(world.failure)
