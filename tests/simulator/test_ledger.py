"""The ledger sees a broken rule of ballots in the step that breaks it: no crash has to make it matter."""

import pytest

from broadsheet.base.types import Incarnation, NodeId, Offset, RequestId, Token
from broadsheet.control.core.acceptor import Memory, Persist, Persisted, Promise, Send, encoded
from broadsheet.control.core.messages import Accept, AcceptedBallot, Held, Prepare, Promised
from broadsheet.control.core.operation import Answer, ChangeRequest, ReadRequest, ReplaceRequest
from broadsheet.control.core.value import (
    NO_BALLOT,
    Accepted,
    Acceptor,
    AcceptorSets,
    Attempt,
    Ballot,
    Value,
)
from broadsheet.errors import Status
from simulator.checkers.ledger import Ledger
from simulator.workload import Violation
from simulator.world import Life

A, B, C, D = (Acceptor(NodeId(name), Incarnation(7)) for name in "abcd")
SETS = AcceptorSets(old=(A, B, C))
LIVES = {name: Life(name, 1) for name in "abcd"}


def ballot(counter: int, node: str = "a") -> Ballot:
    return Ballot(counter, NodeId(node), 1)


def value(version: int, attempt: str, *, after: tuple[Attempt, ...] = (), sets: AcceptorSets = SETS) -> Value:
    return Value(version, sets, (*after, Attempt(attempt, version)), (), attempt.encode())


class Story:
    """A ledger, and what the nodes do before it."""

    def __init__(self, acceptors: tuple[Acceptor, ...] = (A, B, C)) -> None:
        self.ledger = Ledger()
        self.token = 0
        for acceptor in acceptors:
            self.ledger.booted(LIVES[acceptor.node], Memory(acceptor, NO_BALLOT, None))

    def propose(self, at: Ballot, proposed: Value) -> None:
        accept = Accept(at.node, at, A, proposed, NO_BALLOT, SETS)
        self.ledger.step(LIVES[at.node], ReadRequest(RequestId(0)), [Send(A.node, accept)])

    def write(self, acceptor: Acceptor, record: Memory | Promise, *, is_durable: bool = True) -> None:
        self.token += 1
        token = Token(self.token)
        persist = Persist(token, Offset(token), encoded(record), is_whole=isinstance(record, Memory))
        self.ledger.step(LIVES[acceptor.node], ReadRequest(RequestId(0)), [persist])
        if is_durable:
            self.ledger.step(LIVES[acceptor.node], Persisted(token), [])

    def hold(self, at: Ballot, held: Value, *acceptors: Acceptor) -> None:
        for acceptor in acceptors:
            self.write(acceptor, Memory(acceptor, at, Accepted(at, held)))

    def answer(
        self, asked: ChangeRequest | ReadRequest, status: Status, version: int = 0, read: Value | None = None
    ) -> None:
        self.ledger.step(LIVES["a"], asked, [Answer(asked.request, status, version, read)])


def change(attempt: str, expected: int = 0) -> ChangeRequest:
    return ChangeRequest(RequestId(5), expected, attempt.encode(), attempt)


def test_an_answer_before_its_record_is_durable_is_seen() -> None:
    """Durable first (control.4), whether or not the node crashes in between."""
    story, first = Story(), value(1, "x")
    story.propose(ballot(1), first)
    story.write(B, Memory(B, ballot(1), Accepted(ballot(1), first)), is_durable=False)

    for message in (
        AcceptedBallot(B, ballot(1)),
        Promised(B, ballot(1), None),
        Held(B, (1, 1), NO_BALLOT, ballot(1), None),
    ):
        with pytest.raises(Violation, match="not durable"):
            story.ledger.step(LIVES["b"], ReadRequest(RequestId(1)), [Send(A.node, message)])

    story.ledger.step(LIVES["b"], Persisted(Token(1)), [Send(A.node, AcceptedBallot(B, ballot(1)))])


