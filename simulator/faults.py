"""Faults, drawn from a seed into a plan. `fault_injector.py` performs them.

Swarm: each kind of fault is on in a run with probability one half, then has its own number and strength, so
that runs differ in kind and not only in degree. Each fault draws from its own stream: dropping one does not
change another. A fault that finds nothing to hit (a kill of a node that is down) does nothing and is not
counted.

A part of the faults strikes at moments of the node (between a step and its effects, at a mark, at a label,
in a disk operation), since the windows that matter are microseconds and a time hits none of them. Some come
in sequences: a failed sync or a crash, a restart as short as a step, and then the power.
"""

from collections.abc import Sequence
from random import Random
from typing import Final, TypeVar

from msgspec.structs import replace

from broadsheet.base.types import NodeId
from broadsheet.ports import Random as Entropy
from simulator import plan as plans
from simulator.entropy import stream
from simulator.plan import Fault, Kind, Plan, Tier
from simulator.workload import Workload

T = TypeVar("T")
MS: Final = 1_000_000
FIRST_NS: Final = 300 * MS
SEQUENCES: Final = 0.3
"""How many runs have a sequence of faults on one node."""
BLIND: Final = 0.3
"""How many runs have starts on a disk that reads nothing for a while."""
TIER_KINDS: Final = {
    Tier.MACHINES: (
        *(kind for kind in plans.CRASHES if kind is not Kind.STOP),
        *plans.CLOCKS,
        *(Kind.PARTITION, Kind.CLOG, Kind.DROP, Kind.DUPLICATE),
        *(Kind.SYNC_EIO, Kind.DISK_FULL, Kind.DISK_FLAPS, Kind.SLOW_SYNC),
        *(Kind.WIPE, Kind.LYING_SYNC, Kind.BIT_FLIP),
    ),
    Tier.SERVICES: tuple(kind for kind in Kind if kind not in (Kind.DROP, Kind.DUPLICATE, Kind.ACTION)),
    Tier.CRASHES: (),
}
"""What each tier can do. Streams hide loss and doubling, as TCP does; record logs have no sectors; only a
service has a graceful end."""
AT_MOMENTS: Final = (
    *(Kind.KILL, Kind.KILL, Kind.POWER_CUT, Kind.POWER_CUT, Kind.STOP, Kind.PAUSE, Kind.SYNC_EIO),
    *(Kind.READ_EIO, Kind.DISK_FULL, Kind.CRASH_IN_IO, Kind.PARTITION, Kind.RESET, Kind.SLOW_SYNC),
)
"""What is worth doing at a moment of a node, as often as it stands here."""


def draw_plan(workload: Workload, seed: int) -> Plan:
    """The plan that `seed` means for `workload`, today."""
    knobs = _knobs(workload, seed)
    if workload.tier is Tier.CRASHES:
        return Plan(workload.name, workload.tier, seed, knobs, ())  # The run makes the disks itself.
    everybody = (*workload.nodes(knobs), *client_names(knobs))
    possible = TIER_KINDS[workload.tier]
    kinds = [kind for kind in workload.budget.kinds if kind in possible]
    damage = [kind for kind in workload.budget.damage if kind in possible]
    swarm = stream(seed, "swarm")
    on = [kind for kind in kinds if swarm.random() < 0.5]
    if not any(kind in plans.MEETS for kind in on):
        on += [kind for kind in kinds if kind in plans.MEETS]
    damage = [kind for kind in damage if swarm.random() < 0.5]
    damaged = sorted(
        swarm.sample(workload.nodes(knobs), min(workload.budget.damaged_nodes_max, knobs["nodes"]))
    )
    plan = Plan(workload.name, workload.tier, seed, knobs, ())
    faults = []
    for index in range(swarm.randrange(5, 16)):
        draw = stream(seed, "fault", index)
        is_damage = bool(damage and damaged) and draw.random() < 0.25
        kind = draw.choice(damage if is_damage else on)
        at = FIRST_NS + draw.randrange(plan.safety_ns - FIRST_NS)
        nodes = damaged if kind in plans.DAMAGE else workload.nodes(knobs)
        faults.append(_fault(draw, kind, at, nodes, everybody))
    faults += _at_moments(workload, plan, [*on, *damage], damaged, everybody)
    if stream(seed, "sequences").random() < SEQUENCES:
        faults += _sequence(stream(seed, "sequence"), workload.nodes(knobs), kinds, plan.safety_ns)
    if Kind.READ_EIO in kinds and stream(seed, "blind").random() < BLIND:
        faults += _blind_start(stream(seed, "blind start"), workload.nodes(knobs), plan.safety_ns)
    limit = workload.budget.drift_ppm_max
    faults = [_within(fault, limit) if fault.kind is Kind.CLOCK_DRIFT else fault for fault in faults]
    if Kind.CLOG in on:
        faults.extend(_swizzle(stream(seed, "swizzle"), workload.nodes(knobs), plan.safety_ns))
    plan = replace(plan, faults=tuple(faults))
    faults.extend(workload.extra_faults(stream(seed, "extra"), plan))
    faults.sort(key=lambda fault: (fault.at_ns, fault.kind.value, fault.target, fault.on))
    return Plan(workload.name, workload.tier, seed, knobs, tuple(faults))


