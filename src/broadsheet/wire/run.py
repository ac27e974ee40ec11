"""Run: the records of one run frame, or of some that came together, from the wire to their answer (code.4).

The wire passes a run to the sink of its stream synchronously, in the read. The sink keeps the run, and
answers it once, when it knows the outcome. Answers may be given in any order and in any turn, and are sent in
the order in which they are given. `sequence` counts the records of a stream from 0. The bytes of a run are
records only, without headers. This module decides nothing: a machine sees count, size and the wanted
offset, and the rest is opaque.

A sink that allows it gets the frames of one read that follow each other as one run (ADR 0196). It has one
outcome, and each frame its own answer. Source: code.4; wire.2.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Protocol

from broadsheet.base.machine import Event
from broadsheet.base.types import Buffer
from broadsheet.errors import Status
from broadsheet.wire import frame as f
from broadsheet.wire.events import RunReceived

RUN_BYTES: Final = 512
"""Bytes that a frame costs besides its records, so that empty runs are bounded too."""
MESSAGE_MAX: Final = 1024
"""Characters of a refusal's message."""
_pack_ack: Final = f.RUN_ACK_BODY.pack


class RunSink(Protocol):
    """Takes the runs of one RUN stream. Never raises."""

    def on_run(self, run: "Run") -> None:
        """Take a run."""
        ...

    def on_end(self) -> None:
        """Expect no more runs: the peer ended the stream or is gone. Open runs may still be answered."""
        ...


class ServedRunStream:
    """The accepting end of a RUN stream."""

    __slots__ = (
        "ack_head", "has_finished", "joined_bytes_max", "send", "sink", "stream", "unanswered_bytes",
        "unanswered_count",
    )  # fmt: skip

    def __init__(
        self,
        sink: RunSink,
        stream: int,
        *,
        send: Callable[["ServedRunStream", "Run", bytes], None],
        joined_bytes_max: int,
    ) -> None:
        """Pass the runs of `stream` to `sink`, and the frames of each answer to `send`."""
        self.sink, self.stream, self.send = sink, stream, send
        self.joined_bytes_max = joined_bytes_max
        """Bytes of records up to which frames are passed as one run."""
        self.ack_head = f.header(f.RUN_ACK, stream, body_bytes=f.RUN_ACK_BODY.size)
        """The header of each RUN_ACK of the stream: they differ in their bodies only."""
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
        "_is_answered", "_stream", "at", "count", "frames", "held_bytes", "parts", "sequence", "size",
    )  # fmt: skip

    def __init__(self, stream: ServedRunStream, frames: Sequence[RunReceived]) -> None:
        """The run of `frames`, whose records the caller adds as `parts`."""
        self._stream, self._is_answered = stream, False
        self.frames = [(frame.count, len(frame.content)) for frame in frames]
        """Number of records, and bytes, of each frame; each frame gets an answer of its own."""
        self.sequence, self.at = frames[0].sequence, frames[0].at
        """Number of the first record within the stream, from 0; the offset that the caller wants for the
        first byte (journals.21), or None."""
        self.count, self.size = map(sum, zip(*self.frames, strict=True))
        """Number of records, at least one; bytes of all of them together."""
        self.held_bytes = self.size + RUN_BYTES * len(frames)
        """Bytes that are charged to the caller until the run is answered."""
        self.parts: tuple[Buffer, ...] = ()
        """The records back to back, in the form in which they are logged; empty once it is answered. They
        stay valid and unchanged as long as they are referred to."""

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
        served, sequence, answers = self._stream, self.sequence, []
        assert status is not Status.OK or end == begin + self.size, (
            f"{self.size} bytes are not [{begin}, {end})"
        )
        for count, size in self.frames:
            if status is not Status.OK:
                refusal = f.RunRefusal(sequence, count, int(status), message[:MESSAGE_MAX])
                answers.append(f.frame(f.RUN_REFUSE, served.stream, f.encode(refusal)))
            else:
                answers += served.ack_head, _pack_ack(sequence, count, begin, begin + size)
                begin += size
            sequence += count
        served.unanswered_count -= 1
        served.unanswered_bytes -= self.held_bytes
        served.send(served, self, b"".join(answers))


def joining(events: Sequence[Event], number: int, bytes_max: int) -> list[RunReceived]:
    """The run frame `events[number]` and those behind it that are one run with it, up to `bytes_max` bytes.

    Frames that want an offset stay alone, because each is refused by itself. So do empty ones: their answer
    only tells that all before them is durable, and a full disk refuses no such frame.
    """
    first = events[number]
    assert type(first) is RunReceived, "the caller has looked"
    frames, size = [first], len(first.content)
    if first.at is not None or not size:
        return frames
    for event in islice(events, number + 1, None):
        if type(event) is not RunReceived or event.stream != first.stream or event.at is not None:
            break
        length = len(event.content)
        size += length
        if not length or size > bytes_max:
            break
        frames.append(event)
    return frames
