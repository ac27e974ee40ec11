"""Parts: wall and CPU seconds of each part, and failure where one exceeds its budget by a quarter.

Budgets are minutes on two cores (CONTRIBUTING.md); a part's CPU seconds are what its tests and all
processes that they started used. Works in one process and under pytest-xdist, where each worker measures
its own.
"""

import time
from typing import Any, Final

import pytest

from tests.plugins.cpu import become_subreaper, tree_seconds

BUDGET_MINUTES: Final = {"ground": 7, "faults": 9, "kv": 6, "journals": 4, "pipelines": 5, "files": 2}
CORES: Final = 2
TOLERANCE: Final = 1.25
PART_OF: Final = {
    "simulator": "faults",
    "mutants": "faults",
    "mutate": "faults",
    "regressions": "faults",
    "kv": "kv",
    "coordinator": "kv",
    "keyspace": "journals",
    "message": "journals",
    "journal": "journals",
    "sink": "pipelines",
    "spark": "pipelines",
    "demo": "pipelines",
    "consume": "pipelines",
    "publish": "pipelines",
    "files": "files",
}
"""Folders of `tests` by part; every other one belongs to the ground."""

parts_key = pytest.StashKey["Parts"]()


class Parts:
    """The measurements of one run."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self._cpu_before = tree_seconds()
        self._wall_before = time.perf_counter()

    def lap(self) -> tuple[float, float]:
        """Wall and CPU seconds since the last lap: what one test and its first fixtures took."""
        cpu, wall = tree_seconds(), time.perf_counter()
        taken = wall - self._wall_before, max(0.0, cpu - self._cpu_before)
        self._cpu_before, self._wall_before = cpu, wall
        return taken

    def add(self, part: str, wall: float, cpu: float) -> None:
        """Count one test."""
        self.wall[part] = self.wall.get(part, 0.0) + wall
        self.cpu[part] = self.cpu.get(part, 0.0) + cpu
        self.counts[part] = self.counts.get(part, 0) + 1

    def exceeded(self) -> list[str]:
        """One line for each part above its budget."""
        return [
            f"{part}: {cpu:.0f} CPU s are more than its {budget_seconds(part):.0f} s and a quarter"
            for part, cpu in sorted(self.cpu.items())
            if cpu > budget_seconds(part) * TOLERANCE
        ]


def budget_seconds(part: str) -> float:
    """CPU seconds that a part may use."""
    return BUDGET_MINUTES[part] * CORES * 60


def part_of(nodeid: str) -> str:
    """The part that a test belongs to, by its folder."""
    folders = nodeid.split("/")
    return PART_OF.get(folders[1], "ground") if len(folders) > 2 else "ground"


def pytest_configure(config: pytest.Config) -> None:
    """Begin to measure."""
    become_subreaper()
    config.stash[parts_key] = Parts()


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Leave the seconds of a test in its last report, which a worker of xdist sends on."""
    outcome = yield
    if call.when == "teardown":
        outcome.get_result().part_seconds = list(item.config.stash[parts_key].lap())


def pytest_collection_finish(session: pytest.Session) -> None:
    """Do not charge the imports of all tests to the first one."""
    session.config.stash[parts_key].lap()


class _Summary:
    """Where the tests are reported: the only process, or the one that leads the workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._parts = config.stash[parts_key]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test that has ended."""
        seconds = getattr(report, "part_seconds", None)
        if seconds is not None:
            self._parts.add(part_of(report.nodeid), *seconds)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that was too expensive."""
        if self._parts.exceeded() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        terminalreporter.section("seconds per part")
        terminalreporter.write_line(f"{'part':<10} {'tests':>6} {'wall s':>8} {'CPU s':>8} {'budget':>8}")
        for part in BUDGET_MINUTES:
            if part in self._parts.counts:
                terminalreporter.write_line(
                    f"{part:<10} {self._parts.counts[part]:>6} {self._parts.wall[part]:>8.1f} "
                    f"{self._parts.cpu[part]:>8.1f} {budget_seconds(part):>8.0f}"
                )
        for line in self._parts.exceeded():
            terminalreporter.write_line(f"OVER BUDGET  {line}", red=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Report where the reports arrive."""
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(_Summary(session.config), "parts-summary")
