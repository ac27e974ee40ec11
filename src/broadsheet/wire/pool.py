"""Pool: one connection per address, dialled at the first request, and again when it is lost.

All callers that ask for an address during a dial wait for the same dial. The pool has no back-off:
`wire.routed` has it.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from broadsheet.base.time import Duration, in_seconds
from broadsheet.errors import BroadsheetError, LocalProtocolError, Unreachable
from broadsheet.runtime.scope import Scope
from broadsheet.wire.client import ClientConnection, dial
from broadsheet.wire.connection_protocol import WirePorts, large_slab_bytes
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.slab import SlabPool

ADDRESSES_MAX: Final = 4096
"""Connections that a pool keeps; above this, the least recently used one is closed."""


def client_closed() -> LocalProtocolError:
    """The error of a call of a closed client. It is no `Unreachable`, because no later try can succeed."""
    return LocalProtocolError("the client is closed, and nothing was sent: make another one")


class Pool:
    """A caller's connections, one for each address."""

    def __init__(
        self,
        ports: WirePorts,
        scope: Scope,
        *,
        limits: WireLimits,
        token: Callable[[], str] = str,
        node: str = "",
        cluster: str = "",
    ) -> None:
        """Dial connections with `limits`.

        Args:
            scope: owner of the dials.
            token: returns the bearer token, at each dial; the empty string means no token.
            cluster: if not empty, a node of another cluster is not accepted.
        """
        self.ports, self.limits = ports, limits
        self._scope, self._token, self._node, self._cluster = scope, token, node, cluster
        self._slabs = SlabPool(large_slab_bytes(limits))
        self._connections: dict[str, ClientConnection] = {}
        self._left: dict[ClientConnection, None] = {}
        """Connections that take no more requests, and whose open ones may still be answered."""
        self._dials: dict[str, asyncio.Future[ClientConnection]] = {}
        self.is_closed = False
        """Whether nothing is dialled any more."""
        scope.defer(self.close)

    async def connection(self, address: str, *, within: Duration | None = None) -> ClientConnection:
        """A connection to `address` that takes requests.

        Args:
            within: how long to wait for a dial; the dial itself goes on for other callers. None: no limit.

        Raises:
            Unreachable: the connection cannot be made. Nothing was sent.
            Unauthenticated: the node refuses our token.
            LocalProtocolError: the pool is closed. Nothing was sent.
        """
        known = self._connections.pop(address, None)
        if known is not None:
            self._connections[address] = known  # Now the most recently used.
            if known.is_usable:
                return known
        if self.is_closed:
            raise client_closed()
        future = self._dials.get(address)
        if future is None:
            future = self._dials[address] = asyncio.get_running_loop().create_future()
            task = self._scope.spawn(self._dial(address, future), name="dial")
            task.add_done_callback(lambda _task: self._dialled(address, future))
        if within is None:
            return await asyncio.shield(future)
        try:
            async with asyncio.timeout(in_seconds(within)):
                return await asyncio.shield(future)
        except TimeoutError:
            raise Unreachable(f"{address} was not reached in time: nothing was sent") from None

    async def close(self) -> None:
        """Close every connection; requests that are not answered become `Unknown`. Idempotent."""
        self.is_closed = True
        connections = [*self._connections.values(), *self._left]
        self._connections, self._left = {}, {}
        for connection in connections:
            await connection.close()

    def check(self) -> None:
        """Assert the invariants of each connection; true between two turns of the loop."""
        for connection in self._connections.values():
            connection.check()

    async def _dial(self, address: str, future: "asyncio.Future[ClientConnection]") -> None:
        try:
            made = await dial(
                self.ports,
                address,
                token=self._token(),
                limits=self.limits,
                node=self._node,
                cluster=self._cluster,
                pool=self._slabs,
            )
        except BroadsheetError as error:
            future.set_exception(error)
            future.exception()  # Retrieved, because every caller may have been cancelled.
        except Exception as error:
            # A bug of ours: the node crashes with it, but the callers must not wait for ever.
            future.set_exception(error)
            future.exception()
            raise
        else:
            self._keep(address, made)
            future.set_result(made)

    def _dialled(self, address: str, future: "asyncio.Future[ClientConnection]") -> None:
        """Clean up after a dial. If the task was cancelled before its first step, `_dial` never ran."""
        if self._dials.get(address) is future:
            del self._dials[address]
        if not future.done():
            future.set_exception(Unreachable(f"the client was closed while it dialled {address}"))
            future.exception()  # Whoever asked may be gone.

    def _keep(self, address: str, made: ClientConnection) -> None:
        before = self._connections.pop(address, None)
        left = self._left if before is None else {**self._left, before: None}
        self._left = {each: None for each in left if not each.is_lost}
        self._connections[address] = made
        while len(self._connections) > ADDRESSES_MAX:
            oldest = next(iter(self._connections))
            self._connections.pop(oldest).end("not asked for in a long time")
