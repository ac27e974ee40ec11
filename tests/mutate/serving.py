"""Serving: a plugin of pytest that collects once, and then judges each change in a fork of its process.

Collecting takes seconds, most tests take milliseconds. A request names a module of this tree whose file has
been changed and the tests to run, in order; the answer is the first that failed, or none. What a test starts
ends with its fork.
"""

import gc
import json
import os
import select
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from hypothesis import settings

from tests.mutate.replacing import MustBeLoadedError, replace
from tests.plugins.cpu import become_subreaper

SOCKET = "BROADSHEET_MUTATE_SOCKET"
"""The number of the descriptor on which requests come."""
HANGS = "it hangs"
GRACE_SECONDS = 30
TEXT_CHARACTERS_MAX = 3000


class Serving:
    """The process that is forked."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._failed: tuple[str, str] | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Answer requests instead of running tests."""
        become_subreaper()
        items = {item.nodeid: item for item in session.items}
        source = Path.cwd() / "src"
        functions: dict[str, list[FunctionType]] = {}
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and each.__code__.co_filename.startswith(str(source)):
                functions.setdefault(each.__code__.co_filename, []).append(each)
        codes = {path: Path(path).read_text() for path in functions}
        gc.freeze()  # Forks share these pages as long as nobody counts what is in them.
        with self._requests.makefile("rw") as lines:
            lines.write(json.dumps(list(items)) + "\n")
            lines.flush()
            for line in lines:
                asked = json.loads(line)
                path = asked["module"] and str(Path.cwd() / asked["module"])
                tests = {items[name]: limit for name, limit in asked["limits"].items() if name in items}
                answer = self._fork(path, codes.get(path, ""), functions.get(path, []), tests)
                lines.write(json.dumps(answer) + "\n")
                lines.flush()
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember the first failure."""
        if report.failed and self._failed is None:
            self._failed = report.nodeid, report.longreprtext[-TEXT_CHARACTERS_MAX:]

    def _fork(
        self,
        path: str,
        code: str,
        functions: list[FunctionType],
        limits: dict[pytest.Item, float],
    ) -> dict[str, Any]:
        reader, writer = os.pipe()
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            os.setsid()
            try:
                said = self._answer(path, code, functions, limits, writer)
                os.write(writer, (json.dumps(said) + "\n").encode())
            finally:
                os._exit(0)  # Whatever happened, only the parent goes on.
        os.close(writer)
        told = b""
        patience = (
            2 * max(limits.values(), default=0) + GRACE_SECONDS
        )  # Where the limit of a test does not end it.
        while b'"is_last"' not in told and select.select([reader], [], [], patience)[0]:
            if not (piece := os.read(reader, 65536)):
                break
            told += piece
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        _end_children()
        for left in Path(tempfile.gettempdir()).iterdir():
            shutil.rmtree(left, ignore_errors=True)
        answers = [json.loads(each) for each in told.splitlines()]
        if answers and "is_last" in answers[-1]:
            last: dict[str, Any] = answers[-1]
        else:  # Killed within the test that it named last.
            running = answers[-1]["running"] if answers else ""
            last = {"test": running, "text": HANGS, "is_last": True}
        return {**last, "seconds": time.monotonic() - began}

    def _answer(
        self,
        path: str,
        code: str,
        functions: list[FunctionType],
        limits: dict[pytest.Item, float],
        writer: int,
    ) -> dict[str, Any]:
        try:
            if path:
                replace(code, Path(path).read_text(), functions)
        except (MustBeLoadedError, SyntaxError):
            return {"must_be_loaded": True, "is_last": True}
        tests = list(limits)
        for item, following in zip(tests, [*tests[1:], None], strict=True):
            item.add_marker(pytest.mark.timeout(limits[item]), append=False)
            os.write(writer, (json.dumps({"running": item.nodeid}) + "\n").encode())
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed is not None:
                return {"test": self._failed[0], "text": self._failed[1], "is_last": True}
        return {"test": None, "text": "", "is_last": True}


def _end_children() -> None:
    """End the fork and whatever it has started; orphans are ours, as their reaper."""
    own = Path(f"/proc/self/task/{os.getpid()}/children")
    while children := own.read_text().split():
        for each in children:
            with_nobody_left = int(each)
            os.kill(with_nobody_left, signal.SIGKILL)
            os.waitpid(with_nobody_left, 0)


def pytest_configure(config: pytest.Config) -> None:
    """Serve."""
    settings.register_profile("mutate", deadline=None, derandomize=True, max_examples=25, database=None)
    settings.load_profile("mutate")
    requests = socket.socket(fileno=int(os.environ[SOCKET]))
    config.pluginmanager.register(Serving(requests))
