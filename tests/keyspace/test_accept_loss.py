"""A key space that lost records goes on by an operator's word, and no journal is lost with its key."""

import asyncio
import errno
import json
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import msgspec
import pytest

import broadsheet
from broadsheet.base.time import SECOND, Duration
from broadsheet.base.types import ByteOffset, JournalName, Revision
from broadsheet.cli.keyspace import accept, drop
from broadsheet.errors import Corrupt, InvalidArgument, NotFound, Status
from broadsheet.journal.core.registers import Condition
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec, epoch_key, registers_key, spec_key
from broadsheet.journal.deletion import mark_deleted
from broadsheet.journal.keys import created_at, decode_registers
from broadsheet.journal.messages import SpecChange
from broadsheet.journal.orphans import ORPHANS_NAME
from broadsheet.keyspace.core.loss import LOSS_KEY
from broadsheet.keyspace.core.transaction import Put
from broadsheet.keyspace.local.loss_acceptance import look
from broadsheet.keyspace.local.role import open_keyspace
from broadsheet.keyspace.local.seal_file import REVISION_LEAP, SEAL_NAME
from broadsheet.observe.logs import Logs
from simulator.crashstates import crash_states, record
from simulator.disk import SimDisk
from simulator.disk_state import DiskState, Resize
from tests.journal.crash_histories import KEYSPACE, NAME, Running, Shelf, _idle, _until, running
from tests.journal.node_process import NodeProcess
from tests.journal.test_damage import append, copy_of, flip, shown
from tests.journal.test_kept import lose
from tests.keyspace.test_healing import Life
from tests.support.faulty import Fault, FaultyDisk

OTHER, THIRD = JournalName("crash/other"), JournalName("crash/third")
ALL = (NAME, OTHER, THIRD)
FLIPS = 60


def image(disk: SimDisk) -> dict[str, bytes]:
    return {name: bytes(inode.view) for name, inode in disk.state.files.items()}


def kept_at(disk: SimDisk) -> SimDisk:
    """The disk after kill -9 at this moment."""
    return SimDisk(DiskState.of(image(disk), tuple(disk.state.directories)))


async def lived() -> tuple[SimDisk, dict[str, int]]:
    """Three journals with content, every record vouched for; then kill -9. And who was created when."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes) as node:
        for name in ALL:
            await node.broker.create(JournalSpec(name=name, fragment=FragmentSpec(length=1 << 20)))
            assert await append(node, name, name.encode()) is Status.OK
        await _idle()
        created = {str(name): int(node.broker.info(name).create_revision) for name in ALL}
        left = kept_at(disk)
    assert not crashes
    return left, created


def flip_key(disk: SimDisk, key: str) -> None:
    """One bit of the last record of the key space's log that names `key`."""
    found = [
        (name, at)
        for name, content in image(disk).items()
        if name.startswith("keyspace/log/") and (at := content.rfind(key.encode())) >= 0
    ]
    flip(disk, *found[-1], bit=2)


async def refuses(disk: SimDisk, match: str) -> None:
    with pytest.raises(Corrupt, match=match):
        async with running(disk, Shelf(None, {}), seed=7, crashes=[]):
            pass
    disk.state.locks.clear()


def streams(node: Running) -> list[int]:
    return [int(stream) for stream in node.broker._context.log.streams()]


