"""The fault-wrapping ports, for the conformance suite: with nothing planned they must be what they wrap."""

from collections.abc import Iterable
from pathlib import Path

from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.loop import run
from broadsheet.runtime.objects import LocalObjects
from tests.runtime.conformance import DISKS, OBJECTS, Implementation, Story
from tests.support.faulty import FaultyDisk, FaultyObjects


def provide() -> Iterable[tuple[str, Implementation]]:
    """A disk and an object store."""
    yield DISKS, Implementation("faulty", _disk, frozenset({"real"}))
    yield OBJECTS, Implementation("faulty", _objects, frozenset({"real"}))


def _disk(story: Story, directory: Path) -> None:
    async def tell() -> None:
        inner = LocalDisk(directory / "disk")
        try:
            await story(FaultyDisk(inner))
        finally:
            inner.close()

    run(tell())


def _objects(story: Story, directory: Path) -> None:
    async def tell() -> None:
        inner = LocalObjects(directory / "objects")
        try:
            await story(FaultyObjects(inner))
        finally:
            inner.close()

    run(tell())
