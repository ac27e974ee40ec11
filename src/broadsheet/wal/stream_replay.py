"""Stream replay: one stream is rebuilt from the frames and rows of the log, in the order of their writing.

Every frame and row was verified, and says at which point the stream is after it (`expect`). The replay also
collects the runs that were found whole (`held`). At the end `judge` compares the two: the held runs must
link, by their seeds, from the first untrimmed offset to the expected point. A missing run was either in the
last batch, which no later batch vouches for (`tail_cut`), or it was known durable (`quarantined`). This
module does no IO. Source: log.11-13, W2, W6.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from broadsheet.wal.format import FrameHeader, Row, RowFlag
from broadsheet.wal.scan import FoundFrame

SUSPECT: Final = RowFlag.QUARANTINED | RowFlag.END_LOST


class FoundRun(NamedTuple):
    """A run that was found whole, or its part before a truncation."""

    offset: int
    end: int
    generation: int
    seed: int
    crc: int
    length: int
    """Bytes of the frame's payload, including the part that a truncation voided."""
    lap: int
    at: int
    """Place of the frame in the segment."""
    batch: int


class Suspect(NamedTuple):
    """Bytes of a run that does not count."""

    offset: int
    end: int
    generation: int
    batch: int
    data: bytes
    is_whole: bool = False
    """Whether the run's own checksum matches: then these bytes were written here as they are."""


def suspect_of(frame: FoundFrame, data: bytes) -> Suspect:
    """The run of a frame that does not count; `data` has its bytes."""
    header, (begin, end) = frame.header, frame.payload
    return Suspect(
        header.offset,
        header.offset + header.entries,
        header.generation,
        header.batch,
        data[begin:end],
        is_whole=frame.is_payload_whole,
    )


class Point(NamedTuple):
    """The end of a log stream at some moment: next offset, generation and chain."""

    next: int
    generation: int
    crc: int


class Verdict(NamedTuple):
    """What is left of a log stream at a start."""

    first: int
    point: Point
    held: list[FoundRun]
    flags: int
    unreached: list[FoundRun]
    """Whole runs behind a gap: kept aside, never served."""
    suspects: Sequence[FoundRun | Suspect] = ()
    """The runs that were found behind the last run of `held`, by offset: some are whole, some are damaged."""
    settled: int = 0
    """The last batch whose row of the stream tells of no cut: suspects of earlier batches were dealt with."""
    is_cut_told: bool = False
    """Whether an earlier start has told of a cut that its domain has not dealt with."""


