"""The log alone, tier 3: seeded histories of one log, and what crashes, damage and restarts leave of them.

A seed is a few epochs. In each a log lives some lives on one disk, with small segments, sizes at borders,
trims, truncations, resets, drops, full disks and ends of all kinds, and every write is recorded. Then disks
that a power cut could have left are judged (`logmodel.py`), more of them behind turns that the workload plays
on purpose; damaged in the ways that disks damage (a flipped bit, a lost sector, whole batches lost, several
at once), judged again; some are started, often behind a start that was killed; and one of them is what the
next epoch starts from: recovery of what recovery wrote. At the end of an epoch all is trimmed, and the log
must have room again. It does not know journals: `journal` in tier 3 does.
Source: `docs/protocols/wal.md`.
"""

import asyncio
import errno
from bisect import bisect_right
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final

from broadsheet.base.types import Generation, LogStreamId, Offset
from broadsheet.errors import LocalProtocolError, OffsetNotYetAvailable, Throttled, TooLarge, Trimmed
from broadsheet.ports import Random
from broadsheet.runtime.scope import Scope
from broadsheet.runtime.turn import Turn
from broadsheet.wal.config import BLOCK_BYTES, KIB, WALConfig
from broadsheet.wal.format import RowFlag
from broadsheet.wal.log import Log
from broadsheet.wal.record import LogFull, StreamQuarantined
from simulator.clock import SimTime, SimTimers
from simulator.crash_episode import NODE, CrashEpisode, CrashHistories, CrashWorkload
from simulator.crashstates import CrashState, crash_states, record_on
from simulator.disk import SimDisk
from simulator.disk_state import SECTOR, DiskState
from simulator.entropy import Draws, stream
from simulator.logdamage import damaged
from simulator.logimage import DIRECTORY, Kept, kept_of, read_image
from simulator.logmodel import NO_DAMAGE, STARTED, Damage, LogModel, Promised, Trims
from simulator.workload import Violation
from simulator.world import Life

EPOCHS: Final = 3
STATES_EACH: Final = 4
"""Crash states of one point that are judged as they are."""
ATOMS_MAX: Final = 5
STATES_PLAYED: Final = 24
"""Crash states of each point in a turn that was played on purpose."""
PLAYED_MAX: Final = 3
"""Such points of an epoch that are judged."""
EARLY: Final = 0.4
"""Of the disks that are started, the share on which a start was killed before."""
DAMAGED: Final = 50
"""Damaged disks of an epoch that are judged."""
BLIND: Final = 0.5
"""Of the disks on which a log is really started, the share that read nothing for a while before."""
RESTARTED: Final = 4
"""Disks of an epoch on which a log is really started."""
READS: Final = 0.2
"""Reads beside the operations."""
TRIES_MAX: Final = 400
"""Appends until a log that nothing pins has room again."""


class LogWorkload(CrashWorkload):
    """One log, its streams and their model."""

    name: ClassVar[str] = "log"
    scope: ClassVar[tuple[str, ...]] = ("wal",)

    def knobs(self, draw: Random) -> dict[str, int]:
        """Limits, small ones, and how much is done."""
        segment_kib = (32, 32, 48, 64)[draw.randrange(0, 4)]
        return {
            "segment_kib": segment_kib,
            "fill_kib": (4, segment_kib, segment_kib)[draw.randrange(0, 3)],
            "segments_max": draw.randrange(4, 8),
            "record_bytes": (1 + draw.randrange(1, 4)) * 4 * KIB,
            "batch_bytes": (1, 2, 4)[draw.randrange(0, 3)] * 4 * KIB,
            "vouch_ms": (0, 2, 3_600_000)[draw.randrange(0, 3)],
            "streams": draw.randrange(1, 6),
            "lives": draw.randrange(1, 4),
            "operations": draw.randrange(15, 45),
            "played_percent": (0, 3, 8)[draw.randrange(0, 3)],
        }

    def perform(self, run: CrashEpisode) -> None:
        """Epoch after epoch, each on what a crash left of the one before."""
        _Histories(run).play()


