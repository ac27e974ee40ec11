"""A start while the fragment store is down: appends and recent reads go on, nothing is overwritten."""

import asyncio
import errno
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha1
from pathlib import Path

import msgspec
import pytest

import broadsheet
from broadsheet.base.time import MILLISECOND, Duration
from broadsheet.base.types import Buffer, ByteOffset, JournalName
from broadsheet.client import Client
from broadsheet.errors import (
    BroadsheetError,
    ConfigError,
    Corrupt,
    IndexHasGreaterOffset,
    InvalidArgument,
    ShuttingDown,
    Status,
    StoreUnhealthy,
)
from broadsheet.journal import fragments as fragments_module
from broadsheet.journal.committed_reads import read
from broadsheet.journal.config import JournalsConfig
from broadsheet.journal.core.fragment import Fragment
from broadsheet.journal.core.fragment_index import Index
from broadsheet.journal.core.pipeline_events import Fullness, Submitted
from broadsheet.journal.core.spec import (
    FRAMING_LABEL,
    SIDE_DIRECTORY,
    FragmentSpec,
    JournalSpec,
    registers_key,
)
from broadsheet.journal.messages import LossReply
from broadsheet.journal.replica import Replica
from broadsheet.journal.service import UnaryAppend
from broadsheet.journal.spool_file import SPOOL_SUFFIX
from broadsheet.keyspace.core.transaction import Delete
from broadsheet.message.framing import Kind
from broadsheet.runtime.syncs import Syncs
from broadsheet.runtime.system import LocalStores
from simulator.crashstates import crash_states, record
from simulator.disk import SimDisk, SimFile
from simulator.disk_state import DiskState
from simulator.journalnode import status_of
from tests.journal.crash_histories import JOURNALS, NAME, TURNS_MAX, Running, Shelf, Stored, running
from tests.journal.node_process import NodeProcess
from tests.journal.test_damage import copy_of
from tests.journal.test_healing import until
from tests.journal.test_unreadable_spool import checkpointed
from tests.support.faulty import Fault, FaultyDisk

SPEC = JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 10))
FIRST, SECOND, THIRD = b"1" * 2000, b"2" * 2100, b"3" * 2200
SECONDS_MAX = 20.0


class Flaky(Shelf):
    """A store that is down, or that hangs, for a while."""

    is_down = False
    is_blind = False
    """It takes and gives, and lists nothing."""
    hangs: asyncio.Event | None = None

    async def _ask(self) -> None:
        if self.hangs is not None:
            await self.hangs.wait()
        if self.is_down:
            raise OSError("the store is down")

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        await self._ask()
        return await super().put_if_absent(name, body)

    async def get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        await self._ask()
        return await super().get(name, begin, end)

    async def list(self, prefix: str) -> Sequence[Stored]:
        await self._ask()
        if self.is_blind:
            raise OSError("the store lists nothing")
        return await super().list(prefix)


async def append(node: Running, content: bytes) -> None:
    replica = await node.broker.replica(NAME)
    run = UnaryAppend(content)
    replica.deliver(Submitted(run=run, count=1, length=len(content)))
    status = await status_of(run.answered)
    assert status.name == "OK"


async def until_stored(node: Running, count: int) -> None:
    """Return once so many fragments are stored, and their spool files removed; no other is on its way."""
    replica = await node.broker.replica(NAME)
    for _ in range(TURNS_MAX):
        files = [name for name in replica.context.disk.list(replica.directory) if name.endswith(SPOOL_SUFFIX)]
        if len(replica.index) == count and not replica.closed and len(files) == 1:
            return
        await asyncio.sleep(0.001)
    pytest.fail(f"{len(replica.index)} fragments are stored, and {len(replica.closed)} wait")


async def first_life(
    disk: SimDisk, shelf: Shelf, crashes: list[BaseException], contents: Sequence[bytes]
) -> None:
    """A node that makes the journal, appends `contents`, and stores a fragment of each but the last."""
    async with running(disk, shelf, seed=1, crashes=crashes, is_last=False) as node:
        await node.broker.create(SPEC)
        for content in contents:
            await append(node, content)
        await until_stored(node, len(contents) - 1)


async def test_what_was_stored_while_a_checkpoint_synced_its_files_is_synced_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """journals.14: its file was empty after a power cut, and without the store that looked like damage.

    The journal took no appends, also when the store had answered, and named `accept-loss`, though it lacked
    nothing. The checkpoint had left out the sync of each file that was stored before its turn came.
    """
    gate: asyncio.Event | None = None
    flush = SimFile.flush

    async def slow_flush(file: SimFile) -> None:
        await flush(file)
        if gate is not None and file.name.endswith(SPOOL_SUFFIX):
            await gate.wait()

    monkeypatch.setattr(SimFile, "flush", slow_flush)
    disk, shelf, crashes = SimDisk(), Flaky(None, {}), list[BaseException]()
    config = msgspec.structs.replace(JOURNALS, checkpoint_bytes=1 << 20)  # None comes by itself.
    tape = record(disk)
    async with running(disk, shelf, seed=1, crashes=crashes, config=config) as node:
        await node.broker.create(SPEC)
        await node.broker.replica(NAME)
        shelf.is_down = True
        for content in (FIRST, SECOND, THIRD):
            await append(node, content)
        gate, housekeeping = asyncio.Event(), node.broker._slots[NAME].housekeeping
        assert housekeeping is not None
        housekeeping.checkpoint()
        shelf.is_down = False
        replica = await node.broker.replica(NAME)
        async with asyncio.timeout(SECONDS_MAX):
            while replica.closed:  # noqa: ASYNC110 - nobody tells.
                await asyncio.sleep(0.001)
        first = len(tape.steps)
        gate.set()
        await until_stored(node, 2)
    gate, shelf.is_down = None, True
    for state in crash_states(tape, atoms_max=3, first=first):
        async with running(state.disk(), shelf, seed=2, crashes=crashes) as node:
            assert (await node.broker.replica(NAME)).stop_reason == "", f"step {state.position}"
    assert not crashes


