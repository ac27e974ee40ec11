"""Callers that leave in the middle: what they began goes on, or was never begun."""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Callable, Iterable

import pytest
from msgspec.structs import replace

from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.base.types import Buffer, ByteOffset, JournalName
from broadsheet.errors import AlreadyExists, NotFound, Status
from broadsheet.journal.core.pipeline_events import Submitted
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.journal.listing import Listing
from broadsheet.journal.replica import Replica
from broadsheet.journal.service import UnaryAppend
from broadsheet.journal.slot import Slot
from broadsheet.journal.streamed_append import Phase, StreamedAppend
from broadsheet.runtime.waiting_line import WOKEN_MAX
from broadsheet.runtime.workers import Lent
from simulator.disk import SimDisk, SimFile
from simulator.journalnode import status_of
from tests.journal.crash_histories import JOURNALS, NAME, TURNS_MAX, Running, Shelf, running

SPEC = JournalSpec(name=NAME)


@pytest.fixture
async def node() -> AsyncIterator[Running]:
    crashes: list[BaseException] = []
    async with running(SimDisk(), Shelf(None, {}), seed=1, crashes=crashes) as node:
        yield node
    assert not crashes


async def until(condition: Callable[[], bool]) -> None:
    """Return once it holds."""
    for _ in range(TURNS_MAX):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never comes to this")


async def until_absent(node: Running) -> None:
    """Return once nothing is known of the journal."""
    for _ in range(TURNS_MAX):
        if not node.keyspace.range("items/") and not node.keyspace.range("epoch/"):
            return
        await asyncio.sleep(0)
    raise AssertionError("the deletion never ends")


def waiting_count(replica: Replica) -> int:
    """How many readers wait for a commit."""
    return len(replica._readers._waiting)


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
    await append.begun
    append.put(b"content" * 1000)
    assert replica.pipeline.deadline() is not None

    append.finish()
    assert append.phase is Phase.PLACING
    assert replica.pipeline.deadline() is None
    assert await status_of(append.answered) is Status.OK


async def test_a_reader_that_leaves_is_forgotten(node: Running) -> None:
    """A client that asks an idle journal again every second left something behind each time."""
    await node.broker.create(SPEC)
    replica = await node.broker.replica(NAME)
    for _ in range(10):
        reading = asyncio.ensure_future(replica.wait_beyond(replica.end))
        await asyncio.sleep(0)
        assert waiting_count(replica) == 1
        reading.cancel()
        await asyncio.wait([reading])
        assert waiting_count(replica) == 0


async def test_a_commit_wakes_a_few_readers_in_each_turn_of_the_loop(node: Running) -> None:
    """A caller may have eight thousand: woken at once they held the loop for 0.1 s at each commit."""
    await node.broker.create(SPEC)
    replica = await node.broker.replica(NAME)
    readings = [asyncio.ensure_future(replica.wait_beyond(replica.end)) for _ in range(5 * WOKEN_MAX)]
    await asyncio.sleep(0)
    readings[-1].cancel()
    run = UnaryAppend(b"x")
    replica.deliver(Submitted(run=run, count=1, length=1))
    assert await status_of(run.answered) is Status.OK

    before, turns = sum([each.done() for each in readings]), 0
    while before < len(readings):
        assert turns < 100, "every reader goes on"
        await asyncio.sleep(0)
        after, turns = sum([each.done() for each in readings]), turns + 1
        assert after - before <= WOKEN_MAX
        before = after
    assert waiting_count(replica) == 0


async def called(count: int, node: Running) -> tuple[Replica, Slot, list[asyncio.Task[Replica]]]:
    """Callers of a journal that is being opened, and the replica that this will give them."""
    await node.broker.create(SPEC)
    replica = await node.broker.replica(NAME)
    slot = node.broker._slots[NAME]
    slot.begin_opening()
    calls = [asyncio.ensure_future(node.broker.replica(NAME)) for _ in range(count)]
    await asyncio.sleep(0)
    return replica, slot, calls


async def test_an_opening_lets_a_few_of_its_callers_go_on_in_each_turn_of_the_loop(node: Running) -> None:
    """900 appends that waited for a new journal, and each closed a fragment, held the loop for 0.8 s."""
    replica, slot, calls = await called(5 * WOKEN_MAX, node)
    slot.replica = replica
    slot.opened.set_result(replica)
    while not all(each.done() for each in calls):
        before = sum([each.done() for each in calls])
        await asyncio.sleep(0)
        assert sum([each.done() for each in calls]) - before <= WOKEN_MAX
    assert {each.result() for each in calls} == {replica}


async def test_callers_of_an_opening_wait_for_the_next_one_if_a_loss_is_accepted_meanwhile(
    node: Running,
) -> None:
    """They go on in several turns. In one of these the journal was closed: they heard that it was deleted."""
    replica, slot, calls = await called(50 * WOKEN_MAX, node)
    replica.stop("a sector is damaged")
    slot.replica = replica
    slot.opened.set_result(replica)
    await node.broker.accept_loss(NAME, None, head=None, may_act=True, is_head_only=False)
    assert not all(each.done() for each in calls), "none waited when the journal was closed"
    found = await asyncio.gather(*calls)

    assert len({id(each) for each in found}) == 2
    assert found[-1] is await node.broker.replica(NAME)


