"""The simulated ports, for the conformance suite: each on a virtual loop of its own."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from simulator.clock import NodeClock, SimTime, SimTimers
from simulator.disk import SimDisk
from simulator.disk_state import DiskState
from simulator.entropy import Draws, stream
from simulator.health import Health
from simulator.links import Links, Profile
from simulator.loop import SimLoop, run_alone
from simulator.objects import ObjectShelf, SimObjects
from simulator.streams import Streams
from simulator.trace import Trace
from simulator.world import Life, World
from tests.runtime.conformance import DISKS, NETWORKS, OBJECTS, RANDOMS, TIMES, Clocks, Implementation, Story

Make = Callable[[World, Life], Any]


def provide() -> Iterable[tuple[str, Implementation]]:
    """Every simulated port."""
    for port, make in (
        (TIMES, _clocks),
        (RANDOMS, _random),
        (DISKS, _disk),
        (NETWORKS, _network),
        (OBJECTS, _objects),
    ):
        yield port, Implementation("simulated", partial(_run, make))


def _run(make: Make, story: Story, _directory: Path) -> None:
    world = World(7, Trace())
    life = Life("n1", 1, NodeClock(world, "n1"))

    async def told(_loop: SimLoop, life: Life) -> None:
        await story(make(world, life))

    run_alone(told, world, life)


def _clocks(world: World, life: Life) -> Clocks:
    clock = NodeClock(world, "n1")
    return Clocks(SimTime(world, clock), SimTimers(world, life, clock))


def _random(_world: World, _life: Life) -> Callable[[str], Any]:
    return lambda purpose: stream(7, "n1", 1, purpose)


def _disk(_world: World, life: Life) -> SimDisk:
    return SimDisk(DiskState(), life=life)


def _network(world: World, life: Life) -> Any:
    return Streams(world, Links(7, Profile()), lambda _: True).port_of(life)


def _objects(world: World, life: Life) -> SimObjects:
    return SimObjects(ObjectShelf(Draws(7), Health()), world, life)
