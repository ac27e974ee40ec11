"""Cluster: nodes that are up, down or paused, and what outlives their processes (disk, logs, clocks).

    node: UP --kill|power cut|wipe|exit--> DOWN --start--> UP; UP <--pause/resume--> PAUSED.
A kill keeps the page cache, a power cut keeps what was synced and parts of the rest, a wipe keeps nothing.
A process that exits by itself is started again after a while, as a supervisor would do. Each tier defines
how a boot begins (`boot`).
"""

from collections.abc import Callable, Sequence
from typing import Final

from simulator.clock import NodeClock
from simulator.disk_state import DiskState
from simulator.entropy import Draws
from simulator.health import Health
from simulator.links import Links
from simulator.log import LogStore
from simulator.world import Life, World

RESTART_MIN_NS: Final = 50_000_000
RESTART_SPREAD_NS: Final = 300_000_000
RESTART_AT_ONCE_PPM: Final = 300_000
"""How often a process that ended itself is back at once: before anybody noticed that it was gone."""


class Node:
    """One machine, across the lives of its processes."""

    def __init__(self, name: str, world: World, cluster: "Cluster") -> None:
        self.name = name
        self.boots = 0
        self.life: Life | None = None
        self.clock = NodeClock(world, name)
        self.health = Health(Draws(world.seed, name, "health"))
        self.logs = LogStore(
            world,
            name,
            self.health,
            crash=cluster.exited,
            cut_power=lambda: cluster.power_cut_and_restart(name),
        )
        self.disk_state = DiskState(Draws(world.seed, name, "medium"))
        self.disk_state.health = self.health
        self.draws = Draws(world.seed, name, "restart")

    @property
    def is_up(self) -> bool:
        """Whether a process runs, paused or not."""
        return self.life is not None and not self.life.is_dead


class Cluster:
    """All nodes of a world."""

    def __init__(
        self,
        world: World,
        links: Links,
        names: Sequence[str],
        clients: Sequence[str],
        boot: Callable[[Node], None],
    ) -> None:
        self.world, self.links = world, links
        self.nodes = {name: Node(name, world, self) for name in names}
        self.everybody = (*names, *clients)
        self.on_exit: Callable[[str, str], None] = lambda *_: None
        """Told (node, reason) when a process ended by itself."""
        self._boot = boot

    def start(self, name: str) -> None:
        """Start the node's process where none runs."""
        node = self.nodes[name]
        if node.is_up:
            return
        node.boots += 1
        node.life = Life(name, node.boots, node.clock)
        self.world.trace.note("start", repr(node.life))
        self.world.soon(node.life, self._boot, node)

    def end(self, name: str, *, power_cut: bool = False, wipe: bool = False) -> bool:
        """End the node's process; False where none ran (a power cut then still takes what was not synced)."""
        node = self.nodes[name]
        was_up = node.is_up
        self.world.trace.note("end", name, power_cut, wipe, was_up)
        if node.life is not None:
            node.life.is_silent = power_cut or wipe
            self.world.end(node.life)
        node.logs.crash(power_cut=power_cut or wipe)
        if power_cut or wipe:
            node.disk_state.power_cut()
            node.clock.reboot()
        if wipe:
            node.logs.wipe()
            node.disk_state.wipe()
        return was_up

    def exited(self, life: Life, reason: str) -> None:
        """The process of `life` ended itself: to its supervisor that is a kill."""
        node = self.nodes[life.node]
        if node.life is not life or life.is_dead:
            return
        self.world.trace.note("exit", repr(life), reason)
        self.on_exit(life.node, reason)
        self.end(life.node)
        self._restart_later(node)

    def power_cut_and_restart(self, name: str) -> None:
        """The power fails in the middle of something, and comes back."""
        self.end(name, power_cut=True)
        self._restart_later(self.nodes[name])

    def incarnation(self, name: str) -> int:
        """Which disk the node has: rises with each wipe."""
        return self.nodes[name].logs.incarnation

    def _restart_later(self, node: Node) -> None:
        delay = RESTART_MIN_NS + node.draws.below(RESTART_SPREAD_NS)
        if node.draws.chance(RESTART_AT_ONCE_PPM):
            delay = 1
        self.world.at(self.world.now + delay, None, self.start, node.name)
