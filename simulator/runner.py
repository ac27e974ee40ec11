"""The runner: seeds to plans, plans to results, and what a failure prints.

A seed means `draw_plan` of today's code; a failure is kept as its plan. `REPRODUCE` is the last line of a
failure, and is one command (simulation.6).
"""

import gc
import sys
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from subprocess import DEVNULL, run
from typing import cast

from msgspec.structs import replace

from simulator.crash_episode import CrashWorkload
from simulator.episode import EpisodeBase, MachineEpisode, Result
from simulator.faults import draw_plan
from simulator.plan import Plan, Tier, save
from simulator.services import ServiceWorkload
from simulator.workload import MachineWorkload
from simulator.workloads import make


def plan_of(name: str, tier: Tier, seed: int) -> Plan:
    """The plan that a seed means."""
    return draw_plan(make(name, tier), seed)


def run_plan(plan: Plan, *, show: Callable[[str], None] | None = None, until: int | None = None) -> Result:
    """Perform a plan in a fresh world."""
    workload = make(plan.workload, plan.tier)
    if plan.tier is Tier.CRASHES:
        from simulator.crash_episode import CrashEpisode  # noqa: PLC0415 - as below.

        return _collected(CrashEpisode(plan, cast(CrashWorkload, workload), show).perform(until=until))
    machine: EpisodeBase[MachineWorkload] | EpisodeBase[ServiceWorkload]
    if plan.tier is Tier.MACHINES:
        machine = MachineEpisode(plan, cast(MachineWorkload, workload), show)
    else:
        from simulator.services import ServiceEpisode  # noqa: PLC0415 - tier 1 needs no asyncio.

        machine = ServiceEpisode(plan, cast(ServiceWorkload, workload), show)
    result = machine.perform(until=until)
    if plan.tier is Tier.SERVICES:
        del machine, workload
        return _collected(result)
    return result


def _collected(result: Result) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Tasks that a life had no time to begin.
        gc.collect()  # A world is one great cycle: campaigns would pile them up.
    return result


def run_seed(name: str, tier: Tier, seed: int) -> Result:
    """Perform what a seed means."""
    return run_plan(plan_of(name, tier, seed))


def keep_failure(result: Result, directory: Path) -> Path:
    """Write the plan of a failed run, with what it found and its digest."""
    assert result.violation is not None
    found = f"{commit()}: {result.violation.splitlines()[0]}"
    plan = replace(result.plan, found=found, digest=result.digest)
    path = directory / f"{plan.workload}-tier{plan.tier.value}-{plan.seed}.json"
    save(plan, path)
    return path


def reproduce_line(result: Result, path: Path) -> str:
    """The one command that shows a failure again."""
    plan = result.plan
    version = ".".join(map(str, sys.version_info[:3]))
    return (
        f"REPRODUCE  python -m simulator {plan.workload} --tier {plan.tier.value} --plan {path}   "
        f"(seed {plan.seed}, commit {commit()}, python {version}, digest {result.digest})"
    )


@lru_cache(maxsize=1)
def commit() -> str:
    """The commit of the checkout that this runs from; `unknown` where it is not one."""
    here = Path(__file__).parent
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = run(command, cwd=here, capture_output=True, check=False, stdin=DEVNULL)  # noqa: S603 - fixed.
    return done.stdout.decode().strip() or "unknown"
