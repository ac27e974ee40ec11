"""Seeds in numbers: what counts, what a failure leaves behind, and how small it becomes."""

import gc
import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from broadsheet.runtime.host import Host
from simulator.__main__ import app
from simulator.campaign import run_block, run_campaign
from simulator.disk_state import DiskState
from simulator.plan import Fault, Kind, Plan, Tier, load
from simulator.runner import plan_of, run_plan, run_seed
from simulator.shrink import Shrinker
from simulator.workloads import WORKLOADS
from simulator.world import World


def test_a_campaign_runs_until_enough_seeds_have_counted(tmp_path: Path) -> None:
    """Both numbers are told: those that ran, and those that count (simulation.3)."""
    total = run_campaign("register", Tier.MACHINES, counting=6, keep=tmp_path)

    assert total.counting >= 6
    assert total.seeds >= total.counting
    assert total.acked > 600
    assert total.failures == []
    assert "counting of" in total.line()


def test_processes_find_the_same_as_one(tmp_path: Path) -> None:
    """Which process ran a seed is nobody's business."""
    one = run_campaign("register", Tier.MACHINES, counting=8, keep=tmp_path)
    two = run_campaign("register", Tier.MACHINES, counting=8, keep=tmp_path, jobs=2)

    assert (one.seeds, one.counting, one.acked, one.events) == (
        two.seeds,
        two.counting,
        two.acked,
        two.events,
    )


@pytest.mark.parametrize(("name", "tier"), WORKLOADS, ids=lambda each: getattr(each, "name", each))
def test_a_world_is_gone_once_its_run_is_over(name: str, tier: Tier) -> None:
    """A campaign of thousands would keep thousands of disks: one that kept 500 took 12 GB."""
    run_seed(name, tier, 0)
    gc.collect()

    assert [type(thing) for thing in gc.get_objects() if isinstance(thing, World | DiskState | Host)] == []


def test_a_failure_says_how_to_see_it_again(tmp_path: Path) -> None:
    """The plan is written, and the line names it (simulation.6)."""
    block = run_block("canary", Tier.MACHINES, 8, count=1, keep=tmp_path)

    assert len(block.failures) == 1
    assert (
        f"REPRODUCE  python -m simulator canary --tier 1 --plan {tmp_path}/canary-tier1-8.json"
        in block.failures[0]
    )
    assert run_plan(load(tmp_path / "canary-tier1-8.json")).violation is not None


def test_shrinking_leaves_the_faults_that_matter() -> None:
    """Two of fifteen, say, and fewer clients."""
    plan = plan_of("canary", Tier.MACHINES, 8)
    shrinker = Shrinker(lambda candidate: run_plan(candidate).violation is not None)
    small = shrinker.shrink(plan)

    assert 1 <= len(small.faults) <= 3 < len(plan.faults)
    assert Kind.POWER_CUT in [fault.kind for fault in small.faults]
    assert run_plan(small).violation is not None
    assert shrinker.runs <= 200


def test_shrinking_leaves_the_clients_whom_others_wait_for() -> None:
    """A run without them does not end, bug or no bug."""
    plan = plan_of("wire", Tier.SERVICES, 1)
    small = Shrinker(lambda _: True).shrink(plan)
    assert small.knobs["clients"] == 2 < plan.knobs["clients"]


def test_shrinking_is_bounded_and_keeps_what_needs_all() -> None:
    """A failure that needs every fault stays whole."""
    whole = replace(
        plan_of("register", Tier.MACHINES, 1),
        faults=tuple(Fault(index, Kind.KILL, "a") for index in range(20)),
    )

    def fails(plan: Plan) -> bool:
        return len(plan.faults) == 20

    assert Shrinker(fails).shrink(whole).faults == whole.faults
    few = Shrinker(fails, runs_max=3)
    few.shrink(whole)
    assert few.runs == 3


def test_the_command_prints_the_reproduce_line_last(tmp_path: Path) -> None:
    """What to type next stands where one looks."""
    failed = CliRunner().invoke(app, ["canary", "--seed", "8", "--keep", str(tmp_path)])
    passed = CliRunner().invoke(app, ["register", "--seed", "1", "--keep", str(tmp_path)])

    assert failed.exit_code == 1
    assert (
        failed.output.rstrip()
        .splitlines()[-1]
        .startswith("REPRODUCE  python -m simulator canary --tier 1 --plan")
    )
    assert passed.exit_code == 0, passed.output
    assert "acknowledged" in passed.output


def test_the_command_stops_at_a_virtual_second(tmp_path: Path) -> None:
    """`--until` looks at a run half-way, with its trace."""
    done = CliRunner().invoke(app, ["register", "--until", "0.1", "--trace", "--keep", str(tmp_path)])

    assert done.exit_code == 0
    assert "0.10 virtual s" in done.output
    assert "Stored(" in done.output


@pytest.mark.parametrize(
    ("arguments", "kind"), [(["list"], "workloads"), (["register", "--seed", "1"], "plan")]
)
def test_json_is_json(arguments: list[str], kind: str) -> None:
    """Whoever writes a script around a command parses what it prints."""
    assert kind in json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
