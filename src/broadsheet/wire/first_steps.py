"""First steps: how long the tasks that begin in one turn of the loop may take until they first wait.

A server starts tasks while it works on a connection, and their first steps follow in the next turn. Most take
20 us; an append that closes a fragment takes a millisecond, and a hundred of them may begin together. So a
task asks for its turn before its first step. Those that come when the time is used up wait: callers take
turns, and so do the connections of one caller. Those of one connection keep their order.
Source: wire.5; access.6.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from typing import Final

from broadsheet.base.time import Instant, after
from broadsheet.wire.connection_protocol import WirePorts
from broadsheet.wire.limits import WireLimits

WOKEN_MAX: Final = 128
"""Waiting tasks that look at the clock in one turn."""

Waiter = asyncio.Future[None]


class FirstSteps:
    """The time that tasks of one server still have in this turn for their first steps."""

    def __init__(self, ports: WirePorts, limits: WireLimits) -> None:
        self._now, self._timers, self._time_max = ports.time.now, ports.timers, limits.turn_time_max
        self._ends: Instant | None = None
        """When the time of this turn is used up; None if nothing of it is."""
        self._is_armed = False
        self._waiting: dict[str, dict[object, dict[object, Waiter]]] = {}
        """By caller and connection."""

    async def turn(self, flow: str, connection: object) -> None:
        """Return in a turn that has time for a first step: this one, if nobody waits.

        Args:
            flow: the caller.
            connection: one of its connections.
        """
        if not self._waiting and self._has_time():
            return
        place = object()
        try:
            while True:
                line = self._waiting.setdefault(flow, {}).setdefault(connection, {})
                waiter = line[place] = asyncio.get_running_loop().create_future()
                self._arm()
                await waiter
                if self._has_time():
                    return
        finally:
            lines = self._waiting.pop(flow)
            line = lines.pop(connection)
            del line[place]
            if line:
                lines[connection] = line  # Behind the other connections.
            if lines:
                self._waiting[flow] = lines  # Behind the other callers.

    def check(self) -> None:
        """Assert the invariants."""
        assert self._is_armed or not self._waiting, "tasks wait, and no next turn is asked for"
        lines = [line for others in self._waiting.values() for line in (others, *others.values())]
        assert all(lines), "no empty line"

    def refresh(self) -> None:
        """Note that a turn begins. Its tasks follow in the queue of the loop."""
        self._ends = None

    def _has_time(self) -> bool:
        if self._ends is None:
            self._ends = after(self._now(), self._time_max)
            return True
        return self._now() < self._ends

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._timers.call_soon(self._next)

    def _next(self) -> None:
        self._is_armed = False
        if self._waiting:
            self.refresh()
            self._wake()
            self._arm()  # Behind those that were woken, so that it finds who still waits.

    def _wake(self) -> None:
        callers = (_in_turns(map(_asleep, lines.values())) for lines in self._waiting.values())
        for waiter in islice(_in_turns(callers), WOKEN_MAX):
            waiter.set_result(None)


def _asleep(line: dict[object, Waiter]) -> Iterator[Waiter]:
    """Those of a connection that may go on: who stands behind one that was woken and has not, must wait."""
    return takewhile(lambda waiter: not waiter.done(), line.values())


def _in_turns(lines: Iterable[Iterator[Waiter]]) -> Iterator[Waiter]:
    """The tasks that wait, in turns: the first of each line, then the second of each."""
    waiting = deque(islice(lines, WOKEN_MAX))
    while waiting:
        line = waiting.popleft()
        for waiter in line:
            yield waiter
            waiting.append(line)
            break
