"""Caller: the calling end of the wire, as domains' clients see it, and its end of a STREAM."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from broadsheet.base.time import Duration
from broadsheet.base.types import Buffer
from broadsheet.errors import BroadsheetError, Unknown
from broadsheet.wire.answers import decode
from broadsheet.wire.events import CreditReceived, FinishReceived, MessageReceived
from broadsheet.wire.running import RunCaller
from broadsheet.wire.stream import StreamEnd

if TYPE_CHECKING:
    from broadsheet.wire.client import ClientConnection

R = TypeVar("R", bound=msgspec.Struct)


class Caller(Protocol):
    """Anything that can be called: one connection, or a route."""

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
        """One unary call: the reply's body and payload.

        Raises:
            Refused: it was not done; for sure.
            Unknown: it may have been done.
        """
        ...

    async def open(
        self, method: str, request: msgspec.Struct, *, timeout: Duration | None = None
    ) -> "ClientStream":
        """Open a STREAM."""
        ...

    async def open_run(
        self, method: str, request: msgspec.Struct, *, reply: type[R], timeout: Duration | None = None
    ) -> tuple[R, RunCaller]:
        """Open a RUN stream; returns once its target has accepted it."""
        ...


class ClientStream(StreamEnd):
    """A caller's end of a STREAM."""

    def __init__(self, connection: "ClientConnection", stream: int, method: str) -> None:
        super().__init__(connection, stream, window_bytes=connection.limits.window_bytes)
        self._connection, self._method = connection, method
        self._reply: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._has_finished = False

    @property
    def replied(self) -> "asyncio.Future[memoryview]":
        """Done when the stream has ended, with its reply or otherwise; not to be cancelled."""
        return self._reply

    def finish(self) -> None:
        """Say that no more messages will be sent. Idempotent."""
        if not self._has_finished:
            self._has_finished = True
            self._connection.base.finish(self.stream)
            self._connection.mark_dirty()

    async def reply(self, kind: type[R]) -> R:
        """The handler's reply, once it has ended; `finish` is implied.

        Raises:
            BroadsheetError: it refused, the deadline passed or the connection was lost (`Unknown`).
        """
        self.finish()
        return decode(await asyncio.shield(self._reply), kind, self._method)

    def cancel(self) -> None:
        """Withdraw; harmless when it has ended."""
        if not self._reply.done():
            self._connection.withdraw(self.stream)
            self.on_end(Unknown("cancelled by us: it may have taken effect"))

    def on_event(self, event: MessageReceived | FinishReceived | CreditReceived) -> None:
        """A frame came for it."""
        if isinstance(event, MessageReceived):
            self.on_message(event)
        elif isinstance(event, FinishReceived):
            self.on_finish()
        else:
            self.on_writable()

    def on_reply(self, body: memoryview) -> None:
        """It ended well."""
        if not self._reply.done():
            self._reply.set_result(body)
        super().on_end(None)

    def on_end(self, error: BroadsheetError | None) -> None:
        """It ended otherwise."""
        if error is not None and not self._reply.done():
            self._reply.set_exception(error)
            self._reply.exception()  # Nobody may ask for it: `receive` and `send` raise it as well.
        super().on_end(error)
