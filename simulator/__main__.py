"""Command line of the simulator: `python -m simulator` runs workloads from seeds or from a plan.

`make sim` runs `all`: the canary, the determinism of every workload, then enough counting seeds of each. A
failed run writes its plan, prints as its last line the command that reproduces it, and exits with 1.
"""

import os
import sys
from itertools import count
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from broadsheet.cli.main import main
from broadsheet.errors import ConfigError
from simulator.campaign import Summary, run_campaign
from simulator.coverage import Coverage, places
from simulator.determinism import differences
from simulator.episode import Result
from simulator.plan import Plan, Tier, load, save
from simulator.runner import keep_failure, plan_of, reproduce_line, run_plan
from simulator.shrink import Shrinker
from simulator.workloads import WORKLOADS, make

app = typer.Typer(add_completion=False)

KEEP: Final = Path("sim-failures")
CANARY_SEEDS: Final = 30
CANARY_CAUGHT_MIN: Final = 3
MEASURED: Final = ("metastore", "append")
"""The machines whose counting seeds `all` adds up."""
EXAMPLES: Final = ("canary", "register")
SHARE_OTHERS: Final = 20
OTHERS_MIN: Final = 50
"""The other workloads run for the marks that only they hit."""
SHARE_TIER_2: Final = 4
"""One in four counting seeds is of tier 2."""

progress = Console(stderr=True)


@app.command()
def simulate(
    workload: Annotated[str, typer.Argument(help="A workload's name, or `list`, `all`, `fuzz`.")],
    *,
    tier: Annotated[
        int,
        typer.Option(
            help="1: machines on a heap. 2: real services in virtual time. 3: crash states of recorded "
            "histories. 0: the first that the workload has."
        ),
    ] = 0,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(help="How many must count (`all`: of both machines together).")] = 0,
    plan: Annotated[Path | None, typer.Option(help="Run this plan instead of seeds.")] = None,
    until: Annotated[
        float | None, typer.Option(help="Stop at this virtual second, without a verdict.")
    ] = None,
    trace: Annotated[bool, typer.Option(help="Print every event and effect.")] = False,
    shrink: Annotated[bool, typer.Option(help="Look for the smallest plan that still fails.")] = False,
    forever: Annotated[bool, typer.Option(help="Run seed after seed until one fails.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes; 0: one for each core.")] = 0,
    keep: Annotated[Path, typer.Option(help="Where plans of failures go.")] = KEEP,
    json: Annotated[
        bool, typer.Option("--json", help="Print objects, one a line, instead of lines.")
    ] = False,
) -> None:
    """Simulate a cluster under faults; the same seed or plan gives the same run, to the byte."""
    jobs = jobs or os.cpu_count() or 1
    if workload == "list":
        if json:
            rows = [{"workload": name, "tier": at.value} for name, at in WORKLOADS]
            print(msgspec.json.encode({"workloads": rows}).decode())
            return
        for name, at in WORKLOADS:
            print(f"{name} --tier {at.value}")
        return
    if workload == "fuzz":
        _run_fuzz(seeds, seed, json=json)
        return
    if workload == "all":
        _run_all(seeds or 5_000, jobs=jobs, keep=keep, json=json)
        return
    at = _tier(workload, tier)
    if plan is not None:
        given = load(plan)
        if given.workload != workload:
            raise ConfigError(f"{plan} is a plan of {given.workload!r}, not of {workload!r}")
        _run_one(given, until=until, trace=trace, shrink=shrink, keep=keep, json=json, path=plan)
    elif forever:
        for first in count(seed, 1_000):
            _report(_run_seeds(workload, at, counting=300, first=first, jobs=jobs, keep=keep), json=json)
    elif seeds:
        _report(_run_seeds(workload, at, counting=seeds, first=seed, jobs=jobs, keep=keep), json=json)
    else:
        _run_one(plan_of(workload, at, seed), until=until, trace=trace, shrink=shrink, keep=keep, json=json)


def _tier(workload: str, number: int) -> Tier:
    if not number:
        return next((at for name, at in WORKLOADS if name == workload), Tier.MACHINES)
    try:
        return Tier(number)
    except ValueError:
        raise ConfigError(f"there is no tier {number}: 1, 2 or 3") from None


def _run_one(
    plan: Plan,
    *,
    until: float | None,
    trace: bool,
    shrink: bool,
    keep: Path,
    json: bool,
    path: Path | None = None,
) -> None:
    """Run one plan, and say what came of it."""
    end = None if until is None else int(until * 1e9)
    result = run_plan(plan, show=print if trace else None, until=end)
    if plan.digest and plan.digest != result.digest and end is None:
        progress.print(
            f"the plan's digest is {plan.digest}: it was written by other code, or by another Python"
        )
    if json:
        print(msgspec.json.encode(result).decode())
    else:
        print(_line(result))
    if result.violation is None:
        return
    if path is None:
        path = keep_failure(result, keep)
    if not json:
        print(result.violation)
    if shrink:
        result, path = _shrink(result, keep, json=json)
    _tell(reproduce_line(result, path), json=json)
    raise typer.Exit(1)