async def test_a_journal_whose_key_is_lost_is_kept_and_adopted() -> None:
    """It was dropped from the log by the first start after: the only remedy was a backup."""
    disk, created = await lived()
    flip_key(disk, spec_key(OTHER))
    await refuses(disk, "keyspace accept-loss")
    before = image(disk)

    told = accept(disk, {}, may_act=False)

    assert image(disk) == before, "a look changed something"
    assert [(each.begin, each.end) for each in told.lost] == [(created[OTHER], created[OTHER] + 1)]
    assert [each.revision for each in told.orphans] == [created[OTHER]]
    assert (told.journals, told.sound, told.is_done) == (2, created[OTHER] - 1, False)
    assert accept(disk, {}, may_act=True).is_done
    crashes: list[BaseException] = []
    for seed in (2, 3):  # A start keeps what no key names, and so does every later one.
        async with running(disk, Shelf(None, {}), seed=seed, crashes=crashes, is_last=False) as node:
            assert node.keyspace.revision > REVISION_LEAP
            assert [await shown(node, name) for name in (NAME, THIRD)] == [NAME.encode(), THIRD.encode()]
            assert created[OTHER] in streams(node)
            assert await append(node, NAME, b"") is Status.OK
    assert json.loads(image(disk)[ORPHANS_NAME]) == [created[OTHER]]
    with pytest.raises(InvalidArgument, match="exists"):
        accept(disk, {Revision(created[OTHER]): THIRD}, may_act=True)
    with pytest.raises(InvalidArgument, match="the orphans are"):
        accept(disk, {Revision(created[THIRD]): "crash/new"}, may_act=True)

    accept(disk, {Revision(created[OTHER]): OTHER}, may_act=True)

    async with running(disk, Shelf(None, {}), seed=4, crashes=crashes, is_last=False) as node:
        assert await shown(node, OTHER) == OTHER.encode()
        assert await append(node, OTHER, b" and on") is Status.OK
        assert node.broker.info(OTHER).create_revision == created[OTHER]
    assert ORPHANS_NAME not in image(disk)
    assert not crashes


async def test_a_journal_that_was_altered_behind_the_gap_is_the_journal_that_it_was() -> None:
    """It came back empty, and took appends at offsets that were acknowledged: only a creation begins anew."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes) as node:
        for name in ALL:
            await node.broker.create(JournalSpec(name=name))
            assert await append(node, name, name.encode()) is Status.OK
        await _idle()
        created = {name: node.broker.info(name).create_revision for name in ALL}
        for name in (OTHER, NAME):
            await node.broker.alter(name, None, SpecChange(retained_bytes=1 << 20))
        await _idle()
        disk = kept_at(disk)
    flip_key(disk, spec_key(THIRD))

    told = accept(disk, {}, may_act=True)

    assert [each.revision for each in told.orphans] == [created[THIRD]]
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, is_last=False) as node:
        for name in (NAME, OTHER):
            assert await shown(node, name) == name.encode()
            assert node.broker.info(name).create_revision == created[name]
            assert node.broker.info(name).spec.fragment.retained_bytes == 1 << 20
    assert not crashes


async def test_a_deletion_that_may_have_ended_takes_nothing_of_a_later_journal_of_its_name() -> None:
    """W7: its end and the later creation were lost; the next start removed what that journal had stored."""
    disk, shelf, crashes = SimDisk(), Shelf(None, {}), list[BaseException]()
    spec = JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 10))
    async with running(disk, shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(spec)
        await node.broker.delete(NAME, None)
        again = await node.broker.create(spec)
        for content in (b"stored" * 300, b" and more"):
            assert await append(node, NAME, content) is Status.OK
        await _until(lambda: len(shelf.objects) > 0, "a fragment is stored")
        await _idle()
        left, stored = kept_at(disk), dict(shelf.objects)
    found = [
        (name, at.start())
        for name, log in image(left).items()
        if name.startswith("keyspace/log/")
        for at in re.finditer(re.escape(spec_key(NAME).encode()), log)
    ]
    assert len(found) == 4, "created, marked, deleted, created"
    for place in found[2:]:
        flip(left, *place, bit=2)

    told = accept(left, {}, may_act=True)

    assert told.orphans[-1].revision == again.create_revision
    async with running(left, shelf, seed=2, crashes=crashes, is_last=False):
        await _idle()
    assert shelf.objects == stored
    accept(left, {again.create_revision: NAME}, may_act=True)
    async with running(left, shelf, seed=3, crashes=crashes, is_last=False) as node:
        assert await shown(node, NAME) == b"stored" * 300 + b" and more"
    assert not crashes


async def test_an_adopted_journal_has_its_own_registers_and_not_those_of_an_earlier_one_of_its_name() -> None:
    """J6: an older copy of the key space, of a time when the earlier one was being deleted, has its keys."""
    disk, shelf, crashes = SimDisk(), Shelf(None, {}), list[BaseException]()
    async with running(disk, shelf, seed=1, crashes=crashes) as node:
        first = await node.broker.create(JournalSpec(name=NAME))
        for author in ("a", "b", "c"):
            assert await append(node, NAME, b"x", Condition(union={"author": author})) is Status.OK
        await mark_deleted(node.broker._context, first)
        await _idle()
        disk = kept_at(disk)
    older = {name: content for name, content in image(disk).items() if name.startswith("keyspace/")}
    async with running(disk, shelf, seed=2, crashes=crashes) as node:
        await _until(lambda: node.keyspace.get(spec_key(NAME)) is None, "the deletion has ended")
        second = await node.broker.create(JournalSpec(name=NAME))
        assert await append(node, NAME, b"longer", Condition(union={"author": "d"})) is Status.OK
        await _idle()
        disk = kept_at(disk)
    lose(disk, "keyspace")
    disk = SimDisk(DiskState.of(image(disk) | older, tuple(disk.state.directories)))

    accept(disk, {second.create_revision: NAME}, may_act=True)

    async with running(disk, shelf, seed=3, crashes=crashes, is_last=False) as node:
        assert await shown(node, NAME) == b"longer"
        registers = (await node.broker.replica(NAME)).pipeline.committed_registers
        assert registers is not None
        assert registers.values == {"author": "d"}
    assert not crashes


async def test_where_both_logs_are_lost_the_spool_directories_tell_of_the_journals() -> None:
    """The node started empty, and the next journals took over their numbers, with their spool files."""
    disk, created = await lived()
    lose(disk, "keyspace/log")
    lose(disk, "journals/log")

    await refuses(disk, f"created at revision {created[THIRD]}.*keyspace accept-loss")

    assert [each.revision for each in accept(disk, {}, may_act=False).orphans] == sorted(created.values())


@pytest.mark.parametrize("lost", ["journals/log", "journals/log/segment"])
async def test_of_an_adopted_journal_that_the_log_does_not_know_no_byte_is_removed(lost: str) -> None:
    """W7: both logs were lost, and its spool files were the only copy: the start took them for nobody's."""
    disk, created = await lived()
    lose(disk, "keyspace/log")
    for name in [each for each in image(disk) if each.startswith(lost)]:
        disk.state.remove(name)

    accept(disk, {Revision(created[name]): name for name in ALL}, may_act=True)

    crashes: list[BaseException] = []
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, is_last=False) as node:
        for name in ALL:
            assert await append(node, name, b"x") is Status.INDEX_HAS_GREATER_OFFSET, name
            assert f"journals accept-loss {name}" in node.broker.status(name).reason
        told = await node.broker.accept_loss(NAME, None, head=None, may_act=True, is_head_only=False)
        assert (told.head, told.are_registers_lost) == (len(NAME), True)
        assert await append(node, NAME, b"on") is Status.OK
    contents = [content for name, content in image(disk).items() if name.startswith("journals/spool/")]
    assert all(name.encode() in contents for name in ALL)
    assert not crashes


