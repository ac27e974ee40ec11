"""A clock and timers that a test moves by hand."""

from collections.abc import Callable

from broadsheet.base.time import Duration, Instant, WallTime, after


class HandTimer:
    """One pending call of a `HandClock`."""

    def __init__(self, due: Instant, callback: Callable[[], None]) -> None:
        self.due, self.callback, self.is_cancelled = due, callback, False

    def cancel(self) -> None:
        """As `Timer.cancel`."""
        self.is_cancelled = True


class HandClock:
    """`Time` and `Timers` in one; nothing happens but in `advance` and `turn`."""

    def __init__(self) -> None:
        self.at = Instant(1_000)
        self.timers: list[HandTimer] = []
        self._soon: list[Callable[[], None]] = []

    def now(self) -> Instant:
        """As `Time.now`."""
        return self.at

    def wall(self) -> WallTime:
        """As `Time.wall`."""
        return WallTime(self.at)

    def boot_id(self) -> str:
        """As `Time.boot_id`."""
        return "by hand"

    def call_soon(self, callback: Callable[[], None]) -> None:
        """As `Timers.call_soon`."""
        self._soon.append(callback)

    def call_after(self, delay: Duration, callback: Callable[[], None]) -> HandTimer:
        """As `Timers.call_after`."""
        timer = HandTimer(after(self.at, delay), callback)
        self.timers.append(timer)
        return timer

    def turn(self) -> None:
        """End the current turn: run what was called soon, and what that calls soon in the next."""
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()

    def advance(self, by: Duration) -> None:
        """Move the clock, firing what comes due on the way, in order."""
        end = after(self.at, by)
        while due := [timer for timer in self.pending() if timer.due <= end]:
            timer = min(due, key=lambda each: each.due)
            self.timers.remove(timer)
            self.at = max(self.at, timer.due)
            timer.callback()
        self.at = end

    def pending(self) -> list[HandTimer]:
        """The timers that were neither fired nor cancelled."""
        self.timers = [timer for timer in self.timers if not timer.is_cancelled]
        return self.timers
