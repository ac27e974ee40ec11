"""Loop lag: how late the loop runs a callback that was due (node.2).

Durations are nanoseconds. One timer measures; whatever holds the loop up shows as lateness of its next call.
It does not say which callback was slow: a story and a profiler do.
"""

from collections import deque
from collections.abc import Callable
from math import ceil
from typing import Final

from broadsheet.base.time import MILLISECOND, Duration, Instant, after, since
from broadsheet.ports import Time, Timer, Timers

INTERVAL: Final = Duration(50 * MILLISECOND)
SLOW: Final = Duration(5 * MILLISECOND)
"""No callback may take longer (node.2)."""
SAMPLES_MAX: Final = 1200
"""A minute of samples at this interval."""


class LoopLag:
    """Measures the loop that `timers` belong to, until `close`."""

    def __init__(
        self, time: Time, timers: Timers, *, seen: Callable[[Duration], None], interval: Duration = INTERVAL
    ) -> None:
        """Call `seen` with every sample."""
        self._time, self._timers, self._seen, self._interval = time, timers, seen, interval
        self._samples: deque[Duration] = deque(maxlen=SAMPLES_MAX)
        self._due = Instant(0)
        self.slow_count = 0
        """Samples above `SLOW` since the start: each met a callback, or a turn of them, that took longer."""
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to measure."""
        self._due = after(self._time.now(), self._interval)
        self._timer = self._timers.call_after(self._interval, self._fire)

    def close(self) -> None:
        """Measure no more; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def worst(self) -> Duration:
        """The greatest lag of the last minute."""
        return max(self._samples, default=Duration(0))

    def quantile(self, share: float) -> Duration:
        """The lag that `share` of the last minute's samples stay at or below: 0.5 for the median, 0.99."""
        assert 0 < share <= 1, f"{share} is no share"
        samples = sorted(self._samples)
        return samples[max(0, ceil(share * len(samples)) - 1)] if samples else Duration(0)

    def _fire(self) -> None:
        lag = since(self._due, self._time.now())
        self._samples.append(lag)
        self.slow_count += lag > SLOW
        self._seen(lag)
        self.start()
