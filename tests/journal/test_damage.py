"""Damage at rest: one flipped bit after kill -9 is repaired from the spool, or quarantines its journal.

What a reader is shown is always what was acknowledged; where something is missing the journal takes no
appends and says so, and the spool's good copy stays (W4, W6, W7, J1, J2).
"""

import asyncio
import errno
from collections.abc import Sequence
from hashlib import sha1
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

import broadsheet
from broadsheet.base.types import ByteOffset, Epoch, JournalName, Offset
from broadsheet.errors import Corrupt, Status
from broadsheet.journal.committed_reads import read
from broadsheet.journal.config import JournalsConfig
from broadsheet.journal.core.attempts import ATTEMPT_BYTES
from broadsheet.journal.core.pipeline_events import Submitted
from broadsheet.journal.core.records import Checkpoint, ClosedSpool, Proposal, decode, encode_checkpoint
from broadsheet.journal.core.recovery import replay
from broadsheet.journal.core.registers import NO_REGISTERS, Condition, RegisterState
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.journal.core.spool_claims import Claim, Claims, claims_of
from broadsheet.journal.opening import stream_of
from broadsheet.journal.service import UnaryAppend
from broadsheet.journal.spool_file import spool_name
from broadsheet.journal.spool_repair import Witnesses, repair
from broadsheet.ports import File
from simulator.crashstates import crash_states, record
from simulator.disk import SimDisk
from simulator.disk_state import DiskState, Write
from simulator.journalnode import status_of
from tests.journal.crash_histories import JOURNALS, NAME, Running, Shelf, Stored, _idle, _until, running
from tests.journal.node_process import NodeProcess
from tests.support.failpoints import labels_of
from tests.support.faulty import Fault, FaultyDisk

OTHER = JournalName("crash/other")
PARTS = tuple(bytes((65 + n,)) * 40 for n in range(4))
CONTENT = b"".join(PARTS)
ROOMY = replace(JOURNALS, wal=replace(JOURNALS.wal, segment_bytes=192 << 10))
"""No flush request, and so no checkpoint that proves what an append wrote."""
FLIPS = 150
"""Of each search; the places are spread over all bytes that say anything."""


async def append(
    node: Running, name: JournalName, content: bytes, condition: Condition | None = None
) -> Status:
    """One append, answered."""
    replica = await node.broker.replica(name)
    run = UnaryAppend(content)
    replica.deliver(Submitted(run=run, count=1, length=len(content), condition=condition))
    return await status_of(run.answered)


async def shown(node: Running, name: JournalName) -> bytes:
    """Everything that a reader is shown."""
    replica = await node.broker.replica(name)
    return b"".join([c.data async for c in read(replica, replica.begin, None, block=False)])


async def lived(*, is_vouched: bool, registers: bool = False) -> SimDisk:
    """Four appends to one journal and one to another; then kill -9: the page cache stays as it is.

    Args:
        is_vouched: a later batch of the log follows, so that the log knows of each record.
    """
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, config=ROOMY) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 20)))
        await node.broker.create(JournalSpec(name=OTHER))
        await node.broker.replica(NAME)
        await append(node, OTHER, b"other")
        await _idle()
        for number, part in enumerate(PARTS):
            condition = Condition(union={"n": str(number)}) if registers and number % 2 else None
            assert await append(node, NAME, part, condition) is Status.OK
        if is_vouched:
            await append(node, OTHER, b" more")
            await _idle()
        files = {name: bytes(inode.view) for name, inode in disk.state.files.items()}
        directories = tuple(disk.state.directories)
    assert not crashes
    return SimDisk(DiskState.of(files, directories))


def copy_of(disk: SimDisk) -> SimDisk:
    return SimDisk(
        DiskState.of({n: bytes(i.view) for n, i in disk.state.files.items()}, tuple(disk.state.directories))
    )


def place_of(disk: SimDisk, content: bytes, suffix: str) -> tuple[str, int]:
    """File and place of the last copy of `content` in a file whose name ends so."""
    found = [
        (name, at)
        for name, inode in disk.state.files.items()
        if name.startswith("journals/")
        and name.endswith(suffix)
        and (at := bytes(inode.view).rfind(content)) >= 0
    ]
    assert found, f"{content!r} is in no {suffix}"
    return found[-1]


