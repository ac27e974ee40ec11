"""The metastore in tier 2: real roles on the real wire and log, simulated disks; members are replaced.

Three founding nodes and a spare, each with the `majority` provider. Clients read and compare-and-set; an
operator puts the spare, or the new life of a wiped node, in the place of a member that is lost, cut off or
well. Wipes and damage hit one node at most. Source: design/control.md control.1-7; docs/adr/0051.
"""

import asyncio
from collections.abc import Sequence
from typing import ClassVar, Final, TypeVar

import msgspec

from broadsheet.access.authorizer import Authorizer
from broadsheet.base.machine import Effect, Event
from broadsheet.base.time import MILLISECOND, SECOND, Duration
from broadsheet.base.types import NodeId
from broadsheet.control.core.settings import ProposerConfig
from broadsheet.control.core.value import Acceptor
from broadsheet.control.document_chunks import receive_document, send_document
from broadsheet.control.majority import MajorityMetastore
from broadsheet.control.port import Metastore
from broadsheet.control.role import MetastoreConfig, MetastoreRole
from broadsheet.control.service import (
    CompareAndSetRequest,
    ReplaceRequest,
    StatusReply,
    VersionReply,
)
from broadsheet.errors import (
    BroadsheetError,
    ConfigError,
    Refused,
    UnexpectedVersion,
)
from broadsheet.ports import Random
from broadsheet.runtime.identity import Identity
from broadsheet.runtime.role import Services
from broadsheet.wal.config import KIB, WALConfig
from broadsheet.wire.client import ClientConnection
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import EMPTY, Method
from broadsheet.wire.pool import Pool
from broadsheet.wire.server import Server
from simulator.checkers.ledger import Ledger
from simulator.checkers.linearizable import check_linearizable
from simulator.checkers.wiretap import Wiretap
from simulator.history import Operation
from simulator.plan import CLOCKS, CRASHES, DAMAGE, DISK, NETWORK, Budget, Fault, Kind, Plan
from simulator.services import ServiceContext, ServiceWorkload
from simulator.workload import Episode
from simulator.workloads.metastore import (
    check_versions,
    document_model,
    founded_document,
    restarts_and_damage,
)
from simulator.world import Life, World

SEEDS: Final = (NodeId("a"), NodeId("b"), NodeId("c"))
NODES: Final = (*SEEDS, NodeId("d"))
CONFIG: Final = MetastoreConfig(
    provider="majority",
    wal=WALConfig(
        segment_bytes=256 * KIB,
        segments_initial=3,
        segments_max=16,
        initial_fill_bytes=64 * KIB,
        record_bytes_max=64 * KIB,
    ),
    proposer=ProposerConfig(operation_timeout=Duration(2 * SECOND)),
)
LIMITS: Final = WireLimits(
    dial_timeout=Duration(300 * MILLISECOND), keepalive_interval=Duration(500 * MILLISECOND)
)
"""Keepalives are short, or a seed with a half-open connection spends 40 s on nothing else."""
CALL_SECONDS: Final = 2.5
STATUS_SECONDS: Final = 0.5

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)


