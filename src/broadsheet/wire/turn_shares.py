"""Turn shares: how much of each connection's received bytes is processed in one turn of the loop.

Work is counted in units of about a microsecond: a frame costs one, and starting a task costs
`START_UNITS`. In one turn a connection has `turn_units_max` units. All connections of
a server together have four times as many, and `turn_time_max` of real time. The rest waits for the next turn,
and its connection is not read meanwhile. Started tasks also cost time in later turns. So if a whole turn
takes longer than twice `turn_time_max`, the next turn has half the units, down to the share of one
connection; when turns are short again, the units double. So turns stay short however many bytes come, and
other work (HTTP, replication, health) gets its time.

    IDLE --bytes--> working --share used up--> WAITING (fresh) --served, more left--> WAITING (stale) --> IDLE

Waiting connections are served in rotation, by caller first and then by connection, so that a caller gains
nothing by more connections. A *fresh* connection has had no share yet since its bytes came; a *stale* one has
used a share up and has more to do. While both wait, fresh and stale connections are served alternately. So an
occasional call waits behind at most one share of a flood, and the flood is not starved by many small calls.
This module reads no bytes and knows no frames. Source: RFC 8290 section 4; ADR 0151.
"""

from collections.abc import Callable
from typing import Final, Protocol

from broadsheet.base.marks import hit
from broadsheet.base.time import Instant
from broadsheet.wire.connection_protocol import WirePorts
from broadsheet.wire.limits import WireLimits

START_UNITS: Final = 32
"""Units for starting a task: decode, authorize, and the first step of its handler."""
REPLY_SHIFT: Final = 10
"""A KiB of queued answers counts as one unit, so that small requests with large answers are bounded too."""
SERVE_UNITS: Final = 32
"""Units for serving a connection, besides its frames: its answers leave in a write of their own."""
ALL: Final = 4
"""All connections together have at most so many times the units of one."""
CLOCK_UNITS: Final = 2
"""Units of work between two looks at the clock: after each call that is answered at once, because such a call
may take milliseconds, whatever it is charged."""


class Share:
    """The units and the time that one connection still has in this turn."""

    __slots__ = ("_clock", "_ends", "_looks_at", "units")

    def __init__(self, units: int, clock: Callable[[], Instant], ends: Instant) -> None:
        self.units, self._clock, self._ends = units, clock, ends
        self._looks_at = units - CLOCK_UNITS

    @property
    def is_over(self) -> bool:
        """Whether the rest of the work must wait for another turn."""
        units = self.units
        if units <= 0:
            return True
        if units <= self._looks_at:
            self._looks_at = units - CLOCK_UNITS
            if self._clock() >= self._ends:
                self.units = 0
                return True
        return False


class TurnTaker(Protocol):
    """The part of a connection that `TurnShares` uses."""

    flow: str
    """The caller: connections with the same `flow` share their turns."""
    is_waiting: bool
    """Whether the connection waits for its turn, and is not read."""

    def work(self, share: Share) -> bool:
        """Process received bytes within `share`; whether some are left."""
        ...

    def update_reading(self) -> None:
        """Read from the socket, unless the connection waits or is held back."""
        ...

    def release_buffer(self) -> None:
        """Give the receive buffer back if it is empty."""
        ...


