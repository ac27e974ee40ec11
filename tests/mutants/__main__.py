"""`python -O -m tests.mutants check|find|measure [NAME ...]`: see the package."""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from functools import cache
from statistics import median

from msgspec.json import decode, encode
from msgspec.structs import replace

from simulator.plan import Plan, Tier, load, save
from simulator.runner import commit, plan_of, run_plan
from simulator.shrink import Shrinker
from tests.mutants.registry import PLANS, Mutant, mutants

SEEDS_MAX = 600
FRESH_SEEDS = {Tier.MACHINES: 60, Tier.SERVICES: 12, Tier.CRASHES: 6}
"""How many seeds `check` tries where a stored plan catches its bug no longer: 10 to 20 seconds of CPU."""
STARTS = (0, 100_000, 200_000, 300_000, 400_000)


def found_by(mutant: Mutant, plan: Plan | None) -> str | None:
    """What is found with the bug in, of what counts as seen."""
    with mutant.planted():
        if mutant.hunt is not None:
            return mutant.hunt()
        assert plan is not None
        violation = run_plan(plan).violation
    return violation if violation is not None and violation.startswith(mutant.seen) else None


def fresh_plans(mutant: Mutant) -> Iterator[Plan]:
    """The plans that seeds mean today."""
    return (plan_of(mutant.workload, mutant.tier, seed) for seed in range(FRESH_SEEDS[mutant.tier]))


def found_without(mutant: Mutant, plan: Plan | None) -> str | None:
    """What the same harness finds in the code as it is: nothing, if it is any good."""
    if mutant.hunt is not None:
        return mutant.hunt()
    return None if plan is None else _violation(encode(replace(plan, found="", digest="")))


@cache
def _violation(plan: bytes) -> str | None:
    """What a plan finds in the code as it is: bugs of one workload often share a plan."""
    return run_plan(decode(plan, type=Plan)).violation


def check(chosen: list[Mutant]) -> dict[str, dict[str, str | None]]:
    """Each on its stored plan, with and without the bug; where that is stale, on what the next seeds mean.

    A stored plan goes stale where the code that it runs draws or waits anew: it passes, bug or no bug.
    """
    said: dict[str, dict[str, str | None]] = {}
    for mutant in chosen:
        if mutant.hunt is None and not mutant.plan_path.exists():
            said[mutant.name] = {"with": None, "without": f"no plan at {mutant.plan_path}: run `find` first"}
            continue
        try:
            said[mutant.name] = checked(mutant)
        except Exception as error:  # noqa: BLE001 - one broken mutant must not hide the others.
            said[mutant.name] = {"with": None, "without": f"{type(error).__name__}: {error}"}
    return said


def checked(mutant: Mutant) -> dict[str, str | None]:
    """What is found with the bug and without it, and whether a search was needed (`stale`)."""
    plan = load(mutant.plan_path) if mutant.hunt is None else None
    found, stale = found_by(mutant, plan), None
    if found is None and mutant.hunt is None:
        stale = f"stored plan finds nothing, nor do {FRESH_SEEDS[mutant.tier]} seeds"
        for fresh in fresh_plans(mutant):
            if (found := found_by(mutant, fresh)) is not None:
                plan, stale = fresh, f"stored plan finds nothing, seed {fresh.seed} does"
                break
    return {"with": found, "without": found_without(mutant, plan), "stale": stale}


def seeds_to_catch(mutant: Mutant, first: int, seeds_max: int) -> tuple[int, Plan | None]:
    """How many seeds it took from `first` on, and the plan that caught it; no plan where none did."""
    for count in range(1, seeds_max + 1):
        plan = plan_of(mutant.workload, mutant.tier, first + count - 1)
        if found_by(mutant, plan) is not None:
            return count, plan
    return seeds_max, None


def needs_plan(mutant: Mutant) -> bool:
    """Whether it has no stored plan, or a stale one."""
    if mutant.hunt is not None:
        return False
    return not mutant.plan_path.exists() or found_by(mutant, load(mutant.plan_path)) is None


def find(mutant: Mutant, seeds_max: int) -> str:
    """Find, shrink and store a plan."""
    count, plan = seeds_to_catch(mutant, 0, seeds_max)
    if plan is None:
        return f"{mutant.name}: not caught in {count} seeds"
    small = Shrinker(lambda each: found_by(mutant, each) is not None, runs_max=80).shrink(plan)
    if found_without(mutant, small) is not None:
        small = plan  # What was left out is needed without the bug, too.
    clean = found_without(mutant, small)
    if clean is not None:
        return f"{mutant.name}: the plan fails without the bug too: {clean}"
    with mutant.planted():
        result = run_plan(small)
    said = (result.violation or "").splitlines()[0][:200]
    found = f"{commit()}: {mutant.guard} {said}"
    if mutant.plans != PLANS:  # A regression tells of the day when it was no planted bug.
        found = load(mutant.plan_path).found
    save(replace(small, found=found, digest=""), mutant.plan_path)
    return f"{mutant.name}: caught by seed {count - 1}, {len(small.faults)} of {len(plan.faults)} faults left"


def measure(mutant: Mutant, seeds_max: int) -> str:
    """Median seeds to catch, from several starts."""
    counts = [seeds_to_catch(mutant, first, seeds_max)[0] for first in STARTS]
    shown = f"{median(counts):.0f}" if median(counts) < seeds_max else f"more than {seeds_max}"
    return f"| {mutant.name} | {mutant.guard} | {mutant.workload} tier {mutant.tier.value} | {shown} |"


def main(arguments: list[str]) -> None:
    """Run one command over all mutants, or those named; `find` without names over those that need a plan."""
    parser = ArgumentParser(prog="python -O -m tests.mutants")
    parser.add_argument("command", choices=("check", "find", "measure"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX)
    given = parser.parse_args(arguments)
    chosen = [each for each in mutants() if not given.names or each.name in given.names]
    if given.command == "check":
        said = check(chosen)
        sys.stdout.write(json.dumps(said, indent=1) + "\n")
        for name, each in said.items():
            if each.get("stale"):
                sys.stderr.write(f"{name}: {each['stale']}; run `python -O -m tests.mutants find {name}`\n")
        return
    if given.command == "find" and not given.names:
        chosen = [each for each in chosen if needs_plan(each)]
    for mutant in chosen:
        if mutant.hunt is None:
            line = find(mutant, given.seeds) if given.command == "find" else measure(mutant, given.seeds)
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
