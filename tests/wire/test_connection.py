"""The sans-IO state alone: whatever the bytes and however they are cut, the rules hold."""

import random
import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.base.machine import Event
from broadsheet.base.time import SECOND, Instant
from broadsheet.base.types import Buffer
from broadsheet.errors import Status
from broadsheet.wire import frame as f
from broadsheet.wire.columns import render_rows
from broadsheet.wire.connection_machine import Kind, Phase
from broadsheet.wire.dialling_machine import DiallerConnection
from broadsheet.wire.events import (
    Broken,
    CallsReceived,
    GoAwayReceived,
    HelloReceived,
    OpenReceived,
    RefusalReceived,
    RunReceived,
)
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.listening_machine import LOOK_UNITS, ROW_COUNT_MAX, ListenerConnection
from simulator.fuzz_server import LIMITS
from simulator.fuzz_sessions import good_session, mutated, run

START = Instant(0)


def feed(listener: ListenerConnection, data: bytes, cuts: list[int]) -> list[Event]:
    """Give `data` in the pieces that `cuts` make, answering as a server would; returns what happened."""
    buffer, read, happened = bytearray(data), 0, []
    view = memoryview(buffer)
    for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        read = listener.receive(buffer, view, read, end, START)
        events, listener.events = listener.events, []
        happened += events
        for event in events:
            if isinstance(event, HelloReceived) and listener.phase is Phase.GREETING:
                listener.say_welcome({})
            elif isinstance(event, OpenReceived) and event.is_run:
                listener.accept_run(event.stream, b"")
        happened += listener.events
        listener.events = []
        listener.check()
    return happened


def summary(events: list[Event]) -> list[object]:
    """Events with their content, and rows of calls taken apart, since a row ends where a read does."""
    found: list[object] = []
    for event in events:
        if isinstance(event, RunReceived):
            found.append((event.stream, event.sequence, event.count, event.at, bytes(event.content)))
        elif isinstance(event, CallsReceived):
            body, stride = 16 + event.body_bytes, event.stride
            for number, stream in enumerate(event.streams):
                frame = event.view[number * stride : (number + 1) * stride]
                found.append((stream, event.method, bytes(frame[24:body]), bytes(frame[body:])))
        elif isinstance(event, Broken):
            found.append("broken")
        else:
            found.append((type(event).__name__, getattr(event, "stream", 0)))
    return found


def greeted() -> ListenerConnection:
    listener = ListenerConnection(LIMITS, now=START)
    feed(listener, good_session()[0], [])
    listener.out.clear()
    return listener


@given(st.integers(0, 1 << 32), st.lists(st.integers(0, 6000), max_size=12))
def test_a_session_means_the_same_however_it_is_cut(seed: int, cuts: list[int]) -> None:
    """TCP cuts anywhere; good or malformed, what comes out depends on the bytes alone.

    A server answers at once only between reads, so the greeting and the opening of a run are given whole.
    """
    frames = good_session()
    tail = b"".join(frames[6:]) if seed % 3 == 0 else mutated(random.Random(seed))
    ready = [greeted(), greeted()]
    for listener in ready:
        feed(listener, b"".join(frames[2:6]), [])

    assert summary(feed(ready[0], tail, [])) == summary(feed(ready[1], tail, cuts))


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_no_bytes_make_it_raise(data: bytes, cuts: list[int]) -> None:
    """Nothing that a peer sends comes out as an exception."""
    feed(ListenerConnection(LIMITS, now=START), data, cuts)
    feed(greeted(), data, cuts)


@pytest.mark.parametrize("place", range(16))
def test_a_flipped_bit_anywhere_in_a_header_breaks_the_connection(place: int) -> None:
    """The length is believed only under its checksum; otherwise one bit would shift every later frame."""
    one = good_session()[7]
    for bit in range(8):
        listener = greeted()
        feed(listener, good_session()[5], [])
        data = bytearray(one * 60)
        data[place + len(one) * 55] ^= 1 << bit
        happened = feed(listener, bytes(data), [])

        assert isinstance(happened[-1], Broken), (place, bit)
        assert sum(event.count for event in happened if isinstance(event, RunReceived)) <= 55


def test_runs_above_the_window_break_the_connection() -> None:
    """A peer that ignores the window is cut off before its bytes pile up."""
    listener = greeted()
    feed(listener, good_session()[5], [])
    happened = feed(listener, run(5, bytes(200_000)) * 6, [])

    assert isinstance(happened[-1], Broken)
    assert "unanswered" in happened[-1].message
    assert (
        sum(len(event.content) for event in happened if isinstance(event, RunReceived)) <= LIMITS.window_bytes
    )