async def test_a_retention_that_a_lost_record_may_have_ended_removes_nothing_until_it_is_said_again() -> None:
    """J2: the record that ended it was lost, and the older one removed what it had kept by then."""
    disk, shelf, crashes = SimDisk(), Shelf(None, {}), list[BaseException]()
    spec = JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 10, retained_bytes=1 << 10))
    async with running(disk, shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(spec)
        await node.broker.alter(NAME, None, SpecChange(retained_bytes=0))
        for _ in range(4):
            assert await append(node, NAME, b"k" * (2 << 10)) is Status.OK
        await _until(lambda: len(shelf.objects) >= 3, "three fragments are stored")
        await node.broker.create(JournalSpec(name=OTHER))
        await _idle()
        left, stored = kept_at(disk), dict(shelf.objects)
    flip_key(left, spec_key(NAME))
    accept(left, {}, may_act=True)

    async with running(left, shelf, seed=2, crashes=crashes, is_last=False) as node:
        assert len(await shown(node, NAME)) == 8 << 10
        for _ in range(2):
            assert await append(node, NAME, b"k" * (2 << 10)) is Status.OK
        await _idle()
        assert stored.items() <= shelf.objects.items()
        assert "retention" in node.broker.status(NAME).reason
        await node.broker.alter(NAME, None, SpecChange(retained_bytes=1 << 10))
        await _until(lambda: not stored.items() <= shelf.objects.items(), "it removes what is too old")
        assert "retention" not in node.broker.status(NAME).reason
    assert not crashes


async def test_a_change_of_something_else_does_not_say_a_retention_again() -> None:
    """J2: whoever set a label had content removed that a lost retention had kept."""
    disk, _ = await lived()
    crashes: list[BaseException] = []
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, is_last=False) as node:
        both = SpecChange(retention=Duration(3600 * SECOND), retained_bytes=1 << 10)
        await node.broker.alter(NAME, None, both)
        await _idle()
        disk = kept_at(disk)
    flip_key(disk, spec_key(OTHER))
    accept(disk, {}, may_act=True)

    async with running(disk, Shelf(None, {}), seed=3, crashes=crashes, is_last=False) as node:
        await node.broker.replica(NAME)
        for change in (SpecChange(labels={"team": "a"}), SpecChange(retained_bytes=1 << 10)):
            with pytest.raises(InvalidArgument, match="retention rests"):
                await node.broker.alter(NAME, None, change)
            assert "retention rests" in node.broker.status(NAME).reason
        await node.broker.alter(NAME, None, both)
        assert node.broker.status(NAME).reason == ""
        await node.broker.alter(NAME, None, SpecChange(labels={"team": "a"}))
    assert not crashes


