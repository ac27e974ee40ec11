"""ProposerTiming: how long a proposer waits and pauses, from the round trips that it has seen."""

from random import Random

import pytest
from msgspec import structs

from broadsheet.base.time import MILLISECOND, SECOND, Duration, Instant
from broadsheet.control.core.proposer_timing import DOUBLINGS_MAX, ProposerTiming
from broadsheet.control.core.settings import ProposerConfig

CONFIG = ProposerConfig(
    operation_timeout=Duration(20 * SECOND),
    resend_after=Duration(100 * MILLISECOND),
    backoff_min=Duration(10 * MILLISECOND),
    backoff_max=Duration(50 * MILLISECOND),
)


class Longest(Random):
    """Draws the greatest number that may be drawn."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        assert (start, step) == (1, 1)
        assert stop is not None
        return stop - 1


def patience(*round_trips: int) -> ProposerTiming:
    made = ProposerTiming(CONFIG, Longest())
    for took in round_trips:
        made.asked(Instant(SECOND))
        made.heard(Instant(SECOND + took))
    return made


@pytest.mark.parametrize(
    ("round_trip_ms", "pauses_ms"),
    [
        (1, [10, 20, 40, 50, 50]),
        (200, [200, 400, 800, 800, 800]),
        (4000, [4000, 8000, 10_000, 10_000]),
        (9000, [5000, 10_000, 10_000]),
    ],
)
def test_pauses_double_up_to_four_round_trips_or_half_of_an_operations_time(
    round_trip_ms: int, pauses_ms: list[int]
) -> None:
    """Longer ones outlast the operation; shorter ones than a winner needs make everybody lose again."""
    made = patience(round_trip_ms * MILLISECOND)

    assert [made.pause() // MILLISECOND for _ in pauses_ms] == pauses_ms
    made.won()
    assert made.pause() // MILLISECOND == pauses_ms[0]


@pytest.mark.parametrize(
    ("round_trip_ms", "waits_ms"),
    [
        (1, [100, 200, 400, 800, 1600, 3200, 6400, 6400]),
        (200, [400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000]),
        (9000, [5000, 10_000, 10_000, 10_000, 10_000, 10_000, 10_000, 10_000]),
    ],
)
def test_a_wait_doubles_with_each_repetition_up_to_half_of_an_operations_time(
    round_trip_ms: int, waits_ms: list[int]
) -> None:
    """A longer one ends an operation whose first message was lost."""
    made = patience(round_trip_ms * MILLISECOND)
    made.asked(Instant(0))
    waits = []
    for _ in range(DOUBLINGS_MAX + 2):
        waits.append(made.wait() // MILLISECOND)
        made.repeated()

    assert waits == waits_ms


def test_a_wait_doubles_with_each_round_that_was_given_up() -> None:
    """Over rounds until one is decided, so that it outgrows any link that an operation can bear."""
    made = patience(200 * MILLISECOND)
    made.gave_up()
    made.asked(Instant(0))
    assert made.wait() // MILLISECOND == 800
    made.asked(Instant(0))
    made.heard(Instant(100 * MILLISECOND))
    made.asked(Instant(0))
    assert made.wait() // MILLISECOND == 2 * (7 * 200 + 100) // 8


def test_pauses_from_the_shortest_one_double_sixteen_times() -> None:
    """Beyond, a shift of a small number would make a pause of years."""
    tiny = structs.replace(CONFIG, backoff_min=Duration(1))
    made = ProposerTiming(tiny, Longest())

    assert [made.pause() for _ in range(19)] == [*(1 << n for n in range(16)), 1 << 16, 1 << 16, 1 << 16][:19]
