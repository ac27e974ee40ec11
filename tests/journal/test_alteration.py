"""Alterations of a journal are made one at a time, whoever asks for them, and whoever leaves."""

import asyncio

from broadsheet.base.types import JournalName
from broadsheet.journal.core.spec import JournalSpec
from broadsheet.journal.messages import SpecChange
from simulator.disk import SimDisk
from tests.journal.crash_histories import Shelf, running

NAME = JournalName("live/altered")
COUNT = 200


async def test_of_many_alterations_at_once_each_is_made_once_and_in_order() -> None:
    """All were made anew after each of them, in one turn, and after 16 times they were refused.

    Of a journal with 250 KiB of labels 4,000 held the loop for five seconds (access.6).
    """
    crashes: list[BaseException] = []
    async with running(SimDisk(), Shelf(None, {}), seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME))
        await node.broker.replica(NAME)  # Which puts keys of its own.
        changes = [SpecChange(length=1024 + number) for number in range(COUNT)]
        found = await asyncio.gather(*(node.broker.alter(NAME, None, change) for change in changes))

        assert [each.mod_revision for each in found[1:]] == [each.mod_revision + 1 for each in found[:-1]]
        assert node.broker.info(NAME) == found[-1]
        assert found[-1].spec.fragment.length == 1024 + COUNT - 1
    assert not crashes


async def test_of_alterations_whose_callers_have_left_one_is_made() -> None:
    """Whoever came and left had its own made nevertheless, with its memory, while others waited."""
    crashes: list[BaseException] = []
    async with running(SimDisk(), Shelf(None, {}), seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME))
        await node.broker.replica(NAME)  # Which puts keys of its own.
        before = await node.broker.alter(NAME, None, SpecChange(labels={"la": "first"}))
        changes = [SpecChange(length=1024 + number) for number in range(COUNT)]
        callers = [asyncio.create_task(node.broker.alter(NAME, None, change)) for change in changes]
        for _ in range(3):
            await asyncio.sleep(0)
        for each in callers:
            each.cancel()
        await asyncio.wait(callers)

        found = await node.broker.alter(NAME, None, SpecChange(labels={"la": "last"}))
        assert (found.spec.fragment.length, found.mod_revision) == (1024, before.mod_revision + 2)
    assert not crashes
