"""Workloads: what a domain writes to be simulated. A seed's plan runs one workload in one tier.

Tier 1, `MachineWorkload`: `boot` builds the machine of one node from what its log kept, on a real
`runtime.host.Host`, and wires effects to `context.send`, `context.log(...).append`; `client` is a coroutine
of `ClientContext` awaitables (no asyncio). Tier 2, `ServiceWorkload`: `serve` starts the real roles with
`context.ports` and `context.scope`; `client` uses the real client. Tier 3, `CrashWorkload`: `perform` plays
histories on one disk and judges what crashes leave of them.

A client loops `while not context.is_stopping`, records every operation in `run.history`, and bounds every
wait. The runner then demands, besides `verify`: each client has an operation acknowledged that it began
after healing (liveness).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, Protocol

from broadsheet.base.machine import Effect, Event
from broadsheet.base.types import NodeId
from broadsheet.ports import Random
from simulator import coverage
from simulator.history import History
from simulator.node_context import ClientContext, NodeContext
from simulator.plan import Budget, Fault, Plan, Tier
from simulator.violation import Violation
from simulator.world import Life, World

__all__ = ["OPERATIONS", "Episode", "MachineWorkload", "Violation", "Workload"]

OPERATIONS: Final = ("open", "write", "sync", "truncate", "rename", "remove", "sync_dir")
"""The disk's operations that a fault may wait for."""


class Episode(Protocol):
    """One run, as a workload sees it."""

    @property
    def plan(self) -> Plan:
        """What is being run."""
        ...

    @property
    def world(self) -> "World":
        """Time, network, disks."""
        ...

    @property
    def history(self) -> History:
        """What clients asked and were told."""
        ...

    @property
    def healed_at(self) -> int | None:
        """When the last fault ended; None in the safety phase."""
        ...


class Workload(ABC):
    """One domain under test. An instance is one run's: it may keep what its checks need."""

    name: ClassVar[str]
    """As in `python -m simulator NAME`; the same in both tiers."""
    tier: ClassVar[Tier]
    budget: ClassVar[Budget] = Budget()
    scope: ClassVar[tuple[str, ...]] = ()
    """Folders below the package whose marks this workload shall hit, and whose labels, events and effects
    faults may wait for."""
    unknown_percent_max: ClassVar[int] = 40
    """In a campaign of 20 seeds or more, how many of a hundred operations may end unknown."""
    stale_calls_max: ClassVar[int] = 0
    """How many calls of one client may end unknown although nothing fails any more: those that find out that
    a connection, which nobody had used since, died in the faults. At most one for each node."""
    clients: ClassVar[int] = 4
    """How many clients run at once.

    Think times are the workload's; 100 acknowledged operations in 6 s are needed.
    """
    clients_min: ClassVar[int] = 1
    """With how many clients a run can still end: no smaller plan has fewer."""

    def knobs(self, draw: Random) -> dict[str, int]:
        """Options of one run, drawn from the seed, stored in the plan.

        `nodes` and `clients` are known to the runner.
        """
        return {}

    @abstractmethod
    def nodes(self, knobs: dict[str, int]) -> tuple[NodeId, ...]:
        """The nodes' names, sorted."""

    def stale_calls(self, knobs: dict[str, int]) -> int:
        """How many calls of one client may end unknown although nothing fails any more."""
        return self.stale_calls_max

    def moments(self) -> tuple[str, ...]:
        """The moments that a fault may wait for (`moments.py`)."""
        found = coverage.places(self.scope)
        names = [f"step.{event}" for event in found.events] + [f"mark.{mark}" for mark in found.marks]
        if self.tier is Tier.MACHINES:
            return (*names, *(f"effect.{effect}" for effect in found.effects))
        labels = [f"label.{label}" for label in found.labels]
        return (*names, *labels, *(f"disk.{operation}" for operation in OPERATIONS))

    def extra_faults(self, draw: Random, plan: Plan) -> list[Fault]:
        """The domain's own: actions, and faults aimed where they hurt; `plan` has what was drawn before."""
        return []

    def act(self, run: Episode, fault: Fault) -> None:
        """Perform an `ACTION` fault."""
        raise NotImplementedError(fault.action, run.plan.workload)  # A workload that plans it has it.

    def watch(self, run: Episode) -> None:  # noqa: B027 - most have nothing that must hold at all times.
        """Check what must hold at all times; called every 100 virtual ms. Raises `Violation`."""

    def hear(self, life: "Life | None", event: Event, effects: Sequence[Effect]) -> None:
        """Judge one step of a machine of `life`, before its effects are performed. Raises `Violation`."""
        raise NotImplementedError  # Only those that have it are asked.

    @abstractmethod
    def verify(self, run: Episode) -> None:
        """Check the whole run after healing and quiet. Raises `Violation`."""


class MachineWorkload(Workload):
    """A domain in tier 1."""

    tier = Tier.MACHINES
    is_echoing: ClassVar[bool] = False
    """Whether old messages may come back between nodes, across their restarts."""

    @abstractmethod
    def boot(self, context: "NodeContext") -> None:
        """Start one boot of a node: its machine from `context.log(...)`, its host, `context.on_message`."""

    @abstractmethod
    async def client(self, context: "ClientContext", run: Episode) -> None:
        """One client. Await only what `context` offers."""
