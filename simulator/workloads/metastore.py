"""The metastore in tier 1: acceptors and proposers on a heap, members replaced on the way.

Four nodes, of which three are acceptors at first. An operator replaces an acceptor by a spare: one that is
cut off, one that was wiped, or one that is well. Wipes hit at most one acceptor at a time, and are healed
by a replacement. Checked: WGL and versions over the whole history; that all know one document in the end.
Source: design/control.md control.1-7.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from broadsheet.base.buggify import buggify
from broadsheet.base.machine import Effect, Event
from broadsheet.base.time import MILLISECOND, SECOND, Duration
from broadsheet.base.types import Incarnation, NodeId, Offset, RequestId
from broadsheet.control.core.acceptor import (
    AcceptorMachine,
    FlushAsked,
    Memory,
    Persist,
    Persisted,
    PersistRefused,
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
from broadsheet.control.core.value import ATTEMPTS_KEPT, NO_BALLOT, Acceptor
from broadsheet.errors import Status
from broadsheet.ports import Random
from simulator import faults as faults_of
from simulator.checkers.ledger import Ledger
from simulator.checkers.linearizable import check_linearizable
from simulator.history import Operation
from simulator.history import Outcome as Known
from simulator.log import SimLog
from simulator.node_context import ClientContext, NodeContext
from simulator.plan import CLOCKS, CRASHES, DAMAGE, DISK, NETWORK, Budget, Fault, Kind, Plan
from simulator.workload import Episode, MachineWorkload, Violation
from simulator.world import Life

FOUNDED = b"0"
FIRST = "client0"
"""The operator that there is in every run."""
PROPOSER = ProposerConfig(operation_timeout=Duration(2 * SECOND))
FORGETFUL = 16
"""So few attempts kept may all be newer than one whose outcome is asked for."""
MEMBERS_MIN = 3
"""The smallest set that stands the loss of a member."""
ATTEMPT_TIMEOUT = Duration(2500 * MILLISECOND)


def restarts_and_damage(draw: Random, plan: Plan, nodes: Sequence[NodeId]) -> list[Fault]:
    """In some plans one node is started again and again, and in some the damaged one finds bits flipped."""
    faults: list[Fault] = []
    if draw.random() < 0.4:
        kinds = (Kind.KILL, Kind.POWER_CUT)
        faults += faults_of.restarts(draw, nodes[draw.randrange(0, len(nodes))], kinds, plan.safety_ns)
    if draw.random() < 0.4:
        faults += faults_of.damages(draw, faults_of.damaged_node(plan, nodes, draw), plan.safety_ns)
    return faults


class Ask(msgspec.Struct, frozen=True):
    """A client's request to the proposer of a node."""

    request: int
    name: str
    expected: int = 0
    document: bytes = b""
    attempt: str = ""
    removed: Acceptor | None = None
    added: Acceptor | None = None


class Who(msgspec.Struct, frozen=True):
    """An operator asks which life a node's acceptor is."""

    request: int


class Told(msgspec.Struct, frozen=True):
    """A node's answer."""

    request: int
    answer: Answer | None = None
    acceptor: Acceptor | None = None


