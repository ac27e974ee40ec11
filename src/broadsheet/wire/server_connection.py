"""Server connection: one accepted connection, which passes requests to handlers and sends their answers.

GREETING --good token--> SERVING --server leaves--> DRAINING --last stream ends--> closed. A request is
authorized by `wire.admission` before its handler runs. Plain handlers run in the read. Coroutines run as
tasks of the server's scope, and are cancelled at their deadline, by their caller's CANCEL, or when the
connection is lost. In every case the stream ends with its task, and its bytes are no longer in flight. No
exception of a handler ends the process, except an `AssertionError`.

How much the caller of a STREAM may send ahead depends on its handler (ADR 0152). A RUN stream ends when its
dialler has finished and every run is answered, or when it is dropped; its sink is told once. Unary calls come
in rows of one or more, which differ in stream, request and payload only. If all requests of a row are equal,
it is authorized once; many replies of one form are rendered by column. A call is registered as a stream only
if it is not answered at once (ADR 0044, 0156).
Source: wire.4-9; access.2-8.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final, Protocol

from broadsheet.access.authorizer import EXPIRED
from broadsheet.access.capability import Capability
from broadsheet.access.principal import ANYONE
from broadsheet.base.machine import Event
from broadsheet.base.marks import hit
from broadsheet.base.time import SECOND, Duration, Instant, after, since
from broadsheet.base.types import ConnectionId
from broadsheet.errors import (
    BroadsheetError,
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    Refused,
    ShuttingDown,
    Status,
    Throttled,
    Unauthenticated,
    Unknown,
)
from broadsheet.ports import Timer, Transport
from broadsheet.runtime.scope import Scope
from broadsheet.runtime.slices import Slices
from broadsheet.wire import frame as f
from broadsheet.wire.account import Accounts, Holding, Owned
from broadsheet.wire.admission import Admitting, Asked, Refusal, admit
from broadsheet.wire.columns import ROWS_MIN, has_one_body, one_form, render_rows
from broadsheet.wire.connection_machine import Kind, Phase
from broadsheet.wire.connection_protocol import JOINED_BUFFER_BYTES_MAX, ConnectionProtocol, WirePorts
from broadsheet.wire.events import (
    Broken,
    CallsReceived,
    CancelReceived,
    CreditReceived,
    FinishReceived,
    GoAwayReceived,
    HelloReceived,
    MessageReceived,
    OpenReceived,
    RunReceived,
)
from broadsheet.wire.first_steps import FirstSteps
from broadsheet.wire.inbound import LARGE_FRAME_BYTES
from broadsheet.wire.listening_machine import ListenerConnection
from broadsheet.wire.method import EMPTY, Call, Method, Reply, RunOpened, Shape
from broadsheet.wire.run import Run, ServedRunStream, joining
from broadsheet.wire.send_shares import SendShares
from broadsheet.wire.slab import SlabPool
from broadsheet.wire.stream import StreamEnd
from broadsheet.wire.turn_shares import REPLY_SHIFT, START_UNITS, Share, TurnShares


class Counts:
    """The counters of a server; metrics read them at scrape."""

    def __init__(self) -> None:
        self.accepted = self.turned_away = self.displaced = self.unauthenticated = self.broken = 0
        self.calls = self.refused = self.failed = 0


class ConnectionOwner(Admitting, Protocol):
    """The part of its server that a connection needs."""

    ports: WirePorts
    scope: Scope
    """Owner of the handlers' tasks."""
    node: str
    cluster: str
    numbers: dict[str, int]
    """The methods by name."""
    pool: SlabPool
    accounts: Accounts
    turns: TurnShares
    send_shares: SendShares
    first_steps: FirstSteps
    cancellations: Slices
    """Of requests whose connections are lost, in the order of their loss."""
    counts: Counts
    checked: Callable[[], None] | None

    def admit(self, connection: "ServerConnection") -> str:
        """Count a new connection in. Why it is refused; empty if it is not."""
        ...

    def is_peer(self, hello: f.Hello, source: str) -> bool:
        """Whether a dialler without a token may be taken for another node of this cluster."""
        ...

    def greeted(self, connection: "ServerConnection") -> str:
        """Note that a connection has greeted. Why it may not stay; empty if it may."""
        ...

    def depart(self, connection: "ServerConnection") -> None:
        """Drop a connection that is gone."""
        ...

    def failed(self, error: BaseException) -> None:
        """Count an exception of a handler that is not a `BroadsheetError`."""
        ...


