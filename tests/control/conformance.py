"""What every metastore does, whoever keeps it. `file` and `majority` run it; `etcd` will."""

import asyncio

import pytest

from broadsheet.control.port import Metastore
from broadsheet.errors import TooLarge, UnexpectedVersion


async def a_write_makes_the_next_version(metastore: Metastore) -> None:
    """control.1: versions rise by one, from the founding one."""
    before = await metastore.read()
    after = await metastore.compare_and_set(before.version, b"next")

    assert (after.version, await metastore.read()) == (before.version + 1, after)


async def a_stale_write_is_refused(metastore: Metastore) -> None:
    """The loser must read again, and decide again."""
    before = await metastore.read()
    await metastore.compare_and_set(before.version, b"mine")
    with pytest.raises(UnexpectedVersion, match=f"expected version {before.version}"):
        await metastore.compare_and_set(before.version, b"theirs")

    assert (await metastore.read()).document == b"mine"


async def of_concurrent_writers_one_wins_each_version(metastore: Metastore) -> None:
    """Lost updates are what the document exists to prevent."""

    async def increment() -> None:
        while True:
            found = await metastore.read()
            count = int(found.document) if found.document.isdigit() else 0
            try:
                await metastore.compare_and_set(found.version, b"%d" % (count + 1))
            except UnexpectedVersion:
                continue
            return

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(increment())
    assert (await metastore.read()).document == b"8"


async def a_document_of_8_mib_fits_and_no_more(metastore: Metastore) -> None:
    """control.1: the limit is 8 MiB; it is larger than a frame of the wire, so it travels in parts."""
    before = await metastore.read()
    largest = bytes(range(256)) * (8 * 4096)
    after = await metastore.compare_and_set(before.version, largest)
    with pytest.raises(TooLarge, match="8388609 bytes"):
        await metastore.compare_and_set(after.version, largest + b"1")

    assert (await metastore.read()).document == largest


ALL = (
    a_write_makes_the_next_version,
    a_stale_write_is_refused,
    of_concurrent_writers_one_wins_each_version,
    a_document_of_8_mib_fits_and_no_more,
)
