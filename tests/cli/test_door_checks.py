"""The doctor tells of doors that could not be opened, peers that nobody reaches, and missing descriptors."""

import resource
import socket
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest

from broadsheet.cli import door_checks
from broadsheet.cli.cluster import Cluster
from broadsheet.cli.findings import Verdict
from broadsheet.cli.running import Running
from tests.cli.processes import COMMAND, broadsheet, cluster, environment, pids


def made(tmp_path: Path, *, count: int = 1) -> Path:
    """The directory of nodes that `up` made, and did not start."""
    return Cluster.make(tmp_path / "c", count=count, port_offset=0, has_any_port=True).root


def listen(root: Path, node: str, **addresses: str) -> None:
    """Have the doors of a node listen elsewhere."""
    file = root / f"{node}.toml"
    text = file.read_text()
    begin = min(text.index(f"[{door}]") for door in ("native", "http"))
    doors = {"native": "127.0.0.1:0", "http": "127.0.0.1:0"} | addresses
    sections = "".join(f'[{door}]\naddress = "{address}"\n' for door, address in doors.items())
    file.write_text(text[:begin] + sections)


def test_a_machine_that_allows_few_descriptors_is_found(tmp_path: Path) -> None:
    """A node with ten thousand journals needs more; a low soft limit is none, for a node raises it."""
    said = {
        limit: subprocess.run(
            [
                "/bin/sh",
                "-c",
                f'ulimit {limit}; exec "$0" "$@"',
                *COMMAND,
                "doctor",
                "--data-dir",
                str(tmp_path),
            ],
            check=False,
            capture_output=True,
            text=True,
            env=environment(),
        ).stdout
        for limit in ("-n 256", "-Sn 256")
    }

    assert "warn open files: a node started here may open 256 files at most" in said["-n 256"]
    assert "ok   open files: a node started here may open" in said["-Sn 256"]


def test_a_node_that_has_no_descriptors_left_is_found(tmp_path: Path) -> None:
    """Appends wait for one, and are refused after some seconds."""
    root = tmp_path / "c"
    with cluster(root):
        assert door_checks.limits_check(root).verdict is Verdict.GOOD
        (pid,) = pids(root).values()
        count = len([*Path(f"/proc/{pid}/fd").iterdir()])
        hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (count, hard))

        finding = door_checks.limits_check(root)

        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
    assert finding.verdict is Verdict.BAD
    assert f"files open, and may have {count}: appends and reads wait for one" in finding.text


def test_a_door_that_cannot_be_opened_is_found_with_its_cause(tmp_path: Path) -> None:
    """All of it was called taken by another process, and nobody found that one."""
    root = made(tmp_path)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        taken = f"127.0.0.1:{stranger.getsockname()[1]}"
        listen(root, "n1", native=taken, http="192.0.2.1:6680")

        finding = door_checks.ports_check(root)

    assert finding.verdict is Verdict.BAD
    assert f"{taken} (native door of n1) is taken by another process" in finding.text
    assert "192.0.2.1:6680 (http door of n1) is no address of this machine" in finding.text


def test_two_doors_at_one_address_are_found(tmp_path: Path) -> None:
    """A file that was copied for the next node: the second one does not start."""
    root = made(tmp_path, count=2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    listen(root, "n1", http=address)
    listen(root, "n2", http=address)

    finding = door_checks.ports_check(root)

    assert finding.verdict is Verdict.BAD
    assert f"{address} (http door of n2) is that of the http door of n1 as well" in finding.text


def test_a_door_that_is_open_to_the_network_is_found(tmp_path: Path) -> None:
    """The node refuses to start so, unless somebody says that the network is trusted."""
    root = made(tmp_path)
    listen(root, "n1", native="0.0.0.0:0")
    finding = door_checks.ports_check(root)
    (root / "n1.toml").write_text(
        (root / "n1.toml").read_text().replace("[node]", "[node]\nis_insecure = true")
    )

    assert finding.verdict is Verdict.WARNING
    assert "would be open to the network without TLS" in finding.text
    assert door_checks.ports_check(root).verdict is Verdict.GOOD


def test_peers_that_do_not_know_each_other_are_found(tmp_path: Path) -> None:
    """Each node starts, and none of them has a majority."""
    root = made(tmp_path, count=3)
    assert door_checks.peers_check(root).verdict is Verdict.GOOD
    before = (root / "n2.toml").read_text()
    lines = [line for line in before.splitlines() if not line.startswith("n3 =")]
    (root / "n2.toml").write_text("\n".join(lines) + "\n")
    without = door_checks.peers_check(root)
    (root / "n2.toml").write_text(before)
    listen(root, "n3", native="127.0.0.1:7001")

    moved = door_checks.peers_check(root)

    assert (without.verdict, moved.verdict) == (Verdict.BAD, Verdict.BAD)
    assert "node.peers of n2 names n1, n2, and the nodes are n1, n2, n3" in without.text
    assert "and it listens at 127.0.0.1:7001" in moved.text


@pytest.mark.parametrize(
    ("address", "said"), [("localhost", "is not host:port"), ("127.0.0.1:1", "127.0.0.1:1")]
)
def test_an_address_that_leads_to_no_node_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, said: str
) -> None:
    """A variable of yesterday: every command fails, and the nodes are well."""
    monkeypatch.setenv("BROADSHEET_ADDRESS", address)

    finding = door_checks.address_check(tmp_path)

    assert (finding.verdict, said in finding.text) == (Verdict.BAD, True), finding.text
    assert "BROADSHEET_ADDRESS" in finding.remedy


def test_an_address_that_leads_to_a_node_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the node asks for a token that this shell has not."""
    (tmp_path / "keys").write_bytes(b64encode(b"k" * 32))
    for name, settings in (("c", {}), ("d", {"BROADSHEET_NATIVE__KEYS_FILE": str(tmp_path / "keys")})):
        root = tmp_path / name
        try:
            broadsheet("up", "--data-dir", root, "--any-port", "--detach", **settings).check_returncode()
            running = Running.read(root / "n1")
            assert running is not None
            monkeypatch.setenv("BROADSHEET_ADDRESS", running.addresses["native"])

            assert door_checks.address_check(tmp_path).verdict is Verdict.GOOD
        finally:
            broadsheet("down", "--data-dir", root)
