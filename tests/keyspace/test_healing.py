"""A key space whose log turns out damaged, or full, while it runs: it goes on by itself, from its map."""

import asyncio
import errno
import random

import pytest

from broadsheet.base.time import Instant
from broadsheet.base.types import Generation, LogStreamId, Revision
from broadsheet.errors import Corrupt, StoreUnhealthy
from broadsheet.keyspace.core.record import snapshot
from broadsheet.keyspace.core.store import EncodeSnapshot
from broadsheet.keyspace.core.transaction import KeyValue, Put
from broadsheet.keyspace.local.keyspace import STREAM, LocalKeyspace
from broadsheet.keyspace.local.role import open_keyspace
from broadsheet.keyspace.local.seal_file import REVISION_LEAP, Seal, write_seal
from broadsheet.ports import Disk
from broadsheet.runtime.role import Ports
from broadsheet.runtime.scope import Scope
from broadsheet.runtime.time import LoopTimers
from broadsheet.wal.log import Log
from broadsheet.wal.record import LogFull
from simulator.disk import SimDisk
from simulator.disk_state import DiskState
from tests.journal.crash_histories import KEYSPACE
from tests.support.faulty import Fault, FaultyDisk
from tests.wal.harness import TestTime

TURNS_MAX = 5_000


class Ticking(TestTime):
    """The time of the loop, which fires the timers."""

    def now(self) -> Instant:
        return Instant(int(asyncio.get_running_loop().time() * 1e9))


class Life:
    """One start of a key space on a simulated disk."""

    def __init__(self, disk: Disk, seed: int, *, boot_id: str = "kernel-1") -> None:
        self.crashes: list[BaseException] = []
        self.ports = Ports(
            time=Ticking(boot_id),
            timers=LoopTimers(asyncio.get_running_loop()),
            disk=disk,
            network=None,  # type: ignore[arg-type]  # Nobody calls it.
            objects=lambda _: None,  # type: ignore[arg-type,return-value]
            random=lambda purpose: random.Random(f"{seed} {purpose}"),
            crash=self.crashes.append,
        )
        self.scope = Scope("keyspace", crash=self.crashes.append)

    async def start(self) -> LocalKeyspace:
        return await open_keyspace(self.scope, self.ports, KEYSPACE)


async def filled(value_bytes: int) -> tuple[SimDisk, Life, LocalKeyspace]:
    """A key space with thirty keys."""
    disk = SimDisk()
    life = Life(disk, 1)
    keyspace = await life.start()
    for n in range(30):
        await keyspace.transact([], [Put(f"k/{n:02}", bytes(value_bytes))])
    return disk, life, keyspace


async def until_taken(keyspace: LocalKeyspace, put: Put) -> int:
    """Repeat a put that is refused; how often it was."""
    for refused in range(TURNS_MAX):
        try:
            await keyspace.transact([], [put])
        except StoreUnhealthy:
            await asyncio.sleep(0.01)
        else:
            return refused
    raise AssertionError("it never heals")


async def same_after_a_cut(disk: SimDisk, life: Life, keyspace: LocalKeyspace) -> list[KeyValue]:
    """What it shows, which a start after a kill at this moment shows, too."""
    revision, shown = keyspace.revision, keyspace.range("")
    cut = SimDisk(DiskState.of(disk.state.image(), tuple(disk.state.directories)))
    await life.scope.close()
    other = Life(cut, 2)
    again = await other.start()
    await other.scope.close()
    assert (again.revision, again.range("")) == (revision, shown)
    return shown


async def test_a_log_that_lost_an_old_record_begins_anew_from_the_map() -> None:
    """W6: it was raised out of a performer, and ended the node; nothing of the map was lost."""
    disk, life, keyspace = await filled(100)
    log: Log = keyspace._log
    log.quarantine(STREAM)

    with pytest.raises(StoreUnhealthy):
        await keyspace.transact([], [Put("k/new", b"w")])
    assert await until_taken(keyspace, Put("k/new", b"w")) < 100
    shown = await same_after_a_cut(disk, life, keyspace)

    assert len(shown) == 31
    assert not disk.exists("keyspace/seal")
    assert not life.crashes