def test_a_life_that_forgot_what_it_told_is_seen() -> None:
    """An acceptor that lost records and votes on could break two majorities' overlap (control.6)."""
    story = Story()
    story.write(B, Promise(ballot(3)))
    story.ledger.step(LIVES["b"], Persisted(Token(9)), [Send(A.node, Promised(B, ballot(3), None))])

    with pytest.raises(Violation, match="forgot"):
        story.ledger.booted(Life("b", 2), Memory(B, ballot(2), None))
    story.ledger.booted(Life("b", 2), Memory(Acceptor(NodeId("b"), Incarnation(8)), NO_BALLOT, None))


def test_records_that_go_back_are_seen() -> None:
    """A lower promise, or a value below a promise, is a broken promise."""
    story, first = Story(), value(1, "x")
    story.propose(ballot(2), first)
    story.write(B, Promise(ballot(3)))

    with pytest.raises(Violation, match="goes back"):
        story.write(B, Memory(B, ballot(2), None))
    with pytest.raises(Violation, match="after it promised"):
        story.write(B, Memory(B, ballot(3), Accepted(ballot(2), first)))


def test_two_values_of_one_ballot_are_seen() -> None:
    """A ballot is the right to propose one value."""
    story = Story()
    story.propose(ballot(1), value(1, "x"))

    with pytest.raises(Violation, match="two values"):
        story.propose(ballot(1), value(1, "y"))


@pytest.mark.parametrize("is_late", [False, True])
def test_a_proposal_that_does_not_build_on_what_is_chosen_is_seen(is_late: bool) -> None:
    """P2c, in whichever order the two are seen."""
    story, first, other = Story(), value(1, "x"), value(1, "y")
    story.propose(ballot(1), first)
    story.hold(ballot(1), first, A)
    if is_late:
        story.propose(ballot(2, "b"), other)
        with pytest.raises(Violation, match="does not build on"):
            story.hold(ballot(1), first, B)
        return
    story.hold(ballot(1), first, B)
    story.propose(ballot(2, "b"), value(2, "z", after=first.attempts))

    with pytest.raises(Violation, match="does not build on"):
        story.propose(ballot(3, "b"), other)


def test_half_of_an_even_set_chooses_nothing() -> None:
    """The ledger counts for itself: what is judged may count wrong."""
    sets = AcceptorSets(old=(A, B, C, D))
    story, first = Story((A, B, C, D)), value(1, "x", sets=sets)
    story.propose(ballot(1), first)
    story.hold(ballot(1), first, A, B)

    with pytest.raises(Violation, match="not chosen"):
        story.answer(change("x"), Status.OK, 1)
    story.hold(ballot(1), first, C)
    story.answer(change("x"), Status.OK, 1)


def test_a_no_that_was_no_answer_is_seen() -> None:
    """What may still take effect is unknown; what was refused never takes effect."""
    story, first = Story(), value(1, "x")
    story.propose(ballot(1), first)

    with pytest.raises(Violation, match="proposed it"):
        story.answer(change("x"), Status.INSUFFICIENT_REPLICAS)
    story.answer(change("x"), Status.UNEXPECTED_VERSION)
    with pytest.raises(Violation, match="refused, and chosen"):
        story.hold(ballot(1), first, A, B)


def test_a_replacement_that_is_refused_after_it_was_proposed_is_seen() -> None:
    """Nobody can say that nothing was changed: it may be done, and another one may have undone it."""
    story = Story()
    request = ReplaceRequest(RequestId(3), B, D, "", "x/1")
    story.ledger.step(LIVES["a"], request, [])
    story.propose(ballot(2), value(2, "x/1/1", sets=AcceptorSets(old=SETS.old, new=(A, C, D))))

    refused = Answer(RequestId(3), Status.NOT_FOUND, version=5)
    with pytest.raises(Violation, match="and proposed something for it"):
        story.ledger.step(LIVES["a"], Persisted(Token(9)), [refused])


