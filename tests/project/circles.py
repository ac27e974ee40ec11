"""Circles of modules: who cannot be read without each other, imports for type checkers included."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

Graph = Mapping[str, Sequence[str]]


def imports_of(files: Mapping[str, Path]) -> dict[str, list[str]]:
    """Which of the modules each of them imports; the modules by their dotted names."""
    return {
        name: [each for each in dict.fromkeys(_imported(path, files)) if each != name]
        for name, path in files.items()
    }


def circles(graph: Graph) -> list[list[str]]:
    """The sets of modules that reach each other, each sorted. A graph without a circle has none.

    A module is in a circle with all that it reaches and that reach it.
    """
    reached = {name: _reached(graph, name) for name in graph}
    found: dict[tuple[str, ...], None] = {}
    for name, others in reached.items():
        circle = sorted(each for each in others if name in reached[each])
        if circle:
            found[tuple(circle)] = None
    return [list(each) for each in found]


def _reached(graph: Graph, start: str) -> dict[str, None]:
    found: dict[str, None] = {}
    left = list(graph[start])
    while left:
        name = left.pop()
        if name not in found:
            found[name] = None
            left += graph[name]
    return found


def _imported(path: Path, files: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in files)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = [f"{node.module}.{each.name}" for each in node.names]
            yield from (each for each in inner if each in files)
            if node.module in files and not all(each in files for each in inner):
                yield node.module
