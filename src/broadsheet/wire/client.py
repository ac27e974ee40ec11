"""Client: the dialling side of the wire: one connection, and what is asked over it.

DIALLING --welcome--> READY --goaway--> LEAVING (what was asked is still answered) --> LOST. A request that
was handed to the socket and not answered is `Unknown` when the connection is lost or its time is up, never
a no; one that was not is `Unreachable`, for sure. Nothing is retried here: `wire.routed` does that.
Source: wire.10; C1, C2, C6.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from broadsheet.base.machine import Event
from broadsheet.base.marks import hit
from broadsheet.base.time import MILLISECOND, Duration, Instant, in_seconds
from broadsheet.base.types import Buffer
from broadsheet.errors import (
    BroadsheetError,
    DeadlineExceeded,
    InvalidArgument,
    ShuttingDown,
    Status,
    TooLarge,
    Unknown,
    Unreachable,
    Unsupported,
)
from broadsheet.wire import checked
from broadsheet.wire import frame as f
from broadsheet.wire.answers import decode, error_of
from broadsheet.wire.caller import Caller, ClientStream
from broadsheet.wire.connection import Kind, Phase
from broadsheet.wire.connection_protocol import ConnectionProtocol, WirePorts, large_slab_bytes
from broadsheet.wire.dialler import DiallerConnection
from broadsheet.wire.events import (
    AcknowledgedReceived,
    CreditReceived,
    FinishReceived,
    GoAwayReceived,
    MessageReceived,
    OpenedReceived,
    RefusalReceived,
    ReplyReceived,
    RunRefused,
    WelcomeReceived,
)
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.running import Acknowledged, RunCaller
from broadsheet.wire.slab import SlabPool
from broadsheet.wire.stream_slots import StreamSlots

__all__ = ["Acknowledged", "Caller", "ClientConnection", "ClientStream", "RunStream", "dial", "error_of"]

R = TypeVar("R", bound=msgspec.Struct)

RunStream = RunCaller
"""A caller's end of a RUN stream: records out, acknowledgements in."""


