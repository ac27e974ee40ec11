"""What a trim or a retention removes: whole stored fragments, and nothing that anybody may still need."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from broadsheet.base.time import SECOND, Duration, WallTime
from broadsheet.base.types import Buffer, ByteOffset, JournalName
from broadsheet.errors import Corrupt, InvalidArgument, RegistersUnknown, Status, StoreUnhealthy, Trimmed
from broadsheet.journal import producer_indexing
from broadsheet.journal.committed_reads import read, read_chunk
from broadsheet.journal.config import JournalsConfig
from broadsheet.journal.core.pipeline_events import Submitted
from broadsheet.journal.core.registers import COMMITS_BYTES, Condition
from broadsheet.journal.core.spec import (
    FRAMING_LABEL,
    FragmentSpec,
    JournalSpec,
    registers_key,
    validate_spec,
)
from broadsheet.journal.messages import SpecChange
from broadsheet.journal.replica import Replica
from broadsheet.journal.service import UnaryAppend
from broadsheet.journal.spool_file import SpoolFile
from broadsheet.journal.trimming import RETRY, Trim, offset_at
from broadsheet.keyspace.core.transaction import Delete
from broadsheet.message.framing import JSON_LINES, framed
from broadsheet.message.uuid import Clock, Flag, ProducerId, pack
from simulator.disk import SimDisk
from simulator.journalnode import Stored, status_of
from tests.journal.crash_histories import JOURNALS, NAME, TURNS_MAX, Running, Shelf, _idle, running
from tests.journal.test_damage import copy_of, flip
from tests.journal.test_healing import until as eventually
from tests.journal.test_unreadable_spool import checkpointed
from tests.support.hand import HandClock

KIB = 1 << 10
MINUTE = Duration(60 * SECOND)
SPEC = JournalSpec(name=NAME, fragment=FragmentSpec(length=KIB))
PIECE = 2 * KIB
"""Each append is a fragment of its own: it is longer than one may be."""


class DatedShelf(Shelf):
    """A store that tells when it got each object, and that fails where the test says."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(None, {})
        self.clock, self.dates = clock, dict[str, WallTime]()
        self.deletes_left: int | None = None
        """How many deletions it still takes; None: all."""
        self.lists_left: int | None = None
        """How many listings it still answers; None: all."""
        self.takes_indexes = True

    def at(self, _url: str) -> "DatedShelf":
        return self

    async def list(self, prefix: str) -> Sequence[Stored]:
        found = await super().list(prefix)
        if self.lists_left is not None:
            if not self.lists_left:
                raise OSError(errno.EIO, "the store lists nothing")
            self.lists_left -= 1
        for each in found:
            self.dates.setdefault(each.name, self.clock.wall())
        return [Stored(each.name, each.size_bytes, self.dates[each.name]) for each in found]

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        if name.endswith(".index") and not self.takes_indexes:
            raise OSError(errno.EIO, "the store takes no index")
        return await super().put_if_absent(name, body)

    async def delete(self, name: str) -> None:
        await self._wait()
        if self.deletes_left is not None:
            if not self.deletes_left:
                raise OSError(errno.EIO, "the store removes nothing")
            self.deletes_left -= 1
        await super().delete(name)


class World:
    """A disk, a clock and a store, over which a node is started several times."""

    def __init__(self) -> None:
        self.clock, self.disk = HandClock(), SimDisk()
        self.shelf = DatedShelf(self.clock)
        self.crashes: list[BaseException] = []
        self._starts = 0

    @asynccontextmanager
    async def node(
        self, *, is_last: bool = False, config: JournalsConfig = JOURNALS
    ) -> AsyncIterator[Running]:
        self._starts += 1
        async with running(
            self.disk, self.shelf, seed=self._starts, crashes=self.crashes, is_last=is_last, config=config
        ) as node:
            node.broker._context.time = node.broker._context.timers = self.clock
            yield node
        assert not self.crashes