def flip(disk: SimDisk, name: str, at: int, bit: int = 1) -> None:
    inode = disk.state.files[name]
    disk.state.change(inode, Write(at, bytes((bytes(inode.view)[at] ^ bit,))))


def wipe_sum(disk: SimDisk, content: bytes) -> None:
    """Destroy the sum in the newest record of `content`."""
    name, at = place_of(disk, content, ".wal")
    disk.state.change(disk.state.files[name], Write(at - 24, b"X" * 20))


async def judge(disk: SimDisk, what: str, *, is_vouched: bool = True) -> str:
    """Start twice; the state that the journal ends in. Raises where anything wrong is shown or lost."""
    before = kept(disk)
    states = []
    for seed in (2, 3):
        crashes: list[BaseException] = []
        async with running(disk, Shelf(None, {}), seed=seed, crashes=crashes, is_last=False) as node:
            replica = await node.broker.replica(NAME)
            try:
                found = await shown(node, NAME)
            except Corrupt:
                found = b""
                assert replica.stop_reason, f"{what}: a damaged journal takes appends"
            assert CONTENT.startswith(found), f"{what}: wrong bytes are shown"
            if replica.stop_reason:
                assert "`broadsheet journals " in replica.stop_reason, f"{what}: {replica.stop_reason}"
                assert await append(node, NAME, b"x") is Status.INDEX_HAS_GREATER_OFFSET
                states.append("quarantined")
            elif found == CONTENT:
                states.append("repaired")
            else:
                assert not is_vouched, f"{what}: {len(found)} of {len(CONTENT)} bytes are left in silence"
                assert ".lost" in node.broker.status(NAME).reason, f"{what}: nobody is told"
                states.append("set aside")
            assert replica.log_registers is not None, f"{what}: the registers are lost"
            other = await append(node, OTHER, b"on")
            is_told = "`broadsheet journals " in (await node.broker.replica(OTHER)).stop_reason
            assert (other is Status.OK) != is_told, f"{what}: the other journal's append was {other}"
            assert not is_told or states[-1] == "repaired", f"{what}: one bit stops two journals"
        assert not crashes, f"{what}: {crashes}"
    assert states[0] == states[1], f"{what}: a second start thinks otherwise: {states}"
    left = kept(disk)
    assert all(part in left for part in PARTS if part in before), f"{what}: a good copy is gone"
    return states[0]


def kept(disk: SimDisk) -> bytes:
    """Everything that stands beside the log: spools, and what was moved aside."""
    files = disk.state.files.items()
    return b"\0".join(bytes(i.view) for name, i in files if name.startswith("journals/spool"))


@pytest.mark.parametrize("part", range(4))
async def test_a_flipped_bit_of_acknowledged_content_in_the_log_is_repaired_from_the_spool(part: int) -> None:
    """Oldest, middle and newest record."""
    disk = await lived(is_vouched=True)
    flip(disk, *place_of(disk, PARTS[part], ".wal"))

    assert await judge(disk, f"part {part}") == "repaired"


async def test_a_flipped_bit_in_the_newest_record_is_repaired_before_the_log_vouches_for_it() -> None:
    """A kill right after the answer: the spool's bytes have the sum that the record names."""
    disk = await lived(is_vouched=False)
    flip(disk, *place_of(disk, PARTS[-1], ".wal"))

    assert await judge(disk, "newest") == "repaired"


@pytest.mark.parametrize("behind", [b"", b"never adopted"])
async def test_one_flipped_bit_before_the_newest_content_is_repaired_whatever_is_behind(
    behind: bytes,
) -> None:
    """J2, W7: its record did not decode, or its frame was gone, and the append went aside in silence.

    The journal took appends again without a word in its status: only `doctor` named the file with the bytes.
    The sum in the head of the record proves what it was of, also where the spool has more.
    """
    disk = await lived(is_vouched=False)
    name, at = place_of(disk, PARTS[-1], ".wal")
    spool, end = place_of(disk, PARTS[-1], ".spool")
    disk.state.change(disk.state.files[spool], Write(end + len(PARTS[-1]), behind))
    for place in range(at - 188, at, 3):
        damaged = copy_of(disk)
        flip(damaged, name, place, 1 << place % 8)
        assert await judge(damaged, f"{place - at} of the newest", is_vouched=False) == "repaired"


