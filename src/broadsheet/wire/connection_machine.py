"""Connection machine: the sans-IO state of one native connection: it takes bytes, and gives events and bytes.

Stream numbers are unsigned 32 bits, odd and rising for the dialler's. Windows count bytes.
GREETING --HELLO/WELCOME--> OPEN --GOAWAY--> LEAVING --> BROKEN, and BROKEN from anywhere.
It does not read sockets, decode requests, know methods, or decide who may do what; it checks that the peer
keeps to the protocol and its windows, and counts what may be sent. Frames for streams that have ended are
late, and normal.
Source: docs/protocols/native.md; ADR 0040.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

import msgspec
from crc32c import crc32c

from broadsheet.base.machine import Event
from broadsheet.base.time import Duration, Instant, after
from broadsheet.base.types import Buffer
from broadsheet.errors import RemoteProtocolError, Status
from broadsheet.wire import frame as f
from broadsheet.wire.events import (
    Broken,
    CreditReceived,
    FinishReceived,
    GoAwayReceived,
    MessageReceived,
)
from broadsheet.wire.limits import WireLimits

UNBOUNDED: Final = 1 << 62
PAYLOAD_SHIFT: Final = 12
"""Four KiB of a frame count as one unit of work."""


class Phase(Enum):
    """The phase of a native connection."""

    GREETING = "greeting"
    OPEN = "open"
    LEAVING = "leaving"
    BROKEN = "broken"


class Kind(Enum):
    """What a stream of a native connection is for."""

    UNARY = "unary"
    STREAM = "stream"
    RUN = "run"


class StreamState:
    """One open stream of a native connection."""

    __slots__ = (
        "granted", "has_peer_finished", "is_accepted", "kind", "received_count",
        "send_credit", "unanswered_bytes", "untaken_bytes",
    )  # fmt: skip

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.send_credit = f.INITIAL_WINDOW_BYTES
        """Bytes that we may send."""
        self.granted = f.INITIAL_WINDOW_BYTES
        """Bytes that the peer may still send (STREAM)."""
        self.untaken_bytes = 0
        """Bytes of messages that were received and not taken, those that are not queued yet included."""
        self.has_peer_finished = False
        self.is_accepted = False
        """OPENED was sent, so records may come (RUN)."""
        self.received_count = 0
        """Records received; the next one's sequence (RUN)."""
        self.unanswered_bytes = 0
        """Record bytes received and not yet answered (RUN)."""


UNARY: Final = StreamState(Kind.UNARY)
"""Unary streams have no state of their own, so one serves all."""

_Handler = Callable[[int, memoryview, memoryview], None]
_GOAWAY: Final = msgspec.msgpack.Decoder(f.GoAway)


