"""Damage to an idle journal's only record, its checkpoint: the spool's own sums repair it without a human."""

from collections.abc import Sequence

import pytest

from broadsheet.base.types import JournalName
from broadsheet.errors import Status
from broadsheet.journal.core.pipeline_events import RollAsked
from broadsheet.journal.core.registers import Condition
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.wal.format import ENTRY_BYTES, FRAME_BYTES
from simulator.disk import SimDisk
from simulator.disk_state import DiskState
from tests.journal.crash_histories import NAME, Running, Shelf, _idle, running
from tests.journal.test_damage import OTHER, ROOMY, append, copy_of, flip, place_of, shown
from tests.journal.test_healing import Down

LENGTHS = (700, 700, 300)
"""Of appends; a fragment is closed above 1,000 bytes."""


class Idle:
    """A disk whose journal's log holds one checkpoint, and what was appended."""

    def __init__(self, disk: SimDisk, objects: dict[str, bytes], content: bytes) -> None:
        self.disk, self.objects, self.content = disk, objects, content


async def checkpointed(node: Running, name: JournalName) -> None:
    """The spools are synced, and the log has let go of everything but a checkpoint."""
    housekeeping = node.broker._slots[name].housekeeping
    assert housekeeping is not None
    housekeeping.checkpoint()
    await _idle()
    log, replica = node.broker._context.log, await node.broker.replica(name)
    assert log.next_offset(replica.stream) == log.states[replica.stream].first + 1


async def idle(
    lengths: Sequence[int] = LENGTHS, *, is_stored: bool, appends_again: bool = False, is_rolled: bool = False
) -> Idle:
    """A short life, then kill -9.

    Args:
        is_stored: the closed fragments are in the store, and gone from here.
        appends_again: the epoch key is older than the last append.
        is_rolled: the open fragment is empty.
    """
    disk, crashes = SimDisk(), list[BaseException]()
    shelf = Shelf(None, {}) if is_stored else Down(None, {})
    content = b""
    async with running(disk, shelf, seed=1, crashes=crashes, config=ROOMY, is_last=False) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 10)))
        await node.broker.create(JournalSpec(name=OTHER))
        for number, length in enumerate(lengths):
            part = bytes((65 + number,)) * length
            condition = Condition(union={"n": str(number)})
            assert await append(node, NAME, part, condition) is Status.OK
            content += part
        await _idle()
        await checkpointed(node, NAME)
    async with running(disk, shelf, seed=2, crashes=crashes, config=ROOMY, is_last=False) as node:
        await node.broker.replica(NAME)
        if appends_again:
            assert await append(node, NAME, b"z" * 100) is Status.OK
            content += b"z" * 100
        if is_rolled:
            (await node.broker.replica(NAME)).deliver(RollAsked())
            await _idle()
        await checkpointed(node, NAME)
        await append(node, OTHER, b"later")
        await _idle()
        files = {name: bytes(inode.view) for name, inode in disk.state.files.items()}
        directories = tuple(disk.state.directories)
    assert not crashes
    return Idle(SimDisk(DiskState.of(files, directories)), shelf.objects, content)


def checkpoint_span(disk: SimDisk) -> tuple[str, int, int]:
    """Where the newest checkpoint of the journal is in the log, its frame header included."""
    name, at = place_of(disk, b"fragment_begin", ".wal")
    view = bytes(disk.state.files[name].view)
    begin = view.rindex(b"\x02\x89\xa5epoch", 0, at)
    end = view.index(b"attempts_from", at) + len(b"attempts_from") + 2
    return name, begin - FRAME_BYTES - ENTRY_BYTES, end


@pytest.mark.parametrize(
    ("is_stored", "appends_again", "is_rolled", "lengths"),
    [
        (True, False, False, LENGTHS),
        (True, False, True, LENGTHS),
        (False, True, False, LENGTHS),
        (True, True, False, (300,)),
    ],
)
async def test_any_flipped_bit_of_an_idle_journals_checkpoint_is_repaired(
    *, is_stored: bool, appends_again: bool, is_rolled: bool, lengths: Sequence[int]
) -> None:
    """One bit stopped a journal whose every byte was sound, and `accept-loss` gave those bytes up."""
    life = await idle(lengths, is_stored=is_stored, appends_again=appends_again, is_rolled=is_rolled)
    name, begin, end = checkpoint_span(life.disk)
    stopped = []
    for at in range(begin, end):
        disk, crashes = copy_of(life.disk), list[BaseException]()
        flip(disk, name, at, 1 << at % 8)
        shelf = (Shelf if is_stored else Down)(None, dict(life.objects))
        async with running(disk, shelf, seed=3, crashes=crashes, config=ROOMY) as node:
            replica = await node.broker.replica(NAME)
            if replica.stop_reason:
                stopped.append((at - begin, replica.stop_reason))
                continue
            found = await shown(node, NAME)
            assert found == life.content, f"byte {at - begin}: {len(found)} of {len(life.content)}"
            status = await append(node, NAME, b"on", Condition(check={"n": str(len(lengths) - 1)}))
            assert status is Status.OK, f"byte {at - begin}: {status}"
        assert not crashes
    assert stopped == []