async def test_an_append_that_nothing_proves_is_told_by_status_where_it_went() -> None:
    """W7: a lost sector took the newest record's sum. Only `doctor`, of a node that is stopped, said so."""
    disk = await lived(is_vouched=False)
    wipe_sum(disk, PARTS[-1])
    assert await judge(disk, "no sum", is_vouched=False) == "set aside"


@pytest.mark.parametrize("boot_id", ["kernel-1", "kernel-2"])
async def test_an_append_that_nothing_proves_is_kept_also_by_a_start_after_a_reboot(boot_id: str) -> None:
    """W7: a full disk let no start move it aside; after a reboot it was cut off as if a power cut tore it."""
    disk = await lived(is_vouched=False)
    wipe_sum(disk, PARTS[-1])
    crashes: list[BaseException] = []
    full = FaultyDisk(disk, [Fault("write_at", errno.ENOSPC, "*/partial.lost")])
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, is_last=False, faulty=full) as node:
        await _idle()
        assert "planned" in node.broker.status(NAME).reason

    async with running(disk, Shelf(None, {}), seed=3, crashes=crashes, boot_id=boot_id) as node:
        assert await shown(node, NAME) == b"".join(PARTS[:-1])
        assert ".lost" in node.broker.status(NAME).reason
    assert PARTS[-1] in kept(disk)
    assert not crashes


@pytest.mark.parametrize("part", range(4))
async def test_a_flipped_bit_in_the_sum_of_a_record_is_told_from_another_content(part: int) -> None:
    """No later record's sum covers the bytes of the newest one; no other content comes so near its sum."""
    disk = await lived(is_vouched=True)
    name, at = place_of(disk, PARTS[part], ".wal")
    flip(disk, name, at - 10)

    assert await judge(disk, f"sum {part}") == "repaired"


@pytest.mark.parametrize("part", range(4))
async def test_a_sum_that_is_gone_quarantines_or_is_proven_by_a_later_one(part: int) -> None:
    """Nothing says then what the newest bytes of the spool are."""
    disk = await lived(is_vouched=True)
    wipe_sum(disk, PARTS[part])

    assert await judge(disk, f"sum {part}") == ("quarantined" if part == len(PARTS) - 1 else "repaired")


