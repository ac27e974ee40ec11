"""A run of tier 3: seeded histories on one simulated disk, and the states that crashes and damage leave.

Where tiers 1 and 2 end a process some ten times a seed and see one disk each time, this tier records what is
written, makes thousands of disks that a power cut could have left of it, damages some, and has each judged
by a model. One process writes, so nothing is sent and no client is cut off; the workload says what is done
and what is judged. The same plan gives the same run. Source: ALICE, OSDI 2014.
"""

import asyncio
import errno
import os
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from random import Random
from time import process_time
from typing import Any, ClassVar, Final, TypeVar

from broadsheet.base import buggify
from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.base.types import NodeId
from broadsheet.errors import BroadsheetError
from broadsheet.ports import ObjectStore
from broadsheet.runtime.role import Ports
from simulator.clock import NodeClock, SimTime, SimTimers
from simulator.coverage import Coverage
from simulator.crashstates import CrashState, record_on
from simulator.disk import SimDisk
from simulator.disk_state import DiskState, Tape
from simulator.entropy import Draws, stream
from simulator.episode import Result, chooser, judged
from simulator.loop import make_loop
from simulator.moments import Gone
from simulator.plan import Plan, Tier
from simulator.trace import StoriesTraced, Trace
from simulator.workload import Episode, Violation, Workload
from simulator.world import Life, World

MS: Final = 1_000_000
BLIND: Final = 0.1
"""Of the disks that are started, the share of which a start could read nothing for a while."""
BLIND_LIVES: Final = 1_000_000
"""Where the numbers of such lives begin."""
LIFE_NS: Final = 3_600_000_000_000
"""How long one life may take, in virtual time."""
NODE: Final = "n1"
FULL_BYTES: Final = 1 << 40
"""What a disk holds that is not full."""

T = TypeVar("T")


class CrashWorkload(Workload):
    """A domain in tier 3: a history that is recorded, and the judge of what crashes leave of it."""

    tier = Tier.CRASHES
    clients: ClassVar[int] = 0

    @abstractmethod
    def perform(self, run: "CrashEpisode") -> None:
        """Play histories by `run.live`, and judge disks. Raises `Violation`."""

    def nodes(self, knobs: dict[str, int]) -> tuple[NodeId, ...]:
        """One."""
        return (NodeId("n1"),)

    def verify(self, run: Episode) -> None:
        """Nothing: `perform` judges."""


