"""Turn: work that is done once per turn of the loop, however many events the turn brought.

A performer asks for a flush while effects are performed. When the turn ends, each of these flushers runs
once, in the order of ranks: logs before wires, so that a batch is being written while the turn's replies are
sent. A flusher that raises is a bug of ours.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Final

from broadsheet.ports import Timers

ROUNDS_MAX: Final = 64
"""Rounds of flushers that ask for further flushes in one turn; more are a bug."""


class Rank(IntEnum):
    """The order in which flushers run at the end of a turn."""

    LOG = 0
    WIRE = 1


class Turn:
    """The end of the current loop turn."""

    def __init__(self, timers: Timers, *, crash: Callable[[BaseException], None] | None = None) -> None:
        """Flush at the end of a turn of the loop, by `timers`.

        Args:
            crash: ends the node if a flusher raises. Without it, the error goes to the loop, and the other
                flushes of the turn are dropped.
        """
        self._timers, self._crash = timers, crash
        self._dirty: dict[Rank, dict[Callable[[], None], None]] = {rank: {} for rank in Rank}
        self._armed = False

    def at_end(self, rank: Rank, flush: Callable[[], None]) -> None:
        """Call `flush` when the turn ends; asking again in the same turn changes nothing."""
        self._dirty[rank][flush] = None
        if not self._armed:
            self._armed = True
            self._timers.call_soon(self._end)

    def end(self) -> None:
        """End the turn now, for a caller that knows that its events bring nothing more.

        Otherwise the loop might receive and process a megabyte before it runs the flushers.
        """
        try:
            self._flush()
        except Exception as error:
            for dirty in self._dirty.values():
                dirty.clear()
            if self._crash is None:
                raise
            self._crash(error)

    def _end(self) -> None:
        self._armed = False  # First: otherwise one error would prevent the flushes of all later turns.
        self.end()

    def _flush(self) -> None:
        for _ in range(ROUNDS_MAX):
            dirty = next(filter(None, self._dirty.values()), None)
            if dirty is None:
                return
            flushers = [*dirty]
            dirty.clear()
            for flush in flushers:
                flush()
        raise AssertionError("the flushers of a turn keep each other dirty")