@pytest.mark.parametrize("is_vouched", [True, False])
@pytest.mark.parametrize("has_registers", [True, False])
async def test_every_flipped_bit_of_the_log_and_the_spool_is_repaired_or_told(
    *, is_vouched: bool, has_registers: bool
) -> None:
    """Each kind of record, header and row of log, and the spool; each ends in a state that says so."""
    disk = await lived(is_vouched=is_vouched, registers=has_registers)
    places = [
        (name, at)
        for name, inode in sorted(disk.state.files.items())
        if name.startswith("journals/") and name.endswith((".wal", ".spool"))
        for at, byte in enumerate(bytes(inode.view))
        if byte
    ]
    states: dict[str, int] = {}
    for name, at in places[:: max(1, len(places) // FLIPS)]:
        damaged = copy_of(disk)
        flip(damaged, name, at, 1 << at % 8)
        state = await judge(damaged, f"{name} at {at}", is_vouched=is_vouched)
        states[state] = states.get(state, 0) + 1
    assert states["repaired"] > sum(states.values()) * 9 // 10, states
    assert "set aside" not in states, "one flipped bit takes no append in silence"


async def test_a_power_cut_during_a_repair_leaves_what_another_start_repairs_or_tells() -> None:
    """Every crash state of the start that repairs: the seal carries its decision (W2, W3)."""
    damaged = await lived(is_vouched=True)
    flip(damaged, *place_of(damaged, PARTS[-1], ".wal"))
    disk = SimDisk()
    tape, crashes = record(disk), list[BaseException]()
    for name in damaged.state.directories:
        if name:
            disk.make_dir(name)
    for name, inode in damaged.state.files.items():
        file = disk.open(name, create=True)
        file.write_at(0, (bytes(inode.view),))
        file.sync()
        disk.sync_dir(name.rpartition("/")[0])
    first = len(tape.steps)
    async with running(disk, Shelf(None, {}), seed=7, crashes=crashes) as node:
        assert await shown(node, NAME) == CONTENT
        assert await append(node, NAME, b"and more") is Status.OK
        tape.mark("acknowledged")
    states: dict[str, int] = {}
    for number, state in enumerate(crash_states(tape, atoms_max=3, first=first)):
        async with running(state.disk(), Shelf(None, {}), seed=number, crashes=crashes) as node:
            replica, found = await node.broker.replica(NAME), await shown(node, NAME)
        assert (CONTENT + b"and more").startswith(found)
        assert replica.stop_reason or found.startswith(CONTENT), f"step {state.position}: in silence"
        if "acknowledged" in state.marks:
            assert found == CONTENT + b"and more", f"step {state.position}: an acknowledged append is gone"
        end = "told" if replica.stop_reason else "repaired"
        states[end] = states.get(end, 0) + 1
    assert states["repaired"] > 20, states
    assert not crashes


@pytest.mark.parametrize("label", [each for each in labels_of("journal", least=47) if ".seal." in each])
async def test_a_node_killed_in_the_middle_of_a_repair_finishes_it_at_its_next_start(
    tmp_path: Path, label: str
) -> None:
    """A real process: what was decided is carried over the kill."""
    node = NodeProcess(tmp_path)
    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            await client.journals.create("kill/a")
            for part in PARTS:
                await client.journals.append("kill/a", part)
            await client.journals.create("kill/b")
            await client.journals.append("kill/b", b"a later batch")
        node.kill()
        (segment,) = [
            path for path in (tmp_path / "data/journals/log").glob("*.wal") if PARTS[-1] in path.read_bytes()
        ]
        content = bytearray(segment.read_bytes())
        content[content.index(PARTS[-1])] ^= 1
        segment.write_bytes(content)

        await node.start(f"{label}:1")
        assert await node.died() == -9
        assert await node.start(), (tmp_path / "node.log").read_text()
        async with broadsheet.connect(node.address) as client:
            assert (await client.journals.status("kill/a")).state == "open"
            await client.journals.append("kill/a", b"more")
            found = b"".join([chunk.data async for chunk in client.journals.read("kill/a")])
        assert found == CONTENT + b"more"
        assert not list((tmp_path / "data/journals/spool").rglob("seal*"))
    finally:
        node.kill()


async def test_a_damaged_checkpoint_behind_an_append_that_came_while_it_was_made_hides_no_file() -> None:
    """One flipped bit: the append in front of it was taken for the journal's first, and its file for damaged.

    Nothing below it was served, though the sums of later records prove all of it.
    """
    parts = [letter * 600 for letter in (b"a", b"b", b"c")]
    config = replace(ROOMY, checkpoint_bytes=1 << 20)  # None comes by itself.
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, config=config) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 20)))
        assert await append(node, NAME, parts[0]) is Status.OK
        replica, housekeeping = await node.broker.replica(NAME), node.broker._slots[NAME].housekeeping
        assert housekeeping is not None
        housekeeping.checkpoint()
        assert await append(node, NAME, parts[1]) is Status.OK
        await _idle()
        assert node.broker._context.log.states[replica.stream].first > 0, "the log was trimmed"
        assert await append(node, NAME, parts[2]) is Status.OK
        await _idle()
    flip(disk, *place_of(disk, b"\xaefragment_begin", ".wal"), bit=64)  # The checkpoint does not decode.
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, config=config) as node:
        assert (await node.broker.replica(NAME)).stop_reason == ""
        assert await shown(node, NAME) == b"".join(parts)
    assert not crashes


