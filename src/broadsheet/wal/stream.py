"""One logical stream of a log: its chain, and where its untrimmed runs lie.

Offsets count entries; `ends[i]` is the offset after run i, `laps[i]` the segment that holds it. Runs
are appended at the end, given up at the front (`trim`) or at the back (`truncate`), and moved (`move`)
when they are copied forward. It does not know bytes, files or durability. Source: log.3, log.7.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from broadsheet.wal.format import ROW, STREAM, RowFlag
from broadsheet.wal.stream_replay import Verdict

LOST: Final = 0
"""The lap of a run that was found damaged: it was set aside, and pins nothing."""


class Release(NamedTuple):
    """Runs that their segment need not keep any longer."""

    lap: int
    length: int
    runs: int = 1


class Place(NamedTuple):
    """Where a run lies: `length` bytes of entries, in a frame `at` bytes into the segment of `lap`."""

    begin: int
    end: int
    crc: int
    """The chain after its last entry that counts."""
    length: int
    lap: int
    at: int


OPEN: Final = 1 << 31
"""Of a place: its batch is not sealed, so it is not known yet where in the segment its frames begin."""


class Table:
    """Where every stream stands, packed as the rows of a batch that names all of them.

    Kept up by each batch, because to pack ten thousand rows at once takes the loop for milliseconds.
    """

    __slots__ = ("_packed", "_places", "_streams")

    def __init__(self) -> None:
        """Begin without a stream."""
        self._packed = bytearray()
        self._places: dict[int, int] = {}
        self._streams: list[int] = []

    def __len__(self) -> int:
        return len(self._streams)

    def put(self, stream: int, row: bytes) -> None:
        """`stream` stands so."""
        place = self._places.get(stream)
        if place is None:
            self._places[stream] = len(self._streams)
            self._streams.append(stream)
            self._packed += row
        else:
            self._packed[place * ROW.size : (place + 1) * ROW.size] = row

    def drop(self, stream: int) -> None:
        """`stream` is no more: the last row takes its place."""
        place = self._places.pop(stream, None)
        if place is None:
            return
        last, row = self._streams.pop(), self._packed[-ROW.size :]
        del self._packed[-ROW.size :]
        if last != stream:
            self._places[last], self._streams[place] = place, last
            self._packed[place * ROW.size : (place + 1) * ROW.size] = row

    def row(self, stream: int) -> bytes | None:
        """That of `stream`; None where it has none."""
        place = self._places.get(stream)
        return None if place is None else bytes(self._packed[place * ROW.size : (place + 1) * ROW.size])

    def packed(self) -> bytes:
        """All rows."""
        return bytes(self._packed)


class StreamState:
    """Where one stream stands, durable or not."""

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

    def __init__(
        self, stream: int, *, first: int = 0, generation: int = 0, crc: int = 0, flags: int = 0
    ) -> None:
        """Begin empty at `first`."""
        self.stream, self.packed = stream, STREAM.pack(stream)
        self.first = self.base = self.next = first
        self.generation, self.crc, self.base_crc, self.flags = generation, crc, crc, flags
        self.ends, self.crcs, self.lengths = array("Q"), array("I"), array("I")
        self.laps, self.ats = array("Q"), array("I")

    @classmethod
    def restored(cls, stream: int, verdict: Verdict) -> "StreamState":
        """As recovery judged it."""
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
        """Whether it lost durable records."""
        return bool(self.flags and self.flags & RowFlag.QUARANTINED)  # An enumeration takes its time.

    def row(self) -> bytes:
        """What a batch says of it, packed."""
        return ROW.pack(self.stream, self.first, self.next, self.generation, self.crc, self.flags)

    def append(self, end: int, generation: int, crc: int, length: int, lap: int, *, at: int) -> None:
        """A run was placed at the end: `at` bytes into its segment or, with `OPEN`, its batch's frames."""
        assert end > self.next, f"stream {self.stream}: a run must advance {self.next}, not to {end}"
        assert generation >= self.generation, f"stream {self.stream}: generation goes back"
        self.next, self.generation, self.crc = end, generation, crc
        self.ends.append(end)
        self.crcs.append(crc)
        self.lengths.append(length)
        self.laps.append(lap)
        self.ats.append(at)

    def trim(self, below: int) -> list[Release]:
        """Give up the runs that end at or below `below`."""
        below = min(below, self.next)
        if below <= self.first:
            return []  # A repeated or late trim: what it asks for is done.
        self.first = below
        gone = bisect_right(self.ends, below)
        if gone == 0:
            return []
        self.base, self.base_crc = self.ends[gone - 1], self.crcs[gone - 1]
        return self._cut(0, gone)

    def sealed(self, base: int) -> None:
        """The batch that holds the last runs was sealed: its frames begin at `base` of its segment."""
        ats = self.ats
        index = len(ats) - 1
        while index >= 0 and ats[index] & OPEN:
            ats[index] = (ats[index] ^ OPEN) + base
            index -= 1

    def moved(self, begin: int, base: int) -> None:
        """As `sealed`, of the run that begins at `begin` and was copied forward."""
        at = bisect_right(self.ends, begin)
        if at < len(self.ends) and self.ats[at] & OPEN:
            self.ats[at] = (self.ats[at] ^ OPEN) + base

    def runs(self, begin: int, end: int) -> Iterator[Place]:
        """Where the runs lie that hold entries of [begin, end), in order."""
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
        """The chain before `offset`, where a run begins or would begin there; else None."""
        if offset == self.next:
            return self.crc
        if offset == self.base:
            return self.base_crc
        at = bisect_left(self.ends, offset)
        return self.crcs[at] if at < len(self.ends) and self.ends[at] == offset else None

    def truncate(self, offset: int, generation: int, crc: int) -> list[Release]:
        """Void the entries from `offset` on; the chain before it is `crc`.

        Of a run that has entries on both sides the first ones count on, in the same frame.
        """
        keep = bisect_right(self.ends, offset)
        if keep < len(self.ends) and (self.ends[keep - 1] if keep else self.base) < offset:
            self.ends[keep], self.crcs[keep] = offset, crc
            keep += 1
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
        """The run that begins at `begin` and lies `at` bytes into the segment of `lap`; else None.

        The place tells it from a run of a branch that was cut off, which may have the same offsets and bytes.
        """
        index = bisect_right(self.ends, begin)
        if index == len(self.ends) or (self.laps[index], self.ats[index]) != (lap, at):
            return None
        if (self.ends[index - 1] if index else self.base) != begin:
            return None
        return Place(begin, self.ends[index], self.crcs[index], self.lengths[index], lap, at)

    def lose(self, lap: int) -> Release | None:
        """The runs in `lap` were found damaged: they pin it no longer."""
        lost = [at for at, each in enumerate(self.laps) if each == lap]
        for at in lost:
            self.laps[at] = LOST
        return Release(lap, sum(self.lengths[at] for at in lost), len(lost)) if lost else None

    def move(self, place: Place, lap: int, length: int, at: int) -> Release | None:
        """The run at `place` now lies in `lap`; None where it was given up, or cut, meanwhile."""
        if self.place(place.begin, place.lap, place.at) != place:
            return None
        index = bisect_right(self.ends, place.begin)
        old = Release(self.laps[index], self.lengths[index])
        self.laps[index], self.lengths[index], self.ats[index] = lap, length, at
        return old

    def check(self) -> None:
        """Assert the invariants."""
        assert self.base <= self.first <= self.next, f"{self.base} <= {self.first} <= {self.next}"
        assert len(self.ends) == len(self.crcs) == len(self.lengths) == len(self.laps) == len(self.ats)
        assert list(self.ends) == sorted(dict.fromkeys(self.ends)), "runs are in order"
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
            if laps.count(lap) == len(laps):  # Nearly always: all at once, at the speed of memory.
                gone.append(Release(lap, sum(lengths), len(laps)))
                break
            runs = next(i for i, other in enumerate(laps) if other != lap)
            gone.append(Release(lap, sum(lengths[:runs]), runs))
            del laps[:runs], lengths[:runs]
        return [each for each in gone if each.lap != LOST]
