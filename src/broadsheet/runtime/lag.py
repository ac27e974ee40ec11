"""Loop lag: how late the loop runs a callback that was due (node.2).

Durations are in nanoseconds. One timer measures: whatever blocks the loop makes its next call late. It does
not tell which callback was slow: a story or a profiler does.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from broadsheet.base.time import MILLISECOND, Duration, Instant, after, since
from broadsheet.ports import Time, Timer, Timers

INTERVAL: Final = Duration(50 * MILLISECOND)
SAMPLES_MAX: Final = 1200
"""A minute of samples."""


class LoopLag:
    """Measures the loop that `timers` belong to, until `close`."""

    def __init__(self, time: Time, timers: Timers, *, seen: Callable[[Duration], None]) -> None:
        """Call `seen` with every sample."""
        self._time, self._timers, self._seen = time, timers, seen
        self._samples: deque[Duration] = deque(maxlen=SAMPLES_MAX)
        self._due = Instant(0)
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to measure."""
        self._due = after(self._time.now(), INTERVAL)
        self._timer = self._timers.call_after(INTERVAL, self._fire)

    def close(self) -> None:
        """Measure no more; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def worst(self) -> Duration:
        """The greatest lag of the last minute."""
        return max(self._samples, default=Duration(0))

    def _fire(self) -> None:
        lag = since(self._due, self._time.now())
        self._samples.append(lag)
        self._seen(lag)
        self.start()
