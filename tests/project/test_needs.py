"""What this machine cannot run is named at the end of the run, with one process and with many."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.mark.needs_cc
@pytest.mark.parametrize("case", [1, 2])
def test_compiles(case): ...

@pytest.mark.soak
def test_for_hours(): ...

def test_here(): ...
"""


def summary(directory: Path, *arguments: str) -> list[str]:
    """The last lines of a run of TESTS, on a machine that has no command at all."""
    (directory / "test_it.py").write_text(TESTS)
    (directory / "pytest.ini").write_text("[pytest]\nmarkers =\n    soak\n    needs_cc\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.plugins.needs", "-p", "no:cacheprovider"]
    command += ["-p", "no:hypothesispytest", "-p", "no:asyncio"]
    done = subprocess.run(
        [*command, *arguments, "--rootdir", str(directory), str(directory)],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env={**os.environ, "PATH": "", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    _, found, rest = done.stdout.partition("deselected, because this machine lacks something")
    return [line for line in rest.splitlines() if "needs" in line] if found else []


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_tests_that_cannot_run_here_are_named_once_each(workers: tuple[str, ...], tmp_path: Path) -> None:
    """Under parallel workers a machine without gcc printed nothing, and looked as if all had passed."""
    assert summary(tmp_path, *workers) == [
        "test_it.py::test_compiles[1]: needs gcc",
        "test_it.py::test_compiles[2]: needs gcc",
    ]
