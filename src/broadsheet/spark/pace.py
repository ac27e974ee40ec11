"""Pace: how much a batch of a query takes, and whether it lets what has come become more.

A batch costs some hundred milliseconds whatever it holds, and its output is an append for each journal. Who
can wait has fewer and larger batches: of at least `bytes_min`, or of what there is `delay_max` after the
batch before. The first batch of a run does not wait, since nobody knows when the one before was. Units: bytes
of journals, nanoseconds. Source: pipelines.5.
"""

from typing import Final

from broadsheet.base.time import Duration, Instant, since
from broadsheet.errors import ConfigError
from broadsheet.spark.options import Options

DELAY_MAX: Final = "15m"
"""How long a batch waits at most, unless the user says it: as with Kafka."""


class Pace:
    """When one run of a query plans its batches, and of how many bytes."""

    def __init__(self, *, bytes_min: int, bytes_max: int, delay_max: Duration) -> None:
        """Plan batches of `bytes_min` to `bytes_max`; 0 is no such limit."""
        self.bytes_min, self.bytes_max, self.delay_max = bytes_min, bytes_max, delay_max
        self._planned: Instant | None = None
        """When the newest batch was planned."""

    @staticmethod
    def by(options: Options) -> "Pace":
        """The pace that a user asks for.

        Raises:
            ConfigError: an option has a wrong value, or they do not fit each other.
        """
        bytes_max, bytes_min = options.count("maxBytesPerTrigger", 0), options.count("minBytesPerTrigger", 0)
        if bytes_max and bytes_min > bytes_max:
            raise ConfigError(
                f"option minBytesPerTrigger is {bytes_min}, above maxBytesPerTrigger, which is {bytes_max}: "
                "lower the one, or raise the other"
            )
        if options.text("maxTriggerDelay") and not bytes_min:
            raise ConfigError(
                "option maxTriggerDelay limits how long a batch waits for minBytesPerTrigger, which is not "
                "set: set both, or give the query a trigger with processingTime"
            )
        delay_max = options.duration("maxTriggerDelay", DELAY_MAX)
        return Pace(bytes_min=bytes_min, bytes_max=bytes_max, delay_max=delay_max)

    def is_due(self, new_bytes: int, now: Instant) -> bool:
        """Whether a batch takes these bytes now. If so, the next one may wait from now on."""
        is_large = new_bytes >= self.bytes_min
        if not is_large and self._planned is not None and since(self._planned, now) < self.delay_max:
            return False
        if new_bytes:
            self._planned = now
        return True
