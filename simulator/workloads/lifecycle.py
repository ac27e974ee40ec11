"""Lifecycle of journals, tier 3: made, altered, trimmed, deleted and made again, on disks that fail.

Where `journal` appends and rolls, and `keyspace` changes keys, here an operator is at work, too: settings
change, retentions come due in leaps of time, journals go and others of their names come. A seed is some
epochs of lives on one disk, with a store that is shut, late or fails single calls. Then disks that a power
cut could have left are started, and damaged ones: the logs of journals and key space, spools, seals, stored
fragments. Before the start that is judged there may be others, which are killed, or of which one call to the
disk or the store fails, or that find no store or no room. Who finds that a node or a journal stands still
goes the ways out that the status names. `lifemodel` says what may become of what was promised.
Source: J1-J7, J10, J11, journals.15, journals.20, journals.32, control.16; W6, W7.
"""

import errno
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import ClassVar, Final

import msgspec
from msgspec.structs import replace

from broadsheet.base.types import JournalName
from broadsheet.errors import BroadsheetError, Corrupt
from broadsheet.journal.config import JournalsConfig
from broadsheet.journal.opening import LOG_DIRECTORY as JOURNALS_LOG
from broadsheet.journal.opening import SPOOL_DIRECTORY
from broadsheet.journal.spool_file import spool_name
from broadsheet.keyspace.local.keyspace import KeyspaceConfig
from broadsheet.keyspace.local.role import LOG_DIRECTORY as KEYSPACE_LOG
from broadsheet.ports import Random as Entropy
from broadsheet.wal.config import KIB
from simulator.clock import NodeClock
from simulator.crash_episode import (
    FULL_BYTES,
    CrashEpisode,
    CrashHistories,
    CrashWorkload,
    pause,
    syncs,
    view,
)
from simulator.crashstates import CrashState, crash_states
from simulator.disk import SimDisk
from simulator.disk_state import DiskState, parent
from simulator.entropy import Draws, stream
from simulator.journalmodel import JournalModel
from simulator.journalnode import KEYSPACE, journals_of, small_blocks
from simulator.lifemodel import Account, Span, fragment_of
from simulator.logdamage import hurt, hurt_telling
from simulator.workload import Violation
from simulator.workloads.lifecycle_judge import Harm, Judge
from simulator.workloads.lifecycle_life import LifecycleNode
from simulator.workloads.lifecycle_operator import accept_keyspace
from simulator.world import Life

EPOCHS: Final = 2
STATES: Final = 12
"""Crash states of an epoch that are started."""
DAMAGED: Final = 16
"""Damaged disks of an epoch that are started."""
ATOMS_MAX: Final = 6
EARLIER: Final = 0.45
"""Of the disks that are started, the share on which a start went wrong before; and of those again."""
EARLIER_MAX: Final = 3
AGAIN: Final = 0.5
DRAINED: Final = 0.15
STARTS_MAX: Final = 4
"""A key space that lost records starts after so many tries."""
ERRORS: Final = (errno.EIO, errno.EMFILE, errno.ENOSPC)
LOST: Final = "the key space does not start"
"""No violation: its operator must act."""


class LifecycleWorkload(CrashWorkload):
    """A few names, and the journals that have them."""

    name: ClassVar[str] = "lifecycle"
    scope: ClassVar[tuple[str, ...]] = ("journal", "keyspace", "wal")

    def knobs(self, draw: Entropy) -> dict[str, int]:
        """How soon all rolls, and how much is done."""
        return {
            "journals": draw.randrange(1, 4),
            "checkpoint_bytes": 1 << draw.randrange(10, 14),
            "segments_max": draw.randrange(5, 9),
            "keyspace_segments_max": draw.randrange(4, 7),
            "vouch_ms": (0, 2, 2, 3_600_000)[draw.randrange(0, 4)],
            "lives": draw.randrange(1, 4),
            "operations": draw.randrange(50, 110),
        }

    def perform(self, run: CrashEpisode) -> None:
        """Epoch after epoch, each on what a crash left of the one before."""
        with small_blocks():
            _Histories(run).play()