def test_a_stale_read_and_an_attempt_used_twice_are_seen() -> None:
    """A read is as new as what was chosen when it was asked; an attempt names one write."""
    story, first = Story(), value(1, "x")
    second = value(2, "y", after=first.attempts)
    for at, each in ((ballot(1), first), (ballot(2), second)):
        story.propose(at, each)
        story.hold(at, each, A, B)

    with pytest.raises(Violation, match="after 2"):
        story.answer(ReadRequest(RequestId(3)), Status.OK, 1, first)
    story.answer(ReadRequest(RequestId(3)), Status.OK, 2, second)
    story.answer(change("y", expected=1), Status.OK, 2)
    with pytest.raises(Violation, match="twice"):
        story.answer(change("y", expected=2), Status.OK, 2)


def grant(story: Story, acceptor: Acceptor, event: Accept | Prepare, memory: Memory | Promise) -> None:
    """`acceptor` writes down that it grants `event`."""
    persist = Persist(Token(99), Offset(99), encoded(memory), is_whole=isinstance(memory, Memory))
    story.ledger.step(LIVES[acceptor.node], event, [persist])


def test_a_vote_for_another_life_is_seen() -> None:
    """A wiped acceptor has forgotten what the life before it promised, so it may not answer (control.6)."""
    story, before = Story(), Acceptor(B.node, Incarnation(6))
    prepare = Prepare(A.node, ballot(2), before, NO_BALLOT, AcceptorSets())

    with pytest.raises(Violation, match=r"grants what .* was asked"):
        grant(story, B, prepare, Promise(ballot(2)))
    with pytest.raises(Violation, match="is for another life"):
        story.ledger.step(LIVES["b"], prepare, [Send(A.node, Promised(B, ballot(2), None))])


def test_a_vote_of_an_acceptor_that_knows_nothing_is_seen() -> None:
    """It may be the new life of one that promised something else: it has to be told of a value first."""
    story = Story()
    prepare = Prepare(A.node, ballot(2), B, NO_BALLOT, SETS)

    with pytest.raises(Violation, match="has neither value nor promise, and votes"):
        grant(story, B, prepare, Promise(ballot(2)))


def test_a_blank_acceptor_that_accepts_what_does_not_name_it_is_seen() -> None:
    """It is no member, and would remember a ballot as if it were one."""
    story, others = Story((A, B, C, D)), value(1, "x")
    accept = Accept(A.node, ballot(2), D, others, NO_BALLOT, SETS)

    with pytest.raises(Violation, match="accepts what does not name it"):
        grant(story, D, accept, Memory(D, ballot(2), Accepted(ballot(2), others)))


def test_a_grant_to_one_who_asks_older_acceptors_is_seen() -> None:
    """Its majority is of acceptors that are in force no longer."""
    story, newer = Story((A, B, C, D)), value(1, "x", sets=AcceptorSets(old=(A, B, D)))
    story.propose(ballot(1), newer)
    story.hold(ballot(1), newer, B)
    prepare = Prepare(C.node, ballot(2, "c"), B, NO_BALLOT, SETS)

    with pytest.raises(Violation, match="grants to one who asks older acceptors"):
        grant(story, B, prepare, Promise(ballot(2, "c")))


def test_a_proposer_that_asks_other_acceptors_than_it_knows_of_is_seen() -> None:
    """It has learnt of a change, and goes on with the round that it had begun before."""
    story, newer = Story((A, B, C, D)), value(1, "x", sets=AcceptorSets(old=(A, B, D)))
    story.propose(ballot(1), newer)
    prepare = Prepare(C.node, ballot(2, "c"), B, ballot(1), SETS)

    with pytest.raises(Violation, match=r"knows of .* and asks"):
        story.ledger.step(LIVES["c"], ReadRequest(RequestId(0)), [Send(B.node, prepare)])
