"""Proposer: it gets one value after another chosen by the acceptors, for the clients of one node.

Versions and ballots are as in `core.value`; times are in nanoseconds. It works on one operation at a time;
waiting reads share a round. IDLE -> READING | PREPARING -> ACCEPTING -> IDLE; a greater ballot elsewhere: ->
WAITING -> PREPARING. If it learns of other acceptor sets, the round starts again with those. A request is
repeated to acceptors that are silent, and an answer to a round counts however late it comes. A round is given
up only if an acceptor refused (`core.proposer_timing` says when). Before it knows any value it reads from its
seeds. If all of them are blank and it is the founder, it founds the cluster with promises of all of them. It
stores nothing: it may forget everything that it knows. It does not retry after an operation's deadline.
Source: CASPaxos; design/control.md control.3, control.5, control.6.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar

from broadsheet.base.machine import Event, Tick
from broadsheet.base.marks import hit
from broadsheet.base.time import Instant, after
from broadsheet.base.types import NodeId
from broadsheet.control.core.acceptor import Send
from broadsheet.control.core.messages import (
    Accept,
    AcceptedBallot,
    Held,
    Prepare,
    Promised,
    Read,
    Rejected,
    Response,
    Why,
)
from broadsheet.control.core.operation import (
    Answer,
    ChangeRequest,
    OperationRequest,
    Propose,
    ReadRequest,
    ReplaceRequest,
    next_step,
)
from broadsheet.control.core.proposer_timing import ProposerTiming
from broadsheet.control.core.queue import Queue, Queued
from broadsheet.control.core.settings import Founding, ProposerConfig
from broadsheet.control.core.value import (
    ATTEMPTS_KEPT,
    LEAP_MAX,
    NO_BALLOT,
    Accepted,
    Acceptor,
    AcceptorSets,
    Ballot,
    Value,
    founding,
    oversize,
)
from broadsheet.errors import Status
from broadsheet.ports import Random

NO_SETS = AcceptorSets()


class State(Enum):
    """The state of the proposer."""

    IDLE = "idle"
    READING = "reading"
    PREPARING = "preparing"
    ACCEPTING = "accepting"
    WAITING = "waiting"


ProposerEvent = OperationRequest | Response
ProposerEffect = Send | Answer


class ProposerMachine:
    """The proposer of one boot of one node."""

    def __init__(
        self,
        node: NodeId,
        *,
        nonce: int,
        seeds: tuple[NodeId, ...],
        random: Random,
        config: ProposerConfig,
        founding: Founding | None = None,
        attempts_kept: int = ATTEMPTS_KEPT,
    ) -> None:
        """Begin a proposer that knows no value yet.

        Args:
            nonce: new in each boot, below 2**62.
            seeds: nodes that may hold a value; for the founder, exactly the nodes of the first acceptors.
            attempts_kept: how many of the last attempts a value remembers; fewer in simulations.
            founding: what to write if every seed is blank; None at every node except the founder.
        """
        self.node, self.nonce, self.seeds = node, nonce, seeds
        self.state = State.IDLE
        self.known: Accepted | None = None
        self.chosen = NO_BALLOT
        self.ballot = NO_BALLOT
        self._founding, self._config, self._attempts_kept = founding, config, attempts_kept
        self._queue = Queue()
        self._top = 0
        self._round = (nonce, 0)
        self._sets = NO_SETS
        self._founders: tuple[Acceptor, ...] = ()
        self._votes: dict[Acceptor, Ballot] = {}
        self._nays: dict[Acceptor, None] = {}
        self._seen: dict[NodeId, Held] = {}
        self._met_strangers = False
        """Whether the last round was lost to new lives of the members: there may be other members by now."""
        self._proposal: Value | None = None
        self._patience = ProposerTiming(config, random)
        self._wake: Instant | None = None

    def address(self, node: NodeId) -> str:
        """The address of an acceptor's node, by the value that is proposed or known; empty if it has none."""
        known = None if self.known is None else self.known.value
        values = [value for value in (self._proposal, known) if value is not None]
        return next((found for value in values if (found := dict(value.addresses).get(node))), "")

    def step(self, event: ProposerEvent | Tick, now: Instant) -> list[ProposerEffect]:
        """Apply one event; return what the host must now do, in order."""
        return self._handlers[type(event)](self, event, now)

    def deadline(self) -> Instant | None:
        """The earliest of the first operation's deadline, the next repetition, and the end of a pause."""
        wakes = [at for at in (self._wake, self._queue.deadline()) if at is not None]
        return min(wakes, default=None)

    def check(self) -> None:
        """Assert the proposer's invariants."""
        assert (self.state is State.IDLE) == (not self._queue), "it is idle exactly while nothing is queued"
        assert self.ballot.counter <= self._top, "it has seen its own ballot"
        if self.state in (State.PREPARING, State.ACCEPTING):
            assert (self.ballot.node, self.ballot.nonce) == (self.node, self.nonce), "its own ballot"
            assert self.known is None or self.known.ballot <= self.ballot, "it builds on older values"
            assert self.known is None or self._sets == self.known.value.sets, "it asks those whom it knows of"
        assert (self._proposal is not None) == (self.state is State.ACCEPTING), "it proposes when accepting"

    # Requests and time.

    def _on_request(self, event: OperationRequest, now: Instant) -> list[ProposerEffect]:
        if len(self._queue) >= self._config.queue_max:
            text = f"{len(self._queue)} metastore operations wait, queue_max: try again later"
            return [Answer(event.request, Status.THROTTLED, message=text)]
        if isinstance(event, ChangeRequest) and (text := oversize(event.document)):
            return [Answer(event.request, Status.TOO_LARGE, message=text)]
        if isinstance(event, ChangeRequest) and not self._queue.has_room(event):
            text = f"{len(self._queue)} metastore operations with large documents wait: try again later"
            return [Answer(event.request, Status.THROTTLED, message=text)]
        self._queue.add(event, after(now, self._config.operation_timeout))
        return self._begin(now) if self.state is State.IDLE else []

    def _on_tick(self, _: Tick, now: Instant) -> list[ProposerEffect]:
        effects: list[ProposerEffect] = []
        head = self._queue.head if self._queue else None
        late = self._queue.expire(now)
        effects += [self._expired(operation) for operation in late]
        if head in late:
            return effects + self._begin(now)
        if self._wake is None or self._wake > now:
            return effects
        if self.state is State.READING and self.known is not None:
            # Some acceptors are silent, or hold other values: a ballot settles which value is the latest.
            return effects + self._prepare(now)
        if self.state is State.WAITING:
            return effects + self._begin(now, is_retry=True)
        if self._nays and not self._founders:
            hit("proposer.gave_up")
            self._patience.gave_up()
            return effects + self._begin(now, is_retry=True)
        self._patience.repeated()
        return effects + self._ask(now)

    def _expired(self, operation: Queued) -> Answer:
        request = operation.request.request
        if operation.was_proposed:
            text = "time ran out before the metastore's outcome was known: read the document and compare"
            return Answer(request, Status.UNKNOWN, message=text)
        text = "no majority of the metastore's acceptors answered in time: nothing was changed"
        return Answer(request, Status.INSUFFICIENT_REPLICAS, message=text)

    # Rounds.

    def _begin(self, now: Instant, *, is_retry: bool = False) -> list[ProposerEffect]:
        """Start the first operation of the proposer's queue, or become idle."""
        self._become(State.IDLE)
        if not self._queue:
            return []
        may_prepare = is_retry or not isinstance(self._queue.head.request, ReadRequest)
        if self.known is not None and may_prepare and not self._met_strangers:
            return self._prepare(now)
        self._become(State.READING)
        self._round = (self.nonce, self._round[1] + 1)
        self._patience.asked(now)
        self._queue.cover()
        return self._ask(now)

    def _become(self, state: State) -> None:
        self.state = state
        self._votes, self._nays, self._seen, self._founders = {}, {}, {}, ()
        self._proposal, self._wake = None, None

    def _prepare(self, now: Instant, founders: tuple[Acceptor, ...] = ()) -> list[ProposerEffect]:
        assert founders or self.known is not None, "it knows the acceptors to ask"
        self._become(State.PREPARING)
        self._founders, self._met_strangers = founders, False
        self._sets = NO_SETS if self.known is None else self.known.value.sets
        self._queue.cover()
        self._top += 1
        self.ballot = Ballot(self._top, self.node, self.nonce)
        self._patience.asked(now)
        return self._ask(now)

    def _accept(self, value: Value, now: Instant, *, is_new: bool) -> list[ProposerEffect]:
        """Ask the acceptors to accept `value` under the ballot that they promised."""
        assert self.state is State.PREPARING, "promises come first"
        founders = self._founders
        self._become(State.ACCEPTING)
        self._founders = founders
        self._patience.asked(now)
        self._proposal = value
        if is_new and self._queue:
            self._queue.head.was_proposed = True
        return self._ask(now)

    def _lose(self, now: Instant) -> list[ProposerEffect]:
        """Pause for a random time, so that one of the rival proposers wins."""
        hit("proposer.lost")
        self._become(State.WAITING)
        self._wake = after(now, self._patience.pause())
        return []

    def _ask(self, now: Instant) -> list[ProposerEffect]:
        """Send the round's request to acceptors that have not answered it, and set when it is repeated."""
        self._wake = after(now, self._patience.wait())
        known = NO_BALLOT if self.known is None else self.known.ballot
        if self.state is State.READING:
            told = self._seen if self.known else {}  # A blank seed may have a value by now: ask again.
            asked = [node for node in self._readers() if node not in told]
            return [Send(to, Read(self.node, self._round, known)) for to in asked]
        sends: list[ProposerEffect] = []
        for member in self._electors():
            if member in self._votes or member in self._nays:
                continue
            if self._proposal is None:
                request: Prepare | Accept = Prepare(
                    self.node, self.ballot, member, known, self._sets, self._founders
                )
            else:
                request = Accept(self.node, self.ballot, member, self._proposal, known, self._sets)
            sends.append(Send(member.node, request))
        return sends

    def _readers(self) -> dict[NodeId, None]:
        """The nodes that a read asks, in order: members, and all seeds where the members may be others."""
        members = self.known.value.sets.members() if self.known is not None else ()
        nodes = dict.fromkeys([member.node for member in members])
        return nodes | dict.fromkeys(self.seeds) if self.known is None or self._met_strangers else nodes

    def _electors(self) -> tuple[Acceptor, ...]:
        proposed = NO_SETS if self._proposal is None else self._proposal.sets
        return tuple(dict.fromkeys((*self._sets.members(), *proposed.members(), *self._founders)))

    def _is_elected(self, votes: Mapping[Acceptor, object]) -> bool:
        """Whether `votes` would decide this round."""
        if self._founders and self._proposal is None:
            return all(founder in votes for founder in self._founders)
        return self._sets.is_quorum(votes) and (
            self._proposal is None or self._proposal.sets.is_quorum(votes)
        )

    # Answers of acceptors.

    def _on_held(self, event: Held, now: Instant) -> list[ProposerEffect]:
        self._saw(event.promised)
        if self.state is not State.READING or event.round != self._round:
            return []  # Late.
        effects: list[ProposerEffect] = []
        self._seen[event.acceptor.node] = event
        if event.value is not None and self._learn(Accepted(event.ballot, event.value)):
            effects += self._ask(now)  # The value may name other members than those that were asked.
        if self.known is None:
            return effects + self._found(now)
        sets = self.known.value.sets
        same = {held.acceptor: None for held in self._seen.values() if held.ballot == self.known.ballot}
        if sets.is_quorum(same):
            self.chosen = self.known.ballot
            self._patience.heard(now)
            return effects + self._decide(now)
        for member in sets.members():
            if event.acceptor == member and event.ballot == NO_BALLOT:
                effects.append(self._tell(member))
        if all(node in self._seen for node in self._readers()):
            return effects + self._prepare(now)  # The members differ: a write is under way, or was abandoned.
        return effects

    def _found(self, now: Instant) -> list[ProposerEffect]:
        """Found the cluster, if every seed has answered that it is blank."""
        if self._founding is None or any(seed not in self._seen for seed in self.seeds):
            return []
        hit("proposer.founding")
        return self._prepare(now, tuple(self._seen[seed].acceptor for seed in self.seeds))

    def _on_promised(self, event: Promised, now: Instant) -> list[ProposerEffect]:
        if self.state is not State.PREPARING or event.ballot != self.ballot:
            return []  # Late, or of another round.
        if event.accepted is not None and event.accepted.ballot > event.ballot:
            return []  # No honest acceptor has accepted above its promise: the vote does not count.
        if event.accepted is not None and self._learn(event.accepted) and self._has_moved():
            return self._prepare(now)
        self._votes[event.acceptor] = NO_BALLOT if event.accepted is None else event.accepted.ballot
        if not self._is_elected(self._votes):
            return []
        self._patience.heard(now)
        if self.known is None:
            assert self._founding is not None, "only a founder goes on without a value"
            attempt = f"{self.node}.{self.nonce}.founding"
            value = founding(
                self._founders, attempt, addresses=self._founding.addresses, document=self._founding.document
            )
            return self._accept(value, now, is_new=False)
        latest = self.known.ballot
        if self._sets.is_quorum({who: None for who, ballot in self._votes.items() if ballot == latest}):
            self.chosen = latest
        return self._decide(now)

    def _on_accepted(self, event: AcceptedBallot, now: Instant) -> list[ProposerEffect]:
        if self.state is not State.ACCEPTING or event.ballot != self.ballot or self._proposal is None:
            return []  # Late, or the answer of a new member to `_tell`.
        self._votes[event.acceptor] = event.ballot
        if not self._is_elected(self._votes):
            return []
        self._patience.heard(now)
        self.known = Accepted(self.ballot, self._proposal)
        self.chosen = self.ballot
        self._patience.won()
        return self._decide(now)

    def _on_rejected(self, event: Rejected, now: Instant) -> list[ProposerEffect]:
        self._saw(event.promised)
        if self.state is State.WAITING and event.accepted is not None:
            self._learn(event.accepted)  # The round was lost before this answer came; the next one needs it.
        if self.state not in (State.PREPARING, State.ACCEPTING) or event.ballot != self.ballot:
            return []  # Late, or of another round.
        if event.accepted is not None and self._learn(event.accepted) and self._has_moved():
            hit("proposer.moved")
            return self._prepare(now)
        if event.why is Why.SETS:
            return []
        if event.why is Why.BLANK:
            return [self._tell(event.acceptor)] if event.acceptor in self._sets.members() else []
        if event.why is Why.LEAP:
            return [self._climb(event)]
        asked = [member for member in self._electors() if member.node == event.acceptor.node]
        # By node, because a STRANGER answer comes from another life of the acceptor that was asked.
        self._nays.update(dict.fromkeys(asked))
        self._met_strangers |= event.why is Why.STRANGER
        left = {member: None for member in self._electors() if member not in self._nays}
        if self._is_elected(left):
            return []
        return self._lose(now)

    def _saw(self, ballot: Ballot) -> None:
        """Use a greater counter than `ballot` next time.

        The counter rises by one leap at most, so that a false ballot cannot use up the range of counters.
        """
        self._top = max(self._top, min(ballot.counter, self._top + LEAP_MAX))

    def _learn(self, accepted: Accepted) -> bool:
        """Take the value `accepted` if newer than the proposer's, and at most a leap ahead; whether so."""
        self._saw(accepted.ballot)
        if accepted.ballot.counter > self._top:
            return False  # `_saw` has raised our counter: a repetition of the round will be close enough.
        if self.known is not None and accepted.ballot <= self.known.ballot:
            return False
        self.known = accepted
        return True

    def _has_moved(self) -> bool:
        """Whether the value just learnt ends this round: it has other acceptor sets, or a later ballot."""
        assert self.known is not None, "something was learnt"
        return self.known.value.sets != self._sets or self.known.ballot > self.ballot

    def _tell(self, member: Acceptor) -> Send:
        """Send the latest accepted value to a blank member, in the form in which its proposer sent it."""
        assert self.known is not None, "there is something to tell"
        known = self.known
        message = Accept(self.node, known.ballot, member, known.value, known.ballot, known.value.sets)
        return Send(member.node, message)

    def _climb(self, event: Rejected) -> Send:
        """Raise the promise of an acceptor that is further behind than a leap, by one leap.

        A repetition of the round then finds the acceptor closer. No value is ever proposed with the ballot of
        such a step, so the ballot may have been used before.
        """
        hit("proposer.climbed")
        counter = min(event.promised.counter + LEAP_MAX, self.ballot.counter)
        step = Ballot(counter, self.node, self.nonce)
        basis = NO_BALLOT if self.known is None else self.known.ballot
        prepare = Prepare(self.node, step, event.acceptor, basis, self._sets, self._founders)
        return Send(event.acceptor.node, prepare)

    def _decide(self, now: Instant) -> list[ProposerEffect]:
        """Take the next step of the proposer's first operation; a quorum has told the latest value."""
        assert self.known is not None, "a quorum told the latest value"
        value, is_chosen = self.known.value, self.chosen == self.known.ballot
        effects: list[ProposerEffect] = []
        while self._queue and self._queue.head.is_covered:
            head = self._queue.head
            step = next_step(head.request, value, is_chosen=is_chosen, was_proposed=head.was_proposed)
            if not isinstance(step, Answer):
                return effects + self._go_on(step, now)
            effects.append(step)
            self._queue.pop()
        return effects + self._begin(now)

    def _go_on(self, step: Propose | None, now: Instant) -> list[ProposerEffect]:
        if self.state is not State.PREPARING:
            # After a read there is no ballot, and after an accept the ballot has its value: take a new one.
            return self._prepare(now)
        if step is None:
            assert self.known is not None, "there is a value to have chosen"
            return self._accept(self.known.value, now, is_new=False)
        return self._accept(step.value.remembering(self._attempts_kept), now, is_new=True)

    _handlers: ClassVar[
        dict[type[Event], Callable[["ProposerMachine", Any, Instant], list[ProposerEffect]]]
    ] = {
        ReadRequest: _on_request,
        ChangeRequest: _on_request,
        ReplaceRequest: _on_request,
        Tick: _on_tick,
        Held: _on_held,
        Promised: _on_promised,
        AcceptedBallot: _on_accepted,
        Rejected: _on_rejected,
    }
