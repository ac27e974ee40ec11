"""A sector of a journal's own files that the disk cannot read (EIO) is damage like any other (W6, W7).

The journal says so and names the way out, which works; it is not opened again and again, and nobody waits.
"""

import asyncio
import errno
from collections.abc import Iterable

import msgspec
import pytest

from broadsheet.base.types import Buffer
from broadsheet.errors import Corrupt, Status
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.journal.seal_files import SEAL_NAME
from simulator.disk import SimDisk, SimFile
from simulator.disk_state import Write
from tests.journal.crash_histories import NAME, Running, Shelf, _idle, running
from tests.journal.test_damage import ROOMY, append, flip, place_of, shown
from tests.journal.test_healing import Down, lives, until

SECTOR = 4096
Bad = dict[tuple[int, int], None]


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> Bad:
    """Sectors, by inode, that no read of returns; a write heals them, as a disk that has spare ones does."""
    sectors: Bad = {}
    read, write = SimFile.read_at, SimFile._write

    def read_at(self: SimFile, at: int, length: int) -> bytes:
        touched = range(at // SECTOR, -(-(at + length) // SECTOR))
        if any((self._inode.number, n) in sectors for n in touched):
            raise OSError(errno.EIO, "unreadable sector", self.name)
        return read(self, at, length)

    def write_at(self: SimFile, at: int, content: bytes) -> None:
        write(self, at, content)
        for n in range(at // SECTOR, -(-(at + len(content)) // SECTOR)):
            sectors.pop((self._inode.number, n), None)

    monkeypatch.setattr(SimFile, "read_at", read_at)
    monkeypatch.setattr(SimFile, "_write", write_at)
    return sectors


def spoil(bad: Bad, disk: SimDisk, name: str, sector: int = 0) -> None:
    """No read of that sector returns."""
    bad[disk.state.files[name].number, sector] = None


class Returning(Shelf):
    """A store that takes nothing while it is down."""

    is_down = True

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        if self.is_down:
            raise OSError(f"the store takes no {name}")
        return await super().put_if_absent(name, body)


async def checkpointed(node: Running) -> None:
    """The log has a checkpoint of the journal, and nothing before it."""
    housekeeping, log = node.broker._slots[NAME].housekeeping, node.broker._context.log
    stream = (await node.broker.replica(NAME)).stream
    assert housekeeping is not None
    housekeeping.checkpoint()
    await until(lambda: log.states[stream].first > 0)


async def accept(node: Running) -> None:
    """The remedy that the journal names; appends go on after it."""
    status = node.broker.status(NAME)
    assert f"`broadsheet journals accept-loss {NAME}`" in status.reason
    told = await node.broker.accept_loss(NAME, None, head=None, may_act=True, is_head_only=False)
    assert told.is_done
    assert await append(node, NAME, b"and on") is Status.OK
    status = node.broker.status(NAME)
    assert (status.state, ".lost" in status.reason) == ("open", True), "it tells what was moved aside"


@pytest.mark.parametrize("which", ["closed", "open"])
async def test_a_journal_opens_around_a_spool_file_that_cannot_be_read(which: str, bad: Bad) -> None:
    """It was opened again and again, for ever, and so the remedy for it could not run."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=ROOMY) as node:
        await lives(node)
        replica = await node.broker.replica(NAME)
        spool = replica.closed[0] if which == "closed" else replica.spool
        begin, end = spool.begin, spool.end
        await checkpointed(node)  # Else the log has the content, and the next start writes it anew.
        await _idle()
        spoil(bad, disk, spool.name)
        with pytest.raises(Corrupt, match="fails its checksum"):
            spool.read(begin, 10)
    async with running(disk, Down(None, {}), seed=2, crashes=crashes, config=ROOMY) as node:
        replica = await asyncio.wait_for(node.broker.replica(NAME), 5)
        damaged = [each.begin for each in (*replica.closed, replica.spool) if each.damage]
        assert damaged == [begin]
        await accept(node)
        replica = await node.broker.replica(NAME)
        assert replica.end == 2100 + len(b"and on")
        kept = [name for name in disk.state.files if name.endswith(".lost")]
        assert len(kept) == 1
        assert bytes(disk.state.files[kept[0]].view) == b"a" * (end - begin), "the sector may come back"
    assert not crashes


async def test_an_upload_that_meets_an_unreadable_sector_says_so_and_is_not_repeated_for_ever(
    bad: Bad,
) -> None:
    """It counted as a store that does not answer: nobody was told, and the remedy refused to act."""
    disk, crashes, store = SimDisk(), list[BaseException](), Returning(None, {})
    async with running(disk, store, seed=1, crashes=crashes, config=ROOMY) as node:
        await lives(node)
        replica = await node.broker.replica(NAME)
        await checkpointed(node)  # Else the log has the content, and the file is mended.
        spoil(bad, disk, replica.closed[0].name)
        with pytest.raises(Corrupt):
            await shown(node, NAME)
        store.is_down = False
        await until(lambda: node.broker.status(NAME).reason)
        await accept(node)
    assert not crashes


async def test_a_journal_opens_with_a_seal_that_cannot_be_read(bad: Bad) -> None:
    """The reason is lost with it, but not that there is one."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=ROOMY) as node:
        await lives(node)
        replica = await node.broker.replica(NAME)
        disk.state.change(disk.state.files[replica.closed[0].name], Write(5, b"X"))
        node.broker._context.log.quarantine(replica.stream)
        await append(node, NAME, b"refused")
        await until(lambda: replica.reason)
        spoil(bad, disk, f"{replica.directory}/{SEAL_NAME}")
    async with running(disk, Down(None, {}), seed=2, crashes=crashes, config=ROOMY) as node:
        await asyncio.wait_for(node.broker.replica(NAME), 5)
        await accept(node)
    assert not crashes


@pytest.mark.parametrize("is_below_checkpoint", [False, True], ids=["in the log", "below a checkpoint"])
async def test_a_repair_does_not_write_over_a_sector_that_it_could_not_read(
    is_below_checkpoint: bool, bad: Bad
) -> None:
    """W7: the log's record of these bytes is damaged, so the sector, should it come back, is all there is.

    A checkpoint sums the whole spool: nothing of the file is served then, since no part has a sum of its own.
    """
    parts = [letter * 2 * SECTOR for letter in (b"a", b"b")]
    config = msgspec.structs.replace(ROOMY, checkpoint_bytes=1 << 20)  # None comes by itself.
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=config) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 20)))
        for part in parts:
            assert await append(node, NAME, part) is Status.OK
        replica = await node.broker.replica(NAME)
        name = replica.spool.name
        if is_below_checkpoint:
            await checkpointed(node)
        await _idle()
    flip(disk, *place_of(disk, parts[1], ".wal"))
    spoil(bad, disk, name, 2)
    async with running(disk, Down(None, {}), seed=2, crashes=crashes, config=config) as node:
        replica = await asyncio.wait_for(node.broker.replica(NAME), 5)
        assert "accept-loss" in replica.reason
        if is_below_checkpoint:
            with pytest.raises(Corrupt, match=r"does not have the content of \[0, 16384\)"):
                await shown(node, NAME)
        else:
            assert await shown(node, NAME) == parts[0]
        assert bytes(disk.state.files[name].view) == b"".join(parts)
        await accept(node)
    assert not crashes
