"""Pipeline query: a query without Spark, with its lasting state, its workers and its drivers.

`Query` holds what all processes share: the source's rows, and Spark's checkpoint as files that are written
once. A worker runs one task after the other and holds one stamper, like a Python process of an executor. A
driver STARTs, plans, lets its tasks run (sometimes twice at once), commits, and goes on. It may die, sleep,
be fenced or fail, and then a driver STARTs again. `sink.core` decides what is committed.
Source: pipelines.6-10; docs/concepts/exactly-once.md.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from broadsheet.base.machine import Effect
from broadsheet.base.marks import hit
from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.base.types import JournalName, NodeId
from broadsheet.errors import LocalProtocolError, NotFound, Refused, Retry
from broadsheet.message.framing import JSON_LINES
from broadsheet.message.stamper import Intent, Stamper
from broadsheet.message.uuid import ProducerId, producer_from
from broadsheet.runtime.failpoints import passed
from broadsheet.runtime.host import Host
from broadsheet.sink.core.driver import Driver
from broadsheet.sink.core.driver_events import (
    AbortAsked,
    Append,
    Appended,
    Call,
    CallLost,
    CallRefused,
    CommitAsked,
    ContentRead,
    Create,
    Created,
    DriverEvent,
    Fail,
    Finish,
    Pass,
    PlanAsked,
    ReadContent,
    ReadRegisters,
    RegistersRead,
    Report,
    StartAsked,
)
from broadsheet.sink.core.producers import HeldStamper
from broadsheet.sink.core.records import BatchPlan, Fence
from simulator.node_context import NodeContext
from simulator.workload import Violation
from simulator.workloads.pipeline_journals import Caller, Reply

COMMITS: Final = "commits/q"
OUTPUTS: Final = ("out/a", "out/b")
QUERY: Final = "q"
TASKS: Final = 2
FENCING: Final = "pipeline.fencing"
"""A label: a driver has sent its fence, and has no answer."""
ATTEMPTS_MAX: Final = 4
"""Attempts of a task before its driver fails."""
NAMES: Final[dict[type[Effect], str]] = {
    Create: "create",
    Append: "append",
    ReadRegisters: "registers",
    ReadContent: "read",
}


def output_of(row: int) -> JournalName:
    """Where a row goes; each task writes to each."""
    return JournalName(OUTPUTS[row // TASKS % len(OUTPUTS)])


class Query:
    """What outlives processes."""

    def __init__(self, knobs: dict[str, int], now: Callable[[], int]) -> None:
        self.knobs, self._now = knobs, now
        self.row_count = 0
        """Rows of the source: 0, 1, …"""
        self.offsets: dict[int, tuple[int, int]] = {}
        """By batch: rows `[begin, end)`; Spark's `offsets/<batch>`."""
        self.commits: dict[int, None] = {}
        """Batches whose COMMIT returned; Spark's `commits/<batch>`."""
        self.progress_at = 0
        self.restored = 0
        """How often somebody put another checkpoint in place."""
        self.is_calm = False
        """After healing: nobody STARTs for no reason."""
        self._newest: tuple[dict[int, tuple[int, int]], dict[int, None]] | None = None

    def progress(self) -> None:
        """Something was written to the checkpoint."""
        self.progress_at = self._now()

    def idle_ns(self) -> int:
        """For how long no driver has made progress."""
        return self._now() - self.progress_at

    def restore_older(self, batches: int, *, has_planned: bool) -> None:
        """An operator restores a backup that lacks the last batches.

        Args:
            has_planned: the offsets of the first that it lacks are in it.
        """
        if self._newest is not None or not self.commits:
            return
        self._newest = (dict(self.offsets), dict(self.commits))
        kept = max(self.commits) - batches
        planned = kept + has_planned
        self.offsets = {batch: each for batch, each in self.offsets.items() if batch <= planned}
        self.commits = {batch: None for batch in self.commits if batch <= kept}
        self.restored += 1
        self.progress()

    def restore_newest(self, error: Exception, seen: int) -> bool:
        """A driver was told that its checkpoint belongs to another history. Whether that is true.

        Args:
            seen: `restored`, when the driver read the checkpoint.
        """
        if seen != self.restored:
            return True  # The checkpoint that it read is not there any more.
        if self._newest is None:
            return False
        hit("pipeline.checkpoint_refused")
        (self.offsets, self.commits), self._newest = self._newest, None
        self.restored += 1
        return True


