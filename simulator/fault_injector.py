"""Fault injector: performs the faults of a plan on a cluster, and heals them.

A fault that finds nothing to hit (a kill of a node that is down) does nothing and is not counted. A fault
that waits for the next sync or write is counted by the operation that is open when it strikes. A fault that
waits for a moment is performed when its node passes the moment; the passing call goes on only if the node
survives.
    fault: PLANNED --its time--> PERFORMED --its duration, or healing--> UNDONE. Damage is never undone.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from simulator import plan as plans
from simulator.cluster import Cluster, Node
from simulator.health import Health
from simulator.history import History
from simulator.links import pairs
from simulator.plan import Fault, Kind

_LINK_FIELDS: Final = {
    Kind.PARTITION: "cuts",
    Kind.CLOG: "extra_ns",
    Kind.DROP: "drop_ppm",
    Kind.DUPLICATE: "duplicate_ppm",
}
_COUNTERS: Final = {
    Kind.SYNC_EIO: "sync_errors",
    Kind.READ_EIO: "read_errors",
    Kind.SHORT_WRITE: "short_writes",
    Kind.STALE_SECTOR: "stale_sectors",
    Kind.MISDIRECTED_WRITE: "misdirected",
}
_FLAGS: Final = {Kind.DISK_FULL: "is_full", Kind.LYING_SYNC: "is_lying"}
_STRIKES_LATER: Final = {
    Kind.CRASH_IN_IO: "operations_left",
    Kind.SYNC_EIO: "sync_errors",
    Kind.DISK_FULL: "is_full",
    Kind.DISK_FLAPS: "flaps_ppm",
}


class FaultInjector:
    """Does to a cluster what a plan says."""

    def __init__(
        self,
        cluster: Cluster,
        history: History,
        *,
        act: Callable[[Fault], None],
        sever: Callable[[list[tuple[str, str]], bool], int],
        stop: Callable[[str, Callable[[], None]], bool],
    ) -> None:
        """Get ready.

        Args:
            act: performs the workload's own actions.
            sever: ends standing connections between pairs, telling both ends (True) or neither; returns how
            many.
            stop: asks a node's process to end, and calls back when it has; False where none runs.
        """
        self.cluster, self.history = cluster, history
        self.world, self.counts = cluster.world, cluster.world.trace.counts
        self._act, self._sever, self._stop = act, sever, stop
        self._undo: dict[int, Callable[[], None]] = {}
        self._number = 0
        self._is_healed = False
        self._armed: dict[tuple[str, str], bool] = {}
        for node in cluster.nodes.values():
            node.health.on_strike = self._striker(node.name)

    def schedule(self, faults: Sequence[Fault]) -> None:
        """Perform each at its time, or at its moment."""
        moments = self.world.moments
        moments.planned = dict.fromkeys(moment_of(fault)[1] for fault in faults if fault.on)
        for name in self._whose_reads_fail(faults):
            self.cluster.nodes[name].health.may_fail_reads = True
        for fault in faults:
            self.world.at(fault.at_ns, None, self._arm if fault.on else self._perform, fault)

    def _whose_reads_fail(self, faults: Sequence[Fault]) -> list[str]:
        targets = [fault.target for fault in faults if fault.kind is Kind.READ_EIO]
        return [name for name in self.cluster.nodes if any(each in ("*", name) for each in targets)]

    def heal(self) -> None:
        """Undo everything that can be undone, and start every node."""
        self._is_healed = True
        self.world.moments.clear()
        for undo in list(self._undo.values()):
            undo()
        for name, node in self.cluster.nodes.items():
            node.health.heal()
            node.clock.drift(0)
            self.cluster.start(name)

    def _arm(self, fault: Fault) -> None:
        if self._is_healed:
            return
        node, moment = moment_of(fault)
        passage = max(1, fault.passage)
        self.world.moments.arm(node, moment, passage=passage, strike=lambda: self._perform(fault))

    def _perform(self, fault: Fault) -> None:
        if self._is_healed:
            return  # A plan's faults end with its safety phase, whatever times it names.
        self.world.trace.note("fault", fault)
        kind = fault.kind
        if kind is Kind.ACTION:
            self._act(fault)
            hit = True
        elif kind in plans.NETWORK:
            hit = self._on_links(fault)
        else:
            names = list(self.cluster.nodes) if fault.target == "*" else fault.target.split(",")
            hits = [self._on_node(fault, self.cluster.nodes[name]) for name in names]
            hit = any(hits)
        if hit:
            self.counts.faults += 1
            if kind in plans.MEETS and kind not in _STRIKES_LATER and self.history.open_count:
                self.counts.faults_met += 1

    def _on_links(self, fault: Fault) -> bool:
        chosen = list(dict.fromkeys(pairs(fault.target, self.cluster.everybody)))
        field = _LINK_FIELDS.get(fault.kind)
        if field is None:
            return self._sever(chosen, fault.kind is Kind.RESET) > 0
        links = [self.cluster.links.link(a, b) for a, b in chosen]
        amount = 1 if fault.kind is Kind.PARTITION else fault.amount

        def add(more: int) -> None:
            for link in links:
                link.add(field, more)

        add(amount)
        self._later(fault, lambda: add(-amount))
        return bool(links)

    def _on_node(self, fault: Fault, node: Node) -> bool:
        kind, health = fault.kind, node.health
        if kind in _STRIKES_LATER:
            self._armed[(node.name, _STRIKES_LATER[kind])] = True
        if kind is Kind.READ_EIO:
            self._fail_reads(fault, health)
        if kind in _COUNTERS:
            setattr(health, _COUNTERS[kind], getattr(health, _COUNTERS[kind]) + 1)
            return True
        if kind in _FLAGS:
            setattr(health, _FLAGS[kind], True)
            self._later(fault, lambda: setattr(health, _FLAGS[kind], False))
            return True
        match kind:
            case Kind.CRASH_IN_IO:
                health.operations_left = fault.amount
            case Kind.DISK_FLAPS:
                health.flaps_ppm = fault.amount
                self._later(fault, lambda: setattr(health, "flaps_ppm", 0))
            case Kind.SLOW_SYNC:
                health.slow_ns += fault.amount
                self._later(fault, lambda: setattr(health, "slow_ns", max(0, health.slow_ns - fault.amount)))
            case Kind.BIT_FLIP:
                in_log = node.logs.damage()
                return node.disk_state.flip(fault.amount) or in_log
            case Kind.CLOCK_DRIFT:
                node.clock.drift(fault.amount)
                self._later(fault, lambda: node.clock.drift(0))
            case Kind.CLOCK_JUMP:
                node.clock.jump(fault.amount)
            case _:
                return self._on_process(fault, node)
        return True

    def _fail_reads(self, fault: Fault, health: Health) -> None:
        health.read_outages += 1

        def end() -> None:
            health.read_outages = max(0, health.read_outages - 1)  # All may have been healed meanwhile.

        self._later(fault, end)

    def _on_process(self, fault: Fault, node: Node) -> bool:
        kind, cluster, world = fault.kind, self.cluster, self.world
        if kind is Kind.PAUSE:
            life = node.life
            if life is None or life.is_dead or life.is_paused:
                return False
            world.pause(life)
            self._later(fault, lambda: world.resume(life))
            return True
        if kind is Kind.STOP:
            again = partial(cluster.start, node.name)
            return self._stop(node.name, lambda: self._in(fault.lasts_ns, again))
        assert kind in (Kind.KILL, Kind.POWER_CUT, Kind.WIPE), f"{fault} is not done to a node"
        hit = cluster.end(node.name, power_cut=kind is not Kind.KILL, wipe=kind is Kind.WIPE)
        if hit or kind is Kind.WIPE:
            world.at(world.now + fault.lasts_ns, None, cluster.start, node.name)
        return hit or kind is Kind.WIPE

    def _in(self, delay: int, callback: Callable[[], None]) -> None:
        self.world.at(self.world.now + delay, None, callback)

    def _later(self, fault: Fault, undo: Callable[[], object]) -> None:
        """Undo after its time, or when all is healed."""
        self._number += 1
        number = self._number

        def once() -> None:
            if self._undo.pop(number, None) is not None:
                undo()

        self._undo[number] = once
        self.world.at(self.world.now + fault.lasts_ns, None, once)

    def _striker(self, name: str) -> Callable[[str], None]:
        def struck(counter: str) -> None:
            self.world.trace.note("struck", name, counter)
            if self._armed.pop((name, counter), False) and self.history.open_count:
                self.counts.faults_met += 1

        return struck


def moment_of(fault: Fault) -> tuple[str, str]:
    """The node and the moment that a fault waits for."""
    node, _, moment = fault.on.partition(":")
    return node, moment
