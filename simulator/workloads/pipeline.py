"""The exactly-once pipeline in tier 1: the sink's driver machine, its producers, and everything around them.

Two drivers (one goes on while the other has fenced it), two workers (a task may run twice at once), one node
of journals that may be killed, cut off, slow or full, requests that come seconds late. Clients put rows into
the source and read the output; an operator deletes an output journal, or restores an older checkpoint.
Checked while it runs: no row is shown twice, nor before its batch is committed. At the end: `checkers/
pipelines.py`. Source: pipelines.6-10; docs/adr/0182.
"""

from collections.abc import Callable
from typing import ClassVar, Final

from broadsheet.base.time import MILLISECOND, SECOND, Duration
from broadsheet.base.types import NodeId
from broadsheet.ports import Random
from broadsheet.sink.core.driver import Driver
from simulator import coverage
from simulator.checkers.pipelines import Ledger, Reader, check_pipeline
from simulator.node_context import ClientContext, NodeContext
from simulator.plan import CLOCKS, CRASHES, NETWORK, Budget, Fault, Kind, Plan
from simulator.workload import Episode, MachineWorkload, Violation
from simulator.workloads.pipeline_journals import JournalsNode, Key, Reply, Request, Shelf
from simulator.workloads.pipeline_query import COMMITS, FENCING, OUTPUTS, DriverNode, Query, Worker, output_of

JOURNALS: Final = NodeId("n1")
DRIVERS: Final = (NodeId("d0"), NodeId("d1"))
WORKERS: Final = (NodeId("w0"), NodeId("w1"))
SHOWN_WITHIN: Final = Duration(4 * SECOND)
"""How long a client waits for its rows to be shown."""
POLL: Final = Duration(15 * MILLISECOND)
TIMEOUT: Final = Duration(300 * MILLISECOND)


