"""`serve` in the foreground: how it ends, and what it says where it cannot start."""

import asyncio
import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import msgspec
import pytest

from broadsheet import connect_sync
from broadsheet.cli.running import FILE, Running, is_running
from broadsheet.cli.serve import _started
from broadsheet.control.file import REMEDY
from broadsheet.doors.http.door import HTTPConfig
from broadsheet.doors.native.door import NativeConfig
from broadsheet.doors.status import State
from broadsheet.keyspace.port import Keyspace
from broadsheet.node import Node, NodeConfig, Settings
from broadsheet.observe.logs import Logs
from broadsheet.runtime.data_dir import FORMAT_FILE
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.process import EXIT_WRONG
from broadsheet.runtime.system import system_ports
from tests.cli.processes import (
    COMMAND,
    SECONDS_MAX,
    broadsheet,
    cluster,
    environment,
    free_ports,
    from_a_terminal,
    pids,
)
from tests.control.test_file import HeldDisk, until
from tests.runtime.test_data_dir import take
from tests.support.faulty import Fault


@contextlib.contextmanager
def served(
    root: Path, *prefix: str, out: int = subprocess.DEVNULL, **more: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A node in the foreground that is ready; `prefix` stands before the command, `more` is environment."""
    ready, theirs = os.pipe()
    command = [*prefix, *COMMAND, "serve", "--data-dir", str(root), "--ready-fd", str(theirs)]
    with subprocess.Popen(
        command, pass_fds=[theirs], env=environment(**free_ports(), **more), stdout=out
    ) as process:
        os.close(theirs)
        try:
            with os.fdopen(ready, "rb") as pipe:
                assert json.loads(pipe.readline())["pid"] > 0
            yield process
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def _terminal() -> Iterator[None]:
    with from_a_terminal():
        yield


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_node_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    """A supervisor, Ctrl-C, or the end of the terminal: doors close, and nothing says that it still runs.

    Source: node.1.
    """
    with served(tmp_path / "n1") as process:
        process.send_signal(number)

        assert process.wait(SECONDS_MAX) == 0
    assert not (tmp_path / "n1" / FILE).exists()


@pytest.mark.parametrize("what", ["a full disk", "a reader that is gone"])
def test_a_node_whose_log_cannot_be_written_starts_serves_and_ends(tmp_path: Path, what: str) -> None:
    """`up` puts the log beside the data: a full disk kept the node from its start, and spoilt its end."""
    if what == "a full disk":
        theirs = os.open("/dev/full", os.O_WRONLY)
    else:
        gone, theirs = os.pipe()
        os.close(gone)
    try:
        with served(tmp_path / "n1", out=theirs) as process:
            assert broadsheet("status", "--data-dir", tmp_path / "n1").returncode == 0
            process.send_signal(signal.SIGTERM)

            assert process.wait(SECONDS_MAX) == 0
    finally:
        os.close(theirs)
    assert not (tmp_path / "n1" / FILE).exists()


def test_a_node_without_up_is_asked_by_its_directory(tmp_path: Path) -> None:
    """It was called no data directory, and nobody's, though `doctor` knew it; `down` was the remedy named."""
    root = tmp_path / "served"
    with served(root):
        found = broadsheet("status", "--data-dir", root)
        metastore = broadsheet("metastore", "status", "--data-dir", root)
        replaced = broadsheet("metastore", "replace", "n1", "n2", "--data-dir", root)
        others = [broadsheet(command, "--data-dir", root) for command in ("up", "down")]
    assert (found.returncode, found.stdout.split(",")[0]) == (0, "n1: ready"), found
    assert metastore.returncode == 0, metastore
    assert replaced.returncode == 1
    assert (
        "node n1 stands alone: its metastore is one file, and has no acceptor to replace" in replaced.stderr
    )
    assert f"If that is damaged, {REMEDY}" in replaced.stderr, "what the start of such a node says, too"
    for each in others:
        assert each.returncode == 2
        assert "is the data directory of one node: `broadsheet serve` runs it" in each.stderr
    ended = broadsheet("status", "--data-dir", root)
    assert (ended.returncode, ended.stdout) == (1, f"{root}: down\n")


def test_a_metastore_that_is_not_founded_yet_says_who_is_missing(tmp_path: Path) -> None:
    """It named a command that replaces acceptors, before there was one."""
    peers = '{n1 = "127.0.0.1:1", n2 = "127.0.0.1:1"}'
    with served(tmp_path / "n1", BROADSHEET_NODE__PEERS=peers):
        told = broadsheet("metastore", "status", "--data-dir", tmp_path / "n1")

    assert told.returncode == 1
    assert told.stdout.startswith("metastore (majority): node n1 has not met any member of a cluster;")
    assert "replace" not in told.stdout


def test_a_node_whose_only_peer_is_itself_serves_journals(tmp_path: Path) -> None:
    """It is its whole cluster, and was told that it is one of 1."""
    root = tmp_path / "n1"
    with served(root, BROADSHEET_NODE__PEERS='{n1 = "127.0.0.1:1"}'):
        running = Running.read(root)
        assert running is not None
        with connect_sync(running.addresses["native"]) as client:
            client.journals.create("a/journal")


def test_a_node_whose_starter_is_gone_when_it_is_ready_ends_in_good_order(tmp_path: Path) -> None:
    """It let go of its lock, and then of its directory, with every role at work."""
    ready, theirs = os.pipe()
    os.close(ready)
    command = [*COMMAND, "serve", "--data-dir", str(tmp_path / "n1"), "--ready-fd", str(theirs)]
    with subprocess.Popen(
        command, pass_fds=[theirs], env=environment(**free_ports()), stdout=subprocess.PIPE, text=True
    ) as process:
        os.close(theirs)
        out, _ = process.communicate(timeout=SECONDS_MAX)

    assert process.returncode == 1
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["node.ready", "node.stopping"]
    assert not (tmp_path / "n1" / FILE).exists()


HANGING = """
import asyncio, time
from broadsheet.cli.serve import close_within
from broadsheet.runtime.scope import Scope
from broadsheet.runtime.workers import Workers

async def main():
    scope, workers = Scope("node", crash=print), Workers("store", 1)

    async def upload():
        await workers.do(lambda: time.sleep(600))

    scope.spawn(upload(), name="upload")
    await asyncio.sleep(0.01)
    await close_within(0.1, scope.close, forget=lambda: print("forgotten", flush=True))

asyncio.run(main())
"""


def test_a_node_that_something_holds_ends_all_the_same() -> None:
    """A close that is cancelled waits for its tasks, so a store that hung held a stopping node for ever."""
    ended = subprocess.run(
        [sys.executable, "-c", HANGING],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=environment(),
    )

    assert (ended.returncode, ended.stdout) == (EXIT_WRONG, "forgotten\n")
    assert "not closed within 0.1 s" in ended.stderr


async def test_a_node_that_is_asked_to_stop_while_it_starts_starts_no_further_role(tmp_path: Path) -> None:
    """`down` and Ctrl-C waited for the whole start, which takes a while with ten thousand journals."""
    disk, crashes = HeldDisk(tmp_path), list[BaseException]()
    ports = system_ports(LocalDisk(tmp_path), crash=crashes.append)
    ports.disk = disk
    doors = {"native": NativeConfig(address="127.0.0.1:0"), "http": HTTPConfig(address="127.0.0.1:0")}
    settings = Settings(node=NodeConfig(data_dir=str(tmp_path)), **doors)  # type: ignore[arg-type]
    node = Node(settings, ports, logs=Logs(wall=ports.time.wall, stream=StringIO()))
    stop = asyncio.Event()
    disk.hold()
    starting = asyncio.ensure_future(_started(node, stop, forget=lambda: None))
    await until(disk.reached)  # The metastore writes its first document.
    stop.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not starting.done()
    disk.go.set()

    assert await starting is None
    assert node.status.state is State.STOPPING
    assert node.services.every(Keyspace) == []  # type: ignore[type-abstract]
    assert crashes == []


async def test_a_start_that_fails_says_why_also_where_somebody_waits_for_a_signal(tmp_path: Path) -> None:
    """Its error is what the operator needs."""
    disk = HeldDisk(tmp_path)
    disk.plan(Fault("rename", errno.EIO))
    ports = system_ports(LocalDisk(tmp_path), crash=lambda _: None)
    ports.disk = disk
    node = Node(Settings(), ports, logs=Logs(wall=ports.time.wall, stream=StringIO()))

    with pytest.raises(OSError, match="planned"):
        await _started(node, asyncio.Event(), forget=lambda: None)


def test_under_nohup_the_end_of_the_terminal_is_ignored(tmp_path: Path) -> None:
    """Who says so means it."""
    with served(tmp_path / "n1", "nohup") as process:
        process.send_signal(signal.SIGHUP)
        assert is_running(tmp_path / "n1")
        process.send_signal(signal.SIGTERM)

        assert process.wait(SECONDS_MAX) == 0


@pytest.mark.parametrize("flags", [[], ["--detach"]])
def test_up_that_is_ended_before_its_nodes_are_ready_leaves_none(tmp_path: Path, flags: list[str]) -> None:
    """Ctrl-C in the first second is an end, not a wish to wait; also of what would have been detached."""
    root = tmp_path / "c"
    command = [*COMMAND, "up", "--data-dir", str(root), "--any-port", *flags]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        while not (root / "n1.log").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=SECONDS_MAX)

    assert (process.returncode, out, error) == (130, b"", b"")
    assert pids(root) == {}


