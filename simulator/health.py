"""Health: the faults that one node's disk has at the moment.

The fault injector sets them, and the disks of both tiers obey them. Counters count down; flags and delays
(nanoseconds) last until they are healed.
"""

from collections.abc import Callable

from simulator.entropy import Draws


class Health:
    """What is wrong with one disk."""

    def __init__(self, draws: Draws | None = None) -> None:
        self._draws = draws or Draws("health")
        self.on_strike: Callable[[str], None] = _nobody
        """Told the name of a fault each time that it strikes."""
        self.may_fail_reads = False
        """Whether some fault of the plan makes reads fail: then blocking work is done where it can wait."""
        self.heal()

    def heal(self) -> None:
        """Nothing is wrong from now on; what was damaged stays damaged."""
        self.slow_ns = 0
        self.is_full = False
        self.flaps_ppm = 0
        """In a million writes that need space, how many are refused."""
        self.is_lying = False
        self.sync_errors = 0
        """How many of the next syncs fail."""
        self.read_errors = 0
        self.read_outages = 0
        """How many faults make all reads fail at present."""
        self.short_writes = 0
        self.stale_sectors = 0
        """How many of the next syncs leave one sector unwritten."""
        self.misdirected = 0
        self.operations_left: int | None = None
        """Disk operations until the power is cut in the middle of one."""

    def took(self, counter: str) -> bool:
        """Whether one of `counter` was left; it is used up now."""
        left: int = getattr(self, counter)
        if left:
            setattr(self, counter, left - 1)
            self.on_strike(counter)
        return left > 0

    def fails_read(self) -> bool:
        """Whether this read fails."""
        if self.took("read_errors"):
            return True
        if self.read_outages:
            self.on_strike("read_outages")
        return self.read_outages > 0

    def refuses(self) -> bool:
        """Whether the disk is full for this write."""
        if self.is_full:
            self.on_strike("is_full")
            return True
        if not self.flaps_ppm or not self._draws.chance(self.flaps_ppm):
            return False
        self.on_strike("flaps_ppm")
        return True

    def power_fails(self) -> bool:
        """Count one operation; whether it is the one in which the power fails."""
        if self.operations_left is None:
            return False
        self.operations_left -= 1
        if self.operations_left > 0:
            return False
        self.operations_left = None
        self.on_strike("operations_left")
        return True


def _nobody(_counter: str) -> None:
    """Nobody wants to know."""
