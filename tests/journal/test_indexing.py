"""Producer indexes come of the journal's bytes: a damaged one stops nobody, a deleted journal leaves none."""

import asyncio
import errno
import tracemalloc
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pytest

from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.base.types import Buffer, ByteOffset, JournalName
from broadsheet.errors import Corrupt, ShuttingDown, Status, Throttled
from broadsheet.journal import producer_indexing, service
from broadsheet.journal.core.pipeline_events import Submitted
from broadsheet.journal.core.spec import FRAMING_LABEL, FragmentSpec, JournalSpec
from broadsheet.journal.index_memory import IndexMemory
from broadsheet.journal.messages import (
    IndexPointsReply,
    IndexPointsRequest,
    ProducerIndexReply,
    ProducerIndexRequest,
)
from broadsheet.journal.service import UnaryAppend
from broadsheet.message.framing import JSON_LINES, framed
from broadsheet.message.stored_index import decode
from broadsheet.message.uuid import Clock, Flag, ProducerId, pack
from broadsheet.runtime.waiting_line import WOKEN_MAX
from simulator.disk import SimDisk
from simulator.journalnode import status_of
from tests.journal.crash_histories import JOURNALS, Running, Shelf, Stored, _idle, _until, running
from tests.support.faulty import Fault, FaultyDisk

NAME: Final = JournalName("index/a")
SPEC: Final = JournalSpec(
    name=NAME, fragment=FragmentSpec(length=1 << 10), labels={FRAMING_LABEL: "json-lines"}
)
LINE: Final = b'{"x":"' + b"y" * 1500 + b'"}\n'
"""Longer than a fragment: each append closes the one before, and so makes an index point."""


class SlowShelf(Shelf):
    """A store that is down at first, and then takes its time for a put, whoever waits for it or not."""

    is_down = False
    gate: asyncio.Event | None = None
    held = 0

    async def list(self, prefix: str) -> Sequence[Stored]:
        if self.is_down and prefix.startswith(".broadsheet"):
            raise OSError("the store is down")
        return await super().list(prefix)

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        if self.gate is not None and name.endswith(".index"):
            putting = asyncio.ensure_future(self._put_late(self.gate, name, list(body)))
            return await asyncio.shield(putting)
        return await super().put_if_absent(name, body)

    async def _put_late(self, gate: asyncio.Event, name: str, body: Iterable[Buffer]) -> bool:
        self.held += 1
        await gate.wait()
        return await super().put_if_absent(name, body)


async def _append(node: Running, count: int) -> None:
    replica = await node.broker.replica(NAME)
    for _ in range(count):
        run = UnaryAppend(LINE)
        replica.deliver(Submitted(run=run, count=1, length=len(LINE)))
        status = await status_of(run.answered)
        assert status is Status.OK
    await _idle()


async def _lived(shelf: Shelf, count: int, crashes: list[BaseException]) -> SimDisk:
    """The disk of a node that has closed, after it appended to a journal."""
    disk = SimDisk()
    async with running(disk, shelf, seed=1, crashes=crashes, is_last=False) as node:
        await node.broker.create(SPEC)
        await _append(node, count)
    return disk


async def _point(node: Running, offset: int) -> int:
    """The index point that a reader who begins at `offset` is given."""
    indexing = await node.broker.indexing(NAME)
    found = await indexing.at(ByteOffset(offset))
    assert bool(found.size) == bool(found.offset)
    return found.offset


def _indexes(shelf: Shelf) -> list[str]:
    return sorted(name for name in shelf.objects if name.endswith(".index"))


def _damage(shelf: Shelf, name: str) -> None:
    body = bytearray(shelf.objects[name])
    body[20] = (body[20] + 1) % 256
    shelf.objects[name] = bytes(body)


