"""The key space in tier 2: the real role over the real log, on one node's simulated disk.

Clients transact (several keys at once, compared by mod revision) and read the whole map, through two
methods that only this workload has. Watchers in the node's process mirror what is shown, some of them late.
The log is small, so that snapshots and trims happen. One disk: crashes, power cuts and every refusal are in
the budget, damage is not. Source: design/control.md control.15-17; simulation.5.
"""

import asyncio
from typing import ClassVar, Final

import msgspec

from broadsheet.access.authorizer import Authorizer
from broadsheet.access.capability import Capability
from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.base.types import NodeId, Revision
from broadsheet.errors import BroadsheetError, ConfigError, Refused
from broadsheet.keyspace.core.transaction import Compare, KeyValue, Limits, ModRevisionIs, Outcome, Put
from broadsheet.keyspace.core.transaction import Delete as DeleteKey
from broadsheet.keyspace.core.transaction import Operation as KeyOperation
from broadsheet.keyspace.local.keyspace import KeyspaceConfig, LocalKeyspace
from broadsheet.keyspace.local.role import KeyspaceRole
from broadsheet.keyspace.port import Keyspace
from broadsheet.ports import Random
from broadsheet.runtime.role import Services
from broadsheet.wal.config import KIB, WALConfig
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import EMPTY, Call, Empty, Method, Reply, Shape
from broadsheet.wire.pool import Pool
from broadsheet.wire.server import Server
from simulator.checkers.transactions import Transaction, check_transactions
from simulator.plan import CLOCKS, CRASHES, DISK, NETWORK, Budget, Fault, Kind, Plan
from simulator.services import ServiceContext, ServiceWorkload
from simulator.workload import Episode, Violation
from simulator.workloads.keyspace_watchers import Watcher

NODE: Final = NodeId("n1")
CALL_SECONDS: Final = 1.0
KEYS_MAX: Final = 12
WATCHED: Final = ("", "k0", "k1")
"""Prefixes that are watched."""
CONFIG: Final = KeyspaceConfig(
    wal=WALConfig(
        segment_bytes=320 * KIB,
        segments_initial=3,
        segments_max=6,
        initial_fill_bytes=64 * KIB,
        record_bytes_max=80 * KIB,
    ),
    limits=Limits(
        key_bytes_max=64,
        value_bytes_max=4096,
        operations_max=4096,
        transaction_bytes_max=12 * KIB,
        map_bytes_max=64 * KIB,
    ),
    history_transactions_max=16,
    snapshot_chunk_bytes=4 * KIB,
)
LIMITS: Final = WireLimits(
    dial_timeout=Duration(300 * MILLISECOND), keepalive_interval=Duration(500 * MILLISECOND)
)
"""Keepalives are short, or a seed with a half-open connection spends 40 s on nothing else."""


class TransactBody(msgspec.Struct, frozen=True):
    """A transaction."""

    compares: tuple[Compare, ...]
    operations: tuple[KeyOperation, ...]


class MapReply(msgspec.Struct, frozen=True):
    """The whole map."""

    revision: Revision
    pairs: tuple[KeyValue, ...]


class KeyspaceWorkload(ServiceWorkload):
    """One node's key space, and clients that change and read it."""

    name: ClassVar[str] = "keyspace"
    serving: tuple[ServiceContext, LocalKeyspace] | None = None
    """The boot that began to serve last."""
    watchers: tuple[Watcher, ...] = ()
    """Those of that boot."""
    scope: ClassVar[tuple[str, ...]] = ("keyspace", "wal")
    clients: ClassVar[int] = 4
    budget: ClassVar[Budget] = Budget(kinds=(*CRASHES, *NETWORK, *CLOCKS, *DISK))

    def knobs(self, draw: Random) -> dict[str, int]:
        """How many keys, how large their values, how hurried the clients."""
        return {
            "keys": draw.randrange(2, KEYS_MAX + 1),
            "value_bytes": (10, 100, 900)[draw.randrange(0, 3)],
            "think_ms": draw.randrange(25, 60),
        }

    def nodes(self, knobs: dict[str, int]) -> tuple[NodeId, ...]:
        """One."""
        return (NODE,)

    def may_die_of(self, error: BaseException) -> bool:
        """A sick disk, or a log that cannot be made on a full one."""
        return isinstance(error, OSError | ConfigError)

    def extra_faults(self, draw: Random, plan: Plan) -> list[Fault]:
        """Some more crashes of the one node that there is, and snapshots."""
        kinds = (Kind.KILL, Kind.POWER_CUT)
        crashes = [
            Fault(draw.randrange(300 * MILLISECOND, plan.safety_ns), kind, NODE, 100 * MILLISECOND)
            for kind in (*kinds, kinds[draw.randrange(0, 2)])
        ]
        flushes = [
            Fault(draw.randrange(300 * MILLISECOND, plan.safety_ns), Kind.ACTION, NODE, action="flush")
            for _ in range(draw.randrange(0, 9))
        ]
        return crashes + flushes

    def act(self, run: Episode, fault: Fault) -> None:
        """The log asks for a snapshot: so often none is asked for by itself."""
        context, keyspace = self.serving or (None, None)
        if context is not None and keyspace is not None and not context.life.is_dead:
            run.world.act_as(context.life, keyspace.flush_asked)

    async def serve(self, context: ServiceContext, run: Episode) -> None:
        """The role, and a door of two methods."""
        services = Services()
        await KeyspaceRole().start(context.scope.child("keyspace"), context.ports, CONFIG, services)
        keyspace: Keyspace = services.one(Keyspace)  # type: ignore[type-abstract]  # Found under its port.
        if isinstance(keyspace, LocalKeyspace):
            self.serving = (context, keyspace)
        self.watchers = tuple(
            Watcher(keyspace, prefix, context.random(f"watcher {prefix}")) for prefix in WATCHED
        )
        for watcher in self.watchers:
            context.scope.spawn(watcher.work(run.world.fail), name=f"watch {watcher.mirror.prefix}")

        async def transact(_call: Call, body: TransactBody, _payload: memoryview) -> Reply:
            return Reply(await keyspace.transact(body.compares, body.operations))

        async def read(_call: Call, _body: Empty, _payload: memoryview) -> Reply:
            return Reply(MapReply(keyspace.revision, tuple(keyspace.range(""))))

        methods = [_row("sim.transact", 1, TransactBody, transact), _row("sim.read", 2, Empty, read)]
        server = Server(
            context.ports, context.scope, methods, authorizer=Authorizer(None, time=context.ports.time)
        )
        await server.listen(context.address, is_insecure=True)

    def watch(self, run: Episode) -> None:
        """Once nothing fails any more, every watcher comes to the end."""
        context, _ = self.serving or (None, None)
        if run.healed_at is None or context is None or context.life.is_dead or context.life.is_paused:
            return
        for watcher in self.watchers:
            if watcher.is_stuck(run.world.now):
                raise Violation(
                    f"watch of {watcher.mirror.prefix!r} stays at revision {watcher.mirror.revision} of"
                    f" {watcher.keyspace.revision}"
                )

    async def client(self, context: ServiceContext, run: Episode) -> None:
        """One operation at a time."""
        await _Client(context, run).work()

    def verify(self, run: Episode) -> None:
        """One order of whole transactions, each true to its compares, and every map a state of it."""
        check_transactions(run.history.operations)


