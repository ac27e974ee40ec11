"""Short histories of a log, recorded on a simulated disk, and the judge of what any crash may leave of them.

The judge knows every operation that was begun, in order, and how many of each stream were acknowledged.
What recovery finds of a stream must be the state after some number of its operations, at least the
acknowledged ones (W2).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

from broadsheet.base.time import SECOND, Duration
from broadsheet.base.types import Generation, LogStreamId, Offset
from broadsheet.wal import Run, WALConfig
from broadsheet.wal.format import RowFlag
from simulator.crashstates import CrashState, crash_states, record
from simulator.disk import SimDisk
from simulator.disk_state import Tape
from simulator.logimage import Kept, read_image
from tests.wal.harness import A, B, Bench, abandon, open_log, vouching

__all__ = ["Kept", "read_image"]

TINY = WALConfig(
    segment_bytes=32 << 10,
    segments_initial=3,
    segments_max=7,
    initial_fill_bytes=32 << 10,
    record_bytes_max=8 << 10,
    batch_bytes_max=16 << 10,
    vouch_delay=Duration(3600 * SECOND),
)
Records = dict[int, bytes]


class History:
    """What a test did to a log, and what it was promised."""

    def __init__(self) -> None:
        self.config = TINY
        self.disk = SimDisk()
        self.tape: Tape = record(self.disk)
        self.states: dict[int, list[tuple[int, Records]]] = {}
        """Per stream: (next offset, records) after each of its operations."""
        self.points: dict[int, list[tuple[int, int]]] = {}
        """Per stream: (generation, chain) after each of its operations."""
        self.trimmed: dict[int, int] = {}
        self.bench: Bench | None = None
        self.starts = 0

    async def start(self) -> Bench:
        """Start the process, the first one or another one."""
        self.starts += 1
        self.bench = await open_log(self.disk, config=self.config, seed=100 + self.starts)
        log = self.bench.log
        for stream, states in self.states.items():
            told = await self.bench.found(LogStreamId(stream))
            found = {int(r.offset): r.payload for r in told.records}
            self._note(stream, log.next_offset(LogStreamId(stream)), found)
            self.tape.mark(
                (stream, len(states) - 1)
            )  # What a start tells its domain is durable from then on.
        return self.bench

    def append(self, stream: LogStreamId, payload: bytes, *, generation: int = 0) -> None:
        assert self.bench is not None
        offset = self.bench.log.append(
            stream, [payload], generation=Generation(generation), done=self._done(stream)
        )
        _, before = self._now(stream)
        self._note(stream, offset + 1, {**before, offset: payload})

    def append_many(self, stream: LogStreamId, *payloads: bytes, generation: int = 0) -> None:
        """One run: all of it, or nothing."""
        assert self.bench is not None
        offset = self.bench.log.append_many(
            stream, payloads, generation=Generation(generation), done=self._done(stream)
        )
        _, before = self._now(stream)
        self._note(stream, offset + len(payloads), {**before, **dict(enumerate(payloads, offset))})

    def truncate(self, stream: LogStreamId, offset: int, generation: int) -> None:
        """Anywhere, also inside a run, of a stream of which nothing was trimmed."""
        assert self.bench is not None
        _, before = self._now(stream)
        kept = [before[n] for n in range(offset)]
        chain = Run.of(kept, offset=Offset(0), seed=0).crc
        done = self._done(stream)
        self.bench.log.truncate(stream, Offset(offset), Generation(generation), done, chain=chain)
        self._note(stream, offset, {o: p for o, p in before.items() if o < offset})

    def reset(self, stream: LogStreamId, offset: int, generation: int) -> None:
        assert self.bench is not None
        self.bench.log.reset(stream, Offset(offset), Generation(generation), self._done(stream))
        self._note(stream, offset, {})

    def drop(self, stream: LogStreamId) -> None:
        assert self.bench is not None
        self.bench.log.drop(stream)
        self._note(stream, 0, {})

    def trim(self, stream: LogStreamId, below: int) -> None:
        assert self.bench is not None
        self.bench.log.trim(stream, Offset(below))
        self.trimmed[stream] = below

    async def settled(self) -> None:
        assert self.bench is not None
        await self.bench.settled()

    async def rested(self) -> None:
        """The log has vouched for its last batch. Only where its configuration lets it."""
        assert self.bench is not None
        await self.bench.vouched()

    async def kill(self) -> None:
        """Kill -9: the page cache lives on."""
        assert self.bench is not None
        await abandon(self.bench)

    def _now(self, stream: int) -> tuple[int, Records]:
        return self.states.setdefault(stream, [(0, {})])[-1]

    def _note(self, stream: int, after: int, content: Records) -> None:
        assert self.bench is not None
        log, name = self.bench.log, LogStreamId(stream)
        self.states[stream].append((after, content))
        points = self.points.setdefault(stream, [(0, 0)])
        points.append((log.generation(name), log.chain(name)))

    def _done(self, stream: int) -> Callable[[], None]:
        number = len(self.states.setdefault(stream, [(0, {})]))
        return lambda: self.tape.mark((stream, number))

    # --- the judge ----------------------------------------------------------------------------------------

    def judge(self, state: CrashState) -> str | None:
        """What is wrong with what recovery finds in this state; None where nothing is."""
        promised: dict[int, int] = {}
        for mark in state.marks:
            assert isinstance(mark, tuple)
            promised[mark[0]] = max(promised.get(mark[0], 0), mark[1])
        return self.judge_verdicts(read_image(state.image), promised)

    def judge_verdicts(self, verdicts: dict[int, Kept], promised: dict[int, int]) -> str | None:
        """As `judge`, of what was already read."""
        for stream, states in self.states.items():
            verdict = verdicts.get(stream)
            if verdict is None:
                if (0, {}) not in states[promised.get(stream, 0) :]:
                    return (
                        f"stream {stream}: {promised[stream]} operations acknowledged, and nothing is there"
                    )
                continue
            if verdict.flags & RowFlag.QUARANTINED:
                return f"stream {stream} is quarantined, though nothing was damaged"
            found = {int(held.offset): held.payload for held in verdict.held}
            legal = [
                number
                for number, (after, content) in enumerate(states)
                if number >= promised.get(stream, 0)
                and after == verdict.point.next
                and self.points[stream][number][1] == verdict.point.crc
                and verdict.point.generation >= self.points[stream][promised.get(stream, 0)][0]
                and {o: p for o, p in content.items() if o >= verdict.first} == found
            ]
            trimmed = self.trimmed.get(stream, 0)
            if not any(verdict.first <= max(trimmed, _base(states, number)) for number in legal):
                return (
                    f"stream {stream} holds {sorted(found)} of [{verdict.first}, {verdict.point.next}), "
                    f"after {promised.get(stream, 0)} acknowledged operations of {len(states) - 1}"
                )
        return None


def _base(states: list[tuple[int, Records]], number: int) -> int:
    """The first offset after a reset, where there was one."""
    after, content = states[number]
    return min(content, default=after)


def noise(seed: int, length: int) -> bytes:
    """Bytes that differ in every sector."""
    return random.Random(seed).randbytes(length)


# --- mixes
# ----------------------------------------------------------------------------------------------------------


async def appends(history: History) -> None:
    """Two streams, batches of one and of many frames, small and larger than a block."""
    await history.start()
    for n in range(8):
        history.append(A, noise(n, 5000 - 600 * n))
        history.append(B, noise(n, 700 * n))
        if n % 2:
            history.append(A, noise(n, 900))
        await history.settled()


async def truncations(history: History) -> None:
    """A branch is cut and grows again, partly with the very same bytes."""
    await history.start()
    for n in range(5):
        for m in range(4):
            history.append(A, noise(m, 2600), generation=2 * n)
            history.append(B, noise(n, 500 * m))
            if m % 2:
                await history.settled()
        history.truncate(A, n % 3, 2 * n + 1)
        history.append(A, noise(2, 2600), generation=2 * n + 1)
        await history.settled()
        history.append(A, noise(3, 2600), generation=2 * n + 1)
        history.truncate(A, n % 2, 2 * n + 2)
        await history.settled()


async def branches_in_a_batch(history: History) -> None:
    """A stream is truncated twice in one batch: what the second one cuts is the branch behind the first."""
    await history.start()
    for n in range(10):
        history.append(A, noise(n, 4300), generation=3 * n)
        history.append(A, noise(n + 9, 100), generation=3 * n)
        await history.settled()
        history.append(B, noise(n, 400))  # In the sector of the batch's header.
        history.truncate(A, n + 1, 3 * n + 1)
        history.append(A, noise(n + 20, 700), generation=3 * n + 1)
        history.truncate(A, n + 2, 3 * n + 2)
        history.append_many(A, noise(n, 1500), noise(n, 40), generation=3 * n + 2)
        await history.settled()
        history.truncate(A, n + 1, 3 * n + 3)
        await history.settled()


async def branches_inside_runs(history: History) -> None:
    """As above, and the offset of the second truncation lies inside a run of each branch."""
    await history.start()
    for n in range(18):
        history.append_many(A, *[noise(m + n, 700) for m in range(6)], generation=3 * n)
        await history.settled()
        history.append(B, noise(n, 400))
        history.truncate(A, 1, 3 * n + 1)
        history.append_many(A, *[noise(m + n + 50, 700) for m in range(4)], generation=3 * n + 1)
        history.truncate(A, 3, 3 * n + 2)
        await history.settled()
        history.truncate(A, 0, 3 * n + 3)
        await history.settled()


async def runs(history: History) -> None:
    """Many entries as one; cut inside, and continued with other bytes, with the very same, or not at all."""
    await history.start()
    for n in range(5):
        history.append_many(A, *[noise(m, 700 - 100 * m) for m in range(4)], generation=2 * n)
        history.append_many(B, *[noise(n + m, 20 * m) for m in range(20)])
        if n % 2:
            await history.settled()
        history.truncate(A, 1 + n % 3, 2 * n + 1)
        history.append_many(A, noise(2, 900), noise(9, 50), generation=2 * n + 1)
        await history.settled()
        history.truncate(A, 2 + n % 2, 2 * n + 2)
        if n % 2 == 0:
            await history.settled()


async def runs_and_copies(history: History) -> None:
    """Runs that were cut inside pin the oldest segment, are copied forward, and are cut again."""
    await history.start()
    history.append_many(A, *[noise(m, 300) for m in range(6)])
    history.truncate(A, 4, 1)
    history.append_many(A, noise(4, 300), noise(7, 300), generation=1)
    for n in range(16):
        history.append(B, noise(n, 7000))
        await history.settled()
        history.trim(B, n)
        if n == 10:
            history.truncate(A, 3, 2)


async def recycling(history: History) -> None:
    """Segments are trimmed and written over, with old laps behind the head."""
    await history.start()
    for n in range(24):
        history.append(A, noise(n, 6000))
        history.append(B, noise(n, 300))
        await history.settled()
        history.trim(A, max(0, n - 1))
        history.trim(B, max(0, n - 2))


async def copying(history: History) -> None:
    """A stream pins the oldest segment with one record, which is copied forward while another goes on."""
    await history.start()
    history.append(B, b"pins" * 50)
    for n in range(24):
        history.append(A, noise(n, 7000))
        await history.settled()
        history.trim(A, n)


async def trims_within_a_turn(history: History) -> None:
    """What is trimmed in the middle of a turn is told by a later batch than what was appended before it.

    The first batch is whole on the disk, the second, which has the row of the trimmed stream, may not be.
    """
    await history.start()
    count = 0
    for n in range(8):
        history.append(A, noise(n, 3000))
        for m in range(5):
            history.append(B, noise(10 * n + m, 7000))
            await history.settled()
            history.trim(B, count + m + 1)
        history.append(B, noise(n, 600))
        history.trim(A, n + 1)
        for m in range(3):
            history.append(B, noise(10 * n + m, 5500))
        await history.settled()
        count += 9


async def trims_behind_a_roll(history: History) -> None:
    """The head has moved on, within a turn, when everything that is durable is trimmed.

    The segment of the last durable batch is needed all the same: it says where the streams stand, if what
    is being written now is torn.
    """
    bench = await history.start()
    count = 0
    for n in range(8):
        while bench.log._last is None or bench.log._last.end < TINY.segment_bytes - 7000:
            history.append(A, noise(count, 3000), generation=n + 1)
            await history.settled()
            count += 1
        history.append(A, noise(n, 7000), generation=n + 1)
        history.trim(A, count)
        await history.settled()
        count += 1


async def restarts(history: History) -> None:
    """Killed in the middle of a write and started again, with the page cache as it was."""
    for life in range(10):
        await history.start()
        for n in range(3):
            history.append(A, noise(10 * life + n, 3000))
            history.append(B, noise(n, 400))
            if n == 1:
                await history.settled()
        await asyncio.sleep(0)
        await history.kill()


async def resets(history: History) -> None:
    """Streams begin anew at other offsets."""
    await history.start()
    for n in range(6):
        history.append(A, noise(n, 3500), generation=n + 1)
        history.append(B, noise(n, 1200))
        await history.settled()
        history.reset(A, 100 * n, n + 2)
        history.append(A, noise(n, 4500), generation=n + 2)
        await history.settled()


async def resets_behind_others(history: History) -> None:
    """A stream begins anew in a batch whose first sectors hold another one: the reset alone may be lost."""
    await history.start()
    for n in range(8):
        for m in range(3):
            history.append(A, noise(m, 900), generation=n + 1)
        await history.settled()
        if n % 4 == 3:
            history.trim(A, history.states[A][-1][0] - 1)
        history.append(B, noise(n + 9, 1500))
        history.reset(A, (50 * n, history.states[A][-1][0], 1)[n % 3], n + 2)
        history.append(A, noise(n, 1900), generation=n + 2)
        history.append(A, noise(n, 1400), generation=n + 2)
        await history.settled()


async def drops(history: History) -> None:
    """A stream is dropped and begins anew in one batch, of which the drop alone may be lost."""
    await history.start()
    for n in range(6):
        for m in range(3):
            history.append(A, noise(10 * n + m, 900))
            await history.settled()
        history.append(A, noise(n, 1500))
        history.append(B, noise(n, 3000 + 200 * n))
        history.drop(A)
        history.append(A, noise(n + 50, 1100))
        await history.settled()
        history.drop(A)
        await history.settled()


async def raised_and_trimmed(history: History) -> None:
    """A batch raises the generation, trims above what was durable, and says that a segment is free."""
    await history.start()
    generation = 0
    for n in range(30):
        history.append(A, noise(n, 7000), generation=generation)
        await history.settled()
        if n % 3 == 2:
            generation += 1
            for m in range(3):
                history.append(A, noise(m, 600), generation=generation)
            history.trim(A, history.states[A][-1][0])
            history.append(A, noise(n, 900), generation=generation)
            await history.settled()


async def trimmed_and_reset(history: History) -> None:
    """A stream is trimmed and then begins anew in one batch: no row tells the trim that frees a segment."""
    await history.start()
    for n in range(8):
        for m in range(8):
            history.append(A, noise(8 * n + m, 6000), generation=n + 1)
            await history.settled()
        history.append(A, noise(n, 1900), generation=n + 1)
        history.trim(A, history.states[A][-1][0] - 2)
        history.reset(A, (0, 50 * n, 1)[n % 3], n + 2)
        history.append(A, noise(n, 1400), generation=n + 2)
        await history.settled()


async def trimmed_and_dropped(history: History) -> None:
    """The same with a drop: the stream that begins anew in that batch is another one."""
    await history.start()
    for n in range(8):
        for m in range(8):
            history.append(A, noise(8 * n + m, 6000))
            await history.settled()
        history.append(A, noise(n, 1900))
        history.trim(A, history.states[A][-1][0] - (2 if n % 2 else 0))
        history.drop(A)
        history.append(A, noise(n, 1400))
        await history.settled()
        history.trim(A, 1)
        history.drop(A)
        await history.settled()


async def resting(history: History) -> None:
    """The log rests after each turn, and vouches for its last batch; its process is killed now and then."""
    history.config = vouching(TINY)
    for life in range(3):
        await history.start()
        for n in range(4):
            history.append(A, noise(10 * life + n, 3500))
            history.append(B, noise(n, 700 * n))
            if n != 2:
                await history.rested()
        history.trim(A, 4 * life + 2)
        history.append(B, noise(life, 5000))
        await (history.settled() if life == 1 else asyncio.sleep(0))
        await history.kill()


MIXES: dict[str, Callable[[History], Awaitable[None]]] = {
    mix.__name__: mix
    for mix in (
        appends,
        truncations,
        branches_in_a_batch,
        branches_inside_runs,
        runs,
        runs_and_copies,
        recycling,
        copying,
        trims_within_a_turn,
        trims_behind_a_roll,
        restarts,
        resets,
        resets_behind_others,
        drops,
        raised_and_trimmed,
        trimmed_and_reset,
        trimmed_and_dropped,
        resting,
    )
}


def run_mix(name: str) -> History:
    """Play one mix."""
    history = History()
    asyncio.run(MIXES[name](history))  # type: ignore[arg-type]
    return history


def search(name: str, *, atoms_max: int, states_max: int = 1 << 60) -> tuple[int, list[str]]:
    """Judge the crash states of a mix; how many there were, and what is wrong with any."""
    history = run_mix(name)
    wrong: list[str] = []
    count = 0
    for state in crash_states(history.tape, atoms_max=atoms_max):
        count += 1
        if (problem := history.judge(state)) is not None:
            wrong.append(f"{name} at step {state.position}: {problem}")
        if count >= states_max or len(wrong) > 5:
            break
    return count, wrong
