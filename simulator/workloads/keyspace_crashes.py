"""The key space, tier 3: seeded histories of one map, and what crashes, damage and restarts leave of it.

In each epoch a node lives some lives on one disk with a small log: transactions on their way together,
snapshots of one chunk or many asked for at any time, full and slow disks, ends of all kinds. Disks that a
power cut could have left are started, some of them behind starts that were killed, some in the middle of a
snapshot: the map must be one that transactions of a row of revisions lead to, at least all that were
answered, and take another one at a revision that nobody was given, and then a snapshot. A damaged disk shows
that too, or does not start and says so; the power fails in the middle of such a start, too. The log by itself
is judged by `log`. Source: control.15-17; W2, W6.
"""

import asyncio
from bisect import bisect_right
from contextlib import suppress
from functools import partial
from typing import ClassVar, Final, NamedTuple

from msgspec.structs import replace

from broadsheet.errors import BroadsheetError, Corrupt, StoreUnhealthy, Unknown
from broadsheet.keyspace.core.store import SnapshotState
from broadsheet.keyspace.core.transaction import Delete, KeyValue, Operation, Put
from broadsheet.keyspace.local.keyspace import KeyspaceConfig, LocalKeyspace
from broadsheet.keyspace.local.role import LOG_DIRECTORY, open_keyspace
from broadsheet.ports import ObjectStore, Random
from broadsheet.runtime.scope import Scope
from broadsheet.wal.config import KIB
from simulator.clock import NodeClock
from simulator.crash_episode import (
    FULL_BYTES,
    CrashEpisode,
    CrashHistories,
    CrashWorkload,
    recorded,
    syncs,
    view,
)
from simulator.crashstates import CrashState, crash_states
from simulator.disk import SimDisk
from simulator.disk_state import DiskState, Tape
from simulator.entropy import Draws, stream
from simulator.journalnode import KEYSPACE
from simulator.logdamage import hurt
from simulator.workload import Violation
from simulator.world import Life

EPOCHS: Final = 2
STATES: Final = 24
ATOMS_MAX: Final = 6
CUT_SHORT: Final = 8
"""Of these, how many are in the middle of a snapshot, where there are so many."""
DAMAGED: Final = 10
BEHIND: Final = 2
"""Crash states of the start on a damaged disk that are started again."""
EARLY: Final = 0.25
"""Of the disks that are started, the share on which a start was killed before."""
SNAPSHOT: Final = 0.4
"""Of the starts, the share behind which a snapshot is asked for."""
OPENS_SECONDS: Final = 60
TRIES: Final = 40
"""A transaction that is refused for a while is tried so often, every 50 ms."""


def _no_store(url: str) -> ObjectStore:
    raise AssertionError(f"the key space stores nothing at {url}")


class KeyspaceCrashes(CrashWorkload):
    """One map, and what it may be."""

    name: ClassVar[str] = "keyspace"
    scope: ClassVar[tuple[str, ...]] = ("keyspace", "wal")

    def knobs(self, draw: Random) -> dict[str, int]:
        """How many keys, how large their values, how much is done."""
        return {
            "keys": draw.randrange(2, 12),
            "value_bytes": (10, 100, 900)[draw.randrange(0, 3)],
            "vouch_ms": (0, 2, 3_600_000)[draw.randrange(0, 3)],
            "segments_max": draw.randrange(4, 7),
            "lives": draw.randrange(1, 4),
            "operations": draw.randrange(60, 160),
            "chunk_bytes": (20, 200, 2 * KIB)[draw.randrange(0, 3)],
        }

    def perform(self, run: CrashEpisode) -> None:
        """Epoch after epoch, each on what a crash left of the one before."""
        KeyspaceHistories(run).play()


class _Asked(NamedTuple):
    """A transaction: its number is the value of what it puts."""

    puts: tuple[str, ...]
    deletes: tuple[str, ...]


class _Disk(NamedTuple):
    """A disk to be started, and what was promised of it."""

    state: DiskState
    marks: tuple[object, ...]
    clock: NodeClock | None
    where: str
    damage: str = ""
    may_lack: bool = False
    """The newest transactions may be gone: after a crash nothing tells a torn batch from a damaged one."""
    firm_from: int = 0
    """Where they may, the number of the first transaction that was asked for after the damage."""


