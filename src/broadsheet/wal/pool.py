"""The pool: which segment files are in use, in which lap, what still pins them, and which are free.

Laps rise by one with each segment that the head moves into. Segments are freed strictly in order of
laps: a lap is *past* once no run pins it and none older is pinned, *advertised* once a durable batch
says so, and only then free to be written over. The last `reserved` free segments are for relief: what
makes a full log less full, which is checkpoints, copies, truncations, resets and boot frames. While
fewer are free, appends are refused, also in a head that relief has moved. It does not open files and
knows streams by their numbers only. Source: log.10.
"""

from collections import deque


class Lap:
    """One use of one segment file."""

    __slots__ = ("end", "index", "live_bytes", "pins", "streams")

    def __init__(self, index: int) -> None:
        self.index = index
        self.pins = 0
        self.live_bytes = 0
        self.end = 0
        """How far it was written by this process; 0 where it was not."""
        self.streams: dict[int, None] = {}
        """Every stream that has a run here, and some that have none any more."""

    def pin(self, length: int) -> None:
        """A run of `length` bytes was placed here."""
        self.pins += 1
        self.live_bytes += length


class Pool:
    """Accounts of all segments of one log."""

    def __init__(self, *, reserved: int = 1) -> None:
        """Begin without a segment.

        Args:
            reserved: free segments that appends may not take.
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

    def may_append(self) -> bool:
        """Whether the head has room for appends: all that is reserved for relief is free.

        Where the head alone is in use, as when a new log begins, there is nothing to relieve.
        """
        return len(self.free) >= self.reserved or len(self.laps) == 1

    def may_roll(self, *, is_relief: bool) -> bool:
        """Whether the head may move into another segment."""
        return len(self.free) > (0 if is_relief else self.reserved)

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
        """Recovery found a run of `length` bytes of `stream` in `lap`."""
        use = self.laps[lap]
        use.pin(length)
        use.streams[stream] = None

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