class Backpressure:
    """The bytes that one connection has in flight, which decide whether it is read."""

    def __init__(self, connection: "ServerConnection") -> None:
        self._connection, self._accounts = connection, connection.server.accounts
        self.holding: Holding | None = None
        """None before the greeting: a stranger has nothing in flight."""
        self.in_flight_bytes = 0
        self.is_held = False
        """Whether the connection is not read."""
        self._unread = 0
        """Bytes of answers that the peer leaves unread."""
        self._expected = self._wanted = 0
        """`_expected`: bytes reserved for a large torn frame. `_wanted`: bytes it waits to reserve."""
        self._reserved_at = self._pressed_at = Instant(0)
        """`_reserved_at`: when the bytes were reserved; later by the time in which we did not read.
        `_pressed_at`: when it began to wait for room, or last had slow frames given up."""
        self._held_at: Instant | None = None
        """When we stopped reading, for a reason of ours; None if we read, or if the peer does not."""

    def enter(self, name: str, *, is_control: bool) -> None:
        """Charge the connection, which has greeted, to the account of `name`."""
        self.holding = self._accounts.enter(name, is_control=is_control, owned=self.owned)

    def owned(self) -> Owned:
        """What the requests of the connection own, counted one by one."""
        connection = self._connection
        tasks, runs = connection.tasks, connection.runs
        expected = 0 if connection.is_lost else self._expected
        return Owned(
            used_bytes=tasks.size + runs.unanswered_bytes + expected,
            queued_bytes=connection.queued_bytes,
            task_count=len(tasks),
            run_count=len(runs),
            unread_bytes=0 if connection.is_lost else self._unread,
            kept_bytes=sum([stream.kept_bytes for stream in connection.streams.values()]),
        )

    def forget(self) -> None:
        """Release everything of a connection that is gone."""
        self._accounts.forget(self)
        self.expect(0)
        self._unread_is(0)
        if self.holding is not None:
            self._accounts.leave(self.holding)

    def take(self, size: int) -> None:
        """Count request bytes that are being worked on; stop reading if they are too many."""
        assert self.holding is not None, "a request came before the greeting"
        self.in_flight_bytes += size
        has_room = self._accounts.take(self.holding, size)
        if self.in_flight_bytes > self._connection.limits.in_flight_bytes_max or not has_room:
            self.hold()
            if not has_room:
                self._wait()

    def give(self, size: int) -> None:
        """Count `size` fewer bytes, and read on if there is room."""
        assert self.holding is not None, "a request came before the greeting"
        self.in_flight_bytes -= size
        self._accounts.give(self.holding, size)
        if self.is_held:
            self.ease()

    def queued(self, size: int) -> None:
        """Count `size` more bytes that wait for a handler. They narrow windows, but stop no reading."""
        if self.holding is not None:
            self._accounts.queue(self.holding, size)

    def keep(self, size: int) -> None:
        """Count `size` more bytes of messages that a handler keeps; fewer if `size` is negative.

        Raises:
            Throttled: its caller has too many of them. Nothing was counted.
        """
        assert self.holding is not None, "who sends messages has greeted"
        if size > 0 and (refusal := self._accounts.keep_refusal(self.holding, size)) is not None:
            raise refusal
        self._accounts.keep(self.holding, size)

    def count_unread(self) -> None:
        """Count the answers that the peer leaves unread; drop the peer if they exceed its share."""
        connection, transport = self._connection, self._connection.transport
        if connection.is_lost or transport is None:
            return
        size = transport.get_write_buffer_size() if connection.is_write_paused else 0
        if not self._unread_is(size):
            reason = f"slow peer: it leaves {size} bytes unread, and its caller more than its share"
            # Not at once, because the transport may be calling this method.
            connection.ports.timers.call_soon(partial(connection.abort, reason))

    def _unread_is(self, size: int) -> bool:
        if self.holding is None or size == self._unread:
            return True
        self._unread = size
        return self._accounts.unread(self.holding, size)

    def may_widen(self, size: int) -> bool:
        """Whether a stream may have a window of `size` bytes although no handler waits for messages."""
        is_full = self.in_flight_bytes * 2 > self._connection.limits.in_flight_bytes_max
        return not is_full and self.holding is not None and self._accounts.may_widen(self.holding, size)

    def expect(self, size: int) -> None:
        """Reserve `size` bytes for a large frame that has begun, or stop reading until there is room."""
        if size == self._expected or self.holding is None:
            return
        if self._expected:
            self._accounts.give(self.holding, self._expected)
            self._accounts.expect(self, is_expecting=False)
        self._expected = self._wanted = 0
        if not size:
            return
        if self._accounts.has_room(self.holding, size):
            self._accounts.take(self.holding, size)
            self._accounts.expect(self, is_expecting=True)
            self._expected, self._reserved_at = size, self._connection.ports.time.now()
        else:
            self._wanted = size
            self.hold()
            self._wait()

    def _wait(self) -> None:
        """Wait for room, and have slow frames of the same caller given up after a while."""
        connection = self._connection
        if not self._accounts.is_waiting(self):
            self._pressed_at = connection.ports.time.now()
        self._accounts.wait(self, self._wanted)
        connection.arm(connection.ports.time.now())

    def presses_at(self) -> Instant | None:
        """When slow frames of the same caller are to be given up; None if this connection has room."""
        return after(self._pressed_at, PRESS_INTERVAL) if self._accounts.is_waiting(self) else None

    def press(self, now: Instant) -> None:
        """Have slow frames of the same caller given up if this connection has waited long enough."""
        at = self.presses_at()
        if at is not None and now >= at:
            self._pressed_at = now
            self._accounts.press(self, now)

    def hurry(self, now: Instant) -> None:
        """Give up on the large frame that has begun if it comes too slowly, because others wait for room.

        Otherwise a caller could begin frames on many connections and leave them, and none of its other
        connections could send a large frame until `frame_timeout`.
        """
        connection, expected = self._connection, self._expected
        elapsed = (now if self._held_at is None else self._held_at) - self._reserved_at
        timeout = connection.limits.crowded_frame_timeout
        if elapsed < timeout // STALL_RATIO or connection.torn_bytes * timeout >= expected * elapsed:
            return
        connection.give_up(
            f"a frame of {expected} bytes came too slowly, and other connections of its caller wait for room:"
            f" they demand all of it within crowded_frame_timeout, {timeout // SECOND} s"
        )

    def hold(self) -> None:
        """Read no more for now."""
        if not self.is_held and not self._connection.is_lost:
            hit("wire.held")
            self.is_held = True
            self._held_at = None if self._connection.is_write_paused else self._connection.ports.time.now()
            self._connection.update_reading()

    def keep_alive(self, now: Instant) -> None:
        """Keep a connection alive that is not read, so that neither side takes it for dead.

        We do not hear the peer, so its silence proves nothing. We do not answer its PINGs either, so we send
        a PONG: otherwise the peer would give up after `keepalive_misses_max` PINGs.
        """
        connection = self._connection
        if now < after(connection.machine.heard_at, connection.limits.keepalive_interval):
            return
        connection.machine.heard_at, connection.machine.misses = now, 0
        if not connection.is_write_paused and connection.machine.phase is not Phase.GREETING:
            connection.machine.out.append(f.frame(f.PONG, 0))

    def ease(self) -> None:
        """Read on from the connection, unless a reason is left not to."""
        connection, holding = self._connection, self.holding
        if not self.is_held or connection.is_lost or connection.is_closing:
            return
        is_reserved = self._expected > 0  # A reservation is given back only when its frame is read whole.
        if holding is not None and not is_reserved and not self._accounts.has_room(holding, self._wanted):
            self._wait()
            return
        if connection.is_write_paused or self.in_flight_bytes * 2 > connection.limits.in_flight_bytes_max:
            return
        if self._wanted:
            wanted, self._wanted = self._wanted, 0
            self.expect(wanted)
        self._accounts.forget(self)
        self.is_held = False
        if self._held_at is not None:
            self._reserved_at = after(
                self._reserved_at, since(self._held_at, self._connection.ports.time.now())
            )
            self._held_at = None
        connection.go_on()

    def check(self) -> None:
        """Assert the invariants of backpressure; the accounts check the counters."""
        connection = self._connection
        if not self.is_held or connection.is_lost or connection.is_closing:
            return
        is_full = self.in_flight_bytes * 2 > connection.limits.in_flight_bytes_max
        assert is_full or connection.is_write_paused or self._accounts.is_waiting(self), (
            f"connection {connection.connection} is not read, and nothing will change that"
        )


