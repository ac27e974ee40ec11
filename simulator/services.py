"""Seats and runs of tier 2: real roles and real clients, with every port simulated.

A context's life ends by kill: nothing of it acts again, no `finally` included (its ports are gated). Disk,
stores and clock of a node outlive its lives; a client has its own, and is never killed.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from broadsheet.base.types import NodeId
from broadsheet.ports import ObjectStore, Random
from broadsheet.runtime.role import Ports
from broadsheet.runtime.scope import Scope
from simulator import hangs
from simulator.clock import NodeClock, SimTime, SimTimers
from simulator.cluster import Node
from simulator.disk import SimDisk
from simulator.disk_state import DiskState
from simulator.entropy import Draws, stream
from simulator.episode import EpisodeBase
from simulator.health import Health
from simulator.loop import make_loop
from simulator.objects import ObjectShelf, SimObjects
from simulator.plan import Plan, Tier
from simulator.streams import Streams, Tap
from simulator.trace import StoriesTraced
from simulator.workload import Episode, Violation, Workload
from simulator.world import Life, World

PORT: Final = 6640
STOP_NS: Final = 60_000_000_000
"""How long a graceful stop may take; clients are given their time to leave."""


class ServiceContext:
    """One boot of one node, or one client."""

    def __init__(
        self,
        world: World,
        life: Life,
        ports: Ports,
        scope: Scope,
        *,
        random: Callable[[str], Random],
        incarnation: int,
    ) -> None:
        self.world, self.life, self.ports, self.scope, self.random = world, life, ports, scope, random
        self.node, self.boot = NodeId(life.node), life.boot
        self.incarnation = incarnation
        """Rises with each wipe of this node's disk."""
        self.is_stopping = False
        """Set by the runner for clients: finish the operation at hand and return."""
        self.is_done = False

    @property
    def address(self) -> str:
        """Where this node listens."""
        return self.address_of(self.node)

    def address_of(self, node: str) -> str:
        """Where `node` listens, whether it is up or not."""
        return f"{node}:{PORT}"


class ServiceWorkload(Workload):
    """A domain in tier 2."""

    tier = Tier.SERVICES

    def may_die_of(self, error: BaseException) -> bool:
        """Whether a node's process may end by `error`; anything else is a finding."""
        return isinstance(error, OSError)

    def listen_in(self, world: World) -> Tap | None:
        """Whoever shall hear what is said over connections; None: nobody."""
        return None

    @abstractmethod
    async def serve(self, context: ServiceContext, run: Episode) -> None:
        """One boot of one node: recover, listen on `context.address`, return; `context.scope` holds the rest.

        It may raise what a process may die of (`OSError` of a sick disk): the node is down then, and is
        started again.
        """

    @abstractmethod
    async def client(self, context: ServiceContext, run: Episode) -> None:
        """One client with a world of its own: `context.ports.network` dials `context.address_of(node)`."""


