"""Every planted bug is seen by checkers alone, on its stored plan or by few seeds: assertions are off."""

import json
import subprocess
import sys

import pytest

from simulator.plan import load
from tests.mutants.planted_regressions import REGRESSIONS, UNPROVED
from tests.mutants.registry import PLANS, Mutant, mutants

pytestmark = pytest.mark.timeout(900)
"""Each plan is run twice, one after the other: some four minutes of one core, and more beside other tests."""
STALE_MAX = 5
"""How many stored plans may have gone stale: each costs CI a search, and what that finds is luck."""


@pytest.fixture(scope="module")
def said(request: pytest.FixtureRequest) -> dict[str, dict[str, str | None]]:
    """What the checks said of the mutants whose tests are selected, in one process under -O."""
    tests = [each for each in request.session.items if isinstance(each, pytest.Function)]
    planted = [
        each.callspec.params["name"]
        for each in tests
        if each.path == request.path and hasattr(each, "callspec")
    ]
    names = sorted({str(name) for name in planted})
    command = [sys.executable, "-O", "-m", "tests.mutants", "check", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, str | None]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", [mutant.name for mutant in mutants()])
def test_a_planted_bug_is_caught(name: str, said: dict[str, dict[str, str | None]]) -> None:
    """A checker that does not see it, sees nothing."""
    assert said[name]["with"] is not None, f"{said[name]}: run `python -O -m tests.mutants find {name}`"


@pytest.mark.parametrize("name", [mutant.name for mutant in mutants()])
def test_its_plan_passes_without_the_bug(name: str, said: dict[str, dict[str, str | None]]) -> None:
    """Or the plan would prove nothing about the guard."""
    assert said[name]["without"] is None


def test_stored_plans_lead_to_their_bugs(said: dict[str, dict[str, str | None]]) -> None:
    """A plan that passes with the bug in is a search in disguise."""
    stale = [name for name, each in said.items() if each.get("stale")]
    assert len(stale) <= STALE_MAX, f"run `python -O -m tests.mutants find {' '.join(stale)}`"


def test_every_stored_plan_belongs_to_a_mutant() -> None:
    """A renamed mutant must not leave its plan behind."""
    assert sorted(path.stem for path in PLANS.glob("*.json")) == sorted(
        mutant.name for mutant in mutants() if mutant.hunt is None and mutant.plans == PLANS
    )
    for mutant in mutants():
        if mutant.hunt is None:
            plan = load(mutant.plan_path)
            assert (plan.workload, plan.tier) == (mutant.workload, mutant.tier)


def test_a_bug_in_a_handler_of_a_table_is_planted_in_the_table() -> None:
    """Planted under its name it would change nothing, and be counted as a bug that nobody finds."""
    by_name = Mutant("n", "g", "broadsheet.control.core.acceptor:AcceptorMachine._on_read", lambda old: old)
    by_entry = Mutant(
        "e", "g", "broadsheet.control.core.acceptor:AcceptorMachine._handlers[Read]", lambda old: old
    )

    with by_entry.planted():
        pass
    with pytest.raises(ValueError, match=r"_on_read is called as _handlers"), by_name.planted():
        pass


def test_every_regression_has_its_fix_taken_out() -> None:
    """Or nobody would see that its faults have missed the place since."""
    proved = [mutant.name for mutant in mutants() if mutant.plans == REGRESSIONS]
    assert sorted(path.stem for path in REGRESSIONS.glob("*.json")) == sorted([*proved, *UNPROVED])