def test_up_ends_with_its_terminal_in_good_order(tmp_path: Path) -> None:
    """Its nodes are asked to end, and it waits for them."""
    root = tmp_path / "c"
    command = [*COMMAND, "up", "--data-dir", str(root), "--any-port"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready: n1 ")
        process.send_signal(signal.SIGHUP)

        assert process.wait(SECONDS_MAX) == 0
    assert not is_running(root / "n1")


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A data directory of an earlier run on a file system that takes nothing any more."""
    root = tmp_path / "n1"
    with served(root) as process:
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS_MAX)
    subprocess.run(["mount", "--bind", root, root], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", root], check=True)
    yield root
    subprocess.run(["umount", root], check=True)


@pytest.mark.needs_root
def test_a_read_only_directory_is_said_and_not_a_traceback(read_only: Path) -> None:
    """A file system that an error has made read-only is found by the first restart."""
    done = broadsheet("serve", "--data-dir", read_only, **free_ports())

    assert done.returncode == 2
    assert f"a node cannot start in data directory {read_only}: Read-only file system" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system that is too small for a node's logs."""
    (tmp_path / "tiny").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", tmp_path / "tiny"], check=True)
    yield tmp_path / "tiny"
    subprocess.run(["umount", tmp_path / "tiny"], check=True)


@pytest.mark.needs_root
def test_a_full_disk_at_the_first_start_is_said_and_not_a_traceback(tiny: Path) -> None:
    """With what to do; `doctor` says the same before."""
    done = broadsheet("serve", "--data-dir", tiny / "n1", **free_ports())

    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "make room, or choose a directory that you may write" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Path]:
    """A data directory of an earlier run, stopped in good order, on a file system without a free block."""
    (tmp_path / "disk").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "none", tmp_path / "disk"], check=True)
    root = tmp_path / "disk" / "c"
    with cluster(root):
        pass
    with (tmp_path / "disk" / "full").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    yield root
    subprocess.run(["umount", tmp_path / "disk"], check=True)