async def waiting_for_their_store(parts: Sequence[bytes]) -> tuple[SimDisk, Shelf, JournalsConfig]:
    """A journal whose last record but one is a checkpoint, which alone names all closed files but one."""
    config = replace(ROOMY, checkpoint_bytes=1 << 20)  # None comes by itself.
    disk, shelf, crashes = SimDisk(), Shelf(None, {}), list[BaseException]()
    async with running(disk, shelf, seed=1, crashes=crashes, config=config) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 10)))
        replica, housekeeping = await node.broker.replica(NAME), node.broker._slots[NAME].housekeeping
        assert housekeeping is not None
        shelf.is_shut = True
        for part in parts[:-1]:
            assert await append(node, NAME, part) is Status.OK
        housekeeping.checkpoint()
        await _idle()
        assert node.broker._context.log.states[replica.stream].first > 0, "the log was trimmed"
        assert await append(node, NAME, parts[-1]) is Status.OK
        await _idle()
        left = copy_of(disk)
    assert not crashes
    shelf.is_shut = False
    return left, shelf, config


LONG: Final = [letter * 1500 for letter in (b"a", b"b", b"c", b"d")]


async def test_a_file_that_nothing_proves_is_not_told_as_trimmed() -> None:
    """J2: a damaged checkpoint stopped the journal, which then seemed to begin behind what this one named.

    Readers from its begin on passed over acknowledged bytes, whose loss nobody had accepted, unheard.
    """
    disk, shelf, config = await waiting_for_their_store(LONG)
    name, at = place_of(disk, b"\xaefragment_begin", ".wal")
    disk.state.change(disk.state.files[name], Write(at, b"X" * 200))
    crashes: list[BaseException] = []
    async with running(disk, shelf, seed=2, crashes=crashes, config=config) as node:
        replica = await node.broker.replica(NAME)
        assert "do not prove what they were" in replica.stop_reason
        assert (replica.begin, replica.end) == (0, 6000)
        for at in (0, 1500):
            with pytest.raises(Corrupt, match="`broadsheet journals accept-loss"):
                await anext(read(replica, ByteOffset(at), None, block=False))
        assert (await anext(read(replica, ByteOffset(4500), None, block=False))).data == LONG[3]
    assert not crashes


async def test_one_flipped_bit_of_a_checkpoint_hides_no_closed_file_if_an_append_came_behind_it() -> None:
    """Sums were looked for in the last record alone: the journal stopped, and its files were given up."""
    sound, shelf, config = await waiting_for_their_store(LONG)
    crashes: list[BaseException] = []
    for what, bit in ((b"\xaefragment_begin", 64), (b"\xcd\x0b\xb8\xa3end", 1)):  # A name; a begin, 3000.
        disk, stored = copy_of(sound), Shelf(None, dict(shelf.objects))
        name, at = place_of(disk, what, ".wal")
        flip(disk, name, at + 2, bit=bit)
        for seed in (2, 3):
            async with running(
                disk, stored, seed=seed, crashes=crashes, config=config, is_last=False
            ) as node:
                assert (await node.broker.replica(NAME)).stop_reason == ""
                assert await shown(node, NAME) == b"".join(LONG)
    assert not crashes