PRESS_INTERVAL: Final = Duration(SECOND)
"""How long a connection waits for room before slow frames of its caller are given up, and how often then."""
STALL_RATIO: Final = 8
"""A large frame may stop for this part of `crowded_frame_timeout` at its beginning."""


class ServedRunStreams:
    """The RUN streams of one connection."""

    def __init__(self, connection: "ServerConnection") -> None:
        self._connection = connection
        self._ends: dict[int, ServedRunStream] = {}
        self._owing: dict[ServedRunStream, None] = {}
        """Ends with unanswered runs, including those of streams that have ended."""

    def __contains__(self, stream: int) -> bool:
        """Whether `stream` is open."""
        return stream in self._ends

    def __iter__(self) -> Iterator[int]:
        """The open streams."""
        return iter(self._ends)

    def __len__(self) -> int:
        """How many are open."""
        return len(self._ends)

    @property
    def unanswered_bytes(self) -> int:
        """Bytes of all runs that no sink has answered yet."""
        return sum([end.unanswered_bytes for end in self._owing])

    def accept(self, stream: int, opened: RunOpened) -> None:
        """Open `stream` for records.

        Raises:
            Throttled: the caller has too many RUN streams. The sink is told that no run will come.
        """
        connection = self._connection
        if stream not in connection.machine.streams:
            opened.sink.on_end()  # The caller left before the handler was done.
            return
        accounts, holding = connection.server.accounts, connection.backpressure.holding
        assert holding is not None, "who asks has greeted"
        if (refusal := accounts.run_refusal(holding)) is not None:
            opened.sink.on_end()
            raise refusal
        accounts.opened(holding)
        self._ends[stream] = ServedRunStream(
            opened.sink,
            stream,
            send=self._on_answered,
            joined_bytes_max=opened.joined_bytes_max,
        )
        connection.machine.accept_run(stream, f.encode(opened.body))
        connection.mark_dirty()
        connection.arm(connection.ports.time.now())  # Its token may expire before the next ping.
        if connection.machine.streams[stream].has_peer_finished:
            self.on_finish(stream)  # FINISH came before the stream was accepted.

    def on_runs(self, events: Sequence[Event], number: int) -> int:
        """Pass the run frame `events[number]` to the sink, with those behind it that join it; how many."""
        event = events[number]
        assert type(event) is RunReceived, "the caller has looked"
        end = self._ends.get(event.stream)
        if end is None:
            return 1
        connection, frames = self._connection, joining(events, number, end.joined_bytes_max)
        run, contents = Run(end, frames), [frame.content for frame in frames]
        self._owing[end] = None
        if len(frames) > 1:
            hit("wire.joined")
        if len(frames) > 1 and run.size <= len(frames) * JOINED_BUFFER_BYTES_MAX:
            run.parts = (b"".join(contents),)
        else:
            run.parts = tuple(map(connection.keep, contents))
        connection.backpressure.take(run.held_bytes)
        end.on_run(run)
        return len(frames)

    def on_finish(self, stream: int) -> None:
        """The dialler sends no more."""
        end = self._ends.get(stream)
        if end is not None:
            end.has_finished = True
            end.sink.on_end()
            self._close(end)

    def drop(self, stream: int) -> None:
        """Forget a stream that ended without FINISH, and tell its sink."""
        end = self._pop(stream)
        if end is not None and not end.has_finished:
            end.sink.on_end()

    def check(self) -> None:
        """Assert the invariants."""
        for stream, end in self._ends.items():
            assert end.unanswered_count or not end.has_finished, f"stream {stream} is answered, and not ended"
            assert not end.unanswered_count or end in self._owing, f"stream {stream} owes answers"
        for end in self._owing:
            assert end.unanswered_count, f"stream {end.stream} owes no answer"

    def _pop(self, stream: int) -> ServedRunStream | None:
        end = self._ends.pop(stream, None)
        if end is not None:
            holding = self._connection.backpressure.holding
            assert holding is not None, "who opened it had greeted"
            self._connection.server.accounts.opened(holding, -1)
        return end

    def _on_answered(self, end: ServedRunStream, run: Run, answer: bytes) -> None:
        connection = self._connection
        if not end.unanswered_count:
            self._owing.pop(end, None)
        if not connection.is_lost:
            connection.machine.answer_run(end.stream, run.size, answer)
            if end.has_finished:
                self._close(end)
            connection.mark_dirty()
        connection.backpressure.give(run.held_bytes)  # Last, because this may process more received frames.

    def _close(self, end: ServedRunStream) -> None:
        if not end.unanswered_count and self._pop(end.stream) is not None:
            self._connection.reply(end.stream, Reply(EMPTY))


ROOM_BYTES_MIN: Final = 16 << 10
"""A handler waits until the window has so much room, so that a small window does not make tiny messages."""


