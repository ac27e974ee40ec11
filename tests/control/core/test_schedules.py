"""Any schedule of messages, syncs, crashes and member changes leaves the metastore linearizable."""

from random import Random

import pytest

from broadsheet.base.types import NodeId, RequestId
from broadsheet.control.core.operation import Answer
from broadsheet.errors import Status
from tests.control.core.cluster import Cluster, Node

STEPS = 1500
ACTS: tuple[str, ...] = (
    ("deliver",) * 55 + ("lose",) * 5 + ("sync",) * 20 + ("crash",) * 3 + ("read",) * 5 + ("change",) * 5
)
ACTS += ("replace", *("tick",) * 8)


class Schedule:
    """One random schedule, and what its clients may conclude from what they were told."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = Cluster()
        self.cluster.result(self.cluster.read("a"))
        self.cluster.join("d")
        self.documents: dict[int, bytes] = {1: b"founded"}
        self.floors: dict[RequestId, int] = {}
        self.seen: dict[RequestId, Answer] = {}
        self.floor = 1

    def run(self) -> None:
        for n in range(STEPS):
            node = self.cluster.nodes[self.random.choice(list(self.cluster.nodes))]
            self.act(self.random.choice(ACTS), node, n)
            self.look()

    def act(self, act: str, node: Node, n: int) -> None:
        cluster, random, flying = self.cluster, self.random, self.cluster.flying
        if act == "deliver" and flying:
            cluster.deliver(random.randrange(len(flying)), keep=random.random() < 0.1)
        elif act == "lose" and flying:
            flying.pop(random.randrange(len(flying)))
        elif act == "sync":
            node.sync()
        elif act == "crash":
            node.crash()
            node.start()
        elif act == "tick" and (at := node.proposer.deadline()) is not None:
            cluster.now = max(cluster.now, min(at, type(at)(cluster.now + 50_000_000)))
            cluster.tick(node.name)
        elif act in ("read", "change", "replace") and len(node.proposer._queue) < 3:
            self.ask(act, node, n)

    def ask(self, act: str, node: Node, n: int) -> None:
        cluster, random = self.cluster, self.random
        if act == "read":
            self.floors[cluster.read(node.name)] = self.floor
        elif act == "change":
            expected = max(1, self.floor - (random.random() < 0.2))
            self.floors[cluster.change(node.name, expected, b"%d" % n)] = self.floor
        elif node.proposer.known is not None:
            members = node.proposer.known.value.sets.old
            spare = next(cluster[name].id for name in "abcd" if cluster[name].id not in members)
            self.floors[cluster.replace(node.name, random.choice(members), spare)] = self.floor

    def look(self) -> None:
        """Check the answers that are new."""
        for request, answer in self.cluster.answers.items():
            if request in self.seen:
                continue
            self.seen[request] = answer
            if answer.value is not None:
                document = self.documents.setdefault(answer.version, answer.value.document)
                assert document == answer.value.document, "a version has one document"
            if answer.status in (Status.OK, Status.UNEXPECTED_VERSION):
                assert answer.version >= self.floors.get(request, 1), "older than what was known before"
            if answer.status is Status.OK:
                self.floor = max(self.floor, answer.version)


@pytest.mark.parametrize("seed", range(40))
def test_any_schedule_is_linearizable(seed: int) -> None:
    """Oracle: a version names one document, and nobody is told an older one than was known when he asked.

    Members are replaced on the way, also by ones that were members before; at the end all is well again.
    """
    schedule = Schedule(seed)
    schedule.run()
    cluster = schedule.cluster
    cluster.settle()
    schedule.look()

    last = cluster.result(cluster.read(NodeId("b")))
    assert last.status is Status.OK
    assert last.version >= schedule.floor


@pytest.mark.parametrize("seed", range(60))
def test_any_founding_ends_in_one_cluster(seed: int) -> None:
    """Messages late and lost, founders that crash half-way, one node wiped: there is one version 1."""
    random, cluster = Random(seed), Cluster()
    wiped = random.choice("abc")
    for _ in range(random.randrange(20, 120)):
        node, act = cluster[random.choice("abc")], random.random()
        if act < 0.5 and cluster.flying:
            cluster.deliver(random.randrange(len(cluster.flying)), keep=random.random() < 0.1)
        elif act < 0.65:
            node.sync()
        elif act < 0.75:
            node.crash()
            node.start()
        elif act < 0.77:
            cluster[wiped].wipe()
            cluster[wiped].start()
        elif act < 0.87 and (at := node.proposer.deadline()) is not None:
            cluster.now = max(cluster.now, at)
            cluster.tick(node.name)
        elif len(node.proposer._queue) < 3:
            cluster.read(node.name)
    cluster.settle()

    told = [cluster.result(cluster.read(name)) for name in "abc"]
    assert [answer.status for answer in told] == [Status.OK] * 3
    values = [answer.value for answer in (*told, *cluster.answers.values()) if answer.value is not None]
    assert all(value == values[0] for value in values), "one founding, and nobody read another"
    assert cluster.result(cluster.change("b", 1, b"two")).version == 2
