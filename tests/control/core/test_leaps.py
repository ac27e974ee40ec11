"""A counter that leaps is refused: the range of numbers is finite, and a promise is for ever (control.3)."""

import msgspec
import pytest

from broadsheet.base.machine import Event
from broadsheet.base.types import NodeId
from broadsheet.control.core.acceptor import Persist, Send
from broadsheet.control.core.messages import Accept, Held, Prepare, Promised, Read, Rejected, Why
from broadsheet.control.core.value import COUNT_BITS, LEAP_MAX, NO_BALLOT, Accepted, AcceptorSets, Ballot
from broadsheet.errors import Status
from tests.control.core.cluster import Cluster

MALLORY = NodeId("mallory")


def answers(cluster: Cluster, name: str, event: Event) -> list[object]:
    """What the acceptor of `name` says to `event`, once it is durable."""
    node = cluster[name]
    effects = node.acceptor.step(event, cluster.now)  # type: ignore[arg-type]  # A request.
    cluster.perform(node, effects)
    node.sync()
    told = [message for to, message in cluster.flying if to == MALLORY]
    cluster.flying.clear()
    return [*told, *(type(effect) for effect in effects if isinstance(effect, Persist))]


def prepare(cluster: Cluster, name: str, counter: int, *, sets: AcceptorSets | None = None) -> Prepare:
    acceptor = cluster[name].acceptor
    accepted = acceptor.memory.accepted
    known = (NO_BALLOT, AcceptorSets()) if accepted is None else (accepted.ballot, accepted.value.sets)
    return Prepare(MALLORY, Ballot(counter, MALLORY, 1), acceptor.acceptor, known[0], sets or known[1])


@pytest.mark.parametrize("is_founded", [True, False])
def test_a_promise_does_not_leap(is_founded: bool) -> None:
    """One request of a damaged or hostile peer used up the range: no ballot was above the promise."""
    cluster = Cluster()
    if is_founded:
        cluster.result(cluster.read("a"))
        cluster.settle()
    promised = cluster["a"].acceptor.memory.promised

    for counter in ((1 << COUNT_BITS) - 1, promised.counter + LEAP_MAX + 1):
        (told,) = answers(cluster, "a", prepare(cluster, "a", counter))
        assert isinstance(told, Rejected)
        assert (told.why, told.promised) == (Why.LEAP, promised)
    assert cluster["a"].acceptor.memory.promised == promised
    told, _ = answers(cluster, "a", prepare(cluster, "a", promised.counter + LEAP_MAX))
    assert isinstance(told, Promised)
    assert cluster.result(cluster.read("a")).status is Status.OK


def test_an_accept_does_not_leap_either() -> None:
    """An accept promises too."""
    cluster = Cluster()
    cluster.result(cluster.read("a"))
    cluster.settle()
    accepted = cluster["a"].acceptor.memory.accepted
    assert accepted is not None
    ballot = Ballot(accepted.ballot.counter + LEAP_MAX + 1, MALLORY, 1)
    value, sets = accepted.value, accepted.value.sets

    event = Accept(MALLORY, ballot, cluster["a"].id, value, accepted.ballot, sets)
    (told,) = answers(cluster, "a", event)
    assert isinstance(told, Rejected)
    assert told.why is Why.LEAP
    assert cluster.result(cluster.change("b", 1, b"x")).status is Status.OK


def test_a_new_member_joins_at_whatever_ballot_its_cluster_has() -> None:
    """Its own counter is 0, and an old cluster's is far above."""
    cluster = Cluster()
    cluster.result(cluster.read("a"))
    cluster.settle()
    for at in range(3):
        counter = cluster["b"].acceptor.memory.promised.counter + LEAP_MAX
        for name in "abc":
            assert isinstance(answers(cluster, name, prepare(cluster, name, counter))[0], Promised), at
    new = cluster.join("d")
    assert cluster.result(cluster.change("b", 1, b"x")).status is Status.OK
    assert cluster.result(cluster.replace("a", cluster["c"].id, new.id)).status is Status.OK

    assert cluster.result(cluster.read("d"), without="a").status is Status.OK
    assert cluster["d"].acceptor.memory.promised.counter > 3 * LEAP_MAX


@pytest.mark.parametrize("counter", [-1, 1 << COUNT_BITS, (1 << 63) - 1, (1 << 64) - 1])
def test_a_number_out_of_range_is_refused_where_it_is_read(counter: int) -> None:
    """The successor of the greatest number of a format cannot be written, and ended the node."""
    cluster = Cluster()
    good = msgspec.msgpack.encode(prepare(cluster, "a", 77, sets=AcceptorSets(old=(cluster["a"].id,))))
    bad = msgspec.to_builtins(prepare(cluster, "a", 77))
    bad[2][0] = counter

    assert msgspec.msgpack.decode(good, type=Prepare).ballot.counter == 77
    with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(bad), type=Prepare)


