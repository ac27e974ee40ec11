"""Connection places: which connections a server keeps when more come than it has room for.

Connections that have not greeted (strangers) have `ungreeted_max` places of their own. If these are full, the
source with the most strangers loses its oldest silent one, or its oldest if none is silent. So a newcomer is
never turned away because others are silent. Connections that have greeted have `connections_max` places. If
these are full, the caller with the most connections loses an idle one, which has no open stream: the one
whose last request is oldest. If that caller has no idle connection, and has more connections than the
newcomer's caller, it loses a busy one. Otherwise the newcomer is refused.

The source of a connection is its remote host; `connections_per_source_max` bounds it. On loopback every
process of the machine has the same host, so there connections are counted by caller only (the bearer of the
token). This module closes nothing: it names the connection to drop. Source: wire.4; ADR 0150.
"""

from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from broadsheet.access.exposure import is_loopback
from broadsheet.base.time import Instant
from broadsheet.base.types import ConnectionId
from broadsheet.wire.limits import WireLimits

LOOKED_AT_MAX: Final = 64
"""Connections of one caller that are searched for an idle one: a full server must not scan them all."""


class Placed(Protocol):
    """The part of a connection that its place depends on."""

    connection: ConnectionId
    source: str
    """The remote host."""
    caller: str
    """The bearer of the token: connections with the same caller share its places."""
    asked_at: Instant
    """The time of the last request."""

    @property
    def has_heard(self) -> bool:
        """Whether the peer has sent anything."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether no request is open."""
        ...


C = TypeVar("C", bound=Placed)


class ConnectionPlaces(Generic[C]):
    """The connections of one server, with a place each."""

    def __init__(self, limits: WireLimits) -> None:
        self.limits = limits
        self.all: dict[ConnectionId, C] = {}
        self._strangers: dict[str, dict[ConnectionId, C]] = {}
        self._callers: dict[str, dict[ConnectionId, C]] = {}
        self._by_source: dict[str, int] = {}
        self._leaving: dict[ConnectionId, None] = {}
        """Connections that have lost their place and are not closed yet. They are kept apart, so that each of
        many newcomers in one turn of the loop costs another connection its place."""
        self.stranger_count = self.caller_count = 0

    def arrive(self, connection: C) -> tuple[str, C | None]:
        """Give a new connection, which has not greeted yet, a stranger's place.

        Returns:
            Why it is refused (empty if it is not), and the stranger that loses its place to it, if any.
        """
        source, limits = connection.source, self.limits
        from_source = self._by_source.get(source, 0)
        self.all[connection.connection] = connection
        self._by_source[source] = from_source + 1
        self._strangers.setdefault(source, {})[connection.connection] = connection
        self.stranger_count += 1
        if source and not is_loopback(source) and from_source >= limits.connections_per_source_max:
            return f"there are {limits.connections_per_source_max} connections from {source} already", None
        if self.stranger_count <= limits.ungreeted_max:
            return "", None
        crowd = max(self._strangers.values(), key=len)
        others = [each for each in crowd.values() if each is not connection]
        if not others:  # Each source has one.
            others = [each for crowd in self._strangers.values() for each in crowd.values()]
        silent = next((each for each in others if not each.has_heard), None)
        return "", self._dismissed(silent or others[0])

    def greet(self, connection: C) -> tuple[str, C | None]:
        """Give a stranger that has greeted a caller's place.

        Returns:
            Why it is refused (empty if it is not), and the connection that loses its place to it, if any.
        """
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
            # Otherwise the caller with the most connections would keep all other callers out.
            return "", self._dismissed(looked_at[0])
        for busy in looked_at:  # The next search begins behind these.
            crowd[busy.connection] = crowd.pop(busy.connection)
        return f"the node has {self.limits.connections_max} connections already, and none is idle", None

    def leave(self, connection: C) -> bool:
        """Drop a connection that is gone from its place; False if it had left before."""
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
        """Assert the invariants of a server's places."""
        strangers = [each for crowd in self._strangers.values() for each in crowd]
        callers = [each for crowd in self._callers.values() for each in crowd]
        assert len(strangers) == self.stranger_count, "strangers are counted"
        assert len(callers) == self.caller_count, "callers are counted"
        placed = [*strangers, *callers, *self._leaving]
        assert sorted(placed) == sorted(self.all), "each connection has one place, or has lost it"
        assert sum(self._by_source.values()) == len(self.all), "each connection has one source"

    def _dismissed(self, connection: C) -> C:
        self._forget(connection)
        self._leaving[connection.connection] = None
        return connection

    def _forget(self, connection: C) -> None:
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
