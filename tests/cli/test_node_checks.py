"""The doctor names the fault of a node's directory, settings or process, each of one that is broken."""

import json
import os
import shutil
import signal
import time
from base64 import b64encode
from pathlib import Path

import jwt
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
        assert [check(each).verdict for check in node_checks.NODE_CHECKS] == [Verdict.GOOD] * 9


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
    ("content", "mode", "said"),
    [
        (None, 0o600, "No such file"),
        ("", 0o600, "holds no key"),
        ("not base64!", 0o600, "is not base64"),
        (b64encode(b"k" * 32).decode(), 0o644, "can be read by others: chmod 600"),
    ],
)
def test_a_key_file_that_cannot_be_used_is_found(
    root: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, mode: int, said: str
) -> None:
    """A node would not start with it, or everybody on the machine could sign."""
    file = root.parent / "keys"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    monkeypatch.setenv("BROADSHEET_NATIVE__KEYS_FILE", str(file))

    finding = node_checks.secrets_check(root)

    assert (finding.verdict, said in finding.text) == (Verdict.BAD, True), finding.text


def test_a_missing_token_for_peers_is_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node starts, and has no majority."""
    monkeypatch.setenv("BROADSHEET_METASTORE__TOKEN_FILE", str(root.parent / "none"))

    assert "metastore.token_file" in node_checks.secrets_check(root).text


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

        assert "node n1: no majority" in finding.text
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


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("rubbish", "holds is no token"),
        ("a.b.c", "holds is no token"),
        (jwt.encode({"exp": 1}, "k" * 32), "expired"),
    ],
)
def test_a_token_that_no_node_takes_is_found(
    root: Path, monkeypatch: pytest.MonkeyPatch, token: str, said: str
) -> None:
    """Every command is refused, and says only that it is."""
    monkeypatch.setenv("BROADSHEET_TOKEN", token)

    finding = node_checks.token_check(root)

    assert (finding.verdict, said in finding.text) == (Verdict.BAD, True)
    assert "token mint" in finding.remedy
