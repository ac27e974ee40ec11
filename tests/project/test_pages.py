"""Pages that are made from the code say what the code says."""

from pathlib import Path

import pytest

from broadsheet.errors import BY_STATUS, Status
from tests.project.pages import PAGES, configuration_page


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_is_what_the_code_says(path: Path) -> None:
    """A reference that is not compared with the code is wrong after a month. `make docs` writes it anew."""
    assert path.read_text() == PAGES[path]()


def test_each_setting_has_a_sentence() -> None:
    """A setting that only its name explains is one that nobody dares to change."""
    holes = [line for line in configuration_page().splitlines() if line.endswith("|  |")]

    assert holes == []


def test_every_status_is_one_class() -> None:
    """A client must be able to raise what a server meant, and only that (code.16)."""
    assert sorted(BY_STATUS) == [status for status in Status if status is not Status.OK]
    assert {kind.status for kind in BY_STATUS.values()} == set(BY_STATUS)
