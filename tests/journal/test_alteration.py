"""Alterations of a journal are made one at a time, whoever asks for them, and whoever leaves."""

import asyncio

import pytest

from broadsheet.base.types import JournalName
from broadsheet.errors import NotFound, ShuttingDown
from broadsheet.journal.alteration import put_altered
from broadsheet.journal.core.spec import JournalSpec, spec_key
from broadsheet.journal.deletion import mark_deleted
from broadsheet.journal.messages import SpecChange
from simulator.crashstates import record_on
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


@pytest.mark.parametrize("turns", range(1, 8))
async def test_an_alteration_whose_caller_leaves_is_no_reason_to_call_the_journal_deleted(turns: int) -> None:
    """Two of one journal at a time read one spec, and the second is refused as of a deleted journal."""
    crashes: list[BaseException] = []
    async with running(SimDisk(), Shelf(None, {}), seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME))
        await node.broker.replica(NAME)
        leaver = asyncio.create_task(node.broker.alter(NAME, None, SpecChange(length=1024)))
        for _ in range(turns):
            await asyncio.sleep(0)
        leaver.cancel()

        found = await node.broker.alter(NAME, None, SpecChange(labels={"la": "last"}))
        assert node.broker.info(NAME) == found
        assert found.spec.labels == {"la": "last"}
    assert not crashes


async def test_alterations_of_many_journals_share_their_syncs() -> None:
    """Each waited for one of its own: 3,000 took 22 seconds, and so did whoever altered another journal."""
    crashes: list[BaseException] = []
    disk = SimDisk()
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes) as node:
        names = [JournalName(f"live/many-{number}") for number in range(40)]
        for name in names:
            await node.broker.create(JournalSpec(name=name))
            await node.broker.replica(name)
        tape = record_on(disk.state)
        begun = len(tape.steps)
        change = SpecChange(length=2048)
        found = await asyncio.gather(*(node.broker.alter(name, None, change) for name in names))

        syncs = [what for step, what in tape.steps[begun:] if step == "sync"]
        assert len(syncs) <= len(names) // 2 - 2, "lines stand empty"
        assert [each.spec.name for each in found] == names
        assert {node.broker.info(name).spec.fragment.length for name in names} == {2048}
    assert not crashes


async def test_an_alteration_that_waited_changes_neither_a_doomed_journal_nor_a_later_one_of_its_name() -> (
    None
):
    """A doomed one would keep its name until the next start: its keys go only as the mark left them."""
    crashes: list[BaseException] = []
    change = SpecChange(length=2048)
    async with running(SimDisk(), Shelf(None, {}), seed=1, crashes=crashes) as node:
        context = node.broker._context
        info = await node.broker.create(JournalSpec(name=NAME))
        marking = asyncio.create_task(mark_deleted(context, info))
        await asyncio.sleep(0)
        with pytest.raises(NotFound, match="was deleted meanwhile"):  # It was read before the mark was seen.
            await put_altered(node.keyspace, info, change)
        marked = await marking
        with pytest.raises(NotFound, match="was deleted meanwhile"):
            await put_altered(node.keyspace, info, change)
        pair = node.keyspace.get(spec_key(NAME))
        assert pair is not None
        assert pair.mod_revision == marked.mod_revision

    async with running(SimDisk(), Shelf(None, {}), seed=1, crashes=crashes) as node:
        info = await node.broker.create(JournalSpec(name=NAME))
        await node.broker.delete(NAME, None)
        later = await node.broker.create(JournalSpec(name=NAME))
        with pytest.raises(NotFound, match="was deleted meanwhile"):
            await put_altered(node.keyspace, info, change)
        pair = node.keyspace.get(spec_key(NAME))
        assert pair is not None
        assert pair.mod_revision == later.mod_revision
    assert not crashes


async def test_a_journal_that_is_altered_while_it_is_opened_acts_by_the_change() -> None:
    """It acted by what its opening had read, until the next start."""
    crashes: list[BaseException] = []
    async with running(SimDisk(), Shelf(None, {}), seed=1, crashes=crashes) as node:
        info = await node.broker.create(JournalSpec(name=NAME))
        opening = asyncio.create_task(node.broker.replica(NAME))
        await asyncio.sleep(0)
        altered = await node.broker.alter(NAME, None, SpecChange(length=2048))
        assert not opening.done()
        replica = await opening
        assert info.spec != altered.spec
        assert (replica.info, replica.pipeline.fragment_length) == (altered, 2048)
    assert not crashes


async def test_a_node_that_ends_makes_alters_and_deletes_no_journal_any_more() -> None:
    """A caller is told that nothing was done; the journal is as it was at the next start."""
    crashes: list[BaseException] = []
    async with running(SimDisk(), Shelf(None, {}), seed=1, crashes=crashes) as node:
        info = await node.broker.create(JournalSpec(name=NAME))
        await node.broker.close()
        for call in (
            node.broker.create(JournalSpec(name=JournalName("live/late"))),
            node.broker.alter(NAME, None, SpecChange(length=2048)),
            node.broker.delete(NAME, None),
        ):
            with pytest.raises(ShuttingDown):
                await call
        pair = node.keyspace.get(spec_key(NAME))
        assert pair is not None
        assert pair.mod_revision == info.mod_revision
    assert not crashes