class CrashEpisode:
    """What a workload of tier 3 has at hand."""

    def __init__(
        self, plan: Plan, workload: CrashWorkload, show: Callable[[str], None] | None = None
    ) -> None:
        self.plan, self.workload = plan, workload
        self.trace = Trace(show)
        self.world = World(plan.seed, self.trace)
        self.loop = make_loop(self.world)
        self.clock = NodeClock(self.world, NODE)
        self.coverage = Coverage()
        self.acked = self.refused = self.judged = self.lives = 0

    def perform(self, *, until: int | None = None) -> Result:
        """Run the plan to its end. `until` is for the other tiers, whose runs have one time."""
        began = process_time()
        with (
            judged(self.plan, self.coverage, self.trace, passed=_counted) as verdict,
            StoriesTraced(self.trace),
            self.loop.running(),
        ):
            self.workload.perform(self)
        counts = self.trace.counts
        counts.faults = counts.faults_met = self.judged
        return Result(
            plan=self.plan,
            digest=self.trace.digest(),
            counts=counts,
            acked=self.acked,
            rejected=self.refused,
            unknown=0,
            virtual_ns=self.world.now,
            cpu_seconds=process_time() - began,
            violation=verdict.violation,
            is_healed=verdict.violation is None,
            coverage=self.coverage,
        )

    def live(
        self,
        disk_state: DiskState,
        work: Callable[[Life, SimDisk], Coroutine[Any, Any, T]],
        *,
        clock: NodeClock | None = None,
    ) -> T:
        """One life of the process on `disk_state`: until `work` returns, and then it is killed.

        Args:
            clock: of the kernel that it runs on; None: of the one that all run on.

        Raises:
            Violation: it did not end.
        """
        return self._lived(disk_state, work, clock=clock)[0]

    def die(
        self,
        disk_state: DiskState,
        work: Callable[[Life, SimDisk], Coroutine[Any, Any, T]],
        *,
        operations: int,
        clock: NodeClock | None = None,
    ) -> T | None:
        """One life that is killed in the disk operation of that number, unless `work` returned before.

        Args:
            operations: how many it begins.
        """
        found = self._lived(disk_state, work, clock=clock, operations=operations)
        return found[0] if found else None

    def fail(
        self,
        disk_state: DiskState,
        work: Callable[[Life, SimDisk], Coroutine[Any, Any, T]],
        *,
        code: int,
        number: int,
        clock: NodeClock | None = None,
    ) -> T | None:
        """One life of which one disk operation fails, and which may end by that.

        Args:
            code: with which error. A sync that fails with EIO has lost what it should have made durable.
            number: which operation fails.
        """
        left = [number]

        def reach(moment: str) -> None:
            left[0] -= 1
            if left[0]:
                return
            if code == errno.EIO and moment in ("disk.sync", "disk.sync_dir"):
                disk_state.health.sync_errors = 1
            else:
                raise OSError(code, os.strerror(code), moment)

        found = self._lived(disk_state, work, clock=clock, reach=reach)
        disk_state.health.sync_errors = 0
        return found[0] if found else None

    def blind(
        self,
        disk_state: DiskState,
        work: Callable[[Life, SimDisk], Coroutine[Any, Any, object]],
        *,
        clock: NodeClock | None = None,
        share: float = BLIND,
    ) -> bool:
        """Now and then one life more, whose disk fails all reads for a while: nothing is lost by it.

        A start may end by it, and the next one finds everything (ADR 0198).

        Args:
            work: a start, which may be refused.
            share: how often.

        Returns:
            Whether there was one.
        """
        draw, health = stream(self.plan.seed, "blind", self.lives), disk_state.health
        if draw.random() >= share:
            return False
        begin = self.world.now + draw.choice((0, 0, 20_000, 200_000, MS)) + draw.randrange(100_000)
        end = begin + draw.choice((1_000, 100_000, MS, 300 * MS, 2_000 * MS, 4_500 * MS, 12_000 * MS))

        def fail(count: int) -> None:
            health.read_outages = count

        self.world.at(begin, None, fail, 1)
        self.world.at(end, None, fail, 0)
        health.may_fail_reads = True
        self.lives += BLIND_LIVES  # The others keep their numbers, by which stored plans draw.
        try:
            self._lived(disk_state, work, clock=clock)
        except (OSError, BroadsheetError) as error:
            self.trace.note("blind", repr(error))
        self.lives -= BLIND_LIVES + 1
        self.world.run(max(end, self.world.now) + 1, lambda: False)
        health.may_fail_reads = False
        disk_state.locks.clear()
        return True

    def ports(
        self,
        life: Life,
        disk: SimDisk,
        *,
        objects: Callable[[str], ObjectStore],
        crash: Callable[[BaseException], None],
    ) -> Ports:
        """The ports of one process, with entropy of its own."""
        clock, boot = life.clock, self.lives
        assert isinstance(clock, NodeClock), "a life of this tier has the clock of its node"
        return Ports(
            time=SimTime(self.world, clock),
            timers=SimTimers(self.world, life, clock),
            disk=disk,
            network=None,  # type: ignore[arg-type]  # Nobody calls: there is no door.
            objects=objects,
            random=lambda purpose: stream(self.plan.seed, NODE, boot, purpose),
            crash=crash,
        )

    def _lived(
        self,
        disk_state: DiskState,
        work: Callable[[Life, SimDisk], Coroutine[Any, Any, T]],
        *,
        clock: NodeClock | None,
        operations: int | None = None,
        reach: Callable[[str], None] | None = None,
    ) -> list[T]:
        """What `work` returned: nothing where it did not come to its end."""
        self.lives += 1
        life = Life(NODE, self.lives, clock or self.clock)
        left = [operations or 0]

        def kill(_moment: str) -> None:
            left[0] -= 1
            if left[0] == 0:
                self.world.end(life)
                raise Gone(f"{life!r} is killed in operation {operations} of its disk")

        reach = kill if operations else reach
        disk = SimDisk(disk_state, life=life, reach=reach)
        results: list[T] = []
        errors: list[BaseException] = []

        async def whole() -> None:
            try:
                results.append(await work(life, disk))
            except Exception as error:  # noqa: BLE001 - raised below.
                if not life.is_dead:
                    errors.append(error)
            self.world.at(self.world.now, None, self.world.end, life)

        self.world.soon(life, lambda: self.loop.create_task(whole()))
        self.world.run(self.world.now + LIFE_NS, lambda: life.is_dead)
        self.world.end(life)
        if self.world.failure is not None:
            raise self.world.failure
        if errors:
            raise errors[0]
        if not results and reach is None:
            raise Violation(f"life {self.lives} waits for something that never comes")
        return results