def test_a_message_above_the_window_breaks_the_connection() -> None:
    """The same for the messages of a STREAM."""
    listener = greeted()
    feed(listener, good_session()[2], [])
    message = f.header(f.MESSAGE, 3, payload_bytes=60_000) + bytes(60_000)
    happened = feed(listener, message * 2, [])

    assert [type(event).__name__ for event in happened] == ["MessageReceived", "Broken"]


@pytest.mark.parametrize("is_together", [False, True])
def test_the_streams_of_a_connection_are_bounded(*, is_together: bool) -> None:
    """One above is refused by itself; the connection and the others go on."""
    listener, most = greeted(), LIMITS.streams_max
    frames = calls(most)
    cuts = [] if is_together else [len(frames[0]) * number for number in range(most)]
    feed(listener, b"".join(frames), cuts)
    # A call that is answered at once takes no place, so the places are taken when tasks begin.
    assert all(not listener.is_full and listener.begin_call(2 * n + 1) for n in range(most))
    assert listener.is_full
    feed(listener, f.frame(f.OPEN, 2 * most + 1, f.CALL_HEAD.pack(1, 0) + b"\x90"), [])
    refusal = listener.out[-1]
    assert f.HEADER.unpack_from(refusal)[1:3] == (2 * most + 1, f.REFUSE | (len(refusal) - 16) << 8)
    listener.reply(1, b"\x90")
    assert len(feed(listener, calls(1, first=2 * most + 3)[0], [])) == 1
    listener.check()


def test_a_call_that_came_before_the_node_left_is_served() -> None:
    """Its handler may have run when the call takes its place; a refusal would say that nothing was done."""
    listener = greeted()
    feed(listener, calls(1)[0], [])
    listener.leave(Status.SHUTTING_DOWN, "leaving")

    assert listener.begin_call(1)
    assert feed(listener, calls(1, first=3)[0], []) == []
    refusal = f.Refusal(int(Status.SHUTTING_DOWN), "the node is shutting down")
    assert listener.out[-1] == f.frame(f.REFUSE, 3, f.encode(refusal))


@pytest.mark.parametrize("who", ["dialler", "listener"])
def test_calls_that_come_after_a_goaway_are_refused_within_the_units_of_a_turn(who: str) -> None:
    """A dialler may say that it leaves, and then fill a buffer with calls, each of which is refused.

    In a row a call cost a fortieth of a unit: 43,000 of them fit into a read, and stopped the loop for 300
    ms.
    """
    listener = greeted()
    if who == "listener":
        listener.leave(Status.SHUTTING_DOWN, "leaving")
    else:
        feed(listener, f.frame(f.GOAWAY, 0, f.encode(f.GoAway(0, "bye", 0))), [])
    listener.out.clear()
    buffer, units = bytearray(b"".join(calls(2000))), 100

    listener.receive(buffer, memoryview(buffer), 0, len(buffer), START, units=units)

    assert len(listener.out) == listener.units == units
    assert not listener.events


def test_what_comes_late_for_a_stream_that_ended_is_dropped() -> None:
    """The peer cannot know yet; a stream that was never opened is another matter."""
    listener = greeted()
    session = good_session()
    feed(listener, session[2] + session[5], [])
    listener.refuse(5, Status.FENCED, "")
    listener.refuse(3, Status.FENCED, "")
    late = (
        session[7] * 80 + session[3] + session[4] + f.frame(f.FINISH, 3) + f.frame(f.CANCEL, 5) + session[-7]
    )

    assert feed(listener, late, [3, 700]) == []
    assert isinstance(feed(listener, f.frame(f.CANCEL, 101), [])[-1], Broken)


def pair() -> tuple[DiallerConnection, ListenerConnection]:
    dialler, listener = (
        DiallerConnection(WireLimits(), now=START),
        ListenerConnection(WireLimits(), now=START),
    )
    dialler.say_hello(token="")
    carry(dialler, listener)
    listener.say_welcome({"m": 1})
    carry(listener, dialler)
    dialler.events.clear()
    listener.events.clear()
    return dialler, listener


def carry(
    source: DiallerConnection | ListenerConnection,
    target: DiallerConnection | ListenerConnection,
    now: Instant = START,
) -> None:
    buffer = bytearray(b"".join(source.out))
    source.out = []
    target.receive(buffer, memoryview(buffer), 0, len(buffer), now)
    target.check()


