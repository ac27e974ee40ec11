"""Listening machine: the sans-IO state of the accepting side of a connection.

The dialler opens streams. A stream ends by our REPLY or REFUSE, or by the dialler's CANCEL.
Source: docs/protocols/native.md.
"""

import struct
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from broadsheet.base.time import Duration, Instant
from broadsheet.base.types import Buffer
from broadsheet.errors import RemoteProtocolError, Status
from broadsheet.wire import frame as f
from broadsheet.wire.columns import ROWS_MIN, equal_calls
from broadsheet.wire.connection_machine import UNARY, Kind, Phase, StreamState, WireConnection
from broadsheet.wire.events import (
    CallsReceived,
    CancelReceived,
    HelloReceived,
    OpenReceived,
    RunReceived,
)
from broadsheet.wire.limits import WireLimits

_HELLO: Final = msgspec.msgpack.Decoder(f.Hello)
ROW_BYTES_MAX: Final = 4096
"""Equal calls up to this size are taken together; for larger ones it does not pay."""
ROW_COUNT_MAX: Final = 1024
"""Calls that are looked at together. Few of them may be alike, and a read may hold 40,000."""
LOOK_UNITS: Final = 16
"""Units for looking at calls together, besides a unit for a KiB of them."""
LOOK_SHIFT: Final = 10
SUMMED_SINGLY_MAX: Final = 64
"""Lengths of a run up to this many are summed one by one; an array costs more to make."""
_RUN_BODIES: Final = tuple(struct.Struct(f"<Q{count}I") for count in range(SUMMED_SINGLY_MAX + 1))
"""The bodies of RUN frames with so many records."""


