"""Connection places: which connections a server keeps when more come than it has room for.

Strangers (connections that have not greeted) have places of their own, `ungreeted_max` of them. Where these
are full, the source with the most strangers loses the oldest that has sent nothing, or else its oldest: a
newcomer is never turned away because others are silent. Callers (greeted) have `connections_max` places.
Where these are full, the caller with the most connections loses one that has no stream open, the one that
asked for nothing for the longest time; where it has none, the newcomer takes the place of a busy one of a
caller that has more connections than its own, and is refused otherwise.

The source of a connection is its remote host; `connections_per_source_max` bounds it. On loopback every
process of the machine has the same host, which tells nothing: there a connection counts to its caller only,
which is its token's bearer.
It closes nothing by itself: it names whom to drop. Source: wire.4; ADR 0150.
"""

from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from broadsheet.access.exposure import is_loopback
from broadsheet.base.time import Instant
from broadsheet.base.types import ConnectionId
from broadsheet.wire.limits import WireLimits

LOOKED_AT_MAX: Final = 64
"""Connections of one caller that are looked at to find an idle one: a full server must not scan them all."""


class Placed(Protocol):
    """A connection, as far as its place depends on it."""

    connection: ConnectionId
    source: str
    """The remote host."""
    caller: str
    """Who shares its places."""
    asked_at: Instant
    """When it last asked for something."""

    @property
    def has_heard(self) -> bool:
        """Whether its peer has sent anything."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked over it now."""
        ...


C = TypeVar("C", bound=Placed)


class Places(Generic[C]):
    """The connections of one server."""

    def __init__(self, limits: WireLimits) -> None:
        self.limits = limits
        self.all: dict[ConnectionId, C] = {}
        self._strangers: dict[str, dict[ConnectionId, C]] = {}
        self._callers: dict[str, dict[ConnectionId, C]] = {}
        self._by_source: dict[str, int] = {}
        self._leaving: dict[ConnectionId, None] = {}
        """Those that have lost their place, and are not closed yet: many newcomers may come in one turn of
        the loop, and each of them costs another one its place."""
        self.stranger_count = self.caller_count = 0

    def arrive(self, connection: C) -> tuple[str, C | None]:
        """Count a new stranger in; why not, or else which other stranger loses its place."""
        source, limits = connection.source, self.limits
        from_source = self._by_source.get(source, 0)
        self.all[connection.connection] = connection
        self._by_source[source] = from_source + 1
        self._strangers.setdefault(source, {})[connection.connection] = connection
        self.stranger_count += 1
        if source and not is_loopback(source) and from_source >= limits.connections_per_source_max:
            return f"{limits.connections_per_source_max} connections from {source} already", None
        if self.stranger_count <= limits.ungreeted_max:
            return "", None
        crowd = max(self._strangers.values(), key=len)
        others = [each for each in crowd.values() if each is not connection]
        if not others:  # Each source has one.
            others = [each for crowd in self._strangers.values() for each in crowd.values()]
        silent = next((each for each in others if not each.has_heard), None)
        return "", self._dismissed(silent or others[0])

    def greet(self, connection: C) -> tuple[str, C | None]:
        """A stranger has become a caller; why it cannot, or else which idle caller loses its place."""
        if not self._forget_stranger(connection):
            return "", None
        self._callers.setdefault(connection.caller, {})[connection.connection] = connection
        self.caller_count += 1
        if self.caller_count <= self.limits.connections_max:
            return "", None
        crowd = max(self._callers.values(), key=len)
        looked_at = [each for each in islice(crowd.values(), LOOKED_AT_MAX) if each is not connection]
        idle = [each for each in looked_at if each.is_idle]
        if idle:
            return "", self._dismissed(min(idle, key=lambda each: each.asked_at))
        if len(self._callers[connection.caller]) < len(crowd):
            return "", self._dismissed(looked_at[0])  # Else who has most would keep all others out.
        for busy in looked_at:  # The next look begins behind these.
            crowd[busy.connection] = crowd.pop(busy.connection)
        return f"the node has {self.limits.connections_max} connections already, and none is idle", None

    def leave(self, connection: C) -> bool:
        """It is gone; false where it had left before."""
        if self.all.pop(connection.connection, None) is None:
            return False
        self._leaving.pop(connection.connection, None)
        self._forget(connection)
        left = self._by_source[connection.source] - 1
        if left:
            self._by_source[connection.source] = left
        else:
            del self._by_source[connection.source]
        return True

    def check(self) -> None:
        """Assert the invariants."""
        strangers = [each for crowd in self._strangers.values() for each in crowd]
        callers = [each for crowd in self._callers.values() for each in crowd]
        assert len(strangers) == self.stranger_count, "strangers are counted"
        assert len(callers) == self.caller_count, "callers are counted"
        placed = [*strangers, *callers, *self._leaving]
        assert sorted(placed) == sorted(self.all), "each connection has one place, or has lost it"
        assert sum(self._by_source.values()) == len(self.all), "each connection has one source"

    def _dismissed(self, connection: C) -> C:
        """It has lost its place."""
        self._forget(connection)
        self._leaving[connection.connection] = None
        return connection

    def _forget(self, connection: C) -> None:
        """It has no place any more."""
        if self._forget_stranger(connection):
            return
        crowd = self._callers.get(connection.caller)
        if crowd is not None and crowd.pop(connection.connection, None) is not None:
            self.caller_count -= 1
            if not crowd:
                del self._callers[connection.caller]

    def _forget_stranger(self, connection: C) -> bool:
        crowd = self._strangers.get(connection.source)
        if crowd is None or crowd.pop(connection.connection, None) is None:
            return False
        self.stranger_count -= 1
        if not crowd:
            del self._strangers[connection.source]
        return True
