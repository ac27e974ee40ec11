"""Appends in tier 2: the real keyspace and journals roles behind the real wire, on one node's simulated disk.

Clients append (small ones, in runs, streamed ones, at explicit offsets, with a register checked and set),
read from the begin and from within, ask for registers, and compare. Half of the contents are messages of a
stamper, in a journal that is framed: its stored producer indexes are compared with what its bytes say. R=1
with `fsynced`: the budget has crashes, power cuts and every refusal of the disk, no damage. Source:
simulation.5; J1-J11.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import ClassVar, Final

from broadsheet.access.authorizer import Authorizer
from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.base.types import JournalName, NodeId
from broadsheet.client import PATIENT
from broadsheet.errors import BroadsheetError, ConfigError, Refused
from broadsheet.journal.client import Journals
from broadsheet.journal.config import JournalsConfig
from broadsheet.journal.core.spec import FRAMING_LABEL
from broadsheet.journal.role import JournalsRole
from broadsheet.keyspace.core.transaction import Limits
from broadsheet.keyspace.local.keyspace import KeyspaceConfig
from broadsheet.keyspace.local.role import KeyspaceRole
from broadsheet.message.framing import JSON_LINES
from broadsheet.message.stamper import Stamper
from broadsheet.message.uuid import producer_from
from broadsheet.ports import Random
from broadsheet.runtime.identity import Identity
from broadsheet.runtime.role import Services
from broadsheet.wal.config import WALConfig
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import Method
from broadsheet.wire.pool import Pool
from broadsheet.wire.routed import Routed
from broadsheet.wire.server import Server
from simulator.checkers.appends import Seen, Wanted, check_appends, content_of, content_with
from simulator.checkers.indexes import check_indexes
from simulator.plan import CLOCKS, CRASHES, DISK, NETWORK, Budget
from simulator.services import ServiceContext, ServiceWorkload
from simulator.workload import Episode

NODE: Final = NodeId("n1")
TIMEOUT_SECONDS: Final = 1.0
KIB: Final = 1024
SMALL_LOG: Final = WALConfig(
    segment_bytes=256 * KIB,
    segments_initial=3,
    segments_max=16,
    initial_fill_bytes=64 * KIB,
    record_bytes_max=64 * KIB,
)
KEYSPACE: Final = KeyspaceConfig(
    wal=WALConfig(
        segment_bytes=320 * KIB, segments_initial=3, initial_fill_bytes=64 * KIB, record_bytes_max=80 * KIB
    ),
    limits=Limits(
        operations_max=4096, transaction_bytes_max=12 * KIB, value_bytes_max=8 * KIB, map_bytes_max=128 * KIB
    ),
    snapshot_chunk_bytes=4 * KIB,
)
LIMITS: Final = WireLimits(
    dial_timeout=Duration(300 * MILLISECOND), keepalive_interval=Duration(500 * MILLISECOND)
)
"""Keepalives are short, or a seed with a half-open connection spends 40 s on nothing else."""


class AppendServiceWorkload(ServiceWorkload):
    """One node of journals, and clients that append and read."""

    name: ClassVar[str] = "append"
    scope: ClassVar[tuple[str, ...]] = ("journal", "keyspace", "wal")
    clients: ClassVar[int] = 3
    budget: ClassVar[Budget] = Budget(kinds=(*CRASHES, *NETWORK, *CLOCKS, *DISK))

    def knobs(self, draw: Random) -> dict[str, int]:
        """How many journals, how soon fragments roll and logs are trimmed, how hurried the clients are."""
        return {
            "journals": draw.randrange(1, 3),
            "fragment_bytes": 1 << draw.randrange(11, 15),
            "checkpoint_bytes": 1 << draw.randrange(12, 16),
            "inline_bytes": 1 << draw.randrange(8, 13),
            "think_ms": draw.randrange(5, 25),
        }

    def nodes(self, knobs: dict[str, int]) -> tuple[NodeId, ...]:
        """One."""
        return (NODE,)

    def may_die_of(self, error: BaseException) -> bool:
        """A sick disk, or a log that cannot be made on a full one."""
        return isinstance(error, OSError | ConfigError)

    async def serve(self, context: ServiceContext, run: Episode) -> None:
        """The roles that journals need, and the door."""
        services = Services()
        identity = Identity(
            node=NODE, cluster="sim", peers={NODE: context.address}, version="sim", is_insecure=True
        )
        services.offer(Identity, identity)
        await KeyspaceRole().start(context.scope.child("keyspace"), context.ports, KEYSPACE, services)
        knobs = run.plan.knobs
        config = JournalsConfig(
            store="file:///fragments/",
            inline_bytes_max=knobs["inline_bytes"],
            checkpoint_bytes=knobs["checkpoint_bytes"],
            used_percent_max=100,
            free_bytes_min=0,
            wal=SMALL_LOG,
        )
        await JournalsRole().start(context.scope.child("journals"), context.ports, config, services)
        server = Server(
            context.ports,
            context.scope,
            services.every(Method),
            authorizer=Authorizer(None, time=context.ports.time),
        )
        await server.listen(context.address, is_insecure=True)

    async def client(self, context: ServiceContext, run: Episode) -> None:
        """One operation at a time."""
        await _Client(context, run).work()

    def verify(self, run: Episode) -> None:
        """One sequence of whole appends, each once, each true to its condition."""
        check_appends(run.history.operations)
        check_indexes(run.history.operations)


class _BrokeOff(Exception):  # noqa: N818 - what a client does.
    """A client's source failed in the middle."""


