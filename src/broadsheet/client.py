"""Client: one object with everything that a node offers.

    async with broadsheet.connect("127.0.0.1:6640") as client:
        await client.journals.append("events/clicks", b"...")

    with broadsheet.connect_sync("127.0.0.1:6640") as client:      # its own loop, in a thread of its own
        client.journals.append("events/clicks", b"...")

The synchronous client is in `client_sync.py`. The next request after a lost connection dials again. A
request that was certainly not executed is sent again. A request whose answer was lost is sent again only if
it is known to be idempotent; otherwise the call raises `Unknown`.
"""

from types import TracebackType
from typing import Final, Self

from broadsheet.journal.client import Journals
from broadsheet.runtime.caller import CallerPorts
from broadsheet.runtime.scope import Scope
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.pool import Pool
from broadsheet.wire.routed import RetryPolicy, Routed

PATIENT: Final = RetryPolicy(attempts_max=1_000)
"""A request is bounded by its time and not by a number of attempts, so that it outlasts a node's restart."""


def _raise(error: BaseException) -> None:
    """Let a bug of this library raise in the caller, and not end the caller's process as a node's would."""
    raise error


class Client:
    """A client of a node."""

    def __init__(self, address: str, token: str | None = None) -> None:
        """Take the node's address; `async with` connects."""
        self._address, self._token = address, token or ""
        self._pool: Pool | None = None
        self._scope: Scope | None = None
        self._journals: Journals | None = None

    @property
    def journals(self) -> Journals:
        """The journals of the node."""
        assert self._journals is not None, "enter the client with `async with` first"
        return self._journals

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            Unreachable: the node does not answer. Unauthenticated: it does not accept the token.
        """
        self._scope = Scope("client", crash=_raise)
        ports = CallerPorts(crash=_raise)
        self._pool = Pool(ports, self._scope, limits=WireLimits(), token=lambda: self._token)
        try:
            await self._pool.connection(self._address)
        except BaseException:
            await self._scope.close()
            raise
        routed = Routed(self._pool, [self._address], policy=PATIENT)
        self._journals = Journals(routed, random=ports.random("journal.attempts"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the connection. Every append whose call returned is durable."""
        scope, self._scope = self._scope, None
        if scope is not None:
            if self._journals is not None and kind is None:
                await self._journals.close()
            await scope.close()


def connect(address: str, token: str | None = None) -> Client:
    """A client of the node at `address` (`host:port` of its native door); enter it with `async with`."""
    return Client(address, token)
