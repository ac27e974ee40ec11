"""A short life of one journal, recorded on a simulated disk, and the judge of what a power cut leaves of it.

Spool files, the journals' log and the key space's log are all on the disk; stored fragments are kept by the
test, since a store answers only for what it has. One client appends, so that the content after each append is
known: what a restart shows must be the content, and the registers, behind some append that is not before the
last acknowledged one (J1, J3, J6, W2).
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

from broadsheet.base.types import ByteOffset, JournalName, NodeId
from broadsheet.errors import BroadsheetError, Status
from broadsheet.journal.config import JournalsConfig
from broadsheet.journal.core.pipeline_events import Submitted
from broadsheet.journal.core.registers import Condition
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec, registers_key
from broadsheet.journal.keys import decode_registers
from broadsheet.journal.replica import Replica
from broadsheet.journal.service import UnaryAppend
from broadsheet.journal.streamed_append import StreamedAppend
from broadsheet.runtime.role import Ports, Services, StoreNotes
from broadsheet.runtime.scope import Scope
from broadsheet.runtime.time import LoopTimers
from broadsheet.wal.config import KIB
from simulator import journalnode
from simulator.crashstates import CrashState, crash_states, record
from simulator.disk import SimDisk
from simulator.journalnode import JOURNALS, KEYSPACE, Shelf, Stored, start, status_of
from tests.support.faulty import FaultyDisk
from tests.wal.harness import TestTime

__all__ = ["JOURNALS", "KEYSPACE", "NAME", "TURNS_MAX", "Running", "Shelf", "Stored", "running"]

NAME: Final = JournalName("crash/j")
NODE: Final = NodeId("n1")
FRAGMENT_BYTES: Final = 6 * KIB
TURNS_MAX: Final = 5_000
JUDGE_SECONDS_MAX: Final = 30.0
"""Of a restart that takes some milliseconds: it does not end."""


class Running(journalnode.Running):
    """The roles of one node that runs, and its one journal."""

    async def content(self) -> tuple[Replica, bytes]:
        """The journal, and every byte that a reader is shown."""
        return await self.content_of(NAME)


@asynccontextmanager
async def running(
    disk: SimDisk,
    shelf: Shelf,
    *,
    seed: int,
    crashes: list[BaseException],
    is_last: bool = True,
    config: JournalsConfig = JOURNALS,
    faulty: FaultyDisk | None = None,
    boot_id: str = "kernel-1",
    open_files_max: int = 1 << 20,
    store_notes: StoreNotes | None = None,
) -> AsyncIterator[Running]:
    """A node over `disk`; where it is the last one, its end is not recorded.

    Args:
        crashes: takes what would have ended the process.
        faulty: what the node has of `disk`.
        boot_id: of the kernel: another one says that it has rebooted.
        open_files_max: descriptors that the process may have.
        store_notes: what the node keeps of its stores; None if it has used every one.
    """
    network: Any = None  # Nobody calls it here: the roles under test have no door.
    ports = Ports(
        time=TestTime(boot_id),
        timers=LoopTimers(asyncio.get_running_loop()),
        disk=faulty or disk,
        network=network,
        objects=shelf.at,
        random=lambda purpose: random.Random(f"{seed} {purpose}"),
        crash=crashes.append,
        open_files_max=open_files_max,
        store_notes=store_notes,
    )
    scope, services = Scope("node", crash=crashes.append), Services()
    try:
        await start(scope, ports, services, node=NODE, keyspace=KEYSPACE, journals=config)
        node = Running(services)
        yield node
        node.broker.check()
    finally:
        if is_last:
            disk.state.tape = None
        await scope.close()


class History:
    """What the client did, and what it was promised."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.tape = record(self.disk)
        self.shelf = Shelf(self.tape, {})
        self.content = b""
        self.registers: dict[int, dict[str, str]] = {0: {}}
        """The registers behind each append, by the offset at which it ends."""
        self.first = 0
        """Steps before this are the making of an empty node, which other tests judge."""
        self._random = random.Random("content")

    async def append(self, node: Running, length: int, condition: Condition | None = None) -> None:
        """One append in one record of the log."""
        replica = await node.broker.replica(NAME)
        content = self._random.randbytes(length)
        run = UnaryAppend(content)
        self._note(content, condition)
        replica.deliver(Submitted(run=run, count=1, length=length, condition=condition))
        await self._acknowledged(run)

    async def stream(self, node: Running, length: int, condition: Condition | None = None) -> None:
        """One append through the synced spool file."""
        replica = await node.broker.replica(NAME)
        append = StreamedAppend(replica, len(self.registers), condition)
        await append.begun
        content = self._random.randbytes(length)
        self._note(content, condition)
        for at in range(0, length, 2000):
            append.put(content[at : at + 2000])
            await asyncio.sleep(0)
        append.finish()
        await self._acknowledged(append)

    async def break_off(self, node: Running, length: int) -> None:
        """A client that leaves in the middle: nothing of its content is ever shown."""
        append = StreamedAppend(await node.broker.replica(NAME), len(self.registers) + 1_000, None)
        await append.begun
        append.put(self._random.randbytes(length))
        await asyncio.sleep(0)
        append.fail(Status.CANCELLED)

    def _note(self, content: bytes, condition: Condition | None) -> None:
        registers = {**self.registers[len(self.content)], **((condition and condition.union) or {})}
        self.content += content
        self.registers[len(self.content)] = registers

    async def _acknowledged(self, run: UnaryAppend | StreamedAppend) -> None:
        commit = await run.answered
        assert commit.end == len(self.content)
        self.tape.mark(("acknowledged", commit.end))

    # --- the judge

    async def judge(self, state: CrashState, *, seed: int) -> str | None:
        """What is wrong with what a restart shows in this state; None where nothing is."""
        acknowledged = max(
            (mark[1] for mark in state.marks if mark[0] == "acknowledged"),  # type: ignore[index]
            default=0,
        )
        stored = {mark[1]: mark[2] for mark in state.marks if mark[0] == "stored"}  # type: ignore[index]
        crashes: list[BaseException] = []
        try:
            async with (
                asyncio.timeout(JUDGE_SECONDS_MAX),
                running(state.disk(), Shelf(None, stored), seed=seed, crashes=crashes) as node,
            ):
                problem = await self._look(node, acknowledged)
        except (BroadsheetError, OSError, AssertionError) as error:
            problem = f"the restart failed: {error!r}"
        return f"the node ended: {crashes[0]!r}" if crashes else problem

    async def _look(self, node: Running, acknowledged: int) -> str | None:
        replica, content = await node.content()
        if replica.stop_reason:
            return f"it takes no appends: {replica.stop_reason}"
        if len(content) != replica.end or content != self.content[: len(content)]:
            return f"{len(content)} bytes are shown of {replica.end}, and they are not what was appended"
        if replica.end < acknowledged:
            return f"the end is {replica.end}, and {acknowledged} was acknowledged"
        if replica.end not in self.registers:
            return f"the end {replica.end} is in the middle of an append"
        pair = node.keyspace.get(registers_key(NAME))
        known = decode_registers(pair).values if pair is not None else {}
        shown = replica.pipeline.committed_registers
        expected = self.registers[replica.end]
        if shown is None or shown.values != expected or known != expected:
            return f"the registers at {replica.end} are {shown} and {known} in their key, not {expected}"
        run = UnaryAppend(b"and one more")
        replica.deliver(
            Submitted(run=run, count=1, length=12, condition=Condition(offset=ByteOffset(replica.end)))
        )
        status = await status_of(run.answered)
        return None if status is Status.OK else f"another append is refused: {status}"