class WireConnection:
    """The rules of the native wire that both sides share."""

    name = "peer"
    greetings: tuple[int, ...] = ()
    """Frame kinds that the peer may send before both sides have greeted."""

    def __init__(self, limits: WireLimits, *, now: Instant) -> None:
        self.limits = limits
        self.phase = Phase.GREETING
        self.events: list[Event] = []
        """What has happened, for the connection protocol to take."""
        self.out: list[Buffer] = []
        """Bytes to send, for the connection protocol to take."""
        self.streams: dict[int, StreamState] = {}
        self.last_stream = 0
        """The greatest stream that the dialler has opened."""
        self.peer_frame_bytes_max = limits.greeting_bytes_max
        self.peer_window_bytes = 0
        self.peer_streams_max = 0
        self.heard_at = self._begun_at = now
        self.has_heard = False
        self.misses = 0
        self.units = 0
        """The cost of the last `receive`, in units of about a microsecond."""
        self.is_torn = False
        """Whether the last `receive` has left the beginning of a frame whose rest has not come."""
        self._next_ping = after(now, limits.keepalive_interval)
        self.frame_bytes_max = limits.greeting_bytes_max
        self.table: dict[int, _Handler] = {
            f.GOAWAY: self._on_goaway, f.PING: self._on_ping, f.PONG: self._on_pong,
            f.MESSAGE: self._on_message, f.WINDOW: self._on_window, f.FINISH: self._on_finish,
        }  # fmt: skip

    # ------------------------------------------------------------------ receiving

    def receive(  # noqa: C901 - the hot loop, in one piece.
        self, buffer: bytearray, view: memoryview, at: int, end: int, now: Instant, *, units: int = UNBOUNDED
    ) -> int:
        """Take whole frames of `buffer[at:end]` until they cost `units`; the place where the next one begins.

        Afterwards `self.units` is what they cost, and `is_torn` says whether the next frame is incomplete.
        """
        self.units, self.is_torn, used = 0, False, 0
        if self.phase is Phase.BROKEN:
            return end
        self.heard_at, self.has_heard, self.misses = now, True, 0
        unpack, table, kind_mask = f.HEADER.unpack_from, self.table, f.KIND_MASK
        try:
            while end - at >= 16:
                if used >= units:
                    return at
                length, stream, word, crc = unpack(buffer, at)
                if crc32c(view[at : at + 12]) != crc:
                    raise RemoteProtocolError("the checksum of a frame's header is wrong")
                if length > self.frame_bytes_max:
                    raise RemoteProtocolError(
                        f"a frame of {length} bytes is above the limit of {self.frame_bytes_max}"
                    )
                body_end = at + 16 + (word >> 8)
                stop = at + 16 + length
                if body_end > stop:
                    raise RemoteProtocolError("a frame's body is longer than the frame")
                if stop > end:
                    break
                kind = word & kind_mask
                used += 1 + (length >> PAYLOAD_SHIFT)
                if kind == f.CALL:
                    at, units_of_row = self.on_calls(buffer, view, at, end, stop)
                    used += units_of_row
                    continue
                handler = table.get(kind)
                if handler is None:
                    name = f.FRAME_NAMES.get(kind, f"frame kind {kind}")
                    raise RemoteProtocolError(f"{name} is not for the {self.name}")
                if self.phase is Phase.GREETING and kind not in self.greetings:
                    raise RemoteProtocolError("a frame before the greeting")
                handler(stream, view[at + 16 : body_end], view[body_end:stop])
                at = stop
                if table is not self.table:  # The handler has failed the connection, which empties the table.
                    return end
        except RemoteProtocolError as error:
            self.fail(Status.REMOTE_PROTOCOL, str(error))
            return end
        finally:
            self.units = used
        self.is_torn = at < end
        return at

    def wanted(self, buffer: bytearray, at: int, end: int) -> int:
        """Bytes of the whole frame whose beginning is at `at`; a header's bytes if the header is torn too."""
        if end - at < f.HEADER_BYTES:
            return f.HEADER_BYTES
        return f.HEADER_BYTES + int(f.U32.unpack_from(buffer, at)[0])

    # ------------------------------------------------------------------ time

    def deadline(self) -> Instant | None:
        """The time at which `tick` must be called next; None when the connection is broken."""
        if self.phase is Phase.BROKEN:
            return None
        if self.phase is Phase.GREETING:
            return after(self._begun_at, self.greeting_patience())
        return self._next_ping

    def tick(self, now: Instant) -> None:
        """Give up on a connection's silent peer, or ask whether it is there."""
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return
        if self.phase is Phase.GREETING:
            what = "greeting" if self.has_heard else "first byte"
            self.fail(Status.REMOTE_PROTOCOL, f"no {what} in time")
            return
        interval = self.limits.keepalive_interval
        if now < self.heard_at + interval:
            self._next_ping = after(self.heard_at, interval)
            return
        if self.misses >= self.limits.keepalive_misses_max:
            self.fail(Status.REMOTE_PROTOCOL, f"the peer gave no answer to {self.misses} pings")
            return
        self.misses += 1
        self._next_ping = after(now, interval)
        self.out.append(f.frame(f.PING, 0))

    def greeting_patience(self) -> Duration:
        """How long the peer may take to greet."""
        raise NotImplementedError  # Each side of a connection has its own.

    def on_calls(self, buffer: bytearray, view: memoryview, at: int, end: int, stop: int) -> tuple[int, int]:
        """Take the CALL frame [at, stop), and those behind it that are alike.

        Returns:
            Where they end, and how many units it cost to look for those behind it, of which few may be alike.
        """
        raise RemoteProtocolError(f"CALL is not for the {self.name}")

    # ------------------------------------------------------------------ greeting and leaving

    def leave(self, status: Status, message: str) -> None:
        """Accept no more streams; open ones go on. Idempotent."""
        if self.phase in (Phase.LEAVING, Phase.BROKEN):
            return
        self.phase = Phase.LEAVING
        self.send_body(f.GOAWAY, 0, f.GoAway(int(status), message, self.last_stream))

    def fail(self, status: Status, message: str) -> None:
        """Break the connection, and tell the peer why. Idempotent."""
        if self.phase is Phase.BROKEN:
            return
        self.phase = Phase.BROKEN
        self.table = {}
        self.streams.clear()
        self.send_body(f.GOAWAY, 0, f.GoAway(int(status), message, self.last_stream))
        self.events.append(Broken(status=status, message=message))

    def become_open(self) -> None:
        """Both sides have greeted."""
        assert self.phase is Phase.GREETING, self.phase
        self.phase = Phase.OPEN
        self.frame_bytes_max = self.limits.frame_bytes_max
        self._next_ping = after(self.heard_at, self.limits.keepalive_interval)

    # ------------------------------------------------------------------ sending, both

    def may_send(self, stream: int, size: int) -> bool:
        """Whether the peer's window on `stream` has room for a message of `size` bytes.

        True if the stream has ended: then the message is dropped.
        """
        state = self.streams.get(stream)
        return state is None or state.send_credit >= size + f.MESSAGE_COST

    def room(self, stream: int) -> int:
        """The largest message for which the peer's window on `stream` has room, in bytes."""
        state = self.streams.get(stream)
        return UNBOUNDED if state is None else max(0, state.send_credit - f.MESSAGE_COST)

    def send_message(self, stream: int, body: bytes, payload: Sequence[Buffer], size: int) -> None:
        """Send one message of `size` bytes. The caller has asked `may_send`."""
        state = self.streams.get(stream)
        if state is not None:
            state.send_credit -= size + f.MESSAGE_COST
            self.append(f.MESSAGE, stream, body, payload)

    def finish(self, stream: int) -> None:
        """Send no more on `stream`."""
        if stream in self.streams:
            self.out.append(f.frame(f.FINISH, stream))

    def grant(self, stream: int, credit: int) -> None:
        """Let the peer send `credit` bytes more on `stream`."""
        state = self.streams.get(stream)
        if state is not None and not state.has_peer_finished:
            state.granted += credit
            self.out.append(f.frame(f.WINDOW, stream, f.U32.pack(credit)))

    def send_body(self, kind: int, stream: int, body: msgspec.Struct) -> None:
        """Queue a frame whose body is a struct."""
        self.out.append(f.frame(kind, stream, f.encode(body)))

    def append(self, kind: int, stream: int, body: bytes, payload: Sequence[Buffer]) -> None:
        """Queue a frame on the wire; `payload` is not copied."""
        out = self.out
        if not payload:
            out.append(f.frame(kind, stream, body))
            return
        size = f.payload_bytes(payload)
        out.append(f.header(kind, stream, body_bytes=len(body), payload_bytes=size) + body)
        out.extend(payload)

    def check(self) -> None:
        """Assert a connection's invariants. The simulator and the tests call this after every step."""
        assert self.phase is not Phase.BROKEN or not self.streams, "a broken connection has no streams"
        assert len(self.streams) <= max(self.limits.streams_max, self.peer_streams_max), "too many streams"
        for stream, state in self.streams.items():
            assert stream <= self.last_stream, "a stream that nobody opened"
            assert 0 <= state.granted <= self.limits.window_bytes, (
                f"stream {stream} was granted {state.granted}"
            )
            assert 0 <= state.unanswered_bytes <= self.limits.window_bytes, (
                "answered twice, or above its window"
            )
            assert state.send_credit >= 0, "sent above the peer's window"

    # ------------------------------------------------------------------ frames, both sides

    def _on_goaway(self, _stream: int, body: memoryview, _payload: memoryview) -> None:
        away: f.GoAway = f.decode_with(_GOAWAY, body, "GOAWAY")
        event = GoAwayReceived(
            status=status_of(away.status), message=away.message[:1024], last_stream=away.last_stream
        )
        if self.phase is Phase.OPEN:
            self.phase = Phase.LEAVING
        self.events.append(event)

    def _on_ping(self, _stream: int, _body: memoryview, _payload: memoryview) -> None:
        self.out.append(f.frame(f.PONG, 0))

    def _on_pong(self, _stream: int, _body: memoryview, _payload: memoryview) -> None:
        """Do nothing: `receive` has already noted that the peer is alive."""

    def _on_message(self, stream: int, body: memoryview, payload: memoryview) -> None:
        state = self.known(stream)
        if state is None:
            return
        cost = len(body) + len(payload) + f.MESSAGE_COST
        if state.kind is not Kind.STREAM or state.has_peer_finished or cost > state.granted:
            raise RemoteProtocolError(f"stream {stream}: a message that its window or its end forbids")
        state.granted -= cost
        state.untaken_bytes += cost
        self.events.append(MessageReceived(stream=stream, body=body, payload=payload))

    def _on_window(self, stream: int, body: memoryview, _payload: memoryview) -> None:
        state = self.known(stream)
        if state is None:
            return
        if len(body) != 4 or state.kind is not Kind.STREAM:
            raise RemoteProtocolError(f"stream {stream}: a malformed window")
        state.send_credit += f.U32.unpack(body)[0]
        if state.send_credit > 1 << 40:
            raise RemoteProtocolError(f"stream {stream}: a window without bound")
        self.events.append(CreditReceived(stream=stream))

    def _on_finish(self, stream: int, _body: memoryview, _payload: memoryview) -> None:
        state = self.known(stream)
        if state is None:
            return
        if state.kind is Kind.UNARY or state.has_peer_finished:
            raise RemoteProtocolError(f"stream {stream}: finished twice, or a unary call")
        state.has_peer_finished = True
        self.events.append(FinishReceived(stream=stream))

    def known(self, stream: int) -> StreamState | None:
        """The state of an open stream; None if it has ended, and the frame is late."""
        state = self.streams.get(stream)
        if state is None and not 0 < stream <= self.last_stream:
            raise RemoteProtocolError(f"stream {stream} was never opened")
        return state


def status_of(number: int) -> Status:
    """A status of this or a newer version; what we do not know is unknown, and never a no."""
    try:
        return Status(number)
    except ValueError:
        return Status.UNKNOWN
