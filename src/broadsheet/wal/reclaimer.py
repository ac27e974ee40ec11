"""Reclaimer: it fills segments ahead of the head, and frees old segments that a few records pin.

All sizes are in bytes. When free segments run short, the streams that pin the oldest segment are asked to
flush, again and again until its pins are gone. If that does not help, a segment that is mostly dead is copied
forward; otherwise the pool gets another segment, up to its limit. If the pool cannot grow, a segment that is
mostly live is copied too, provided that younger segments wait behind it to be freed. All of this is a
restartable to-do list (code.1): it holds no state that recovery would miss. Source: log.9, log.10.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from broadsheet.base.marks import hit
from broadsheet.base.time import in_seconds
from broadsheet.base.types import LogStreamId
from broadsheet.errors import TooLarge
from broadsheet.ports import NO_ROOM
from broadsheet.runtime.scope import Scope
from broadsheet.wal.config import WALConfig
from broadsheet.wal.copying import Copied, copy_forward
from broadsheet.wal.format import FRAME_BYTES
from broadsheet.wal.record import LogFull
from broadsheet.wal.segments import FILL_STEP_BYTES, LATER

FREE_LOW: Final = 2
"""Look for more when fewer segments are free beside the reserve: one is used up while another is filled."""
COPY_LOW: Final = 1
"""Copy at once when fewer segments are free beside the reserve: do not wait for the flush requests."""
ASKED_PER_TURN: Final = 16
"""Streams asked to flush in one turn of the loop: each may start a checkpoint."""
PINNING_TOLD_MAX: Final = 8
"""Streams that an error names."""
RETRY_DOUBLINGS_MAX: Final = 3
"""Flush requests are repeated after `retry_delay`. The delay doubles each time, at most so many times."""


class Relieved(Copied, Protocol):
    """What `SegmentReclaimer` needs of the log: it reads the accounts, and asks the log for all changes."""

    @property
    def config(self) -> WALConfig:
        """The log's limits."""
        ...

    @property
    def tasks(self) -> Scope:
        """The scope of the background tasks."""
        ...

    @property
    def durable_lap(self) -> int:
        """The lap of the last durable batch."""
        ...

    @property
    def directory(self) -> str:
        """The directory of the log."""
        ...

    def pinning(self, count_max: int | None = None) -> list[int]:
        """The streams with records in the oldest segment."""
        ...

    def filled(self, index: int) -> None:
        """Use a file that was filled further."""
        ...

    def die(self, error: OSError) -> None:
        """End the process, because the disk failed."""
        ...


