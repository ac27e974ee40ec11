"""Journals of one node, tier 3: seeded histories, and what crashes, damage and restarts leave of them.

A seed is a few epochs. In each a node lives some lives on one disk, with small fragments, checkpoints and log
segments: appends of all kinds (with conditions, in streams, that break off), rolls, uploads to a store that
is shut at times, full and slow disks, ends of all kinds. Then disks that a power cut could have left are
started, and must show what was promised (`journalmodel.py`) and take another append; others are damaged
first, and must show it or say what is lost, keep what they had, and go on once the loss is accepted. One of
them is what the next epoch begins with. The log by itself is judged by `log`, the key space by `keyspace`.
Source: J1-J7, W6, W7; `docs/protocols/journals.md`.
"""

import asyncio
import errno
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

from msgspec.structs import replace

from broadsheet.base.time import MILLISECOND
from broadsheet.base.types import ByteOffset, JournalName, NodeId
from broadsheet.errors import BroadsheetError, Corrupt, Status
from broadsheet.journal.committed_reads import read
from broadsheet.journal.config import JournalsConfig
from broadsheet.journal.core.pipeline_events import RollAsked, Submitted
from broadsheet.journal.core.registers import Condition
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec, registers_key, spec_key
from broadsheet.journal.keys import decode_registers
from broadsheet.journal.replica import Replica
from broadsheet.journal.service import UnaryAppend
from broadsheet.journal.set_aside import LOST_SUFFIX
from broadsheet.keyspace.local.keyspace import KeyspaceConfig
from broadsheet.ports import Random
from broadsheet.runtime.role import Services
from broadsheet.runtime.scope import Scope
from broadsheet.wal.config import KIB
from simulator.clock import NodeClock
from simulator.crash_episode import (
    FULL_BYTES,
    NODE,
    CrashEpisode,
    CrashHistories,
    CrashWorkload,
    pause,
    recorded,
    syncs,
    view,
)
from simulator.crashstates import CrashState, crash_states
from simulator.disk import SimDisk
from simulator.disk_state import DiskState, Tape
from simulator.entropy import Draws, stream
from simulator.journalmodel import (
    HEAD_BYTES,
    Append,
    JournalModel,
    Promised,
    Standing,
    judge_attempts,
    registers_behind,
)
from simulator.journalnode import (
    JOURNALS,
    KEYSPACE,
    Running,
    Shelf,
    StreamedTold,
    UnaryTold,
    journals_of,
    small_blocks,
    start,
    status_of,
)
from simulator.logdamage import hurt
from simulator.workload import Violation
from simulator.world import Life

EPOCHS: Final = 2
STATES: Final = 20
"""Crash states of an epoch that are started."""
ATOMS_MAX: Final = 6
READ: Final = 4
"""Of these, how many are behind a read beside an append on its way."""
WATCHED: Final = 8
"""Of these, how many are of a sequence that the workload plays on purpose, where there are so many."""
DAMAGED: Final = 10
"""Damaged disks of an epoch that are started."""
EARLY: Final = 0.35
"""Of the disks that are started, the share on which a start was killed before."""
BEHIND: Final = 2
"""Crash states of the start on a damaged disk that are started again."""
OPENS_SECONDS: Final = 60
LOG: Final = "journals/log"
STAGED: Final = "journals/staged/"
"""Content on its way to a spool file: no start keeps it."""
KEPT_BYTES_MIN: Final = 24
"""Shorter contents are not looked for in files."""


class JournalWorkload(CrashWorkload):
    """Some journals of one node, and their model."""

    name: ClassVar[str] = "journal"
    scope: ClassVar[tuple[str, ...]] = ("journal", "keyspace", "wal")

    def knobs(self, draw: Random) -> dict[str, int]:
        """How soon all rolls, and how much is done."""
        return {
            "journals": draw.randrange(1, 5),
            "fragment_bytes": 1 << draw.randrange(10, 14),
            "checkpoint_bytes": 1 << draw.randrange(11, 15),
            "segments_max": draw.randrange(5, 9),
            "vouch_ms": (0, 2, 3_600_000)[draw.randrange(0, 3)],
            "lives": draw.randrange(1, 3),
            "operations": draw.randrange(60, 120),
        }

    def perform(self, run: CrashEpisode) -> None:
        """Epoch after epoch, each on what a crash left of the one before."""
        with small_blocks():
            _Histories(run).play()