def test_goaway_names_the_last_stream_that_was_looked_at() -> None:
    """What is above it may be repeated; what is not may have been done."""
    dialler, listener = pair()
    first = dialler.open(Kind.UNARY, 1, timeout_ms=0, body=b"\x90")
    carry(dialler, listener)
    second = dialler.open(Kind.UNARY, 1, timeout_ms=0, body=b"\x90")
    listener.leave(Status.SHUTTING_DOWN, "leaving")
    carry(listener, dialler)
    (away,) = dialler.events
    dialler.events.clear()
    carry(dialler, listener)
    carry(listener, dialler)

    assert isinstance(away, GoAwayReceived)
    assert (away.last_stream, second) == (first, first + 2)
    (refusal,) = dialler.events
    assert isinstance(refusal, RefusalReceived)
    assert (refusal.stream, refusal.status) == (second, Status.SHUTTING_DOWN)
    assert not dialler.may_open()


def test_keepalive_asks_then_gives_up() -> None:
    """Silence is asked about after the interval, and believed after three questions."""
    dialler, listener = pair()
    interval = dialler.limits.keepalive_interval
    now = START
    for misses in range(1, 4):
        now = Instant(now + interval)
        dialler.tick(now)
        assert (dialler.misses, len(dialler.out)) == (misses, misses)
    carry(dialler, listener)
    carry(listener, dialler, now)
    assert dialler.misses == 0, "a PONG counts as life"
    for _ in range(5):
        now = Instant(now + interval)
        dialler.tick(now)

    assert dialler.phase is Phase.BROKEN
    assert dialler.deadline() is None