class RunTask(msgspec.Struct, frozen=True):
    """A driver's order to a worker."""

    key: tuple[str, int, int]
    plan: BatchPlan
    batch: int
    rows: tuple[int, ...]


class Ran(msgspec.Struct, frozen=True):
    """A worker's answer."""

    key: tuple[str, int, int]
    intents: tuple[Intent, ...] = ()
    is_failed: bool = False


class Worker:
    """One process that runs tasks, one after the other."""

    def __init__(self, context: NodeContext, journals: NodeId, query: Query) -> None:
        self.context, self.query = context, query
        self.caller = Caller(context, journals, Duration(query.knobs["timeout_ms"] * MILLISECOND))
        self.random = context.random("worker")
        self.held = HeldStamper()
        self.waiting: list[tuple[NodeId, RunTask]] = []
        self.known: dict[tuple[str, int, int], None] = {}
        """Orders that came: one that comes twice is one."""
        self.is_busy = False
        context.on_message = self._on_message

    def _on_message(self, sender: NodeId, message: object) -> None:
        if isinstance(message, Reply):
            self.caller.on_reply(message)
        elif isinstance(message, RunTask) and message.key not in self.known:
            self.known[message.key] = None
            self.waiting.append((sender, message))
            self._next()

    def _next(self) -> None:
        if self.is_busy or not self.waiting:
            return
        self.is_busy = True
        _Task(self, *self.waiting.pop(0))

    def ended(self, driver: NodeId, ran: Ran) -> None:
        """A task is over: tell its driver, and take the next."""
        self.is_busy = False
        self.context.send(driver, ran)
        self.context.timers.call_soon(self._next)

    def new_producer(self) -> ProducerId:
        """An id that nobody has."""
        return producer_from(self.random.getrandbits(48).to_bytes(6, "big"))


class _Task:
    """TASK: appends its rows as pending messages, each journal's in order, until all are acknowledged."""

    def __init__(self, worker: Worker, driver: NodeId, order: RunTask) -> None:
        self.worker, self.driver, self.order = worker, driver, order
        self.stamper: Stamper | None = None
        self.left: dict[str, list[bytes]] = {}
        self.attempts_left = worker.random.randrange(1, 10)
        if order.plan.is_committed(order.batch):
            hit("pipeline.task_drained")
            worker.ended(driver, Ran(order.key))
            return
        context = worker.context
        self.stamper = worker.held.take(order.plan, process=context.boot, new_producer=worker.new_producer)
        for row in order.rows:
            journal = output_of(row)
            body = b'{"row":%d,"batch":%d,"fence":"%s"}' % (row, order.batch, order.plan.fence.encode())
            content = self.stamper.pending(journal, JSON_LINES, body, context.time.wall())
            parts = self.left.setdefault(journal, [])
            if parts and worker.random.random() < 0.7:
                parts[-1] += content
            else:
                parts.append(content)
        passed("sink.task.framed")
        for name in list(self.left):
            self._append(name)
        self._finish_if_done()

    def _append(self, journal: str) -> None:
        content = self.left[journal][0]
        self.worker.caller.ask("append", journal, partial(self._appended, journal), content=content)

    def _appended(self, journal: str, reply: Reply) -> None:
        if self.stamper is None:
            return  # The task has failed meanwhile.
        if isinstance(reply.error, NotFound):
            self.worker.caller.ask("create", journal, lambda _: self._again(journal))
        elif reply.error is not None:
            self._again(journal)
        else:
            del self.left[journal][0]
            if self.left[journal]:
                self._append(journal)
            else:
                del self.left[journal]
                self._finish_if_done()

    def _again(self, journal: str) -> None:
        """A repetition is a duplicate by its clocks, wherever the first one lands."""
        self.attempts_left -= 1
        if self.stamper is None:
            return
        if not self.attempts_left:
            self.stamper = None
            self.worker.ended(self.driver, Ran(self.order.key, is_failed=True))
            return
        self.worker.context.timers.call_after(Duration(10 * MILLISECOND), partial(self._retry, journal))

    def _retry(self, journal: str) -> None:
        if self.stamper is not None:
            self._append(journal)

    def _finish_if_done(self) -> None:
        if self.left or self.stamper is None:
            return
        passed("sink.task.appended")
        stamper, self.stamper = self.stamper, None
        intents = stamper.intents()
        self.worker.held.keep(self.order.plan, stamper, intents, process=self.worker.context.boot)
        self.worker.ended(self.driver, Ran(self.order.key, tuple(intents)))


