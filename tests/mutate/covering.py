"""Covering: which tests run a line, the likeliest to notice a change first.

A test that does not run the changed line cannot notice it. Lines that only processes run which a test starts
are not seen here: for those the simulation remains.
"""

import ast
import json
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

import coverage

from tests.mutate.targets import EVERYWHERE, Target

IMPORTING = ""
"""The context of what runs while modules are imported and tests collected."""
NEARER = 0.2
"""A test in the file of the module's name counts as so much faster."""
ASKED_SECONDS_MAX = 90
"""All tests that are asked about one change, as measured; the slowest do not come to it."""


class Covering:
    """What all tests run, measured without any change."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._data: list[coverage.CoverageData] = []
        self._lines: dict[str, dict[int, frozenset[str]]] = {}
        self.seconds: dict[str, float] = {}
        self.failed: dict[str, None] = {}
        for folder in folders:
            data = coverage.CoverageData(str(folder / "lines"))
            data.read()
            self._data.append(data)
            told = json.loads((folder / "tests.json").read_text())
            self.seconds.update(told["seconds"])
            self.failed.update(dict.fromkeys(told["failed"]))

    def tests(self, target: Target, module: str, code: str, place: tuple[int, int]) -> list[str]:
        """The tests of `target` that run the statement at `place`, in the order to run them."""
        found = self._contexts(module, code, place)
        if IMPORTING in found:
            ran = frozenset[str]().union(*self._of(module).values())
            found = ran - {IMPORTING} or frozenset(self.seconds)
            found |= {each for each in self.seconds if each.startswith(EVERYWHERE)}
        stem = f"/test_{Path(module).stem}.py::"

        def order(test: str) -> tuple[float, str]:
            return self.seconds[test] * (NEARER if stem in test else 1), test

        folders = (*target.tests, *EVERYWHERE)
        asked = [each for each in found if each.startswith(folders) and each not in self.failed]
        asked.sort(key=order)
        until = accumulate(self.seconds[each] for each in asked)
        return [each for each, seconds in zip(asked, until, strict=True) if seconds <= ASKED_SECONDS_MAX]

    def is_of_loading(self, module: str, code: str, place: tuple[int, int]) -> bool:
        """Whether the statement at `place` runs while modules are loaded, so that a fork comes too late."""
        return IMPORTING in self._contexts(module, code, place)

    def _contexts(self, module: str, code: str, place: tuple[int, int]) -> frozenset[str]:
        lines, (begin, end) = self._of(module), statement(code, place)
        return frozenset[str]().union(*(lines.get(line, ()) for line in range(begin, end)))

    def _of(self, module: str) -> dict[int, frozenset[str]]:
        if module not in self._lines:
            found: dict[int, set[str]] = {}
            for data in self._data:
                for path in data.measured_files():
                    if path.endswith(f"/{module}"):
                        for line, tests in data.contexts_by_lineno(path).items():
                            found.setdefault(line, set()).update(tests)
            self._lines[module] = {line: frozenset(tests) for line, tests in found.items()}
        return self._lines[module]


def statement(code: str, place: tuple[int, int]) -> tuple[int, int]:
    """The lines `[begin, end)` of the innermost statement at `place`; of one with a body, only its head."""
    line, _ = place
    begin, end = line, line + 1
    for node in ast.walk(ast.parse(code)):  # Breadth first: the innermost comes last.
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            begin, end = node.lineno, (node.end_lineno or node.lineno) + 1
            body = getattr(node, "body", None)
            if body:
                end = max(min(end, body[0].lineno), begin + 1)
    return (begin, end) if begin <= line < end else (line, line + 1)