def _counted(_kind: str, counts: dict[str, int]) -> Callable[[str], None]:
    def count(name: str) -> None:
        counts[name] = counts.get(name, 0) + 1

    return count


class CrashHistories:
    """One seed's epochs on one simulated disk: what all workloads of this tier begin with."""

    def __init__(self, run: CrashEpisode) -> None:
        seed, name = run.plan.seed, run.workload.name
        self.run, self.knobs, self.clock = run, run.plan.knobs, run.clock
        self.random = stream(seed, name, "operations")
        self.judging = stream(seed, name, "judging")
        self.disk_state = DiskState(Draws(seed, "medium", 0))
        self.tape = Tape()
        self.boots = 0
        self.before: tuple[object, ...] = ()
        """What was promised of the disk that the epoch begins with."""

    @property
    def vouch_delay(self) -> Duration:
        """Of all logs."""
        return Duration(self.knobs["vouch_ms"] * MILLISECOND)

    def play_lives(self, work: Callable[[Life, SimDisk], Coroutine[Any, Any, None]]) -> int:
        """Play and record the lives of one epoch.

        Returns:
            At which step of the tape they begin.
        """
        self.tape = recorded(self.disk_state, self.before)
        begun = len(self.tape.steps)
        buggify.install(chooser(self.run.plan))
        for _ in range(self.knobs["lives"]):
            self.disk_state.locks.clear()
            self.run.live(self.disk_state, work, clock=self.clock)
            self.disk_state.quota_bytes, self.disk_state.health.slow_ns = FULL_BYTES, 0
        buggify.install(None)  # What is judged has nothing else against it.
        return begun

    def go_on(self, state: CrashState, epoch: int) -> None:
        """The next epoch begins with one of the disks."""
        self.disk_state = DiskState.of(state.image, state.directories)
        self.disk_state.draws = Draws(self.run.plan.seed, "medium", epoch + 1)
        self.before, self.clock = state.marks, self.reboot()

    def marks(self) -> tuple[object, ...]:
        """What was promised so far."""
        return tuple(what for step, what in self.tape.steps if step == "mark")

    def reboot(self) -> NodeClock:
        """The clock of a kernel that starts."""
        self.boots += 1
        return NodeClock(self.run.world, f"{NODE}.{self.boots}")

    def cut(self, state: DiskState) -> NodeClock:
        """The power fails, and the machine starts again; no tape tells what is left."""
        state.tape = None
        state.power_cut()
        return self.reboot()


def recorded(state: DiskState, marks: Iterable[object]) -> Tape:
    """A tape that begins with this disk, and what was promised of it."""
    tape = record_on(state)
    for mark in marks:
        tape.mark(mark)
    return tape


def syncs(tape: Tape, begin: int) -> list[int]:
    """The steps of a tape, from one on, at which something becomes durable."""
    return [n for n in range(begin, len(tape.steps)) if tape.steps[n][0].startswith("sync")]


def view(state: DiskState) -> dict[str, bytes]:
    """The files as processes see them, durable or not."""
    return {name: bytes(inode.view) for name, inode in state.files.items()}


async def pause(random: Random) -> None:
    """Between two operations: from nothing, so that things collect, to longer than a rest."""
    chance = random.random()
    if chance < 0.4:
        await asyncio.sleep(0)
    elif chance < 0.8:
        await asyncio.sleep(random.randrange(700) / 1_000_000)
    else:
        await asyncio.sleep(0.02 if chance < 0.95 else 1.5)