class DriverNode:
    """One boot of a driver's process: query after query, each under a fence of its own."""

    def __init__(
        self,
        context: NodeContext,
        journals: NodeId,
        workers: Sequence[NodeId],
        query: Query,
        driver: Callable[..., Driver],
    ) -> None:
        self.context, self.workers, self.query, self.make = context, workers, query, driver
        timeout = Duration(query.knobs["timeout_ms"] * MILLISECOND)
        self.caller = Caller(context, journals, timeout, tells_late=True)
        self.random = context.random("driver")
        self.host: Host[Any, Any] | None = None
        self.starts = self.task_number = 0
        self.batch = self.seen = 0
        self.is_started = False
        self.is_first = True
        """Whether the batch is the first of this START: its offsets may be logged already."""
        self.plan: BatchPlan | None = None
        self.tasks: dict[tuple[str, int, int], int] = {}
        self.done: dict[int, tuple[Intent, ...]] = {}
        self.attempts: dict[int, int] = {}
        context.on_message = self._on_message
        self._stand_by(first=True)

    def stop(self) -> None:
        """The query is stopped, as by its operator; it is started again later."""
        if self.host is not None:
            self._give_up()

    def _on_message(self, _sender: NodeId, message: object) -> None:
        if isinstance(message, Reply):
            self.caller.on_reply(message)
        elif isinstance(message, Ran):
            self._ran(message)

    def _stand_by(self, *, first: bool = False) -> None:
        wait = self.random.randrange(1, 50 if first else 400) * MILLISECOND
        self.context.timers.call_after(Duration(wait), self._look)

    def _look(self) -> None:
        """START where nobody seems to run the query, and now and then although somebody does."""
        patience = (200 + 300 * self.query.is_calm) * MILLISECOND
        is_idle = self.query.idle_ns() > patience or not self.query.progress_at
        if is_idle or (not self.query.is_calm and self.random.random() < 0.1):
            self._start()
        else:
            self._stand_by()

    def _start(self) -> None:
        self.starts += 1
        self.query.progress()  # Others wait for it now.
        self.is_first, self.is_started = True, False
        fence = Fence(f"{self.context.node}.{self.context.boot}.{self.starts}")
        performers: dict[type[Effect], Callable[[Any], None]] = {
            Finish: self._finished,
            Fail: self._failed,
            Pass: lambda effect: passed(effect.label),
            Report: lambda _: None,
        }
        performers |= dict.fromkeys(NAMES, self._call)
        patience = Duration(self.query.knobs["patience_ms"] * MILLISECOND)
        driver = self.make(COMMITS, fence, patience=patience)
        self.host = self.context.host(driver, performers, name="driver")
        self._ask(StartAsked())

    def _ask(self, asked: DriverEvent) -> None:
        if self.host is not None:
            self.host.deliver(asked)

    def _call(self, call: Call) -> None:
        host = self.host
        assert host is not None, "a driver that asks runs"
        options: dict[str, Any] = {}
        if isinstance(call, Append):
            options = {name: getattr(call, name) for name in ("content", "offset", "check", "union")}
        elif isinstance(call, ReadContent):
            options = {"offset": call.offset, "end": call.end}

        def done(reply: Reply) -> None:
            host.deliver(_answer(call, reply))

        self.caller.ask(NAMES[type(call)], call.journal, done, timeout=call.timeout, **options)
        if "author" in (options.get("union") or {}):
            passed(FENCING)

    def _finished(self, effect: Finish) -> None:
        if effect.result is None:
            self._give_up()
        elif not self.is_started:
            self.is_started = True  # Now Spark reads its checkpoint.
            self.seen = self.query.restored
            self.batch = max(self.query.commits, default=-1) + 1
            self._next_batch()
        elif self.seen != self.query.restored:
            self._give_up()  # Its checkpoint is gone.
        elif isinstance(effect.result, BatchPlan):
            self.plan = effect.result
            self._run_tasks()
        else:
            self.query.commits[self.batch] = None
            self.query.progress()
            self.batch, self.is_first, self.plan = self.batch + 1, False, None
            self._soon(self.query.knobs["trigger_ms"])

    def _failed(self, effect: Fail) -> None:
        error = effect.error
        if isinstance(error, LocalProtocolError) and not self.query.restore_newest(error, self.seen):
            self.context.world.fail(Violation(f"a checkpoint that nobody exchanged is refused: {error}"))
        self._abort()

    def _abort(self) -> None:
        """The batch failed, as far as Spark knows: it tells the sink, and ends the query."""
        intents = [intent for task in self.done.values() for intent in task]
        self.tasks = {}
        self._ask(AbortAsked(batch=self.batch, intents=intents))

    def _give_up(self) -> None:
        if self.host is not None:
            self.host.close()
        self.host, self.plan, self.tasks, self.done = None, None, {}, {}
        self._stand_by()

    def _next_batch(self) -> None:
        """Log the offsets of the next batch, or wait for rows."""
        query = self.query
        if self.seen != query.restored:
            self._give_up()
        elif self.batch in query.offsets:
            if not self.is_first:
                hit("pipeline.concurrent_driver")
                self._give_up()  # Another driver has planned it.
                return
            self._ask(PlanAsked())
        else:
            begin = query.offsets[self.batch - 1][1] if self.batch else 0
            if begin >= query.row_count:
                query.progress()
                self._soon(3)
                return
            count = self.random.randrange(1, query.knobs["batch_rows"])
            query.offsets[self.batch] = (begin, min(query.row_count, begin + count))
            query.progress()
            self._ask(PlanAsked())

    def _soon(self, wait_ms: int) -> None:
        """Look for the next batch a little later."""
        host = self.host
        wait = Duration(wait_ms * MILLISECOND)
        self.context.timers.call_after(wait, lambda: self._next_batch() if self.host is host else None)

    def _run_tasks(self) -> None:
        self.tasks, self.done, self.attempts = {}, {}, {}
        for task in range(TASKS):
            self._run(task)
            if self.random.randrange(1_000_000) < self.query.knobs["speculation_ppm"]:
                self._run(task)

    def _run(self, task: int) -> None:
        """One more attempt of a task, somewhere."""
        assert self.plan is not None, "tasks are planned"
        self.attempts[task] = self.attempts.get(task, 0) + 1
        if self.attempts[task] > ATTEMPTS_MAX:
            self._abort()
            return
        self.task_number += 1
        key = (str(self.context.node), self.context.boot, self.task_number)
        begin, end = self.query.offsets[self.batch]
        rows = tuple(row for row in range(begin, end) if row % TASKS == task)
        worker = self.workers[self.random.randrange(len(self.workers))]
        self.tasks[key] = task
        self.context.send(worker, RunTask(key, self.plan, self.batch, rows))
        late = Duration(2 * self.query.knobs["timeout_ms"] * MILLISECOND)
        self.context.timers.call_after(late, lambda: self._late(key))

    def _late(self, key: tuple[str, int, int]) -> None:
        task = self.tasks.get(key)
        if task is not None and task not in self.done and self.plan is not None:
            self._again(task)

    def _again(self, task: int) -> None:
        if self.seen == self.query.restored:
            self._run(task)
        else:
            self._give_up()

    def _ran(self, ran: Ran) -> None:
        task = self.tasks.pop(ran.key, None)
        if task is None or task in self.done or self.plan is None:
            return  # Another attempt was first, or the batch is over.
        if ran.is_failed:
            self._again(task)
            return
        self.done[task] = ran.intents
        if self.seen != self.query.restored:
            self._give_up()
        elif len(self.done) == TASKS:
            self.tasks = {}
            digest = "{}:{}".format(*self.query.offsets[self.batch])
            intents = [intent for task in range(TASKS) for intent in self.done[task]]
            self._ask(CommitAsked(batch=self.batch, query=QUERY, digest=digest, intents=intents))


def _answer(call: Call, reply: Reply) -> DriverEvent:
    """What a reply says to the driver."""
    error = reply.error
    if error is not None:
        if isinstance(error, Refused) and error.retry is not Retry.LATER:
            return CallRefused(call.call, error)
        return CallLost(call.call, error)
    match call:
        case Create():
            return Created(call.call)
        case Append():
            return Appended(call.call, reply.end)
        case ReadRegisters():
            return RegistersRead(call.call, reply.values)
        case _:
            return ContentRead(call.call, reply.content)
