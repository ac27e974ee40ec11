"""Provider `file` in tier 2: one node, clients that give up in the middle of a write, a disk that refuses.

A client that gives up cancels its call, so the node cancels the task that writes: the next write must wait
for the thread. One disk: crashes, power cuts, EIO and ENOSPC are in the budget, damage is not.
Source: control.2, control.4.
"""

from typing import ClassVar, Final

from broadsheet.access.authorizer import Authorizer
from broadsheet.base.time import MILLISECOND
from broadsheet.base.types import NodeId
from broadsheet.control.role import MetastoreConfig, MetastoreRole
from broadsheet.ports import Random
from broadsheet.runtime.identity import Identity
from broadsheet.runtime.role import Services
from broadsheet.wire.method import Method
from broadsheet.wire.server import Server
from simulator.plan import CLOCKS, CRASHES, DISK, NETWORK, Budget, Fault, Kind, Plan
from simulator.services import ServiceContext, ServiceWorkload
from simulator.workload import Episode
from simulator.workloads.metastore_service import CALL_SECONDS, MetastoreClient, verify_document

NODE: Final = NodeId("a")
STEPS: Final = (
    "label.metastore.file.written",
    "label.metastore.file.synced",
    "label.metastore.file.renamed",
    "disk.rename",
    "disk.sync",
    "disk.sync_dir",
)
"""Of a write: each is followed by a window of its own."""
READER: Final = "client3"
SLOW_NS: Final = 900 * MILLISECOND
GIVES_UP_MS: Final = 3
"""An impatient client gives up after less than twice this: about as long as a write takes."""


class MetastoreFileWorkload(ServiceWorkload):
    """The document of a node that stands alone."""

    name: ClassVar[str] = "metastore-file"
    clients: ClassVar[int] = 4
    budget: ClassVar[Budget] = Budget(kinds=(*CRASHES, *NETWORK, *CLOCKS, *DISK))

    def knobs(self, draw: Random) -> dict[str, int]:
        """How hurried and how impatient clients are, and how large the documents."""
        return {
            "think_ms": draw.randrange(5, 30),
            "impatient_percent": (0, 20, 50)[draw.randrange(0, 3)],
            "document_bytes": (20, 200, 4000)[draw.randrange(0, 3)],
        }

    def nodes(self, knobs: dict[str, int]) -> tuple[NodeId, ...]:
        """One."""
        return (NODE,)

    def may_die_of(self, error: BaseException) -> bool:
        """A sick disk: its error, or a document that is told as unreadable because of it."""
        return isinstance(error, OSError) or isinstance(error.__cause__, OSError)

    def extra_faults(self, draw: Random, plan: Plan) -> list[Fault]:
        """Crashes of the one node that there is, and a disk whose syncs take long, so that writes overlap."""
        times = [draw.randrange(300 * MILLISECOND, plan.safety_ns) for _ in range(4)]
        kinds = (Kind.KILL, Kind.POWER_CUT, Kind.SLOW_SYNC, Kind.SLOW_SYNC)
        faults = [
            Fault(at, kind, NODE, (1500 if kind is Kind.SLOW_SYNC else 100) * MILLISECOND)
            for at, kind in zip(times, kinds, strict=True)
        ]
        for _ in range(4):
            faults += self._slow_then_cut(draw, draw.randrange(300 * MILLISECOND, plan.safety_ns - SLOW_NS))
        for _ in range(draw.randrange(2, 5)):
            at = draw.randrange(300 * MILLISECOND, plan.safety_ns - 800 * MILLISECOND)
            faults += self._struck(draw, at)
        return faults

    def _slow_then_cut(self, draw: Random, at: int) -> list[Fault]:
        """Each step of a write takes long, so that others come in between; then the power goes."""
        slow = Fault(at, Kind.SLOW_SYNC, NODE, SLOW_NS, amount=draw.randrange(20, 300) * MILLISECOND)
        cut = at + draw.randrange(50 * MILLISECOND, SLOW_NS)
        return [slow, Fault(cut, Kind.POWER_CUT, NODE, draw.randrange(1, 100) * MILLISECOND)]

    def _struck(self, draw: Random, at: int) -> list[Fault]:
        """An end in a step of a write, a start at once, on a full disk perhaps, and then the power.

        What the start served must still be there.
        """
        steps, full = (*STEPS, *["disk.sync_dir"] * 3), draw.randrange(0, 2)
        place = f"{NODE}:{steps[draw.randrange(0, len(steps))]}"
        first = (Kind.KILL, Kind.KILL, Kind.POWER_CUT, Kind.SYNC_EIO)[draw.randrange(0, 4)]
        passage = 1 if full else draw.randrange(1, 4)  # Where the disk is full, no write comes by again.
        faults = [Fault(at, first, NODE, MILLISECOND, on=place, passage=passage)]
        if full:
            faults.append(Fault(at, Kind.DISK_FULL, NODE, 400 * MILLISECOND, on=place, passage=1))
        cut = at + draw.randrange(50, 700) * MILLISECOND
        return [*faults, Fault(cut, Kind.POWER_CUT, NODE, draw.randrange(1, 100) * MILLISECOND)]

    async def serve(self, context: ServiceContext, run: Episode) -> None:
        """The role, and the door."""
        services = Services()
        peers = {NODE: context.address}
        services.offer(
            Identity, Identity(node=NODE, cluster="sim", peers=peers, version="sim", is_insecure=True)
        )
        role = MetastoreRole()
        await role.start(context.scope.child("metastore"), context.ports, MetastoreConfig(), services)
        server = Server(
            context.ports,
            context.scope,
            services.every(Method),
            authorizer=Authorizer(None, time=context.ports.time),
            node=NODE,
            cluster="sim",
        )
        await server.listen(context.address, is_insecure=True)

    async def client(self, context: ServiceContext, run: Episode) -> None:
        """All read and write."""
        await _Client(context, run).work()

    def verify(self, run: Episode) -> None:
        """As of the majority."""
        verify_document(run.history.operations)


class _Client(MetastoreClient):
    """Gives up early now and then, while faults last; afterwards every call must succeed."""

    nodes = (NODE,)

    async def work(self) -> None:
        """One only reads: where a write takes long, the others soon wait for it."""
        while self.context.node == READER and not self.context.is_stopping:
            await self.read()
            await self.sleep(self.knobs["think_ms"])
        await super().work()

    def call_seconds(self) -> float:
        is_impatient = self.random.randrange(0, 100) < self.knobs["impatient_percent"]
        if not is_impatient or self.run.healed_at is not None:
            return CALL_SECONDS
        return self.random.randrange(1, 2 * GIVES_UP_MS * 1000) / 1e6
