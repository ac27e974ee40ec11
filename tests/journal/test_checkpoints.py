"""Checkpoints: the log lets go of a byte only once a sync of the spool file has covered it."""

import asyncio
from collections.abc import Iterable

import msgspec
import pytest

from broadsheet.base.marks import count
from broadsheet.base.types import Buffer
from broadsheet.errors import Status
from broadsheet.journal import housekeeping
from broadsheet.journal.core.pipeline_events import Submitted
from broadsheet.journal.core.records import Identity, encode_identity
from broadsheet.journal.core.registers import Condition
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.journal.opening import IDENTITY_STREAM
from broadsheet.journal.service import UnaryAppend
from broadsheet.journal.spool_file import SpoolFile
from simulator.disk import SimDisk, SimFile
from simulator.disk_state import DiskState
from simulator.journalnode import status_of
from tests.journal.crash_histories import (
    FRAGMENT_BYTES,
    JOURNALS,
    NAME,
    History,
    Running,
    Shelf,
    _idle,
    running,
)

CACHED_BYTES = 8_000


class Down(Shelf):
    """A store that takes nothing, so that closed spools stay."""

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        raise OSError(f"the store takes no {name}")


async def test_a_spool_that_rolls_while_it_is_flushed_is_flushed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """journals.14, J2: it counted as synced with bytes that came after the sync, and the log was trimmed."""
    gate: asyncio.Event | None = None
    flush = SimFile.flush

    async def slow_flush(file: SimFile) -> None:
        await flush(file)
        if gate is not None and "spool" in file.name:
            await gate.wait()

    monkeypatch.setattr(SimFile, "flush", slow_flush)
    history, crashes = History(), list[BaseException]()
    async with running(history.disk, Down(None, {}), seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=FRAGMENT_BYTES)))
        await node.broker.replica(NAME)
        await _idle()
        gate = asyncio.Event()
        await history.append(node, 5500)  # A checkpoint begins, and its flush covers this.
        await _idle()
        await history.append(node, 1000)
        await history.append(node, 300)  # In the next fragment: the spool is closed with 6,500 bytes.
        gate.set()
        gate = None
        await _idle()
        await history.append(node, 5600)  # The next checkpoint trims the log.
        await _idle()
    cut = SimDisk(DiskState.of(history.disk.state.image(), tuple(history.disk.state.directories)))
    async with running(cut, Down(None, {}), seed=2, crashes=crashes) as node:
        replica, content = await node.content()

    assert replica.stop_reason == ""
    assert content == history.content
    assert not crashes


