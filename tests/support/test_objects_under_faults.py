"""The local object store, with every call of a put failing once on real files."""

import asyncio
import errno
from pathlib import Path

import pytest

from broadsheet.runtime.objects import LocalObjects
from broadsheet.runtime.syncs import Syncs
from tests.support.faultfs import Rule, mounted

pytestmark = pytest.mark.needs_fuse

CALLS = ("create", "write", "fsync", "fsyncdir", "link", "unlink", "mkdir")


def test_whichever_call_fails_an_object_is_whole_or_absent(tmp_path: Path) -> None:
    """Half a fragment under its name would be read as data; and one error must not stop the next put.

    But for the sync of a directory: after that only another process may believe one.
    """
    body = (b"x" * 200_000, b"y")

    async def put(objects: LocalObjects, name: str) -> int:
        errors = 0
        for _ in range(5):
            try:
                await objects.put_if_absent(name, body)
            except OSError:
                errors += 1
                continue
            return errors
        return -1

    async def seen(objects: LocalObjects, name: str) -> bytes | None:
        try:
            return await objects.get(name)
        except FileNotFoundError:
            return None

    async def sweep() -> list[str]:
        failed = []
        with mounted(tmp_path) as faults:
            for call in CALLS:
                for after in range(3):
                    objects = LocalObjects(faults.path)
                    name = f"{call}/{after}/name"
                    faults.set(Rule(call, error="EIO", after=after, times=1))
                    errors = await put(objects, name)
                    if faults.hits() == [1]:
                        failed.append(call)
                        assert (errors == -1) == (call == "fsyncdir"), (call, after)
                    faults.set()
                    if errors == -1:
                        objects.close()
                        objects = LocalObjects(faults.path)
                        assert await put(objects, name) == 0
                    assert await seen(objects, name) == b"".join(body), (call, after)
                    objects.close()
        return failed

    assert set(asyncio.run(sweep())) == set(CALLS), "each kind of call must have failed at least once"


def test_a_directory_whose_sync_failed_once_is_not_believed_by_the_next_put(tmp_path: Path) -> None:
    """The kernel reports it once; believed, the spool of that fragment would be removed, and nothing left."""

    async def twice() -> None:
        with mounted(tmp_path) as faults:
            syncs = Syncs()
            one, other = LocalObjects(faults.path, syncs=syncs), LocalObjects(faults.path, syncs=syncs)
            await one.put_if_absent("journal/first", (b"data",))
            faults.set(Rule("fsyncdir", error="EIO", path="/journal", times=1))
            with pytest.raises(OSError, match="sync failed"):
                await one.put_if_absent("journal/second", (b"data",))
            for objects in (one, other):
                with pytest.raises(OSError, match="restart this process") as caught:
                    await objects.put_if_absent("journal/second", (b"data",))
                assert caught.value.errno == errno.EIO
            assert await one.put_if_absent("elsewhere/third", (b"data",))
            one.close()
            other.close()
            syncs.close()

    asyncio.run(twice())
