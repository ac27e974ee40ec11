"""Acceptor: one member of the set whose quorums choose values; it promises, accepts and remembers.

Ballots are ordered triples; tokens rise by one per record; offsets are the log stream's, one per record.
BLANK --Accept durable--> HOLDING, for good. A BLANK acceptor must first promise a founding; only then does it
promise other ballots.
It does not know which values are chosen, who the other acceptors are, or what the document says.
Source: CASPaxos; design/control.md control.4 (durable first) and control.6 (lost state, two-set values).
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

import msgspec

from broadsheet.base.machine import Effect, Event, Tick
from broadsheet.base.marks import hit
from broadsheet.base.time import Instant
from broadsheet.base.types import NodeId, Offset, Token
from broadsheet.control.core.messages import (
    Accept,
    AcceptedBallot,
    Held,
    Prepare,
    Promised,
    Read,
    Rejected,
    Request,
    Response,
    Why,
)
from broadsheet.control.core.value import LEAP_MAX, NO_BALLOT, Accepted, Acceptor, Ballot
from broadsheet.errors import Corrupt

FORMAT: Final = 1
"""Version of the acceptor's records; a greater one is refused."""
PENDING_MAX: Final = 256
"""Answers that may wait for the disk; above this they are dropped, as a network would drop them."""


class Persisted(Event, frozen=True):
    """Every record of the acceptor through `token` is durable."""

    token: Token


class PersistRefused(Event, frozen=True):
    """The log had no room for the acceptor's record `token`: neither it nor any later one was written."""

    token: Token


class FlushAsked(Event, frozen=True):
    """The acceptor's stream pins old log segments: write a whole record, so that older ones can go."""


class Persist(Effect, frozen=True):
    """The acceptor wants `record` in its log stream at `offset`; refused if that is not the next offset."""

    token: Token
    offset: Offset
    record: bytes
    is_whole: bool
    """Whether the record holds the whole memory, so that no earlier record is needed."""


class Send(Effect, frozen=True):
    """Send `message` to the proposer or acceptor of node `to`."""

    to: NodeId
    message: Request | Response


class TrimLog(Effect, frozen=True):
    """Trim the acceptor's records below `below`: they are needed no longer."""

    below: Offset


class Promise(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=1):
    """A record of the acceptor: it promised a greater ballot."""

    promised: Ballot


class Memory(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=2):
    """A record: everything that an acceptor must remember. No earlier record is needed after it."""

    acceptor: Acceptor
    promised: Ballot
    accepted: Accepted | None


_decoder: msgspec.msgpack.Decoder[Promise | Memory] = msgspec.msgpack.Decoder(Promise | Memory)


def encoded(record: Promise | Memory) -> bytes:
    """The bytes of `record` in the log: one byte of format version, then MessagePack."""
    return bytes((FORMAT,)) + msgspec.msgpack.encode(record)


def remembered(payloads: Iterable[bytes]) -> Memory | None:
    """The memory that an acceptor's records give; None if there are no records.

    Raises:
        Corrupt: a record cannot be read, is of another format, or the first record is not a `Memory`.
    """
    memory: Memory | None = None
    for payload in payloads:
        if payload[:1] != bytes((FORMAT,)):
            raise Corrupt(f"acceptor record of format {payload[:1]!r}: this version reads format {FORMAT}")
        try:
            record = _decoder.decode(memoryview(payload)[1:])
        except msgspec.MsgspecError as error:
            raise Corrupt(f"acceptor record of {len(payload)} bytes cannot be read: {error}") from error
        if isinstance(record, Memory):
            memory = record
        elif memory is None:
            raise Corrupt("the acceptor's log begins with a promise: its identity is missing")
        else:
            memory = Memory(memory.acceptor, max(memory.promised, record.promised), memory.accepted)
    return memory


class _Pending:
    """An acceptor's record that is not durable yet: the memory before it, and the answers that wait."""

    __slots__ = ("answers", "before", "is_whole", "offset", "token")

    def __init__(self, token: Token, offset: Offset, before: Memory, *, is_whole: bool) -> None:
        self.token, self.offset, self.before, self.is_whole = token, offset, before, is_whole
        self.answers: list[Send] = []


AcceptorEvent = Request | Persisted | PersistRefused | FlushAsked
AcceptorEffect = Persist | Send | TrimLog


