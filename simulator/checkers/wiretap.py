"""Wiretap: what both sides of each native connection say, judged by the rules of docs/protocols/native.md.

It stands in the simulated network, and hears each frame twice: when a side writes it, and when the other side
has read its last byte. It keeps the books of both sides by itself, from frames alone: a side is judged by
what it has read before it writes. So a message above the window, a window above its limit, a stream that is
opened, ended or cancelled once too often, a run that is answered twice, and an answer behind a GOAWAY are
seen in the frame that breaks the rule. Where a side has nothing left to do, its own books must agree. The tap
also sees what is missing: a stream that nobody ends, a dead peer that nobody gives up, a connection that does
not close. A side may have read what it has not processed yet: then it is late, which is no fault.
Source: docs/protocols/native.md; wire.1-10.
"""

import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from broadsheet.wire import frame as f
from broadsheet.wire.limits import WireLimits
from simulator.streams import End
from simulator.workload import Violation
from simulator.world import World

COST: Final = 64
"""What a message costs of its window besides its bytes; counted here, not by what is judged."""
FIRST_WINDOW: Final = 65_536
OPENINGS: Final = {f.CALL: "call", f.OPEN: "stream", f.OPEN_RUN: "run"}
ENDED_MAX: Final = 4096
LATE_NS: Final = 50_000_000
"""What was said before an end was read is written by the end of the turn, which may be busy."""
LOOK_NS: Final = 100_000_000
SILENT_MORE: Final = 3
"""Keepalives more than are said to be waited for: timers are late, and the last one has to be sent."""
SLACK_LOOKS: Final = 15
CLOSING_MORE: Final = 4
"""So many times the time that a peer has to read, and a closed connection is gone."""
_ACK: Final = struct.Struct("<QQQQ")


class _Stream:
    """One open stream, as one side sees it."""

    __slots__ = ("credit", "granted", "has_finished", "is_accepted", "kind", "runs", "unanswered")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.credit = self.granted = FIRST_WINDOW
        """What this side may still send, and what it still allows the other side."""
        self.has_finished = self.is_accepted = False
        self.unanswered = 0
        self.runs: dict[int, tuple[int, int]] = {}
        """Of runs without an answer: records and bytes, by the first sequence."""


class _Side:
    """One side of a connection: what it has written, read and promised."""

    def __init__(self, end: End, *, is_dialler: bool) -> None:
        self.end, self.is_dialler = end, is_dialler
        self.name = f"{end.life!r}>{end.peer.life!r}"
        self.streams: dict[int, _Stream] = {}
        self.ended: dict[int, int] = {}
        """Streams whose end by the other side it has read, and when: what it has said may be late."""
        self.last = 0
        """The greatest stream that it opened, or whose opening it read."""
        self.touched = 0
        """The greatest stream that it has answered, as a listener."""
        self.window = self.streams_max = 0
        """What it said in its greeting."""
        self.has_greeted = False
        self.away: int | None = None
        """The last stream of its GOAWAY."""
        self.read_away_at: int | None = None
        self.sequences: dict[int, int] = {}
        self.written = self.read = self.heard = 0
        self.flying: deque[tuple[int, int, int, Any]] = deque()
        """Frames that the other side has not read whole: end, kind, stream, and what they say."""
        self.torn = b""
        self.silent_looks = self.closing_looks = 0


class Conversation:
    """Both sides of one connection."""

    def __init__(self, dialler: End, listener: End) -> None:
        self.dialler, self.listener = _Side(dialler, is_dialler=True), _Side(listener, is_dialler=False)
        self.ends = {dialler: self.dialler, listener: self.listener}

    def other(self, side: _Side) -> _Side:
        """The other side."""
        return self.listener if side is self.dialler else self.dialler


