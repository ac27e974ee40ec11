"""Client: one object with everything that a node offers.

    async with broadsheet.connect("127.0.0.1:6640") as client:
        await client.journals.append("events/clicks", b"...")

    with broadsheet.connect_sync("127.0.0.1:6640") as client:      # its own loop, in a thread of its own
        client.journals.append("events/clicks", b"...")

The synchronous client is in `client_sync.py`. The next request after a lost connection dials again. A
request that was certainly not executed is sent again. A request whose answer was lost is sent again only if
it is known to be idempotent; otherwise the call raises `Unknown`.
"""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from broadsheet.journal.client import Journals
from broadsheet.publish.publisher import PATIENCE_SECONDS, MessagePublisher
from broadsheet.runtime.caller import CallerPorts
from broadsheet.runtime.scope import Scope
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.pool import Pool, client_closed
from broadsheet.wire.routed import RetryPolicy, Routed

if TYPE_CHECKING:
    from broadsheet.consume.reader import MessageReader
    from broadsheet.message.position import Position

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
        self._ports: CallerPorts | None = None

    @property
    def journals(self) -> Journals:
        """The journals of the node."""
        assert self._journals is not None, "enter the client with `async with` first"
        return self._journals

    def publisher(self, commit_journal: str = "", *, patience: float = PATIENCE_SECONDS) -> MessagePublisher:
        """A publisher of messages, each once for readers of committed messages: enter it with `async with`.

        Args:
            commit_journal: where its transactions are decided; created if absent, and used by nothing else.
                Whoever enters a publisher with the same one takes over from the one before. Without it there
                are no transactions.
            patience: seconds for which a message may be on its way while the node is away.
        """
        journals, scope, ports = self.journals, self._scope, self._ports
        if scope is None:
            raise client_closed()
        assert ports is not None, "a client that was entered has ports"

        def spawn(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
            if scope.is_closed:
                work.close()
                raise client_closed()
            return scope.spawn(work, name=name)

        return MessagePublisher(
            journals,
            commit_journal,
            patience=patience,
            time=ports.time,
            random=ports.random("publisher"),
            spawn=spawn,
        )

    def messages(
        self,
        journal: str,
        start: "Position | int | str" = "earliest",
        *,
        is_committed: bool = True,
        block: bool = False,
        patience: float = PATIENCE_SECONDS,
    ) -> "MessageReader":
        """The messages of a journal from `start` on, each once: iterate it with `async for`.

        Args:
            start: `earliest`, `latest`, an offset, or the position of a message: then the one after it is the
                first. With an offset it is the first message that is committed above it.
            is_committed: False: also what is pending or rolled back, and repetitions, in journal order.
            block: wait at the end for more, instead of ending there.
            patience: seconds for which the node may be away.
        """
        from broadsheet.consume.reader import MessageReader  # noqa: PLC0415 - it loads numpy (node.8).

        return MessageReader(
            self.journals, journal, start, is_committed=is_committed, block=block, patience=patience
        )

    async def __aenter__(self) -> Self:
        """Connect the client.

        Raises:
            Unreachable: the node does not answer. Unauthenticated: it does not accept the token.
        """
        self._scope = Scope("client", crash=_raise)
        ports = self._ports = CallerPorts(crash=_raise)
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
        """Close the client's connection. Every append whose call returned is durable."""
        scope, self._scope = self._scope, None
        if scope is not None:
            if self._journals is not None and kind is None:
                await self._journals.close()
            await scope.close()


def connect(address: str, token: str | None = None) -> Client:
    """A client of the node at `address` (`host:port` of its native door); enter it with `async with`."""
    return Client(address, token)
