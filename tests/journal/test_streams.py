"""Streamed appends: staged beside the tail, whole or nothing, and nobody waits for their clients."""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import msgspec
import pytest

from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.base.types import ByteOffset, JournalName
from broadsheet.errors import Status, StoreUnhealthy, Throttled
from broadsheet.journal.core.pipeline_events import Submitted
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.journal.replica import Replica
from broadsheet.journal.service import UnaryAppend
from broadsheet.journal.staging_area import DIRECTORY, SLICE_BYTES, Staged, StagedBy, StagingArea
from broadsheet.journal.streamed_append import Phase, StreamedAppend
from broadsheet.ports import Disk
from simulator.disk import SimDisk
from simulator.journalnode import status_of
from tests.journal.crash_histories import JOURNALS, NAME, Running, Shelf, _idle, running
from tests.journal.test_flush_interval import until
from tests.support.faulty import Fault, FaultyDisk

LARGE = b"large " * 40_000
S = TypeVar("S")


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
async def node(disk: SimDisk) -> AsyncIterator[Running]:
    crashes: list[BaseException] = []
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME))
        yield node
    assert not crashes


async def append(replica: Replica, content: bytes) -> tuple[Status, int]:
    """One small append that is taken: its status, and where it begins."""
    run = UnaryAppend(content)
    replica.deliver(Submitted(run=run, count=1, length=len(content)))
    commit = await asyncio.wait_for(run.answered, 5)
    return Status.OK, commit.begin


async def test_appends_go_on_while_a_stream_comes_and_it_takes_its_place_behind_them(node: Running) -> None:
    """journals.17: a client that sends its content slowly stopped the journal for everybody else."""
    replica = await node.broker.replica(NAME)
    stream = StreamedAppend(replica, 1, None)
    await stream.begun
    stream.put(LARGE)

    assert await append(replica, b"others ") == (Status.OK, 0)
    stream.put(b"end")
    assert await append(replica, b"go on ") == (Status.OK, 7)
    stream.finish()
    assert (await stream.answered).begin == 13
    assert (await node.content())[1] == b"others go on " + LARGE + b"end"


async def test_a_stream_that_ends_early_leaves_nothing_anywhere(node: Running, disk: SimDisk) -> None:
    """J3: neither in the journal nor on the disk, and its client may be told that for certain."""
    replica = await node.broker.replica(NAME)
    for number, status in enumerate((Status.CANCELLED, Status.TOO_SLOW)):
        stream = StreamedAppend(replica, number, None)
        await stream.begun
        stream.put(LARGE)
        assert disk.list(DIRECTORY) != []
        stream.abort(status)
        assert await status_of(stream.answered) is status
        await until(lambda: disk.list(DIRECTORY) == [])
        assert stream.phase is Phase.DONE

    assert (replica.end, replica.spool.length, replica.streamed_appends) == (0, 0, {})
    assert (replica.context.staging.count, replica.context.staging.length) == (0, 0)


async def test_a_client_that_leaves_while_its_content_is_copied_leaves_nothing(node: Running) -> None:
    """J3: the spool is as it was, and the next append begins where this one would have."""
    replica = await node.broker.replica(NAME)
    stream = StreamedAppend(replica, 1, None)
    await stream.begun
    for _ in range(3):
        stream.put(b"x" * SLICE_BYTES)
    stream.finish()
    await asyncio.sleep(0)
    assert (stream.phase, replica.spool.length > 0) == (Phase.PLACING, True)
    stream.fail(Status.CANCELLED)

    assert await status_of(stream.answered) is Status.CANCELLED
    assert await append(replica, b"next") == (Status.OK, 0)
    assert (await node.content())[1] == b"next"


async def test_staged_content_that_was_damaged_is_not_appended(node: Running, disk: SimDisk) -> None:
    """W4: it is read back from a file, and a flipped bit must not become the journal's content."""
    replica = await node.broker.replica(NAME)
    stream = StreamedAppend(replica, 1, None)
    await stream.begun
    stream.put(LARGE)
    (name,) = disk.list(DIRECTORY)
    disk.open(f"{DIRECTORY}/{name}").write_at(7, (b"X",))
    stream.finish()

    assert await status_of(stream.answered) is Status.CORRUPT
    assert await append(replica, b"next") == (Status.OK, 0)