def test_acceptors_that_are_more_than_a_leap_apart_are_led_together() -> None:
    """One that was walked up, or was down for years, must not stop the others for ever."""
    cluster = Cluster()
    cluster.result(cluster.read("a"))
    cluster.settle()
    for _ in range(3):
        counter = cluster["a"].acceptor.memory.promised.counter + LEAP_MAX
        assert isinstance(answers(cluster, "a", prepare(cluster, "a", counter))[0], Promised)

    for version in range(1, 7):  # Each round goes one leap nearer, and does not need it.
        assert cluster.result(cluster.change("ab"[version % 2], version, b"x")).status is Status.OK
    assert cluster.result(cluster.read("c"), without="b").status is Status.OK
    counters = [cluster[name].acceptor.memory.promised.counter for name in "bc"]
    assert min(counters) > 3 * LEAP_MAX


def test_an_answer_that_lies_about_its_promise_leaves_ballots() -> None:
    """The greatest counter was believed: the next ballot was out of range, and refused by all."""
    cluster = Cluster()
    cluster.result(cluster.read("a"))
    cluster.settle()
    greatest = Ballot((1 << COUNT_BITS) - 1, MALLORY, 1)
    proposer, liar = cluster["a"].proposer, cluster["c"].id
    for message in (
        Rejected(liar, proposer.ballot, Why.BALLOT, greatest, None),
        Held(liar, (1, 1), greatest, NO_BALLOT, None),
    ):
        assert proposer.step(message, cluster.now) == []
        proposer.check()

    assert cluster.result(cluster.change("a", 1, b"x"), without="c").status is Status.OK
    assert proposer.ballot.counter < 3 * LEAP_MAX


def test_a_value_further_than_a_leap_ahead_is_learnt_leap_by_leap() -> None:
    """A cluster that was walked up is joined some rounds later; a liar is not followed at once."""
    cluster = Cluster()
    cluster.result(cluster.read("a"))
    cluster.settle()
    for _ in range(3):
        counter = cluster["b"].acceptor.memory.promised.counter + LEAP_MAX
        for name in "abc":
            assert isinstance(answers(cluster, name, prepare(cluster, name, counter))[0], Promised)
    assert cluster.result(cluster.change("b", 1, b"x")).status is Status.OK
    cluster.settle()
    cluster["a"].crash()
    cluster["a"].start()

    read = cluster.result(cluster.read("a"))
    assert (read.status, read.version) == (Status.OK, 2)
    assert cluster.result(cluster.change("a", 2, b"y")).status is Status.OK
    assert cluster["a"].proposer.ballot.counter > 3 * LEAP_MAX


def test_a_value_further_than_a_leap_ahead_is_not_learnt_from_one_answer() -> None:
    """ADR 0174: every later ballot of the proposer would be below that of the value that it builds on."""
    cluster = Cluster()
    cluster.result(cluster.read("a"))
    cluster.settle()
    proposer = cluster["a"].proposer
    known = proposer.known
    assert known is not None
    cluster.read("a")
    (asked, *_) = [message for _, message in cluster.flying if isinstance(message, Read)]
    far = Ballot(known.ballot.counter + 5 * LEAP_MAX, MALLORY, 1)
    value = msgspec.structs.replace(known.value, version=9)

    proposer.step(Held(cluster["c"].id, asked.round, NO_BALLOT, far, value), cluster.now)
    assert proposer.known == known
    proposer.check()


def test_a_promise_with_a_value_above_it_is_no_vote() -> None:
    """An acceptor accepts nothing above what it promised, so whoever says so lies."""
    cluster = Cluster()
    cluster.result(cluster.read("a"))
    cluster.settle()
    accepted = cluster["c"].acceptor.memory.accepted
    assert accepted is not None
    cluster.change("a", 1, b"x")
    proposer = cluster["a"].proposer
    above = msgspec.structs.replace(accepted, ballot=Ballot(proposer.ballot.counter + 9, MALLORY, 1))

    assert proposer.step(Promised(cluster["c"].id, proposer.ballot, above), cluster.now) == []
    assert proposer.known != above
    assert cluster.result(cluster.change("a", 1, b"y")).status is not Status.UNKNOWN


def test_a_promise_with_a_value_of_other_acceptors_begins_the_round_with_them() -> None:
    """Promises of those that were in force before may miss what was chosen by those that are now."""
    cluster = Cluster()
    cluster.result(cluster.read("a"))
    cluster.settle()
    accepted = cluster["c"].acceptor.memory.accepted
    assert accepted is not None
    cluster.change("a", 1, b"x")
    proposer = cluster["a"].proposer
    sets = AcceptorSets(old=tuple(cluster[name].id for name in "bc"))
    moved = Accepted(
        Ballot(proposer.ballot.counter, NodeId(""), 1), msgspec.structs.replace(accepted.value, sets=sets)
    )
    before = proposer.ballot

    sent = proposer.step(Promised(cluster["c"].id, before, moved), cluster.now)
    asked = [each.message for each in sent if isinstance(each, Send)]
    assert proposer.ballot > before
    assert [(type(each), each.acceptor, each.sets) for each in asked if isinstance(each, Prepare)] == [
        (Prepare, member, sets) for member in sets.old
    ]