class StreamReplay:
    """One log stream, while the log is read."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.first: int | None = None
        self.flags = 0
        self.expect: Point | None = None
        self.prior: Point | None = None
        """The expected point before the batch that changed the stream last."""
        self.prior_first: int | None = None
        """The first untrimmed offset before that batch."""
        self.prior_flags = self.prior_seen = 0
        """The flags before that batch, and the last batch before it that has a frame or row of the stream."""
        self.is_linked = True
        """Whether each run since the last row continues the run before it."""
        self.touched = self.seen = self.settled = 0
        """`touched`: the last batch that changed the stream. `seen`: the last with a frame or row of it.
        `settled`: the last with a row that tells of no cut."""
        self.is_cut_told = False
        """Whether the last row tells of a cut."""
        self.held: dict[int, FoundRun] = {}
        """Whole runs by first offset."""
        self.shadowed: list[FoundRun] = []
        """Runs that were replaced by another run of the same offset, though nothing proves which is right."""
        self.damaged: list[Suspect] = []
        """Runs that fail their checksum, or lie behind the last batch: only a hint for the domain."""
        self._ends: dict[int, int] = {}
        """First offsets of held runs by their end."""
        self._order: deque[int] = deque()
        """First offsets of runs in the order of writing, so that a trim looks at each run once."""

    def run(self, held: FoundRun) -> None:
        """Apply a run that was appended to the log stream."""
        self._touch(held.batch)
        if self.first is None:
            self.first = held.offset
        boundary = self._boundary(held.offset)
        if boundary == held.seed and self.expect is not None and held.offset < self.expect.next:
            self._void(held.offset)  # The run links below the end: a truncation was lost, and this proves it.
        elif boundary != held.seed and self.expect is not None:
            self.is_linked = False
        self._put(held)
        self.expect = Point(held.end, held.generation, held.crc)

    def copy(self, held: FoundRun) -> None:
        """Apply a run that was copied forward: the copy replaces the old frame, and changes no state."""
        self.seen = held.batch
        known = self.held.get(held.offset)
        if known is None or known.crc == held.crc:
            self._put(held)

    def truncate(self, header: FrameHeader) -> None:
        """Apply a truncation: all entries from its offset on are void, even if runs below it are missing.

        The offset may lie inside a run.
        """
        self._touch(header.batch)
        if self.expect is not None and header.offset > self.expect.next:
            self.is_linked = False  # The truncated entries were lost, and perhaps a reset before them.
        is_of_branch = self._boundary(header.offset) in (None, header.seed)
        if is_of_branch:
            self._void(header.offset, chain=header.seed)
        else:
            self.is_linked = False  # It cuts a branch of this batch that was lost. It says nothing of others.
        self.expect = Point(header.offset, header.generation, header.seed)
        if is_of_branch and self.prior is not None and self.prior.next >= header.offset:
            # The stream ends here, even if the rest of this batch is cut. (If `prior` is below the offset,
            # the entries between the two are of the same batch, and as doubtful: then `prior` stays.)
            self.prior = self.expect
            if self.prior_first is not None:
                self.prior_first = min(self.prior_first, header.offset)
        self.first = header.offset if self.first is None else min(self.first, header.offset)

    def reset(self, header: FrameHeader) -> None:
        """Apply a reset: the log stream begins anew."""
        self._touch(header.batch)
        self._void(0)
        self.shadowed.clear()
        self.damaged.clear()
        self.first = self.prior_first = header.offset
        self.flags = self.prior_flags = 0
        self.is_linked, self.is_cut_told = True, False
        self.expect = self.prior = Point(header.offset, header.generation, header.seed)

    def row(self, row: Row, batch: int, *, is_trim_final: bool = True, is_of_start: bool = False) -> None:
        """Apply a row: the state of the stream at the end of `batch`, as the writer knew it.

        If that state does not follow from the frames, a RESET frame may be lost. Then the runs that the row
        no longer counts are kept, because a batch that was cut short has reset nothing.

        Args:
            is_trim_final: no later row can count trimmed runs again, so they need not be held.
            is_of_start: the first batch of a start tells it. That changes no stream, but to cut it.
        """
        point = Point(row.next, row.generation, row.crc)
        is_explained, self.is_linked = self.expect == point and self.is_linked, True
        if self.expect != point:
            self._touch(batch)
            lost_truncation = self.expect is not None and row.generation > self.expect.generation
            if lost_truncation and self._boundary(row.next) == row.crc:
                self._void(row.next)
            elif lost_truncation:
                self._doubt(row.next)
            elif self.expect is not None and not lost_truncation:
                self._cut(row, batch, is_of_start=is_of_start)
            self.expect = point
        self.flags, self.first, self.seen = row.flags, row.first, batch
        self.is_cut_told = bool(row.flags and row.flags & RowFlag.TAIL_CUT)
        if not self.is_cut_told:
            self.settled = batch
        if is_explained and is_trim_final:
            self._trim(row.first)

    def judge(self, tail_batch: int, *, is_suspect: bool, is_freed: bool = False) -> Verdict:
        """Judge what is left of the log stream, after everything was read.

        Args:
            tail_batch: the last batch, the only one that no later batch vouches for.
            is_suspect: batches were lost, and nothing says whether they changed this stream.
            is_freed: the last batch frees segments that the batch before it did not.
        """
        if self.expect is None:  # The whole stream was in the batch that was cut.
            flags = self.flags | (SUSPECT if is_suspect else 0)
            return Verdict(0, Point(0, 0, 0), [], flags, [], self._suspects(0))
        first = self.first if self.first is not None else self.expect.next
        reached, chain = _walk(self.held, first, self.expect)
        if _agree(reached, self.expect) and not is_suspect:
            is_cut = self.flags & RowFlag.TAIL_CUT
            behind = self._suspects(self.expect.next, since=self.settled) if is_cut else []
            return Verdict(first, self.expect, chain, self.flags, [], behind)
        is_quarantined = (self.flags | self.prior_flags) & RowFlag.QUARANTINED
        if self.touched == tail_batch and not is_suspect and not is_quarantined:
            start = self.prior or Point(0, 0, 0)  # No `prior`: the stream began in the cut batch.
            before = {h.offset: h for h in (*self.shadowed, *self.held.values()) if h.batch < tail_batch}
            after = {h.offset: h for h in self.held.values() if h.batch == tail_batch}
            is_there = any(_agree(Point(h.end, h.generation, h.crc), start) for h in before.values())
            is_kept = is_there and not is_freed
            bases = self._bases(first, start, self.expect, is_kept=is_kept)
            if is_freed and not is_there and self.expect.generation > start.generation:
                bases.append(start.next)  # The whole stream was trimmed, and then begun anew.
            for base in bases:
                runs = before if base > start.next else {**after, **before}
                reached, chain = _walk(runs, base, start)
                if _passes(chain, base, start):
                    point = reached._replace(generation=max(reached.generation, start.generation))
                    flags = self.flags | RowFlag.TAIL_CUT
                    behind = self._suspects(point.next, since=self.settled)
                    return Verdict(min(base, point.next), point, chain, flags, [], behind)
        chain = [h for h in chain if h.end <= self.expect.next]  # What lies behind the end, the end voids.
        in_chain = dict.fromkeys(h.offset for h in chain)
        rest = [
            h for h in (*self.shadowed, *self.held.values()) if h.offset not in in_chain and h.end > first
        ]
        end = chain[-1].end if chain else first
        flags = self.flags | (SUSPECT if is_suspect else RowFlag.QUARANTINED)
        return Verdict(first, self.expect, chain, flags, rest, self._suspects(end))

    def _bases(self, first: int, start: Point, expect: Point, *, is_kept: bool) -> list[int]:
        """The offsets at which the stream may begin, if the last batch is cut off.

        A batch that is cut off has trimmed nothing, so the stream begins where it did before that batch. But
        if the batch also frees a segment, the trimmed runs may be overwritten, and the stream begins at the
        new `first`. A reset frees nothing before it is durable, so it does not add an offset.

        Args:
            expect: the point of the stream after the last batch.
            is_kept: the run that leads to `start` is held, and the last batch frees nothing.
        """
        bases = [self.prior_first or 0]
        is_reset = is_kept and first > start.next and expect.generation > start.generation
        if first not in bases and not is_reset:
            bases.append(first)
        return bases

    def _suspects(self, at: int, *, since: int = 0) -> list[FoundRun | Suspect]:
        """The runs that were found at the offset `at` and behind it, damaged ones too.

        Args:
            since: the first batch of which runs are told. For a cut: `settled`; those were dealt with.
        """
        found: tuple[FoundRun | Suspect, ...] = (*self.damaged, *self.shadowed, *self.held.values())
        told = (held for held in found if held.offset >= at and held.batch >= since)
        return sorted(told, key=lambda held: held.offset)

    def _touch(self, batch: int) -> None:
        if self.touched != batch:
            self.prior, self.prior_first, self.prior_flags = self.expect, self.first, self.flags
            self.prior_seen = self.seen if self.seen != batch else self.prior_seen
            self.touched = batch
        self.seen = batch

    def _put(self, held: FoundRun) -> None:
        known = self.held.get(held.offset)
        if known is not None and known.crc != held.crc:
            self.shadowed.append(known)
        self.held[held.offset] = held
        self._ends[held.end] = held.offset
        self._order.append(held.offset)

    def _boundary(self, offset: int) -> int | None:
        """The chain before `offset`; None if no held run tells it."""
        if self.expect is not None and offset == self.expect.next:
            return self.expect.crc
        if offset in self._ends and (before := self.held.get(self._ends[offset])) is not None:
            return before.crc
        here = self.held.get(offset)
        return None if here is None else here.seed

    def _void(self, offset: int, *, chain: int | None = None) -> None:
        """Void all entries from `offset` on.

        Args:
            chain: the chain before `offset`. With it, a run that holds `offset` keeps its first part.
        """
        gone = [held for held in self.held.values() if held.end > offset]
        for held in gone:
            del self.held[held.offset]
            self._ends.pop(held.end, None)
            if chain is not None and held.offset < offset:
                self._put(held._replace(end=offset, crc=chain))

    def _doubt(self, offset: int) -> None:
        """Hold no run that reaches over `offset`, where the stream ends: a truncation inside it was lost.

        Nothing proves that its first entries still count: another branch of them may be lost as well.
        """
        for over in [held for held in self.held.values() if held.offset < offset < held.end]:
            self.shadowed.append(over)
            del self.held[over.offset]
            self._ends.pop(over.end, None)

    def _cut(self, row: Row, batch: int, *, is_of_start: bool) -> None:
        """Void the runs behind `row`, if it was written by a start that had cut a torn batch.

        Otherwise a stale run of the torn batch could link to a later append with identical bytes. If no held
        run leads to the row, or only a run of the row's own `batch` does, and the batch is not the first of a
        start, no start has cut anything: a DROP frame was lost, and it has voided nothing. Then the held runs
        stay as they were.
        """
        held, ends = dict(self.held), dict(self._ends)
        self._void(row.next)
        if self._boundary(row.next) != row.crc:
            # The torn batch held a new branch, or a truncation inside a run; the start took the old one.
            for each in self.shadowed:
                if each.end <= row.next and self.held.get(each.offset, each).batch >= each.batch:
                    self._put(each)
        before = self.held.get(self._ends.get(row.next, -1))
        if before is None:
            is_cut = is_of_start or self._boundary(row.next) == row.crc or not row.next
        else:
            is_cut = before.crc == row.crc and before.batch != batch
        if not is_cut:
            self.held, self._ends = held, ends

    def _trim(self, first: int) -> None:
        while self._order:
            oldest = self.held.get(self._order[0])
            if oldest is not None and oldest.end > first:
                return
            self._order.popleft()
            if oldest is not None:
                del self.held[oldest.offset]
                self._ends.pop(oldest.end, None)


def _walk(held: dict[int, FoundRun], first: int, start: Point) -> tuple[Point, list[FoundRun]]:
    """Follow the links from the offset `first` on: the point that they lead to, and the runs on the way."""
    if first >= start.next and first not in held:
        return start, []
    at = first
    if at not in held:
        inside = [h.offset for h in held.values() if h.offset < first < h.end]
        if not inside:
            return Point(first, -1, -1), []
        at = inside[-1]
    chain = [held[at]]
    while (after := held.get(chain[-1].end)) is not None and after.seed == chain[-1].crc:
        chain.append(after)
    return Point(chain[-1].end, chain[-1].generation, chain[-1].crc), chain


def _passes(chain: list[FoundRun], first: int, point: Point) -> bool:
    """Whether the runs of `chain` lead through `point`, or no run is needed to reach it."""
    if point.next <= first:
        return not chain or chain[0].offset < first or point.crc in (chain[0].seed, 0)
    return any(held.end == point.next and held.crc == point.crc for held in chain)


def _agree(one: Point, other: Point) -> bool:
    """Whether two points are one place of one branch.

    Generations are not compared: a truncation raises the stream's generation, and that of no run.
    """
    return one.next == other.next and one.crc == other.crc
