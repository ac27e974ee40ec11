"""Slab: a receive buffer that is used again when no view of its bytes is alive.

A connection has a slab only while bytes come: an idle connection holds none. Slabs above `SMALL_BYTES` that
connections keep for speed are bounded together (`BUSY_BYTES_MAX`); above that bound, a connection gets only
what the frame that has begun needs. A slab with live views is not used again: the interpreter counts the
exports of a `bytearray` and refuses to resize one that has any, and `is_free` tests this. So a view never
shows other bytes later, however long it is kept. A view that is kept too long costs memory, never correctness
(ADR 0041).
"""

from typing import Final

TINY_BYTES: Final = 4 << 10
"""The slab of a connection that read no more than this the last time. Hundreds may have bytes in the same
turn, and the system took 70 us to give a slab of `SMALL_BYTES` its pages."""
SMALL_BYTES: Final = 64 << 10
"""The slab of a connection that reads little."""
MEDIUM_BYTES: Final = 1 << 20
"""The slab of a busy connection, without the margin: one or two of them fit into the cache of a core."""
MARGIN_BYTES: Final = 64 << 10
"""Added to the largest frame, so that a frame and the beginning of the next one fit."""
POOLED_MAX: Final = 32
"""Slabs of each size that are kept for reuse, at most."""
POOLED_BYTES_MAX: Final = 32 << 20
"""Bytes of slabs of each size that are kept for reuse, at most."""
BUSY_BYTES_MAX: Final = 64 << 20
"""Bytes of slabs above `SMALL_BYTES` that all connections together keep for speed."""


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
        self._kept: dict[int, list[bytearray]] = {
            TINY_BYTES: [], SMALL_BYTES: [], self.medium_bytes: [], large_bytes: [],
        }  # fmt: skip
        self.busy_bytes = 0
        """Bytes of the slabs above `SMALL_BYTES` that connections have now."""

    @property
    def is_short(self) -> bool:
        """Whether connections keep as many bytes as they may for speed."""
        return self.busy_bytes >= BUSY_BYTES_MAX

    def take(self, size_min: int) -> bytearray:
        """A slab of at least `size_min` bytes without live views."""
        if size_min <= SMALL_BYTES:
            return self._free(TINY_BYTES if size_min <= TINY_BYTES else SMALL_BYTES)
        if size_min > self.large_bytes or self.is_short:
            slab = bytearray(size_min)
        else:
            slab = self._free(self.medium_bytes if size_min <= self.medium_bytes else self.large_bytes)
        self.busy_bytes += len(slab)
        return slab

    def _free(self, size: int) -> bytearray:
        kept = self._kept[size]
        for place in range(len(kept) - 1, -1, -1):  # The last one given back may still be in the cache.
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