async def test_a_staged_file_that_the_disk_cannot_read_ends_no_node() -> None:
    """One bad sector below content that nobody was promised ended the process."""
    disk, crashes = SimDisk(), list[BaseException]()
    faulty = FaultyDisk(disk, [Fault("read_at", error=errno.EIO, name=f"{DIRECTORY}/*")])
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, faulty=faulty) as node:
        await node.broker.create(JournalSpec(name=NAME))
        replica = await node.broker.replica(NAME)
        stream = StreamedAppend(replica, 1, None)
        await stream.begun
        stream.put(LARGE)
        stream.finish()
        assert await status_of(stream.answered) is Status.CORRUPT
        assert await append(replica, b"small") == (Status.OK, 0)
    assert not crashes


async def test_a_failed_sync_ends_the_node_also_if_the_client_has_gone_meanwhile() -> None:
    """W5: nobody waited for this sync any more, and the node went on to acknowledge appends."""
    disk, crashes = SimDisk(), list[BaseException]()
    faulty = FaultyDisk(disk)
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, faulty=faulty) as node:
        await node.broker.create(JournalSpec(name=NAME))
        replica = await node.broker.replica(NAME)
        slow = Duration(50 * MILLISECOND)
        faulty.plan(Fault("flush", error=errno.EIO, name="*.spool", times=1, delay=slow))
        stream = StreamedAppend(replica, 1, None)
        await stream.begun
        stream.put(LARGE)
        stream.finish()
        await until(lambda: "flush" in faulty.faults.faults_hit)
        placing = next(task for task in asyncio.all_tasks() if task.get_name().endswith(f".place.{NAME}"))
        stream.fail(Status.CANCELLED)
        assert await status_of(stream.answered) is Status.CANCELLED
        await asyncio.wait_for(placing, 5)
    assert [each.errno for each in crashes if isinstance(each, OSError)] == [errno.EIO]


async def test_a_checkpoint_is_made_between_streams(node: Running) -> None:
    """A journal that gets nothing but streams must let go of its log too."""
    replica = await node.broker.replica(NAME)
    for number in range(3):
        stream = StreamedAppend(replica, number, None)
        await stream.begun
        stream.put(LARGE)
        stream.finish()
        assert await status_of(stream.answered) is Status.OK

    assert replica.log_bytes < len(LARGE)


async def test_a_full_disk_refuses_the_stream_and_nothing_else(node: Running, disk: SimDisk) -> None:
    """journals.20: whether its content is on its way, or being copied to the tail."""
    replica = await node.broker.replica(NAME)
    whole, coming = (StreamedAppend(replica, number, None) for number in (1, 2))
    await whole.begun
    whole.put(LARGE)
    await coming.begun
    disk.state.health.is_full = True
    whole.finish()
    assert await status_of(whole.answered) is Status.STORE_UNHEALTHY
    coming.put(LARGE)
    assert await status_of(coming.answered) is Status.STORE_UNHEALTHY
    disk.state.health.is_full = False

    assert await append(replica, b"goes on") == (Status.OK, 0)
    await until(lambda: disk.list(DIRECTORY) == [])
    assert (replica.context.staging.count, replica.context.staging.length) == (0, 0)


async def test_a_restart_removes_what_was_staged(disk: SimDisk) -> None:
    """It was acknowledged to nobody; without that a node that is killed often fills its disk."""
    crashes: list[BaseException] = []
    disk.make_dir(DIRECTORY)
    disk.open(f"{DIRECTORY}/left", create=True).write_at(0, (b"x" * 1000,))
    disk.make_dir(f"{DIRECTORY}/theirs")  # It ended every start.
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes):
        assert disk.list(DIRECTORY) == ["theirs"]
    assert not crashes


