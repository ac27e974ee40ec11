"""What the documents name exists."""

import re
from pathlib import Path

import pytest

from tests.project.rules import ROOT

DOCUMENTS = sorted(
    [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in ("README.md", "ARCHITECTURE.md"))]
)


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_each_link_leads_somewhere(document: Path) -> None:
    """A reader who follows a link to nowhere trusts the rest less."""
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text())
    lost = [each for each in links if "://" not in each and not (document.parent / each).exists()]

    assert lost == []


@pytest.mark.parametrize("document", sorted((ROOT / "docs" / "concepts").glob("life-*.md")), ids=ids)
def test_a_walk_through_the_code_names_modules_that_exist(document: Path) -> None:
    """Who moves a module finds the page that sends readers to it."""
    named = re.findall(r"\*\*`([a-z_/]+\.py)`\*\*", document.read_text())

    assert len(named) >= 8
    assert [each for each in named if not (ROOT / "src" / "broadsheet" / each).exists()] == []


@pytest.mark.parametrize("document", sorted((ROOT / "docs" / "concepts").glob("life-*.md")), ids=ids)
def test_a_walk_counts_the_files_that_it_names(document: Path) -> None:
    """A page said 18 files and named 19: the last one compares results in tests, and no message passes it."""
    walk, _, rest = document.read_text().partition("\nThat is ")
    named = dict.fromkeys(re.findall(r"\*\*`([a-z_/]+\.py)`\*\*", walk))

    assert rest.startswith(f"{len(named)} files")


def test_the_map_names_modules_that_exist() -> None:
    """A reader who does not find the room that the map shows believes the map no more."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = [each for each in re.findall(r"`([a-z_/]+\.py)`", text) if "/" in each]
    source = ROOT / "src" / "broadsheet"

    assert len(named) >= 60
    assert [each for each in named if not (source / each).exists()] == []
