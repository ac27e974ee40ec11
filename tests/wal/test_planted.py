"""Planted bugs of the log that take out more than one thing; the others are in `tests/mutants`."""

import pytest

from tests.mutants.planted_wal import TARGETS
from tests.wal.planted import PLANTED, caught, look

HERE = sorted(dict.fromkeys(PLANTED).keys() - TARGETS.keys())


@pytest.mark.parametrize("name", HERE)
def test_a_planted_bug_is_noticed(name: str) -> None:
    """A search that finds no planted bug would find no real one (simulation.9)."""
    assert caught(name) is not None, f"{PLANTED[name][0].__doc__} and nothing notices it"


@pytest.mark.parametrize("catcher", sorted({PLANTED[name][1] for name in HERE}))
def test_the_sound_log_passes_what_catches_planted_bugs(catcher: str) -> None:
    """What cries always is no proof either."""
    assert look(catcher) is None