async def test_an_answered_append_keeps_nothing_of_its_content(node: Running) -> None:
    """The story of each journal remembers its last runs: at 60 KB an append that was 8 MiB a journal."""
    await node.broker.create(SPEC)
    replica = await node.broker.replica(NAME)
    content = memoryview(b"x" * 1000)
    held = weakref.ref(content)
    run = UnaryAppend(content)
    replica.deliver(Submitted(run=run, count=1, length=1000))
    assert await status_of(run.answered) is Status.OK
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
            page, more, after = node.broker.list(Listing("list/", after, count_max=count))
            assert len(page) == count or not more
            found += [info.name for info in page]
        assert found == names
    assert node.broker.list(Listing("none/")) == ([], False, "")


async def removed(node: Running) -> None:
    """Return once the keys are gone; what failed is tried again after a pause."""
    for _ in range(1000):
        if not node.keyspace.range("items/"):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the deletion never ends")


class Hanging(Shelf):
    """A store whose calls do not return while it hangs."""

    def __init__(self) -> None:
        super().__init__(None, {})
        self.answers = asyncio.Event()

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        await self.answers.wait()
        return await super().put_if_absent(name, body)

    async def delete(self, name: str) -> None:
        await self.answers.wait()
        await super().delete(name)


@pytest.mark.parametrize("is_uploading", [True, False])
async def test_a_deletion_does_not_wait_for_a_store_that_hangs(*, is_uploading: bool) -> None:
    """Its caller waited for ever, though a restart would have finished what was decided."""
    shelf, crashes = Hanging(), list[BaseException]()
    config = replace(JOURNALS, removal_wait=Duration(50 * MILLISECOND))
    async with running(SimDisk(), shelf, seed=1, crashes=crashes, config=config) as node:
        await node.broker.create(replace(SPEC, fragment=FragmentSpec(length=1024)))
        replica = await node.broker.replica(NAME)
        if is_uploading:
            for _ in range(2):
                run = UnaryAppend(b"x" * 1500)
                replica.deliver(Submitted(run=run, count=1, length=1500))
                await run.answered
        else:
            shelf.objects[f"{NAME}/{0:016x}-{9:016x}-{'0' * 40}.raw"] = b"fragment."
        async with asyncio.timeout(5):
            await node.broker.delete(NAME, None)
        with pytest.raises(NotFound):
            node.broker.info(NAME)
        with pytest.raises(AlreadyExists, match="is being deleted"):
            await node.broker.create(SPEC)
        shelf.answers.set()
        await removed(node)
        assert shelf.objects == {}, "the rest is removed when the store answers"
    assert not crashes


class Late(Shelf):
    """A store whose first put ends late, in a thread that nobody can stop."""

    def __init__(self) -> None:
        super().__init__(None, {})
        self.begun, self.first = asyncio.Event(), Lent[None]()

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        content = b"".join(body)
        if self.begun.is_set():
            return await super().put_if_absent(name, (content,))
        self.begun.set()
        try:
            await self.first
        finally:
            self.objects.setdefault(name, content)
        return True


async def test_a_deletion_waits_for_an_upload_that_was_begun_before_a_loss_was_accepted() -> None:
    """J1: the fragment came into the store after the deletion; a later journal of the name served it."""
    shelf, crashes = Late(), list[BaseException]()
    config = replace(JOURNALS, removal_wait=Duration(50 * MILLISECOND))
    async with running(SimDisk(), shelf, seed=1, crashes=crashes, config=config) as node:
        await node.broker.create(replace(SPEC, fragment=FragmentSpec(length=1024)))
        replica = await node.broker.replica(NAME)
        for _ in range(2):
            run = UnaryAppend(b"x" * 1500)
            replica.deliver(Submitted(run=run, count=1, length=1500))
            await run.answered
        await shelf.begun.wait()
        replica.stop("a sector is damaged")
        await node.broker.accept_loss(NAME, None, head=None, may_act=True, is_head_only=False)
        await node.broker.replica(NAME)
        await node.broker.delete(NAME, None)
        is_waiting = bool(node.keyspace.range("items/"))
        shelf.first.set_result(None)
        assert is_waiting
        await removed(node)
        assert shelf.objects == {}
    assert not crashes


async def test_what_was_stored_beside_a_stream_that_is_given_up_is_named_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its files stayed, and each trim of an idle journal was told to try again in a moment."""
    flush, shelf, crashes = SimFile.flush, Late(), list[BaseException]()
    is_placing, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(file: SimFile) -> None:
        if file.name.endswith(".spool"):
            is_placing.set()
            await goes_on.wait()
        await flush(file)

    async with running(SimDisk(), shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(replace(SPEC, fragment=FragmentSpec(length=1024)))
        replica = await node.broker.replica(NAME)
        for _ in range(3):
            run = UnaryAppend(b"x" * 1500)
            replica.deliver(Submitted(run=run, count=1, length=1500))
            await run.answered
        await shelf.begun.wait()
        monkeypatch.setattr(SimFile, "flush", slow)
        streamed = StreamedAppend(replica, 1, None)
        streamed.put(b"y" * 3000)
        streamed.finish()
        await is_placing.wait()
        shelf.first.set_result(None)
        await until(lambda: not replica.closed)
        await asyncio.sleep(0.01)  # The upload ends, and asks for a checkpoint.
        streamed.abort(Status.CANCELLED)
        goes_on.set()
        trimming = await node.broker.trimming(NAME)
        assert (await trimming.trim(ByteOffset(1500))).begin == 1500
    assert not crashes
