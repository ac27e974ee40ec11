"""What happens once per turn of the loop, however many events the turn brought.

Performers mark themselves dirty while effects are performed; when the turn ends each dirty one flushes
once, in rank order: logs before wires, so that a batch is on its way to the disk while its turn's replies
leave. A flusher that raises is our bug.
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

    def __init__(self, timers: Timers, *, crash: Callable[[BaseException], None] | None = None) -> None:
        """Flush by `timers`.

        Args:
            crash: ends the node where a flusher raises; without it the error goes to the loop, and what was
                dirty is dropped.
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
        """End the turn now: whoever calls this knows that nothing more comes of what it brought.

        The loop may receive and work on a megabyte before it comes to what was asked of its next turn.
        """
        try:
            self._flush()
        except Exception as error:
            if self._crash is None:
                raise
            self._crash(error)
        finally:
            for dirty in self._dirty.values():
                dirty.clear()

    def _end(self) -> None:
        self._armed = False  # First: else one error would silence every later turn.
        self.end()

    def _flush(self) -> None:
        for _ in range(ROUNDS_MAX):
            rank = next((rank for rank in Rank if self._dirty[rank]), None)
            if rank is None:
                return
            flushers, self._dirty[rank] = self._dirty[rank], {}
            for flush in flushers:
                flush()
        raise AssertionError("flushers keep each other dirty")
