"""Served: the accepting end of a STREAM.

What its caller may send ahead depends on its handler. One that waits for a message has a whole window, for
it takes what comes at once. One that has never received holds the first 64 KiB at most; one that is busy gets
more only while its caller's account has room. A message for a handler that takes none ends the stream.
Queued bytes count to the caller's account, and never stop its connection from being read: the handler may
wait for the very frame that would not be. Source: ADR 0152.
"""

from typing import TYPE_CHECKING, Final

from broadsheet.base.marks import hit
from broadsheet.errors import BroadsheetError, InvalidArgument
from broadsheet.wire import frame as f
from broadsheet.wire.events import MessageReceived
from broadsheet.wire.method import Method
from broadsheet.wire.stream import StreamEnd

if TYPE_CHECKING:
    from broadsheet.wire.serving import ServerConnection


ROOM_BYTES_MIN: Final = 16 << 10
"""A window with less room than this is waited for, so that small windows do not make tiny messages."""


class ServedStream(StreamEnd):
    """A handler's end of a STREAM."""

    def __init__(self, connection: "ServerConnection", stream: int, method: Method) -> None:
        super().__init__(connection, stream, window_bytes=f.INITIAL_WINDOW_BYTES)
        self.connection, self._method = connection, method

    async def room(self, wanted: int) -> int:
        """Wait until a message may be sent in this turn, and return how many bytes it may have."""
        while self._error is None:
            size = min(wanted, self._shell.base.room(self.stream))
            if size >= min(wanted, ROOM_BYTES_MIN) and self.may_leave(size):
                self.connection.server.outlet.promise(self)
                return size
            await self.writable()
        raise self._error

    def window_bytes(self) -> int:
        """The whole window if the handler waits or there is room, else what every stream begins with."""
        wide = self.connection.limits.window_bytes
        if self.is_waited_for or self.connection.backpressure.may_widen(wide):
            return wide
        hit("wire.narrow")
        return f.INITIAL_WINDOW_BYTES

    def on_message(self, event: MessageReceived) -> None:
        """A message came."""
        if not self._method.is_receiving:
            error = InvalidArgument(f"{self._method.name} takes no messages")
            self.connection.end_stream(self.stream, error)
            return
        before = self.queued_bytes
        super().on_message(event)
        self.connection.backpressure.queued(self.queued_bytes - before)

    def may_leave(self, size: int) -> bool:
        """Whether it may be sent in this turn, beside what the other streams of the server send."""
        return self.connection.server.outlet.take(self, size)

    def on_end(self, error: BroadsheetError | None) -> None:
        """The stream has ended: it sends no more."""
        self.connection.server.outlet.forget(self)
        super().on_end(error)

    def on_taken(self, size: int) -> None:
        """The handler has it now."""
        self.connection.backpressure.queued(-size)

    def close(self) -> None:
        """Nobody will take what is queued, or send."""
        self.connection.server.outlet.forget(self)
        self._queue.clear()
        self.connection.backpressure.queued(-self._queued_bytes)
        self._queued_bytes = 0