async def test_what_is_synced_and_far_behind_the_end_of_a_spool_need_not_stay_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new page may cost as much as 25 that were given back, and was most of a large append (ADR 0145)."""
    told: list[tuple[str, int, int]] = []
    flush = SimFile.flush

    async def flushed(file: SimFile) -> None:
        length = file.size()
        await flush(file)
        if file.name.endswith(".spool"):
            told.append(("synced", 0, length))

    async def uncached(_file: SimFile, begin: int, end: int) -> None:
        told.append(("uncached", begin, end))

    monkeypatch.setattr(SimFile, "flush", flushed)
    monkeypatch.setattr(SimFile, "uncache", uncached)
    config = msgspec.structs.replace(JOURNALS, spool_cached_bytes=CACHED_BYTES)
    history, crashes = History(), list[BaseException]()
    async with running(history.disk, Down(None, {}), seed=1, crashes=crashes, config=config) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=100_000)))
        await node.broker.replica(NAME)
        await _idle()
        for _ in range(6):
            await history.append(node, 5500)  # A checkpoint each.
            await _idle()
        _, content = await node.content()
    assert content == history.content
    assert not crashes

    synced = given_back = 0
    for what, begin, end in told:
        if what == "synced":
            synced = end
        else:
            assert begin == given_back, "nothing is given back twice"
            assert end == synced - CACHED_BYTES, "only what was synced, and the last bytes stay"
            given_back = end
    assert given_back >= 2 * CACHED_BYTES


async def test_the_disk_is_asked_to_begin_with_a_spool_long_before_a_checkpoint_syncs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ADR 0194: a sync of 32 MiB at once held all appends for 23 ms: the log waited behind it."""
    asked: list[tuple[int, int]] = []

    async def write_back(file: SimFile, begin: int, end: int) -> None:
        assert file.name.endswith(".spool")
        assert end <= file.size(), "there is something to write"
        asked.append((begin, end))
        await asyncio.sleep(0)

    monkeypatch.setattr(SimFile, "write_back", write_back)
    monkeypatch.setattr(housekeeping, "WRITE_BACK_BYTES", 2000)
    history, crashes = History(), list[BaseException]()
    async with running(history.disk, Down(None, {}), seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=100_000)))
        await node.broker.replica(NAME)
        for _ in range(60):
            await history.append(node, 700)
        await _idle()
        _, content = await node.content()
    assert content == history.content
    assert not crashes

    assert [end for _, end in asked[:-1]] == [begin for begin, _ in asked[1:]], "each byte once, in order"
    assert asked[0][0] == 0
    assert asked[-1][1] == 60 * 700 // 2000 * 2000
    assert len(asked) >= 10, "a few at a time"
    assert all(end % 2000 == 0 for _, end in asked), "the page that grows is left out"


async def test_the_identity_of_a_node_is_written_anew_and_no_segment_is_read_to_copy_it() -> None:
    """ADR 0194: 43 bytes pinned a segment, and all of its 64 MiB were read to copy them."""
    disk, shelf, crashes = SimDisk(), Down(None, {}), list[BaseException]()
    copied = count("wal.copied_forward")
    history = History()
    history.disk = disk
    async with running(disk, shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1_000_000)))
        replica = await node.broker.replica(NAME)
        await _idle()
        log, incarnation = replica.context.log, replica.context.incarnation
        for _ in range(120):
            await history.append(node, 5500)  # A checkpoint each; 650 KB through segments of 48 KiB.
            await _idle()
        assert log.next_offset(IDENTITY_STREAM) >= 3, "its record was written several times"
    assert count("wal.copied_forward") == copied
    for cut in (disk, _after_power_cut(disk)):
        async with running(cut, shelf, seed=2, crashes=crashes, is_last=False) as node:
            again, content = await node.content()
            assert again.context.incarnation == incarnation
            assert content == history.content
    assert not crashes


async def test_an_identity_that_was_torn_while_it_was_renewed_is_not_a_cut_for_ever() -> None:
    """Nobody dealt with the cut, so that each later start searched all free segments for its records."""
    disk, shelf, crashes = SimDisk(), Shelf(None, {}), list[BaseException]()
    async with running(disk, shelf, seed=1, crashes=crashes, is_last=False) as node:
        context, images = node.broker._context, list[dict[str, bytearray]]()
        context.log.append(
            IDENTITY_STREAM,
            [encode_identity(Identity(context.incarnation))],
            done=lambda: images.append({n: bytearray(i.view) for n, i in disk.state.files.items()}),
        )
        await _idle()
    (image,) = images
    (name,) = [n for n in image if n.startswith("journals/log/segment") and b"incarnation" in image[n]]
    image[name][image[name].rindex(b"incarnation")] ^= 1
    torn = SimDisk(DiskState.of({n: bytes(c) for n, c in image.items()}, tuple(disk.state.directories)))
    async with running(torn, shelf, seed=2, crashes=crashes, is_last=False) as node:
        assert node.broker._context.log.recovered(IDENTITY_STREAM).next_offset == 0, "forgotten"
        assert node.broker._context.incarnation == context.incarnation
        assert node.broker._context.log.status().tail_cut == []
    assert not crashes


