"""Opening turns: the order in which waiting journals are opened: requested ones first, then the rest.

WAITING --hastened--> WAITING in front --given--> HAS A TURN --done--> gone. So a requested journal is usable
soon, however many others a start has to open.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class OpeningTurns:
    """Turns in which journals are opened, `count_max` at a time."""

    def __init__(self, count_max: int) -> None:
        """Start with all turns free."""
        self._free = count_max
        self._waiting: dict[Hashable, asyncio.Future[None]] = {}
        self._wanted: dict[Hashable, None] = {}

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[None]:
        """Wait for a turn; it passes to the next waiter at the end of the block."""
        await self._take(key)
        try:
            yield
        finally:
            self._give()

    def hasten(self, key: Hashable) -> None:
        """Move `key` to the front, behind those that were hastened before: a request waits for it."""
        if key in self._waiting:
            self._wanted[key] = None

    async def _take(self, key: Hashable) -> None:
        assert key not in self._waiting, f"{key} waits once"
        if self._free:
            self._free -= 1
            return
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[key] = given
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self._give()
            raise
        finally:
            if self._waiting.get(key) is given:
                del self._waiting[key]
            self._wanted.pop(key, None)

    def _give(self) -> None:
        while self._waiting:
            key = next(iter(self._wanted), None)
            if key is None:
                key = next(iter(self._waiting))
            self._wanted.pop(key, None)
            given = self._waiting.pop(key, None)
            if given is not None and not given.done():
                given.set_result(None)
                return
        self._free += 1