async def append(
    node: Running, number: int, condition: Condition | None = None, *, name: JournalName = NAME
) -> bytes:
    replica = await node.broker.replica(name)
    content = bytes([number]) * PIECE
    run = UnaryAppend(content)
    replica.deliver(Submitted(run=run, count=1, length=PIECE, condition=condition))
    assert await status_of(run.answered) is Status.OK
    return content


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(TURNS_MAX):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never comes to this")


async def filled(node: Running, count: int) -> Replica:
    """A journal with `count` appends, of which all but the last are stored, and in the log no more."""
    for number in range(count):
        await append(node, number)
    replica = await node.broker.replica(NAME)
    await settled(node, replica, (count - 1) * PIECE)
    return replica


async def settled(node: Running, replica: Replica, stored_end: int) -> None:
    housekeeping = node.broker._slots[NAME].housekeeping
    assert housekeeping is not None
    await eventually(lambda: replica.index.end >= stored_end and not housekeeping._stored)


async def trimmed(node: Running, below: int) -> Trim:
    return await (await node.broker.trimming(NAME)).trim(ByteOffset(below))


async def content_from(replica: Replica, offset: int) -> bytes:
    return b"".join([each.data async for each in read(replica, ByteOffset(offset), None, block=False)])


def pieces(first: int, stop: int) -> bytes:
    return b"".join(bytes([number]) * PIECE for number in range(first, stop))


async def test_a_trim_removes_whole_fragments_and_a_restart_finds_none_of_them_again() -> None:
    """What begins below the offset and ends above it stays; the journal goes on as before."""
    world = World()
    async with world.node() as node:
        await node.broker.create(SPEC)
        replica = await filled(node, 6)

        assert await trimmed(node, 2 * PIECE + 1) == Trim(
            ByteOffset(2 * PIECE), "whole fragments are removed"
        )
        assert len(world.shelf.objects) == 3
        assert await content_from(replica, 2 * PIECE) == pieces(2, 6)
        with pytest.raises(Trimmed, match=f"the next that can be read is {2 * PIECE}"):
            await content_from(replica, 2 * PIECE - 1)
        assert await trimmed(node, PIECE) == Trim(ByteOffset(2 * PIECE), "")
    async with world.node(is_last=True) as node:
        replica, content = await node.content()
        assert (replica.begin, content, replica.stop_reason) == (2 * PIECE, pieces(2, 6), "")
        await append(node, 6)
        assert await content_from(replica, 4 * PIECE) == pieces(4, 7)


async def test_a_trim_waits_until_the_log_names_no_more_what_was_stored_last() -> None:
    """It asked its caller to try again in a moment."""
    world = World()
    async with world.node(is_last=True) as node:
        await node.broker.create(SPEC)
        for number in range(6):
            await append(node, number)
        replica = await node.broker.replica(NAME)
        await eventually(lambda: replica.index.end >= 5 * PIECE)
        assert (await trimmed(node, 4 * PIECE)) == Trim(ByteOffset(4 * PIECE), "")


async def test_the_newest_stored_fragment_stays_whatever_is_asked() -> None:
    """It tells where the journal ends, where the data directory is lost (J11)."""
    world = World()
    async with world.node(is_last=True) as node:
        await node.broker.create(SPEC)
        await filled(node, 4)
        assert await trimmed(node, 1 << 40) == Trim(ByteOffset(2 * PIECE), "the newest stored fragment stays")
        assert len(world.shelf.objects) == 1


async def test_what_is_not_stored_is_not_removed() -> None:
    """A spool file is the only copy."""
    world = World()
    async with world.node() as node:
        await node.broker.create(SPEC)
        await filled(node, 3)
        world.shelf.is_shut = True
        for number in range(3, 6):
            await append(node, number)
        with pytest.raises(StoreUnhealthy, match="repeat the call when it answers"):
            await trimmed(node, 1 << 40)
        world.shelf.is_shut = False
        assert await trimmed(node, 5 * PIECE) == Trim(ByteOffset(PIECE), "the newest stored fragment stays")
        assert (await node.content())[1] == pieces(1, 6)


