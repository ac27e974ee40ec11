"""Exactly once under random deaths, sleeps, lost and late answers; planted bugs show that it can fail."""

import pytest

from tests.spark.model import search


def test_every_story_of_drivers_commits_each_row_once() -> None:
    """A thousand stories in seconds, where Spark would tell one (pipelines.10)."""
    assert search(range(400)) is None


@pytest.mark.parametrize("seed", [24_497])
def test_a_story_that_ended_wrong_once_ends_right(seed: int) -> None:
    """Seeds of bugs that were found and fixed."""
    assert search(range(seed, seed + 1)) is None


@pytest.mark.soak
def test_many_more_stories_commit_each_row_once() -> None:
    """As above, other seeds."""
    assert search(range(10_000, 110_000)) is None