class MetastoreWorkload(MachineWorkload):
    """Clients read and compare-and-set one document; an operator replaces acceptors."""

    name: ClassVar[str] = "metastore"
    stale_calls_max: ClassVar[int] = 1
    """A replacement that meets another operator's ends unknown (control.6)."""
    scope: ClassVar[tuple[str, ...]] = ("control/core",)
    is_echoing: ClassVar[bool] = True
    clients: ClassVar[int] = 5
    budget: ClassVar[Budget] = Budget(
        kinds=(*CRASHES, *NETWORK, *DISK, *CLOCKS), damage=(Kind.WIPE, Kind.BIT_FLIP), damaged_nodes_max=1
    )
    acceptor: ClassVar[type[AcceptorMachine]] = AcceptorMachine
    proposer: ClassVar[type[ProposerMachine]] = ProposerMachine

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.asked: dict[tuple[NodeId, NodeId, int], None] = {}
        """Requests of clients that came, by node: calls on the wire are not repeated by a network."""

    def hear(self, life: Life | None, event: Event, effects: Sequence[Effect]) -> None:
        """The rules of ballots, at each step."""
        self.ledger.step(life, event, effects)

    def knobs(self, draw: Random) -> dict[str, int]:
        """How hurried the clients and the operator are."""
        return {
            "think_ms": draw.randrange(5, 40),
            "replace_ms": (60, 300, 1000, 3000)[draw.randrange(0, 4)] + draw.randrange(0, 300),
            "attempts_kept": (1, 2, 4, 16, ATTEMPTS_KEPT)[draw.randrange(0, 5)],
            "straggle_ppm": (0, 1_000, 50_000, 300_000)[draw.randrange(0, 4)],
            "echo_ppm": (0, 1_000, 50_000, 500_000)[draw.randrange(0, 4)],
            "resize_percent": (0, 30, 70)[draw.randrange(0, 3)],
            "operators": (1, 2)[draw.randrange(0, 2)],
            "flush_ms": (0, 40, 400)[draw.randrange(0, 3)],
        }

    def extra_faults(self, draw: Random, plan: Plan) -> list[Fault]:
        """Many starts of one node; and one that is wiped while it is asked, whose new life replaces it."""
        faults = restarts_and_damage(draw, plan, self.nodes(plan.knobs))
        if draw.random() < 0.5:
            return faults
        node = faults_of.damaged_node(
            replace(plan, faults=(*plan.faults, *faults)), self.nodes(plan.knobs), draw
        )
        moments = ("step.Accept", "step.Prepare", "step.ReplaceRequest", "effect.Persist", "effect.Send")
        for _ in range(draw.randrange(1, 4)):
            at, passage = draw.randrange(300 * MILLISECOND, plan.safety_ns), draw.randrange(1, 30)
            on = f"{node}:{moments[draw.randrange(0, len(moments))]}"
            faults.append(Fault(at, Kind.WIPE, node, MILLISECOND, on=on, passage=passage))
        return faults

    def stale_calls(self, knobs: dict[str, int]) -> int:
        """Any number where attempts are soon forgotten: whoever was overtaken cannot know."""
        return self.stale_calls_max if knobs.get("attempts_kept", ATTEMPTS_KEPT) > FORGETFUL else 1_000_000

    def nodes(self, knobs: dict[str, int]) -> tuple[NodeId, ...]:
        """Three founding acceptors and a spare."""
        del knobs
        return (NodeId("a"), NodeId("b"), NodeId("c"), NodeId("d"))

    def boot(self, context: NodeContext) -> None:
        """The acceptor from its log, and a proposer that knows nothing."""
        log = context.log()
        if log.is_quarantined:
            log.reset()  # It lost something: it begins a new life, and is no member (control.6).
        records = [record for _, record in log.records]
        memory = remembered(records)
        nonce = context.random("nonce").getrandbits(62) | 1
        if memory is None:
            incarnation = Incarnation(context.random("incarnation").getrandbits(62) | 1)
            memory = Memory(Acceptor(context.node, incarnation), NO_BALLOT, None)
        seeds = (NodeId("a"), NodeId("b"), NodeId("c"))
        booted = _Booted(
            context,
            log,
            self.asked,
            acceptor=type(self).acceptor(memory, next_offset=Offset(log.next_offset)),
            proposer=type(self).proposer(
                context.node,
                nonce=nonce,
                seeds=seeds,
                random=context.random("backoff"),
                config=PROPOSER,
                attempts_kept=context.knobs.get("attempts_kept", ATTEMPTS_KEPT),
                founding=Founding(FOUNDED, ()) if context.node == seeds[0] else None,
            ),
        )
        self.ledger.booted(context.life, memory)
        if not records:
            booted.begin(memory)
        context.on_message = booted.on_message
        if flush_ms := context.knobs.get("flush_ms", 0):
            booted.flush_again(Duration(flush_ms * MILLISECOND))

    async def client(self, context: ClientContext, run: Episode) -> None:
        """The first one or two clients are operators; the others read and write."""
        if int(context.name.removeprefix("client")) < run.plan.knobs.get("operators", 1):
            await _Operator(context, run, self.nodes(run.plan.knobs)).work()
        else:
            await _Client(context, run, self.nodes(run.plan.knobs)).work()

    def verify(self, run: Episode) -> None:
        """Both checkers: versions for the whole, the search as a cross-check."""
        operations = [op for op in run.history.operations if op.key == "document"]
        check_versions(run.history.operations)
        check_linearizable(operations, model=document_model, initial=(1, FOUNDED))