async def test_a_trim_is_told_of_lost_registers_and_of_the_way_out() -> None:
    """It was told that the store had not answered, which the next trim would say for ever."""
    world = World()
    async with world.node() as node:
        await node.broker.create(SPEC)
        await filled(node, 4)
        await node.keyspace.transact([], [Delete(registers_key(NAME))])
    async with world.node(is_last=True) as node:
        with pytest.raises(RegistersUnknown, match=f"`broadsheet journals accept-loss {NAME}`"):
            await trimmed(node, 2 * PIECE)
        await node.broker.accept_loss(NAME, None, head=None, may_act=True, is_head_only=False)
        assert (await trimmed(node, 2 * PIECE)).begin == 2 * PIECE


async def test_what_a_store_did_not_remove_is_removed_when_it_does() -> None:
    """The reads are refused from the beginning: what was removed in part does not come and go."""
    world = World()
    async with world.node() as node:
        await node.broker.create(SPEC)
        replica = await filled(node, 6)
        world.shelf.deletes_left = 1
        with pytest.raises(StoreUnhealthy, match="may still have some of what was to be removed"):
            await trimmed(node, 3 * PIECE)
        assert (replica.begin, len(world.shelf.objects)) == (3 * PIECE, 4)
        world.shelf.deletes_left = None
        world.clock.advance(RETRY)
        await until(lambda: len(world.shelf.objects) == 2)
        assert (await node.content())[1] == pieces(3, 6)


async def test_an_index_that_a_store_did_not_remove_is_removed_when_it_does() -> None:
    """It was forgotten first: it stayed in the store until a trim after the next start."""
    world = World()

    def indexes() -> int:
        return sum(name.endswith(".index") for name in world.shelf.objects)

    async with world.node(is_last=True) as node:
        await node.broker.create(MESSAGES)
        for number in range(6):
            length = await message(node, 1, number, Flag.OUTSIDE)
        await at_rest(node)
        kept = indexes() - 2
        world.shelf.deletes_left = 3
        with pytest.raises(StoreUnhealthy):
            await trimmed(node, 3 * length)
        world.shelf.deletes_left = None
        world.clock.advance(RETRY)
        await until(lambda: indexes() == kept)


async def test_a_trim_that_a_kill_cut_off_leaves_a_journal_without_a_hole() -> None:
    """Those that end first go first. The next round removes the rest."""
    world = World()
    async with world.node() as node:
        await node.broker.create(SPEC)
        await filled(node, 6)
        world.shelf.deletes_left = 1
        with pytest.raises(StoreUnhealthy):
            await trimmed(node, 3 * PIECE)
    world.shelf.deletes_left = None
    async with world.node(is_last=True) as node:
        replica, content = await node.content()
        assert (replica.begin, content) == (PIECE, pieces(1, 6))
        assert (await trimmed(node, 3 * PIECE)).begin == 3 * PIECE
        assert (await node.content())[1] == pieces(3, 6)


async def test_a_fragment_whose_damaged_file_is_moved_aside_stays_while_the_log_names_it() -> None:
    """After a trim and kill -9 the next start missed it, and the journal took no appends."""
    world = World()
    async with world.node() as node:
        await node.broker.create(SPEC)
        world.shelf.is_shut = True
        for number in range(1, 5):
            await append(node, number)
        await checkpointed(node)
        await _idle()
        killed = copy_of(world.disk)
        world.shelf.is_shut = False
        await eventually(lambda: len(world.shelf.objects) == 3)
    world.disk = killed
    for name in sorted(name for name in killed.state.files if name.endswith(".spool"))[:2]:
        flip(killed, name, 100)
    async with world.node() as node:
        replica = await node.broker.replica(NAME)
        assert [each.begin for each in replica.closed] == [2 * PIECE], "the store's copies are served"
        assert (await trimmed(node, PIECE)).begin in (0, PIECE)
        killed, objects = copy_of(world.disk), {**world.shelf.objects}
        await settled(node, replica, 3 * PIECE)
        assert (await trimmed(node, PIECE)).begin == PIECE
    world.disk, world.shelf.objects = killed, objects
    async with world.node(is_last=True) as node:
        replica, content = await node.content()
        assert (replica.stop_reason, content) == ("", pieces(1, 5)[replica.begin :])
        await append(node, 5)


