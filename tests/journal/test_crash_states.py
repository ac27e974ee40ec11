"""Every disk that a power cut may leave of a journal's short life is recovered to what was promised."""

import pytest

from tests.journal import crash_histories
from tests.mutants.planted_journal import TRIMMED_UNSYNCED

ATOMS_MAX = 10
STATES_MIN = 10_000


@pytest.mark.timeout(1200)  # A minute of CPU, which a machine that does other things may stretch.
def test_no_crash_state_loses_an_append_or_shows_one_that_was_not_made() -> None:
    """J1, J3, J6, W2, over spool, log and keys: power may fail at any write and keep any part of it."""
    count, wrong = crash_histories.search(atoms_max=ATOMS_MAX, states_max=STATES_MIN)

    assert wrong == []
    assert count >= STATES_MIN


def test_a_log_that_is_trimmed_before_the_spool_is_synced_is_caught() -> None:
    """journals.14: a checkpoint that does not sync what it lets go of loses bytes in some of the states."""
    with TRIMMED_UNSYNCED.planted():
        assert crash_histories.hunt() is not None
