"""The production ports, for the conformance suite: on uvloop and on asyncio's own loop."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.entropy import Entropy
from broadsheet.runtime.loop import run
from broadsheet.runtime.network import TCPNetwork
from broadsheet.runtime.objects import LocalObjects
from broadsheet.runtime.time import LoopTimers, SystemTime
from tests.runtime.conformance import DISKS, NETWORKS, OBJECTS, RANDOMS, TIMES, Clocks, Implementation, Story

STORY_SECONDS_MAX = 20
REAL = frozenset({"real"})


def provide() -> Iterable[tuple[str, Implementation]]:
    """Every production port."""
    for name, plain in (("uvloop", False), ("asyncio", True)):
        yield TIMES, Implementation(name, partial(_run, _clocks, plain=plain), REAL)
        yield NETWORKS, Implementation(name, partial(_run, _network, plain=plain), REAL)
        yield DISKS, Implementation(f"local-{name}", partial(_run, _disk, plain=plain), REAL)
    yield RANDOMS, Implementation("os", partial(_run, _entropy, plain=True), REAL)
    yield OBJECTS, Implementation("local", partial(_run, _objects, plain=False), REAL)


Make = Callable[[Story, Path], Awaitable[None]]


def _run(make: Make, story: Story, directory: Path, *, plain: bool) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(STORY_SECONDS_MAX):
            await make(story, directory)

    run(bounded(), plain=plain)


async def _clocks(story: Story, _directory: Path) -> None:
    await story(Clocks(SystemTime(), LoopTimers(asyncio.get_running_loop())))


async def _network(story: Story, _directory: Path) -> None:
    await story(TCPNetwork())


async def _entropy(story: Story, _directory: Path) -> None:
    await story(Entropy())


async def _disk(story: Story, directory: Path) -> None:
    await _closing(story, LocalDisk(directory / "disk"))


async def _objects(story: Story, directory: Path) -> None:
    await _closing(story, LocalObjects(directory / "objects"))


async def _closing(story: Story, port: Any) -> None:
    try:
        await story(port)
    finally:
        port.close()
