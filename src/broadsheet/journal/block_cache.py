"""Block cache: checked pieces of stored fragments, kept for readers within one budget of bytes.

Lengths are bytes. A block is ABSENT --wanted--> FETCHING --fetched--> KEPT --evicted--> ABSENT. Several
readers of one block share one fetch. A fetch takes the bytes of its block from the budget before it begins,
and waits until enough unused blocks have been evicted. So readers hold no more memory than the budget,
however many they are. The cache does not know from which fragment a block comes.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple, Protocol

from broadsheet.runtime.waiting_line import WaitingLine


class Idle(Protocol):
    """A holder of bytes of the cache's budget that is not in use now, and may be evicted."""

    @property
    def size(self) -> int:
        """The bytes that it holds."""
        ...


class Budget:
    """A bound of readers' bytes in memory, with the idle holders that can be evicted to make room."""

    def __init__(self, bytes_max: int) -> None:
        """Allow `bytes_max`."""
        self.bytes_max = bytes_max
        self.used = 0
        self._idle: dict[Hashable, Idle] = {}  # By last use.
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Take `size` bytes of the cache's budget; callers are served in the order of asking.

        A caller that holds bytes must not take more: two that each hold a part and wait for the rest would
        wait for ever.
        """
        assert size <= self.bytes_max, f"{size} bytes of {self.bytes_max}"
        if not self._waiting and self._make_room(size):
            self.used += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(size)
            else:
                if (size, turn) in self._waiting:  # `_admit` may have passed it over in the same turn.
                    self._waiting.remove((size, turn))
                self._admit()
            raise

    def give(self, size: int) -> None:
        """Give back bytes that were taken."""
        self.used -= size
        assert self.used >= 0, "gives what it took"
        self._admit()

    def put(self, key: Hashable, held: Idle) -> None:
        """Keep `held`, whose bytes were taken, until they are needed elsewhere."""
        assert key not in self._idle, f"{key} is held once"
        self._idle[key] = held
        self._admit()

    def use(self, key: Hashable) -> Idle | None:
        """The holder under `key`, which now counts as the most lately used; None if it is absent."""
        held = self._idle.pop(key, None)
        if held is not None:
            self._idle[key] = held
        return held

    def take_out(self, key: Hashable) -> Idle | None:
        """Take out the holder under `key`; the caller must give its bytes back. None if it is absent."""
        return self._idle.pop(key, None)

    def drop(self, is_doomed: Callable[[Hashable], bool]) -> None:
        """Evict every idle holder whose key is doomed."""
        for key in [key for key in self._idle if is_doomed(key)]:
            self.used -= self._idle.pop(key).size
        self._admit()

    def check(self) -> None:
        """Assert the invariants."""
        assert sum(held.size for held in self._idle.values()) <= self.used, "idle bytes were taken"
        assert self.used <= self.bytes_max, "within the budget"

    def _make_room(self, size: int) -> bool:
        while self.used + size > self.bytes_max and self._idle:
            oldest = next(iter(self._idle))
            self.used -= self._idle.pop(oldest).size
        return self.used + size <= self.bytes_max

    def _admit(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not self._make_room(size):
                return
            self._waiting.popleft()
            if not turn.done():
                self.used += size
                turn.set_result(None)


class Block(NamedTuple):
    """Checked content of a stored fragment."""

    content: bytes

    @property
    def size(self) -> int:
        """The length of the content."""
        return len(self.content)


class Flights:
    """Fetches whose result several readers want; of each key only one is under way at a time."""

    def __init__(self) -> None:
        """Start with no call under way."""
        self._flying: dict[Hashable, _Flight] = {}

    async def join(self, key: Hashable, fetch: Callable[[], Awaitable[object]]) -> object:
        """The result of `fetch`; a caller that finds such a fetch under way waits for that one instead.

        A call that fails or is cancelled fails only for its own caller: one of the others calls again.
        """
        while (other := self._flying.get(key)) is not None:
            await other.others.wait()
            if other.landed is not None:
                return other.landed[0]
        mine = self._flying[key] = _Flight()
        try:
            mine.landed = (await fetch(),)
            return mine.landed[0]
        finally:
            del self._flying[key]
            mine.others.wake()


class _Flight:
    """One fetch, and those that wait for it."""

    __slots__ = ("landed", "others")

    def __init__(self) -> None:
        self.landed: tuple[object] | None = None
        """The result; None if the call has not ended, has failed or was cancelled."""
        self.others = WaitingLine()
