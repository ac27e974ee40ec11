"""Determinism: runs one plan in two processes with different hash seeds, and compares their digests.

If the digests differ, some code iterates a set, hashes an address or reads a real clock, and then no plan
reproduces its run. `python -m simulator.determinism WORKLOAD:TIER ... --seeds N` prints a line for each run.
"""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from subprocess import PIPE, Popen

from simulator.plan import Tier
from simulator.runner import run_seed

HASH_SEEDS = ("1", "4242")


def differences(targets: Sequence[tuple[str, Tier]], *, seeds: int, first: int = 0) -> list[str]:
    """Run `seeds` runs, dealt over `targets`, twice; the lines that differ. Both processes run at once."""
    names = [f"{name}:{tier.value}" for name, tier in targets]
    command = [sys.executable, "-m", __name__, *names, "--seeds", str(seeds), "--first", str(first)]
    processes = [
        Popen(command, stdout=PIPE, text=True, env={**os.environ, "PYTHONHASHSEED": seed})  # noqa: S603
        for seed in HASH_SEEDS
    ]
    said = [process.communicate()[0].splitlines() for process in processes]
    failed = [process.args for process in processes if process.returncode]
    assert not failed, f"ended early: {failed}"
    assert all(len(lines) == seeds for lines in said), "one line for each run"
    return [f"{a} | {b}" for a, b in zip(*said, strict=True) if a != b]


def main(arguments: list[str]) -> None:
    """Print `workload tier seed digest events steps violation` for each run."""
    parser = ArgumentParser()
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--seeds", type=int, required=True)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args(arguments)
    for index in range(given.seeds):
        name, _, tier = given.targets[index % len(given.targets)].partition(":")
        result = run_seed(name, Tier(int(tier)), given.first + index)
        violation = (result.violation or "none").splitlines()[0]
        counts = result.counts
        line = (
            f"{name} {tier} {given.first + index} {result.digest} {counts.events} {counts.steps} {violation}"
        )
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
