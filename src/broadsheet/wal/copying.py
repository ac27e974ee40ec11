"""Copying: the runs that pin the oldest segment are appended again, and damaged bytes are set aside.

All sizes are in bytes. The work is a restartable to-do list (code.1): a copy that was not made is found again
later, and a run that was trimmed or voided meanwhile is skipped. A thread reads the segment in small pieces
and verifies each run. The loop places a few runs in a turn, and waits for them to be durable before it places
many more. Runs that still pin the segment after that could not be read: they are damaged. Their bytes go to a
file of their own, their streams are quarantined, and then they pin the segment no longer. Otherwise one bad
sector would keep every younger segment in use. Source: log.14, W6, W7.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

from broadsheet.base.checksum import crc32c
from broadsheet.base.marks import hit
from broadsheet.ports import Disk
from broadsheet.runtime.failpoints import passed
from broadsheet.wal.config import BLOCK_BYTES, KIB, MIB
from broadsheet.wal.format import (
    BATCH_BYTES,
    FRAME_ALIGN,
    FRAME_BYTES,
    ROW,
    FrameHeader,
    Kind,
    aligned,
    frame_bytes,
)
from broadsheet.wal.opening import set_aside
from broadsheet.wal.pool import Pool
from broadsheet.wal.record import after_entries
from broadsheet.wal.recovery import Damage
from broadsheet.wal.scan import Content, batches, frames, next_magic, read_frame
from broadsheet.wal.segments import Segments
from broadsheet.wal.stream import Place, StreamState

PIECE_BYTES: Final = 128 * KIB
"""Bytes that a thread reads and verifies in one go: longer work would keep the interpreter from the loop."""
RUNS_PER_TURN: Final = 32
"""Runs placed in one turn of the loop."""
RUNS_PER_STEP: Final = 512
STEP_BYTES: Final = MIB
"""Runs and bytes placed before the copier waits until they are durable, so that appends get their turn."""


class Pinned(NamedTuple):
    """A whole run that was read from a segment, and may have to be copied."""

    at: int
    header: FrameHeader
    data: bytes


class Piece(NamedTuple):
    """The whole runs of one piece of a segment."""

    runs: list[Pinned]
    end: int
    """Where the next piece begins."""


class Copied(Protocol):
    """What the copier needs of the log."""

    @property
    def disk(self) -> Disk:
        """The disk, whose threads do the blocking work."""
        ...

    @property
    def segments(self) -> Segments:
        """The segment files."""
        ...

    @property
    def pool(self) -> Pool:
        """The laps in use, and the free files."""
        ...

    @property
    def states(self) -> Mapping[int, StreamState]:
        """The state of each stream."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether the log takes no more records."""
        ...

    @property
    def is_dead(self) -> bool:
        """Whether a write or sync failed."""
        ...

    @property
    def quarantine_files(self) -> list[str]:
        """Names of the files of damaged bytes."""
        ...

    def place_copy(self, place: Place, header: FrameHeader, data: bytes) -> bool:
        """Copy a run forward; False if it was trimmed or voided meanwhile."""
        ...

    def on_durable(self, done: Callable[[], None]) -> None:
        """Call `done` when every frame that was placed so far is durable."""
        ...

    def quarantine(self, stream: int) -> None:
        """Mark that `stream` has lost durable records."""
        ...

    def lose(self, stream: int, lap: int) -> None:
        """Unpin the damaged runs of `stream` in `lap`: their bytes were set aside."""
        ...


async def copy_forward(log: Copied, lap: int) -> None:
    """Append the runs that pin `lap` again; quarantine the streams of those that cannot be read.

    Raises:
        LogFull: there is no room for all of them. The copies that were made count.
        OSError: the disk has no space for the damaged bytes. They pin their segment until it has.
    """
    assert lap < log.pool.head, f"lap {lap} is still being written"
    index = log.pool.laps[lap].index
    at, size, step = BLOCK_BYTES, log.segments.size(index), _Step(log)
    while at < size:
        piece = await log.disk.run(partial(read_piece, log.segments, index, at, lap=lap))
        if piece.end <= at:
            break  # Somebody has cut the file meanwhile: what is gone is found to be damaged below.
        at = piece.end
        for run in piece.runs:
            if log.is_closed or log.is_dead or lap not in log.pool.laps:
                return
            state = log.states.get(run.header.stream)
            place = state.place(run.header.offset, lap, run.at) if state is not None else None
            if place is not None and (data := _kept(run, place)) is not None:
                passed("wal.copy")
                if log.place_copy(place, run.header, data):
                    hit("wal.copied_forward")
            await step.taken(len(run.data))
    await _set_aside(log, lap, index)


