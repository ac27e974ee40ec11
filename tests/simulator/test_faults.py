"""Every kind of fault can be planned, happens, and is healed, in each tier that has it."""

import pytest
from msgspec.structs import replace

from simulator.faults import TIER_KINDS
from simulator.links import pairs
from simulator.plan import DAMAGE, MEETS, NETWORK, Fault, Kind, Tier
from simulator.runner import plan_of, run_plan

MS = 1_000_000
AMOUNTS = {
    Kind.CLOG: 50 * MS,
    Kind.DROP: 300_000,
    Kind.DUPLICATE: 300_000,
    Kind.CRASH_IN_IO: 3,
    Kind.SLOW_SYNC: 50 * MS,
    Kind.DISK_FLAPS: 900_000,
    Kind.BIT_FLIP: 1,
    Kind.CLOCK_DRIFT: 100_000,
    Kind.CLOCK_JUMP: -3_600_000 * MS,
}
EACH = [(tier, kind) for tier in Tier for kind in TIER_KINDS[tier]]


@pytest.mark.parametrize(("tier", "kind"), EACH, ids=lambda each: each.name.lower())
def test_a_fault_happens_and_is_healed(tier: Tier, kind: Kind) -> None:
    """Three times in a run of busy clients. Damage is outside the budget: no verdict is asked then."""
    plan = plan_of("register", tier, 4)
    target = "a|*" if kind in NETWORK else "a"
    faults = tuple(
        Fault(at * 100 * MS, kind, target, lasts_ns=80 * MS, amount=AMOUNTS.get(kind, 0)) for at in (4, 7, 10)
    )
    knobs = {**plan.knobs, "think_ms": 1, "delay_mean_ns": 5 * MS}
    result = run_plan(replace(plan, knobs=knobs, faults=faults, safety_ns=1_300 * MS))

    assert result.counts.faults >= 1
    assert result.is_healed
    if kind in MEETS and kind is not Kind.WIPE:
        assert result.counts.faults_met >= 1
    if kind not in DAMAGE:
        assert result.violation is None


def test_seeds_plan_every_kind_that_a_budget_allows() -> None:
    """Swarm: each is on in some runs and off in others (simulation.5)."""
    plans = [plan_of("register", Tier.SERVICES, seed) for seed in range(120)]
    kinds = [frozenset(fault.kind for fault in plan.faults) for plan in plans]
    allowed = {
        Kind.KILL,
        Kind.POWER_CUT,
        Kind.PARTITION,
        Kind.RESET,
        Kind.HALF_OPEN,
        Kind.SYNC_EIO,
        Kind.PAUSE,
    }

    for kind in allowed:
        assert 10 < sum(kind in each for each in kinds) < 110
    assert not any(each & set(DAMAGE) for each in kinds), "outside this workload's budget"


def test_targets_mean_pairs() -> None:
    """The grammar of partitions."""
    everybody = ("a", "b", "c", "client0")

    assert list(pairs("a|b", everybody)) == [("a", "b"), ("b", "a")]
    assert list(pairs("a>b,c", everybody)) == [("a", "b"), ("a", "c")]
    assert list(pairs("*>a", everybody)) == [("b", "a"), ("c", "a"), ("client0", "a")]
    assert len(list(pairs("a|*", everybody))) == 6
