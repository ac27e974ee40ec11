"""Serving: one accepted connection: requests to handlers, and their answers to the wire.

GREETING --good token--> SERVING --server leaves--> DRAINING --last stream ends--> closed. A request is
authorized before its handler sees it, here and nowhere else. Plain handlers run in the read; coroutines are
tasks of the server's scope that end by their deadline, their caller's CANCEL or the connection's loss.
Nothing that a handler raises ends the process, but an `AssertionError`.
Source: wire.4-9; access.2-8.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broadsheet.access.capability import Capability
from broadsheet.access.claims import ANYONE, Principal
from broadsheet.base.machine import Event
from broadsheet.base.marks import hit
from broadsheet.base.time import Duration, Instant, after
from broadsheet.base.types import Buffer, ConnectionId
from broadsheet.errors import (
    BroadsheetError,
    Cancelled,
    Refused,
    Status,
    Unauthenticated,
    Unknown,
)
from broadsheet.ports import Transport
from broadsheet.wire import frame as f
from broadsheet.wire.admission import Asked, Refusal, admit
from broadsheet.wire.backpressure import Backpressure
from broadsheet.wire.columns import U32Column, render_rows
from broadsheet.wire.connection import Phase
from broadsheet.wire.connection_protocol import ConnectionProtocol
from broadsheet.wire.events import (
    Broken,
    CallReceived,
    CallsReceived,
    CancelReceived,
    CreditReceived,
    FinishReceived,
    GoAwayReceived,
    HelloReceived,
    MessageReceived,
    OpenReceived,
    RecordsReceived,
    TokenReceived,
)
from broadsheet.wire.inbound import LARGE_FRAME_BYTES
from broadsheet.wire.listener import ListenerConnection
from broadsheet.wire.method import Call, Method, Reply, RunOpened, Shape
from broadsheet.wire.request_tasks import RequestTasks
from broadsheet.wire.rows import serve_calls
from broadsheet.wire.runs import Runs
from broadsheet.wire.served import ServedStream
from broadsheet.wire.turns import REPLY_SHIFT, TOKEN_UNITS, Share
from broadsheet.wire.witness import Witness

if TYPE_CHECKING:
    from broadsheet.wire.server import Server

LOOKS: Final = Capability.LIST | Capability.READ  # What changes nothing.


class ServerConnection(ConnectionProtocol):
    """One connection that was accepted."""

    base: ListenerConnection

    def __init__(self, server: "Server", connection: ConnectionId) -> None:
        super().__init__(
            ListenerConnection(server.limits, now=server.ports.time.now()), server.ports, server.pool
        )
        self.server, self.connection = server, connection
        self.peer = ""
        self.source = ""
        """The remote host."""
        self.caller = ""
        """Who shares its places and turns: the bearer of the token; without tokens, the remote host."""
        self.asked_at = self.base.heard_at
        """When it last asked for something."""
        self.principal = ANYONE
        self._expelled: Principal | None = None  # Its streams have ended with its token.
        self.flow = f"#{connection}"
        """Who shares its turns and bytes: the bearer of the token, a peer, or else the remote host."""
        self.is_waiting = False
        """Whether it waits for its turn, and is not read."""
        self.share: Share | None = None
        """What it may still do in this turn, while it is worked on."""
        self._pending: list[Event] = []
        """What was taken from the bytes and waits for the next turn."""
        self._is_reading = True
        self._torn_since = self.base.heard_at
        self._witness = Witness(self)
        self.backpressure = Backpressure(self)
        self.works = RequestTasks(self)
        self.streams: dict[int, ServedStream] = {}
        self.runs = Runs(self)

    # ------------------------------------------------------------------ Shell

    def connection_made(self, transport: Transport) -> None:
        """The connection stands, if there is room for it."""
        super().connection_made(transport)
        info: Callable[[str], Any] | None = getattr(transport, "get_extra_info", None)
        name = info("peername") if info is not None else None
        if isinstance(name, tuple) and len(name) >= 2:
            self.source, self.peer = str(name[0]), f"{name[0]}:{name[1]}"
        if message := self.server.admit(self):
            self.dismiss(message)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked over it now."""
        return not self.base.streams and not self._pending

    @property
    def has_pending(self) -> bool:
        """Whether something was taken from the bytes and is not looked at yet."""
        return bool(self._pending or self.base.events)

    @property
    def queued_bytes(self) -> int:
        """Of messages that wait for handlers."""
        return sum([stream.queued_bytes for stream in self.streams.values()])

    @property
    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        return self.transport is None or self.transport.is_closing()

    def dismiss(self, message: str) -> None:
        """Have it no longer: others need its place."""
        self.base.fail(Status.THROTTLED, message)
        self.take_events(self.ports.time.now())

    def on_received(self) -> None:
        """Bytes have come: they are worked on when it is this connection's turn."""
        self.server.turns.enter(self)

    def work(self, share: Share) -> bool:
        """Work on what was received, within `share`; whether there is more to be done."""
        now, inbound = self.ports.time.now(), self._inbound
        self.share = share
        while not (share.is_over or self.backpressure.is_held or self.base.phase is Phase.BROKEN):
            if self._pending:
                self.base.events, self._pending = self._pending, []
                self.take_events(now)
            elif inbound.read < inbound.written:
                self.base.withdrawn.clear()
                spent = self.receive(now, min(share.units, SLICE_UNITS))
                share.units -= spent
                if spent:
                    self._torn_since = now
                if self.base.is_torn and not self._pending:
                    break
            else:
                break
        self.share = None
        self.settle()
        self.backpressure.expect(self._torn_bytes())
        return not self.backpressure.is_held and bool(
            self._pending or (inbound.read < inbound.written and not self.base.is_torn)
        )

    def settle(self) -> None:
        """After frames were taken."""
        super().settle()
        if self.server.checked is not None:
            self._checked(self.server.checked)

    def check(self) -> None:
        """Assert the invariants."""
        self.backpressure.check()
        self.runs.check()
        self._witness.check()

    def go_on(self) -> None:
        """It may be read again, and what was received may be worked on."""
        self.base.heard_at = self._torn_since = self.ports.time.now()
        if self.share is None:  # Else it is worked on: a turn within would take later frames first.
            self.server.turns.enter(self)

    def update_reading(self) -> None:
        """Be read, unless it waits for its turn or is held back."""
        is_wanted = not (self.is_waiting or self.backpressure.is_held)
        if is_wanted is self._is_reading or self.is_lost or self.transport is None or self.is_closing:
            return
        self._is_reading = is_wanted
        if is_wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def _torn_bytes(self) -> int:
        """What a large frame that has begun wants."""
        base, inbound = self.base, self._inbound
        if not base.is_torn or base.phase is Phase.BROKEN:
            return 0
        wanted = base.wanted(inbound.slab, inbound.read, inbound.written)
        return wanted if wanted >= LARGE_FRAME_BYTES else 0

    def on_events(self, events: list[Event], now: Instant) -> None:
        """Take what the connection reports, in order, as far as its share of the turn goes."""
        self.asked_at = now
        share = self.share
        for number, event in enumerate(events):
            if type(event) is CallsReceived:
                rest = serve_calls(self, event, now)
                if rest is not None:
                    self._pending = [rest, *events[number + 1 :]]
                    break
            elif type(event) is CallReceived:
                self.on_call(event, now)
            else:
                _ON[type(event)](self, event, now)
            if share is None:
                continue
            share.units -= _UNITS.get(type(event), 1)
            if share.is_over or self.backpressure.is_held:
                self._pending = events[number + 1 :]
                break
        if self.base.phase is Phase.BROKEN and self._pending:
            pending, self._pending = self._pending, []  # Nobody will hear of it: it is not looked at.
            for event in pending:
                if isinstance(event, Broken):
                    self._on_broken(event, now)

    def on_writable(self) -> None:
        """The socket takes bytes again, so there may be more answers."""
        self.server.outlet.resume(self)
        self.backpressure.count_unread()
        self.backpressure.ease()

    def pause_writing(self) -> None:
        """The peer does not read its answers: read no more requests."""
        super().pause_writing()
        self.backpressure.hold()
        self.backpressure.count_unread()

    def on_lost(self) -> None:
        """Cancel what runs, and let go of everything."""
        self.server.turns.forget(self)
        self.backpressure.forget()
        self._pending = []
        self.works.cancel_all()
        for stream in list(self.streams.values()):  # Each is closed when its task has ended.
            stream.on_end(Unknown("the connection was lost"))
        for run in list(self.runs):
            self.runs.drop(run)
        self.server.depart(self)

    def on_flushed(self) -> None:
        """Count what waits for the peer; close once the last stream of a draining connection is answered."""
        self.backpressure.count_unread()
        if self.base.phase is Phase.LEAVING and self.is_idle:
            hit("wire.drained")
            self.end("drained")

    def next_deadline(self) -> Instant | None:
        """When the token expires."""
        expires = self.principal.expires
        if expires is None or self._expelled is self.principal or not (self.streams or self.runs):
            return None
        time = self.ports.time
        return after(time.now(), Duration(max(0, expires - time.wall())))

    def on_deadline(self, now: Instant) -> None:
        """End long streams whose token has expired; keep a held connection alive."""
        if not self._is_reading:
            self._torn_since = now
            self.backpressure.keep_alive(now)
        elif self.base.is_torn and now >= self._torn_since + self.limits.frame_timeout:
            self.base.fail(Status.REMOTE_PROTOCOL, "a frame was begun and not sent whole in time")
            self.take_events(now)
            return
        expires = self.principal.expires
        if expires is None or self.ports.time.wall() < expires:
            return
        self._expelled = self.principal
        self._judge_again()

    def leave(self) -> None:
        """Take no more streams, and close when the last has ended."""
        if self.base.phase is Phase.GREETING:
            self.base.fail(Status.SHUTTING_DOWN, "the node is on its way out")
            self.take_events(self.ports.time.now())
            return
        self.base.leave(Status.SHUTTING_DOWN, "the node is on its way out")
        self.flush()
        if self.is_idle:
            self.end("drained")

    # ------------------------------------------------------------------ events

    def _on_hello(self, event: HelloReceived, now: Instant) -> None:
        hello, server = event.hello, self.server
        if self.base.phase is not Phase.GREETING:
            return  # What followed in the same read has broken the connection already.
        if hello.cluster and server.cluster and hello.cluster != server.cluster:
            self.base.fail(
                Status.UNAUTHENTICATED, f"this node is of cluster {server.cluster}, not {hello.cluster}"
            )
        else:
            try:
                self.principal = server.authorizer.authenticate(hello.token)
            except Unauthenticated as error:
                server.counts.unauthenticated += 1
                self.base.fail(Status.UNAUTHENTICATED, str(error))
            else:
                self.caller = self.principal.account or self.source
                is_peer = self.principal is ANYONE and server.is_peer(hello, self.source)
                peer = f"peer {hello.node}" if is_peer else ""
                self.flow = self.principal.account or peer or self.source or self.flow
                self.backpressure.enter(self.flow, is_control=is_peer or self.principal.is_control)
                if message := server.greeted(self):
                    self.base.fail(Status.THROTTLED, message)
                else:
                    self.base.say_welcome(server.numbers, node=server.node, cluster=server.cluster)
        self._take_failure(now)

    def _on_token(self, event: TokenReceived, now: Instant) -> None:
        try:
            self.principal = self.server.authorizer.authenticate(event.token.token)
        except Unauthenticated as error:
            self.server.counts.unauthenticated += 1
            self.base.fail(Status.UNAUTHENTICATED, str(error))
            self._take_failure(now)
            return
        self._judge_again()
        self.arm(now)

    def _take_failure(self, now: Instant) -> None:
        for event in self.base.events:
            if isinstance(event, Broken):
                self._on_broken(event, now)

    def _on_broken(self, event: Broken, _now: Instant) -> None:
        self.reason = self.reason or event.message
        self.server.counts.broken += 1

    def _on_goaway(self, event: GoAwayReceived, _now: Instant) -> None:
        self.reason = self.reason or f"the caller leaves: {event.message}"

    def on_call(self, event: CallReceived, now: Instant) -> None:
        """Serve one unary call."""
        stream = event.stream
        if stream not in self.base.streams:
            return  # Cancelled in the same read, before it was looked at.
        try:
            method, call, request = self.admit(
                event.method, Shape.UNARY, event.request, event.timeout_ms, now
            )
            payload = self.keep_small(event.payload) if method.is_task else event.payload
            result = method.handler(call, request, payload)
            if type(result) is Reply:
                self.reply(stream, result)
                return
        except Exception as error:  # noqa: BLE001 - the RPC edge (code.16).
            self.refuse(stream, error)
            return
        self.works.answer(stream, result, call, len(event.payload) + len(event.request))

    def _on_open(self, event: OpenReceived, now: Instant) -> None:
        stream = event.stream
        if stream not in self.base.streams:
            return
        shape = Shape.RUN if event.is_run else Shape.STREAM
        start = self.works.open_run if event.is_run else self.works.answer
        try:
            method, call, request = self.admit(event.method, shape, event.request, event.timeout_ms, now)
            self.base.streams[stream].grant = method.capability, method.name_of and method.name_of(request)
            if event.is_run:
                result = method.handler(call, request)
                if type(result) is RunOpened:
                    self.runs.accept(stream, result)
                    return
            else:
                end = self.streams[stream] = ServedStream(self, stream, method)
                result = method.handler(call, request, end)
        except Exception as error:  # noqa: BLE001 - the RPC edge (code.16).
            self.streams.pop(stream, None)
            self.refuse(stream, error)
            return
        start(stream, result, call, len(event.request))
        self.arm(now)

    def admit(
        self, number: int, shape: Shape, body: memoryview, timeout_ms: int, now: Instant
    ) -> tuple[Method, Call, Any]:
        """The one check in front of every handler (access.2)."""
        request = Asked(number, shape, body, timeout_ms)
        found = admit(self.server, self.principal, request, now, connection=self.connection, peer=self.peer)
        self.server.counts.calls += 1
        return found

    def _on_message(self, event: MessageReceived, _now: Instant) -> None:
        end = self.streams.get(event.stream)
        if end is not None:
            end.on_message(event)

    def _on_credit(self, event: CreditReceived, _now: Instant) -> None:
        end = self.streams.get(event.stream)
        if end is not None:
            end.on_writable()

    def _on_finish(self, event: FinishReceived, _now: Instant) -> None:
        if (end := self.streams.get(event.stream)) is not None:
            end.on_finish()
        else:
            self.runs.on_finish(event.stream)

    def _on_cancel(self, event: CancelReceived, _now: Instant) -> None:
        self.end_stream(event.stream, Cancelled("cancelled by the caller"))
        if event.stream not in self.works:
            self.base.ended(event.stream)

    def _on_records(self, event: RecordsReceived, _now: Instant) -> None:
        self.runs.on_records(event)

    # ------------------------------------------------------------------ answers

    def reply(self, stream: int, reply: Reply) -> None:
        """End `stream` well."""
        body = f.encode(reply.body)
        size = len(body) + (f.payload_bytes(reply.payload) if reply.payload else 0)
        if size > self.base.peer_frame_bytes_max or len(body) > self.limits.body_bytes_max:
            raise Refusal(
                Status.TOO_LARGE, f"the reply has {size} bytes, more than the caller takes in a frame"
            )
        if self.share is not None:
            self.share.units -= size >> REPLY_SHIFT
        if self.base.reply(stream, body, reply.payload):
            self.mark_dirty()

    def send_rows(self, streams: U32Column, body: bytes, payloads: list[Buffer], payload_bytes: int) -> None:
        """Answer calls of one event that were never registered: they need no state."""
        size = len(body) + payload_bytes
        if size > self.base.peer_frame_bytes_max or len(body) > self.limits.body_bytes_max:
            for stream in streams.tolist():
                if self.base.begin_call(stream):
                    self.refuse(stream, Refusal(Status.TOO_LARGE, f"the reply has {size} bytes"))
        elif self.base.phase is not Phase.BROKEN:
            self.base.out.append(render_rows(f.REPLY, streams, body, payloads, payload_bytes))
            self.mark_dirty()

    def refuse(self, stream: int, error: Exception) -> None:
        """Answer with the status of `error`; one that is no answer is our bug, and undecided."""
        if isinstance(error, AssertionError):
            raise error
        status, message, hint = Status.UNKNOWN, "the handler failed: see the node's log", ""
        if isinstance(error, Refusal):
            status, message = error.code, str(error)
        elif isinstance(error, BroadsheetError):
            status, message = error.status, str(error)
            hint = error.hint if isinstance(error, Refused) else ""
        else:
            self.server.failed(error)
        self.server.counts.refused += 1
        if self.base.refuse(stream, status, message, hint):
            self.mark_dirty()

    def on_stopped(self, stream: int) -> None:
        """The task of `stream` has ended, in whatever way."""
        if (end := self.streams.pop(stream, None)) is not None:
            end.close()
        self.base.ended(stream)
        if stream in self.base.streams and stream not in self.runs:
            self.refuse(stream, Unknown("the node stopped working on it"))

    def end_stream(self, stream: int, error: BroadsheetError) -> None:
        """End a stream from our side or after its CANCEL."""
        if self.base.refuse(stream, error.status, str(error)):
            self.mark_dirty()
        self.runs.drop(stream)
        if (end := self.streams.get(stream)) is not None:
            end.on_end(error)
        self.works.cancel(stream)

    def _judge_again(self) -> None:
        """End the streams that would not be opened now."""
        for stream, state in list(self.base.streams.items()):
            try:
                if state.grant is not None:
                    self.server.authorizer.authorize(self.principal, *state.grant)
            except Refused as error:
                self._expel(stream, error)

    def _expel(self, stream: int, error: BroadsheetError) -> None:
        """End a stream that its caller's token no longer covers.

        A handler that changes something hears of it when it next receives or sends: it may have taken all by
        now, and a refusal says that nothing was done.
        """
        hit("wire.expelled")
        end, state = self.streams.get(stream), self.base.streams.get(stream)
        if end is not None and state is not None and state.grant is not None and state.grant[0] & ~LOOKS:
            end.on_end(error)
        else:
            self.end_stream(stream, error)


