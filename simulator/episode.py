"""One run: a plan performed on a fresh world, from first boot to verdict.

    SAFETY (faults happen) --plan.safety_ns--> HEALED (all faults undone, every node started, the network
    calm) --each client has an operation acknowledged that it began since--> ALIVE --each client's next call
    is answered--> STOPPING (clients finish) --> VERIFIED
A failure ends it at once: an assertion of a machine, a broken property, a client that makes no progress
after healing, calls that are begun once all are alive and end unknown.

What differs between the tiers (how a node boots, how a client runs) is `MachineEpisode` and, in
`services.py`, `ServiceEpisode`.
"""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import process_time
from typing import Final, Generic, TypeVar

import msgspec

from broadsheet.base import buggify, marks
from broadsheet.runtime import failpoints
from broadsheet.runtime.checking import always
from simulator import hangs
from simulator.cluster import Cluster, Node
from simulator.coverage import Coverage
from simulator.entropy import Draws
from simulator.fault_injector import FaultInjector
from simulator.faults import client_names
from simulator.history import History, Operation, Outcome
from simulator.links import Links, Profile
from simulator.network import Datagrams
from simulator.node_context import ClientContext, NodeContext
from simulator.plan import Fault, Kind, Plan, Tier
from simulator.trace import Counts, Trace
from simulator.workload import MachineWorkload, Violation, Workload
from simulator.world import World

WATCH_NS: Final = 100_000_000
SETTLE_NS: Final = 60_000_000_000
"""How long the next call of a client may take, once all are alive: keepalives take 40 s."""
FINISH_NS: Final = 60_000_000_000
"""How long a client may take over its last operation."""
MIN_VIRTUAL_NS: Final = 6_000_000_000
MIN_ACKED: Final = 100
MIN_JUDGED: Final = 50
"""Disks that a seed of tier 3 judges."""

W = TypeVar("W", bound=Workload)


class Result(msgspec.Struct):
    """What came of a run."""

    plan: Plan
    digest: str
    counts: Counts
    acked: int
    rejected: int
    unknown: int
    virtual_ns: int
    cpu_seconds: float
    violation: str | None = None
    is_healed: bool = False
    coverage: Coverage = msgspec.field(default_factory=Coverage)

    @property
    def is_counting(self) -> bool:
        """Whether the seed counts (simulation.3): long, busy, met by a fault, and healed at the end.

        Of tier 3, which has no time: busy, and many states were judged.
        """
        if self.plan.tier is Tier.CRASHES:
            return self.is_healed and self.acked >= MIN_ACKED and self.counts.faults_met >= MIN_JUDGED
        return (
            self.is_healed
            and self.virtual_ns >= MIN_VIRTUAL_NS
            and self.acked >= MIN_ACKED
            and self.counts.faults_met >= 1
        )


