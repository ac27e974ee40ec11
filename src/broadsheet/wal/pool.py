"""The pool: which segment files are in use, in which lap, what still pins them, and which are free.

Laps rise by one with each segment that the head moves into. Segments are freed strictly in order of
laps: a lap is *past* once no run pins it and none older is pinned, *advertised* once a durable batch
says so, and only then free to be written over. The last free segment is kept for copies and boot
frames, so that a full log can still be made less full. It does not open files and does not know
streams. Source: DESIGN 3.
"""

from collections import deque

SEGMENTS_KEPT = 1
"""Free segments that appends may not take."""


class Lap:
    """One use of one segment file."""

    __slots__ = ("index", "live_bytes", "pins")

    def __init__(self, index: int) -> None:
        self.index = index
        self.pins = 0
        self.live_bytes = 0

    def pin(self, length: int) -> None:
        """A run of `length` bytes was placed here."""
        self.pins += 1
        self.live_bytes += length


class Pool:
    """Accounts of all segments of one log."""

    def __init__(self) -> None:
        self.laps: dict[int, Lap] = {}
        """Laps in use, oldest first."""
        self.free: deque[int] = deque()
        """Files that may be written over, in the order of their use."""
        self.rooms: dict[int, int] = {}
        """How far each file is filled."""
        self.head = 0

    @property
    def oldest(self) -> int:
        """The oldest lap in use; the head where there is but one."""
        return next(iter(self.laps), self.head)

    def add_free(self, index: int, room: int) -> None:
        """A segment was filled."""
        self.free.append(index)
        self.rooms[index] = room

    def adopt(self, lap: int, index: int, room: int) -> None:
        """Recovery found this lap in use."""
        assert lap > self.head, f"laps come in order: {lap} after {self.head}"
        self.laps[lap] = Lap(index)
        self.rooms[index] = room
        self.head = lap

    def may_roll(self, *, keep: int = SEGMENTS_KEPT) -> bool:
        """Whether the head may move into another segment and leave `keep` free."""
        return len(self.free) > keep

    def roll(self) -> Lap:
        """Move the head into the next free segment."""
        self.head += 1
        self.laps[self.head] = lap = Lap(self.free.popleft())
        return lap

    def pin(self, lap: int, length: int) -> None:
        """A run of `length` bytes was placed in `lap`."""
        self.laps[lap].pin(length)

    def unpin(self, lap: int, length: int, runs: int = 1) -> None:
        """Some runs in `lap`, of `length` bytes together, are needed no longer."""
        use = self.laps[lap]
        use.pins -= runs
        use.live_bytes -= length
        assert use.pins >= 0, f"lap {lap} was released more often than pinned"

    def past(self, durable_lap: int) -> int:
        """The lap below which nothing is needed, given that the last durable batch lies in `durable_lap`."""
        for lap, use in self.laps.items():
            if use.pins or lap >= durable_lap:
                return lap
        return durable_lap

    def retire(self, oldest: int) -> int:
        """A durable batch says that laps below `oldest` are free; how many became so just now."""
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