class _Damage(NamedTuple):
    """What was done to a disk."""

    what: str = ""
    may_lack: bool = False
    """It may have taken the last appends without a trace: a torn write and a damaged one look alike."""
    may_be_aside: bool = False
    """A lost sector of the newest batch: after a kill appends that nothing proves are kept in a file of their
    own, which `doctor` names. One flipped bit is always repaired, or told."""
    is_newest: bool = False
    """It is in the newest batch: what proves that, the page cache has alone until a start writes it anew."""
    is_keyspace: bool = False
    """The key space may refuse to start."""
    unproven: Mapping[int, None] = MappingProxyType({})
    """Appends of which the lost sector may have taken the sum, too. After a power cut it is a torn write, and
    their bytes in a spool look like those of an append that nobody was told of."""


NO_DAMAGE: Final = _Damage()


class _Disk(NamedTuple):
    """A disk to be started, and what was promised of it."""

    state: DiskState
    promised: Promised
    clock: NodeClock | None
    """None: another kernel."""
    damage: _Damage
    where: str
    shelf: Shelf
    is_killed: bool = False
    """No write of it was torn."""


class _Histories(CrashHistories):
    """One seed's epochs."""

    def __init__(self, run: CrashEpisode) -> None:
        super().__init__(run)
        self.model = JournalModel()
        self.names = [JournalName(f"sim/j{n}") for n in range(self.knobs["journals"])]
        self.shelf = Shelf(None, {})
        self.watched: list[int] = []
        """Steps of the tape behind which a cut is worth a look."""
        self.read_at: list[int] = []
        """Steps at which somebody read while an append was on its way."""

    @property
    def keyspace(self) -> KeyspaceConfig:
        """A small one."""
        return replace(KEYSPACE, wal=replace(KEYSPACE.wal, vouch_delay=self.vouch_delay))

    @property
    def journals(self) -> JournalsConfig:
        """Small ones."""
        return journals_of(self.knobs, self.vouch_delay)

    def play(self) -> None:
        """All epochs."""
        for epoch in range(EPOCHS):
            self.watched, self.read_at = [], []
            states = self._judge(self.play_lives(self._life))
            self._judge_damaged(states)
            state = states[self.judging.randrange(len(states))]
            self.go_on(state, epoch)
            self.shelf = Shelf(None, dict(Promised(state.marks).stored))

    async def _life(self, life: Life, disk: SimDisk) -> None:
        self.shelf.tape = self.tape
        await _Life(self, life, disk, self.shelf).work()

    def _judge(self, begun: int) -> list[CrashState]:
        """Some crash states as they are, and the disk as the last process left it."""
        ends = syncs(self.tape, begun)
        behind = [n for at in self.watched for n in ends[bisect_right(ends, at) :][:4]]
        watched = self.judging.sample(behind, min(WATCHED, len(behind)))
        read_at = [n for at in self.read_at for n in ends[bisect_right(ends, at) :][:1]]
        drawn = stream(self.run.plan.seed, "journal", "read", begun)
        beside = drawn.sample(read_at, min(READ, len(read_at)))
        chosen = dict.fromkeys([*watched, *self.judging.sample(ends, min(STATES - len(watched), len(ends)))])
        chosen.update(dict.fromkeys(beside))
        chosen[len(self.tape.steps)] = None
        states = list(crash_states(self.tape, atoms_max=ATOMS_MAX, each_max=1, at=chosen))
        for state in states:
            disk_state = DiskState.of(state.image, state.directories)
            promised = Promised(state.marks)
            shelf = Shelf(None, dict(promised.stored))
            self._start(_Disk(disk_state, promised, None, NO_DAMAGE, f"step {state.position}", shelf))
        return states

    def _start(self, disk: _Disk) -> bool:
        """Start a node on it, and judge what it shows; sometimes twice.

        Returns:
            Whether the power failed meanwhile, so that what only the page cache had is gone.
        """
        self.run.judged += 1
        random = stream(self.run.plan.seed, "judge", self.run.judged)
        disk.state.draws = Draws(self.run.plan.seed, "judged", self.run.judged)
        shelf, clock = disk.shelf, disk.clock or self.reboot()
        is_cut = False
        if disk.damage.what and random.random() < 0.3:
            disk.state.quota_bytes = disk.state.used() + random.choice((0, 100, 6 * KIB, 60 * KIB))
            self.run.live(disk.state, partial(self._on_a_full_disk, shelf), clock=clock)
            disk.state.quota_bytes = FULL_BYTES
            disk.state.locks.clear()
        while random.random() < EARLY:
            operations = random.choice((1 + random.randrange(24), 1 + random.randrange(120)))
            self.run.die(disk.state, partial(self._opened, shelf), operations=operations, clock=clock)
            if random.random() < 0.5:
                is_cut, clock = True, self.cut(disk.state)
                disk = disk._replace(damage=disk.damage._replace(may_lack=disk.damage.is_newest))
            disk.state.locks.clear()
        self.run.blind(disk.state, partial(self._opened, shelf), clock=clock)
        shown: dict[JournalName, bytes] = {}
        said = self.run.live(disk.state, partial(self._looked_at, disk, shelf, shown), clock=clock)
        if said is None and random.random() < 0.4:
            if random.random() < 0.7:
                is_cut, clock = True, self.cut(disk.state)
            disk.state.locks.clear()
            again = disk._replace(where=f"{disk.where}, started again")
            said = self.run.live(disk.state, partial(self._looked_at, again, shelf, shown), clock=clock)
        self.run.trace.note("judged", disk.where, disk.damage.what, said)
        if said is not None:
            hurt = f" with {disk.damage.what}" if disk.damage.what else ""
            raise Violation(f"{said} (at {disk.where}{hurt})")
        return is_cut

    async def _opened(self, shelf: Shelf, life: Life, disk: SimDisk) -> None:
        """A start that is killed: in its logs, or while journals are opened."""
        node = _Life(self, life, disk, shelf)
        with suppress(BroadsheetError, OSError, TimeoutError):
            await asyncio.wait_for(node.open(), OPENS_SECONDS)
            await asyncio.sleep(0.05)

    async def _on_a_full_disk(self, shelf: Shelf, life: Life, disk: SimDisk) -> None:
        """A start that may end for want of room; whatever it does, nothing is lost by it."""
        node = _Life(self, life, disk, shelf)
        try:
            await asyncio.wait_for(node.open(), OPENS_SECONDS)
            await asyncio.sleep(self.judging.random() / 100)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        except (BroadsheetError, TimeoutError):
            return

    async def _looked_at(
        self, it: _Disk, shelf: Shelf, shown: dict[JournalName, bytes], life: Life, disk: SimDisk
    ) -> str | None:
        node = _Life(self, life, disk, shelf)
        try:
            await asyncio.wait_for(node.open(), OPENS_SECONDS)
        except Corrupt as error:
            if it.damage.is_keyspace:
                return None  # It says so, and has changed nothing.
            return f"W6: the node does not start: {error}"
        except (BroadsheetError, OSError, TimeoutError) as error:
            return f"the node does not start: {error!r}"
        for name in it.promised.made:
            try:
                said = await asyncio.wait_for(self._look(node.running, name, it, shown), OPENS_SECONDS)
            except (BroadsheetError, OSError, TimeoutError) as error:
                said = f"{name}: {error!r}"
            if said is None and node.crashes:
                said = f"the node ended: {node.crashes[0]!r}"
            if said is not None:
                return said
        return None

    async def _look(
        self, node: Running, name: JournalName, it: _Disk, shown: dict[JournalName, bytes]
    ) -> str | None:
        replica = await node.broker.replica(name)
        node.broker.check()
        told = replica.stop_reason or replica.damage or replica.log_fault
        if told or name in it.promised.accepted:
            if not it.damage.what:
                return f"{name} takes no appends, and nothing was damaged: {told}"
            return await self._look_at_damaged(node, name, it)
        _, content = await node.content_of(name)
        if replica.begin != 0 or len(content) != replica.end:
            return f"{name}: {len(content)} bytes are shown of [{replica.begin}, {replica.end})"
        if not content.startswith(shown.get(name, b"")):
            return f"J1: {name} shows other bytes than a start before this one"
        found = self.model.parse(name, content.removesuffix(MORE))
        if isinstance(found, str):
            return f"{name}: {found}"
        aside = b"\0".join(bytes(i.view) for n, i in it.state.files.items() if n.endswith(LOST_SUFFIX))

        def may_lack(append: Append) -> bool:
            is_told = LOST_SUFFIX in node.broker.status(name).reason
            return it.damage.may_lack or (it.damage.may_be_aside and append.content in aside and is_told)

        judged = self.model.judge(name, found, it.promised, may_lack=may_lack)
        if judged is not None:
            return f"{name}: {judged}"
        asked = [each for each in self.model.appends if each.journal == name]
        is_whole = it.is_killed and not it.damage.what
        wrong = _registers(node, replica, it.damage, registers_behind(found))
        wrong = wrong or judge_attempts(replica.pipeline.attempts, found, asked, is_whole=is_whole)
        if wrong is not None:
            return f"{name}: {wrong}"
        if replica.log_registers is None:
            return await self._look_at_damaged(node, name, it)
        if content.endswith(MORE):
            return None
        run = UnaryAppend(MORE)
        here = Condition(offset=ByteOffset(replica.end))
        replica.deliver(Submitted(run=run, count=1, length=len(MORE), condition=here))
        status = await status_of(run.answered)
        shown[name] = content + MORE
        return None if status is Status.OK else f"{name}: another append is refused: {status}"

    async def _look_at_damaged(self, node: Running, name: JournalName, it: _Disk) -> str | None:
        """It says that it is damaged: what it shows must be right all the same, also after the way out."""
        for _ in range(2):
            replica = await node.broker.replica(name)
            if (wrong := await self._spans(replica, it.promised)) is not None:
                return wrong
            if not _lost(replica):
                break
            accept = partial(node.broker.accept_loss, name, None, head=None, is_head_only=False)
            told = await accept(may_act=False)
            it.promised.accepted[name] = told.head
            if it.shelf.tape is not None:
                it.shelf.tape.mark(("accepted", name, told.head))
            await accept(may_act=True)
        replica = await node.broker.replica(name)
        if _lost(replica):
            return f"{name}: its loss was accepted, and it says: {node.broker.status(name).reason}"
        run = UnaryAppend(MORE)
        replica.deliver(Submitted(run=run, count=1, length=len(MORE)))
        status = await status_of(run.answered)
        return None if status is Status.OK else f"{name}: its loss was accepted, and it answers {status}"

    async def _spans(self, replica: Replica, promised: Promised) -> str | None:
        """Whether each acknowledged append is served as it was, or not at all."""
        for number, begin in promised.acknowledged.items():
            append = self.model.appends[number]
            if append.journal != replica.name or begin >= promised.accepted.get(replica.name, begin + 1):
                continue
            end = begin + len(append.content)
            try:
                reading = read(replica, ByteOffset(begin), ByteOffset(min(end, replica.end)), block=False)
                served = b"".join([chunk.data async for chunk in reading])
            except BroadsheetError:
                continue
            if served != append.content[: len(served)]:
                return f"W4: {replica.name}: other bytes are served at {begin} than append {number} had"
        return None

    # --- damage

    def _judge_damaged(self, states: Sequence[CrashState]) -> None:
        for number in range(DAMAGED):
            if number % 2:
                state = states[self.judging.randrange(len(states))]
                image, damage = self._damaged(state.image, is_torn=True)
                if damage.is_newest and damage.may_be_aside:
                    damage = damage._replace(unproven=self._newest(state.position))
                disk_state = DiskState.of(image, state.directories)
                tape = recorded(disk_state, state.marks)
                promised = Promised(state.marks)
                shelf = Shelf(tape, dict(promised.stored))
                disk = _Disk(disk_state, promised, None, damage, f"step {state.position}", shelf)
            else:
                disk_state = self.disk_state.fork()
                before = view(disk_state)
                image, damage = self._damaged(before, is_torn=False)
                tape = Tape([*self.tape.steps])
                disk_state.tape = tape
                for name, content in image.items():
                    if content != before[name]:
                        disk_state.damage(disk_state.files[name], content)
                promised = Promised(self.marks())
                shelf = Shelf(tape, dict(promised.stored))
                disk = _Disk(disk_state, promised, self.clock, damage, "a kill", shelf, is_killed=True)
            if not damage.what:
                continue
            self._start_damaged(disk, tape, image)

    def _start_damaged(self, disk: _Disk, tape: Tape, image: dict[str, bytes]) -> None:
        before = self._kept(image, disk)
        durable = self._kept(disk.state.image(), disk)
        begun = len(tape.steps)
        disk.state.locks.clear()
        is_cut = self._start(disk)
        if not (is_cut and disk.damage.is_newest):  # After a reboot it is a torn tail, which nobody keeps.
            self._keeps(durable if is_cut else before, view(disk.state), disk.shelf.objects, disk)
        positions = syncs(tape, begun)
        chosen = dict.fromkeys(self.judging.sample(positions, min(BEHIND, len(positions))))
        for state in crash_states(tape, atoms_max=ATOMS_MAX, each_max=1, at=chosen):
            promised = Promised(state.marks)
            self._keeps(durable, state.image, promised.stored, disk)
            what = f"{disk.damage.what}, and a power cut at {state.position}"
            damage = disk.damage._replace(what=what, may_lack=disk.damage.is_newest)
            disk_state = DiskState.of(state.image, state.directories)
            shelf = Shelf(None, dict(promised.stored))
            again = _Disk(disk_state, promised, None, damage, disk.where, shelf)
            self._start(again)
            if not damage.is_newest:
                self._keeps(durable, view(disk_state), shelf.objects, again)

    def _damaged(self, image: dict[str, bytes], *, is_torn: bool) -> tuple[dict[str, bytes], _Damage]:
        """A disk of which some bytes are wrong."""
        random, chance = self.judging, self.judging.random()
        if chance < 0.65:
            names = [name for name in image if name.startswith(f"{LOG}/segment")]
        elif chance < 0.85:
            names = [name for name in image if name.endswith(".spool")]
        else:
            names = [name for name in image if name.startswith("keyspace/")]
        found = hurt(image, random, names, LOG, is_whole=not is_torn)
        if found is None:
            return image, NO_DAMAGE
        is_keyspace = found.name.startswith("keyspace/")
        damage = _Damage(
            found.what,
            may_lack=is_torn and found.is_newest,
            may_be_aside=found.is_newest and not found.is_bit,
            is_newest=found.is_newest,
            is_keyspace=is_keyspace,
        )
        return {**image, found.name: found.content}, damage

    def _newest(self, position: int) -> dict[int, None]:
        """The appends that were acknowledged since the last sync of the log."""
        names = [name for name in self.disk_state.files if name.startswith(f"{LOG}/segment")]
        segments = [self.disk_state.files[name].number for name in names]
        newest: dict[int, None] = {}
        for step, what in reversed(self.tape.steps[:position]):
            if step == "sync" and what in segments:
                break
            if step == "mark" and isinstance(what, tuple) and what[0] == "acknowledged":
                newest[what[1]] = None
        return newest

    def _kept(self, image: dict[str, bytes], disk: _Disk) -> list[Append]:
        """The acknowledged appends whose bytes stand in files beside the log."""
        beside = b"\0".join(_beside(image))
        numbers = [each for each in disk.promised.acknowledged if each not in disk.damage.unproven]
        return [
            append
            for append in (self.model.appends[number] for number in numbers)
            if len(append.content) >= KEPT_BYTES_MIN and append.content in beside
        ]

    def _keeps(
        self, before: Sequence[Append], after: dict[str, bytes], stored: dict[str, bytes], disk: _Disk
    ) -> None:
        everywhere = b"\0".join([*after.values(), *stored.values()])
        for append in before:
            if append.content not in everywhere:
                raise Violation(
                    f"W7: append {append.number} of {append.journal} stood in a file, and a start with"
                    f" {disk.damage.what} has left it nowhere"
                )


