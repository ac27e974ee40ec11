"""The wiretap knows the rules of the wire by itself: it names the frame that breaks one, and no other."""

from collections.abc import Callable

import pytest

from broadsheet.wire import frame as f
from broadsheet.wire.limits import WireLimits
from simulator.checkers.wiretap import Wiretap
from simulator.links import Links, Profile
from simulator.streams import Streams
from simulator.trace import Trace
from simulator.workload import Violation
from simulator.world import Life, World

LIMITS = WireLimits(
    frame_bytes_max=64 << 10, body_bytes_max=32 << 10, window_bytes=160 << 10, streams_max=2,
    in_flight_bytes_max=64 << 10,
)  # fmt: skip
HEAD = f.CALL_HEAD.pack(1, 0)


class Line:
    """A connection whose sides have greeted, and what the tap found."""

    def __init__(self) -> None:
        self.world = World(1, Trace(None))
        streams = Streams(self.world, Links(1, Profile()), lambda _: True)
        streams.tap = self.tap = Wiretap(self.world, LIMITS)
        self.dialler, self.listener = streams.pair(Life("c", 0), Life("n", 1))
        hello = f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", LIMITS.frame_bytes_max, LIMITS.window_bytes)
        self.ask(f.frame(f.HELLO, 0, f.encode(hello)))
        welcome = f.Welcome(
            f.VERSION, LIMITS.frame_bytes_max, LIMITS.window_bytes, LIMITS.streams_max, 100, {}
        )
        self.answer(f.frame(f.HELLO, 0, f.encode(welcome)))

    def ask(self, data: bytes) -> None:
        """The dialler says `data`, and the listener reads it."""
        self.tap.wrote(self.dialler, data)
        self.tap.read(self.listener, len(data))

    def answer(self, data: bytes) -> None:
        """The listener says `data`, and the dialler reads it."""
        self.tap.wrote(self.listener, data)
        self.tap.read(self.dialler, len(data))

    @property
    def found(self) -> str:
        """What the tap found; empty if nothing."""
        return "" if self.world.failure is None else str(self.world.failure)


def message(stream: int, size: int) -> bytes:
    """A message of `size` bytes."""
    return f.header(f.MESSAGE, stream, payload_bytes=size) + bytes(size)


def run(stream: int, *sizes: int) -> bytes:
    """A run of records of these sizes."""
    table = f.U64.pack(f.AT_HEAD) + b"".join([f.U32.pack(size) for size in sizes])
    head = f.header(f.RUN, stream, body_bytes=len(table), payload_bytes=sum(sizes))
    return head + table + bytes(sum(sizes))


def refusal(stream: int) -> bytes:
    """A refusal of the stream."""
    return f.frame(f.REFUSE, stream, f.encode(f.Refusal(1)))


def ack(stream: int, sequence: int, count: int, size: int) -> bytes:
    """The answer to a run."""
    return f.frame(f.RUN_ACK, stream, b"".join([f.U64.pack(n) for n in (sequence, count, 0, size)]))


def a_call_twice(line: Line) -> None:
    line.ask(f.frame(f.CALL, 3, HEAD) + f.frame(f.CALL, 3, HEAD))


def too_many_streams(line: Line) -> None:
    line.ask(b"".join([f.frame(f.CALL, stream, HEAD) for stream in (1, 3, 5)]))


def two_answers(line: Line) -> None:
    line.ask(f.frame(f.CALL, 1, HEAD))
    line.answer(f.frame(f.REPLY, 1) + f.frame(f.REPLY, 1))


def above_the_window(line: Line) -> None:
    line.ask(f.frame(f.OPEN, 1, HEAD) + message(1, 40_000) + message(1, 25_500))


def tiny_above_the_window(line: Line) -> None:
    line.ask(f.frame(f.OPEN, 1, HEAD) + message(1, 0) * 1025)


def a_window_above_its_limit(line: Line) -> None:
    line.ask(f.frame(f.OPEN, 1, HEAD))
    line.answer(f.frame(f.WINDOW, 1, f.U32.pack(100 << 10)))


