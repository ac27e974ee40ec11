"""Departures: the requests of connections that are gone, which are cancelled a few in each turn of the loop.

A caller may leave with 8,000 open reads. To cancel one, and to end its task, takes some 20 us: all in one
turn held the loop for 0.15 s. They are cancelled in the order in which their connections were lost.
Source: wire.5.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from broadsheet.ports import Timers

CANCELLED_MAX: Final = 128
"""Requests that are cancelled in one turn."""


class Leaver(Protocol):
    """A connection that is gone."""

    def cancel(self, stream: int) -> None:
        """Cancel the request of `stream`, if it has not ended meanwhile."""
        ...


class Departures:
    """The requests that nobody waits for any more."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._left: deque[tuple[Leaver, int]] = deque()
        self._is_armed = False

    def add(self, connection: Leaver, streams: Iterable[int]) -> None:
        """Cancel the requests of `streams`: the first of them now."""
        self._left.extend((connection, stream) for stream in streams)
        if not self._is_armed:
            self._next()

    def check(self) -> None:
        """Assert the invariants."""
        assert self._is_armed or not self._left, "requests are left, and no next turn is asked for"

    def _next(self) -> None:
        self._is_armed = True  # A request that is cancelled may end another connection.
        for _ in range(min(CANCELLED_MAX, len(self._left))):
            connection, stream = self._left.popleft()
            connection.cancel(stream)
        self._is_armed = bool(self._left)
        if self._is_armed:
            self._timers.call_soon(self._next)
