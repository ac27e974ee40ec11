"""No module needs another one that needs it."""

from pathlib import Path

from tests.project.circles import circles, imports_of
from tests.project.rules import ROOT, tracked


def modules() -> dict[str, Path]:
    found = {}
    for path in tracked("src/**/*.py", "simulator/*.py", "simulator/**/*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[1:] if parts[0] == "src" else parts).removesuffix(".__init__")
        found[name] = path
    return found


def test_a_circle_is_found() -> None:
    """A check that cannot fail says nothing."""
    assert circles({"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": [], "e": ["a"]}) == [["a", "b", "c"]]
    assert circles({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def test_no_circle_of_modules() -> None:
    """Two modules that need each other are one in two files: neither can be read, moved or tested alone."""
    graph = imports_of(modules())

    assert len(graph) > 200
    assert "broadsheet.wire.server_connection" in graph["broadsheet.wire.server"]
    assert circles(graph) == []