async def _submitted(node: Running, content: bytes, condition: Condition) -> Status:
    """What an append is told."""
    replica, run = await node.broker.replica(NAME), UnaryAppend(content)
    replica.deliver(Submitted(run=run, count=1, length=len(content), condition=condition))
    return await status_of(run.answered)


def _after_power_cut(disk: SimDisk) -> SimDisk:
    return SimDisk(DiskState.of(disk.state.image(), tuple(disk.state.directories)))


async def test_a_checkpoint_names_the_attempt_of_an_append_that_is_not_committed_yet() -> None:
    """J6: the log lets go of that append's record, and a client that asks after a restart was told no."""
    disk, shelf, crashes = SimDisk(), Down(None, {}), list[BaseException]()
    ours = Condition(check={"v": None}, union={"v": "1"}, attempt=b"a" * 16)
    async with running(disk, shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME))
        replica = await node.broker.replica(NAME)
        await _idle()
        status = await _submitted(node, b"x" * 5500, ours)  # Its record is the one that asks for it.
        assert (status, replica.log_bytes) == (Status.OK, 0)
        await _idle()
    async with running(_after_power_cut(disk), shelf, seed=2, crashes=crashes) as node:
        status = await _submitted(node, b"x" * 5500, ours)
        _, content = await node.content()

    assert status is Status.ALREADY_EXISTS
    assert len(content) == 5500
    assert not crashes


async def test_a_checkpoint_tells_nothing_of_an_append_that_the_log_refused() -> None:
    """journals.12: after a restart the registers were those that its client was told are not set."""
    disk, shelf, crashes = SimDisk(), Down(None, {}), list[BaseException]()
    async with running(disk, shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME))
        await node.broker.replica(NAME)
        await _idle()
        status = await _submitted(node, b"first", Condition(union={"v": "1"}))
        assert status is Status.OK
        status = await _submitted(node, b"x" * 13_000, Condition(union={"v": "2"}, attempt=b"b" * 16))
        assert status is Status.TOO_LARGE
        status = await _submitted(node, b"x" * 5500, Condition())
        assert status is Status.OK
        await _idle()
    async with running(_after_power_cut(disk), shelf, seed=2, crashes=crashes) as node:
        replica, content = await node.content()

    assert replica.pipeline.committed_registers is not None
    assert replica.pipeline.committed_registers.values == {"v": "1"}
    assert replica.pipeline.attempts.find(b"b" * 16) is None
    assert content == b"first" + b"x" * 5500
    assert not crashes


class Searched(list[SpoolFile]):
    """Closed spools that count how often one of them is searched for."""

    search_count = 0

    def __contains__(self, item: object) -> bool:
        self.search_count += 1
        return super().__contains__(item)


async def test_a_checkpoint_searches_for_no_file_and_sums_only_what_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each file was searched for among all: with 8,000 after a restart that held the loop for 0.9 s."""
    history, crashes = History(), list[BaseException]()
    async with running(history.disk, Down(None, {}), seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1024)))
        for _ in range(20):
            await history.append(node, 1100)
        await _idle()
    async with running(history.disk, Down(None, {}), seed=2, crashes=crashes) as node:
        replica = await node.broker.replica(NAME)
        replica.closed = searched = Searched(replica.closed)
        assert len(searched) == 19
        for _ in range(5):
            await history.append(node, 1100)  # A checkpoint comes with the last one.
        await _idle()
        assert replica.log_bytes < JOURNALS.checkpoint_bytes
        assert searched.search_count == 0

        summed, digest = 0, SpoolFile.digest

        def counting(spool: SpoolFile) -> bytes:
            nonlocal summed
            summed += 1
            return digest(spool)

        monkeypatch.setattr(SpoolFile, "digest", counting)
        for _ in range(5):
            await history.append(node, 1100)
        await _idle()
        assert summed < 20, (
            "one for each append, and for the checkpoint that of the open file and the new ones"
        )
        _, content = await node.content()
    assert content == history.content
    assert not crashes