async def test_a_damaged_file_is_not_told_as_trimmed_where_the_log_is_lost_too() -> None:
    """J2: the store has all behind it, and nobody has accepted its loss."""
    parts = [letter * 1500 for letter in (b"a", b"b", b"c", b"d")]
    disk, shelf, crashes = SimDisk(), Shelf(None, {}), list[BaseException]()
    shelf.is_shut = True
    async with running(disk, shelf, seed=1, crashes=crashes) as node:
        await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 10)))
        replica, housekeeping = await node.broker.replica(NAME), node.broker._slots[NAME].housekeeping
        assert housekeeping is not None
        for part in parts:
            assert await append(node, NAME, part) is Status.OK
        housekeeping.checkpoint()
        await _idle()
        assert node.broker._context.log.states[replica.stream].first > 0, "the log was trimmed"
        disk = copy_of(disk)
    shelf.is_shut = False
    flip(disk, *place_of(disk, parts[0], ".spool"))
    async with running(disk, shelf, seed=2, crashes=crashes) as node:
        replica = await node.broker.replica(NAME)
        await _until(lambda: replica.index.end == 4500, "the store has what is sound")
        with pytest.raises(Corrupt, match="it is kept, and not served"):
            await anext(read(replica, ByteOffset(0), None, block=False))
        await _idle()
        disk = copy_of(disk)
    for name in [each for each in disk.state.files if each.startswith("journals/log/")]:
        disk.state.remove(name)
    async with running(disk, shelf, seed=3, crashes=crashes) as node:
        replica = await node.broker.replica(NAME)
        assert replica.begin == 0
        with pytest.raises(Corrupt, match="`broadsheet journals accept-loss"):
            await anext(read(replica, ByteOffset(0), None, block=False))
    assert not crashes


async def test_a_damaged_identity_record_is_written_anew_from_the_newest_epoch_key() -> None:
    """Twenty-one bytes stopped every journal of the node, reads included, and no remedy existed."""
    disk, crashes = await lived(is_vouched=True), list[BaseException]()
    flip(disk, *place_of(disk, b"incarnation", ".wal"))
    for seed in (2, 3):
        async with running(disk, Shelf(None, {}), seed=seed, crashes=crashes, is_last=False) as node:
            assert await shown(node, NAME) == CONTENT
            assert await append(node, OTHER, b"on") is Status.OK
            assert (await node.broker.replica(NAME)).stop_reason == ""
    assert not crashes


async def test_what_a_repair_proved_outlives_a_power_cut() -> None:
    """J2: the log let go of records whose bytes stood in the page cache only; the cut took them for good."""
    disk, crashes = SimDisk(), list[BaseException]()
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, config=ROOMY, is_last=False) as node:
        await node.broker.create(JournalSpec(name=NAME))
        for part in PARTS:
            assert await append(node, NAME, part) is Status.OK
        await append(node, NAME, b"")
        await _idle()
    flip(disk, *place_of(disk, PARTS[0], ".wal"))  # Of the first record: the log proves nothing of the file.
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, config=ROOMY, is_last=False) as node:
        assert await shown(node, NAME) == CONTENT
        assert not disk.exists(f"{(await node.broker.replica(NAME)).directory}/seal")
        cut = SimDisk(DiskState.of(disk.state.image(), tuple(disk.state.directories)))
    async with running(cut, Shelf(None, {}), seed=3, crashes=crashes, config=ROOMY) as node:
        assert await shown(node, NAME) == CONTENT
        assert (await node.broker.replica(NAME)).stop_reason == ""
    assert not crashes


async def test_an_append_that_a_repair_proved_is_not_taken_for_one_that_failed() -> None:
    """C2: its record named its attempt, and was damaged: its client was told for certain that it failed."""
    disk, crashes, ends = SimDisk(), list[BaseException](), [0]
    async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, config=ROOMY, is_last=False) as node:
        await node.broker.create(JournalSpec(name=NAME))
        for number, part in enumerate(PARTS):
            condition = Condition(offset=ByteOffset(ends[-1]), attempt=bytes((number,)) * ATTEMPT_BYTES)
            assert await append(node, NAME, part, condition) is Status.OK
            ends.append(ends[-1] + len(part))
        await append(node, NAME, b"")
        await _idle()
    flip(disk, *place_of(disk, PARTS[1], ".wal"))
    async with running(disk, Shelf(None, {}), seed=2, crashes=crashes, config=ROOMY, is_last=False) as node:
        assert await shown(node, NAME) == CONTENT
        attempts = (await node.broker.replica(NAME)).pipeline.attempts
        for number in range(len(PARTS)):
            is_known = attempts.find(bytes((number,)) * ATTEMPT_BYTES) is not None
            assert is_known, "the record says whose it was, and the sums prove its bytes"
            assert attempts.known_from > ends[number], "others may be missing"
        again = Condition(attempt=bytes((1,)) * ATTEMPT_BYTES)
        assert await append(node, NAME, PARTS[1], again) is Status.ALREADY_EXISTS
    async with running(disk, Shelf(None, {}), seed=3, crashes=crashes, config=ROOMY, is_last=False) as node:
        await node.broker.replica(NAME)
        assert await append(node, NAME, PARTS[1], again) is Status.ALREADY_EXISTS, (
            "a second start knows as much"
        )
    assert not crashes