async def test_a_read_of_a_fragment_that_goes_meanwhile_is_told_so_and_not_of_damage() -> None:
    """The reader had found it in the index, and the store no longer had it."""
    world = World()
    async with world.node(is_last=True) as node:
        await node.broker.create(SPEC)
        replica = await filled(node, 4)
        getting = world.shelf.get
        is_asked = asyncio.Event()
        go_on = asyncio.Event()

        async def slow(name: str, begin: int = 0, end: int | None = None) -> bytes:
            is_asked.set()
            await go_on.wait()
            return await getting(name, begin, end)

        world.shelf.get = slow  # type: ignore[method-assign]
        reading = asyncio.create_task(read_chunk(replica, ByteOffset(10), ByteOffset(20)))
        await is_asked.wait()
        assert (await trimmed(node, 2 * PIECE)).begin == 2 * PIECE
        go_on.set()
        with pytest.raises(Trimmed, match="no fragment has offset 10"):
            await reading


async def test_a_retention_in_bytes_keeps_so_many_below_the_end() -> None:
    """Each fragment that is stored lets older ones go; a restart goes on with it."""
    world = World()
    spec = JournalSpec(name=NAME, fragment=FragmentSpec(length=KIB, retained_bytes=3 * PIECE))
    async with world.node() as node:
        await node.broker.create(spec)
        replica = await filled(node, 7)
        await append(node, 7)
        await until(lambda: replica.begin >= 5 * PIECE)
        assert (await node.content())[1] == pieces(5, 8)
    async with world.node(is_last=True) as node:
        replica, _ = await node.content()
        for number in range(8, 12):
            await append(node, number)
        await until(lambda: replica.begin >= 9 * PIECE)
        _, content = await node.content()
        assert content == pieces(replica.begin // PIECE, 12)
        assert len(content) >= 3 * PIECE


async def test_a_retention_in_time_removes_what_was_stored_longer_ago() -> None:
    """By the store's clock; the fragments of one journal go when their time has come, a restart or not."""
    world = World()
    spec = JournalSpec(name=NAME, fragment=FragmentSpec(length=KIB, retention=Duration(10 * MINUTE)))
    world.clock.at = type(world.clock.at)(10_000 * 600 * SECOND)
    async with world.node() as node:
        await node.broker.create(spec)
        replica = await filled(node, 3)
        await world.shelf.list("")
        world.clock.advance(Duration(6 * MINUTE))
        for number in range(3, 6):
            await append(node, number)
        await settled(node, replica, 5 * PIECE)
        await world.shelf.list("")
        assert replica.begin == 0
        world.clock.advance(Duration(5 * MINUTE))
        await until(lambda: replica.begin == 2 * PIECE)
        assert (await node.content())[1] == pieces(2, 6)
    world.clock.advance(Duration(60 * MINUTE))
    async with world.node(is_last=True) as node:
        replica = await node.broker.replica(NAME)
        await append(node, 6)
        world.clock.advance(Duration(20 * MINUTE))
        await until(lambda: replica.begin >= 4 * PIECE)
        assert (await node.content())[1] == pieces(replica.begin // PIECE, 7)


async def test_a_retention_that_a_store_cut_short_is_tried_again_soon() -> None:
    """It had noted when the next fragment is old enough: what was old stayed for a second time so long."""
    world = World()
    world.clock.at = type(world.clock.at)(10_000 * 600 * SECOND)
    spec = JournalSpec(name=NAME, fragment=FragmentSpec(length=KIB, retention=Duration(100 * MINUTE)))
    async with world.node(is_last=True) as node:
        await node.broker.create(spec)
        replica = await filled(node, 4)
        await world.shelf.list("")
        world.shelf.lists_left = 1
        world.clock.advance(Duration(100 * MINUTE + RETRY))
        await until(lambda: world.shelf.lists_left == 0)
        await _idle()
        world.shelf.lists_left = None
        world.clock.advance(RETRY)
        await until(lambda: replica.begin >= 2 * PIECE)


class Walked(list[SpoolFile]):
    """Closed spool files that note each walk over all of them."""

    walks = 0

    def __iter__(self) -> Iterator[SpoolFile]:
        self.walks += 1
        return super().__iter__()


async def test_a_retention_walks_over_no_closed_files_after_each_upload() -> None:
    """A store that was down leaves 65,536: to walk over them held the loop for milliseconds, for each one."""
    world = World()
    spec = JournalSpec(name=NAME, fragment=FragmentSpec(length=KIB, retained_bytes=3 * PIECE))
    async with world.node(is_last=True) as node:
        await node.broker.create(spec)
        replica = await filled(node, 7)
        await until(lambda: replica.begin >= 3 * PIECE)
        replica.closed = closed = Walked(replica.closed)
        trimming = await node.broker.trimming(NAME)
        for _ in range(10):
            trimming.consider()
            await _idle()
        await trimming.trim(ByteOffset(1 << 40))
        assert closed.walks == 0


async def test_the_open_fragment_of_a_slow_journal_is_closed_so_that_it_can_get_too_old() -> None:
    """It is never longer than a fragment may be: without this its content would stay for ever."""
    world = World()
    fragment = FragmentSpec(length=1 << 20, retention=Duration(10 * MINUTE))
    async with world.node(is_last=True) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=fragment))
        await append(node, 0)
        world.clock.advance(Duration(11 * MINUTE))
        await until(lambda: len(world.shelf.objects) == 1)