@pytest.mark.needs_root
def test_a_full_disk_keeps_no_node_from_its_start_and_none_from_its_end(filled: Path) -> None:
    """W8: reads go on. `status` and `down` did not find a node whose start had no room for its file."""
    up = broadsheet("up", "--data-dir", filled, "--detach", "--json")
    said = json.loads(up.stdout)
    (told,) = said["nodes"]
    process = os.pidfd_open(told["pid"])  # The lock is free, and `down` returns, a moment before it ends.
    try:
        status = broadsheet("status", "--data-dir", filled)
        assert status.stdout.startswith("n1: not ready")
        assert (up.returncode, [each.startswith("n1: journals: ") for each in said["not_ready"]]) == (
            1,
            [True],
        )
        assert "appends need 256: free some" in said["not_ready"][0]
        assert broadsheet("down", "--data-dir", filled).stdout == "n1: stopped\n"
    finally:
        Running(node="n1", pid=told["pid"], addresses={}).signal(signal.SIGKILL)
        assert select.select([process], [], [], 10)[0]
        os.close(process)


@pytest.mark.needs_root
def test_what_a_killed_node_said_of_itself_is_not_believed(tmp_path: Path) -> None:
    """Its number may be another node's by now: `status` would ask, and `down` would end, that one."""
    take(tmp_path / "n1").release()
    Running(node="n1", pid=os.getpid(), addresses={"native": "127.0.0.1:1"}).write(tmp_path / "n1")

    assert Running.read(tmp_path / "n1") is None