async def test_an_adoption_is_no_other_loss_to_a_retention_that_was_said_again() -> None:
    """Each adoption put all retentions to rest once more."""
    disk, created = await lived()
    flip_key(disk, spec_key(OTHER))
    accept(disk, {}, may_act=True)
    crashes: list[BaseException] = []
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, is_last=False) as node:
        await node.broker.alter(NAME, None, SpecChange(retained_bytes=1 << 20))

    accept(disk, {Revision(created[OTHER]): OTHER}, may_act=True)

    async with running(disk, Shelf(None, {}), seed=3, crashes=crashes, is_last=False) as node:
        assert await shown(node, OTHER) == OTHER.encode()
        await node.broker.replica(NAME)
        assert node.broker.status(NAME).reason == ""
    assert not crashes


async def test_orphans_go_only_by_an_operators_word() -> None:
    """Then nothing is left of them, and a start forgets what belongs to nobody, as before the loss."""
    disk, created = await lived()
    flip_key(disk, spec_key(OTHER))
    with pytest.raises(InvalidArgument, match="accept-loss` comes first"):
        drop(disk, may_act=True)
    accept(disk, {}, may_act=True)

    assert [each.revision for each in drop(disk, may_act=False).orphans] == [created[OTHER]]
    assert drop(disk, may_act=True).is_done

    crashes: list[BaseException] = []
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, is_last=False) as node:
        assert streams(node) == [0, created[NAME], created[THIRD]]
        assert node.keyspace.get(LOSS_KEY) is None
        assert await shown(node, NAME) == NAME.encode()
    assert not any(f"{created[OTHER]:016x}" in name for name in image(disk))
    assert not crashes


