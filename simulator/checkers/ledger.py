"""Ledger: what acceptors write and tell, and proposers ask and answer, judged at each step of every node.

It stands beside the machines and hears every step of every node. It counts majorities by itself, and holds
what no history of clients shows: an answer is backed by a durable record; a life that comes back remembers
what it told; a ballot has one value, one prefix of versions is chosen and every later proposal extends it;
what is answered is chosen, and what is refused for certain never is; acceptors change by a joint set, as
their operator asked, and a replacement leaves as many; whoever told others of itself comes back as itself.
So a rule that is broken is seen in the step that breaks it, whether or not a crash makes a client suffer.
    record: PENDING --Persisted--> HELD; value: PROPOSED --held by a majority of its sets--> CHOSEN, for good.
It does not know settings, time or the network. Source: Lamport, "Paxos made simple" (P2c); control.3-7.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from broadsheet.base.machine import Effect, Event
from broadsheet.base.types import NodeId, RequestId, Token
from broadsheet.control.core.acceptor import (
    FlushAsked,
    Memory,
    Persist,
    Persisted,
    PersistRefused,
    Send,
    encoded,
    remembered,
)
from broadsheet.control.core.messages import (
    Accept,
    AcceptedBallot,
    Held,
    Prepare,
    Promised,
    Read,
    Rejected,
    Why,
)
from broadsheet.control.core.operation import Answer, ChangeRequest, ReadRequest, ReplaceRequest
from broadsheet.control.core.value import NO_BALLOT, Acceptor, AcceptorSets, Ballot, Value
from broadsheet.errors import Status
from simulator.workload import Violation
from simulator.world import Life


class _Told(msgspec.Struct):
    """The greatest ballots that one acceptor told anybody."""

    promised: Ballot = NO_BALLOT
    accepted: Ballot = NO_BALLOT


class _Boot:
    """An acceptor in one boot of its node: what is durable, and what is on its way."""

    def __init__(self, memory: Memory) -> None:
        self.durable = self.latest = memory
        self.pending: deque[tuple[Token, Memory]] = deque()


class _Asked(msgspec.Struct):
    """A request, and the latest version that was chosen when it came."""

    request: ReadRequest | ChangeRequest | ReplaceRequest
    floor: int


class Ledger:
    """All acceptors and proposers of one run."""

    def __init__(self) -> None:
        self.log: dict[int, tuple[str, bytes]] = {}
        """The attempt and the document of each version that was chosen."""
        self.version = 0
        """The latest one."""
        self._boots: dict[NodeId, tuple[Life, _Boot]] = {}
        self._told: dict[Acceptor, _Told] = {}
        self._proposed: dict[Ballot, Value] = {}
        self._ballots: list[Ballot] = []
        """Of all proposals, in order."""
        self._chosen: list[Ballot] = []
        self._holders: dict[Ballot, dict[Acceptor, None]] = {}
        self._proposers: dict[Ballot, str] = {}
        self._asked: dict[tuple[str, RequestId], _Asked] = {}
        self._attempts: dict[str, tuple[int, bytes]] = {}
        self._sent: dict[str, None] = {}
        self._denied: dict[str, Answer] = {}
        self._sets: dict[int, AcceptorSets] = {}
        """Of each version that was chosen."""
        self._replaced: dict[str, ReplaceRequest] = {}

    def booted(self, life: Life, memory: Memory, *, is_damaged: bool = True) -> None:
        """The acceptor of `life` begins with `memory`, which is durable.

        Args:
            is_damaged: whether its disk may have lost what was durable, so that it may be another life.

        Raises:
            Violation: it has forgotten what it told.
        """
        before = self._boots.get(NodeId(life.node))
        if before is not None and not is_damaged:
            own = before[1].durable.acceptor
            if own != memory.acceptor and own in self._told:
                raise Violation(
                    f"{life!r} is {memory.acceptor}: {own} has told others of itself, and is gone"
                )
        told = self._told.get(memory.acceptor, _Told())
        accepted = NO_BALLOT if memory.accepted is None else memory.accepted.ballot
        if memory.promised < told.promised or accepted < told.accepted:
            raise Violation(
                f"{life!r}: {memory.acceptor} forgot what it told: promised {memory.promised} of"
                f" {told.promised}, accepted {accepted} of {told.accepted}"
            )
        self._boots[NodeId(life.node)] = (life, _Boot(memory))
        self._hold(memory)

    def step(self, life: Life | None, event: Event, effects: Sequence[Effect]) -> None:
        """Judge one step of a machine of `life`; those of other machines are nothing to us.

        Raises:
            Violation: which rule was broken, with the values.
        """
        if life is None:
            return
        before = self._before.get(type(event))
        if before is not None:
            before(self, life, event)
        for effect in effects:
            if type(effect) is Persist:
                self._on_persist(life, effect, event)
            elif type(effect) is Send:
                message: Any = effect.message
                self._answers_for(life, event, message)
                judge = self._sends.get(type(message))
                if judge is not None:
                    judge(self, life, message)
            elif type(effect) is Answer:
                self._on_answer(life, effect)

    # Acceptors.

    def _boot(self, life: Life) -> _Boot:
        found = self._boots.get(NodeId(life.node))
        assert found is not None, "an acceptor acts after it booted"
        assert found[0] is life, "an acceptor acts in its own boot"
        return found[1]

    def _on_persist(self, life: Life, effect: Persist, event: Event) -> None:
        boot = self._boot(life)
        before = boot.latest
        if isinstance(event, Prepare | Accept):
            self._grants(life, before, event)
        after = remembered((encoded(before), effect.record))
        assert after is not None, "there is a record"
        if effect.is_whole and remembered((effect.record,)) != after:
            raise Violation(f"{life!r} writes a record that is not whole, and says it is: {effect.record!r}")
        if type(event) is FlushAsked and not effect.is_whole:
            raise Violation(f"{life!r} was asked for a whole record, and writes {effect.record!r}")
        old, new = (NO_BALLOT if m.accepted is None else m.accepted.ballot for m in (before, after))
        if after.acceptor != before.acceptor or after.promised < before.promised or new < old:
            raise Violation(f"{life!r} goes back: {after} after {before}")
        if new != old and new < before.promised:
            raise Violation(f"{life!r} accepts {new} after it promised {before.promised}")
        if after.promised < new:
            raise Violation(f"{life!r} accepts {new} and promises only {after.promised}")
        boot.latest = after
        boot.pending.append((effect.token, after))

    def _grants(self, life: Life, before: Memory, event: Prepare | Accept) -> None:
        """What an acceptor grants was asked of this very life; a blank one does not vote (control.6)."""
        own, accepted = before.acceptor, before.accepted
        if event.acceptor != own:
            raise Violation(f"{life!r} is {own}, and grants what {event.acceptor} was asked: {event}")
        if accepted is not None:
            if accepted.value.sets != event.sets and accepted.ballot > event.basis:
                raise Violation(
                    f"{life!r} holds {accepted}, and grants to one who asks older acceptors: {event}"
                )
        elif isinstance(event, Accept):
            if own not in event.value.sets.members():
                raise Violation(
                    f"{life!r} is {own}, holds nothing, and accepts what does not name it: {event}"
                )
        elif event.sets.members() and before.promised == NO_BALLOT:
            raise Violation(f"{life!r} is {own}, has neither value nor promise, and votes: {event}")

    def _answers_for(self, life: Life, event: Event, message: Any) -> None:  # noqa: ANN401 - either machine.
        """Nobody votes for another life of its node; readers are told what they do not have."""
        if isinstance(event, Read) and isinstance(message, Held):
            is_known = message.ballot in {NO_BALLOT, event.known}
            if is_known == (message.value is not None):
                raise Violation(f"{life!r} tells {message} to a reader that has {event.known}")
        if not isinstance(event, Prepare | Accept) or not isinstance(message, Promised | AcceptedBallot):
            return
        if event.acceptor != message.acceptor:
            raise Violation(f"{life!r} answers {message}, and {event} is for another life")

    def _on_persisted(self, life: Life, event: Persisted) -> None:
        boot = self._boot(life)
        while boot.pending and boot.pending[0][0] <= event.token:
            _, boot.durable = boot.pending.popleft()
            self._hold(boot.durable)

    def _on_persist_refused(self, life: Life, event: PersistRefused) -> None:
        boot = self._boot(life)
        while boot.pending and boot.pending[-1][0] >= event.token:
            boot.pending.pop()
        boot.latest = boot.pending[-1][1] if boot.pending else boot.durable

    def _hold(self, memory: Memory) -> None:
        """`memory` is durable: what it accepted has one more holder."""
        if memory.accepted is None:
            return
        ballot, value = memory.accepted.ballot, memory.accepted.value
        proposed = self._proposed.get(ballot)
        if proposed is None or proposed != value:
            raise Violation(f"{memory.acceptor} holds {value} of {ballot}; proposed was {proposed}")
        holders = self._holders.setdefault(ballot, {})
        if memory.acceptor in holders:
            return
        holders[memory.acceptor] = None
        if ballot not in self._chosen and _majority(value.sets, holders):
            self._choose(ballot, value)

    def _choose(self, ballot: Ballot, value: Value) -> None:
        """A majority of every set of `value` holds it: it stands, and later proposals build on it."""
        insort(self._chosen, ballot)
        self.version = max(self.version, value.version)
        for entry in value.attempts:
            attempt, _ = self.log.get(entry.version, (entry.attempt, b""))
            if attempt != entry.attempt:
                raise Violation(f"version {entry.version} was chosen twice: {attempt} and {entry.attempt}")
            if entry.attempt in self._denied:
                raise Violation(
                    f"refused, and chosen: {self._denied[entry.attempt]}, version {entry.version}"
                )
        self.log[value.version] = (value.attempts[-1].attempt, value.document)
        self._follows(value)
        for later in self._ballots[bisect_left(self._ballots, ballot) :]:
            self._extends(later, ballot)

    def _follows(self, value: Value) -> None:
        """Acceptors change in two writes: both sets, then the new one (control.6)."""
        self._sets[value.version] = after = value.sets
        before = self._sets.get(value.version - 1)
        if before is None or before == after:
            return
        is_begun = not before.is_joint and after.is_joint and after.old == before.old
        is_ended = before.is_joint and after == AcceptorSets(old=before.new)
        if not (is_begun or is_ended):
            raise Violation(f"version {value.version} leaps from the acceptors {before} to {after}")

    def _asks_for(self, life: Life, value: Value) -> None:
        """A joint set is what its operator asked for, and leaves no fewer acceptors where it replaces one."""
        request = self._replaced.get(value.attempts[-1].attempt.rpartition("/")[0])
        old, new = value.sets.old, value.sets.new
        if request is None or not new:
            return
        wanted = {*old, *([] if request.added is None else [request.added])} - {request.removed}
        is_smaller = request.added is not None and len(new) < len(old) + (request.removed is None)
        if set(new) != wanted or len(new) != len(wanted) or is_smaller:
            raise Violation(f"{life!r} proposes {value.sets} for {request}")

    def _extends(self, later: Ballot, ballot: Ballot) -> None:
        """P2c: a proposal above a chosen ballot builds on what was chosen."""
        value, chosen = self._proposed[later], self._proposed[ballot]
        names = {entry.version: entry.attempt for entry in value.attempts}
        same = [names.get(entry.version, entry.attempt) == entry.attempt for entry in chosen.attempts]
        if value.version < chosen.version or not all(same):
            raise Violation(f"{later} proposes {value}, which does not build on {ballot}, chosen: {chosen}")

    def _backed(self, life: Life, message: Any, promised: Ballot, accepted: Ballot) -> None:  # noqa: ANN401
        """What an acceptor tells is durable, its own, and remembered from now on."""
        durable = self._boot(life).durable
        holds = accepted == NO_BALLOT or durable.acceptor in self._holders.get(accepted, {})
        if message.acceptor != durable.acceptor or promised > durable.promised or not holds:
            raise Violation(f"{life!r} tells what is not durable: {message}; durable is {durable}")
        told = self._told.setdefault(durable.acceptor, _Told())
        told.promised, told.accepted = max(told.promised, promised), max(told.accepted, accepted)

    def _on_promised(self, life: Life, message: Promised) -> None:
        accepted = NO_BALLOT if message.accepted is None else message.accepted.ballot
        self._backed(life, message, message.ballot, accepted)

    def _on_accepted(self, life: Life, message: AcceptedBallot) -> None:
        self._backed(life, message, message.ballot, message.ballot)

    def _on_held(self, life: Life, message: Held) -> None:
        self._backed(life, message, message.promised, message.ballot)

    def _on_rejected(self, life: Life, message: Rejected) -> None:
        if message.why is not Why.FULL:
            accepted = NO_BALLOT if message.accepted is None else message.accepted.ballot
            self._backed(life, message, message.promised, accepted)

    # Proposers.

    def _on_request(self, life: Life, event: ReadRequest | ChangeRequest | ReplaceRequest) -> None:
        self._asked[(repr(life), event.request)] = _Asked(event, self.version)
        if isinstance(event, ChangeRequest):
            asked = (event.expected, event.document)
            if self._attempts.setdefault(event.attempt, asked) != asked:
                raise Violation(f"{life!r} uses attempt {event.attempt} twice: {asked}")
        elif isinstance(event, ReplaceRequest):
            self._replaced[event.attempt] = event

    def _asks_whom_it_knows(self, life: Life, message: Prepare | Accept) -> None:
        """A round is with the acceptors of the latest value that its proposer knows (control.6)."""
        basis = self._proposed.get(message.basis)
        if basis is not None and basis.sets != message.sets:
            raise Violation(f"{life!r} knows of {basis.sets}, and asks {message.sets}: {message}")

    def _on_prepare(self, life: Life, message: Prepare) -> None:
        self._asks_whom_it_knows(life, message)
        owner = self._proposers.setdefault(message.ballot, repr(life))
        if owner != repr(life):
            raise Violation(f"{life!r} prepares {message.ballot}, which is {owner}'s")

    def _on_accept(self, life: Life, message: Accept) -> None:
        self._asks_whom_it_knows(life, message)
        value, ballot = message.value, message.ballot
        proposed = self._proposed.get(ballot)
        if proposed is not None:
            if proposed != value:
                raise Violation(f"{life!r}: {ballot} has two values: {proposed} and {value}")
            return
        self._proposed[ballot] = value
        attempt = value.attempts[-1].attempt
        self._sent |= dict.fromkeys((attempt, attempt.rpartition("/")[0]))  # A replacement has two writes.
        self._asks_for(life, value)
        insort(self._ballots, ballot)
        at = bisect_left(self._chosen, ballot)
        if at:
            self._extends(ballot, self._chosen[at - 1])

    def _on_answer(self, life: Life, answer: Answer) -> None:
        asked = self._asked.pop((repr(life), answer.request), None)
        if asked is None:
            raise Violation(f"{life!r} answers what nobody asked, or twice: {answer}")
        request, status = asked.request, answer.status
        if status is Status.OK:
            if answer.version not in self.log:
                raise Violation(f"{life!r} answers version {answer.version}, which is not chosen: {request}")
            attempt, document = self.log[answer.version]
            if isinstance(request, ChangeRequest):
                if (request.attempt, request.document) != (attempt, document):
                    raise Violation(f"{life!r} says that {request} made {answer.version}; {attempt} did")
                return
            if answer.version < asked.floor:
                raise Violation(f"{life!r} answers version {answer.version} after {asked.floor}: {request}")
            if isinstance(request, ReplaceRequest):
                self._replaced_as_asked(life, request, answer)
            if answer.value is not None and answer.value.document != document:
                raise Violation(f"{life!r} reads {answer.value}; version {answer.version} is {document!r}")
        elif status is not Status.UNKNOWN and not isinstance(request, ReadRequest):
            self._deny(life, request, answer, asked.floor)

    def _replaced_as_asked(self, life: Life, request: ReplaceRequest, answer: Answer) -> None:
        sets = self._sets.get(answer.version, AcceptorSets())
        is_in = request.added is None or request.added in sets.old
        if sets.is_joint or not is_in or (request.removed is not None and request.removed in sets.old):
            raise Violation(f"{life!r} says that {request} is done in version {answer.version}: {sets}")

    def _deny(self, life: Life, request: ChangeRequest | ReplaceRequest, answer: Answer, floor: int) -> None:
        """A no is for good."""
        if isinstance(request, ReplaceRequest):
            if request.attempt in self._sent:
                raise Violation(f"{life!r} refuses {request}, and proposed something for it: {answer}")
            return
        if answer.status is Status.UNEXPECTED_VERSION and answer.version < floor:
            raise Violation(f"{life!r} answers version {answer.version} after {floor}: {request}")
        self._denied[request.attempt] = answer
        made = [version for version, (attempt, _) in self.log.items() if attempt == request.attempt]
        if made:
            raise Violation(f"{life!r} refuses {request}, which made version {made[0]}: {answer}")
        if answer.status is Status.INSUFFICIENT_REPLICAS and request.attempt in self._sent:
            raise Violation(f"{life!r} says that nothing happened, and proposed it: {request}")

    _before: ClassVar[dict[type[Event], Callable[["Ledger", Life, Any], None]]] = {
        Persisted: _on_persisted,
        PersistRefused: _on_persist_refused,
        ReadRequest: _on_request,
        ChangeRequest: _on_request,
        ReplaceRequest: _on_request,
    }
    _sends: ClassVar[dict[type[Event], Callable[["Ledger", Life, Any], None]]] = {
        Prepare: _on_prepare,
        Accept: _on_accept,
        Promised: _on_promised,
        AcceptedBallot: _on_accepted,
        Held: _on_held,
        Rejected: _on_rejected,
    }


def _majority(sets: AcceptorSets, holders: Mapping[Acceptor, object]) -> bool:
    """Whether more than half of each set are holders; counted here, not by what is judged."""
    for members in (sets.old, sets.new):
        there = [member for member in members if member in holders]
        if len(there) < len(members) // 2 + bool(members):
            return False
    return True