@pytest.mark.parametrize("how", ["down", "hangs"])
async def test_a_start_without_the_store_takes_appends_and_serves_what_is_here(how: str) -> None:
    """journals.20: the journal hung in `opening` until the store was there again."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Flaky(None, {})
    await first_life(disk, shelf, crashes, (FIRST, SECOND, THIRD))
    stored = dict(shelf.objects)

    shelf.is_down, shelf.hangs = how == "down", asyncio.Event() if how == "hangs" else None
    config = msgspec.structs.replace(JOURNALS, listing_wait=Duration(50 * MILLISECOND))
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False, config=config) as node:
        for content in (b"a" * 1500, b"b" * 1500):
            await append(node, content)
        status = node.broker.status(NAME)
        assert (status.state, status.begin, status.end) == ("open", None, 6300 + 3000)
        assert "has not answered" in status.reason
        replica = await node.broker.replica(NAME)
        assert replica.spool.read(replica.spool.begin, 1500) == b"b" * 1500
        with pytest.raises(OSError, match="has not answered since the start"):
            replica.require_listed()
        for _ in range(100):
            await asyncio.sleep(0)
        assert shelf.objects == stored, "nothing is written to a store that has not told what it has"

        shelf.is_down = False
        if shelf.hangs is not None:
            shelf.hangs.set()
        await until_stored(node, 4)
        _, content = await node.content()
        assert content == FIRST + SECOND + THIRD + b"a" * 1500 + b"b" * 1500
        status = node.broker.status(NAME)
        assert (status.begin, status.reason) == (0, "")
        assert stored.items() <= shelf.objects.items()
    assert not crashes


async def without_files(
    shelf: Flaky, crashes: list[BaseException], *, is_stored: bool
) -> tuple[SimDisk, JournalsConfig]:
    """A node whose log names two fragments that have no files any more; its store is down."""
    disk = SimDisk()
    async with running(disk, shelf, seed=1, crashes=crashes, is_last=False) as node:
        await node.broker.create(SPEC)
        shelf.is_down = True
        for content in (FIRST, SECOND, THIRD):
            await append(node, content)
        await checkpointed(node)
        killed = copy_of(disk)
        shelf.is_down = not is_stored
        if is_stored:
            await until_stored(node, 2)
    shelf.is_down = True
    for name in sorted(name for name in killed.state.files if name.endswith(SPOOL_SUFFIX))[:2]:
        killed.state.remove(name)
    return killed, msgspec.structs.replace(JOURNALS, listing_wait=Duration(50 * MILLISECOND))


@pytest.mark.parametrize("is_stored", [False, True])
async def test_what_the_store_must_have_is_demanded_of_it_also_after_a_checkpoint_and_a_restart(
    *, is_stored: bool
) -> None:
    """ADR 0140: the checkpoint named it no more, so the next start told its readers that it was trimmed."""
    crashes: list[BaseException] = []
    shelf = Flaky(None, {})
    disk, config = await without_files(shelf, crashes, is_stored=is_stored)
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False, config=config) as node:
        await append(node, b"more")
        await checkpointed(node)
    shelf.is_down = False
    async with running(disk, shelf, seed=3, crashes=crashes, is_last=False, config=config) as node:
        replica = await node.broker.replica(NAME)
        if not is_stored:
            assert "does not have the content of [0, 2000)" in replica.stop_reason
            return
        _, content = await node.content()
        assert (replica.stop_reason, content) == ("", FIRST + SECOND + THIRD + b"more")
    assert not crashes


async def test_what_the_store_must_have_is_demanded_of_it_also_after_another_loss_was_accepted() -> None:
    """Nobody had accepted that loss, nor was told of it: its readers heard that it was trimmed."""
    crashes: list[BaseException] = []
    shelf = Flaky(None, {})
    disk, config = await without_files(shelf, crashes, is_stored=False)
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False, config=config) as node:
        await append(node, b"more")
        await node.keyspace.transact([], [Delete(registers_key(NAME))])
    async with running(disk, shelf, seed=3, crashes=crashes, is_last=False, config=config) as node:
        head = ByteOffset((await node.broker.replica(NAME)).end)
        await node.broker.accept_loss(NAME, None, head=head, may_act=True, is_head_only=False)
        await append(node, b"and on")
    shelf.is_down = False
    async with running(disk, shelf, seed=4, crashes=crashes, is_last=False, config=config) as node:
        assert "does not have the content of [0, 2000)" in (await node.broker.replica(NAME)).stop_reason
    assert not crashes


async def test_what_a_late_listing_misses_is_still_missed_after_the_log_was_healed_meanwhile() -> None:
    """The log that was begun anew named it no more: the next start took appends, and told it as trimmed."""
    crashes: list[BaseException] = []
    shelf = Flaky(None, {})
    disk, config = await without_files(shelf, crashes, is_stored=False)
    faulty = FaultyDisk(disk)
    async with running(
        disk, shelf, seed=2, crashes=crashes, is_last=False, config=config, faulty=faulty
    ) as node:
        replica = await node.broker.replica(NAME)
        faulty.plan(Fault("write_at", error=errno.ENOSPC, name="*/seal.new", times=3))
        node.broker._context.log.quarantine(replica.stream)
        await until(lambda: faulty.faults.faults_hit)
        await _answers(shelf, replica)
        assert replica.log_fault, "it is not healed yet"
        assert "neither a spool file nor the fragment store has [0, 2000)" in replica.stop_reason
        await until(lambda: not replica.log_fault)
    async with running(disk, shelf, seed=3, crashes=crashes, is_last=False, config=config) as node:
        assert "does not have the content of [0, 2000)" in (await node.broker.replica(NAME)).stop_reason
    assert not crashes


async def test_what_a_late_listing_misses_is_told_as_lost() -> None:
    """The reason named the first span, and the report none: a loss was accepted that nobody had shown."""
    crashes: list[BaseException] = []
    shelf = Flaky(None, {})
    disk, config = await without_files(shelf, crashes, is_stored=False)
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False, config=config) as node:
        replica = await node.broker.replica(NAME)
        await _answers(shelf, replica)
        assert "neither a spool file nor the fragment store has [0, 2000)" in replica.stop_reason

        told = await node.broker.accept_loss(NAME, None, head=None, may_act=False, is_head_only=False)

        with pytest.raises(InvalidArgument, match="more than its head is in doubt"):
            await node.broker.accept_loss(NAME, None, head=None, may_act=False, is_head_only=True)
        assert [(each.begin, each.end) for each in told.lost] == [
            (0, len(FIRST)),
            (len(FIRST), len(FIRST + SECOND)),
        ]
    assert not crashes


async def test_what_a_late_listing_misses_is_not_told_as_trimmed() -> None:
    """The journal seemed to begin behind it, so that readers from its begin on passed over it unheard."""
    crashes: list[BaseException] = []
    shelf = Flaky(None, {})
    disk, config = await without_files(shelf, crashes, is_stored=False)
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False, config=config) as node:
        replica = await node.broker.replica(NAME)
        await _answers(shelf, replica)
        assert node.broker.status(NAME).begin == 0
        with pytest.raises(Corrupt, match=r"has \[0, 2000\): `broadsheet journals accept-loss"):
            await anext(read(replica, ByteOffset(0), None, block=False))
        behind = ByteOffset(len(FIRST + SECOND))
        assert (await anext(read(replica, behind, None, block=False))).data == THIRD
    assert not crashes


async def test_a_store_that_answers_late_is_trimmed_as_one_that_answers_at_once() -> None:
    """The log named what only the store had until a checkpoint came, which nothing asked for."""
    crashes: list[BaseException] = []
    shelf = Flaky(None, {})
    disk, config = await without_files(shelf, crashes, is_stored=True)
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False, config=config) as node:
        replica = await node.broker.replica(NAME)
        await _answers(shelf, replica)
        trim = await (await node.broker.trimming(NAME)).trim(ByteOffset(2000))
        assert (trim.begin, trim.kept) == (2000, "")
    assert not crashes


async def test_a_reader_that_waits_for_the_store_hears_at_once_that_its_journal_is_closed() -> None:
    """It waited a second for a listing that nobody would make any more, and held a stop up."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Flaky(None, {})
    await first_life(disk, shelf, crashes, (FIRST, SECOND, THIRD))
    shelf.is_down = True
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False) as node:
        replica = await node.broker.replica(NAME)
        waiting = asyncio.ensure_future(anext(read(replica, ByteOffset(0), None, block=False)))
        await asyncio.wait([waiting], timeout=0.01)
        assert not waiting.done()
        replica.close(Status.SHUTTING_DOWN)
        await asyncio.wait([waiting], timeout=0.5)
        assert waiting.done()
        assert waiting.exception() is not None
    assert not crashes


