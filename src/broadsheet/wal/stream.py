"""Stream: one logical stream of a log, with its chain and the places of its untrimmed runs.

Offsets count entries. `ends[i]` is the offset after run i, and `laps[i]` is the lap of the segment that holds
it. Runs are appended at the end, released at the front (`trim`) or at the back (`truncate`), and moved
(`move`) when they are copied forward. This module does not know files or durability. Source: log.3, log.7.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from broadsheet.wal.format import ROW, STREAM, RowFlag
from broadsheet.wal.stream_replay import Verdict

PACK_ROW: Final = ROW.pack
LOST: Final = 0
"""The lap of a run that was found damaged: its bytes were set aside, and it pins no segment."""


class Release(NamedTuple):
    """Runs in one lap that their segment need not keep any longer."""

    lap: int
    length: int
    runs: int = 1


class Place(NamedTuple):
    """The place of a run: `length` bytes of entries, in a frame `at` bytes into the segment of `lap`."""

    begin: int
    end: int
    crc: int
    """The chain after the last entry of the run that no truncation has voided."""
    length: int
    lap: int
    at: int


OPEN: Final = 1 << 31
"""A bit in `at`: the batch is not sealed, so it is not known yet where in the segment its frames begin."""


class Table:
    """The packed rows of all streams, as a batch with all rows needs them.

    Each batch updates its own rows, because packing ten thousand rows at once would block the loop for
    milliseconds; joining them takes a few hundred microseconds.
    """

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        """Begin without a stream."""
        self._rows: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, stream: int, row: bytes) -> None:
        """Set the row of `stream`."""
        self._rows[stream] = row

    def put_all(self, streams: Iterable[int], rows: Iterable[bytes]) -> None:
        """Set the row of each of `streams`."""
        self._rows.update(zip(streams, rows, strict=True))

    def drop(self, stream: int) -> None:
        """Remove the row of `stream`."""
        self._rows.pop(stream, None)

    def row(self, stream: int) -> bytes | None:
        """The row of `stream`; None if it has none."""
        return self._rows.get(stream)

    def packed(self) -> bytes:
        """The bytes of all rows."""
        return b"".join(self._rows.values())


class StreamState:
    """The state of one log stream after its last placed frame, durable or not."""

    __slots__ = (
        "ats",
        "base",
        "base_crc",
        "crc",
        "crcs",
        "ends",
        "first",
        "flags",
        "generation",
        "laps",
        "lengths",
        "next",
        "packed",
        "stream",
    )

    def __init__(self, stream: int, *, first: int = 0, crc: int = 0, flags: int = 0) -> None:
        """Begin empty at `first`."""
        self.stream, self.packed = stream, STREAM.pack(stream)
        self.first = self.base = self.next = first
        self.generation, self.crc, self.base_crc, self.flags = 0, crc, crc, flags
        self.ends, self.crcs, self.lengths = array("Q"), array("I"), array("I")
        self.laps, self.ats = array("Q"), array("I")

    @classmethod
    def restored(cls, stream: int, verdict: Verdict) -> "StreamState":
        """The state of a log stream that recovery found."""
        point, held = verdict.point, verdict.held
        base = held[0].offset if held else verdict.first
        state = cls(stream, first=base, flags=verdict.flags, crc=held[0].seed if held else point.crc)
        for run in held:
            state.append(run.end, run.generation, run.crc, run.length, run.lap, at=run.at)
        state.first, state.next = verdict.first, point.next
        state.generation, state.crc = point.generation, point.crc
        return state

    @property
    def is_quarantined(self) -> bool:
        """Whether the stream lost durable records."""
        return bool(self.flags and self.flags & RowFlag.QUARANTINED)  # `&` is slow: test for 0 first.

    def row(self) -> bytes:
        """The packed row of the stream."""
        return PACK_ROW(self.stream, self.first, self.next, self.generation, self.crc, self.flags)

    def append(self, end: int, generation: int, crc: int, length: int, lap: int, *, at: int) -> None:
        """Add a run at the end of the log stream.

        Args:
            at: place of its frame in the segment; with the bit `OPEN`, in the frames of its batch.
        """
        assert end > self.next, f"stream {self.stream}: a run must advance {self.next}, not to {end}"
        assert generation >= self.generation, f"stream {self.stream}: generation goes back"
        self.next, self.generation, self.crc = end, generation, crc
        self.ends.append(end)
        self.crcs.append(crc)
        self.lengths.append(length)
        self.laps.append(lap)
        self.ats.append(at)

    def trim(self, below: int) -> list[Release]:
        """Trim the log stream's entries below `below`, and release the runs that end at or below it."""
        below = min(below, self.next)
        if below <= self.first:
            return []  # A repeated or late trim asks for nothing new.
        self.first = below
        gone = bisect_right(self.ends, below)
        if gone == 0:
            return []
        self.base, self.base_crc = self.ends[gone - 1], self.crcs[gone - 1]
        return self._cut(0, gone)

    def sealed(self, base: int) -> None:
        """Fix the places of the last runs: their batch is sealed, and its frames begin at `base`."""
        ats = self.ats
        index = len(ats) - 1
        while index >= 0 and ats[index] & OPEN:
            ats[index] = (ats[index] ^ OPEN) + base
            index -= 1

    def moved(self, begin: int, base: int) -> None:
        """Like `sealed`, for the run that begins at `begin` and was copied forward."""
        at = bisect_right(self.ends, begin)
        if at < len(self.ends) and self.ats[at] & OPEN:
            self.ats[at] = (self.ats[at] ^ OPEN) + base

    def runs(self, begin: int, end: int) -> Iterator[Place]:
        """The places of the log stream's runs that hold entries of [begin, end), in order."""
        first, last = bisect_right(self.ends, begin), bisect_left(self.ends, end)
        for index in range(first, min(last + 1, len(self.ends))):
            yield Place(
                self.ends[index - 1] if index else self.base,
                self.ends[index],
                self.crcs[index],
                self.lengths[index],
                self.laps[index],
                self.ats[index],
            )

    def boundary(self, offset: int) -> int | None:
        """The chain before `offset`; None unless a run ends or begins there."""
        if offset == self.next:
            return self.crc
        if offset == self.base:
            return self.base_crc
        at = bisect_left(self.ends, offset)
        return self.crcs[at] if at < len(self.ends) and self.ends[at] == offset else None

    def truncate(self, offset: int, generation: int, crc: int) -> list[Release]:
        """Void the log stream's entries from `offset` on; the chain before it is `crc`.

        If `offset` lies inside a run, the run keeps its frame, and its first entries still count, unless all
        of them were trimmed.
        """
        keep = bisect_right(self.ends, offset)
        if keep < len(self.ends) and (self.ends[keep - 1] if keep else self.base) < offset:
            if offset > self.first:
                self.ends[keep], self.crcs[keep] = offset, crc
                keep += 1
            else:
                self.base, self.base_crc = offset, crc
        self.next, self.crc, self.generation = offset, crc, generation
        self.first = min(self.first, offset)
        return self._cut(keep, len(self.ends))

    def reset(self, offset: int, generation: int, crc: int) -> list[Release]:
        """Void everything and go on at `offset`."""
        gone = self._cut(0, len(self.ends))
        self.first = self.base = self.next = offset
        self.generation, self.crc, self.base_crc, self.flags = generation, crc, crc, 0
        return gone

    def place(self, begin: int, lap: int, at: int) -> Place | None:
        """The run that begins at `begin` and lies `at` bytes into the segment of `lap`; None if absent.

        The place is compared, because a run of a voided branch may have the same offsets and the same bytes.
        """
        index = bisect_right(self.ends, begin)
        if index == len(self.ends) or (self.laps[index], self.ats[index]) != (lap, at):
            return None
        if (self.ends[index - 1] if index else self.base) != begin:
            return None
        return Place(begin, self.ends[index], self.crcs[index], self.lengths[index], lap, at)

    def lose(self, lap: int) -> Release | None:
        """Unpin the runs in `lap`, which were found damaged."""
        lost = [at for at, each in enumerate(self.laps) if each == lap]
        for at in lost:
            self.laps[at] = LOST
        return Release(lap, sum(self.lengths[at] for at in lost), len(lost)) if lost else None

    def move(self, place: Place, lap: int, length: int, at: int) -> Release | None:
        """Move the run at `place` to `lap`; None if it was trimmed, voided or cut meanwhile."""
        if self.place(place.begin, place.lap, place.at) != place:
            return None
        index = bisect_right(self.ends, place.begin)
        old = Release(self.laps[index], self.lengths[index])
        self.laps[index], self.lengths[index], self.ats[index] = lap, length, at
        return old

    def check(self) -> None:
        """Assert the invariants of one log stream."""
        assert self.base <= self.first <= self.next, f"{self.base} <= {self.first} <= {self.next}"
        assert len(self.ends) == len(self.crcs) == len(self.lengths) == len(self.laps) == len(self.ats)
        assert list(self.ends) == sorted(dict.fromkeys(self.ends)), "runs are in order"
        assert not self.ends or self.ends[0] > self.first, "a run that was trimmed whole is released"
        if self.ends and not self.is_quarantined:
            assert self.ends[-1] == self.next, "the last run ends at the next offset"
            assert self.crcs[-1] == self.crc, "the chain ends with the last run"

    def _cut(self, begin: int, end: int) -> list[Release]:
        laps, lengths = self.laps[begin:end], self.lengths[begin:end]
        for column in (self.ends, self.crcs, self.lengths, self.laps, self.ats):
            del column[begin:end]
        gone: list[Release] = []
        while laps:
            lap = laps[0]
            if laps.count(lap) == len(laps):  # Nearly always all runs are of one lap: release them at once.
                gone.append(Release(lap, sum(lengths), len(laps)))
                break
            runs = next(i for i, other in enumerate(laps) if other != lap)
            gone.append(Release(lap, sum(lengths[:runs]), runs))
            del laps[:runs], lengths[:runs]
        return [each for each in gone if each.lap != LOST]