class ServedStream(StreamEnd):
    """A handler's end of a STREAM."""

    def __init__(self, connection: "ServerConnection", stream: int, method: Method) -> None:
        super().__init__(connection, stream, window_bytes=f.INITIAL_WINDOW_BYTES)
        self.connection, self.method = connection, method
        self.kept_bytes = 0
        """Bytes of messages that the handler has taken, and keeps until it ends."""

    def keep(self, size: int) -> None:
        """Count `size` bytes of a message that the handler keeps until it ends.

        Raises:
            Throttled: the handlers of this caller keep too much: the handler is to give up what it has.
        """
        self.connection.backpressure.keep(size)
        self.kept_bytes += size

    async def room(self, wanted: int) -> int:
        """Wait until a message may be sent in this turn, and return how many bytes it may have.

        The turn ends while the handler reads them from a store, and it holds them until its next one. So all
        tasks together may have as much as peers may leave unread.
        """
        connection = self.connection
        while self._error is None:
            share = connection.limits.node_unread_bytes_max // max(1, connection.server.accounts.task_count)
            most = min(wanted, max(ROOM_BYTES_MIN, share), self.message_bytes_max)
            size = min(most, self._protocol.machine.room(self.stream))
            if size >= min(wanted, ROOM_BYTES_MIN) and self.may_leave(size):
                self.connection.server.send_shares.promise(self)
                return size
            await self.writable()
        raise self._error

    def window_bytes(self) -> int:
        """The whole window if the handler waits or memory is free; otherwise the initial window."""
        wide = self.connection.limits.window_bytes
        if self.is_waited_for or self.connection.backpressure.may_widen(wide):
            return wide
        hit("wire.narrow")
        return f.INITIAL_WINDOW_BYTES

    def on_message(self, event: MessageReceived) -> None:
        """Queue a received message, unless the stream has ended; end it if its method takes none."""
        if not self.method.is_receiving:
            error = InvalidArgument(f"{self.method.name} takes no messages")
            self.connection.end_stream(self.stream, error)
            return
        if self._error is not None:
            return  # Its token has expired: what comes now must not be taken for content.
        before = self.queued_bytes
        super().on_message(event)
        self.connection.backpressure.queued(self.queued_bytes - before)

    def may_leave(self, size: int) -> bool:
        """Whether a message of `size` bytes may be sent in this turn, given what other streams send."""
        return self.connection.server.send_shares.take(self, size)

    def on_end(self, error: BroadsheetError | None) -> None:
        """Note that the stream has ended, and sends no more."""
        self.connection.server.send_shares.forget(self)
        super().on_end(error)

    def lose(self, error: BroadsheetError) -> None:
        """Note that the connection is lost. The handler hears of it when it next asks, or is cancelled."""
        self._is_finished, self._error = True, self._error or error

    def on_taken(self, size: int) -> None:
        """Uncount a message that the handler has taken."""
        self.connection.backpressure.queued(-size)

    def close(self) -> None:
        """Drop queued messages: the handler has ended."""
        self.connection.server.send_shares.forget(self)
        self._queue.clear()
        self.connection.backpressure.queued(-self._queued_bytes)
        self.connection.backpressure.keep(-self.kept_bytes)
        self._queued_bytes = self.kept_bytes = 0


class RequestTask:
    """A request that runs as a task."""

    __slots__ = ("handler", "size", "task", "timer")

    def __init__(self, handler: Any, size: int) -> None:  # noqa: ANN401 - an awaitable.
        self.handler, self.size = handler, size
        self.task: asyncio.Task[None] | None = None
        self.timer: Timer | None = None


class RequestTasks:
    """The tasks of one connection, by stream."""

    def __init__(self, connection: "ServerConnection") -> None:
        self._connection = connection
        self._tasks: dict[int, RequestTask] = {}

    def answer(self, stream: int, handler: Awaitable[Any], call: Call, size: int) -> None:
        """Start a task that runs `handler` and sends its reply; `size` bytes are in flight until it ends."""
        self._start(stream, self._answer, handler, call, size)

    def open_run(self, stream: int, handler: Awaitable[Any], call: Call, size: int) -> None:
        """Run `handler`, and open the RUN stream with its result."""
        self._start(stream, self._open_run, handler, call, size)

    def __contains__(self, stream: int) -> bool:
        """Whether a task runs for `stream`."""
        return stream in self._tasks

    def __len__(self) -> int:
        """How many run."""
        return len(self._tasks)

    @property
    def size(self) -> int:
        """Request bytes that the tasks work on."""
        return sum([each.size for each in self._tasks.values()])

    def cancel(self, stream: int) -> None:
        """Cancel the task of `stream`, if it runs. It keeps its slot until it has ended."""
        entry = self._tasks.get(stream)
        if entry is not None and entry.task is not None:
            hit("wire.cancelled")
            self._connection.machine.lingers(stream)
            entry.task.cancel()

    def __iter__(self) -> Iterator[int]:
        """Their streams."""
        return iter(self._tasks)

    def _start(
        self,
        stream: int,
        work: Callable[[int, Any, Method], Coroutine[Any, Any, None]],
        handler: Any,  # noqa: ANN401 - an awaitable.
        call: Call,
        size: int,
    ) -> None:
        connection = self._connection
        accounts, holding = connection.server.accounts, connection.backpressure.holding
        assert holding is not None, "who asks has greeted"
        if connection.share is not None:
            connection.share.units -= START_UNITS
        refusal: BroadsheetError | None = accounts.task_refusal(holding)
        if connection.server.scope.is_closed:
            refusal = ShuttingDown("the node shuts down: nothing was done")
        if refusal is not None:
            if isinstance(handler, Coroutine):
                handler.close()  # The coroutine has not begun, so nothing was executed.
            connection.refuse(stream, refusal)
            connection.on_stopped(stream)
            return
        accounts.started(holding)
        entry = self._tasks[stream] = RequestTask(handler, size)
        connection.backpressure.take(size)
        entry.task = connection.server.scope.spawn(work(stream, handler, call.method), name=call.method.name)
        entry.task.add_done_callback(lambda _task: self._stopped(stream))
        if call.deadline is not None:
            delay = Duration(max(0, call.deadline - connection.ports.time.now()))
            entry.timer = connection.ports.timers.call_after(delay, lambda: self._late(stream))

    def _late(self, stream: int) -> None:
        entry = self._tasks.get(stream)
        if entry is not None and entry.task is not None and not entry.task.done():
            hit("wire.late")
            error = DeadlineExceeded("the deadline passed while the node was working on the request")
            self._connection.refuse(stream, error)
            self._connection.machine.lingers(stream)
            entry.task.cancel()

    def _stopped(self, stream: int) -> None:
        """Release the slot and the bytes of a task that has ended."""
        entry = self._tasks.pop(stream)
        holding = self._connection.backpressure.holding
        assert holding is not None, "who asked had greeted"
        self._connection.server.accounts.stopped(holding)
        if entry.timer is not None:
            entry.timer.cancel()
        if isinstance(entry.handler, Coroutine):
            entry.handler.close()  # If the task was cancelled before its first step, the handler never ran.
        self._connection.on_stopped(stream)
        self._connection.backpressure.give(entry.size)  # Last, because this may process more received frames.

    async def _answer(self, stream: int, work: Awaitable[Reply], method: Method) -> None:
        try:
            await self._connection.server.first_steps.turn(self._connection.flow, self._connection)
            self._connection.reply(stream, await work, method)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the RPC edge (code.16).
            self._connection.refuse(stream, error)

    async def _open_run(self, stream: int, work: Awaitable[RunOpened], _method: Method) -> None:
        try:
            await self._connection.server.first_steps.turn(self._connection.flow, self._connection)
            self._connection.runs.accept(stream, await work)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the RPC edge (code.16).
            self._connection.refuse(stream, error)


