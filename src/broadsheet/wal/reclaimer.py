"""Reclaimer: filling segments ahead of the head, and freeing old ones that a few records pin.

Bytes throughout. When free segments run short, whoever pins the oldest one is asked to flush, again and
again until its pins are gone; where that does not help, a segment that is mostly dead is copied forward,
and one that is not is added to the pool, up to its limit. A pool that cannot grow copies also what is not
mostly dead, where younger segments wait behind it. These are restartable to-do lists (code.1): they
hold no state that recovery would miss. Source: log.9, log.10.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from broadsheet.base.marks import hit
from broadsheet.base.time import in_seconds
from broadsheet.base.types import LogStreamId
from broadsheet.errors import TooLarge
from broadsheet.runtime.scope import Scope
from broadsheet.wal.config import WALConfig
from broadsheet.wal.copying import Copied, copy_forward
from broadsheet.wal.format import FRAME_BYTES
from broadsheet.wal.record import LogFull
from broadsheet.wal.segments import FILL_STEP_BYTES, NO_FILE, NO_SPACE

FREE_LOW: Final = 2
"""Below so many free segments beside the reserve, look for more: one is used up while another is filled."""
COPY_LOW: Final = 1
"""Below so many, do not wait for whoever was asked to flush."""
ASKED_PER_TURN: Final = 16
"""Streams asked to flush in one turn of the loop: each may start a checkpoint."""
PINNING_TOLD_MAX: Final = 8
"""Streams that an error names."""
RETRY_DOUBLINGS_MAX: Final = 3
"""Requests are repeated after `retry_delay`, then twice that, and so on: it doubles so often."""


class Relieved(Copied, Protocol):
    """What `SegmentReclaimer` needs of the log: it reads the accounts, and asks for the rest."""

    @property
    def config(self) -> WALConfig:
        """The log's limits."""
        ...

    @property
    def tasks(self) -> Scope:
        """Where it runs in the background."""
        ...

    @property
    def durable_lap(self) -> int:
        """The lap of the last durable batch."""
        ...

    @property
    def directory(self) -> str:
        """Where it is."""
        ...

    def pinning(self, count_max: int | None = None) -> list[int]:
        """The streams with records in the oldest segment."""
        ...

    def filled(self, index: int) -> None:
        """A file grew."""
        ...

    def die(self, error: OSError) -> None:
        """The disk failed: end the process."""
        ...


