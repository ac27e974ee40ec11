"""What the wire workload asks, is told, and what its nodes count: shared by its two halves.

Values and one counter. Source: C1, C2.
"""

import msgspec


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """One request."""

    id: str
    pause_ms: int = 0


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What was received."""

    id: str
    size: int
    crc: int


class Deeds:
    """What the nodes did, by request: it outlives them."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.given_up: dict[str, bool] = {}
        """Requests that their client gave up on purpose, and whether it was told that nothing was done."""

    def did(self, name: str) -> None:
        """Count one."""
        self.counts[name] = self.counts.get(name, 0) + 1
