"""Server: the accepting side of the wire, over a method table.

    server = Server(ports, scope, methods, authorizer=authorizer, limits=limits, node="a")
    address = await server.listen("127.0.0.1:6640")
    await server.close()

LISTENING --close--> DRAINING (GOAWAY: new streams are refused, old ones end) --> CLOSED.
Bounds: connections, connections of one remote host, connections that have not greeted, bytes in flight.
Source: wire.4-9; access.6, access.8.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

from broadsheet.access.authorizer import Authorizer
from broadsheet.access.exposure import check_exposure, is_loopback
from broadsheet.base.types import ConnectionId
from broadsheet.ports import Listener
from broadsheet.runtime.checking import checker
from broadsheet.runtime.scope import Scope
from broadsheet.runtime.slices import Slices
from broadsheet.wire.account import Accounts
from broadsheet.wire.connection_places import ConnectionPlaces
from broadsheet.wire.connection_protocol import WirePorts, large_slab_bytes
from broadsheet.wire.first_steps import FirstSteps
from broadsheet.wire.frame import Hello
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import Method, method_table
from broadsheet.wire.send_shares import SendShares
from broadsheet.wire.server_connection import Counts, ServerConnection
from broadsheet.wire.slab import SlabPool
from broadsheet.wire.turn_shares import TurnShares

__all__ = ["DEFAULT_LIMITS", "Counts", "Server", "WirePorts"]

DEFAULT_LIMITS: Final = WireLimits()


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
        peers: Collection[str] = (),
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Serve `methods`.

        Args:
            scope: owner of the handlers' tasks.
            peers: the nodes of `cluster`.
            failed: called with an exception of a handler that is not a `BroadsheetError`, for the log.
        """
        self.ports, self.scope, self.authorizer, self.limits = ports, scope, authorizer, limits
        self.node, self.cluster, self.peers = node, cluster, peers
        self.table = method_table(methods)
        self.numbers = {method.name: method.number for method in self.table.values()}
        self.pool = SlabPool(large_slab_bytes(limits))
        self.accounts = Accounts(limits, ports.turn)
        self.first_steps = FirstSteps(ports, limits)
        self.turns = TurnShares(ports, limits, on_turn=self.first_steps.refresh)
        self.send_shares = SendShares(ports)
        self.cancellations = Slices(now=ports.time.now, is_prompt=False)
        self.counts = Counts()
        self.places = ConnectionPlaces[ServerConnection](limits)
        self.connections = self.places.all
        self.checked = checker(self.check)
        """The invariant check to call after each step; None in production."""
        self._failed = failed
        self._next = 0
        self._listeners: list[Listener] = []
        self._drained: asyncio.Future[None] | None = None

    async def listen(self, address: str, *, is_insecure: bool = False) -> str:
        """Bind the server to `address`; the address as bound, with its port.

        Raises:
            ConfigError: `address` is not on loopback, and `is_insecure` is false.
            OSError: the address cannot be bound.
        """
        check_exposure("native", address, is_insecure=is_insecure)
        listener = await self.ports.network.listen(address, self._accept)
        self._listeners.append(listener)
        return listener.address

    async def close(self) -> None:
        """Refuse new streams, let open ones end within `drain_timeout`, then close every connection."""
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

    def check(self) -> None:
        """Assert the invariants: every counted byte, task and place belongs to a connection."""
        shares = self.turns, self.send_shares, self.first_steps, self.cancellations, self.accounts
        for piece in (self.places, *shares):
            piece.check()
        for connection in self.connections.values():
            connection.check()

    def _accept(self) -> ServerConnection:
        self._next += 1
        return ServerConnection(self, ConnectionId(self._next))

    def _force(self) -> None:
        for connection in list(self.connections.values()):
            connection.abort("the node shut down before its streams had ended")

    # ------------------------------------------------------------------ for its connections

    def admit(self, connection: ServerConnection) -> str:
        """Count a new connection in; another may lose its place. Why it is refused; empty if it is not."""
        message, other = self.places.arrive(connection)
        self.counts.accepted += 1
        if self._drained is not None:
            message = "the node is shutting down"
        elif other is not None:
            self._displace(other, "others want to greet, and you have not: greet at once")
        if message:
            self.counts.turned_away += 1
        return message

    def is_peer(self, hello: Hello, source: str) -> bool:
        """Whether a dialler without a token may be taken for another node of this cluster.

        Only a dialler on this machine may. From elsewhere any process could claim to be a peer, and take the
        room that is reserved for peers (ADR 0154).
        """
        is_named = hello.node in self.peers and hello.node != self.node
        return is_named and hello.cluster == self.cluster != "" and is_loopback(source)

    def greeted(self, connection: ServerConnection) -> str:
        """Note that a connection has greeted. Why it may not stay; empty if it may."""
        message, other = self.places.greet(connection)
        if other is not None:
            self._displace(other, "the node is full, and this connection was idle: connect again when needed")
        if message:
            self.counts.turned_away += 1
        return message

    def _displace(self, connection: ServerConnection, message: str) -> None:
        self.counts.displaced += 1
        connection.dismiss(message)

    def depart(self, connection: ServerConnection) -> None:
        """Drop a connection that is gone."""
        if not self.places.leave(connection):
            return
        if not self.connections and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def failed(self, error: BaseException) -> None:
        """Count an exception of a handler that is not a `BroadsheetError`, and pass it to the log."""
        self.counts.failed += 1
        if self._failed is not None:
            self._failed(error)
