"""Stream: one end of a STREAM: received messages in a bounded queue, sent messages under the peer's window.

At most one task receives, and at most one sends. Bytes received and not taken, plus bytes granted to the
peer, never exceed the window. Only `receive` grants more window, so a stream whose task does not receive
holds at most the first 64 KiB. It does not retry, and it keeps no copy of sent messages.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from broadsheet.base.types import Buffer
from broadsheet.errors import BroadsheetError, TooLarge
from broadsheet.wire import argument_checks
from broadsheet.wire import frame as f
from broadsheet.wire.connection_protocol import ConnectionProtocol
from broadsheet.wire.events import MessageReceived
from broadsheet.wire.inbound import COPY_BYTES_MAX
from broadsheet.wire.method import Message


class StreamEnd:
    """One end of a STREAM."""

    def __init__(self, protocol: ConnectionProtocol, stream: int, *, window_bytes: int) -> None:
        """Begin one end of `stream`; the peer is granted up to `window_bytes` in all."""
        self.stream = stream
        self._protocol, self._window_bytes = protocol, window_bytes
        self._queue: deque[tuple[Buffer, Buffer]] = deque()
        """Bodies and payloads. An entry is small, because an empty message costs the peer 64 bytes only."""
        self._queued_bytes = 0
        self._is_finished = False
        self._error: BroadsheetError | None = None
        self._receiver: asyncio.Future[None] | None = None
        self._sender: asyncio.Future[None] | None = None

    @property
    def queued_bytes(self) -> int:
        """Cost of the messages that were received and not yet taken, in bytes of window."""
        return self._queued_bytes

    @property
    def message_bytes_max(self) -> int:
        """The bytes that a message may have: the peer takes no larger frame."""
        return self._protocol.machine.peer_frame_bytes_max

    async def receive(self) -> Message | None:
        """The next message of the STREAM; None when the peer has finished it."""
        while not self._queue:
            if self._error is not None:
                raise self._error
            if self._is_finished:
                return None
            assert self._receiver is None, "one task receives from a stream"
            self._receiver = asyncio.get_running_loop().create_future()
            self.grant()
            try:
                await self._receiver
            finally:
                self._receiver = None
        body, payload = self._queue.popleft()
        cost = _cost(body, payload)
        self._queued_bytes -= cost
        self.on_taken(cost)
        if (state := self._protocol.machine.streams.get(self.stream)) is not None:
            state.untaken_bytes -= cost
            self.grant()
        return Message(body=memoryview(body), payload=memoryview(payload))

    async def send(self, body: msgspec.Struct | None = None, payload: Sequence[Buffer] = ()) -> None:
        """Send one message of the STREAM, waiting until the peer's window and the socket have room."""
        encoded = b"" if body is None else argument_checks.encoded("a message", body)
        argument_checks.buffers("a message", payload)
        size = len(encoded) + f.payload_bytes(payload)
        machine = self._protocol.machine
        if size > machine.peer_frame_bytes_max or len(encoded) > self._protocol.limits.body_bytes_max:
            raise TooLarge(
                f"a message of {size} bytes ({len(encoded)} of body) is too large: the peer takes "
                f"{machine.peer_frame_bytes_max}, with a body of {self._protocol.limits.body_bytes_max}"
            )
        while self._error is None and not (machine.may_send(self.stream, size) and self.may_leave(size)):
            await self.writable()
        if self._error is not None:
            raise self._error
        machine.send_message(self.stream, encoded, payload, size)
        self._protocol.queued(size)

    async def writable(self) -> None:
        """Wait until the window, or the socket, may have room again."""
        assert self._sender is None, "one task sends on a stream"
        self._sender = asyncio.get_running_loop().create_future()
        try:
            await self._sender
        finally:
            self._sender = None

    # ------------------------------------------------------------------ for the connection

    @property
    def is_waited_for(self) -> bool:
        """Whether a task waits for the next message, and takes it at once."""
        return self._receiver is not None

    def window_bytes(self) -> int:
        """Bytes that the peer may have sent now and that were not taken yet."""
        return self._window_bytes

    def may_leave(self, size: int) -> bool:
        """Whether a message of `size` bytes that fits into the window may be sent now.

        True if the stream has ended: then the message is dropped, and nobody would wake its sender.
        """
        protocol = self._protocol
        return not protocol.is_write_paused or self.stream not in protocol.machine.streams

    def on_taken(self, size: int) -> None:
        """Hook: a queued message was taken."""

    def grant(self) -> None:
        """Restore the peer's window when half of it is used."""
        state = self._protocol.machine.streams.get(self.stream)
        if state is None or state.has_peer_finished:
            return
        window_bytes = self.window_bytes()
        credit = window_bytes - state.untaken_bytes - state.granted
        if credit * 2 >= window_bytes:
            self._protocol.machine.grant(self.stream, credit)
            self._protocol.mark_dirty()

    def on_message(self, event: MessageReceived) -> None:
        """Queue a received message."""
        keep = self._protocol.keep
        self._queue.append((_kept(event.body, keep), _kept(event.payload, keep)))
        self._queued_bytes += _cost(event.body, event.payload)
        _wake(self._receiver)

    def on_finish(self) -> None:
        """Note that the peer sends no more."""
        self._is_finished = True
        _wake(self._receiver)

    def on_writable(self) -> None:
        """Wake the sender: the peer's window, or the socket, has room."""
        _wake(self._sender)

    def on_end(self, error: BroadsheetError | None) -> None:
        """Note that the stream has ended; messages received before can still be taken."""
        self._is_finished = True
        self._error = self._error or error
        _wake(self._receiver)
        _wake(self._sender)


def _kept(view: memoryview, keep: Callable[[memoryview], memoryview]) -> Buffer:
    """`view` in a form that outlives this read; a small one as bytes, which cost half of what a view does."""
    return bytes(view) if len(view) <= COPY_BYTES_MAX else keep(view)


def _cost(body: Buffer, payload: Buffer) -> int:
    return len(body) + len(payload) + f.MESSAGE_COST


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
