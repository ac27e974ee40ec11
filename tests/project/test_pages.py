"""Pages that are made from the code say what the code says."""

import re
from pathlib import Path

import pytest

from broadsheet.errors import BY_STATUS, Status
from tests.project.pages import PAGES, configuration_page, python_page


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_is_what_the_code_says(path: Path) -> None:
    """A reference that is not compared with the code is wrong after a month. `make docs` writes it anew."""
    assert path.read_text() == PAGES[path]()


def test_each_setting_has_a_sentence() -> None:
    """A limit that only its name explains is one that nobody dares to change (code.22)."""
    holes = [line for line in configuration_page().splitlines() if line.endswith("|  |")]

    assert holes == []


def test_each_argument_of_a_client_call_has_a_line_of_its_own() -> None:
    """The page of `create` broke four arguments off in the middle of sentences about others."""
    calls = re.split(r"^### ", python_page(), flags=re.MULTILINE)[1:]
    strays: list[str] = []
    for call in calls:
        names = dict.fromkeys(re.findall(r"[(, ](\w+): ", call.partition("```python")[2].partition("```")[0]))
        told = call.partition("*Args*")[2].partition("*Raises*")[0].splitlines()
        lines = [line for line in told if line.startswith("* ")]
        strays += [
            line
            for line in lines
            if (found := re.match(r"\* `(\w+)`: ", line)) is None or found[1] not in names
        ]

    assert strays == []


@pytest.mark.parametrize("field", ["Commit.begin", "Chunk.data", "Registers.values", "JournalStatus.reason"])
def test_each_field_of_what_a_client_call_returns_is_listed(field: str) -> None:
    """The page named the class, and nobody could know that the data of a chunk is in `data`."""
    kind, name = field.split(".")
    section = python_page().partition(f"\n## `{kind}`\n")[2].partition("\n## ")[0]

    assert f"\n| `{name}` | " in section


def test_every_status_is_one_class() -> None:
    """A client must be able to raise what a server meant, and only that (code.16)."""
    assert sorted(BY_STATUS) == [status for status in Status if status is not Status.OK]
    assert {kind.status for kind in BY_STATUS.values()} == set(BY_STATUS)