@pytest.mark.parametrize("is_down", [False, True])
async def test_what_a_store_lists_is_indexed_by_a_thread(
    monkeypatch: pytest.MonkeyPatch, *, is_down: bool
) -> None:
    """100,000 fragments held the loop for half a second, also while the node served others."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Flaky(None, {})
    await first_life(disk, shelf, crashes, (FIRST, SECOND, THIRD))
    is_away, seen, run, add = False, list[bool](), SimDisk.run, Index.add

    async def running_away(self: SimDisk, work: Callable[[], object]) -> object:
        def away() -> object:
            nonlocal is_away
            is_away = True
            try:
                return work()
            finally:
                is_away = False

        return await run(self, away)

    def adding(self: Index, fragment: Fragment) -> None:
        seen.append(is_away)
        add(self, fragment)

    monkeypatch.setattr(SimDisk, "run", running_away)
    monkeypatch.setattr(Index, "add", adding)
    shelf.is_down = is_down
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False) as node:
        replica = await node.broker.replica(NAME)
        assert replica.is_listed is not is_down
        shelf.is_down = False
        replica.listing_wanted.set()
        await until_stored(node, 2)
        assert seen == [True, True]
    assert not crashes


async def neither_is_served(node: Running) -> None:
    """J10, J1: the spool's bytes were read until an operator accepted the store's, which are others."""
    replica = await node.broker.replica(NAME)
    chunks = read(replica, ByteOffset(0), None, block=False)
    assert (await anext(chunks)).data == FIRST, "what both agree about is served"
    with pytest.raises(Corrupt, match=r"do not agree about .*neither is served.*accept-loss"):
        await anext(chunks)


@pytest.mark.parametrize("is_contradicted", [False, True])
async def test_nothing_is_stored_beside_what_is_unknown_or_contradicts_it(*, is_contradicted: bool) -> None:
    """J10: a store that takes fragments, and only later says what it had."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Flaky(None, {})
    await first_life(disk, shelf, crashes, (FIRST, SECOND))
    if is_contradicted:
        other = sha1(b"?" * 5000, usedforsecurity=False).hexdigest()
        shelf.objects[f"{NAME}/{2000:016x}-{7000:016x}-{other}.raw"] = b"?" * 5000
    stored = dict(shelf.objects)
    shelf.is_blind = True
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False) as node:
        for content in (b"a" * 1500, b"b" * 1500):
            await append(node, content)
        await asyncio.sleep(0.1)
        assert shelf.objects == stored, "nobody knows yet what it has"

        shelf.is_blind = False
        if not is_contradicted:
            await until_stored(node, 3)
            return
        for _ in range(TURNS_MAX):
            if node.broker.status(NAME).state == "behind-index":
                break
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)
        assert "knows offset 7000" in node.broker.status(NAME).reason
        assert shelf.objects == stored
        await neither_is_served(node)
    async with running(disk, shelf, seed=3, crashes=crashes, is_last=False) as node:
        assert "accept-loss" in (await node.broker.replica(NAME)).stop_reason
        await asyncio.sleep(0.1)
        assert shelf.objects == stored, "a restart does not change its mind"
        await neither_is_served(node)
        told = await node.broker.accept_loss(NAME, None, head=None, may_act=False, is_head_only=False)
        assert any("store has other bytes" in each.why for each in told.lost), told
        assert (await node.broker.replica(NAME)).stop_reason, "a look changed something"
        with pytest.raises(InvalidArgument, match="more than its head"):
            await node.broker.accept_loss(NAME, None, head=None, may_act=True, is_head_only=True)
        told = await node.broker.accept_loss(NAME, None, head=None, may_act=True, is_head_only=False)
        replica = await node.broker.replica(NAME)
        assert (replica.stop_reason, replica.end) == ("", told.head), (
            "above all that a file or the store names"
        )
        end = ByteOffset(7000)
        found = [chunk.data async for chunk in read(replica, ByteOffset(0), end, block=False)]
        assert b"".join(found) == FIRST + b"?" * 5000, "the store's bytes are the journal's now"
        await append(node, b"and on")
        assert replica.spool.read(told.head, 6) == b"and on"
    assert {name: shelf.objects[name] for name in stored} == stored
    aside = [bytes(inode.view) for name, inode in disk.state.files.items() if name.endswith(".lost")]
    assert SECOND in b"".join(aside), "nothing is deleted"
    assert not crashes


