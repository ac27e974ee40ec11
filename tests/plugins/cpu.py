"""CPU seconds of this process and everything that it started, however it ended.

A node that a test starts detached leaves its parent; as subreaper we inherit it, so that its seconds stay
in the sum: those of the living and of zombies stand in /proc, those of the reaped in their parents'. Units
are seconds.
"""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PARENT, FIRST_TIME, LAST_TIME = 1, 11, 15
"""Fields of /proc/PID/stat, counted after the command's closing parenthesis."""


def become_subreaper() -> None:
    """Inherit orphaned descendants instead of losing them to the first process of the machine."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def tree_seconds() -> float:
    """User and system seconds of this process and its descendants so far, waited for or not."""
    times: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for pid, fields in _processes():
        times[pid] = sum(map(int, fields[FIRST_TIME:LAST_TIME])) / TICKS_PER_SECOND
        children.setdefault(int(fields[PARENT]), []).append(pid)
    total, left = 0.0, [os.getpid()]
    while left:
        pid = left.pop()
        total += times.get(pid, 0.0)
        left += children.get(pid, [])
    return total


def _processes() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                yield int(path.name), (path / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # It ended while we looked.