def test_what_all_streams_stage_is_bounded(disk: SimDisk) -> None:
    """Each holds a file; the bound is told with the name of its setting."""
    area = StagingArea(disk, JOURNALS, spawn=lambda work: work.close())
    area.clear()
    area._count_max, area._bytes_max = 2, 1000
    first, second = area.open(), area.open()
    with pytest.raises(Throttled, match="staged_count_max"):
        area.open()
    first.put(b"x" * 600)
    with pytest.raises(Throttled, match="staged_bytes_max"):
        second.put(b"y" * 600)
    assert second.length == 0
    first.close()
    first.close()
    second.put(b"y" * 600)
    assert b"".join(second.slices()) == b"y" * 600
    assert (area.count, area.length) == (1, ByteOffset(600))


def until_throttled(step: Callable[[], S]) -> list[S]:
    """What `step` gave before it was refused."""
    found = []
    with contextlib.suppress(Throttled):
        while True:
            found.append(step())
    return found


def test_a_caller_and_a_connection_of_it_stage_no_more_than_they_leave_free(disk: SimDisk) -> None:
    """One connection that opened 256 streams and sent a little on each kept everybody else's uploads out."""
    area = StagingArea(disk, JOURNALS, spawn=lambda work: work.close())
    area.clear()
    area._count_max, area._bytes_max, area.memory_bytes = 120, 12_000, 1
    held: list[Staged] = []

    def fill(by: StagedBy) -> int:
        before = len(held)
        held.extend(until_throttled(lambda: area.open(by)))
        with pytest.raises(Throttled, match="share of staged_count_max"):
            area.open(by)
        return len(held) - before

    assert fill(StagedBy("a", 1)) == 40, "a connection has a third"
    assert fill(StagedBy("a", 2)) > 10, "another connection of it finds room"
    assert fill(StagedBy("b", 3)) > 10, "so does another caller"
    until_throttled(lambda: held[0].put(b"x" * 100))
    with pytest.raises(Throttled, match="share of staged_bytes_max"):
        held[0].put(b"x" * 100)
    assert held[0].length == 4_000, "a third of the bytes"
    held[-1].put(b"y" * 100)
    for each in held:
        each.close()
    assert (area.count, area.length, area._used) == (0, 0, {})


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOENT])
async def test_a_staged_file_that_cannot_be_removed_just_now_ends_nothing(error: int) -> None:
    """Its removal was part of the answer: without a descriptor the node ended instead of answering."""
    disk, crashes = SimDisk(), list[BaseException]()
    faulty = FaultyDisk(disk)
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, faulty=faulty) as node:
        await node.broker.create(JournalSpec(name=NAME))
        replica = await node.broker.replica(NAME)
        faulty.plan(Fault("remove", error=error, name=f"{DIRECTORY}/*", times=2))
        for number in (1, 2):
            stream = StreamedAppend(replica, number, None)
            await stream.begun
            stream.put(LARGE)
            stream.finish()
            status = await status_of(asyncio.wait_for(stream.answered, 5))
            assert status is Status.OK
        await until(lambda: not replica.context.staging._is_removing)
        StreamedAppend(replica, 3, None).fail(Status.CANCELLED)
        if error != errno.ENOENT:
            await until(lambda: disk.list(DIRECTORY) == [])
    assert not crashes


class Threads(FaultyDisk):
    """A disk that knows what was removed by a thread of `run`, and what on the loop."""

    def __init__(self, inner: Disk) -> None:
        super().__init__(inner)
        self.is_running = False
        self.removed: list[bool] = []

    async def run(self, work: Callable[[], S]) -> S:
        """As `Disk.run`."""

        def working() -> S:
            self.is_running = True
            try:
                return work()
            finally:
                self.is_running = False

        return await super().run(working)

    def remove(self, name: str) -> None:
        """As `Disk.remove`."""
        if name.startswith(DIRECTORY):
            self.removed.append(self.is_running)
        super().remove(name)


