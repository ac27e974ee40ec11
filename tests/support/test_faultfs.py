"""The fault layer on real files does what its rules say, and nothing else."""

import errno
import os
from pathlib import Path

import pytest

from broadsheet.runtime.disk import LocalDisk
from tests.support.faultfs import Rule, mounted

pytestmark = pytest.mark.needs_fuse


def test_without_rules_it_is_a_plain_directory(tmp_path: Path) -> None:
    """A layer that changed more than its rules say would make every test above it meaningless."""
    with mounted(tmp_path) as faults:
        disk = LocalDisk(faults.path)
        disk.make_dir("a/b")
        file = disk.open("a/b/log", create=True, exclusive=True)
        file.write_at(3, (b"content", b" in parts"))
        file.sync()
        disk.rename("a/b/log", "a/log")
        disk.sync_dir("a")

        assert file.read_at(0, 100) == b"\0\0\0content in parts"
        assert disk.list("a") == ["b", "log"]
        assert (faults.behind / "a" / "log").read_bytes() == b"\0\0\0content in parts"
        lock = disk.lock("LOCK")
        with pytest.raises(BlockingIOError):
            disk.lock("LOCK")
        lock.release()
        file.close()
        disk.close()


def test_a_rule_hits_the_call_it_names_and_counts(tmp_path: Path) -> None:
    """`after` and `times` let a test break the fourth write of one file, whatever else is written."""
    with mounted(tmp_path) as faults:
        log, other = faults.path / "log", faults.path / "other"
        log.write_bytes(b"")
        other.write_bytes(b"")
        faults.set(Rule("write", error="ENOSPC", path="/log", after=1, times=1), Rule("fsync", error="EIO"))

        fd, other_fd = os.open(log, os.O_RDWR), os.open(other, os.O_RDWR)
        os.pwrite(fd, b"1", 0)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            os.pwrite(fd, b"2", 1)
        os.pwrite(fd, b"3", 2)
        os.pwrite(other_fd, b"x", 0)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            os.fdatasync(other_fd)

        assert faults.hits() == [1, 1]
        assert (faults.behind / "log").read_bytes() == b"1\x003"
        os.close(fd)
        os.close(other_fd)


def test_a_short_write_is_continued_by_the_disk(tmp_path: Path) -> None:
    """POSIX lets a write take less than it was given; the bytes must still arrive, once and in order."""
    with mounted(tmp_path) as faults:
        disk = LocalDisk(faults.path)
        file = disk.open("log", create=True)
        faults.set(Rule("write", short=True, times=7))

        parts = tuple(os.urandom(size) for size in (1, 5000, 1, 70_000, 3))
        file.write_at(11, parts)

        assert faults.hits() == [7]
        assert (faults.behind / "log").read_bytes()[11:] == b"".join(parts)
        file.close()
        disk.close()


def test_a_flipped_bit_is_read_flipped_and_stored_as_it_was(tmp_path: Path) -> None:
    """Rot on the way up must be told from rot on the disk."""
    with mounted(tmp_path) as faults:
        (faults.path / "log").write_bytes(bytes(10))
        faults.set(Rule("read", flip_bit=8 * 4 + 1))

        assert (faults.path / "log").read_bytes() == b"\0\0\0\0\x02\0\0\0\0\0"
        assert (faults.behind / "log").read_bytes() == bytes(10)


def test_a_failed_sync_is_never_followed_by_a_good_one(tmp_path: Path) -> None:
    """After EIO the kernel says 0 to the next fdatasync though the bytes are gone: our disk remembers."""
    with mounted(tmp_path, write_back=True) as faults:
        disk = LocalDisk(faults.path)
        file = disk.open("log", create=True)
        file.write_at(0, (b"kept",))
        file.sync()
        file.write_at(4, (b"lost",))
        faults.set(Rule("fsync", error="EIO", times=1))
        with pytest.raises(OSError, match="write or sync failed"):
            file.sync()

        with pytest.raises(OSError, match="failed before"):
            file.sync()
        with pytest.raises(OSError, match="failed before"):
            file.write_at(8, (b"more",))
        assert file.read_at(0, 100) == b"keptlost"
        again = disk.open("log")
        with pytest.raises(OSError, match="failed before"):
            again.sync()
        file.close()
        again.close()
        disk.close()
        disk = LocalDisk(faults.path)
        again = disk.open("log")
        again.sync()
        assert again.read_at(0, 100) == b"keptlost", "the page cache lies to the next process too"
        again.close()
        disk.close()
        faults.reboot()
        assert (faults.path / "log").read_bytes() == b"kept"


def test_a_full_disk_refuses_and_the_file_lives_on(tmp_path: Path) -> None:
    """ENOSPC is an answer, not a failure: what stands, stands, and the next write may fit."""
    with mounted(tmp_path) as faults:
        disk = LocalDisk(faults.path)
        file = disk.open("log", create=True)
        file.write_at(0, (b"kept",))
        faults.set(Rule("write", error="ENOSPC", times=1))
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            file.write_at(4, (b"refused",))
        file.write_at(4, (b"taken",))
        file.sync()

        assert (faults.behind / "log").read_bytes() == b"kepttaken"
        file.close()
        disk.close()


def test_a_full_disk_that_is_noticed_at_the_sync_is_a_failed_sync(tmp_path: Path) -> None:
    """The kernel took the bytes, then found no room: they are in doubt, which is not a refusal."""
    with mounted(tmp_path) as faults:
        disk = LocalDisk(faults.path)
        file = disk.open("log", create=True)
        file.write_at(0, (b"doubtful",))
        faults.set(Rule("fsync", error="ENOSPC", times=1))
        with pytest.raises(OSError, match="write or sync failed") as caught:
            file.sync()

        assert caught.value.errno == errno.EIO
        file.close()
        disk.close()