def document_model(state: Any, operation: Operation) -> tuple[bool, Any]:  # noqa: ANN401 - the checker's.
    """A document with a version, which a change of members may raise between any two operations."""
    version, document = state
    is_known = operation.outcome is Known.OK
    told = operation.version or 0
    if operation.name == "read":
        return told >= version and operation.result == document, (told, document)
    assert isinstance(operation.argument, tuple)
    expected, mine = operation.argument
    if is_known and operation.result is False:
        return told >= version and told != expected, (told, document)
    if is_known:
        return version <= expected and told == expected + 1, (told, mine)
    return version <= expected, (expected + 1, mine)


def check_versions(operations: list[Operation]) -> None:
    """Versions alone, in linear time: for histories of any size.

    `check_versioned` does not fit: a change of members makes versions that no client wrote. Here a version
    has one document, no answer is older than one that was known before its call, no write is acknowledged at
    a version that was known then, and no document is read before it was asked for.

    Raises:
        Violation: the operations contradict each other.
    """
    known = [op for op in operations if op.outcome is Known.OK and op.version is not None]
    documents: dict[int, tuple[object, Operation]] = {}
    asked = {_written(op): op.invoked_at for op in operations if op.name == "set"}
    founded_document(operations)
    for op in known:
        document = op.result if op.name == "read" else _written(op)
        if op.result is False or op.name == "replace":
            continue
        first = documents.setdefault(op.version or 0, (document, op))
        if first[0] != document:
            raise Violation(f"version {op.version} has two documents: {first[1]} and {op}")
        if document in asked and asked[document] >= (op.returned_at or 0):
            raise Violation(f"read before it was written: {op}")
    calls = sorted(known, key=lambda op: op.invoked_at)
    returns = sorted(known, key=lambda op: op.returned_at or 0)
    floor, at = 0, 0
    for op in calls:
        while (returns[at].returned_at or 0) < op.invoked_at:
            floor, at = max(floor, returns[at].version or 0), at + 1
        is_write = op.name == "set" and op.result is True
        if (op.version or 0) < floor + is_write:
            raise Violation(f"older than version {floor}, which was known before: {op}")


def founded_document(operations: list[Operation]) -> bytes:
    """The document that was read and that no client wrote; empty where nobody read it.

    Raises:
        Violation: there are two, so two clusters were founded, or a document came from nowhere.
    """
    written = {_written(op): None for op in operations if op.name == "set"}
    reads = [op.result for op in operations if op.name == "read" and op.outcome is Known.OK]
    found = [each for each in dict.fromkeys(reads) if each not in written]
    if len(found) > 1:
        raise Violation(f"two documents that nobody wrote, so two foundings: {found}")
    return found[0] if found and isinstance(found[0], bytes) else b""


def _written(operation: Operation) -> object:
    """The document that a set is about."""
    return operation.argument[1] if isinstance(operation.argument, tuple) else None