@pytest.mark.parametrize("is_blind", [False, True])
async def test_a_spool_and_a_fragment_of_one_range_with_other_bytes_contradict_each_other(
    *, is_blind: bool
) -> None:
    """J10: records of equal length make fragments of equal ranges, so an older copy often meets this case.

    The journal said nothing, stored its own content beside the other, and nobody could read the range again.
    """
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Flaky(None, {})
    await first_life(disk, shelf, crashes, (FIRST, SECOND))
    other = sha1(b"?" * len(SECOND), usedforsecurity=False).hexdigest()
    shelf.objects[f"{NAME}/{2000:016x}-{4100:016x}-{other}.raw"] = b"?" * len(SECOND)
    stored = dict(shelf.objects)
    shelf.is_blind = is_blind
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False) as node:
        if is_blind:
            await append(node, THIRD)
        shelf.is_blind = False
        for _ in range(TURNS_MAX):
            if node.broker.status(NAME).state == "behind-index":
                break
            await asyncio.sleep(0.001)
        assert "older copy" in node.broker.status(NAME).reason
        await neither_is_served(node)
        told = await node.broker.accept_loss(NAME, None, head=None, may_act=True, is_head_only=False)
        assert told.head == 4100 + len(THIRD) * is_blind
        await append(node, b"and on")
        replica = await node.broker.replica(NAME)
        found = [chunk.data async for chunk in read(replica, ByteOffset(0), ByteOffset(4100), block=False)]
        assert b"".join(found) == FIRST + b"?" * len(SECOND), "the store's bytes are the journal's now"
    assert {name: shelf.objects[name] for name in stored} == stored
    assert not any(name.startswith(f"{NAME}/{2000:016x}") for name in shelf.objects.keys() - stored.keys())
    assert not crashes


