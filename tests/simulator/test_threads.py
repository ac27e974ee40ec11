"""Threads: work beside the loop has the loop's calls between its own, and always the same ones."""

import asyncio
from functools import partial

import pytest

from simulator.clock import NodeClock
from simulator.disk import BESIDE, SimDisk
from simulator.disk_state import DiskState
from simulator.entropy import Draws
from simulator.loop import make_loop
from simulator.moments import Gone
from simulator.trace import Trace
from simulator.world import Life, World

CALLS = 200


def played(seed: int, *, until: int) -> tuple[list[str], Life]:
    """Pieces of blocking work, and what else goes on, in the order in which it was done; then a kill."""
    world = World(seed, Trace(None))
    loop, life = make_loop(world), Life("n1", 1, NodeClock(world, "n1"))
    disk = SimDisk(DiskState(Draws(seed, "threads")), life=life)
    said: list[str] = []

    def work(name: str) -> None:
        try:
            for _ in range(CALLS):
                said.append(name)
                disk.exists("a")
        except Gone:
            said.append(f"{name} is gone")
            raise

    async def beat() -> None:
        while True:
            said.append("loop")
            await asyncio.sleep(20e-6)

    async def all_of_it() -> None:
        ticking = asyncio.ensure_future(beat())
        await asyncio.gather(*[disk.run(partial(work, f"work {n}")) for n in range(4 * BESIDE)])
        ticking.cancel()

    with loop.running():
        world.soon(life, lambda: loop.create_task(all_of_it()))
        world.run(until, lambda: False)
        world.end(life)
    return said, life


def runs(said: list[str], name: str) -> int:
    """In how many pieces that work was done."""
    return sum(1 for before, each in zip(["", *said], said, strict=False) if each == name != before)


def test_the_loop_goes_on_between_the_calls_of_a_thread() -> None:
    """A read in its thread, and a truncation meanwhile: what is one step here would never show that."""
    said, _ = played(1, until=1_000_000_000)
    pieces = [runs(said, name) for name in dict.fromkeys(said) if name != "loop"]
    assert all(said.count(name) == CALLS for name in dict.fromkeys(said) if name != "loop")
    assert max(pieces) > 2
    assert min(pieces) == 1, "some work is still one step, which is cheaper"


@pytest.mark.parametrize("until", [1_000_000_000, 150_000])
def test_the_same_seed_gives_the_same_order(until: int) -> None:
    """simulation.1: real threads, and nothing of their own timing."""
    assert played(2, until=until)[0] == played(2, until=until)[0]


def test_a_kill_ends_the_threads_of_its_process() -> None:
    """They unwind where they stand, and reach the disk no more."""
    said, life = played(3, until=150_000)
    begun = [name for name in dict.fromkeys(said) if name.startswith("work") and "gone" not in name]
    cut = [name for name in begun if said.count(name) < CALLS]
    assert life.is_dead
    assert cut
    assert all(f"{name} is gone" in said for name in cut)
