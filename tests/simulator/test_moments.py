"""Faults strike at moments: between a step and its effects, at a mark, at a label, in a disk operation."""

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from msgspec.structs import replace

from broadsheet.errors import ConfigError
from simulator.campaign import Summary
from simulator.coverage import ELSEWHERE, places
from simulator.episode import MachineEpisode
from simulator.faults import draw_plan
from simulator.history import Operation
from simulator.node_context import ClientContext
from simulator.plan import CLOCKS, FORMAT, Budget, Fault, Kind, Plan, Tier, load, save
from simulator.runner import plan_of, run_plan
from simulator.workload import Episode
from simulator.workloads import WORKLOADS, make
from simulator.workloads.register import RegisterWorkload

MS = 1_000_000
MOMENTS = [
    ("append", Tier.MACHINES, "step.Submitted"),
    ("append", Tier.MACHINES, "effect.Persist"),
    ("append", Tier.MACHINES, "effect.Reply"),
    ("append", Tier.SERVICES, "step.Persisted"),
    ("append", Tier.SERVICES, "label.journal.append.after_log"),
    ("append", Tier.SERVICES, "disk.sync"),
    ("keyspace", Tier.SERVICES, "label.keyspace.durable"),
    ("keyspace", Tier.SERVICES, "mark.keyspace.snapshot"),
]


def struck(name: str, tier: Tier, moment: str, kind: Kind = Kind.KILL) -> tuple[list[str], int]:
    """What is traced of a node that is struck at `moment`, and how many faults hit."""
    plan = plan_of(name, tier, 3)
    node = make(name, tier).nodes(plan.knobs)[0]
    passage = 1 if moment.startswith("mark.") else 5
    fault = Fault(100 * MS, kind, node, lasts_ns=100 * MS, on=f"{node}:{moment}", passage=passage)
    lines: list[str] = []
    result = run_plan(replace(plan, faults=(fault,), safety_ns=4_000 * MS), show=lines.append)
    assert result.violation is None
    return lines, result.counts.faults


@pytest.mark.parametrize(("name", "tier", "moment"), MOMENTS, ids=lambda each: getattr(each, "name", each))
def test_a_node_dies_at_a_moment(name: str, tier: Tier, moment: str) -> None:
    """Its call ends there: nothing that comes after the moment reaches disk or network, or steps a machine.

    In tier 2 the `finally` blocks of its tasks still run, and reach nothing.

    Source: simulation.7.
    """
    lines, faults = struck(name, tier, moment)
    at = next(index for index, line in enumerate(lines) if " fault " in line)
    end = lines[at + 1].split()
    rest = [line for line in lines[at + 2 :] if line.split()[0] == end[0]]

    assert faults == 1
    assert end[1] == "end"
    assert not any(each in line for line in rest for each in ("#1.", "#1>", " n1 write", " n1 sync"))


def test_effects_are_not_performed_where_the_step_is_the_moment() -> None:
    """Between the step that takes an append and its `Persist`: the record log has nothing of it."""
    lines, _ = struck("append", Tier.MACHINES, "step.Submitted")
    at = next(index for index, line in enumerate(lines) if " fault " in line)

    assert "Submitted" in lines[at - 1]


def test_a_pause_at_a_moment_lets_the_call_end() -> None:
    """SIGSTOP comes between calls of the loop; the process goes on later as if nothing had been."""
    lines, faults = struck("append", Tier.MACHINES, "effect.Persist", Kind.PAUSE)

    assert faults == 1
    assert any("#1.pipeline: Persisted" in line for line in lines)


def test_seeds_plan_faults_at_moments_of_their_own_scope() -> None:
    """A plan names moments that the source has: one of a label that is gone would never strike."""
    labels = [f"label.{each}" for each in places(("",)).labels]  # A workload may aim beyond its scope.
    for name, tier in WORKLOADS:
        workload = make(name, tier)
        moments = {*workload.moments(), "step.*", *labels}
        faults = [fault for seed in range(20) for fault in draw_plan(make(name, tier), seed).faults]
        at_moments = [fault for fault in faults if fault.on]

        assert {fault.on.partition(":")[2] for fault in at_moments} <= moments
        if workload.scope and tier is not Tier.CRASHES:  # There every write is a moment.
            assert len(at_moments) > len(faults) / 10


def test_stored_plans_wait_for_moments_that_exist() -> None:
    """A label that was renamed would leave a regression that tests nothing."""
    for path in sorted(Path(__file__).parent.parent.rglob("*.json")):
        plan = load(path)
        moments = make(plan.workload, plan.tier).moments()
        named = {fault.on.partition(":")[2] for fault in plan.faults if fault.on}
        missing = [name for name in named if not any(fnmatchcase(moment, name) for moment in moments)]
        assert not missing, f"{path.name} waits for what no node does: {missing}"


