"""Every planted bug is seen by checkers alone, on its stored plan or by few seeds: assertions are off."""

import json
import subprocess
import sys

import pytest

from simulator.plan import load
from tests.mutants.registry import PLANS, mutants


@pytest.fixture(scope="module")
def said() -> dict[str, dict[str, str | None]]:
    """What the checks said of all mutants, in one process under -O."""
    command = [sys.executable, "-O", "-m", "tests.mutants", "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, str | None]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", [mutant.name for mutant in mutants()])
def test_a_planted_bug_is_caught(name: str, said: dict[str, dict[str, str | None]]) -> None:
    """A checker that does not see it, sees nothing."""
    assert said[name]["with"] is not None


@pytest.mark.parametrize("name", [mutant.name for mutant in mutants()])
def test_its_plan_passes_without_the_bug(name: str, said: dict[str, dict[str, str | None]]) -> None:
    """Or the plan would prove nothing about the guard."""
    assert said[name]["without"] is None


def test_every_stored_plan_belongs_to_a_mutant() -> None:
    """A renamed mutant must not leave its plan behind."""
    assert sorted(path.stem for path in PLANS.glob("*.json")) == sorted(
        mutant.name for mutant in mutants() if mutant.hunt is None
    )
    for mutant in mutants():
        if mutant.hunt is None:
            plan = load(mutant.plan_path)
            assert (plan.workload, plan.tier) == (mutant.workload, mutant.tier)
