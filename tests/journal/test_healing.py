"""A journal whose log turns out damaged while it runs writes anew what was lost, and never ends the node."""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import broadsheet
from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.base.types import Buffer, LogStreamId, Offset
from broadsheet.client_sync import SyncJournals
from broadsheet.errors import BroadsheetError, Corrupt, Status
from broadsheet.journal.core.records import CHECKPOINT
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.journal.messages import JournalStatus
from broadsheet.spark.connection import head
from broadsheet.wal.log import Log
from broadsheet.wal.record import LogFull
from simulator.disk import SimDisk, SimFile
from simulator.disk_state import DiskState, Write
from tests.journal.crash_histories import NAME, Running, Shelf, _until, running
from tests.journal.node_process import NodeProcess
from tests.journal.test_damage import ROOMY, append, flip, place_of, shown
from tests.support.faulty import Fault, FaultyDisk


async def lives(node: Running) -> None:
    """A journal with two fragments, the first of which stays here."""
    await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 10)))
    for _ in range(3):
        assert await append(node, NAME, b"a" * 700) is Status.OK


class Down(Shelf):
    """A store that takes nothing."""

    async def put_if_absent(self, name: str, body: object) -> bool:
        raise OSError(f"the store takes no {name}")


class Told(SyncJournals):
    """The journals of a node that tells this status."""

    def __init__(self, status: JournalStatus) -> None:
        self._status = status

    def status(self, name: str, *, timeout: float | None = None) -> JournalStatus:
        assert name == self._status.name
        return self._status


async def until(condition: Callable[[], object]) -> None:
    """Return once it holds: healing tries again after 100 ms."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never holds")


async def test_a_stream_that_is_quarantined_while_it_runs_is_written_anew() -> None:
    """W6: appends are refused for a moment, with the reason; then they go on, and so does a restart.

    A query of Spark that looked for its end in that moment failed: acknowledged bytes were missing, it said.
    """
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Down(None, {}), seed=1, crashes=crashes) as node:
        await lives(node)
        replica = await node.broker.replica(NAME)
        log = node.broker._context.log
        log.quarantine(replica.stream)

        status = await append(node, NAME, b"refused")
        assert status is Status.STORE_UNHEALTHY
        assert (node.broker.status(NAME).state, node.broker.troubles.stopped_count) == ("healing", 1)
        assert head(Told(node.broker.status(NAME)), NAME).offset == 2100
        assert await shown(node, NAME) == b"a" * 2100
        await _until(lambda: not replica.log_fault, "the journal is healed")
        assert not log.is_quarantined(replica.stream)
        assert await append(node, NAME, b"and on") is Status.OK
        assert node.broker.status(NAME).state == "open"
        cut = SimDisk(DiskState.of(disk.state.image(), tuple(disk.state.directories)))
    async with running(cut, Down(None, {}), seed=2, crashes=crashes) as node:
        assert await shown(node, NAME) == b"a" * 2100 + b"and on"
        assert (await node.broker.replica(NAME)).stop_reason == ""
    assert not crashes


async def test_a_journal_that_is_deleted_while_it_heals_does_not_end_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its files are closed between two of the syncs: EBADF was taken for a failed sync."""
    disk, crashes, flush = SimDisk(), list[BaseException](), SimFile.flush
    flushed = asyncio.Event()

    async def slow(self: SimFile) -> None:
        await flush(self)
        if self.name.endswith(".spool"):
            flushed.set()
            await asyncio.sleep(0.05)

    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=ROOMY) as node:
        await lives(node)
        replica = await node.broker.replica(NAME)
        monkeypatch.setattr(SimFile, "flush", slow)
        node.broker._context.log.quarantine(replica.stream)
        await flushed.wait()
        await node.broker.delete(NAME, None)
        assert not [name for name in disk.state.files if name.startswith("journals/spool/")]
    assert not crashes


