"""One damaged sector of a spool that is not stored yet costs its block of 64 KiB, also after a restart (W4).

The sums of the blocks were in the memory of the process that wrote them. After a restart the whole file, up
to a gigabyte, was not served, and the journal took no appends.
"""

import asyncio
import errno
import random
from hashlib import sha1
from typing import Final

import msgspec
import pytest

from broadsheet.base.time import Duration
from broadsheet.base.types import ByteOffset
from broadsheet.errors import Corrupt, Status, Trimmed
from broadsheet.journal.committed_reads import read
from broadsheet.journal.config import JournalsConfig
from broadsheet.journal.core.block_sums import BLOCK_BYTES
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.journal.housekeeping import REST
from broadsheet.journal.replica import Replica
from broadsheet.journal.streamed_append import StreamedAppend
from simulator.crashstates import crash_states, record
from simulator.disk import SimDisk
from tests.journal.crash_histories import NAME, Running, _idle, running
from tests.journal.test_damage import append, copy_of, flip, shown
from tests.journal.test_healing import Down, until
from tests.journal.test_unreadable_spool import MANY, SECTOR, Bad, Returning, accept, bad, checkpointed, spoil
from tests.support.faulty import Fault, FaultyDisk
from tests.support.hand import HandClock

__all__ = ["bad"]

CONFIG: Final = msgspec.structs.replace(
    MANY, checkpoint_bytes=64 << 20, wal=msgspec.structs.replace(MANY.wal, record_bytes_max=128 << 10)
)
"""No checkpoint comes by itself."""
APPEND_BYTES: Final = 50_000
CHECKPOINT_AT: Final = 12
COUNT: Final = 16
CONTENT: Final = random.Random("content").randbytes(COUNT * APPEND_BYTES)
SEALED_BYTES: Final = CHECKPOINT_AT * APPEND_BYTES
"""What the log has no more. It ends within block 9; the content ends within block 12."""


async def fill(node: Running, first: int, count: int) -> None:
    for number in range(first, first + count):
        part = CONTENT[number * APPEND_BYTES : (number + 1) * APPEND_BYTES]
        assert await append(node, NAME, part) is Status.OK


async def lived(*, fragment_length: int = 1 << 30, config: JournalsConfig = CONFIG) -> SimDisk:
    """A journal with a checkpoint at three quarters of it; then kill -9."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=config) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=fragment_length)))
        await fill(node, 0, CHECKPOINT_AT)
        await checkpointed(node)
        await fill(node, CHECKPOINT_AT, COUNT - CHECKPOINT_AT)
        await _idle()
        disk = copy_of(disk)
    assert not crashes
    return disk


def spool_of(disk: SimDisk) -> str:
    """The journal's first spool file."""
    return min(name for name in disk.state.files if name.endswith(".spool"))


async def served(replica: Replica, end: int) -> tuple[bytes, list[int]]:
    """Everything up to `end` that a reader is shown block by block, with zeros for the blocks it is not."""
    found, refused = b"", list[int]()
    for begin in range(0, end, BLOCK_BYTES):
        stop = min(begin + BLOCK_BYTES, end)
        try:
            chunks = [
                chunk.data async for chunk in read(replica, ByteOffset(begin), ByteOffset(stop), block=False)
            ]
        except Corrupt:
            refused.append(begin // BLOCK_BYTES)
            chunks = [bytes(stop - begin)]
        found += b"".join(chunks)
    return found, refused


def without(content: bytes, block: int) -> bytes:
    begin, end = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, len(content))
    return content[:begin] + bytes(end - begin) + content[end:]