class Wiretap:
    """All connections of a run."""

    def __init__(self, world: World, limits: WireLimits) -> None:
        """Judge by `limits`, which both sides have."""
        self._world, self._limits = world, limits
        self._conversations: dict[End, Conversation] = {}
        self.frames = 0

    # ------------------------------------------------------------------ for the network

    def began(self, dialler: End, listener: End) -> None:
        """A connection was made."""
        conversation = Conversation(dialler, listener)
        self._conversations[dialler] = self._conversations[listener] = conversation

    def wrote(self, end: End, data: bytes) -> None:
        """`end` says `data`: each whole frame of it is judged."""
        conversation = self._conversations.get(end)
        if conversation is None:
            return
        side = conversation.ends[end]
        data, at = side.torn + data if side.torn else data, 0
        begin = side.written - len(side.torn)
        size = len(data)
        try:
            while size - at >= f.HEADER_BYTES:
                length, stream, word, _ = f.HEADER.unpack_from(data, at)
                stop = at + f.HEADER_BYTES + length
                if stop > size:
                    break
                body = word >> 8
                says = self._says(conversation, side, word & 0xFF, stream, data, at + 16, body, length)
                side.flying.append((begin + stop, word & 0xFF, stream, says))
                self.frames += 1
                at = stop
        except Violation as error:
            self._world.fail(error)
        except (struct.error, msgspec.MsgspecError, LookupError, TypeError) as error:
            self._world.fail(Violation(f"{side.name} says what cannot be read: {error!r}"))
        side.torn = data[at:]
        side.written = begin + size

    def read(self, end: End, size: int) -> None:
        """`end` has read `size` bytes more."""
        conversation = self._conversations.get(end)
        if conversation is None:
            return
        reader, writer = conversation.ends[end], conversation.ends[end.peer]
        reader.read += size
        flying = writer.flying
        while flying and flying[0][0] <= reader.read:
            _, kind, stream, says = flying.popleft()
            self._hears(reader, kind, stream, says)

    def lost(self, end: End) -> None:
        """`end` is over; the connection is forgotten when both are."""
        if end.peer.is_lost and self._conversations.pop(end, None) is not None:
            self._conversations.pop(end.peer, None)

    # ------------------------------------------------------------------ from time to time

    def look(self) -> None:
        """Once in 100 ms: who hears nothing gives up, and who closes is gone, in time.

        Raises:
            Violation: one does not.
        """
        limits = self._limits
        patience = (limits.keepalive_misses_max + SILENT_MORE) * limits.keepalive_interval // LOOK_NS
        closing = CLOSING_MORE * limits.write_timeout // LOOK_NS + SLACK_LOOKS
        for end, conversation in self._conversations.items():
            side = conversation.ends[end]
            if end.is_lost or end.life.is_dead or end.life.is_paused:
                side.silent_looks = side.closing_looks = 0
                continue
            is_heard, side.heard = side.heard != side.read or not end.is_reading, side.read
            is_waiting = not is_heard and side.has_greeted and not end.is_closing()
            side.silent_looks = side.silent_looks + 1 if is_waiting else 0
            side.closing_looks = side.closing_looks + 1 if end.is_closing() else 0
            _demand(
                side.silent_looks <= patience + SLACK_LOOKS,
                f"{side.name} has heard nothing for {side.silent_looks * LOOK_NS / 1e9} s, and goes on",
            )
            _demand(side.closing_looks <= closing, f"{side.name} was closed long ago, and is not gone")
            if side.has_greeted and not end.is_closing():
                self._compare(side)

    def _compare(self, side: _Side) -> None:
        """Where nothing waits to be processed or written, its own books say what ours say."""
        protocol: Any = side.end.protocol
        machine, inbound = protocol.machine, protocol._inbound  # noqa: SLF001 - a judge looks inside.
        is_busy = machine.out or machine.events or inbound.read != inbound.written
        if is_busy or getattr(protocol, "has_pending", False):
            return
        ours, theirs = sorted(side.streams), sorted(machine.streams)
        _demand(ours == theirs, f"{side.name} has streams {theirs} open; what was said leaves {ours}")
        for stream, state in side.streams.items():
            other = machine.streams[stream]
            if state.kind == "stream":
                ours = [state.credit, state.granted]
                theirs = [other.send_credit, other.granted]
            elif state.kind == "run" and not side.is_dialler:
                ours, theirs = [sum([size for _, size in state.runs.values()])], [other.unanswered_bytes]
            _demand(
                ours == theirs, f"{side.name} counts {theirs} on stream {stream}; what was said is {ours}"
            )

    def check_idle(self) -> None:
        """Nothing is asked: no stream is open.

        Raises:
            Violation: one is.
        """
        for conversation in self._conversations.values():
            for side in (conversation.dialler, conversation.listener):
                if any(end.is_lost or end.is_closing() or end.life.is_dead for end in conversation.ends):
                    continue
                left = [(stream, state.kind) for stream, state in side.streams.items()]
                _demand(not left, f"nothing is asked, and {side.name} has open streams: {left}")

    # ------------------------------------------------------------------ what is said

    def _says(  # noqa: PLR0917 - of the hot loop.
        self,
        conversation: Conversation,
        side: _Side,
        kind: int,
        stream: int,
        data: bytes,
        at: int,
        body: int,
        length: int,
    ) -> Any:  # noqa: ANN401 - what the frame says to its reader.
        other = conversation.other(side)
        if kind in OPENINGS:
            self._opens(side, other, kind, stream)
            return None
        if kind in {f.REPLY, f.REFUSE}:
            self._ends(side, kind, stream)
            return None
        if kind == f.MESSAGE:
            cost = length + COST
            state = self._open(side, kind, stream, "stream")
            if state is not None:
                _demand(not state.has_finished, f"{side.name} sends a message on {stream} after its end")
                state.credit -= cost
                _demand(
                    state.credit >= 0,
                    f"{side.name} sends {-state.credit} bytes above the window of stream {stream}",
                )
            return cost
        if kind == f.WINDOW:
            (credit,) = f.U32.unpack_from(data, at)
            state = self._open(side, kind, stream, "stream")
            if state is not None:
                state.granted += credit
                _demand(
                    state.granted <= self._limits.window_bytes,
                    f"{side.name} grants {credit} bytes on stream {stream}: {state.granted} exceed a window",
                )
                self._grants(side, stream)
            return credit
        handler = _RARE.get(kind)
        return (
            None
            if handler is None
            else handler(self, side, other, stream, data[at : at + body], length - body)
        )

    def _opens(self, side: _Side, other: _Side, kind: int, stream: int) -> None:
        what = f"{side.name} opens stream {stream}"
        _demand(side.is_dialler and stream & 1 == 1 and stream > side.last, f"{what} after {side.last}")
        is_told = side.read_away_at is not None and self._world.now > side.read_away_at + LATE_NS
        _demand(not is_told, f"{what}, and was told that no more are taken")
        side.last = stream
        side.streams[stream] = _Stream(OPENINGS[kind])
        _demand(len(side.streams) <= other.streams_max, f"{what}: there are {len(side.streams)}")

    def _ends(self, side: _Side, kind: int, stream: int) -> None:
        name = f.FRAME_NAMES[kind]
        _demand(not side.is_dialler and 0 < stream <= side.last, f"{side.name}: {name} of stream {stream}")
        is_known = side.streams.pop(stream, None) is not None
        is_late = side.ended.pop(stream, None) is not None
        _demand(is_known or is_late, f"{side.name}: {name} ends stream {stream}, which has ended")
        self._behind(side, kind, stream, is_refusal=kind == f.REFUSE)

    def _behind(self, side: _Side, kind: int, stream: int, *, is_refusal: bool) -> None:
        """Nothing of a stream behind GOAWAY is done."""
        if side.away is not None and stream > side.away and not is_refusal:
            raise Violation(
                f"{side.name}: {f.FRAME_NAMES[kind]} of stream {stream}, and the last one was {side.away}"
            )
        if not is_refusal:
            side.touched = max(side.touched, stream)

    def _open(self, side: _Side, kind: int, stream: int, wanted: str) -> _Stream | None:
        """The open stream that the frame is about; None if the peer has just ended it."""
        state = side.streams.get(stream)
        if not side.is_dialler:
            self._behind(side, kind, stream, is_refusal=False)
        if state is None:
            is_late = self._is_late(side, stream)
            _demand(is_late, f"{side.name}: {f.FRAME_NAMES[kind]} of stream {stream}, which is not open")
            return None
        _demand(
            state.kind == wanted, f"{side.name}: {f.FRAME_NAMES[kind]} of stream {stream}, a {state.kind}"
        )
        return state

    def _is_late(self, side: _Side, stream: int) -> bool:
        """Whether the other side has ended `stream`, and this side may not have known when it spoke."""
        at = side.ended.get(stream)
        return at is not None and (not side.is_dialler or self._world.now <= at + LATE_NS)

    def _grants(self, side: _Side, stream: int) -> None:
        """What is granted and what waits to be taken are no more than a window, together (wire.6)."""
        check_window(side.end.protocol, stream, self._limits.window_bytes)

    def _on_hello(self, side: _Side, other: _Side, _stream: int, body: bytes, _size: int) -> tuple[int, int]:
        _demand(not side.has_greeted, f"{side.name} greets twice")
        side.has_greeted = True
        greeting = msgspec.msgpack.decode(body)
        if side.is_dialler:
            side.window, side.streams_max = greeting[5], 0
        else:
            _demand(other.has_greeted, f"{side.name} welcomes who has not greeted")
            side.window, side.streams_max = greeting[2], greeting[3]
        return side.window, side.streams_max

    def _on_goaway(self, side: _Side, _other: _Side, _stream: int, body: bytes, _size: int) -> int:
        last = int(msgspec.msgpack.decode(body)[2])
        if not side.is_dialler:
            _demand(
                side.touched <= last <= side.last,
                f"{side.name} leaves after stream {last}: it answered {side.touched} and read {side.last}",
            )
            side.away = last if side.away is None else min(side.away, last)
        return last

    def _on_cancel(self, side: _Side, _other: _Side, stream: int, _body: bytes, _size: int) -> None:
        _demand(side.is_dialler, f"{side.name} cancels stream {stream}, and did not open it")
        is_open = side.streams.pop(stream, None) is not None
        is_late = side.is_dialler and self._is_late(side, stream)
        side.ended.pop(stream, None)
        _demand(is_open or is_late, f"{side.name} cancels stream {stream}, which has ended")

    def _on_finish(self, side: _Side, _other: _Side, stream: int, _body: bytes, _size: int) -> None:
        state = side.streams.get(stream)
        is_open = state is not None and state.kind != "call" and not state.has_finished
        _demand(is_open or self._is_late(side, stream), f"{side.name} finishes stream {stream}, and may not")
        if state is not None:
            state.has_finished = True

    def _on_opened(self, side: _Side, _other: _Side, stream: int, _body: bytes, _size: int) -> None:
        state = self._open(side, f.OPENED, stream, "run")
        if state is not None:
            _demand(not state.is_accepted, f"{side.name} opens stream {stream} twice")
            state.is_accepted = True

    def _on_run(self, side: _Side, other: _Side, stream: int, body: bytes, size: int) -> tuple[int, int, int]:
        count = (len(body) - 8) // 4
        sequence = side.sequences.get(stream, 0)
        side.sequences[stream] = sequence + count
        state = self._open(side, f.RUN, stream, "run")
        if state is not None:
            is_allowed = state.is_accepted and not state.has_finished
            _demand(
                is_allowed, f"{side.name} sends a run on stream {stream} before it is open, or after its end"
            )
            state.unanswered += size
            state.runs[sequence] = (count, size)
            _demand(
                state.unanswered <= other.window,
                f"{side.name} has {state.unanswered} unanswered bytes on stream {stream} of {other.window}",
            )
        return sequence, count, size

    def _on_run_ack(self, side: _Side, _other: _Side, stream: int, body: bytes, _size: int) -> int:
        sequence, count, begin, end = _ACK.unpack(body)
        self._answers(side, f.RUN_ACK, stream, sequence, count, end - begin)
        return int(sequence)

    def _on_run_refuse(self, side: _Side, _other: _Side, stream: int, body: bytes, _size: int) -> int:
        sequence, count = msgspec.msgpack.decode(body)[:2]
        self._answers(side, f.RUN_REFUSE, stream, sequence, count, None)
        return int(sequence)

    def _answers(  # noqa: PLR0917 - of one frame.
        self, side: _Side, kind: int, stream: int, sequence: int, count: int, size: int | None
    ) -> None:
        state = self._open(side, kind, stream, "run")
        if state is None:
            return
        asked = state.runs.pop(sequence, None)
        is_its = asked is not None and asked[0] == count and size in {None, asked[1]}
        _demand(is_its, f"{side.name} answers run {sequence} of {count} on stream {stream}: it was {asked}")

    # ------------------------------------------------------------------ what is heard

    def _hears(self, side: _Side, kind: int, stream: int, says: Any) -> None:  # noqa: ANN401 - as said.
        if kind in OPENINGS:
            side.last = stream
            side.streams[stream] = _Stream(OPENINGS[kind])
            return
        if kind == f.GOAWAY:
            side.read_away_at = self._world.now if side.read_away_at is None else side.read_away_at
            return
        state = side.streams.get(stream)
        if state is None:
            return
        if kind in {f.REPLY, f.REFUSE, f.CANCEL}:
            del side.streams[stream]
            side.ended[stream] = self._world.now
            if len(side.ended) > ENDED_MAX:
                del side.ended[next(iter(side.ended))]
        elif kind == f.MESSAGE:
            state.granted -= says
        elif kind == f.WINDOW:
            state.credit += says
        elif kind == f.OPENED:
            state.is_accepted = True
        elif kind == f.RUN:
            sequence, count, size = says
            state.runs[sequence] = (count, size)
        elif kind in {f.RUN_ACK, f.RUN_REFUSE}:
            _, size = state.runs.pop(says, (0, 0))
            state.unanswered -= size