def test_a_process_that_is_no_node_gets_no_signal_of_one() -> None:
    """The number of a process that has ended is given to another program, which `down` must not end."""
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            Running(node="n1", pid=stranger.pid, addresses={}).signal(signal.SIGKILL)

            with pytest.raises(subprocess.TimeoutExpired):
                stranger.wait(0.2)
        finally:
            stranger.kill()


def test_a_hint_on_a_full_disk_takes_the_place_of_an_older_one(tiny: Path) -> None:
    """What a killed node left names a process that is no more."""
    old = Running(node="n1", pid=1 << 20, addresses={"native": "127.0.0.1:6640"})
    assert old.write(tiny)
    with (tiny / "full").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    new = Running(node="n1", pid=2, addresses={})

    assert new.write(tiny)
    assert (tiny / FILE).read_bytes() == msgspec.json.encode(new) + b"\n"
    assert sorted(path.name for path in tiny.iterdir()) == ["full", FILE]


def test_a_place_in_the_file_is_beside_the_file(tmp_path: Path) -> None:
    """The directory, and the keys: `serve` may be started from anywhere."""
    (tmp_path / "b.toml").write_text(
        '[node]\ndata_dir = "here"\n[native]\naddress = "127.0.0.1:0"\nkeys_file = "keys"\n'
    )
    done = broadsheet("serve", "--config", tmp_path / "b.toml")

    assert done.returncode == 2
    assert f"cannot read native.keys_file {tmp_path / 'keys'}" in done.stderr
    assert (tmp_path / "here" / FORMAT_FILE).exists()


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("bench", "list", "--json"), "benchmarks"),
        (("config", "show", "--json"), "node.id"),
        (("doctor", "--data-dir", "/nowhere/at/all", "--json"), "findings"),
    ],
)
def test_json_is_json(arguments: tuple[str, ...], kind: str) -> None:
    """Whoever writes a script around a command parses what it prints."""
    assert kind in json.loads(broadsheet(*arguments).stdout)


def test_a_failpoint_that_is_none_is_refused_in_one_line() -> None:
    """Every command ended with a traceback out of an import."""
    done = broadsheet("doctor", BROADSHEET_FAILPOINT="journal.roll.before_put:abc")

    assert done.returncode == 2
    assert done.stderr.startswith("broadsheet: BROADSHEET_FAILPOINT=journal.roll.before_put:abc: it is LABEL")
    assert len(done.stderr.splitlines()) == 1