class NodeClient:
    """A client of the one node."""

    def __init__(self, context: ServiceContext, run: Episode) -> None:
        self.context, self.run, self.knobs = context, run, run.plan.knobs
        self.random = context.random("operations")
        self.pool = Pool(context.ports, context.scope, limits=LIMITS)
        routed = Routed(self.pool, [context.address_of(NODE)], policy=PATIENT)
        inline_bytes_max = self.knobs["inline_bytes"]
        self.journals = Journals(routed, random=context.random("attempts"), inline_bytes_max=inline_bytes_max)
        self.serial = 0

    async def create(self, name: str) -> None:
        """Create a framed journal, however long that takes."""
        while not self.context.is_stopping:
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    await self.journals.create(
                        name,
                        fragment_length=self.knobs["fragment_bytes"],
                        labels={FRAMING_LABEL: "json-lines"},
                        if_absent=True,
                    )
            except (BroadsheetError, TimeoutError):
                await asyncio.sleep(0.05)
            else:
                return


class _Client(NodeClient):
    """One client and what it knows of the journals."""

    def __init__(self, context: ServiceContext, run: Episode) -> None:
        super().__init__(context, run)
        self.ends: dict[str, int] = {}
        self.register: dict[str, str] = {}
        self.stamper = Stamper(producer_from(context.random("producer").getrandbits(48).to_bytes(6, "big")))

    async def work(self) -> None:
        """Until the run is over, then read everything once more."""
        names = [f"sim/j{number}" for number in range(self.knobs["journals"])]
        for name in names:
            await self.create(name)
        while not self.context.is_stopping:
            name = names[self.random.randrange(0, len(names))]
            chance = self.random.random()
            if chance < 0.15:
                await self._read(name, is_from_within=chance < 0.07)
            elif chance < 0.2:
                await self._registers(name)
            else:
                await self._append(name)
            await asyncio.sleep(self.random.randrange(0, 2 * self.knobs["think_ms"]) / 1000)
        for name in names:
            await self._read(name)
            await self._registers(name)
            await self._indexes(name)
        await self.pool.close()

    async def _append(self, name: str) -> None:
        if self.random.random() < 0.05:
            await self._break_off(name)
            return
        if self.run.healed_at is None and self.random.random() < 0.05:
            await self._leave(name)
            return
        wanted = self._wanted(name)
        operation = self.run.history.invoke(self.context.node, name, "append", wanted)
        union = None if wanted.sets is None else {"v": wanted.sets}
        check = None if wanted.check is None else {"v": wanted.check or None}
        content = wanted.content if self.random.random() < 0.7 else self._pieces(wanted.content)
        try:
            commit = await self.journals.append(
                name, content, offset=wanted.offset, check=check, union=union, timeout=TIMEOUT_SECONDS
            )
        except Refused as error:
            self.run.history.reject(operation, type(error).__name__)
            await self._look(name)
        except BroadsheetError:
            self.run.history.lose(operation)
            await self._look(name)
        else:
            self.run.history.ok(operation, (commit.begin, commit.end))
            self.ends[name] = commit.end
            if wanted.sets is not None:
                self.register[name] = wanted.sets

    async def _pieces(self, content: bytes) -> AsyncIterator[bytes]:
        """The content as a stream: in a few pieces, some of which are late."""
        at = 0
        while at < len(content):
            end = at + 1 + self.random.randrange(0, len(content) - at)
            yield content[at:end]
            at = end
            is_slow = self.random.random() < 0.01 and self.run.healed_at is None
            late_ms = 500 if is_slow else 5
            await asyncio.sleep(self.random.randrange(0, late_ms) / 1000)

    async def _break_off(self, name: str) -> None:
        """Begin a streamed append, and leave it without its end: nothing of it may ever be read (J3)."""
        self.serial += 1
        length = 2 * self.knobs["inline_bytes"]
        content = content_of(self.context.node, self.serial, check=None, sets=None, length=length)
        operation = self.run.history.invoke(self.context.node, name, "append", Wanted(content=content))

        async def broken() -> AsyncIterator[bytes]:
            yield content[: length // 2]
            await asyncio.sleep(self.random.randrange(0, 20) / 1000)
            raise _BrokeOff

        try:
            await self.journals.append(name, broken(), timeout=TIMEOUT_SECONDS)
        except (_BrokeOff, Refused) as error:
            self.run.history.reject(operation, type(error).__name__)
        except BroadsheetError:
            self.run.history.lose(operation)

    async def _leave(self, name: str) -> None:
        """Stream an append, and leave while it takes its place: it is there whole, or not at all (J5)."""
        self.serial += 1
        length = 3 * self.knobs["inline_bytes"]
        content = content_of(self.context.node, self.serial, check=None, sets=None, length=length)
        operation = self.run.history.invoke(self.context.node, name, "append", Wanted(content=content))
        try:
            async with asyncio.timeout(self.random.randrange(1, 8) / 1000):
                commit = await self.journals.append(name, (content,), timeout=TIMEOUT_SECONDS)
        except Refused as error:
            self.run.history.reject(operation, type(error).__name__)
        except (BroadsheetError, TimeoutError):
            self.run.history.lose(operation)
        else:
            self.run.history.ok(operation, (commit.begin, commit.end))

    def _wanted(self, name: str) -> Wanted:
        self.serial += 1
        kind = self.random.randrange(0, 10)
        length = self.random.randrange(0, 200 if kind < 7 else 3 * self.knobs["inline_bytes"])
        is_checked = kind in (0, 1, 7)
        check = self.register.get(name, "") if is_checked else None
        sets = f"{self.context.node}.{self.serial}" if is_checked or kind == 4 else None
        if self.random.random() < 0.5:
            content = content_of(self.context.node, self.serial, check=check, sets=sets, length=length)
        else:
            body = self._messages(name, length)
            content = content_with(self.context.node, self.serial, check=check, sets=sets, body=body)
        offset = self.ends.get(name, 0) if kind in (2, 3, 8) else None
        return Wanted(content=content, offset=offset, check=check, sets=sets)

    def _messages(self, name: str, length: int) -> bytes:
        """Messages of about `length` bytes: some commit at once, some with an acknowledgement, some never."""
        wall, journal = self.context.ports.time.wall(), JournalName(name)
        body = b""
        while len(body) < length:
            if self.random.random() < 0.5:
                body += self.stamper.committed(JSON_LINES, b'{"a": 1}', wall)
            else:
                body += self.stamper.pending(journal, JSON_LINES, b'{"b": 2}', wall)
            if self.random.random() < 0.3:
                body += b"".join(intent.content() for intent in self.stamper.intents())
        return body + (body if self.random.random() < 0.1 else b"")  # Somebody sent it twice.

    async def _look(self, name: str) -> None:
        """Learn the head and the register, as somebody who was refused does."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                registers = await self.journals.registers(name)
                self.register[name] = registers.values.get("v", "")
                self.ends[name] = await self.journals.end(name)
        except (BroadsheetError, TimeoutError):
            return

    async def _read(self, name: str, *, is_from_within: bool = False) -> None:
        """Everything from the begin on, or from some offset that was committed."""
        offset = self.random.randrange(0, self.ends.get(name, 0) + 1) if is_from_within else 0
        operation = self.run.history.invoke(self.context.node, name, "read")
        try:
            async with asyncio.timeout(2 * TIMEOUT_SECONDS):
                parts = [chunk.data async for chunk in self.journals.read(name, offset)]
        except (BroadsheetError, TimeoutError):
            self.run.history.lose(operation)
            return
        self.run.history.ok(operation, Seen(offset=offset, content=b"".join(parts)))

    async def _registers(self, name: str) -> None:
        operation = self.run.history.invoke(self.context.node, name, "registers")
        try:
            async with asyncio.timeout(2 * TIMEOUT_SECONDS):
                registers = await self.journals.registers(name)
        except (BroadsheetError, TimeoutError):
            self.run.history.lose(operation)
            return
        self.run.history.ok(operation, registers.values.get("v", ""))

    async def _indexes(self, name: str) -> None:
        """Every stored producer index (journals.29)."""
        operation = self.run.history.invoke(self.context.node, name, "indexes")
        found: list[tuple[int, bytes]] = []
        try:
            async with asyncio.timeout(10 * TIMEOUT_SECONDS):
                for point in await self.journals.index_points(name):
                    index = await self.journals.producer_index(name, point)
                    found.append((index.offset, index.encoded))
        except (BroadsheetError, TimeoutError):
            self.run.history.lose(operation)
            return
        self.run.history.ok(operation, found)
