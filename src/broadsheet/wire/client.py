"""Client: the dialling side of the wire: one connection, and the requests on it.

DIALLING --welcome--> READY --goaway--> LEAVING (open requests are still answered) --> LOST. If the connection
is lost, or the time is up, a request that was passed to the socket and not answered is `Unknown`, never a
refusal. A request that was not passed to the socket is `Unreachable`: it was certainly not executed. Nothing
is retried here: `wire.routed` does that.

Requests that wait for a stream are served in order of arrival. The unanswered bytes of a RUN stream never
exceed the window of the listener's greeting. Runs are sent in the order of the calls, and each is answered
once: with the offsets of its bytes, or with a refusal of the whole run.
Source: wire.10; C1, C2, C6.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

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
from broadsheet.wire import argument_checks
from broadsheet.wire import frame as f
from broadsheet.wire.answers import decode, decode_outcome, error_of, unseen
from broadsheet.wire.connection_machine import Kind, Phase
from broadsheet.wire.connection_protocol import ConnectionProtocol, WirePorts, large_slab_bytes
from broadsheet.wire.dialling_machine import DiallerConnection
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
from broadsheet.wire.slab import SlabPool
from broadsheet.wire.stream import StreamEnd

WAITING_MAX: Final = 65_536
"""Requests of one connection that wait for a stream."""


class StreamSlots:
    """Requests that wait until a stream may be opened, first come, first served.

    A request that gives up was not sent.
    """

    def __init__(self, connection: "ClientConnection") -> None:
        self._connection = connection
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._woken: dict[asyncio.Future[None], None] = {}
        """Those whose turn has come, and whose tasks have not gone on yet. A newcomer waits behind them."""

    def __bool__(self) -> bool:
        """Whether a request waits."""
        return bool(self._waiters or self._woken)

    async def turn(self, began: Instant, timeout: Duration) -> None:
        """Wait until a stream may be opened and the socket takes more.

        Raises:
            Unreachable: too many requests wait, or `timeout` has passed. Nothing was sent.
        """
        connection = self._connection
        address, ports = connection.address, connection.ports
        has_waited = False
        while not connection.may_begin() or (self and not has_waited):
            connection.raise_if_unusable()
            if len(self._waiters) >= WAITING_MAX:
                raise Unreachable(f"{WAITING_MAX} requests wait for a stream to {address} already")
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            # One that was woken, and found the room taken, is still the first.
            (self._waiters.appendleft if has_waited else self._waiters.append)(waiter)
            has_waited = True
            left = Duration(max(0, timeout - (ports.time.now() - began)))
            timer = ports.timers.call_after(left, partial(self._give_up, waiter))
            try:
                await waiter
            except BaseException:
                self._woken.pop(waiter, None)
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                self.wake()  # If this request was woken and leaves, the slot must go to the next one.
                raise
            finally:
                timer.cancel()
            del self._woken[waiter]

    def wake(self) -> None:
        """Let the first request go on if there is room; let all go on if the connection is not usable."""
        is_done_for = not self._connection.is_usable
        while self._waiters and (is_done_for or self._connection.may_begin()):
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._woken[waiter] = None
                waiter.set_result(None)
                if not is_done_for:
                    return

    def check(self) -> None:
        """Assert that no request waits although it has room; true between two turns of the loop."""
        if self._waiters and not self._woken and self._connection.may_begin():
            raise AssertionError("a request waits, and a stream may be opened")

    def _give_up(self, waiter: "asyncio.Future[None]") -> None:
        if not waiter.done():
            address = self._connection.address
            waiter.set_exception(Unreachable(f"no stream to {address} came free in time: nothing was sent"))


class Acknowledged(msgspec.Struct, frozen=True, gc=False):
    """A run of a RUN stream was appended at [begin, end), its records back to back."""

    sequence: int
    count: int
    begin: int
    end: int


class ClientRunStream:
    """A caller's end of a RUN stream."""

    def __init__(self, connection: "ClientConnection", stream: int) -> None:
        self.stream = stream
        self._connection = connection
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[memoryview] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._error: BroadsheetError | None = None
        self._away: BroadsheetError | None = None
        """The refusal of further runs, once the node has said that it leaves."""
        self._sequence = 0
        self.unanswered_bytes = 0
        """Bytes that were sent and not answered, and bytes promised to callers that are about to send."""
        self._answers: dict[int, tuple[int, int, asyncio.Future[Acknowledged]]] = {}
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._has_finished = False

    async def send(self, records: Sequence[Buffer], *, at: int | None = None) -> Acknowledged:
        """Send `records` as one run frame, and wait for the answer: the offsets of the run.

        Args:
            records: at least one. They are not copied: do not change them before the answer.
            at: the offset that the first byte must get; None for the head.

        Raises:
            TooLarge: the records do not fit into one frame. Nothing was sent: send fewer at a time.
            InvalidArgument: a record is no buffer, there is none, or `at` is no offset. Nothing was sent.
            Refused: no record was appended.
            Unknown: the records may have been appended.
        """
        return await (await self.submit(records, at=at))

    async def submit(
        self, records: Sequence[Buffer], *, at: int | None = None
    ) -> "asyncio.Future[Acknowledged]":
        """Like `send`, but return when the frame is queued; the future has the answer."""
        argument_checks.buffers("a run", records)
        argument_checks.offset(at)
        if not records:
            raise InvalidArgument("a run has at least one record")
        lengths = array("I", [len(record) for record in records])
        size = sum(lengths)
        machine = self._connection.machine
        if (
            size + 8 + 4 * len(lengths) > machine.peer_frame_bytes_max
            or size > machine.peer_window_bytes
            or len(lengths) > machine.peer_run_count_max
        ):
            raise TooLarge(
                f"a run of {len(lengths)} records and {size} bytes is too large: {self._connection.address}"
                f" takes {machine.peer_run_count_max} records and {machine.peer_frame_bytes_max} bytes in a"
                " frame"
            )
        if self._waiting or not self._has_room(size):
            await self._wait(size)
        else:
            self.unanswered_bytes += size
        self._raise_if_ended()
        table = f.U64.pack(f.AT_HEAD if at is None else at) + lengths.tobytes()
        future: asyncio.Future[Acknowledged] = asyncio.get_running_loop().create_future()
        self._answers[self._sequence] = (len(lengths), size, future)
        self._sequence += len(lengths)
        machine.send_run(self.stream, table, records)
        self._connection.mark_dirty()
        return future

    async def close(self) -> None:
        """End the stream, when every run is answered.

        Raises:
            BroadsheetError: the stream ended with this error before.
        """
        self.finish()
        await asyncio.shield(self._ended)

    def finish(self) -> None:
        """Send no more runs. The stream ends when those that were sent are answered. Idempotent."""
        if not self._has_finished and self._error is None:
            self._has_finished = True
            self._connection.machine.finish(self.stream)
            self._connection.mark_dirty()
            self.on_writable()  # Runs that wait for room are refused.

    def check(self) -> None:
        """Assert that no run waits although it has room; true between two turns, checked under -O too."""
        if self._waiting and self._has_room(self._waiting[0][0]):
            raise AssertionError(f"a run of {self._waiting[0][0]} bytes waits, and has room")

    def _has_room(self, size: int) -> bool:
        window = self._connection.machine.peer_window_bytes
        return self.unanswered_bytes + size <= window and not self._connection.is_write_paused

    async def _wait(self, size: int) -> None:
        """Wait for room on the RUN stream. `on_writable` reserves it, so that no other caller takes it."""
        self._raise_if_ended()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, waiter)
        self._waiting.append(entry)
        try:
            await waiter
        except BaseException:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif not waiter.cancelled():
                self.unanswered_bytes -= size  # The room was reserved, and is not used.
            self.on_writable()
            raise

    @property
    def has_ended(self) -> bool:
        """Whether nothing can be submitted any more."""
        return self._error is not None or self._away is not None or self._has_finished

    def _raise_if_ended(self) -> None:
        """Refuse a run on a stream that has ended. It was not sent, so an `Unknown` end becomes a refusal."""
        if self._away is not None:
            raise self._away
        if isinstance(self._error, Unknown):
            raise Unreachable(f"the run stream had ended, and nothing of this was sent: {self._error}")
        if self._error is not None:
            raise self._error
        if self._has_finished:
            raise Unreachable("the run stream was closed by us, and nothing of this was sent")

    # ------------------------------------------------------------------ for the connection

    def on_writable(self) -> None:
        """Give room of the window to the waiting runs, in order, while the socket takes bytes."""
        while self._waiting and (self.has_ended or self._has_room(self._waiting[0][0])):
            size, waiter = self._waiting.popleft()
            if not waiter.done():
                self.unanswered_bytes += size
                waiter.set_result(None)

    def on_away(self, refusal: BroadsheetError) -> None:
        """The node leaves when its streams have ended: take no more runs, and finish after the last answer.

        The runs that were sent are answered. A stream that stayed open would hold the node up until it loses
        patience, and what was then on its way would be `Unknown`.
        """
        self._away = refusal
        self.on_writable()
        if not self._answers:
            self.finish()

    def on_opened(self, body: memoryview) -> None:
        """Note that the node has accepted the stream."""
        if not self.opened.done():
            self.opened.set_result(body)

    def on_answer(self, event: AcknowledgedReceived | RunRefused) -> None:
        """Resolve the future of a run with its answer."""
        entry = self._answers.get(event.sequence)
        if entry is None or entry[0] != event.count:
            self._connection.machine.fail(Status.REMOTE_PROTOCOL, "an answer to records that were never sent")
            return
        _, size, future = self._answers.pop(event.sequence)
        self.unanswered_bytes -= size
        if not future.done():
            if isinstance(event, RunRefused):
                future.set_exception(error_of(event.status, event.message, event.hint))
            else:
                future.set_result(Acknowledged(event.sequence, event.count, event.begin, event.end))
        self.on_writable()
        if self._away is not None and not self._answers:
            self.finish()

    def on_end(self, error: BroadsheetError | None) -> None:
        """Note that the stream has ended; runs without an answer become `Unknown`."""
        self._error = error if error is not None else Unknown("the run stream has ended")
        if not self.opened.done():
            self.opened.set_exception(self._error)
        undecided = Unknown(f"the run stream ended before the answer came: {self._error}")
        for _, _, future in self._answers.values():
            if not future.done():
                future.set_exception(undecided)
                future.exception()  # Retrieved, because the sender may have been cancelled.
        self._answers = {}
        if not self._ended.done():
            if error is None:
                self._ended.set_result(None)
            else:
                self._ended.set_exception(error)
                self._ended.exception()
        self.on_writable()