class _Disk(msgspec.Struct):
    """A disk to be started, and what was promised of it."""

    state: DiskState
    account: Account
    clock: NodeClock
    where: str
    is_whole: bool = False
    """No write of it was torn."""
    harm: Harm = Harm()
    must_tell: dict[int, list[Span]] = {}
    """What a start told as lost, and each must until it is accepted."""


class _Histories(CrashHistories):
    """One seed's epochs."""

    def __init__(self, run: CrashEpisode) -> None:
        super().__init__(run)
        self.model = JournalModel()
        self.names = [JournalName(f"sim/j{n}") for n in range(self.knobs["journals"])]

    @property
    def keyspace(self) -> KeyspaceConfig:
        """A small one."""
        most = self.knobs["keyspace_segments_max"]
        wal = replace(KEYSPACE.wal, segments_max=most, vouch_delay=self.vouch_delay)
        return replace(KEYSPACE, wal=wal)

    @property
    def journals(self) -> JournalsConfig:
        """Small ones."""
        return journals_of(self.knobs, self.vouch_delay)

    def play(self) -> None:
        """All epochs."""
        for epoch in range(EPOCHS):
            states = self._judge(self.play_lives(self._life))
            self._judge_damaged(states)
            self.go_on(states[self.judging.randrange(len(states))], epoch)

    async def _life(self, life: Life, disk: SimDisk) -> None:
        """One life of the history."""
        account = Account(self.model, self.marks())
        node = LifecycleNode(self, life, disk, account, tape=self.tape, random=self.random)
        await node.open()
        wrong = await Judge(node, Harm(), self.random).judge()
        if wrong is not None:
            raise Violation(f"{wrong} (after a crash)")
        for _ in range(self.knobs["operations"]):
            await node.operate(self.names[self.random.randrange(len(self.names))])
            await pause(self.random)
            node.check()
        if self.random.random() < 0.3:
            node.heal()
            await node.stop()

    # --- starts

    def _judge(self, begun: int) -> list[CrashState]:
        """Some crash states as they are, and the disk as the last process left it."""
        ends = syncs(self.tape, begun)
        chosen = dict.fromkeys(self.judging.sample(ends, min(STATES, len(ends))))
        chosen[len(self.tape.steps)] = None
        states = list(crash_states(self.tape, atoms_max=ATOMS_MAX, each_max=1, at=chosen))
        for state in states:
            self._start(self._disk_of(state))
        return states

    def _disk_of(self, state: CrashState) -> _Disk:
        disk_state = DiskState.of(state.image, state.directories)
        account = Account(self.model, state.marks)
        return _Disk(disk_state, account, self.reboot(), f"step {state.position}")

    def _judge_damaged(self, states: Sequence[CrashState]) -> None:
        for number in range(DAMAGED):
            if number % 2:
                disk = self._disk_of(states[self.judging.randrange(len(states))])
            else:
                account = Account(self.model, self.marks())
                disk = _Disk(self.disk_state.fork(), account, self.clock, "a kill", is_whole=True)
            for _ in range(1 if self.judging.random() < 0.75 else 2):
                self._damage(disk, self.judging)
            if disk.harm.what:
                self._start(disk)

    def _damage(self, disk: _Disk, random: Random) -> None:
        """Some bytes of the disk, or of the store, become wrong."""
        image = view(disk.state)
        chance, log, is_whole = random.random(), JOURNALS_LOG, disk.is_whole
        if chance < 0.2:
            (self._damage_object if chance < 0.12 else self._lose_fragment)(disk, random)
            return
        if chance < 0.45:
            names = [name for name in image if name.startswith(f"{JOURNALS_LOG}/segment")]
            found = hurt(image, random, names, log, is_whole=is_whole)
        elif chance < 0.8:
            log, telling = KEYSPACE_LOG, random.choice((b"items/", b"items/", b"epoch/"))
            found = hurt_telling(image, random, log, telling, is_whole=is_whole)
        else:
            names = [name for name in image if name.startswith((SPOOL_DIRECTORY, "keyspace/seal"))]
            found = hurt(image, random, names, log, is_whole=is_whole)
        if found is None:
            return
        disk.state.damage(disk.state.files[found.name], found.content)
        directory = found.name.removeprefix(f"{SPOOL_DIRECTORY}/").partition("/")[0]
        is_spool = found.name.startswith(SPOOL_DIRECTORY)
        harm = Harm(
            found.what,
            is_log=found.name.startswith(JOURNALS_LOG),
            is_keyspace=found.name.startswith("keyspace/"),
            revisions=(int(directory, 16),) if is_spool else (),
            is_newest=found.is_newest,
            existing=len(disk.account.incarnations),
        )
        disk.harm = disk.harm.and_(harm)

    def _damage_object(self, disk: _Disk, random: Random) -> None:
        """A stored fragment has a wrong bit, or is gone."""
        account = disk.account
        names = sorted(name for name in account.stored if not name.startswith("."))
        if not names:
            return
        name = random.choice(names)
        stored = account.stored[name]
        if random.random() < 0.5:
            account.note(("gone", name))
            disk.harm = disk.harm.and_(Harm(f"no {name} in the store", objects=(name,), is_gone=True))
            return
        content = bytearray(stored.content)
        at = random.randrange(len(content))
        content[at] ^= 1 << random.randrange(8)
        account.note(("stored", name, bytes(content), stored.at))
        disk.harm = disk.harm.and_(Harm(f"a bit flipped at {at} of the stored {name}", objects=(name,)))

    def _lose_fragment(self, disk: _Disk, random: Random) -> None:
        """A spool file is gone whose fragment is stored, and perhaps that, too."""
        account, files, found = disk.account, disk.state.files, list[tuple[str, str, int]]()
        for name, stored in account.stored.items():
            it, fragment = account.of_object(name, stored), fragment_of(name)
            if it is not None and fragment is not None and not it.is_gone:
                path = spool_name(f"{SPOOL_DIRECTORY}/{it.revision:016x}", fragment.begin)
                if path in files:
                    found.append((name, path, it.revision))
        if not found:
            return
        name, path, revision = random.choice(found)
        disk.state.remove(path)
        disk.state.sync_dir(parent(path))
        disk.harm = disk.harm.and_(
            Harm(f"no {path}", revisions=(revision,), existing=len(account.incarnations))
        )
        if random.random() < 0.7:
            account.note(("gone", name))
            disk.harm = disk.harm.and_(Harm(f"no {name} in the store", objects=(name,), is_gone=True))

    def _start(self, disk: _Disk) -> None:
        """Start on it, after starts that went wrong; judge what it shows, and what it shows then."""
        self.run.judged += 1
        random = stream(self.run.plan.seed, "judge", self.run.judged)
        disk.state.draws = Draws(self.run.plan.seed, "judged", self.run.judged)
        disk.state.tape = None
        disk.state.locks.clear()
        if disk.harm.is_gone and not disk.harm.is_keyspace:
            fork, account = disk.state.fork(), Account(self.model, disk.account.marks)
            disk.must_tell = self.run.live(fork, partial(self._asked, account, disk.harm), clock=disk.clock)
        for _ in range(EARLIER_MAX):
            if random.random() >= EARLIER:
                break
            self._earlier(disk, random)
        said = self._seen(disk, random)
        if said is None and random.random() < AGAIN:
            self._ended(disk, random)
            disk.where += ", started again"
            said = self._seen(disk, random)
        if said is None and random.random() < DRAINED:
            self._ended(disk, random)
            said = self._drained(disk, random)
        self.run.trace.note("judged", disk.where, disk.harm.what, said)
        if said is not None:
            raise Violation(f"{said} (at {disk.where}{' with ' * bool(disk.harm.what)}{disk.harm.what})")

    def _ended(self, disk: _Disk, random: Random) -> None:
        """The process is killed, or the power fails."""
        if random.random() < 0.5:
            disk.clock = self.cut(disk.state)
        disk.state.locks.clear()

    def _earlier(self, disk: _Disk, random: Random) -> None:
        """A start that goes wrong, and is killed: it must lose nothing."""
        state, clock, chance = disk.state, disk.clock, random.random()
        work = partial(self._opened, disk.account, random.randrange(1 << 30))
        if chance < 0.3:
            operations = 1 + random.randrange(random.choice((24, 120, 400)))
            self.run.die(state, work, operations=operations, clock=clock)
        elif chance < 0.7:
            code, number = random.choice(ERRORS), 1 + random.randrange(random.choice((24, 120, 400)))
            self.run.fail(state, work, code=code, number=number, clock=clock)
        elif chance < 0.85:
            state.quota_bytes = state.used() + random.choice((0, 100, 6 * KIB, 60 * KIB))
            self.run.die(state, work, operations=1 << 30, clock=clock)
            state.quota_bytes = FULL_BYTES
        else:
            self.run.blind(state, work, clock=clock, share=1)
        state.locks.clear()
        if random.random() < 0.6:
            self._ended(disk, random)

    async def _asked(self, account: Account, harm: Harm, life: Life, disk: SimDisk) -> dict[int, list[Span]]:
        """What one start, with nothing against it, tells as lost of each journal."""
        node = LifecycleNode(self, life, disk, account, tape=None, random=stream(life.boot, "asked"))
        await node.open()
        return await Judge(node, harm, node.random).lost()

    async def _opened(self, account: Account, seed: int, life: Life, disk: SimDisk) -> None:
        """A start, and the work that it begins by itself."""
        random = stream(seed, "opened")
        node = LifecycleNode(self, life, disk, account, tape=None, random=random)
        node.does_end = True
        node.store.is_shut = random.random() < 0.3
        node.store.calls_left = random.choice((None, 1 + random.randrange(20)))
        with suppress(BroadsheetError, OSError, TimeoutError):
            await node.open()
            await node.rest(random.choice((0.01, 0.05, 1, 8, 200)))
        node.check_promises()

    def _seen(self, disk: _Disk, random: Random) -> str | None:
        """What is wrong with what a start shows, once the operator of a lost key space has acted."""
        for _ in range(STARTS_MAX):
            said = self.run.live(disk.state, partial(self._look, disk, random), clock=disk.clock)
            disk.state.locks.clear()
            if said is None or not said.startswith(LOST):
                return said
            if not disk.harm.is_keyspace:
                return f"W6: {said}"
            self.run.live(disk.state, partial(self._accept, disk, random), clock=disk.clock)
            disk.state.locks.clear()
        return f"W6: {said}, whatever is accepted"

    async def _accept(self, disk: _Disk, random: Random, _life: Life, port: SimDisk) -> None:
        accept_keyspace(disk.account, port, random, disk.account.note)

    async def _look(
        self, disk: _Disk, random: Random, life: Life, port: SimDisk, *, is_drain: bool = False
    ) -> str | None:
        node = LifecycleNode(self, life, port, disk.account, tape=None, random=random)
        node.store.is_shut = random.random() < 0.2
        try:
            await node.open()
        except Corrupt as error:
            return f"{LOST}: {error}"
        except (BroadsheetError, OSError, TimeoutError) as error:
            return f"the node does not start: {error!r}"
        judge = Judge(node, disk.harm, random, must_tell=disk.must_tell)
        said = await judge.judge()
        if said is None and is_drain:
            return await judge.drain()
        if said is None and (disk.account.is_map_lost or random.random() < 0.5):
            said = await judge.go_on()
        return said

    def _drained(self, disk: _Disk, random: Random) -> str | None:
        """Whether a node against which nothing is does what it owes, by itself and after a start."""
        said = self.run.live(disk.state, partial(self._look, disk, random, is_drain=True), clock=disk.clock)
        disk.state.locks.clear()
        if said is not None:
            return said
        said = self.run.live(disk.state, partial(self._look_at_age, disk, random), clock=disk.clock)
        disk.state.locks.clear()
        return said

    async def _look_at_age(self, disk: _Disk, random: Random, life: Life, port: SimDisk) -> str | None:
        node = LifecycleNode(self, life, port, disk.account, tape=None, random=random)
        await node.open()
        judge = Judge(node, disk.harm, random, must_tell=disk.must_tell)
        return await judge.judge() or await judge.owed_by_age()
