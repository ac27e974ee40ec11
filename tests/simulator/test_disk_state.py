"""The simulated disk loses what a power cut loses, and nothing that was synced."""

import asyncio
import errno
from collections.abc import Callable

import pytest

from simulator.crashstates import crash_states, record
from simulator.disk import SimDisk
from simulator.disk_state import SECTOR, DiskState, Write
from simulator.entropy import Draws


def written(*, seed: int = 0) -> tuple[DiskState, SimDisk]:
    """A disk with one synced file of three sectors."""
    disk_state = DiskState(Draws(seed))
    disk = SimDisk(disk_state)
    file = disk.open("a", create=True)
    file.write_at(0, [b"x" * 3 * SECTOR])
    file.sync()
    disk.sync_dir("")
    return disk_state, disk


def test_synced_bytes_survive_every_power_cut() -> None:
    """Or no property could be shown on it."""
    for seed in range(50):
        disk_state, disk = written(seed=seed)
        disk.open("a").write_at(SECTOR, [b"y" * SECTOR])
        disk_state.power_cut()

        image = disk_state.image()["a"]
        assert image[:SECTOR] + image[2 * SECTOR :] == b"x" * 2 * SECTOR


def test_unsynced_bytes_are_kept_lost_or_torn_by_sector() -> None:
    """All three happen, and a sector is never half written."""
    seen = set()
    for seed in range(100):
        disk_state, disk = written(seed=seed)
        disk.open("a").write_at(0, [b"y" * 3 * SECTOR])
        disk_state.power_cut()
        image = disk_state.image()["a"]
        parts = {image[at : at + SECTOR] for at in range(0, 3 * SECTOR, SECTOR)}
        assert parts <= {b"x" * SECTOR, b"y" * SECTOR}
        seen.add(frozenset(part[:1] for part in parts))

    assert seen == {frozenset({b"x"}), frozenset({b"y"}), frozenset({b"x", b"y"})}


def test_a_name_is_lost_without_a_directory_sync() -> None:
    """A synced file that no directory names is not there."""
    outcomes = set()
    for seed in range(40):
        disk = SimDisk(disk_state := DiskState(Draws(seed)))
        file = disk.open("new", create=True)
        file.write_at(0, [b"z"])
        file.sync()
        disk_state.power_cut()
        outcomes.add(disk.exists("new"))

    assert outcomes == {True, False}


def test_a_failed_sync_loses_bytes_that_reads_go_on_to_show_until_reboot() -> None:
    """Linux marks pages clean after EIO, and the next sync succeeds: the fsync-gate (log.16)."""
    disk_state, disk = written()
    file = disk.open("a")
    file.write_at(0, [b"y" * SECTOR])
    disk_state.health.sync_errors = 1

    with pytest.raises(OSError, match="fsync failed") as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    file.sync()
    assert file.read_at(0, SECTOR) == b"y" * SECTOR
    disk_state.power_cut()
    assert disk_state.image()["a"] == b"x" * 3 * SECTOR


def test_a_lying_sync_returns_and_keeps_nothing_safe() -> None:
    """What was acknowledged under the lie may be gone after a power cut."""
    lost = 0
    for seed in range(20):
        disk_state, disk = written(seed=seed)
        disk_state.health.is_lying = True
        file = disk.open("a")
        file.write_at(0, [b"y" * SECTOR])
        file.sync()
        disk_state.power_cut()
        lost += disk_state.image()["a"][:SECTOR] == b"x" * SECTOR

    assert lost > 0


def test_stale_and_misdirected_sectors_hit_what_was_synced() -> None:
    """The disk_state says done and did something else; the cache hides it until it is dropped."""
    for fault in ("stale_sectors", "misdirected"):
        disk_state, disk = written()
        setattr(disk_state.health, fault, 1)
        file = disk.open("a")
        file.write_at(0, [b"y" * 3 * SECTOR])
        file.sync()

        assert file.read_at(0, 3 * SECTOR) == b"y" * 3 * SECTOR
        disk_state.evict()
        assert b"x" * SECTOR in file.read_at(0, 3 * SECTOR)


