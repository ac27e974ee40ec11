"""Schedules of the metastore's machines, judged by the checkers of histories: a harness for planted bugs.

Time is the number of the step. Asserts and `check()` play no part: what says no is `check_versions` and the
search for a linear order.
"""

from random import Random

from broadsheet.base.types import RequestId
from broadsheet.control.core.operation import Answer
from broadsheet.errors import Status
from simulator.checkers.linearizable import check_linearizable
from simulator.history import History, Operation
from simulator.workload import Violation
from simulator.workloads.metastore import check_versions, document_model
from tests.control.core.cluster import Cluster, Node

STEPS = 800
SEEDS = 50


class Hunt:
    """One schedule of one seed: three nodes that read and write while messages come late, twice or never."""

    def __init__(self, seed: int) -> None:
        self.random, self.now = Random(seed), 0
        self.cluster, self.history = Cluster(), History(lambda: self.now)
        self.open: dict[RequestId, Operation] = {}
        self.version = dict.fromkeys("abc", 1)
        self.cluster.settle(until=self.cluster.read("a"))
        self.cluster.answers.clear()

    def run(self) -> str | None:
        """What the checkers say in the end."""
        for _ in range(STEPS):
            self.now += 1
            self.act(self.cluster[self.random.choice("abc")])
            self.look()
        for operation in self.open.values():
            self.history.lose(operation)
        try:
            check_versions(self.history.operations)
            check_linearizable(self.history.operations, model=document_model, initial=(1, b"founded"))
        except Violation as error:
            return str(error)
        return None

    def act(self, node: Node) -> None:
        """One step of one node, or of the network."""
        random, cluster = self.random, self.cluster
        act = random.random()
        if act < 0.68 and cluster.flying:
            cluster.deliver(random.randrange(len(cluster.flying)), keep=random.random() < 0.4)
        elif act < 0.72 and cluster.flying:
            cluster.flying.pop(random.randrange(len(cluster.flying)))
        elif act < 0.90:
            node.sync()
        elif act < 0.94 and (at := node.proposer.deadline()) is not None:
            cluster.now = max(cluster.now, at)
            cluster.tick(node.name)
        elif len(node.proposer._queue) < 2:
            self.ask(node)

    def ask(self, node: Node) -> None:
        """Read, or write on top of what this node's client knows."""
        name = str(node.name)
        self.now += 1
        if self.random.random() < 0.4:
            operation = self.history.invoke(name, "document", "read")
            request = self.cluster.read(name)
        else:
            document = f"{name}/{self.now}".encode()
            argument = (self.version[name], document)
            operation = self.history.invoke(name, "document", "set", argument)
            request = self.cluster.change(name, self.version[name], document)
        self.open[request] = operation

    def look(self) -> None:
        """Note the answers that are new."""
        for request in list(self.cluster.answers):
            operation = self.open.pop(request, None)
            if operation is not None:
                self.note(operation, self.cluster.answers[request])

    def note(self, operation: Operation, answer: Answer) -> None:
        """What the client is told."""
        if answer.status not in (Status.OK, Status.UNEXPECTED_VERSION):
            self.history.lose(operation)
            return
        self.version[operation.client] = answer.version
        is_ok = answer.status is Status.OK
        result = answer.value.document if answer.value is not None else is_ok
        self.history.ok(operation, result, version=answer.version)


def hunt() -> str | None:
    """What the first schedule that is not linearizable shows; None where all are."""
    found = (Hunt(seed).run() for seed in range(SEEDS))
    return next((each for each in found if each is not None), None)
