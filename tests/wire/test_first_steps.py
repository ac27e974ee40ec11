"""What the tasks of one turn do before they first wait takes a few milliseconds, however many they are."""

import asyncio
from types import SimpleNamespace
from typing import Any

from broadsheet.base.time import MILLISECOND, Duration, Instant
from broadsheet.runtime.time import LoopTimers
from broadsheet.wire.first_steps import FirstSteps
from broadsheet.wire.limits import WireLimits


class Work:
    """Tasks whose first step takes a millisecond each."""

    def __init__(self) -> None:
        self.now = Instant(1)
        self.done: list[int] = []
        ports: Any = SimpleNamespace(
            time=SimpleNamespace(now=lambda: self.now), timers=LoopTimers(asyncio.get_running_loop())
        )
        self.steps = FirstSteps(ports, WireLimits(turn_time_max=Duration(3 * MILLISECOND)))

    async def do(self, number: int, flow: str = "a", connection: int = 0) -> None:
        await self.steps.turn(flow, connection)
        self.now = Instant(self.now + MILLISECOND)
        self.done.append(number)


async def test_first_steps_of_a_turn_take_no_longer_than_its_time_and_keep_their_order() -> None:
    """100 appends that each closed a fragment began together, and held the loop for 0.1 s."""
    work = Work()
    tasks = [asyncio.ensure_future(work.do(number)) for number in range(200)]
    late: list[asyncio.Task[None]] = []
    while not all(task.done() for task in (*tasks, *late)):
        before = len(work.done)
        await asyncio.sleep(0)
        work.steps.check()
        assert len(work.done) - before <= 3
        if len(late) < 5:
            late.append(asyncio.ensure_future(work.do(200 + len(late))))

    assert work.done == list(range(205))


async def test_one_that_is_cancelled_while_it_waits_takes_no_turn() -> None:
    """Its caller left: the others go on."""
    work = Work()
    tasks = [asyncio.ensure_future(work.do(number)) for number in range(20)]
    await asyncio.sleep(0)
    for task in tasks[5:15]:
        task.cancel()
    await asyncio.wait(tasks, timeout=5)

    assert work.done == [*range(5), *range(15, 20)]
    await asyncio.sleep(0)
    await asyncio.wait_for(work.do(99), 5)


async def test_callers_take_turns_so_that_a_crowd_keeps_nobody_waiting() -> None:
    """One caller may have 8,000 tasks, whose first steps take 8 s."""
    work = Work()
    crowd = [asyncio.ensure_future(work.do(number)) for number in range(300)]
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(work.do(1000 + number, f"b{number}")) for number in range(4)]
    await asyncio.wait(others, timeout=5)

    assert len(work.done) < 20
    await asyncio.wait(crowd, timeout=5)
    assert [number for number in work.done if number < 1000] == list(range(300))
    work.steps.check()


async def test_connections_of_one_caller_take_turns() -> None:
    """Without tokens all programs of a machine are one caller: one append waited behind 7,000, for 28 s."""
    work = Work()
    crowd = [asyncio.ensure_future(work.do(number)) for number in range(300)]
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(work.do(1000 + number, connection=number)) for number in range(1, 4)]
    await asyncio.wait(others, timeout=5)

    assert len(work.done) < 20
    work.steps.check()
    await asyncio.wait(crowd, timeout=5)
    assert [number for number in work.done if number < 1000] == list(range(300))
    work.steps.check()
