"""Recovery: it reads the bytes of all segments, and judges what each stream holds and what is damaged.

SURVEY (which file is which lap) --> WALK (all laps from the oldest needed to the head) --> VERDICT per
stream. Recovery only reads and judges: `opening` acts on the result (rewrite, set aside), and `Log` writes
the boot frame. Two runs on the same bytes give the same result (W3). The last batch is the only one that no
later batch vouches for: damage in it is a cut tail, and damage before it is corruption. If a segment is gone,
or shorter than it was, batches behind the last one may be gone with it. Then every stream is suspect,
including streams of which nothing is left. Source: log.11-15, log.20, W2-W4, W6, W7; ADR 0102.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from broadsheet.base.marks import hit
from broadsheet.errors import ConfigError
from broadsheet.wal.config import BLOCK_BYTES
from broadsheet.wal.format import (
    BATCH_BYTES,
    FRAME_BYTES,
    IDENTITY,
    ROW,
    SYSTEM_STREAM,
    BatchFlag,
    BatchHeader,
    FrameHeader,
    Kind,
    Row,
    RowFlag,
    aligned,
    batches_between,
    era_of,
    frame_bytes,
    newer_kind,
)
from broadsheet.wal.kept_cuts import kept_cuts
from broadsheet.wal.quick_scan import sound_runs
from broadsheet.wal.scan import (
    STEP_BYTES,
    Content,
    FoundFrame,
    first_gap,
    frames,
    is_chained,
    read_batch,
    rows,
    unread_frame,
)
from broadsheet.wal.stream_replay import FoundRun, StreamReplay, Suspect, Verdict, suspect_of
from broadsheet.wal.survey import Found, lap_files

NO_BATCH: Final = -1


class Damage(NamedTuple):
    """A span of a log's bytes that must be set aside before anything writes over them."""

    file: int
    lap: int
    begin: int
    end: int


class Result(NamedTuple):
    """Everything that a log's start needs to know."""

    verdicts: dict[int, Verdict]
    last: BatchHeader
    tail_at: int
    """Where the next batch may begin: behind `last`, also if no batch of a later segment counts."""
    chain: int
    """The physical chain at that place."""
    laps: dict[int, int]
    """Laps in use and the files that hold them, oldest first."""
    free: list[int]
    """Files that may be written over."""
    damage: list[Damage]
    lacks_streams: bool
    """Whether the log may have held streams of which nothing is left, not even their numbers."""
    is_cache_lost: bool
    """Whether a former start knew of a reboot since the log lost what a stream still lacks."""
    remains: list[Damage]
    """The bytes behind the last batch in files that are shorter than they were. They are set aside too, and
    must be zeroed before the files grow: otherwise a batch that was cut in two would look whole again, with
    zeros for its frames."""