class ServiceEpisode(EpisodeBase[ServiceWorkload]):
    """A run of tier 2."""

    def __init__(
        self, plan: Plan, workload: ServiceWorkload, show: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(plan, workload, show)
        self.loop = make_loop(self.world)
        self.streams = Streams(self.world, self.links, self._is_machine_up)
        self.streams.tap = workload.listen_in(self.world)
        self.contexts: dict[str, ServiceContext] = {}
        """The context of each node's current or last boot."""
        self.client_seats: list[ServiceContext] = []
        self._client_tasks: dict[str, asyncio.Task[None]] = {}
        self._starts: dict[str, asyncio.Task[None]] = {}
        """The start of each node's current or last boot."""
        self._shelves: dict[tuple[str, int, str], ObjectShelf] = {}
        for node in self.cluster.nodes.values():
            node.disk_state.note = self._disk_note(node.name)

    def boot(self, node: Node) -> None:
        """Start the node's roles anew."""
        life = node.life
        assert life is not None
        context = self._context(life, node.clock, node.disk_state, node.health)
        self.contexts[node.name] = context
        self._starts[node.name] = self.loop.create_task(self._serve(context), name=f"{life!r}.serve")

    def start_clients(self) -> None:
        """Start every client in a world of its own."""
        for name in self.client_names:
            clock = NodeClock(self.world, name)
            life = Life(name, 0, clock)
            disk_state = DiskState(Draws(self.plan.seed, name, "medium"))
            context = self._context(life, clock, disk_state, disk_state.health)
            self.client_seats.append(context)
            self.world.soon(life, self._start_client, context)

    def _start_client(self, context: ServiceContext) -> None:
        self._client_tasks[context.node] = self.loop.create_task(self._client(context))

    def stop_clients(self) -> None:
        """Ask every client to finish."""
        for context in self.client_seats:
            context.is_stopping = True

    def is_client_done(self, name: str) -> bool:
        """Whether that client has returned."""
        return self.client_seats[self.client_names.index(name)].is_done

    def wait_of(self, name: str) -> str:
        """The chain of its awaits."""
        return hangs.waits_for(self._client_tasks.get(name))

    def sever(self, chosen: list[tuple[str, str]], is_reset: bool) -> int:  # noqa: FBT001 - as its base.
        """End connections between pairs."""
        return self.streams.sever(chosen, is_reset=is_reset)

    @contextmanager
    def around(self) -> Generator[None, None, None]:
        """The virtual loop is the running one, and every story goes into the digest."""
        with self.loop.running(), StoriesTraced(self.trace):
            try:
                yield
            finally:
                self._end_all()

    def stop(self, name: str, ended: Callable[[], None]) -> bool:
        """Ask a node to end, and demand that it does."""
        node, context = self.cluster.nodes[name], self.contexts.get(name)
        life = node.life
        if life is None or life.is_dead or context is None or context.life is not life or context.is_stopping:
            return False
        context.is_stopping = True
        self.trace.note("stop", name)
        self.world.soon(
            life, lambda: self.loop.create_task(self._stop(context, ended), name=f"{life!r}.stop")
        )
        self.world.at(self.world.now + STOP_NS, None, self._demand_end, life)
        return True

    async def _stop(self, context: ServiceContext, ended: Callable[[], None]) -> None:
        """What `broadsheet serve` does at SIGTERM: a start that is under way is cancelled first."""
        start = self._starts[context.node]
        start.cancel()
        await asyncio.wait([start])
        try:
            await context.scope.close()
        except Exception as error:  # noqa: BLE001 - a process died of it: the workload says whether it may.
            self._died(context.life, error)
            return
        if not context.life.is_dead:
            self.trace.note("stopped", repr(context.life))
            self.cluster.end(context.node)
            ended()

    def _demand_end(self, life: Life) -> None:
        if life.is_paused:  # It cannot have heard of it for so long.
            self.world.at(self.world.now + STOP_NS, None, self._demand_end, life)
        elif not life.is_dead:
            self.world.fail(Violation(f"{life!r} was asked to end, and runs {STOP_NS / 1e9} s later"))

    async def _serve(self, context: ServiceContext) -> None:
        try:
            await self.workload.serve(context, self)
        except Exception as error:  # noqa: BLE001 - a process died of it: the workload says whether it may.
            self._died(context.life, error)

    async def _client(self, context: ServiceContext) -> None:
        try:
            await self.workload.client(context, self)
            await context.scope.close()
        except Exception as error:  # noqa: BLE001 - a client of ours is wrong, or found a violation.
            self.world.fail(error)
        context.is_done = True

    def _died(self, life: Life, error: BaseException) -> None:
        if life.is_dead:
            return
        if life.node in self.cluster.nodes and self.workload.may_die_of(error):
            self.cluster.exited(life, f"{type(error).__name__}: {error}")
        else:
            self.world.fail(error)

    def _context(self, life: Life, clock: NodeClock, disk_state: DiskState, health: Health) -> ServiceContext:
        world, seed = self.world, self.plan.seed

        def random(purpose: str) -> Random:
            return stream(seed, life.node, life.boot, purpose)

        def objects(url: str) -> ObjectStore:
            owner, incarnation = (life.node, disk_state.incarnation) if url.startswith("file:") else ("", 0)
            shelf = self._shelves.setdefault(
                (owner, incarnation, url), ObjectShelf(Draws(seed, owner, url), health if owner else Health())
            )
            return SimObjects(shelf, world, life)

        def crash(error: BaseException) -> None:
            self._died(life, error)

        moments = world.moments

        def reach(moment: str) -> None:
            if moments.is_armed:
                moments.reach(moment)

        ports = Ports(
            time=SimTime(world, clock),
            timers=SimTimers(world, life, clock),
            disk=SimDisk(
                disk_state,
                life=life,
                power_cut=lambda: self.cluster.power_cut_and_restart(life.node),
                reach=reach,
            ),
            network=self.streams.port_of(life),
            objects=objects,
            random=random,
            crash=crash,
        )
        scope = Scope(repr(life), crash=crash)
        return ServiceContext(world, life, ports, scope, random=random, incarnation=disk_state.incarnation)

    def _is_machine_up(self, name: str) -> bool:
        node = self.cluster.nodes.get(name)
        return node is None or node.is_up

    def _disk_note(self, name: str) -> Callable[..., None]:
        def note(operation: str, *what: object) -> None:
            if operation == "synced":
                self.trace.counts.disk += 1
            self.trace.note(name, operation, *what)

        return note

    def _end_all(self) -> None:
        """Close what still runs, so that no coroutine outlives the run."""
        for node in self.cluster.nodes.values():
            if node.life is not None:
                self.world.end(node.life)
        for context in self.client_seats:
            self.world.end(context.life)
