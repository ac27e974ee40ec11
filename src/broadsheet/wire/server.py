"""Server: the accepting side of the wire, over a method table (API; bodies follow)."""

from collections.abc import Callable, Sequence
from typing import Protocol

from broadsheet.access.authorizer import Authorizer
from broadsheet.ports import Network, Random, Time, Timers
from broadsheet.runtime.scope import Scope
from broadsheet.runtime.turn import Turn
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import Method


class WirePorts(Protocol):
    """What the wire needs of the world; `runtime.role.Ports` has it all."""

    time: Time
    timers: Timers
    network: Network
    random: Callable[[str], Random]
    turn: Turn


class Server:
    """Accepts connections and serves a method table.

    server = Server(ports, scope, methods, authorizer=authorizer, limits=limits, node="a")
    address = await server.listen("127.0.0.1:6640")
    await server.close()        # refuses new streams, lets old ones end, then closes
    """

    def __init__(
        self,
        ports: WirePorts,
        scope: Scope,
        methods: Sequence[Method],
        *,
        authorizer: Authorizer,
        limits: WireLimits = WireLimits(),
        node: str = "",
        cluster: str = "",
    ) -> None: ...

    async def listen(self, address: str, *, is_insecure: bool = False) -> str:
        """Bind `address`; returns it as bound.

        Raises:
            ConfigError: it is not a loopback address and `is_insecure` is false.
            OSError: it cannot be bound.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Refuse new streams, give old ones `drain_timeout` to end, then close every connection."""