class _Histories(CrashHistories):
    """One seed's epochs."""

    def __init__(self, run: CrashEpisode) -> None:
        super().__init__(run)
        knobs = self.knobs
        self.config = WALConfig(
            segment_bytes=knobs["segment_kib"] * KIB,
            segments_initial=3,
            segments_max=knobs["segments_max"],
            initial_fill_bytes=knobs["fill_kib"] * KIB,
            record_bytes_max=knobs["record_bytes"],
            batch_bytes_max=knobs["batch_bytes"],
            vouch_delay=self.vouch_delay,
        )
        self.early = stream(run.plan.seed, "log", "early")
        self.model = LogModel()
        self.trims: dict[int, Trims] = {}
        self.names = [LogStreamId(n + 1) for n in range(knobs["streams"])]
        self.serial = 0
        self.played: list[int] = []
        """Steps of the tape behind which a turn was played on purpose."""

    def play(self) -> None:
        """All epochs."""
        for epoch in range(EPOCHS):
            self.trims = {}
            self.tape, self.played = record_on(self.disk_state), []
            begun = len(self.tape.steps)
            for number in range(self.knobs["lives"]):
                is_last = number == self.knobs["lives"] - 1
                self.run.live(self.disk_state, self._life(is_last=is_last))
                self.disk_state.quota_bytes = 1 << 40
            states = self._judge(begun)
            image, directories, promised = self._judge_damaged(states)
            self._restart(states)
            self._go_on(image, promised)
            self.disk_state = DiskState.of(image, directories)
            self.disk_state.draws = Draws(self.run.plan.seed, "medium", epoch + 1)

    def _life(self, *, is_last: bool) -> Callable[[Life, SimDisk], Coroutine[Any, Any, None]]:
        async def work(life: Life, disk: SimDisk) -> None:
            if self.disk_state.files and self.random.random() < 0.2:
                self.disk_state.quota_bytes = self.disk_state.used() + self.random.choice((0, 100, 5 * KIB))
            await _Life(self, life, disk).work(is_last=is_last)

        return work

    def note_trim(self, name: int, below: int) -> None:
        """A trim was asked for: any later batch may say so."""
        number = self.model.number(name) - 1
        self.trims.setdefault(name, []).append((number, below))
        self.tape.mark(("trim", name, number, below))

    def promise(self, name: int) -> Callable[[], None]:
        """What to call when the operation that is noted next is durable."""
        number = self.model.number(name)
        tape, run = self.tape, self.run

        def done() -> None:
            run.acked += 1
            tape.mark(("done", name, number))

        return done

    def _judge(self, begun: int) -> list[CrashState]:
        """Every crash state that was drawn, as it is."""
        states = []
        for state in crash_states(self.tape, atoms_max=ATOMS_MAX, first=begun, each_max=STATES_EACH):
            self._look(state.image, Promised(state.marks), NO_DAMAGE, state.position)
            states.append(state)
        syncs = [n for n in range(begun, len(self.tape.steps)) if self.tape.steps[n][0] == "sync"]
        behind = [n for at in self.played for n in syncs[bisect_right(syncs, at) :][:1]][-PLAYED_MAX:]
        for state in crash_states(self.tape, atoms_max=ATOMS_MAX, each_max=STATES_PLAYED, at=behind):
            self._look(state.image, Promised(state.marks), NO_DAMAGE, state.position)
        return states

    def _look(self, image: dict[str, bytes], promised: Promised, damage: Damage, position: int) -> None:
        self.run.judged += 1
        told = read_image(image)
        self._check(told, promised, damage, f"step {position}")
        unknown = [name for name in told if name not in self.model.streams]
        if unknown:
            raise Violation(f"W4 at step {position}: streams {unknown} were never appended to")
        summary = [(name, kept.first, kept.point, kept.flags) for name, kept in sorted(told.items())]
        self.run.trace.note("judged", position, damage.what, summary)

    def _check(self, told: dict[int, Kept], promised: Promised, damage: Damage, where: str) -> None:
        for name in self.model.streams:
            problem = self.model.judge(
                name,
                told.get(name),
                promised=promised.done.get(name, 0),
                trims=promised.trims.get(name, ()),
                damage=damage,
            )
            if problem is not None:
                hurt = f", with {damage.what}," if damage.what else ""
                raise Violation(f"W2 at {where}{hurt} {problem}")

    def _judge_damaged(self, states: list[CrashState]) -> tuple[dict[str, bytes], tuple[str, ...], Promised]:
        """Damaged disks, judged; one disk from which the next epoch starts, damaged or not."""
        last = self._as_killed()
        chosen = (last.image, last.directories, Promised(last.marks))
        for number in range(DAMAGED):
            state = states[self.random.randrange(len(states))] if number % 2 else last
            if STARTED not in state.marks:
                continue  # It is what the epoch before left, and may be damaged already.
            image, damage = damaged(state.image, self.random, is_whole=state is last)
            promised = Promised(state.marks)
            if damage.what:
                damage = damage._replace(is_torn=state is not last)
            self._look(image, promised, damage, state.position)
            if state is last and self.random.random() < 0.06:
                chosen = (image, state.directories, promised)
            elif self.random.random() < 0.03:
                chosen = (state.image, state.directories, promised)
        return chosen

    def _as_killed(self) -> CrashState:
        """The disk as the last process left it, whose page cache lives: no write is torn there."""
        image = {name: bytes(inode.view) for name, inode in sorted(self.disk_state.files.items())}
        return CrashState(len(self.tape.steps), self.marks(), image, tuple(self.disk_state.directories))

    def _restart(self, states: list[CrashState]) -> None:
        """Really start a log on some disks: it must tell what its bytes say, and go on."""
        for _ in range(RESTARTED):
            state = states[self.random.randrange(len(states))]
            image, damage = state.image, NO_DAMAGE
            if self.random.random() < 0.6:
                image, damage = damaged(image, self.random)
            disk_state = DiskState.of(image, state.directories)
            disk_state.draws = Draws(self.run.plan.seed, "restart", self.run.lives)
            image = self._killed_early(disk_state, Promised(state.marks), damage, state)
            lives: list[_Life] = []
            said = self.run.live(disk_state, partial(self._begin, image, lives))
            if said is not None:
                raise Violation(f"{said}, at step {state.position} {damage.what}")
            again = read_image(disk_state.image())
            expected = read_image(image)
            for name in lives[-1].appended:
                kept = again.get(name)
                if kept is None or kept.point.next != expected[name].point.next + 1:
                    raise Violation(
                        f"W1 stream {name}: what was appended behind a restart is not there: {kept}"
                    )

    def _killed_early(
        self, disk_state: DiskState, promised: Promised, damage: Damage, state: CrashState
    ) -> dict[str, bytes]:
        """Starts that are killed, or cut by the power: what they leave tells the same."""
        while self.early.random() < EARLY:
            operations = 1 + self.early.randrange(self.early.choice((8, 40)))
            self.run.die(disk_state, self._opened, operations=operations)
            disk_state.locks.clear()
            if self.early.random() < 0.5:
                disk_state.power_cut()
            image = {name: bytes(inode.view) for name, inode in sorted(disk_state.files.items())}
            self._look(image, promised, damage, state.position)
        is_blind = self.run.blind(disk_state, self._opened, share=BLIND)
        image = {name: bytes(inode.view) for name, inode in sorted(disk_state.files.items())}
        if is_blind:
            self._look(image, promised, damage, state.position)
        return image

    async def _opened(self, life: Life, disk: SimDisk) -> None:
        """A start that is to be killed, in its opening or soon behind it."""
        await _Life(self, life, disk).open()
        await asyncio.sleep(0.01)

    def _begin(
        self, image: dict[str, bytes], lives: list["_Life"], life: Life, disk: SimDisk
    ) -> Coroutine[Any, Any, str | None]:
        lives.append(_Life(self, life, disk))
        return lives[-1].look(image)

    def _go_on(self, image: dict[str, bytes], promised: Promised) -> None:
        """The model stands where the disk does from which the next epoch starts."""
        told = read_image(image)
        for name in list(self.model.streams):
            self.model.restarted(
                name,
                told.get(name),
                promised=promised.done.get(name, 0),
                trims=promised.trims.get(name, ()),
            )