async def test_of_those_who_ask_at_once_what_a_journal_lost_one_has_its_files_read_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each had a MiB of them read and summed on the loop in each turn: 200 held it for 0.2 s (access.6).

    Whoever waits while another accepts the loss is told to look again.
    """
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Flaky(None, {})
    await first_life(disk, shelf, crashes, (FIRST, SECOND))
    other = sha1(b"?" * len(SECOND), usedforsecurity=False).hexdigest()
    shelf.objects[f"{NAME}/{2000:016x}-{4100:016x}-{other}.raw"] = b"?" * len(SECOND)
    reads: list[str] = []
    read_at = SimFile.read_at

    def counted(file: SimFile, at: int, length: int) -> bytes:
        if file.name.endswith(SPOOL_SUFFIX):
            reads.append(file.name)
        return read_at(file, at, length)

    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False) as node:

        def ask(*, may_act: bool = False) -> asyncio.Task[LossReply]:
            asked = node.broker.accept_loss(NAME, None, head=None, may_act=may_act, is_head_only=False)
            return asyncio.create_task(asked)

        await node.broker.replica(NAME)
        monkeypatch.setattr(SimFile, "read_at", counted)
        callers = [ask() for _ in range(50)]
        await callers[0]
        alone = len(reads)
        await asyncio.gather(*callers)
        assert len(reads) > 10 * alone > 0
        found = await asyncio.gather(ask(may_act=True), *[ask() for _ in range(20)], return_exceptions=True)
        assert {type(each) for each in found} == {LossReply, ShuttingDown}
        assert type(found[0]) is LossReply
    assert not crashes


async def test_two_stored_contents_of_one_range_are_told_with_a_remedy_that_works() -> None:
    """journals.10: only a reader saw it, as an error that named no way out."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Flaky(None, {})
    await first_life(disk, shelf, crashes, (FIRST, SECOND, THIRD))
    name = f"{NAME}/{2000:016x}-{4100:016x}-{'7' * 40}.raw"
    shelf.objects[name] = b"?" * len(SECOND)
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False) as node:
        replica = await node.broker.replica(NAME)
        status = node.broker.status(NAME)
        assert (status.state, node.broker.troubles.stopped_count) == ("open", 1)
        assert f"{'7' * 40}.raw" in status.reason
        assert "disagree in the fragment store" in status.reason
        with pytest.raises(
            Corrupt,
            match="none of them is served: find out which one is right, move the others away, and start",
        ):
            await anext(read(replica, ByteOffset(2000), None, block=False))
    del shelf.objects[name]
    async with running(disk, shelf, seed=3, crashes=crashes, is_last=False) as node:
        _, content = await node.content()
        assert content == FIRST + SECOND + THIRD
        assert node.broker.status(NAME).reason == ""
    assert not crashes


async def test_a_store_that_takes_nothing_is_told() -> None:
    """journals.20: spool files grew until the disk was full, and the status of the journal was `open`."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), OnlyIndexes(None, {})
    async with running(disk, shelf, seed=1, crashes=crashes, is_last=False) as node:
        await node.broker.create(SPEC)
        for content in (FIRST, SECOND, THIRD):
            await append(node, content)
        for _ in range(TURNS_MAX):
            if node.broker.status(NAME).reason:
                break
            await asyncio.sleep(0.001)
        status = node.broker.status(NAME)
        assert (status.state, node.broker.troubles.stopped_count) == ("open", 0)
        assert "did not take [0, 2000), which stays here and is tried again" in status.reason
        assert "the store has no room for it" in status.reason
        replica = await node.broker.replica(NAME)
        replica.fullness = "the disk is full"  # As the files that stay make it at last.
        replica.deliver(Fullness(is_full=True))
        assert node.broker.status(NAME).reason == f"the disk is full; {status.reason}"
    async with running(disk, Flaky(None, {}), seed=2, crashes=crashes, is_last=False) as node:
        await until_stored(node, 2)
        assert node.broker.status(NAME).reason == ""
    assert not crashes


async def test_no_head_is_chosen_while_the_store_has_not_told_which_offsets_it_knows() -> None:
    """J1: reset-head saw no loss, and appends got offsets that stored fragments have and readers had read."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Flaky(None, {})
    await first_life(disk, shelf, crashes, (FIRST, SECOND, THIRD))
    for file in [file for file in disk.state.files if file.startswith("journals/")]:
        disk.state.remove(file)
    shelf.is_down = True
    config = msgspec.structs.replace(JOURNALS, listing_wait=Duration(50 * MILLISECOND))
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False, config=config) as node:
        accept = node.broker.accept_loss
        assert "accept-loss" in (await node.broker.replica(NAME)).stop_reason
        for may_act in (False, True):
            with pytest.raises(StoreUnhealthy, match=r"may know a greater offset.* nothing changed"):
                await accept(NAME, None, head=None, may_act=may_act, is_head_only=True)
        shelf.is_down = False
        await until_stored(node, 2)
        told = await accept(NAME, None, head=None, may_act=True, is_head_only=True)
        assert told.head == len(FIRST + SECOND)
        await append(node, b"and on")
    assert not crashes


