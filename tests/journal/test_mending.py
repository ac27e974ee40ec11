"""A damaged block of a spool file is written again from the log, or is told if the log lacks its content."""

import asyncio
import errno

import pytest
from msgspec.structs import replace

from broadsheet.base.types import ByteOffset
from broadsheet.errors import Corrupt, NotFound, ShuttingDown, Status
from broadsheet.journal import spool_mending
from broadsheet.journal.committed_reads import read
from broadsheet.journal.core.append_admission import Limits
from broadsheet.journal.core.block_sums import BLOCK_BYTES
from broadsheet.journal.core.pipeline_events import Fullness
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.journal.replica import Replica
from broadsheet.wal.log import Log
from simulator.disk import SimDisk
from tests.journal.crash_histories import NAME, Running, Shelf, _idle, running
from tests.journal.test_damage import ROOMY, append, flip, shown
from tests.journal.test_healing import Down, lives, until
from tests.journal.test_unreadable_spool import Returning, accept, checkpointed
from tests.support.faulty import Fault, FaultyDisk

LARGE = replace(ROOMY, wal=replace(ROOMY.wal, segment_bytes=1 << 20), checkpoint_bytes=1 << 30)
"""A log that asks for no checkpoint."""
CONTENT = [bytes([65 + n]) * 9_000 for n in range(20)]
WHOLE = b"".join(CONTENT)


async def writes(node: Running, length: int = 1 << 30) -> Replica:
    """A journal with several blocks in its open spool."""
    await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=length)))
    for content in CONTENT:
        assert await append(node, NAME, content) is Status.OK
    return await node.broker.replica(NAME)


async def test_a_damaged_block_is_mended_from_the_log_before_a_checkpoint_drops_its_content() -> None:
    """W4, J2: the read was refused, nobody was told, and the next checkpoint trimmed the only sound copy."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, config=LARGE) as node:
        replica = await writes(node)
        for at in (10, BLOCK_BYTES, 2 * BLOCK_BYTES - 1, len(WHOLE) - 1):
            flip(disk, replica.spool.name, at)
        assert await shown(node, NAME) == WHOLE
        assert node.broker.status(NAME).reason == ""
        await checkpointed(node)
        await _idle()
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, config=LARGE, boot_id="k2") as node:
        assert await shown(node, NAME) == WHOLE
        assert node.broker.status(NAME).state == "open"
    assert not crashes


async def test_a_damaged_block_that_the_log_does_not_have_is_told_with_a_remedy_that_works() -> None:
    """The status of the journal was `open`, without a reason, and accept-loss saw no loss to accept."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, config=LARGE) as node:
        replica = await writes(node)
        await checkpointed(node)
        flip(disk, replica.spool.name, BLOCK_BYTES + 10)
        with pytest.raises(Corrupt, match=r"block 1 of .* not served.*accept-loss"):
            await shown(node, NAME)
        status = node.broker.status(NAME)
        assert (status.state, node.broker.troubles.stopped_count) == ("open", 1)
        assert f"is damaged at {BLOCK_BYTES}, and the log does not have its content any more" in status.reason
        replica.deliver(Fullness(is_full=True))
        full = node.broker.status(NAME)
        assert (full.state, status.reason in full.reason) == ("full", True), "a full disk does not hide it"
        replica.deliver(Fullness(is_full=False))
        assert await append(node, NAME, b"goes on") is Status.OK
        flip(disk, replica.spool.name, len(WHOLE) + 2)
        above = read(replica, ByteOffset(2 * BLOCK_BYTES), None, block=False)
        assert b"".join([c.data async for c in above]) == WHOLE[2 * BLOCK_BYTES :] + b"goes on"
        await accept(node)
    assert not crashes


async def test_a_reader_is_given_every_sound_block_before_a_damaged_one() -> None:
    """A chunk has four blocks: of three that are sound and one that is lost a reader was given none."""
    disk, crashes, found = SimDisk(), list[BaseException](), list[bytes]()
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, config=LARGE) as node:
        replica = await writes(node)
        await checkpointed(node)
        flip(disk, replica.spool.name, 2 * BLOCK_BYTES + 10)

        async def reader() -> None:
            async for chunk in read(replica, ByteOffset(7), None, block=False):
                found.append(chunk.data)

        with pytest.raises(Corrupt, match="block 2 of"):
            await reader()
        assert b"".join(found) == WHOLE[7 : 2 * BLOCK_BYTES]
    assert not crashes


async def test_content_that_is_not_the_blocks_is_not_written() -> None:
    """The checksum in memory decides, not the record: other damaged bytes are kept."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, config=LARGE) as node:
        replica = await writes(node)
        await checkpointed(node)
        assert await append(node, NAME, b"tail") is Status.OK
        flip(disk, replica.spool.name, len(WHOLE) - 1)
        flip(disk, replica.spool.name, len(WHOLE) + 1)
        before = bytes(disk.state.files[replica.spool.name].view)
        with pytest.raises(Corrupt):
            await shown(node, NAME)
        assert bytes(disk.state.files[replica.spool.name].view) == before
    assert not crashes


async def test_an_upload_that_meets_a_damaged_block_mends_it_and_stores_the_fragment() -> None:
    """The file was given up at once, although the log had every byte of it."""
    disk, crashes, store = SimDisk(), list[BaseException](), Returning(None, {})
    async with running(disk, store, seed=1, crashes=crashes, config=LARGE) as node:
        await lives(node)
        replica = await node.broker.replica(NAME)
        flip(disk, replica.closed[0].name, 5)
        store.is_down = False
        await until(lambda: len(replica.index) == 1)
        assert await shown(node, NAME) == b"a" * 2100
        assert node.broker.status(NAME).reason == ""
    assert not crashes


async def test_readers_of_a_damaged_block_mend_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mending reads what the log has of the journal: many readers must not do so many times."""
    disk, crashes, count = SimDisk(), list[BaseException](), 0
    rewritten = spool_mending._rewritten

    async def counted(*args: object) -> object:
        nonlocal count
        count += 1
        return await rewritten(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(spool_mending, "_rewritten", counted)
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=LARGE) as node:
        replica = await writes(node)
        flip(disk, replica.spool.name, 10)
        assert await asyncio.gather(*(shown(node, NAME) for _ in range(20))) == [WHOLE] * 20
        assert count == 1
        await checkpointed(node)
        flip(disk, replica.spool.name, 10)
        for _ in range(20):
            with pytest.raises(Corrupt):
                await shown(node, NAME)
        assert count == 2, "what the log does not have it will not have later"
    assert not crashes


