"""Server: the accepting side of the wire, over a method table.

    server = Server(ports, scope, methods, authorizer=authorizer, limits=limits, node="a")
    address = await server.listen("127.0.0.1:6640")
    await server.close()

LISTENING --close--> DRAINING (GOAWAY: new streams are refused, old ones end) --> CLOSED.
Bounds: connections, connections of one remote host, connections that have not greeted, bytes in flight.
Source: DESIGN 2, 10; reliability 5.2 S1, S5, S6.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from broadsheet.access.authorizer import Authorizer
from broadsheet.access.exposure import check_exposure, is_loopback
from broadsheet.base.types import ConnectionId
from broadsheet.ports import Listener
from broadsheet.runtime.scope import Scope
from broadsheet.wire.budget import Budget
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import Method, method_table
from broadsheet.wire.serving import ServerConnection
from broadsheet.wire.shell import WirePorts, large_slab_bytes
from broadsheet.wire.slab import SlabPool

__all__ = ["DEFAULT_LIMITS", "Counts", "Server", "WirePorts"]

DEFAULT_LIMITS: Final = WireLimits()


class Counts:
    """What has happened, for metrics to read at scrape."""

    def __init__(self) -> None:
        self.accepted = self.turned_away = self.unauthenticated = self.broken = 0
        self.calls = self.refused = self.failed = 0


class Server:
    """Accepts connections and serves a method table."""

    def __init__(
        self,
        ports: WirePorts,
        scope: Scope,
        methods: Sequence[Method],
        *,
        authorizer: Authorizer,
        limits: WireLimits = DEFAULT_LIMITS,
        node: str = "",
        cluster: str = "",
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Serve `methods`.

        Args:
            scope: owner of the handlers' tasks.
            failed: told of what a handler raised that is no answer, for the log.
        """
        self.ports, self.scope, self.authorizer, self.limits = ports, scope, authorizer, limits
        self.node, self.cluster = node, cluster
        self.table = method_table(methods)
        self.numbers = {method.name: method.number for method in self.table.values()}
        self.pool = SlabPool(large_slab_bytes(limits))
        self.budget = Budget(limits.node_in_flight_bytes_max)
        self.counts = Counts()
        self.connections: dict[ConnectionId, ServerConnection] = {}
        self._failed = failed
        self._ungreeted: dict[ConnectionId, None] = {}
        self._by_source: dict[str, int] = {}
        self._next = 0
        self._listeners: list[Listener] = []
        self._drained: asyncio.Future[None] | None = None

    async def listen(self, address: str, *, is_insecure: bool = False) -> str:
        """Bind `address`; returns it as bound.

        Raises:
            ConfigError: it is not a loopback address and `is_insecure` is false.
            OSError: it cannot be bound.
        """
        check_exposure("native", address, is_insecure=is_insecure)
        listener = await self.ports.network.listen(address, self._accept)
        self._listeners.append(listener)
        return listener.address

    async def close(self) -> None:
        """Refuse new streams, give old ones `drain_timeout` to end, then close every connection."""
        for listener in self._listeners:
            await listener.close()
        self._listeners = []
        self._drained = asyncio.get_running_loop().create_future()
        for connection in list(self.connections.values()):
            connection.leave()
        timer = self.ports.timers.call_after(self.limits.drain_timeout, self._force)
        if self.connections:
            await self._drained
        timer.cancel()

    def _accept(self) -> ServerConnection:
        self._next += 1
        return ServerConnection(self, ConnectionId(self._next))

    def _force(self) -> None:
        for connection in list(self.connections.values()):
            connection.abort("the node shut down before its streams had ended")

    # ------------------------------------------------------------------ for its connections

    def admit(self, connection: ServerConnection) -> str | None:
        """Count a new connection in; why not, where there is no room."""
        limits, source = self.limits, connection.source
        is_bounded = bool(source) and not is_loopback(source)
        from_source = self._by_source.get(source, 0)
        self.connections[connection.connection] = connection
        self._ungreeted[connection.connection] = None
        self._by_source[source] = from_source + 1
        self.counts.accepted += 1
        message = None
        if self._drained is not None:
            message = "the node is on its way out"
        elif len(self.connections) > limits.connections_max:
            message = f"the node has {limits.connections_max} connections already"
        elif is_bounded and from_source >= limits.connections_per_source_max:
            message = f"{limits.connections_per_source_max} connections from {source} already"
        elif len(self._ungreeted) > limits.ungreeted_max:
            message = f"{limits.ungreeted_max} connections have not greeted yet"
        if message is not None:
            self.counts.turned_away += 1
        return message

    def greeted(self, connection: ServerConnection) -> None:
        """It has said who it is."""
        self._ungreeted.pop(connection.connection, None)

    def depart(self, connection: ServerConnection) -> None:
        """It is gone."""
        if self.connections.pop(connection.connection, None) is None:
            return
        self._ungreeted.pop(connection.connection, None)
        left = self._by_source[connection.source] - 1
        if left:
            self._by_source[connection.source] = left
        else:
            del self._by_source[connection.source]
        if not self.connections and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def failed(self, error: BaseException) -> None:
        """A handler raised what is no answer: count it, and tell the log."""
        self.counts.failed += 1
        if self._failed is not None:
            self._failed(error)
