"""Slab: a receive buffer that is used again once nobody refers to what was received into it.

Views into a slab keep it out of circulation by themselves: the interpreter counts the exports of a
`bytearray`, and a slab with exports cannot be resized, which is how `is_free` asks. So no view ever shows
other bytes later, whoever keeps it and however long; forgetting to release costs memory, never correctness
(ADR 0041).
"""

from typing import Final

SMALL_BYTES: Final = 64 << 10
"""What an idle connection holds."""
MEDIUM_BYTES: Final = 1 << 20
"""What a busy connection holds, before the margin: one or two of them stay in the cache of a core."""
MARGIN_BYTES: Final = 64 << 10
"""Beyond the largest frame, so that a frame and the beginning of the next fit."""
POOLED_MAX: Final = 32
"""Slabs kept for reuse, as many of each size."""


def is_free(slab: bytearray) -> bool:
    """Whether no view of `slab` is alive."""
    try:
        slab.append(0)
    except BufferError:
        return False
    slab.pop()
    return True


class SlabPool:
    """Medium and large slabs of one loop."""

    def __init__(self, large_bytes: int) -> None:
        """Pool slabs of up to `large_bytes`."""
        self.large_bytes = large_bytes
        self.medium_bytes = min(MEDIUM_BYTES + MARGIN_BYTES, large_bytes)
        self._kept: dict[int, list[bytearray]] = {self.medium_bytes: [], large_bytes: []}

    def take(self, size_min: int) -> bytearray:
        """A slab of at least `size_min` bytes that nobody refers to."""
        if size_min <= SMALL_BYTES:
            return bytearray(SMALL_BYTES)
        if size_min > self.large_bytes:
            return bytearray(size_min)
        size = self.medium_bytes if size_min <= self.medium_bytes else self.large_bytes
        kept = self._kept[size]
        for place in range(len(kept) - 1, -1, -1):  # The last one given is the nearest to the cache.
            if is_free(kept[place]):
                return kept.pop(place)
        return bytearray(size)

    def give(self, slab: bytearray) -> None:
        """Keep `slab` for later; views of it may still be alive."""
        kept = self._kept.get(len(slab))
        if kept is not None and len(kept) < POOLED_MAX:
            kept.append(slab)
