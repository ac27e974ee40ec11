"""Staging: the streaming appends whose content is still arriving, and whether their clients are fast enough.

Lengths are bytes. A stream delays no other append, because its content is staged beside the tail. A slow
client is refused all the same, because staged content takes space. Each stream has a deadline. Every byte
moves it later by the byte's time at the minimum rate, but never further than `flow_stall` from now.
OPEN --end--> whole, and removed; OPEN --too slow or too long--> stopped: the deadline is cleared until the
host reports that the stream has failed.

Staging does not see content or the journal's tail. Source: journals.17; ADR 0131.
"""

from collections.abc import Iterator

from broadsheet.base.time import SECOND, Instant, after
from broadsheet.errors import Status
from broadsheet.journal.core.append_admission import Limits, PendingAppend


class _Clock:
    """How much a client of a streaming append sent, and its deadline; none once the stream is stopped."""

    __slots__ = ("due", "entry", "length")

    def __init__(self, entry: PendingAppend, due: Instant) -> None:
        self.entry, self.length = entry, 0
        self.due: Instant | None = due


class Staging:
    """The streaming appends whose content is not whole yet."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.clocks: dict[int, _Clock] = {}
        """By stream."""

    @property
    def due(self) -> Instant | None:
        """The earliest deadline of a stream; None if no stream is open."""
        return min((each.due for each in self.clocks.values() if each.due is not None), default=None)

    def begin(self, stream: int, entry: PendingAppend, now: Instant) -> None:
        """Start the stream of `entry`, with `flow_stall` for its first byte."""
        assert stream not in self.clocks, "a stream is opened once"
        self.clocks[stream] = _Clock(entry, after(now, self._limits.flow_stall))

    def staged(self, stream: int, length: int, now: Instant) -> Status:
        """Count `length` more bytes of a streaming append; OK, or why it must be aborted."""
        clock = self.clocks.get(stream)
        if clock is None or clock.due is None:
            return Status.OK  # These bytes were under way when the stream was stopped: it is aborted once.
        clock.length += length
        if clock.length > self._limits.append_bytes_max:
            clock.due = None
            return Status.TOO_LARGE
        earned = length * SECOND // self._limits.flow_bytes_per_second_min
        clock.due = Instant(min(clock.due + earned, now + self._limits.flow_stall))
        return Status.OK

    def slow(self, now: Instant) -> Iterator[int]:
        """Stop the streams whose deadline has passed, and yield them."""
        for stream, clock in self.clocks.items():
            if clock.due is not None and clock.due <= now:
                clock.due = None
                yield stream

    def stop(self) -> Iterator[int]:
        """Stop every stream that is still open, and yield them."""
        for stream, clock in self.clocks.items():
            if clock.due is not None:
                clock.due = None
                yield stream

    def end(self, stream: int) -> PendingAppend | None:
        """Remove a stream that is whole or has failed; its entry, or None if it is not here."""
        clock = self.clocks.pop(stream, None)
        return clock.entry if clock is not None else None

    def take_all(self) -> list[PendingAppend]:
        """Take out every entry."""
        clocks, self.clocks = self.clocks, {}
        return [clock.entry for clock in clocks.values()]

    def check(self) -> None:
        """Assert the invariants."""
        for stream, clock in self.clocks.items():
            assert clock.entry.stream == stream, "a stream is known by its number"
            assert clock.due is None or clock.length <= self._limits.append_bytes_max, "stops in time"
