"""`python -O -m tests.mutants check|find|measure [NAME ...]`: see the package."""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from statistics import median

from msgspec.structs import replace

from simulator.plan import Plan, load, save
from simulator.runner import commit, plan_of, run_plan
from simulator.shrink import Shrinker
from tests.mutants.registry import Mutant, mutants

SEEDS_MAX = 600
FRESH_SEEDS = 120
"""How many seeds are tried where a stored plan catches its bug no longer."""
STARTS = (0, 100_000, 200_000, 300_000, 400_000)


def found_by(mutant: Mutant, plan: Plan | None) -> str | None:
    """What is found with the bug in; only a checker's verdict counts, not a crash by chance."""
    with mutant.planted():
        if mutant.hunt is not None:
            return mutant.hunt()
        assert plan is not None
        violation = run_plan(plan).violation
    seen = ("Violation", "Corrupt")  # A node that refuses what it wrote itself is a verdict, too.
    return violation if violation is not None and violation.startswith(seen) else None


def found_by_seeds(mutant: Mutant) -> str | None:
    """What the next seeds find: a stored plan goes stale where the code that it runs draws or waits anew."""
    if mutant.hunt is not None:
        return None
    return next((said for plan in fresh_plans(mutant) if (said := found_by(mutant, plan)) is not None), None)


def fresh_plans(mutant: Mutant) -> Iterator[Plan]:
    """The plans that seeds mean today."""
    return (plan_of(mutant.workload, mutant.tier, seed) for seed in range(FRESH_SEEDS))


def found_without(mutant: Mutant, plan: Plan | None) -> str | None:
    """What the same harness finds in the code as it is: nothing, if it is any good."""
    if mutant.hunt is not None:
        return mutant.hunt()
    return run_plan(plan).violation if plan is not None else None


def check(chosen: list[Mutant]) -> dict[str, dict[str, str | None]]:
    """Each once on its stored plan, with and without the bug."""
    said: dict[str, dict[str, str | None]] = {}
    for mutant in chosen:
        if mutant.hunt is None and not mutant.plan_path.exists():
            said[mutant.name] = {"with": None, "without": f"no plan at {mutant.plan_path}: run `find` first"}
            continue
        try:
            plan = load(mutant.plan_path) if mutant.hunt is None else None
            found = found_by(mutant, plan) or found_by_seeds(mutant)
            said[mutant.name] = {"with": found, "without": found_without(mutant, plan)}
        except Exception as error:  # noqa: BLE001 - one broken mutant must not hide the others.
            said[mutant.name] = {"with": None, "without": f"{type(error).__name__}: {error}"}
    return said


def seeds_to_catch(mutant: Mutant, first: int, seeds_max: int) -> tuple[int, Plan | None]:
    """How many seeds it took from `first` on, and the plan that caught it; no plan where none did."""
    for count in range(1, seeds_max + 1):
        plan = plan_of(mutant.workload, mutant.tier, first + count - 1)
        if found_by(mutant, plan) is not None:
            return count, plan
    return seeds_max, None


def find(mutant: Mutant, seeds_max: int) -> str:
    """Find, shrink and store a plan."""
    count, plan = seeds_to_catch(mutant, 0, seeds_max)
    if plan is None:
        return f"{mutant.name}: not caught in {count} seeds"
    small = Shrinker(lambda each: found_by(mutant, each) is not None, runs_max=80).shrink(plan)
    clean = found_without(mutant, small)
    if clean is not None:
        return f"{mutant.name}: the plan fails without the bug too: {clean}"
    with mutant.planted():
        result = run_plan(small)
    said = (result.violation or "").splitlines()[0][:200]
    save(replace(small, found=f"{commit()}: {mutant.guard} {said}", digest=""), mutant.plan_path)
    return f"{mutant.name}: caught by seed {count - 1}, {len(small.faults)} of {len(plan.faults)} faults left"


def measure(mutant: Mutant, seeds_max: int) -> str:
    """Median seeds to catch, from several starts."""
    counts = [seeds_to_catch(mutant, first, seeds_max)[0] for first in STARTS]
    shown = f"{median(counts):.0f}" if median(counts) < seeds_max else f"more than {seeds_max}"
    return f"| {mutant.name} | {mutant.guard} | {mutant.workload} tier {mutant.tier.value} | {shown} |"


def main(arguments: list[str]) -> None:
    """Run one command over all mutants, or those named."""
    parser = ArgumentParser(prog="python -O -m tests.mutants")
    parser.add_argument("command", choices=("check", "find", "measure"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX)
    given = parser.parse_args(arguments)
    chosen = [each for each in mutants() if not given.names or each.name in given.names]
    if given.command == "check":
        sys.stdout.write(json.dumps(check(chosen), indent=1) + "\n")
        return
    for mutant in chosen:
        if mutant.hunt is None:
            line = find(mutant, given.seeds) if given.command == "find" else measure(mutant, given.seeds)
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
