"""The doctor names the fault of a node's directory, settings or process, each of one that is broken."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broadsheet.cli import node_checks
from broadsheet.cli.cluster import Cluster
from broadsheet.cli.findings import Verdict
from broadsheet.cli.running import FILE, wait_until_ended
from broadsheet.runtime.data_dir import FORMAT_FILE
from broadsheet.runtime.syncs import Syncs
from broadsheet.runtime.system import OWN_STORE, LocalStores, mark_of
from tests.cli.processes import SECONDS_MAX, broadsheet, cluster, pids
from tests.runtime.test_data_dir import take


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of a node that was started once, by `serve`."""
    take(tmp_path / "n1").release()
    return tmp_path / "n1"


def test_a_sound_directory_has_no_fault(root: Path) -> None:
    """Also one that is not there, or that `up` made and never started."""
    Cluster.make(root.parent / "c", count=2, port_offset=0, has_any_port=True)

    for each in (root, root.parent / "c", root.parent / "none"):
        assert {check(each).verdict for check in node_checks.NODE_CHECKS} == {Verdict.GOOD}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"format":99,"node":"n1","version":"9.0"}', "newer than this version's"),
        ('{"format":0,"node":"n1","version":"0.0.1"}', "open it with the release that wrote it (0.0.1)"),
        ("xx", "is half-written"),
    ],
)
def test_a_directory_of_another_format_is_found(root: Path, content: str, said: str) -> None:
    """After a downgrade, or a copy that ended in the middle."""
    (root / FORMAT_FILE).write_text(content)

    finding = node_checks.format_check(root)

    assert (finding.verdict, said in finding.text) == (Verdict.BAD, True)


def test_the_directory_of_another_node_is_found(tmp_path: Path) -> None:
    """Two directories that were exchanged: the node would not start."""
    made = Cluster.make(tmp_path / "c", count=1, port_offset=0, has_any_port=True)
    take(made.data_dir("n1"), "n2").release()

    finding = node_checks.format_check(tmp_path / "c")

    assert (finding.verdict, "holds the data of node n2, not of n1" in finding.text) == (Verdict.BAD, True)


@pytest.mark.needs_root
def test_the_directory_of_another_user_is_found(root: Path) -> None:
    """Somebody ran the node once as root."""
    os.chown(root, 12345, 12345)

    assert "belongs to uid 12345" in node_checks.format_check(root).text


@pytest.mark.parametrize("log", ["journals/log", "keyspace/log"])
def test_a_lost_log_is_found(tmp_path: Path, log: str) -> None:
    """A partial restore: what is there means nothing without it."""
    root = tmp_path / "c"
    with cluster(root) as found:
        address = found["nodes"][0]["addresses"]["native"]
        broadsheet("journals", "create", "lost/log", BROADSHEET_ADDRESS=address).check_returncode()
    assert node_checks.files_check(root).verdict is Verdict.GOOD
    data = Cluster.open(root).data_dir("n1")
    shutil.rmtree(data / log)

    finding = node_checks.files_check(root)

    assert finding.verdict is Verdict.BAD
    assert f"{data / log} is missing" in finding.text
    assert "backup" in finding.remedy


