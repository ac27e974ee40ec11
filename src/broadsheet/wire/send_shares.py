"""Send shares: how much the handlers of STREAMs may send in one turn of the loop.

A reader may have a window of gigabytes, and a connection may have a thousand readers. Without a bound each
would queue its whole window in one turn, before the server could see whether the peer reads. All streams of a
server together send `TURN_BYTES` in a turn. A message costs its bytes, and `MESSAGE_BYTES` for the work of
sending it. The other streams wait: callers take turns, and so do the connections of one caller, and the
streams of one connection.

    free --take--> waiting --its turn--> promised --take--> free
                   waiting --the peer does not read--> parked --it reads--> waiting

A promise lasts for one turn. This module holds no bytes. Source: ADR 0151.
"""

from typing import Any, Final, Protocol

from broadsheet.wire.connection_protocol import WirePorts

TURN_BYTES: Final = 1 << 20
"""Bytes that all streams together send in a turn. The last message may exceed the bound."""
MESSAGE_BYTES: Final = 16 << 10
"""The cost of a message besides its bytes: sixty-four empty messages fill a turn."""


class Sending(Protocol):
    """A connection whose STREAMs send, as the shares in sending know it."""

    flow: str
    """The caller: connections with the same `flow` share their turns."""

    @property
    def is_write_paused(self) -> bool:
        """Whether the peer does not read."""
        ...


class Sender(Protocol):
    """A STREAM that sends, as the shares in sending know it."""

    @property
    def connection(self) -> Sending:
        """The connection of the stream."""
        ...

    def on_writable(self) -> None:
        """Send now."""
        ...


class SendShares:
    """The bytes that the streams of one server may still send in this turn, and the streams that wait."""

    def __init__(self, ports: WirePorts) -> None:
        self._ports = ports
        self._left = TURN_BYTES
        self._is_armed = False
        self._waiting: dict[str, dict[Sending, dict[Sender, int]]] = {}
        """By caller and connection: how many bytes each stream wants to send."""
        self._parked: dict[Sending, dict[Sender, int]] = {}
        """The same for streams of connections whose peer does not read."""
        self._promised: dict[Sender, None] = {}

    def take(self, stream: Sender, size: int) -> bool:
        """Whether `stream` may send a message of `size` bytes now; if not, it is woken when it may."""
        is_promised = self._promised.pop(stream, 0) is None
        connection = stream.connection
        if connection.is_write_paused:
            self._parked.setdefault(connection, {})[stream] = size
            return False
        if is_promised:
            return True
        self._arm()
        if self._waiting or self._left <= 0:
            self._line(connection)[stream] = size
            return False
        self._left -= size + MESSAGE_BYTES
        return True

    def promise(self, stream: Sender) -> None:
        """Let `stream` send the message that `take` has granted at any later time in this turn."""
        self._promised[stream] = None

    def resume(self, connection: Sending) -> None:
        """Queue the streams of `connection` again, because its peer reads again."""
        parked = self._parked.pop(connection, None)
        if parked:
            self._line(connection).update(parked)
            self._arm()

    def forget(self, stream: Sender) -> None:
        """Drop a stream that sends no more from the shares."""
        self._promised.pop(stream, None)
        connection = stream.connection
        _drop(self._parked, connection, stream)
        others = self._waiting.get(connection.flow)
        if others is not None:
            _drop(others, connection, stream)
            if not others:
                del self._waiting[connection.flow]

    def check(self) -> None:
        """Assert the invariants of the shares in sending."""
        assert all(self._waiting.values()), "no caller without a line"
        lines = [line for others in self._waiting.values() for line in others.values()]
        lines += self._parked.values()
        waiting = [stream for line in lines for stream in line]
        assert all(lines), "no empty line"
        assert len(waiting) == len(dict.fromkeys(waiting)), "a stream waits once"
        assert not any(stream in self._promised for stream in waiting), "what is promised waits no longer"
        assert not self._waiting or self._is_armed, "streams wait, and no next turn is asked for"
        assert all(each.is_write_paused for each in self._parked), "a stream is parked, and its peer reads"

    def _line(self, connection: Sending) -> dict[Sender, int]:
        return self._waiting.setdefault(connection.flow, {}).setdefault(connection, {})

    def _first(self) -> tuple[Sender, int]:
        """The next stream (of the next caller's next connection), and how many bytes it wants to send."""
        flow = next(iter(self._waiting))
        others = self._waiting.pop(flow)
        connection = next(iter(others))
        line = others.pop(connection)
        stream = next(iter(line))
        size = line.pop(stream)
        if line:
            others[connection] = line  # Behind the other connections.
        if others:
            self._waiting[flow] = others  # Behind the other callers.
        return stream, size

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._ports.timers.call_soon(self._next)

    def _next(self) -> None:
        self._is_armed, self._left = False, TURN_BYTES
        self._promised.clear()  # A stream that was woken and has not sent will ask again if it wants to.
        while self._waiting and self._left > 0:
            stream, size = self._first()
            if stream.connection.is_write_paused:
                self._parked.setdefault(stream.connection, {})[stream] = size
                continue
            self._left -= size + MESSAGE_BYTES
            self._promised[stream] = None
            stream.on_writable()
        if self._waiting or self._promised:
            self._arm()


def _drop(lines: dict[Any, dict[Sender, int]], key: object, stream: Sender) -> None:
    line = lines.get(key)
    if line is not None and line.pop(stream, None) is not None and not line:
        del lines[key]