CALL_UNITS: Final = 2
"""Units for serving a row, besides its frames and the tasks that it starts."""
CHUNK_MIN: Final = 1
CHUNK_MAX: Final = 64
"""Calls of a row between two looks at the share of the turn: few at first, because their cost is unknown."""
CHUNK_UNITS: Final = 16
REFUSAL_UNITS: Final = 4
"""Units for refusing one call of a row."""
UNSENT_BYTES_MAX: Final = 64 << 10
"""Replies of a row wait to be rendered together, but no more than about so many bytes at a look."""


def serve_calls(connection: "ServerConnection", row: CallsReceived, now: Instant) -> CallsReceived | None:
    """Serve a row of calls: all together if their requests are the same, otherwise one by one.

    Returns:
        The calls that are left if the share of this turn is used up; otherwise None.
    """
    share, count = connection.share, len(row.streams)
    if count == 1:
        return _serve_row(connection, row, now)
    if has_one_body(row.view, row.stride, count, row.body_bytes):
        hit("wire.row")
        return _serve_row(connection, row, now)
    for number in range(count):
        if share is not None and (share.is_over or connection.backpressure.is_held):
            return row.part(number)
        _serve_row(connection, row.part(number, number + 1), now)
    return None


def _serve_row(  # noqa: C901 - the hot loop, in one piece.
    connection: "ServerConnection", row: CallsReceived, now: Instant
) -> CallsReceived | None:
    """Serve calls with one request, decoded and authorized once; the calls that are left, or None."""
    view, stride, streams, share = row.view, row.stride, row.streams, connection.share
    count, withdrawn, first = len(streams), connection.machine.withdrawn, f.HEADER_BYTES + row.body_bytes
    if count == 1 and streams[0] in withdrawn:
        return None  # Cancelled in the same read.
    if share is not None:
        share.units -= CALL_UNITS
    try:
        body = view[f.HEADER_BYTES + f.CALL_HEAD.size : first]
        method, call, request = connection.admit(row.method, Shape.UNARY, body, row.timeout_ms, now)
    except Exception as error:  # noqa: BLE001 - the RPC edge (code.16).
        return _refuse_row(connection, row, error)
    handler, size, is_full = method.handler, stride - first, connection.machine.is_full
    done, chunk, looks_at = count, CHUNK_MIN, CHUNK_MIN
    replies: list[Reply] = []
    """The replies to the last calls, which are not sent yet."""
    for number, begin in enumerate(range(first, first + count * stride, stride)):
        if number == looks_at:
            if replies and len(replies) * _reply_bytes(replies[-1]) > UNSENT_BYTES_MAX:
                connection.answer_row(streams[number - len(replies) : number], replies, method)
                replies = []
            if share is not None:
                share.units -= CHUNK_UNITS
                if share.is_over or connection.backpressure.is_held:
                    done = number
                    break
            chunk = min(2 * chunk, CHUNK_MAX)
            looks_at += chunk
        payload = view[begin : begin + size]
        try:
            if is_full:  # Before the handler: it may do something and then need a place.
                raise Throttled(connection.machine.full_message)
            if not withdrawn or streams[number] not in withdrawn:
                result = handler(call, request, connection.keep_small(payload) if method.is_task else payload)
                if type(result) is Reply:
                    replies.append(result)
                    continue
                connection.start_call(streams[number], result, call, stride)
        except Exception as error:  # noqa: BLE001 - the RPC edge (code.16).
            connection.refuse_call(streams[number], error)
        # This call has no reply, and the calls behind it may have one.
        connection.answer_row(streams[number - len(replies) : number], replies, method)
        replies, is_full = [], connection.machine.is_full
        if share is not None and (share.units <= 0 or connection.backpressure.is_held):
            looks_at = number + 1
    connection.answer_row(streams[done - len(replies) : done], replies, method)
    connection.server.counts.calls += done - 1
    if done == count:
        return None
    hit("wire.row_waited")
    return row.part(done)


def _reply_bytes(reply: Reply) -> int:
    return len(f.encode(reply.body)) + f.payload_bytes(reply.payload)


