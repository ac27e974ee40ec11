"""Settings: the times and limits of a proposer, and the first value of a founder.

Times are in nanoseconds. Correctness depends on none of these. Source: design/control.md control.3 (jittered
back-off).
"""

import msgspec

from broadsheet.base.time import MILLISECOND, SECOND, Duration
from broadsheet.base.types import NodeId


class ProposerConfig(msgspec.Struct, frozen=True):
    """Times and limits of a proposer."""

    operation_timeout: Duration = Duration(5 * SECOND)
    """How long an operation may take; then its client is told whether it may have taken effect."""
    resend_after: Duration = Duration(100 * MILLISECOND)
    """Time until a request is first repeated to a silent acceptor, or twice the round trip if that is longer.
    It doubles with each repetition."""
    backoff_min: Duration = Duration(5 * MILLISECOND)
    """Bound of the first random pause after a loss to a greater ballot, or a round trip if that is longer. It
    doubles with each loss."""
    backoff_max: Duration = Duration(500 * MILLISECOND)
    """The longest such pause, or four round trips if that is longer."""
    queue_max: int = 1024
    """Operations that may wait."""

    def __post_init__(self) -> None:
        """Check the bounds of a proposer's times and limits, and the relations between them."""
        if not 0 < self.backoff_min <= self.backoff_max < self.operation_timeout:
            raise ValueError(
                "metastore.proposer: 0 < backoff_min <= backoff_max < operation_timeout does not hold: "
                f"{self.backoff_min}, {self.backoff_max}, {self.operation_timeout} ns"
            )
        if not 0 < self.resend_after < self.operation_timeout:
            raise ValueError(
                "metastore.proposer: 0 < resend_after < operation_timeout does not hold: "
                f"{self.resend_after}, {self.operation_timeout} ns"
            )
        if self.queue_max < 1:
            raise ValueError(f"metastore.proposer.queue_max must be at least 1, not {self.queue_max}")


class Founding(msgspec.Struct, frozen=True):
    """The first document of a cluster, and the addresses of its nodes."""

    document: bytes
    addresses: tuple[tuple[NodeId, str], ...]
