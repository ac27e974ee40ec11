"""What the repository cites, and whether a stranger who has a clone can open it.

A rule is cited by its name (`log.11`) and stands in `docs/design`; a decision by its number (`ADR 0110`).
Everything else must be public. `make check` asks this module.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from tests.project.rules import ROOT, tracked

PARTS: Final = (
    "access",
    "code",
    "control",
    "files",
    "journals",
    "kv",
    "log",
    "node",
    "pipelines",
    "simulation",
    "wire",
)
RULE: Final = re.compile(rf"(?<![\w./`-])({'|'.join(PARTS)})\.(\d+)")
DEFINED: Final = re.compile(rf"^\* \*\*({'|'.join(PARTS)})\.(\d+)\b", re.MULTILINE)
TEST: Final = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
DECISION: Final = re.compile(r"\bADR (\d{4})\b")
CITED: Final = re.compile(r"`(?:[\w/]+\.py::)?(test_\w+)`")
ELSEWHERE: Final = re.compile(
    r"\b(?:DESIGN|STYLE) \d|\breliability(?:\.md)? [0-9SWJKQFPC]\d?"
    r"|\breference/(?:gazette|spark(?!\.md)|performance|oxia|machi)"
)
"""Documents that are not in the repository."""


@cache
def rules() -> Mapping[str, str]:
    """Each rule, and the document in which it stands."""
    found = {}
    for path in sorted((ROOT / "docs" / "design").glob("*.md")):
        for part, number in DEFINED.findall(path.read_text()):
            found[f"{part}.{number}"] = path.name
    return found


@cache
def decisions() -> frozenset[str]:
    """The numbers of the decision records."""
    return frozenset(path.name[:4] for path in (ROOT / "docs" / "adr").glob("[0-9]*.md"))


@cache
def tests() -> frozenset[str]:
    """The names of all tests, and of the files that hold them."""
    paths = tracked("tests/*.py")
    return frozenset(each for path in paths for each in (path.stem, *TEST.findall(path.read_text())))


def unresolved(text: str) -> Iterator[str]:
    """Each citation in `text` that leads nowhere."""
    for number, line in enumerate(text.splitlines(), 1):
        for part, rule in RULE.findall(line):
            if f"{part}.{rule}" not in rules():
                yield f"{number}: {part}.{rule} stands in no file of docs/design"
        for decision in DECISION.findall(line):
            if decision not in decisions():
                yield f"{number}: there is no ADR {decision}"
        for test in CITED.findall(line):
            if test not in tests():
                yield f"{number}: there is no {test}"
        if outside := ELSEWHERE.search(line):
            yield f"{number}: {outside.group()!r} is not in the repository"


PLANNED: Final = frozenset(
    [
        *(f"control.{number}" for number in (*range(8, 15), *range(18, 22))),
        *(f"journals.{number}" for number in (4, 5, 16, 18, 19, 22, 26, 27, 31)),
        *(f"pipelines.{number}" for number in (12, *range(14, 18))),
    ]
)
"""Rules of parts that are not built yet; those of `kv` and `files` are none of ours yet either."""


def standing() -> list[str]:
    """The rules of what is built, part by part."""
    return [
        rule
        for rule in sorted(rules(), key=lambda rule: (rule.partition(".")[0], int(rule.partition(".")[2])))
        if rule not in PLANNED and not rule.startswith(("kv.", "files."))
    ]


@cache
def citing() -> Mapping[str, list[str]]:
    """Tests and contracts that cite a rule, by rule: `tests/x/test_y.py::test_z`, or the file alone."""
    found: dict[str, list[str]] = {}
    for path in tracked("tests/*.py", "pyproject.toml"):
        if path.stem.endswith("citations"):
            continue  # This check and its own test.
        text, name = path.read_text(), str(path.relative_to(ROOT))
        starts = [(each.start(), each.group(1)) for each in TEST.finditer(text)]
        for match in RULE.finditer(text):
            inside = [test for start, test in starts if start < match.start()]
            place = f"{name}::{inside[-1]}" if inside else name
            places = found.setdefault(f"{match.group(1)}.{match.group(2)}", [])
            if place not in places:
                places.append(place)
    return found


def complaints() -> list[str]:
    """All of them."""
    paths = [each for each in tracked("*.py", "*.md", "pyproject.toml") if each.name != "citations.py"]
    return [f"{path.relative_to(ROOT)}:{each}" for path in paths for each in unresolved(path.read_text())]


if __name__ == "__main__":
    found = complaints()
    print("\n".join(found))
    sys.exit(bool(found))
