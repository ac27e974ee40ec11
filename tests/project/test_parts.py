"""The seconds of a part are counted, whoever spent them, and a part above its budget fails the run."""

import subprocess
import sys
import time

import pytest

from tests.plugins.cpu import tree_seconds
from tests.plugins.parts import BUDGET_MINUTES, Parts, budget_seconds, part_of

BURN = "import time\nt = time.process_time()\nwhile time.process_time() - t < {seconds}: pass\n"
ORPHAN = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {BURN.format(seconds=0.3)!r}], start_new_session=True)
"""
WAIT_SECONDS_MAX = 30


def test_a_childs_seconds_are_counted() -> None:
    """A test that lets a subprocess work is not cheap."""
    before = tree_seconds()

    subprocess.run([sys.executable, "-c", BURN.format(seconds=0.3)], check=True)

    assert tree_seconds() - before >= 0.3


def test_an_orphans_seconds_are_counted() -> None:
    """A detached node leaves its parent, not the bill."""
    before = tree_seconds()
    subprocess.run([sys.executable, "-c", ORPHAN], check=True)

    until = time.monotonic() + WAIT_SECONDS_MAX
    while tree_seconds() - before < 0.3 and time.monotonic() < until:
        time.sleep(0.02)

    assert tree_seconds() - before >= 0.3


def test_a_part_above_its_budget_and_a_quarter_is_named() -> None:
    """Time that nobody defends is spent."""
    parts = Parts()
    parts.add("journals", 1.0, budget_seconds("journals") * 1.24)
    assert parts.exceeded() == []

    parts.add("journals", 1.0, budget_seconds("journals") * 0.02)
    assert [line.partition(":")[0] for line in parts.exceeded()] == ["journals"]


@pytest.mark.parametrize(
    ("nodeid", "part"),
    [
        ("tests/wal/test_log.py::test_x", "ground"),
        ("tests/journal/core/test_x.py::test_x", "journals"),
        ("tests/spark/test_x.py::test_x", "pipelines"),
        ("tests/mutants/test_x.py::test_x", "faults"),
        ("tests/test_x.py::test_x", "ground"),
    ],
)
def test_a_test_belongs_to_the_part_of_its_folder(nodeid: str, part: str) -> None:
    """Nobody has to mark anything."""
    assert part_of(nodeid) == part
    assert part in BUDGET_MINUTES