@pytest.mark.parametrize("is_roll_known", [False, True])
async def test_the_command_that_an_older_copy_beside_a_newer_store_names_is_one_that_works(
    *, is_roll_known: bool
) -> None:
    """journals.15: its reason named `reset-head`, which refused, because more than the head is in doubt.

    In the copy a fragment is open, or is closed and not stored yet, that the store has with other bytes.
    """
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Flaky(None, {})
    shelf.is_down = True
    async with running(disk, shelf, seed=1, crashes=crashes, is_last=False) as node:
        await node.broker.create(SPEC)
        for content in (FIRST, SECOND)[: 1 + is_roll_known]:
            await append(node, content)
    older = SimDisk(DiskState.of(disk.state.image(), tuple(disk.state.directories)))
    for begin, content in ((0, FIRST + b"more"), (2004, SECOND), (4104, THIRD)):
        digest = sha1(content, usedforsecurity=False).hexdigest()
        shelf.objects[f"{NAME}/{begin:016x}-{begin + len(content):016x}-{digest}.raw"] = content
    shelf.is_down = False
    async with running(older, shelf, seed=3, crashes=crashes, is_last=False) as node:
        assert "knows offset 6304" in (await node.broker.replica(NAME)).stop_reason
        (command,) = re.findall(rf"`broadsheet journals (.*) {NAME}`", node.broker.status(NAME).reason)
        told = await node.broker.accept_loss(
            NAME, None, head=None, may_act=True, is_head_only=command == "reset-head"
        )
        assert (told.is_done, told.head) == (True, 6304)
        await append(node, b"and on")
        _, content = await node.content()
        assert content == FIRST + b"more" + SECOND + THIRD + b"and on"
    assert not crashes


@pytest.mark.parametrize("head", [4_000, 5_000])
async def test_an_operator_may_choose_a_head_while_the_store_is_gone(head: int) -> None:
    """Else a journal whose store never comes back could not go on. Too low a choice is noticed later."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Flaky(None, {})
    await first_life(disk, shelf, crashes, (FIRST, SECOND, THIRD))
    for file in [file for file in disk.state.files if file.startswith("journals/")]:
        disk.state.remove(file)
    shelf.is_down = True
    config = msgspec.structs.replace(JOURNALS, listing_wait=Duration(50 * MILLISECOND))
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False, config=config) as node:
        await node.broker.accept_loss(NAME, None, head=ByteOffset(head), may_act=True, is_head_only=True)
        await append(node, b"and on")
        shelf.is_down = False
        await _until_listed(await node.broker.replica(NAME))
        assert node.broker.status(NAME).state == ("open" if head > len(FIRST + SECOND) else "behind-index")
    assert not crashes


async def test_an_open_fragment_that_only_the_store_can_have_is_waited_for() -> None:
    """It was closed without a record, stored, and its file is gone: only the store knows its bytes."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Flaky(None, {})
    async with running(disk, shelf, seed=1, crashes=crashes, is_last=False) as node:
        await node.broker.create(SPEC)
        await append(node, FIRST)
    hasty = msgspec.structs.replace(JOURNALS, checkpoint_bytes=1)
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False, config=hasty) as node:
        await node.broker.replica(NAME)
        await asyncio.sleep(0.05)  # A checkpoint trims what the log had of it.
    # As a kill between the removal of a stored spool file and the next checkpoint leaves it.
    (spool,) = [file for file in disk.state.files if file.endswith(".spool")]
    disk.state.remove(spool)
    digest = sha1(FIRST, usedforsecurity=False).hexdigest()
    shelf.objects[f"{NAME}/{0:016x}-{len(FIRST):016x}-{digest}.raw"] = FIRST
    shelf.is_down = True
    short = msgspec.structs.replace(JOURNALS, opening_wait=Duration(200 * MILLISECOND))
    async with running(disk, shelf, seed=3, crashes=crashes, is_last=False, config=short) as node:
        with pytest.raises(StoreUnhealthy, match="has no spool file, and the fragment store does not say"):
            await node.broker.replica(NAME)
        shelf.is_down = False
        for _ in range(TURNS_MAX):
            if node.broker.status(NAME).state == "open":
                break
            await asyncio.sleep(0.001)
        _, content = await node.content()
        assert content == FIRST
        await append(node, SECOND)
    assert not crashes


class BesideHung(Shelf):
    """The store of a node that has another one, which will hang."""

    hung = "file:///hung/"

    def __init__(self) -> None:
        super().__init__(None, {})
        self.other = Flaky(None, {})

    def at(self, url: str) -> Shelf:
        """As `Shelf.at`."""
        return self.other if url == self.hung else self