async def test_a_damaged_index_is_passed_over() -> None:
    """One bit of a side file stopped every query above it for good, and the index grew no more."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Shelf(None, {})
    async with running(disk, shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(SPEC)
        await _append(node, 4)
        assert await _point(node, 4 * len(LINE)) == 3 * len(LINE)

        _damage(shelf, _indexes(shelf)[2])
        assert await _point(node, 4 * len(LINE)) == 2 * len(LINE)
        del shelf.objects[_indexes(shelf)[1]]
        assert await _point(node, 4 * len(LINE)) == len(LINE)
    async with running(disk, shelf, seed=2, crashes=crashes) as node:
        await _append(node, 4)
        assert await _point(node, 4 * len(LINE) - 1) == 2 * len(LINE), "it was made again"
        assert await _point(node, 8 * len(LINE) - 1) == 7 * len(LINE)

        for name in _indexes(shelf):
            _damage(shelf, name)
        assert await _point(node, 8 * len(LINE)) == 0
    assert not crashes


async def test_each_stored_index_names_the_one_before_it_and_the_first_names_none() -> None:
    """Whoever makes the files, they are the same: a node that had another first one would make each anew."""
    crashes: list[BaseException] = []
    shelf = Shelf(None, {})
    async with running(SimDisk(), shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(SPEC)
        await _append(node, 4)
        assert await _point(node, 4 * len(LINE)) == 3 * len(LINE)
    before = 0
    for name in _indexes(shelf):
        stored = shelf.objects[name]
        assert decode(stored, previous=before).offset
        before = int.from_bytes(stored[-4:], "little")
    assert not crashes


async def test_a_name_of_no_offset_is_no_index_point() -> None:
    """It stopped its journal, and the head that `reset-head` chose above it fits into no record."""
    crashes: list[BaseException] = []
    shelf = Shelf(None, {f".broadsheet/{NAME}/{'f' * 16}-00000000.index": b"somebody else's"})
    async with running(SimDisk(), shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(SPEC)
        await _append(node, 2)
        assert await _point(node, 2 * len(LINE)) == len(LINE)
        assert not node.broker.status(NAME).reason
    assert not crashes


class Unreadable(Shelf):
    """A store whose disk cannot read some objects."""

    bad: Sequence[str] = ()

    async def get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        if name in self.bad:
            raise Corrupt(f"the disk cannot read {name}")
        return await super().get(name, begin, end)


async def test_an_index_and_a_fragment_that_the_disk_cannot_read_are_damaged() -> None:
    """They looked like a store that is down: no committed read of the journal ever succeeded again."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Unreadable(None, {})
    async with running(disk, shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(SPEC)
        await _append(node, 4)
    shelf.bad = _indexes(shelf)[-1:]
    async with running(disk, shelf, seed=2, crashes=crashes) as node:
        assert await _point(node, 4 * len(LINE) - 1) == 2 * len(LINE)
        shelf.bad = sorted(name for name in shelf.objects if name.startswith(f"{NAME}/"))[:1]
        with pytest.raises(Corrupt, match=r"is damaged in its store: .*: restore it from a copy"):
            await node.content_of(NAME)
        await _append(node, 1)
    assert not crashes


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_an_index_that_finds_no_open_file_ends_no_node(*, is_deleted: bool) -> None:
    """It is made again when the journal goes on; a refusal of a read behind it ended the process."""
    crashes: list[BaseException] = []
    disk = SimDisk()
    faulty = FaultyDisk(disk)
    wait = 1000 if is_deleted else 20
    config = msgspec.structs.replace(JOURNALS, descriptor_wait=Duration(wait * MILLISECOND))
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, config=config, faulty=faulty) as node:
        await node.broker.create(SPEC)
        replica = await node.broker.replica(NAME)
        faulty.plan(Fault("read_at", error=errno.EMFILE, name="journals/spool/*.spool"))
        await _append(node, 2)
        await _until(lambda: replica.context.spools._waiting, "the index waits for a file")
        if is_deleted:
            await node.broker.delete(NAME, None)
            await node.broker.create(SPEC)
        else:
            await asyncio.sleep(0.1)
        faulty.plan()
        await _append(node, 2)
        assert await _point(node, 2 * len(LINE)) > 0
    assert not crashes