class Slow(Shelf):
    """A store that lists when it is told to."""

    def __init__(self) -> None:
        super().__init__(None, {})
        self.go = asyncio.Event()

    async def list(self, prefix: str) -> Sequence[Stored]:
        await self.go.wait()
        return await super().list(prefix)


async def test_damage_that_the_log_finds_while_the_store_lists_is_not_taken_for_the_end() -> None:
    """J1, J2: the journal opened at the damage without a word, its spool was cut there and written over."""
    disk, crashes, shelf = await lived(is_vouched=True), list[BaseException](), Slow()
    async with running(disk, shelf, seed=2, crashes=crashes, config=ROOMY, is_last=False) as node:
        log = node.broker._context.log
        stream = stream_of(node.broker.info(NAME))
        flip(disk, *place_of(disk, PARTS[1], ".wal"))
        assert sum(run.count for run in await log.read(stream, Offset(0), 1 << 20)) == 1
        assert log.is_quarantined(stream), "as when it is copied forward"
        shelf.go.set()
        replica = await node.broker.replica(NAME)
        assert "accept-loss" in replica.stop_reason
        assert await append(node, NAME, b"x" * 40) is Status.INDEX_HAS_GREATER_OFFSET
    assert CONTENT in kept(disk)
    assert not crashes


def test_a_repair_ends_before_registers_that_were_never_put() -> None:
    """J5, J6: content behind an append whose registers are lost was taken, and its fence was not."""
    disk = SimDisk()
    disk.make_dir("s")
    file = disk.open(spool_name("s", ByteOffset(0)), create=True)
    file.write_at(0, (CONTENT,))
    plan = replay(())
    ends = [sum(map(len, PARTS[: n + 1])) for n in range(len(PARTS))]
    newer = RegisterState(values={}, version=5, at=ByteOffset(ends[1]))
    claims = [
        Claim(ByteOffset(0), ByteOffset(end), sha1(CONTENT[:end]).digest(), 0, registers, ByteOffset(0))
        for end, registers in zip(ends, (None, newer, None, None), strict=True)
    ]

    known = RegisterState(values={}, version=4, at=ByteOffset(0))
    assert not repair(disk, "s", plan, Witnesses(Claims(claims, ByteOffset(ends[-1])), known))
    assert plan.end == ends[0]


BEFORE_CONTENT = {
    "its frame": -188,
    "its frame's offset": -112,
    "its kind": -72,
    "its end": -39,
    "its content": 0,
}
"""Where a part of an append's record stands in the log, relative to its content."""


async def _with_an_append_before_its_checkpoint(
    parts: Sequence[bytes], crashes: list[BaseException]
) -> SimDisk:
    """A checkpoint is made in a thread: until it comes behind the append that came meanwhile, try again."""
    for _ in range(500):
        disk = SimDisk()
        async with running(disk, Shelf(None, {}), seed=1, crashes=crashes, config=ROOMY) as node:
            await node.broker.create(JournalSpec(name=NAME, fragment=FragmentSpec(length=1 << 20)))
            await node.broker.create(JournalSpec(name=OTHER))
            await node.broker.replica(OTHER)
            for part in parts:
                assert await append(node, NAME, part) is Status.OK
            await _idle()
            await append(node, OTHER, b"a later batch: what is missing below it was durable")
            await _idle()
            log, stream = node.broker._context.log, (await node.broker.replica(NAME)).stream
            records = [decode(record.payload) async for record in log.records(stream)]
            if [type(each) for each in records[-2:]] == [Proposal, Checkpoint]:
                return copy_of(disk)
    raise AssertionError("no checkpoint came behind an append that it does not tell of")