async def test_a_journal_that_lost_its_log_and_its_spool_serves_the_rest_and_stays_stopped() -> None:
    """W6, W7: nothing is sound enough to be written anew; a restart knows it from the seal.

    It was refused as full until then, which a client tries again, and as stopped after the restart.
    """
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, is_last=False) as node:
        await lives(node)
        replica = await node.broker.replica(NAME)
        inode = disk.state.files[replica.closed[0].name]
        disk.state.change(inode, Write(5, b"X"))
        node.broker._context.log.quarantine(replica.stream)

        await append(node, NAME, b"refused")
        await _until(lambda: replica.stop_reason, "the journal is sealed")
        assert "accept-loss" in node.broker.status(NAME).reason
        assert await append(node, NAME, b"refused") is Status.INDEX_HAS_GREATER_OFFSET
        with pytest.raises(Corrupt):
            await shown(node, NAME)
    async with running(disk, Down(None, {}), seed=2, crashes=crashes) as node:
        assert "accept-loss" in (await node.broker.replica(NAME)).stop_reason
        assert await append(node, NAME, b"refused") is Status.INDEX_HAS_GREATER_OFFSET
    assert not crashes


async def test_a_stopped_journal_whose_log_record_is_damaged_opens_and_its_loss_can_be_accepted() -> None:
    """W7: its seal tells all; it stayed in `opening` for ever, and no command reached it."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, is_last=False) as node:
        await lives(node)
        replica = await node.broker.replica(NAME)
        disk.state.change(disk.state.files[replica.closed[0].name], Write(5, b"X"))
        node.broker._context.log.quarantine(replica.stream)
        await until(lambda: replica.stop_reason)
    async with running(disk, Down(None, {}), seed=2, crashes=crashes, is_last=False) as node:
        reason = (await node.broker.replica(NAME)).stop_reason
    flip(disk, *place_of(disk, b"is_sealed", ".wal"))
    for seed in (3, 4):
        async with running(disk, Down(None, {}), seed=seed, crashes=crashes, is_last=False) as node:
            async with asyncio.timeout(5):
                assert (await node.broker.replica(NAME)).stop_reason == reason
            if seed == 4:
                await node.broker.accept_loss(NAME, None, head=None, may_act=True, is_head_only=False)
                assert await append(node, NAME, b"on") is Status.OK
    async with running(disk, Down(None, {}), seed=5, crashes=crashes) as node:
        assert (await node.broker.replica(NAME)).stop_reason == ""
    assert not crashes


async def test_a_log_that_is_full_while_it_begins_anew_is_not_taken_for_healed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """J2: the stream was reset and held nothing, appends went on, and the next start removed the spools."""
    disk, crashes, append_to_log = SimDisk(), list[BaseException](), Log.append
    refused = 0

    def full(self: Log, stream: LogStreamId, parts: Sequence[Buffer], **named: Any) -> Offset:
        nonlocal refused
        if named.get("relief") and bytes(parts[0])[0] == CHECKPOINT and refused < 3:
            refused += 1
            raise LogFull("no room")
        return append_to_log(self, stream, parts, **named)

    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=ROOMY) as node:
        await lives(node)
        replica = await node.broker.replica(NAME)
        monkeypatch.setattr(Log, "append", full)
        node.broker._context.log.quarantine(replica.stream)
        await until(lambda: refused > 0)
        assert await append(node, NAME, b"refused") is Status.STORE_UNHEALTHY
        await until(lambda: not replica.log_fault)
        assert refused == 3
        assert await append(node, NAME, b"and on") is Status.OK
        cut = SimDisk(DiskState.of(disk.state.image(), tuple(disk.state.directories)))
    async with running(cut, Down(None, {}), seed=2, crashes=crashes, config=ROOMY) as node:
        assert await shown(node, NAME) == b"a" * 2100 + b"and on"
        assert (await node.broker.replica(NAME)).stop_reason == ""
    assert not crashes


@pytest.mark.parametrize(
    ("op", "error", "name"),
    [
        ("write_at", errno.ENOSPC, "*/seal.new"),
        ("open", errno.EMFILE, "*/seal.new"),
        ("remove", errno.EMFILE, "*/seal"),
    ],
)
async def test_healing_waits_for_space_and_descriptors(op: str, error: int, name: str) -> None:
    """A full disk, or a moment without descriptors, ended the node."""
    disk, crashes = SimDisk(), list[BaseException]()
    faulty = FaultyDisk(disk)
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=ROOMY, faulty=faulty) as node:
        await lives(node)
        replica = await node.broker.replica(NAME)
        faulty.plan(Fault(op, error=error, name=name, times=2))
        node.broker._context.log.quarantine(replica.stream)
        await until(lambda: replica.log_fault)
        await until(lambda: not replica.log_fault)
        assert await append(node, NAME, b"on") is Status.OK
        assert faulty.faults.faults_hit == {op: 2}
        assert await shown(node, NAME) == b"a" * 2100 + b"on"
    assert not crashes


async def test_files_that_are_stored_while_a_journal_heals_are_removed() -> None:
    """An idle journal kept them until its next upload or start, however much room they took."""
    disk, shelf, crashes = SimDisk(), Shelf(None, {}), list[BaseException]()
    faulty = FaultyDisk(disk)
    soon = replace(ROOMY, upload_retry_min=Duration(MILLISECOND), upload_retry_max=Duration(MILLISECOND))
    async with running(disk, shelf, seed=1, crashes=crashes, config=soon, faulty=faulty) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 10)))
        replica = await node.broker.replica(NAME)
        shelf.is_shut = True
        for _ in range(3):
            assert await append(node, NAME, b"a" * 700) is Status.OK
        faulty.plan(Fault("write_at", error=errno.ENOSPC, name="*/seal.new", times=3))
        node.broker._context.log.quarantine(replica.stream)
        await until(lambda: replica.log_fault)
        shelf.is_shut = False
        await until(lambda: not replica.closed)
        assert replica.log_fault, "it is not healed yet"
        await until(lambda: not replica.log_fault)
        await until(lambda: disk.list(replica.directory) == [replica.spool.name.rpartition("/")[2]])
    assert not crashes


async def test_one_acceptance_is_enough_for_a_spool_that_healing_found_damaged() -> None:
    """The command said that it was done, kept the damaged file as sound, and the journal stayed stopped."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, is_last=False) as node:
        await lives(node)
        replica = await node.broker.replica(NAME)
        spool = replica.closed[0]
        disk.state.change(disk.state.files[spool.name], Write(5, b"X"))
        node.broker._context.log.quarantine(replica.stream)
        await _until(lambda: replica.stop_reason, "the journal is sealed")

        told = await node.broker.accept_loss(NAME, None, head=None, may_act=True, is_head_only=False)
        assert (told.lost[0].begin, told.lost[0].end) == (spool.begin, spool.end)
        assert (await node.broker.replica(NAME)).stop_reason == ""
        assert await append(node, NAME, b"on") is Status.OK
    assert not crashes


