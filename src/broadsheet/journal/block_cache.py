"""Block cache: checked pieces of stored fragments, kept for readers within one budget of bytes.

Lengths are bytes. A block is ABSENT --wanted--> FETCHING --came--> KEPT --pushed out--> ABSENT. Whoever wants
a block that is being fetched waits for that one call. What is on its way counts as what is kept does: whoever
fetches takes the bytes from the budget first, and waits until enough of what nobody uses has been pushed out.
So the number of readers does not change how much memory they hold. It does not know what a block is of.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple, Protocol


class Idle(Protocol):
    """Something that holds bytes, and that nobody uses now."""

    @property
    def size(self) -> int:
        """What it holds."""
        ...


class Budget:
    """Bytes that may be held at a time, and what of it can be pushed out."""

    def __init__(self, bytes_max: int) -> None:
        """Allow `bytes_max`."""
        self.bytes_max = bytes_max
        self.used = 0
        self._idle: dict[Hashable, Idle] = {}  # By last use.
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Take `size` bytes, in the order of asking. Whoever has taken some must not ask for more.

        Two who hold a part each, and wait for the rest, would wait for ever.
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
                self._waiting.remove((size, turn))
                self._admit()
            raise

    def give(self, size: int) -> None:
        """Give bytes back that were taken."""
        self.used -= size
        assert self.used >= 0, "gives what it took"
        self._admit()

    def put(self, key: Hashable, held: Idle) -> None:
        """Let `held`, whose bytes were taken, be pushed out when they are wanted."""
        assert key not in self._idle, f"{key} is held once"
        self._idle[key] = held
        self._admit()

    def use(self, key: Hashable) -> Idle | None:
        """What is held under `key`, used just now; it stays."""
        held = self._idle.pop(key, None)
        if held is not None:
            self._idle[key] = held
        return held

    def take_out(self, key: Hashable) -> Idle | None:
        """What is held under `key`; its bytes are the caller's from now on."""
        return self._idle.pop(key, None)

    def drop(self, is_doomed: Callable[[Hashable], bool]) -> None:
        """Push out everything whose key is doomed."""
        for key in [key for key in self._idle if is_doomed(key)]:
            self.used -= self._idle.pop(key).size
        self._admit()

    def check(self) -> None:
        """Assert the invariants."""
        assert sum(held.size for held in self._idle.values()) <= self.used, "what is idle was taken"
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
    """Checked content."""

    content: bytes

    @property
    def size(self) -> int:
        """Its bytes."""
        return len(self.content)


class Flights:
    """Calls that several want the result of, each made once at a time."""

    def __init__(self) -> None:
        """None is on its way."""
        self._flying: dict[Hashable, asyncio.Future[object]] = {}

    async def join(self, key: Hashable, fetch: Callable[[], Awaitable[object]]) -> object:
        """What `fetch` returns, called here or by whoever is at it already.

        One that is cancelled, or fails, does so for itself: the next one calls again.
        """
        while (other := self._flying.get(key)) is not None:
            try:
                return await asyncio.shield(other)
            except asyncio.CancelledError:
                if not other.cancelled():
                    raise
        mine: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._flying[key] = mine
        try:
            found = await fetch()
        except BaseException:
            mine.cancel()
            raise
        else:
            mine.set_result(found)
            return found
        finally:
            del self._flying[key]
