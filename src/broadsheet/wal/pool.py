"""Pool: which segment files are in use, in which lap, how many runs pin them, and which files are free.

The lap rises by one with each segment that the head moves into. Segments are freed strictly in order of laps.
A lap is *past* when no run pins it or an older lap. It is *advertised* when a durable batch says so, and only
then may its file be written over. The last `reserved` free segments are kept for relief, that is for records
that make a full log less full: checkpoints, copies, truncations, resets and boot frames. While fewer segments
are free, appends are refused, even if relief has moved the head into a segment with room. The pool opens no
files, and knows streams by their numbers only. Source: log.10.
"""

from collections import deque
from collections.abc import Mapping

from broadsheet.wal.stream import StreamState


class Lap:
    """One use of one segment file."""

    __slots__ = ("end", "index", "live_bytes", "pins", "streams")

    def __init__(self, index: int) -> None:
        self.index = index
        self.pins = 0
        self.live_bytes = 0
        self.end = 0
        """How far this process has written the segment; 0 if it has not."""
        self.streams: dict[int, None] = {}
        """Every stream that has a run here, and some that no longer have one."""

    def pin(self, length: int) -> None:
        """Count a run of `length` bytes that was placed here."""
        self.pins += 1
        self.live_bytes += length


class Pool:
    """The use of all segments of one log."""

    def __init__(self, *, reserved: int = 1) -> None:
        """Begin a log's pool without a segment.

        Args:
            reserved: number of free segments that appends may not take.
        """
        self.reserved = reserved
        self.laps: dict[int, Lap] = {}
        """Laps in use, oldest first."""
        self.free: deque[int] = deque()
        """Files that may be written over, in the order of their use."""
        self.rooms: dict[int, int] = {}
        """How far each file is filled."""
        self.head = 0

    @property
    def oldest(self) -> int:
        """The oldest lap in use; the head if no lap is in use."""
        return next(iter(self.laps), self.head)

    def add_free(self, index: int, room: int) -> None:
        """Add a file that was filled up to `room`."""
        self.free.append(index)
        self.rooms[index] = room

    def adopt(self, lap: int, index: int, room: int) -> None:
        """Take over a lap that recovery found in use."""
        assert lap > self.head, f"laps come in order: {lap} after {self.head}"
        self.laps[lap] = Lap(index)
        self.rooms[index] = room
        self.head = lap

    def may_append(self) -> bool:
        """Whether appends may use the head: all segments reserved for relief must be free.

        If only the head is in use, as in a new log, there is nothing to relieve, and appends are allowed.
        """
        return len(self.free) >= self.reserved or len(self.laps) == 1

    def may_roll(self, *, is_relief: bool) -> bool:
        """Whether the head may move into another segment."""
        return len(self.free) > (0 if is_relief else self.reserved)

    @property
    def is_used_up(self) -> bool:
        """Whether no segment is free, and the head is not the only one in use."""
        return not self.free and len(self.laps) > 1

    def prefer(self, index: int) -> None:
        """Use this free file before the others."""
        if self.free[0] != index:
            self.free.remove(index)
            self.free.appendleft(index)

    def roll(self) -> Lap:
        """Move the head into the next free segment."""
        self.head += 1
        self.laps[self.head] = lap = Lap(self.free.popleft())
        return lap

    def pin(self, lap: int, length: int, *, stream: int) -> None:
        """Count a run of `length` bytes of `stream` that recovery found in `lap`."""
        use = self.laps[lap]
        use.pin(length)
        use.streams[stream] = None

    def unpin(self, lap: int, length: int, runs: int = 1) -> None:
        """Release `runs` runs in `lap`, of `length` bytes together."""
        use = self.laps[lap]
        use.pins -= runs
        use.live_bytes -= length
        assert use.pins >= 0, f"lap {lap} was released more often than pinned"

    def pinning(self, states: Mapping[int, StreamState], count_max: int | None) -> list[int]:
        """At most `count_max` streams with records in the oldest segment; those without are forgotten."""
        lap = self.oldest
        use = self.laps.get(lap)
        found: list[int] = []
        gone: list[int] = []
        for stream in use.streams if use is not None else ():
            if len(found) == count_max:
                break
            state = states.get(stream)
            (found if state is not None and lap in state.laps else gone).append(stream)
        if use is not None and lap != self.head:
            for stream in gone:
                del use.streams[stream]
        return found

    def past(self, durable_lap: int) -> int:
        """The lap below which no lap is needed, if the last durable batch lies in `durable_lap`."""
        for lap, use in self.laps.items():
            if use.pins or lap >= durable_lap:
                return lap
        return durable_lap

    def retire(self, oldest: int) -> int:
        """Free all laps below `oldest`, as a durable batch says; the number of laps that became free."""
        gone = [lap for lap in self.laps if lap < oldest]
        for lap in gone:
            use = self.laps.pop(lap)
            assert use.pins == 0, f"lap {lap} is freed while pinned"
            self.free.append(use.index)
        return len(gone)

    def check(self) -> None:
        """Assert the invariants."""
        laps = list(self.laps)
        assert laps == sorted(laps), f"laps are in order: {laps}"
        assert all(use.pins >= 0 and use.live_bytes >= 0 for use in self.laps.values())
        used = [use.index for use in self.laps.values()] + list(self.free)
        assert len(used) == len(dict.fromkeys(used)), "a file has one use at a time"
