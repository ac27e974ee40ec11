"""A key space that is full refuses new journals, and holds up none of those that are there."""

import asyncio
from typing import Final

import msgspec
import pytest

from broadsheet.base.types import JournalName
from broadsheet.errors import AlreadyExists, NotFound, Status, TooLarge
from broadsheet.journal.core.pipeline_events import Submitted
from broadsheet.journal.core.registers import Condition
from broadsheet.journal.core.spec import JournalSpec
from broadsheet.journal.service import UnaryAppend
from simulator.disk import SimDisk
from simulator.journalnode import status_of
from tests.journal.crash_histories import JOURNALS, Running, Shelf, running

COMMITS: Final = JournalName("full/commits")
SECONDS: Final = 5.0
"""Of an answer that takes no time; without an answer the test ends."""


async def _append(node: Running, batch: str) -> Status:
    """Append, and set a register that grows the map."""
    replica = await node.broker.replica(COMMITS)
    run = UnaryAppend(b"x")
    condition = Condition(union={"batch": batch})
    replica.deliver(Submitted(run=run, count=1, length=1, condition=condition))
    async with asyncio.timeout(SECONDS):
        return await status_of(run.answered)


async def _fill(node: Running) -> list[JournalName]:
    """Make journals until the map takes no more; their names."""
    made: list[JournalName] = []
    for size in (900, 90, 9, 0):
        while True:
            spec = JournalSpec(
                name=JournalName(f"full/{len(made):04}"), labels={"fill": "x" * size} if size else {}
            )
            try:
                await node.broker.create(spec)
            except TooLarge:
                break
            made.append(spec.name)
    return made


async def test_a_full_key_space_stops_no_commit_no_start_and_no_deletion() -> None:
    """A commit hung for ever, a start did not open the journal again, and no deletion made room."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Shelf(None, {})
    async with running(disk, shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=COMMITS))
        assert await _append(node, "9") is Status.OK
        made = await _fill(node)

        for name in made:
            assert (await node.broker.replica(name)).end == 0
        assert await _append(node, "1" * 200) is Status.OK
    async with running(disk, shelf, seed=2, crashes=crashes) as node:
        assert await _append(node, "2" * 250) is Status.OK
        for name in made[:3]:
            await node.broker.delete(name, None)
            with pytest.raises(NotFound):
                node.broker.info(name)
        await node.broker.create(JournalSpec(name=JournalName("full/again")))
        assert (await node.broker.replica("full/again")).end == 0
    assert not crashes


async def test_creates_that_come_together_make_no_more_journals_than_may_be() -> None:
    """Of 2,000 at once, 649 were made where 50 may be: each looked before the others had made theirs."""
    crashes: list[BaseException] = []
    config = msgspec.structs.replace(JOURNALS, journals_max=5)
    async with running(SimDisk(), Shelf(None, {}), seed=1, crashes=crashes, config=config) as node:
        names = [JournalName(f"full/{number}") for number in range(20)]
        creates = [node.broker.create(JournalSpec(name=name)) for name in names]
        ends = await asyncio.gather(*creates, return_exceptions=True)
        assert node.broker.count == 5
        assert sum(isinstance(end, TooLarge) for end in ends) == 15
        with pytest.raises(AlreadyExists):
            await node.broker.create(JournalSpec(name=names[0]))
        await node.broker.delete(names[0], None)
        await node.broker.create(JournalSpec(name=JournalName("full/again")))
    assert not crashes