def restarts(draw: Entropy, node: str, kinds: Sequence[Kind], safety_ns: int) -> list[Fault]:
    """Ends of one node, one soon after the other, so that what a start writes is read by the next start."""
    at, faults = FIRST_NS + draw.randrange(0, safety_ns // 2), []
    for _ in range(draw.randrange(3, 8)):
        faults.append(Fault(at, _one(draw, kinds), node, _one(draw, (1, MS, 20 * MS))))
        at += _one(draw, (5, 60, 300)) * MS + draw.randrange(0, 60 * MS)
    return faults


def damages(draw: Entropy, node: str, safety_ns: int) -> list[Fault]:
    """Bits of one node flip, and at once its process ends: the start finds the damage where it stands."""
    faults = []
    for _ in range(draw.randrange(1, 4)):
        at = FIRST_NS + draw.randrange(0, safety_ns - FIRST_NS)
        faults += [
            Fault(at, Kind.BIT_FLIP, node, amount=_one(draw, (1, 8, 40))),
            Fault(at + _one(draw, (1, MS)), _one(draw, (Kind.KILL, Kind.POWER_CUT)), node, 2 * MS),
        ]
    return faults


def damaged_node(plan: Plan, nodes: Sequence[str], draw: Entropy) -> str:
    """The node that damage has hit in `plan`; any one if there was none."""
    hit = [fault.target for fault in plan.faults if fault.kind in plans.DAMAGE]
    return hit[0] if hit else _one(draw, nodes)


def _one(draw: Entropy, options: Sequence[T]) -> T:
    return options[draw.randrange(0, len(options))]


def client_names(knobs: dict[str, int]) -> tuple[str, ...]:
    """The clients of a run."""
    return tuple(f"client{index}" for index in range(knobs["clients"]))


def _knobs(workload: Workload, seed: int) -> dict[str, int]:
    draw = stream(seed, "profile")
    lossy = workload.tier is Tier.MACHINES
    knobs = {
        "delay_min_ns": draw.choice((10_000, 50_000, 200_000, 2 * MS)),
        "delay_mean_ns": draw.choice((20_000, 100_000, MS, MS, 5 * MS, 5 * MS, 20 * MS)),
        "drop_ppm": draw.choice((0, 0, 1_000, 50_000)) if lossy else 0,
        "duplicate_ppm": draw.choice((0, 0, 1_000, 50_000)) if lossy else 0,
        "buggify": draw.choice((0, 1)),
        "clients": workload.clients,
    }
    knobs.update(workload.knobs(stream(seed, "knobs")))
    knobs["nodes"] = len(workload.nodes(knobs))
    return knobs


def _fault(draw: Random, kind: Kind, at: int, nodes: Sequence[str], everybody: Sequence[str]) -> Fault:
    lasts = _lasts(draw)
    node = draw.choice(nodes)
    amount = 0
    target = node
    match kind:
        case Kind.KILL | Kind.POWER_CUT:
            target = "*" if draw.random() < 0.15 else node
        case Kind.PARTITION | Kind.CLOG | Kind.DROP | Kind.DUPLICATE | Kind.RESET | Kind.HALF_OPEN:
            target = _sides(draw, node, nodes, everybody)
            amount = _slow(draw) if kind is Kind.CLOG else draw.choice((50_000, 300_000))
        case Kind.CRASH_IN_IO:
            amount = draw.randrange(1, 40)
        case Kind.SLOW_SYNC:
            amount = draw.choice((5, 50, 300, 3_000)) * MS
        case Kind.DISK_FLAPS:
            amount = draw.choice((100_000, 500_000, 900_000))
        case Kind.BIT_FLIP:
            amount = draw.choice((1, 1, 8))
        case Kind.CLOCK_DRIFT:
            amount = draw.choice((-200_000, -1_000, 1_000, 200_000))
        case Kind.CLOCK_JUMP:
            amount = draw.choice((-3_600_000, -500, 500, 3_600_000)) * MS
    return Fault(at, kind, target, lasts, amount)


def _lasts(draw: Random) -> int:
    """From one step (a restart before anybody noticed) to longer than every timeout."""
    part = draw.random()
    if part < 0.2:
        return draw.choice((1, 1_000, 100_000, MS))
    if part < 0.3:
        return draw.choice((3_000, 10_000)) * MS
    return draw.choice((20, 100, 300, 1000)) * MS + draw.randrange(100 * MS)


def _slow(draw: Random) -> int:
    """How much longer a clogged link takes: from microseconds to tens of seconds."""
    return draw.choice((10_000, MS, 20 * MS, 100 * MS, 400 * MS, 3_000 * MS, 20_000 * MS))


def _at_moments(
    workload: Workload, plan: Plan, on: Sequence[Kind], damaged: Sequence[NodeId], everybody: Sequence[str]
) -> list[Fault]:
    """Faults that wait for what a node does."""
    moments, nodes = workload.moments(), workload.nodes(plan.knobs)
    allowed = [kind for kind in AT_MOMENTS if kind in on]
    allowed += [kind for kind in on if kind is Kind.WIPE]
    if not moments or not allowed:
        return []
    faults = []
    swarm = stream(plan.seed, "moments")
    chosen = swarm.sample(moments, min(len(moments), swarm.randrange(2, 9)))
    for index in range(swarm.randrange(3, 10)):
        draw = stream(plan.seed, "moment", index)
        at = FIRST_NS + draw.randrange(plan.safety_ns - FIRST_NS)
        kind = draw.choice(allowed)
        if kind in plans.DAMAGE and not damaged:
            continue
        node = draw.choice(damaged if kind in plans.DAMAGE else nodes)
        fault = _fault(draw, kind, at, (node,), everybody)
        target = f"{node}|*" if kind in plans.NETWORK else node
        moment = "step.*" if draw.random() < 0.15 else draw.choice(chosen)
        passage = draw.choice((1, 1, 1, 2, 3, 1 + draw.randrange(30)))
        faults.append(replace(fault, target=target, on=f"{node}:{moment}", passage=passage))
    return faults


def _sequence(draw: Random, nodes: Sequence[str], possible: Sequence[Kind], safety_ns: int) -> list[Fault]:
    """An end of a process, at once another one, and then the power: what was believed but is not on disk."""
    first = [kind for kind in (Kind.SYNC_EIO, Kind.KILL, Kind.CRASH_IN_IO) if kind in possible]
    node, at = draw.choice(nodes), FIRST_NS + draw.randrange(safety_ns - FIRST_NS)
    faults = []
    for _ in range(draw.randrange(1, 4) if first else 0):
        kind = draw.choice(first)
        faults.append(Fault(at, kind, node, draw.choice((1, 100_000, MS)), amount=draw.randrange(1, 6)))
        at += draw.choice((1, 200_000, MS, 20 * MS, 400 * MS))
    if Kind.POWER_CUT in possible:
        on = draw.choice(("", f"{node}:step.*"))
        faults.append(
            Fault(
                at, Kind.POWER_CUT, node, draw.choice((1, MS, 100 * MS)), on=on, passage=draw.randrange(1, 9)
            )
        )
    return [fault for fault in faults if fault.at_ns < safety_ns]


def _blind_start(draw: Random, nodes: Sequence[str], safety_ns: int) -> list[Fault]:
    """A process ends, and the disk fails all reads of the next start, or from somewhere in it on."""
    faults = []
    for _ in range(draw.randrange(1, 5)):
        node, at = draw.choice(nodes), FIRST_NS + draw.randrange(safety_ns - FIRST_NS)
        lasts = draw.choice((1_000, 100_000, MS, 20 * MS, 300 * MS, 1_000 * MS, 4_000 * MS, 12_000 * MS))
        faults.append(Fault(at, draw.choice((Kind.KILL, Kind.POWER_CUT)), node, MS))
        late = draw.choice((0, 0, MS, 2 * MS)) + draw.randrange(MS)
        faults.append(Fault(at + late, Kind.READ_EIO, node, lasts))
    return faults


def _within(fault: Fault, limit_ppm: int) -> Fault:
    """The drift, bounded by the budget."""
    return replace(fault, amount=max(-limit_ppm, min(limit_ppm, fault.amount)))


def _sides(draw: Random, node: str, nodes: Sequence[str], everybody: Sequence[str]) -> str:
    others = [name for name in everybody if name != node]
    peers = [name for name in nodes if name != node] or others
    match draw.randrange(6):
        case 0:
            return f"{node}|{','.join(peers)}"  # Cut off from peers; clients still reach it.
        case 1:
            return f"{node}>{','.join(others)}"  # It hears and is not heard.
        case 2:
            return f"{','.join(others)}>{node}"  # It is heard and does not hear.
        case 3:
            return f"{node}|{draw.choice(peers)}"  # Partial: one link.
        case 4:
            side = [name for name in everybody if draw.random() < 0.5] or [node]
            rest = [name for name in everybody if name not in side] or others
            return f"{','.join(side)}|{','.join(rest)}"
        case _:
            return f"{node}|{','.join(others)}"


def _swizzle(draw: Random, nodes: Sequence[str], safety_ns: int) -> list[Fault]:
    """Clog nodes one by one, unclog them in another order (FoundationDB's best single recipe)."""
    begin = FIRST_NS + draw.randrange(safety_ns // 2)
    chosen = [node for node in nodes if draw.random() < 0.6]
    ends = [begin + 200 * MS * (len(chosen) + index) for index in range(len(chosen))]
    draw.shuffle(ends)
    return [
        Fault(at := begin + 200 * MS * index, Kind.CLOG, f"{node}|*", ends[index] - at, 400 * MS)
        for index, node in enumerate(chosen)
    ]
