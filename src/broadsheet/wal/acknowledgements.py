"""Acknowledgements: the callbacks of durable records, called in order, some of them in each turn.

QUIET --add, tell--> TELLING --all told--> QUIET. The calls of one turn are limited in number and in time. A
caller that was told can append again, and its record goes to the disk while the other callers are being told.
So with many writers neither the loop nor the disk waits for the other. This module does not decide what is
durable. Source: log.2, ADR 0033.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from broadsheet.base.time import MILLISECOND, Duration, after
from broadsheet.ports import Time

TOLD_PER_TURN: Final = 128
"""Callbacks of one turn: enough that a turn costs little beside them, few enough that the disk goes on."""
TELL_TIME_MAX: Final = Duration(2 * MILLISECOND)
"""Time for callbacks in one turn, however much work they do: other tasks share the loop."""
TOLD_AT_ONCE: Final = 8
"""Callbacks between two looks at the clock."""


class Acknowledgements:
    """The waiting callbacks of one log."""

    def __init__(self, time: Time) -> None:
        """Begin with no callback."""
        self._now = time.now
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_telling = False

    @property
    def is_quiet(self) -> bool:
        """Whether every callback was called."""
        return not self._waiting and not self._is_telling

    def add(self, waiting: Iterable[Callable[[], None]]) -> None:
        """Queue callbacks of records that are durable now, behind those that wait already."""
        self._waiting.extend(waiting)

    def forget(self) -> None:
        """Drop all callbacks: the process is ending, and must acknowledge nothing more."""
        self._waiting.clear()

    def tell(self) -> bool:
        """Call as many callbacks as one turn allows, unless `tell_the_rest` is running.

        Returns:
            Whether callbacks are left, so that the caller must start `tell_the_rest`.
        """
        if not self._is_telling:
            self._tell_some()
            return bool(self._waiting)
        return False

    async def tell_the_rest(self) -> None:
        """Call every waiting callback, in later turns."""
        self._is_telling = True
        try:
            while self._waiting:
                await asyncio.sleep(0)
                self._tell_some()
        finally:
            self._is_telling = False

    def _tell_some(self) -> None:
        ends = after(self._now(), TELL_TIME_MAX)
        for count in range(TOLD_PER_TURN):
            if not self._waiting:  # A callback may end the log, which clears the queue.
                return
            if count and not count % TOLD_AT_ONCE and self._now() >= ends:
                return
            self._waiting.popleft()()