@pytest.mark.parametrize("how", ["flipped", "unreadable"])
@pytest.mark.parametrize("place", [0, 4 * BLOCK_BYTES + 5_000, SEALED_BYTES - 1])
async def test_a_damaged_block_of_an_open_spool_is_all_that_a_restart_does_not_serve(
    place: int, how: str, bad: Bad
) -> None:
    """Appends go on behind it, status names it and the way out, and each later start finds the same."""
    disk, crashes = await lived(), list[BaseException]()
    name, block, content = spool_of(disk), place // BLOCK_BYTES, CONTENT
    if how == "flipped":
        flip(disk, name, place)
    else:
        spoil(bad, disk, name, place // SECTOR)
    for seed, has_checkpoint in ((2, False), (3, True), (4, True), (5, False)):
        async with running(
            disk, Down(None, {}), seed=seed, crashes=crashes, config=CONFIG, is_last=False
        ) as node:
            replica = await asyncio.wait_for(node.broker.replica(NAME), 5)
            assert (replica.stop_reason, node.broker.status(NAME).state) == ("", "open")
            assert await served(replica, len(content)) == (without(content, block), [block])
            with pytest.raises(Corrupt, match=f"`broadsheet journals accept-loss {NAME}`"):
                await anext(read(replica, ByteOffset(block * BLOCK_BYTES), None, block=False))
            assert f"is damaged at {block * BLOCK_BYTES}" in node.broker.status(NAME).reason
            assert node.broker.troubles.stopped_count == 1
            part = b"%d" % seed * 700
            assert await append(node, NAME, part) is Status.OK
            content += part
            if has_checkpoint:
                await checkpointed(node)
            await _idle()
    async with running(disk, Down(None, {}), seed=6, crashes=crashes, config=CONFIG) as node:
        replica = await node.broker.replica(NAME)
        await accept(node)
        replica = await node.broker.replica(NAME)
        assert (replica.damage, replica.end) == ("", len(content) + len(b"and on"))
        assert await shown(node, NAME) == content[len(CONTENT) :] + b"and on"
        with pytest.raises(Trimmed):
            await anext(read(replica, ByteOffset(0), None, block=False))
    assert not crashes


async def test_a_damaged_block_of_a_closed_spool_stays_the_only_one_and_the_others_are_stored() -> None:
    """A store that was down takes what is sound; the damaged fragment waits for an operator."""
    disk, crashes, store = await lived(fragment_length=200_000), list[BaseException](), Returning(None, {})
    flip(disk, spool_of(disk), BLOCK_BYTES + 1)
    async with running(disk, store, seed=2, crashes=crashes, config=CONFIG, is_last=False) as node:
        replica = await asyncio.wait_for(node.broker.replica(NAME), 5)
        first, count = replica.closed[0], len(replica.closed)
        assert count > 2
        assert await served(replica, len(CONTENT)) == (without(CONTENT, 1), [1])
        store.is_down = False
        assert await append(node, NAME, b"more") is Status.OK
        await until(lambda: len(replica.index) == count - 1 and replica.closed == [first])
    async with running(disk, store, seed=3, crashes=crashes, config=CONFIG) as node:
        replica = await asyncio.wait_for(node.broker.replica(NAME), 5)
        assert replica.stop_reason == ""
        assert await served(replica, len(CONTENT)) == (without(CONTENT, 1), [1])
    assert not crashes


@pytest.mark.parametrize("how", ["gone", "damaged", "of other content"])
async def test_without_its_sums_a_damaged_spool_is_not_served_at_all(how: str) -> None:
    """As data of an older version: no block of it can be told from the damaged one."""
    disk, crashes = await lived(), list[BaseException]()
    (sums,) = [name for name in disk.state.files if name.endswith(".sums")]
    flip(disk, spool_of(disk), 5)
    if how == "damaged":
        flip(disk, sums, 70)
    else:
        disk.state.remove(sums)
    if how == "of other content":
        other = SimDisk()
        crashes_of_other = list[BaseException]()
        async with running(other, Down(None, {}), seed=7, crashes=crashes_of_other, config=CONFIG) as node:
            await node.broker.create(JournalSpec(name=NAME))
            assert await append(node, NAME, bytes(APPEND_BYTES)) is Status.OK
            await fill(node, 1, CHECKPOINT_AT - 1)
            await checkpointed(node)
            (found,) = [name for name in other.state.files if name.endswith(".sums")]
            disk.open(sums, create=True).write_at(0, (bytes(other.state.files[found].view),))
            assert found == sums, "only the sum in it tells that it is of something else"
    async with running(disk, Down(None, {}), seed=2, crashes=crashes, config=CONFIG) as node:
        replica = await asyncio.wait_for(node.broker.replica(NAME), 5)
        assert "does not have the content of [0, 800000)" in replica.stop_reason
        assert (await served(replica, 2 * BLOCK_BYTES))[1] == [0, 1]
        await accept(node)
    assert not crashes


async def test_a_damaged_block_is_told_and_moved_aside_also_in_a_journal_that_is_stopped() -> None:
    """Its file must not count as sound: `accept-loss` would keep it, and nobody was told of the block."""
    disk, crashes, store = await lived(), list[BaseException](), Returning(None, {})
    flip(disk, spool_of(disk), 5)
    beyond = bytes(500)
    digest = sha1(beyond, usedforsecurity=False).hexdigest()
    store.objects[f"{NAME}/{900_000:016x}-{900_500:016x}-{digest}.raw"] = beyond
    async with running(disk, store, seed=2, crashes=crashes, config=CONFIG) as node:
        replica = await asyncio.wait_for(node.broker.replica(NAME), 5)
        assert "knows offset 900500" in replica.stop_reason
        assert await served(replica, len(CONTENT)) == (without(CONTENT, 0), [0])
        told = await node.broker.accept_loss(NAME, None, head=None, may_act=True, is_head_only=False)
        assert (told.lost[0].begin, told.lost[0].end, told.head) == (0, len(CONTENT), 900_500)
        assert await append(node, NAME, b"on") is Status.OK
        assert node.broker.status(NAME).state == "open"
    assert not crashes


@pytest.mark.parametrize("how", ["flipped", "unreadable"])
async def test_bytes_that_were_never_adopted_behind_a_damaged_block_are_no_loss(how: str, bad: Bad) -> None:
    """A kill comes between spool and log. `accept-loss` told such bytes as lost, and left a hole for them.

    Where the sector of the journal's end cannot be read, they stay: nobody cuts a file there.
    """
    disk, crashes = await lived(), list[BaseException]()
    name, tail = spool_of(disk), bytes(3 * SECTOR)
    disk.open(name).write_at(len(CONTENT), (tail,))
    if how == "flipped":
        flip(disk, name, 5)
    else:
        spoil(bad, disk, name, SEALED_BYTES // SECTOR - 1)
        spoil(bad, disk, name, len(CONTENT) // SECTOR)
    async with running(disk, Down(None, {}), seed=2, crashes=crashes, config=CONFIG) as node:
        replica = await asyncio.wait_for(node.broker.replica(NAME), 5)
        assert (replica.stop_reason, replica.end) == ("", len(CONTENT))
        assert await append(node, NAME, b"more") is Status.OK
        told = await node.broker.accept_loss(NAME, None, head=None, may_act=True, is_head_only=False)
        reached = 0 if how == "flipped" else len(tail) - len(b"more")
        assert told.head == len(CONTENT) + len(b"more") + reached
        if how == "flipped":
            assert [(each.begin, each.end) for each in told.lost] == [(0, len(CONTENT))]
        assert await append(node, NAME, b"and on") is Status.OK
    assert not crashes


async def test_block_sums_go_with_the_content_that_they_are_of() -> None:
    """One file for each spool that is longer than a block; none of a stored one, or of a deleted journal."""
    disk, crashes, store = SimDisk(), list[BaseException](), Returning(None, {})

    def sums() -> list[str]:
        return sorted(name.rpartition("/")[2] for name in disk.state.files if name.endswith(".sums"))

    async with running(disk, store, seed=1, crashes=crashes, config=CONFIG) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=400_000)))
        await fill(node, 0, 1)
        await checkpointed(node)
        assert sums() == []
        for first, count in ((1, 4), (5, 4), (9, 3)):
            await fill(node, first, count)
            await checkpointed(node)
            await _idle()
        assert sums() == [f"{0:016x}-{450_000:016x}.sums", f"{450_000:016x}-{600_000:016x}.sums"]
        store.is_down = False
        await append(node, NAME, b"more")
        await until(lambda: len(sums()) == 1)
        await node.broker.delete(NAME, None)
        await until(lambda: not sums())
        assert not [name for name in disk.state.files if name.startswith("journals/spool/")]
    assert not crashes