class ClientConnection(ConnectionProtocol):
    """One connection that we dialled."""

    base: DiallerConnection
    may_burst = True

    def __init__(self, ports: WirePorts, limits: WireLimits, address: str, pool: SlabPool) -> None:
        super().__init__(DiallerConnection(limits, now=ports.time.now()), ports, pool)
        self.address = address
        self.node = ""
        """The node's name, as it greeted."""
        self.cluster = ""
        self.methods: dict[str, int] = {}
        """What the node can do, by name."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls: dict[int, asyncio.Future[tuple[memoryview, memoryview]]] = {}
        self._streams: dict[int, ClientStream] = {}
        self._runs: dict[int, RunCaller] = {}
        self._unsent: dict[int, None] = {}
        self._waiting = StreamSlots(self)
        self._away: GoAwayReceived | None = None

    @property
    def is_usable(self) -> bool:
        """Whether it takes more requests."""
        return self.base.phase is Phase.OPEN and not self.base.is_worn_out()

    # ------------------------------------------------------------------ what users call

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
        body = _checked(method, request, timeout)
        checked.buffers(f"the payload of {method}", payload)
        timeout = self.limits.call_timeout if timeout is None else timeout
        stream, left = await self._begin(Kind.UNARY, method, body, payload, timeout)
        future = self._calls[stream] = asyncio.get_running_loop().create_future()
        timer = self.ports.timers.call_after(left, lambda: self._late(stream, future, timeout))
        try:
            answer, rest = await future
        except asyncio.CancelledError:
            self._withdraw(stream)
            raise
        finally:
            timer.cancel()
            self._calls.pop(stream, None)
        return decode(answer, reply, method), rest

    async def open(
        self, method: str, request: msgspec.Struct, *, timeout: Duration | None = None
    ) -> "ClientStream":
        """Open a STREAM. `timeout` bounds all of it, at the node; None for no bound.

        Raises:
            Refused: the connection takes no more streams.
        """
        body = _checked(method, request, timeout)
        waits = self.limits.call_timeout if timeout is None else timeout
        stream, _ = await self._begin(Kind.STREAM, method, body, (), waits, is_bounded=timeout is not None)
        end = self._streams[stream] = ClientStream(self, stream, method)
        end.grant()
        return end

    async def open_run(
        self, method: str, request: msgspec.Struct, *, reply: type[R], timeout: Duration | None = None
    ) -> tuple[R, RunCaller]:
        """Open a RUN stream; returns once its target has accepted it.

        Raises:
            Refused: it has not, for sure.
            Unknown: the connection was lost, or the time is up.
        """
        request_body = _checked(method, request, timeout)
        timeout = self.limits.call_timeout if timeout is None else timeout
        stream, left = await self._begin(Kind.RUN, method, request_body, (), timeout)
        run = self._runs[stream] = RunCaller(self, stream)
        timer = self.ports.timers.call_after(left, lambda: self._late(stream, run.opened, timeout))
        try:
            body = await run.opened
        except BaseException:
            self._runs.pop(stream, None)
            self._withdraw(stream)
            raise
        finally:
            timer.cancel()
        return decode(body, reply, method), run

    def refresh_token(self, token: str) -> None:
        """Show a newer token, before the old one expires.

        Raises:
            InvalidArgument: it is no text. Nothing was sent.
        """
        checked.text("the token", token)
        self.base.say_token(token)
        self.mark_dirty()

    async def close(self) -> None:
        """Close; what is not answered is `Unknown`. Idempotent."""
        if not self.is_lost:
            self.end("closed by us")

    def check(self) -> None:
        """Between two turns nobody waits for room that there is, and no slot is lost; under -O too."""
        if not self.is_usable or self.is_lost:
            return
        self.base.check()
        if self._waiting and self.may_begin():
            raise AssertionError("a request waits, and a stream may be opened")
        for run in self._runs.values():
            run.check()
        for stream in self.base.streams:
            owners = (self._calls, self._streams, self._runs)
            if not any(stream in each for each in owners):
                raise AssertionError(f"stream {stream} is open, and nobody has it")

    # ------------------------------------------------------------------ for streams

    def withdraw(self, stream: int) -> None:
        """Cancel a stream."""
        self._streams.pop(stream, None)
        self._runs.pop(stream, None)
        self._withdraw(stream)

    def _withdraw(self, stream: int) -> None:
        self.base.cancel(stream)
        self.mark_dirty()
        self._waiting.wake()

    def _late(self, stream: int, future: "asyncio.Future[Any]", timeout: Duration) -> None:
        """A call's time is up, at our end; the node is told, and may have done it."""
        if not future.done():
            future.set_exception(
                DeadlineExceeded(f"no answer in {timeout // MILLISECOND} ms: it may have been done")
            )
            self._withdraw(stream)

    async def _begin(
        self,
        kind: Kind,
        method: str,
        body: bytes,
        payload: Sequence[Buffer],
        timeout: Duration,
        *,
        is_bounded: bool = True,
    ) -> tuple[int, Duration]:
        """Open a stream, once there is room for it; returns it with what is left of `timeout`."""
        base = self.base
        began = self.ports.time.now()
        self.raise_if_unusable()
        number = self.methods.get(method)
        if number is None:
            raise Unsupported(f"{self.address} has no method {method}: it may be of another version")
        size = f.payload_bytes(payload)
        if not base.fits(len(body), size):
            raise TooLarge(
                f"a request of {len(body)} + {size} bytes, and {self.address} takes"
                f" {base.peer_frame_bytes_max}"
            )
        has_waited = bool(self._waiting) or not self.may_begin()
        if has_waited:
            await self._waiting.turn(began, timeout)  # Whoever is woken here uses the stream.
            self.raise_if_unusable()
        left = Duration(max(0, timeout - (self.ports.time.now() - began)))
        timeout_ms = min(max(1, left // MILLISECOND), 0xFFFF_FFFF) if is_bounded else 0
        stream = base.open(kind, number, timeout_ms=timeout_ms, body=body, payload=payload)
        self._unsent[stream] = None
        self.mark_dirty()
        if has_waited:
            self._waiting.wake()  # A socket that takes more does so for more than one.
        return stream, left

    def may_begin(self) -> bool:
        """Whether a request may be sent now: a stream may be opened, and the socket takes more."""
        return self.base.may_open() and not self.is_write_paused

    def raise_if_unusable(self) -> None:
        """Refuse where no more requests are taken.

        Raises:
            Refused: why. Nothing was sent.
        """
        if self.is_lost or self.base.phase is Phase.BROKEN:
            raise Unreachable(f"the connection to {self.address} is lost: {self.reason}")
        if self.base.phase is Phase.LEAVING:
            raise ShuttingDown(f"{self.address} takes no more requests")
        if self.base.is_worn_out():
            raise Unreachable(f"the connection to {self.address} has used up its stream numbers")

    # ------------------------------------------------------------------ Shell

    def on_events(self, events: list[Event], now: Instant) -> None:
        """Take what the connection reports, in order."""
        for event in events:
            match event:
                case ReplyReceived():
                    self._on_reply(event)
                case AcknowledgedReceived() | RunRefused():
                    if (run := self._runs.get(event.stream)) is not None:
                        run.on_answer(event)
                case MessageReceived() | FinishReceived() | CreditReceived():
                    if (end := self._streams.get(event.stream)) is not None:
                        end.on_event(event)
                case RefusalReceived():
                    self._settle(event.stream, error_of(event.status, event.message, event.hint))
                case OpenedReceived():
                    if (run := self._runs.get(event.stream)) is not None:
                        run.on_opened(self.keep(event.body))
                case _:
                    self._on_rare(event)

    def _on_rare(self, event: Event) -> None:
        match event:
            case WelcomeReceived():
                self.methods = event.welcome.methods
                self.node, self.cluster = event.welcome.node, event.welcome.cluster
                if not self.ready.done():
                    self.ready.set_result(None)
            case GoAwayReceived():
                self._on_goaway(event)
            case _:
                self.reason = self.reason or str(getattr(event, "message", ""))

    def _on_reply(self, event: ReplyReceived) -> None:
        stream = event.stream
        future = self._calls.get(stream)
        if future is not None:
            if not future.done():
                future.set_result((self.keep(event.body), self.keep(event.payload)))
        elif (end := self._streams.pop(stream, None)) is not None:
            end.on_reply(self.keep(event.body))
        elif (run := self._runs.pop(stream, None)) is not None:
            run.on_end(None)
        self._waiting.wake()

    def _on_goaway(self, event: GoAwayReceived) -> None:
        """No stream above `last_stream` was looked at: those are refused, for sure."""
        self._away = event
        self.reason = self.reason or event.message
        if not self.ready.done():
            self.ready.set_exception(error_of(event.status, event.message))
            self.end(event.message)
            return
        hit("wire.goaway")
        refusal = event.status if event.status is not Status.UNKNOWN else Status.SHUTTING_DOWN
        for stream in [each for each in self.base.streams if each > event.last_stream]:
            self.base.cancel(stream)
            self._settle(stream, error_of(refusal, event.message))
        self._waiting.wake()

    def _settle(self, stream: int, error: BroadsheetError) -> None:
        """A stream has ended with `error`."""
        future = self._calls.get(stream)
        if future is not None:
            if not future.done():
                future.set_exception(error)
        elif (end := self._streams.pop(stream, None)) is not None:
            end.on_end(error)
        elif (run := self._runs.pop(stream, None)) is not None:
            run.on_end(error)
        self._waiting.wake()

    def on_flushed(self) -> None:
        """What was queued is with the socket: from here on it may have been done."""
        self._unsent = {}

    def on_writable(self) -> None:
        """The socket takes bytes again."""
        for end in list(self._streams.values()):
            end.on_writable()
        for run in list(self._runs.values()):
            run.on_writable()
        self._waiting.wake()

    def on_lost(self) -> None:
        """Answer everything that is still open."""
        if not self.ready.done():
            self.ready.set_exception(Unreachable(f"{self.address}: {self.reason}"))
        unsent = self._unsent
        for stream in [*self._calls, *self._streams, *self._runs]:
            if stream in unsent:
                self._settle(
                    stream, Unreachable(f"{self.address} was lost before the request was sent: {self.reason}")
                )
            else:
                self._settle(stream, Unknown(f"{self.address} was lost before it answered: {self.reason}"))
        self._waiting.wake()


async def dial(
    ports: WirePorts,
    address: str,
    *,
    token: str = "",
    limits: WireLimits,
    node: str = "",
    cluster: str = "",
    pool: SlabPool | None = None,
) -> ClientConnection:
    """Connect to `address`; returns once the node has let us in.

    Raises:
        Unreachable: it did not answer within `limits.dial_timeout`, or turned the connection away.
        Unauthenticated: it does not like the token.
        InvalidArgument: `address` can be no address, or one of the others is no text.
    """
    for what, given in (("the token", token), ("the node's name", node), ("the cluster's name", cluster)):
        checked.text(what, given)
    slabs = SlabPool(large_slab_bytes(limits)) if pool is None else pool
    made: list[ClientConnection] = []

    def factory() -> ClientConnection:
        made.append(ClientConnection(ports, limits, address, slabs))
        return made[-1]

    try:
        async with asyncio.timeout(in_seconds(limits.dial_timeout)):
            await ports.network.dial(address, factory)
            made[-1].base.say_hello(token=token, node=node, cluster=cluster)
            made[-1].flush()
            await made[-1].ready
    except TimeoutError as error:
        _abort(made)
        raise Unreachable(f"{address} did not answer in {limits.dial_timeout // MILLISECOND} ms") from error
    except OSError as error:
        raise Unreachable(f"{address} cannot be reached: {error}") from error
    except UnicodeError as error:
        raise InvalidArgument(f"address {address!r} names no host: {error}") from error
    except BaseException:
        _abort(made)
        raise
    return made[-1]


def _checked(method: str, request: msgspec.Struct, timeout: Duration | None) -> bytes:
    """The body of a request, once what its caller gave is of the right types."""
    checked.text("the method", method)
    checked.timeout(timeout)
    return checked.encoded(f"the request of {method}", request)


def _abort(made: list[ClientConnection]) -> None:
    for connection in made:
        connection.abort("it was not let in")
