"""Clock: the clock of one publisher, which rises strictly and stays near wall time.

Units: see `uuid.Clock`. One tick is one microsecond, as in Gazette since September 2025. The clock of a
publisher that sends more than a million messages a second runs ahead of wall time. Readers rely on neither
fact. `update` never sets the clock back, and `tick` always raises it. The caller passes the wall time.
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
    """The clock of a wall time, with all sequence bits 0."""
    return Clock((wall // 100 + UNIX_TO_GREGORIAN) << 4)


class ProducerClock:
    """The clock from which a publisher stamps its messages."""

    def __init__(self, start: Clock = NO_CLOCK) -> None:
        self.last = start

    def update(self, wall: WallTime) -> None:
        """Catch up with wall time. If wall time went back, the clock keeps its value."""
        self.last = max(self.last, clock_at(wall))

    def tick(self, count: int = 1) -> Clock:
        """The next clock. With `count`, the first of that many clocks, which are `TICK` apart."""
        assert count > 0, "a tick moves"
        first = Clock(self.last + TICK)
        self.last = Clock(self.last + TICK * count)
        assert self.last <= CLOCK_MAX, "a clock is 64 bits"
        return first