class MetastoreServiceWorkload(ServiceWorkload):
    """As `metastore`, with logs, files and connections."""

    name: ClassVar[str] = "metastore"
    scope: ClassVar[tuple[str, ...]] = ("control", "wal")
    clients: ClassVar[int] = 4
    stale_calls_max: ClassVar[int] = 40
    """Nodes notice a half-open connection to a peer after 40 s; until then a call by way of it takes 2 s."""
    budget: ClassVar[Budget] = Budget(
        kinds=(*CRASHES, *NETWORK, *CLOCKS, *DISK),
        damage=(Kind.WIPE, Kind.BIT_FLIP, Kind.STALE_SECTOR, Kind.MISDIRECTED_WRITE),
        damaged_nodes_max=1,
    )

    def __init__(self) -> None:
        self.ledger = Ledger()

    def hear(self, life: Life | None, event: Event, effects: Sequence[Effect]) -> None:
        """The rules of ballots, at each step."""
        self.ledger.step(life, event, effects)

    def listen_in(self, world: World) -> Wiretap:
        """Both sides of each connection are judged by what they say."""
        self.tap = Wiretap(world, WireLimits())
        return self.tap

    def watch(self, run: Episode) -> None:
        """Who hears nothing gives up."""
        self.tap.look()

    def knobs(self, draw: Random) -> dict[str, int]:
        """How hurried clients and operator are, and how large the documents."""
        return {
            "think_ms": draw.randrange(20, 60),
            "replace_ms": draw.randrange(500, 3000),
            "document_bytes": (20, 20, 200, 4000)[draw.randrange(0, 4)],
            "operators": (1, 1, 2)[draw.randrange(0, 3)],
        }

    def extra_faults(self, draw: Random, plan: Plan) -> list[Fault]:
        """Power is lost right after the birth of an acceptor whose disk is slow to say that it is durable."""
        more = restarts_and_damage(draw, plan, NODES)
        if draw.random() < 0.5:
            return more
        node, lasts = NODES[draw.randrange(0, len(NODES))], draw.randrange(20, 400) * MILLISECOND
        moment = ("step.Read", "step.Prepare", "step.Accept")[draw.randrange(0, 3)]
        slow = Fault(1, Kind.SLOW_SYNC, node, lasts, amount=lasts)
        again = draw.randrange(1, 100) * MILLISECOND
        cut = Fault(1, Kind.POWER_CUT, node, again, on=f"{node}:{moment}", passage=draw.randrange(1, 6))
        return [*more, slow, cut]

    def nodes(self, knobs: dict[str, int]) -> tuple[NodeId, ...]:
        """Three founders and a spare."""
        return NODES

    def may_die_of(self, error: BaseException) -> bool:
        """A sick disk, or a log that cannot be made on a full one."""
        return isinstance(error, OSError | ConfigError)

    async def serve(self, context: ServiceContext, run: Episode) -> None:
        """The role, and the door."""
        services = Services()
        peers = {node: context.address_of(node) for node in SEEDS}
        identity = Identity(node=context.node, cluster="sim", peers=peers, version="sim", is_insecure=True)
        services.offer(Identity, identity)
        await MetastoreRole().start(context.scope.child("metastore"), context.ports, CONFIG, services)
        majority = services.one(Metastore)  # type: ignore[type-abstract]  # Found under its port.
        assert isinstance(majority, MajorityMetastore), "three nodes"
        is_damaged = any(each.kind in DAMAGE and context.node in each.target for each in run.plan.faults)
        self.ledger.booted(context.life, majority.acceptor.memory, is_damaged=is_damaged)
        server = Server(
            context.ports,
            context.scope,
            services.every(Method),
            authorizer=Authorizer(None, time=context.ports.time),
            node=context.node,
            cluster="sim",
        )
        await server.listen(context.address, is_insecure=True)

    async def client(self, context: ServiceContext, run: Episode) -> None:
        """The first one or two clients are operators; the others read and write."""
        if int(context.node.removeprefix("client")) < run.plan.knobs.get("operators", 1):
            await _Operator(context, run).work()
        else:
            await MetastoreClient(context, run).work()

    def verify(self, run: Episode) -> None:
        """Both checkers: versions for the whole, the search as a cross-check."""
        verify_document(run.history.operations)


def verify_document(operations: list[Operation]) -> None:
    """Versions for the whole, the search for a linear order as a cross-check.

    Raises:
        Violation: the operations contradict each other.
    """
    check_versions(operations)
    documents = [op for op in operations if op.key == "document"]
    check_linearizable(documents, model=document_model, initial=(1, founded_document(documents)))


class _Caller:
    """One client's calls."""

    nodes: ClassVar[tuple[NodeId, ...]] = NODES

    def __init__(self, context: ServiceContext, run: Episode) -> None:
        self.context, self.run, self.knobs = context, run, run.plan.knobs
        self.random = context.random("operations")
        self.pool = Pool(context.ports, context.scope, limits=LIMITS)
        self.count = 0

    def pick(self, things: Sequence[T]) -> T:
        """One of `things`."""
        return things[self.random.randrange(0, len(things))]

    def any_address(self) -> str:
        """Some node's."""
        return self.context.address_of(self.pick(self.nodes))

    async def sleep(self, mean_ms: int) -> None:
        """Think."""
        await asyncio.sleep(self.random.randrange(0, 2 * mean_ms) / 1000)


