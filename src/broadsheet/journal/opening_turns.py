"""Opening turns: who is opened next where thousands wait: what somebody asks for, then the rest in order.

WAITING --hastened--> WAITING in front --given--> HAS A TURN --done--> gone. So a journal that is asked for is
usable at once, however many others a start has to open.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class Turns:
    """`count_max` turns at a time."""

    def __init__(self, count_max: int) -> None:
        """Give all of them."""
        self._free = count_max
        self._waiting: dict[Hashable, asyncio.Future[None]] = {}
        self._wanted: dict[Hashable, None] = {}

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[None]:
        """Wait for a turn, and give it on when leaving."""
        await self._take(key)
        try:
            yield
        finally:
            self._give()

    def hasten(self, key: Hashable) -> None:
        """Somebody waits for `key`: it is next, behind those that were hastened before."""
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