async def test_a_power_cut_at_any_write_leaves_sums_that_tell_the_damaged_block() -> None:
    """The sums of a checkpoint are durable before its record, and those of the one before go after it."""
    disk, crashes = SimDisk(), list[BaseException]()
    tape = record(disk)
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=CONFIG) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=160_000)))
        await fill(node, 0, 3)
        await checkpointed(node)
        tape.mark(3 * APPEND_BYTES)
        first = len(tape.steps)
        await fill(node, 3, 2)
        await checkpointed(node)
        await _idle()
        tape.mark(5 * APPEND_BYTES)
        await fill(node, 5, 2)
        await _idle()
    count = 0
    for number, state in enumerate(crash_states(tape, atoms_max=2, first=first)):
        if number % 11:
            continue  # Most states differ in little. A prime, so that all kinds are met.
        cut, least = state.disk(), max(int(str(mark)) for mark in state.marks)
        flip(cut, spool_of(cut), 5)
        async with running(cut, Down(None, {}), seed=number, crashes=crashes, config=CONFIG) as node:
            replica = await asyncio.wait_for(node.broker.replica(NAME), 5)
            end = replica.end
            assert (replica.stop_reason, end % APPEND_BYTES, end >= least) == ("", 0, True), number
            assert await served(replica, end) == (without(CONTENT[:end], 0), [0]), number
        count += 1
    assert count > 300
    assert not crashes


