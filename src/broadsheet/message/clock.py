"""The clock of one publisher: strictly rising, near wall time.

Units: see `uuid.Clock`. One tick is one microsecond, as in Gazette since September 2025; a publisher that
sends more than a million messages a second runs ahead of wall time. Readers assume neither. One automaton:
`update` never goes back, `tick` always rises. It reads no clock itself: the caller passes wall time.
Source: paper "Message UUIDs"; docs/protocols/messages.md.
"""

from typing import Final

from broadsheet.base.time import WallTime
from broadsheet.message.uuid import NO_CLOCK, Clock

TICK: Final = 160
UNIX_TO_GREGORIAN: Final = 122_192_928_000_000_000
"""Units of 100 ns from 1582-10-15 to 1970-01-01."""
CLOCK_MAX: Final = (1 << 64) - 1


def clock_at(wall: WallTime) -> Clock:
    """The clock of an instant, with no sequence bits."""
    return Clock((wall // 100 + UNIX_TO_GREGORIAN) << 4)


class ProducerClock:
    """What a publisher stamps its messages with."""

    def __init__(self, start: Clock = NO_CLOCK) -> None:
        self.last = start

    def update(self, wall: WallTime) -> None:
        """Catch up with wall time; where that went back, stay."""
        self.last = max(self.last, clock_at(wall))

    def tick(self, count: int = 1) -> Clock:
        """The next clock; with `count`, the first of that many, each `TICK` after the one before."""
        assert count > 0, "a tick moves"
        first = Clock(self.last + TICK)
        self.last = Clock(self.last + TICK * count)
        assert self.last <= CLOCK_MAX, "a clock is 64 bits"
        return first