async def test_a_journal_that_is_made_where_an_orphan_was_dropped_begins_empty() -> None:
    """Its epoch and registers were the orphan's: it took no appends, and had an author that is gone."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME))
        assert await append(node, NAME, b"old", Condition(union={"author": "old"})) is Status.OK
        await _idle()
        left = kept_at(disk)
    flip_key(left, spec_key(NAME))
    accept(left, {}, may_act=True)
    drop(left, may_act=True)

    async with running(left, Shelf(None, {}), seed=2, crashes=crashes, is_last=False) as node:
        await node.broker.create(JournalSpec(name=NAME))
        assert (
            await append(node, NAME, b"new", Condition(offset=ByteOffset(0), check={"author": None}))
            is Status.OK
        )
    assert not crashes


async def test_a_deletion_that_a_loss_left_undone_is_done_for_a_journal_of_its_name() -> None:
    """What the store has of it stays, and the page of damage says how it goes."""
    disk, shelf, crashes = SimDisk(), Shelf(None, {}), list[BaseException]()
    async with running(disk, shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 10)))
        for content in (b"stored" * 300, b" and more"):
            assert await append(node, NAME, content) is Status.OK
        await _until(lambda: len(shelf.objects) > 0, "a fragment is stored")
        stored = dict(shelf.objects)
        await node.broker.delete(NAME, None)
        await node.broker.create(JournalSpec(name=OTHER))
        await _idle()
        left = kept_at(disk)
    ended = [
        (name, at.start())
        for name, log in image(left).items()
        if name.startswith("keyspace/log/")
        for at in re.finditer(re.escape(spec_key(NAME).encode()), log)
    ]
    flip(left, *ended[-1], bit=2)
    shelf.objects.update(stored)
    accept(left, {}, may_act=True)

    async with running(left, shelf, seed=2, crashes=crashes, is_last=False) as node:
        await _idle()
        assert shelf.objects == stored
        with pytest.raises(NotFound):
            await node.broker.delete(NAME, None)
        await node.broker.create(JournalSpec(name=NAME))
        await node.broker.delete(NAME, None)
        assert not shelf.objects
    assert not crashes


@pytest.mark.parametrize("call", ["open", "write_at", "rename"])
async def test_a_node_that_keeps_orphans_starts_on_a_full_disk(call: str) -> None:
    """W8: no journal could be read, for want of the block that tells `doctor` of the orphans."""
    disk, created = await lived()
    flip_key(disk, spec_key(OTHER))
    accept(disk, {}, may_act=True)
    faulty = FaultyDisk(disk, [Fault(call, errno.ENOSPC, f"{ORPHANS_NAME}*")])

    crashes: list[BaseException] = []
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, faulty=faulty) as node:
        assert await shown(node, NAME) == NAME.encode()
        assert created[OTHER] in streams(node)
    assert faulty.faults.faults_hit
    assert not crashes


async def test_a_journal_that_has_a_spool_and_no_record_is_an_orphan_too() -> None:
    """Its directory was left behind for ever, and nobody was told."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes) as node:
        info = await node.broker.create(JournalSpec(name=NAME))
        await node.broker.replica(NAME)
        await _idle()
        left = kept_at(disk)
    flip_key(left, spec_key(NAME))
    told = accept(left, {}, may_act=True)
    assert [(each.revision, each.has_stream) for each in told.orphans] == [(info.create_revision, False)]
    async with running(left, Shelf(None, {}), seed=2, crashes=crashes, is_last=False):
        pass
    assert json.loads(image(left)[ORPHANS_NAME]) == [info.create_revision]
    assert not crashes


async def test_a_key_space_that_is_lost_whole_leaves_every_journal_to_be_adopted() -> None:
    """Revisions go on above those that the journals name: none is given twice."""
    disk, created = await lived()
    lose(disk, "keyspace/log")
    await refuses(disk, "keyspace accept-loss")
    accept(disk, {Revision(created[name]): name for name in ALL[:2]}, may_act=True)

    crashes: list[BaseException] = []
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, is_last=False) as node:
        assert [await shown(node, name) for name in ALL[:2]] == [name.encode() for name in ALL[:2]]
        assert created[THIRD] in streams(node)
        info = await node.broker.create(JournalSpec(name=THIRD))
        assert info.create_revision > REVISION_LEAP
        assert await append(node, THIRD, b"anew") is Status.OK
    assert json.loads(image(disk)[ORPHANS_NAME]) == [created[THIRD]]
    assert not crashes


async def test_a_log_that_lost_its_end_does_not_claim_that_nothing_was_lost() -> None:
    """It said that no revision of the map was lost with the records, and two journals were."""
    disk, created = await lived()
    key = spec_key(OTHER).encode()
    name, at = next(
        (name, at)
        for name, content in image(disk).items()
        if name.startswith("keyspace/log/") and (at := content.find(key)) >= 0
    )
    disk.state.change(disk.state.files[name], Resize(at))
    await refuses(disk, "keyspace accept-loss")

    told = accept(disk, {}, may_act=False)

    assert [each.revision for each in told.orphans] == [created[OTHER], created[THIRD]]
    assert f"lost durable records behind revision {told.sound}" in told.reason
    assert "the journals name revision " in told.reason