async def _until(condition: Any, what: str) -> None:
    for _ in range(TURNS_MAX):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError(f"it never comes to this: {what}")


def _sets(value: int) -> Condition:
    return Condition(union={"v": str(value)})


async def live(history: History) -> None:
    """Appends small and spooled, registers, rolls, checkpoints and trims, with a restart in the middle."""
    crashes: list[BaseException] = []
    async with running(history.disk, history.shelf, seed=1, crashes=crashes, is_last=False) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=FRAGMENT_BYTES)))
        await node.broker.replica(NAME)
        await _idle()
        history.first = len(history.tape.steps)
        await history.append(node, 700)
        await history.append(node, 40, _sets(1))
        for length in (900, 3000, 20, 2600):  # The third of these is behind a checkpoint and a roll.
            await history.append(node, length)
        await history.stream(node, 5000)
        await history.append(node, 100, _sets(2))
        await history.break_off(node, 1500)
        await history.append(node, 300)
        await history.stream(node, 2500, _sets(3))
        await history.append(node, 1800)
    async with running(history.disk, history.shelf, seed=2, crashes=crashes) as node:
        for length in (1200, 2500, 10):
            await history.append(node, length)
        replica = await node.broker.replica(NAME)
        await _until(lambda: len(replica.index) >= 2, "two fragments are stored")
        await _idle()
        for length in (4000, 1500, 300):
            await history.append(node, length)
        await history.append(node, 60, _sets(4))
        for length in (2000, 3500, 900):
            await history.append(node, length)
    assert not crashes


async def _idle() -> None:
    """Let what goes on beside appends come to its end."""
    for _ in range(200):
        await asyncio.sleep(0)


def recorded() -> History:
    """Play it once."""
    history = History()
    asyncio.run(live(history))
    return history


def search(*, atoms_max: int, states_max: int = 1 << 60, wrong_max: int = 5) -> tuple[int, list[str]]:
    """Judge crash states: all, or `states_max` that are spread over all.

    Returns:
        How many there were, and what is wrong with any.
    """
    history = recorded()

    def states() -> Iterator[CrashState]:
        return crash_states(history.tape, atoms_max=atoms_max, first=history.first)

    total = sum(1 for _ in states())

    async def judge() -> tuple[int, list[str]]:
        wrong: list[str] = []
        count = 0
        for number, state in enumerate(states()):
            if number * states_max // total < count:
                continue  # Of the rest every so many is left out.
            count += 1
            if (problem := await history.judge(state, seed=100 + number)) is not None:
                wrong.append(f"at step {state.position}, state {number}: {problem}")
                if len(wrong) >= wrong_max:
                    break
        return count, wrong

    return asyncio.run(judge())


def hunt() -> str | None:
    """What a few hundred states show; None where nothing is wrong."""
    _, wrong = search(atoms_max=6, states_max=400, wrong_max=1)
    return wrong[0] if wrong else None
