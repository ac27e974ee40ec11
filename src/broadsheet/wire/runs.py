"""Runs, the accepting side: one run as its sink sees it, and the stream that it belongs to."""

from collections.abc import Callable
from typing import Final

from broadsheet.base.types import Buffer, ConnectionId
from broadsheet.errors import Status
from broadsheet.wire import frame as f
from broadsheet.wire.datapath import Lengths, render_acks, render_run_ack
from broadsheet.wire.events import RecordsReceived
from broadsheet.wire.run import RunSink

MESSAGE_MAX: Final = 1024
"""Characters of a refusal's message and hint."""


class RunEnd:
    """The accepting end of a RUN stream."""

    __slots__ = ("connection", "has_finished", "send", "sink", "stream", "unanswered_count")

    def __init__(
        self,
        sink: RunSink,
        stream: int,
        *,
        connection: ConnectionId,
        send: Callable[["RunEnd", int, bytes], None],
    ) -> None:
        self.sink, self.stream, self.connection, self.send = sink, stream, connection, send
        self.unanswered_count = 0
        """Runs that are with the sink."""
        self.has_finished = False
        """The dialler sends no more; once all is answered the stream ends."""

    def on_records(self, event: RecordsReceived, parts: tuple[Buffer, ...]) -> None:
        """Hand records to the sink."""
        self.unanswered_count += 1
        self.sink.on_run(Run(self, event, parts))


class Run:
    """A `FrameRun`."""

    __slots__ = ("_end", "_is_answered", "_is_framed", "_lengths", "at", "count", "parts", "sequence", "size")

    def __init__(self, end: RunEnd, event: RecordsReceived, parts: tuple[Buffer, ...]) -> None:
        self._end, self._is_framed, self._is_answered = end, event.is_framed, False
        self._lengths: Lengths = event.lengths
        self.sequence, self.count, self.size, self.at = event.sequence, event.count, event.size, event.at
        self.parts = parts

    @property
    def connection(self) -> ConnectionId:
        """The connection that it came by."""
        return self._end.connection

    @property
    def stream(self) -> int:
        """The stream of that connection."""
        return self._end.stream

    def reply(self, status: Status, begin: int = 0, *, message: str = "", hint: str = "") -> None:
        """Answer it, once."""
        assert not self._is_answered, "a run is answered once"
        self._is_answered = True
        self.parts = ()
        stream = self._end.stream
        if status is not Status.OK:
            refusal = f.RunRefusal(
                self.sequence, self.count, int(status), message[:MESSAGE_MAX], hint[:MESSAGE_MAX]
            )
            answer = f.frame(f.RUN_REFUSE, stream, f.encode(refusal))
        elif self._is_framed:
            answer = render_run_ack(stream, self.sequence, self.count, begin=begin, end=begin + self.size)
        else:
            answer = render_acks(stream, self.sequence, self.count, self._lengths, begin)
        end = self._end
        end.unanswered_count -= 1
        end.send(end, self.size, answer)
