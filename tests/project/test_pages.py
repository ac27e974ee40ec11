"""Pages that are made from the code are what the code says."""

from broadsheet.errors import BY_STATUS, Status
from tests.project.pages import ERRORS_PAGE, errors_page


def test_the_page_of_errors_is_not_stale() -> None:
    """An operator looks an error up there; `make docs` brings it up to date."""
    assert ERRORS_PAGE.read_text() == errors_page()


def test_every_status_is_one_class() -> None:
    """A client must be able to raise what a server meant, and only that."""
    assert sorted(BY_STATUS) == [status for status in Status if status is not Status.OK]
    assert {kind.status for kind in BY_STATUS.values()} == set(BY_STATUS)
