"""The virtual loop runs real asyncio code, the same way each time, and lets the dead do nothing."""

import asyncio
import os
import threading
import time

import pytest

from broadsheet.runtime.scope import Scope
from simulator.clock import NodeClock
from simulator.disk import SimDisk
from simulator.disk_state import DiskState
from simulator.loop import SimLoop, make_loop, run_alone
from simulator.trace import Trace
from simulator.world import Life, World


def test_virtual_hours_take_no_time() -> None:
    """Time jumps to the next timer."""
    world = World(1, Trace())

    async def work(loop: SimLoop, _: Life) -> float:
        before = loop.time()
        async with asyncio.timeout(3000):
            await asyncio.sleep(1800)
        return loop.time() - before

    began = time.monotonic()
    assert 1800 <= run_alone(work, world, Life("n", 1)) < 1800.001
    assert time.monotonic() - began < 1


def test_sets_of_tasks_have_one_order() -> None:
    """`asyncio.wait` iterates a set of tasks: they hash by number, not by address."""
    orders: list[list[str]] = []
    for _ in range(3):
        padding = [object() for _ in range(1000 * len(orders))]

        async def work(_loop: SimLoop, _life: Life) -> list[str]:
            tasks = {asyncio.create_task(asyncio.sleep(1), name=f"t{index}") for index in range(20)}
            done, _ = await asyncio.wait(tasks)
            return [task.get_name() for task in done]

        orders.append(run_alone(work, World(1, Trace()), Life("n", 1)))
        del padding

    assert orders[0] == orders[1] == orders[2]


def test_an_ended_life_does_nothing_more() -> None:
    """Its coroutines are closed, their `finally` blocks run, and reach neither disk nor timers."""
    world = World(1, Trace())
    loop, disk_state, said = make_loop(world), DiskState(), []
    life = Life("n", 1, NodeClock(world, "n"))
    disk = SimDisk(disk_state, life=life)

    async def victim() -> None:
        file = disk.open("f", create=True)
        try:
            await asyncio.sleep(10)
            said.append("woke")
        finally:
            said.append("finally")
            file.write_at(0, [b"from the grave"])

    with loop.running():
        world.soon(life, lambda: loop.create_task(victim()))
        world.run(5_000_000_000)
        world.end(life)
        world.run(20_000_000_000)

    assert said == ["finally"]
    assert disk_state.files["f"].view == b""


def test_a_scope_closes_on_the_virtual_loop() -> None:
    """Real shutdown code runs as it is."""

    async def work(_loop: SimLoop, _life: Life) -> list[str]:
        said: list[str] = []
        scope = Scope("s", crash=lambda error: said.append(repr(error)))

        async def forever() -> None:
            try:
                await asyncio.sleep(1e6)
            finally:
                said.append("ended")

        scope.spawn(forever(), name="forever")
        await asyncio.sleep(1)
        await scope.close()
        return said

    assert run_alone(work, World(1, Trace()), Life("n", 1)) == ["ended"]


def test_the_real_world_is_out_of_reach() -> None:
    """Entropy behind the port's back would make every run another; clocks show virtual time.

    Source: simulation.2.
    """

    async def work(_loop: SimLoop, _life: Life) -> float:
        with pytest.raises(AssertionError, match=r"os\.urandom in a simulation"):
            os.urandom(8)
        before = time.monotonic()
        await asyncio.sleep(100)
        return time.monotonic() - before

    assert 99.9 < run_alone(work, World(1, Trace()), Life("n", 1)) < 100.1
    assert os.urandom(8)


def test_a_thread_that_was_there_before_is_no_part_of_the_simulation() -> None:
    """A library's own may sleep and look at the clock meanwhile: it decides nothing here."""
    begin, end = threading.Event(), threading.Event()
    seen: list[float] = []

    def other() -> None:
        begin.wait()
        time.sleep(0.001)
        seen.append(time.time())
        end.set()

    async def work(_loop: SimLoop, _life: Life) -> None:
        begin.set()
        assert end.wait(10)
        with pytest.raises(AssertionError, match="a thread in a simulation"):
            threading.Thread(target=other).start()

    thread = threading.Thread(target=other)
    thread.start()
    now = time.time()
    run_alone(work, World(1, Trace()), Life("n", 1))
    thread.join()

    assert seen
    assert seen[0] - now < 60, "it saw its own clock"


def test_a_wait_without_end_is_found() -> None:
    """Nothing can hang a run."""

    async def work(_loop: SimLoop, _life: Life) -> None:
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match="never comes"):
        run_alone(work, World(1, Trace()), Life("n", 1))


def test_a_drifting_clock_drifts_its_timers() -> None:
    """A node that runs a tenth fast wakes a tenth early, by the world's time."""
    world = World(1, Trace())
    clock = NodeClock(world, "n")
    clock.drift(100_000)

    async def work(loop: SimLoop, _: Life) -> tuple[float, float]:
        before = loop.time(), world.now
        await asyncio.sleep(11)
        return loop.time() - before[0], (world.now - before[1]) / 1e9

    mine, world_time = run_alone(work, world, Life("n", 1, clock))
    assert mine == pytest.approx(11, abs=1e-6)
    assert world_time == pytest.approx(10, abs=1e-6)
