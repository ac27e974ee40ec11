"""Stream slots: the requests of a caller's connection that wait for a stream, or for the socket to take more.

First come, first served. A request that gives up was not sent, for sure.
"""

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from broadsheet.base.time import Duration, Instant
from broadsheet.errors import Unreachable

if TYPE_CHECKING:
    from broadsheet.wire.client import ClientConnection

WAITING_MAX: Final = 65_536
"""Requests of one connection that wait for a stream."""


class StreamSlots:
    """A queue for streams."""

    def __init__(self, connection: "ClientConnection") -> None:
        self._connection = connection
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __bool__(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiters)

    async def turn(self, began: Instant, timeout: Duration) -> None:
        """Wait until a stream may be opened and the socket takes more.

        Raises:
            Unreachable: too many wait, or it took longer than `timeout`. Nothing was sent.
        """
        connection = self._connection
        address, ports = connection.address, connection.ports
        while not connection.may_begin():
            connection.raise_if_unusable()
            if len(self._waiters) >= WAITING_MAX:
                raise Unreachable(f"{WAITING_MAX} requests wait for a stream to {address} already")
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            left = Duration(max(0, timeout - (ports.time.now() - began)))
            timer = ports.timers.call_after(left, partial(self._give_up, waiter))
            try:
                await waiter
            except BaseException:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                self.wake()  # We may have been woken and leave: the next one's turn.
                raise
            finally:
                timer.cancel()

    def wake(self) -> None:
        """Let the first one go on, where there is room; all, where there will never be."""
        is_done_for = not self._connection.is_usable
        while self._waiters and (is_done_for or self._connection.may_begin()):
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                if not is_done_for:
                    return

    def _give_up(self, waiter: "asyncio.Future[None]") -> None:
        if not waiter.done():
            address = self._connection.address
            waiter.set_exception(Unreachable(f"no stream to {address} came free in time: nothing was sent"))
