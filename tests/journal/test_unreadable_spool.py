"""A sector of a journal's own files that the disk cannot read (EIO) is damage like any other (W6, W7).

The journal says so and names the way out, which works; it is not opened again and again, and nobody waits.
"""

import asyncio
import errno
import json
from collections.abc import Iterable, Sequence

import msgspec
import pytest

from broadsheet.base.types import Buffer
from broadsheet.cli.keyspace import accept as accept_keyspace
from broadsheet.errors import Corrupt, Status
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec, spec_key
from broadsheet.journal.orphans import ORPHANS_NAME
from broadsheet.journal.replica import Replica
from broadsheet.journal.seal_file import SEAL_NAME
from broadsheet.runtime.disk import IOV_MAX
from simulator.disk import SimDisk, SimFile
from simulator.disk_state import Write
from tests.journal.crash_histories import NAME, Running, Shelf, _idle, running
from tests.journal.test_damage import ROOMY, append, flip, place_of, shown
from tests.journal.test_healing import Down, lives, until
from tests.keyspace.test_accept_loss import OTHER, flip_key, lived

SECTOR = 4096
Bad = dict[tuple[int, int], None]
MANY = msgspec.structs.replace(
    ROOMY, checkpoint_bytes=1 << 20, wal=msgspec.structs.replace(ROOMY.wal, segment_bytes=1 << 20)
)
"""Room for many small appends without a checkpoint."""


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> Bad:
    """Sectors, by inode, that no read of returns.

    A write of the whole sector heals it, as a disk that has spare ones does. For a write of a part of it the
    kernel must read the sector first, and fails, as ext4 on a real device does. After that nothing is written
    to the file any more (ADR 0160). Of many parts the kernel takes `IOV_MAX` at a time, as `LocalDisk` does.
    """
    sectors: Bad = {}
    failed = dict[int, None]()
    read, write = SimFile.read_at, SimFile._write

    def read_at(self: SimFile, at: int, length: int) -> bytes:
        touched = range(at // SECTOR, -(-(at + length) // SECTOR))
        if any((self._inode.number, n) in sectors for n in touched):
            raise OSError(errno.EIO, "unreadable sector", self.name)
        return read(self, at, length)

    def write_at(self: SimFile, at: int, content: bytes) -> None:
        end = at + len(content)
        for n in range(at // SECTOR, -(-end // SECTOR)):
            is_whole = at <= n * SECTOR and (n + 1) * SECTOR <= end
            if not is_whole and (self._inode.number, n) in sectors:
                failed[self._inode.number] = None
        if self._inode.number in failed:
            raise OSError(errno.EIO, "unreadable sector, or failed before", self.name)
        write(self, at, content)
        for n in range(at // SECTOR, -(-end // SECTOR)):
            sectors.pop((self._inode.number, n), None)

    def write_parts(self: SimFile, at: int, parts: Sequence[Buffer]) -> None:
        for start in range(0, len(parts), IOV_MAX):
            content = b"".join(parts[start : start + IOV_MAX])
            write_at(self, at, content)
            at += len(content)

    monkeypatch.setattr(SimFile, "write_at", write_parts)
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
    first = log.states[stream].first
    housekeeping.checkpoint()
    await until(lambda: log.states[stream].first > first)


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


async def sealed(node: Running, disk: SimDisk) -> Replica:
    """A journal that is sealed: a spool file is damaged, and the log lost a record."""
    await lives(node)
    replica = await node.broker.replica(NAME)
    disk.state.change(disk.state.files[replica.closed[0].name], Write(5, b"X"))
    node.broker._context.log.quarantine(replica.stream)
    await append(node, NAME, b"refused")
    await until(lambda: replica.stop_reason)
    return replica


async def test_a_journal_opens_with_a_seal_that_cannot_be_read(bad: Bad) -> None:
    """The reason is lost with it, but not that there is one."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=ROOMY) as node:
        replica = await sealed(node, disk)
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
        assert "accept-loss" in replica.stop_reason
        if is_below_checkpoint:
            with pytest.raises(Corrupt, match=r"does not have the content of \[0, 16384\)"):
                await shown(node, NAME)
        else:
            assert await shown(node, NAME) == parts[0]
        assert bytes(disk.state.files[name].view) == b"".join(parts)
        await accept(node)
    assert not crashes


@pytest.mark.parametrize(
    ("sectors", "is_cut"), [((0, 1), False), ((0,), True)], ids=["sound log", "last record damaged"]
)
async def test_a_sector_that_cannot_be_read_is_written_whole_if_the_log_has_its_content(
    sectors: tuple[int, ...], is_cut: bool, bad: Bad
) -> None:
    """J2: the kernel refuses to write a part of such a sector (EIO): the journal was never opened again.

    Its remedy waited for the opening, and the log had every byte.
    """
    parts = [letter * 1_500 for letter in (b"a", b"b", b"c", b"d", b"e")]
    disk, crashes = SimDisk(), list[BaseException]()
    config = msgspec.structs.replace(ROOMY, checkpoint_bytes=1 << 20)
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=config) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 20)))
        for part in parts:
            assert await append(node, NAME, part) is Status.OK
        name = (await node.broker.replica(NAME)).spool.name
        await _idle()
    for sector in sectors:
        spoil(bad, disk, name, sector)
    if is_cut:
        flip(disk, *place_of(disk, parts[-1], ".wal"))
    async with running(disk, Down(None, {}), seed=2, crashes=crashes, config=config) as node:
        replica = await asyncio.wait_for(node.broker.replica(NAME), 5)
        assert await shown(node, NAME) == b"".join(parts)
        assert (replica.stop_reason, replica.spool.file.size(), bad) == ("", 7_500, {})
    assert not crashes


async def test_an_unreadable_sector_below_many_small_appends_is_written_whole(bad: Bad) -> None:
    """J2: a disk writes so many parts in two calls, and the first one ended within the sector.

    The journal was never opened again, although the log had every byte of it.
    """
    parts = [bytes((65 + number % 26,)) * 21 for number in range(IOV_MAX + 300)]
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=MANY) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 20)))
        answers = [append(node, NAME, part) for part in parts]
        assert await asyncio.gather(*answers) == [Status.OK] * len(parts)
        name = (await node.broker.replica(NAME)).spool.name
        await _idle()
    spoil(bad, disk, name, IOV_MAX * 21 // SECTOR)
    async with running(disk, Down(None, {}), seed=2, crashes=crashes, config=MANY) as node:
        await asyncio.wait_for(node.broker.replica(NAME), 5)
        assert await shown(node, NAME) == b"".join(parts)
        assert (node.broker.status(NAME).reason, bad) == ("", {})
    assert not crashes


async def test_a_sector_of_which_the_log_has_a_part_is_told_as_damage(bad: Bad) -> None:
    """The other part may be readable again later: nothing writes it over, and nobody waits for it."""
    disk, crashes = SimDisk(), list[BaseException]()
    config = msgspec.structs.replace(ROOMY, checkpoint_bytes=1 << 20)
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=config) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 20)))
        assert await append(node, NAME, b"before") is Status.OK
        await checkpointed(node)
        assert await append(node, NAME, b"behind") is Status.OK
        name = (await node.broker.replica(NAME)).spool.name
        await _idle()
    spoil(bad, disk, name)
    async with running(disk, Down(None, {}), seed=2, crashes=crashes, config=config) as node:
        replica = await asyncio.wait_for(node.broker.replica(NAME), 5)
        assert "does not have the content of [0, 12)" in replica.stop_reason
        assert bytes(disk.state.files[name].view) == b"beforebehind"
        await accept(node)
    assert not crashes


async def test_the_readable_sectors_around_an_unreadable_one_are_written_again(bad: Bad) -> None:
    """log.15: after a power cut the file may have lost what was not synced, and the log has it."""
    disk, crashes = SimDisk(), list[BaseException]()
    parts = [b"before", b"b" * 5_000, b"c" * 5_000]
    config = msgspec.structs.replace(ROOMY, checkpoint_bytes=1 << 20)
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=config) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 20)))
        assert await append(node, NAME, parts[0]) is Status.OK
        await checkpointed(node)
        for part in parts[1:]:
            assert await append(node, NAME, part) is Status.OK
        name = (await node.broker.replica(NAME)).spool.name
        await _idle()
    for at in (10, 9_000):
        flip(disk, name, at)
    spoil(bad, disk, name, 1)
    async with running(disk, Down(None, {}), seed=2, crashes=crashes, config=config) as node:
        replica = await asyncio.wait_for(node.broker.replica(NAME), 5)
        assert await shown(node, NAME) == b"".join(parts)
        assert (replica.stop_reason, bad) == ("", {})
    assert not crashes


async def test_a_reader_of_the_last_sector_of_a_spool_mends_it_whole(bad: Bad) -> None:
    """One bad sector below an idle journal and one reader ended the node: the file ends within the sector."""
    disk, crashes = SimDisk(), list[BaseException]()
    config = msgspec.structs.replace(ROOMY, checkpoint_bytes=1 << 20)
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=config) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 20)))
        assert await append(node, NAME, b"idle" * 1_500) is Status.OK
        spool = (await node.broker.replica(NAME)).spool
        spoil(bad, disk, spool.name, 1)
        assert await shown(node, NAME) == b"idle" * 1_500
        assert (node.broker.status(NAME).reason, spool.file.size()) == ("", 6_000)
    assert not crashes


async def test_a_node_starts_where_its_list_of_orphans_cannot_be_read(bad: Bad) -> None:
    """W7: a bad sector of a file that only `doctor` reads held up every start, and no command led out."""
    disk, created = await lived()
    flip_key(disk, spec_key(OTHER))
    accept_keyspace(disk, {}, may_act=True)

    crashes: list[BaseException] = []
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, is_last=False):
        await _idle()
    spoil(bad, disk, ORPHANS_NAME)
    async with running(disk, Shelf(None, {}), seed=3, crashes=crashes, is_last=False) as node:
        assert await shown(node, NAME) == NAME.encode()
    assert json.loads(bytes(disk.state.files[ORPHANS_NAME].view)) == [created[OTHER]]
    assert not crashes
