"""Appends in tier 1: one journal's pipeline over a record log and a log of keys, clients by datagrams.

The data path below the machine is as small as can be: a record carries the content and the registers,
recovery takes what the log has, and the keys' log stands for the Keyspace. A request names the boot that it
is for, as a connection would: what comes late, or twice, is no second append. Two checks stand beside the
history's: no registers are shown that are not put (journals.11), and nothing is put but in order.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Final

import msgspec

from broadsheet.base.machine import Effect
from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.base.types import ByteOffset, NodeId
from broadsheet.errors import Status
from broadsheet.journal.core.append_admission import Limits
from broadsheet.journal.core.pipeline import Pipeline
from broadsheet.journal.core.pipeline_events import (
    Abort,
    Advance,
    ChunkStaged,
    Grant,
    Persist,
    Persisted,
    PersistRefused,
    PutRegisters,
    RegistersPut,
    Reply,
    Roll,
    RollAsked,
    Rollback,
    Stage,
    StreamEnded,
    StreamFailed,
    StreamOpened,
    StreamPlaced,
    Submitted,
)
from broadsheet.journal.core.registers import NO_REGISTERS, Condition, RegisterState
from broadsheet.ports import Random
from simulator.checkers.appends import Seen, Wanted, check_appends, content_of
from simulator.node_context import ClientContext, NodeContext
from simulator.plan import CLOCKS, CRASHES, NETWORK, Budget, Kind
from simulator.workload import Episode, MachineWorkload, Violation

NODE: Final = NodeId("n1")
JOURNAL: Final = "sim/j"
TIMEOUT: Final = Duration(400 * MILLISECOND)
ROLLS_EVERY: Final = 7
"""After so many appends the open fragment is called old."""
UNDECIDED: Final = (Status.UNKNOWN,)


class Ask(msgspec.Struct, frozen=True):
    """Where do you stand? Also the way to learn the boot."""

    request: int
    is_read: bool = False


class Put(msgspec.Struct, frozen=True):
    """Append this, if you are still that boot."""

    request: int
    boot: int
    wanted: Wanted
    stream_ns: int = 0
    """How long the content takes to come; 0: it is at hand."""
    breaks_off: bool = False


class Told(msgspec.Struct, frozen=True):
    """An answer to either."""

    request: int
    boot: int
    status: Status = Status.OK
    begin: int = 0
    end: int = 0
    register: str = ""
    content: bytes = b""


class Entry(msgspec.Struct, frozen=True):
    """A record of the journal's log."""

    begin: int
    content: bytes
    registers: RegisterState | None


class Job:
    """A request under way: what the pipeline calls a run."""

    def __init__(self, client: NodeId, put: Put) -> None:
        self.client, self.put = client, put

    def __repr__(self) -> str:
        return f"Job({self.client}, {self.put.request})"