async def test_a_commit_journal_keeps_its_newest_commit_and_what_authors_read_before_it() -> None:
    """Its author says by the register `at` where that stands; START and PLAN read it (pipelines.6-8)."""
    world = World()
    count = COMMITS_BYTES // PIECE + 6
    spec = JournalSpec(name=NAME, fragment=FragmentSpec(length=KIB, retained_bytes=KIB))
    async with world.node() as node:
        await node.broker.create(spec)
        for number in range(count):
            at = str(number * PIECE)
            await append(node, number, Condition(union={"at": at, "author": "a"}))
        replica = await node.broker.replica(NAME)
        await settled(node, replica, (count - 1) * PIECE)
        await until(lambda: replica.begin > 0)
        newest = (count - 1) * PIECE
        assert newest - COMMITS_BYTES - PIECE <= replica.begin <= newest - COMMITS_BYTES
        found = await trimmed(node, 1 << 40)
        assert found.begin <= newest - COMMITS_BYTES
        assert "register at" in found.kept


async def test_the_offset_at_a_time_is_below_all_that_was_appended_since() -> None:
    """As near as the fragments tell, stored and open ones."""
    world = World()
    world.clock.at = type(world.clock.at)(1_000 * SECOND)
    async with world.node(is_last=True) as node:
        await node.broker.create(SPEC)
        replica = await filled(node, 3)
        await world.shelf.list("")
        world.clock.advance(MINUTE)
        for number in range(3, 5):
            await append(node, number)
        await settled(node, replica, 4 * PIECE)
        stored = await replica.store.stored_times(NAME)

        def at(seconds: int) -> int:
            return offset_at(replica, stored, WallTime(seconds * SECOND))

        assert (at(999), at(1_001), at(1_061)) == (0, 2 * PIECE, 4 * PIECE)


async def test_all_that_ask_for_an_offset_at_once_share_what_was_made_of_one_listing() -> None:
    """Each sorted the listing by itself: one that may only read let others wait for seconds (access.6)."""
    world = World()
    async with world.node(is_last=True) as node:
        await node.broker.create(SPEC)
        replica = await filled(node, 3)
        found = await asyncio.gather(*(replica.store.stored_times(NAME) for _ in range(100)))
        assert all(each is found[0] for each in found)
        assert await replica.store.stored_times(NAME) is not found[0]