async def test_a_store_that_hangs_keeps_no_other_from_its_fragments() -> None:
    """Two uploads that hung held all room for uploads: spools of other stores grew."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), BesideHung()
    config = msgspec.structs.replace(JOURNALS, stores=(shelf.hung,), uploads_max=1)
    async with running(disk, shelf, seed=1, crashes=crashes, config=config) as node:
        held = JournalSpec(
            name=JournalName("down/held"), fragment=FragmentSpec(length=1 << 10, store=shelf.hung)
        )
        await node.broker.create(held)
        replica = await node.broker.replica(held.name)
        shelf.other.hangs = asyncio.Event()
        for spec in (held, SPEC):
            if spec is SPEC:
                await node.broker.create(SPEC)
            for content in (FIRST, SECOND):
                run = UnaryAppend(content)
                (await node.broker.replica(spec.name)).deliver(
                    Submitted(run=run, count=1, length=len(content))
                )
                await run.answered
        await until_stored(node, 1)
        assert len(replica.closed) == 1, "its upload hangs"
    assert not crashes


class OnlyIndexes(Shelf):
    """A store that takes side files only, as where fragments are large."""

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        if not name.startswith(f"{SIDE_DIRECTORY}/"):
            raise OSError("the store has no room for it")
        return await super().put_if_absent(name, body)


async def test_an_older_copy_is_noticed_by_the_producer_index_that_is_stored() -> None:
    """J11: nothing but the index told of bytes that were in an open fragment, and they were written over.

    Readers then began at index points of the other history, and lost messages that were pending there.
    """
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), OnlyIndexes(None, {})
    lines = b'{"n":1}\n' * 200
    spec = msgspec.structs.replace(SPEC, labels={FRAMING_LABEL: Kind.JSON_LINES.value})
    async with running(disk, shelf, seed=1, crashes=crashes, is_last=False) as node:
        await node.broker.create(spec)
        await append(node, lines)
    older = SimDisk(DiskState.of(disk.state.image(), tuple(disk.state.directories)))
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False) as node:
        for _ in range(4):
            await append(node, lines)
        indexing = await node.broker.indexing(NAME)
        await indexing.catch_up()
        named = max(await indexing.points())
        assert named == 4 * len(lines)
    async with running(older, shelf, seed=3, crashes=crashes) as node:
        reason = (await node.broker.replica(NAME)).stop_reason
        assert f"producer index in the fragment store knows offset {named}" in reason, "from its opening on"
        assert node.broker.status(NAME).state == "behind-index"
        told = await node.broker.accept_loss(NAME, None, head=None, may_act=True, is_head_only=True)
        assert told.head == named
        await append(node, lines)
        replica = await node.broker.replica(NAME)
        assert (replica.stop_reason, replica.end) == ("", named + len(lines))
    assert not crashes


def store_goes(root: Path, *, how: str) -> None:
    """What an operator finds whose file system is not mounted: no directory, an empty one, or a file."""
    (root / "data" / "fragments").rename(root / "fragments.away")
    if how == "a file":
        (root / "data" / "fragments").write_bytes(b"")
    elif how == "empty":
        (root / "data" / "fragments").mkdir()


def store_comes_back(root: Path, *, how: str) -> None:
    if how == "a file":
        (root / "data" / "fragments").unlink()
    elif how == "empty":
        (root / "data" / "fragments").rmdir()
    assert not (root / "data" / "fragments").exists(), "no other store was made in its place"
    (root / "fragments.away").rename(root / "data" / "fragments")


async def content_of(client: Client, name: str) -> bytes:
    return b"".join([chunk.data async for chunk in client.journals.read(name)])


@pytest.mark.parametrize("how", ["a file", "gone", "empty"])
async def test_a_node_whose_store_is_not_there_serves_what_it_has(tmp_path: Path, how: str) -> None:
    """The production store: it is opened when it is needed, and again when it is there.

    A start made an absent one anew. Readers were told that their bytes were trimmed, fragments were stored
    there, and the node lost sight of them when the file system was mounted.
    """
    node, name = NodeProcess(tmp_path), "down/a"
    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            await client.journals.create(name, fragment_length=1 << 10)
            for content in (FIRST, SECOND):
                await client.journals.append(name, content)
            await _until(client, name, 1)
            spools = tmp_path / "data" / "journals" / "spool"
            for _ in range(TURNS_MAX):
                if len([*spools.glob("*/*.spool")]) == 1:
                    break  # Only the store has the first fragment.
                await asyncio.sleep(0.01)
        node.kill()
        store_goes(tmp_path, how=how)
        assert await node.start(), (tmp_path / "node.log").read_text()
        async with broadsheet.connect(node.address) as client:
            assert (await client.journals.append(name, THIRD)).begin == len(FIRST + SECOND)
            recent = client.journals.read(name, len(FIRST))
            assert b"".join([chunk.data async for chunk in recent]) == SECOND + THIRD
            with pytest.raises(StoreUnhealthy, match="has not answered since the start"):
                await content_of(client, name)
            store_comes_back(tmp_path, how=how)
            await _until(client, name, 2)
            assert await content_of(client, name) == FIRST + SECOND + THIRD
    finally:
        node.kill()


async def test_an_older_copy_put_back_while_the_store_was_down_stops_when_the_store_answers(
    tmp_path: Path,
) -> None:
    """J10, J11: only the store knows that there was more. It is not overwritten; a restart sees it."""
    node, name, data = NodeProcess(tmp_path), "down/b", tmp_path / "data"
    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            await client.journals.create(name, fragment_length=1 << 10)
            await client.journals.append(name, FIRST)
        node.kill()
        shutil.copytree(data, tmp_path / "older", ignore=shutil.ignore_patterns("fragments"))
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            for content in (SECOND, THIRD):
                await client.journals.append(name, content)
            await _until(client, name, 2)
        node.kill()
        stored = {path.name: path.read_bytes() for path in (data / "fragments" / name).iterdir()}
        (data / "fragments").rename(tmp_path / "fragments.away")
        shutil.rmtree(data)
        (tmp_path / "older").rename(data)
        (data / "fragments").write_bytes(b"")

        assert await node.start(), (tmp_path / "node.log").read_text()
        async with broadsheet.connect(node.address) as client:
            for content in (b"x" * 3000, b"y" * 3000):
                await client.journals.append(name, content)
            store_comes_back(tmp_path, how="a file")
            assert "the fragment store knows offset" in await reason_of(client, name, "behind-index")
            for _ in range(2):
                with pytest.raises(IndexHasGreaterOffset, match="knows offset"):
                    await client.journals.append(name, b"more")
        node.kill()

        assert await node.start(), (tmp_path / "node.log").read_text()
        async with broadsheet.connect(node.address) as client:
            status = await client.journals.status(name)
            assert (status.state, "not what the spool files have" in status.reason) == ("behind-index", True)
            with pytest.raises(BroadsheetError):
                await client.journals.append(name, b"more")
        assert {path.name: path.read_bytes() for path in (data / "fragments" / name).iterdir()} == stored
    finally:
        node.kill()


async def reason_of(client: Client, name: str, state: str) -> str:
    """Why the journal is in that state, once it is."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            status = await client.journals.status(name)
            if status.state == state:
                return status.reason
            await asyncio.sleep(0.05)