async def test_staged_files_are_not_removed_on_the_loop() -> None:
    """A client that gave up 24 uploads of 60 MiB at once held the node for 80 ms."""
    disk, crashes = SimDisk(), list[BaseException]()
    watched = Threads(disk)
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, faulty=watched) as node:
        await node.broker.create(JournalSpec(name=NAME))
        replica = await node.broker.replica(NAME)
        streams = [StreamedAppend(replica, number, None) for number in range(5)]
        for stream in streams:
            await stream.begun
            stream.put(LARGE)
        for stream in streams:
            stream.fail(Status.CANCELLED)
        await until(lambda: disk.list(DIRECTORY) == [])
    assert watched.removed == [True] * 5
    assert not crashes


async def test_appends_that_become_whole_at_once_are_copied_one_slice_in_a_turn(node: Running) -> None:
    """Ninety uploads of 6 MiB to journals of their own, which ended in one moment, held a node for 1.5 s."""
    replicas = []
    for number in range(10):
        name = JournalName(f"whole/{number}")
        await node.broker.create(JournalSpec(name=name))
        replicas.append(await node.broker.replica(name))
    streams = [StreamedAppend(replica, number, None) for number, replica in enumerate(replicas)]
    for stream in streams:
        await stream.begun
        stream.put(LARGE)
    for stream in streams:
        stream.finish()
    most = before = 0
    while before < len(replicas):
        await asyncio.sleep(0)
        copied = sum([replica.spool.length > 0 for replica in replicas])
        most, before = max(most, copied - before), copied
    for stream in streams:
        assert (await stream.answered).begin == 0

    assert most == 1


class HookedDisk(FaultyDisk):
    """A disk that calls somebody, once, when a directory is synced."""

    def __init__(self, inner: Disk) -> None:
        super().__init__(inner)
        self.hooks: dict[str, Callable[[], None]] = {}

    def sync_dir(self, name: str) -> None:
        """As `Disk.sync_dir`."""
        self.hooks.pop(name, lambda: None)()
        super().sync_dir(name)


IMPATIENT = msgspec.structs.replace(JOURNALS, descriptor_wait=Duration(100 * MILLISECOND))
NO_ROLL = Fault("open", error=errno.EMFILE, name="journals/spool/*")


@contextlib.asynccontextmanager
async def full_fragment() -> AsyncIterator[tuple[Replica, FaultyDisk]]:
    """A journal whose next append needs another file, which it awaits for 0.1 s."""
    crashes: list[BaseException] = []
    disk = SimDisk()
    faulty, shelf = FaultyDisk(disk), Shelf(None, {})
    async with running(disk, shelf, seed=1, crashes=crashes, config=IMPATIENT, faulty=faulty) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 10)))
        replica = await node.broker.replica(NAME)
        assert await append(replica, b"x" * 2000) == (Status.OK, 0)
        yield replica, faulty
    assert not crashes


async def test_a_refusal_for_want_of_a_file_lets_go_of_the_tail_that_waits_behind_it() -> None:
    """The stream behind the refused append owned the tail for good: every append and register read hung."""
    async with full_fragment() as (replica, faulty):
        stream = StreamedAppend(replica, 1, None)
        await stream.begun
        stream.put(b"small")
        faulty.plan(NO_ROLL)
        rolls = UnaryAppend(b"rolls")
        replica.deliver(Submitted(run=rolls, count=1, length=5))
        stream.finish()

        with pytest.raises(StoreUnhealthy, match=r"no file could be opened.*ulimit -n"):
            await rolls.answered
        assert await status_of(asyncio.wait_for(stream.answered, 5)) is Status.STORE_UNHEALTHY
        faulty.plan()
        assert await append(replica, b"goes on") == (Status.OK, 2000)


async def test_a_stream_that_finds_no_file_for_the_next_fragment_is_placed_when_one_is_free() -> None:
    """journals.20: its client has sent all of its content, and waits as a small append does."""
    disk, crashes = SimDisk(), list[BaseException]()
    faulty = FaultyDisk(disk)
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, faulty=faulty) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 10)))
        replica = await node.broker.replica(NAME)
        assert await append(replica, b"x" * 2000) == (Status.OK, 0)
        stream = StreamedAppend(replica, 1, None)
        await stream.begun
        stream.put(b"small")
        faulty.plan(NO_ROLL)
        stream.finish()
        await asyncio.sleep(0.01)
        assert not stream.answered.done()
        faulty.plan()
        assert await status_of(asyncio.wait_for(stream.answered, 5)) is Status.OK
    assert not crashes