def test_a_peer_that_was_heard_meanwhile_is_asked_an_interval_later() -> None:
    """A deadline that stays in the past would have the timer fire again and again."""
    dialler, listener = pair()
    interval = dialler.limits.keepalive_interval
    asked, heard = Instant(START + interval), Instant(START + interval // 2)
    listener.out.append(f.frame(f.PING, 0))
    carry(listener, dialler, heard)
    dialler.out.clear()
    dialler.tick(asked)

    assert (dialler.misses, dialler.out) == (0, [])
    assert dialler.deadline() == heard + interval


def test_a_tick_before_its_time_changes_nothing() -> None:
    """Whoever calls too early does no harm."""
    dialler, _ = pair()
    dialler.tick(Instant(SECOND))

    assert (dialler.misses, dialler.out, dialler.events) == (0, [], [])


def test_a_message_fits_the_window_to_the_last_byte() -> None:
    """A handler asks how much it may send: one byte more would break the connection, and one less waits."""
    dialler, listener = pair()
    stream = dialler.open(Kind.STREAM, 1, timeout_ms=0, body=b"\x90")
    carry(dialler, listener)
    room = listener.room(stream)

    assert listener.may_send(stream, room)
    assert not listener.may_send(stream, room + 1)
    listener.send_message(stream, b"", (bytes(room),), room)
    assert (listener.room(stream), listener.may_send(stream, 1)) == (0, False)


def test_a_request_may_be_as_long_as_the_limits_of_both_sides_say() -> None:
    """What is refused here could have been sent; what is sent too long ends the connection."""
    dialler, _ = pair()
    body, whole = dialler.limits.body_bytes_max - 8, dialler.peer_frame_bytes_max

    assert dialler.fits(body, 0)
    assert not dialler.fits(body + 1, 0)
    assert dialler.fits(100, whole - 108)
    assert not dialler.fits(100, whole - 107)


def test_a_dialler_that_speaks_older_and_newer_versions_too_is_greeted() -> None:
    """During an upgrade of a cluster each side speaks more than one."""
    dialler, listener = (
        DiallerConnection(WireLimits(), now=START),
        ListenerConnection(WireLimits(), now=START),
    )
    dialler.out = [
        f.frame(f.HELLO, 0, f.encode(f.Hello(f.MAGIC, f.VERSION - 1, f.VERSION + 1, "", 4 << 20, 16 << 20)))
    ]
    carry(dialler, listener)

    assert [type(event) for event in listener.events] == [HelloReceived]


def test_stream_numbers_are_never_used_again() -> None:
    """C6: a connection that has used them up takes no more, and another one is dialled."""
    dialler, listener = pair()
    dialler.last_stream = f.STREAM_MAX - 4
    last = dialler.open(Kind.UNARY, 1, timeout_ms=0, body=b"\x90")

    assert last == f.STREAM_MAX - 2
    assert dialler.open(Kind.UNARY, 1, timeout_ms=0, body=b"\x90") == f.STREAM_MAX
    assert not dialler.may_open()
    assert dialler.is_worn_out()
    carry(dialler, listener)
    assert len(listener.events) == 2


def test_an_unknown_status_of_a_newer_node_is_unknown() -> None:
    """Never a no."""
    dialler, listener = pair()
    stream = dialler.open(Kind.UNARY, 1, timeout_ms=0, body=b"\x90")
    carry(dialler, listener)
    listener.out.append(f.frame(f.REFUSE, stream, f.encode(f.Refusal(250, "from the future"))))
    carry(listener, dialler)
    (refusal,) = dialler.events

    assert isinstance(refusal, RefusalReceived)
    assert refusal.status is Status.UNKNOWN


def calls(count: int, *, first: int = 1) -> list[bytes]:
    """Calls of one length, as a busy caller sends them."""
    body = f.CALL_HEAD.pack(1, 1000) + b"\x92\xa1a\x80"
    return [
        f.header(f.CALL, first + 2 * number, body_bytes=len(body), payload_bytes=20)
        + body
        + b"%020d" % number
        for number in range(count)
    ]


def test_calls_that_are_looked_at_together_cost_it_although_they_are_not_alike() -> None:
    """With another timeout in each second call, the whole rest of a read was looked at for each of them.

    It cost one unit, so the 256 units of a slice took the loop 250 ms, and no clock is read in between.
    """
    listener, body, units = greeted(), b"\x90", 256
    frames = [
        f.frame(f.CALL, 1 + 2 * number, f.CALL_HEAD.pack(1, 1000 + number % 2) + body)
        for number in range(20_000)
    ]
    buffer = bytearray(b"".join(frames))

    listener.receive(buffer, memoryview(buffer), 0, len(buffer), START, units=units)

    a_look = LOOK_UNITS + ROW_COUNT_MAX * len(frames[0]) // 1024
    rows = [event for event in listener.events if isinstance(event, CallsReceived)]
    assert [len(row.streams) for row in rows] == [1] * (units // (1 + a_look) + 1)
    assert listener.units == len(rows) * (1 + a_look)


@given(st.integers(0, 119), st.integers(0, 47), st.integers(0, 7), st.booleans())
def test_many_alike_calls_mean_the_same_together_and_one_by_one(
    place: int, byte: int, bit: int, is_broken: bool
) -> None:
    """Taking calls by column is a matter of speed: every byte of every frame counts as in the loop."""
    limits = WireLimits(streams_max=1000)
    frames = calls(120)
    if is_broken:
        data = bytearray(frames[place])
        data[byte] ^= 1 << bit
        frames[place] = bytes(data)
    found = []
    for cuts in ([], [48 * number for number in range(120)]):
        listener = ListenerConnection(limits, now=START)
        feed(listener, good_session()[0], [])
        happened = feed(listener, b"".join(frames), cuts)
        found.append((summary(happened), listener.last_stream))
        if not is_broken and not cuts:
            assert [type(event) for event in happened] == [CallsReceived]

    assert found[0] == found[1]


def test_replies_by_column_have_the_bytes_of_single_replies() -> None:
    """The peer cannot tell how they were made."""
    streams = [1, 3, 255, 257, 65_535, 65_537, 1 << 24 | 1, f.STREAM_MAX]
    payloads: list[Buffer] = [b"%04d" % stream for stream in range(len(streams))]
    each = [
        f.header(f.REPLY, stream, body_bytes=1, payload_bytes=4) + b"\x90" + bytes(payload)
        for stream, payload in zip(streams, payloads, strict=True)
    ]

    assert render_rows(f.REPLY, array("I", streams), b"\x90", payloads) == b"".join(each)


@pytest.mark.parametrize("kind", [0, 16, 18, 21, 255])
def test_a_kind_that_is_not_in_the_table_breaks_the_connection(kind: int) -> None:
    """Kinds 16 and 18 were of version 1; what a peer means by them must not be guessed (ADR 0156)."""
    for machine in (greeted(), pair()[0]):
        data = bytearray(f.frame(kind, 5))
        machine.receive(data, memoryview(data), 0, len(data), START)

        (broken,) = machine.events
        assert isinstance(broken, Broken)
        assert f"frame kind {kind} is not for the {machine.name}" in broken.message


@pytest.mark.parametrize(
    ("lengths", "payload_bytes"), [((), 0), ((3,), 2), ((3,), 4), ((2**32 - 1, 1), 0)], ids=repr
)
def test_a_run_whose_table_does_not_add_up_breaks_the_connection(
    lengths: tuple[int, ...], payload_bytes: int
) -> None:
    """The answer has one count and one end for the run: a wrong table would misplace its records."""
    listener = greeted()
    feed(listener, good_session()[5], [])
    table = struct.pack(f"<Q{len(lengths)}I", f.AT_HEAD, *lengths)
    frame = f.header(f.RUN, 5, body_bytes=len(table), payload_bytes=payload_bytes)

    assert isinstance(feed(listener, frame + table + bytes(payload_bytes), [])[-1], Broken)
