"""What a start must not delete: bytes of which nobody knows that they are not the acknowledged ones."""

import asyncio
import contextlib
import errno
import shutil
from collections.abc import Iterable
from hashlib import sha1
from pathlib import Path

import pytest

import broadsheet
from broadsheet.base.types import Buffer
from broadsheet.cli.checks import STORE_WORDS
from broadsheet.errors import BroadsheetError, Corrupt
from broadsheet.journal import role
from broadsheet.journal.core.pipeline_events import Submitted
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.journal.service import UnaryAppend
from simulator.disk import SimDisk
from simulator.disk_state import Write
from tests.journal.crash_histories import NAME, TURNS_MAX, Running, Shelf, running
from tests.journal.node_process import NodeProcess
from tests.support.faulty import Fault, FaultyDisk

SPEC = JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 10))


async def append(node: Running, content: bytes) -> None:
    """One append that is acknowledged."""
    replica = await node.broker.replica(NAME)
    run = UnaryAppend(content)
    replica.deliver(Submitted(run=run, count=1, length=len(content)))
    await run.answered


def spools(disk: SimDisk) -> dict[str, bytes]:
    """The content of each spool file."""
    files = disk.state.files
    return {name: bytes(inode.view) for name, inode in files.items() if name.endswith(".spool")}


def lose(disk: SimDisk, directory: str) -> dict[str, bytes]:
    """Somebody removes a directory; what was in it. The page cache stays, as after kill -9."""
    lost = {n: bytes(i.view) for n, i in disk.state.files.items() if n.startswith(f"{directory}/")}
    for name in lost:
        disk.state.remove(name)
    return lost


async def acknowledged(*contents: bytes) -> tuple[list[BaseException], Shelf, SimDisk]:
    """What a node leaves that took these appends: its crashes, its store and its disk."""
    crashes: list[BaseException] = []
    shelf, disk = Shelf(None, {}), SimDisk()
    async with running(disk, shelf, seed=1, crashes=crashes, is_last=False) as node:
        await node.broker.create(JournalSpec(name=NAME))
        for content in contents:
            await append(node, content)
    return crashes, shelf, disk


async def test_a_lost_log_leaves_the_spool_files_as_they_are() -> None:
    """J3, W7: the epoch key says that the log is another one; the first spool file was cut to nothing.

    Source: journals.3.
    """
    crashes, shelf, disk = await acknowledged(b"acknowledged")
    before = spools(disk)
    assert list(before.values()) == [b"acknowledged"]

    lose(disk, "journals/log")
    for seed in (2, 3):
        async with running(disk, shelf, seed=seed, crashes=crashes, is_last=False) as node:
            assert "log is not the one" in (await node.broker.replica(NAME)).stop_reason
        assert spools(disk) == before
    assert not crashes


async def test_a_quarantined_log_leaves_behind_its_gap_what_the_spool_file_has() -> None:
    """W7: the file had every acknowledged byte, and was cut where the log's readable part ended."""
    crashes, shelf, disk = await acknowledged(b"first" * 10, b"second" * 10, b"third" * 10)
    (before,) = spools(disk).values()
    inode = disk.state.files["journals/log/segment-00000000.wal"]
    at = bytes(inode.view).index(b"third" * 10) - 24  # The whole sum: nothing proves what the file has.
    disk.state.change(inode, Write(at, b"X" * 20))
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False) as node:
        assert "lost records" in (await node.broker.replica(NAME)).stop_reason
    assert list(spools(disk).values()) == [before]
    assert not crashes


async def test_a_lost_key_space_is_told_before_any_journal_is_dropped() -> None:
    """J3: journals that a restored or lost key space does not know were dropped from the log at the start."""
    crashes, shelf, disk = await acknowledged(b"acknowledged")
    lost = lose(disk, "keyspace/log")
    for seed in (2, 3):
        with pytest.raises(Corrupt, match="restore"):
            async with running(disk, shelf, seed=seed, crashes=crashes, is_last=False):
                pass
        disk.state.locks.clear()
    lose(disk, "keyspace/log")
    for name, content in lost.items():
        disk.open(name, create=True).write_at(0, [content])
    async with running(disk, shelf, seed=4, crashes=crashes, is_last=False) as node:
        _, shown = await node.content()
    assert shown == b"acknowledged"
    assert not crashes


async def test_a_start_reads_a_fragment_back_before_its_spool_file_goes(tmp_path: Path) -> None:
    """J10: the node died between the two. The store's copy is bad, and the only good one was deleted."""
    node = NodeProcess(tmp_path)
    name, content = "kept/a", b"x" * 2000
    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            await client.journals.create(name, fragment_length=1 << 10)
            await client.journals.append(name, content)
        node.kill()
        stored = tmp_path / "data" / "fragments" / name
        stored.mkdir(parents=True)
        file = stored / f"{0:016x}-{len(content):016x}-{sha1(content).hexdigest()}.raw"
        file.write_bytes(b"y" * 2000)

        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            await client.journals.append(name, b"more")
            for _ in range(20):  # Before it was read back, and after.
                found = b"".join([chunk.data async for chunk in client.journals.read(name)])
                assert found == content + b"more"
                await asyncio.sleep(0.02)
        node.kill()
        file.unlink()
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            found = b"".join([chunk.data async for chunk in client.journals.read(name)])
        assert found == content + b"more"
    finally:
        node.kill()
        shutil.rmtree(tmp_path / "data", ignore_errors=True)


class Forgetful(Shelf):
    """A store that gives back something else than it was given."""

    asked = 0

    async def get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        self.asked += name.endswith(".raw")
        return bytes(len(await super().get(name, begin, end)))


