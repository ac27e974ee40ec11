"""Method: one row of the table that stands behind a door (access.2), and what its handlers see.

A domain makes its methods in `<domain>/service.py` and offers each with `services.offer(Method, method)`;
the native door collects them. The capability check stands in front of every handler; handlers check
nothing but names that a request carries beyond its first (`Call.demand`).

Three shapes:
* UNARY: one request, one reply. A handler that is a plain `def` is called in the read itself and must be
  quick (below
  100 us); an `async def` runs as a task of the connection's scope, and is cancelled at its deadline or with
  its caller.
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

from broadsheet.access.authorizer import Authorizer
from broadsheet.access.capability import Capability
from broadsheet.access.claims import Principal
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
    """The answer to a request: a body for the codec, and payload that never meets it."""

    body: msgspec.Struct
    """Encoded as MessagePack."""
    payload: Sequence[Buffer] = ()
    """Sent as it is; owned by the wire from here on."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message of a stream, as received. Views stay valid for as long as they are referred to."""

    body: memoryview
    """MessagePack, not yet decoded; empty where the message has none."""
    payload: memoryview
    """Raw bytes."""


class WireStream(Protocol):
    """A handler's or a caller's end of a STREAM."""

    async def receive(self) -> Message | None:
        """The next message; None once the peer has said that no more will come.

        Raises:
            BroadsheetError: the stream was ended by the peer, or the connection was lost (`Unknown`).
        """
        ...

    async def send(self, body: msgspec.Struct | None = None, payload: Sequence[Buffer] = ()) -> None:
        """Send one message, waiting until the peer's window and the socket have room.

        Raises:
            TooLarge: it does not fit into a frame. Nothing was sent.
            BroadsheetError: the stream was ended by the peer, or the connection was lost (`Unknown`).
        """
        ...


class RoomyStream(WireStream, Protocol):
    """A handler's end, which can tell what may be sent now."""

    async def room(self, wanted: int) -> int:
        """Wait until a message may be sent, and return how many bytes it may have, `wanted` at most.

        Who asks before it makes a message holds none while its peer does not read.

        Raises:
            BroadsheetError: the stream was ended by the peer, or the connection was lost (`Unknown`).
        """
        ...


class Call(msgspec.Struct, frozen=True):
    """One request, as its handler sees it."""

    method: "Method"
    principal: Principal
    """Whoever calls; already allowed to use `method` on the name of the request."""
    authorizer: Authorizer
    connection: ConnectionId
    """Names the connection in events."""
    peer: str
    """The peer's address, for logs."""
    deadline: Instant | None
    """When the caller gives up; None for a stream without one."""

    def demand(self, capability: Capability, name: str) -> None:
        """Let the call go on only if its caller has `capability` on `name`, a name besides the method's own.

        Raises:
            NotAllowed: it has not.
        """
        self.authorizer.authorize(self.principal, capability, name)


class RunOpened(msgspec.Struct, frozen=True):
    """What a RUN handler returns: the reply to the opening, and who takes the runs."""

    body: msgspec.Struct
    """The reply to the opening request."""
    sink: RunSink
    """Takes the stream's runs from here on."""


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
        """Describe a method.

        Args:
            name: `noun.verb`, as logs and metrics have it.
            number: on the wire, for ever.
            capability: what the caller must have; `Capability.NONE` for any authenticated caller.
            request: how the request's body decodes; strictly where the struct forbids unknown fields.
            name_of: the name that a request is about, for the caller's grant; None where it is about no
                name, and then a caller with a narrow grant may use it all the same: show it only what
                `Call.principal` covers.
            handler: a `UnaryHandler`, `StreamHandler` or `RunHandler`, as `shape` says.
            is_receiving: of a STREAM, whether its handler takes messages; if not, a message ends it.
        """
        assert 1 <= number <= METHOD_NUMBER_MAX, f"{name}: number {number} does not fit"
        self.name, self.number, self.shape, self.capability = name, number, shape, capability
        self.request, self.name_of, self.handler = request, name_of, handler
        self.is_receiving = is_receiving
        self.is_task = iscoroutinefunction(handler)
        """Whether it outlives the read, and its payload must not pin a receive buffer."""
        self.decoder = msgspec.msgpack.Decoder(request)

    def __repr__(self) -> str:
        return f"Method({self.name!r}, number={self.number}, shape={self.shape.value})"


class Empty(msgspec.Struct, frozen=True, array_like=True):
    """A body that says nothing."""


EMPTY: Final = Empty()
"""The only one that is needed."""


def method_table(methods: Sequence[Method]) -> dict[int, Method]:
    """Methods by number; an assertion where a number or a name occurs twice."""
    table = {method.number: method for method in methods}
    assert len(table) == len(methods), "two methods have the same number"
    assert len({method.name for method in methods}) == len(methods), "two methods have the same name"
    return dict(sorted(table.items()))
