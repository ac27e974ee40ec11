"""Inbound: the receive buffer of one connection, which says where the next bytes go.

Bytes `[read, written)` of the slab were received and are not taken yet: they are the beginning of a torn
frame. When the length of a large frame is known, the next read ends where the frame ends, so that the rest of
the frame follows its beginning, and the frame after it is not torn. The read after that asks for as much
again. If views pin a slab, the next frames go to another slab. When all bytes are taken, the slab is given
back (`release_buffer`), unless the connection is busy. This module parses nothing, and never gives bytes out
twice (ADR 0041). Source: ADR 0045.
"""

from typing import Final

from broadsheet.wire.slab import SMALL_BYTES, TINY_BYTES, SlabPool, is_free

LARGE_FRAME_BYTES: Final = 128 << 10
"""A torn frame of this size or more gets a read of its own. For a smaller one a copy is cheaper."""
COPY_BYTES_MAX: Final = 128 << 10
"""Payloads up to this size are copied if they outlive the read, so that they pin no slab."""
PINNED_MAX: Final = 8
"""Views of one connection may pin the bytes of so many largest slabs; above this, payloads are copied."""
PINNED_RATIO: Final = 8
"""A view may pin a slab of up to so many times its size; if the slab is larger, the payload is copied."""

BUSY_READ_BYTES: Final = 16 << 10
CALM_RESTS: Final = 16
"""A slab above `SMALL_BYTES` is kept for speed until so many turns in a row read less than that."""

_NOTHING: Final = memoryview(b"")
_NONE: Final = bytearray()
"""The slab of a connection that has none."""


class Inbound:
    """The slabs of one connection: one at a time, and none while no bytes come."""

    def __init__(self, pool: SlabPool) -> None:
        self.slab = _NONE
        self.view = _NOTHING
        self.read = self.written = 0
        self._pool = pool
        self._begin = self._expected = self._calm_rests = 0
        self._first_bytes = SMALL_BYTES
        """The size of the next slab: tiny if the last one had few bytes when it was given back.

        The first slab is not tiny: a stranger is not told why it is refused if some of its bytes are unread.
        """
        self._pinned: list[bytearray] = []
        self._pinned_bytes = 0

    def room(self) -> memoryview:
        """Where a connection's next bytes go if no frame is torn.

        Room is made here and not after a read, because during a read the loop itself holds a view of the
        slab.
        """
        if not self.slab:
            self._swap(self._first_bytes)
        elif self.written:
            if self.written - self._begin < self._expected:
                self._expected = 0  # Smaller frames come now.
            self._rewind()
        self._begin = self.written
        if self._expected:
            return self.view[self.written : self.written + self._expected]
        return self.view[self.written :]

    def remainder(self, wanted: int) -> memoryview:
        """Where the next bytes go if the frame at `read` is torn; the whole frame has `wanted` bytes."""
        size, end = len(self.slab), self.read + wanted
        if wanted >= LARGE_FRAME_BYTES:
            if end > size:
                self._move(wanted)
            self._begin, self._expected = self.read, wanted
            return self.view[self.written : self.read + wanted]
        if end > size or (size - self.written) * 4 < size:
            self._move(wanted)
        return self.view[self.written :]

    def keep(self, view: memoryview, *, copy_bytes_max: int = COPY_BYTES_MAX) -> memoryview:
        """`view` of received bytes, or a copy of it, for use after this read.

        Payloads are copied if they are small, by themselves or compared with their slab, and so are all
        others while the connection pins too many bytes.
        """
        size = len(view)
        if not size:
            return _NOTHING  # Even an empty view would pin the slab.
        is_small = size <= copy_bytes_max or size * PINNED_RATIO < len(self.slab)
        if is_small or self._pinned_bytes >= PINNED_MAX * self._pool.large_bytes:
            return memoryview(bytes(view))
        return view

    def release_buffer(self) -> None:
        """Give the slab back if all bytes are taken, unless the connection is busy.

        Call this only while the loop itself holds no view of the slab.
        """
        if self.read != self.written or not self.slab:
            return
        self._calm_rests = 0 if self.written - self._begin >= BUSY_READ_BYTES else self._calm_rests + 1
        is_busy = len(self.slab) > SMALL_BYTES and self._calm_rests < CALM_RESTS and not self._pool.is_short
        self.view = _NOTHING
        if is_busy or not is_free(self.slab):
            self.view = memoryview(self.slab)  # Live views pin its beginning; the next bytes go behind them.
        else:
            self._first_bytes = TINY_BYTES if self.written <= TINY_BYTES else SMALL_BYTES
            self._give()

    def shrink(self) -> None:
        """Give the slab back after a time without bytes."""
        if self.read == self.written:
            self._give()

    def close(self) -> None:
        """Release all buffers: objects that refer to the connection may live long."""
        self._give()
        self._pinned, self._pinned_bytes = [], 0

    def _give(self) -> None:
        slab, self.slab, self.view = self.slab, _NONE, _NOTHING
        self.read = self.written = self._begin = self._expected = 0
        self._pool.give(slab)

    def _rewind(self) -> None:
        """Go on receiving after all bytes were taken: at the front, behind live views, or in a new slab."""
        size, written = len(self.slab), self.written
        if written == size:  # The read filled the slab: a larger one saves calls.
            if size < SMALL_BYTES:
                self._swap(SMALL_BYTES)
                return
            if size == SMALL_BYTES and not self._pool.is_short:
                self._swap(self._pool.medium_bytes)
                return
        self.view = _NOTHING
        if is_free(self.slab):
            self.read = self.written = 0
        elif written * 2 > size or size - written < self._expected:
            self._swap(min(size, SMALL_BYTES) if self._pool.is_short else size)
            return
        self.view = memoryview(self.slab)

    def _move(self, wanted: int) -> None:
        """Move the torn frame to the front of a slab of at least `wanted` bytes."""
        size, rest = len(self.slab), self.written - self.read
        if size < SMALL_BYTES and wanted <= SMALL_BYTES:
            size = SMALL_BYTES
        elif size <= SMALL_BYTES and not self._pool.is_short:
            size = self._pool.medium_bytes
        size = max(size, wanted)
        self.view = _NOTHING
        if size == len(self.slab) and is_free(self.slab):
            self.view = memoryview(self.slab)
            self.view[:rest] = self.view[self.read : self.written]
            self.read, self.written = 0, rest
        else:
            self._swap(size)

    def _swap(self, size: int) -> None:
        """Go on in another slab, and copy the torn frame there."""
        old, rest = self.slab, self.written - self.read
        self.view = _NOTHING
        self.slab = self._pool.take(size)
        self.view = memoryview(self.slab)
        if rest:
            self.view[:rest] = memoryview(old)[self.read : self.written]
        self.read, self.written = 0, rest
        self._pinned = [slab for slab in self._pinned if not is_free(slab)]
        if not is_free(old):
            self._pinned.append(old)
        self._pinned_bytes = sum([len(slab) for slab in self._pinned])
        self._pool.give(old)