def _kept(run: Pinned, place: Place) -> bytes | None:
    """The entries of a run that no truncation has voided; None if its stream holds other entries there."""
    count, crc, data = place.end - place.begin, run.header.crc, run.data
    if count < run.header.entries:
        cut = after_entries(data, count)
        data = data[:cut]
        crc = crc32c(data, run.header.seed)
    return data if crc == place.crc else None


class _Step:
    """The pace of the copier: it yields to the loop after a few runs, and to the disk after more."""

    def __init__(self, log: Copied) -> None:
        self._log = log
        self._runs = self._bytes = 0

    async def taken(self, length: int) -> None:
        """Count a copied run of `length` bytes, and wait if it is time to."""
        self._runs += 1
        self._bytes += length
        if self._runs >= RUNS_PER_STEP or self._bytes >= STEP_BYTES:
            self._runs = self._bytes = 0
            durable = asyncio.get_running_loop().create_future()
            self._log.on_durable(lambda: None if durable.done() else durable.set_result(None))
            await durable
        elif self._runs % RUNS_PER_TURN == 0:
            await asyncio.sleep(0)


async def _set_aside(log: Copied, lap: int, index: int) -> None:
    """Quarantine the streams whose runs in `lap` could not be read, keep the bytes, and unpin the runs.

    The streams are quarantined before the first await: they must take no append after the damage was found.
    """

    def is_held(stream: int) -> bool:
        state = log.states.get(stream)
        return state is not None and lap in state.laps

    found = []
    use = log.pool.laps.get(lap)
    for count, stream in enumerate(list(use.streams) if use is not None else ()):
        if is_held(stream):
            found.append(stream)
        if count % RUNS_PER_TURN == 0:
            await asyncio.sleep(0)
    lost = [stream for stream in found if is_held(stream)]  # Some were trimmed, reset or dropped meanwhile.
    if not lost or log.is_dead or log.is_closed or lap not in log.pool.laps:
        return  # If the lap is gone, its streams have trimmed all of it: nothing was lost.
    hit("wal.copy_found_damage")
    for stream in lost:
        log.quarantine(stream)
    end = log.pool.laps[lap].end

    def work() -> list[str]:
        return set_aside(log.segments, damaged(log.segments, index, lap=lap, end=end))

    passed("wal.copy.set_aside")
    log.quarantine_files.extend(await log.disk.run(work))
    for stream in lost:
        log.lose(stream, lap)


def read_piece(segments: Segments, index: int, at: int, *, lap: int) -> Piece:
    """The whole runs of `lap` in the piece that begins at `at`. Blocking; for a thread."""
    size = segments.size(index)
    accepts = _of(segments.log_id, lap)
    data = segments.read(index, at, max(0, min(PIECE_BYTES, size - at)))
    runs: list[Pinned] = []
    pos = next_magic(data, 0, len(data))
    while pos < len(data):
        if pos and pos + FRAME_BYTES > len(data) and at + len(data) < size:
            return Piece(runs, at + pos)
        header = read_frame(data, pos)
        if header is None or not accepts(header) or at + pos + frame_bytes(header.length) > size:
            pos = next_magic(data, pos + FRAME_ALIGN, len(data))
            continue
        end = pos + frame_bytes(header.length)
        if end > len(data):
            if pos:
                return Piece(runs, at + pos)
            data = segments.read(index, at, end)
        found = next(frames(data, pos, end, accepts, is_after_hole=True), None)
        if found is not None and found.is_payload_whole and header.kind in (Kind.RUN, Kind.COPY):
            begin, stop = found.payload
            runs.append(Pinned(at + pos, header, data[begin:stop]))
        pos = end
    return Piece(runs, at + len(data))


def damaged(segments: Segments, index: int, *, lap: int, end: int) -> list[Damage]:
    """The places of a segment that cannot be read, batch by batch, as a start would find them.

    Blocking; for a thread.

    Args:
        end: how far the segment was written; 0 if that is not known.
    """
    data = segments.read(index, 0, segments.size(index))
    accepts = _of(segments.log_id, lap)
    places: list[Damage] = []
    at = BLOCK_BYTES
    for header in batches(Content.of(data)):
        if header.log_id != segments.log_id or header.lap != lap or header.at < at:
            continue
        if header.at > at:
            places.append(Damage(index, lap, at, header.at))
        begin, stop = header.at + BATCH_BYTES + ROW.size * header.row_count, header.at + header.length
        whole = sum(f.is_payload_whole for f in frames(data, begin, stop, accepts, is_after_hole=False))
        if whole != header.frame_count:
            places.append(Damage(index, lap, header.at, aligned(stop)))
        at = aligned(stop)
    if at < end or not places:
        places.append(Damage(index, lap, at, end or len(data)))
    return places


def _of(log_id: int, lap: int) -> Callable[[FrameHeader], bool]:
    """A predicate that accepts the frames of one use of a segment."""
    return lambda header: header.log_id == log_id and header.lap == lap