async def test_one_damaged_old_record_ends_neither_the_node_nor_any_journal(tmp_path: Path) -> None:
    """W6: the log finds it when it needs the segment again. A raise out of a performer ended the node."""
    node = NodeProcess(tmp_path)
    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            for name in ("heal/a", "heal/b"):
                await client.journals.create(name)
            await client.journals.append("heal/a", b"OLD-RECORD-OF-A")
            for segment in (tmp_path / "data/journals/log").glob("segment-*.wal"):
                if (at := segment.read_bytes().find(b"OLD-RECORD-OF-A")) >= 0:
                    with segment.open("r+b") as file:
                        file.seek(at)
                        file.write(b"X")
            is_over = asyncio.Event()

            async def pieces() -> AsyncIterator[bytes]:
                while not is_over.is_set():
                    yield os.urandom(100_000)
                    await asyncio.sleep(0.3)

            streaming = asyncio.create_task(client.journals.append("heal/a", pieces(), timeout=300))
            await asyncio.sleep(0.3)
            for _ in range(200):
                await client.journals.append("heal/b", os.urandom(60_000))
            is_over.set()
            with contextlib.suppress(BroadsheetError):
                await streaming
            async with asyncio.timeout(20):
                while True:
                    with contextlib.suppress(BroadsheetError):
                        commit = await client.journals.append("heal/a", b"and on")
                        break
                    await asyncio.sleep(0.05)
            found = b"".join([c.data async for c in client.journals.read("heal/a")])
            assert found.startswith(b"OLD-RECORD-OF-A")
            assert len(found) == commit.end
        node.kill()
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            assert b"".join([c.data async for c in client.journals.read("heal/a")]) == found
            assert (await client.journals.status("heal/a")).state == "open"
    finally:
        node.kill()