async def test_a_retention_that_was_taken_back_while_the_store_listed_removes_nothing() -> None:
    """Whoever ended it had the answer that it had ended, and lost content by the former one (journals.32)."""
    world = World()
    async with world.node(is_last=True) as node:
        await node.broker.create(SPEC)
        replica = await filled(node, 6)
        listing, is_asked, go_on = world.shelf.list, asyncio.Event(), asyncio.Event()

        async def slow(prefix: str) -> Sequence[Stored]:
            is_asked.set()
            await go_on.wait()
            return await listing(prefix)

        world.shelf.list = slow  # type: ignore[method-assign]
        await node.broker.alter(NAME, None, SpecChange(retained_bytes=KIB))
        await is_asked.wait()
        await node.broker.alter(NAME, None, SpecChange(retained_bytes=3 * PIECE))
        go_on.set()
        await until(lambda: replica.begin > 0)
        assert replica.begin == 3 * PIECE
        assert (await node.content())[1] == pieces(3, 6)


async def test_a_journal_that_is_stopped_while_the_store_lists_loses_nothing_to_a_trim() -> None:
    """J11: its producer index told of a greater offset, of a newer data directory; the trim went on."""
    world = World()
    async with world.node(is_last=True) as node:
        await node.broker.create(SPEC)
        replica = await filled(node, 4)
        listing, is_asked, go_on = world.shelf.list, asyncio.Event(), asyncio.Event()

        async def slow(prefix: str) -> Sequence[Stored]:
            is_asked.set()
            await go_on.wait()
            return await listing(prefix)

        world.shelf.list = slow  # type: ignore[method-assign]
        trimming, stored = asyncio.ensure_future(trimmed(node, 2 * PIECE)), dict(world.shelf.objects)
        await is_asked.wait()
        replica.on_named(ByteOffset(9 * PIECE))
        go_on.set()
        with pytest.raises(StoreUnhealthy, match=r"nothing of it is removed now: .* names offset"):
            await trimming
        assert (replica.begin, world.shelf.objects) == (0, stored)


async def test_between_two_removals_of_one_journal_others_store_their_fragments() -> None:
    """Two journals with 100,000 fragments to remove let nobody else store any for minutes (access.6)."""
    world, other = World(), JournalName("crash/other")
    config = msgspec.structs.replace(JOURNALS, uploads_max=1)
    async with world.node(is_last=True, config=config) as node:
        await node.broker.create(SPEC)
        await node.broker.create(JournalSpec(name=other, fragment=FragmentSpec(length=KIB)))
        await filled(node, 6)
        deleting, is_asked, go_on = world.shelf.delete, asyncio.Event(), asyncio.Event()
        left: list[int] = []

        async def slow(name: str) -> None:
            is_asked.set()
            await go_on.wait()
            left.append(sum(each.startswith(other) for each in world.shelf.objects))
            await deleting(name)

        world.shelf.delete = slow  # type: ignore[method-assign]
        await node.broker.alter(NAME, None, SpecChange(retained_bytes=KIB))
        await is_asked.wait()
        for number in range(2):
            await append(node, number, name=other)
        go_on.set()
        await until(lambda: len(left) == 4)
        assert left == [0, 1, 1, 1]


async def test_of_trims_whose_callers_have_left_one_is_left_behind() -> None:
    """A store that is slow lets them wait, and each that left stayed in memory."""
    world = World()
    async with world.node(is_last=True) as node:
        await node.broker.create(SPEC)
        await filled(node, 6)
        trimming, housekeeping = await node.broker.trimming(NAME), node.broker._slots[NAME].housekeeping
        assert housekeeping is not None
        listing, is_asked, go_on = world.shelf.list, asyncio.Event(), asyncio.Event()

        async def slow(prefix: str) -> Sequence[Stored]:
            is_asked.set()
            await go_on.wait()
            return await listing(prefix)

        world.shelf.list = slow  # type: ignore[method-assign]
        callers = [asyncio.create_task(trimming.trim(ByteOffset(2 * PIECE))) for _ in range(100)]
        await is_asked.wait()
        for each in callers:
            each.cancel()
        await asyncio.wait(callers)
        later = asyncio.create_task(trimming.trim(ByteOffset(3 * PIECE)))
        await asyncio.sleep(0)
        assert [each for each in housekeeping._tasks if ".trim." in each.get_name()] == [
            trimming._asked._last
        ]
        go_on.set()
        assert (await later).begin == 3 * PIECE