async def test_a_damaged_seal_has_a_way_out_and_is_kept() -> None:
    """Its text named a backup only. What the log still has counts; the seal's bytes stand beside."""
    disk, _ = await lived()
    accept_after = copy_of(disk)
    flip_key(accept_after, spec_key(OTHER))
    accept(accept_after, {}, may_act=True)
    flip(accept_after, SEAL_NAME, 40)
    damaged = image(accept_after)[SEAL_NAME]
    await refuses(accept_after, "keyspace accept-loss")

    assert accept(accept_after, {}, may_act=True).is_done

    crashes: list[BaseException] = []
    async with running(accept_after, Shelf(None, {}), seed=2, crashes=crashes, is_last=False) as node:
        assert await shown(node, THIRD) == THIRD.encode()
    assert damaged in [content for name, content in image(accept_after).items() if name.endswith(".lost")]
    assert not crashes


async def test_a_seal_that_the_disk_cannot_read_has_the_same_way_out() -> None:
    """The start, and the command too, ended with the error of the read."""
    disk, _ = await lived()
    flip_key(disk, spec_key(OTHER))
    accept(disk, {}, may_act=True)
    faulty = FaultyDisk(disk, [Fault("read_at", errno.EIO, SEAL_NAME)])
    with pytest.raises(
        Corrupt, match=r"cannot read it .*: start again; if it stays so, .*keyspace accept-loss"
    ):
        await Life(faulty, 3).start()

    assert accept(faulty, {}, may_act=True).is_done

    assert [name for name in image(disk) if name.startswith("keyspace/seal-")]


async def test_nothing_is_accepted_where_nothing_is_lost() -> None:
    """An operator who runs it by mistake changes nothing."""
    disk, _ = await lived()
    before = image(disk)

    with pytest.raises(InvalidArgument, match="whole"):
        accept(disk, {}, may_act=True)
    assert image(disk) == before