class TurnShares:
    """The turns of all connections of one server."""

    def __init__(
        self, ports: WirePorts, limits: WireLimits, *, on_turn: Callable[[], None] = lambda: None
    ) -> None:
        """Share turns by `limits`.

        Args:
            on_turn: called when a turn begins, before the tasks that the one before has started.
        """
        self._ports, self._limits, self._on_turn = ports, limits, on_turn
        self._now: Callable[[], Instant] = ports.time.now
        self._fresh: dict[str, dict[TurnTaker, None]] = {}
        self._stale: dict[str, dict[TurnTaker, None]] = {}
        self._ends = Instant(0)
        self._was_fresh = False
        """Whether the connection that was served last was fresh: then a stale one is next."""
        self._units = 0
        """Units that all connections together still have in this turn."""
        self._turn_units = limits.turn_units_max * ALL
        """Units of a whole turn for all connections together; fewer while turns take long."""
        self._is_armed = False
        self._served: dict[TurnTaker, None] = {}
        """Connections that were served in this turn: at its end they give empty receive buffers back."""

    def enter(self, connection: TurnTaker) -> None:
        """Serve `connection`, which has received bytes or may go on: now, or when its turn comes."""
        if not self._is_armed:
            self._begin()
        if connection.is_waiting:
            return
        if self._fresh or self._stale or self._units <= 0 or self._now() >= self._ends:
            self._queue(self._fresh, connection)
        else:
            self._serve(connection)

    def forget(self, connection: TurnTaker) -> None:
        """Drop a connection that is gone."""
        if connection.is_waiting:
            connection.is_waiting = False
            for line in (self._fresh, self._stale):
                others = line.get(connection.flow)
                if others is not None and others.pop(connection, 0) is None and not others:
                    del line[connection.flow]

    def check(self) -> None:
        """Assert the invariants of the connections' turns."""
        waiting = [each for line in (self._fresh, self._stale) for flow in line.values() for each in flow]
        assert len(waiting) == len(dict.fromkeys(waiting)), "a connection waits once"
        assert all(each.is_waiting for each in waiting), "a waiting connection is marked as waiting"
        assert all(flow for line in (self._fresh, self._stale) for flow in line.values()), "no empty line"
        assert not waiting or self._is_armed, "connections wait, and no next turn is asked for"
        least = self._limits.turn_units_max
        assert least <= self._turn_units <= ALL * least, f"a turn has {self._turn_units} units"

    def _begin(self) -> None:
        """Begin a turn, and schedule the next one, which ends it."""
        self._is_armed = True
        self._units, now = self._turn_units, self._now()
        self._ends = Instant(now + self._limits.turn_time_max)
        self._ports.timers.call_soon(self._next)

    def _next(self) -> None:
        self._is_armed = False
        self._on_turn()
        self._adapt()
        served, self._served = self._served, {}
        for connection in served:
            connection.release_buffer()
        if not (self._fresh or self._stale):
            return
        self._begin()
        while (self._fresh or self._stale) and self._units > 0 and self._now() < self._ends:
            self._serve(self._first())

    def _adapt(self) -> None:
        """Halve the units after a long turn, whatever made it long; double them after a short one."""
        least, time_max = self._limits.turn_units_max, self._limits.turn_time_max
        took = self._now() - (self._ends - time_max)
        if took > 2 * time_max:
            self._turn_units = max(least, self._turn_units // 2)
        elif took < time_max:
            self._turn_units = min(ALL * least, self._turn_units * 2)

    def _first(self) -> TurnTaker:
        is_fresh = bool(self._fresh) and not (self._was_fresh and self._stale)
        line = self._fresh if is_fresh else self._stale
        self._was_fresh = is_fresh
        flow = next(iter(line))
        others = line.pop(flow)
        connection = next(iter(others))
        del others[connection]
        if others:
            line[flow] = others  # Behind the other callers.
        connection.is_waiting = False
        return connection

    def _queue(self, line: dict[str, dict[TurnTaker, None]], connection: TurnTaker) -> None:
        hit("wire.turn_waited")
        connection.is_waiting = True
        line.setdefault(connection.flow, {})[connection] = None
        connection.update_reading()

    def _serve(self, connection: TurnTaker) -> None:
        share = Share(self._limits.turn_units_max, self._now, self._ends)
        self._served[connection] = None
        has_more = connection.work(share)
        self._units -= SERVE_UNITS + self._limits.turn_units_max - max(0, share.units)
        if has_more and not connection.is_waiting:
            self._queue(self._stale, connection)
        elif not connection.is_waiting:
            connection.update_reading()
