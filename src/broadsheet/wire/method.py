"""Method: one row of the table behind a door (access.2), and the arguments of its handlers.

A domain makes its methods in `<domain>/service.py` and offers each with `services.offer(Method, method)`;
the native door collects them. The capability, and the name in the request, are checked before every handler.
One of a request without a name shows only what the caller may see (`Call.principal`).

Three shapes:
* UNARY: one request, one reply. A handler that is a plain `def` is called in the read itself and must be
  quick (below 100 us); an `async def` runs as a task of the connection's scope, and is cancelled at its
  deadline or with its caller.
* STREAM: messages both ways under flow control, then one reply. Always a task.
* RUN: the request names a target once; what follows are records, which arrive as runs (`wire.run`).

Numbers are on the wire: never reuse one. 1-15 wire and node, 16-31 metastore, 32-47 keyspace, 48-95
journals, 96-127 kv, 128-159 files.
"""

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from inspect import iscoroutinefunction
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from broadsheet.access.capability import Capability
from broadsheet.access.principal import Principal
from broadsheet.base.time import Instant
from broadsheet.base.types import Buffer, ConnectionId
from broadsheet.wire.run import RunSink

METHOD_NUMBER_MAX: Final = 0xFFFF
"""Method numbers are 1 to this."""


class Shape(Enum):
    """How requests and answers of a method flow."""

    UNARY = "unary"
    """One request, one reply."""
    STREAM = "stream"
    """Messages both ways, then one reply."""
    RUN = "run"
    """Records for one target, acknowledged in order."""


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A handler's answer to a request: a body for the codec, and payload that never meets it."""

    body: msgspec.Struct
    """Encoded as MessagePack."""
    payload: Sequence[Buffer] = ()
    """Sent as it is; the wire owns these buffers from now on."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message of a STREAM, as received. Its views stay valid as long as they are referred to."""

    body: memoryview
    """MessagePack, not yet decoded; empty if the message has no body."""
    payload: memoryview
    """Raw bytes."""


class WireStream(Protocol):
    """A handler's or a caller's end of a STREAM."""

    async def receive(self) -> Message | None:
        """The next message; None when the peer has finished the stream.

        Raises:
            BroadsheetError: the peer ended the stream, or the connection was lost (`Unknown`).
        """
        ...

    async def send(self, body: msgspec.Struct | None = None, payload: Sequence[Buffer] = ()) -> None:
        """Send one message, when the peer's window and the socket have room.

        Raises:
            TooLarge: the message does not fit into a frame. Nothing was sent.
            BroadsheetError: the peer ended the stream, or the connection was lost (`Unknown`).
        """
        ...


class RoomyStream(WireStream, Protocol):
    """A handler's end, which tells how much may be sent now."""

    async def room(self, wanted: int) -> int:
        """Wait until a message may be sent, and return how many bytes it may have, `wanted` at most.

        A handler that asks before it builds a message holds no message while its peer does not read.

        Raises:
            BroadsheetError: the peer ended the stream, or the connection was lost (`Unknown`).
        """
        ...


class KeepingStream(WireStream, Protocol):
    """A handler's end, whose handler keeps what it takes: each message counts to its caller (access.8)."""

    def keep(self, size: int) -> None:
        """Count `size` bytes of a message that is kept until the handler ends.

        Raises:
            Throttled: the handlers of this caller keep too much.
        """
        ...


class Call(msgspec.Struct, frozen=True):
    """The context of one request, for its handler."""

    method: "Method"
    principal: Principal
    """The caller, who may use `method` on the name of the request: this was checked."""
    connection: ConnectionId
    """The id of the connection, for events."""
    peer: str
    """The peer's address, for logs."""
    deadline: Instant | None
    """The time at which the caller gives up; None for a stream without a deadline."""


class RunOpened(msgspec.Struct, frozen=True):
    """The result of a RUN handler: the reply to the opening request, and the sink of the runs."""

    body: msgspec.Struct
    """The reply to the opening request."""
    sink: RunSink
    """Takes the stream's runs from now on."""
    joined_bytes_max: int = 0
    """Frames that come together and want no offset are one run up to so many bytes (ADR 0196); 0: no two."""


UnaryHandler: TypeAlias = Callable[[Call, Any, memoryview], Reply | Awaitable[Reply]]
"""(call, request, payload) to the reply. Raises a `BroadsheetError` to refuse."""
StreamHandler: TypeAlias = Callable[[Call, Any, WireStream], Awaitable[Reply]]
"""(call, request, stream) to the reply that ends the stream."""
RunHandler: TypeAlias = Callable[[Call, Any], RunOpened | Awaitable[RunOpened]]
"""(call, request) to the sink. Raises a `BroadsheetError` to refuse."""


class Method:
    """One row of the method table."""

    __slots__ = (
        "capability", "decoder", "handler", "is_receiving", "is_task", "name", "name_of", "number", "request",
        "shape",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        *,
        number: int,
        shape: Shape,
        capability: Capability,
        request: type[msgspec.Struct],
        name_of: Callable[[Any], str] | None,
        handler: Callable[..., Any],
        is_receiving: bool = True,
    ) -> None:
        """Describe a method of a door.

        Args:
            name: `noun.verb`, as in logs and metrics.
            number: its number on the wire, which never changes.
            capability: the capability that the caller needs; `Capability.NONE` for any authenticated caller.
            request: the struct of the request's body; decoded strictly if it forbids unknown fields.
            name_of: gives the name of a request, which the caller's grant must cover. None if requests have
                no name: then callers with any grant are admitted, and the handler must show them only what
                `Call.principal` covers.
            handler: a `UnaryHandler`, `StreamHandler` or `RunHandler`, according to `shape`.
            is_receiving: whether the handler of a STREAM takes messages; if not, a message ends the stream.
        """
        assert 1 <= number <= METHOD_NUMBER_MAX, f"{name}: number {number} does not fit"
        self.name, self.number, self.shape, self.capability = name, number, shape, capability
        self.request, self.name_of, self.handler = request, name_of, handler
        self.is_receiving = is_receiving
        self.is_task = iscoroutinefunction(handler)
        """Whether the handler outlives the read, so that its payload must not pin a receive buffer."""
        self.decoder = msgspec.msgpack.Decoder(request)

    def __repr__(self) -> str:
        return f"Method({self.name!r}, number={self.number}, shape={self.shape.value})"


class Empty(msgspec.Struct, frozen=True, array_like=True):
    """A body of a request or reply without fields."""


EMPTY: Final = Empty()
"""The one instance that all callers share."""


def method_table(methods: Sequence[Method]) -> dict[int, Method]:
    """Methods by number. Asserts that no number and no name occurs twice."""
    table = {method.number: method for method in methods}
    assert len(table) == len(methods), "two methods have the same number"
    assert len({method.name for method in methods}) == len(methods), "two methods have the same name"
    return dict(sorted(table.items()))
