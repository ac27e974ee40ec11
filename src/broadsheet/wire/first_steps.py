"""First steps: how long the tasks that begin in one turn of the loop may take until they first wait.

A server starts tasks while it works on a connection, and their first steps follow in the next turn. Most take
20 us; an append that closes a fragment takes a millisecond, and a hundred of them may begin together. So a
task asks for its turn before its first step. Those that come when the time is used up wait: callers take
turns, and those of one caller keep their order.
Source: wire.5; access.6.
"""

import asyncio
from collections import deque
from typing import Final

from broadsheet.base.time import Instant, after
from broadsheet.wire.connection_protocol import WirePorts
from broadsheet.wire.limits import WireLimits

WOKEN_MAX: Final = 128
"""Waiting tasks that look at the clock in one turn."""


class FirstSteps:
    """The time that tasks of one server still have in this turn for their first steps."""

    def __init__(self, ports: WirePorts, limits: WireLimits) -> None:
        self._now, self._timers, self._time_max = ports.time.now, ports.timers, limits.turn_time_max
        self._ends: Instant | None = None
        """When the time of this turn is used up; None if nothing of it is."""
        self._is_armed = False
        self._waiting: dict[str, dict[object, asyncio.Future[None]]] = {}
        """By caller."""

    async def turn(self, flow: str) -> None:
        """Return in a turn that has time for a first step of the caller `flow`: this one, if nobody waits."""
        if not self._waiting and self._has_time():
            return
        place = object()
        try:
            while True:
                line = self._waiting.setdefault(flow, {})
                waiter = line[place] = asyncio.get_running_loop().create_future()
                self._arm()
                await waiter
                if self._has_time():
                    return
        finally:
            line = self._waiting.pop(flow)
            del line[place]
            if line:
                self._waiting[flow] = line  # Behind the other callers.

    def check(self) -> None:
        """Assert the invariants."""
        assert self._is_armed or not self._waiting, "tasks wait, and no next turn is asked for"
        assert all(self._waiting.values()), "no empty line"

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
        lines = deque(iter(line.values()) for line in self._waiting.values())
        for _ in range(WOKEN_MAX):
            if not lines:
                return
            waiter = next(lines[0], None)
            if waiter is None or waiter.done():  # Those behind one that has not gone on yet must wait.
                lines.popleft()
                continue
            waiter.set_result(None)
            lines.rotate(-1)  # One of each caller, then the second of each.
