"""The local object store, with every call of a put failing once on real files."""

import asyncio
from pathlib import Path

import pytest

from broadsheet.runtime.objects import LocalObjects
from tests.support.faultfs import Rule, mounted

pytestmark = pytest.mark.needs_fuse

CALLS = ("create", "write", "fsync", "fsyncdir", "link", "unlink", "mkdir")


def test_whichever_call_fails_an_object_is_whole_or_absent(tmp_path: Path) -> None:
    """Half a fragment under its name would be read as data; and one error must not stop the next put."""
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
        raise AssertionError(f"{name} cannot be stored")

    async def seen(objects: LocalObjects, name: str) -> bytes | None:
        try:
            return await objects.get(name)
        except FileNotFoundError:
            return None

    async def sweep() -> list[int]:
        errors = []
        with mounted(tmp_path) as faults:
            objects = LocalObjects(faults.path)
            for call in CALLS:
                for after in range(3):
                    name = f"{call}/{after}/name"
                    faults.set(Rule(call, error="EIO", after=after, times=1))
                    failed = await put(objects, name)
                    assert await seen(objects, name) == b"".join(body), (call, after)
                    errors.append(failed)
                    faults.set()
            objects.close()
        return errors

    errors = asyncio.run(sweep())
    assert sum(errors) >= len(CALLS), "each kind of call must have failed at least once"