@pytest.mark.parametrize(
    "fragment",
    [
        FragmentSpec(retention=Duration(SECOND)),
        FragmentSpec(retained_bytes=1),
        FragmentSpec(retained_bytes=-1),
    ],
)
async def test_a_retention_that_would_remove_everything_at_once_is_refused(fragment: FragmentSpec) -> None:
    """A minute, and the shortest fragment, are the least."""
    with pytest.raises(InvalidArgument, match="0, or"):
        validate_spec(JournalSpec(name=NAME, fragment=fragment))


MESSAGES = msgspec.structs.replace(SPEC, labels={FRAMING_LABEL: "json-lines"})


async def message(node: Running, producer: int, clock: int, flag: Flag) -> int:
    """Append a message, which is a fragment of its own; returns its length."""
    uuid = pack(ProducerId((1 << 40) + producer), Clock((1 << 60) + clock), flag)
    content = framed(JSON_LINES, uuid, b'{"x":"' + b"y" * PIECE + b'"}\n')
    replica = await node.broker.replica(NAME)
    run = UnaryAppend(content)
    replica.deliver(Submitted(run=run, count=1, length=len(content)))
    assert await status_of(run.answered) is Status.OK
    return len(content)


async def at_rest(node: Running) -> Replica:
    """The journal, when all but its last fragment are stored, and in the log no more."""
    replica = await node.broker.replica(NAME)
    await settled(node, replica, replica.spool.begin)
    await _idle()
    return replica


async def point_at(node: Running, offset: int) -> int:
    """The index point that a reader who begins at `offset` is given."""
    return (await (await node.broker.indexing(NAME)).at(ByteOffset(offset))).offset


async def test_a_trim_keeps_all_behind_an_index_of_too_many_producers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It removed the last index point, and no reader of committed messages could begin anywhere any more."""
    monkeypatch.setattr(producer_indexing, "PRODUCERS_MAX", 3)
    world = World()
    async with world.node() as node:
        await node.broker.create(MESSAGES)
        lengths = [await message(node, number, 0, Flag.OUTSIDE) for number in range(7)]
        replica, last = await at_rest(node), sum(lengths[:3])
        assert await point_at(node, replica.end) == last

        found = await trimmed(node, replica.end)
        assert found.begin == last
        assert "readers look for themselves from its last index point on" in found.kept
        assert found.kept.endswith("publish to another journal")
        assert await point_at(node, replica.end) == last
    async with world.node(is_last=True) as node:
        replica = await node.broker.replica(NAME)
        assert (await trimmed(node, replica.end)).begin == last
        assert await point_at(node, replica.end) == last


async def test_behind_content_that_no_reader_passes_a_trim_lets_the_index_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Readers of committed messages were refused what came later for ever, also when the content was gone."""
    monkeypatch.setattr(producer_indexing, "FRAME_BYTES_MAX", 2 * PIECE)
    world = World()
    async with world.node() as node:
        await node.broker.create(MESSAGES)
        length = await message(node, 1, 0, Flag.OUTSIDE)
        for number in range(5):
            await append(node, number)
        bad_end = length + 5 * PIECE
        for number in range(3):
            await message(node, 1, number + 1, Flag.OUTSIDE)
        replica = await at_rest(node)
        assert await point_at(node, replica.end) == length
        assert "its producer index has ended" in node.broker.status(NAME).reason

        found = await trimmed(node, length + PIECE)
        assert (found.begin, await point_at(node, replica.end)) == (length, length)
        assert "no frame ends within" in found.kept

        assert await trimmed(node, bad_end) == Trim(ByteOffset(bad_end), "")
        assert (await point_at(node, bad_end), node.broker.status(NAME).reason) == (bad_end, "")
        await message(node, 1, 4, Flag.OUTSIDE)
        replica = await at_rest(node)
        assert await point_at(node, replica.end) == bad_end + 3 * length
    async with world.node(is_last=True) as node:
        replica = await node.broker.replica(NAME)
        assert (replica.begin, await point_at(node, replica.end)) == (bad_end, bad_end + 3 * length)