class AcceptorMachine:
    """The acceptor of one node."""

    def __init__(self, memory: Memory, *, next_offset: Offset) -> None:
        """Go on from `memory`, which is durable; the next record goes to `next_offset`."""
        self.memory = memory
        self._pending: deque[_Pending] = deque()
        self._waiting_count = 0
        self._next_offset, self._next_token = next_offset, Token(1)

    @property
    def acceptor(self) -> Acceptor:
        """The node and the incarnation of this acceptor."""
        return self.memory.acceptor

    def step(self, event: AcceptorEvent | Tick, now: Instant) -> list[AcceptorEffect]:
        """Apply one event to the acceptor; return what the host must now do, in order."""
        del now  # An acceptor has no timeouts.
        handler = self._handlers.get(type(event))
        return [] if handler is None else handler(self, event)

    def deadline(self) -> Instant | None:
        """Never."""
        return None

    def check(self) -> None:
        """Assert the acceptor's invariants."""
        memory = self.memory
        assert memory.accepted is None or memory.accepted.ballot <= memory.promised, "accepting promises"
        assert self._waiting_count == sum(len(p.answers) for p in self._pending), "each answer waits once"
        for pending in self._pending:
            assert pending.before.promised <= memory.promised, "promises only rise"
        assert [p.offset for p in self._pending] == list(
            range(self._next_offset - len(self._pending), self._next_offset)
        ), "pending records are the dense end of the stream"

    def _on_prepare(self, event: Prepare) -> list[AcceptorEffect]:
        accepted = self.memory.accepted
        if (why := self._refusal(event, is_accept=False)) is not None:
            return self._reject(event, why)
        effects: list[AcceptorEffect] = []
        if event.ballot > self.memory.promised:
            effects += self._remember(Memory(self.acceptor, event.ballot, accepted), is_whole=False)
        return effects + self._answer(event.sender, Promised(self.acceptor, event.ballot, accepted))

    def _on_accept(self, event: Accept) -> list[AcceptorEffect]:
        accepted = self.memory.accepted
        answer = AcceptedBallot(self.acceptor, event.ballot)
        if event.acceptor == self.acceptor and accepted is not None and accepted.ballot == event.ballot:
            held, value = accepted.value, event.value
            if (held.version, held.attempts) != (value.version, value.attempts):
                return self._reject(event, Why.BALLOT)  # Who sent one of them is no proposer.
            return self._answer(event.sender, answer)  # A repetition.
        if (why := self._refusal(event, is_accept=True)) is not None:
            return self._reject(event, why)
        memory = Memory(self.acceptor, event.ballot, Accepted(event.ballot, event.value))
        return self._remember(memory, is_whole=True) + self._answer(event.sender, answer)

    def _on_read(self, event: Read) -> list[AcceptorEffect]:
        accepted = self.memory.accepted
        ballot = NO_BALLOT if accepted is None else accepted.ballot
        value = None if accepted is None or ballot == event.known else accepted.value
        return self._answer(
            event.sender, Held(self.acceptor, event.round, self.memory.promised, ballot, value)
        )

    def _on_persisted(self, event: Persisted) -> list[AcceptorEffect]:
        effects: list[AcceptorEffect] = []
        trim: TrimLog | None = None
        while self._pending and self._pending[0].token <= event.token:
            pending = self._pending.popleft()
            self._waiting_count -= len(pending.answers)
            effects += pending.answers
            if pending.is_whole:
                trim = TrimLog(below=pending.offset)
        return effects if trim is None else [*effects, trim]

    def _on_persist_refused(self, event: PersistRefused) -> list[AcceptorEffect]:
        hit("acceptor.persist_refused")
        effects: list[AcceptorEffect] = []
        if not any(pending.token == event.token for pending in self._pending):
            return effects  # The refusal of an earlier record has already taken this one back.
        while self._pending and self._pending[-1].token >= event.token:
            pending = self._pending.pop()
            self._waiting_count -= len(pending.answers)
            self._next_offset, self.memory = pending.offset, pending.before
            for send in pending.answers:
                if isinstance(send.message, Promised | AcceptedBallot):
                    rejected = Rejected(self.acceptor, send.message.ballot, Why.FULL, NO_BALLOT, None)
                    effects.append(Send(send.to, rejected))
        return effects

    def _on_flush_asked(self, _: FlushAsked) -> list[AcceptorEffect]:
        return self._remember(self.memory, is_whole=True)

    def _refusal(self, event: Prepare | Accept, *, is_accept: bool) -> Why | None:
        """Why the acceptor refuses the request; None if it grants it (control.6)."""
        accepted = self.memory.accepted
        if event.acceptor != self.acceptor:
            return Why.STRANGER
        if accepted is None:
            if is_accept and isinstance(event, Accept):
                if self.acceptor not in event.value.sets.members():
                    return Why.STRANGER
            elif event.sets.members() and self.memory.promised == NO_BALLOT:
                # A new member that holds nothing must not vote: it might be the new life of an acceptor that
                # lost its promises. One that has promised a founding may promise further ballots.
                return Why.BLANK
        elif accepted.value.sets != event.sets and accepted.ballot > event.basis:
            return Why.SETS
        is_told = accepted is None and is_accept  # A new member joins at the ballot of the cluster.
        if not is_told and event.ballot.counter > self.memory.promised.counter + LEAP_MAX:
            hit("acceptor.leap")
            return Why.LEAP
        return Why.BALLOT if event.ballot < self.memory.promised else None

    def _reject(self, event: Prepare | Accept, why: Why) -> list[AcceptorEffect]:
        accepted = self.memory.accepted
        is_news = accepted is not None and accepted.ballot > event.basis
        if why not in (Why.SETS, Why.STRANGER) or not is_news:
            accepted = None
        return self._answer(
            event.sender, Rejected(self.acceptor, event.ballot, why, self.memory.promised, accepted)
        )

    def _remember(self, memory: Memory, *, is_whole: bool) -> list[AcceptorEffect]:
        record = encoded(memory if is_whole else Promise(memory.promised))
        pending = _Pending(self._next_token, self._next_offset, self.memory, is_whole=is_whole)
        self._pending.append(pending)
        self._next_token, self._next_offset = Token(pending.token + 1), Offset(pending.offset + 1)
        self.memory = memory
        return [Persist(pending.token, pending.offset, record, is_whole)]

    def _answer(self, to: NodeId, message: Response) -> list[AcceptorEffect]:
        """Send an answer when every record that it depends on is durable (control.4)."""
        if not self._pending:
            return [Send(to, message)]
        if self._waiting_count < PENDING_MAX:
            self._pending[-1].answers.append(Send(to, message))
            self._waiting_count += 1
        return []

    _handlers: ClassVar[dict[type[Event], Callable[["AcceptorMachine", Any], list[AcceptorEffect]]]] = {
        Prepare: _on_prepare,
        Accept: _on_accept,
        Read: _on_read,
        Persisted: _on_persisted,
        PersistRefused: _on_persist_refused,
        FlushAsked: _on_flush_asked,
    }