R = TypeVar("R", bound=msgspec.Struct)


class Caller(Protocol):
    """An object that makes calls: one connection, or a `Routed`."""

    async def call(
        self,
        method: str,
        request: msgspec.Struct,
        payload: Sequence[Buffer] = (),
        *,
        reply: type[R],
        timeout: Duration | None = None,
        patience: Duration | None = None,
        is_idempotent: bool = False,
    ) -> tuple[R, memoryview]:
        """One unary call: the reply's body and payload.

        Args:
            timeout: for the answer. patience: for how long a refused request is sent again, if at all.

        Raises:
            Refused: the request was certainly not executed.
            Unknown: the request may have been executed.
        """
        ...

    async def open(
        self,
        method: str,
        request: msgspec.Struct,
        *,
        timeout: Duration | None = None,
        is_repeated: bool = True,
    ) -> "ClientStream":
        """Open a STREAM.

        Args:
            is_repeated: False: one attempt, because the caller has a loop of its own.
        """
        ...

    async def open_run(
        self, method: str, request: msgspec.Struct, *, reply: type[R], timeout: Duration | None = None
    ) -> tuple[R, ClientRunStream]:
        """Open a RUN stream; returns when the node has accepted it."""
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
        """A future that is done when the stream has ended, with its reply or an error. Do not cancel it."""
        return self._reply

    def finish(self) -> None:
        """Say that no more messages will be sent. Idempotent."""
        if not self._has_finished:
            self._has_finished = True
            self._connection.machine.finish(self.stream)
            self._connection.mark_dirty()

    async def reply(self, kind: type[R]) -> R:
        """Finish the stream, and wait for the handler's reply.

        Raises:
            BroadsheetError: the handler refused, the deadline passed, or the connection was lost (`Unknown`).
        """
        self.finish()
        return decode_outcome(await asyncio.shield(self._reply), kind, self._method)

    def cancel(self) -> None:
        """Cancel the stream. If it has ended, nothing happens."""
        if not self._reply.done():
            self._connection.withdraw(self.stream)
            self.on_end(Unknown("the stream was cancelled by us: it may have taken effect"))

    def on_event(self, event: MessageReceived | FinishReceived | CreditReceived) -> None:
        """Process a frame of this stream."""
        if isinstance(event, MessageReceived):
            self.on_message(event)
        elif isinstance(event, FinishReceived):
            self.on_finish()
        else:
            self.on_writable()

    def on_reply(self, body: memoryview) -> None:
        """Note that the stream ended with a reply."""
        if not self._reply.done():
            self._reply.set_result(body)
        super().on_end(None)

    def on_end(self, error: BroadsheetError | None) -> None:
        """Note that the stream ended, with `error` or without a reply."""
        if error is not None and not self._reply.done():
            self._reply.set_exception(error)
            self._reply.exception()  # Retrieved, because `receive` and `send` raise it as well.
        super().on_end(error)


