"""Pool: one connection per address, dialled when first wanted and again once it is gone.

Whoever asks while a dial is under way waits for the same one. There is no back-off here: `wire.routed` has
it.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from broadsheet.base.time import Duration, in_seconds
from broadsheet.errors import BroadsheetError, Unreachable
from broadsheet.runtime.scope import Scope
from broadsheet.wire.client import ClientConnection, dial
from broadsheet.wire.connection_protocol import WirePorts, large_slab_bytes
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.slab import SlabPool

ADDRESSES_MAX: Final = 4096
"""Addresses that a pool knows; above, the one that was asked for longest ago is closed."""


class Pool:
    """Connections by address."""

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
        """Dial with `limits`.

        Args:
            scope: owner of the dials.
            token: asked for the bearer token at each dial; the empty string is none.
            cluster: where not empty, only nodes of this cluster are let answer.
        """
        self.ports, self.limits = ports, limits
        self._scope, self._token, self._node, self._cluster = scope, token, node, cluster
        self._slabs = SlabPool(large_slab_bytes(limits))
        self._connections: dict[str, ClientConnection] = {}
        self._dials: dict[str, asyncio.Future[ClientConnection]] = {}
        self._is_closed = False
        scope.defer(self.close)

    async def connection(self, address: str, *, within: Duration | None = None) -> ClientConnection:
        """A connection to `address` that takes requests.

        Args:
            within: how long to wait for a dial, which goes on for others; None for as long as it takes.

        Raises:
            Unreachable: it cannot be made. Nothing was sent.
            Unauthenticated: the node does not like our token.
        """
        known = self._connections.pop(address, None)
        if known is not None:
            self._connections[address] = known  # Asked for last.
            if known.is_usable:
                return known
        if self._is_closed:
            raise Unreachable(f"the client is closed: {address} was not called")
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
        """Close every connection; what is not answered is `Unknown`. Idempotent."""
        self._is_closed = True
        connections, self._connections = self._connections, {}
        for connection in connections.values():
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
            future.exception()  # Whoever asked may be gone.
        except Exception as error:
            future.set_exception(
                error
            )  # A bug: ours to crash with, and whoever asked must not wait for ever.
            future.exception()
            raise
        else:
            self._keep(address, made)
            future.set_result(made)

    def _dialled(self, address: str, future: "asyncio.Future[ClientConnection]") -> None:
        """The dial has ended; where it was cancelled before its first step, nothing of it has run."""
        if self._dials.get(address) is future:
            del self._dials[address]
        if not future.done():
            future.set_exception(Unreachable(f"the client was closed while it dialled {address}"))
            future.exception()  # Whoever asked may be gone.

    def _keep(self, address: str, made: ClientConnection) -> None:
        self._connections[address] = made
        while len(self._connections) > ADDRESSES_MAX:
            oldest = next(iter(self._connections))
            self._connections.pop(oldest).end("not asked for in a long time")
