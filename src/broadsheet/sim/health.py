"""The health of one node's disk: what is wrong with it at the moment.

Faults set it, both tiers' disks obey it. Counters count down, flags and delays (nanoseconds) last until
they are healed. It does nothing by itself.
"""


class Health:
    """What is wrong with one disk."""

    def __init__(self) -> None:
        self.heal()

    def heal(self) -> None:
        """Nothing is wrong from now on; what was damaged stays damaged."""
        self.slow_ns = 0
        self.is_full = False
        self.is_lying = False
        self.sync_errors = 0
        """How many of the next syncs fail."""
        self.read_errors = 0
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
        return left > 0