class ListenerConnection(WireConnection):
    """The rules for the side that was dialled."""

    name = "listener"
    greetings = (f.HELLO,)

    def __init__(self, limits: WireLimits, *, now: Instant) -> None:
        super().__init__(limits, now=now)
        self.has_hello = self.has_goaway = False
        self.ending: dict[int, None] = {}
        """Streams whose caller has gone and whose task still runs: each keeps its slot until it has ended."""
        self.withdrawn: dict[int, None] = {}
        """Cancelled streams of a `CallsReceived` event that is not processed yet: they must not be begun.

        Late CANCELs add to it too, so it is emptied when all received events are processed.
        """
        self.table.update({
            f.HELLO: self._on_hello, f.OPEN: self._on_open, f.OPEN_RUN: self._on_open_run,
            f.CANCEL: self._on_cancel, f.RUN: self._on_run, f.GOAWAY: self._on_only_goaway,
        })  # fmt: skip

    def greeting_patience(self) -> Duration:
        """How long the dialler may take to greet."""
        return self.limits.greeting_timeout if self.has_heard else self.limits.first_byte_timeout

    def say_welcome(self, methods: dict[str, int], *, node: str = "", cluster: str = "") -> None:
        """Accept the dialler, whose token is valid."""
        assert self.phase is Phase.GREETING, "one greeting a connection"
        limits = self.limits
        self.send_body(f.HELLO, 0, f.Welcome(
            f.VERSION, limits.frame_bytes_max, limits.window_bytes, limits.streams_max, limits.run_count_max,
            methods, node, cluster,
        ))  # fmt: skip
        self.become_open()

    def accept_run(self, stream: int, body: bytes) -> None:
        """Open a RUN stream for records."""
        state = self.streams.get(stream)
        if state is not None:
            state.is_accepted = True
            self.out.append(f.frame(f.OPENED, stream, body))

    def reply(self, stream: int, body: bytes, payload: Sequence[Buffer] = ()) -> bool:
        """End `stream` with a reply; False if it has ended already."""
        if self.streams.pop(stream, None) is None:
            return False
        self.append(f.REPLY, stream, body, payload)
        return True

    def refuse(self, stream: int, status: Status, message: str, hint: str = "") -> bool:
        """End `stream` with an error; False if it has ended already."""
        if self.streams.pop(stream, None) is None:
            return False
        self.send_body(f.REFUSE, stream, f.Refusal(int(status), message[:1024], hint[:1024]))
        return True

    def answer_run(self, stream: int, size: int, answer: Buffer) -> None:
        """Send the encoded answer to records of `size` bytes, and return these bytes to the peer's window."""
        state = self.streams.get(stream)
        if state is not None:
            state.unanswered_bytes -= size
            self.out.append(answer)

    def _on_hello(self, _stream: int, body: memoryview, _payload: memoryview) -> None:
        hello: f.Hello = f.decode_with(_HELLO, body, "HELLO")
        if self.phase is not Phase.GREETING or self.has_hello:
            raise RemoteProtocolError("a second greeting")
        if hello.magic != f.MAGIC:
            raise RemoteProtocolError(
                "this is the native door of Broadsheet: the greeting is of another protocol"
            )
        if not hello.version_min <= f.VERSION <= hello.version_max:
            mine, theirs = f.VERSION, f"{hello.version_min} to {hello.version_max}"
            self.fail(
                Status.UNSUPPORTED, f"this node speaks version {mine}, the caller {theirs}: upgrade the older"
            )
            return
        if (
            hello.frame_bytes_max < self.limits.greeting_bytes_max
            or hello.window_bytes < f.INITIAL_WINDOW_BYTES
        ):
            raise RemoteProtocolError(
                f"the greeting's limits are too small: frames of {hello.frame_bytes_max} bytes, at least "
                f"{self.limits.greeting_bytes_max}; windows of {hello.window_bytes}, at least "
                f"{f.INITIAL_WINDOW_BYTES}"
            )
        self.has_hello = True
        self.peer_frame_bytes_max, self.peer_window_bytes = hello.frame_bytes_max, hello.window_bytes
        self.events.append(HelloReceived(hello=hello))

    def _on_only_goaway(self, stream: int, body: memoryview, payload: memoryview) -> None:
        if self.has_goaway:
            raise RemoteProtocolError("a second GOAWAY: a dialler leaves once")
        self.has_goaway = True
        self._on_goaway(stream, body, payload)

    def on_calls(self, buffer: bytearray, view: memoryview, at: int, end: int, stop: int) -> tuple[int, int]:
        """Take the CALL frame [at, stop), and those behind it that are alike; see `WireConnection`."""
        if self.phase is Phase.GREETING:
            raise RemoteProtocolError("a frame before the greeting")
        length, stream, word, _crc = f.HEADER.unpack_from(buffer, at)
        stride, body_bytes = stop - at, word >> f.WORD_BODY_SHIFT
        method, timeout_ms = self._begin(stream, view[at + f.HEADER_BYTES : at + f.HEADER_BYTES + body_bytes])
        if self.phase is Phase.LEAVING:  # One by one, because a refusal costs the same in a row.
            self._has_room(stream)
            return stop, 0
        streams: Sequence[int] | None = None
        units = 0
        if at + ROWS_MIN * stride <= end and length <= ROW_BYTES_MAX:
            second = f.HEADER.unpack_from(buffer, stop)
            last = f.HEADER.unpack_from(buffer, at + (ROWS_MIN - 1) * stride)
            if second[::2] == last[::2] == (length, word):  # A cheap probe before the fixed cost of numpy.
                count = min((end - at) // stride, ROW_COUNT_MAX)
                streams = equal_calls(buffer, at, stride, count)
                units = LOOK_UNITS + (count * stride >> LOOK_SHIFT)
        if streams is None:
            streams = (stream,)
        else:
            self.last_stream = streams[-1]
            stop = at + len(streams) * stride
        self.events.append(CallsReceived(streams, method, timeout_ms, view[at:stop], stride, body_bytes))
        return stop, units

    def begin_call(self, stream: int) -> bool:
        """Register a call of a `CallsReceived` event that is not answered at once.

        False if the connection is broken, or if the call was cancelled in the same read. Calls that were
        received before this side left are served.
        """
        if self.phase is Phase.BROKEN or stream in self.withdrawn:
            return False
        self.streams[stream] = UNARY
        return True

    def _on_open(self, stream: int, body: memoryview, payload: memoryview) -> None:
        self._open(stream, body, payload, Kind.STREAM)

    def _on_open_run(self, stream: int, body: memoryview, payload: memoryview) -> None:
        self._open(stream, body, payload, Kind.RUN)

    def _open(self, stream: int, body: memoryview, payload: memoryview, kind: Kind) -> None:
        method, timeout_ms = self._begin(stream, body)
        if len(payload):
            raise RemoteProtocolError(f"stream {stream}: an opening with a payload")
        if self._has_room(stream):
            self.streams[stream] = StreamState(kind)
            self.events.append(OpenReceived(
                stream=stream, method=method, timeout_ms=timeout_ms, request=body[8:],
                is_run=kind is Kind.RUN,
            ))  # fmt: skip

    def _begin(self, stream: int, body: memoryview) -> tuple[int, int]:
        if stream <= self.last_stream or not stream & 1:
            raise RemoteProtocolError(
                f"stream {stream} after stream {self.last_stream}: numbers are odd and rise"
            )
        if not 8 <= len(body) <= self.limits.body_bytes_max:
            raise RemoteProtocolError(f"stream {stream}: a request body of {len(body)} bytes")
        self.last_stream = stream
        return f.CALL_HEAD.unpack_from(body)

    def _has_room(self, stream: int) -> bool:
        """Whether the new stream may be served; otherwise it is refused, which ends it."""
        if self.phase is Phase.LEAVING:
            refusal = f.Refusal(int(Status.SHUTTING_DOWN), "the node is shutting down")
            self.send_body(f.REFUSE, stream, refusal)
            return False
        if self.is_full:
            self.send_body(f.REFUSE, stream, f.Refusal(int(Status.THROTTLED), self.full_message))
            return False
        return True

    @property
    def is_full(self) -> bool:
        """Whether every stream that the dialler may have is taken."""
        return len(self.streams) + len(self.ending) >= self.limits.streams_max

    @property
    def full_message(self) -> str:
        """The text of a refusal because `is_full`."""
        return f"{self.limits.streams_max} streams are open on this connection: wait for one to end"

    def _on_cancel(self, stream: int, _body: memoryview, _payload: memoryview) -> None:
        if self.known(stream) is not None:
            del self.streams[stream]
            self.ending[stream] = None
            self.events.append(CancelReceived(stream=stream))
        elif self.events:
            self.withdrawn[stream] = None

    def lingers(self, stream: int) -> None:
        """Keep the slot of `stream`, which has ended for its caller, while its task still runs."""
        if stream not in self.streams:
            self.ending[stream] = None

    def ended(self, stream: int) -> None:
        """Free the slot of `stream`: its task has ended."""
        self.ending.pop(stream, None)

    def _on_run(self, stream: int, body: memoryview, payload: memoryview) -> None:
        state = self.known(stream)
        if state is None:
            return
        size = len(payload)
        at, count = _run_table(body, size, self.limits.run_count_max)
        if not state.is_accepted or state.has_peer_finished:
            raise RemoteProtocolError(f"stream {stream}: records before it was opened, or after its end")
        if state.unanswered_bytes + size > self.limits.window_bytes:
            raise RemoteProtocolError(
                f"stream {stream}: more than {self.limits.window_bytes} unanswered bytes"
            )
        sequence = state.received_count
        state.received_count += count
        state.unanswered_bytes += size
        self.events.append(RunReceived(stream, sequence, count, at, payload))


def _run_table(body: memoryview, payload_bytes: int, count_max: int) -> tuple[int | None, int]:
    """The wanted offset of a run frame, and the number of its records.

    Raises:
        RemoteProtocolError: the lengths do not add up to the payload, or the table is empty or too long.
    """
    count, rest = divmod(len(body) - f.U64.size, f.U32.size)
    if rest or not 1 <= count <= count_max:
        raise RemoteProtocolError(
            f"a run frame with a table of {len(body) - f.U64.size} bytes: it must have {f.U32.size} for each "
            f"of 1 to {count_max} records"
        )
    if count <= SUMMED_SINGLY_MAX:
        at, *lengths = _RUN_BODIES[count].unpack(body)
        size = sum(lengths)
    else:
        (at,) = f.U64.unpack_from(body)
        size = int(np.frombuffer(body, "<u4", offset=f.U64.size).sum(dtype=np.uint64))
    if size != payload_bytes:
        raise RemoteProtocolError(
            f"a run frame's lengths add up to {size}, and its payload has {payload_bytes} bytes"
        )
    return (None if at == f.AT_HEAD else at), count
