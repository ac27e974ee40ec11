"""Every planted bug of the log is noticed, and the sound log passes the same checks."""

import pytest

from tests.wal.planted import PLANTED, caught, look


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_noticed(name: str) -> None:
    """A search that finds no planted bug would find no real one."""
    assert caught(name) is not None, f"{PLANTED[name][0].__doc__} and nothing notices it"


@pytest.mark.parametrize("catcher", sorted({catcher for _, catcher in PLANTED.values()}))
def test_the_sound_log_passes_what_catches_planted_bugs(catcher: str) -> None:
    """What cries always is no proof either."""
    assert look(catcher) is None