def _row(name: str, number: int, request: type[msgspec.Struct], handler: object) -> Method:
    assert callable(handler), "a row has a handler"
    return Method(
        name,
        number=number,
        shape=Shape.UNARY,
        capability=Capability.ADMIN,
        request=request,
        name_of=None,
        handler=handler,
    )


class _Client:
    """One client, and the map as it saw it last."""

    def __init__(self, context: ServiceContext, run: Episode) -> None:
        self.context, self.run, self.history, self.knobs = context, run, run.history, run.plan.knobs
        self.random = context.random("operations")
        self.pool = Pool(context.ports, context.scope, limits=LIMITS)
        self.known: dict[str, Revision] = {}
        self.count = 0

    async def work(self) -> None:
        """Until the run is over; then look once more."""
        while not self.context.is_stopping:
            await (self.read() if self.random.random() < 0.3 else self.transact())
            await asyncio.sleep(self.random.randrange(0, 2 * self.knobs["think_ms"]) / 1000)
        await self.read()
        await self.pool.close()

    async def read(self) -> None:
        """The whole map."""
        operation = self.history.invoke(self.context.node, "map", "read")
        try:
            async with asyncio.timeout(CALL_SECONDS):
                connection = await self.pool.connection(self.context.address_of(NODE))
                found, _ = await connection.call("sim.read", EMPTY, reply=MapReply)
        except (BroadsheetError, TimeoutError):
            self.history.lose(operation)
            return
        self.known = {pair.key: pair.mod_revision for pair in found.pairs}
        self.history.ok(operation, found.pairs, version=found.revision)

    def patience(self) -> float:
        """How long to wait; now and then not long enough, so that the handler is cancelled in any state."""
        if self.context.is_stopping or self.is_calm or self.random.random() < 0.85:
            return CALL_SECONDS
        return self.random.randrange(0, 20_000) / 1e6

    @property
    def is_calm(self) -> bool:
        """Whether nothing is to fail any more."""
        return self.run.healed_at is not None

    async def transact(self) -> None:
        """Put or delete some keys, most times only where they are as they were seen."""
        self.count += 1
        keys = [key for n in range(self.knobs["keys"]) if self.random.random() < 0.3 for key in (f"k{n:02}",)]
        value = f"{self.context.node}/{self.count}".encode().ljust(self.knobs["value_bytes"], b".")
        operations: tuple[KeyOperation, ...] = tuple(
            DeleteKey(key) if self.random.random() < 0.15 else Put(key, value) for key in keys
        )
        compares: tuple[Compare, ...] = tuple(
            ModRevisionIs(key, self.known.get(key, Revision(0))) for key in keys if self.random.random() < 0.7
        )
        asked = Transaction(compares, operations)
        operation = self.history.invoke(self.context.node, "map", "transact", asked)
        try:
            async with asyncio.timeout(self.patience()):
                connection = await self.pool.connection(self.context.address_of(NODE))
                body = TransactBody(compares, operations)
                told, _ = await connection.call("sim.transact", body, reply=Outcome)
        except Refused as error:
            self.history.reject(operation, type(error).__name__)
        except (BroadsheetError, TimeoutError):
            self.history.lose(operation)
        else:
            self.history.ok(operation, told.succeeded, version=told.revision)
            if told.succeeded:
                self.known.update((put.key, told.revision) for put in operations if isinstance(put, Put))
            else:
                await self.read()
