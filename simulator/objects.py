"""The simulated object store: immutable objects that survive every process, and answer when they please.

A put that is cut short by the end of its caller's life may have been stored or not. Sizes are bytes. Errors
come from the `Health` that it is given: a full store refuses, a sick read fails.
"""

import asyncio
import errno
from collections.abc import Iterable, Sequence

import msgspec

from broadsheet.base.buggify import buggify
from broadsheet.base.time import WallTime
from broadsheet.base.types import Buffer
from simulator.entropy import Draws
from simulator.health import Health
from simulator.moments import Gone
from simulator.world import Life, World


class SimObject(msgspec.Struct, frozen=True):
    """What a listing says."""

    name: str
    size_bytes: int
    modified: WallTime


class ObjectShelf:
    """The objects of one store, across lives."""

    def __init__(self, draws: Draws, health: Health) -> None:
        self.draws, self.health = draws, health
        self.objects: dict[str, tuple[bytes, WallTime]] = {}


class SimObjects:
    """The `ObjectStore` port of one life."""

    def __init__(self, shelf: ObjectShelf, world: World, life: Life) -> None:
        self._shelf, self._world, self._life = shelf, world, life

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        """Store an object, whole or not at all."""
        content = b"".join(body)
        await self._wait()
        if self._shelf.health.refuses():
            raise OSError(errno.ENOSPC, "the store is full", name)
        if buggify("objects.put_refused"):
            raise OSError(errno.EIO, "503 slow down", name)
        objects = self._shelf.objects
        is_new = name not in objects
        if is_new:
            objects[name] = (content, WallTime(self._world.now))
        self._world.trace.note("put", name, len(content), is_new)
        await self._wait()
        if buggify("objects.put_answer_lost"):
            raise OSError(errno.ECONNRESET, "the answer was lost", name)
        return is_new

    async def get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """The bytes of [begin, end)."""
        await self._wait()
        found = self._shelf.objects.get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", name)
        if self._shelf.health.fails_read() or buggify("objects.get_failed"):
            raise OSError(errno.EIO, "read failed", name)
        return found[0][begin:end]

    async def list(self, prefix: str) -> Sequence[SimObject]:
        """Every object below a prefix."""
        await self._wait()
        if buggify("objects.list_failed"):
            raise OSError(errno.EIO, "list failed", prefix)
        objects = self._shelf.objects
        return [
            SimObject(name, len(objects[name][0]), objects[name][1])
            for name in sorted(objects)
            if name.startswith(prefix)
        ]

    async def delete(self, name: str) -> None:
        """Remove an object."""
        await self._wait()
        self._shelf.objects.pop(name, None)
        self._world.trace.note("delete", name)

    async def _wait(self) -> None:
        if self._life.is_dead:
            raise Gone(repr(self._life))
        slow = 500_000_000 if buggify("objects.slow") else 0
        await asyncio.sleep((200_000 + slow + self._shelf.draws.below(2_000_000)) / 1e9)
