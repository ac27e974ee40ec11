"""Remedies: an operator sees what a journal lost, accepts it, and the journal goes on. No byte is deleted."""

import asyncio
import contextlib
import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace

import broadsheet
from broadsheet.base.time import WallTime
from broadsheet.base.types import ByteOffset, JournalName
from broadsheet.errors import InvalidArgument, ShuttingDown, SpanForgotten, Status, StoreUnhealthy, Unknown
from broadsheet.journal.committed_reads import read
from broadsheet.journal.core.pipeline_events import RollAsked
from broadsheet.journal.core.registers import Condition
from broadsheet.journal.core.seal import Lost
from broadsheet.journal.core.spec import FRAMING_LABEL, FragmentSpec, JournalSpec, registers_key
from broadsheet.journal.loss_acceptance import LOST_SPANS_MAX, spans_of
from broadsheet.journal.messages import LossReply
from broadsheet.journal.refusal_messages import refusal
from broadsheet.journal.remedies import accept_loss as accept_loss_of
from broadsheet.journal.seal_file import SEAL_NAME
from broadsheet.journal.set_aside import LOST_CLAIMS_MAX
from broadsheet.keyspace.core.transaction import Delete, Put
from broadsheet.message.columns import frames_of
from broadsheet.message.framing import JSON_LINES, Kind
from broadsheet.message.spans import sequence
from broadsheet.message.stamper import Stamper
from broadsheet.message.stored_index import decode
from broadsheet.message.uuid import MULTICAST, ProducerId
from simulator.disk import SimDisk
from simulator.disk_state import DiskState, Write
from tests.journal.crash_histories import NAME, Running, Shelf, _idle, _until, running
from tests.journal.node_process import NodeProcess
from tests.journal.test_damage import (
    CONTENT,
    OTHER,
    PARTS,
    ROOMY,
    append,
    copy_of,
    flip,
    kept,
    lived,
    place_of,
    shown,
    wipe_sum,
)
from tests.journal.test_healing import Down
from tests.journal.test_unreadable_spool import checkpointed
from tests.support.faulty import Fault, FaultyDisk

T = TypeVar("T")
LAST = sum(map(len, PARTS[:-1]))
"""Where the newest append begins."""


