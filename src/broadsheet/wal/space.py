"""Room: filling segments ahead of the head, and freeing old ones that a few records pin.

Bytes throughout. When free segments run short, whoever pins the oldest one is asked to flush; where
that does not help, a segment that is mostly dead is copied forward, and one that is not is added to the
pool, up to its limit. These are restartable to-do lists (STYLE 1.8): they hold no state that recovery
would miss. Source: DESIGN 3 ("A stream that pins old segments").
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from broadsheet.base.marks import hit
from broadsheet.base.time import in_seconds
from broadsheet.base.types import LogStreamId
from broadsheet.ports import Disk
from broadsheet.runtime.failpoints import passed
from broadsheet.runtime.scope import Scope
from broadsheet.wal.config import BLOCK_BYTES, WALConfig
from broadsheet.wal.format import FRAME, HEAD_BYTES, FrameHeader, Kind
from broadsheet.wal.opening import set_aside
from broadsheet.wal.pool import Pool
from broadsheet.wal.record import LogFull
from broadsheet.wal.recovery import Damage
from broadsheet.wal.scan import frames
from broadsheet.wal.segments import FILL_STEP_BYTES, NO_FILE, NO_SPACE, Segments
from broadsheet.wal.stream import StreamState

FREE_LOW: Final = 3
"""Below so many free segments, look for more: one is kept, one is used up while another is filled."""
COPY_LOW: Final = 2
"""Below so many, do not wait for whoever was asked to flush."""
COPY_STEP_BYTES: Final = 1 << 20
"""Copied forward in one turn, so that appends come between."""


class Pinned(NamedTuple):
    """A run that is to be copied forward."""

    stream: int
    end: int
    crc: int
    body: bytes
    payload: bytes


Wanted = dict[int, dict[int, tuple[int, int]]]
"""By stream and begin: end and crc of a run."""


class Reading(NamedTuple):
    """A segment, read once more."""

    pinned: list[Pinned]
    missing: list[tuple[int, int]]
    """Stream and begin of each wanted run that is not there as it was written."""
    damage: list[tuple[int, int]]
    """Where what is missing lies: damaged frames, or all of the segment where a header cannot be read."""


class Relieved(Protocol):
    """What `Space` needs of the log that it gives room to: it reads the accounts, and asks for the rest."""

    @property
    def config(self) -> WALConfig:
        """The log's limits."""
        ...

    @property
    def disk(self) -> Disk:
        """Where blocking work is done."""
        ...

    @property
    def tasks(self) -> Scope:
        """Where it runs in the background."""
        ...

    @property
    def segments(self) -> Segments:
        """The files."""
        ...

    @property
    def pool(self) -> Pool:
        """What each file is used for."""
        ...

    @property
    def states(self) -> Mapping[int, StreamState]:
        """Where each stream stands."""
        ...

    @property
    def durable_lap(self) -> int:
        """The lap of the last durable batch."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether it takes nothing more."""
        ...

    @property
    def is_dead(self) -> bool:
        """Whether a write or sync failed."""
        ...

    @property
    def quarantine_files(self) -> list[str]:
        """Names of what was set aside."""
        ...

    def filled(self, index: int) -> None:
        """A file grew."""
        ...

    def place_copy(self, stream: int, end: int, body: bytes, payload: bytes) -> bool:
        """Copy a run forward; False where it was given up meanwhile."""
        ...

    def quarantine(self, stream: int) -> None:
        """`stream` has lost what was durable."""
        ...

    def die(self, error: OSError) -> None:
        """The disk failed: end the process."""
        ...