class SegmentReclaimer:
    """The background work by which one log gets room."""

    def __init__(self, log: Relieved) -> None:
        self._log = log
        self.callbacks: dict[int, Callable[[LogStreamId], None]] = {}
        self.is_refused = False
        """The disk had no space for another segment."""
        self._has_turned_away = False
        """Whether a record found no room, and none has come since."""
        self._target = log.config.segments_initial
        self._is_filling = self._is_copying = False
        self._asked_lap = self._asked_at = self._asked_count = 0
        """The lap whose streams were asked to flush, the head at that time, and how often they were asked."""
        self._is_asking = self._is_begun = False
        self._timer: asyncio.TimerHandle | None = None
        self._changing = asyncio.Lock()

    def forget(self, stream: int) -> None:
        """Drop the callback of a stream that is gone."""
        self.callbacks.pop(stream, None)

    async def first_segment(self, room: int) -> None:
        """Make one segment at once, filled up to `initial_fill_bytes`, and at least up to `room`.

        A batch behind the filled part would later be overwritten with zeros, so `room` must hold the first
        batch. Files in use are left out: if the disk was full, the head, too, is shorter than planned.
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
        """Start filling, in the background. The log must have recorded how far the files are filled.

        The remains of a batch that was cut in two must be void before its file grows.
        """
        self._is_begun = True
        self._target = max(self._target, len(self._log.segments.files))
        self._fill()
        self.look()

    def full(self, *, is_out_of_space: bool) -> LogFull:
        """The error that says why the log has no room, and the remedy. It takes microseconds."""
        log, pool, config = self._log, self._log.pool, self._log.config
        self._has_turned_away = True
        if is_out_of_space:
            return LogFull(
                f"the disk of {log.directory} has no space left. Free some space; appends then go on again"
            )
        used = f"the log of {log.directory} is full: {len(pool.laps)} segments in use, {len(pool.free)} free"
        streams = log.pinning(PINNING_TOLD_MAX)
        held = f"the oldest is held by streams {streams}" if pool.oldest < pool.head else "the head is full"
        if self.is_refused:
            return LogFull(
                f"{used}, and the disk has no space for another; {held}. Free space, or wait until they flush"
            )
        if len(log.segments.files) < config.segments_max or log.segments.unfilled() is not None:
            return LogFull(f"{used}; another segment is being filled. Try again")
        return LogFull(
            f"{used}, which is segments_max {config.segments_max}; {held}, which were asked to flush. "
            f"Try again, or raise {log.directory.partition('/')[0]}.wal.segments_max"
        )

    def shortage(self, *, is_out_of_space: bool) -> str:
        """Why records find no room, with the remedy; empty if there is room, or none was turned away yet."""
        if not is_out_of_space and self._log.pool.may_roll(is_relief=False):
            self._has_turned_away = False
        return str(self.full(is_out_of_space=is_out_of_space)) if self._has_turned_away else ""

    def look(self) -> None:
        """See whether free segments run short; if so, ask for flushes, copy, or grow the pool."""
        log, pool = self._log, self._log.pool
        if not self._is_begun or log.is_closed or log.is_dead:
            return
        if len(pool.free) >= pool.reserved + FREE_LOW:
            return
        if self._is_copying:
            if len(pool.free) < pool.reserved + COPY_LOW:
                self.grow()  # Appends go on meanwhile, and may be faster.
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
                return  # With fewer free segments appends would be refused during the copy: grow, too.
        self.grow()

    def close(self) -> None:
        """Send no more flush requests."""
        self._cancel()

    def _request(self, lap: int) -> None:
        """Ask the streams that pin `lap` to flush, and set a timer that asks again."""
        hit("wal.flush_requested")
        self._asked_count += 1
        if self._asked_count > 1:
            hit("wal.flush_requested_again")
        if not self._is_asking:
            self._is_asking = True
            self._log.tasks.spawn(self._ask(lap), name="ask")
        self._arm()

    async def _ask(self, lap: int) -> None:
        """Ask a few streams in a turn: there may be ten thousand."""
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
            self._arm()  # If the copy is refused, nothing else would look again.
        else:
            self.look()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _may_copy(self, *, is_mostly_dead: bool) -> bool:
        """Whether a copy of the oldest segment is worth its cost, and nothing cheaper will free it."""
        pool = self._log.pool
        is_asked_in_vain = self._asked_count > 1
        if is_mostly_dead:
            is_urgent = len(pool.free) < pool.reserved + COPY_LOW
            return is_urgent or is_asked_in_vain or pool.head > self._asked_at
        # A copy of live records takes as much room as it frees, unless younger segments wait to be freed.
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
        """Do `work` in a thread, alone: making or filling a file, or recording how far all are filled."""
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
                if error.errno not in NO_ROOM:
                    log.die(error)
                    return
                self.is_refused = True
                hit("wal.fill_refused")
                await asyncio.sleep(in_seconds(log.config.retry_delay))
        self._is_filling = False

    # --- copying forward ----------------------------------------------------------------------------------

    async def _copy(self, lap: int) -> None:
        log = self._log
        try:
            await copy_forward(log, lap)
        except (LogFull, TooLarge):  # Rows of all streams may leave a segment too little room.
            hit("wal.copy_refused")
            self.grow()
        except OSError as error:
            if error.errno not in LATER:
                log.die(error)
                return
            hit("wal.set_aside_refused")  # Damage pins its segment until there is space for its bytes.
        finally:
            self._is_copying = False
