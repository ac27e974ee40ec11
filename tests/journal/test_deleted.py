"""A deleted journal leaves nothing: no file, stream, key, task, callback or object."""

import asyncio
import gc

import pytest

from broadsheet.base.types import JournalName
from broadsheet.errors import NotFound, ShuttingDown
from broadsheet.journal.core.pipeline_events import Submitted
from broadsheet.journal.core.spec import FRAMING_LABEL, FragmentSpec, JournalSpec
from broadsheet.journal.messages import SpecChange
from broadsheet.journal.replica import Replica
from broadsheet.journal.service import UnaryAppend
from broadsheet.runtime import failpoints
from simulator.disk import SimDisk
from tests.journal.crash_histories import Running, Shelf, _idle, _until, running

COUNT = 20


def beside_logs(disk: SimDisk) -> list[str]:
    """Every file and directory but the segments of the two logs, which are used again."""
    names = [*disk.state.files, *disk.state.directories]
    return sorted(name for name in names if not name.endswith(".wal"))


async def live_and_die(node: Running, name: JournalName, appends: int) -> None:
    """Make a journal, append to it, delete it."""
    await node.broker.create(JournalSpec(name=name, fragment=FragmentSpec(length=1 << 10)))
    replica = await node.broker.replica(name)
    for _ in range(appends):
        run = UnaryAppend(b"x" * 2000)
        replica.deliver(Submitted(run=run, count=1, length=2000))
        await run.answered
    await node.broker.delete(name, None)


async def test_a_deletion_leaves_what_somebody_else_put_beside_the_spools() -> None:
    """A file was removed with the journal, and a directory kept the deletion from its end for ever."""
    crashes: list[BaseException] = []
    disk, name = SimDisk(), JournalName("dead/mixed")
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=name))
        directory = (await node.broker.replica(name)).directory
        disk.make_dir(f"{directory}/theirs")
        disk.open(f"{directory}/notes.txt", create=True)
        disk.open(f"{directory}/00-01.lost", create=True)
        await node.broker.delete(name, None)
        assert not node.keyspace.range("")
        assert disk.list(directory) == ["notes.txt", "theirs"]
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes) as node:
        assert node.broker.count == 0
    assert not crashes


async def test_a_journal_is_deleted_also_while_somebody_changes_its_settings() -> None:
    """The deletion said that there is no such journal, and left all of it there."""
    crashes: list[BaseException] = []
    disk, name = SimDisk(), JournalName("dead/altered")
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=name))
        await node.broker.replica(name)
        changes = [SpecChange(length=1 << 10), SpecChange(length=1 << 11)]
        altering = [asyncio.create_task(node.broker.alter(name, None, change)) for change in changes]
        await asyncio.sleep(0)
        await node.broker.delete(name, None)
        await asyncio.gather(*altering, return_exceptions=True)
        assert not node.keyspace.range("")
        assert not [each for each in disk.state.files if each.endswith(".spool")]
    assert not crashes


async def test_of_many_deletions_of_one_journal_at_once_one_is_marked() -> None:
    """Each held the journal's spec while the disk synced, and all but one were made anew in the turn after.

    700 of a spec of 250 KiB took 300 MiB (access.6).
    """
    crashes: list[BaseException] = []
    labels: list[str] = []
    name = JournalName("dead/crowded")
    async with running(SimDisk(), Shelf(None, {}), seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=name))
        await node.broker.replica(name)
        failpoints.install(labels.append)
        try:
            callers = [asyncio.create_task(node.broker.delete(name, None)) for _ in range(200)]
            await asyncio.sleep(0)
            callers[0].cancel()  # Whoever leaves does not let the next one begin beside its own.
            found = await asyncio.gather(*callers, return_exceptions=True)
        finally:
            failpoints.install(None)
        assert labels.count("journal.delete.before_mark") == 1
        assert [type(each) for each in found] == [asyncio.CancelledError, *[NotFound] * 199]
        await _until(lambda: not node.keyspace.range(""), "its keys are removed")
    assert not crashes


async def test_a_reader_of_a_journal_that_is_deleted_is_not_told_of_damage() -> None:
    """Its fragment went while it was read: the error said that it is damaged, and how to restore it."""
    crashes: list[BaseException] = []
    shelf, name = Shelf(None, {}), JournalName("dead/read")
    begun, may_go_on = asyncio.Event(), asyncio.Event()
    async with running(SimDisk(), shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=name, fragment=FragmentSpec(length=1 << 10)))
        replica = await node.broker.replica(name)
        for _ in range(2):
            run = UnaryAppend(b"x" * 2000)
            replica.deliver(Submitted(run=run, count=1, length=2000))
            await run.answered
        await _until(lambda: len(replica.index), "a fragment is stored")
        get = shelf.get

        async def late(name: str, begin: int = 0, end: int | None = None) -> bytes:
            begun.set()
            await may_go_on.wait()
            return await get(name, begin, end)

        shelf.get = late  # type: ignore[method-assign]
        reading = asyncio.ensure_future(node.content_of(name))
        await begun.wait()
        await node.broker.delete(name, None)
        assert not shelf.objects
        may_go_on.set()
        with pytest.raises(ShuttingDown):
            await reading
    assert not crashes


async def test_a_reader_of_an_index_of_a_journal_that_is_deleted_is_not_told_of_damage() -> None:
    """It was told that the index is missing. It asks again where it hears that the journal was closed."""
    crashes: list[BaseException] = []
    shelf, name = Shelf(None, {}), JournalName("dead/index")
    labels = {FRAMING_LABEL: "json-lines"}
    async with running(SimDisk(), shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=name, fragment=FragmentSpec(length=1 << 10), labels=labels))
        replica = await node.broker.replica(name)
        for _ in range(2):
            run = UnaryAppend(b'{"x":"' + b"y" * 2000 + b'"}\n')
            replica.deliver(Submitted(run=run, count=1, length=2009))
            await run.answered
        indexing = await node.broker.indexing(name)
        await _until(lambda: bool(indexing._points), "an index is stored")
        found = await indexing.at(replica.end)
        assert found.size
        await node.broker.delete(name, None)
        with pytest.raises(ShuttingDown):
            await indexing.part(found, 0, found.size)
    assert not crashes


async def test_a_deleted_journal_leaves_nothing() -> None:
    """One that died before its first record left its replica for ever, in the log's callbacks."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Shelf(None, {})
    async with running(disk, shelf, seed=1, crashes=crashes) as node:
        await live_and_die(node, JournalName("dead/first"), 3)  # Whatever is made once is made now.
        await _idle()
        log = node.broker._context.log
        before = (log.streams(), beside_logs(disk))
        open_count = node.broker._context.spools.open_count
        tasks = len(asyncio.all_tasks())

        for number in range(COUNT):
            await live_and_die(node, JournalName(f"dead/{number:03}"), number % 4)
        await _idle()
        gc.collect()

        assert (log.streams(), beside_logs(disk)) == before
        assert not [name for name in beside_logs(disk) if name.startswith("journals/spool/")]
        assert node.broker._context.spools.open_count == open_count == 0
        assert shelf.objects == {}
        assert not node.keyspace.range("")
        assert node.broker.count == 0
        assert not [each for each in gc.get_objects() if isinstance(each, Replica)]
        assert len(asyncio.all_tasks()) == tasks
    assert not crashes
