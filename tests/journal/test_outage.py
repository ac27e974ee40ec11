"""Reads of a journal's files that fail for a while: nothing is decided by them (ADR 0198)."""

import asyncio
from hashlib import sha1

import msgspec
import pytest

from broadsheet.base.types import ByteOffset
from broadsheet.errors import Status
from broadsheet.journal.contradiction import contradiction
from broadsheet.journal.core.fragment import Codec, Fragment
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.journal.seal_file import SEAL_NAME
from broadsheet.journal.set_aside import copy_out
from broadsheet.journal.spool_file import create
from simulator.disk import SimDisk
from tests.journal.crash_histories import NAME, Running, _idle, running
from tests.journal.test_damage import ROOMY, append, flip, place_of, shown
from tests.journal.test_healing import Down
from tests.journal.test_unreadable_spool import checkpointed, sealed
from tests.support.outage import LASTING, PASSING, Outage, blocks_of, outage

__all__ = ["outage"]
SECTOR = 4096
PARTS = [letter * 2 * SECTOR for letter in (b"a", b"b")]
CONFIG = msgspec.structs.replace(ROOMY, checkpoint_bytes=1 << 20)
"""No checkpoint comes by itself."""


async def written(node: Running) -> str:
    """A journal with two appends; the name of its spool file."""
    await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 20)))
    for part in PARTS:
        assert await append(node, NAME, part) is Status.OK
    return (await node.broker.replica(NAME)).spool.name


async def test_a_spool_that_proves_a_lost_record_is_waited_for(outage: Outage) -> None:
    """The log lost the record, and only the spool has its bytes: set aside as zeros, and cut off."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=CONFIG) as node:
        name = await written(node)
        await _idle()
    flip(disk, *place_of(disk, PARTS[1], ".wal"))
    outage.update(dict.fromkeys(blocks_of(disk, name), PASSING))
    async with running(disk, Down(None, {}), seed=2, crashes=crashes, config=CONFIG) as node:
        replica = await asyncio.wait_for(node.broker.replica(NAME), 5)
        assert replica.stop_reason == ""
        assert await shown(node, NAME) == b"".join(PARTS)
    assert not crashes


async def test_what_is_moved_aside_is_what_the_file_has(outage: Outage) -> None:
    """The file is cut off behind it: zeros would be all there is of bytes that are readable again soon."""
    disk = SimDisk()
    disk.make_dir("journal")
    file = disk.open("journal/spool", create=True)
    file.write_at(0, (b"".join(PARTS),))
    outage.update(dict.fromkeys(blocks_of(disk, "journal/spool"), PASSING))
    name = await disk.run(
        lambda: copy_out(disk, "journal", file, begin=ByteOffset(0), skip=SECTOR, size=file.size())
    )
    assert bytes(disk.state.files[f"journal/{name}"].view) == b"".join(PARTS)[SECTOR:]


async def test_a_disk_that_is_away_moves_nothing_aside() -> None:
    """However long it is away: no file is cut off."""
    disk = SimDisk()
    disk.make_dir("journal")
    file = disk.open("journal/spool", create=True)
    file.write_at(0, (b"".join(PARTS),))
    disk.state.health.read_errors = LASTING
    with pytest.raises(OSError, match="the disk answers no read"):
        await disk.run(
            lambda: copy_out(disk, "journal", file, begin=ByteOffset(0), skip=SECTOR, size=file.size())
        )


async def test_a_seal_is_waited_for(outage: Outage) -> None:
    """It counted as damaged, and the journal no longer knew what it had lost."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=ROOMY) as node:
        replica = await sealed(node, disk)
        reason = replica.stop_reason
    outage[f"{replica.directory}/{SEAL_NAME}", 0] = PASSING
    async with running(disk, Down(None, {}), seed=2, crashes=crashes, config=ROOMY) as node:
        replica = await asyncio.wait_for(node.broker.replica(NAME), 5)
        assert replica.stop_reason == reason
    assert not crashes


async def test_a_reader_waits_for_a_block_that_the_log_has_no_more(outage: Outage) -> None:
    """It was told as damaged for the life of the node, and `accept-loss` as its remedy."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=CONFIG) as node:
        name = await written(node)
        await checkpointed(node)
        outage[name, 2] = PASSING
        assert await shown(node, NAME) == b"".join(PARTS)
        replica = await node.broker.replica(NAME)
        assert replica.spool.unreadable == ""
    assert not crashes


async def test_a_spool_is_compared_with_the_store_when_it_can_be_read(outage: Outage) -> None:
    """The comparison, on the loop, took the failure for bytes of another history, and served neither."""
    disk = SimDisk()
    disk.make_dir("journal")
    spool = create(disk, "journal", ByteOffset(0))
    spool.append(PARTS, wall=0)
    grown = Fragment(ByteOffset(0), ByteOffset(len(PARTS[0])), sha1(PARTS[0]).digest(), Codec.NONE)
    outage.update(dict.fromkeys(blocks_of(disk, spool.name), PASSING))
    assert await contradiction(disk, NAME, [spool], [grown]) == ("", {})
    disk.state.health.read_errors = LASTING
    with pytest.raises(OSError, match="the disk answers no read"):
        await contradiction(disk, NAME, [spool], [grown])