class _Life:
    """One process and its log."""

    def __init__(self, histories: _Histories, life: Life, disk: SimDisk) -> None:
        self.histories, self.life, self.disk = histories, life, disk
        self.random, self.model, self.run = histories.random, histories.model, histories.run
        self.crashes: list[BaseException] = []
        self.appended: list[int] = []
        """The streams that took a record behind a restart."""
        self.reads: list[asyncio.Task[None]] = []
        self.log: Log

    async def open(self) -> None:
        """Start the log, with entropy of its own."""
        run, clock = self.run, self.run.clock
        self.log = await Log.open(
            self.disk,
            DIRECTORY,
            config=self.histories.config,
            time=SimTime(run.world, clock),
            random=stream(run.plan.seed, NODE, run.lives, "log"),
            turn=Turn(SimTimers(run.world, self.life, clock)),
            scope=Scope("log", crash=self.crashes.append),
            crash=self.crashes.append,
        )

    async def work(self, *, is_last: bool) -> None:
        """Operations, then an end of some kind."""
        try:
            await self.open()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                return  # A boot frame that does not fit, or damage that must be kept, needs room first.
            raise
        await self._compare()
        self.histories.tape.mark(STARTED)
        for name in self.histories.names:
            self.log.on_flush_request(name, self._asked_to_flush)
        for _ in range(self.histories.knobs["operations"]):
            played = self.histories.knobs.get("played_percent", 0)
            if played and self.random.random() * 100 < played:
                await self._begin_anew_behind_a_trim()
            name = self.histories.names[self.random.randrange(len(self.histories.names))]
            self._operate(name)
            if self.random.random() < READS:
                self.reads.append(asyncio.ensure_future(self._read(name)))
            await self._pause()
            self._fail()
            if self.random.random() < 0.05:
                disk_state = self.disk.state
                disk_state.quota_bytes = (
                    1 << 40
                    if disk_state.quota_bytes < 1 << 40
                    else disk_state.used() + self.random.randrange(9000)
                )
        await asyncio.gather(*[read for read in self.reads if read.done()])
        if is_last and self.random.random() < 0.7:
            await self._drained()
        if self.random.random() < 0.4:
            self.disk.state.quota_bytes = 1 << 40
            await self.log.close()
            self._fail()

    async def _begin_anew_behind_a_trim(self) -> None:
        """In one turn a stream alone in an old segment is trimmed, which frees it, and then begins anew.

        No row of that batch tells of the trim; where the write is torn, the reset or drop may be lost, too.
        """
        name = self.histories.names[self.random.randrange(len(self.histories.names))]
        self.disk.state.quota_bytes = 1 << 40
        for each in self.histories.names:
            if each != name and self.model.now(each).next and not self.model.now(each).is_lost:
                self.histories.note_trim(each, self.model.now(each).next)
                self.log.trim(each, Offset(self.model.now(each).next))
        if self.model.now(name).is_lost:
            return
        await asyncio.sleep(0.005)
        size = min(self.histories.config.record_bytes_max, self.histories.config.segment_bytes // 4)
        lap = self.log.status().lap_head
        try:
            for _ in range(16):
                if self.log.status().lap_head >= lap + 2:
                    break
                self._append(name, [self._payload()[:16].ljust(size, b".")])
                await asyncio.sleep(0.001)
            self._append(name, [self._payload()[: self.random.choice((100, 2000))]])
            now = self.model.now(name)
            below = max(0, now.next - self.random.choice((0, 1, 2)))
            self.histories.note_trim(name, below)
            self.log.trim(name, Offset(below))
            (self._reset if self.random.random() < 0.6 else self._drop)(name)
            if self.random.random() < 0.7:
                self._append(name, [self._payload()[: self.random.choice((100, 2000))]])
        except (LogFull, Throttled, TooLarge):
            self.run.refused += 1
            return
        self.histories.played.append(len(self.histories.tape.steps))
        await asyncio.sleep(0.005)

    async def look(self, image: dict[str, bytes]) -> str | None:
        """Start on `image`, compare, append to each sound stream, and wait until that is durable."""
        expected = read_image(image)
        await self.open()
        for name, kept in expected.items():
            told = self.log.recovered(LogStreamId(name))
            flags = RowFlag.TAIL_CUT * told.tail_cut | RowFlag.QUARANTINED * told.is_quarantined
            flags |= RowFlag.END_LOST * told.is_end_lost
            mine = (kept.first, kept.point.next, kept.point.generation, kept.flags)
            if (told.first_offset, told.next_offset, told.generation, flags) != mine:
                return f"W3 stream {name}: a start tells {told}, and its bytes say {mine}"
            records = [
                (record.offset, record.payload) async for record in self.log.records(LogStreamId(name))
            ]
            if records != [(record.offset, record.payload) for record in kept.held]:
                return (
                    f"W3 stream {name}: {len(records)} records are read, and its bytes have {len(kept.held)}"
                )
        for name, kept in expected.items():
            if not kept.flags & RowFlag.QUARANTINED:
                durable = asyncio.get_running_loop().create_future()

                with suppress(LogFull):  # Nobody flushes here.
                    done = partial(durable.set_result, None)
                    self.log.append(LogStreamId(name), [b"behind a restart"], done=done)
                    await asyncio.wait_for(durable, 10)
                    self.appended.append(name)
        self._fail()
        return None

    async def _compare(self) -> None:
        """What a start tells is what the model has; it is durable from then on."""
        histories = self.histories
        promised = Promised(histories.marks())
        for name in list(self.model.streams):
            told = self.log.recovered(LogStreamId(name))
            is_there = LogStreamId(name) in self.log.streams()
            if told.is_quarantined:
                standings = self.model.streams[name]
                is_sure = name in promised.done or standings[0].is_there
                if self.log.is_unknown(LogStreamId(name)) and not is_sure:
                    del standings[1:]  # The damage before this epoch may have had all of it.
                    continue
                lost = [number for number, each in enumerate(standings) if each.is_lost]
                if not lost or promised.done.get(name, 0) > lost[-1]:
                    raise Violation(f"W6 stream {name} is quarantined after a kill, and nothing was damaged")
                del standings[lost[-1] + 1 :]  # The kill came before a repair was durable.
                continue
            records = [record async for record in self.log.records(LogStreamId(name))]
            kept = kept_of(self.log, name, records) if is_there else None
            done, trims = promised.done.get(name, 0), histories.trims.get(name, [])
            problem = self.model.judge(name, kept, promised=done, trims=trims)
            if problem is not None:
                raise Violation(f"W2 after a kill: {problem}")
            found = self.model.legal(name, kept, promised=done, trims=trims)
            standings = self.model.streams[name]
            generation = self.log.generation(LogStreamId(name))
            same = [number for number in found if standings[number].generation == generation]
            number = (same or found)[-1]
            standings[number:] = [standings[number]._replace(generation=generation)]
            histories.tape.mark(("done", name, number))
            if told.tail_cut and self.random.random() < 0.5:
                with suppress(LogFull):  # The head may be full, and the next segment not filled yet.
                    self.log.settle(LogStreamId(name))

    def _operate(self, name: LogStreamId) -> None:
        now, random, chance = self.model.now(name), self.random, self.random.random()
        if (now.is_lost or chance > 0.83) and self.log.status().segment_free_count < 2:
            return  # These may use what is reserved: who does them without end fills it.
        try:
            if now.is_lost:
                if chance < 0.2:
                    self._reset(name)
                elif chance < 0.4:
                    self._drop(name)
                return
            if chance < 0.5:
                self._append(name, [self._payload()])
            elif chance < 0.65:
                count = random.randrange(1, 8)
                self._append(name, [self._payload()[: 700 * random.randrange(3)] for _ in range(count)])
            elif chance < 0.83:
                self._trim(name)
            elif chance < 0.9:
                self._truncate(name)
            elif chance < 0.95:
                self._reset(name)
            elif chance < 0.97:
                self._drop(name)
        except (LogFull, Throttled, TooLarge):
            self.run.refused += 1  # Nothing was written, and the model has noted nothing.

    async def _read(self, name: LogStreamId) -> None:
        """What is read back, while the log goes on, is what the stream has when the read returns."""
        state = self.log.states.get(name)
        if state is None or self.model.now(name).is_lost:
            return
        begin = self.random.randrange(state.first, state.next + 1)
        try:
            runs = await self.log.read(name, Offset(begin), self.random.choice((1, 3000, 100_000)))
        except (Trimmed, OffsetNotYetAvailable, LocalProtocolError):
            return  # It was trimmed, truncated or reset meanwhile, or the log was closed.
        except StreamQuarantined as error:
            raise Violation(f"W3 stream {name}: a read finds damage, and there is none: {error}") from error
        now = self.model.now(name)
        for record in [record for run in runs for record in run.records() if record.offset >= begin]:
            if now.content.get(int(record.offset)) != record.payload:
                raise Violation(f"W3 stream {name}: a read shows other bytes at {record.offset}")

    def _payload(self) -> bytes:
        """Of sizes that matter: small, at the border of a block or a sector, as large as may be."""
        self.histories.serial += 1
        largest = self.histories.config.record_bytes_max
        border = BLOCK_BYTES * self.random.randrange(1, 4)
        size = (
            self.random.randrange(300),
            self.random.randrange(300),
            self.random.randrange(largest),
            border - self.random.choice((0, 1, 84, 128, 172, 176, 180, 216, 256, 260, 300)),
            self.random.randrange(2, 9) * SECTOR,
            largest,
        )[self.random.randrange(6)]
        head = b"%d " % self.histories.serial
        return (head + self.random.randbytes(max(0, min(size, largest) - len(head))))[: min(size, largest)]

    def _append(self, name: LogStreamId, payloads: list[bytes]) -> None:
        generation = self.model.now(name).generation + (self.random.random() < 0.1)
        done = self.histories.promise(name)
        if len(payloads) == 1:
            self.log.append(name, payloads, generation=Generation(generation), done=done)
        else:
            self.log.append_many(name, payloads, generation=Generation(generation), done=done)
        self.model.append(name, payloads, generation)

    def _trim(self, name: LogStreamId) -> None:
        now = self.model.now(name)
        if now.next:
            below = self.random.choice((now.next, now.next, self.random.randrange(now.next + 1)))
            self.histories.note_trim(name, below)
            self.log.trim(name, Offset(below))

    def _truncate(self, name: LogStreamId) -> None:
        now = self.model.now(name)
        first = self._first(name)
        if not now.is_there or first >= now.next:
            return
        offset = self.random.randrange(first, now.next + 1)
        if offset not in now.chains and offset != now.base:
            return
        generation, chain = now.generation + 1, now.chains.get(offset, 0)
        done = self.histories.promise(name)
        self.log.truncate(name, Offset(offset), Generation(generation), done, chain=chain)
        self.model.truncate(name, offset, generation)

    def _first(self, name: LogStreamId) -> int:
        state = self.log.states.get(name)
        return state.first if state is not None else 0

    def _reset(self, name: LogStreamId) -> None:
        now = self.model.now(name)
        if not now.is_there:
            return
        offset = self.random.choice((0, now.next, self.random.randrange(1000)))
        done = self.histories.promise(name)
        self.log.reset(name, Offset(offset), Generation(now.generation + 1), done)
        self.model.reset(name, offset, now.generation + 1)

    def _drop(self, name: LogStreamId) -> None:
        if self.model.now(name).is_there:
            self.log.drop(name)
            self.model.drop(name)

    def _asked_to_flush(self, name: LogStreamId) -> None:
        """Most domains do what they are asked; some are slow."""
        if self.random.random() < 0.7 and not self.model.now(name).is_lost:
            self.histories.note_trim(name, self.model.now(name).next)
            self.log.trim(name, Offset(self.model.now(name).next))

    async def _pause(self) -> None:
        """From nothing, so that batches collect, to longer than a rest."""
        chance = self.random.random()
        if chance < 0.4:
            await asyncio.sleep(0)
        elif chance < 0.8:
            await asyncio.sleep(self.random.randrange(500) / 1_000_000)
        elif chance < 0.9:
            await asyncio.sleep(0.02)

    async def _drained(self) -> None:
        """Nothing is wanted any more: the log must have room again, whatever happened."""
        self.disk.state.quota_bytes = 1 << 40
        log, config = self.log, self.histories.config
        for name in self.histories.names:
            if self.model.now(name).is_lost:
                await self._until_room(partial(self._drop, name))
            elif self.model.now(name).is_there:
                self.histories.note_trim(name, self.model.now(name).next)
                log.trim(name, Offset(self.model.now(name).next))
        name = self.histories.names[0]
        payload = bytes(min(config.record_bytes_max, config.segment_bytes // 4))
        for _ in range(2 * config.segments_max * 4):
            await self._until_room(lambda: self._append(name, [payload]))
            self.histories.note_trim(name, self.model.now(name).next)
            log.trim(name, Offset(self.model.now(name).next))
        await asyncio.sleep(1)
        status = log.status()
        if status.lap_head - status.lap_oldest > 1:
            raise Violation(
                f"the log pins segments for ever: everything is trimmed, laps {status.lap_oldest} to "
                f"{status.lap_head} are in use, held by {status.pinning}"
            )
        if status.segment_free_count + status.lap_head - status.lap_oldest + 1 < status.segment_count:
            raise Violation(
                f"of {status.segment_count} segments {status.segment_free_count} are free and laps "
                f"{status.lap_oldest} to {status.lap_head} in use: the others are lost"
            )

    async def _until_room(self, work: Callable[[], None]) -> None:
        for _ in range(TRIES_MAX):
            try:
                work()
            except (LogFull, Throttled) as error:
                why = error
                await asyncio.sleep(0.05)
            else:
                return
        raise Violation(f"the log does not heal in {TRIES_MAX / 20} s: {why}")

    def _fail(self) -> None:
        if self.crashes:
            raise self.crashes[0]