def _refuse_row(connection: "ServerConnection", row: CallsReceived, error: Exception) -> CallsReceived | None:
    """Refuse as many of the calls as the share allows; the calls that are left, or None."""
    share, count = connection.share, len(row.streams)
    most = count if share is None else max(1, share.units // REFUSAL_UNITS)
    for stream in row.streams[:most]:
        connection.refuse_call(stream, error)
    if share is not None:
        share.units -= REFUSAL_UNITS * min(most, count)
    return row.part(most) if most < count else None


STALL_SLACK: Final = Duration(2 * SECOND)
"""How late a timer may fire: the machine may be paused for a while."""


class ConnectionChecks:
    """The checks of one connection that need memory of earlier steps."""

    def __init__(self, connection: "ServerConnection") -> None:
        self._connection = connection
        self._stalled = (-1, connection.machine.heard_at)
        """The bytes that the peer had taken when it stopped reading, and the time; -1 if it reads."""

    def check(self) -> None:
        """Assert the invariants."""
        self._check_progress()
        self._check_slots()

    def _check_progress(self) -> None:
        """A peer that reads nothing must be dropped in time: otherwise it would hold memory for ever."""
        connection = self._connection
        now, drained = connection.ports.time.now(), connection.drained_bytes()
        is_waiting = connection.is_write_paused or (
            connection.transport is not None and connection.is_closing
        )
        if connection.is_lost or not is_waiting or drained > self._stalled[0]:
            self._stalled = (drained if is_waiting else -1, now)
        patience = Duration(3 * connection.limits.write_timeout + STALL_SLACK)
        assert now <= after(self._stalled[1], patience), (
            f"connection {connection.connection} has taken nothing for {(now - self._stalled[1]) // SECOND} s"
        )

    def _check_slots(self) -> None:
        connection = self._connection
        machine, tasks, runs = connection.machine, connection.tasks, connection.runs
        if connection.has_pending or machine.phase is Phase.BROKEN:
            return  # Streams of pending openings are registered, and have no task yet.
        for stream in machine.ending:
            assert stream in tasks, f"stream {stream} keeps its slot, and nothing runs for it"
        for stream in machine.streams:
            assert stream in tasks or stream in runs, f"stream {stream} is open without task and sink"
        for stream in connection.streams:
            assert stream in tasks, f"stream {stream} has an end, and no handler"


LOOKS: Final = Capability.LIST | Capability.READ
"""Capabilities of methods that change nothing."""


def _too_large(size: int, method: Method | None) -> Refusal:
    """The refusal of a reply of `size` bytes; its status is UNKNOWN if the handler has changed something."""
    text = f"the reply has {size} bytes, more than the caller takes in a frame"
    if method is not None and method.capability & ~LOOKS:
        return Refusal(Status.UNKNOWN, f"{method.name} was executed, and {text}")
    return Refusal(Status.TOO_LARGE, text)


class ServerConnection(ConnectionProtocol):
    """One connection that was accepted."""

    machine: ListenerConnection

    def __init__(self, server: ConnectionOwner, connection: ConnectionId) -> None:
        super().__init__(
            ListenerConnection(server.limits, now=server.ports.time.now()), server.ports, server.pool
        )
        self.server, self.connection = server, connection
        self.peer = ""
        self.source = ""
        """The remote host."""
        self.caller = ""
        """The caller for `ConnectionPlaces`: the bearer of the token, or without tokens the remote host."""
        self.asked_at = self.machine.heard_at
        """The time of the last request."""
        self.principal = ANYONE
        self._has_expired = False
        """Whether the streams were ended because the token expired."""
        self.flow = f"#{connection}"
        """The caller for turns and bytes: the bearer of the token, or a peer, or the remote host."""
        self.is_waiting = False
        """Whether the connection waits for its turn, and is not read."""
        self.share: Share | None = None
        """The share of this turn while the connection is being served; otherwise None."""
        self._pending: list[Event] = []
        """Events that were decoded and wait for the next turn."""
        self._is_reading = True
        self._torn_since = self.machine.heard_at
        self._checks = ConnectionChecks(self)
        self.backpressure = Backpressure(self)
        self.tasks = RequestTasks(self)
        self.streams: dict[int, ServedStream] = {}
        self.runs = ServedRunStreams(self)

    # ------------------------------------------------------------------ ConnectionProtocol

    def connection_made(self, transport: Transport) -> None:
        """Take the transport, and refuse the connection if there is no room for it."""
        super().connection_made(transport)
        info: Callable[[str], Any] | None = getattr(transport, "get_extra_info", None)
        name = info("peername") if info is not None else None
        if isinstance(name, tuple) and len(name) >= 2:
            self.source, self.peer = str(name[0]), f"{name[0]}:{name[1]}"
        if message := self.server.admit(self):
            self.dismiss(message)

    @property
    def has_heard(self) -> bool:
        """Whether the peer has sent anything."""
        return self.machine.has_heard

    @property
    def is_idle(self) -> bool:
        """Whether no request is open."""
        return not self.machine.streams and not self._pending

    @property
    def has_pending(self) -> bool:
        """Whether events were decoded and are not processed yet."""
        return bool(self._pending or self.machine.events)

    @property
    def queued_bytes(self) -> int:
        """Bytes of messages that wait for handlers."""
        return sum([stream.queued_bytes for stream in self.streams.values()])

    def dismiss(self, message: str) -> None:
        """Close the connection, because others need what it has; at once if its peer reads nothing.

        Otherwise a connection with unread answers would keep its descriptor until `write_timeout`.
        """
        self.machine.fail(Status.THROTTLED, message)
        self.take_events(self.ports.time.now())
        if self.is_write_paused:
            self.abort(message)

    def give_up(self, message: str) -> None:
        """Dismiss the connection, and drop the frame that has begun at once: others wait for its room.

        The peer may take up to `write_timeout` to read why, and its connection is not gone before that.
        """
        self.dismiss(message)
        self._inbound.close()
        self.backpressure.expect(0)

    def on_received(self) -> None:
        """Process received bytes when it is this connection's turn."""
        self.server.turns.enter(self)

    def work(self, share: Share) -> bool:
        """Process received bytes within `share`; whether some are left."""
        now, inbound = self.ports.time.now(), self._inbound
        self.share = share
        while not (share.is_over or self.backpressure.is_held or self.machine.phase is Phase.BROKEN):
            if self._pending:
                self.machine.events, self._pending = self._pending, []
                self.take_events(now)
            elif inbound.read < inbound.written:
                self.machine.withdrawn.clear()
                spent = self.receive(now, min(share.units, SLICE_UNITS))
                share.units -= spent
                if spent:
                    self._torn_since = now
                if self.machine.is_torn and not self._pending:
                    break
            else:
                break
        self.share = None
        self.end_of_read()
        self.backpressure.expect(self._expected_bytes())
        return not self.backpressure.is_held and bool(
            self._pending or (inbound.read < inbound.written and not self.machine.is_torn)
        )

    def end_of_read(self) -> None:
        """After frames were taken."""
        super().end_of_read()
        if self.server.checked is not None:
            self._checked(self.server.checked)

    def check(self) -> None:
        """Assert the invariants."""
        self.backpressure.check()
        self.runs.check()
        self._checks.check()

    def go_on(self) -> None:
        """Read again, and process what was received."""
        self.machine.heard_at = self._torn_since = self.ports.time.now()
        if self.share is None:  # Otherwise `work` runs: a nested turn would take later frames first.
            self.server.turns.enter(self)

    def update_reading(self) -> None:
        """Read from the socket, unless the connection waits for its turn or is held back."""
        is_wanted = not (self.is_waiting or self.backpressure.is_held)
        if is_wanted is self._is_reading or self.is_lost or self.transport is None or self.is_closing:
            return
        self._is_reading = is_wanted
        if is_wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    @property
    def torn_bytes(self) -> int:
        """Received bytes that are not processed yet."""
        return self._inbound.written - self._inbound.read

    def _expected_bytes(self) -> int:
        """Bytes of the large frame that has begun; 0 if there is none."""
        machine, inbound = self.machine, self._inbound
        if not machine.is_torn or machine.phase is Phase.BROKEN:
            return 0
        wanted = machine.wanted(inbound.slab, inbound.read, inbound.written)
        return wanted if wanted >= LARGE_FRAME_BYTES else 0

    def on_events(self, events: list[Event], now: Instant) -> None:
        """Process a connection's events in order, within the share of this turn; others stay pending."""
        self.asked_at = now
        share, number = self.share, 0
        while number < len(events):
            event, number = events[number], number + 1
            if self.machine.phase is Phase.BROKEN and type(event) is not Broken:
                continue  # No answer could be sent.
            if type(event) is CallsReceived:
                left = serve_calls(self, event, now)
                if left is not None:
                    self._pending = [left, *events[number:]]
                    break
            elif type(event) is RunReceived:
                count = self.runs.on_runs(events, number - 1)
                number += count - 1
                if share is not None:
                    share.units -= count - 1
            else:
                _ON[type(event)](self, event, now)
            if share is None:
                continue
            share.units -= _UNITS.get(type(event), 1)
            if number < len(events) and (share.is_over or self.backpressure.is_held):
                self._pending = events[number:]
                break
        if self.machine.phase is Phase.BROKEN and self._pending:
            pending, self._pending = self._pending, []  # No answer could be sent, so requests are dropped.
            for event in pending:
                if isinstance(event, Broken):
                    self._on_broken(event, now)

    def on_writable(self) -> None:
        """Send on, and accept requests again: the socket takes bytes again."""
        self.server.send_shares.resume(self)
        self.backpressure.count_unread()
        self.backpressure.ease()

    def pause_writing(self) -> None:
        """Read no more requests, because the peer does not read its answers."""
        super().pause_writing()
        self.backpressure.hold()
        self.backpressure.count_unread()

    def on_lost(self) -> None:
        """Cancel all tasks and streams of a lost connection, and release everything."""
        self.server.turns.forget(self)
        self.backpressure.forget()
        self._pending = []
        gone = Unknown("the caller's connection was lost")
        for stream in self.streams.values():  # Each is closed when its task has ended.
            stream.lose(gone)
        self.server.cancellations.add([partial(self._cancel, stream) for stream in self.tasks])
        for run in list(self.runs):
            self.runs.drop(run)
        self.server.depart(self)

    def _cancel(self, stream: int) -> None:
        if (end := self.streams.get(stream)) is not None:
            end.on_end(None)  # The error is known.
        self.tasks.cancel(stream)

    def on_flushed(self) -> None:
        """Count unread answers; close a draining connection when its last stream is answered."""
        self.backpressure.count_unread()
        self.end_if_drained()

    def next_deadline(self) -> Instant | None:
        """When the token of an open stream expires, or a wait for room becomes too long."""
        presses, expires = self.backpressure.presses_at(), self.principal.expires
        if expires is None or self._has_expired or not (self.streams or self.runs):
            return presses
        time = self.ports.time
        due = after(time.now(), Duration(max(0, expires - time.wall())))
        return due if presses is None else min(due, presses)

    def on_deadline(self, now: Instant) -> None:
        """End long streams whose token has expired; keep a held connection alive."""
        self.backpressure.press(now)
        if not self._is_reading:
            self._torn_since = now
            self.backpressure.keep_alive(now)
        elif self.machine.is_torn and now >= self._torn_since + self.limits.frame_timeout:
            self.machine.fail(
                Status.REMOTE_PROTOCOL,
                f"a frame was not sent whole within frame_timeout, {self.limits.frame_timeout // SECOND} s",
            )
            self.take_events(now)
            return
        expires = self.principal.expires
        if expires is None or self.ports.time.wall() < expires:
            return
        self._has_expired = True
        self._expel()

    def leave(self) -> None:
        """Accept no more streams on the connection, and close when the last has ended."""
        if self.machine.phase is Phase.GREETING:
            self.machine.fail(Status.SHUTTING_DOWN, "the node is shutting down")
            self.take_events(self.ports.time.now())
            return
        self.machine.leave(Status.SHUTTING_DOWN, "the node is shutting down")
        self.flush()
        self.end_if_drained()

    # ------------------------------------------------------------------ events

    def _on_hello(self, event: HelloReceived, now: Instant) -> None:
        hello, server = event.hello, self.server
        if self.machine.phase is not Phase.GREETING:
            return  # Later bytes of the same read have broken the connection already.
        try:
            self.principal = server.authorizer.authenticate(hello.token)
        except Unauthenticated as error:
            server.counts.unauthenticated += 1
            self.machine.fail(Status.UNAUTHENTICATED, str(error))
        else:
            if hello.cluster and server.cluster and hello.cluster != server.cluster:
                # After the token: the cluster's name is not for strangers (access.4).
                text = f"this node is of cluster {server.cluster}, not {hello.cluster}"
                self.machine.fail(Status.UNAUTHENTICATED, text)
            else:
                self._enter(hello)
        self._take_failure(now)

    def _enter(self, hello: f.Hello) -> None:
        """Give the caller, whose token is good, its place and its account, and welcome it."""
        server = self.server
        self.caller = self.principal.account or self.source
        is_peer = self.principal is ANYONE and server.is_peer(hello, self.source)
        peer = f"peer {hello.node}" if is_peer else ""
        self.flow = self.principal.account or peer or self.source or self.flow
        self.backpressure.enter(self.flow, is_control=is_peer or self.principal.is_control)
        if message := server.greeted(self):
            self.machine.fail(Status.THROTTLED, message)
        else:
            self.machine.say_welcome(server.numbers, node=server.node, cluster=server.cluster)

    def _take_failure(self, now: Instant) -> None:
        for event in self.machine.events:
            if isinstance(event, Broken):
                self._on_broken(event, now)

    def _on_broken(self, event: Broken, _now: Instant) -> None:
        self.reason = self.reason or event.message
        self.server.counts.broken += 1

    def _on_goaway(self, event: GoAwayReceived, _now: Instant) -> None:
        self.reason = self.reason or f"the caller leaves: {event.message}"

    def _on_open(self, event: OpenReceived, now: Instant) -> None:
        stream = event.stream
        if stream not in self.machine.streams:
            return
        shape = Shape.RUN if event.is_run else Shape.STREAM
        start = self.tasks.open_run if event.is_run else self.tasks.answer
        try:
            method, call, request = self.admit(event.method, shape, event.request, event.timeout_ms, now)
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
        """Authorize and decode a request: the one check before every handler (access.2)."""
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
        self.end_stream(event.stream, Cancelled("the request was cancelled by the caller"))
        if event.stream not in self.tasks:
            self.machine.ended(event.stream)

    # ------------------------------------------------------------------ answers

    def reply(self, stream: int, reply: Reply, method: Method | None = None) -> None:
        """End `stream` with the reply of `method`.

        Raises:
            Refusal: the caller does not take a reply of that size.
        """
        body = self._encoded(reply, method)
        if self.machine.reply(stream, body, reply.payload):
            self.mark_dirty()

    def start_call(self, stream: int, handler: Awaitable[Reply], call: Call, size: int) -> None:
        """Run the handler of a call as a task, unless the call was cancelled."""
        if self.machine.begin_call(stream):
            self.tasks.answer(stream, handler, call, size)
        elif isinstance(handler, Coroutine):
            handler.close()

    def refuse_call(self, stream: int, error: Exception) -> None:
        """Refuse a call that was never registered."""
        if self.machine.begin_call(stream):
            self.refuse(stream, error)

    def answer_row(self, streams: Sequence[int], replies: list[Reply], method: Method) -> None:
        """Answer calls that were never registered, because they need no state: by column if they are many."""
        payloads = one_form(replies) if len(replies) >= ROWS_MIN else None
        if payloads is None or self.machine.phase is Phase.BROKEN:
            for stream, reply in zip(streams, replies, strict=True):
                self._answer_call(stream, reply, method)
            return
        try:
            body = self._encoded(replies[0], method, count=len(replies))
        except Exception as error:  # noqa: BLE001 - the RPC edge (code.16).
            for stream in streams:
                self.refuse_call(stream, error)
            return
        self.machine.out.append(render_rows(f.REPLY, streams, body, payloads))
        self.mark_dirty()

    def _answer_call(self, stream: int, reply: Reply, method: Method) -> None:
        try:
            body = self._encoded(reply, method)
        except Exception as error:  # noqa: BLE001 - the RPC edge (code.16).
            self.refuse_call(stream, error)
            return
        if self.machine.phase is not Phase.BROKEN:
            self.machine.append(f.REPLY, stream, body, reply.payload)
            self.mark_dirty()

    def _encoded(self, reply: Reply, method: Method | None, *, count: int = 1) -> bytes:
        """The body of `reply`; `count` replies of its size are charged to the share of this turn.

        Raises:
            Refusal: the caller does not take a reply of that size.
        """
        body = f.encode(reply.body)
        size = len(body) + (f.payload_bytes(reply.payload) if reply.payload else 0)
        if size > self.machine.peer_frame_bytes_max or len(body) > self.limits.body_bytes_max:
            raise _too_large(size, method)
        if self.share is not None:
            self.share.units -= count * size >> REPLY_SHIFT
        return body

    def refuse(self, stream: int, error: Exception) -> None:
        """End `stream` with the status of `error`.

        Another exception than a `BroadsheetError` is a bug of ours: its status is UNKNOWN, because the
        handler may have applied the request. An `AssertionError` is raised again, and ends the process.
        """
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
        if self.machine.refuse(stream, status, message, hint):
            self.mark_dirty()

    def on_stopped(self, stream: int) -> None:
        """Clean up after the task of `stream`; refuse the stream if it was not answered."""
        if (end := self.streams.pop(stream, None)) is not None:
            end.close()
        self.machine.ended(stream)
        if stream in self.machine.streams and stream not in self.runs:
            self.refuse(stream, Unknown("the node stopped working on the request"))

    def end_stream(self, stream: int, error: BroadsheetError) -> None:
        """End a stream with `error`, from our side or after its CANCEL."""
        if self.machine.refuse(stream, error.status, str(error)):
            self.mark_dirty()
        self.runs.drop(stream)
        if (end := self.streams.get(stream)) is not None:
            end.on_end(error)
        self.tasks.cancel(stream)

    def _expel(self) -> None:
        """End the long streams: the caller's token has expired.

        The stream of a method that changes something is not refused, because a refusal says that nothing was
        executed, and the handler may already have applied the request. It gets the error when it next
        receives or sends.
        """
        hit("wire.expelled")
        error = Unauthenticated(EXPIRED)
        for stream, state in list(self.machine.streams.items()):
            end = self.streams.get(stream)
            if end is not None and end.method.capability & ~LOOKS:
                end.on_end(error)
            elif state.kind is not Kind.UNARY:
                self.end_stream(stream, error)


SLICE_UNITS: Final = 256
"""Frames are decoded in slices of so many units, so that few decoded events wait."""
_UNITS: Final[dict[type[Event], int]] = {
    OpenReceived: 2, RunReceived: 4, CallsReceived: 0,
}  # fmt: skip
"""The units that processing an event costs, besides its frame and the task that it starts."""
_ON: Final[dict[type[Event], Callable[[ServerConnection, Any, Instant], None]]] = {
    Broken: ServerConnection._on_broken,  # noqa: SLF001 - our own table.
    CancelReceived: ServerConnection._on_cancel,  # noqa: SLF001
    CreditReceived: ServerConnection._on_credit,  # noqa: SLF001
    FinishReceived: ServerConnection._on_finish,  # noqa: SLF001
    GoAwayReceived: ServerConnection._on_goaway,  # noqa: SLF001
    HelloReceived: ServerConnection._on_hello,  # noqa: SLF001
    MessageReceived: ServerConnection._on_message,  # noqa: SLF001
    OpenReceived: ServerConnection._on_open,  # noqa: SLF001
}
