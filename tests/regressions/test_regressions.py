"""Plans that once failed, and what they found: each must pass now, and stays (code.21).

A plan is stored with `found`: one line on what it was. To add one, copy the file that a failure wrote, and
say there what the cause was, and take the fix out in `tests/mutants/planted_regressions.py`: a plan whose
faults miss the place passes whatever the code does.
"""

from pathlib import Path

from simulator.plan import load
from simulator.runner import run_plan

PLANS = sorted(Path(__file__).parent.glob("*.json"))


def test_what_was_fixed_stays_fixed() -> None:
    """The plans reproduce the schedules, not only the seeds."""
    for path in PLANS:
        plan = load(path)
        assert plan.found, f"{path.name} must say what it found"
        result = run_plan(plan)

        assert result.violation is None, f"{path.name}: {plan.found}\n{result.violation}"
