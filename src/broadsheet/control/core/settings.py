"""Settings of a proposer: its patience, and what a founder writes first.

Times in nanoseconds. No behaviour; correctness depends on none of these. Source: design/control.md
control.3 (jittered back-off).
"""

import msgspec

from broadsheet.base.time import MILLISECOND, SECOND, Duration
from broadsheet.base.types import NodeId


class ProposerConfig(msgspec.Struct, frozen=True):
    """Knobs of a proposer."""

    operation_timeout: Duration = Duration(5 * SECOND)
    """How long an operation may take before its client is told what is known of it."""
    resend_after: Duration = Duration(100 * MILLISECOND)
    """When a request is first repeated to who has not answered, on a fast link; doubles each time. On a
    slower one twice the round trip that was seen."""
    backoff_min: Duration = Duration(5 * MILLISECOND)
    """The first random pause after losing to a greater ballot is up to this, or up to a round trip; doubles
    each time."""
    backoff_max: Duration = Duration(500 * MILLISECOND)
    """The longest such pause, or four round trips."""
    queue_max: int = 1024
    """Operations that may wait."""

    def __post_init__(self) -> None:
        """Hold the relations between the knobs."""
        if not 0 < self.backoff_min <= self.backoff_max < self.operation_timeout:
            raise ValueError(
                "0 < backoff_min <= backoff_max < operation_timeout does not hold: "
                f"{self.backoff_min}, {self.backoff_max}, {self.operation_timeout} ns"
            )
        if not 0 < self.resend_after < self.operation_timeout:
            raise ValueError(
                "0 < resend_after < operation_timeout does not hold: "
                f"{self.resend_after}, {self.operation_timeout} ns"
            )
        if self.queue_max < 1:
            raise ValueError(f"queue_max must be at least 1, not {self.queue_max}")


class Founding(msgspec.Struct, frozen=True):
    """What the founder of a cluster writes first."""

    document: bytes
    addresses: tuple[tuple[NodeId, str], ...]
