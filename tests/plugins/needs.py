"""Needs: tests that this machine cannot run are deselected, by name, and the run says so.

Nothing is skipped quietly. Also deselects what takes hours (`soak`), unless it was asked for with `-m`.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

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

deselected_key = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out what cannot run here, and remember each with the reason."""
    missing = {marker: reason for marker, find in MISSING.items() if (reason := find())}
    wants_soak = "soak" in config.getoption("-m")
    lines: list[str] = []
    taken: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        reasons = [reason for marker, reason in missing.items() if item.get_closest_marker(marker)]
        is_soak = item.get_closest_marker("soak") is not None and not wants_soak
        if reasons:
            lines.append(f"{item.nodeid}: needs {', '.join(reasons)}")
        (taken if reasons or is_soak else left).append(item)
    config.stash[deselected_key] = lines
    if taken:
        config.hook.pytest_deselected(items=taken)
        items[:] = left


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what was not run."""
    lines = config.stash.get(deselected_key, [])
    if lines:
        terminalreporter.section("deselected, because this machine lacks something")
        for line in lines:
            terminalreporter.write_line(line)
