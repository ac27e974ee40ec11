"""Work: a copy of the repository for each worker, and what its tests and simulations say of one change."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.mutate.targets import ROOT, SLOW, Target

TEST_SECONDS_MAX = 60
"""One test; a change that makes it wait is noticed."""
PYTEST = f"-m pytest -x -q -n 0 -p no:cacheprovider --no-header --timeout {TEST_SECONDS_MAX}"
TIMES_BASELINE = 3
"""A command may take so many times as long as without a change, and a little more, before it hangs."""
GRACE_SECONDS = 60


@dataclass(frozen=True)
class Command:
    """One thing that may notice."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class Noticed:
    """What a command said."""

    is_quiet: bool
    seconds: float
    text: str


def commands(target: Target, module: str) -> list[Command]:
    """What may notice a change of `module`, the fastest first."""
    pytest = (sys.executable, *PYTEST.split(), "-m", "not (soak or windows or spark)")
    pytest = (*pytest, *(f"--ignore-glob=*/{name}" for name in SLOW))
    stem = Path(module).stem
    own = [
        str(path.relative_to(ROOT))
        for folder in target.tests
        for path in sorted((ROOT / folder).glob(f"test_{stem}.py"))
    ]
    tests = dict.fromkeys((*own, *target.tests))
    simulate = (sys.executable, "-m", "broadsheet", "sim")
    return [
        *(Command((*pytest, each)) for each in tests),
        *(
            Command((*simulate, name, "--tier", str(tier), "--seeds", str(seeds), "--jobs", "1"))
            for name, tier, seeds in target.simulations
        ),
    ]


def copy_tree(to: Path) -> None:
    """Copy what git knows of, and what it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def ask(command: Command, directory: Path, *, seconds_max: float) -> Noticed:
    """Run `command` in a copy, and end all that it started."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{directory / 'src'}:{directory}",
        "PYTHONDONTWRITEBYTECODE": "1",  # A stale one would hide the change.
        "CI": "true",  # Hypothesis draws the same examples each time.
        "TMPDIR": str(directory / "tmp"),
    }
    shutil.rmtree(directory / "tmp", ignore_errors=True)
    (directory / "tmp").mkdir()
    began = time.monotonic()
    with subprocess.Popen(
        ["nice", "-n", "19", *command.words],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=seconds_max)
            is_quiet = process.returncode == 0
        except subprocess.TimeoutExpired:
            said, is_quiet = b"it hangs", False
        finally:
            with suppress(ProcessLookupError):  # All have ended.
                os.killpg(process.pid, signal.SIGKILL)
    return Noticed(is_quiet, time.monotonic() - began, said.decode(errors="replace")[-2000:])
