"""Tier 1: machines on a heap, under faults, replayable to the byte."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from broadsheet.errors import ConfigError
from simulator.plan import Fault, Kind, Tier, load, save
from simulator.runner import keep_failure, plan_of, reproduce_line, run_plan, run_seed
from simulator.workloads import make


def test_the_example_survives_its_seeds() -> None:
    """A majority register is linearizable under everything in its budget, and every seed counts."""
    results = [run_seed("register", Tier.MACHINES, seed) for seed in range(12)]

    assert [result.violation for result in results] == [None] * 12
    assert sum(result.is_counting for result in results) >= 11
    assert sum(result.counts.faults_met >= 3 for result in results) >= 6


def test_the_canary_is_caught() -> None:
    """A simulator that misses an acknowledgement before its sync finds nothing at all."""
    results = [run_seed("canary", Tier.MACHINES, seed) for seed in range(17)]
    caught = [result for result in results if result.violation is not None]

    assert len(caught) >= 3
    assert all("key" in (result.violation or "") for result in caught), "by the checkers, not by accident"


def test_a_plan_alone_reproduces_its_run(tmp_path: Path) -> None:
    """What a failure writes is all that is needed, and the line says how."""
    result = next(r for seed in range(8, 12) if (r := run_seed("canary", Tier.MACHINES, seed)).violation)
    path = keep_failure(result, tmp_path)
    again = run_plan(load(path))

    assert again.digest == result.digest == load(path).digest
    assert again.violation == result.violation
    assert reproduce_line(result, path).startswith(
        f"REPRODUCE  python -m simulator canary --tier 1 --plan {path}"
    )


def test_dropping_a_fault_does_not_shift_the_draws_before_it() -> None:
    """Streams are keyed by purpose: until the dropped fault's time nothing differs."""
    plan = plan_of("register", Tier.MACHINES, 3)
    whole: list[str] = []
    without: list[str] = []
    last = plan.faults[-1]
    run_plan(plan, show=whole.append)
    run_plan(replace(plan, faults=plan.faults[:-1]), show=without.append)

    before = [line for line in whole if float(line.split()[0]) < last.at_ns / 1e9]
    assert before
    assert without[: len(before)] == before


def test_a_foreign_plan_is_refused_with_the_reason(tmp_path: Path) -> None:
    """A clear error, and nothing runs."""
    path = tmp_path / "plan.json"
    path.write_text('{"workload": "register"}')
    with pytest.raises(ConfigError, match="not a fault plan"):
        load(path)
    with pytest.raises(ConfigError, match="there are: "):
        make("nonsense", Tier.MACHINES)


def test_a_kill_of_everybody_at_once_is_survived() -> None:
    """All processes die in the middle of work, twice, once with the power."""
    plan = plan_of("register", Tier.MACHINES, 5)
    faults = (
        Fault(1_000_000_000, Kind.KILL, "*", lasts_ns=100_000_000),
        Fault(2_000_000_000, Kind.POWER_CUT, "*", lasts_ns=300_000_000),
    )
    result = run_plan(replace(plan, faults=faults))

    assert result.violation is None
    assert result.counts.faults == 2
    assert result.is_healed


def test_plans_survive_their_file(tmp_path: Path) -> None:
    """JSON there and back."""
    plan = plan_of("register", Tier.MACHINES, 9)
    save(plan, tmp_path / "p.json")

    assert load(tmp_path / "p.json") == plan
