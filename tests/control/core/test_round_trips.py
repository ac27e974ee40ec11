"""Rounds end however slow the links are: patience follows the round trip that is seen (control.3)."""

import heapq
from collections.abc import Sequence

import pytest

from broadsheet.base.time import MILLISECOND, SECOND, Instant
from broadsheet.base.types import NodeId, RequestId
from broadsheet.control.core.acceptor import Send
from broadsheet.control.core.messages import Prepare, Request, Response
from broadsheet.control.core.operation import Answer
from broadsheet.errors import Status
from tests.control.core.cluster import CONFIG, Cluster, Node

NEVER = Instant(1 << 62)
LOCAL_NS = MILLISECOND // 2


class Slow(Cluster):
    """A cluster on a clock: a message to another node takes half a round trip, one's own disk little."""

    def __init__(self, names: str = "abc", *, round_trip_ns: int) -> None:
        self.one_way_ns = round_trip_ns // 2
        self.answered_at: dict[RequestId, Instant] = {}
        self._moves: list[tuple[int, int, NodeId, Request | Response | None]] = []
        self._count = 0
        super().__init__(names)

    def perform(self, node: Node, effects: Sequence[object]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                delay = LOCAL_NS if effect.to == node.name else self.one_way_ns
                self._push(delay, effect.to, effect.message)
            else:
                super().perform(node, [effect])
                if isinstance(effect, Answer):
                    self.answered_at[effect.request] = self.now
        if node.disk.unsynced:
            self._push(LOCAL_NS, node.name, None)

    def run(self, until: RequestId) -> Answer:
        """Let time pass until there is an answer."""
        self.pass_time(NEVER, until)
        return self.answers[until]

    def pass_time(self, end: Instant, until: RequestId | None = None) -> None:
        """Let time pass, to `end` at most, or until there is an answer."""
        for _ in range(100_000):
            if until in self.answers:
                return
            due = min((node.proposer.deadline() or NEVER, node.name) for node in self.nodes.values())
            if min(due[0], self._moves[0][0] if self._moves else NEVER) > end:
                self.now = end
                return
            if self._moves and self._moves[0][0] <= due[0]:
                at, _, to, message = heapq.heappop(self._moves)
                self.now = Instant(max(self.now, at))
                if message is None:
                    self[to].sync()
                else:
                    self.flying.append((to, message))
                    self.deliver(len(self.flying) - 1)
            else:
                self.now = Instant(max(self.now, due[0]))
                self.tick(due[1])
        raise AssertionError("no answer ever comes")

    def _push(self, delay_ns: int, to: NodeId, message: Request | Response | None) -> None:
        self._count += 1
        heapq.heappush(self._moves, (self.now + delay_ns, self._count, to, message))


@pytest.mark.parametrize("round_trip_ms", [1, 90, 110, 250, 500, 1000])
def test_a_cluster_founds_reads_and_writes_at_any_round_trip(round_trip_ms: int) -> None:
    """At 110 ms, just above the first repetition, no read of a fresh cluster ever ended."""
    cluster = Slow(round_trip_ns=round_trip_ms * MILLISECOND)

    assert cluster.run(cluster.read("a")).status is Status.OK
    for name in "bca":
        read = cluster.run(cluster.read(name))
        assert read.status is Status.OK
        assert cluster.run(cluster.change(name, read.version, name.encode())).status is Status.OK


@pytest.mark.parametrize("round_trip_ms", [90, 110, 250, 500])
def test_an_acceptor_that_lost_its_state_stops_no_slow_round(round_trip_ms: int) -> None:
    """It refuses at once, being another life, while the others' promises are still on their way."""
    cluster = Slow(round_trip_ns=round_trip_ms * MILLISECOND)
    cluster.run(cluster.read("a"))
    cluster["b"].wipe()
    cluster["b"].start()

    for version, name in enumerate("bab", start=1):
        read = cluster.run(cluster.read(name))
        assert (read.status, read.version) == (Status.OK, version)
        assert cluster.run(cluster.change(name, version, name.encode())).status is Status.OK


@pytest.mark.parametrize("round_trip_ms", [110, 500])
def test_proposers_that_meet_on_slow_links_all_end(round_trip_ms: int) -> None:
    """A pause shorter than a round trip would let them undo each other for ever."""
    cluster = Slow(round_trip_ns=round_trip_ms * MILLISECOND)
    for name in "abc":
        cluster.run(cluster.read(name))
    for version in range(1, 4):
        asked = [cluster.change(name, version, name.encode()) for name in "abc"]
        found = [cluster.run(request) for request in asked]

        assert sorted(answer.status for answer in found) == sorted(
            [Status.OK, Status.UNEXPECTED_VERSION, Status.UNEXPECTED_VERSION]
        )


def test_patience_shrinks_again_when_the_link_is_fast_again() -> None:
    """A node that was paused for a second must not make everyone wait a second for each lost message."""
    cluster = Slow(round_trip_ns=500 * MILLISECOND)
    cluster.run(cluster.read("a"))
    cluster.one_way_ns = MILLISECOND
    for version in range(1, 40):
        cluster.run(cluster.change("a", version, b"x"))

    asked = cluster.now
    cluster.nodes[NodeId("b")].is_up = False
    cluster["c"].is_up = False
    lost = cluster.change("a", 40, b"y")
    repeated = cluster["a"].proposer.deadline()
    assert repeated is not None
    assert repeated - asked <= 2 * CONFIG.resend_after
    cluster["c"].is_up = True
    assert cluster.run(lost).status is Status.OK
    assert cluster.answered_at[lost] - asked < SECOND


@pytest.mark.parametrize("spell_ms", [2000, 4000])
def test_a_slow_spell_makes_no_later_pause_as_long_as_an_operation(spell_ms: int) -> None:
    """A pause of a round trip of 4 s, and then of four of them, outlasted every operation of a fast link."""
    cluster = Slow(round_trip_ns=MILLISECOND)
    for name in "abc":
        cluster.run(cluster.read(name))
    cluster.one_way_ns = spell_ms * MILLISECOND // 2
    cluster.run(cluster.read("a"))
    cluster.run(cluster.read("b"))
    cluster.one_way_ns = MILLISECOND // 2
    for version in range(1, 11):
        asked = [cluster.change(name, version, name.encode()) for name in "ab"]
        found = sorted(cluster.run(request).status for request in asked)

        assert found == sorted([Status.OK, Status.UNEXPECTED_VERSION])


def test_after_an_outage_a_request_is_repeated_within_its_operation() -> None:
    """Six rounds given up made the first repetition come 6.4 s later, after the end of every operation."""
    cluster = Slow(round_trip_ns=MILLISECOND)
    for name in "abc":
        cluster.run(cluster.read(name))
    cluster["c"].wipe()
    cluster["c"].start()  # It refuses at once, so that rounds are given up while the other is away.
    cluster["b"].is_up = False
    for _ in range(3):
        assert cluster.run(cluster.change("a", 1, b"x")).status is Status.INSUFFICIENT_REPLICAS

    back = cluster.change("a", 1, b"y")
    cluster.pass_time(Instant(cluster.now + 200 * MILLISECOND))
    cluster["b"].is_up = True

    assert cluster.run(back).status is Status.OK


def test_a_promise_is_repeated_under_its_own_ballot() -> None:
    """Answers to one ballot count however late: another ballot for each repetition would outrun them."""
    cluster = Cluster()
    cluster.result(cluster.read("a"))
    cluster.settle()
    cluster.change("a", 1, b"x")
    asked = [m.ballot for _, m in cluster.flying if isinstance(m, Prepare)]
    for _ in range(5):
        cluster.flying.clear()
        at = cluster["a"].proposer.deadline()
        assert at is not None
        cluster.now = at
        cluster.tick("a")
        asked += [m.ballot for _, m in cluster.flying if isinstance(m, Prepare)]

    assert len(asked) == 18
    assert len(set(asked)) == 1