@pytest.mark.parametrize(
    ("op", "error", "name"),
    [("write_at", errno.ENOSPC, "keyspace/seal.new"), ("remove", errno.EMFILE, "keyspace/seal")],
)
async def test_healing_waits_for_space_and_descriptors(op: str, error: int, name: str) -> None:
    """A full disk, or a moment without descriptors, ended the node."""
    disk = FaultyDisk(SimDisk())
    life = Life(disk, 1)
    keyspace = await life.start()
    await keyspace.transact([], [Put("k", b"v")])
    disk.plan(Fault(op, error=error, name=name, times=2))
    keyspace._log.quarantine(STREAM)

    assert await until_taken(keyspace, Put("k/new", b"w")) < 100
    assert disk.faults.faults_hit == {op: 2}
    assert not disk.exists("keyspace/seal")
    await life.scope.close()
    assert not life.crashes


async def test_no_transaction_is_answered_before_the_removal_of_the_seal_is_durable() -> None:
    """W1: without a descriptor for the sync of its directory, the next try found no seal and synced nothing.

    Power that failed within seconds brought the seal back, and the start believed it: what had been
    acknowledged since was gone.
    """
    disk = SimDisk()
    life = Life(FaultyDisk(disk, [Fault("sync_dir", errno.EMFILE, "keyspace", after=1, times=1)]), 1)
    keyspace = await life.start()
    await keyspace.transact([], [Put("k", b"v")])
    keyspace._log.quarantine(STREAM)
    await until_taken(keyspace, Put("k/new", b"w"))
    cut = SimDisk(DiskState.of(disk.state.image(), tuple(disk.state.directories)))
    await life.scope.close()

    assert not cut.exists("keyspace/seal")
    other = Life(cut, 2)
    assert [pair.key for pair in (await other.start()).range("")] == ["k", "k/new"]
    await other.scope.close()
    assert not life.crashes


async def test_a_kill_while_the_removal_of_the_seal_is_tried_again_leaves_the_map() -> None:
    """W6: the next try began the log anew again, without a seal: a kill then left neither, and no key."""
    state, killed = DiskState(), list[DiskState]()
    disk = SimDisk(state, reach=lambda _: killed.append(state.fork()))
    life = Life(FaultyDisk(disk, [Fault("sync_dir", errno.EMFILE, "keyspace", after=1, times=1)]), 1)
    keyspace = await life.start()
    for n in range(30):
        await keyspace.transact([], [Put(f"k/{n:02}", b"v" * 200)])
    shown = keyspace.range("")
    killed.clear()
    keyspace._log.quarantine(STREAM)
    await until_taken(keyspace, Put("k/new", b"w"))
    begun = next(at for at, each in enumerate(killed) if "keyspace/seal" in each.files)
    behind = killed[begun:]
    await life.scope.close()

    for each in behind:
        other = Life(SimDisk(each), 2)
        again = await other.start()
        await other.scope.close()
        assert again.range("k/")[: len(shown)] == shown
    assert not life.crashes


class RotsMeanwhile(SimDisk):
    """A bit of the log flips after its recovery and before its records are read."""

    def exists(self, name: str) -> bool:
        if name == "keyspace/seal":
            for inode in self.state.files.values():
                if (at := bytes(inode.view).find(b"v" * 100)) >= 0:
                    inode.view[at] ^= 1
        return super().exists(name)


async def test_damage_that_only_the_reading_of_a_start_finds_is_told_with_its_remedy() -> None:
    """W6: the error was the log's own, "repair it, then `reset`", which no operator can do."""
    disk = SimDisk()
    life = Life(disk, 1)
    keyspace = await life.start()
    await keyspace.transact([], [Put("k", b"v" * 100)])
    await life.scope.close()

    other = Life(RotsMeanwhile(DiskState.of(disk.state.image(), tuple(disk.state.directories))), 2)
    with pytest.raises(Corrupt, match="keyspace accept-loss"):
        await other.start()
    await other.scope.close()


@pytest.mark.parametrize("cut_after", [1, 2, 3, 5, 8, 13])
async def test_a_power_cut_while_the_log_begins_anew_loses_nothing(cut_after: int) -> None:
    """The seal carries the map, whichever part of the log is durable by then."""
    disk, life, keyspace = await filled(200)
    shown = keyspace.range("")
    keyspace._log.quarantine(STREAM)
    for _ in range(cut_after):
        await asyncio.sleep(0)
    cut = SimDisk(DiskState.of(disk.state.image(), tuple(disk.state.directories)))
    is_sealed = cut.exists("keyspace/seal")
    await life.scope.close()

    if is_sealed:
        other = Life(cut, 2)
        assert (await other.start()).range("") == shown
        await other.scope.close()