async def _until(client: Client, name: str, count: int) -> None:
    """Return once so many fragments are stored, and their spool files gone."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                fragments = await client.journals.fragments(name)
            except StoreUnhealthy:
                fragments = []
            if sum(each.is_stored for each in fragments) >= count:
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_want_of_descriptors_is_no_contradiction_with_the_store(*, is_late: bool) -> None:
    """The journal took no appends, and the named way out would have moved sound spool files aside."""
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Flaky(None, {})
    async with running(disk, shelf, seed=1, crashes=crashes, is_last=False) as node:
        await node.broker.create(JournalSpec(name=NAME))
        await append(node, FIRST)
        digest = sha1(FIRST).hexdigest()
        shelf.objects[f"{NAME}/{0:016x}-{len(FIRST):016x}-{digest}.raw"] = FIRST  # Closed by the clock.
        await append(node, SECOND)  # A restart had taken it up again.

    for after in range(4):
        faulty = FaultyDisk(disk)
        fault = Fault("read_at", error=errno.EMFILE, name="journals/spool/*.spool", after=after, times=1)
        shelf.is_down = is_late
        if not is_late:
            faulty.plan(fault)
        async with running(
            disk, shelf, seed=2 + after, crashes=crashes, is_last=False, faulty=faulty
        ) as node:
            replica = await node.broker.replica(NAME)
            faulty.plan(fault)
            shelf.is_down = False
            await _until_listed(replica)
            status = node.broker.status(NAME)
            assert (status.state, status.reason) == ("open", "")
            found = b"".join([chunk.data async for chunk in read(replica, ByteOffset(0), None, block=False)])
            assert found == FIRST + SECOND
    assert not crashes


async def _answers(shelf: Flaky, replica: Replica) -> None:
    """Let the store answer, and wait until it has listed what a reader asks for."""
    shelf.is_down = False
    replica.listing_wanted.set()
    await _until_listed(replica)


async def _until_listed(replica: Replica) -> None:
    for _ in range(TURNS_MAX):
        if replica.is_listed:
            return
        await asyncio.sleep(0.001)
    pytest.fail("the store has answered, and the journal has not heard of it")


async def test_a_read_has_a_store_that_was_down_asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is down is asked once a minute: reads were refused for as long after it was up.

    Found by the simulator: one failed listing at a start, and the reads of half a second were refused.
    """
    monkeypatch.setattr(fragments_module, "LIST_RETRY_MIN", Duration(3_600_000 * MILLISECOND))
    monkeypatch.setattr(fragments_module, "LIST_RETRY_MAX", Duration(3_600_000 * MILLISECOND))
    crashes: list[BaseException] = []
    disk, shelf = SimDisk(), Flaky(None, {})
    await first_life(disk, shelf, crashes, (FIRST, SECOND, THIRD))

    shelf.is_down = True
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False) as node:
        replica = await node.broker.replica(NAME)
        with pytest.raises(OSError, match="has not answered since the start"):
            await anext(read(replica, ByteOffset(0), None, block=False))
        shelf.is_down = False
        assert (await anext(read(replica, ByteOffset(0), None, block=False))).data == FIRST
        assert replica.is_listed
    assert not crashes


@pytest.mark.parametrize("named", ["store", "stores"])
async def test_a_start_refuses_a_store_that_it_cannot_reach(tmp_path: Path, named: str) -> None:
    """A path in place of a URL: journals were made and never opened, and appends were `Unreachable`."""
    url = str(tmp_path / "fragments")
    wrong = msgspec.structs.replace(JOURNALS, **{named: url if named == "store" else (url,)})
    shelf = Shelf(None, {})
    shelf.at = LocalStores(tmp_path, Syncs())  # type: ignore[assignment, method-assign]  # As a node has it.
    with pytest.raises(ConfigError, match="a local store is file:///directory/"):
        async with running(SimDisk(), shelf, seed=1, crashes=[], config=wrong):
            pass
