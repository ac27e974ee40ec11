"""Turn shares: whose received bytes are worked on in this turn of the loop, and how much of them.

Work is counted in units of about a microsecond: a frame is one, a task that is started `START_UNITS`, a token
that is verified `TOKEN_UNITS`. A connection has `turn_units_max` of them at a time, all connections of a
server together four times as many, and `turn_time_max` of real time, in one turn; what is left waits for the
next turn, and its connection is not read meanwhile. What was started costs later turns more than it did to
start: while the whole of a turn takes twice as long as that, the next has half the units, down to one
connection's share, and doubles them once turns are short again. So a turn is short however much has come, and
others (HTTP, replication, health) get theirs.

    IDLE --bytes--> working --share used up--> WAITING (fresh) --served, more left--> WAITING (stale) --> IDLE

Who waits is served in rotation, by caller first and then by connection, so that a caller gains nothing by
having more connections. Callers that come fresh are served before those that had a share and want more, but
one of these in between, however many come fresh: a call now and then waits behind one share of a flood at
most, and whoever wants more is never starved by many that ask now and then.
It reads no bytes and knows no frames. Source: RFC 8290 section 4; ADR 0151.
"""

from collections.abc import Callable
from typing import Final, Protocol

from broadsheet.base.marks import hit
from broadsheet.base.time import Instant
from broadsheet.wire.connection_protocol import WirePorts
from broadsheet.wire.limits import WireLimits

START_UNITS: Final = 32
"""To start a task: decode, authorize, and its first step."""
TOKEN_UNITS: Final = 64
"""To verify a token."""
REPLY_SHIFT: Final = 10
"""A queued KiB of answers counts as a unit, so that small requests with large answers are bounded too."""
ALL: Final = 4
"""So many times what one connection has is for all together, at most."""
CLOCK_UNITS: Final = 16
"""How often the clock is looked at."""


class Share:
    """What one connection may still do in this turn."""

    __slots__ = ("_clock", "_ends", "_looks_at", "units")

    def __init__(self, units: int, clock: Callable[[], Instant], ends: Instant) -> None:
        self.units, self._clock, self._ends = units, clock, ends
        self._looks_at = units - CLOCK_UNITS

    @property
    def is_over(self) -> bool:
        """Whether the rest has to wait for another turn."""
        units = self.units
        if units <= 0:
            return True
        if units <= self._looks_at:
            self._looks_at = units - CLOCK_UNITS
            if self._clock() >= self._ends:
                self.units = 0
                return True
        return False


class Worked(Protocol):
    """A connection, as its turns see it."""

    flow: str
    """Who shares its turns."""
    is_waiting: bool
    """Whether it waits for its turn, and is not read."""

    def work(self, share: Share) -> bool:
        """Work on what was received, within `share`; whether there is more to be done."""
        ...

    def update_reading(self) -> None:
        """Be read, unless it waits or is held back."""
        ...

    def rest(self) -> None:
        """Hold no receive buffer where nothing is left in it."""
        ...


class Turns:
    """The turns of one server."""

    def __init__(self, ports: WirePorts, limits: WireLimits) -> None:
        self._ports, self._limits = ports, limits
        self._now: Callable[[], Instant] = ports.time.now
        self._fresh: dict[str, dict[Worked, None]] = {}
        self._stale: dict[str, dict[Worked, None]] = {}
        self._ends = Instant(0)
        self._was_fresh = False
        """Whether the last that was taken from a line had come fresh: then one that wants more is next."""
        self._units = 0
        """What is left of this turn for all together."""
        self._most = limits.turn_units_max * ALL
        """What a turn has for all together: less while turns take long, with what was started in them."""
        self._is_armed = False
        self._served: dict[Worked, None] = {}
        """Those that were worked on in this turn: at its end they give back what they need no more."""

    def enter(self, connection: Worked) -> None:
        """Bytes have come on `connection`, or it may go on: work on them now, or when its turn comes."""
        if not self._is_armed:
            self._begin()
        if connection.is_waiting:
            return
        if self._fresh or self._stale or self._units <= 0 or self._now() >= self._ends:
            self._queue(self._fresh, connection)
        else:
            self._serve(connection)

    def forget(self, connection: Worked) -> None:
        """It is gone."""
        if connection.is_waiting:
            connection.is_waiting = False
            for line in (self._fresh, self._stale):
                others = line.get(connection.flow)
                if others is not None and others.pop(connection, 0) is None and not others:
                    del line[connection.flow]

    def check(self) -> None:
        """Assert the invariants."""
        waiting = [each for line in (self._fresh, self._stale) for flow in line.values() for each in flow]
        assert len(waiting) == len(dict.fromkeys(waiting)), "a connection waits once"
        assert all(each.is_waiting for each in waiting), "who waits knows it"
        assert all(flow for line in (self._fresh, self._stale) for flow in line.values()), "no empty line"
        assert not waiting or self._is_armed, "who waits is served some time"
        least = self._limits.turn_units_max
        assert least <= self._most <= ALL * least, f"a turn has {self._most} units"

    def _begin(self) -> None:
        """A turn begins: the next one is asked for, so that this one ends."""
        self._is_armed = True
        self._units, now = self._most, self._now()
        self._ends = Instant(now + self._limits.turn_time_max)
        self._ports.timers.call_soon(self._next)

    def _next(self) -> None:
        self._is_armed = False
        self._adapt()
        served, self._served = self._served, {}
        for connection in served:
            connection.rest()
        if not (self._fresh or self._stale):
            return
        self._begin()
        while (self._fresh or self._stale) and self._units > 0 and self._now() < self._ends:
            self._serve(self._first())

    def _adapt(self) -> None:
        """Take on less while turns are long, whatever makes them so."""
        least, time_max = self._limits.turn_units_max, self._limits.turn_time_max
        took = self._now() - (self._ends - time_max)
        if took > 2 * time_max:
            self._most = max(least, self._most // 2)
        elif took < time_max:
            self._most = min(ALL * least, self._most * 2)

    def _first(self) -> Worked:
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

    def _queue(self, line: dict[str, dict[Worked, None]], connection: Worked) -> None:
        hit("wire.turn_waited")
        connection.is_waiting = True
        line.setdefault(connection.flow, {})[connection] = None
        connection.update_reading()

    def _serve(self, connection: Worked) -> None:
        share = Share(self._limits.turn_units_max, self._now, self._ends)
        self._served[connection] = None
        has_more = connection.work(share)
        self._units -= self._limits.turn_units_max - max(0, share.units)
        if has_more and not connection.is_waiting:
            self._queue(self._stale, connection)
        elif not connection.is_waiting:
            connection.update_reading()