class EpisodeBase(ABC, Generic[W]):
    """What both tiers share."""

    def __init__(self, plan: Plan, workload: W, show: Callable[[str], None] | None = None) -> None:
        knobs = plan.knobs
        self.plan, self.workload = plan, workload
        self.trace = Trace(show)
        self.world = World(plan.seed, self.trace)
        profile = Profile(
            delay_min_ns=knobs["delay_min_ns"],
            delay_mean_ns=knobs["delay_mean_ns"],
            drop_ppm=knobs["drop_ppm"],
            duplicate_ppm=knobs["duplicate_ppm"],
            straggle_ppm=knobs.get("straggle_ppm", 0),
            echo_ppm=knobs.get("echo_ppm", 0),
        )
        self.links = Links(plan.seed, profile)
        self.names = workload.nodes(knobs)
        self.client_names = client_names(knobs)
        self.cluster = Cluster(self.world, self.links, self.names, self.client_names, self.boot)
        self.history = History(lambda: self.world.now, self.trace.note)
        self.fault_injector = FaultInjector(
            self.cluster, self.history, act=self._act, sever=self.sever, stop=self.stop
        )
        self.coverage = Coverage()
        self.healed_at: int | None = None
        if type(workload).hear is not Workload.hear:
            self.trace.hear = lambda event, effects: workload.hear(self.world.current, event, effects)

    @abstractmethod
    def boot(self, node: Node) -> None:
        """Begin the current life of `node`."""

    @abstractmethod
    def start_clients(self) -> None:
        """Begin every client."""

    @abstractmethod
    def stop_clients(self) -> None:
        """Ask every client to finish."""

    @abstractmethod
    def is_client_done(self, name: str) -> bool:
        """Whether that client has returned."""

    @abstractmethod
    def wait_of(self, name: str) -> str:
        """What that client waits for, for a verdict."""

    def are_clients_done(self) -> bool:
        """Whether every client has returned."""
        return all(self.is_client_done(name) for name in self.client_names)

    def _hang(self, what: str, late: list[str]) -> Violation:
        """The verdict on clients that make no progress."""
        places = {name: self.wait_of(name) for name in late}
        return Violation(hangs.verdict(what, late, self.history.operations, places))

    def sever(self, chosen: list[tuple[str, str]], is_reset: bool) -> int:  # noqa: FBT001
        """End connections between pairs; tier 1 has none."""
        return 0

    def stop(self, name: str, ended: Callable[[], None]) -> bool:
        """Ask a node's process to end; tier 1 has none that could be asked."""
        return False

    def around(self) -> AbstractContextManager[None]:
        """What must be in place while the world runs."""
        return nullcontext()

    def perform(self, *, until: int | None = None) -> Result:
        """Run the plan to its end, or stop at world time `until` without a verdict."""
        began = process_time()
        judging = judged(self.plan, self.coverage, self.trace, passed=self._passed)
        with judging as verdict, hangs.watched(self.world), self.around():
            if until is None:
                self._phases()
            else:
                self._safety(until)
        return Result(
            plan=self.plan,
            digest=self.trace.digest(),
            counts=self.trace.counts,
            acked=self.history.acked,
            rejected=self.history.rejected,
            unknown=self.history.unknown + self.history.open_count,
            virtual_ns=self.world.now,
            cpu_seconds=process_time() - began,
            violation=verdict.violation,
            is_healed=self.healed_at is not None,
            coverage=self.coverage,
        )

    def _phases(self) -> None:
        self._safety(self.plan.safety_ns)
        self.fault_injector.heal()
        self.links.calm()
        buggify.install(None)
        self.healed_at = self.world.now
        self.trace.note("healed")
        self._advance(self.world.now + self.plan.liveness_ns, self._all_alive)
        if not self._all_alive():
            late = [name for name in self.client_names if name not in self._alive()]
            raise self._hang(f"no progress of {late} in {self.plan.liveness_ns / 1e9} s after healing", late)
        slow = [fault.amount for fault in self.plan.faults if fault.kind is Kind.SLOW_SYNC]
        self._advance(max(self.world.now, self.healed_at + max(slow, default=0)))  # One may be on its way.
        alive_at = self.world.now
        self.trace.note("alive")
        self._advance(alive_at + SETTLE_NS, lambda: self._all_answered(alive_at))
        if not self._all_answered(alive_at):
            late = [name for name in self.client_names if name not in self._answered(alive_at)]
            text = f"calls of {late} are not answered {SETTLE_NS / 1e9} s after all were alive"
            raise self._hang(text, late)
        self.stop_clients()
        self._advance(self.world.now + FINISH_NS, self.are_clients_done)
        if not self.are_clients_done():
            late = [name for name in self.client_names if not self.is_client_done(name)]
            text = f"{late} did not finish in {FINISH_NS / 1e9} s: a wait has no bound"
            raise self._hang(text, late)
        self._advance(self.world.now + 1_000_000_000)
        unknown = [op for op in self._since(alive_at) if op.outcome in (Outcome.UNKNOWN, Outcome.OPEN)]
        per_client = [sum(op.client == name for op in unknown) for name in self.client_names]
        if max(per_client) > self.workload.stale_calls(self.plan.knobs):
            raise Violation(f"nothing fails any more, and calls end unknown, such as {unknown[-1]}")
        self.workload.verify(self)

    def _safety(self, until: int) -> None:
        for name in self.names:
            self.cluster.start(name)
        self.start_clients()
        self.fault_injector.schedule(self.plan.faults)
        self.world.at(WATCH_NS, None, self._watch)
        self._advance(until)

    def _advance(self, until: int, is_done: Callable[[], bool] = lambda: False) -> None:
        self.world.run(until, is_done)
        if self.world.failure is not None:
            raise self.world.failure

    def _watch(self) -> None:
        try:
            self.workload.watch(self)
        except Violation as error:
            self.world.fail(error)
            return
        self.world.at(self.world.now + WATCH_NS, None, self._watch)

    def _since(self, begin: int) -> Iterator[Operation]:
        """The operations that were begun after `begin`, last first."""
        for operation in reversed(self.history.operations):
            if operation.invoked_at <= begin:
                return
            yield operation

    def _alive(self) -> dict[str, None]:
        """Who was acknowledged since healing."""
        since = self._since((self.healed_at or 0) - 1)
        return {operation.client: None for operation in since if operation.outcome is Outcome.OK}

    def _answered(self, begin: int) -> dict[str, None]:
        """Who began a call after `begin` and was answered."""
        return {op.client: None for op in self._since(begin) if op.outcome is not Outcome.OPEN}

    def _all_alive(self) -> bool:
        return len(self._alive()) == len(self.client_names)

    def _all_answered(self, begin: int) -> bool:
        return len(self._answered(begin)) == len(self.client_names)

    def _passed(self, kind: str, counts: dict[str, int]) -> Callable[[str], None]:
        """Count each passage of a mark or label; it is a moment, too."""
        moments = self.world.moments

        def passed(name: str) -> None:
            counts[name] = counts.get(name, 0) + 1
            if moments.is_armed:
                moments.reach(f"{kind}.{name}")

        return passed

    def _act(self, fault: Fault) -> None:
        self.workload.act(self, fault)


