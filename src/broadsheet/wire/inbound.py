"""Inbound: the receive buffer of one connection: where the next bytes go.

Bytes `[read, written)` of the slab were received and are not yet taken: the beginning of a torn frame. Once a
large frame has shown its length, the next read ends where the frame ends, so that its rest comes where it
belongs and nothing after it is torn; the read after it asks for as much again. Where views keep a slab, the
next frames go to another one. Whoever has taken everything gives the slab back (`rest`). It parses nothing,
and it never gives bytes out twice (ADR 0041).
Source: ADR 0045.
"""

from typing import Final

from broadsheet.wire.slab import SMALL_BYTES, SlabPool, is_free

LARGE_FRAME_BYTES: Final = 128 << 10
"""A torn frame of this size is read to its end alone; smaller ones are copied more cheaply than asked for."""
COPY_BYTES_MAX: Final = 128 << 10
"""Received payloads up to this size are copied where they outlive the read, so that they pin no slab."""
PINNED_MAX: Final = 8
"""Largest slabs that the views of one connection may pin; above, what outlives the read is copied."""

BUSY_READ_BYTES: Final = 16 << 10
CALM_RESTS: Final = 16
"""A slab above `SMALL_BYTES` is kept for speed until so many turns in a row had smaller reads than that."""

_NOTHING: Final = memoryview(b"")
_NONE: Final = bytearray()
"""Where a connection has no slab."""


class Inbound:
    """Slabs of one connection, one at a time, and none while nothing comes."""

    def __init__(self, pool: SlabPool) -> None:
        self.slab = _NONE
        self.view = _NOTHING
        self.read = self.written = 0
        self._pool = pool
        self._begin = self._expected = self._calm_rests = 0
        self._pinned: list[bytearray] = []
        self._pinned_bytes = 0

    def room(self) -> memoryview:
        """Where the next bytes go, where no frame is torn.

        Room is made here and not after a read: until then the loop itself holds a view of the slab.
        """
        if not self.slab:
            self._swap(SMALL_BYTES)
        elif self.written:
            if self.written - self._begin < self._expected:
                self._expected = 0  # Smaller frames come now.
            self._rewind()
        self._begin = self.written
        if self._expected:
            return self.view[self.written : self.written + self._expected]
        return self.view[self.written :]

    def remainder(self, wanted: int) -> memoryview:
        """Where the next bytes go, where the frame at `read` is torn and has `wanted` bytes when whole."""
        size, end = len(self.slab), self.read + wanted
        if wanted >= LARGE_FRAME_BYTES:
            if end > size:
                self._move(wanted)
            self._begin, self._expected = self.read, wanted
            return self.view[self.written : self.read + wanted]
        if end > size or (size - self.written) * 4 < size:
            self._move(wanted)
        return self.view[self.written :]

    def keep(self, view: memoryview) -> memoryview:
        """`view`, or a copy, for use beyond this read.

        What is small, or one too many, must not pin a slab.
        """
        if not len(view):
            return _NOTHING  # Even an empty view would.
        if len(view) <= COPY_BYTES_MAX or self._pinned_bytes >= PINNED_MAX * self._pool.large_bytes:
            return memoryview(bytes(view))
        return view

    def rest(self) -> None:
        """Give the slab back where everything was taken, unless much may come at once again.

        To be called while the loop itself holds no view of it.
        """
        if self.read != self.written or not self.slab:
            return
        self._calm_rests = 0 if self.written - self._begin >= BUSY_READ_BYTES else self._calm_rests + 1
        is_busy = len(self.slab) > SMALL_BYTES and self._calm_rests < CALM_RESTS and not self._pool.is_short
        self.view = _NOTHING
        if is_busy or not is_free(self.slab):
            self.view = memoryview(self.slab)  # What is referred to is gone on behind.
        else:
            self._give()

    def shrink(self) -> None:
        """Give the slab back: nothing has come into it for a while."""
        if self.read == self.written:
            self._give()

    def close(self) -> None:
        """Hold nothing any more: what refers to the connection may live for long."""
        self._give()
        self._pinned, self._pinned_bytes = [], 0

    def _give(self) -> None:
        """Have no slab."""
        slab, self.slab, self.view = self.slab, _NONE, _NOTHING
        self.read = self.written = self._begin = self._expected = 0
        self._pool.give(slab)

    def _rewind(self) -> None:
        """Everything was taken: begin at the front, go on behind what is referred to, or elsewhere."""
        size, written = len(self.slab), self.written
        if size <= SMALL_BYTES and written == size and not self._pool.is_short:
            self._swap(self._pool.medium_bytes)  # It came as fast as we took it.
            return
        self.view = _NOTHING
        if is_free(self.slab):
            self.read = self.written = 0
        elif written * 2 > size or size - written < self._expected:
            self._swap(SMALL_BYTES if self._pool.is_short else size)
            return
        self.view = memoryview(self.slab)

    def _move(self, wanted: int) -> None:
        """Have the torn frame in front of a slab of at least `wanted` bytes."""
        size, rest = len(self.slab), self.written - self.read
        if size <= SMALL_BYTES and not self._pool.is_short:
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
        """Go on in another slab, with what is torn."""
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
