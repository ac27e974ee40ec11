"""The metastore's machines: founding, compare-and-set, dueling, crashes, wipes and changes of members."""

from collections.abc import Callable

import pytest
from msgspec import structs

from broadsheet.base.time import Instant
from broadsheet.base.types import Incarnation, NodeId, RequestId
from broadsheet.control.core.acceptor import (
    PENDING_MAX,
    FlushAsked,
    Memory,
    Persist,
    Persisted,
    PersistRefused,
    Promise,
    Send,
    remembered,
)
from broadsheet.control.core.acceptor import encoded as record_of
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
from broadsheet.control.core.operation import Answer, ChangeRequest, Propose, ReplaceRequest, next_step
from broadsheet.control.core.proposer import State
from broadsheet.control.core.queue import BYTES_MAX
from broadsheet.control.core.value import (
    ATTEMPTS_KEPT,
    DOCUMENT_BYTES_MAX,
    NO_BALLOT,
    Accepted,
    Acceptor,
    AcceptorSets,
    Ballot,
    founding,
)
from broadsheet.errors import Corrupt, Status
from tests.control.core.cluster import Cluster, sender

NOW = Instant(0)


def founded(names: str = "abc") -> Cluster:
    cluster = Cluster(names)
    answer = cluster.result(cluster.read(names[0]))
    assert (answer.status, answer.version) == (Status.OK, 1)
    cluster.settle()
    return cluster


def test_the_founder_writes_version_1_with_every_seed_as_acceptor() -> None:
    """control.1: the acceptor set is part of the document, from its first version on."""
    cluster = founded()

    for name in "abc":
        answer = cluster.result(cluster.read(name))
        assert answer.value is not None
        assert answer.value.sets == AcceptorSets(old=tuple(cluster[n].id for n in "abc"))


def test_nobody_founds_while_a_seed_is_silent() -> None:
    """A wiped founder among live nodes, of which one is cut off, must not begin a second cluster."""
    cluster = Cluster()

    answer = cluster.result(cluster.read("a"), without="c")
    assert answer.status is Status.INSUFFICIENT_REPLICAS


