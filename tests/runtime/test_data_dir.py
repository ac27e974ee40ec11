"""The data directory is opened by its owner alone, in a format that the owner understands."""

import errno
import os
from pathlib import Path
from threading import Event, Thread

import msgspec
import pytest

from broadsheet.errors import ConfigError
from broadsheet.runtime.data_dir import (
    FORMAT_FILE,
    FORMAT_FILE_NEW,
    FORMAT_VERSION,
    DataDir,
    claim,
    is_locked,
    node_of,
    prepare,
    sync_directory,
)
from broadsheet.runtime.disk import LocalDisk
from tests.support.faulty import Fault, FaultyDisk


def take(root: Path, node: str = "n1") -> DataDir:
    prepare(root)
    disk = LocalDisk(root)
    try:
        return claim(disk, root=str(root), node=node, version="0.1.0")
    finally:
        disk.close()  # The lock has a descriptor of its own.


def is_taken(root: Path) -> bool:
    disk = LocalDisk(root)
    try:
        return is_locked(disk)
    finally:
        disk.close()


def test_a_new_directory_is_private_and_says_its_format(tmp_path: Path) -> None:
    """Others on the machine have no business in it, and a later release must know what it finds."""
    root = tmp_path / "a" / "n1"

    data = take(root)

    assert root.stat().st_mode & 0o777 == 0o700
    assert (data.form.format, data.form.node) == (FORMAT_VERSION, "n1")


def test_a_directory_that_was_opened_before_is_opened_again(tmp_path: Path) -> None:
    """A restart finds what the first start wrote, and changes nothing of it."""
    take(tmp_path / "n1").release()
    before = (tmp_path / "n1" / FORMAT_FILE).read_bytes()

    take(tmp_path / "n1").release()

    assert (tmp_path / "n1" / FORMAT_FILE).read_bytes() == before


def test_two_processes_never_own_one_directory(tmp_path: Path) -> None:
    """The lock is what makes one node the primary of its journals (journals.1)."""
    first = take(tmp_path)

    with pytest.raises(ConfigError, match="locked by another process"):
        take(tmp_path)
    assert is_taken(tmp_path)

    first.release()
    take(tmp_path).release()
    assert not is_taken(tmp_path)


def test_looking_whether_it_is_locked_keeps_nobody_out(tmp_path: Path) -> None:
    """`status` in a loop takes the lock for moments: a node that starts meanwhile starts."""
    prepare(tmp_path)
    is_over = Event()
    seen: list[bool] = []

    def look() -> None:
        while not is_over.is_set():
            seen.append(is_taken(tmp_path))

    lookers = [Thread(target=look) for _ in range(2)]
    take(tmp_path).release()
    for looker in lookers:
        looker.start()
    try:
        for _ in range(200):
            take(tmp_path).release()
    finally:
        is_over.set()
        for looker in lookers:
            looker.join()

    assert seen


def test_a_foreign_directory_is_refused_untouched(tmp_path: Path) -> None:
    """A mistyped path must not sprinkle files over somebody's home (node.10)."""
    (tmp_path / "thesis.tex").write_text("x")

    with pytest.raises(ConfigError, match=r"holds thesis\.tex but no broadsheet\.json"):
        take(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "half-written"),
        (b'{"format": 1, "no', "half-written"),
        (b'{"format":99,"node":"n1","version":"9.0"}', "newer than this version's 1: it was written by 9.0"),
        (b'{"format":0,"node":"n1","version":"0.0"}', "older than this version's 1"),
        (b'{"format":1,"node":"n2","version":"0.1"}', "holds the data of node n2, not of n1"),
    ],
)
def test_what_cannot_be_opened_is_refused_untouched(tmp_path: Path, content: bytes, said: str) -> None:
    """Each reason needs another remedy, and none of them is to start anyway."""
    (tmp_path / FORMAT_FILE).write_bytes(content)
    (tmp_path / "journals").mkdir()

    with pytest.raises(ConfigError, match=said):
        take(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [FORMAT_FILE, "journals"]
    assert (tmp_path / FORMAT_FILE).read_bytes() == content


def test_a_format_file_that_the_disk_cannot_read_is_read_again_before_it_is_restored(tmp_path: Path) -> None:
    """One read that failed is not yet damage: a backup would replace a sound file."""
    take(tmp_path).release()
    disk = FaultyDisk(LocalDisk(tmp_path), [Fault("read_at", errno.EIO, FORMAT_FILE)])

    with pytest.raises(
        ConfigError, match=r"cannot read broadsheet\.json .*\. Start again; if it stays so, restore this file"
    ):
        claim(disk, root=str(tmp_path), node="n1", version="0.1")


def test_a_refused_directory_is_not_left_locked(tmp_path: Path) -> None:
    """Whoever mends it must be able to start without a restart of whoever looked."""
    (tmp_path / FORMAT_FILE).write_bytes(b"")

    with pytest.raises(ConfigError):
        take(tmp_path)

    assert not is_taken(tmp_path)


def test_a_first_start_that_was_cut_off_is_begun_again(tmp_path: Path) -> None:
    """Nothing was in it yet, so nobody must delete it by hand."""
    (tmp_path / FORMAT_FILE_NEW).write_bytes(b'{"form')

    assert take(tmp_path).form.node == "n1"
    assert msgspec.json.decode((tmp_path / FORMAT_FILE).read_bytes())["format"] == FORMAT_VERSION


def test_roles_without_a_format_file_are_refused(tmp_path: Path) -> None:
    """That is what a half-copied backup looks like."""
    (tmp_path / "journals").mkdir()

    with pytest.raises(ConfigError, match=r"holds journals but no broadsheet\.json"):
        take(tmp_path)


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """With the reason, and without a trace."""
    (tmp_path / "file").write_text("x")

    with pytest.raises(ConfigError, match="cannot make data directory"):
        take(tmp_path / "file")


def test_a_directory_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    """Journals are nobody else's business, whatever the umask was when somebody made the directory."""
    tmp_path.chmod(0o755)

    take(tmp_path)

    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_whoever_only_looked_holds_nothing(tmp_path: Path) -> None:
    """`status` may look, and live on: the node starts meanwhile."""
    take(tmp_path).release()
    disk = LocalDisk(tmp_path)

    assert not is_locked(disk)
    assert not is_locked(disk)
    take(tmp_path).release()
    disk.close()


def test_a_directory_without_a_format_file_is_nobodys_data(tmp_path: Path) -> None:
    """The command says so, and does not speak of a damaged file."""
    with pytest.raises(ConfigError, match="is not a data directory"):
        node_of(LocalDisk(tmp_path), str(tmp_path))


def test_only_a_directory_is_synced_as_one(tmp_path: Path) -> None:
    """A file that stands where the directory should be must not pass for it."""
    (tmp_path / "file").touch()

    sync_directory(tmp_path)
    with pytest.raises(NotADirectoryError):
        sync_directory(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        LocalDisk(tmp_path / "file")


def test_a_lock_is_given_up_once(tmp_path: Path) -> None:
    """Its descriptor may be another file's by the second time."""
    data = take(tmp_path)
    data.release()
    fds = [os.dup(1) for _ in range(3)]
    kept = os.dup(1)
    try:
        data.release()

        for fd in (1, *fds):
            os.fstat(fd)
    finally:
        os.dup2(kept, 1)
        for fd in (*fds, kept):
            os.close(fd)
