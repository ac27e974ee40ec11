"""Acknowledgements: those who wait for what is durable by now, told in order, some of them in each turn.

QUIET --add, tell--> TELLING --all told--> QUIET. A slice ends by number, and by time. What those who were
told append next is on its way to the disk while the others are being told, so that with many writers neither
the loop nor the disk waits for the other. It does not know what is durable. Source: log.2, ADR 0033.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from broadsheet.base.time import MILLISECOND, Duration, after
from broadsheet.ports import Time

TOLD_PER_TURN: Final = 128
"""Enough that a turn costs little beside them, few enough that the disk does not wait long."""
TELL_TIME_MAX: Final = Duration(2 * MILLISECOND)
"""And no longer than this in a turn, whatever those who are told do then: others share the loop."""
TOLD_AT_ONCE: Final = 8
"""Between two looks at the clock."""


class Acknowledgements:
    """One log's."""

    def __init__(self, time: Time) -> None:
        """Nobody waits."""
        self._now = time.now
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_telling = False

    @property
    def is_quiet(self) -> bool:
        """Whether everyone was told."""
        return not self._waiting and not self._is_telling

    def add(self, waiting: Iterable[Callable[[], None]]) -> None:
        """They may be told, after those who wait already."""
        self._waiting.extend(waiting)

    def forget(self) -> None:
        """The process is ending, and promises nothing more."""
        self._waiting.clear()

    def tell(self) -> bool:
        """Tell as many as a turn allows, unless somebody is telling; whether `tell_the_rest` must follow."""
        if not self._is_telling:
            self._tell_some()
            return bool(self._waiting)
        return False

    async def tell_the_rest(self) -> None:
        """Tell everyone who waits, in later turns."""
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
            if not self._waiting:  # One who is told may end the log, too.
                return
            if count and not count % TOLD_AT_ONCE and self._now() >= ends:
                return
            self._waiting.popleft()()
