"""A read that fails is asked again, and a bad sector is told from a disk that is away (ADR 0198)."""

import asyncio
import errno
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broadsheet.base.time import MILLISECOND, SECOND
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.rereading import CALM, DISK_AWAY, PATIENCE, PAUSE_MAX, Rereading
from tests.support.faultfs import Rule, mounted
from tests.support.powercut import ext4_volume

EIO = OSError(errno.EIO, "unreadable", "log")


class Disk:
    """A disk by hand: its clock, and when its reads work."""

    def __init__(self) -> None:
        self.now, self.asked = 1_000 * SECOND, 0
        self.works_from = self.answers_from = 0
        self.is_loop = False
        self.rereading = Rereading(now=lambda: self.now, pause=self.pause)

    def pause(self, length: int) -> bool:
        """Time passes, except on the loop."""
        self.now += 0 if self.is_loop else length
        return not self.is_loop

    def ask(self) -> bytes:
        """A read of the place that has failed."""
        self.asked += 1
        if self.now < self.works_from:
            raise EIO
        return b"content"

    def answer(self) -> bytes:
        """A read of another place."""
        if self.now < self.answers_from:
            raise EIO
        return b""

    def read(self, *others: Callable[[], object]) -> bytes:
        """A read whose first try has failed."""
        return self.rereading.again(EIO, self.ask, others or (self.answer,))


@pytest.mark.parametrize("lasts", [0, 1, 3 * MILLISECOND, SECOND, PATIENCE - PAUSE_MAX])
def test_a_failure_that_passes_is_never_seen(lasts: int) -> None:
    """From microseconds to seconds: the reader gets the bytes, and decides nothing by their absence."""
    disk = Disk()
    disk.works_from = disk.now + lasts
    begun = disk.now
    assert disk.read() == b"content"
    assert disk.now - begun <= lasts + PAUSE_MAX


def test_a_start_waits_once_however_many_sectors_are_bad() -> None:
    """A disk full of bad sectors would hold a start for hours."""
    disk = Disk()
    disk.works_from = disk.now + 3_600 * SECOND
    begun = disk.now
    for _ in range(1_000):
        with pytest.raises(OSError, match="unreadable"):
            disk.read()
    assert disk.now - begun <= PATIENCE + PAUSE_MAX
    assert disk.asked < 1_100


def test_a_read_that_succeeds_after_all_gives_the_next_failure_its_time_again() -> None:
    """The first outage must not use up what the second one needs."""
    disk = Disk()
    for _ in range(3):
        disk.works_from = disk.now + 4 * SECOND
        assert disk.read() == b"content"


def test_after_a_calm_minute_a_failure_is_a_new_one() -> None:
    """A node runs for months: one bad sector at its start must not end all patience."""
    disk = Disk()
    disk.works_from = disk.now + 2 * PATIENCE
    with pytest.raises(OSError, match="unreadable"):
        disk.read()
    disk.now += CALM + 1
    disk.works_from = disk.now + 4 * SECOND
    assert disk.read() == b"content"


def test_a_disk_that_reads_nothing_is_away_and_not_damaged() -> None:
    """However long that lasts: EIO would be taken for lost records, and written down as such."""
    disk = Disk()
    disk.works_from = disk.answers_from = disk.now + 60 * SECOND
    for _ in range(5):
        with pytest.raises(OSError, match="the disk answers no read") as told:
            disk.read()
        assert told.value.errno == DISK_AWAY
    disk.now = disk.works_from
    assert disk.read() == b"content"


def test_without_another_place_to_ask_a_bad_sector_is_believed() -> None:
    """A disk of one file of one block would never be started."""
    disk = Disk()
    disk.works_from = disk.now + 60 * SECOND
    with pytest.raises(OSError, match="unreadable") as told:
        disk.rereading.again(EIO, disk.ask, ())
    assert told.value.errno == errno.EIO


def test_the_loop_waits_for_nothing_and_uses_up_nothing() -> None:
    """A read on the loop that slept would stop every lease; and a thread's read still has all its time."""
    disk = Disk()
    disk.works_from = disk.answers_from = disk.now + 3 * SECOND
    disk.is_loop = True
    with pytest.raises(OSError, match="unreadable") as told:
        disk.read()
    assert (disk.asked, told.value.errno) == (0, errno.EIO)
    disk.now, disk.is_loop = disk.now + SECOND, False
    assert disk.read() == b"content"


@pytest.mark.needs_fuse
async def test_the_production_disk_reads_again_in_a_thread(tmp_path: Path) -> None:
    """Real reads, through a file system that answers EIO three times; and nowhere, until a rule is gone."""
    with mounted(tmp_path) as faults:
        disk = LocalDisk(faults.path)
        file = disk.open("log", create=True)
        file.write_at(0, (bytes(range(256)) * 64,))
        file.sync()
        faults.set(Rule("read", error="EIO", times=3))
        assert await disk.run(lambda: file.read_at(4096, 256)) == bytes(range(256))
        faults.set(Rule("read", error="EIO", times=1))
        with pytest.raises(OSError, match="Input/output"):
            file.read_at(4096, 256)  # On the loop.
        disk.rereading._failed_at = time.monotonic_ns()  # As if it had been waited for in vain.
        faults.set(Rule("read", error="EIO"))
        with pytest.raises(OSError, match="the disk answers no read"):
            await disk.run(lambda: file.read_at(4096, 256))
        faults.set()
        assert await asyncio.wait_for(disk.run(lambda: file.read_at(0, 1)), 5) == b"\0"
        file.close()
        disk.close()


@pytest.mark.needs_fuse
async def test_a_disk_that_opens_no_file_either_is_away(tmp_path: Path) -> None:
    """A network directory whose server is away opens no other file that could be asked.

    So its records were taken for lost. A file that is gone tells nothing.
    """
    with mounted(tmp_path) as faults:
        disk = LocalDisk(faults.path)
        file = disk.open("log", create=True)
        file.write_at(0, (bytes(range(256)) * 64,))
        file.sync()
        disk.rereading._failed_at = time.monotonic_ns()  # As if it had been waited for in vain.
        faults.set(Rule("read", error="EIO"), Rule("open", error="EIO"))
        with pytest.raises(OSError, match="the disk answers no read"):
            await disk.run(lambda: file.read_at(4096, 256))
        faults.set(Rule("read", error="EIO"))
        disk.remove("log")
        with pytest.raises(OSError, match="Input/output"):
            await disk.run(lambda: file.read_at(4096, 256))
        file.close()
        disk.close()


@pytest.mark.needs_root
@pytest.mark.needs_ext4
async def test_the_page_cache_is_no_witness_that_the_disk_reads(tmp_path: Path) -> None:
    """A kernel with large folios kept the page that was to be read, and read it from memory.

    So on each such kernel a disk that had gone away was taken for a bad sector, and its records for lost.
    """
    with ext4_volume(tmp_path, size_mib=32) as volume:
        disk = LocalDisk(volume.path / "node")
        cached, file = (disk.open(name, create=True) for name in ("cached", "log"))
        try:
            for each in (cached, file):
                each.write_at(0, (bytes(4 << 20),))
                each.sync()
            await file.uncache(0, 4 << 20)
            volume.take_away()
            disk.rereading._failed_at = time.monotonic_ns()  # As if it had been waited for in vain.
            with pytest.raises(OSError, match="the disk answers no read"):
                await disk.run(lambda: file.read_at(1 << 20, 256))
        finally:
            cached.close()
            file.close()
            disk.close()