async def test_an_append_that_a_refusal_for_want_of_a_file_lets_in_waits_for_a_file_itself() -> None:
    """It was refused at once, for a wait that had not begun, and so were all that a client sent behind it."""
    async with full_fragment() as (replica, faulty):
        next_one = UnaryAppend(b"next")

        class Followed(UnaryAppend):
            """The wire takes its connection's next frame when this is answered."""

            def answer(self, status: Status, begin: ByteOffset, end: ByteOffset, message: str) -> None:
                super().answer(status, begin, end, message)
                replica.deliver(Submitted(run=next_one, count=1, length=4))

        faulty.plan(NO_ROLL)
        first = Followed(b"rolls")
        for run in (first, UnaryAppend(b"waits")):
            replica.deliver(Submitted(run=run, count=1, length=5))
        assert await status_of(first.answered) is Status.STORE_UNHEALTHY
        await asyncio.sleep(0.02)
        faulty.plan()

        assert await status_of(next_one.answered) is Status.OK


async def test_no_checkpoint_vouches_for_a_placed_stream_that_the_log_has_not() -> None:
    """J2: the stream was refused later, and the checkpoint hid the acknowledged append in its place.

    Its file had come to rest between its sync and its record, while another journal waited for a descriptor.
    """
    disk, crashes, names = SimDisk(), list[BaseException](), [NAME, JournalName("waits/j")]
    faulty = HookedDisk(disk)
    shelf = Shelf(None, {})
    async with running(
        disk, shelf, seed=1, crashes=crashes, is_last=False, config=IMPATIENT, faulty=faulty
    ) as node:
        for name in names:
            await node.broker.create(JournalSpec(name=name, fragment=FragmentSpec(length=1 << 10)))
        replica, waits = [await node.broker.replica(name) for name in names]
        assert await append(waits, b"x" * 2000) == (Status.OK, 0)
        stream = StreamedAppend(replica, 1, None)
        await stream.begun
        stream.put(b"stream" * 100)

        def starve() -> None:
            faulty.plan(NO_ROLL)
            waits.deliver(Submitted(run=UnaryAppend(b"rolls"), count=1, length=5))
            replica.context.spools.relieve()
            assert not replica.spool.file.is_open  # type: ignore[attr-defined]  # It is synced and idle.

        faulty.hooks[replica.directory] = starve
        stream.finish()
        for _ in range(1000):
            if stream.phase in {Phase.PLACED, Phase.DONE}:
                break
            await asyncio.sleep(0)
        housekeeping = node.broker._slots[NAME].housekeeping
        assert housekeeping is not None
        housekeeping.checkpoint()
        await _idle()
        await asyncio.wait_for(stream.answered, 5)
        faulty.plan()
        assert (await append(replica, b"acknowledged"))[0] is Status.OK
        shown = (await node.content())[1]
        assert shown.endswith(b"acknowledged")
    async with running(disk, shelf, seed=2, crashes=crashes) as node:
        assert (await node.content())[1] == shown
    assert not crashes


async def test_a_stream_that_is_given_up_in_the_turn_in_which_it_gets_the_tail_puts_nothing(
    node: Running,
) -> None:
    """What is staged is dropped then: a copy of it was begun all the same, of a file that was closed."""
    replica = await node.broker.replica(NAME)
    stream = StreamedAppend(replica, 1, None)
    await stream.begun
    for at in range(0, len(LARGE), SLICE_BYTES):
        stream.put(LARGE[at : at + SLICE_BYTES])
    stream.finish()
    assert stream.is_placing

    stream.fail(Status.CANCELLED)

    assert await status_of(stream.answered) is Status.CANCELLED
    await _idle()
    assert await append(replica, b"next") == (Status.OK, 0)
