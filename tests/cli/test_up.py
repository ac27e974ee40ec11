"""`up`, `down` and `serve` over real processes."""

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from broadsheet import connect_sync
from broadsheet.cli.cluster import PORTS, Cluster
from broadsheet.cli.running import is_running, wait_until_ended
from broadsheet.errors import ConfigError, Unsupported
from tests.cli.processes import (
    COMMAND,
    SECONDS_MAX,
    broadsheet,
    cluster,
    environment,
    free_ports,
    from_a_terminal,
    get,
    pids,
)
from tests.plugins.cpu import tree_seconds
from tests.support.powercut import ext4_volume

ONE_NODE_SECONDS = 2.0
THREE_NODES_SECONDS = 5.0
ATTEMPTS = 3
"""The machine may be busy with other tests: the best of a few attempts is what the program can do."""


@pytest.fixture(autouse=True)
def _terminal() -> Iterator[None]:
    with from_a_terminal():
        yield


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """One node that no test of this module changes: its directory, and its doors."""
    root = tmp_path_factory.mktemp("standing") / "c"
    with cluster(root) as found:
        yield root, found["nodes"][0]["addresses"]


def test_one_node_is_ready_in_two_seconds(tmp_path: Path) -> None:
    """Whoever tries it must not wait."""
    assert best_seconds(tmp_path, nodes=1, goal=ONE_NODE_SECONDS) < ONE_NODE_SECONDS


def test_three_nodes_are_ready_in_five_seconds(tmp_path: Path) -> None:
    """Three processes, each with its own ports and directory."""
    assert best_seconds(tmp_path, nodes=3, goal=THREE_NODES_SECONDS) < THREE_NODES_SECONDS


def best_seconds(root: Path, *, nodes: int, goal: float) -> float:
    """Wall seconds of the best attempt, or CPU seconds where they are less: the machine may be busy.

    Starting is one thing after the other, so that on a free machine the two are about the same.
    """
    best = float("inf")
    for attempt in range(ATTEMPTS):
        wall, cpu = time.perf_counter(), tree_seconds()
        with cluster(root / str(attempt), nodes=nodes) as found:
            best = min(best, time.perf_counter() - wall, tree_seconds() - cpu)
            assert [each["node"] for each in found["nodes"]] == [f"n{number + 1}" for number in range(nodes)]
        if best < goal:
            break
    return best


def test_a_ready_node_is_healthy_and_shows_its_metrics(standing: tuple[Path, dict[str, str]]) -> None:
    """Supervisors and Prometheus find it where the output says."""
    address = standing[1]["http"]

    assert get(address, "/healthz") == (200, '{"state":"ready","node":"n1"}\n')
    assert "broadsheet_loop_lag_seconds_bucket" in get(address, "/metrics")[1]
    assert "node n1, ready" in get(address, "/")[1]


def test_down_stops_every_node_and_says_so(tmp_path: Path) -> None:
    """And a second one has nothing to do."""
    root = tmp_path / "c"
    with cluster(root, nodes=2):
        first = broadsheet("down", "--data-dir", root)
        second = broadsheet("down", "--data-dir", root, "--json")

    assert (first.returncode, first.stdout) == (0, "n1: stopped\nn2: stopped\n")
    assert json.loads(second.stdout) == {"nodes": {"n1": "was not running", "n2": "was not running"}}
    assert not is_running(root / "n1")


def test_up_again_starts_only_what_does_not_run(tmp_path: Path) -> None:
    """A killed node is brought back by the same command, and the other is left alone."""
    root = tmp_path / "c"
    with cluster(root, nodes=2):
        before = pids(root)
        os.kill(before["n1"], signal.SIGKILL)
        assert wait_until_ended(root / "n1", seconds=10)

        again = broadsheet("up", "--data-dir", root, "--detach", "--json")

        assert again.returncode == 0, again.stderr
        after = pids(root)
        assert after["n2"] == before["n2"]
        assert after["n1"] != before["n1"]


def test_an_up_that_started_nothing_does_not_say_that_ctrl_c_stops_it(
    standing: tuple[Path, dict[str, str]],
) -> None:
    """It returns at once, and the node runs on: whoever believed it pressed Ctrl-C, and stopped nothing."""
    root, _ = standing

    again = broadsheet("up", "--data-dir", root)

    assert again.returncode == 0, again.stderr
    assert again.stdout.endswith(f"(stop with broadsheet down --data-dir {root})\n")
    assert is_running(root / "n1")


