"""Callers that leave in the middle: what they began goes on, or was never begun."""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator

import pytest

from broadsheet.base.types import JournalName
from broadsheet.errors import AlreadyExists, NotFound, Status
from broadsheet.journal.core.pipeline_events import Submitted
from broadsheet.journal.core.spec import JournalSpec
from broadsheet.journal.service import UnaryAppend
from broadsheet.journal.streaming import Stage, StreamedAppend
from broadsheet.sim.disk import SimDisk
from tests.journal.crash_histories import NAME, TURNS_MAX, Running, Shelf, running

SPEC = JournalSpec(name=NAME)


@pytest.fixture
async def node() -> AsyncIterator[Running]:
    crashes: list[BaseException] = []
    async with running(SimDisk(), Shelf(None, {}), seed=1, crashes=crashes) as node:
        yield node
    assert not crashes


async def until_absent(node: Running) -> None:
    """Return once nothing is known of the journal."""
    for _ in range(TURNS_MAX):
        if not node.keyspace.range("items/") and not node.keyspace.range("epoch/"):
            return
        await asyncio.sleep(0)
    raise AssertionError("the deletion never ends")


@pytest.mark.parametrize("turns", range(12))
async def test_a_create_whose_caller_leaves_makes_a_whole_journal_or_none(node: Running, turns: int) -> None:
    """C2: its caller does not know. The next one is told AlreadyExists of a journal that takes appends."""
    creating = asyncio.ensure_future(node.broker.create(SPEC))
    for _ in range(turns):
        await asyncio.sleep(0)
    creating.cancel()
    await asyncio.wait([creating])

    with contextlib.suppress(AlreadyExists):
        await node.broker.create(SPEC)
    async with asyncio.timeout(5):
        replica = await node.broker.replica(NAME)
        run = UnaryAppend(b"content")
        replica.deliver(Submitted(run=run, count=1, length=7))
        await run.answered


@pytest.mark.parametrize("turns", range(24))
async def test_a_delete_whose_caller_leaves_is_finished_or_was_never_begun(node: Running, turns: int) -> None:
    """J2: it acknowledged appends to a journal whose deletion was durable, or kept its name for ever."""
    await node.broker.create(SPEC)
    replica = await node.broker.replica(NAME)
    deleting = asyncio.ensure_future(node.broker.delete(NAME, None))
    for _ in range(turns):
        await asyncio.sleep(0)
    deleting.cancel()
    await asyncio.wait([deleting])
    for _ in range(100):
        await asyncio.sleep(0)

    if not replica.is_closed:
        assert node.keyspace.range("epoch/"), "it was never begun"
        await node.broker.delete(NAME, None)
    await until_absent(node)
    with pytest.raises(NotFound):
        node.broker.info(NAME)
    await node.broker.create(SPEC)


async def test_no_clock_runs_against_a_client_while_its_content_is_synced(node: Running) -> None:
    """journals.17: it has sent all of it; a disk that takes longer than `flow_stall` is ours."""
    await node.broker.create(SPEC)
    replica = await node.broker.replica(NAME)
    append = StreamedAppend(replica, 1, None)
    await append.granted
    append.put(b"content" * 1000)
    assert replica.pipeline.deadline() is not None

    append.finish()
    assert append.stage is Stage.PLACING
    assert replica.pipeline.deadline() is None
    assert (await append.answered)[0] is Status.OK


async def test_a_reader_that_leaves_is_forgotten(node: Running) -> None:
    """A client that asks an idle journal again every second left something behind each time."""
    await node.broker.create(SPEC)
    replica = await node.broker.replica(NAME)
    for _ in range(10):
        reading = asyncio.ensure_future(replica.wait_beyond(replica.end))
        await asyncio.sleep(0)
        assert replica.waiting_count == 1
        reading.cancel()
        await asyncio.wait([reading])
        assert replica.waiting_count == 0


async def test_an_answered_append_keeps_nothing_of_its_content(node: Running) -> None:
    """The story of each journal remembers its last runs: at 60 KB an append that was 8 MiB a journal."""
    await node.broker.create(SPEC)
    replica = await node.broker.replica(NAME)
    content = memoryview(b"x" * 1000)
    held = weakref.ref(content)
    run = UnaryAppend(content)
    replica.deliver(Submitted(run=run, count=1, length=1000))
    assert (await run.answered)[0] is Status.OK
    del content
    for _ in range(20):
        await asyncio.sleep(0)
    assert held() is None


async def test_pages_of_a_listing_make_the_whole_list(node: Running) -> None:
    """Every journal once, in order; those being deleted are none."""
    names = [JournalName(f"list/{n:02d}") for n in range(7)]
    for name in names:
        await node.broker.create(JournalSpec(name=name))
    await node.broker.delete(names.pop(3), None)

    for count in (1, 2, 3, 6, 7):
        found, after, more = [], "", True
        while more:
            page, more = node.broker.list("list/", after=after, count_max=count)
            assert len(page) == count or not more
            found += [info.name for info in page]
            after = found[-1]
        assert found == names
    assert node.broker.list("none/", after="", count_max=1) == ([], False)
