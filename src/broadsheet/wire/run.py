"""Run: consecutive records of one RUN stream from one read, from the wire to its answer (code.4).

The wire passes a run to the sink of its stream synchronously, in the read. The sink keeps the run, and
answers it once, when it knows the outcome. Answers may be given in any order and in any turn, and are sent in
the order in which they are given. `sequence` counts the records of a stream from 0. The bytes of a run are
records only, without headers. This module decides nothing: a machine sees key, count and size, and the rest
is opaque. Source: code.4; wire.2.
"""

from collections.abc import Callable
from typing import Final, Protocol

from broadsheet.base.types import Buffer, ConnectionId
from broadsheet.errors import Status
from broadsheet.wire import frame as f
from broadsheet.wire.datapath import Lengths, render_acks, render_run_ack
from broadsheet.wire.events import RecordsReceived

RUN_BYTES_MAX: Final = 1 << 20
"""Bytes of a run that is made of single RECORD frames, at most; a larger record makes a run of its own. The
bound exists because a sink may hash a run on the loop."""
RUN_BYTES: Final = 512
"""Bytes that a run costs besides its records, so that empty runs are bounded too."""
LENGTH_BYTES: Final = 8
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
        "_is_answered", "_is_framed", "_lengths", "_stream", "at", "count", "held_bytes", "parts", "sequence",
        "size",
    )  # fmt: skip

    def __init__(self, stream: ServedRunStream, event: RecordsReceived, parts: tuple[Buffer, ...]) -> None:
        """The run that `event` tells of; `parts` stay valid and unchanged as long as they are referred to."""
        self._stream, self._is_framed, self._is_answered = stream, event.is_framed, False
        self._lengths: Lengths = 0 if event.is_framed else event.lengths
        self.sequence, self.count, self.size, self.at = event.sequence, event.count, event.size, event.at
        """Number of the first record within the stream, from 0; number of records, at least one; bytes of all
        records together; the offset that the caller wants for the first byte (journals.21), or None."""
        table = 0 if isinstance(self._lengths, int) else LENGTH_BYTES * len(self._lengths)
        self.held_bytes = self.size + table + RUN_BYTES
        """Bytes that are charged to the caller until the run is answered."""
        self.parts = parts
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
            if self._is_framed:
                answer = render_run_ack(served.stream, self.sequence, self.count, begin=begin, end=end)
            else:
                answer = render_acks(served.stream, self.sequence, self.count, self._lengths, begin)
        served.unanswered_count -= 1
        served.unanswered_bytes -= self.held_bytes
        served.send(served, self, answer)