class MachineEpisode(EpisodeBase[MachineWorkload]):
    """A run of tier 1."""

    def __init__(
        self, plan: Plan, workload: MachineWorkload, show: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(plan, workload, show)
        self.network = Datagrams(self.world, self.links, self.names if workload.is_echoing else ())
        self.contexts: dict[str, NodeContext] = {}
        """The context of each node's current or last boot."""
        self.client_seats = [ClientContext(self.world, name, self.network) for name in self.client_names]

    def boot(self, node: Node) -> None:
        """Build the node's machines anew."""
        life = node.life
        assert life is not None
        context = NodeContext(self.world, life, node.clock, self.network, node.logs, knobs=self.plan.knobs)
        self.contexts[node.name] = context
        self.workload.boot(context)
        self.network.attach(node.name, life, context.on_message)

    def start_clients(self) -> None:
        """Begin every client."""
        for context in self.client_seats:
            self.network.attach(context.name, context.life, context.on_message)
            context.start(self.workload.client(context, self))

    def stop_clients(self) -> None:
        """Ask every client to finish."""
        for context in self.client_seats:
            context.is_stopping = True

    def is_client_done(self, name: str) -> bool:
        """Whether that client has returned."""
        return self._client_seat(name).is_done

    def wait_of(self, name: str) -> str:
        """The message that it waits for."""
        return self._client_seat(name).waits_for

    def _client_seat(self, name: str) -> ClientContext:
        return self.client_seats[self.client_names.index(name)]


class Verdict:
    """What a run found; None: nothing."""

    violation: str | None = None


@contextmanager
def judged(
    plan: Plan,
    coverage: Coverage,
    trace: Trace,
    *,
    passed: Callable[[str, dict[str, int]], Callable[[str], None]],
) -> Generator[Verdict, None, None]:
    """Perform a plan inside: its `buggify` sites are on, marks, labels and steps are counted, all is checked.

    Args:
        passed: makes what counts passages of a `mark` or a `label` in a table.
    """
    verdict = Verdict()
    buggify.install(chooser(plan))
    marks.install(passed("mark", coverage.marks))
    failpoints.install(passed("label", coverage.labels))
    was_collecting = gc.isenabled()
    gc.disable()  # Finalizers are events: they run when we say, not when memory says.
    try:
        with always():
            yield verdict
    except Violation as error:
        verdict.violation = f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 - whatever came out is a finding; the plan proves it.
        verdict.violation = describe(error)
    finally:
        buggify.install(None)
        marks.install(None)
        failpoints.install(None)
        coverage.add_steps(trace.transitions)
        if was_collecting:
            gc.enable()


def chooser(plan: Plan) -> Callable[[str], bool] | None:
    """Each site is on in a quarter of the runs, and then fires a quarter of the times."""
    if not plan.knobs.get("buggify"):
        return None
    sites: dict[str, Draws | None] = {}

    def choose(site: str) -> bool:
        if site not in sites:
            draws = Draws(plan.seed, "buggify", site)
            sites[site] = draws if draws.chance(250_000) else None
        on = sites[site]
        return on is not None and on.chance(250_000)

    return choose


def describe(error: BaseException) -> str:
    """An unexpected error as a finding: what and where."""
    notes = getattr(error, "__notes__", [])
    place = ""
    trace = error.__traceback__
    while trace is not None:
        place = f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}"
        trace = trace.tb_next
    return "\n".join([f"{type(error).__name__}: {error} (at {place})", *notes])