def test_a_full_disk_refuses_growth_and_says_so() -> None:
    """ENOSPC, and what stands stands."""
    disk_state, disk = written()
    disk_state.health.is_full = True

    with pytest.raises(OSError, match="no space") as caught:
        disk.open("a").write_at(3 * SECTOR, [b"y"])
    assert caught.value.errno == errno.ENOSPC
    assert disk.free() == 0
    assert disk.open("a").size() == 3 * SECTOR


async def test_a_buffer_that_changes_while_it_is_written_is_our_bug() -> None:
    """The port's caller promised to leave it alone."""
    _, disk = written()
    part = bytearray(b"abc")
    task = asyncio.ensure_future(disk.open("a").persist(0, [part]))
    await asyncio.sleep(0)
    part[0] = 0

    with pytest.raises(AssertionError, match="changed while"):
        await task


def history(disk: SimDisk, promise: Callable[[object], None]) -> None:
    """Append four records in two batches, then replace a small file by rename."""
    log = disk.open("log", create=True)
    disk.sync_dir("")
    for batch in (0, 1):
        log.write_at(batch * 2 * SECTOR, [bytes([65 + batch]) * SECTOR, bytes([97 + batch]) * SECTOR])
        log.sync()
        promise(batch)
    new = disk.open("head.new", create=True)
    new.write_at(0, [b"2"])
    new.sync()
    disk.rename("head.new", "head")
    disk.sync_dir("")
    promise("head")


def test_crash_states_are_all_subsets_of_what_was_not_synced() -> None:
    """Each state keeps what had been promised, and every torn batch is among them."""
    disk = SimDisk()
    tape = record(disk)
    history(disk, tape.mark)
    states = list(crash_states(tape))

    torn = {state.image["log"] for state in states if state.marks == () and "log" in state.image}
    assert torn == {b"", b"A" * SECTOR, bytes(SECTOR) + b"a" * SECTOR, b"A" * SECTOR + b"a" * SECTOR}
    for state in states:
        if 0 in state.marks:
            assert state.image["log"][: 2 * SECTOR] == b"A" * SECTOR + b"a" * SECTOR
        if "head" in state.marks:
            assert state.disk().open("head").read_at(0, 9) == b"2"
    assert any("head" not in state.marks and "head" in state.image for state in states)


def test_crash_states_are_the_power_cuts_of_the_same_history() -> None:
    """Oracle: a thousand seeded power cuts at the end of a history all leave one of the enumerated disks."""
    disk = SimDisk()
    tape = record(disk)
    file = disk.open("f", create=True)
    disk.sync_dir("")
    file.write_at(100, [b"p" * 1000])
    file.truncate(700)
    disk.rename("f", "g")
    known = {tuple(sorted(state.image.items())) for state in crash_states(tape)}

    found = set()
    for seed in range(1000):
        other = SimDisk(disk_state := DiskState(Draws(seed)))
        file = other.open("f", create=True)
        other.sync_dir("")
        file.write_at(100, [b"p" * 1000])
        file.truncate(700)
        other.rename("f", "g")
        disk_state.power_cut()
        found.add(tuple(sorted(disk_state.image().items())))
    assert found <= known
    assert len(found) > len(known) // 2


def test_crash_states_stay_bounded_and_cover_the_edges() -> None:
    """A batch of thousands of sectors has too many subsets: some are chosen, always the same."""
    disk = SimDisk()
    tape = record(disk)
    file = disk.open("f", create=True)
    disk.sync_dir("")
    file.write_at(0, [b"p" * SECTOR * 40])

    states = list(crash_states(tape, atoms_max=10, is_distinct=False))
    assert 1 << 10 <= len(states) <= (1 << 10) + 8
    images = [state.image.get("f", b"") for state in states]
    assert b"p" * SECTOR * 40 in images
    assert b"p" * SECTOR * 39 in images


def test_no_power_cut_brings_back_what_was_damaged() -> None:
    """Otherwise a start would meet a batch that was damaged before, whole, beside another of its number."""
    disk_state = DiskState()
    inode = disk_state.create("a")
    disk_state.sync_dir("")
    disk_state.change(inode, Write(0, b"sound"))

    disk_state.damage(inode, b"soUnd")
    disk_state.power_cut()

    assert bytes(disk_state.files["a"].view) == b"soUnd"