_RARE: Final[dict[int, Callable[..., Any]]] = {
    f.HELLO: Wiretap._on_hello,  # noqa: SLF001 - our own table.
    f.GOAWAY: Wiretap._on_goaway,  # noqa: SLF001
    f.CANCEL: Wiretap._on_cancel,  # noqa: SLF001
    f.FINISH: Wiretap._on_finish,  # noqa: SLF001
    f.OPENED: Wiretap._on_opened,  # noqa: SLF001
    f.RUN: Wiretap._on_run,  # noqa: SLF001
    f.RUN_ACK: Wiretap._on_run_ack,  # noqa: SLF001
    f.RUN_REFUSE: Wiretap._on_run_refuse,  # noqa: SLF001
}


def check_window(protocol: Any, stream: int, window_bytes: int) -> None:  # noqa: ANN401 - either side's.
    """What is granted on a stream and what waits to be taken are no more than a window, together.

    Raises:
        Violation: the peer may make this side hold more.
    """
    ends = getattr(protocol, "streams", None)
    if ends is None:
        ends = protocol._streams  # noqa: SLF001 - a judge looks inside.
    end, state = ends.get(stream), protocol.machine.streams.get(stream)
    if end is None or state is None:
        return
    queued = sum([len(body) + len(payload) + COST for body, payload in end._queue])  # noqa: SLF001
    _demand(
        state.granted + queued <= window_bytes,
        f"stream {stream}: {queued} bytes wait to be taken, and {state.granted} more are granted,"
        f" of {window_bytes}",
    )


def _demand(is_so: bool, text: str) -> None:  # noqa: FBT001 - as `assert`.
    if not is_so:
        raise Violation(text)
