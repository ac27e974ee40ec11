"""Lifecycle's node: one process whose journals are made, written, altered, trimmed and deleted by clients.

What a client is about to ask for, and what it was told, is noted before and after (`lifemodel.py`). Of one
journal one client at a time changes settings or existence, as an operator would; appends, trims and reads go
on meanwhile. Source: J1-J7, journals.32.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final, Protocol

from broadsheet.base.time import MILLISECOND, SECOND, Duration
from broadsheet.base.types import ByteOffset, JournalName, NodeId, Revision
from broadsheet.errors import BroadsheetError, Status, Unknown
from broadsheet.journal.config import JournalsConfig
from broadsheet.journal.core.pipeline_events import RollAsked, Submitted
from broadsheet.journal.core.registers import Condition
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.journal.messages import SpecChange
from broadsheet.journal.replica import Replica
from broadsheet.keyspace.local.keyspace import KeyspaceConfig
from broadsheet.runtime.role import ClosingNotice, Services
from broadsheet.runtime.scope import Scope
from simulator.clock import NodeClock
from simulator.crash_episode import FULL_BYTES, NODE, CrashEpisode
from simulator.disk import SimDisk
from simulator.disk_state import Tape
from simulator.entropy import stream
from simulator.journalmodel import Append
from simulator.journalnode import Running, StreamedTold, UnaryTold, start
from simulator.lifemodel import ENDLESS, MADE_LABEL, Account, Incarnation
from simulator.lifestore import LifeStore
from simulator.workload import Violation
from simulator.world import Life

OPENS_SECONDS: Final = 120
LATE_NS: Final = (0, 0, 20 * MILLISECOND, 3 * SECOND)
ROUND_SECONDS: Final = 130
"""In a leap of time each retention looks at least once (`trimming.RETRY`)."""
LEAPS_SECONDS: Final = 1800
AGES: Final = (0, 60 * SECOND, 100 * SECOND, 900 * SECOND)
BYTES: Final = (0, 1 << 10, 3 << 10, 12 << 10)
LENGTHS: Final = (1 << 10, 2 << 10, 5 << 10)


class Setting(Protocol):
    """Where a process lives: its run, and its configuration."""

    @property
    def run(self) -> CrashEpisode:
        """Which run."""
        ...

    @property
    def keyspace(self) -> KeyspaceConfig:
        """A small one."""
        ...

    @property
    def journals(self) -> JournalsConfig:
        """Small ones."""
        ...


class LifecycleNode:
    """One process, and the clients that it has."""

    def __init__(
        self,
        setting: Setting,
        life: Life,
        disk: SimDisk,
        account: Account,
        *,
        tape: Tape | None,
        random: Random,
    ) -> None:
        self.setting, self.life, self.disk, self.account = setting, life, disk, account
        self.run, self.random, self.tape = setting.run, random, tape
        self.crashes: list[BaseException] = []
        self.does_end = False
        """Whether a failed call that ends the process ends its life at once."""
        self.scope = Scope("node", crash=self._crashed)
        self.running: Running
        self._services = Services()
        self._streams = 0
        self._leaps_left = LEAPS_SECONDS
        self._changing: dict[JournalName, None] = {}
        self.tasks: list[asyncio.Task[None]] = []
        clock = life.clock
        assert isinstance(clock, NodeClock)
        self.clock = clock
        draws = stream(self.run.plan.seed, "lifecycle", "store", self.run.lives)
        self.store = LifeStore(
            account, draws, note=self.note, wall=clock.wall, end_of=self._end_of, found=self.crashes.append
        )

    def note(self, mark: object) -> None:
        """It is known from now on, also to who finds this disk."""
        if self.life.is_dead:
            return
        self.account.note(mark)
        if self.tape is not None:
            self.tape.mark(mark)

    def _crashed(self, error: BaseException) -> None:
        self.crashes.append(error)
        if self.does_end:
            self.run.world.end(self.life)

    def _end_of(self, name: str) -> int:
        try:
            return self.running.broker.status(name).end or ENDLESS
        except (AttributeError, BroadsheetError):
            return ENDLESS

    async def open(self) -> None:
        """Start the roles, with entropy of their own."""
        ports = self.run.ports(self.life, self.disk, objects=self.store.at, crash=self._crashed)
        await asyncio.wait_for(
            start(
                self.scope,
                ports,
                self._services,
                node=NodeId(NODE),
                keyspace=self.setting.keyspace,
                journals=self.setting.journals,
            ),
            OPENS_SECONDS,
        )
        self.running = Running(self._services)

    async def stop(self) -> None:
        """An orderly end."""
        self._services.one(ClosingNotice).act()
        await self.scope.close()

    def check(self) -> None:
        """Raise what was found meanwhile."""
        self.running.broker.check()
        if self.crashes:
            error = self.crashes[0]
            raise error if isinstance(error, Violation) else Violation(f"the node ended: {error!r}")

    # --- what clients do

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Somebody does it, whoever waits."""
        task = asyncio.ensure_future(work)
        self.tasks.append(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.crashes.append(error)

    async def make(self, name: JournalName, *, length: int | None = None) -> Incarnation | None:
        """Make a journal; None: it was not made, or nobody knows."""
        random, number = self.random, len(self.account.incarnations)
        fragment = FragmentSpec(
            length=length or random.choice(LENGTHS),
            retention=Duration(random.choice((0, 0, *AGES))),
            retained_bytes=random.choice((0, 0, *BYTES)),
        )
        spec = JournalSpec(name, fragment, {MADE_LABEL: str(number)})
        self.note(("asked", number, name, spec))
        try:
            info = await self.running.broker.create(spec)
        except Unknown:
            return None
        except BroadsheetError:
            self.note(("never", number))
            return None
        self.note(("made", number, info.create_revision, info.spec))
        if self.account.is_map_ever_lost:
            owners = [self.account.of_object(key, stored) for key, stored in self.account.stored.items()]
            if any(each is not None and each.name == name and each.number != number for each in owners):
                self.note(("muddled", number))  # Nobody but the lost key knew that these were of the name.
        return self.account.incarnations[number]

    async def delete(self, it: Incarnation) -> bool:
        """Delete a journal; whether it was."""
        before = self.running.keyspace.revision
        was_doomed = it.is_doomed
        self.note(("doomed", it.number))
        try:
            await self.running.broker.delete(it.name, _of(it))
        except Unknown:
            return False
        except BroadsheetError:
            if not was_doomed:
                self.note(("spared", it.number))
            return False
        self.note(("deleted", it.number, before + 1, self.running.keyspace.revision + 1))
        return True

    async def alter(self, it: Incarnation, change: SpecChange) -> bool:
        """Alter a journal; whether it was."""
        self.note(("altering", it.number, change))
        try:
            info = await self.running.broker.alter(it.name, _of(it), change)
        except Unknown:
            return False
        except BroadsheetError:
            self.note(("unaltered", it.number))
            return False
        if info.spec not in it.specs:
            self.crashes.append(Violation(f"{it.key}: altered by {change}, it is {info.spec}"))
        self.note(("altered", it.number, change, info.spec, info.mod_revision))
        with suppress(BroadsheetError):  # What is out of the index by then, a retention has removed.
            self.note(("begins", it.number, self.running.broker.status(it.name).begin or 0))
        return True

    async def trim(self, it: Incarnation, below: int) -> bool:
        """Trim a journal; whether it was."""
        self.note(("trimming", it.number, below))
        try:
            trimming = await self.running.broker.trimming(it.name, _of(it))
            told = await trimming.trim(ByteOffset(below))
        except BroadsheetError:
            return False
        self.note(("trimmed", it.number, told.begin))
        return True

    def change(self) -> SpecChange:
        """Some change of a spec."""
        random = self.random
        change = SpecChange(labels={"changed": str(random.randrange(1000))})
        chance = random.random()
        if chance < 0.3:
            return change
        if chance < 0.55:  # Whoever loses this must not go on as before.
            return SpecChange(retention=Duration(0), retained_bytes=0)
        return SpecChange(
            length=random.choice((None, *LENGTHS)),
            flush_interval=random.choice((None, None, Duration(60 * SECOND), Duration(0))),
            retention=random.choice((None, Duration(0), *map(Duration, AGES))),
            retained_bytes=random.choice((None, 0, *BYTES)),
            labels=change.labels if random.random() < 0.5 else {},
        )

    def _condition(self, replica: Replica) -> Condition | None:
        random = self.random
        if random.random() < 0.6:
            return None
        registers = replica.log_registers.values if replica.log_registers is not None else {}
        name = f"r{random.randrange(2)}"
        return Condition(
            offset=replica.pipeline.adopted_end if random.random() < 0.3 else None,
            check={name: registers.get(name)} if random.random() < 0.3 else None,
            union={name: str(len(self.account.model.appends))} if random.random() < 0.15 else None,
            attempt=random.randbytes(16) if random.random() < 0.5 else b"",
        )

    def append(
        self, it: Incarnation, replica: Replica, length: int, *, condition: Condition | None = None
    ) -> UnaryTold:
        """Append to a journal."""
        append = self.account.model.note(it.key, self.random.randbytes(length), condition)
        run = UnaryTold(append.content, partial(self._told, append))
        replica.deliver(Submitted(run=run, count=1, length=len(append.content), condition=condition))
        return run

    def _told(self, append: Append, status: Status, begin: int, _end: int) -> None:
        if status is Status.OK:
            self.run.acked += 1
            self.note(("acknowledged", append.number, begin))
        elif status is not Status.UNKNOWN:
            self.run.refused += 1
            self.note(("refused", append.number))

    async def stream(self, it: Incarnation, replica: Replica) -> None:
        """Append in pieces; some clients leave in the middle."""
        random = self.random
        is_left = random.random() < 0.2
        body = random.randbytes(random.randrange(5000))
        append = self.account.model.note(it.key, body, self._condition(replica), is_left=is_left)
        self._streams += 1
        try:
            streamed = StreamedTold(replica, self._streams, append.condition)
            streamed.told = partial(self._told, append)
            await streamed.begun
        except BroadsheetError:
            return
        for at in range(0, len(append.content), 1500):
            if is_left and at >= 3000:
                break
            streamed.put(append.content[at : at + 1500])
            await asyncio.sleep(random.choice((0, 0, 0.0002)))
        if is_left:
            streamed.fail(Status.CANCELLED)
        else:
            streamed.finish()
        with suppress(BroadsheetError, asyncio.CancelledError):
            await streamed.answered

    async def _change(self, name: JournalName, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        finally:
            self._changing.pop(name, None)

    def _begin_change(self, name: JournalName, work: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
        self._changing[name] = None
        return self.spawn(self._change(name, work))

    async def operate(self, name: JournalName) -> None:
        """Something that a client, an operator or the world does next."""
        random, chance = self.random, self.random.random()
        if self.store.is_shut and random.random() < 0.05:
            self.store.is_shut = False
        it = self.account.must_be(name)
        if it is None:
            if name not in self._changing:
                await asyncio.wait([self._begin_change(name, self.make(name))], timeout=1)
            return
        if chance < 0.12:
            await self._govern(it, chance)
        elif chance < 0.19:
            self._hinder(chance)
        elif chance < 0.22:
            await self._leap(random.choice((5, ROUND_SECONDS, ROUND_SECONDS, 1000)))
        else:
            with suppress(BroadsheetError):
                replica = await self.running.broker.replica(name, _of(it))
                await self._write(it, replica, chance)

    async def _govern(self, it: Incarnation, chance: float) -> None:
        random, name = self.random, it.name
        if chance < 0.03:
            ends = list(it.acknowledged.values()) or [0]
            below = random.choice((*random.sample(ends, min(3, len(ends))), max(ends) + 100_000))
            self.spawn(_quiet(self.trim(it, below)))
            return
        if name in self._changing:
            return
        work = self.alter(it, self.change()) if chance < 0.09 else self.delete(it)
        task = self._begin_change(name, work)
        if random.random() < 0.7:
            await asyncio.wait([task], timeout=random.choice((0.001, 1, 20)))

    def _hinder(self, chance: float) -> None:
        """The disk, or the store, is slow, full or away for a while, or is well again."""
        random, state, store = self.random, self.disk.state, self.store
        if chance < 0.13:
            state.health.slow_ns = random.choice((0, 0, 300_000, 5_000_000))
        elif chance < 0.15:
            is_full = state.quota_bytes < FULL_BYTES
            state.quota_bytes = FULL_BYTES if is_full else state.used() + random.randrange(20_000)
        elif chance < 0.17:
            store.is_shut = not store.is_shut
        else:
            store.fails_percent, store.late_ns = random.choice((0, 0, 20, 60)), random.choice(LATE_NS)

    async def _write(self, it: Incarnation, replica: Replica, chance: float) -> None:
        random = self.random
        if chance < 0.27:
            self.spawn(self.stream(it, replica))
        elif chance < 0.33:
            replica.deliver(RollAsked())
        elif chance < 0.36:
            slot = self.running.broker._slots.get(it.name)  # noqa: SLF001 - as the log asks for it.
            if slot is not None and slot.housekeeping is not None:
                slot.housekeeping.checkpoint()
        else:
            length = random.randrange(random.choice((20, 60, 300, 900, 2500)))
            run = self.append(it, replica, length, condition=self._condition(replica))
            if random.random() < 0.6:
                await asyncio.wait([run.answered], timeout=30)

    async def _leap(self, seconds: int) -> None:
        """Time passes, as far as a life goes."""
        if self._leaps_left >= seconds:
            self._leaps_left -= seconds
            await asyncio.sleep(seconds)

    async def rest(self, seconds: float) -> None:
        """Let the node do what it does by itself."""
        await asyncio.sleep(seconds)

    def check_promises(self) -> None:
        """Raise a broken promise that was found meanwhile; a process may have ended."""
        found = next((error for error in self.crashes if isinstance(error, Violation)), None)
        if found is not None:
            raise found

    def heal(self) -> None:
        """Nothing is against it any more."""
        self.store.is_shut, self.store.fails_percent, self.store.late_ns = False, 0, 0
        self.store.calls_left = None
        self.disk.state.quota_bytes, self.disk.state.health.slow_ns = FULL_BYTES, 0


async def _quiet(work: Coroutine[Any, Any, object]) -> None:
    await work


def _of(it: Incarnation) -> Revision | None:
    return Revision(it.revision) if it.revision else None