@pytest.mark.parametrize(
    ("call", "error"), [("open", errno.ENOSPC), ("write_at", errno.EDQUOT), ("open", errno.EMFILE)]
)
async def test_a_checkpoint_goes_on_where_there_is_no_room_for_block_sums(call: str, error: int) -> None:
    """They are of use only beside damage: without space for them the log must still be let go of."""
    disk, crashes = SimDisk(), list[BaseException]()
    faulty = FaultyDisk(disk)
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=CONFIG, faulty=faulty) as node:
        await node.broker.create(JournalSpec(name=NAME))
        await fill(node, 0, 3)
        faulty.plan(Fault(call, error=error, name="*.sums", times=1))
        await checkpointed(node)
        names = [name for name in disk.state.files if name.endswith(".sums")]
        assert len(names) == (error == errno.EMFILE), "that is tried again"
        await fill(node, 3, 1)
        await checkpointed(node)
        await until(lambda: [n for n in disk.state.files if n.endswith(f"-{200_000:016x}.sums")])
        assert await shown(node, NAME) == CONTENT[:200_000]
    assert not crashes


STREAMED_COUNT: Final = 3
STREAMED: Final = random.Random("streamed").randbytes(STREAMED_COUNT * 4 * BLOCK_BYTES)


async def streamed(node: Running, number: int) -> None:
    """An append of four blocks, whose content only the spool file has."""
    stream = StreamedAppend(await node.broker.replica(NAME), number, None)
    await stream.begun
    stream.put(STREAMED[number * 4 * BLOCK_BYTES : (number + 1) * 4 * BLOCK_BYTES])
    stream.finish()
    await asyncio.wait_for(stream.answered, 5)


@pytest.mark.parametrize("is_started_again", [False, True])
async def test_a_journal_that_has_only_large_appends_keeps_the_sums_of_its_blocks(
    is_started_again: bool,
) -> None:
    """It had no checkpoint before 32 MiB, however often it was started: one sector cost all of the file."""
    disk, crashes, clock = SimDisk(), list[BaseException](), HandClock()
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=CONFIG) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 30)))
        node.broker._context.timers = clock
        for number in range(STREAMED_COUNT):
            await streamed(node, number)
            if not is_started_again:
                clock.advance(Duration(REST - 1))
        await _idle()
        assert not any(name.endswith(".sums") for name in disk.state.files), "not while appends come"
        if not is_started_again:
            for _ in range(2):
                clock.advance(REST)
                await _idle()
            await until(lambda: any(name.endswith(".sums") for name in disk.state.files))
        await _idle()
        disk = copy_of(disk)
    if is_started_again:
        async with running(disk, Down(None, {}), seed=2, crashes=crashes, config=CONFIG) as node:
            await node.broker.replica(NAME)
            await until(lambda: any(name.endswith(".sums") for name in disk.state.files))
            await _idle()
            disk = copy_of(disk)
    flip(disk, spool_of(disk), 5 * BLOCK_BYTES + 7)
    async with running(disk, Down(None, {}), seed=3, crashes=crashes, config=CONFIG) as node:
        replica = await asyncio.wait_for(node.broker.replica(NAME), 5)
        assert replica.stop_reason == ""
        assert await served(replica, len(STREAMED)) == (without(STREAMED, 5), [5])
    assert not crashes
