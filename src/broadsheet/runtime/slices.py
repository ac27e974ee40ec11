"""Slices: callbacks that are called in order, some of them in each turn of the loop.

    QUIET --add--> a slice is called --some are left--> BUSY --a slice in each later turn--> QUIET
    QUIET --add, not prompt--> BUSY

One caller may have 8,000 requests or waiting tasks, and to end one, or to let it go on, takes some 20 us: all
in one turn would hold the loop for 0.15 s. So the calls of one turn are limited in number, and in time where
a clock is given. What is added meanwhile is called behind what waits. Source: wire.5; log.2; ADR 0033.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from broadsheet.base.time import MILLISECOND, Duration, Instant, after

COUNT_MAX: Final = 128
"""Calls of one turn: the turn costs little beside them."""
TIME_MAX: Final = Duration(2 * MILLISECOND)
"""Time for the calls of one turn, however much work they do: other tasks share the loop."""
LOOKS_EVERY: Final = 8
"""Calls between two looks at the clock."""

Call = Callable[[], None]


class Slices:
    """The callbacks that wait to be called."""

    __slots__ = ("_count_max", "_is_busy", "_is_prompt", "_later", "_now", "_waiting")

    def __init__(
        self,
        count_max: int = COUNT_MAX,
        *,
        now: Callable[[], Instant] = lambda: Instant(0),
        later: Callable[[Call], object] | None = None,
        is_prompt: bool = True,
    ) -> None:
        """Begin QUIET, without a callback that waits.

        Args:
            count_max: calls of one turn.
            now: the clock; without one only their number limits the calls.
            later: calls in a later turn; by default the loop's `call_soon`.
            is_prompt: whether `add` calls the first ones; many that add in one turn have a slice each then.
        """
        self._count_max, self._now, self._later, self._is_prompt = count_max, now, later, is_prompt
        self._waiting: deque[Call] = deque()
        self._is_busy = False

    @property
    def is_quiet(self) -> bool:
        """Whether every callback was called."""
        return not self._waiting and not self._is_busy

    def add(self, calls: Iterable[Call]) -> None:
        """Call the callbacks `calls`, behind those that wait."""
        self._waiting.extend(calls)
        if self._is_busy:
            return
        if self._is_prompt:
            self._call_some()
        else:
            self._go_on_later()

    def forget(self) -> None:
        """Drop what was not called."""
        self._waiting.clear()

    def check(self) -> None:
        """Assert the invariants."""
        assert self._is_busy or not self._waiting, "callbacks wait, and no later turn is asked for"

    def _call_some(self) -> None:
        self._is_busy = True  # A callback may add others.
        ends = after(self._now(), TIME_MAX)
        try:
            for count in range(1, self._count_max + 1):
                if not self._waiting:  # A callback may have called `forget`.
                    break
                self._waiting.popleft()()
                if not count % LOOKS_EVERY and self._now() >= ends:
                    break
        finally:  # A callback that raises is a bug; the others must not wait for ever because of it.
            self._go_on_later()

    def _go_on_later(self) -> None:
        self._is_busy = bool(self._waiting)
        if self._is_busy:
            (self._later or asyncio.get_running_loop().call_soon)(self._call_some)
