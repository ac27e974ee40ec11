"""A read gives committed bytes only."""

import asyncio

from broadsheet.base.types import ByteOffset
from broadsheet.errors import Status
from broadsheet.journal.committed_reads import read
from broadsheet.journal.core.spec import JournalSpec
from simulator.disk import SimDisk
from tests.journal.crash_histories import NAME, Shelf, running
from tests.journal.test_damage import append


async def test_a_read_ends_below_an_append_that_is_on_its_way_to_the_disk() -> None:
    """A crash may still take that append back, and a reader would have seen what never was (journals.7)."""
    async with running(SimDisk(), Shelf(None, {}), seed=1, crashes=[]) as node:
        await node.broker.create(JournalSpec(name=NAME))
        assert await append(node, NAME, b"one") is Status.OK
        replica = await node.broker.replica(NAME)
        asked = asyncio.create_task(append(node, NAME, b"two"))
        await asyncio.sleep(0)
        assert replica.pipeline.adopted_end > replica.end

        chunks = [chunk.data async for chunk in read(replica, ByteOffset(0), None, block=False)]
        assert (b"".join(chunks), replica.end) == (b"one", 3)
        assert await asked is Status.OK