def test_two_ups_at_a_time_end_nobodys_nodes(tmp_path: Path) -> None:
    """Each lost a lock to the other, called that a failure, and ended what it had started: nothing ran."""
    root = tmp_path / "c"
    with cluster(root, nodes=3):
        broadsheet("down", "--data-dir", root)
        command = [*COMMAND, "up", "--data-dir", str(root), "--detach", "--json"]
        rivals = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
            for _ in range(2)
        ]
        told = [rival.communicate(timeout=SECONDS_MAX) for rival in rivals]

        assert [(rival.returncode, error) for rival, (_, error) in zip(rivals, told, strict=True)] == [
            (0, b"")
        ] * 2
        for out, _ in told:
            assert [node["addresses"].keys() for node in json.loads(out)["nodes"]] == [PORTS.keys()] * 3
        assert all(is_running(root / node) for node in ("n1", "n2", "n3"))


def test_two_who_make_a_cluster_in_one_directory_make_one(tmp_path: Path) -> None:
    """Each wrote its own ports over the other's: both said so or said ready, and the nodes never met."""
    for number in range(6):
        root, begin = tmp_path / str(number), threading.Barrier(2)

        def make(root: Path = root, begin: threading.Barrier = begin) -> Cluster:
            begin.wait()
            return Cluster.make(root, count=3, port_offset=0, has_any_port=True)

        with ThreadPoolExecutor(2) as makers:
            made = [future.result() for future in [makers.submit(make) for _ in range(2)]]

        assert [each.nodes for each in made] == [("n1", "n2", "n3")] * 2
        peers = [tomllib.loads((root / f"{n}.toml").read_text())["node"]["peers"] for n in made[0].nodes]
        assert peers == [peers[0]] * 3


@pytest.mark.parametrize("name", ["cluster.json", "thesis.tex"])
def test_what_came_while_a_maker_waited_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Another `up` had made its cluster, or somebody had put a file there: the directory was taken anyway.

    Source: `test_two_who_make_a_cluster_in_one_directory_make_one`, whose race seldom comes so far.
    """
    waits = threading.Event()

    def prepare(root: Path) -> None:
        root.mkdir(exist_ok=True)
        waits.set()  # The maker has looked at the directory, and takes its lock next.

    monkeypatch.setattr("broadsheet.cli.cluster.prepare", prepare)
    content = b'{"format": 1, "nodes": ["n1", "n2"]}'
    with ThreadPoolExecutor(1) as makers:
        fd = os.open(tmp_path, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        made = makers.submit(Cluster.make, tmp_path, count=1, port_offset=0, has_any_port=True)
        assert waits.wait(SECONDS_MAX)
        (tmp_path / name).write_bytes(content)
        os.close(fd)
        if name == "cluster.json":
            assert made.result().nodes == ("n1", "n2")
        else:
            with pytest.raises(ConfigError, match="it holds thesis"):
                made.result()

    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == content


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_cluster_whose_maker_was_killed_is_made_by_the_next_one(tmp_path: Path, count: int) -> None:
    """The directory was called not Broadsheet's, by the command that had begun it."""
    root = tmp_path / "c"
    Cluster.make(root, count=3, port_offset=0, has_any_port=True)
    (root / "cluster.json").rename(root / "cluster.json.new")
    for number in range(count + 1, 4):
        (root / f"n{number}.toml").unlink()
    (root / f"n{count + 1}.toml.new").write_bytes(b"[no")

    again = Cluster.make(root, count=2, port_offset=0, has_any_port=True)

    assert Cluster.open(root).nodes == again.nodes == ("n1", "n2")
    assert sorted(path.name for path in root.iterdir()) == ["cluster.json", "n1.toml", "n2.toml"]