async def test_whichever_bit_is_flipped_every_journal_is_there_or_an_orphan() -> None:
    """W7: no single bit of the key space's log costs an acknowledged byte of a journal."""
    good, created = await lived()
    (segment,) = [name for name in image(good) if name.startswith("keyspace/log/segment")][:1]
    content = image(good)[segment]
    places = [at for at in range(4096, len(content)) if content[at]]
    accepted = 0
    for number in range(FLIPS):
        disk, crashes = copy_of(good), list[BaseException]()
        flip(disk, segment, places[number * len(places) // FLIPS], bit=1 << number % 8)
        try:
            async with running(disk, Shelf(None, {}), seed=2, crashes=crashes) as node:
                assert [await shown(node, name) for name in ALL] == [name.encode() for name in ALL]
                continue
        except Corrupt:
            disk.state.locks.clear()
        told = accept(disk, {}, may_act=True)
        accepted += 1
        orphans = {each.revision for each in told.orphans}
        names = {name: revision for name, revision in created.items() if revision in orphans}
        if names:
            assert accept(disk, {Revision(at): name for name, at in names.items()}, may_act=True).is_done
        async with running(disk, Shelf(None, {}), seed=3, crashes=crashes) as node:
            assert [await shown(node, name) for name in ALL] == [name.encode() for name in ALL], number
            for name in ALL:
                assert await append(node, name, b"on") is Status.OK
        assert not crashes
    assert accepted > FLIPS // 10, "the search meets hardly any damage"


async def test_every_power_cut_of_an_acceptance_leaves_the_loss_or_the_salvage() -> None:
    """The seal is there whole or not at all, and the next start may be cut too."""
    damaged, created = await lived()
    flip_key(damaged, spec_key(OTHER))
    disk = SimDisk()
    tape = record(disk)
    for name in filter(None, damaged.state.directories):
        disk.make_dir(name)
    for name, content in image(damaged).items():
        file = disk.open(name, create=True)
        file.write_at(0, (content,))
        file.sync()
        disk.sync_dir(name.rpartition("/")[0])
    first = len(tape.steps)
    accept(disk, {}, may_act=True)
    async with running(disk, Shelf(None, {}), seed=2, crashes=[]) as node:
        await node.broker.replica(NAME)
    outcomes: dict[str, int] = {"salvaged": 0, "refused": 0}
    for state in crash_states(tape, atoms_max=2, first=first):
        cut, crashes = state.disk(), list[BaseException]()
        try:
            async with running(cut, Shelf(None, {}), seed=3, crashes=crashes) as node:
                assert [await shown(node, name) for name in (NAME, THIRD)] == [NAME.encode(), THIRD.encode()]
                assert created[OTHER] in streams(node)
                outcomes["salvaged"] += 1
        except Corrupt:
            cut.state.locks.clear()
            assert accept(cut, {}, may_act=False).lost
            outcomes["refused"] += 1
        assert not crashes
    assert min(outcomes.values()) > 0, outcomes


async def cut_after(key: str) -> tuple[SimDisk, int]:
    """Kill -9 right after an acknowledged append with registers; the key space's last batch is damaged then.

    Returns:
        The disk, and the last revision that was acknowledged.
    """
    disk = SimDisk()
    async with running(disk, Shelf(None, {}), seed=1, crashes=[]) as node:
        await node.broker.create(JournalSpec(name=NAME))
        if key == epoch_key(NAME):
            await node.broker.replica(NAME)
        else:
            assert await append(node, NAME, b"one", Condition(union={"n": "1"})) is Status.OK
            await _idle()
            assert await append(node, NAME, b"two", Condition(union={"n": "2"})) is Status.OK
        left, revision = kept_at(disk), node.keyspace.revision
    flip_key(left, key)
    return left, revision


async def test_a_registers_key_that_went_back_is_behind_the_log_which_counts() -> None:
    """The window of the last batch: an acknowledged registers key is cut; the journal's own record has it."""
    disk, revision = await cut_after(registers_key(NAME))
    crashes: list[BaseException] = []

    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, is_last=False) as node:
        assert await shown(node, NAME) == b"onetwo"
        replica = await node.broker.replica(NAME)
        registers = replica.pipeline.committed_registers
        assert registers is not None
        assert registers.values == {"n": "2"}
        pair = node.keyspace.get(registers_key(NAME))
        assert pair is not None
        assert decode_registers(pair).values == {"n": "2"}
        assert replica.epoch > revision + REVISION_LEAP
        assert await append(node, NAME, b"x", Condition(check={"n": "1"})) is Status.REGISTER_MISMATCH
    assert not crashes


async def test_an_epoch_key_that_was_cut_off_gives_no_revision_twice() -> None:
    """Its number may stand in the journal's log: an epoch that went back would not tell two lives apart."""
    disk, revision = await cut_after(epoch_key(NAME))
    crashes: list[BaseException] = []

    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, is_last=False) as node:
        replica = await node.broker.replica(NAME)
        assert replica.epoch > revision + REVISION_LEAP
        assert await append(node, NAME, b"x") is Status.OK
    (name,) = [name for name in image(disk) if name.startswith("keyspace/cut-")]
    told = msgspec.json.decode(image(disk)[name])
    begin, end = told["doubtful"]
    assert begin <= revision < end
    assert f"cut-{begin:016x}-{end:016x}" in name, "each cut has a file of its own"
    assert told["goes_on"] > revision
    assert not crashes


async def test_a_start_says_which_revisions_are_in_doubt() -> None:
    """An operator learns what may be gone from the start that goes on without it."""
    disk, revision = await cut_after(epoch_key(NAME))
    lines, life = StringIO(), Life(disk, 2)
    logger = Logs(lines, wall=life.ports.time.wall, is_console=False).of("keyspace")

    keyspace = await open_keyspace(life.scope, life.ports, KEYSPACE, logger)
    await life.scope.close()

    (line,) = [each for each in map(json.loads, lines.getvalue().splitlines()) if "doubtful" in each]
    assert (line["event"], line["sound"], line["goes_on"]) == (
        "keyspace.tail_cut",
        revision - 1,
        keyspace.revision,
    )
    assert line["doubtful"] == f"[{revision}, {revision + 1})"
    assert keyspace.revision == revision + REVISION_LEAP