def _lost(replica: Replica) -> bool:
    """Whether there is a loss to accept."""
    return bool(replica.stop_reason or replica.damage or replica.log_registers is None)


def _registers(node: Running, replica: Replica, damage: _Damage, expected: dict[str, str]) -> str | None:
    """What is wrong with a journal's registers; a damaged record may take them, if the status says so."""
    pair = node.keyspace.get(registers_key(replica.name))
    known = decode_registers(pair).values if pair is not None else {}
    now = replica.pipeline.committed_registers
    if now is None and damage.what and "accept-loss" in node.broker.status(replica.name).reason:
        return None
    if now is None or now.values != expected or known != expected:
        return f"J6: the registers are {now}, and {known} in their key, not {expected}"
    return None


MORE: Final = b"and one more, which a judge appends\n"


def _beside(image: dict[str, bytes]) -> list[bytes]:
    return [
        content
        for name, content in image.items()
        if name.startswith("journals/") and not name.startswith((LOG, STAGED))
    ]


class _Life:
    """One process."""

    def __init__(self, histories: _Histories, life: Life, disk: SimDisk, shelf: Shelf) -> None:
        self.histories, self.life, self.disk, self.shelf = histories, life, disk, shelf
        self.random, self.model, self.run = histories.random, histories.model, histories.run
        self.crashes: list[BaseException] = []
        self.scope = Scope("node", crash=self.crashes.append)
        self.running: Running
        self.streams = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.readers: list[asyncio.Task[None]] = []
        self.following = stream(histories.run.plan.seed, "journal", "following", histories.run.lives)
        """Of readers, so that what is done does not depend on them."""

    async def open(self) -> None:
        """Start the roles, with entropy of their own."""
        ports = self.run.ports(self.life, self.disk, objects=self.shelf.at, crash=self.crashes.append)
        config, services = self.histories, Services()
        await start(
            self.scope,
            ports,
            services,
            node=NodeId(NODE),
            keyspace=config.keyspace,
            journals=config.journals,
        )
        self.running = Running(services)

    async def work(self) -> None:
        """Operations, then an end of some kind."""
        histories = self.histories
        self.shelf.is_shut = self.random.random() < 0.2
        await asyncio.wait_for(self.open(), OPENS_SECONDS)
        for name in histories.names:
            await self._take_up(name)
            self.readers.append(asyncio.ensure_future(self._follow(name)))
        for _ in range(histories.knobs["operations"]):
            name = histories.names[self.random.randrange(len(histories.names))]
            await self._operate(await self.running.broker.replica(name))
            await pause(self.random)
            self.running.broker.check()
            if self.crashes:
                raise Violation(f"the node ended: {self.crashes[0]!r}")
        if self.random.random() < 0.3:
            self.disk.state.quota_bytes = FULL_BYTES
            await asyncio.wait(self.tasks or [asyncio.ensure_future(asyncio.sleep(0))])
            await self.scope.close()

    async def _take_up(self, name: JournalName) -> None:
        """Make it, or see where it stands: what is shown now is shown for ever."""
        tape = self.histories.tape
        if self.running.keyspace.get(spec_key(name)) is None:
            spec = JournalSpec(name, FragmentSpec(length=self.histories.knobs["fragment_bytes"]))
            while self.running.keyspace.get(spec_key(name)) is None:
                with suppress(BroadsheetError):  # The key space may refuse for a while.
                    await self.running.broker.create(spec)
                await asyncio.sleep(0.001)
            tape.mark(("made", name))
        replica = await self.running.broker.replica(name)
        self.shelf.is_shut = False
        async with asyncio.timeout(OPENS_SECONDS):
            while not replica.is_listed:  # noqa: ASYNC110 - nobody tells.
                await asyncio.sleep(0.1)
        replica, content = await self.running.content_of(name)
        found = self.model.parse(name, content)
        if replica.stop_reason or isinstance(found, str):
            raise Violation(f"{name} after a crash: {replica.stop_reason or found}")
        promised = Promised(self.histories.marks())
        if (judged := self.model.judge(name, found, promised)) is not None:
            raise Violation(f"{name} after a crash: {judged}")
        for append, begin in found:
            tape.mark(("shown", append.number, begin))
        shown = {each.append.number for each in found}
        for append in self.model.appends:
            if append.journal == name and append.number not in shown:
                tape.mark(("refused", append.number))

    async def _operate(self, replica: Replica) -> None:
        random, chance = self.random, self.random.random()
        if chance < 0.6:
            run = self._append(replica, random.choice((20, 60, 300, 300, 900, 2500, 5000)))
            if random.random() < 0.5:
                await asyncio.wait([run.answered])
        elif chance < 0.77:
            self.tasks.append(asyncio.ensure_future(self._stream(replica)))
        elif chance < 0.8:
            await self._refuse(replica)
        elif chance < 0.83:
            await self._read(replica)
        elif chance < 0.87:
            replica.deliver(RollAsked())
        elif chance < 0.89:
            await self._roll_in_a_flush(replica)
        elif chance < 0.92:
            self._checkpoint(replica)
        elif chance < 0.95:
            self.disk.state.health.slow_ns = random.choice((0, 0, 300_000, 5_000_000))
        elif chance < 0.98:
            state = self.disk.state
            is_full = state.quota_bytes < FULL_BYTES
            state.quota_bytes = FULL_BYTES if is_full else state.used() + random.randrange(20_000)
        else:
            self.shelf.is_shut = not self.shelf.is_shut

    def _checkpoint(self, replica: Replica) -> None:
        slot = self.running.broker._slots[replica.name]  # noqa: SLF001 - as the log asks for it.
        if slot.housekeeping is not None:
            slot.housekeeping.checkpoint()

    async def _roll_in_a_flush(self, replica: Replica) -> None:
        """A checkpoint, a roll while it syncs its files, and another one that may count on the first."""
        health, is_shut = self.disk.state.health, self.shelf.is_shut
        self.shelf.is_shut = True  # What is stored at once needs no file.
        health.slow_ns = 2 * MILLISECOND
        self._append(replica, 300)
        self._checkpoint(replica)
        await asyncio.sleep(0.0003)
        self._append(replica, 900)
        replica.deliver(RollAsked())
        run = self._append(replica, 60)
        health.slow_ns = 0
        await asyncio.wait([run.answered])
        await asyncio.sleep(0.01)
        self._checkpoint(replica)
        await asyncio.sleep(0.005)
        for _ in range(2):  # What was trimmed is gone when a later batch is durable.
            await asyncio.wait([self._append(replica, 60).answered])
        self.histories.watched.append(len(self.histories.tape.steps))
        self.shelf.is_shut = is_shut

    async def _refuse(self, replica: Replica) -> None:
        """An append that the log does not take, after the spool has; then somebody reads."""
        limit = JOURNALS.wal.record_bytes_max
        append = self.model.note(replica.name, self.random.randbytes(limit), self._condition(replica))
        run = UnaryTold(append.content, partial(self._told, append))
        replica.deliver(Submitted(run=run, count=1, length=len(append.content), condition=append.condition))
        if self.random.random() < 0.5:
            self._append(replica, 300)
        await asyncio.wait([run.answered])
        await self._read(replica)

    async def _read(self, replica: Replica) -> None:
        """What is committed now is served as it was appended, and nothing else, whatever is on its way."""
        try:
            end = ByteOffset(replica.end + self.following.randrange(2) * 100_000)
            reading = read(replica, replica.begin, end, block=False)
            content = b"".join([chunk.data async for chunk in reading])
        except OSError:
            return  # The store is shut.
        except BroadsheetError as error:
            raise Violation(f"{replica.name}: a read of what is committed is refused: {error!r}") from error
        found = self.model.parse(replica.name, content)
        if isinstance(found, str):
            raise Violation(f"{replica.name}, while it runs: {found}")
        self._seen(replica, found)

    async def _follow(self, name: JournalName) -> None:
        """Read on and on from somewhere: what is shown is durable, whatever follows it is not."""
        replica = await self.running.broker.replica(name)
        begin = self.following.choice((replica.end, replica.begin))
        rest = b""
        with suppress(BroadsheetError, OSError):  # The journal is closed, or the store is shut.
            async for chunk in read(replica, begin, None, block=True):
                found, rest = self._whole(replica, begin, rest + chunk.data)
                begin = ByteOffset(begin + sum(len(each.append.content) for each in found))
                self._seen(replica, found)
                if self.following.random() < 0.1:
                    await asyncio.sleep(self.following.random() / 100)

    def _whole(self, replica: Replica, at: int, content: bytes) -> tuple[list[Standing], bytes]:
        """The whole appends that `content` of the journal from `at` on begins with, and the rest."""
        found: list[Standing] = []
        while len(content) >= HEAD_BYTES:
            number = content[:HEAD_BYTES]
            try:
                append = self.model.appends[int(number, 16)]
            except (ValueError, IndexError):
                self.crashes.append(Violation(f"J4: {replica.name}: a reader is shown {number!r} at {at}"))
                break
            length = len(append.content)
            if append.journal != replica.name or not append.content.startswith(content[:length]):
                self.crashes.append(Violation(f"J5: {replica.name}: a reader is shown other bytes at {at}"))
                break
            if len(content) < length:
                break
            found.append(Standing(append, at))
            at, content = at + length, content[length:]
        return found, content

    def _seen(self, replica: Replica, found: Sequence[Standing]) -> None:
        """Who has read it was promised it."""
        for append, begin in found:
            self.histories.tape.mark(("acknowledged", append.number, begin))
        if replica.pipeline.adopted_end > replica.end:
            self.histories.read_at.append(len(self.histories.tape.steps))

    def _condition(self, replica: Replica) -> Condition | None:
        random = self.random
        if random.random() < 0.5:
            return None
        registers = replica.log_registers.values if replica.log_registers is not None else {}
        name = f"r{random.randrange(2)}"
        return Condition(
            offset=replica.pipeline.adopted_end if random.random() < 0.3 else None,
            check={name: registers.get(name)} if random.random() < 0.4 else None,
            union={name: str(len(self.model.appends))} if random.random() < 0.5 else None,
            attempt=random.randbytes(16) if random.random() < 0.7 else b"",
        )

    def _append(self, replica: Replica, length: int) -> UnaryTold:
        content = self.random.randbytes(self.random.randrange(length))
        append = self.model.note(replica.name, content, self._condition(replica))
        run = UnaryTold(append.content, partial(self._told, append))
        replica.deliver(Submitted(run=run, count=1, length=len(append.content), condition=append.condition))
        return run

    def _told(self, append: Append, status: Status, begin: int, _end: int) -> None:
        if status is Status.OK:
            self.run.acked += 1
            self.histories.tape.mark(("acknowledged", append.number, begin))
        elif status is not Status.UNKNOWN:
            self.run.refused += 1
            self.histories.tape.mark(("refused", append.number))

    async def _stream(self, replica: Replica) -> None:
        random = self.random
        is_left = random.random() < 0.2
        body = random.randbytes(random.randrange(6000))
        append = self.model.note(replica.name, body, self._condition(replica), is_left=is_left)
        self.streams += 1
        streamed = StreamedTold(replica, self.streams, append.condition)
        streamed.told = partial(self._told, append)
        try:
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
            if random.random() < 0.25:
                await asyncio.sleep(random.choice((0, 0.00005, 0.0002, 0.0004)))
                streamed.fail(Status.CANCELLED)  # Its client has gone; the answer says what became of it.
