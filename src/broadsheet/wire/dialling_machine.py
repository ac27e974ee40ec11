"""Dialling machine: the sans-IO state of the dialling side of a connection.

It opens streams with odd, rising numbers, as many at once as the listener's greeting allows, and never uses a
number again. Source: docs/protocols/native.md.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from broadsheet.base.time import Duration, Instant
from broadsheet.base.types import Buffer
from broadsheet.errors import RemoteProtocolError
from broadsheet.wire import frame as f
from broadsheet.wire.connection_machine import UNARY, Kind, Phase, StreamState, WireConnection, status_of
from broadsheet.wire.events import (
    AcknowledgedReceived,
    OpenedReceived,
    RefusalReceived,
    ReplyReceived,
    RunRefused,
    WelcomeReceived,
)
from broadsheet.wire.limits import WireLimits

_WELCOME: Final = msgspec.msgpack.Decoder(f.Welcome)
_REFUSAL: Final = msgspec.msgpack.Decoder(f.Refusal)
_RUN_REFUSAL: Final = msgspec.msgpack.Decoder(f.RunRefusal)
_OPENING: Final = {Kind.UNARY: f.CALL, Kind.STREAM: f.OPEN, Kind.RUN: f.OPEN_RUN}


class DiallerConnection(WireConnection):
    """The rules for the side that dialled."""

    name = "dialler"
    greetings = (f.HELLO, f.GOAWAY)

    def __init__(self, limits: WireLimits, *, now: Instant) -> None:
        super().__init__(limits, now=now)
        self.peer_streams_max = 0
        self.peer_run_count_max = 0
        self.table.update({
            f.HELLO: self._on_welcome, f.OPENED: self._on_opened, f.REPLY: self._on_reply,
            f.REFUSE: self._on_refuse, f.RUN_ACK: self._on_run_ack, f.RUN_REFUSE: self._on_run_refuse,
        })  # fmt: skip

    def greeting_patience(self) -> Duration:
        """How long the listener may take to welcome us."""
        return self.limits.dial_timeout

    def say_hello(self, *, token: str, node: str = "", cluster: str = "") -> None:
        """Send this dialler's greeting."""
        self.send_body(f.HELLO, 0, f.Hello(
            f.MAGIC, f.VERSION, f.VERSION, token, self.limits.frame_bytes_max, self.limits.window_bytes, node,
            cluster,
        ))  # fmt: skip

    def may_open(self) -> bool:
        """Whether one more stream is allowed now."""
        return (
            self.phase is Phase.OPEN and len(self.streams) < self.peer_streams_max and not self.is_worn_out()
        )

    def is_worn_out(self) -> bool:
        """Whether the stream numbers are used up: another connection is needed."""
        return self.last_stream >= f.STREAM_MAX - 1

    def open(
        self, kind: Kind, method: int, *, timeout_ms: int, body: bytes, payload: Sequence[Buffer] = ()
    ) -> int:
        """Send a request, after `may_open` and `fits` have allowed it; the number of its stream."""
        assert self.may_open(), "no stream may be opened now: the caller must wait"
        stream = self.last_stream + 2 if self.last_stream else 1
        self.last_stream = stream
        self.streams[stream] = UNARY if kind is Kind.UNARY else StreamState(kind)
        head = f.CALL_HEAD.pack(method, timeout_ms)
        frame_kind = _OPENING[kind]
        self.append(frame_kind, stream, head + body, payload)
        return stream

    def fits(self, body_bytes: int, payload_bytes: int) -> bool:
        """Whether the peer takes a frame of that size."""
        return (
            body_bytes + 8 <= self.limits.body_bytes_max
            and body_bytes + 8 + payload_bytes <= self.peer_frame_bytes_max
        )

    def cancel(self, stream: int) -> None:
        """Withdraw a request; frames that still come for it are ignored."""
        if self.streams.pop(stream, None) is not None:
            self.out.append(f.frame(f.CANCEL, stream))

    def send_run(self, stream: int, table: bytes, payload: Sequence[Buffer]) -> None:
        """Send a run frame: `table` is its body."""
        self.append(f.RUN, stream, table, payload)

    def _on_welcome(self, _stream: int, body: memoryview, _payload: memoryview) -> None:
        welcome: f.Welcome = f.decode_with(_WELCOME, body, "HELLO")
        if self.phase is not Phase.GREETING:
            raise RemoteProtocolError("a second greeting")
        if welcome.version != f.VERSION or welcome.frame_bytes_max < self.limits.greeting_bytes_max:
            raise RemoteProtocolError(
                f"the node answers with version {welcome.version} and frames of up to "
                f"{welcome.frame_bytes_max} bytes: version {f.VERSION} was offered, with at least "
                f"{self.limits.greeting_bytes_max} bytes"
            )
        self.peer_frame_bytes_max = min(welcome.frame_bytes_max, self.limits.frame_bytes_max)
        self.peer_window_bytes = welcome.window_bytes
        self.peer_streams_max, self.peer_run_count_max = welcome.streams_max, welcome.run_count_max
        self.become_open()
        self.events.append(WelcomeReceived(welcome=welcome))

    def _on_opened(self, stream: int, body: memoryview, _payload: memoryview) -> None:
        state = self.known(stream)
        if state is None:
            return
        if state.kind is not Kind.RUN or state.is_accepted:
            raise RemoteProtocolError(f"stream {stream}: opened twice, or not a run stream")
        state.is_accepted = True
        self.events.append(OpenedReceived(stream=stream, body=body))

    def _on_reply(self, stream: int, body: memoryview, payload: memoryview) -> None:
        if self.known(stream) is not None:
            del self.streams[stream]
            self.events.append(ReplyReceived(stream, body, payload))

    def _on_refuse(self, stream: int, body: memoryview, _payload: memoryview) -> None:
        if self.known(stream) is None:
            return
        refusal: f.Refusal = f.decode_with(_REFUSAL, body, "REFUSE")
        del self.streams[stream]
        status = status_of(refusal.status)
        self.events.append(
            RefusalReceived(stream=stream, status=status, message=refusal.message, hint=refusal.hint)
        )

    def _on_run_ack(self, stream: int, body: memoryview, _payload: memoryview) -> None:
        if self._known_run(stream, len(body) == f.RUN_ACK_BODY.size):
            sequence, count, begin, end = f.RUN_ACK_BODY.unpack(body)
            self.events.append(AcknowledgedReceived(stream, sequence, count, begin, end))

    def _on_run_refuse(self, stream: int, body: memoryview, _payload: memoryview) -> None:
        if self._known_run(stream, is_sane=True):
            refusal: f.RunRefusal = f.decode_with(_RUN_REFUSAL, body, "RUN_REFUSE")
            self.events.append(RunRefused(
                stream=stream, sequence=refusal.sequence, count=refusal.count,
                status=status_of(refusal.status),
                message=refusal.message, hint=refusal.hint,
            ))  # fmt: skip

    def _known_run(self, stream: int, is_sane: bool) -> bool:  # noqa: FBT001 - private, and read once.
        state = self.known(stream)
        if state is None:
            return False
        if state.kind is not Kind.RUN or not is_sane:
            raise RemoteProtocolError(f"stream {stream}: a malformed acknowledgement")
        return True
