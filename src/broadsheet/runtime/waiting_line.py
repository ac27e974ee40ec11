"""Waiting line: tasks that wait for the same event, and go on a few in each turn of the loop.

Those that wait when `wake` is called go on, in order; those that come later wait for the next call. Nothing
but the waiting tasks is kept: a task that is cancelled leaves the line.
"""

import asyncio
from functools import partial
from typing import Final

from broadsheet.runtime.slices import Slices

WOKEN_MAX: Final = 32
"""Tasks of one line that go on in one turn."""


class WaitingLine:
    """Tasks that wait for one event, and go on a few in each turn."""

    __slots__ = ("_waiting", "_woken")

    def __init__(self) -> None:
        """Begin with nobody."""
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._woken = Slices(WOKEN_MAX)

    async def wait(self) -> None:
        """Return some time after the next call of `wake`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)

    def wake(self) -> None:
        """Let those that wait go on."""
        if woken := self._waiting:
            self._waiting = {}
            self._woken.add(partial(_go_on, waiter) for waiter in woken)


def _go_on(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():  # It may have been cancelled.
        waiter.set_result(None)
