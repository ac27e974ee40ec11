"""Runs: the accepting ends of a connection's RUN streams, and one run as its sink sees it.

A stream ends once its dialler has finished and everything is answered, or when it is dropped; its sink is
told once. Answers may come later than that, and then only return their bytes.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from broadsheet.base.types import Buffer, ConnectionId
from broadsheet.errors import Status, Throttled
from broadsheet.wire import frame as f
from broadsheet.wire.datapath import Lengths, render_acks, render_run_ack
from broadsheet.wire.events import RecordsReceived
from broadsheet.wire.method import EMPTY, Reply, RunOpened
from broadsheet.wire.run import RunSink

if TYPE_CHECKING:
    from broadsheet.wire.serving import ServerConnection

MESSAGE_MAX: Final = 1024
"""Characters of a refusal's message and hint."""


RUN_BYTES: Final = 512
"""What a run holds beside its records, so that empty ones are bounded too."""
LENGTH_BYTES: Final = 8


class RunEnd:
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
        send: Callable[["RunEnd", "Run", bytes], None],
    ) -> None:
        self.sink, self.stream, self.connection, self.send = sink, stream, connection, send
        self.unanswered_count = self.unanswered_bytes = 0
        """Runs that are with the sink, and what they hold."""
        self.has_finished = False
        """The dialler sends no more; once all is answered the stream ends."""

    def on_run(self, run: "Run") -> None:
        """Hand records to the sink."""
        self.unanswered_count += 1
        self.unanswered_bytes += run.held_bytes
        self.sink.on_run(run)


class Run:
    """A `FrameRun`."""

    __slots__ = (
        "_end", "_is_answered", "_is_framed", "_lengths", "at", "count", "held_bytes", "parts", "sequence",
        "size",
    )  # fmt: skip

    def __init__(self, end: RunEnd, event: RecordsReceived, parts: tuple[Buffer, ...]) -> None:
        self._end, self._is_framed, self._is_answered = end, event.is_framed, False
        self._lengths: Lengths = 0 if event.is_framed else event.lengths
        self.sequence, self.count, self.size, self.at = event.sequence, event.count, event.size, event.at
        table = 0 if isinstance(self._lengths, int) else LENGTH_BYTES * len(self._lengths)
        self.held_bytes = self.size + table + RUN_BYTES
        """What counts to its caller until it is answered."""
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
        end.unanswered_bytes -= self.held_bytes
        end.send(end, self, answer)


class Runs:
    """The RUN streams of one connection."""

    def __init__(self, connection: "ServerConnection") -> None:
        self._connection = connection
        self._ends: dict[int, RunEnd] = {}
        self._owing: dict[RunEnd, None] = {}
        """Those with runs that are not answered, streams that have ended among them."""

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
        """Held by runs that are with a sink."""
        return sum([end.unanswered_bytes for end in self._owing])

    def accept(self, stream: int, opened: RunOpened) -> None:
        """Open `stream` for records.

        Raises:
            Throttled: its caller has too many. The sink is told that nothing will come.
        """
        connection = self._connection
        if stream not in connection.base.streams:
            opened.sink.on_end()  # The caller left before we were ready.
            return
        accounts, holding = connection.server.accounts, connection.backpressure.holding
        assert holding is not None, "who asks has greeted"
        if not accounts.may_open(holding):
            opened.sink.on_end()
            raise Throttled(
                f"{holding.account.run_count} RUN streams of this caller are open: wait for one to end"
            )
        accounts.opened(holding)
        self._ends[stream] = RunEnd(
            opened.sink, stream, connection=connection.connection, send=self._on_answered
        )
        connection.base.accept_run(stream, f.encode(opened.body))
        connection.mark_dirty()
        connection.arm(connection.ports.time.now())  # Its token may expire before the next ping.
        if connection.base.streams[stream].has_peer_finished:
            self.on_finish(stream)  # It said so before it was opened.

    def on_records(self, event: RecordsReceived) -> None:
        """Records came: hand them to the sink."""
        end = self._ends.get(event.stream)
        if end is None:
            return
        connection, parts = self._connection, event.parts
        self._owing[end] = None
        if any(isinstance(part, memoryview) for part in parts):
            keep = connection.keep
            parts = tuple([keep(part) if isinstance(part, memoryview) else part for part in parts])
        run = Run(end, event, parts)
        connection.backpressure.take(run.held_bytes)
        end.on_run(run)

    def on_finish(self, stream: int) -> None:
        """The dialler sends no more."""
        end = self._ends.get(stream)
        if end is not None:
            end.has_finished = True
            end.sink.on_end()
            self._close(end)

    def drop(self, stream: int) -> None:
        """The stream has ended otherwise."""
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

    def _pop(self, stream: int) -> RunEnd | None:
        end = self._ends.pop(stream, None)
        if end is not None:
            holding = self._connection.backpressure.holding
            assert holding is not None, "who opened it had greeted"
            self._connection.server.accounts.opened(holding, -1)
        return end

    def _on_answered(self, end: RunEnd, run: Run, answer: bytes) -> None:
        connection = self._connection
        if not end.unanswered_count:
            self._owing.pop(end, None)
        if not connection.is_lost:
            connection.base.answer_run(end.stream, run.size, answer)
            self._close(end)
            connection.mark_dirty()
        connection.backpressure.give(run.held_bytes)  # Last: the connection may be read on in here.

    def _close(self, end: RunEnd) -> None:
        if end.has_finished and not end.unanswered_count and self._pop(end.stream) is not None:
            self._connection.reply(end.stream, Reply(EMPTY))