class PipelineWorkload(MachineWorkload):
    """A query that reads rows and writes them to two journals, once each."""

    name: ClassVar[str] = "pipeline"
    scope: ClassVar[tuple[str, ...]] = ("sink/core",)
    clients: ClassVar[int] = 4
    budget: ClassVar[Budget] = Budget(
        kinds=(*CRASHES, *NETWORK, *CLOCKS, Kind.SYNC_EIO, Kind.DISK_FULL, Kind.DISK_FLAPS, Kind.SLOW_SYNC)
    )
    driver: ClassVar[Callable[..., Driver]] = Driver

    def __init__(self) -> None:
        self.chosen: dict[str, int] = {}
        self.query: Query | None = None
        self.node: JournalsNode | None = None
        self.drivers: dict[str, DriverNode] = {}
        self.taken: dict[Key, None] = {}
        self.ledger = Ledger()
        self.excused: dict[str, int] = {}
        self.deletions = 0

    def knobs(self, draw: Random) -> dict[str, int]:
        """How large batches are, how long answers are waited for, how often tasks run twice."""
        return {
            "batch_rows": draw.randrange(8, 60),
            "timeout_ms": (30, 100, 300)[draw.randrange(0, 3)],
            "patience_ms": (300, 1_000, 5_000)[draw.randrange(0, 3)],
            "speculation_ppm": (0, 50_000, 300_000)[draw.randrange(0, 3)],
            "trigger_ms": draw.randrange(0, 25),
            "think_ms": draw.randrange(2, 20),
            "late_ppm": (0, 5_000, 50_000)[draw.randrange(0, 3)],
            "parked_percent": (0, 0, 30)[draw.randrange(0, 3)],
        }

    def nodes(self, knobs: dict[str, int]) -> tuple[NodeId, ...]:
        """The drivers, the journals, the workers."""
        self.chosen = knobs
        return (*DRIVERS, JOURNALS, *WORKERS)

    def moments(self) -> tuple[str, ...]:
        """The labels of the sink are moments in this tier, too."""
        labels = coverage.places(self.scope).labels
        own = ("label.sink.task.appended", f"label.{FENCING}")
        return (*super().moments(), *(f"label.{label}" for label in labels), *own)

    def extra_faults(self, draw: Random, plan: Plan) -> list[Fault]:
        """A journal is deleted, a checkpoint restored, a driver sleeps behind a decision: in a third each."""
        faults = []
        if draw.random() < 0.33:
            labels = coverage.places(self.scope).labels
            for _ in range(draw.randrange(1, 6)):
                node, label = DRIVERS[draw.randrange(0, 2)], labels[draw.randrange(0, len(labels))]
                at, lasts = draw.randrange(0, plan.safety_ns), draw.randrange(300, 2_000) * MILLISECOND
                faults.append(Fault(at, Kind.PAUSE, node, lasts, on=f"{node}:label.{label}"))
        if draw.random() < 0.33:  # It is fenced in its sleep, between its fence and its acknowledgements.
            for _ in range(4):
                node, lasts = DRIVERS[draw.randrange(0, 2)], draw.randrange(250, 1_500) * MILLISECOND
                at = draw.randrange(500 * MILLISECOND, plan.safety_ns)
                faults.append(Fault(at, Kind.PAUSE, node, lasts, on=f"{node}:label.{FENCING}"))
        for action in ("delete", "restore"):
            if draw.random() < 0.33:
                at = 500 * MILLISECOND + draw.randrange(0, plan.safety_ns - 500 * MILLISECOND)
                amount = draw.randrange(1, 5)
                faults.append(Fault(at, Kind.ACTION, str(JOURNALS), amount=amount, action=action))
        return faults

    def act(self, run: Episode, fault: Fault) -> None:
        """What an operator does."""
        query = self.query
        assert query is not None, "processes were started"
        if fault.action == "restore":
            for driver in self.drivers.values():
                driver.stop()
            query.restore_older((fault.amount + 1) // 2, has_planned=fault.amount % 2 == 0)
        elif self.node is not None and not self.node.context.life.is_dead:
            name = OUTPUTS[fault.amount % len(OUTPUTS)]
            self.node.delete(name)

    def boot(self, context: NodeContext) -> None:
        """A process of the query, or the node of journals."""
        if self.query is None:
            self.query = Query(self.chosen, lambda: context.world.now)
        query = self.query
        if context.node == JOURNALS:
            late_ppm = 0 if query.is_calm else self.chosen.get("late_ppm", 0)
            self.node = JournalsNode(
                context,
                self.taken,
                lambda shelf: self._on_durable(shelf, context),
                late_ppm=late_ppm,
                parked_percent=0 if query.is_calm else self.chosen.get("parked_percent", 0),
            )
        elif context.node in WORKERS:
            Worker(context, JOURNALS, query)
        else:
            self.drivers[context.node] = DriverNode(
                context, JOURNALS, workers=WORKERS, query=query, driver=type(self).driver
            )

    def _on_durable(self, shelf: Shelf, context: NodeContext) -> None:
        """Read the commit journal as it grows, and remember what a deletion may have taken."""
        if (commits := shelf.journals.get(COMMITS)) is not None:
            try:
                self.ledger.read(commits.content)
            except Violation as error:
                context.world.fail(error)
        for name in shelf.deleted[self.deletions :]:
            self.deletions += 1
            self.excused[name] = self.newest_planned()

    def newest_planned(self) -> int:
        """The newest batch whose tasks may have appended anything."""
        assert self.query is not None
        return max((*self.query.offsets, len(self.ledger.batches)), default=0)

    def watch(self, run: Episode) -> None:
        """After healing nobody STARTs without need."""
        if self.query is not None:
            self.query.is_calm = run.healed_at is not None
            if self.query.is_calm and self.node is not None:
                self.node.late_ppm = self.node.parked_percent = 0

    async def client(self, context: ClientContext, run: Episode) -> None:
        """Put rows, and wait until they are shown."""
        assert self.query is not None, "processes were started"
        await _Client(self.query, self.ledger, context, run).work()

    def verify(self, run: Episode) -> None:
        """Every row of a committed batch once, and nothing else."""
        assert self.node is not None
        assert self.query is not None
        journals = self.node.synced.journals
        outputs: dict[str, bytes] = {
            name: bytes(journals[name].content) for name in OUTPUTS if name in journals
        }
        check_pipeline(self.ledger, outputs, excused=self.excused, place=output_of)


class _Client:
    """Somebody who puts rows into the source, and reads the output."""

    def __init__(self, query: Query, ledger: Ledger, context: ClientContext, run: Episode) -> None:
        self.query, self.ledger, self.context, self.run = query, ledger, context, run
        self.draws = context.draws("rows")
        self.readers = {name: (0, Reader()) for name in OUTPUTS}
        self.request = 0

    async def work(self) -> None:
        while not self.context.is_stopping:
            await self._put()
            await self.context.sleep(
                Duration(self.draws.below(2 * self.query.knobs["think_ms"]) * MILLISECOND)
            )

    async def _put(self) -> None:
        """Some rows; each is an operation that ends when it is shown."""
        waiting = {}
        for _ in range(2 + self.draws.below(12)):
            row, self.query.row_count = self.query.row_count, self.query.row_count + 1
            waiting[row] = self.run.history.invoke(self.context.name, f"row {row}", "put", row)
        give_up = self.context.now() + SHOWN_WITHIN
        while waiting and self.context.now() < give_up:
            await self.context.sleep(POLL)
            for name in OUTPUTS:
                await self._read(name)
                seen = self.readers[name][1].seen
                for row in [row for row in waiting if row in seen]:
                    self.run.history.ok(waiting.pop(row), seen[row].batch)
        for operation in waiting.values():
            self.run.history.lose(operation)

    async def _read(self, name: str) -> None:
        """Go on where the last read ended; from the beginning, where the journal was made again."""
        made, reader = self.readers[name]
        self.request += 1
        key = (self.context.name, 0, self.request)
        reply = await self.context.request(
            JOURNALS,
            Request(key, "read", name, offset=reader.end),
            is_answer=lambda told: isinstance(told, Reply) and told.key == key,
            timeout=TIMEOUT,
        )
        if reply is None or reply.error is not None:
            return
        if reply.made != made:
            self.readers[name] = (reply.made, Reader())
            return
        for row in reader.read(reply.content):
            self.ledger.refuse_uncommitted(row)