class Space:
    """What one log does to have room."""

    def __init__(self, log: Relieved) -> None:
        self._log = log
        self.callbacks: dict[int, Callable[[LogStreamId], None]] = {}
        self.is_refused = False
        """The disk had no room for another segment."""
        self._target = log.config.segments_initial
        self._is_filling = self._is_copying = False
        self._asked_lap = self._asked_at = 0
        self._damaged_lap = 0
        """A lap that cannot be copied whole: trying again would find the same."""

    def forget(self, stream: int) -> None:
        """The stream is gone."""
        self.callbacks.pop(stream, None)

    async def first_segment(self) -> None:
        """Have one segment at once, filled as far as a start waits for.

        Never one that is in use: the head, too, is shorter than it is to be where the disk was full.
        """
        log, segments = self._log, self._log.segments

        def make() -> int:
            index = segments.unfilled(but=log.pool.rooms)
            if index is None:
                index = segments.create()
            end = min(segments.wanted[index], max(log.config.initial_fill_bytes, segments.filled[index]))
            segments.fill(index, end)
            return index

        index = await log.disk.run(make)
        log.pool.add_free(index, segments.filled[index])

    def begin(self) -> None:
        """Start filling, in the background."""
        self._target = max(self._target, len(self._log.segments.files))
        self._fill()

    def look(self) -> None:
        """Room may have become short: ask, copy or grow."""
        log, pool = self._log, self._log.pool
        if len(pool.free) >= FREE_LOW or log.is_closed or log.is_dead or self._is_copying:
            return
        lap = pool.oldest
        use = pool.laps[lap]
        if lap < log.durable_lap:
            if not use.pins:
                return  # It is past: the next batch frees it.
            if self._asked_lap != lap:
                self._asked_lap, self._asked_at = lap, pool.head
                self._request(lap)
            if use.live_bytes * 2 <= pool.rooms[use.index] and lap != self._damaged_lap:
                if len(pool.free) < COPY_LOW or pool.head > self._asked_at:
                    self._is_copying = True
                    log.tasks.spawn(self._copy_forward(lap), name="copy")
                if len(pool.free) >= COPY_LOW:
                    return  # Else appends would be refused while the copy is on its way.
        self._grow()

    def _request(self, lap: int) -> None:
        """Ask every stream that pins `lap` to flush, at the end of this turn."""
        hit("wal.flush_requested")
        for state in list(self._log.states.values()):
            callback = self.callbacks.get(state.stream)
            if callback is not None and lap in state.laps:
                asyncio.get_running_loop().call_soon(callback, LogStreamId(state.stream))

    def _grow(self) -> None:
        segments = self._log.segments
        if len(segments.files) < self._log.config.segments_max and self._target <= len(segments.files):
            hit("wal.pool_grown")
            self._target = len(segments.files) + 1
        self._fill()

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
                    await log.disk.run(segments.create)
                else:
                    end = min(segments.wanted[index], segments.filled[index] + FILL_STEP_BYTES)
                    await log.disk.run(lambda i=index, e=end: segments.fill(i, e))  # type: ignore[misc]
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

    async def _copy_forward(self, lap: int) -> None:
        """Append again what still pins `lap`."""
        log = self._log
        try:
            wanted = {state.stream: state.in_lap(lap) for state in log.states.values() if lap in state.laps}
            file = log.segments.files[log.pool.laps[lap].index]
            log_id = log.segments.log_id
            found = await log.disk.run(lambda: _read(file.read_at(0, file.size()), log_id, lap, wanted))
            budget = COPY_STEP_BYTES
            for run in found.pinned:
                if log.is_closed or log.is_dead or lap not in log.pool.laps:
                    return
                passed("wal.copy")
                state = log.states.get(run.stream)
                if state is None or state.boundary(run.end) != run.crc:
                    hit("wal.copy_outlived")
                    continue  # Another branch ends there by now.
                if log.place_copy(run.stream, run.end, run.body, run.payload):
                    hit("wal.copied_forward")
                budget -= len(run.payload)
                if budget <= 0:
                    budget = COPY_STEP_BYTES
                    await asyncio.sleep(0)
            await self._quarantine(lap, wanted, found)
        except LogFull:
            hit("wal.copy_refused")
            self._grow()
        finally:
            self._is_copying = False

    async def _quarantine(self, lap: int, wanted: Wanted, found: Reading) -> None:
        """Charge what could not be read to its streams, at once: not only the next start may tell of it.

        The lap stays pinned by it until its domain has repaired the stream by `reset` or `drop`.
        """
        log = self._log
        lost = [
            stream
            for stream, begin in found.missing
            if (state := log.states.get(stream)) and state.in_lap(lap).get(begin) == wanted[stream][begin]
        ]
        if not lost or log.is_dead or log.is_closed:
            return
        hit("wal.copy_found_damage")
        self._damaged_lap = lap
        for stream in dict.fromkeys(lost):
            log.quarantine(stream)
        index = log.pool.laps[lap].index
        damage = [Damage(index, lap, begin, end) for begin, end in found.damage]
        names = await log.disk.run(lambda: set_aside(log.segments, damage))
        log.quarantine_files.extend(names)


def _read(data: bytes, log_id: int, lap: int, wanted: Wanted) -> Reading:
    """The wanted runs of a segment, verified."""

    def accepts(header: FrameHeader) -> bool:
        return header.log_id == log_id and header.lap == lap

    found: dict[tuple[int, int], Pinned] = {}
    damaged: dict[tuple[int, int], tuple[int, int]] = {}
    for frame in frames(data, BLOCK_BYTES, len(data), accepts, is_after_hole=True):
        header = frame.header
        key = header.stream, header.offset
        end_and_crc = wanted.get(header.stream, {}).get(header.offset)
        # The crc tells the run from one of a branch that was cut off, which may have the same offsets.
        if header.kind not in (Kind.RUN, Kind.COPY) or end_and_crc != (
            header.offset + header.entries,
            header.crc,
        ):
            continue
        if frame.is_payload_whole:
            body = data[frame.at + FRAME.size : frame.at + HEAD_BYTES]
            begin, stop = frame.payload
            found[key] = Pinned(header.stream, *end_and_crc, body, data[begin:stop])
        else:
            damaged[key] = (frame.at, frame.end)
    missing = [
        (stream, begin) for stream, runs in wanted.items() for begin in runs if (stream, begin) not in found
    ]
    places = [damaged[key] for key in missing if key in damaged]
    return Reading(list(found.values()), missing, places if len(places) == len(missing) else [(0, len(data))])