class _Booted:
    """One boot of one node: two hosts and what joins them."""

    def __init__(
        self,
        context: NodeContext,
        log: SimLog,
        asked: dict[tuple[NodeId, NodeId, int], None],
        *,
        acceptor: AcceptorMachine,
        proposer: ProposerMachine,
    ) -> None:
        self.context, self.log, self.asked, self.machine = context, log, asked, acceptor
        self.clients: dict[RequestId, tuple[NodeId, int]] = {}
        self.requests = 0
        self.next_offset = log.next_offset
        acting: dict[type[Effect], Callable[..., None]] = {
            Persist: self.persist,
            Send: self.send,
            TrimLog: lambda effect: log.trim(effect.below),
        }
        self.acceptor = context.host(acceptor, acting, name="acceptor")
        asking: dict[type[Effect], Callable[..., None]] = {Send: self.send, Answer: self.answer}
        self.proposer = context.host(proposer, asking, name="proposer")

    def flush_again(self, interval: Duration) -> None:
        """Ask for a whole record now and then, as a log does whose old segments are pinned."""

        def flush() -> None:
            self.acceptor.deliver(FlushAsked())
            self.flush_again(interval)

        self.context.timers.call_after(interval, flush)

    def begin(self, memory: Memory) -> None:
        """Write down which life this is; nothing depends on it before the first promise."""
        if not self.log.append((0, encoded(memory)), lambda: None):
            self.context.exit("no room to begin")
            return
        self.next_offset += 1
        self.machine._next_offset = Offset(self.next_offset)  # noqa: SLF001 - the record of its birth.

    def persist(self, effect: Persist) -> None:
        """Append, or refuse where the disk is full."""
        done = Persisted(effect.token)
        is_refused = effect.offset != self.next_offset or buggify("metastore.log_refuses")
        if is_refused or not self.log.append(
            (effect.offset, effect.record), lambda: self.acceptor.deliver(done)
        ):
            self.acceptor.deliver(PersistRefused(effect.token))
            return
        self.next_offset += 1

    def send(self, effect: Send) -> None:
        """To another node, or to the other machine of this one."""
        if effect.to == self.context.node:
            self.on_message(effect.to, effect.message)
        else:
            self.context.send(effect.to, effect.message)

    def answer(self, effect: Answer) -> None:
        """To the client that asked."""
        client, request = self.clients.pop(effect.request)
        self.context.send(client, Told(request, effect))

    def on_message(self, sender: NodeId, message: Request | Response | Ask | Who) -> None:
        """A datagram came."""
        if isinstance(message, Prepare | Accept | Read):
            self.acceptor.deliver(message)
        elif isinstance(message, Ask):
            key = (self.context.node, sender, message.request)
            if key in self.asked:
                return
            self.asked[key] = None
            self.requests += 1
            request = RequestId(self.requests)
            self.clients[request] = (sender, message.request)
            self.proposer.deliver(_operation(message, request))
        elif isinstance(message, Who):
            self.context.send(sender, Told(message.request, acceptor=self.machine.acceptor))
        else:
            self.proposer.deliver(message)


def _operation(ask: Ask, request: RequestId) -> OperationRequest:
    if ask.name == "read":
        return ReadRequest(request)
    if ask.name == "write":
        return ChangeRequest(request, ask.expected, ask.document, ask.attempt)
    return ReplaceRequest(request, ask.removed, ask.added, "", ask.attempt)


class _Asker:
    """A client's exchange with one node at a time."""

    def __init__(self, context: ClientContext, run: Episode, nodes: tuple[NodeId, ...]) -> None:
        self.context, self.run, self.nodes = context, run, nodes
        self.draws = context.draws("operations")
        self.count = 0

    async def ask(self, to: NodeId, message: Ask | Who) -> Told | None:
        """The node's answer to `message`, or None where time ran out."""
        told = await self.context.request(
            to,
            message,
            is_answer=lambda m: isinstance(m, Told) and m.request == message.request,
            timeout=ATTEMPT_TIMEOUT,
        )
        assert told is None or isinstance(told, Told)
        return told

    def any_node(self) -> NodeId:
        """Some node."""
        return self.nodes[self.draws.below(len(self.nodes))]

    def next(self) -> int:
        """A number for a request."""
        self.count += 1
        return self.count