async def six_messages(node: Running) -> int:
    """The bytes of each of six messages, all of them committed and indexed."""
    await node.broker.create(MESSAGES)
    for number in range(6):
        length = await message(node, 1, number, Flag.OUTSIDE)
    await at_rest(node)
    return length


async def test_a_journal_does_not_begin_at_an_index_that_is_damaged() -> None:
    """A trim removed the ones before it: readers were refused up to the next undamaged one."""
    world = World()
    async with world.node(is_last=True) as node:
        length = await six_messages(node)
        indexes = sorted(name for name in world.shelf.objects if name.endswith(".index"))
        world.shelf.objects[indexes[2]] = b"damaged"
        found = await trimmed(node, 3 * length)
        assert (found.begin, await point_at(node, 3 * length)) == (2 * length, 2 * length)
        assert "readers of committed messages" in found.kept
        assert (await trimmed(node, 4 * length)) == Trim(ByteOffset(4 * length), "")


async def test_a_journal_whose_indexes_a_copy_of_its_store_left_out_says_how_readers_go_on() -> None:
    """A copy of `*` leaves out `.broadsheet`. It named index points, and there was none any more."""
    world = World()
    async with world.node() as node:
        await node.broker.create(MESSAGES)
        for number in range(5):
            length = await message(node, 1, number, Flag.OUTSIDE)
        await at_rest(node)
        assert (await trimmed(node, 2 * length)).begin == 2 * length
    left_out = {name: body for name, body in world.shelf.objects.items() if name.startswith(".broadsheet/")}
    for name in left_out:
        del world.shelf.objects[name]
    async with world.node() as node:
        await message(node, 1, 5, Flag.OUTSIDE)
        replica = await at_rest(node)
        with pytest.raises(Corrupt, match=f"journals export {NAME}` and `broadsheet journals import`"):
            await point_at(node, replica.end)
        assert f"Put the files of .broadsheet/{NAME}/ back" in node.broker.status(NAME).reason
    world.shelf.objects |= left_out
    async with world.node(is_last=True) as node:
        replica = await at_rest(node)
        assert await point_at(node, replica.end) >= 4 * length
        assert node.broker.status(NAME).reason == ""


async def test_a_reader_of_an_index_that_goes_meanwhile_is_told_so_and_not_of_damage() -> None:
    """It was told that the index is missing: a query that goes on behind a trim ended."""
    world = World()
    async with world.node(is_last=True) as node:
        length = await six_messages(node)
        indexing = await node.broker.indexing(NAME)
        found = await indexing.at(ByteOffset(length))
        assert await indexing.part(found, 0, 4)
        assert (await trimmed(node, 3 * length)).begin == 3 * length

        with pytest.raises(Trimmed, match=f"no fragment has offset {length}"):
            await indexing.part(found, 4, found.size)


async def test_a_span_that_is_open_at_the_newest_index_stays_if_a_later_one_was_not_stored() -> None:
    """The index in memory knew that it was decided, and that of the readers did not."""
    world = World()
    async with world.node(is_last=True) as node:
        await node.broker.create(MESSAGES)
        length = await message(node, 1, 0, Flag.OUTSIDE)
        await message(node, 2, 0, Flag.CONTINUE)
        await message(node, 1, 1, Flag.OUTSIDE)
        await at_rest(node)
        assert await point_at(node, 2 * length) == 2 * length

        world.shelf.takes_indexes = False
        await message(node, 2, 0, Flag.ACK)
        await message(node, 1, 2, Flag.OUTSIDE)
        replica = await at_rest(node)
        assert await point_at(node, replica.end) == 2 * length
        assert (await trimmed(node, 2 * length)).begin == length