def test_documents_that_wait_for_a_majority_are_bounded_in_bytes() -> None:
    """A caller who leaves takes nothing along: uploads, each left when it was whole, took a gigabyte."""
    cluster = founded()
    document = bytes(DOCUMENT_BYTES_MAX)

    asked = [cluster.change("a", 1, document) for _ in range(BYTES_MAX // len(document) + 1)]
    small = cluster.change("a", 1, b"")
    assert list(cluster.answers.values())[-1].request == asked[-1]
    assert cluster.answers[asked[-1]].status is Status.THROTTLED
    assert cluster.result(small, without="bc").status is Status.INSUFFICIENT_REPLICAS
    assert cluster.result(cluster.change("a", 1, document)).status is Status.OK


def test_a_founding_waits_for_a_promise_of_everyone() -> None:
    """ADR 0052: who has not promised may still accept the founding of an earlier life of the founder."""
    cluster = Cluster()
    cluster.read("a")
    proposer = cluster["a"].proposer
    while proposer.state is not State.PREPARING:
        cluster.deliver()
    cluster.flying = [(to, message) for to, message in cluster.flying if isinstance(message, Prepare)]
    for at in [place for place, (to, _) in enumerate(cluster.flying) if to != "c"][::-1]:
        cluster.deliver(at)
    for node in cluster.nodes.values():
        node.sync()
    cluster.flying = [(to, message) for to, message in cluster.flying if isinstance(message, Promised)]
    assert len(cluster.flying) == 2
    while cluster.flying:
        cluster.deliver()

    assert proposer.state is State.PREPARING
    assert proposer.known is None


def test_a_member_that_a_reader_learns_of_is_asked_at_once() -> None:
    """One that has just started knows its seeds only, and one of those may be gone with its place."""
    cluster = founded()
    new = cluster.join("d")
    cluster.result(cluster.replace("a", cluster["c"].id, new.id))
    cluster.settle()
    cluster["b"].crash()
    cluster["b"].start()
    cluster.read("b")
    move(cluster, lambda m: isinstance(m, Read) and m.known == NO_BALLOT)
    held = [at for at, (_, m) in enumerate(cluster.flying) if isinstance(m, Held) and m.acceptor.node == "a"]
    cluster.deliver(held[0])

    assert [to for to, message in cluster.flying if isinstance(message, Read)] == ["b", "d"]


def test_who_has_read_begins_above_the_promises_that_were_told() -> None:
    """A proposer forgets its counter with each boot: the first ballot after a read is no wasted round."""
    cluster = founded()
    for version in range(1, 6):
        cluster.result(cluster.change("b", version, b"x"))
    promised = cluster["b"].proposer.ballot
    cluster.change("b", 6, b"y")
    move(cluster, lambda m: not isinstance(m, Promised))  # Promised, and never written.
    cluster.flying.clear()
    cluster["a"].crash()
    cluster["a"].start()
    cluster.result(cluster.read("a"), without="b")
    cluster.change("a", 6, b"z")

    assert cluster["b"].proposer.ballot > promised
    assert cluster["a"].proposer.ballot > cluster["b"].proposer.ballot


def test_a_reader_whose_members_hold_different_values_waits_for_nobody() -> None:
    """A value that one acceptor took was abandoned: the read asked for promises only after its patience."""
    cluster = founded()
    cluster.change("a", 1, b"x")
    move(cluster, lambda m: not isinstance(m, Accept) or m.acceptor.node == "a")
    cluster.flying.clear()
    cluster.read("c")
    move(cluster, lambda m: isinstance(m, Read | Held))

    assert cluster["c"].proposer.state is State.PREPARING
    assert [to for to, message in cluster.flying if isinstance(message, Prepare)] == ["a", "b", "c"]


def test_a_founding_that_one_refuses_waits_for_those_that_are_slow() -> None:
    """A new one would need a promise of everyone again, and who is full gives none."""
    cluster = Cluster()
    read = cluster.read("a")
    move(cluster, lambda m: not isinstance(m, Accept))
    proposer, slow = cluster["a"].proposer, cluster.flying
    cluster.flying = []
    full = Rejected(cluster["c"].id, proposer.ballot, Why.FULL, NO_BALLOT, None)
    assert proposer.step(full, cluster.now) == []
    wake = proposer.deadline()
    assert wake is not None
    cluster.now = wake
    cluster.tick("a")

    assert proposer.state is State.ACCEPTING
    cluster.flying = [(to, message) for to, message in slow if to != "c"]
    assert cluster.result(read, without="c").status is Status.OK


def test_an_acceptor_that_calls_itself_blank_is_told_nothing_while_there_is_nothing_to_tell() -> None:
    """control.6: a founding has no value yet; a peer that answers out of turn does not end the founder."""
    cluster = Cluster()
    cluster.read("a")
    proposer = cluster["a"].proposer
    while proposer.state is not State.PREPARING:
        cluster.deliver()

    blank = Rejected(cluster["b"].id, proposer.ballot, Why.BLANK, NO_BALLOT, None)
    assert proposer.step(blank, cluster.now) == []
    assert proposer.state is State.PREPARING


def test_a_wiped_founder_does_not_found_again() -> None:
    """control.6: an acceptor that lost its state is a new one, and no member."""
    cluster = founded()
    cluster.result(cluster.change("b", 1, b"two"))
    cluster["a"].wipe()
    cluster["a"].start()

    answer = cluster.result(cluster.read("a"))
    assert answer.value is not None
    assert (answer.version, answer.value.document) == (2, b"two")


def test_a_founding_that_was_begun_twice_ends() -> None:
    """An acceptor that promised the second founding, and is blank, still promises: it has lost nothing.

    The first founding's value reached b only, after a and c had promised the second: at its own ballot it
    cannot be told to them any more.
    """
    cluster = Cluster()
    cluster.read("a")
    move(cluster, lambda m: not isinstance(m, Accept))
    late = [(to, m) for to, m in cluster.flying if to == "b" and isinstance(m, Accept)]
    cluster.flying.clear()
    cluster["a"].crash()
    cluster["a"].start()
    cluster.read("a")
    move(cluster, lambda m: not isinstance(m, Prepare) or m.acceptor.node != "b")
    cluster.flying = [*late, *cluster.flying]

    answer = cluster.result(cluster.read("c"))
    assert (answer.status, answer.version) == (Status.OK, 1)
    assert cluster.result(cluster.change("b", 1, b"x")).version == 2


def test_a_reader_tells_the_value_to_a_member_that_missed_it() -> None:
    """control.6: a blank member promises nothing to anybody, and would count for the dead.

    Found by `make mutate`: no test noticed whether it was told, or somebody else.
    """
    cluster = Cluster()
    cluster.read("a")
    move(cluster, lambda m: not isinstance(m, Accept) or m.acceptor.node != "c")
    cluster.flying.clear()
    assert cluster["c"].acceptor.memory.accepted is None

    cluster.read("b")
    for name in "cab":
        (at,) = [at for at, (to, m) in enumerate(cluster.flying) if to == name and isinstance(m, Read)]
        cluster.deliver(at)
    for who in "ac":
        (at,) = [at for at, (_, m) in enumerate(cluster.flying) if isinstance(m, Held) and sender(m) == who]
        cluster.deliver(at)

    assert [to for to, message in cluster.flying if isinstance(message, Accept)] == ["c"]


def move(cluster: Cluster, is_wanted: Callable[[Request | Response], bool]) -> None:
    """Deliver and sync until only messages that are not wanted are in flight."""
    for _ in range(100):
        wanted = [at for at, (_, message) in enumerate(cluster.flying) if is_wanted(message)]
        if wanted:
            cluster.deliver(wanted[0])
        else:
            for node in cluster.nodes.values():
                node.sync()
            if not any(is_wanted(message) for _, message in cluster.flying):
                return
    raise AssertionError("it goes on for ever")


def test_a_read_is_not_answered_by_a_round_that_began_before_it_came() -> None:
    """M1: the answers of that round may be older than a write that was acknowledged before the read."""
    cluster = founded()
    first = cluster.read("a")
    while any(isinstance(message, Read) for _, message in cluster.flying):
        cluster.deliver()
    late, cluster.flying = cluster.flying, []
    assert cluster.result(cluster.change("b", 1, b"x"), without="a").status is Status.OK
    second = cluster.read("a")
    cluster.flying = late
    while first not in cluster.answers:
        cluster.deliver()

    assert second not in cluster.answers
    assert cluster.result(second).version == 2


def test_compare_and_set_moves_the_version_by_one() -> None:
    """control.1: "Changed by compare-and-set on its version"."""
    cluster = founded()

    assert cluster.result(cluster.change("b", 1, b"x")).version == 2
    refused = cluster.result(cluster.change("c", 1, b"y"))
    assert (refused.status, refused.version) == (Status.UNEXPECTED_VERSION, 2)
    read = cluster.result(cluster.read("c"))
    assert read.value is not None
    assert (read.version, read.value.document) == (2, b"x")


def test_a_minority_may_be_down() -> None:
    """control.7: at most a minority; with a majority gone nothing is changed, and it says so."""
    cluster = founded()

    assert cluster.result(cluster.change("a", 1, b"x"), without="c").status is Status.OK
    lost = cluster.result(cluster.change("a", 2, b"y"), without="bc")
    assert lost.status in (Status.INSUFFICIENT_REPLICAS, Status.UNKNOWN)


def test_an_attempt_that_was_sent_out_and_not_answered_is_unknown() -> None:
    """control.5: "not found and not provably refused = unknown"."""
    cluster = founded()
    request = cluster.change("a", 1, b"x")
    while cluster["a"].proposer.state is not State.ACCEPTING:
        if cluster.flying:
            cluster.deliver()
        for node in cluster.nodes.values():
            node.sync()

    assert cluster.result(request, without="bc").status is Status.UNKNOWN
    read = cluster.result(cluster.read("b"), without="a")
    assert read.version in (1, 2)


def test_an_attempt_that_was_sent_out_upon_an_unchosen_value_is_unknown() -> None:
    """control.5: a value builds on the latest one, chosen or not, and may take effect together with it."""
    cluster = founded()
    cluster.change("c", 1, b"x")
    move(cluster, lambda m: not isinstance(m, Accept) or m.acceptor.node == "c")
    cluster.flying.clear()
    cluster["a"].crash()
    cluster["c"].crash()
    cluster["c"].start()
    held = [cluster[name].disk.memory().accepted for name in "abc"]
    assert [each.value.version if each is not None else 0 for each in held] == [1, 1, 2]
    request = cluster.change("b", 2, b"y")
    proposer = cluster["b"].proposer
    while proposer.state is not State.ACCEPTING:
        if cluster.flying:
            cluster.deliver()
        elif any(node.disk.unsynced for node in cluster.nodes.values()):
            for node in cluster.nodes.values():
                node.sync()
        else:
            deadline = proposer.deadline()
            assert deadline is not None
            cluster.now = deadline
            cluster.tick("b")
    assert proposer.known is not None
    assert proposer.chosen != proposer.known.ballot
    (at,) = [at for at, (to, m) in enumerate(cluster.flying) if to == "c" and isinstance(m, Accept)]
    cluster.deliver(at)
    cluster["c"].sync()

    assert cluster.result(request, without="c").status is Status.UNKNOWN
    cluster["a"].start()
    read = cluster.result(cluster.read("c"), without="b")
    assert read.value is not None
    assert (read.version, read.value.document) == (3, b"y")


def test_an_attempt_is_found_by_its_id_however_often_it_was_sent() -> None:
    """control.5: seeing my number in the document is not seeing my write; seeing my id is."""
    cluster = founded()
    event = ChangeRequest(cluster.request(), 1, b"x", "one-attempt")
    assert cluster.result(cluster.ask("a", event)).version == 2
    again = ChangeRequest(cluster.request(), 1, b"x", "one-attempt")

    assert cluster.result(cluster.ask("c", again)) == Answer(again.request, Status.OK, 2)
    assert cluster.result(cluster.read("b")).version == 2


def test_an_attempt_whose_version_was_forgotten_is_unknown() -> None:
    """The document keeps 64 attempts: beyond them "not found" proves nothing."""
    cluster = founded()
    request = cluster.change("a", 1, b"x")
    while cluster["a"].proposer.state is not State.ACCEPTING:
        if cluster.flying:
            cluster.deliver()
        for node in cluster.nodes.values():
            node.sync()
    cluster.flying.clear()
    for version in range(1, ATTEMPTS_KEPT + 2):
        assert cluster.result(cluster.change("b", version, b"b"), without="a").status is Status.OK

    assert cluster.result(request).status is Status.UNKNOWN


def test_an_acceptor_answers_only_what_is_durable() -> None:
    """control.4: "an acceptor fsyncs before it answers a promise or an accept"."""
    cluster = founded()
    cluster.change("a", 1, b"x")
    while cluster.flying:
        cluster.deliver()

    assert not any(isinstance(m, Promised | AcceptedBallot) for _, m in cluster.flying)
    assert all(node.disk.unsynced for node in cluster.nodes.values())


def test_a_crash_before_the_sync_forgets_only_what_nobody_was_told() -> None:
    """A promise that was not answered binds nobody."""
    cluster = founded()
    cluster.change("a", 1, b"x")
    while cluster.flying:
        cluster.deliver()
    before = cluster["b"].disk.memory()
    cluster["b"].crash()
    cluster["b"].start()

    assert cluster["b"].acceptor.memory == before


def test_ballots_of_two_boots_differ() -> None:
    """control.3: a restarted proposer counts from nothing again, so only its nonce keeps it apart."""
    cluster = founded()
    cluster.result(cluster.change("b", 1, b"x"))
    first = cluster["b"].proposer.ballot
    cluster["b"].crash()
    cluster["b"].start()
    cluster.result(cluster.change("b", 2, b"y"))

    assert cluster["b"].proposer.ballot > first
    assert cluster["b"].proposer.ballot.nonce != first.nonce


def test_a_new_life_refuses_in_the_name_of_the_one_that_was_asked() -> None:
    """Else a round that nobody can win any more is repeated until its patience ends."""
    cluster = founded()
    cluster.change("a", 1, b"x")
    proposer = cluster["a"].proposer
    other = Acceptor(NodeId("c"), Incarnation(99))
    greater = Ballot(proposer.ballot.counter + 1, NodeId("b"), 7)

    states = []
    for who, why in ((other, Why.STRANGER), (cluster["b"].id, Why.BALLOT)):
        proposer.step(Rejected(who, proposer.ballot, why, greater, None), cluster.now)
        states.append(proposer.state)

    assert states == [State.PREPARING, State.WAITING], "two may still promise, and then one"


@pytest.mark.parametrize("kind", [Promised, AcceptedBallot, Rejected])
@pytest.mark.parametrize("state", [State.PREPARING, State.ACCEPTING])
def test_an_answer_to_an_earlier_ballot_decides_nothing(kind: type[Response], state: State) -> None:
    """Whoever promised or accepted a ballot has promised nothing of the next one, nor refused it."""
    cluster = founded()
    proposer, others = cluster["a"].proposer, [cluster["b"].id, cluster["c"].id]
    request = cluster.change("a", 1, b"x")
    first = proposer.ballot

    def tell(message: Response) -> None:
        cluster.perform(cluster["a"], proposer.step(message, cluster.now))
        proposer.check()

    for other in others:
        tell(Rejected(other, first, Why.BALLOT, Ballot(first.counter + 1, NodeId("z"), 1), None))
    assert proposer.state is State.WAITING
    cluster.flying.clear()
    cluster.now = proposer.deadline() or cluster.now
    cluster.tick("a")
    while proposer.state is not state:
        cluster.deliver()
        for node in cluster.nodes.values():
            node.sync()
    cluster.flying.clear()
    second = proposer.ballot
    accepted = cluster["b"].acceptor.memory.accepted
    late: dict[type[Response], Callable[[Acceptor], Response]] = {
        Promised: lambda who: Promised(who, first, accepted),
        AcceptedBallot: lambda who: AcceptedBallot(who, first),
        Rejected: lambda who: Rejected(who, first, Why.BALLOT, first, None),
    }
    for other in others:
        tell(late[kind](other))

    assert (proposer.state, proposer.ballot) == (state, second)
    assert second > first
    assert request not in cluster.answers
    assert not cluster.flying


def test_an_acceptor_whose_log_was_full_shows_nothing_of_what_it_refused() -> None:
    """It answers at once where nothing waits for the disk: what it kept of a refused record would be told."""
    cluster = founded()
    acceptor = cluster["b"].acceptor
    before = acceptor.memory
    assert before.accepted is not None
    sets, basis = before.accepted.value.sets, before.accepted.ballot
    greater = Ballot(before.promised.counter + 1, NodeId("z"), 1)
    value = before.accepted.value.write("z.1", document=b"never")
    promise, whole = [
        effect
        for event in (
            Prepare(NodeId("z"), greater, acceptor.acceptor, basis, sets),
            Accept(NodeId("z"), greater, acceptor.acceptor, value, basis, sets),
        )
        for effect in acceptor.step(event, cluster.now)
        if isinstance(effect, Persist)
    ]
    told = acceptor.step(PersistRefused(promise.token), cluster.now)
    told += acceptor.step(PersistRefused(whole.token), cluster.now)
    acceptor.check()

    assert acceptor.memory == before
    assert [
        send.message.why for send in told if isinstance(send, Send) and isinstance(send.message, Rejected)
    ] == [
        Why.FULL,
        Why.FULL,
    ]
    again = acceptor.step(Prepare(NodeId("z"), greater, acceptor.acceptor, basis, sets), cluster.now)
    assert [effect.offset for effect in again if isinstance(effect, Persist)] == [promise.offset]


def test_an_answer_to_a_read_of_an_earlier_boot_counts_for_nothing() -> None:
    """control.7: rounds count from 1 in each boot, and an answer may be late by more than a restart."""
    cluster = founded()
    cluster["c"].crash()
    cluster["c"].start()
    cluster.read("c")
    while any(isinstance(message, Read) for _, message in cluster.flying):
        cluster.deliver(next(n for n, (_, m) in enumerate(cluster.flying) if isinstance(m, Read)))
    late, cluster.flying = cluster.flying, []
    assert sum(isinstance(message, Held) for _, message in late) == 3
    cluster["c"].crash()
    assert cluster.result(cluster.change("b", 1, b"two")).version == 2
    cluster.settle()
    cluster["c"].start()
    read = cluster.read("c")
    cluster.flying = late + cluster.flying

    assert cluster.result(read).version == 2


def swapped_behind_b() -> Cluster:
    """A cluster of which a and c are new lives; b's acceptor took part in that, and b's proposer slept."""
    cluster = founded()
    cluster.result(cluster.read("b"))
    for by, name in (("a", "c"), ("c", "a")):
        old = cluster[name].id
        cluster[name].wipe()
        cluster[name].start()
        assert cluster.result(cluster.replace(by, old, cluster[name].id)).status is Status.OK
    cluster.settle()
    assert cluster["b"].proposer.known is not None
    assert cluster["b"].proposer.known.value.version == 1
    return cluster


def test_another_life_of_an_acceptor_tells_the_value_that_the_proposer_lacks() -> None:
    """Strangers alone answered a proposer that had slept through the replacement of a majority.

    It lost each round to them, and refused every write of its clients until somebody read through it.
    """
    cluster = swapped_behind_b()
    request = cluster.change("b", 5, b"x")
    (at,) = [at for at, (to, m) in enumerate(cluster.flying) if to == "a" and isinstance(m, Prepare)]
    cluster.deliver(at)
    (told,) = [m for _, m in cluster.flying if isinstance(m, Rejected)]
    cluster.flying = [(NodeId("b"), told)]
    cluster.deliver()

    assert told.why is Why.STRANGER
    assert cluster["b"].proposer.known is not None
    assert cluster["b"].proposer.known.value.version == 5
    assert cluster.result(request) == Answer(request, Status.OK, 6)
    request = cluster.change("b", 6, b"y")
    known = cluster["b"].proposer.known.ballot
    (asked, *_) = [m for _, m in cluster.flying if isinstance(m, Prepare)]
    again = structs.replace(asked, acceptor=structs.replace(asked.acceptor, incarnation=Incarnation(0)))
    (send,) = cluster[asked.acceptor.node].acceptor.step(again, cluster.now)
    assert again.basis == known
    assert isinstance(send, Send)
    assert isinstance(send.message, Rejected)
    assert send.message.accepted is None, "who knows the value is not sent it again: it may have 8 MiB"


def test_a_value_that_answers_a_lost_round_is_known_in_the_next_one() -> None:
    """Strangers answered first in each round, and what named the new members came too late in each."""
    cluster = swapped_behind_b()
    request = cluster.change("b", 5, b"x")
    proposer = cluster["b"].proposer
    late = [(to, m) for to, m in cluster.flying if to == "b"]
    cluster.flying.clear()
    for name in "ac":
        stranger = Rejected(cluster[name].id, proposer.ballot, Why.STRANGER, proposer.ballot, None)
        cluster.perform(cluster["b"], proposer.step(stranger, cluster.now))
    assert proposer.state is State.WAITING
    cluster.flying = late
    cluster.settle_once()
    assert proposer.state is State.WAITING
    assert proposer.known is not None
    assert proposer.known.value.sets.old == tuple(cluster[name].id for name in "bca")
    cluster.now = proposer.deadline() or cluster.now
    cluster.tick("b")

    assert cluster.result(request) == Answer(request, Status.OK, 6)
    cluster.settle()
    cluster.change("b", 6, b"y")
    sent = [type(message) for _, message in cluster.flying]
    assert Prepare in sent, "it has met the new members, and reads no more before it writes"


def test_who_is_told_of_a_later_ballot_takes_one_above_it() -> None:
    """Else it would propose what it was told under a ballot below that of what it was told."""
    cluster = founded()
    cluster.result(cluster.read("b"))
    cluster.change("b", 1, b"x")
    proposer = cluster["b"].proposer
    assert proposer.known is not None
    asked = proposer.ballot
    later = Accepted(
        Ballot(asked.counter + 1, NodeId("c"), 1), proposer.known.value.write("c.1", document=b"y")
    )
    told = Rejected(cluster["a"].id, asked, Why.STRANGER, later.ballot, later)
    cluster.perform(cluster["b"], proposer.step(told, cluster.now))

    assert proposer.state is State.PREPARING
    assert asked < later.ballot < proposer.ballot


def test_a_member_that_slept_through_the_replacement_of_all_others_finds_them_by_its_seeds() -> None:
    """It asked the members that it knew for ever; all were new lives without a value.

    {a, d, e} holds the value and a is wiped, which is within the budget: d and e are a majority of it. The
    acceptor of d has not heard of the last two writes, and its proposer knows {a, b, c} only.
    """
    cluster = founded()
    for name in "de":
        cluster.join(name).proposer.seeds = tuple(NodeId(each) for each in "abcde")
    assert cluster.result(cluster.read("d")).version == 1
    for old, new in (("b", "d"), ("c", "e")):
        replaced = cluster.replace("a", cluster[old].id, cluster[new].id)
        assert cluster.result(replaced, without="d").status is Status.OK
    cluster.settle(without="d")
    for name in "abc":
        cluster[name].wipe()
        cluster[name].start()

    assert cluster.result(cluster.read("d")).version == cluster.result(cluster.read("e")).version == 5


def test_a_refusal_of_a_record_that_was_taken_back_takes_back_nothing_else() -> None:
    """The stream of a log begins anew between two refusals: what it took then is durable, and known."""
    acceptor = founded()["b"].acceptor
    memory = acceptor.memory
    assert memory.accepted is not None
    sets, basis = memory.accepted.value.sets, memory.accepted.ballot

    def promise(counter: int) -> Persist:
        ballot = Ballot(memory.promised.counter + counter, NodeId("z"), 1)
        event = Prepare(NodeId("z"), ballot, acceptor.acceptor, basis, sets)
        (persist,) = [each for each in acceptor.step(event, NOW) if isinstance(each, Persist)]
        return persist

    first, second = promise(1), promise(2)
    acceptor.step(PersistRefused(first.token), NOW)
    third = promise(3)
    acceptor.step(PersistRefused(second.token), NOW)
    acceptor.check()

    assert third.offset == first.offset
    assert acceptor.memory.promised.counter == memory.promised.counter + 3
    assert promise(4).offset == third.offset + 1


def test_a_blank_acceptor_takes_no_value_that_does_not_name_it() -> None:
    """control.6: it would hold, and tell to readers, a document of a cluster to which it does not belong."""
    cluster = founded()
    other = cluster.join("d").acceptor
    known = cluster["a"].proposer.known
    assert known is not None
    event = Accept(NodeId("a"), known.ballot, other.acceptor, known.value, known.ballot, known.value.sets)

    (told,) = other.step(event, NOW)

    assert isinstance(told, Send)
    assert isinstance(told.message, Rejected)
    assert told.message.why is Why.STRANGER
    assert other.memory.accepted is None


def test_dueling_proposers_both_end() -> None:
    """control.3: "proposers back off with jitter"; nobody starves, and each version has one writer."""
    cluster = founded()
    requests = [cluster.change(name, 1, name.encode()) for name in "abc"]
    cluster.settle()

    statuses = sorted(cluster.answers[request].status for request in requests)
    assert statuses == [Status.OK, Status.UNEXPECTED_VERSION, Status.UNEXPECTED_VERSION]


def test_a_wiped_acceptor_is_replaced_by_its_new_life() -> None:
    """control.6: acceptors are (node, incarnation); replacing one is two writes, so two versions."""
    cluster = founded()
    old = cluster["c"].id
    cluster["c"].wipe()
    cluster["c"].start()

    assert cluster.result(cluster.change("a", 1, b"x")).status is Status.OK
    answer = cluster.result(cluster.replace("a", old, cluster["c"].id))
    assert (answer.status, answer.version) == (Status.OK, 4)
    cluster.settle()
    read = cluster.result(cluster.read("c"), without="a")
    assert read.value is not None
    assert read.value.sets.old == (cluster["a"].id, cluster["b"].id, cluster["c"].id)
    assert read.value.document == b"x"


def test_a_swap_against_a_member_that_was_only_cut_off_loses_nothing() -> None:
    """Named regression (control.6): one write is not enough, {b,c} and {a,d} do not meet.

    The old member comes back with its old set, and asks the one other member that missed the change.
    """
    cluster = founded()
    cluster.join("d")
    swap = cluster.replace("b", cluster["a"].id, cluster["d"].id)
    assert cluster.result(swap, without="a").status is Status.OK
    assert cluster.result(cluster.change("d", 3, b"after"), without="ac").status is Status.OK

    alone = cluster.result(cluster.change("a", 1, b"stale"), without="bd")
    assert alone.status is not Status.OK
    back = cluster.result(cluster.change("a", 1, b"stale"), without="d")
    assert (back.status, back.version) == (Status.UNEXPECTED_VERSION, 4)
    read = cluster.result(cluster.read("a"))
    assert read.value is not None
    assert read.value.document == b"after"


def test_a_swap_that_its_operator_left_half_done_is_finished_by_the_next_one() -> None:
    """Until then both majorities decide, and the document stays writable."""
    cluster = founded()
    cluster.join("d")
    swap = cluster.replace("b", cluster["c"].id, cluster["d"].id)
    while cluster["b"].proposer.known is None or not cluster["b"].proposer.known.value.sets.is_joint:
        if cluster.flying:
            cluster.deliver()
        for node in cluster.nodes.values():
            node.sync()
    cluster["b"].crash()
    cluster["b"].start()

    assert cluster.result(cluster.change("a", 2, b"x")).status is Status.OK
    again = cluster.result(cluster.replace("a", cluster["c"].id, cluster["d"].id))
    assert again.status is Status.OK
    read = cluster.result(cluster.read("a"))
    assert read.value is not None
    assert read.value.sets == AcceptorSets(old=tuple(cluster[n].id for n in "abd"))
    assert swap not in cluster.answers


def test_a_swap_that_was_made_and_undone_by_another_one_is_not_refused() -> None:
    """control.5: `b` was replaced, so "it is no acceptor, and nothing was changed" is not true."""
    cluster = founded()
    members = [cluster[name].id for name in "abc"]
    first, second = cluster.join("d"), cluster.join("e")
    swap = cluster.replace("a", members[1], first.id)
    after = AcceptorSets(old=(members[0], members[2], first.id))
    move(cluster, lambda m: not isinstance(m, Accept) or m.value.sets != after)
    cluster.flying = [(to, m) for to, m in cluster.flying if to in ("c", "d")]
    move(cluster, lambda m: isinstance(m, Accept))
    cluster.flying.clear()
    undone = cluster.result(cluster.replace("c", first.id, second.id), without="a")
    assert undone.status is Status.OK

    answer = cluster.result(swap)
    assert answer.status is Status.UNKNOWN
    assert "is no acceptor: see `metastore status`" in answer.message


def test_a_change_of_members_needs_a_majority_of_both_sets() -> None:
    """control.6: otherwise {b, c} write both sets, and later {a, d} only the new one, without each other."""
    cluster = founded()
    new = cluster.join("d")
    swap = cluster.replace("a", cluster["c"].id, new.id)
    move(cluster, lambda m: not isinstance(m, Accept))
    late = [(to, m) for to, m in cluster.flying if to == "d"]
    cluster.flying = [(to, m) for to, m in cluster.flying if to in ("b", "c")]
    move(cluster, lambda _: True)
    proposer = cluster["a"].proposer
    assert proposer.state is State.ACCEPTING
    assert swap not in cluster.answers

    cluster.flying = late
    move(cluster, lambda m: not isinstance(m, Prepare))
    assert proposer.known is not None
    assert proposer.known.value.sets.is_joint


def test_a_change_of_members_builds_on_chosen_values_only() -> None:
    """control.6: of two unchosen changes upon one value each could take its own majority of the old set."""
    one, two, new = (Acceptor(NodeId(name), Incarnation(1)) for name in "abc")
    request = ReplaceRequest(RequestId(1), two, new, "", "x")
    first = founding((one, two), "f", addresses=(), document=b"")
    joint = first.write("y", sets=AcceptorSets(old=(one, two), new=(one, new)))

    for value in (first, joint):
        assert next_step(request, value, is_chosen=False, was_proposed=False) is None
        assert isinstance(next_step(request, value, is_chosen=True, was_proposed=False), Propose)


def test_an_unknown_member_cannot_be_replaced() -> None:
    """A typing error of an operator must not change the set."""
    cluster = founded()
    stranger = Cluster("xyz")["x"].id

    answer = cluster.result(cluster.replace("a", stranger, None))
    assert (answer.status, answer.version) == (Status.NOT_FOUND, 1)


def test_a_member_cannot_take_the_place_of_another() -> None:
    """It would leave one acceptor less, and a budget that the operator did not mean to spend.

    Found by `sim metastore`: {a,b,d} became {b,d} where a repeated command named a member that had joined
    meanwhile, and with b wiped nothing was decided ever after.
    """
    cluster = founded()

    answer = cluster.result(cluster.replace("a", cluster["b"].id, cluster["c"].id))

    assert answer.status is Status.ALREADY_EXISTS
    read = cluster.result(cluster.read("c"))
    assert read.value is not None
    assert read.value.sets == AcceptorSets(old=tuple(cluster[n].id for n in "abc"))


def test_a_document_above_8_mib_is_refused() -> None:
    """control.1: "limit 8 MiB, refused above"."""
    cluster = founded()

    answer = cluster.result(cluster.change("a", 1, bytes((8 << 20) + 1)))
    assert answer.status is Status.TOO_LARGE
    assert cluster.result(cluster.change("a", 1, bytes(8 << 20))).status is Status.OK


def test_a_swap_that_was_made_already_is_made() -> None:
    """An operator repeats a command whose answer was lost, under another attempt's name."""
    cluster = founded()
    cluster.join("d")
    old, new = cluster["c"].id, cluster["d"].id
    first = cluster.result(cluster.replace("a", old, new))

    again = cluster.result(cluster.replace("b", old, new))
    assert (again.status, again.version) == (Status.OK, first.version)
    assert cluster.result(cluster.replace("b", old, None)).status is Status.NOT_FOUND


def test_who_has_won_is_as_quick_as_before() -> None:
    """Pauses double while one loses: they must not stay long for the rest of a node's life."""
    cluster = founded()
    for version in range(1, 6):
        for name in "abc":
            cluster.change(name, version, name.encode())
        cluster.settle()
    assert any(node.proposer._patience._losses for node in cluster.nodes.values())
    for version, name in enumerate("abc", 6):
        assert cluster.result(cluster.change(name, version, b"won")).status is Status.OK

    assert not any(node.proposer._patience._losses for node in cluster.nodes.values())


def test_a_round_that_one_refuses_and_another_never_answers_is_given_up() -> None:
    """Its refusal will not change: only a new and greater ballot may win it."""
    for is_read in (False, True):
        cluster = founded()
        a, b = cluster["a"], cluster["b"]
        if is_read:
            cluster.read("a")
            cluster.flying.clear()
            cluster.now = a.proposer.deadline() or cluster.now
            cluster.tick("a")  # Nobody answered the read: a round of its own settles it.
        else:
            cluster.change("a", 1, b"x")
        first = a.proposer.ballot
        assert a.proposer.state is State.PREPARING
        for effect in a.acceptor.step(Prepare(a.name, first, a.id, first, AcceptorSets()), cluster.now):
            assert isinstance(effect, Persist | Send)
        own = Promised(a.id, first, a.acceptor.memory.accepted)
        refusal = Rejected(b.id, first, Why.BALLOT, Ballot(first.counter + 5, b.name, 1), None)
        for answer in (own, refusal):
            assert a.proposer.step(answer, cluster.now) == []
        cluster.flying.clear()
        cluster.now = a.proposer.deadline() or cluster.now
        cluster.tick("a")

        asked = [message for _, message in cluster.flying]
        assert all(isinstance(each, Prepare) and each.ballot > refusal.promised for each in asked)
        assert len(asked) == 3


def test_a_blank_seed_is_asked_again_and_one_that_has_answered_is_not() -> None:
    """It may have got its first value meanwhile; what the others hold was told already."""
    cluster = Cluster("abc")
    cluster.read("b")
    cluster.settle_once()
    cluster.now = cluster["b"].proposer.deadline() or cluster.now
    cluster.tick("b")
    assert sorted(to for to, _ in cluster.flying) == ["a", "b", "c"]

    cluster = founded()
    read = cluster.read("a")
    a = cluster["a"]
    held = [message for _, message in cluster.flying if isinstance(message, Read)]
    assert len(held) == 3
    cluster.flying.clear()
    known = a.proposer.known
    assert known is not None
    newer = Held(cluster["b"].id, held[0].round, known.ballot, Ballot(9, a.name, 9), known.value)
    a.proposer.step(newer, cluster.now)
    effects = a.proposer._ask(cluster.now)
    assert [each.to for each in effects if isinstance(each, Send)] == ["a", "c"]
    assert read not in cluster.answers


def test_answers_that_wait_for_a_hanging_disk_are_bounded() -> None:
    """Each may hold a value of 8 MiB; above the bound they are lost, as on a network."""
    cluster = founded()
    acceptor = cluster["a"].acceptor
    (persist,) = acceptor.step(FlushAsked(), cluster.now)
    for at in range(PENDING_MAX + 9):
        assert acceptor.step(Read(NodeId("b"), (1, at), NO_BALLOT), cluster.now) == []
        acceptor.check()
    assert isinstance(persist, Persist)

    told = acceptor.step(Persisted(persist.token), cluster.now)
    assert [
        each.message.round for each in told if isinstance(each, Send) and isinstance(each.message, Held)
    ] == [(1, at) for at in range(PENDING_MAX)]


def test_a_promise_of_an_earlier_record_is_never_taken_back_by_a_later_one() -> None:
    """control.3: promises only rise, whatever order a log gives its records in."""
    memory = Memory(Acceptor(NodeId("a"), Incarnation(1)), Ballot(5, NodeId("b"), 1), None)
    records: list[Promise | Memory] = [
        memory,
        Promise(Ballot(3, NodeId("c"), 1)),
        Promise(Ballot(7, NodeId("c"), 1)),
    ]

    assert remembered(record_of(each) for each in records[:2]) == memory
    latest = remembered(record_of(each) for each in records)
    assert latest is not None
    assert latest.promised == Ballot(7, NodeId("c"), 1)


def test_a_record_that_this_version_does_not_know_is_corrupt() -> None:
    """An acceptor that forgets what it cannot read may promise twice."""
    memory = Memory(Cluster("a")["a"].id, Ballot(3, NodeId("a"), 1), None)
    good = record_of(memory)

    assert remembered([good]) == memory
    with pytest.raises(Corrupt, match="of format"):
        remembered([bytes((99,)) + good[1:]])
    with pytest.raises(Corrupt, match="cannot be read"):
        remembered([good[:-1]])


def test_an_accept_that_is_repeated_is_answered_and_not_written_again() -> None:
    """Its answer was lost. With another value under one ballot a proposer is wrong: nobody may follow it."""
    cluster = founded()
    a = cluster["a"]
    cluster.change("b", 1, b"x")
    for _ in range(40):
        accepts = [each for to, each in cluster.flying if isinstance(each, Accept) and to == "a"]
        if accepts:
            break
        if cluster.flying:
            cluster.deliver()
        for node in cluster.nodes.values():
            node.sync()
    accept = accepts[0]
    first = a.acceptor.step(accept, cluster.now)
    assert [type(each) for each in first] == [Persist]
    cluster.perform(a, first)
    a.sync()
    again = a.acceptor.step(accept, cluster.now)

    assert [each.message for each in again if isinstance(each, Send)] == [AcceptedBallot(a.id, accept.ballot)]
    assert not [each for each in again if isinstance(each, Persist)]
    former = structs.replace(accept, acceptor=structs.replace(accept.acceptor, incarnation=Incarnation(0)))
    (told,) = [each.message for each in a.acceptor.step(former, cluster.now) if isinstance(each, Send)]
    assert isinstance(told, Rejected)
    assert told.why is Why.STRANGER, "it was meant for another life, whose place somebody else may have"
    other = structs.replace(accept, value=structs.replace(accept.value, version=accept.value.version + 1))
    (told,) = [each.message for each in a.acceptor.step(other, cluster.now) if isinstance(each, Send)]
    assert isinstance(told, Rejected)
    assert told.why is Why.BALLOT


def test_who_removes_an_acceptor_and_adds_none_is_told_that_it_is_done() -> None:
    """Its own second write took the acceptor out, and the command was told that its outcome is unknown."""
    cluster = founded()
    answer = cluster.result(cluster.replace("a", cluster["c"].id, None))

    assert (answer.status, answer.version) == (Status.OK, 3)
    value = cluster.result(cluster.read("b")).value
    assert value is not None
    assert value.sets == AcceptorSets(old=(cluster["a"].id, cluster["b"].id))


def test_one_that_is_no_acceptor_is_replaced_by_none() -> None:
    """A name that was mistyped, or replaced long ago, must not add an acceptor beside all others."""
    one, gone, new = (Acceptor(NodeId(name), Incarnation(7)) for name in ("a", "b", "c"))
    value = founding((one,), "first", addresses=(), document=b"")
    for added in (new, None):
        asked = ReplaceRequest(RequestId(1), gone, added, "", "again")
        step = next_step(asked, value, is_chosen=True, was_proposed=False)

        assert isinstance(step, Answer)
        assert step.status is Status.NOT_FOUND


def test_a_node_has_one_acceptor_among_those_that_vote() -> None:
    """Two lives of one node would be two votes, of which one is lost."""
    cluster = founded()
    cluster["b"].wipe()
    cluster["b"].start()
    answer = cluster.result(cluster.replace("a", cluster["c"].id, cluster["b"].id))

    assert answer.status is Status.INVALID_ARGUMENT