async def test_a_refusal_names_its_journal_once_and_no_status_by_its_constant() -> None:
    """`journal x: journal x: ...` and `journal x: SHUTTING_DOWN` were what a client was told."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME))
        replica = await node.broker.replica(NAME)
        replica.stop(f"journal {NAME}: the fragment store knows offset 5")
        for status in (Status.INDEX_HAS_GREATER_OFFSET, Status.SHUTTING_DOWN, Status.NOT_FOUND):
            told = refusal(status, replica, 0)
            assert (told.count(f"journal {NAME}: "), status.name in told) == (1, False)
    assert not crashes


async def quarantined() -> SimDisk:
    """The newest record is damaged where it names its sum: nothing proves what the spool has."""
    disk = await lived(is_vouched=True)
    wipe_sum(disk, PARTS[-1])
    return disk


async def accept(
    node: Running, *, may_act: bool, is_head_only: bool = False, head: int | None = None
) -> LossReply:
    """As the methods do."""
    chosen = None if head is None else ByteOffset(head)
    return await node.broker.accept_loss(NAME, None, head=chosen, may_act=may_act, is_head_only=is_head_only)


async def test_a_loss_that_is_accepted_leaves_a_journal_that_goes_on_above_it() -> None:
    """The dry run changes nothing; offsets that may have been read are not used again (J1)."""
    disk, crashes = await quarantined(), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=5, crashes=crashes, is_last=False) as node:
        told = await accept(node, may_act=False)
        assert not told.is_done
        assert (told.head, [(e.begin, e.end) for e in told.lost][:1]) == (
            len(CONTENT),
            [(LAST, len(CONTENT))],
        )
        assert (await node.broker.replica(NAME)).stop_reason, "a look changed something"
        with pytest.raises(InvalidArgument, match="accept-loss"):
            await accept(node, may_act=True, is_head_only=True)
        with pytest.raises(InvalidArgument, match="is below"):
            await accept(node, may_act=True, head=LAST)

        assert (await accept(node, may_act=True)).is_done
        replica = await node.broker.replica(NAME)
        assert (replica.stop_reason, replica.end) == ("", len(CONTENT))
        assert await append(node, NAME, b"and on") is Status.OK
        with pytest.raises(InvalidArgument, match="no loss to accept"):
            await accept(node, may_act=True)
        await _idle()
    assert PARTS[-1] in kept(disk), "what nothing proves is kept aside"
    async with running(disk, Shelf(None, {}), seed=6, crashes=crashes) as node:
        replica = await node.broker.replica(NAME)
        assert (replica.stop_reason, replica.end) == ("", len(CONTENT) + 6)
        assert replica.spool.read(ByteOffset(len(CONTENT)), 6) == b"and on"
        assert replica.closed == [] or replica.closed[0].read(ByteOffset(0), LAST) == CONTENT[:LAST]
    assert not crashes


@pytest.mark.parametrize("name", ["copy of 0000000000000000.spool", "0000000000000000.spool.bak"])
async def test_a_file_of_somebody_else_beside_the_spools_ends_no_node_and_stays(name: str) -> None:
    """Its name was read as a number, which ended the node at each start; else a start removed it."""
    disk, crashes = await quarantined(), list[BaseException]()
    directory = next(file for file in disk.state.files if file.endswith(".spool")).rpartition("/")[0]
    disk.open(f"{directory}/{name}", create=True).write_at(0, (b"a copy",))
    async with running(disk, Shelf(None, {}), seed=5, crashes=crashes, is_last=False) as node:
        assert (await accept(node, may_act=True)).head == len(CONTENT)
        assert await append(node, NAME, b"and on") is Status.OK
    async with running(disk, Shelf(None, {}), seed=6, crashes=crashes) as node:
        assert (await node.broker.replica(NAME)).end == len(CONTENT) + 6
    assert bytes(disk.state.files[f"{directory}/{name}"].view) == b"a copy"
    assert not crashes


@pytest.mark.parametrize("how", ["gone", "damaged"])
async def test_a_seal_that_is_gone_still_stops_its_journal(how: str) -> None:
    """J1, W7: the log begins anew when the seal is written, so the file was all that told of the loss.

    Without it the journal opened as if it were whole, cut off the rest, and gave its offsets again.
    """
    disk, crashes = await quarantined(), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=5, crashes=crashes, is_last=False) as node:
        directory = (await node.broker.replica(NAME)).directory
        await _idle()
    if how == "gone":
        disk.state.remove(f"{directory}/{SEAL_NAME}")
    else:
        flip(disk, f"{directory}/{SEAL_NAME}", 20)
    for seed in (6, 7):  # The second start finds what the first one left.
        async with running(disk, Shelf(None, {}), seed=seed, crashes=crashes, is_last=False) as node:
            assert "accept-loss" in (await node.broker.replica(NAME)).stop_reason
            assert await shown(node, NAME) == CONTENT[:LAST]
            assert await append(node, NAME, b"no") is Status.INDEX_HAS_GREATER_OFFSET
    assert PARTS[-1] in kept(disk), "nothing is cut off"
    async with running(disk, Shelf(None, {}), seed=8, crashes=crashes, is_last=False) as node:
        assert (await accept(node, may_act=True)).head == len(CONTENT)
        assert await append(node, NAME, b"and on") is Status.OK
        await _idle()
    async with running(disk, Shelf(None, {}), seed=9, crashes=crashes) as node:
        replica = await node.broker.replica(NAME)
        assert (replica.stop_reason, replica.end) == ("", len(CONTENT) + 6)
    assert PARTS[-1] in kept(disk), "what nothing proves is kept aside"
    assert not crashes


async def test_a_loss_that_nobody_has_accepted_yet_is_not_forgotten_at_the_next_damage() -> None:
    """J1: the seal alone told of it. The next one forgot it, and the offsets were free."""
    disk = await lived(is_vouched=True)
    log, at = place_of(disk, PARTS[-1], ".wal")
    spool, begin = place_of(disk, PARTS[-1], ".spool")
    flip(disk, log, at - 48, 2)
    files = {name: bytes(inode.view) for name, inode in disk.state.files.items()}
    disk, crashes = SimDisk(DiskState.of({**files, spool: files[spool][:begin]})), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=5, crashes=crashes, is_last=False) as node:
        first = await accept(node, may_act=False)
        for _ in range(3):
            assert await append(node, OTHER, b"zebra" * 30) is Status.OK
            await _idle()
    assert first.head == len(CONTENT)
    log, at = place_of(disk, b"zebra" * 30, ".wal")
    files = {name: bytes(inode.view) for name, inode in disk.state.files.items()}
    disk = SimDisk(DiskState.of({**files, log: files[log][: at // 4096 * 4096]}))  # Each stream is suspect.
    async with running(disk, Shelf(None, {}), seed=6, crashes=crashes, boot_id="kernel-2") as node:
        told = await accept(node, may_act=True)
        assert (told.head, told.lost) == (first.head, first.lost)
    assert not crashes


@pytest.mark.parametrize("place", [-188, -112, -72, -67, -48, -39])
async def test_offsets_of_a_record_that_does_not_decode_are_not_given_again(place: int) -> None:
    """J1, J11: its bytes are gone from the spool, too, so the record alone tells how far the append reached.

    `accept-loss` chose the lowest offset that anything named, and what does not decode named nothing: the
    next append took the offsets of one that had been acknowledged, and perhaps read.
    """
    disk = await lived(is_vouched=True)
    log, at = place_of(disk, PARTS[-1], ".wal")
    spool, begin = place_of(disk, PARTS[-1], ".spool")
    flip(disk, log, at + place, 2)
    content = bytes(disk.state.files[spool].view)[:begin]
    disk = SimDisk(
        DiskState.of(
            {n: content if n == spool else bytes(i.view) for n, i in disk.state.files.items()},
            tuple(disk.state.directories),
        )
    )
    crashes: list[BaseException] = []
    async with running(disk, Shelf(None, {}), seed=5, crashes=crashes) as node:
        told = await accept(node, may_act=True)
        assert len(CONTENT) <= told.head <= len(CONTENT) + (1 << 9), "one bit more than there was, at most"
        assert (await node.broker.replica(NAME)).end == told.head
    assert not crashes


async def test_what_is_lost_of_many_records_fits_into_a_reply() -> None:
    """Each record behind the damage was a span of its own: 8,000 of them were more than a frame takes.

    The reply was refused as too large, also where the loss had been accepted: the remedy was none.
    """
    crashes, count = list[BaseException](), 300
    disk = SimDisk()
    config = replace(ROOMY, checkpoint_bytes=1 << 20, wal=replace(ROOMY.wal, segment_bytes=1 << 20))
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, config=config) as node:
        await node.broker.create(JournalSpec(name=NAME))
        for number in range(count):
            assert await append(node, NAME, b"record %06d" % number) is Status.OK
        await _idle()
    disk = SimDisk(
        DiskState.of(
            {name: bytes(inode.view) for name, inode in disk.state.files.items()},
            tuple(disk.state.directories),
        )
    )
    for suffix in (".wal", ".spool"):
        flip(disk, *place_of(disk, b"record 000003", suffix))
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, config=config) as node:
        told = await accept(node, may_act=True)
        assert len(told.lost) <= LOST_CLAIMS_MAX + 3
        assert told.head == max(each.end for each in told.lost) == count * len(b"record 000003")
    assert not crashes


def test_a_reply_tells_the_rest_of_what_is_lost_as_one_span() -> None:
    """Ten thousand damaged files are lost as well."""
    lost = [Lost(ByteOffset(n), ByteOffset(n + 1), "it is damaged") for n in range(LOST_SPANS_MAX + 5)]
    told = spans_of(lost)
    assert len(told) == LOST_SPANS_MAX + 1
    assert (told[-1].begin, told[-1].end, told[-1].why) == (
        LOST_SPANS_MAX,
        LOST_SPANS_MAX + 5,
        "5 more spans in it",
    )
    assert spans_of(lost[:2]) == told[:2]


async def test_a_damaged_spool_is_moved_aside_and_the_rest_goes_on() -> None:
    """The log has let go of it, so the file was the only copy: the operator is shown its span."""
    crashes: list[BaseException] = []
    disk = await lived(is_vouched=True)
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, is_last=False) as node:
        await node.broker.replica(NAME)
        await checkpointed(node)
    flip(disk, *place_of(disk, CONTENT, ".spool"))
    async with running(disk, Shelf(None, {}), seed=3, crashes=crashes) as node:
        assert "accept-loss" in (await node.broker.replica(NAME)).stop_reason
        told = await accept(node, may_act=True)
        assert [(e.begin, e.end) for e in told.lost] == [(0, len(CONTENT))], "each byte once"
        assert await append(node, NAME, b"on") is Status.OK
        assert (await node.broker.replica(NAME)).end == len(CONTENT) + 2
    assert any(name.endswith(".lost") for name in disk.state.files)
    assert not crashes


async def test_a_journal_whose_log_is_lost_goes_on_above_what_its_keys_and_files_name() -> None:
    """journals.15: reset-head is the way out of a log that is another one; a power cut later it still is."""
    disk, crashes = await lived(is_vouched=True), list[BaseException]()
    for name in [name for name in disk.state.files if name.startswith("journals/log/")]:
        disk.state.remove(name)
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, is_last=False) as node:
        assert "accept-loss" in (await node.broker.replica(NAME)).stop_reason
        told = await accept(node, may_act=True, is_head_only=True)
        assert told.head == len(CONTENT)
        assert await append(node, NAME, b"on") is Status.OK
        cut = SimDisk(DiskState.of(disk.state.image(), tuple(disk.state.directories)))
    assert CONTENT in kept(disk)
    async with running(cut, Shelf(None, {}), seed=3, crashes=crashes) as node:
        replica = await node.broker.replica(NAME)
        assert (replica.stop_reason, replica.end) == ("", len(CONTENT) + 2)
        assert await shown(node, NAME) == b"on"
    assert not crashes


async def test_a_journal_that_is_made_over_stored_content_has_registers_after_one_accepted_loss() -> None:
    """journals.12: the report said that no registers are lost, and then the journal said that they are."""
    crashes, shelf = list[BaseException](), Shelf(None, {})
    async with running(SimDisk(), shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME))
        assert await append(node, NAME, CONTENT, Condition(union={"author": "A"})) is Status.OK
        replica = await node.broker.replica(NAME)
        replica.deliver(RollAsked())
        await _until(lambda: replica.index.end, "it is stored")
    async with running(SimDisk(), shelf, seed=2, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME))
        assert (await accept(node, may_act=True, is_head_only=True)).are_registers_lost
        assert await append(node, NAME, b"on", Condition(check={"author": "A"})) is not Status.OK
        is_first = Condition(check={"author": None}, union={"author": "B"})
        assert await append(node, NAME, b"on", is_first) is Status.OK
        assert await shown(node, NAME) == CONTENT + b"on"
    assert not crashes


async def test_committed_messages_behind_an_accepted_loss_can_be_read() -> None:
    """journals.29: the producer index ended at the hole, and readers had to read through it, for ever."""
    disk, crashes, shelf = SimDisk(), list[BaseException](), Shelf(None, {})
    spec = JournalSpec(
        name=NAME, fragment=FragmentSpec(length=1 << 10), labels={FRAMING_LABEL: Kind.JSON_LINES.value}
    )
    done, opened = (Stamper(ProducerId(MULTICAST | number)) for number in (1, 2))
    name, wall = JournalName(NAME), WallTime(10**18)
    async with running(disk, shelf, seed=1, crashes=crashes, is_last=False) as node:
        await node.broker.create(spec)
        first = b"".join(done.committed(JSON_LINES, b'{"n":1}', wall) for _ in range(30))
        pending = opened.pending(name, JSON_LINES, b'{"n":2}', wall)
        for content in (pending + first, b'{"lost":1}\n' * 200):
            assert await append(node, NAME, content) is Status.OK
        await _idle()
    for file in [name for name in disk.state.files if name.startswith("journals/log/")]:
        disk.state.remove(file)
    async with running(disk, shelf, seed=2, crashes=crashes, is_last=False) as node:
        head = ByteOffset((await node.broker.replica(NAME)).end + 5000)
        told = await accept(node, may_act=True, head=head)
        assert told.head == head
        behind = b"".join(done.committed(JSON_LINES, b'{"n":3}', wall) for _ in range(30))
        (late,) = opened.intents()
        for content in (behind, first, late.content()):
            assert await append(node, NAME, content) is Status.OK
        await _idle()
        replica = await node.broker.replica(NAME)
        end = replica.end
    async with running(disk, shelf, seed=3, crashes=crashes) as node:
        indexing = await node.broker.indexing(NAME)
        for _ in range(1000):
            if head in await indexing.points():
                break
            await asyncio.sleep(0.001)
        at_head = await indexing.at(head)
        assert at_head.offset == head
        replica = await node.broker.replica(NAME)
        found = read(replica, head, end, block=False)
        frames = frames_of(JSON_LINES, b"".join([chunk.data async for chunk in found]), head)
        index = decode(await indexing.part(at_head, 0, at_head.size))
        before_late = frames.take(frames.end < end)
        assert len(sequence(index, before_late).rows) == 30, "what stands before the hole is known as such"
        with pytest.raises(SpanForgotten):
            sequence(index, frames)
    assert not crashes


async def test_a_try_that_comes_after_an_accepted_loss_does_not_take_effect_again() -> None:
    """Its answer was lost when the journal was closed for it; where its check holds again, it was doubled."""
    disk, crashes = SimDisk(), list[BaseException]()
    spec = JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 10))
    async with running(disk, Down(None, {}), seed=1, crashes=crashes) as node:
        await node.broker.create(spec)
        for content in (b"x" * 2000, b"y" * 2000):
            assert await append(node, NAME, content) is Status.OK
        ours = Condition(check={"a": None}, union={"a": "1"}, attempt=b"a" * 16)
        assert await append(node, NAME, b"ours", ours) is Status.OK
        others = Condition(check={"a": "1"}, subtract={"a": "1"})
        assert await append(node, NAME, b"others", others) is Status.OK
        replica = await node.broker.replica(NAME)
        replica.closed[0].damage = "a sector of it went bad"
        assert (await accept(node, may_act=True)).is_done
        assert await append(node, NAME, b"ours", ours) is Status.ALREADY_EXISTS
    assert not crashes


async def test_a_loss_that_the_disk_has_no_room_to_accept_is_refused_and_accepted_later() -> None:
    """It ended the node, and its caller was never answered."""
    disk, crashes = await quarantined(), list[BaseException]()
    faulty = FaultyDisk(disk)
    async with running(disk, Shelf(None, {}), seed=5, crashes=crashes, faulty=faulty) as node:
        assert (await node.broker.replica(NAME)).stop_reason
        for fault in (
            Fault("write_at", error=errno.ENOSPC, name="*.lost", times=1),
            Fault("write_at", error=errno.ENOSPC, name="*/seal.new", times=1),
        ):
            faulty.plan(fault)
            with pytest.raises(StoreUnhealthy, match=r"No space left.*accept-loss"):
                await accept(node, may_act=True)
            assert "accept-loss" in (await node.broker.replica(NAME)).stop_reason
            assert (await node.broker.replica(NAME)).end == LAST
        assert (await accept(node, may_act=True)).is_done
        assert await append(node, NAME, b"and on") is Status.OK
    assert not crashes


async def test_a_second_try_to_accept_a_loss_keeps_what_the_first_one_moved_aside() -> None:
    """W7: the opening between them had made the spool file anew, and that took the place of the first one.

    With it all that was sound beside one flipped bit was deleted.
    """
    crashes: list[BaseException] = []
    disk = await lived(is_vouched=True)
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, is_last=False) as node:
        await node.broker.replica(NAME)
        await checkpointed(node)
        assert await append(node, NAME, b"what only the log has, and will write again") is Status.OK
        await _idle()
    flip(disk, *place_of(disk, PARTS[0], ".spool"))
    assert PARTS[1] in kept(disk)
    faulty = FaultyDisk(disk)
    async with running(disk, Shelf(None, {}), seed=3, crashes=crashes, faulty=faulty) as node:
        assert "accept-loss" in (await node.broker.replica(NAME)).stop_reason
        faulty.plan(Fault("write_at", error=errno.ENOSPC, name="*/seal.new", times=1))
        with pytest.raises(StoreUnhealthy, match="accept-loss"):
            await accept(node, may_act=True)
        assert (await accept(node, may_act=True)).is_done
    assert all(part in kept(disk) for part in PARTS[1:])
    assert not crashes


async def test_a_second_try_to_accept_a_loss_goes_on_above_what_the_first_one_moved_aside() -> None:
    """J1: only the file named the offsets, and the disk had no room for the seal: they were given again."""
    disk, crashes = await lived(is_vouched=True), list[BaseException]()
    for name in [name for name in disk.state.files if name.startswith("journals/log/")]:
        disk.state.remove(name)
    faulty = FaultyDisk(disk)
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, faulty=faulty) as node:
        assert (await accept(node, may_act=False)).head == len(CONTENT)
        faulty.plan(Fault("write_at", error=errno.ENOSPC, name="*/seal.new", times=1))
        with pytest.raises(StoreUnhealthy, match="accept-loss"):
            await accept(node, may_act=True)
        assert (await accept(node, may_act=True)).head == len(CONTENT)
        assert await append(node, NAME, b"on") is Status.OK
        assert (await node.broker.replica(NAME)).end == len(CONTENT) + 2
    assert CONTENT in kept(disk)
    assert not crashes


async def test_a_second_try_to_accept_a_loss_goes_on_above_a_tail_that_the_first_one_moved_aside() -> None:
    """J1: the seal that told of the tail is gone, and a part of the file is sound."""
    disk, crashes = await quarantined(), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=5, crashes=crashes, is_last=False) as node:
        assert (await accept(node, may_act=False)).head == len(CONTENT)
    disk.state.remove(next(name for name in disk.state.files if name.endswith(f"/{SEAL_NAME}")))
    faulty = FaultyDisk(disk)
    async with running(disk, Shelf(None, {}), seed=6, crashes=crashes, faulty=faulty) as node:
        faulty.plan(Fault("write_at", error=errno.ENOSPC, name="*/seal.new", times=1))
        with pytest.raises(StoreUnhealthy, match="accept-loss"):
            await accept(node, may_act=True)
        told = await accept(node, may_act=True)
        assert [(each.begin, each.end) for each in told.lost] == [(LAST, len(CONTENT))]
        assert told.head == len(CONTENT)
    assert not crashes


async def test_a_loss_that_cannot_be_looked_for_now_is_told_to_be_unchanged() -> None:
    """C2: without a free descriptor a look that changes nothing ended as an error of the node."""
    disk, crashes = await quarantined(), list[BaseException]()
    faulty = FaultyDisk(disk)
    async with running(disk, Shelf(None, {}), seed=5, crashes=crashes, faulty=faulty) as node:
        assert (await node.broker.replica(NAME)).stop_reason
        faulty.plan(Fault("open", error=errno.EMFILE, name="*.spool", times=1))
        with pytest.raises(StoreUnhealthy, match="nothing changed: try again"):
            await accept(node, may_act=False)
        assert (await accept(node, may_act=True)).is_done
    assert not crashes


@pytest.mark.parametrize("passed", range(4))
async def test_a_loss_that_is_told_to_be_refused_is_not_accepted(passed: int) -> None:
    """C2: the seal stood in its place, and only to make that durable failed. It was told to be refused."""
    disk, crashes = await quarantined(), list[BaseException]()
    faulty = FaultyDisk(disk)
    async with running(disk, Shelf(None, {}), seed=5, crashes=crashes, faulty=faulty) as node:
        assert (await node.broker.replica(NAME)).stop_reason
        faulty.plan(Fault("sync_dir", error=errno.EMFILE, name="journals/spool/*", after=passed, times=1))
        try:
            is_done = (await accept(node, may_act=True)).is_done
        except StoreUnhealthy:
            assert (await node.broker.replica(NAME)).stop_reason, "it is accepted"
            is_done = (await accept(node, may_act=True)).is_done
        except Unknown:
            is_done = not (await node.broker.replica(NAME)).stop_reason
        assert is_done
        assert await append(node, NAME, b"and on") is Status.OK
    assert not crashes


async def test_a_loss_is_not_told_to_be_refused_where_only_its_epoch_key_was_not_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C2: a key space without room refuses for certain, and the seal is written already."""
    disk, crashes = await quarantined(), list[BaseException]()

    async def full(*_: object, **__: object) -> None:
        raise StoreUnhealthy("the map is full")

    async with running(disk, Shelf(None, {}), seed=5, crashes=crashes) as node:
        assert (await node.broker.replica(NAME)).stop_reason
        with monkeypatch.context() as patch:
            patch.setattr(node.keyspace, "transact", full)
            with pytest.raises(Unknown, match="is accepted"):
                await accept(node, may_act=True)
        assert (await node.broker.replica(NAME)).stop_reason == ""
        assert await append(node, NAME, b"and on") is Status.OK
    assert not crashes