@pytest.mark.parametrize("what", BEFORE_CONTENT)
async def test_an_append_that_stands_before_an_older_checkpoint_does_not_vanish(what: str) -> None:
    """J2, W6: appends go on while a checkpoint is made, so the log may have them before it.

    One flipped bit of such an append at rest made it vanish, and its bytes in the spool were cut off: the
    checkpoint was the last record, and what it tells of was taken for all that there ever was.
    """
    parts, crashes = [letter * 8192 for letter in (b"a", b"b")], list[BaseException]()
    disk = await _with_an_append_before_its_checkpoint(parts, crashes)
    name, at = place_of(disk, parts[1], ".wal")
    flip(disk, name, at + BEFORE_CONTENT[what])
    for seed in (2, 3):
        async with running(disk, Shelf(None, {}), seed=seed, crashes=crashes, is_last=False) as node:
            replica = await node.broker.replica(NAME)
            if what in ("its content", "its frame", "its frame's offset"):
                assert await shown(node, NAME) == b"".join(parts), "the sum of its record proves it"
                assert not replica.stop_reason
            else:
                assert "accept-loss" in replica.stop_reason
                assert await append(node, NAME, b"x") is Status.INDEX_HAS_GREATER_OFFSET
        assert b"".join(parts) in kept(disk)
    assert not crashes


class Counting(SimDisk):
    """A disk that counts the files that are opened."""

    count = 0

    def open(self, name: str, *, create: bool = False, exclusive: bool = False) -> File:
        self.count += 1
        return super().open(name, create=create, exclusive=exclusive)


def test_a_repair_from_many_spool_files_opens_each_a_few_times() -> None:
    """Where no record is left whole, a chain of files may begin at each of them.

    Each begin was followed to the end: 2,500 closed files that waited for their store, and one flipped bit in
    the only checkpoint, kept a thread of the node busy for more than a minute.
    """
    disk, count, closed = Counting(), 200, list[ClosedSpool]()
    disk.make_dir("s")
    for number in range(count):
        content, begin = b"%08d" % number, ByteOffset(8 * number)
        disk.open(spool_name("s", begin), create=True).write_at(0, (content,))
        closed.append(ClosedSpool(begin, ByteOffset(begin + 8), sha1(content).digest()))
    lost = closed.pop()  # Nothing has its sum, so no begin leads to the end.
    checkpoint = Checkpoint(Epoch(1), lost.begin, lost.end, b"?" * 20, 1, closed=tuple(closed))
    damaged = bytearray(encode_checkpoint(checkpoint))
    damaged[1] ^= 1
    claims, plan = claims_of([bytes(damaged)], is_complete=True, is_tail=False), replay(())
    disk.count = 0

    assert not repair(disk, "s", plan, Witnesses(claims, NO_REGISTERS, is_based=False))
    assert (plan.end, len(plan.spools)) == (lost.begin, len(closed))
    assert disk.count <= 10 * count


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("before", [b"", b"?"])
def test_a_checkpoint_behind_a_missing_record_does_not_tell_the_end(
    before: bytes, *, is_damaged: bool
) -> None:
    """An append may come while a checkpoint is made, and lies before it in the log but above its end.

    If a power cut took that append from the spool file too, the file ends where the checkpoint says. The
    repair called this whole, and an acknowledged append was lost without a word.
    """
    disk, content = SimDisk(), b"0123456789"
    disk.make_dir("s")
    disk.open(spool_name("s", ByteOffset(0)), create=True).write_at(0, (content,))
    last = encode_checkpoint(Checkpoint(Epoch(1), ByteOffset(0), ByteOffset(10), sha1(content).digest(), 1))
    if is_damaged:
        last = last.replace(b"first_append", b"first_bppend")

    for suspects, is_whole in (([last], True), ([before, last], False)):
        plan = replay(())
        claims = claims_of(suspects, is_complete=True, is_tail=False)
        assert repair(disk, "s", plan, Witnesses(claims, NO_REGISTERS, is_based=False)) == is_whole
        assert plan.end == 10, "what the checkpoint proves is kept in any case"
