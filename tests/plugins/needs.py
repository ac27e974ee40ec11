"""Needs: tests that this machine cannot run are deselected, by name, and the run says so.

Nothing is skipped quietly, nor where workers of pytest-xdist collect the tests: each tells the process that
leads them. Also deselects what takes hours (`soak`), unless it was asked for with `-m`.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

MISSING: Final[dict[str, Callable[[], str | None]]] = {
    "needs_root": lambda: (
        None if os.geteuid() == 0 and Path("/dev/loop-control").exists() else "root and loop devices"
    ),
    "needs_fuse": lambda: (
        None if Path("/dev/fuse").exists() and shutil.which("fusermount3") else "fuse3 and /dev/fuse"
    ),
    "needs_cc": lambda: None if shutil.which("gcc") else "gcc",
    "needs_ext4": lambda: None if shutil.which("mkfs.ext4") else "e2fsprogs",
}
"""Marker to what is missing for it here; None where nothing is."""

WORKERS_WORD: Final = "broadsheet_deselected"
"""Where a worker's output has its lines."""

deselected_key = pytest.StashKey[dict[str, None]]()
"""The lines to print, each once, in order."""


def pytest_configure(config: pytest.Config) -> None:
    """Begin with none."""
    config.stash[deselected_key] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out what cannot run here, and remember each with the reason."""
    missing = {marker: reason for marker, find in MISSING.items() if (reason := find())}
    wants_soak = "soak" in config.getoption("-m")
    lines = config.stash[deselected_key]
    taken: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        reasons = [reason for marker, reason in missing.items() if item.get_closest_marker(marker)]
        is_soak = item.get_closest_marker("soak") is not None and not wants_soak
        if reasons:
            lines[f"{item.nodeid}: needs {', '.join(reasons)}"] = None
        (taken if reasons or is_soak else left).append(item)
    if taken:
        config.hook.pytest_deselected(items=taken)
        items[:] = left


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells its lines; nobody reads its terminal."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        lines = session.config.stash[deselected_key]
        output[WORKERS_WORD] = [*lines]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended: take over what it told. All collect the same tests."""
    told: dict[str, Any] = getattr(node, "workeroutput", {})  # Absent where it died.
    config: pytest.Config = node.config
    config.stash[deselected_key].update(dict.fromkeys(told.get(WORKERS_WORD, [])))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what was not run."""
    lines = config.stash[deselected_key]
    if lines:
        terminalreporter.section(f"{len(lines)} deselected, because this machine lacks something")
        for line in lines:
            terminalreporter.write_line(line)
