"""Closed fragments that wait for their store are bounded: a checkpoint names each of them in one record."""

import asyncio
import errno
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from broadsheet.base.types import Buffer, ByteOffset, JournalName
from broadsheet.errors import Status, StoreUnhealthy
from broadsheet.journal.config import CLOSED_MIN
from broadsheet.journal.contradiction import contradiction
from broadsheet.journal.core.fragment import Codec, Fragment
from broadsheet.journal.core.spec import JournalSpec
from broadsheet.journal.spool_file import SpoolFile
from broadsheet.journal.streamed_append import StreamedAppend
from broadsheet.wal.config import KIB
from simulator.disk import SimDisk
from tests.journal.crash_histories import JOURNALS, NAME, TURNS_MAX, Running, running
from tests.journal.test_damage import append
from tests.journal.test_store_down import SPEC, Flaky, until_stored

OTHER = JournalName("crash/other")
CONTENT = b"x" * 1100
"""Longer than a fragment: the next append closes it."""
WIDE = replace(JOURNALS, wal=replace(JOURNALS.wal, segment_bytes=512 * KIB, record_bytes_max=128 * KIB))


async def fill(node: Running, count: int) -> int:
    """Append until it is refused, `count` times at most; how many were taken."""
    for number in range(count):
        if await append(node, NAME, CONTENT) is not Status.OK:
            return number
    return count


async def test_a_journal_whose_store_takes_nothing_refuses_appends_before_a_checkpoint_is_too_large() -> None:
    """journals.20: the checkpoint was refused as too large, and that ended the node, at each start again."""
    disk, shelf, crashes = SimDisk(), Flaky(None, {}), list[BaseException]()
    async with running(disk, shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(SPEC)
        await node.broker.create(JournalSpec(name=OTHER))
        shelf.is_down = True
        taken = await fill(node, 2 * CLOSED_MIN)
        replica = await node.broker.replica(NAME)
        assert (taken, len(replica.closed)) == (CLOSED_MIN + 1, CLOSED_MIN)
        assert "closed_fragments_max" in replica.shortage
        assert await append(node, OTHER, b"other") is Status.OK
    async with running(disk, shelf, seed=2, crashes=crashes) as node:
        assert await append(node, NAME, CONTENT) is Status.STORE_UNHEALTHY
        shelf.is_down = False
        await until_stored(node, taken - 1)
        assert await append(node, NAME, CONTENT) is Status.OK
        _, content = await node.content()
        assert content == CONTENT * (taken + 1)
    assert not crashes


async def test_a_streamed_append_is_told_too_why_no_fragment_can_be_closed() -> None:
    """journals.20: its content needs the next file, and the remedy is an option that its client can name."""
    disk, shelf, crashes = SimDisk(), Flaky(None, {}), list[BaseException]()
    async with running(disk, shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(SPEC)
        shelf.is_down = True
        assert await fill(node, CLOSED_MIN + 1) == CLOSED_MIN + 1
        stream = StreamedAppend(await node.broker.replica(NAME), 1, None)
        await stream.begun
        stream.put(CONTENT)
        stream.finish()
        with pytest.raises(StoreUnhealthy, match="closed_fragments_max"):
            await stream.answered
    assert not crashes


async def test_a_log_that_takes_smaller_records_than_before_ends_no_node() -> None:
    """An option is changed between two starts: the checkpoint has no room until fragments are stored."""
    disk, shelf, crashes = SimDisk(), Flaky(None, {}), list[BaseException]()
    async with running(disk, shelf, seed=1, crashes=crashes, config=WIDE) as node:
        await node.broker.create(SPEC)
        shelf.is_down = True
        assert await fill(node, 400) == 400
    async with running(disk, shelf, seed=2, crashes=crashes) as node:
        assert await append(node, NAME, CONTENT) is Status.STORE_UNHEALTHY
        shelf.is_down = False
        await until_stored(node, 399)
        assert await append(node, NAME, CONTENT) is Status.OK
        _, content = await node.content()
        assert content == CONTENT * 401
    assert not crashes


async def test_a_store_that_is_back_costs_few_checkpoints() -> None:
    """Each names every fragment that waits: one for each upload cost the square of their number."""
    disk, shelf, crashes = SimDisk(), Flaky(None, {}), list[BaseException]()
    async with running(disk, shelf, seed=1, crashes=crashes, config=WIDE) as node:
        await node.broker.create(SPEC)
        shelf.is_down = True
        assert await fill(node, 300) == 300
        replica = await node.broker.replica(NAME)
        before = replica.context.log.next_offset(replica.stream)
        shelf.is_down = False
        await until_stored(node, 299)
        assert replica.context.log.next_offset(replica.stream) - before < 220
    assert not crashes


async def test_a_journal_with_more_fragments_in_the_log_than_files_may_be_open_is_opened() -> None:
    """A start writes each of them again from the log, and what is not synced may not rest: it never ended."""
    disk, shelf, crashes = SimDisk(), Flaky(None, {}), list[BaseException]()
    config = replace(WIDE, checkpoint_bytes=1 << 20, spool_files_max=8)
    async with running(disk, shelf, seed=1, crashes=crashes, config=config, open_files_max=64) as node:
        await node.broker.create(SPEC)
        shelf.is_down = True
        assert await fill(node, 60) == 60
    async with running(disk, shelf, seed=2, crashes=crashes, config=config, open_files_max=64) as node:
        replica = await node.broker.replica(NAME)
        assert replica.end == 60 * len(CONTENT)
        assert replica.context.spools.open_count <= 32
        assert await append(node, NAME, CONTENT) is Status.OK
    assert not crashes


class Filling(Flaky):
    """A store that has room for a few fragments."""

    room = 2

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        if name.startswith(NAME):
            if not self.room:
                raise OSError(errno.ENOSPC, "the store is full")
            self.room -= 1
        return await super().put_if_absent(name, body)


async def test_files_that_are_stored_go_when_the_store_has_no_room_for_more() -> None:
    """A store on the same disk waits for the room that they take."""
    disk, shelf, crashes = SimDisk(), Filling(None, {}), list[BaseException]()
    async with running(disk, shelf, seed=1, crashes=crashes, config=WIDE) as node:
        await node.broker.create(SPEC)
        shelf.is_down = True
        assert await fill(node, 200) == 200
        directory = (await node.broker.replica(NAME)).directory
        shelf.is_down = False
        for _ in range(TURNS_MAX):
            if len(disk.list(directory)) == 198:
                break
            await asyncio.sleep(0.001)
        assert (len(disk.list(directory)), shelf.room) == (198, 0)
    assert not crashes


async def test_what_is_stored_is_compared_with_the_few_files_that_share_its_span() -> None:
    """Each stored fragment was compared with each waiting file: a start held the loop for their product."""
    looked_at = 0

    class Spool(SpoolFile):
        def __getattribute__(self, name: str) -> Any:
            nonlocal looked_at
            looked_at += name == "begin"
            return super().__getattribute__(name)

    file = SimDisk().open("spool", create=True)
    spools = [Spool(file, ByteOffset(1000 + n)) for n in range(200)]
    for spool in spools:
        spool.end = ByteOffset(spool.begin + 1)
    digest = spools[0].digest()
    stored = [Fragment(ByteOffset(n), ByteOffset(n + 1), digest, Codec.NONE) for n in range(1100)]
    looked_at = 0
    assert await contradiction(SimDisk(), NAME, spools, stored) == ("", {})
    assert looked_at < 5 * len(stored)