async def test_what_is_sound_outlives_a_power_cut_after_a_loss_was_accepted() -> None:
    """J2: the seal said that the spool was synced, and nobody had: the log had let go of its bytes."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, is_last=False) as node:
        await node.broker.create(JournalSpec(name=NAME))
        for part in (*PARTS, b""):
            assert await append(node, NAME, part) is Status.OK
        await _idle()
    wipe_sum(disk, PARTS[-1])
    async with running(disk, Down(None, {}), seed=2, crashes=crashes, is_last=False) as node:
        assert (await node.broker.replica(NAME)).stop_reason
        assert (await accept(node, may_act=True)).is_done
        assert (await node.broker.replica(NAME)).stop_reason == ""
        cut = SimDisk(DiskState.of(disk.state.image(), tuple(disk.state.directories)))
    async with running(cut, Down(None, {}), seed=3, crashes=crashes) as node:
        replica = await node.broker.replica(NAME)
        assert (replica.stop_reason, replica.begin, replica.end) == ("", 0, len(CONTENT))
        assert replica.closed[0].read(ByteOffset(0), LAST) == CONTENT[:LAST]
    assert not crashes


class Late(FaultyDisk):
    """A disk whose threads are slow to say that they are done."""

    async def run(self, work: Callable[[], T]) -> T:
        found = await super().run(work)
        await asyncio.sleep(0.003)
        return found


async def test_what_is_acknowledged_while_a_loss_is_accepted_stays() -> None:
    """J1, J2: a journal without registers takes appends; those that came after the look were moved aside."""
    disk, crashes = await lived(is_vouched=True), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes) as node:
        await node.keyspace.transact([], [Delete(registers_key(NAME))])
    disk.state.locks.clear()
    async with running(disk, Shelf(None, {}), seed=3, crashes=crashes, faulty=Late(disk)) as node:
        await node.broker.replica(NAME)
        accepting = asyncio.create_task(accept(node, may_act=True))
        acknowledged = [n for n in range(100) if await append(node, NAME, b"%03d," % n) is Status.OK]
        assert (await accepting).are_registers_lost
        found = (await shown(node, NAME)).removeprefix(CONTENT).split(b",")[:-1]
        assert len(acknowledged) > 90
        assert [n for n in acknowledged if b"%03d" % n not in found] == []
        assert (await node.broker.replica(NAME)).stop_reason == ""
    assert not crashes


async def test_a_node_that_stops_while_a_loss_is_accepted_ends_as_ever() -> None:
    """It ended as if a bug of its own had been found, and who had asked was not answered."""
    disk, crashes = await lived(is_vouched=True), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes) as node:
        await node.keyspace.transact([], [Delete(registers_key(NAME))])
    disk.state.locks.clear()
    for turns in range(20):
        async with running(copy_of(disk), Shelf(None, {}), seed=3, crashes=crashes) as node:
            await node.broker.replica(NAME)
            accepting = asyncio.create_task(accept(node, may_act=True))
            for _ in range(turns):
                await asyncio.sleep(0)
        with contextlib.suppress(ShuttingDown, Unknown):
            assert (await asyncio.wait_for(accepting, 5)).are_registers_lost
        assert not crashes, f"after {turns} turns"


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # Our own command.
        [sys.executable, "-m", "broadsheet", *arguments], capture_output=True, text=True, check=False
    )


async def test_the_commands_show_what_is_lost_and_act_only_with_yes(tmp_path: Path) -> None:
    """The exit status 4 of a dry run says that nothing was changed; doctor and status name the journal."""
    node = NodeProcess(tmp_path)
    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            for name in ("out/a", "out/b"):
                await client.journals.create(name)
                await client.journals.append(name, CONTENT)
        node.kill()
        for file in (tmp_path / "data/journals/log").iterdir():
            file.unlink()  # All of it: a log that lacks a segment knows that it does.
        assert await node.start()
        at = ("--address", node.address)

        found = command("journals", "reset-head", "out/a", *at)
        assert (found.returncode, "nothing was changed" in found.stdout) == (4, True), found
        assert f"lost [0, {len(CONTENT)})" in found.stdout
        status = command("journals", "status", "out/a", *at)
        assert "accept-loss" in status.stdout
        doctor = command("doctor", "--data-dir", str(tmp_path / "data"))
        assert doctor.returncode == 1
        assert "`broadsheet journals accept-loss out/a`" in doctor.stdout
        assert "`broadsheet journals accept-loss out/b`" in doctor.stdout
        found = command("journals", "accept-loss", "out/a", "--yes", "--json", *at)
        assert (found.returncode, json.loads(found.stdout)["is_done"]) == (0, True), found
        async with broadsheet.connect(node.address) as client:
            assert (await client.journals.append("out/a", b"on")).begin == len(CONTENT)
            read = command("journals", "read", "out/a", "--offset", "0", *at).stderr
            assert f"no fragment has offset 0; the next that can be read is {len(CONTENT)}\n" in read
            assert (await client.journals.reset_head("out/b", head=1000, may_act=True)).head == 1000
            assert (await client.journals.append("out/b", b"on")).begin == 1000
        doctor = command("doctor", "--data-dir", str(tmp_path / "data"))
        assert "ok   journals" in doctor.stdout
        assert ".lost" in doctor.stdout, doctor.stdout
    finally:
        node.kill()


async def test_registers_that_are_lost_begin_anew_and_empty() -> None:
    """journals.12: checks were refused for ever, and no command ended it."""
    disk, crashes = await lived(is_vouched=True), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes) as node:
        await node.keyspace.transact([], [Delete(registers_key(NAME))])
    disk.state.locks.clear()
    async with running(disk, Shelf(None, {}), seed=3, crashes=crashes) as node:
        wanted = Condition(check={"owner": None}, union={"owner": "me"})
        assert await append(node, NAME, b"x", wanted) is Status.REGISTERS_UNKNOWN
        told = await accept(node, may_act=True)
        assert told.are_registers_lost
        assert await append(node, NAME, b"x", wanted) is Status.OK
        assert await shown(node, NAME) == CONTENT + b"x"
    assert not crashes


async def test_registers_that_went_with_a_damaged_record_are_lost_and_not_those_from_before() -> None:
    """J6: a power cut before the put, and then a lost sector: the journal said nothing, and had older ones.

    The next record proves the content of the damaged one. Nothing tells its registers.
    """
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, config=ROOMY) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 20)))
        for number, part in enumerate(PARTS):
            condition = Condition(union={"n": str(number)}) if 0 < number < 3 else None
            if number == 2:
                before = node.keyspace.get(registers_key(NAME))
            assert await append(node, NAME, part, condition) is Status.OK
        assert before is not None
        await node.keyspace.transact([], [Put(registers_key(NAME), before.value)])
        await _idle()
        disk = copy_of(disk)
    name, at = place_of(disk, PARTS[2], ".wal")
    disk.state.change(disk.state.files[name], Write(at - 120, bytes(120)))
    wanted = Condition(check={"n": "1"}, union={"n": "mine"})
    for seed in (2, 3):
        async with running(disk, Shelf(None, {}), seed=seed, crashes=crashes, is_last=False) as node:
            assert (await shown(node, NAME)).startswith(CONTENT)
            assert "`broadsheet journals accept-loss" in node.broker.status(NAME).reason
            assert node.broker.troubles.stopped_count == 1, "`doctor` tells it"
            assert await append(node, NAME, b"x", wanted) is Status.REGISTERS_UNKNOWN
            assert await append(node, NAME, b"and on") is Status.OK
            if seed == 3:
                told = await accept(node, may_act=True)
                assert told.are_registers_lost
                assert "registers are lost" in told.reason
    async with running(disk, Shelf(None, {}), seed=4, crashes=crashes) as node:
        assert (node.broker.status(NAME).reason, node.broker.troubles.stopped_count) == ("", 0)
        assert await append(node, NAME, b"x", wanted) is Status.REGISTER_MISMATCH
        assert await append(node, NAME, b"x", Condition(check={"n": None}, union={"n": "mine"})) is Status.OK
    assert not crashes


async def test_files_that_only_a_damaged_checkpoint_names_are_told_before_they_are_moved_aside() -> None:
    """A bad sector: the operator was told that nothing is lost, and acknowledged bytes were moved away."""
    config = replace(ROOMY, checkpoint_bytes=1 << 20)  # None comes by itself.
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=config) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 10)))
        for letter in (b"a", b"b", b"c"):
            assert await append(node, NAME, letter * 1_100) is Status.OK
        await checkpointed(node)
        for letter in (b"d", b"e"):
            assert await append(node, NAME, letter * 1_100) is Status.OK
        await _idle()
    name, at = place_of(disk, b"\xaefragment_begin", ".wal")
    disk.state.change(disk.state.files[name], Write(at, b"X" * 200))  # Its checkpoint tells no sum.
    async with running(disk, Down(None, {}), seed=2, crashes=crashes, config=config) as node:
        assert "accept-loss" in (await node.broker.replica(NAME)).stop_reason
        told = await node.broker.accept_loss(NAME, None, head=None, may_act=True, is_head_only=False)
        left = await node.broker.replica(NAME)
        served = [chunk async for chunk in read(left, left.begin, None, block=False)]
        lost = {at for each in told.lost for at in range(each.begin, each.end)}
        assert {at for each in served for at in range(each.offset, each.end)} | lost == set(range(5_500))
        assert await append(node, NAME, b"and on") is Status.OK
    assert not crashes


async def test_a_damaged_closed_spool_of_a_journal_that_takes_appends_has_a_way_out() -> None:
    """Its status named the damage and no command, and `accept-loss` said that there was none."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Down(None, {}), seed=1, crashes=crashes, config=ROOMY) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 10)))
        for content in (b"a" * 1500, b"b" * 1500):
            assert await append(node, NAME, content) is Status.OK
        replica = await node.broker.replica(NAME)
        spool = replica.closed[0]
        disk.state.change(disk.state.files[spool.name], Write(5, b"X"))
        spool.damage = f"as an upload finds it: {accept_loss_of(NAME)}"
        node.broker.troubles.judge(replica)
        assert "accept-loss" in node.broker.status(NAME).reason
        assert node.broker.troubles.stopped_count == 1

        told = await accept(node, may_act=True)
        assert [(each.begin, each.end) for each in told.lost] == [(0, 1500)]
        replica = await node.broker.replica(NAME)
        assert (replica.damage, replica.begin, replica.end) == ("", 1500, 3000)
        assert await append(node, NAME, b"on") is Status.OK
        assert await shown(node, NAME) == b"b" * 1500 + b"on"
    assert not crashes