def test_a_clock_that_is_behind_the_files_is_found(root: Path) -> None:
    """A machine without a battery starts in 1970: tokens are not valid yet, or for ever."""
    assert node_checks.clock_check(root).verdict is Verdict.GOOD
    ahead = time.time() + 3600
    os.utime(root / FORMAT_FILE, (ahead, ahead))

    finding = node_checks.clock_check(root)

    assert (finding.verdict, "s ahead of the clock" in finding.text) == (Verdict.WARNING, True)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://bucket/", "a local store is file:///directory/"),
        ("file:///dev/null/store/", "is no directory in which this user may make one"),
    ],
)
def test_a_store_that_cannot_exist_is_found(
    root: Path, monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    """Before its first fragment waits for it."""
    monkeypatch.setenv("BROADSHEET_JOURNALS__STORE", url)

    finding = node_checks.stores_check(root)

    assert (finding.verdict, said in finding.text) == (Verdict.BAD, True), finding.text


def test_a_store_that_is_not_mounted_is_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mount point is there and empty; the node has used the store."""
    store = root.parent / "mnt"
    store.mkdir()
    monkeypatch.setenv("BROADSHEET_JOURNALS__STORE", f"file://{store}/")
    assert node_checks.stores_check(root).verdict is Verdict.GOOD
    mark = mark_of(store, root)
    mark.parent.mkdir()
    mark.touch()

    assert "is not mounted" in node_checks.stores_check(root).text


def test_another_default_store_than_the_last_is_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is missing in this shell: the node would not start, or show stored bytes as trimmed."""
    one, other = (f"file://{root.parent}/{name}/" for name in ("one", "other"))
    LocalStores(root / OWN_STORE, Syncs()).keep_default(one)
    found = {}
    for store, before in ((one, ""), (other, ""), (other, one), ("", "")):
        monkeypatch.setenv("BROADSHEET_JOURNALS__STORE", store)
        monkeypatch.setenv("BROADSHEET_JOURNALS__STORES_BEFORE", f"[{before!r}]")
        found[store, before] = node_checks.stores_check(root)

    assert [each.verdict for each in found.values()] == [
        Verdict.GOOD,
        Verdict.BAD,
        Verdict.GOOD,
        Verdict.BAD,
    ]
    assert f"journals.store is {other!r}, and was {one!r} when the node last ran" in found[other, ""].text


def test_a_node_that_was_killed_is_found(tmp_path: Path) -> None:
    """Its process is gone, and the file in which it named itself is not: `status` says down, not why."""
    root = tmp_path / "c"
    with cluster(root):
        data = Cluster.open(root).data_dir("n1")
        assert node_checks.ended_check(root).verdict is Verdict.GOOD
        os.kill(json.loads((data / FILE).read_text())["pid"], signal.SIGKILL)
        assert wait_until_ended(data, seconds=SECONDS_MAX)

        finding = node_checks.ended_check(root)

    assert (finding.verdict, "was killed" in finding.text) == (Verdict.WARNING, True)


def test_a_node_that_cannot_serve_is_found_with_its_reasons(tmp_path: Path) -> None:
    """Two nodes of three are away: the third runs, and decides nothing."""
    root = tmp_path / "c"
    with cluster(root, nodes=3):
        assert until(root, Verdict.GOOD)
        assert node_checks.version_check(root).verdict is Verdict.GOOD
        for name in ("n2", "n3"):
            pid = json.loads((Cluster.open(root).data_dir(name) / FILE).read_text())["pid"]
            os.kill(pid, signal.SIGKILL)
        assert until(root, Verdict.BAD)
        finding = node_checks.ready_check(root)

        assert "node n1: metastore: no majority" in finding.text
        assert pids(root)


def until(root: Path, verdict: Verdict) -> bool:
    end = time.monotonic() + SECONDS_MAX
    while node_checks.ready_check(root).verdict is not verdict and time.monotonic() < end:
        time.sleep(0.1)
    return node_checks.ready_check(root).verdict is verdict


def test_a_node_of_another_release_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package was upgraded, and the node was not started again."""
    root = tmp_path / "c"
    with cluster(root):
        monkeypatch.setattr(node_checks, "__version__", "9.9.9")

        finding = node_checks.version_check(root)

    assert (finding.verdict, "this command is 9.9.9" in finding.text) == (Verdict.WARNING, True)


def test_a_node_that_does_not_answer_is_found_with_its_process(tmp_path: Path) -> None:
    """It was unknown, with the advice to mend the directory; its clients waited."""
    root = tmp_path / "c"
    with cluster(root):
        (pid,) = pids(root).values()
        os.kill(pid, signal.SIGSTOP)
        finding, version = node_checks.ready_check(root), node_checks.version_check(root)
        os.kill(pid, signal.SIGCONT)

        assert finding.verdict is Verdict.BAD
        assert f"timed out; its process {pid} is there, and may be stopped or stuck" in finding.text
        assert version.verdict is Verdict.GOOD


@pytest.mark.needs_root
def test_a_file_of_another_user_is_found(root: Path) -> None:
    """Somebody ran one command as root: the node fails when it opens that file, weeks later."""
    (root / "journals" / "spool").mkdir(parents=True)
    assert node_checks.owners_check(root).verdict is Verdict.GOOD
    stranger = root / "journals" / "spool" / "0000000000000001"
    stranger.touch()
    os.chown(stranger, 12345, 12345)

    finding = node_checks.owners_check(root)

    assert (finding.verdict, f"{stranger} belongs to uid 12345" in finding.text) == (Verdict.BAD, True)


@pytest.mark.parametrize("log", ["journals/log", "keyspace/log", "metastore/log"])
def test_a_foreign_file_in_a_log_is_found(root: Path, log: str) -> None:
    """An editor's copy: the node does not start, because it might be a segment that nobody knows."""
    (root / log).mkdir(parents=True)
    assert node_checks.logs_check(root).verdict is Verdict.GOOD
    (root / log / "seg-0000.wal~").write_text("x")

    finding = node_checks.logs_check(root)

    assert (finding.verdict, f"{log} holds 'seg-0000.wal~'" in finding.text) == (Verdict.BAD, True)


def test_a_rotten_record_is_found_and_a_killed_node_has_none(tmp_path: Path) -> None:
    """It was told by the next start. A log that ends in the middle of a write is no damage."""
    root = tmp_path / "c"
    with cluster(root) as found:
        address = found["nodes"][0]["addresses"]["native"]
        broadsheet("journals", "create", "rot/ten", BROADSHEET_ADDRESS=address).check_returncode()
        for number in range(8):
            (tmp_path / "input").write_bytes(b"needle-%d " % number * 100)
            broadsheet(
                "journals", "append", "rot/ten", tmp_path / "input", BROADSHEET_ADDRESS=address
            ).check_returncode()
        os.kill(next(iter(pids(root).values())), signal.SIGKILL)
        data = Cluster.open(root).data_dir("n1")
        assert wait_until_ended(data, seconds=SECONDS_MAX)
        sound = node_checks.logs_check(root)
        at, segment = next(
            (at, path)
            for path in sorted((data / "journals" / "log").iterdir())
            if (at := path.read_bytes().find(b"needle-2")) >= 0
        )
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(b"N")

        finding = node_checks.logs_check(root)

    assert sound.verdict is Verdict.GOOD
    assert finding.verdict is Verdict.BAD
    assert f"{data / 'journals' / 'log'}: 1 of its streams have damaged records" in finding.text


@contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True, capture_output=True)


