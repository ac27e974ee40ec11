"""Config: the settings of a log that an operator may change. All sizes are in bytes."""

import msgspec

from broadsheet.base.time import MILLISECOND, Duration

KIB = 1024
MIB = 1024 * KIB

BLOCK_BYTES = 4 * KIB
"""Batches start at multiples of this, and a segment is a multiple of it."""
SEGMENTS_MAX = 1000
"""Segments of one log at most: the file of extents has room for so many."""


class WALConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes and limits of one log. An existing log makes no segment smaller than those that it has."""

    segment_bytes: int = 64 * MIB
    """Size of a segment file, from 16 KiB to 2 GiB, a multiple of 4 KiB."""
    segments_initial: int = 4
    """Segments prefilled in the background of a first start; at least 3."""
    segments_max: int = 64
    """Segments that the pool may grow to before appends are refused; at most 1,000."""
    segments_reserved: int = 1
    """Free segments that appends may not take: room for checkpoints, trims, copies and truncations."""
    initial_fill_bytes: int = 16 * MIB
    """A first start waits until so much of the first segment is filled."""
    record_bytes_max: int = 16 * MIB
    """The largest payload of one append. Domains append no more than a quarter of a segment."""
    batch_bytes_max: int = 8 * MIB
    """A batch takes no further frame above this."""
    pending_bytes_max: int = 64 * MIB
    """Bytes that may wait while a batch is being written; above this, appends are throttled."""
    streams_max: int = 65_536
    """Logical streams of one log; each costs 40 bytes in the first batch of every segment."""
    vouch_delay: Duration = Duration(2 * MILLISECOND)
    """How long a log must be idle before it vouches for its last batch; this takes at most twice as long."""
    retry_delay: Duration = Duration(100 * MILLISECOND)
    """How long the log waits before it asks again for disk space that was refused, or for a flush."""

    def __post_init__(self) -> None:
        """Check the bounds of a log's settings, and the relations between them."""
        if not 16 * KIB <= self.segment_bytes <= 2048 * MIB or self.segment_bytes % BLOCK_BYTES:
            raise ValueError(
                f"a log's segment_bytes must be a multiple of 4096 in 16 KiB..2 GiB, not {self.segment_bytes}"
            )
        if not 3 <= self.segments_initial <= self.segments_max:
            raise ValueError(
                f"a log's segments_initial must be in 3..segments_max, not "
                f"{self.segments_initial}..{self.segments_max}"
            )
        if self.segments_max > SEGMENTS_MAX:
            raise ValueError(f"a log's segments_max must be at most {SEGMENTS_MAX}, not {self.segments_max}")
        if not 1 <= self.segments_reserved <= self.segments_initial - 2:
            raise ValueError(
                f"a log's segments_reserved must be in 1..segments_initial - 2, not "
                f"{self.segments_reserved} of {self.segments_initial}"
            )
        for name in ("initial_fill_bytes", "record_bytes_max", "batch_bytes_max", "pending_bytes_max"):
            if getattr(self, name) < BLOCK_BYTES:
                raise ValueError(f"a log's {name} must be at least 4096, not {getattr(self, name)}")
        if not 1 <= self.streams_max <= 1_000_000:
            raise ValueError(f"a log's streams_max must be in 1..1,000,000, not {self.streams_max}")
        if self.vouch_delay < 0:
            raise ValueError(f"a log's vouch_delay must be at least 0, not {self.vouch_delay} ns")
        if self.retry_delay < MILLISECOND:
            raise ValueError(f"a log's retry_delay must be at least 1 ms, not {self.retry_delay} ns")
