"""Instants and durations: integer nanoseconds, never floats.

An `Instant` is a reading of the node's monotonic clock (CLOCK_BOOTTIME, so that suspended time counts).
A `WallTime` is nanoseconds since the Unix epoch; no correctness property depends on one (C3).
"""

from typing import Final, NewType

Instant = NewType("Instant", int)
"""Nanoseconds on this node's monotonic clock; comparable only within one boot of the kernel."""

Duration = NewType("Duration", int)
"""Nanoseconds between two instants; zero or positive."""

WallTime = NewType("WallTime", int)
"""Nanoseconds since 1970-01-01T00:00:00Z; may jump either way."""

MICROSECOND: Final = Duration(1_000)
MILLISECOND: Final = Duration(1_000_000)
SECOND: Final = Duration(1_000_000_000)


def after(start: Instant, delay: Duration) -> Instant:
    """The instant `delay` after `start`."""
    return Instant(start + delay)


def since(start: Instant, now: Instant) -> Duration:
    """How long after `start` it is `now`; zero where the clock was read in the other order."""
    return Duration(max(0, now - start))


def in_seconds(duration: Duration) -> float:
    """`duration` for an API that takes float seconds (asyncio, threading)."""
    return duration / SECOND
