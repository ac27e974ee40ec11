"""Loop lag is what a callback waits beyond its time."""

from broadsheet.base.time import MILLISECOND, Duration, after
from broadsheet.runtime.lag import INTERVAL, LoopLag
from tests.support.hand import HandClock


def test_a_callback_that_holds_the_loop_shows_as_lag() -> None:
    """Leases and heartbeats share the loop: a slow callback is an outage."""
    clock, seen = HandClock(), list[Duration]()
    lag = LoopLag(clock, clock, seen=seen.append)
    lag.start()
    clock.advance(Duration(3 * INTERVAL))
    assert seen == [0, 0, 0]

    clock.at = after(clock.at, Duration(INTERVAL + 7 * MILLISECOND))  # Nothing could fire meanwhile.
    clock.advance(Duration(0))

    assert seen[-1] == 7 * MILLISECOND
    assert lag.worst() == 7 * MILLISECOND
    lag.close()
    assert clock.pending() == []


def test_lag_without_a_sample_is_zero() -> None:
    """A page shows it from the first second on."""
    clock = HandClock()
    lag = LoopLag(clock, clock, seen=lambda _: None)

    assert lag.worst() == 0