async def test_a_seal_that_a_failed_sync_left_is_durable_before_the_log_begins_anew() -> None:
    """W6: the next start took it from the page cache, and a power cut meanwhile left neither seal nor log."""
    disk, life, keyspace = await filled(200)
    shown, generation = keyspace.range(""), keyspace._log.generation(STREAM)
    chunks = snapshot(keyspace.revision, keyspace._store.shown.frozen(), chunk_bytes=256)
    await life.scope.close()
    with pytest.raises(OSError, match="planned"):
        write_seal(FaultyDisk(disk, [Fault("sync_dir", errno.EIO, "keyspace")]), Seal(generation, [*chunks]))
    left: list[dict[str, bytes]] = []
    state = disk.state
    other = Life(SimDisk(state, reach=lambda _: left.append(state.image())), 2)
    assert (await other.start()).range("") == shown
    await other.scope.close()

    for image in left:
        cut = Life(SimDisk(DiskState.of(image, tuple(state.directories))), 3)
        assert (await cut.start()).range("") == shown
        await cut.scope.close()


class CutBehindTheSeal(SimDisk):
    """The power fails as soon as the removal of the seal is durable; `left` is what the disk then has."""

    had_seal = False
    left: SimDisk | None = None

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self.had_seal |= new == "keyspace/seal"

    def sync_dir(self, name: str) -> None:
        super().sync_dir(name)
        if self.left is None and self.had_seal and not self.exists("keyspace/seal"):
            self.left = SimDisk(DiskState.of(self.state.image(), tuple(self.state.directories)))


async def test_the_seal_goes_only_when_the_log_has_the_whole_map() -> None:
    """W6: with the seal gone sooner, a power cut left neither: the node did not start any more."""
    disk = CutBehindTheSeal()
    life = Life(disk, 1)
    keyspace = await life.start()
    for n in range(30):
        await keyspace.transact([], [Put(f"k/{n:02}", b"v" * 200)])
    shown = keyspace.range("")
    keyspace._log.quarantine(STREAM)
    await until_taken(keyspace, Put("k/new", b"w"))
    await life.scope.close()

    assert disk.left is not None
    other = Life(disk.left, 2)
    assert (await other.start()).range("") == shown
    await other.scope.close()
    assert not life.crashes


async def test_a_snapshot_that_the_log_has_no_room_for_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked for once a lap: the log stayed full for ever."""
    life = Life(SimDisk(), 1)
    keyspace = await life.start()
    for n in range(20):
        await keyspace.transact([], [Put(f"k/{n}", b"v" * 500)])
    refused = 0
    append = Log.append

    def full(self: Log, stream: LogStreamId, *rest: object, **named: object) -> object:
        nonlocal refused
        if named.get("relief") and refused < 2:
            refused += 1
            raise LogFull("no room")
        return append(self, stream, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Log, "append", full)
    first = keyspace._log.next_offset(STREAM)
    keyspace.flush_asked()
    async with asyncio.timeout(10):
        while True:
            await asyncio.sleep(0.02)
            state = keyspace._log.states[STREAM]
            if state.first >= first:
                break
    assert refused == 2
    await life.scope.close()


@pytest.mark.parametrize("asked", ["flush_asked", "_heal"])
async def test_what_the_log_asks_for_while_the_node_stops_ends_in_good_order(asked: str) -> None:
    """Tasks end before the key space closes, and the log goes on meanwhile: the node ended with status 70."""
    life = Life(SimDisk(), 1)
    keyspace = await life.start()
    await keyspace.transact([], [Put("k", b"v")])
    was_asked = asyncio.Event()

    async def ends_slowly() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            getattr(keyspace, asked)()
            was_asked.set()

    life.scope.spawn(ends_slowly(), name="slow")
    await asyncio.sleep(0)
    await life.scope.close()

    assert was_asked.is_set()
    assert not life.crashes


async def test_a_seal_that_cannot_be_synced_ends_the_node() -> None:
    """W5: nobody knows what reached the disk; tried again it would fail for ever, and all be refused."""
    disk = FaultyDisk(SimDisk())
    life = Life(disk, 1)
    keyspace = await life.start()
    await keyspace.transact([], [Put("k", b"v")])
    disk.plan(Fault("sync", error=errno.EIO, name="keyspace/seal.new", times=1))
    keyspace._log.quarantine(STREAM)
    for _ in range(TURNS_MAX):
        if life.crashes:
            break
        await asyncio.sleep(0.001)
    await life.scope.close()

    assert [error.errno for error in life.crashes if isinstance(error, OSError)] == [errno.EIO]


async def test_a_log_begins_anew_only_when_no_snapshot_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot from before would replace the new records, and lacks what was answered since it began."""
    disk = SimDisk()
    life = Life(disk, 1)
    keyspace = await life.start()
    await keyspace.transact([], [Put("k/early", b"v")])
    go, encode = asyncio.Event(), keyspace._encode

    async def held(effect: EncodeSnapshot) -> None:
        await go.wait()
        await encode(effect)

    monkeypatch.setattr(keyspace, "_encode", held)
    keyspace.flush_asked()
    await keyspace.transact([], [Put("k/late", b"v")])
    keyspace._log.quarantine(STREAM)
    await asyncio.sleep(0.2)
    go.set()
    await until_taken(keyspace, Put("k/new", b"w"))
    await asyncio.sleep(0.2)
    await keyspace.transact([], [Put("k/newest", b"w")])
    shown = await same_after_a_cut(disk, life, keyspace)

    assert len(shown) == 4
    assert not life.crashes


