"""Waiting line: tasks that wait for the same event, and go on a few in each turn of the loop.

One caller may have 8,000 tasks. If an event let all of them go on at once, they would hold the loop for 0.1 s
and more. Those that wait when `wake` is called go on, in order; those that come later wait for the next call.
Nothing but the waiting tasks is kept: a task that is cancelled leaves the line.
"""

import asyncio
from itertools import islice
from typing import Final

WOKEN_MAX: Final = 32
"""Tasks of one line that go on in one turn."""


class WaitingLine:
    """Tasks that wait."""

    __slots__ = ("_is_waking", "_waiting", "_woken")

    def __init__(self) -> None:
        """Begin with nobody."""
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._woken: dict[asyncio.Future[None], None] = {}
        """Those that go on in one of the next turns."""
        self._is_waking = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting) + len(self._woken)

    async def wait(self) -> None:
        """Return some time after the next call of `wake`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)
            self._woken.pop(waiter, None)

    def wake(self) -> None:
        """Let those that wait go on."""
        self._woken.update(self._waiting)
        self._waiting = {}
        if not self._is_waking:
            self._wake_some()

    def _wake_some(self) -> None:
        for waiter in list(islice(self._woken, WOKEN_MAX)):
            del self._woken[waiter]
            if not waiter.done():
                waiter.set_result(None)
        self._is_waking = bool(self._woken)
        if self._is_waking:
            asyncio.get_running_loop().call_soon(self._wake_some)