class MetastoreClient(_Caller):
    """Reads and writes the document."""

    version = 1

    async def work(self) -> None:
        """One operation after the other."""
        while not self.context.is_stopping:
            await (self.read() if self.random.random() < 0.5 else self.write())
            await self.sleep(self.knobs["think_ms"])
        await self.pool.close()

    def call_seconds(self) -> float:
        """How long this client waits for its next call."""
        return CALL_SECONDS

    async def read(self) -> None:
        """Read; no answer says nothing."""
        operation = self.run.history.invoke(self.context.node, "document", "read")
        try:
            async with asyncio.timeout(CALL_SECONDS):
                connection = await self.pool.connection(self.any_address())
                stream = await connection.open("metastore.read", EMPTY)
                document = await receive_document(stream)
                self.version = (await stream.reply(VersionReply)).version
        except (BroadsheetError, TimeoutError):
            self.run.history.lose(operation)
        else:
            self.run.history.ok(operation, document, version=self.version)

    async def write(self) -> None:
        """Compare-and-set at the version that was seen last."""
        self.count += 1
        text = f"{self.context.node}/{self.count}".encode()
        document = text + b"." * self.random.randrange(0, self.knobs["document_bytes"])
        history = self.run.history
        operation = history.invoke(self.context.node, "document", "set", (self.version, document))
        try:
            async with asyncio.timeout(self.call_seconds()):
                connection = await self.pool.connection(self.any_address())
                made = await self.set(connection, document)
        except UnexpectedVersion as error:
            history.reject(operation, str(error))
            await self.read()
        except Refused as error:
            history.reject(operation, type(error).__name__)
        except (BroadsheetError, TimeoutError):
            history.lose(operation)
        else:
            self.version = made
            history.ok(operation, result=True, version=made)

    async def set(self, connection: ClientConnection, document: bytes) -> int:
        """The version that `document` makes. Whoever gives up cancels the call."""
        stream = await connection.open("metastore.compare_and_set", CompareAndSetRequest(self.version))
        try:
            await send_document(stream, document)
            return (await stream.reply(VersionReply)).version
        except BaseException:
            stream.cancel()
            raise


class _Operator(_Caller):
    """Replaces acceptors, as `broadsheet metastore replace` does."""

    async def work(self) -> None:
        """One replacement now and then."""
        while not self.context.is_stopping:
            await self.sleep(self.knobs["replace_ms"])
            await self.replace()
        await self.pool.close()

    async def replace(self) -> None:
        """Look at the set, pick a member and a newcomer, and put one for the other."""
        found = [(node, await self.status(node)) for node in NODES]
        told = [status for _, status in found if status is not None]
        readable = [status for status in told if status.is_readable]
        if not readable:
            return
        members = max(readable, key=lambda status: status.version).acceptors
        fresh = [own for status in told if (own := status.own) is not None and own not in members]
        if not fresh:
            return
        added = self.pick(fresh)
        lost = [member for member in members if member.node == added.node]
        removed = lost[0] if lost else self.pick(members)
        await self.ask(removed, added)

    async def ask(self, removed: Acceptor, added: Acceptor) -> None:
        """Send the command to some node."""
        history = self.run.history
        operation = history.invoke(self.context.node, "members", "replace", (removed.node, added.node))
        request = ReplaceRequest(removed, added, self.context.address_of(added.node))
        try:
            done = await self.call(self.any_address(), "metastore.replace", request, VersionReply)
        except Refused as error:
            history.reject(operation, type(error).__name__)
        except (BroadsheetError, TimeoutError):
            history.lose(operation)
        else:
            history.ok(operation, version=done.version)

    async def status(self, node: NodeId) -> StatusReply | None:
        """What `node` says of itself and the set, or None."""
        try:
            async with asyncio.timeout(STATUS_SECONDS):
                return await self.call(self.context.address_of(node), "metastore.status", EMPTY, StatusReply)
        except (BroadsheetError, TimeoutError):
            return None

    async def call(self, address: str, method: str, request: msgspec.Struct, kind: type[R]) -> R:
        """One unary call, in bounded time."""
        async with asyncio.timeout(CALL_SECONDS):
            connection = await self.pool.connection(address)
            reply, _ = await connection.call(method, request, reply=kind)
            return reply
