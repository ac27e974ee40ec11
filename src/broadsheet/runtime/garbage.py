"""Garbage: when the interpreter looks for garbage in cycles, so that it never holds the loop for long.

The collector's last generation holds all long-lived objects: modules, journals, connections. A walk of it
takes a tenth of a second for a small node and more for each thousand journals, and stops every thread. By
itself, the interpreter walks it whenever many requests are in flight. So long-lived objects are frozen: they
are not walked, and only their reference counts free them. Sizes are in blocks, as `sys.getallocatedblocks`
counts them; an object that could be in a cycle has four or five blocks.

    while a node starts: nothing is walked, for what it reads and makes stays
    walked by itself: the two young generations, which are small
    grown by `STEP_BLOCKS`: what is not frozen is walked once, and frozen
    grown by half since everything was walked, and a minute ago at least: everything is walked, for cycles
                                               among what was frozen

So garbage in cycles never exceeds half of the heap, and the number of whole walks is a logarithm of the
growth. The collector is the process's, so the command that owns the process makes one `Heap`. Source: ADR
0153.
"""

import gc
import sys
from typing import Final

from broadsheet.base.time import SECOND, Duration
from broadsheet.ports import Timer, Timers

YOUNG_OBJECTS: Final = 5_000
"""New objects, less those that are gone, between two walks of the youngest generation."""
YOUNG_WALKS: Final = 5
"""Walks of the youngest generation to one of the middle one."""
NEVER: Final = 1 << 30
"""Walks of the middle generation to one of the last, by the interpreter itself."""
STEP_BLOCKS: Final = 50_000
"""Growth after which what is new is walked and frozen: about five milliseconds."""
INTERVAL: Final = Duration(SECOND // 20)
"""How often the growth is looked at, for some ten microseconds. In half a second 8,000 streams may be opened,
and a walk of what is new took 60 ms."""
WHOLE_LOOKS_MIN: Final = 1200
"""Looks, a minute of them, between two walks of everything: a node that opens ten thousand journals grows by
half again and again, and each walk holds it for a tenth of a second and more."""


class Heap:
    """The garbage collector of this process, until `close`."""

    def __init__(self, timers: Timers, *, interval: Duration = INTERVAL) -> None:
        """Garbage collection changes only after `hold` or `start`."""
        self._timers, self._interval = timers, interval
        self._before = gc.get_threshold()
        self._whole = self._seen = 0
        """Blocks when everything was walked, and when the growth was last acted on."""
        self._looks = 0
        """Since everything was walked."""
        self._timer: Timer | None = None

    def hold(self) -> None:
        """Walk nothing until `start`: a start makes a million objects, and they stay."""
        gc.disable()

    def start(self) -> None:
        """Freeze the present objects, and stop the interpreter's own walks of the last generation."""
        gc.enable()
        gc.set_threshold(YOUNG_OBJECTS, YOUNG_WALKS, NEVER)
        self.settle()
        self._arm()

    def settle(self) -> None:
        """Freeze the objects of a node that is ready, and count its growth from here."""
        gc.freeze()
        self._whole = self._seen = sys.getallocatedblocks()

    def look(self) -> None:
        """Act on the growth of the heap since the last look."""
        self._looks += 1
        blocks = sys.getallocatedblocks()
        if blocks - self._seen < STEP_BLOCKS:
            self._seen = min(self._seen, blocks)  # Growth counts from the smallest size.
            return
        is_whole = self._looks >= WHOLE_LOOKS_MIN and blocks >= self._whole + self._whole // 2
        if is_whole:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._seen = sys.getallocatedblocks()
        if is_whole:
            self._whole, self._looks = self._seen, 0

    def close(self) -> None:
        """Let the interpreter decide again. Idempotent."""
        gc.enable()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.set_threshold(*self._before)
            gc.unfreeze()

    def _arm(self) -> None:
        self._timer = self._timers.call_after(self._interval, self._fire)

    def _fire(self) -> None:
        self.look()
        self._arm()
