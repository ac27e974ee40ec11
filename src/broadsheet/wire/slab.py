"""Slab: a receive buffer that is used again once nobody refers to what was received into it.

A connection has one only while bytes come on it: an idle one holds none. What connections keep at a time
beyond `SMALL_BYTES` each is bounded (`BUSY_BYTES_MAX`); above, each gets what a frame that has begun needs.
Views into a slab keep it out of circulation by themselves: the interpreter counts the exports of a
`bytearray`, and a slab with exports cannot be resized, which is how `is_free` asks. So no view ever shows
other bytes later, whoever keeps it and however long; forgetting to release costs memory, never correctness
(ADR 0041).
"""

from typing import Final

SMALL_BYTES: Final = 64 << 10
"""What a connection reads into; an idle one holds no slab."""
MEDIUM_BYTES: Final = 1 << 20
"""What a busy connection holds, before the margin: one or two of them stay in the cache of a core."""
MARGIN_BYTES: Final = 64 << 10
"""Beyond the largest frame, so that a frame and the beginning of the next fit."""
POOLED_MAX: Final = 32
"""Slabs kept for reuse, as many of each size,"""
POOLED_BYTES_MAX: Final = 32 << 20
"""and no more of it than this."""
BUSY_BYTES_MAX: Final = 64 << 20
"""Slabs above `SMALL_BYTES` that connections keep for speed, all together."""


def is_free(slab: bytearray) -> bool:
    """Whether no view of `slab` is alive."""
    try:
        slab.append(0)
    except BufferError:
        return False
    slab.pop()
    return True


class SlabPool:
    """Slabs of one loop."""

    def __init__(self, large_bytes: int) -> None:
        """Pool slabs of up to `large_bytes`."""
        self.large_bytes = large_bytes
        self.medium_bytes = min(MEDIUM_BYTES + MARGIN_BYTES, large_bytes)
        self._kept: dict[int, list[bytearray]] = {SMALL_BYTES: [], self.medium_bytes: [], large_bytes: []}
        self.busy_bytes = 0
        """Of slabs above `SMALL_BYTES` that connections have now."""

    @property
    def is_short(self) -> bool:
        """Whether connections keep as much as they may for speed."""
        return self.busy_bytes >= BUSY_BYTES_MAX

    def take(self, size_min: int) -> bytearray:
        """A slab of at least `size_min` bytes that nobody refers to."""
        if size_min <= SMALL_BYTES:
            return self._free(SMALL_BYTES)
        if size_min > self.large_bytes or self.is_short:
            slab = bytearray(size_min)
        else:
            slab = self._free(self.medium_bytes if size_min <= self.medium_bytes else self.large_bytes)
        self.busy_bytes += len(slab)
        return slab

    def _free(self, size: int) -> bytearray:
        kept = self._kept[size]
        for place in range(len(kept) - 1, -1, -1):  # The last one given is the nearest to the cache.
            if is_free(kept[place]):
                return kept.pop(place)
        return bytearray(size)

    def give(self, slab: bytearray) -> None:
        """Take `slab` back, and keep it for later; views of it may still be alive."""
        if len(slab) > SMALL_BYTES:
            self.busy_bytes -= len(slab)
        kept = self._kept.get(len(slab))
        if kept is not None and len(kept) < POOLED_MAX and len(kept) * len(slab) < POOLED_BYTES_MAX:
            kept.append(slab)