async def test_a_seal_of_a_later_generation_begins_a_later_one() -> None:
    """The log may have lost the stream: its old records must not count as newer than the map."""
    disk = SimDisk()
    life = Life(disk, 1)
    keyspace = await life.start()
    await keyspace.transact([], [Put("k", b"v")])
    chunks = [*snapshot(keyspace.revision, keyspace._store.shown.frozen(), chunk_bytes=1 << 20)]
    await life.scope.close()
    write_seal(disk, Seal(Generation(7), chunks))
    other = Life(disk, 2)
    again = await other.start()
    generation = again._log.generation(STREAM)
    await other.scope.close()

    assert generation == 8
    assert [pair.key for pair in again.range("")] == ["k"]


async def test_a_start_with_a_seal_waits_for_room_for_the_map() -> None:
    """A map above what is filled of a log at its start ended the node: another segment was being filled."""
    disk = SimDisk()
    shown = [KeyValue(f"k/{n:02}", b"v" * 1000, Revision(1), Revision(1)) for n in range(60)]
    write_seal(disk, Seal(Generation(0), [*snapshot(Revision(5), shown, chunk_bytes=2048)]))
    disk.state.quota_bytes = disk.state.used() + (40 << 10)  # Only as much of the log is filled at first.
    life = Life(disk, 1)
    starting = asyncio.ensure_future(life.start())
    await asyncio.sleep(0.1)
    disk.state.quota_bytes = 1 << 30
    keyspace = await starting

    assert await same_after_a_cut(disk, life, keyspace) == shown
    assert not disk.exists("keyspace/seal")
    assert not life.crashes


@pytest.mark.parametrize("boot_id", ["kernel-1", "kernel-2"])
async def test_a_start_that_found_a_cut_and_ended_does_not_make_its_revisions_free(boot_id: str) -> None:
    """control.16: a full disk refused the start after a kill; after a reboot they were given again."""
    disk = SimDisk()
    life = Life(disk, 1)
    keyspace = await life.start()
    await keyspace.transact([], [Put("k", b"v")])
    lost = (await keyspace.transact([], [Put("k/lost", b"w" * 300)])).revision
    killed = disk.state.fork()
    await life.scope.close()
    inode = next(each for each in killed.files.values() if b"w" * 300 in each.view)
    at = bytes(inode.view).index(b"w" * 300)
    killed.damage(inode, bytes(inode.view[:at]) + b"x" + bytes(inode.view[at + 1 :]))
    full = Life(FaultyDisk(SimDisk(killed), [Fault("write_at", errno.ENOSPC, "keyspace/cut-*")]), 2)
    with pytest.raises(OSError, match="planned"):
        await full.start()
    await full.scope.close()

    other = Life(SimDisk(killed), 3, boot_id=boot_id)
    again = await other.start()
    assert (await again.transact([], [Put("k/new", b"w")])).revision > lost + REVISION_LEAP
    await other.scope.close()
