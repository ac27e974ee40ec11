"""Pauses between attempts."""

from random import Random

from broadsheet.base.backoff import Backoff
from broadsheet.base.time import MILLISECOND, SECOND, Duration


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    """A node that is away for a minute is not asked twenty times a second."""
    backoff = Backoff(Duration(50 * MILLISECOND), Duration(SECOND))

    assert [backoff.next() // MILLISECOND for _ in range(7)] == [50, 100, 200, 400, 800, 1000, 1000]
    backoff.reset()
    assert backoff.pause == backoff.next() == 50 * MILLISECOND


def test_with_a_random_stream_pauses_lie_anywhere_below() -> None:
    """Callers that failed together would come back together, again and again."""
    backoff = Backoff(Duration(100), Duration(1000), random=Random(1))
    told = [(backoff.pause, backoff.next()) for _ in range(500)]

    assert all(coming == drawn for coming, drawn in told)
    assert all(0 <= pause < 1000 for pause, _ in told)
    assert len({pause for pause, _ in told}) > 250
    assert told[0][0] < 100