async def test_a_torn_batch_after_a_power_cut_leaves_no_trace() -> None:
    """Nobody was answered: nothing is in doubt, and an operator is not sent to look at it (log.18)."""
    disk, revision = await cut_after(epoch_key(NAME))
    async with running(disk, Shelf(None, {}), seed=2, crashes=[], boot_id="another") as node:
        assert node.keyspace.revision < revision + 10
    async with running(disk, Shelf(None, {}), seed=3, crashes=[], boot_id="another") as node:
        assert node.keyspace.revision < revision + 20, "the start before has dealt with the cut"
    assert not [name for name in image(disk) if name.endswith(".lost")]


@pytest.mark.parametrize("boot_id", ["kernel-1", "kernel-2"])
async def test_a_torn_batch_of_which_a_later_record_is_whole_is_no_loss_to_accept(boot_id: str) -> None:
    """`doctor` said after a power cut that the key space would not start, and sent to `accept-loss`.

    That put the later transaction into the map, which nobody was told of, without the one that it followed.
    """
    disk = SimDisk()
    life = Life(disk, 1)
    keyspace = await life.start()
    await keyspace.transact([], [Put("k", b"v")])
    torn, whole = b"a" * 2000, b"b" * 2000
    await asyncio.gather(*(keyspace.transact([], [Put(f"k/{at}", n)]) for at, n in enumerate((torn, whole))))
    left = kept_at(disk)
    await life.scope.close()
    flip(left, *next((n, at) for n, content in image(left).items() if (at := content.find(torn)) >= 0))

    standing = look(left, created_at=created_at)

    assert (standing.reason, [pair.key for pair in standing.found.pairs]) == ("", ["k"])
    with pytest.raises(InvalidArgument, match="there is no loss"):
        accept(left, {}, may_act=False)
    again = Life(left, 2, boot_id=boot_id)
    assert [pair.key for pair in (await again.start()).range("")] == ["k"]
    await again.scope.close()


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "broadsheet", *words], check=False, capture_output=True, text=True, timeout=60
    )


async def test_the_commands_show_what_is_lost_and_act_only_with_yes(tmp_path: Path) -> None:
    """From a node that does not start to one that serves everything, by what its errors and `doctor` say."""
    node, at = NodeProcess(tmp_path), ("--data-dir", str(tmp_path / "data"))
    try:
        assert await node.start()
        running_still = command("keyspace", "accept-loss", *at)
        assert (running_still.returncode, "locked" in running_still.stderr) == (2, True), running_still
        async with broadsheet.connect(node.address) as client:
            for name in ("loss/a", "loss/b"):
                info = await client.journals.create(name)
                await client.journals.append(name, name.encode())
        node.kill()
        (segment,) = [
            path
            for path in (tmp_path / "data/keyspace/log").glob("*.wal")
            if b"items/loss/b" in path.read_bytes()
        ]
        content = bytearray(segment.read_bytes())
        content[content.index(b"items/loss/b")] ^= 1
        segment.write_bytes(content)
        assert not await node.start()
        await node.died()
        assert "broadsheet keyspace accept-loss" in (tmp_path / "node.log").read_text()
        doctor = command("doctor", *at)
        assert doctor.returncode == 1
        assert "BAD  key space" in doctor.stdout

        found = command("keyspace", "accept-loss", *at)
        assert (found.returncode, "nothing was changed" in found.stdout) == (4, True), found
        assert f"orphan {info.create_revision}:" in found.stdout
        found = command("keyspace", "accept-loss", "--yes", "--json", *at)
        assert (found.returncode, json.loads(found.stdout)["is_done"]) == (0, True), found
        assert await node.start()
        assert f"revisions {info.create_revision}" in command("doctor", *at).stdout
        node.kill()

        adopt = ("--adopt", f"{info.create_revision}=loss/b")
        found = command("keyspace", "accept-loss", "--yes", *adopt, *at)
        assert found.returncode == 0, found
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            for name in ("loss/a", "loss/b"):
                read = b"".join([chunk.data async for chunk in client.journals.read(name)])
                assert read == name.encode()
                await client.journals.append(name, b"on")
        node.kill()
        assert command("keyspace", "drop-orphans", *at).returncode == 4
    finally:
        node.kill()