async def test_a_store_that_gives_back_something_else_does_not_make_the_good_copy_unreadable() -> None:
    """J2, J10: the spool file was marked damaged for it, and its bytes were refused."""
    crashes: list[BaseException] = []
    shelf, disk = Forgetful(None, {}), SimDisk()
    async with running(disk, shelf, seed=1, crashes=crashes, is_last=False) as node:
        await node.broker.create(SPEC)
        await append(node, b"x" * 2000)
        await append(node, b"more")
        for _ in range(TURNS_MAX):
            await asyncio.sleep(0)
            if shelf.asked:
                break
        for _ in range(100):
            await asyncio.sleep(0)
        replica, content = await node.content()
        assert content == b"x" * 2000 + b"more"
        assert [spool.bad_copy != "" for spool in replica.closed] == [True]
        reason = node.broker.status(NAME).reason
        assert "not its own" in reason
        assert STORE_WORDS[0] in reason, "doctor finds it"
        assert role._status(node.broker, replica.context)["unstored"] == 1, (
            "and the metric that asks for doctor counts it"
        )
        assert shelf.asked == 1, "it is not asked without end"
    assert not crashes


@pytest.mark.parametrize("label", ["journal.roll.before_remove", "journal.roll.after_remove"])
async def test_retention_of_what_was_just_stored_leaves_a_journal_that_opens(
    tmp_path: Path, label: str
) -> None:
    """J10: the log named a file that was gone; a start made it again, empty, and called it damaged."""
    node, name = NodeProcess(tmp_path), "kept/b"
    try:
        assert await node.start(f"{label}:1")
        async with broadsheet.connect(node.address) as client:
            await client.journals.create(name, fragment_length=1 << 10)
            await client.journals.append(name, [b"s" * 200_000])
            with contextlib.suppress(BroadsheetError):
                await client.journals.append(name, b"roll")
        assert await node.died() == -9
        for stored in (tmp_path / "data" / "fragments" / name).iterdir():
            stored.unlink()  # As retention does, days later.
        for _ in range(2):
            assert await node.start()
            async with broadsheet.connect(node.address) as client:
                status = await client.journals.status(name)
                assert status.state == "open", status
                await client.journals.append(name, b"more")
            node.kill()
    finally:
        node.kill()


class Careless(Shelf):
    """A store that flips a bit of what it takes."""

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        content = bytearray(b"".join(body))
        content[0] ^= 1
        return await super().put_if_absent(name, (bytes(content),))


async def test_a_damaged_spool_file_is_not_removed_for_a_name_in_the_store() -> None:
    """J10, W7: nobody had read that fragment back, and it was damaged too: the better copy was deleted."""
    crashes: list[BaseException] = []
    shelf, disk = Careless(None, {}), SimDisk()
    async with running(disk, shelf, seed=1, crashes=crashes, is_last=False) as node:
        await node.broker.create(SPEC)
        for _ in range(3):
            await append(node, b"a" * 700)
        replica = await node.broker.replica(NAME)
        for _ in range(TURNS_MAX):
            if replica.closed[0].bad_copy:
                break
            await asyncio.sleep(0)
        name = replica.closed[0].name
        housekeeping = node.broker._slots[NAME].housekeeping
        assert housekeeping is not None
        housekeeping.checkpoint()
        for _ in range(200):
            await asyncio.sleep(0)
    disk.state.change(disk.state.files[name], Write(1000, b"X"))
    damaged = bytes(disk.state.files[name].view)

    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False) as node:
        await node.broker.replica(NAME)
    assert damaged in [bytes(inode.view) for inode in disk.state.files.values()]
    assert not crashes


class Unsynced(FaultyDisk):
    """Directories are made before their parent's sync fails."""

    made = 0

    def make_dir(self, name: str) -> None:
        self.inner.make_dir(name)
        self.made += name.startswith("journals/spool/")
        super().make_dir(name)


async def test_a_directory_whose_making_failed_is_made_again() -> None:
    """W5: it was there, so nobody synced its parent again, and streams were acknowledged in it."""
    crashes: list[BaseException] = []
    disk = SimDisk()
    faulty = Unsynced(disk)
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, faulty=faulty) as node:
        faulty.plan(Fault("make_dir", error=errno.EIO, name="journals/spool/*", times=1))
        await node.broker.create(SPEC)
        await node.broker.replica(NAME)
        assert faulty.made == 2
    assert not crashes


class CarelessOnce(Careless):
    """A store that flips a bit of the first fragment only."""

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        if f"/{0:016x}-" in name:
            return await super().put_if_absent(name, body)
        return await Shelf.put_if_absent(self, name, body)


async def test_what_is_stored_behind_a_spool_that_is_kept_contradicts_nothing() -> None:
    """The gap between two spools was compared as if it were empty: every later start refused appends."""
    crashes: list[BaseException] = []
    shelf, disk = CarelessOnce(None, {}), SimDisk()
    async with running(disk, shelf, seed=1, crashes=crashes, is_last=False) as node:
        await node.broker.create(SPEC)
        for _ in range(8):
            await append(node, b"a" * 700)
        replica = await node.broker.replica(NAME)
        for _ in range(TURNS_MAX):
            if len(replica.index) == 2:
                break
            await asyncio.sleep(0)
        assert ([each.begin for each in replica.closed], replica.index.begin) == ([0], 1400)
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False) as node:
        assert (await node.broker.replica(NAME)).stop_reason == ""
        await append(node, b"and on")
        assert (await node.content())[1] == b"a" * 5600 + b"and on"
    assert not crashes
