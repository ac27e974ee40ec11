"""A log that lost a part of itself: a segment made shorter, emptied or removed, or the whole directory.

Journals that only the lost part named have acknowledged bytes in their spools. Nothing tells which, so every
journal is suspect: it is whole and says so by its spool, or it takes no appends and names the way out. No
byte of a spool is cut off or served wrong (J1, J2, W6, W7).
"""

import asyncio
import random
from collections.abc import Callable

import pytest

from broadsheet.base.types import JournalName
from broadsheet.errors import Corrupt, Status
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.journal.opening import IDENTITY_STREAM
from broadsheet.runtime.scope import Scope
from broadsheet.runtime.time import LoopTimers
from broadsheet.runtime.turn import Turn
from broadsheet.wal import Log
from broadsheet.wal.extents import EXTENTS_NAME
from simulator.disk import SimDisk
from simulator.disk_state import DiskState
from tests.journal.crash_histories import NAME, Running, Shelf, _idle, running
from tests.journal.test_damage import CONTENT, OTHER, PARTS, ROOMY, append, kept, shown
from tests.wal.harness import TestTime

LATE, IDLE, NEW = (JournalName(f"crash/{name}") for name in ("late", "idle", "new"))
Image = dict[str, bytes]
LOG = "journals/log/"


async def lived() -> tuple[Image, dict[JournalName, bytes]]:
    """Journals of which the log has something at its begin, at its end only, or nothing; then kill -9."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, config=ROOMY) as node:
        for name in (NAME, OTHER, LATE, IDLE):
            await node.broker.create(JournalSpec(name=name, fragment=FragmentSpec(length=1 << 20)))
            await node.broker.replica(name)
        await append(node, OTHER, b"other")
        for part in PARTS:
            assert await append(node, NAME, part) is Status.OK
        await _idle()
        assert await append(node, LATE, b"late" * 30) is Status.OK
        await _idle()
        image = {name: bytes(inode.view) for name, inode in disk.state.files.items()}
    assert not crashes
    return image, {NAME: CONTENT, OTHER: b"other", LATE: b"late" * 30, IDLE: b""}


def head_of(image: Image) -> tuple[str, int]:
    """The segment with the newest record, and where the batch of that record begins."""
    (found,) = [(name, content) for name, content in image.items() if b"late" * 30 in content if LOG in name]
    return found[0], found[1].rindex(b"late" * 30) // 4096 * 4096


DAMAGES: dict[str, Callable[[Image], Image]] = {
    "the last batch": lambda image: left(image, lambda at: at),
    "half of it": lambda image: left(image, lambda _: 13_000),
    "all but the header": lambda image: left(image, lambda _: 4096),
    "all": lambda image: left(image, lambda _: 0),
    "the file": lambda image: {n: c for n, c in image.items() if n != head_of(image)[0]},
    "every segment": lambda image: {n: c for n, c in image.items() if LOG not in n or not n.endswith(".wal")},
    "the directory": lambda image: {n: c for n, c in image.items() if LOG not in n},
}


def left(image: Image, size: Callable[[int], int]) -> Image:
    name, at = head_of(image)
    return {**image, name: image[name][: size(at)]}


def disk_of(image: Image) -> SimDisk:
    return SimDisk(DiskState.of(image, ("journals/log", "journals/spool")))


async def is_open(node: Running, name: JournalName) -> bool:
    """Whether it takes appends; where it does not, it says so, and names what an operator may do."""
    replica = await node.broker.replica(name)
    if replica.stop_reason:
        assert "`broadsheet journals " in replica.stop_reason
        assert await append(node, name, b"x") is Status.INDEX_HAS_GREATER_OFFSET
    return not replica.stop_reason


@pytest.mark.parametrize("what", DAMAGES)
async def test_acknowledged_bytes_that_only_the_lost_part_of_the_log_named_are_kept(
    what: str,
) -> None:
    """J1, W7: a journal opened at offset 0 and cut its spool, and the next append was written over it."""
    whole, contents = await lived()
    disk = disk_of(DAMAGES[what](whole))
    crashes: list[BaseException] = []
    for seed in (2, 3):
        async with running(disk, Shelf(None, {}), seed=seed, crashes=crashes, is_last=False) as node:
            if seed == 2:
                await node.broker.create(JournalSpec(name=NEW))
            for name, content in contents.items():
                try:
                    found = await shown(node, name)
                except Corrupt:
                    found = b""
                assert content.startswith(found)
                assert found == content or not await is_open(node, name), f"{name}: lost in silence"
            assert not await is_open(node, LATE)
            assert await append(node, NEW, b"new") is Status.OK
            contents[NEW] = b"new" if seed == 2 else b"newnew"
        assert not crashes
        there = kept(disk)
        assert all(content in there for name, content in contents.items() if name != NEW)


async def test_a_journal_that_the_lost_part_of_the_log_did_not_touch_stays_open() -> None:
    """The kernel has not rebooted: what was acknowledged stands in its spool file, and there is no more."""
    whole, _ = await lived()
    disk, crashes = disk_of(DAMAGES["the last batch"](whole)), list[BaseException]()
    for seed in (2, 3):
        async with running(disk, Shelf(None, {}), seed=seed, crashes=crashes, is_last=False) as node:
            for name in (NAME, OTHER, IDLE):
                assert await is_open(node, name), (await node.broker.replica(name)).stop_reason
                assert await append(node, name, b"on") is Status.OK
            assert (await shown(node, NAME)).startswith(CONTENT)
    assert not crashes


@pytest.mark.parametrize("what", ["the last batch", "half of it"])
async def test_the_identity_that_a_shorter_log_still_has_is_not_lost(what: str) -> None:
    """Its record was whole, but its stream counted as one that lost records, whatever an operator did."""
    whole, _ = await lived()
    disk, crashes, known = disk_of(DAMAGES[what](whole)), list[BaseException](), dict[int, None]()
    for seed in (2, 3):
        async with running(disk, Shelf(None, {}), seed=seed, crashes=crashes, is_last=False) as node:
            await _idle()
            context = node.broker._context
            known[context.incarnation] = None
            assert IDENTITY_STREAM not in context.log.status().quarantined
            assert [r async for r in context.log.records(IDENTITY_STREAM)], "it is there"
    assert len(known) == 1
    assert not crashes


async def test_a_log_without_its_extents_loses_nothing() -> None:
    """They are a witness, and no more: the log is whole without them."""
    whole, contents = await lived()
    disk, crashes = (
        disk_of({n: c for n, c in whole.items() if n != LOG + EXTENTS_NAME}),
        list[BaseException](),
    )
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes) as node:
        for name, content in contents.items():
            assert await is_open(node, name)
            assert await shown(node, name) == content


async def test_a_proof_of_what_is_left_is_none_of_what_the_log_lost_behind_it() -> None:
    """J2: records behind a damaged one proved the spool, and the journal opened without its last append.

    The log had said that more may be gone. After a power cut the spool has no more than was synced.
    """
    whole, _ = await lived()
    (log,) = [name for name, content in whole.items() if LOG in name and PARTS[-1] in content]
    (spool,) = [name for name, content in whole.items() if name.endswith(".spool") and PARTS[-1] in content]
    content = bytearray(whole[log])
    content[content.index(PARTS[0])] ^= 1
    image = {
        **whole,
        log: bytes(content[: content.rindex(PARTS[-1]) // 4096 * 4096]),
        spool: CONTENT[: -len(PARTS[-1])],
    }
    disk, crashes = disk_of(image), list[BaseException]()
    for seed in (2, 3):
        node_of = running(
            disk, Shelf(None, {}), seed=seed, crashes=crashes, is_last=False, boot_id="kernel-2"
        )
        async with node_of as node:
            assert not await is_open(node, NAME)
    assert not crashes


async def test_a_second_start_after_a_reboot_does_not_take_the_page_cache_for_kept() -> None:
    """J1, J2: a power cut took a segment of the log, and the spool's bytes that nobody had synced.

    The first start stopped every journal. Where it ended before it had opened one, the next start on the same
    kernel opened that journal at offset 0, and the next append took offsets that were acknowledged.
    """
    whole, _ = await lived()
    cut = DAMAGES["the last batch"](whole)
    disk = disk_of({n: b"" if n.endswith(".spool") and b"late" in c else c for n, c in cut.items()})
    crashes: list[BaseException] = []
    scope = Scope("a start that opens no journal", crash=crashes.append)
    await Log.open(
        disk,
        LOG.removesuffix("/"),
        config=ROOMY.wal,
        time=TestTime("kernel-2"),
        random=random.Random(2),
        turn=Turn(LoopTimers(asyncio.get_running_loop())),
        scope=scope,
        crash=crashes.append,
    )
    await scope.close()
    async with running(disk, Shelf(None, {}), seed=3, crashes=crashes, boot_id="kernel-2") as node:
        assert not await is_open(node, LATE)
    assert not crashes