def test_faults_last_from_a_step_to_longer_than_every_timeout() -> None:
    """A restart before anybody noticed, and a link that is slower than every patience."""
    faults = [fault for seed in range(200) for fault in plan_of("append", Tier.SERVICES, seed).faults]
    restarts = [fault.lasts_ns for fault in faults if fault.kind is Kind.KILL]
    clogs = [fault.amount for fault in faults if fault.kind is Kind.CLOG]

    assert min(restarts) == 1
    assert max(restarts) >= 3_000 * MS
    assert min(clogs) <= 10_000
    assert max(clogs) >= 20_000 * MS


def test_clocks_drift_within_the_budget() -> None:
    """Where leases count on a bound (kv.22), a simulation that exceeds it finds what is promised nowhere."""

    class Bounded(RegisterWorkload):
        budget = Budget(kinds=(*CLOCKS, Kind.KILL), drift_ppm_max=5_000)

    drifts = [
        abs(fault.amount)
        for seed in range(60)
        for fault in draw_plan(Bounded(), seed).faults
        if fault.kind is Kind.CLOCK_DRIFT
    ]

    assert max(drifts) == 5_000


def test_a_plan_of_the_first_format_is_read(tmp_path: Path) -> None:
    """Regressions outlive formats; a newer one is refused untouched."""
    plan = plan_of("register", Tier.MACHINES, 9)
    save(replace(plan, format=1), tmp_path / "old.json")
    save(replace(plan, format=FORMAT + 1), tmp_path / "new.json")

    assert load(tmp_path / "old.json").faults == plan.faults
    with pytest.raises(ConfigError, match="plan format"):
        load(tmp_path / "new.json")


def test_the_source_says_what_there_is_to_come_by() -> None:
    """Marks and labels are found where they are written."""
    found = places(("journal", "keyspace"))

    assert "journal.pipeline.put_unknown" in found.marks
    assert "journal.append.before_log" in found.labels
    assert "Submitted" in found.events
    assert "Persist" in found.effects


def test_marks_that_are_hit_elsewhere_exist() -> None:
    """A mark that was renamed would leave an excuse for nobody."""
    assert set(ELSEWHERE) <= set(places(("",)).marks)


def test_a_mark_that_nothing_hit_is_told() -> None:
    """`make sim` fails on it: a rule that no run came by is not tested by any (simulation.8)."""
    coverage = run_plan(plan_of("metastore", Tier.MACHINES, 1)).coverage
    there = places(("control/core",)).marks

    assert coverage.marks["proposer.founding"] >= 1
    assert coverage.never([*there, "proposer.nonsense", next(iter(ELSEWHERE))])[-1] == "proposer.nonsense"
    assert any(name.startswith("proposer: Promised -> ") for name in coverage.transitions)


def test_too_many_unknown_outcomes_are_a_finding() -> None:
    """A client that gives up on everything violates no safety."""
    summary = Summary("append", 1, seeds=20, acked=50, unknown=50)

    assert summary.excess(40) == "append: 50 % of all operations ended unknown, above 40 %"
    assert summary.excess(60) == ""


class _Loser(RegisterWorkload):
    """A workload whose clients lose a call now and then, whatever happens."""

    async def client(self, context: ClientContext, run: Episode) -> None:
        count = 0
        while not context.is_stopping:
            count += 1
            operation: Operation = run.history.invoke(context.name, "k", "read")
            await context.sleep(1_000_000)  # type: ignore[arg-type]
            if count % 2:
                run.history.lose(operation)
            else:
                run.history.ok(operation)

    def verify(self, run: Episode) -> None:
        """Nothing more."""


class _Silent(_Loser):
    """A workload whose clients are answered once after healing, and then never."""

    async def client(self, context: ClientContext, run: Episode) -> None:
        while run.healed_at is None:
            await context.sleep(1_000_000)  # type: ignore[arg-type]
        run.history.ok(run.history.invoke(context.name, "k", "read"))
        while not context.is_stopping:
            await context.sleep(1_000_000)  # type: ignore[arg-type]


def quiet_plan() -> Plan:
    """A plan without faults."""
    return replace(plan_of("register", Tier.MACHINES, 0), faults=(), safety_ns=40 * MS)


def test_calls_that_end_unknown_when_nothing_fails_are_a_finding() -> None:
    """One acknowledged call for each client hid a client that lost every second one."""
    result = MachineEpisode(quiet_plan(), _Loser()).perform()

    assert "calls end unknown" in (result.violation or "")


def test_a_client_whose_next_call_is_not_answered_is_a_finding() -> None:
    """Liveness is the next call's, not the last one's (simulation.10)."""
    result = MachineEpisode(quiet_plan(), _Silent()).perform()

    assert "are not answered" in (result.violation or "")
