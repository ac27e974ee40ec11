"""Events: what the connection machine reports to the connection's protocol, in the order of the bytes.

Bodies and payloads are views of the receive buffer, valid as long as they are referred to (`wire.slab`).
"""

from collections.abc import Sequence

from broadsheet.base.machine import Event
from broadsheet.errors import Status
from broadsheet.wire.frame import Hello, Welcome


class HelloReceived(Event, frozen=True):
    """A dialler has greeted, and speaks a version that we speak."""

    hello: Hello


class WelcomeReceived(Event, frozen=True):
    """The listener has accepted our greeting."""

    welcome: Welcome


class GoAwayReceived(Event, frozen=True):
    """The listener takes no stream above `last_stream`."""

    status: Status
    message: str
    last_stream: int


class CallsReceived(Event, frozen=True):
    """A row of unary requests, one or many, of the same method, timeout and lengths."""

    streams: Sequence[int]
    method: int
    timeout_ms: int
    view: memoryview
    """The frames, headers included."""
    stride: int
    """From one frame to the next."""
    body_bytes: int
    """Bytes of a body, of which the first eight are method and timeout."""

    def part(self, begin: int, end: int | None = None) -> "CallsReceived":
        """The calls [begin, end) of the row; to its last if there is no `end`."""
        end = len(self.streams) if end is None else end
        view = self.view[begin * self.stride : end * self.stride]
        return CallsReceived(
            self.streams[begin:end], self.method, self.timeout_ms, view, self.stride, self.body_bytes
        )


class OpenReceived(Event, frozen=True):
    """The dialler opens a STREAM or a RUN stream."""

    stream: int
    method: int
    timeout_ms: int
    request: memoryview
    is_run: bool


class OpenedReceived(Event, frozen=True):
    """Our RUN stream is open."""

    stream: int
    body: memoryview


class ReplyReceived(Event, frozen=True):
    """A stream of ours ended with success."""

    stream: int
    body: memoryview
    payload: memoryview


class RefusalReceived(Event, frozen=True):
    """A stream of ours ended with an error."""

    stream: int
    status: Status
    message: str
    hint: str


class CancelReceived(Event, frozen=True):
    """The dialler no longer wants its stream."""

    stream: int


class MessageReceived(Event, frozen=True):
    """A message of a STREAM came, within the window that we granted."""

    stream: int
    body: memoryview
    payload: memoryview


class FinishReceived(Event, frozen=True):
    """The peer sends no more on the stream."""

    stream: int


class CreditReceived(Event, frozen=True):
    """The peer's window on a stream has grown."""

    stream: int


class RunReceived(Event, frozen=True):
    """A run frame of a RUN stream came."""

    stream: int
    sequence: int
    """Number of its first record within the stream."""
    count: int
    at: int | None
    """The offset that the first byte must get; None for the head."""
    content: memoryview
    """The records back to back."""


class AcknowledgedReceived(Event, frozen=True):
    """Records of our RUN stream were appended at [begin, end)."""

    stream: int
    sequence: int
    count: int
    begin: int
    end: int


class RunRefused(Event, frozen=True):
    """Records of our RUN stream were refused, or are unknown."""

    stream: int
    sequence: int
    count: int
    status: Status
    message: str
    hint: str


class Broken(Event, frozen=True):
    """The connection has failed: the peer broke the protocol, or fell silent. No event follows."""

    status: Status
    message: str