@pytest.mark.parametrize("names", [["n1.toml"], ["cluster.json.new", "thesis.tex"]])
def test_what_no_maker_left_is_somebodys(tmp_path: Path, names: list[str]) -> None:
    """A configuration that somebody wrote for `serve` must not be written over."""
    for name in names:
        (tmp_path / name).write_text("x")

    with pytest.raises(ConfigError, match=f"it holds {names[-1]}"):
        Cluster.make(tmp_path, count=1, port_offset=0, has_any_port=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_up_says_ready_only_when_a_node_that_another_up_starts_is_ready(tmp_path: Path) -> None:
    """It said `ready: n1` without an address, of a node that had only just taken its lock."""
    root = tmp_path / "c"
    with cluster(root):
        broadsheet("down", "--data-dir", root)
        command = [*COMMAND, "up", "--data-dir", str(root), "--detach"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment()) as first:
            while not (starting := pids(root)):
                assert first.poll() is None
            os.kill(starting["n1"], signal.SIGSTOP)
            assert json.loads((root / "n1" / "running.json").read_bytes())["addresses"] == {}
            with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, env=environment()) as second:
                with pytest.raises(subprocess.TimeoutExpired):
                    second.communicate(timeout=1.5)
                os.kill(starting["n1"], signal.SIGCONT)
                out, _ = second.communicate(timeout=SECONDS_MAX)

            assert (first.wait(SECONDS_MAX), second.returncode) == (0, 0)
        assert json.loads(out)["nodes"][0]["addresses"].keys() == PORTS.keys()