class SegmentReclaimer:
    """What one log does to have room."""

    def __init__(self, log: Relieved) -> None:
        self._log = log
        self.callbacks: dict[int, Callable[[LogStreamId], None]] = {}
        self.is_refused = False
        """The disk had no room for another segment."""
        self._target = log.config.segments_initial
        self._is_filling = self._is_copying = False
        self._asked_lap = self._asked_at = self._asked_count = 0
        """The lap whose streams were asked to flush, where the head stood then, and how often."""
        self._is_asking = self._is_begun = False
        self._timer: asyncio.TimerHandle | None = None
        self._changing = asyncio.Lock()

    def forget(self, stream: int) -> None:
        """The stream is gone."""
        self.callbacks.pop(stream, None)

    async def first_segment(self, room: int) -> None:
        """Have one segment at once, filled as far as a start waits for, and at least up to `room`.

        What is written behind the filled part would be filled over. Never one that is in use: the head, too,
        is shorter than it is to be where the disk was full.
        """
        log, segments = self._log, self._log.segments

        def make() -> int:
            index = segments.unfilled(but=log.pool.rooms)
            if index is None:
                index = segments.create()
            least = max(log.config.initial_fill_bytes, room)
            end = min(segments.wanted[index], max(least, segments.filled[index]))
            segments.fill(index, end)
            return index

        index = await log.disk.run(make)
        log.pool.add_free(index, segments.filled[index])

    def begin(self) -> None:
        """Start filling, in the background.

        Not before a start has said how far the files are filled: what is left of a batch that was cut in two
        must be void before its file grows.
        """
        self._is_begun = True
        self._target = max(self._target, len(self._log.segments.files))
        self._fill()
        self.look()

    def full(self, *, is_out_of_space: bool) -> LogFull:
        """Why there is no room, and what is done or can be done about it; found out in microseconds."""
        log, pool, config = self._log, self._log.pool, self._log.config
        if is_out_of_space:
            return LogFull(
                f"the disk of {log.directory} has no space left. Free some; appends then go on by themselves"
            )
        used = f"the log of {log.directory} is full: {len(pool.laps)} segments in use, {len(pool.free)} free"
        streams = log.pinning(PINNING_TOLD_MAX)
        held = f"the oldest is held by streams {streams}" if pool.oldest < pool.head else "the head is full"
        if self.is_refused:
            return LogFull(
                f"{used}, and the disk has no space for another; {held}. Free space, or wait until they flush"
            )
        if len(log.segments.files) < config.segments_max or log.segments.unfilled() is not None:
            return LogFull(f"{used}; another one is being filled. Try again")
        return LogFull(
            f"{used}, which is segments_max {config.segments_max}; {held}, which were asked to flush. "
            "Try again, or raise wal.segments_max"
        )

    def look(self) -> None:
        """A batch is durable, so room may have become short: ask, copy or grow."""
        log, pool = self._log, self._log.pool
        if not self._is_begun or log.is_closed or log.is_dead or self._is_copying:
            return
        if len(pool.free) >= pool.reserved + FREE_LOW:
            return
        lap = pool.oldest
        if lap < log.durable_lap:
            use = pool.laps[lap]
            if not use.pins:
                return  # It is past: the next batch frees it.
            if self._asked_lap != lap:
                self._asked_lap, self._asked_at, self._asked_count = lap, pool.head, 0
                self._cancel()
            if self._timer is None:
                self._request(lap)
            is_mostly_dead = 2 * (use.live_bytes + FRAME_BYTES * use.pins) <= pool.rooms[use.index]
            if self._may_copy(is_mostly_dead=is_mostly_dead):
                self._is_copying = True
                log.tasks.spawn(self._copy(lap), name="copy")
            if is_mostly_dead and len(pool.free) >= pool.reserved + COPY_LOW:
                return  # Else appends would be refused while the copy is on its way.
        self.grow()

    def close(self) -> None:
        """Ask nobody any more."""
        self._cancel()

    def _request(self, lap: int) -> None:
        """Ask whoever pins `lap` to flush, now and again until the pins are gone."""
        hit("wal.flush_requested")
        self._asked_count += 1
        if self._asked_count > 1:
            hit("wal.flush_requested_again")
        if not self._is_asking:
            self._is_asking = True
            self._log.tasks.spawn(self._ask(lap), name="ask")
        self._arm()

    async def _ask(self, lap: int) -> None:
        """A few streams a turn: there may be ten thousand."""
        log, count = self._log, 0
        try:
            for stream in list(log.pool.laps[lap].streams):
                if log.is_closed or log.is_dead or lap not in log.pool.laps:
                    return
                state, callback = log.states.get(stream), self.callbacks.get(stream)
                if callback is None or state is None or lap not in state.laps:
                    continue
                callback(LogStreamId(stream))
                count += 1
                if count % ASKED_PER_TURN == 0:
                    await asyncio.sleep(0)
        finally:
            self._is_asking = False

    def _arm(self) -> None:
        doublings = min(self._asked_count - 1, RETRY_DOUBLINGS_MAX)
        delay = in_seconds(self._log.config.retry_delay) * (1 << doublings)
        self._timer = asyncio.get_running_loop().call_later(delay, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        if self._is_copying:
            self._arm()  # The copy may be refused: then nobody else would look.
        else:
            self.look()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _may_copy(self, *, is_mostly_dead: bool) -> bool:
        """Whether copying the oldest segment forward is worth it, and nothing better will free it."""
        pool = self._log.pool
        is_asked_in_vain = self._asked_count > 1
        if is_mostly_dead:
            is_urgent = len(pool.free) < pool.reserved + COPY_LOW
            return is_urgent or is_asked_in_vain or pool.head > self._asked_at
        # A copy takes about what it frees. It frees more where younger segments wait behind it.
        waiting = (lap < self._log.durable_lap and not use.pins for lap, use in pool.laps.items())
        return is_asked_in_vain and not self._can_grow() and any(waiting)

    def _can_grow(self) -> bool:
        segments = self._log.segments
        is_wanted = segments.unfilled() is not None or len(segments.files) < self._log.config.segments_max
        return is_wanted and not self.is_refused

    def grow(self) -> None:
        """Add a segment to the pool, up to its limit."""
        segments = self._log.segments
        if len(segments.files) < self._log.config.segments_max and self._target <= len(segments.files):
            hit("wal.pool_grown")
            self._target = len(segments.files) + 1
        self._fill()

    async def alone(self, work: Callable[[], object]) -> None:
        """Make or fill a file, or say how far all are filled: in a thread, one of these at a time."""
        async with self._changing:
            await self._log.disk.run(work)

    # --- filling ------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        segments = self._log.segments
        is_wanted = segments.unfilled() is not None or len(segments.files) < self._target
        if is_wanted and not self._is_filling:
            self._is_filling = True
            self._log.tasks.spawn(self._fill_all(), name="fill")

    async def _fill_all(self) -> None:
        """Fill every file to its size, then make new ones up to the target."""
        log, segments = self._log, self._log.segments
        while not log.is_closed and not log.is_dead:
            index = segments.unfilled()
            if index is None and len(segments.files) >= self._target:
                break
            try:
                if index is None:
                    await self.alone(segments.create)
                else:
                    end = min(segments.wanted[index], segments.filled[index] + FILL_STEP_BYTES)
                    await self.alone(partial(segments.fill, index, end))
                    log.filled(index)
                self.is_refused = False
            except OSError as error:
                if error.errno not in NO_SPACE + NO_FILE:
                    log.die(error)
                    return
                self.is_refused = True
                hit("wal.fill_refused")
                await asyncio.sleep(in_seconds(log.config.retry_delay))
        self._is_filling = False

    # --- copying forward ----------------------------------------------------------------------------------

    async def _copy(self, lap: int) -> None:
        """Append again what still pins `lap`."""
        log = self._log
        try:
            await copy_forward(log, lap)
        except (LogFull, TooLarge):  # What names all streams may leave a segment too little room.
            hit("wal.copy_refused")
            self.grow()
        except OSError as error:
            if error.errno not in NO_SPACE + NO_FILE:
                log.die(error)
                return
            hit("wal.set_aside_refused")  # What is damaged pins its segment until there is room to keep it.
        finally:
            self._is_copying = False
