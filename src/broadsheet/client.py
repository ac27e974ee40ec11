"""The client: one object with everything that a node offers.

    async with broadsheet.connect("127.0.0.1:6640") as client:
        await client.journals.append("events/clicks", b"...")

    with broadsheet.connect_sync("127.0.0.1:6640") as client:      # its own loop, in a thread of its own
        client.journals.append("events/clicks", b"...")

The synchronous client is in `client_sync.py`. A lost connection is dialled again by the next request; a
request that was
not sent for sure is sent again, one whose answer was lost is not (`Unknown`), unless whoever asks says that
it is idempotent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec

from broadsheet.base.time import SECOND, Duration, in_seconds
from broadsheet.base.types import Buffer
from broadsheet.client_sync import SyncClient
from broadsheet.errors import ShuttingDown, Throttled, Unknown, Unreachable
from broadsheet.journal.client import Journals
from broadsheet.runtime.caller import CallerPorts
from broadsheet.wire.client import ClientConnection, ClientStream, RunStream, dial
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.shell import WirePorts

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")

CALL_TIMEOUT: Final = Duration(30 * SECOND)
PAUSE_SECONDS_MIN: Final = 0.02
PAUSE_SECONDS_MAX: Final = 1.0


def _raise(error: BaseException) -> None:
    """A bug of ours is the caller's exception, not the end of its process."""
    raise error


class Link:
    """A `Caller` that dials its one address whenever it must."""

    def __init__(self, ports: WirePorts, address: str, *, token: str = "", limits: WireLimits) -> None:
        """Dial on first use."""
        self._ports, self._address, self._token, self._limits = ports, address, token, limits
        self._connection: ClientConnection | None = None
        self._dialling = asyncio.Lock()
        self._is_closed = False

    async def connection(self) -> ClientConnection:
        """The connection, dialled where there is none that takes requests.

        Raises:
            Unreachable: the node does not answer. Unauthenticated: it does not like the token.
        """
        async with self._dialling:
            if self._is_closed:
                raise Unreachable("the client is closed")
            if self._connection is None or not self._connection.is_usable:
                self._connection = await dial(
                    self._ports, self._address, token=self._token, limits=self._limits
                )
            return self._connection

    async def call(
        self,
        method: str,
        request: msgspec.Struct,
        payload: Sequence[Buffer] = (),
        *,
        reply: type[R],
        timeout: Duration | None = None,
        is_idempotent: bool = False,
    ) -> tuple[R, memoryview]:
        """One unary call: the reply's body and payload."""

        async def attempt(connection: ClientConnection, left: Duration) -> tuple[R, memoryview]:
            return await connection.call(method, request, payload, reply=reply, timeout=left)

        return await self._until(attempt, timeout, is_idempotent=is_idempotent)

    async def open(
        self, method: str, request: msgspec.Struct, *, timeout: Duration | None = None
    ) -> ClientStream:
        """Open a STREAM."""

        async def attempt(connection: ClientConnection, left: Duration) -> ClientStream:
            return await connection.open(method, request, timeout=None if timeout is None else left)

        return await self._until(attempt, timeout, is_idempotent=False)

    async def open_run(
        self, method: str, request: msgspec.Struct, *, reply: type[R], timeout: Duration | None = None
    ) -> tuple[R, RunStream]:
        """Open a RUN stream."""

        async def attempt(connection: ClientConnection, left: Duration) -> tuple[R, RunStream]:
            return await connection.open_run(method, request, reply=reply, timeout=left)

        return await self._until(attempt, timeout, is_idempotent=True)

    async def close(self) -> None:
        """Close; what is not answered is `Unknown`. Idempotent."""
        self._is_closed = True
        if self._connection is not None:
            await self._connection.close()

    async def _until(
        self,
        attempt: Callable[[ClientConnection, Duration], Awaitable[T]],
        timeout: Duration | None,
        *,
        is_idempotent: bool,
    ) -> T:
        """Try until it was sent, or (idempotent) answered, or the time is up."""
        within = CALL_TIMEOUT if timeout is None else timeout
        began, pause = self._ports.time.now(), PAUSE_SECONDS_MIN
        while True:
            left = Duration(within - (self._ports.time.now() - began))
            try:
                return await attempt(await self.connection(), Duration(max(1, left)))
            except (Unreachable, ShuttingDown, Throttled):
                if self._is_closed or in_seconds(left) <= pause:
                    raise
            except Unknown:
                if not is_idempotent or self._is_closed or in_seconds(left) <= pause:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)


class Client:
    """A client of a node."""

    def __init__(self, address: str, token: str | None = None) -> None:
        """Name the node; `async with` connects."""
        self._address, self._token = address, token or ""
        self._link: Link | None = None
        self._journals: Journals | None = None

    @property
    def journals(self) -> Journals:
        """Its journals."""
        assert self._journals is not None, "enter the client with `async with` first"
        return self._journals

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            Unreachable: the node does not answer. Unauthenticated: it does not like the token.
        """
        self._link = Link(CallerPorts(crash=_raise), self._address, token=self._token, limits=WireLimits())
        await self._link.connection()
        self._journals = Journals(self._link)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close. What was appended and awaited is durable."""
        link, self._link = self._link, None
        if link is not None:
            if self._journals is not None and kind is None:
                await self._journals.close()
            await link.close()


def connect(address: str, token: str | None = None) -> Client:
    """A client of the node at `address` (`host:port` of its native door), to be entered with `async with`."""
    return Client(address, token)


def connect_sync(address: str, token: str | None = None) -> SyncClient:
    """A blocking client of the node at `address`; connects at once, and again when it was lost."""
    return SyncClient(lambda: Client(address, token))