def _shrink(result: Result, keep: Path, *, json: bool) -> tuple[Result, Path]:
    """Shrink the failing plan and keep the small one."""
    shrinker = Shrinker(lambda candidate: run_plan(candidate).violation is not None)
    small = shrinker.shrink(result.plan)
    again = run_plan(small)
    before, after = len(result.plan.faults), len(small.faults)
    _tell(f"shrunk from {before} to {after} faults in {shrinker.runs} runs:", json=json)
    for fault in small.faults:
        _tell(f"  {fault}", json=json)
    path = keep / f"{small.workload}-tier{small.tier.value}-{small.seed}-shrunk.json"
    found = (again.violation or "").splitlines()[0]
    save(replace(small, found=found, digest=again.digest), path)
    return again, path


def _line(result: Result) -> str:
    counts = result.counts
    return (
        f"{result.plan.workload} tier {result.plan.tier.value} seed {result.plan.seed}: "
        f"{result.acked} acknowledged, {result.unknown} unknown, {result.rejected} rejected, "
        f"{counts.faults} faults ({counts.faults_met} met an open operation), {counts.events} events, "
        f"{result.virtual_ns / 1e9:.2f} virtual s, {result.cpu_seconds:.2f} CPU s, digest {result.digest}, "
        f"{'counts' if result.is_counting else 'does not count'}"
    )


def _run_seeds(name: str, tier: Tier, *, counting: int, first: int, jobs: int, keep: Path) -> Summary:
    """A campaign with a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress) as bar:
        task = bar.add_task(f"{name} tier {tier.value}", total=counting)
        return run_campaign(
            name,
            tier,
            counting=counting,
            first=first,
            jobs=jobs,
            keep=keep,
            tell=lambda total: bar.update(task, completed=min(total.counting, counting)),
        )


def _report(summary: Summary, *, json: bool) -> None:
    """Print what a campaign found; a failure ends the command."""
    print(msgspec.json.encode(summary).decode() if json else summary.line())
    if summary.failures:
        _tell("\n".join(summary.failures), json=json)
        raise typer.Exit(1)


def _tell(text: str, *, json: bool) -> None:
    """Say something beside the result: on standard error where the result is JSON."""
    print(text, file=sys.stderr if json else sys.stdout)


def _run_fuzz(sessions: int, seed: int, *, json: bool) -> None:
    """Malformed sessions against a real server: what `make fuzz` runs.

    No simulation, but the same manners.
    """
    from simulator.fuzz import SESSIONS_LONG, Failure, fuzz

    sessions = sessions or SESSIONS_LONG

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress) as bar:
        task = bar.add_task("malformed sessions", total=sessions)
        rss = 0
        try:
            for done, resident in fuzz(sessions, seed):
                rss = max(rss, resident)
                bar.update(task, completed=min(done, sessions))
        except Failure as error:
            _tell(f"{error}\nREPRODUCE  python -m simulator fuzz --seeds {sessions} --seed {seed}", json=json)
            raise typer.Exit(1) from error
    if json:
        print(msgspec.json.encode({"sessions": sessions, "resident_bytes_max": rss}).decode())
        return
    print(f"fuzz: {sessions} malformed sessions, server up, {rss >> 20} MiB resident at most")


def _run_all(counting: int, *, jobs: int, keep: Path, json: bool) -> None:
    """Everything that `make sim` runs."""
    caught = sum(
        run_plan(plan_of("canary", Tier.MACHINES, seed)).violation is not None for seed in range(CANARY_SEEDS)
    )
    _tell(f"canary: caught in {caught} of {CANARY_SEEDS} seeds", json=json)
    if caught < CANARY_CAUGHT_MIN:
        _tell(
            f"the simulator is broken: the canary must be caught in {CANARY_CAUGHT_MIN} seeds or more",
            json=json,
        )
        raise typer.Exit(1)
    targets = list(WORKLOADS)
    different = differences(targets, seeds=200)
    _tell(f"determinism: {len(different)} of 200 runs differ between two hash seeds", json=json)
    if different:
        _tell("\n".join(different), json=json)
        raise typer.Exit(1)
    measured = [target for target in targets if target[0] in MEASURED]
    coverage, scopes = Coverage(), list[str]()
    for name, tier in targets:
        if name in EXAMPLES:
            continue
        share = counting // (len(measured) // 2 or 1)
        part = share // SHARE_TIER_2 if tier is Tier.SERVICES else share - share // SHARE_TIER_2
        part = part if name in MEASURED else max(OTHERS_MIN, counting // SHARE_OTHERS)
        summary = _run_seeds(name, tier, counting=part, first=1_000_000, jobs=jobs, keep=keep)
        _report(summary, json=json)
        coverage.merge(summary.coverage)
        scopes += make(name, tier).scope
    _report_coverage(coverage, tuple(sorted(set(scopes))), json=json)


def _report_coverage(coverage: Coverage, scope: tuple[str, ...], *, json: bool) -> None:
    """Say what was come by; a mark that nothing hit ends the command."""
    there = places(scope)
    never = coverage.never(there.marks)
    passed = sum(label in coverage.labels for label in there.labels)
    _tell(
        f"coverage: {len(coverage.transitions)} transitions, "
        f"{len(coverage.marks)} of {len(there.marks)} marks, {passed} of {len(there.labels)} labels",
        json=json,
    )
    if never:
        _tell(f"never hit: {', '.join(never)}", json=json)
        raise typer.Exit(1)


if __name__ == "__main__":
    main(app)