class KeyspaceHistories(CrashHistories):
    """One seed's epochs."""

    def __init__(self, run: CrashEpisode) -> None:
        super().__init__(run)
        self.asked: list[_Asked] = []
        self.writing: list[int] = []
        """Steps of the tape at which a snapshot was being written."""

    @property
    def config(self) -> KeyspaceConfig:
        """A small one."""
        segments_max = self.knobs["segments_max"]
        wal = replace(KEYSPACE.wal, segments_max=segments_max, vouch_delay=self.vouch_delay)
        chunk_bytes = self.knobs.get("chunk_bytes", KEYSPACE.snapshot_chunk_bytes)
        return replace(KEYSPACE, wal=wal, history_transactions_max=16, snapshot_chunk_bytes=chunk_bytes)

    def play(self) -> None:
        """All epochs."""
        for epoch in range(EPOCHS):
            self.writing = []
            states = self._judge(self.play_lives(self._life))
            self._judge_damaged(states)
            self.go_on(states[self.judging.randrange(len(states))], epoch)

    def _judge(self, begun: int) -> list[CrashState]:
        ends = syncs(self.tape, begun)
        behind = [n for at in self.writing for n in ends[bisect_right(ends, at) :][:1]]
        cut_short = self.judging.sample(behind, min(CUT_SHORT, len(behind)))
        others = self.judging.sample(ends, min(STATES - len(cut_short), len(ends)))
        chosen = dict.fromkeys([*cut_short, *others])
        chosen[len(self.tape.steps)] = None
        states = list(crash_states(self.tape, atoms_max=ATOMS_MAX, each_max=1, at=chosen))
        for state in states:
            disk_state = DiskState.of(state.image, state.directories)
            self._start(_Disk(disk_state, state.marks, None, f"step {state.position}"))
        return states

    def _judge_damaged(self, states: list[CrashState]) -> None:
        for number in range(DAMAGED):
            state = states[self.judging.randrange(len(states))]
            if number % 2:
                image, marks, clock, where = state.image, state.marks, None, f"step {state.position}"
                disk_state = DiskState.of(image, state.directories)
            else:
                disk_state = self.disk_state.fork()
                disk_state.tape = self.tape  # Copied below.
                image = view(disk_state)
                marks, clock, where = self.marks(), self.clock, "a kill"
            names = [name for name in image if name.startswith("keyspace/") and "lock" not in name]
            damage = hurt(image, self.judging, names, LOG_DIRECTORY)
            if damage is None:
                continue
            if disk_state.tape is None:
                tape = recorded(disk_state, marks)
            else:
                tape = disk_state.tape = Tape([*self.tape.steps])
            disk_state.damage(disk_state.files[damage.name], damage.content)
            disk = _Disk(disk_state, marks, clock, where, damage.what, damage.is_newest, len(self.asked))
            begun = len(tape.steps)
            self._start(disk)
            positions = syncs(tape, begun)
            chosen = dict.fromkeys(self.judging.sample(positions, min(BEHIND, len(positions))))
            for state in crash_states(tape, atoms_max=ATOMS_MAX, each_max=1, at=chosen):
                self._start(
                    disk._replace(
                        state=DiskState.of(state.image, state.directories),
                        marks=state.marks,
                        clock=None,
                        damage=f"{damage.what}, and a power cut at {state.position}",
                    )
                )

    def _start(self, disk: _Disk) -> None:
        """Start on it, and judge what it shows; sometimes twice."""
        self.run.judged += 1
        random = stream(self.run.plan.seed, "judge", self.run.judged)
        state, clock = disk.state, disk.clock or self.reboot()
        state.draws = Draws(self.run.plan.seed, "judged", self.run.judged)
        state.locks.clear()
        if random.random() < 0.2:
            state.quota_bytes = state.used() + random.choice((0, 100, 6 * KIB, 60 * KIB))
            self.run.live(state, self._opened_somehow, clock=clock)
            state.quota_bytes = FULL_BYTES
            state.locks.clear()
        while random.random() < EARLY:
            operations = 1 + random.randrange(random.choice((12, 60)))
            self.run.die(state, self._opened_somehow, operations=operations, clock=clock)
            if random.random() < 0.5:
                clock = self.cut(state)
                disk = disk._replace(clock=None)
            state.locks.clear()
        self.run.blind(state, self._opened_somehow, clock=clock)
        marks = list(disk.marks)
        said = self.run.live(state, partial(self._look, disk, marks), clock=clock)
        if said is None and random.random() < 0.5:
            clock = self.cut(state) if random.random() < 0.7 else clock
            state.locks.clear()
            said = self.run.live(state, partial(self._look, disk, marks), clock=clock)
        self.run.trace.note("judged", disk.where, disk.damage, said)
        if said is not None:
            raise Violation(f"{said} (at {disk.where}{' with ' * bool(disk.damage)}{disk.damage})")

    async def _opened_somehow(self, life: Life, disk: SimDisk) -> None:
        with suppress(BroadsheetError, OSError, TimeoutError):
            await asyncio.wait_for(self.open(life, disk, []), OPENS_SECONDS)
            await asyncio.sleep(0.01)

    async def open(self, life: Life, disk: SimDisk, crashes: list[BaseException]) -> LocalKeyspace:
        """Start one process on `disk`."""
        ports = self.run.ports(life, disk, objects=_no_store, crash=crashes.append)
        return await open_keyspace(Scope("keyspace", crash=crashes.append), ports, self.config)

    async def _look(self, it: _Disk, marks: list[object], life: Life, disk: SimDisk) -> str | None:
        crashes: list[BaseException] = []
        try:
            keyspace = await asyncio.wait_for(self.open(life, disk, crashes), OPENS_SECONDS)
        except Corrupt as error:
            return None if it.damage else f"W6: it does not start, and nothing was damaged: {error}"
        except (BroadsheetError, OSError, TimeoutError) as error:
            return f"it does not start: {error!r}"
        firm_from = it.firm_from if it.may_lack else 0
        said = self.judge(keyspace.range(""), keyspace.revision, marks, firm_from=firm_from)
        if said is not None:
            return said
        told = [mark for mark in marks if isinstance(mark, tuple) and mark[0] in ("answered", "shown")]
        highest = max((int(mark[1]) for mark in told), default=0)
        if self.judging.random() < SNAPSHOT:  # What it trims is gone when the transaction is durable.
            keyspace.flush_asked()
            await asyncio.sleep(0.05)
        number = self.note(("judged",), ())
        for left in reversed(range(TRIES)):
            try:
                outcome = await keyspace.transact([], [Put("judged", b"%d" % number)])
                break
            except BroadsheetError as error:
                is_for_now = isinstance(error, StoreUnhealthy)  # A segment may have to be filled.
                if not is_for_now or not left:
                    return f"another transaction is refused: {error!r}"
            await asyncio.sleep(0.05)
        may_repeat = it.may_lack and it.clock is None  # After a reboot a torn batch was answered to nobody.
        if outcome.revision <= highest and not may_repeat:
            return f"revision {outcome.revision} is given again: {highest} was answered"
        marks.append(("answered", outcome.revision, number))
        if it.state.tape is not None:
            it.state.tape.mark(marks[-1])
        return f"the process ended: {crashes[0]!r}" if crashes else None

    def note(self, puts: tuple[str, ...], deletes: tuple[str, ...]) -> int:
        """A transaction is about to be asked for; its number."""
        self.asked.append(_Asked(puts, deletes))
        return len(self.asked) - 1

    def judge(
        self, pairs: list[KeyValue], revision: int, marks: list[object], *, firm_from: int = 0
    ) -> str | None:
        """What is wrong with a map; None where nothing is.

        Args:
            firm_from: the number of the first transaction that no damage may have taken.
        """
        answered = {mark[2]: mark[1] for mark in marks if mark[0] == "answered"}  # type: ignore[index]
        refused = {mark[1]: None for mark in marks if mark[0] == "refused"}  # type: ignore[index]
        highest = max((at for number, at in answered.items() if number >= firm_from), default=0)
        if revision < highest:
            return f"W2: revision {highest} was answered, and the map is at {revision}"
        shown = {pair.key: pair for pair in pairs}
        by_revision: dict[int, int] = {}
        for pair in pairs:
            number = int(pair.value.split(b" ", 1)[0])
            is_ours = number < len(self.asked) and pair.key in self.asked[number].puts
            if not is_ours or number in refused:
                return f"{pair.key} holds {pair.value[:20]!r}, which nobody put there, or was refused"
            told = answered.get(number, pair.mod_revision)
            if told != pair.mod_revision or by_revision.setdefault(told, number) != number:
                return (
                    f"transaction {number} is at {pair.mod_revision}, and so is another, or it was at {told}"
                )
            if not 0 < pair.create_revision <= pair.mod_revision <= revision:
                return f"{pair} is above revision {revision}"
        known = {**by_revision, **{at: number for number, at in answered.items() if at <= revision}}
        return self._lacks(shown, {at: number for at, number in known.items() if number >= firm_from})

    def _lacks(self, shown: dict[str, KeyValue], known: dict[int, int]) -> str | None:
        """Which change is not there; None where all are, or were changed again."""
        told = dict.fromkeys(known.values())
        unknown = [asked for number, asked in enumerate(self.asked) if number not in told]
        may_be_gone = dict.fromkeys(key for asked in unknown for key in asked.deletes)
        for at in sorted(known, reverse=True):
            asked = self.asked[known[at]]
            for key in (*asked.puts, *asked.deletes):
                here = shown.get(key)
                if here is not None and here.mod_revision < at:
                    return f"{key} is of {here.mod_revision}, and transaction {known[at]} changed it at {at}"
                if here is None and key in asked.puts and key not in may_be_gone:
                    return f"{key} is gone, which transaction {known[at]} put at {at}"
            may_be_gone |= dict.fromkeys(asked.deletes)
        return None

    async def _life(self, life: Life, disk: SimDisk) -> None:
        crashes: list[BaseException] = []
        keyspace = await asyncio.wait_for(self.open(life, disk, crashes), OPENS_SECONDS)
        said = self.judge(keyspace.range(""), keyspace.revision, list(self.marks()))
        if said is not None:
            raise Violation(f"{said} (after a crash)")
        self.tape.mark(("shown", keyspace.revision))
        for pair in keyspace.range(""):  # What is shown is durable, whoever was told of it.
            self.tape.mark(("answered", pair.mod_revision, int(pair.value.split(b" ", 1)[0])))
        tasks: list[asyncio.Task[None]] = []
        for _ in range(self.knobs["operations"]):
            chance = self.random.random()
            if chance < 0.85:
                tasks.append(asyncio.ensure_future(self._transact(keyspace)))
            elif chance < 0.92:
                keyspace.flush_asked()
            elif chance < 0.96:
                disk.state.health.slow_ns = self.random.choice((0, 0, 300_000, 5_000_000))
            else:
                is_full = disk.state.quota_bytes < FULL_BYTES
                room = disk.state.used() + self.random.randrange(20_000)
                disk.state.quota_bytes = FULL_BYTES if is_full else room
            await asyncio.sleep(self.random.choice((0, 0, 0.0001, 0.0005, 0.01)))
            if keyspace._store.snapshot is SnapshotState.WRITING:  # noqa: SLF001 - nobody else asks.
                self.writing.append(len(self.tape.steps))
            if crashes:
                raise Violation(f"the process ended: {crashes[0]!r}")
        if self.random.random() < 0.3:
            await asyncio.wait(tasks)

    async def _transact(self, keyspace: LocalKeyspace) -> None:
        random = self.random
        keys = [f"k{n:02}" for n in range(self.knobs["keys"]) if random.random() < 0.3]
        deletes = tuple(key for key in keys if random.random() < 0.2)
        puts = tuple(key for key in keys if key not in deletes)
        number = self.note(puts, deletes)
        value = (b"%d " % number).ljust(self.knobs["value_bytes"], b".")
        operations: list[Operation] = [*(Put(key, value) for key in puts), *(Delete(key) for key in deletes)]
        try:
            outcome = await keyspace.transact([], operations)
        except BroadsheetError as error:
            if not isinstance(error, Unknown):
                self.run.refused += 1
                self.tape.mark(("refused", number))
            return
        self.run.acked += 1
        self.tape.mark(("shown", outcome.revision))
        if puts:
            self.tape.mark(("answered", outcome.revision, number))