class Recovery:
    """One reading of a log."""

    def __init__(
        self, content: Callable[[int], Content], *, log_id: int, shorter: Sequence[int] = ()
    ) -> None:
        """Prepare to read a log.

        Args:
            content: gives the content of a segment file by its index.
            shorter: indexes of files that are gone, or shorter than they were.
        """
        self._content, self._log_id, self._shorter = content, log_id, shorter
        self._lacks_streams = self._is_cache_lost = False
        self._replays: dict[int, StreamReplay] = {}
        self._damage: list[Damage] = []
        self._last: BatchHeader | None = None
        self._chain: int | None = None
        """The physical chain so far; None if the frames before could not be read."""
        self._gap = 0
        """The first batch after a loss whose streams no row tells: any stream may have changed there."""
        self._after_loss = 0
        """The last batch whose predecessor was lost whole: the state before it is not known."""
        self._oldest = 0
        """The oldest lap that is needed. If it is missing, everything that it held is lost."""
        self._era = 0
        """The era of the last batch. Its first batch may take back a trim of an earlier era, which the disk
        could not read then."""
        self._is_freed = False
        """Whether the last batch frees segments that the batch before it did not."""
        self._is_whole = False
        """Whether every frame of the last batch is whole."""
        self._full_before = NO_BATCH
        """The last FULL batch before the final batch: a stream without a row in it began later."""

    def run(self, found: list[Found]) -> Result:
        """Walk the log.

        Raises:
            ConfigError: two files claim the same lap, and none is the later one; or no batch can be read
            any more.
        """
        by_lap, left = lap_files(found)
        self._damage += [Damage(*each) for each in left]
        head = by_lap[max(by_lap)]
        assert head.newest is not None, "a lap has at least one batch"
        self._oldest = oldest = head.newest.oldest
        self._era = era_of(head.newest.batch)
        laps = {lap: by_lap[lap].file for lap in sorted(by_lap) if lap >= oldest}
        tail_at = BLOCK_BYTES
        for lap, index in laps.items():
            tail_at = self._walk(by_lap[lap], self._content(index))
            if lap != head.lap and self._last is not None:
                self._look_behind(by_lap[lap], tail_at, is_known=True)
        if self._last is None:
            raise ConfigError(
                "the disk reads no batch of the log any more, and has read some: start again; if it stays so,"
                " check the disk. Nothing was changed"
            )
        behind = [(head, tail_at)]
        behind += [(segment, BLOCK_BYTES) for segment in found if segment.file not in laps.values()]
        remains: list[Damage] = []
        # A loss in a lap that a later lap follows shows in the batch numbers; a loss in the others does not.
        followed = [segment.file for lap, segment in by_lap.items() if oldest <= lap < head.lap]
        if any(file not in followed for file in self._shorter):
            hit("wal.recovery.end_lost")
            self._gap, self._lacks_streams = self._last.batch + 1, True
            remains = [self._remains(*each) for each in behind if each[0].file in self._shorter]
        free = [segment.file for segment in found if segment.file not in laps.values()]
        contents = ((file, self._content(file)) for file in free)
        for kept in kept_cuts(contents, self._replays, log_id=self._log_id, last=self._last.batch):
            self._damage.append(Damage(*kept))
        for segment, at in behind:
            self._look_behind(segment, at)
        return Result(
            verdicts=self._verdicts(laps),
            last=self._last,
            tail_at=aligned(self._last.at + self._last.length),
            chain=self._chain if self._chain is not None else self._last.chain,
            laps=laps,
            free=free,
            damage=self._damage,
            lacks_streams=self._lacks_streams,
            is_cache_lost=self._is_cache_lost,
            remains=remains,
        )

    # --- the walk -----------------------------------------------------------------------------------------

    def _walk(self, segment: Found, content: Content) -> int:
        """Read the batches of one lap, first to last, one at a time; the place where the last one ends."""
        at = BLOCK_BYTES
        for place in segment.batches:
            header = read_batch(content, place) if place >= at else None
            if header is None:
                continue
            if self._last is not None and header.batch <= self._last.batch:
                if era_of(header.batch) < era_of(self._last.batch):
                    hit("wal.recovery.batch_left")
                    end = aligned(place + header.length)
                    self._damage.append(Damage(segment.file, segment.lap, place, end))
                continue  # Or a payload looks like a batch, or a sector went back to an older state.
            if place > at:
                self._hole(segment, content, at, place)
            self._batch(segment, content, header)
            at = aligned(place + header.length)
        return at

    def _batch(self, segment: Found, content: Content, header: BatchHeader) -> None:
        self._notice_loss(header)
        is_of_start = self._last is not None and header.boot != self._last.boot
        self._last, self._chain = header, header.chain
        base, data = header.at, content.read(header.at, header.at + header.length)
        begin, end = BATCH_BYTES + ROW.size * header.row_count, header.length
        suspects: list[FoundFrame] = []
        found: list[FoundFrame] = []
        if (sound := sound_runs(data, header)) is not None:
            runs, self._chain = sound
            for stream, held in runs:
                self._replay(stream).run(held)
            whole, at = len(runs), end
        else:
            whole, at = 0, begin
            for frame in frames(data, begin, end, of_batch(header), is_after_hole=False):
                is_good = frame.is_payload_whole and (
                    frame.is_after_hole or is_chained(frame, self._chain)
                )  # fmt: skip
                self._chain = frame.header.chain
                at = frame.end
                found.append(frame)
                if is_good:
                    whole += 1
                    self._apply(frame, data, base)
                else:
                    suspects.append(frame)
        self._is_whole = whole == header.frame_count
        if not self._is_whole:
            hit("wal.recovery.frame_damaged")
            self._damage.append(Damage(segment.file, header.lap, base, aligned(base + end)))
        if at < end:
            self._chain = None  # The last frames are unreadable, so the chain after them is unknown.
        said = rows(data, header.row_count)
        if whole + len(suspects) < header.frame_count:
            self._suspect_unread(said, found, header.batch, unread_frame(data, begin, end))
        for row in said:
            self._row(row, header.batch, is_of_start=is_of_start and bool(header.flags & BatchFlag.FULL))
        for frame in suspects:
            self._suspect(frame, data)
        if header.flags & BatchFlag.FULL:
            self._lacks_streams = bool(header.flags & BatchFlag.LACKS_STREAMS)
            self._is_cache_lost = bool(header.flags & BatchFlag.CACHE_LOST)
            named = dict.fromkeys(row.stream for row in said)
            for stream in [stream for stream in self._replays if stream not in named]:
                del self._replays[stream]

    def _notice_loss(self, header: BatchHeader) -> None:
        """Compare `header` with the batch before it: batches may be missing, and segments may be free."""
        last = self._last
        self._is_freed = last is None or header.oldest > last.oldest
        if last is not None:
            if last.flags & BatchFlag.FULL:
                self._full_before = last.batch
            lost = batches_between(last.batch, header.batch)
            is_later_era = era_of(header.batch) > era_of(last.batch)
            # The rows of a start that could not read some blocks say what it took for lost.
            is_told = bool(header.flags & BatchFlag.FULL) and is_later_era
            # That start counted on from what it had read. In the lap before there may be more by now, unless
            # the first batch of its lap tells where that ended.
            is_uncounted = is_later_era and header.lap > last.lap and header.at > BLOCK_BYTES
            is_branch = lost == 0 and self._chain is not None and self._chain != header.chain
            if (lost > 1 or is_uncounted or is_branch) and not is_told:
                hit("wal.recovery.gap")
                self._gap, self._lacks_streams = header.batch, True
            if lost:
                hit("wal.recovery.batch_lost")
                self._after_loss = header.batch
        elif header.at > BLOCK_BYTES or header.lap > max(1, self._oldest):
            hit("wal.recovery.first_batch_lost")
            self._after_loss = header.batch
            if not header.flags & BatchFlag.FULL:
                self._gap = header.batch  # The batches with the rows of all streams are gone.
                self._lacks_streams = True

    def _hole(self, segment: Found, content: Content, begin: int, end: int) -> None:
        """Salvage the frames of batches whose headers are damaged; each frame is verified alone."""
        hit("wal.recovery.hole")
        self._damage.append(Damage(segment.file, segment.lap, begin, end))
        after = self._last.batch if self._last is not None else 0
        self._chain = None

        def accepts(header: FrameHeader) -> bool:
            return header.log_id == self._log_id and header.lap == segment.lap and header.batch > after

        data = content.read(begin, end)
        for frame in frames(data, 0, len(data), accepts, is_after_hole=True):
            if frame.is_payload_whole:
                self._apply(frame, data, begin)
            else:
                self._suspect(frame, data)

    def _remains(self, segment: Found, at: int) -> Damage:
        """The bytes behind the last batch in a file that is shorter than it was; damage, unless all zeros."""
        assert self._last is not None
        content = self._content(segment.file)
        lap = self._last.lap if segment.lap == self._last.lap else self._last.lap + 1
        place = Damage(segment.file, lap, at, max(at, content.size))
        steps = range(at, place.end, STEP_BYTES)
        if any(content.read(each, min(each + STEP_BYTES, place.end)).strip(b"\0") for each in steps):
            self._damage.append(place)
        return place

    def _look_behind(self, segment: Found, at: int, *, is_known: bool = False) -> None:
        """Look for frames of the next batch, whose header is lost: its records may be acknowledged.

        Args:
            is_known: an earlier start has found such frames, and its rows say so. They are still here if it
                had no space to set them aside.
        """
        last = self._last
        assert last is not None
        lap = last.lap if segment.lap == last.lap else last.lap + 1
        content = self._content(segment.file)
        if not content.has(IDENTITY.pack(self._log_id, last.boot, lap, last.batch + 1), at):
            return  # No frame of it anywhere. This is the usual case, and the search is as fast as memory.
        data = content.read(at, content.size)
        accepts = of_batch(last._replace(log_id=self._log_id, lap=lap, batch=last.batch + 1))
        cut = list(frames(data, 0, len(data), accepts, is_after_hole=True))
        for frame in cut:
            if frame.header.kind != Kind.COPY and frame.header.stream != SYSTEM_STREAM:
                hit("wal.recovery.tail_cut_behind")
                replay = self._replay(frame.header.stream)
                replay.flags |= 0 if is_known else RowFlag.TAIL_CUT
                self._suspect(frame, data)
        if cut:
            self._damage.append(Damage(segment.file, lap, at, aligned(at + cut[-1].end)))

    # --- what frames and rows say -------------------------------------------------------------------------

    def _apply(self, frame: FoundFrame, data: bytes, base: int) -> None:
        """Apply a sound frame to its stream.

        Args:
            base: where `data` begins in the segment.
        """
        header = frame.header
        if header.kind == Kind.BOOT:
            return
        if header.kind == Kind.DROP:
            self._replays.pop(header.stream, None)
            return
        replay = self._replay(header.stream)
        match header.kind:
            case Kind.RUN:
                replay.run(held_of(frame, base))
            case Kind.COPY:
                replay.copy(held_of(frame, base))
            case Kind.TRUNCATE:
                replay.truncate(header)
            case Kind.RESET:
                replay.reset(header)
            case _:
                raise newer_kind(header.kind)

    def _suspect(self, frame: FoundFrame, data: bytes) -> None:
        """Keep a run that does not count: its domain may prove it by its own checksums."""
        replay = self._replays.get(frame.header.stream)
        if replay is not None and frame.header.kind in (Kind.RUN, Kind.COPY):
            replay.damaged.append(suspect_of(frame, data))

    def _suspect_unread(
        self, said: Sequence[Row], found: Sequence[FoundFrame], batch: int, unread: bytes | None
    ) -> None:
        """Charge the bytes behind a damaged frame header to the streams that lack entries in this batch.

        `found`: the frames whose headers are whole.
        """
        if unread is None:
            return
        headers: dict[int, list[FrameHeader]] = {}
        for frame in found:
            headers.setdefault(frame.header.stream, []).append(frame.header)
        for row in [row for row in said if not row.flags & RowFlag.DROPPED]:
            replay = self._replay(row.stream)  # A new one, if the stream begins in this batch.
            before = replay.prior if replay.touched == batch else replay.expect
            begin = before.next if before is not None else row.first
            if (gap := first_gap(begin, headers.get(row.stream, ()), row.next)) is not None:
                replay.damaged.append(Suspect(*gap, row.generation, batch, unread))

    def _row(self, row: Row, batch: int, *, is_of_start: bool) -> None:
        if row.flags and row.flags & RowFlag.DROPPED:  # `&` with an enumeration is slow: test for 0 first.
            self._replays.pop(row.stream, None)
            return
        is_trim_final = era_of(batch) == self._era
        self._replay(row.stream).row(row, batch, is_trim_final=is_trim_final, is_of_start=is_of_start)

    def _replay(self, stream: int) -> StreamReplay:
        replay = self._replays.get(stream)
        if replay is None:
            replay = self._replays[stream] = StreamReplay(stream)
        return replay

    def _verdicts(self, laps: dict[int, int]) -> dict[int, Verdict]:
        assert self._last is not None
        verdicts: dict[int, Verdict] = {}
        # A whole batch was not cut. If the one before it was lost, nobody knows what a cut goes back to.
        is_cut = not self._is_whole and self._after_loss != self._last.batch
        tail_batch = self._last.batch if is_cut else NO_BATCH
        for stream in sorted(self._replays):
            replay = self._replays[stream]
            told = replay.prior_seen if replay.touched == self._last.batch else replay.seen
            is_new = not told and self._full_before >= self._gap
            is_suspect = replay.seen < self._gap or (told < self._gap and not is_new)
            verdict = replay.judge(tail_batch, is_suspect=is_suspect, is_freed=self._is_freed)
            verdicts[stream] = verdict._replace(
                settled=replay.settled,
                is_cut_told=replay.is_cut_told,
                suspects=[
                    each if isinstance(each, Suspect) else _read_back(each, self._content(laps[each.lap]))
                    for each in verdict.suspects
                ],
            )
            for held in verdict.unreached:
                end = held.at + frame_bytes(held.length)
                self._damage.append(Damage(laps[held.lap], held.lap, held.at, end))
        return verdicts


def _read_back(held: FoundRun, content: Content) -> Suspect:
    """A whole run behind damage, with its bytes: its domain will want them. Other runs are read on demand."""
    begin = held.at + FRAME_BYTES
    data = content.read(begin, begin + held.length)
    return Suspect(held.offset, held.end, held.generation, held.batch, data, is_whole=True)


def of_batch(batch: BatchHeader) -> Callable[[FrameHeader], bool]:
    """A predicate that accepts the frames of `batch`."""
    key = (batch.log_id, batch.boot, batch.lap, batch.batch)

    def accepts(header: FrameHeader) -> bool:
        return (header.log_id, header.boot, header.lap, header.batch) == key

    return accepts


def held_of(frame: FoundFrame, base: int) -> FoundRun:
    """The run of `frame`, found in a batch or hole that begins at `base` of its segment."""
    header = frame.header
    return FoundRun(
        offset=header.offset,
        end=header.offset + header.entries,
        generation=header.generation,
        seed=header.seed,
        crc=header.crc,
        length=header.length,
        lap=header.lap,
        at=base + frame.at,
        batch=header.batch,
    )