class _Client(_Asker):
    """Reads and writes the document."""

    version = 1

    async def work(self) -> None:
        """One operation after the other."""
        while not self.context.is_stopping:
            if self.draws.below(2):
                await self.read()
            else:
                await self.write()
            await self.context.sleep(
                Duration(self.draws.below(2 * self.run.plan.knobs["think_ms"]) * MILLISECOND)
            )

    async def read(self) -> None:
        """Read; no answer says nothing."""
        history = self.run.history
        operation = history.invoke(self.context.name, "document", "read")
        told = await self.ask(self.any_node(), Ask(self.next(), "read"))
        if told is None or told.answer is None or told.answer.value is None:
            history.lose(operation)
            return
        self.version = told.answer.version
        history.ok(operation, told.answer.value.document, version=told.answer.version)

    async def write(self) -> None:
        """Compare-and-set at the version that was seen last."""
        history, number = self.run.history, self.next()
        document = f"{self.context.name}/{number}".encode()
        operation = history.invoke(self.context.name, "document", "set", (self.version, document))
        ask = Ask(number, "write", self.version, document, f"{self.context.name}/{number}")
        told = await self.ask(self.any_node(), ask)
        answer = None if told is None else told.answer
        if answer is None or answer.status is Status.UNKNOWN:
            history.lose(operation)
        elif answer.status is Status.OK:
            self.version = answer.version
            history.ok(operation, result=True, version=answer.version)
        elif answer.status is Status.UNEXPECTED_VERSION:
            self.version = answer.version
            history.ok(operation, result=False, version=answer.version)
        else:
            history.reject(operation, answer.status.name)


class _Operator(_Asker):
    """Replaces acceptors: any one of them by the node that is spare, or by the new life of its own node."""

    async def work(self) -> None:
        """One replacement now and then."""
        while not self.context.is_stopping:
            await self.context.sleep(Duration(self.run.plan.knobs["replace_ms"] * MILLISECOND))
            await self.replace()

    async def replace(self) -> None:
        """Look at the set, pick a member and a newcomer, and put one for the other."""
        history = self.run.history
        told = await self.ask(self.any_node(), Ask(self.next(), "read"))
        if told is None or told.answer is None or told.answer.value is None:
            return
        members = told.answer.value.sets.old
        lives = [await self.ask(node, Who(self.next())) for node in self.nodes]
        there = [one.acceptor for one in lives if one is not None and one.acceptor is not None]
        fresh = [one for one in there if one not in members]
        if self.draws.below(100) < self.run.plan.knobs.get("resize_percent", 0):
            removed, added = self.resized(members, fresh)
        elif there and self.draws.below(5) == 0:  # Whoever has not looked may name a member, or nobody.
            added, removed = there[self.draws.below(len(there))], members[self.draws.below(len(members))]
        elif fresh:
            added = fresh[self.draws.below(len(fresh))]
            lost = [member for member in members if member.node == added.node]
            removed = lost[0] if lost else members[self.draws.below(len(members))]
        else:
            return
        if removed is None and added is None:
            return
        operation = history.invoke(self.context.name, "members", "replace", (removed, added))
        number = self.next()
        attempt = f"{self.context.name}/{number}"
        ask = Ask(number, "replace", removed=removed, added=added, attempt=attempt)
        told = await self.ask(self.any_node(), ask)
        if told is not None and told.answer is not None and told.answer.status is Status.OK:
            history.ok(operation, version=told.answer.version)
        elif told is not None and told.answer is not None and told.answer.status is not Status.UNKNOWN:
            history.reject(operation, told.answer.status.name)
        else:
            history.lose(operation)

    def resized(
        self, members: tuple[Acceptor, ...], fresh: list[Acceptor]
    ) -> tuple[Acceptor | None, Acceptor | None]:
        """One acceptor more, or one less: even sets, too, and two where no disk of this run is damaged."""
        nodes = {member.node for member in members}
        lost = [member for member in members if any(one.node == member.node for one in fresh)]
        newcomers = [one for one in fresh if one.node not in nodes]
        if newcomers and (self.draws.below(2) or len(members) < MEMBERS_MIN):
            return None, newcomers[self.draws.below(len(newcomers))]
        is_damaged = any(fault.kind in DAMAGE for fault in self.run.plan.faults)
        if len(members) <= (MEMBERS_MIN if is_damaged else MEMBERS_MIN - 1):
            return None, None
        if is_damaged and self.context.name != FIRST:  # Two that have seen the same members could leave two.
            return None, None
        return (lost or list(members))[self.draws.below(len(lost or members))], None