class ClientConnection(ConnectionProtocol):
    """One connection that we dialled."""

    machine: DiallerConnection
    may_burst = True

    def __init__(self, ports: WirePorts, limits: WireLimits, address: str, pool: SlabPool) -> None:
        super().__init__(DiallerConnection(limits, now=ports.time.now()), ports, pool)
        self.address = address
        self.node = ""
        """The node's name, as it greeted."""
        self.cluster = ""
        self.methods: dict[str, int] = {}
        """The numbers of the node's methods, by name."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls: dict[int, asyncio.Future[tuple[memoryview, memoryview]]] = {}
        self._streams: dict[int, ClientStream] = {}
        self._runs: dict[int, ClientRunStream] = {}
        self._unsent: dict[int, None] = {}
        self._waiting = StreamSlots(self)

    @property
    def is_usable(self) -> bool:
        """Whether the connection takes more requests."""
        return self.machine.phase is Phase.OPEN and not self.machine.is_worn_out()

    # ------------------------------------------------------------------ what users call

    async def call(
        self,
        method: str,
        request: msgspec.Struct,
        payload: Sequence[Buffer] = (),
        *,
        reply: type[R],
        timeout: Duration | None = None,
        patience: Duration | None = None,
        is_idempotent: bool = False,
    ) -> tuple[R, memoryview]:
        """One unary call: the reply's body and payload.

        Raises:
            Refused: the request was certainly not executed.
            Unknown: the request may have been executed.
        """
        body = _checked(method, request, timeout)
        argument_checks.buffers(f"the payload of {method}", payload)
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
        return (decode if is_idempotent else decode_outcome)(answer, reply, method), rest

    async def open(
        self,
        method: str,
        request: msgspec.Struct,
        *,
        timeout: Duration | None = None,
        is_repeated: bool = True,
    ) -> "ClientStream":
        """Open a STREAM. `timeout` limits its whole duration at the node; None for no limit.

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
    ) -> tuple[R, ClientRunStream]:
        """Open a RUN stream; returns when the node has accepted it.

        Raises:
            Refused: the node has not accepted it.
            Unknown: the connection was lost, or the time is up.
        """
        request_body = _checked(method, request, timeout)
        timeout = self.limits.call_timeout if timeout is None else timeout
        stream, left = await self._begin(Kind.RUN, method, request_body, (), timeout)
        run = self._runs[stream] = ClientRunStream(self, stream)
        timer = self.ports.timers.call_after(left, lambda: self._late(stream, run.opened, timeout))
        try:
            return decode(await run.opened, reply, method), run
        except BaseException:
            self._runs.pop(stream, None)
            self._withdraw(stream)
            raise
        finally:
            timer.cancel()

    async def close(self) -> None:
        """Close; requests that are not answered become `Unknown`. Idempotent."""
        if not self.is_lost:
            self.end("closed by us")

    def check(self) -> None:
        """Assert that no request waits although it has room, and every open stream has an owner.

        True between two turns of the loop; checked under `python -O` too.
        """
        if not self.is_usable or self.is_lost:
            return
        self.machine.check()
        self._waiting.check()
        for run in self._runs.values():
            run.check()
        for stream in self.machine.streams:
            owners = (self._calls, self._streams, self._runs)
            if not any(stream in each for each in owners):
                raise AssertionError(f"stream {stream} is open, and no call owns it")

    # ------------------------------------------------------------------ for streams

    def withdraw(self, stream: int) -> None:
        """Cancel a stream."""
        self._streams.pop(stream, None)
        self._runs.pop(stream, None)
        self._withdraw(stream)

    def _withdraw(self, stream: int) -> None:
        self.machine.cancel(stream)
        self.mark_dirty()
        self._waiting.wake()
        self.end_if_drained()

    def _late(self, stream: int, future: "asyncio.Future[Any]", timeout: Duration) -> None:
        """End a call whose time is up at our end, and cancel it at the node, which may have executed it."""
        if not future.done():
            future.set_exception(
                DeadlineExceeded(
                    f"no answer in {timeout // MILLISECOND} ms: the request may have been executed"
                )
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
        """Open a stream, when there is room for it; its number, and what is left of `timeout`."""
        machine = self.machine
        began = self.ports.time.now()
        self.raise_if_unusable()
        number = self.methods.get(method)
        if number is None:
            raise Unsupported(f"{self.address} has no method {method}: it may be of another version")
        size = f.payload_bytes(payload)
        if not machine.fits(len(body), size):
            raise TooLarge(
                f"a request of {len(body)} bytes of body and {size} of payload is too large: {self.address} "
                f"takes {machine.peer_frame_bytes_max}, with a body of {machine.limits.body_bytes_max}"
            )
        has_waited = bool(self._waiting) or not self.may_begin()
        if has_waited:
            await self._waiting.turn(began, timeout)  # No await may follow: the woken request owns the slot.
            self.raise_if_unusable()
        left = Duration(max(0, timeout - (self.ports.time.now() - began)))
        timeout_ms = min(max(1, left // MILLISECOND), 0xFFFF_FFFF) if is_bounded else 0
        stream = machine.open(kind, number, timeout_ms=timeout_ms, body=body, payload=payload)
        self._unsent[stream] = None
        self.mark_dirty()
        if has_waited:
            self._waiting.wake()  # There may be room for the next waiting request, too.
        return stream, left

    def may_begin(self) -> bool:
        """Whether a request may be sent now: a stream may be opened, and the socket takes more."""
        return self.machine.may_open() and not self.is_write_paused

    def raise_if_unusable(self) -> None:
        """Refuse a request if the connection takes no more.

        Raises:
            Refused: the reason. Nothing was sent.
        """
        if self.is_lost or self.machine.phase is Phase.BROKEN:
            raise Unreachable(f"the connection to {self.address} is lost: {self.reason}")
        if self.machine.phase is Phase.LEAVING:
            raise ShuttingDown(f"{self.address} takes no more requests")
        if self.machine.is_worn_out():
            raise Unreachable(f"the connection to {self.address} has used up its stream numbers")

    # ------------------------------------------------------------------ ConnectionProtocol

    def on_events(self, events: list[Event], now: Instant) -> None:
        """Process the events of a dialled connection's machine, in order."""
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
        """Refuse the streams above `last_stream`: the node has certainly not executed them."""
        self.reason = self.reason or event.message
        if not self.ready.done():
            self.ready.set_exception(unseen(event.status, event.message))
            self.end(event.message)
            return
        hit("wire.goaway")
        for stream in [each for each in self.machine.streams if each > event.last_stream]:
            self.machine.cancel(stream)
            self._settle(stream, unseen(event.status, event.message))
        for run in list(self._runs.values()):
            run.on_away(unseen(event.status, event.message))
        self._waiting.wake()

    def _settle(self, stream: int, error: BroadsheetError) -> None:
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
        """Note that all queued requests are with the socket: from now on they may have been executed."""
        self._unsent = {}

    def on_writable(self) -> None:
        """Let waiting senders go on: the socket takes bytes again."""
        for end in list(self._streams.values()):
            end.on_writable()
        for run in list(self._runs.values()):
            run.on_writable()
        self._waiting.wake()

    def on_lost(self) -> None:
        """End a lost connection's open requests: `Unreachable` if not sent, else `Unknown`."""
        if not self.ready.done():
            self.ready.set_exception(Unreachable(f"{self.address}: {self.reason}"))
            self.ready.exception()  # Retrieved, because whoever dialled may have left.
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
    """Connect to `address`; returns when the node has accepted our greeting.

    Raises:
        Unreachable: the node did not answer within `limits.dial_timeout`, or turned the connection away.
        Unauthenticated: the node refuses the token.
        InvalidArgument: `address` has no valid form, or another argument is not text.
    """
    for what, given in (("the token", token), ("the node's name", node), ("the cluster's name", cluster)):
        argument_checks.text(what, given)
    slabs = SlabPool(large_slab_bytes(limits)) if pool is None else pool
    made: list[ClientConnection] = []

    def factory() -> ClientConnection:
        made.append(ClientConnection(ports, limits, address, slabs))
        return made[-1]

    try:
        async with asyncio.timeout(in_seconds(limits.dial_timeout)):
            await ports.network.dial(address, factory)
            made[-1].machine.say_hello(token=token, node=node, cluster=cluster)
            made[-1].flush()
            await made[-1].ready
    except TimeoutError as error:
        _abort(made)
        raise Unreachable(f"{address} did not answer in {limits.dial_timeout // MILLISECOND} ms") from error
    except OSError as error:
        raise Unreachable(f"{address} cannot be reached: {error}") from error
    except ValueError as error:  # Not UTF-8, too long for a name, or with a zero byte.
        raise InvalidArgument(f"address {address!r} names no host: {error}") from error
    except BaseException:
        _abort(made)
        raise
    return made[-1]


def _checked(method: str, request: msgspec.Struct, timeout: Duration | None) -> bytes:
    """The encoded body of a request whose arguments have the right types."""
    argument_checks.text("the method", method)
    argument_checks.timeout(timeout)
    return argument_checks.encoded(f"the request of {method}", request)


def _abort(made: list[ClientConnection]) -> None:
    for connection in made:
        connection.abort("the greeting failed")