def test_up_in_the_foreground_ends_with_its_nodes_on_a_signal(tmp_path: Path) -> None:
    """Ctrl-C leaves no process behind, and no error."""
    root = tmp_path / "c"
    command = [*COMMAND, "up", "--data-dir", str(root), "--any-port"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready: n1 ")
        process.send_signal(signal.SIGINT)

        assert process.wait(SECONDS_MAX) == 0
    assert not is_running(root / "n1")


def test_an_up_whose_words_nobody_can_keep_holds_its_nodes(tmp_path: Path) -> None:
    """It told of one node's death on a full disk, could not, and took all the others along."""
    root = tmp_path / "c"
    command = [*COMMAND, "up", "--nodes", "2", "--any-port", "--data-dir", str(root)]
    with (
        Path("/dev/full").open("wb") as full,
        subprocess.Popen(command, stdout=full, stderr=subprocess.DEVNULL, env=environment()) as process,
    ):
        try:
            until = time.monotonic() + SECONDS_MAX
            while len(started := pids(root)) < 2 or not all(addresses(root)):
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
            os.kill(started["n1"], signal.SIGKILL)
            assert wait_until_ended(root / "n1", seconds=10)

            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            assert is_running(root / "n2")
        finally:
            process.terminate()
            process.wait(SECONDS_MAX)
    assert wait_until_ended(root / "n2", seconds=10)


def addresses(root: Path) -> list[dict[str, str]]:
    """The doors of each node that says that it runs; empty where it is not ready."""
    return [json.loads(path.read_bytes())["addresses"] for path in root.glob("*/running.json")]


def test_an_up_that_fails_leaves_no_node_behind(tmp_path: Path) -> None:
    """One node could not start: the other ran on, in the background, and nobody had been told."""
    root = tmp_path / "c"
    Cluster.make(root, count=2, port_offset=0, has_any_port=True)
    (root / "n2.toml").write_text('[node]\nid = "n2"\ndata_dir = "n2"\n[native]\naddress = "10.0.0.1:1"\n')

    done = broadsheet("up", "--data-dir", root, "--detach")
    left = is_running(root / "n1")
    if left:
        (found,) = pids(root).values()
        os.kill(found, signal.SIGKILL)

    assert not left
    assert done.returncode == 2
    assert "node n2 ended with status 2" in done.stderr


def test_a_killed_up_takes_its_nodes_along(tmp_path: Path) -> None:
    """A node in the foreground must not outlive the terminal that it was started from."""
    root = tmp_path / "c"
    command = [*COMMAND, "up", "--data-dir", str(root), "--any-port"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()

    assert wait_until_ended(root / "n1", seconds=20)


@pytest.mark.needs_root
@pytest.mark.needs_ext4
def test_a_power_cut_right_after_up_leaves_a_cluster_that_starts(tmp_path: Path) -> None:
    """`cluster.json` and each configuration were empty then, and nobody found the data of the nodes again."""
    with ext4_volume(tmp_path) as volume:
        root = volume.path / "new" / "cluster"
        made = Cluster.make(root, count=3, port_offset=0, has_any_port=True)
        before = {path.name: path.read_bytes() for path in root.iterdir()}
        volume.cut()

        assert Cluster.open(root).nodes == made.nodes
        assert {path.name: path.read_bytes() for path in root.iterdir()} == before


def test_the_environment_moves_no_node_out_of_its_cluster(tmp_path: Path) -> None:
    """`up` said ready, `status` that the node is down, and `down` that it was not running: and it ran on."""
    root, elsewhere = tmp_path / "c", str(tmp_path / "elsewhere")
    moved = {"BROADSHEET_NODE__DATA_DIR": elsewhere}
    up = broadsheet("up", "--data-dir", root, "--any-port", "--detach", **moved)
    try:
        status = broadsheet("status", "--data-dir", root)
    finally:
        down = broadsheet("down", "--data-dir", root)

    assert "ready: n1 http" in up.stdout
    assert status.stdout.startswith("n1: ready")
    assert down.stdout == "n1: stopped\n"
    assert not Path(elsewhere).exists()


def test_up_refuses_another_number_of_nodes(standing: tuple[Path, dict[str, str]]) -> None:
    """A cluster does not change its size by a flag."""
    done = broadsheet("up", "--data-dir", standing[0], "--detach", "--nodes", "3")

    assert done.returncode == 2
    assert "is a cluster of 1, not 3" in done.stderr


def test_up_refuses_a_foreign_directory_untouched(tmp_path: Path) -> None:
    """A mistyped path must not fill somebody's home; that is said before the ports are looked at."""
    (tmp_path / "thesis.tex").write_text("x")

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        offset = str(taken.getsockname()[1] - PORTS["native"])
        done = broadsheet("up", "--data-dir", tmp_path, "--detach", "--port-offset", offset)

    assert done.returncode == 2
    assert "it holds thesis.tex" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_up_says_why_a_node_did_not_start(tmp_path: Path) -> None:
    """What a child printed into its log belongs on the terminal when it fails."""
    root = tmp_path / "c"
    with cluster(root):
        pass
    format_file = root / "n1" / "broadsheet.json"
    format_file.write_text(format_file.read_text().replace('"format":1', '"format":99'))

    done = broadsheet("up", "--data-dir", root, "--detach")

    assert done.returncode == 2
    assert "has format 99, newer than this version's 1" in done.stderr
    assert not is_running(root / "n1")


def test_a_directory_of_up_is_not_served_as_one_node(standing: tuple[Path, dict[str, str]]) -> None:
    """It holds the directories of nodes: `serve` called it foreign, and told to restore a file."""
    root, _ = standing
    done = broadsheet("serve", "--data-dir", root)

    assert done.returncode == 2
    assert f"{root} is a directory of `broadsheet up`, and holds those of its nodes" in done.stderr


def test_a_second_process_cannot_serve_the_same_directory(standing: tuple[Path, dict[str, str]]) -> None:
    """The lock, not a file of process ids, is what holds."""
    done = broadsheet("serve", "--config", standing[0] / "n1.toml")

    assert done.returncode == 2
    assert "locked by another process" in done.stderr


def test_a_door_beyond_loopback_is_refused_unless_insecure(tmp_path: Path) -> None:
    """Security that must be switched on is off (access.1)."""
    done = broadsheet("serve", "--data-dir", tmp_path / "n1", **free_ports(http="0.0.0.0:0"))

    assert done.returncode == 2
    assert "open to the network without TLS" in done.stderr


def test_a_taken_port_is_said_with_its_address(standing: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    """Two clusters on the default ports is the most common first mistake."""
    address = standing[1]["http"]
    done = broadsheet("serve", "--data-dir", tmp_path / "n1", **free_ports(http=address))

    assert done.returncode == 2
    assert f"http door cannot listen at {address}" in done.stderr


def test_up_on_a_taken_port_makes_nothing_and_names_the_flags(tmp_path: Path) -> None:
    """Another cluster on the default ports: what to do is said, and the next attempt starts afresh."""
    root = tmp_path / "c"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = broadsheet("up", "--data-dir", root, "--detach", "--port-offset", str(port - PORTS["native"]))

    assert done.returncode == 2
    assert f"the native door cannot listen at 127.0.0.1:{port}: Address already in use" in done.stderr
    assert "--any-port" in done.stderr
    assert not root.exists()


def test_the_same_offset_may_be_said_again(tmp_path: Path) -> None:
    """The command that made it starts it again after a reboot: its own ports were no reason to refuse.

    Source: node.4.
    """
    for offset in range(20_000, 24_000, 100):  # Below the ports that a client's socket is given.
        with suppress(ConfigError):  # Another program of this machine listens there.
            made = Cluster.make(tmp_path / "c", count=2, port_offset=offset, has_any_port=False)
            break

    assert made.has_offset(offset)
    assert not made.has_offset(offset + 1)
    other = broadsheet("up", "--data-dir", made.root, "--detach", "--port-offset", str(offset + 1))
    assert (other.returncode, "has its ports already" in other.stderr) == (2, True)


def test_up_says_what_a_node_said_when_its_port_was_taken_later(tmp_path: Path) -> None:
    """A directory keeps its ports; who has taken one meanwhile is not always another cluster."""
    root = tmp_path / "c"
    with cluster(root) as found:
        address = found["nodes"][0]["addresses"]["native"]
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        taken.listen()
        done = broadsheet("up", "--data-dir", root, "--detach")
        again = broadsheet("up", "--data-dir", root, "--detach", "--any-port")

    assert done.returncode == 2
    assert f"the native door cannot listen at {address}: Address already in use" in done.stderr
    assert "ended with status 2" in done.stderr
    assert again.returncode == 2
    assert f"cannot listen at {address}" in again.stderr, "a directory keeps its ports"


def test_the_same_up_may_be_said_again(tmp_path: Path) -> None:
    """It was refused with `--any-port`, which the first one had: a set-up that is repeated must not fail."""
    root = tmp_path / "c"
    flags = ("up", "--data-dir", root, "--nodes", "1", "--any-port", "--detach", "--json")
    with cluster(root) as found:
        running = broadsheet(*flags)
        before = pids(root)
        broadsheet("down", "--data-dir", root)
        stopped = broadsheet(*flags)

        assert json.loads(running.stdout) == found
        assert stopped.returncode == 0, stopped.stderr
        assert json.loads(stopped.stdout)["nodes"][0]["addresses"] == found["nodes"][0]["addresses"]
        assert pids(root).keys() == before.keys()


def test_the_variable_names_the_node_that_every_command_asks(
    standing: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """`status` and `metastore status` looked into `.broadsheet` all the same. A given directory wins."""
    root, addresses = standing
    there = {"BROADSHEET_ADDRESS": addresses["native"]}

    for command in (
        ("status",),
        ("metastore", "status"),
        ("journals", "list"),
        ("journals", "list", "--json"),
    ):
        asked = broadsheet(*command, **there)
        assert asked.returncode == 0, (command, asked.stderr)
    assert broadsheet("status", **there).stdout.startswith("n1: ready")
    nowhere = broadsheet("status", "--data-dir", tmp_path / "none", **there)
    assert "n1: ready" not in nowhere.stdout
    away = {"BROADSHEET_ADDRESS": "127.0.0.1:1"}
    assert broadsheet("status", "--data-dir", root, **away).stdout.startswith("n1: ready")
    assert broadsheet("metastore", "status", "--data-dir", root, **away).returncode == 0
    assert broadsheet("status", "--address", addresses["native"], **away).stdout.startswith("n1: ready")


def test_journals_without_a_node_say_how_to_find_or_start_one() -> None:
    """The first command of somebody who has not read on."""
    done = broadsheet("journals", "list", "--address", "127.0.0.1:1")

    assert done.returncode == 1
    assert "127.0.0.1:1 cannot be reached" in done.stderr
    assert "start one with `broadsheet up`" in done.stderr


def test_config_show_says_where_each_value_comes_from(tmp_path: Path) -> None:
    """A surprising value is found in one look (code.17)."""
    path = tmp_path / "x.toml"
    path.write_text('[node]\nid = "a"\n')

    done = broadsheet("config", "show", "--origin", "--config", path, BROADSHEET_NODE__LOG_LEVEL="debug")

    assert f'node.id = "a"    # file {path}\n' in done.stdout
    assert 'node.log_level = "debug"    # environment BROADSHEET_NODE__LOG_LEVEL\n' in done.stdout
    assert "# default\n" in done.stdout


def test_what_config_show_prints_is_a_configuration(tmp_path: Path) -> None:
    """The way to a file of one's own: print it, keep the lines that differ."""
    path = tmp_path / "x.toml"
    settings = {
        "BROADSHEET_NODE__PEERS": '{n1 = "127.0.0.1:1", "n-2" = "127.0.0.1:2"}',
        "BROADSHEET_JOURNALS__STORES": '["file:///a/", "file:///b/"]',
        "BROADSHEET_METASTORE__TOKEN_FILE": "/a/token",
        "BROADSHEET_NODE__DATA_DIR": "/a/n1",
    }

    path.write_text(broadsheet("config", "show", "--origin", **settings).stdout)
    again = broadsheet("config", "show", "--config", path)

    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == broadsheet("config", "show", **settings).stdout
    assert 'metastore.token_file = "/a/token"' in again.stdout
    assert 'native.limits.call_timeout = "30s"' in again.stdout


def test_a_mistyped_setting_stops_the_node(tmp_path: Path) -> None:
    """Better no node than one with half of its configuration."""
    done = broadsheet("serve", "--data-dir", tmp_path / "n1", BROADSHEET_NODE__LOGLEVEL="debug")

    assert done.returncode == 2
    assert "there is no setting node.loglevel; did you mean node.log_level?" in done.stderr
    assert not (tmp_path / "n1").exists()


def test_status_tells_who_is_ready_and_who_is_down(tmp_path: Path) -> None:
    """Asked over the native door, and told apart by the exit status."""
    root = tmp_path / "c"
    with cluster(root, nodes=2) as found:
        whole = broadsheet("status", "--data-dir", root, "--json")
        os.kill(pids(root)["n2"], signal.SIGKILL)
        wait_until_ended(root / "n2", seconds=10)
        half = broadsheet("status", "--data-dir", root)
        one = broadsheet("status", "--address", found["nodes"][0]["addresses"]["native"])

    states = [(each["node"], each["state"]) for each in json.loads(whole.stdout)["nodes"]]
    assert (whole.returncode, states) == (0, [("n1", "ready"), ("n2", "ready")])
    assert half.returncode == 1
    assert half.stdout.startswith(("n1: ready, version ", "n1: not ready, version "))
    assert half.stdout.endswith("n2: down\n")
    assert one.stdout.split(",")[0] in ("n1: ready", "n1: not ready")  # Its peer was heard a moment ago.


def test_a_node_that_cannot_serve_is_not_said_to_be_ready(tmp_path: Path) -> None:
    """Every append would be refused: `up` and `status` say why, and the exit status tells scripts."""
    root = tmp_path / "c"
    with cluster(root) as found:
        whole = json.loads(broadsheet("status", "--data-dir", root, "--json").stdout)["nodes"][0]
        assert (whole["state"], whole["reasons"], found["not_ready"]) == ("ready", [], [])
        assert broadsheet("down", "--data-dir", root).returncode == 0
        configuration = root / "n1.toml"
        full = "[journals]\nused_percent_max = 100\nfree_bytes_min = 1125899906842624\n"
        configuration.write_text(configuration.read_text() + full)
        up = broadsheet("up", "--data-dir", root, "--detach")
        again = broadsheet("up", "--data-dir", root, "--detach", "--json")
        status = broadsheet("status", "--data-dir", root)

    assert (up.returncode, up.stdout[:14]) == (1, "not ready: n1 ")
    assert "n1: journals: appends are refused" in up.stdout
    assert again.returncode == 1
    assert json.loads(again.stdout)["not_ready"][0].startswith("n1: journals: appends are refused")
    assert (status.returncode, status.stdout[:14]) == (1, "n1: not ready,")
    assert "  journals: appends are refused" in status.stdout


def test_a_node_that_hangs_hides_no_other_from_metastore_status(tmp_path: Path) -> None:
    """It is asked when something is wrong: the first node of the list may be what is."""
    root = tmp_path / "c"
    with cluster(root, nodes=2):
        os.kill(pids(root)["n1"], signal.SIGSTOP)
        seen = broadsheet("metastore", "status", "--data-dir", root, "--json")

    told = json.loads(seen.stdout)
    assert (seen.returncode, told["node"], told["is_readable"]) == (1, "n2", False)


def test_metastore_status_names_the_remedy_of_a_node_that_lost_its_vote(tmp_path: Path) -> None:
    """Only the first node that answered was looked at: whom an alert sent here saw nothing wrong."""
    root = tmp_path / "c"
    with cluster(root, nodes=3):
        os.kill(pids(root)["n2"], signal.SIGKILL)
        assert wait_until_ended(root / "n2", seconds=10)
        shutil.rmtree(root / "n2" / "metastore")
        assert broadsheet("up", "--data-dir", root, "--detach").returncode == 0

        seen = broadsheet("metastore", "status", "--data-dir", root)
        remedy = re.search(
            r"^(n2#\S+) is no acceptor: .*`broadsheet (metastore replace n2 \1 --data-dir \S+)`$",
            seen.stdout,
            re.MULTILINE,
        )
        assert remedy, seen
        done = broadsheet(*remedy[2].split())
        again = broadsheet("metastore", "status", "--data-dir", root)

    assert done.returncode == 0, done.stderr
    assert remedy[1] in again.stdout
    assert "is no acceptor" not in again.stdout


def test_status_of_nobody_is_unreachable() -> None:
    """Nobody there is an answer, not a stack trace."""
    done = broadsheet("status", "--address", "127.0.0.1:1")

    assert (done.returncode, done.stderr) == (1, "")
    assert "unreachable" in done.stdout


def test_journals_are_refused_with_the_reason_among_peers(tmp_path: Path) -> None:
    """Until they are replicated, several nodes serve the metastore and status only."""
    with cluster(tmp_path / "c", nodes=2) as found:
        address = found["nodes"][0]["addresses"]["native"]

        with connect_sync(address) as client, pytest.raises(Unsupported, match="this node is one of 2"):
            client.journals.create("a/journal")


def test_what_was_appended_is_read_after_a_clean_restart_and_after_a_kill(tmp_path: Path) -> None:
    """The node as a whole: doors, journals, key space and log over one data directory."""
    root = tmp_path / "c"
    with cluster(root) as found:
        with connect_sync(found["nodes"][0]["addresses"]["native"]) as client:
            client.journals.create("a/journal")
            client.journals.append("a/journal", b"one ")
        broadsheet("down", "--data-dir", root)
        second = json.loads(broadsheet("up", "--data-dir", root, "--detach", "--json").stdout)["nodes"][0]
        with connect_sync(second["addresses"]["native"]) as client:
            client.journals.append("a/journal", b"two ")
        os.kill(second["pid"], signal.SIGKILL)
        wait_until_ended(root / "n1", seconds=10)
        third = json.loads(broadsheet("up", "--data-dir", root, "--detach", "--json").stdout)["nodes"][0]
        with connect_sync(third["addresses"]["native"]) as client:
            content = b"".join(bytes(chunk.data) for chunk in client.journals.read("a/journal"))

    assert content == b"one two "


def test_an_append_above_the_limit_says_the_limit_and_is_not_there(tmp_path: Path) -> None:
    """And a setting of the environment reaches the nodes that `up` starts."""
    root = tmp_path / "c"
    small = {"BROADSHEET_JOURNALS__LIMITS__APPEND_BYTES_MAX": "100000"}
    (tmp_path / "big").write_bytes(bytes(100_001))
    try:
        up = broadsheet("up", "--data-dir", root, "--any-port", "--detach", "--json", **small)
        where = {"BROADSHEET_ADDRESS": json.loads(up.stdout)["nodes"][0]["addresses"]["native"]}
        broadsheet("journals", "create", "a/journal", **where)
        refused = broadsheet("journals", "append", "a/journal", tmp_path / "big", **where)
        status = broadsheet("journals", "status", "a/journal", "--json", **where)
    finally:
        broadsheet("down", "--data-dir", root)

    assert refused.returncode == 1
    assert "above limits.append_bytes_max, 100000 bytes" in refused.stderr
    assert json.loads(status.stdout)["end"] == 0
