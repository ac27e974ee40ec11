"""Step times: how long the steps of something take, counted in buckets for the metrics.

The batches of a log have two steps. A batch is counted once, however many appends it carries: an append costs
nothing here. Durations are in nanoseconds. Source: code.18.
"""

from bisect import bisect_left
from collections.abc import Sequence
from enum import Enum
from typing import Final

from broadsheet.base.time import MICROSECOND, SECOND, Duration

BUCKETS: Final = tuple(
    Duration(micros * MICROSECOND)
    for micros in (
        50,
        100,
        200,
        500,
        1_000,
        2_000,
        5_000,
        10_000,
        25_000,
        50_000,
        100_000,
        250_000,
        1_000_000,
    )
)
"""Of a log's steps, the upper end of each bucket but the last, which has none."""


class Step(Enum):
    """A step of a batch."""

    QUEUE = "queue"
    """From its first record to its write: the batch before it is being written."""
    SYNC = "sync"
    """Its write with its sync."""


class StepTimes:
    """How long one step took, each time."""

    def __init__(self, ends: Sequence[Duration] = BUCKETS) -> None:
        """Count in the buckets with these upper ends, in order, and one more without an end."""
        self._ends, self.counts = ends, [0] * (len(ends) + 1)
        self.sum_ns = 0

    def seen(self, duration: Duration) -> None:
        """Count one time."""
        self.counts[bisect_left(self._ends, duration)] += 1
        self.sum_ns += duration

    def cumulative(self) -> list[tuple[str, float]]:
        """The buckets as Prometheus wants them: each upper end in seconds, with all that took no longer."""
        found, count = [], 0
        for end, added in zip(self._ends, self.counts, strict=False):
            count += added
            found.append((str(end / SECOND), float(count)))
        return [*found, ("+Inf", float(count + self.counts[-1]))]
