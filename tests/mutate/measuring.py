"""Measuring: a plugin of pytest that writes down which lines each test runs, and how long it takes.

Lines are coverage.py's, each with the tests as its dynamic contexts; lines that run while modules are
imported or tests are collected have the empty context. Seconds and outcomes stand in a file of JSON.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

MEASURED = "BROADSHEET_MUTATE_MEASURED"
"""The folder for both files."""


class Measuring:
    """One run of pytest under coverage."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seconds: dict[str, float] = {}
        self._failed: dict[str, None] = {}
        self._coverage: Any = coverage.Coverage(
            str(folder / "lines"), config_file=False, source=[str(Path.cwd() / "src/broadsheet")]
        )
        self._coverage.start()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Charge all that runs now to one test."""
        self._coverage.switch_context(item.nodeid)
        began = time.monotonic()
        yield
        self._seconds[item.nodeid] = time.monotonic() - began
        self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember what fails without any change: its failure tells nothing."""
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_sessionfinish(self) -> None:
        """Write both files."""
        self._coverage.stop()
        self._coverage.save()
        told = {"seconds": self._seconds, "failed": list(self._failed)}
        (self._folder / "tests.json").write_text(json.dumps(told))


def pytest_configure(config: pytest.Config) -> None:
    """Start before broadsheet is imported."""
    config.pluginmanager.register(Measuring(Path(os.environ[MEASURED])))
