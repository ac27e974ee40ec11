"""A slow journal's fragments are closed by the clock too, and stored."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from broadsheet.base.time import SECOND, Duration
from broadsheet.base.types import JournalName
from broadsheet.errors import Status
from broadsheet.journal.context import CLOSED_PER_TURN
from broadsheet.journal.core.pipeline_events import Submitted
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.journal.service import UnaryAppend
from broadsheet.journal.streamed_append import StreamedAppend
from broadsheet.ports import File
from simulator.disk import SimDisk
from simulator.journalnode import status_of
from tests.journal.crash_histories import NAME, TURNS_MAX, Running, Shelf, running
from tests.support.hand import HandClock

MINUTE = Duration(60 * SECOND)
SPEC = JournalSpec(name=NAME, fragment=FragmentSpec(flush_interval=MINUTE))


async def append(node: Running, content: bytes, name: JournalName = NAME) -> None:
    replica = await node.broker.replica(name)
    run = UnaryAppend(content)
    replica.deliver(Submitted(run=run, count=1, length=len(content)))
    assert await status_of(run.answered) is Status.OK


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(TURNS_MAX):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never comes to this")


@asynccontextmanager
async def clocked(disk: SimDisk, shelf: Shelf, clock: HandClock, *, seed: int) -> AsyncIterator[Running]:
    """A node whose journals have their time from `clock`."""
    crashes: list[BaseException] = []
    async with running(disk, shelf, seed=seed, crashes=crashes, is_last=False) as node:
        context = node.broker._context
        context.time = context.timers = clock
        yield node
    assert not crashes


async def test_a_fragment_of_an_earlier_interval_is_closed_and_stored_without_another_append() -> None:
    """Gazette's rule: at the multiples of the interval, where the first append is from before it."""
    clock, shelf, disk = HandClock(), Shelf(None, {}), SimDisk()
    async with clocked(disk, shelf, clock, seed=1) as node:
        await node.broker.create(SPEC)
        await append(node, b"slow")
        clock.advance(Duration(MINUTE // 2))
        await append(node, b" one")
        assert not shelf.objects
        clock.advance(Duration(MINUTE // 2))
        await until(lambda: bool(shelf.objects))
        assert list(shelf.objects.values()) == [b"slow one"]

        clock.advance(Duration(10 * MINUTE))
        assert len(shelf.objects) == 1, "nothing came, so nothing is stored"
        await append(node, b" more")
        clock.advance(Duration(MINUTE - clock.wall() % MINUTE))
        await until(lambda: len(shelf.objects) == 2)
        await append(node, b" and more")
    async with clocked(disk, shelf, clock, seed=2) as node:
        _, content = await node.content()
        assert content == b"slow one more and more"
        clock.advance(MINUTE)
        await until(lambda: len(shelf.objects) == 3)


async def test_a_fragment_that_somebody_streams_into_is_closed_after_that() -> None:
    """An append is never split; what it holds up is asked for again."""
    clock, shelf, disk = HandClock(), Shelf(None, {}), SimDisk()
    async with clocked(disk, shelf, clock, seed=1) as node:
        await node.broker.create(SPEC)
        await append(node, b"before ")
        clock.advance(Duration(MINUTE - clock.wall() % MINUTE - SECOND))
        stream = StreamedAppend(await node.broker.replica(NAME), 1, None)
        await stream.begun  # It takes its place in the turns that follow its end.
        stream.put(b"x" * 200_000)
        stream.finish()
        clock.advance(SECOND)
        assert await status_of(stream.answered) is Status.OK
        assert not shelf.objects
        clock.advance(Duration(2 * SECOND))
        await until(lambda: bool(shelf.objects))
        assert list(shelf.objects.values()) == [b"before " + b"x" * 200_000]


async def test_a_fragment_that_found_no_room_for_the_next_file_is_closed_when_there_is_room() -> None:
    """The pipeline had begun the next fragment already, so the roll was asked for in vain, for ever."""
    clock, shelf, disk = HandClock(), Shelf(None, {}), SimDisk()
    async with clocked(disk, shelf, clock, seed=1) as node:
        await node.broker.create(SPEC)
        await append(node, b"slow")
        replica = await node.broker.replica(NAME)
        opening = replica.context.spools.disk.open

        def refusing(name: str, **_: bool) -> File:
            raise OSError(errno.ENOSPC, "no space", name)

        replica.context.spools.disk.open = refusing  # type: ignore[method-assign]
        clock.advance(MINUTE)
        await asyncio.sleep(0)
        assert replica.pipeline.fragment_begin > replica.spool.begin
        replica.context.spools.disk.open = opening  # type: ignore[method-assign]
        assert not shelf.objects
        clock.advance(Duration(2 * SECOND))
        await until(lambda: bool(shelf.objects))
        assert list(shelf.objects.values()) == [b"slow"]
        await append(node, b" one")
        assert (await node.content())[1] == b"slow one"


async def test_a_fragment_that_found_no_descriptor_is_closed_as_soon_as_one_is_free() -> None:
    """It was asked for again when the clock came round: an append may need its file meanwhile."""
    clock, shelf, disk = HandClock(), Shelf(None, {}), SimDisk()
    async with clocked(disk, shelf, clock, seed=1) as node:
        await node.broker.create(SPEC)
        await append(node, b"slow")
        spools = (await node.broker.replica(NAME)).context.spools
        opening = spools.disk.open

        def refusing(name: str, **_: bool) -> File:
            raise OSError(errno.EMFILE, "no descriptor", name)

        spools.disk.open = refusing  # type: ignore[method-assign]
        clock.advance(MINUTE)
        spools.disk.open = opening  # type: ignore[method-assign]
        assert not shelf.objects
        async with asyncio.timeout(5):
            while not shelf.objects:  # noqa: ASYNC110 - the line is served by real time.
                await asyncio.sleep(0.001)
        assert list(shelf.objects.values()) == [b"slow"]


async def test_the_clock_closes_a_few_fragments_in_each_turn_of_the_loop() -> None:
    """It strikes for all journals at once: 3,000 files were made in one turn, and the node stood still."""
    clock, shelf, disk = HandClock(), Shelf(None, {}), SimDisk()
    async with clocked(disk, shelf, clock, seed=1) as node:
        names = [JournalName(f"many/{number}") for number in range(3 * CLOSED_PER_TURN)]
        for name in names:
            await node.broker.create(JournalSpec(name=name, fragment=SPEC.fragment))
            await append(node, b"slow", name)
        clock.advance(MINUTE)
        closed = 0
        while closed < len(names):
            await asyncio.sleep(0)
            before, closed = closed, sum(each.spool.begin > 0 for each in node.broker.replicas)
            assert before < closed <= before + CLOSED_PER_TURN
        await until(lambda: len(shelf.objects) == len(names))


async def test_a_deleted_journal_is_not_looked_at_again() -> None:
    """Its timer goes with it."""
    clock, shelf, disk = HandClock(), Shelf(None, {}), SimDisk()
    async with clocked(disk, shelf, clock, seed=1) as node:
        await node.broker.create(SPEC)
        await append(node, b"content")
        assert clock.pending()
        await node.broker.delete(NAME, None)
        assert not clock.pending()
