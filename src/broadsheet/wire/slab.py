"""Slab: a receive buffer that is used again once nobody refers to what was received into it.

Views into a slab keep it out of circulation by themselves: the interpreter counts the exports of a
`bytearray`, and a slab with exports cannot be resized, which is how `is_free` asks. So no view ever shows
other bytes later, whoever keeps it and however long; forgetting to release costs memory, never correctness
(ADR 0041).
"""

from typing import Final

SMALL_BYTES: Final = 64 << 10
"""What an idle connection holds."""
MARGIN_BYTES: Final = 64 << 10
"""Beyond the largest frame, so that a frame and the beginning of the next fit."""
POOLED_MAX: Final = 32
"""Slabs kept for reuse."""


def is_free(slab: bytearray) -> bool:
    """Whether no view of `slab` is alive."""
    try:
        slab.append(0)
    except BufferError:
        return False
    slab.pop()
    return True


class SlabPool:
    """Large slabs of one loop."""

    def __init__(self, large_bytes: int) -> None:
        """Pool slabs of `large_bytes`."""
        self.large_bytes = large_bytes
        self._kept: list[bytearray] = []

    def take(self, size_min: int) -> bytearray:
        """A slab of at least `size_min` bytes that nobody refers to."""
        if size_min <= SMALL_BYTES:
            return bytearray(SMALL_BYTES)
        if size_min > self.large_bytes:
            return bytearray(size_min)
        for place, slab in enumerate(self._kept):
            if is_free(slab):
                return self._kept.pop(place)
        return bytearray(self.large_bytes)

    def give(self, slab: bytearray) -> None:
        """Keep `slab` for later; views of it may still be alive."""
        if len(slab) == self.large_bytes and len(self._kept) < POOLED_MAX:
            self._kept.append(slab)
