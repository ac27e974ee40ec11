"""Work: a copy of the repository for each worker, and what tests and simulations say of one change."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.mutate.measuring import MEASURED
from tests.mutate.serving import SOCKET
from tests.mutate.targets import EVERYWHERE, ROOT, SLOW, Target

TEST_SECONDS_MIN: Final = 5
"""A test may take so long, or TEST_TIMES as long as was measured; a change that makes it wait is noticed."""
TEST_TIMES: Final = 10
NOT: Final = "not (soak or windows or spark or needs_root or needs_fuse or needs_ext4)"
"""Tests that take hours, or whose mounts would outlive the fork that they ran in."""
CHOSEN: Final = ("-m", NOT, *(f"--ignore-glob=*/{name}" for name in SLOW))
PYTEST: Final = (sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *CHOSEN)


@dataclass(frozen=True)
class Noticed:
    """What a command said."""

    is_quiet: bool
    seconds: float
    text: str


class Worker:
    """A copy of the tree, and a process of it that has collected all tests."""

    def __init__(self, directory: Path, tree: Path, tests: Sequence[str]) -> None:
        self.directory, self._tests = directory, tests
        if not directory.exists():
            shutil.copytree(tree, directory)
        self._server: Server | None = None

    def noticed(
        self, module: str, tests: Mapping[str, float], *, patience: float = 1, is_of_loading: bool = False
    ) -> tuple[str, str] | None:
        """The first of `tests` that fails now that the file of `module` has changed, and what it says.

        Args:
            tests: Names, in the order to run them, and how many seconds each took when it was measured.
            patience: How many times as long as usual each may take.
            is_of_loading: The changed line runs while modules are loaded: they are loaded anew.
        """
        limits = {
            test: patience * max(TEST_SECONDS_MIN, TEST_TIMES * seconds) for test, seconds in tests.items()
        }
        if self._server is None:
            self._server = Server(self.directory, self._tests)
        answer: dict[str, Any] = {"must_be_loaded": True}
        if not is_of_loading:
            answer = self._server.ask(module, limits)
        if "must_be_loaded" in answer:
            fresh = Server(self.directory, list(dict.fromkeys(each.partition("::")[0] for each in tests)))
            answer = fresh.ask("", limits) if fresh.tests else {"test": "loading", "text": ""}
            fresh.close()
        return None if answer["test"] is None else (answer["test"], answer["text"])

    def close(self) -> None:
        """End its process."""
        if self._server is not None:
            self._server.close()


class Server:
    """A process of pytest that judges changes in forks (`serving`)."""

    def __init__(self, directory: Path, paths: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                ["nice", "-n", "15", *PYTEST, "-p", "tests.mutate.serving", *paths],
                cwd=directory,
                env={**environment(directory), SOCKET: str(theirs.fileno())},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        self._lines = ours.makefile("rw")
        ours.close()
        self.tests: list[str] = json.loads(self._lines.readline() or "[]")
        """What it has collected; none where the modules cannot be loaded."""

    def ask(self, module: str, limits: Mapping[str, float]) -> dict[str, Any]:
        """The first test that fails, or takes longer than its limit in seconds."""
        asked = {"module": module, "limits": limits}
        self._lines.write(json.dumps(asked) + "\n")
        self._lines.flush()
        answer: dict[str, Any] = json.loads(self._lines.readline())
        return answer

    def close(self) -> None:
        """End it and what its tests left."""
        self._lines.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def folders(targets: Sequence[Target]) -> list[str]:
    """The tests of all of `targets`, each once."""
    found = dict.fromkeys(test for target in targets for test in (*target.tests, *EVERYWHERE))
    return [each for each in found if not any(str(up) in found for up in Path(each).parents)]


def measure(tree: Path, tests: str, to: Path) -> None:
    """Write down which lines each test runs, and which tests fail without any change."""
    if (to / "measured").exists():
        return
    to.mkdir(parents=True, exist_ok=True)
    words = ("-p", "tests.mutate.measuring", "--timeout=3600", tests)
    _pytest(tree, to, words)
    found = json.loads((to / "tests.json").read_text())
    # Some tests bound the time that something takes, and measuring slows it down.
    found["failed"] = [each for each in found["failed"] if not _pytest(tree, to, (each,))]
    (to / "tests.json").write_text(json.dumps(found))
    (to / "measured").touch()


def _pytest(tree: Path, to: Path, words: Sequence[str]) -> bool:
    command = ["nice", "-n", "15", *PYTEST, *words]
    with (to / "output").open("ab") as output:
        done = subprocess.run(
            command, cwd=tree, env={**environment(to, tree), MEASURED: str(to)}, check=False, stdout=output
        )
    return done.returncode == 0


def simulations(target: Target) -> list[tuple[str, ...]]:
    """Commands that may notice what no test does."""
    return [
        tuple(f"-m simulator {name} --tier {tier} --seeds {seeds} --jobs 1".split())
        for name, tier, seeds in target.simulations
    ]


def copy_tree(to: Path) -> None:
    """Copy what git knows of, and what it does not ignore."""
    for name in listed():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name)


def listed() -> list[str]:
    """The files of the repository."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return sorted(name for name in names.stdout.split("\0") if name and (ROOT / name).is_file())


def environment(directory: Path, tree: Path | None = None) -> dict[str, str]:
    """Of a process that works in `tree`, with temporary files in `directory`."""
    tree = tree or directory
    (directory / "tmp").mkdir(exist_ok=True)
    return {
        **os.environ,
        "PYTHONPATH": f"{tree / 'src'}:{tree}",
        "PYTHONDONTWRITEBYTECODE": "1",  # A stale one would hide the change.
        "CI": "true",  # Hypothesis draws the same examples each time.
        "TMPDIR": tempfile.mkdtemp(dir=directory / "tmp"),
    }


def ask(words: Sequence[str], directory: Path, *, seconds_max: float) -> Noticed:
    """Run Python with `words` in a copy, and end all that it started."""
    began = time.monotonic()
    with subprocess.Popen(
        ["nice", "-n", "15", sys.executable, *words],
        cwd=directory,
        env=environment(directory),
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
