"""Staging: the streaming appends whose content is on its way, and whether their clients keep up.

Lengths are bytes. A stream holds nothing that others wait for: its content is staged beside the tail. Its
client must keep up all the same, since what is staged takes space: it earns time by sending, each byte pays
for itself at the minimum rate, at most `flow_stall` ahead. OPEN --end--> whole, and out of here; OPEN
--too slow, too long--> stopped: its clock stands still until the host reports that it has failed.

It does not see content, and it knows nothing of places. Source: journals.17; ADR 0131.
"""

from collections.abc import Iterator

from broadsheet.base.time import SECOND, Instant, after
from broadsheet.errors import Status
from broadsheet.journal.core.append_admission import Entry, Limits


class _Clock:
    """What one client has sent, and when it is too slow."""

    __slots__ = ("due", "entry", "length")

    def __init__(self, entry: Entry, due: Instant) -> None:
        self.entry, self.length = entry, 0
        self.due: Instant | None = due


class Staging:
    """The streams whose content is not whole."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._clocks: dict[int, _Clock] = {}

    def __len__(self) -> int:
        return len(self._clocks)

    @property
    def due(self) -> Instant | None:
        """When the first client is too slow, if it sends nothing more."""
        return min((each.due for each in self._clocks.values() if each.due is not None), default=None)

    def begin(self, stream: int, entry: Entry, now: Instant) -> None:
        """The content of `entry` may come."""
        assert stream not in self._clocks, "a stream is opened once"
        self._clocks[stream] = _Clock(entry, after(now, self._limits.flow_stall))

    def staged(self, stream: int, length: int, now: Instant) -> Status:
        """`length` more bytes came; whether more may come."""
        clock = self._clocks.get(stream)
        if clock is None or clock.due is None:
            return Status.OK  # It has been stopped: this was on its way.
        clock.length += length
        if clock.length > self._limits.append_bytes_max:
            clock.due = None
            return Status.TOO_LARGE
        earned = length * SECOND // self._limits.flow_bytes_per_second_min
        clock.due = Instant(min(clock.due + earned, now + self._limits.flow_stall))
        return Status.OK

    def slow(self, now: Instant) -> Iterator[int]:
        """The streams whose clients are too slow; their clocks stop."""
        for stream, clock in self._clocks.items():
            if clock.due is not None and clock.due <= now:
                clock.due = None
                yield stream

    def stop(self) -> Iterator[int]:
        """Every stream whose clock still runs; they stop."""
        for stream, clock in self._clocks.items():
            if clock.due is not None:
                clock.due = None
                yield stream

    def end(self, stream: int) -> Entry | None:
        """All of it came, or it failed; None where nobody knows it."""
        clock = self._clocks.pop(stream, None)
        return clock.entry if clock is not None else None

    def take_all(self) -> list[Entry]:
        """Take out every entry."""
        clocks, self._clocks = self._clocks, {}
        return [clock.entry for clock in clocks.values()]

    def check(self) -> None:
        """Assert the invariants."""
        for stream, clock in self._clocks.items():
            assert clock.entry.stream == stream, "a stream is known by its number"
            assert clock.due is None or clock.length <= self._limits.append_bytes_max, "stops in time"