class Gated(Shelf):
    """A store that gives nothing before its gate is open."""

    def __init__(self) -> None:
        super().__init__(None, {})
        self.gate, self.is_asked = asyncio.Event(), False

    async def get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        self.is_asked = True
        await self.gate.wait()
        return await super().get(name, begin, end)


@pytest.mark.parametrize("turns", [1, 4, 7, 10])
async def test_a_file_that_is_stored_and_closed_while_it_is_mended_does_not_end_the_node(turns: int) -> None:
    """EBADF was taken for a failed write: one bad sector, a slow store and a reader ended the process."""
    disk, crashes, store = SimDisk(), list[BaseException](), Gated()
    config = replace(LARGE, read_bytes_max=1 << 20)
    async with running(disk, store, seed=1, crashes=crashes, config=config) as node:
        replica = await writes(node, length=900_000)
        for _ in range(5):
            for content in CONTENT:
                assert await append(node, NAME, content) is Status.OK
        await until(lambda: store.is_asked)
        flip(disk, replica.closed[0].name, 5)
        reading = asyncio.ensure_future(shown(node, NAME))
        for _ in range(turns):
            await asyncio.sleep(0)
        store.gate.set()
        assert await reading == WHOLE * 6
        assert not replica.closed, "it was stored meanwhile"
    assert not crashes


async def test_a_mending_without_a_free_descriptor_is_tried_again() -> None:
    """J2: the whole file was given up, and the remedy that it named moved acknowledged bytes aside."""
    disk, crashes, store = SimDisk(), list[BaseException](), Returning(None, {})
    faulty = FaultyDisk(disk)
    async with running(disk, store, seed=1, crashes=crashes, config=LARGE, faulty=faulty) as node:
        await lives(node)
        replica = await node.broker.replica(NAME)
        flip(disk, replica.closed[0].name, 5)
        faulty.plan(Fault("read_at", error=errno.EMFILE, name="*.spool", after=1, times=1))
        store.is_down = False
        await until(lambda: len(replica.index) == 1 or replica.damage)
        assert faulty.faults.faults_hit == {"read_at": 1}
        assert await shown(node, NAME) == b"a" * 2100
        assert node.broker.status(NAME).reason == ""
    assert not crashes


async def test_the_other_blocks_of_a_file_that_cannot_be_stored_are_still_served() -> None:
    """`docs/protocols/journals.md` says so; after the try to store the file none of it was."""
    disk, crashes, store = SimDisk(), list[BaseException](), Returning(None, {})
    async with running(disk, store, seed=1, crashes=crashes, config=LARGE) as node:
        replica = await writes(node, length=150_000)
        await checkpointed(node)
        flip(disk, replica.closed[0].name, 5)
        store.is_down = False
        await until(lambda: replica.damage)
        above = read(replica, ByteOffset(BLOCK_BYTES), None, block=False)
        assert b"".join([c.data async for c in above]) == WHOLE[BLOCK_BYTES:]
        await accept(node)
    assert not crashes


async def test_a_file_is_mended_from_the_log_however_many_of_its_blocks_are_damaged() -> None:
    """J2: above 64 damaged blocks the file was given up, although the log had every byte of it."""
    disk, crashes, store = SimDisk(), list[BaseException](), Returning(None, {})
    wal = replace(LARGE.wal, segment_bytes=16 << 20, record_bytes_max=1 << 20)
    config = replace(LARGE, wal=wal, limits=Limits())
    content, count = b"c" * 250_000, 20
    async with running(disk, store, seed=1, crashes=crashes, config=config) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=(count - 2) * 250_000)))
        for _ in range(count):
            assert await append(node, NAME, content) is Status.OK
        replica = await node.broker.replica(NAME)
        blocks = range(0, replica.closed[0].length, BLOCK_BYTES)
        assert len(blocks) > 64
        for at in blocks:
            flip(disk, replica.closed[0].name, at)
        store.is_down = False
        await until(lambda: len(replica.index) == 1 or replica.damage)
        assert await shown(node, NAME) == content * count
    assert not crashes


async def test_a_journal_that_is_deleted_while_a_block_is_mended_hangs_no_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log gave nothing more of a dropped stream, and was asked again for ever, in one turn."""
    disk, crashes, reads = SimDisk(), list[BaseException](), Log._read_places
    is_reading, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(self: Log, *args: object) -> object:
        is_reading.set()
        await goes_on.wait()
        return await reads(self, *args)  # type: ignore[arg-type]

    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, config=LARGE) as node:
        replica = await writes(node)
        flip(disk, replica.spool.name, 10)
        monkeypatch.setattr(Log, "_read_places", slow)
        reading = asyncio.ensure_future(shown(node, NAME))
        await is_reading.wait()
        await node.broker.delete(NAME, None)
        await until(lambda: replica.stream not in node.broker._context.log.states)
        goes_on.set()
        with pytest.raises((ShuttingDown, NotFound)):
            await reading
    assert not crashes
