"""Run: the records of one run frame, from the wire to their answer (code.4).

The wire passes a run to the sink of its stream synchronously, in the read. The sink keeps the run, and
answers it once, when it knows the outcome. Answers may be given in any order and in any turn, and are sent in
the order in which they are given. `sequence` counts the records of a stream from 0. The bytes of a run are
records only, without headers. This module decides nothing: a machine sees count, size and the wanted
offset, and the rest is opaque. Source: code.4; wire.2.
"""

from collections.abc import Callable
from typing import Final, Protocol

from broadsheet.base.types import Buffer, ConnectionId
from broadsheet.errors import Status
from broadsheet.wire import frame as f
from broadsheet.wire.events import RunReceived

RUN_BYTES: Final = 512
"""Bytes that a run costs besides its records, so that empty runs are bounded too."""
MESSAGE_MAX: Final = 1024
"""Characters of a refusal's message."""


class RunSink(Protocol):
    """Takes the runs of one stream. Never raises."""

    def on_run(self, run: "Run") -> None:
        """Take a run."""
        ...

    def on_end(self) -> None:
        """Expect no more runs: the peer ended the stream or is gone. Open runs may still be answered."""
        ...


class ServedRunStream:
    """The accepting end of a RUN stream."""

    __slots__ = (
        "connection", "has_finished", "send", "sink", "stream", "unanswered_bytes", "unanswered_count",
    )  # fmt: skip

    def __init__(
        self,
        sink: RunSink,
        stream: int,
        *,
        connection: ConnectionId,
        send: Callable[["ServedRunStream", "Run", bytes], None],
    ) -> None:
        """Pass the runs of `stream` to `sink`, and each answer's frame to `send`."""
        self.sink, self.stream, self.connection, self.send = sink, stream, connection, send
        self.unanswered_count = self.unanswered_bytes = 0
        """Number and bytes of the runs that the sink has not answered."""
        self.has_finished = False
        """Whether the dialler sends no more. The stream ends when every run is answered."""

    def on_run(self, run: "Run") -> None:
        """Pass a run to the sink."""
        self.unanswered_count += 1
        self.unanswered_bytes += run.held_bytes
        self.sink.on_run(run)


class Run:
    """One run, owned by the sink until it is answered."""

    __slots__ = (
        "_is_answered", "_stream", "at", "count", "held_bytes", "parts", "sequence", "size",
    )  # fmt: skip

    def __init__(self, stream: ServedRunStream, event: RunReceived, content: Buffer) -> None:
        """The run of `event`; `content` stays valid and unchanged as long as it is referred to."""
        self._stream, self._is_answered = stream, False
        self.sequence, self.count, self.size, self.at = event.sequence, event.count, len(content), event.at
        """Number of the first record within the stream, from 0; number of records, at least one; bytes of all
        records together; the offset that the caller wants for the first byte (journals.21), or None."""
        self.held_bytes = self.size + RUN_BYTES
        """Bytes that are charged to the caller until the run is answered."""
        self.parts: tuple[Buffer, ...] = (content,)
        """The records back to back, in the form in which they are logged; empty once it is answered."""

    @property
    def connection(self) -> ConnectionId:
        """The connection on which the run came."""
        return self._stream.connection

    @property
    def stream(self) -> int:
        """The stream of that connection."""
        return self._stream.stream

    def answer(self, status: Status, begin: int = 0, end: int = 0, message: str = "") -> None:
        """Answer the run, once. If the connection is gone, nothing happens.

        Args:
            status: OK, or the reason why the whole run was refused, or is unknown.
            begin: the offset of the first byte. The records follow back to back.
            end: the offset after the last byte.
            message: the text of a refusal.
        """
        assert not self._is_answered, "a run is answered once"
        self._is_answered = True
        self.parts = ()
        served = self._stream
        if status is not Status.OK:
            refusal = f.RunRefusal(self.sequence, self.count, int(status), message[:MESSAGE_MAX])
            answer = f.frame(f.RUN_REFUSE, served.stream, f.encode(refusal))
        else:
            assert end == begin + self.size, f"{self.size} bytes are not [{begin}, {end})"
            body = f.RUN_ACK_BODY.pack(self.sequence, self.count, begin, end)
            answer = f.frame(f.RUN_ACK, served.stream, body)
        served.unanswered_count -= 1
        served.unanswered_bytes -= self.held_bytes
        served.send(served, self, answer)