async def test_a_deletion_waits_for_an_index_that_a_reader_asked_for() -> None:
    """It came after the deletion, and stopped the next journal of that name: its head was below a point."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), SlowShelf(None, {})
    shelf.is_down = True
    config = msgspec.structs.replace(JOURNALS, removal_wait=Duration(10 * MILLISECOND))
    async with running(disk, shelf, seed=1, crashes=crashes, config=config) as node:
        await node.broker.create(SPEC)
        await _append(node, 4)
        shelf.is_down, shelf.gate = False, asyncio.Event()
        indexing = await node.broker.indexing(NAME)
        reader: asyncio.Task[Any] = asyncio.create_task(indexing.at(ByteOffset(0)))
        await _until(lambda: shelf.held, "an index is on its way to the store")
        reader.cancel()
        await asyncio.wait((reader,))

        await node.broker.delete(NAME, None)
        shelf.gate.set()
        await _until(lambda: not node.keyspace.range(""), "the journal is deleted")
        assert not shelf.objects

        await node.broker.create(SPEC)
        await _append(node, 1)
        assert node.broker.status(NAME).state == "open"
    assert not crashes


class Counting(Shelf):
    """A store that counts how often an index is read."""

    reads = 0

    async def get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        self.reads += name.endswith(".index")
        await asyncio.sleep(0)
        return await super().get(name, begin, end)


async def test_readers_that_ask_for_an_index_at_the_same_time_share_one_read() -> None:
    """It is read whole: 1,000 calls for one of 26 MB kept the store from everybody else for 7 s."""
    crashes: list[BaseException] = []
    shelf = Counting(None, {})
    async with running(SimDisk(), shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(SPEC)
        await _append(node, 4)
        indexing = await node.broker.indexing(NAME)
        await indexing.points()
        shelf.reads = 0
        found = await asyncio.gather(*[indexing.at(ByteOffset(4 * len(LINE))) for _ in range(50)])
        assert [each.offset for each in found] == [3 * len(LINE)] * 50
        assert shelf.reads == 2, "its bytes, and that there are no more"

        _damage(shelf, _indexes(shelf)[2])
        found = await asyncio.gather(*[indexing.at(ByteOffset(4 * len(LINE))) for _ in range(5)])
        assert [each.offset for each in found] == [2 * len(LINE)] * 5, "it was not kept"
    assert not crashes


class Narrow:
    """The end of a stream whose peer takes `step` bytes at a time, and then no more."""

    def __init__(self, *, step: int, most: int) -> None:
        self.step, self.most = step, most
        self.content = b""

    async def room(self, wanted: int) -> int:
        if len(self.content) >= self.most:
            await asyncio.get_running_loop().create_future()
        return min(wanted, self.step)

    async def send(self, body: msgspec.Struct | None = None, payload: Sequence[Buffer] = ()) -> None:
        assert body is None
        self.content += b"".join(payload)


class Ranged(Counting):
    """A store that remembers how much of an index was read at a time."""

    longest = 0

    async def get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        found = await super().get(name, begin, end)
        if name.endswith(".index"):
            self.longest = max(self.longest, len(found))
        return found


async def test_an_index_is_in_memory_only_as_far_as_its_reader_takes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1,000 calls for one of 26 MB had 250 MB written in one turn, 0.3 s of the loop; 500 MiB stayed."""
    monkeypatch.setattr(producer_indexing, "VERIFIED_BYTES", 40)
    crashes: list[BaseException] = []
    shelf = Ranged(None, {})
    async with running(SimDisk(), shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(SPEC)
        await _publish(node, NAME, range(8))
        served = service.Service(node.broker, JOURNALS)
        call: Any = SimpleNamespace(deadline=None)
        asked = ProducerIndexRequest(NAME, (await node.broker.replica(NAME)).end)
        await (await node.broker.indexing(NAME)).points()
        shelf.longest = 0

        whole: Any = Narrow(step=30, most=1 << 30)
        reply = await served.producer_index(call, asked, whole)
        assert isinstance(reply.body, ProducerIndexReply)
        assert reply.body.offset == decode(whole.content).offset > 0
        assert len(decode(whole.content).states) == 7, "one fragment is open"
        assert shelf.longest == 40

        lazy: Any = Narrow(step=30, most=30)
        before = shelf.reads
        reading = asyncio.ensure_future(served.producer_index(call, asked, lazy))
        await _idle()
        to_verify = -(-len(whole.content) // 40) + 1
        assert (lazy.content, shelf.reads - before) == (whole.content[:30], to_verify + 1)
        reading.cancel()
    assert not crashes


async def test_a_reader_that_waits_for_an_index_holds_none_of_the_other_points() -> None:
    """1,000 calls of one connection each held a list of 60,000 points, half a MB, and made it for 3 ms."""
    crashes: list[BaseException] = []
    shelf = Counting(None, {})
    disk = await _lived(shelf, 12, crashes)
    directory = _indexes(shelf)[0].rpartition("/")[0]
    for offset in range(1, 10_000):
        shelf.objects[f"{directory}/{offset:016x}-00000000.index"] = b""
    async with running(disk, shelf, seed=2, crashes=crashes) as node:
        indexing = await node.broker.indexing(NAME)
        wanted = ByteOffset((await indexing.points())[-1])
        tracemalloc.start()
        try:
            calls = [asyncio.ensure_future(indexing.at(wanted)) for _ in range(100)]
            await asyncio.sleep(0)  # Each has begun, and waits for the first one's read.
            held_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        found = await asyncio.gather(*calls)
        assert {each.offset for each in found} == {wanted}
        assert held_bytes < 100 * 20_000, f"{held_bytes} bytes"
    assert not crashes


class Hanging(Shelf):
    """A store that does not answer which indexes it has until `gate` is set."""

    gate: asyncio.Event | None = None

    async def list(self, prefix: str) -> Sequence[Stored]:
        if self.gate is not None and prefix.startswith(".broadsheet"):
            await self.gate.wait()
        return await super().list(prefix)


async def test_readers_that_come_and_go_while_the_store_hangs_leave_one_task_behind() -> None:
    """A client that called and cancelled left as many as it liked, until no memory was left."""
    crashes: list[BaseException] = []
    shelf = Hanging(None, {})
    disk = await _lived(shelf, 3, crashes)
    shelf.gate = asyncio.Event()
    async with running(disk, shelf, seed=2, crashes=crashes) as node:
        indexing = await node.broker.indexing(NAME)
        tasks_before = len(asyncio.all_tasks())
        for _ in range(50):
            reader = asyncio.ensure_future(indexing.points())
            await asyncio.sleep(0)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
        assert len(asyncio.all_tasks()) <= tasks_before + 1
        readers = [asyncio.ensure_future(indexing.points()) for _ in range(3)]
        await asyncio.sleep(0)
        shelf.gate.set()
        assert [len(found) for found in await asyncio.gather(*readers)] == [2, 2, 2]
    assert not crashes


async def test_each_reader_of_an_index_is_told_the_error_of_the_store_although_others_ask_again() -> None:
    """The first that asked again made the others hear that their journal was closed."""
    crashes: list[BaseException] = []
    shelf = SlowShelf(None, {})
    disk = await _lived(shelf, 3, crashes)
    shelf.is_down = True
    async with running(disk, shelf, seed=2, crashes=crashes) as node:
        indexing = await node.broker.indexing(NAME)

        async def ask_twice() -> None:
            for _ in range(2):
                with pytest.raises(OSError, match="the store is down"):
                    await indexing.points()

        await asyncio.gather(*[ask_twice() for _ in range(2 * WOKEN_MAX)])
        shelf.is_down = False
        assert len(await indexing.points()) == 2
    assert not crashes


async def test_readers_are_told_if_the_task_that_catches_up_is_cancelled_before_it_begins() -> None:
    """A close cancels it in the turn in which a reader had it made: the reader waited for ever."""
    crashes: list[BaseException] = []
    shelf = Hanging(None, {})
    disk = await _lived(shelf, 3, crashes)
    shelf.gate = asyncio.Event()
    async with running(disk, shelf, seed=2, crashes=crashes) as node:
        indexing = await node.broker.indexing(NAME)
        before = asyncio.all_tasks()
        reader = asyncio.ensure_future(indexing.points())
        await asyncio.sleep(0)
        (carrying,) = [task for task in asyncio.all_tasks() - before if f"index.{NAME}" in task.get_name()]
        carrying.cancel()
        with pytest.raises(ShuttingDown, match="was closed"):
            await asyncio.wait_for(reader, 5)
        shelf.gate.set()
        assert len(await indexing.points()) == 2
    assert not crashes


async def test_index_points_are_told_in_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of many small fragments were too many for a frame one day, and no query began any more."""
    monkeypatch.setattr(service, "POINTS_MAX", 2)
    crashes: list[BaseException] = []
    async with running(SimDisk(), Shelf(None, {}), seed=1, crashes=crashes) as node:
        await node.broker.create(SPEC)
        await _append(node, 6)
        call: Any = SimpleNamespace(deadline=None)
        pages: list[list[int]] = []
        beyond, has_more = ByteOffset(0), True
        while has_more:
            request = IndexPointsRequest(NAME, beyond=beyond)
            reply = await service.Service(node.broker, JOURNALS).index_points(call, request, memoryview(b""))
            assert isinstance(reply.body, IndexPointsReply)
            pages.append([*reply.body.offsets])
            beyond, has_more = reply.body.offsets[-1], reply.body.has_more
        assert pages == [[n * len(LINE) for n in page] for page in ((1, 2), (3, 4), (5,))]
    assert not crashes


async def test_an_index_of_too_many_producers_ends_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of 24 bytes may cost 350 of the node's memory: one more producer."""
    monkeypatch.setattr(producer_indexing, "PRODUCERS_MAX", 3)
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Shelf(None, {})
    async with running(disk, shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(SPEC)
        replica = await node.broker.replica(NAME)
        for number in range(6):
            uuid = pack(ProducerId((1 << 40) + number), Clock(1 << 60), Flag.OUTSIDE)
            content = framed(JSON_LINES, uuid, LINE)
            run = UnaryAppend(content)
            replica.deliver(Submitted(run=run, count=1, length=len(content)))
            assert await status_of(run.answered) is Status.OK
            await _idle()
        indexing = await node.broker.indexing(NAME)
        assert "more than 3 producers" in indexing.end_reason
        status = node.broker.status(replica.name)
        assert (status.state, node.broker.troubles.stopped_count) == ("open", 0)
        assert "its producer index has ended" in status.reason, "committed readers are slow from here on"
        assert await _point(node, replica.end) == 3 * len(content)
    assert not crashes


async def _publish(node: Running, name: JournalName, numbers: Sequence[int]) -> None:
    """One message of each producer."""
    replica = await node.broker.replica(name)
    for number in numbers:
        uuid = pack(ProducerId((1 << 40) + number), Clock(1 << 60), Flag.OUTSIDE)
        content = framed(JSON_LINES, uuid, LINE)
        run = UnaryAppend(content)
        replica.deliver(Submitted(run=run, count=1, length=len(content)))
        assert await status_of(run.answered) is Status.OK
        await _idle()


async def test_an_index_at_rest_gives_its_producers_back_and_reads_them_again() -> None:
    """Each journal may have a million producers, and nothing bounded all journals of a node together.

    With room for four, two journals of three take turns, and each stores the same as with room for all.
    """
    crashes: list[BaseException] = []
    names = [JournalName("index/a"), JournalName("index/b")]
    stored: dict[int, dict[str, bytes]] = {}
    for room in (1000, 4):
        shelf = Shelf(None, {})
        config = msgspec.structs.replace(JOURNALS, index_producers_max=room)
        async with running(SimDisk(), shelf, seed=1, crashes=crashes, config=config) as node:
            for name in names:
                await node.broker.create(msgspec.structs.replace(SPEC, name=name))
            memory = (await node.broker.replica(NAME)).context.index_memory
            for numbers in ([1], [2, 3], [1], [2], [3, 3], [1, 2, 3]):
                for name in names:
                    await _publish(node, name, numbers)
                    memory.check()
            assert memory.held_count == (6 if room == 1000 else 3)
            stored[room] = {name: shelf.objects[name] for name in _indexes(shelf)}
            for name in names:
                assert not (await node.broker.indexing(name)).end_reason
                await node.broker.delete(name, node.broker.info(name).create_revision)
            memory.check()
            assert memory.held_count == 0, "a deleted journal holds nothing"
    assert len(stored[4]) == 18
    assert stored[4] == stored[1000]
    assert not crashes


async def test_an_index_gives_nothing_back_while_it_is_being_stored() -> None:
    """access.8: what is at work is still in memory, and would be counted for nobody."""
    crashes: list[BaseException] = []
    shelf = SlowShelf(None, {})
    async with running(SimDisk(), shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(SPEC)
        shelf.gate = asyncio.Event()
        await _append(node, 2)
        indexing = await node.broker.indexing(NAME)
        assert shelf.held == 1
        assert not indexing.give_back()
        shelf.gate.set()
        await indexing.catch_up()
        assert indexing.give_back()
    assert not crashes


class _Index:
    """An index that counts how often it gave its producers back."""

    def __init__(self, *, is_at_work: bool = False) -> None:
        self.is_at_work, self.given_back = is_at_work, 0

    def give_back(self) -> bool:
        self.given_back += not self.is_at_work
        return not self.is_at_work


def test_the_index_used_longest_ago_gives_its_producers_back_and_none_at_work_does() -> None:
    """Whoever finds no room forgets its own, so that the others can end and make room."""
    memory = IndexMemory(10)
    busy, old, new, last = _Index(is_at_work=True), _Index(), _Index(), _Index()
    memory.hold(busy, 4)
    memory.hold(old, 3)
    memory.hold(new, 3)
    memory.hold(old, 3)

    memory.hold(last, 3)
    memory.check()
    assert (busy.given_back, old.given_back, new.given_back) == (0, 0, 1)
    assert memory.held_count == 10

    with pytest.raises(Throttled, match="index_producers_max, 10"):
        memory.hold(last, 7)
    memory.check()
    assert memory.held_count == 4, "it counts for nothing, and the others at rest gave way"
    memory.hold(last, 6)