SLICE_UNITS: Final = 256
"""Frames are taken from the bytes in slices of so many units, so that little is known and not yet done."""
_UNITS: Final[dict[type[Event], int]] = {
    CallReceived: 2, OpenReceived: 2, RecordsReceived: 4, TokenReceived: TOKEN_UNITS, CallsReceived: 0,
}  # fmt: skip
"""What an event costs in units of about a microsecond, besides its frame and the task that it starts."""
_ON: Final[dict[type[Event], Callable[[ServerConnection, Any, Instant], None]]] = {
    Broken: ServerConnection._on_broken,  # noqa: SLF001 - our own table.
    CallReceived: ServerConnection.on_call,
    CancelReceived: ServerConnection._on_cancel,  # noqa: SLF001
    CreditReceived: ServerConnection._on_credit,  # noqa: SLF001
    FinishReceived: ServerConnection._on_finish,  # noqa: SLF001
    GoAwayReceived: ServerConnection._on_goaway,  # noqa: SLF001
    HelloReceived: ServerConnection._on_hello,  # noqa: SLF001
    MessageReceived: ServerConnection._on_message,  # noqa: SLF001
    OpenReceived: ServerConnection._on_open,  # noqa: SLF001
    RecordsReceived: ServerConnection._on_records,  # noqa: SLF001
    TokenReceived: ServerConnection._on_token,  # noqa: SLF001
}
