"""What happens once per turn of the loop, however many events the turn brought.

Performers mark themselves dirty while effects are performed; when the turn ends each dirty one flushes once,
in rank order: logs before wires, so that a batch is on its way to the disk while its turn's replies leave.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Final

from broadsheet.ports import Timers

ROUNDS_MAX: Final = 64
"""How often flushing may make work for a flusher of the same turn, before we call it a bug."""


class Rank(IntEnum):
    """The order in which flushers run."""

    LOG = 0
    WIRE = 1


class Turn:
    """The end of the current loop turn."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._dirty: dict[Rank, dict[Callable[[], None], None]] = {rank: {} for rank in Rank}
        self._armed = False

    def at_end(self, rank: Rank, flush: Callable[[], None]) -> None:
        """Call `flush` when the turn ends; asking again in the same turn changes nothing."""
        self._dirty[rank][flush] = None
        if not self._armed:
            self._armed = True
            self._timers.call_soon(self._end)

    def _end(self) -> None:
        for _ in range(ROUNDS_MAX):
            rank = next((rank for rank in Rank if self._dirty[rank]), None)
            if rank is None:
                self._armed = False
                return
            flushers, self._dirty[rank] = self._dirty[rank], {}
            for flush in flushers:
                flush()
        raise AssertionError("flushers keep each other dirty")
