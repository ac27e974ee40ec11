"""A cluster of metastore machines on a table: messages and disks move only when a test says so."""

from collections.abc import Sequence
from random import Random

from broadsheet.base.machine import Tick
from broadsheet.base.time import Instant
from broadsheet.base.types import Incarnation, NodeId, Offset, RequestId
from broadsheet.control.core.acceptor import (
    AcceptorMachine,
    Memory,
    Persist,
    Persisted,
    Send,
    TrimLog,
    encoded,
    remembered,
)
from broadsheet.control.core.messages import Accept, Prepare, Read, Request, Response
from broadsheet.control.core.operation import (
    Answer,
    ChangeRequest,
    OperationRequest,
    ReadRequest,
    ReplaceRequest,
)
from broadsheet.control.core.proposer import ProposerMachine
from broadsheet.control.core.settings import Founding, ProposerConfig
from broadsheet.control.core.value import NO_BALLOT, Acceptor

CONFIG = ProposerConfig()


class Disk:
    """One acceptor's log stream; what is not synced is lost in a crash."""

    def __init__(self, first: Memory) -> None:
        self.records: dict[int, bytes] = {0: encoded(first)}
        self.unsynced: list[Persist] = []
        self.next_offset = 1

    def memory(self) -> Memory:
        found = remembered(self.records[at] for at in sorted(self.records))
        assert found is not None
        return found


class Node:
    """One node: its acceptor, its proposer, its disk."""

    def __init__(self, cluster: "Cluster", name: str, incarnation: int) -> None:
        self.cluster, self.name, self.incarnation, self.boots = cluster, NodeId(name), incarnation, 0
        self.disk = Disk(Memory(Acceptor(self.name, Incarnation(incarnation)), NO_BALLOT, None))
        self.is_up = False
        self.start()

    @property
    def id(self) -> Acceptor:
        return self.acceptor.acceptor

    def start(self) -> None:
        self.boots += 1
        self.is_up = True
        self.acceptor = AcceptorMachine(self.disk.memory(), next_offset=Offset(self.disk.next_offset))
        seeds = self.cluster.seeds
        is_founder = self.name == seeds[0]
        self.proposer = ProposerMachine(
            self.name,
            nonce=(self.incarnation << 20) + self.boots,
            seeds=seeds,
            random=Random(f"{self.name}{self.incarnation}{self.boots}"),
            config=CONFIG,
            founding=Founding(b"founded", ()) if is_founder else None,
        )

    def crash(self) -> None:
        """Lose what is not synced."""
        self.is_up = False
        self.disk.unsynced.clear()
        self.disk.next_offset = max(self.disk.records) + 1

    def wipe(self) -> None:
        self.crash()
        self.incarnation += 100
        self.disk = Disk(Memory(Acceptor(self.name, Incarnation(self.incarnation)), NO_BALLOT, None))

    def sync(self) -> None:
        """Make everything written durable, and tell the acceptor."""
        if not self.disk.unsynced:
            return
        last = self.disk.unsynced[-1].token
        self.disk.records.update((persist.offset, persist.record) for persist in self.disk.unsynced)
        self.disk.unsynced.clear()
        self.cluster.perform(self, self.acceptor.step(Persisted(last), self.cluster.now))
        self.acceptor.check()


class Cluster:
    """Nodes, the messages between them, and what clients were told."""

    def __init__(self, names: str = "abc") -> None:
        self.now = Instant(0)
        self.seeds = tuple(NodeId(name) for name in names)
        self.flying: list[tuple[NodeId, Request | Response]] = []
        self.answers: dict[RequestId, Answer] = {}
        self.nodes: dict[NodeId, Node] = {}
        self._requests = 0
        for name in names:
            self.nodes[NodeId(name)] = Node(self, name, 1)

    def __getitem__(self, name: str) -> Node:
        return self.nodes[NodeId(name)]

    def join(self, name: str) -> Node:
        """A node beyond the founding ones."""
        node = self.nodes[NodeId(name)] = Node(self, name, 1)
        return node

    def ask(self, name: str, event: OperationRequest) -> RequestId:
        node = self[name]
        self.perform(node, node.proposer.step(event, self.now))
        node.proposer.check()
        return event.request

    def request(self) -> RequestId:
        self._requests += 1
        return RequestId(self._requests)

    def read(self, name: str) -> RequestId:
        return self.ask(name, ReadRequest(self.request()))

    def change(self, name: str, expected: int, document: bytes) -> RequestId:
        request = self.request()
        return self.ask(name, ChangeRequest(request, expected, document, f"{name}.{request}"))

    def replace(self, name: str, removed: Acceptor | None, added: Acceptor | None) -> RequestId:
        request = self.request()
        return self.ask(name, ReplaceRequest(request, removed, added, "", f"{name}.{request}"))

    def deliver(self, at: int = 0, *, keep: bool = False) -> None:
        """Deliver the `at`-th message in flight; `keep` leaves a copy of it in flight."""
        to, message = self.flying[at] if keep else self.flying.pop(at)
        node = self.nodes.get(to)
        if node is None or not node.is_up:
            return
        if isinstance(message, Prepare | Accept | Read):
            self.perform(node, node.acceptor.step(message, self.now))
            node.acceptor.check()
        else:
            self.perform(node, node.proposer.step(message, self.now))
            node.proposer.check()

    def tick(self, name: str) -> None:
        node = self[name]
        self.perform(node, node.proposer.step(Tick(), self.now))
        node.proposer.check()

    def perform(self, node: Node, effects: Sequence[object]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.flying.append((effect.to, effect.message))
                case Answer():
                    self.answers[effect.request] = effect
                case Persist():
                    assert effect.offset == node.disk.next_offset
                    node.disk.next_offset += 1
                    node.disk.unsynced.append(effect)
                case TrimLog():
                    for offset in [at for at in node.disk.records if at < effect.below]:
                        del node.disk.records[offset]
                case _:
                    raise AssertionError(effect)

    def settle(self, *, without: str = "", until: RequestId | None = None, steps: int = 10_000) -> None:
        """Deliver, sync and tick in order, as a quiet network would; nodes `without` hear and say nothing."""
        cut = [NodeId(name) for name in without]
        for _ in range(steps):
            if until is not None and until in self.answers:
                return
            self.flying = [(to, m) for to, m in self.flying if to not in cut and sender(m) not in cut]
            if self.flying:
                self.deliver()
            elif any(node.disk.unsynced for node in self.nodes.values() if node.name not in cut):
                for node in self.nodes.values():
                    if node.is_up and node.name not in cut:
                        node.sync()
            else:
                due = {n.name: at for n in self.nodes.values() if n.is_up and (at := n.proposer.deadline())}
                if not due:
                    return
                self.now = max(self.now, min(due.values()))
                self.tick(min(due, key=lambda name: due[name]))
        raise AssertionError("the cluster does not settle")

    def settle_once(self) -> None:
        """Deliver what is in flight, and the answers to it."""
        for _ in range(2):
            for _ in range(len(self.flying)):
                self.deliver()

    def result(self, request: RequestId, *, without: str = "") -> Answer:
        self.settle(without=without, until=request)
        return self.answers[request]


def sender(message: Request | Response) -> NodeId:
    return message.sender if isinstance(message, Prepare | Accept | Read) else message.acceptor.node
