"""Campaign: runs many seeds of one workload in several processes, and adds up their results.

Seeds are numbered from `first` on and run until enough have counted (simulation.3), or one has failed. A seed
that does not count is not hidden: both numbers are reported. CPU seconds are those of the runs, so that
rates are per core.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from simulator.coverage import Coverage
from simulator.episode import Result
from simulator.plan import Tier
from simulator.runner import keep_failure, reproduce_line, run_seed
from simulator.workloads import make

BLOCK: Final = 5
"""Seeds that a process runs before it reports."""
SEEDS_MIN_FOR_SHARE: Final = 20
"""Fewer seeds say nothing about the share of unknown operations."""
WASTE_MAX: Final = 3
"""How many times as many seeds as wanted are tried before giving up: most must count."""


class Summary(msgspec.Struct):
    """What a campaign adds up to."""

    workload: str
    tier: int
    seeds: int = 0
    counting: int = 0
    met_three: int = 0
    """Counting seeds in which three faults or more met an unacknowledged operation."""
    acked: int = 0
    unknown: int = 0
    rejected: int = 0
    events: int = 0
    faults: int = 0
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0
    failures: list[str] = []
    """For each failed seed what it found, and the line that reproduces it."""
    coverage: Coverage = msgspec.field(default_factory=Coverage)

    @property
    def events_per_second(self) -> float:
        """Delivered messages, timers and disk completions per second per core."""
        return self.events / self.cpu_seconds if self.cpu_seconds else 0.0

    @property
    def counting_per_second(self) -> float:
        """Counting seeds per second per core."""
        return self.counting / self.cpu_seconds if self.cpu_seconds else 0.0

    def add(self, result: Result) -> None:
        """Add one run that did not fail, or did."""
        self.seeds += 1
        self.counting += result.is_counting
        self.met_three += result.is_counting and result.counts.faults_met >= 3
        self.acked += result.acked
        self.unknown += result.unknown
        self.rejected += result.rejected
        self.events += result.counts.events
        self.faults += result.counts.faults
        self.virtual_seconds += result.virtual_ns / 1e9
        self.cpu_seconds += result.cpu_seconds
        self.coverage.merge(result.coverage)

    def merge(self, other: "Summary") -> None:
        """Add what another process found."""
        for field in self.__struct_fields__[2:-1]:
            setattr(self, field, getattr(self, field) + getattr(other, field))
        self.coverage.merge(other.coverage)

    def excess(self, unknown_percent_max: int) -> str:
        """Why too many operations ended unknown; empty where they did not, or the campaign is too small."""
        percent = 100 * self.unknown // max(1, self.acked + self.rejected + self.unknown)
        if self.seeds < SEEDS_MIN_FOR_SHARE or percent <= unknown_percent_max:
            return ""
        return f"{self.workload}: {percent} % of all operations ended unknown, above {unknown_percent_max} %"

    def line(self) -> str:
        """One line for people."""
        return (
            f"{self.workload} tier {self.tier}: {self.counting} counting of {self.seeds} seeds "
            f"({self.met_three} met by three faults), {self.acked} acknowledged, {self.unknown} unknown, "
            f"{self.rejected} rejected, {self.faults} faults, {self.virtual_seconds:.0f} virtual s, "
            f"{self.events_per_second:,.0f} events/s and {self.counting_per_second:.1f} counting seeds/s "
            f"per core, "
            f"{len(self.failures)} failed"
        )


def run_block(name: str, tier: Tier, first: int, *, count: int, keep: Path) -> Summary:
    """Run `count` seeds here."""
    summary = Summary(name, tier.value)
    for seed in range(first, first + count):
        result = run_seed(name, tier, seed)
        summary.add(result)
        if result.violation is not None:
            path = keep_failure(result, keep)
            summary.failures.append(f"{result.violation}\n{reproduce_line(result, path)}")
    return summary


def run_campaign(
    name: str,
    tier: Tier,
    *,
    counting: int,
    keep: Path,
    first: int = 0,
    jobs: int = 1,
    tell: Callable[[Summary], None] = lambda _: None,
) -> Summary:
    """Run seeds until `counting` of them counted, or one failed.

    Args:
        keep: where the plans of failures go.
        tell: told the sum so far after each block.
    """
    total = Summary(name, tier.value)
    firsts = range(first, first + counting * WASTE_MAX, BLOCK)
    run = partial(run_block, name, tier, count=BLOCK, keep=keep)
    with _blocks(run, firsts, jobs) as blocks:
        for block in blocks:
            total.merge(block)
            tell(total)
            if total.failures or total.counting >= counting:
                break
    excess = total.excess(make(name, tier).unknown_percent_max)
    if excess:
        total.failures.append(excess)
    return total


@contextmanager
def _blocks(run: Callable[[int], Summary], firsts: range, jobs: int) -> Iterator[Iterator[Summary]]:
    """The blocks in order, computed here or by `jobs` processes."""
    if jobs == 1:
        yield map(run, firsts)
        return
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield _ahead(pool, run, firsts, jobs)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _ahead(
    pool: ProcessPoolExecutor, run: Callable[[int], Summary], firsts: range, jobs: int
) -> Iterator[Summary]:
    """Keep twice as many blocks under way as there are processes, and yield them in order."""
    under_way = []
    for first in firsts:
        under_way.append(pool.submit(run, first))
        if len(under_way) >= 2 * jobs:
            yield under_way.pop(0).result()
    while under_way:
        yield under_way.pop(0).result()