def a_run_before_it_is_open(line: Line) -> None:
    line.ask(f.frame(f.OPEN_RUN, 1, HEAD) + run(1, 10))


def runs_above_the_window(line: Line) -> None:
    line.ask(f.frame(f.OPEN_RUN, 1, HEAD))
    line.answer(f.frame(f.OPENED, 1))
    line.ask(run(1, 60_000) * 3)


def a_run_answered_twice(line: Line) -> None:
    line.ask(f.frame(f.OPEN_RUN, 1, HEAD))
    line.answer(f.frame(f.OPENED, 1))
    line.ask(run(1, 10, 20))
    line.answer(ack(1, 0, 2, 30) * 2)


def a_call_behind_goaway(line: Line) -> None:
    line.answer(f.frame(f.GOAWAY, 0, f.encode(f.GoAway(1, "", 0))))
    line.world.now += 1_000_000_000
    line.ask(f.frame(f.CALL, 1, HEAD))


def an_answer_behind_goaway(line: Line) -> None:
    line.ask(f.frame(f.CALL, 1, HEAD))
    line.answer(f.frame(f.GOAWAY, 0, f.encode(f.GoAway(1, "", 0))) + f.frame(f.REPLY, 1))


def a_cancel_of_what_has_ended(line: Line) -> None:
    line.ask(f.frame(f.CALL, 1, HEAD) + f.frame(f.CANCEL, 1) + f.frame(f.CANCEL, 1))


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (a_call_twice, "opens stream 3 after 3"),
        (too_many_streams, "opens stream 5: there are 3"),
        (two_answers, "REPLY ends stream 1, which has ended"),
        (above_the_window, "sends 92 bytes above the window of stream 1"),
        (tiny_above_the_window, "sends 64 bytes above the window of stream 1"),
        (a_window_above_its_limit, "167936 exceed a window"),
        (a_run_before_it_is_open, "before it is open"),
        (runs_above_the_window, "has 180000 unanswered bytes on stream 1 of 163840"),
        (a_run_answered_twice, "answers run 0 of 2 on stream 1: it was None"),
        (a_call_behind_goaway, "was told that no more are taken"),
        (an_answer_behind_goaway, "REPLY of stream 1, and the last one was 0"),
        (a_cancel_of_what_has_ended, "cancels stream 1, which has ended"),
    ],
)
def test_the_frame_that_breaks_a_rule_is_named(happens: Callable[[Line], None], said: str) -> None:
    """A rule that the tap does not know is a rule that only the code under test keeps."""
    line = Line()

    happens(line)

    assert said in line.found


def test_what_the_wire_allows_is_no_finding() -> None:
    """A call that is answered after its caller has cancelled it is late, and normal."""
    line = Line()
    line.ask(f.frame(f.CALL, 1, HEAD) + f.frame(f.CANCEL, 1))
    line.answer(f.frame(f.REPLY, 1))
    line.ask(f.frame(f.OPEN, 3, HEAD) + message(3, 65_472))
    line.ask(f.frame(f.OPEN_RUN, 5, HEAD))
    line.answer(f.frame(f.OPENED, 5))
    line.ask(run(5, 10, 20))
    line.answer(ack(5, 0, 2, 30) + f.frame(f.REPLY, 5) + refusal(3))

    assert not line.found
    line.tap.check_idle()


def test_a_frame_that_is_torn_over_writes_is_one_frame() -> None:
    """A transport may be given half a frame at a time."""
    line = Line()
    data = f.frame(f.CALL, 1, HEAD) + f.frame(f.CALL, 1, HEAD)
    for at in range(0, len(data), 5):
        line.ask(data[at : at + 5])

    assert "opens stream 1 after 1" in line.found


def test_a_stream_that_nobody_ends_is_seen_when_nothing_is_asked() -> None:
    """What is missing breaks no rule of a frame."""
    line = Line()
    line.ask(f.frame(f.CALL, 1, HEAD))

    with pytest.raises(Violation, match=r"has open streams: \[\(1, 'call'\)\]"):
        line.tap.check_idle()