class JournalNode:
    """One boot of the journal's node."""

    pipeline: ClassVar[Callable[..., Pipeline]] = Pipeline

    def __init__(self, context: NodeContext, *, fragment_bytes: int) -> None:
        self.context = context
        self.log, self.keys = context.log("journal"), context.log("keys")
        self.random = context.random("node")
        self.adopted = bytearray()
        registers = NO_REGISTERS
        for entry in self.log.records:
            self.adopted += entry.content
            registers = entry.registers or registers
        self.put_version = max((state.version for state in self.keys.records), default=0)
        for state in self.keys.records:
            registers = state if state.version > registers.version else registers
        head = ByteOffset(len(self.adopted))
        self.is_open = self.is_refusing = False
        self.asked: dict[tuple[NodeId, int], None] = {}
        self.jobs: dict[int, Job] = {}
        self.machine = type(self).pipeline(
            head=head,
            fragment_begin=head,
            fragment_length=fragment_bytes,
            registers=registers,
            limits=Limits(
                pending_bytes_max=64 << 10, append_bytes_max=16 << 10, flow_stall=Duration(300 * MILLISECOND)
            ),
        )
        performers: dict[type[Effect], Callable[[Any], None]] = {
            Persist: self._persist,
            PutRegisters: self._put_registers,
            Reply: self._reply,
            Advance: lambda _: None,
            Stage: self._stage,
            Grant: self._grant,
            Abort: self._abort,
            Rollback: self._rollback,
            Roll: self._roll,
        }
        self.host = context.host(self.machine, performers, name="pipeline")
        context.on_message = self._on_message
        self._open(registers)

    def _open(self, registers: RegisterState) -> None:
        """Both keys are put before the first byte of the epoch (journals.1)."""

        def opened() -> None:
            self.put_version = max(self.put_version, registers.version)
            self.is_open = True

        if not self.keys.append(registers, opened):
            self.context.timers.call_after(Duration(50 * MILLISECOND), lambda: self._open(registers))

    def _on_message(self, sender: NodeId, message: object) -> None:
        if not self.is_open:
            return
        if isinstance(message, Ask):
            end, registers = self.machine.committed_end, self.machine.committed_registers
            assert registers is not None
            content = bytes(self.adopted[:end]) if message.is_read else b""
            register = registers.values.get("v", "")
            told = Told(message.request, self.context.boot, end=end, register=register, content=content)
            self.context.send(sender, told)
        elif isinstance(message, Put) and message.boot == self.context.boot:
            key = (sender, message.request)
            if key not in self.asked:
                self.asked[key] = None
                self._submit(Job(sender, message))
                if len(self.asked) % ROLLS_EVERY == 0:
                    self.host.deliver(RollAsked())

    def _submit(self, job: Job) -> None:
        put, wanted = job.put, job.put.wanted
        condition = Condition(
            offset=None if wanted.offset is None else ByteOffset(wanted.offset),
            check=None if wanted.check is None else {"v": wanted.check or None},
            union=None if wanted.sets is None else {"v": wanted.sets},
        )
        if put.stream_ns:
            number = len(self.asked)
            self.jobs[number] = job
            self.host.deliver(StreamOpened(stream=number, run=job, condition=condition))
            return
        self.host.deliver(Submitted(run=job, count=1, length=len(wanted.content), condition=condition))

    def _persist(self, effect: Persist) -> None:
        if self.is_refusing:
            return
        job = effect.run
        assert isinstance(job, Job)
        token, content = effect.token, job.put.wanted.content
        entry = Entry(effect.begin, content, effect.registers)
        if not self.log.append(entry, lambda: self.host.deliver(Persisted(token=token))):
            self.is_refusing = True
            self.host.deliver(PersistRefused(token=token))
            return
        assert len(self.adopted) == effect.begin, "the log is what the pipeline says"
        self.adopted += content

    def _roll(self, effect: Roll) -> None:
        assert effect.fragment_begin == len(self.adopted), "a fragment begins at the head"

    def _rollback(self, effect: Rollback) -> None:
        self.is_refusing = False
        assert len(self.adopted) == effect.end, "what was refused is not there"

    def _put_registers(self, effect: PutRegisters) -> None:
        """Put, and now and then not be told whether it is."""
        state = effect.registers
        if state.version < self.put_version:
            self.context.world.fail(
                Violation(f"journals.11: version {state.version} put after {self.put_version}")
            )

        def done() -> None:
            self.put_version = max(self.put_version, state.version)
            is_known = self.random.random() > 0.1
            self.host.deliver(RegistersPut(version=state.version, is_known=is_known))

        if not self.keys.append(state, done):
            self.host.deliver(RegistersPut(version=state.version, is_known=False))

    def _reply(self, effect: Reply) -> None:
        job = effect.run
        assert isinstance(job, Job)
        shown = self.machine.committed_registers
        if shown is not None and shown.version > self.put_version:
            self.context.world.fail(
                Violation(
                    f"journals.11: registers of version {shown.version} are shown, {self.put_version} is put"
                )
            )
        register = shown.values.get("v", "") if shown is not None else ""
        told = Told(job.put.request, self.context.boot, effect.status, effect.begin, effect.end, register)
        self.context.send(job.client, told)

    def _stage(self, effect: Stage) -> None:
        """The content comes in two chunks, or breaks off after the first."""
        job, number = self.jobs[effect.stream], effect.stream
        length, half = len(job.put.wanted.content), Duration(job.put.stream_ns // 2)

        def came() -> None:
            if number in self.jobs:  # Else it was aborted.
                self.host.deliver(ChunkStaged(stream=number, length=length // 2))
                self.context.timers.call_after(half, ended)

        def ended() -> None:
            if number not in self.jobs:
                return
            if job.put.breaks_off:
                del self.jobs[number]
                self.host.deliver(StreamFailed(stream=number, status=Status.CANCELLED))
            else:
                self.host.deliver(ChunkStaged(stream=number, length=length - length // 2))
                self.host.deliver(StreamEnded(stream=number, length=length))

        self.context.timers.call_after(half, came)

    def _grant(self, effect: Grant) -> None:
        """Copy it to the tail and sync it there, which may fail for want of space."""
        number = effect.stream

        def placed() -> None:
            if self.jobs.pop(number, None) is not None:
                self.host.deliver(StreamPlaced(stream=number))

        if self.is_refusing or self.random.random() < 0.05:
            del self.jobs[number]
            self.host.deliver(StreamFailed(stream=number, status=Status.STORE_UNHEALTHY))
            return
        assert effect.begin == len(self.adopted), "the tail is where the pipeline says"
        self.context.timers.call_after(Duration(self.random.randrange(1, 3 * MILLISECOND)), placed)

    def _abort(self, effect: Abort) -> None:
        if self.jobs.pop(effect.stream, None) is not None:
            self.host.deliver(StreamFailed(stream=effect.stream, status=effect.status))


class AppendWorkload(MachineWorkload):
    """One journal's pipeline, and clients that append to it."""

    name: ClassVar[str] = "append"
    scope: ClassVar[tuple[str, ...]] = ("journal/core",)
    clients: ClassVar[int] = 4
    budget: ClassVar[Budget] = Budget(
        kinds=(*CRASHES, *NETWORK, *CLOCKS, Kind.SYNC_EIO, Kind.DISK_FULL, Kind.SLOW_SYNC)
    )
    node: ClassVar[type[JournalNode]] = JournalNode

    def knobs(self, draw: Random) -> dict[str, int]:
        """How hurried the clients are."""
        return {"think_ms": draw.randrange(2, 20)}

    def nodes(self, knobs: dict[str, int]) -> tuple[NodeId, ...]:
        """One."""
        return (NODE,)

    def boot(self, context: NodeContext) -> None:
        """A journal from its logs."""
        type(self).node(context, fragment_bytes=1 << context.random("fragments").randrange(6, 12))

    async def client(self, context: ClientContext, run: Episode) -> None:
        """One operation at a time."""
        await _Client(context, run).work()

    def verify(self, run: Episode) -> None:
        """One sequence of whole appends, each once, each true to its condition."""
        check_appends(run.history.operations)


class _Client:
    """One client, and what it knows."""

    def __init__(self, context: ClientContext, run: Episode) -> None:
        self.context, self.run = context, run
        self.draws = context.draws("operations")
        self.request = self.serial = 0
        self.boot: int | None = None
        self.end, self.register = 0, ""

    async def work(self) -> None:
        think = 2 * self.run.plan.knobs["think_ms"]
        while not self.context.is_stopping:
            if self.boot is None:
                await self._ask(is_read=False)
            elif self.draws.below(12) == 0:
                await self._read()
            else:
                await self._append()
            await self.context.sleep(Duration(self.draws.below(think) * MILLISECOND))
        await self._read()

    async def _ask(self, *, is_read: bool) -> Told | None:
        self.request += 1
        shown = self.run.history.invoke(self.context.name, JOURNAL, "registers")
        told = await self._wait(Ask(self.request, is_read))
        if told is None:
            self.run.history.lose(shown)
        else:
            self.run.history.ok(shown, told.register)
            self.boot, self.end, self.register = told.boot, told.end, told.register
        return told

    async def _read(self) -> None:
        operation = self.run.history.invoke(self.context.name, JOURNAL, "read")
        told = await self._ask(is_read=True)
        if told is None:
            self.run.history.lose(operation)
        else:
            self.run.history.ok(operation, Seen(0, told.content))

    async def _append(self) -> None:
        assert self.boot is not None
        put = self._put(self.boot)
        operation = self.run.history.invoke(self.context.name, JOURNAL, "append", put.wanted)
        told = await self._wait(put)
        if told is None or told.status in UNDECIDED:
            self.run.history.lose(operation)
            self.boot = None
            return
        self.end, self.register = told.end, told.register
        if told.status is Status.OK:
            self.run.history.ok(operation, (told.begin, told.end))
        else:
            self.run.history.reject(operation, told.status.name)

    def _put(self, boot: int) -> Put:
        draws = self.draws
        self.request, self.serial = self.request + 1, self.serial + 1
        kind = draws.below(10)
        check = self.register if kind in (0, 1, 7) else None
        sets = f"{self.context.name}.{self.serial}" if check is not None or kind == 4 else None
        content = content_of(self.context.name, self.serial, check=check, sets=sets, length=draws.below(120))
        wanted = Wanted(
            content=content, offset=self.end if kind in (2, 3, 8) else None, check=check, sets=sets
        )
        is_stream = kind in (7, 8, 9)
        is_slow = draws.below(20) == 0 and self.run.healed_at is None
        stream_ns = draws.below(400 * MILLISECOND if is_slow else 3 * MILLISECOND) + 1
        return Put(
            self.request,
            boot,
            wanted,
            stream_ns=stream_ns if is_stream else 0,
            breaks_off=is_stream and draws.below(8) == 0,
        )

    async def _wait(self, message: Ask | Put) -> Told | None:
        request = message.request
        found = await self.context.request(
            NODE,
            message,
            is_answer=lambda told: isinstance(told, Told) and told.request == request,
            timeout=TIMEOUT,
        )
        return found if isinstance(found, Told) else None
