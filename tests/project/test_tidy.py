"""The repository keeps the rules that no linter holds (code.15)."""

import ast
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.project import rules
from tests.project.rules import ROOT, tracked


def complaints(paths: Iterable[Path], rule: Callable[[str], Iterable[str]]) -> list[str]:
    return [f"{path.relative_to(ROOT)}:{each}" for path in paths for each in rule(path.read_text())]


def tree_complaints(paths: Iterable[Path], rule: Callable[[ast.Module], Iterable[str]]) -> list[str]:
    return complaints(paths, lambda text: rule(ast.parse(text)))


def cores() -> list[Path]:
    return tracked(
        "src/broadsheet/**/core/**/*.py", "src/broadsheet/base/*.py", "src/broadsheet/message/*.py"
    )


def test_every_line_of_code_fits() -> None:
    """Two files stand side by side in a review."""
    assert complaints(tracked("*.py"), rules.long_lines) == []


def test_no_module_is_longer_than_its_noun_may_be() -> None:
    """A reader holds one noun at a time. One that is longer stays whole, and is named with its length."""
    lengths = {path: len(path.read_text().splitlines()) for path in tracked("src/**/*.py")}
    long = {str(path.relative_to(ROOT)): length for path, length in lengths.items()}

    assert {
        path: length
        for path, length in long.items()
        if length > rules.LONG_MODULES.get(path, rules.MODULE_LINES_MAX)
    } == {}


def test_no_function_is_longer_than_sixty_lines() -> None:
    """What does not fit on a screen is not read as a whole."""
    assert tree_complaints(tracked("src/**/*.py"), rules.long_functions) == []


def test_names_say_something() -> None:
    """A manager of utilities could be anything."""
    modules = [path for path in tracked("src/**/*.py") if path.stem in rules.BANNED_MODULES]

    assert modules == []
    assert tree_complaints(tracked("src/**/*.py"), rules.empty_names) == []


def test_cores_iterate_only_what_has_an_order() -> None:
    """A set's order depends on hashes: the same seed would give another run under another PYTHONHASHSEED."""
    assert tree_complaints(cores(), rules.iterated_sets) == []


def test_nothing_stands_for_something_unfinished() -> None:
    """A stub that nobody sees is a lie to whoever calls it."""
    paths = [
        path
        for path in tracked("src/**/*.py", "tests/**/*.py", "benchmarks/*.py")
        if "project" not in path.parts
    ]

    assert complaints(paths, rules.placeholders) == []


def test_no_test_is_skipped_or_mocked() -> None:
    """What cannot run here is deselected by name (`tests/plugins/needs.py`); a mock tests the mock."""
    paths = [path for path in tracked("tests/**/*.py") if "project" not in path.parts]

    assert complaints(paths, lambda text: [found.group() for found in rules.SKIP.finditer(text)]) == []


def test_every_test_says_why_it_matters() -> None:
    """The name says what is true, the docstring why anyone should care."""
    assert tree_complaints(tracked("tests/**/test_*.py"), rules.undocumented_tests) == []


def test_no_file_names_a_directory_of_one_machine() -> None:
    """What works only where it was written does not work."""
    paths = [
        path
        for path in tracked()
        if path.suffix in (".py", ".md", ".toml", ".txt", ".sh", "") and path.name != "rules.py"
    ]

    assert complaints(paths, lambda text: [found.group() for found in rules.PLACE.finditer(text)]) == []


def test_the_lock_file_has_hashes_and_no_index_address() -> None:
    """Whoever installs gets what was tested, from the index of their own choice."""
    text = (ROOT / "requirements.lock").read_text()
    pins = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]

    assert all("==" in pin for pin in pins)
    assert all(pin.endswith("\\") for pin in pins), "a pin without a hash"
    assert "://" not in text


def test_what_ci_runs_is_executable() -> None:
    """A file that lost its mode in a checkout fails where nobody looks."""
    assert (ROOT / ".ci" / "run").stat().st_mode & stat.S_IXUSR


class TestRules:
    """The rules themselves find what they are for."""

    def test_a_set_in_a_loop_is_found(self) -> None:
        """By its display, by its name, in a comprehension and in a conversion; sorting one is fine."""
        bad = "s = {1, 2}\nfor x in s: pass\n[y for y in {3}]\nlist(set(z))\nsorted(s)\nlen(s)\n"

        assert len(list(rules.iterated_sets(ast.parse(bad)))) == 3

    def test_a_placeholder_is_found_and_an_issue_is_not(self) -> None:
        """A TODO that names its issue is a plan, another is a wish."""
        assert list(rules.placeholders("x = 1  # TODO: later\n")) == ["1: TODO"]
        assert list(rules.placeholders("x = 1  # TODO(#7): later\n")) == []
