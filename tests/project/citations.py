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
DECISION: Final = re.compile(r"\bADR (\d{4})\b")
ELSEWHERE: Final = re.compile(
    r"\b(?:DESIGN|STYLE) \d|\breliability(?:\.md)? [0-9SWJKQFPC]\d?"
    r"|\breference/(?:gazette|spark|performance|oxia|machi)"
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


def unresolved(text: str) -> Iterator[str]:
    """Each citation in `text` that leads nowhere."""
    for number, line in enumerate(text.splitlines(), 1):
        for part, rule in RULE.findall(line):
            if f"{part}.{rule}" not in rules():
                yield f"{number}: {part}.{rule} stands in no file of docs/design"
        for decision in DECISION.findall(line):
            if decision not in decisions():
                yield f"{number}: there is no ADR {decision}"
        if outside := ELSEWHERE.search(line):
            yield f"{number}: {outside.group()!r} is not in the repository"


def complaints() -> list[str]:
    """All of them."""
    paths = [each for each in tracked("*.py", "*.md", "pyproject.toml") if each.name != "citations.py"]
    return [f"{path.relative_to(ROOT)}:{each}" for path in paths for each in unresolved(path.read_text())]


if __name__ == "__main__":
    found = complaints()
    print("\n".join(found))
    sys.exit(bool(found))