@pytest.mark.needs_root
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("ro,size=1g", "its file system is mounted read-only"),
        ("size=1g,nr_inodes=64", "inodes left of 64"),
        ("size=8m", "its file system has 8 MiB left, less than a fragment"),
    ],
)
def test_a_store_without_room_is_found(
    root: Path, monkeypatch: pytest.MonkeyPatch, options: str, said: str
) -> None:
    """Its node works for weeks, until its own disk is full of fragments that nobody took."""
    store = root.parent / "store"
    monkeypatch.setenv("BROADSHEET_JOURNALS__STORE", f"file://{store}/")
    assert node_checks.room_check(root).verdict is Verdict.GOOD
    with mounted(store, options):
        finding = node_checks.room_check(root)

    assert (finding.verdict, f"{store}: " in finding.text, said in finding.text) == (
        Verdict.BAD,
        True,
        True,
    ), finding.text


@pytest.mark.needs_root
def test_a_disk_on_which_appends_are_refused_is_found(tmp_path: Path) -> None:
    """By the node's own watermark, and before it is started."""
    with mounted(tmp_path / "disk", "size=300m"):
        take(tmp_path / "disk" / "n1").release()
        (tmp_path / "disk" / "ballast").write_bytes(bytes(100 << 20))

        finding = node_checks.room_check(tmp_path / "disk" / "n1")

    assert finding.verdict is Verdict.BAD
    assert "appends are refused: the disk has 199 MiB free of 300, and appends need 256" in finding.text
