"""Cluster: the directory that `broadsheet up` makes, and the processes of its nodes.

    DIR/cluster.json     the nodes, in order
    DIR/n1.toml          the configuration of node n1, which the user may edit
    DIR/n1/              the data of n1
    DIR/n1.log           the output of n1

The first node listens at the default ports plus the offset, and each further one 100 above the one before it
(node.4). This module does not import `broadsheet.node`, so that `up` does not wait for imports that the
processes it starts make anyway.
"""

import fcntl
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import randbelow
from threading import Event
from typing import Final

import msgspec

from broadsheet.cli.running import Running, is_running
from broadsheet.config import read_table
from broadsheet.errors import ConfigError
from broadsheet.runtime.data_dir import FORMAT_FILE, LOCKED, prepare, sync_directory
from broadsheet.runtime.network import PORT_MAX

CLUSTER_FILE: Final = "cluster.json"
UNFINISHED_FILE: Final = "cluster.json.new"
"""The first file of a new cluster. It is renamed to `CLUSTER_FILE` when all other files exist."""
NODE_FILES: Final = ("n[1-9].toml", "n[1-9].toml.new")
CLUSTER_FORMAT: Final = 1
NODES_MAX: Final = 9
PORTS: Final = {"native": 6640, "http": 6680}
PORT_STEP: Final = 100
PORT_ANY_MIN: Final = 10_000
_PORT_TRIES: Final = 50
READY_SECONDS_MAX: Final = 60
READY_LOOK_SECONDS: Final = 0.1
LOG_LINES_SHOWN: Final = 15


class ClusterFile(msgspec.Struct, frozen=True):
    """The content of `cluster.json`."""

    format: int
    nodes: tuple[str, ...]


class Process(msgspec.Struct, frozen=True):
    """A node's process that this command started."""

    node: str
    popen: subprocess.Popen[bytes]
    ready: int
    """The read end of the pipe on which the node reports that it is ready."""
    lifeline: int | None
    """The write end of a pipe: the node ends when it is closed. None if the node is detached."""
    log_begin: int
    """The size of the node's log file when the process was started."""


class Cluster:
    """The nodes below one directory."""

    def __init__(self, root: Path, nodes: Sequence[str]) -> None:
        self.root, self.nodes = root, tuple(nodes)
        self._told: dict[str, Running] = {}
        """The reports of the nodes that this command started. On a full disk a node cannot write its file."""

    @classmethod
    def open(cls, root: Path) -> "Cluster":
        """The cluster in the directory `root`.

        Raises:
            ConfigError: there is none, or its file is damaged or of a newer version.
        """
        try:
            found = msgspec.json.decode((root / CLUSTER_FILE).read_bytes(), type=ClusterFile)
        except OSError as error:
            _must_not_be_of_one_node(root)
            raise ConfigError(
                f"{root} is no data directory of `broadsheet up`: no {CLUSTER_FILE} there. Name the right "
                "one with --data-dir"
            ) from error
        except msgspec.DecodeError as error:
            raise ConfigError(f"{root / CLUSTER_FILE} is damaged: {error}") from error
        if found.format != CLUSTER_FORMAT:
            raise ConfigError(
                f"{root} has cluster format {found.format}, this version reads {CLUSTER_FORMAT}: "
                "use the release that made it"
            )
        return cls(root, found.nodes)

    @classmethod
    def make(cls, root: Path, *, count: int, port_offset: int, has_any_port: bool) -> "Cluster":
        """Make a cluster in a new or empty directory, or in one where an earlier `up` was killed halfway.

        If another `up` makes a cluster there at the same time, that cluster is returned: if two mixed their
        files, their nodes would never find each other.

        Raises:
            ConfigError: the directory holds something else, or a port is out of range or taken.
        """
        _must_not_be_of_one_node(root)
        _must_be_ours_or_empty(root)
        nodes = [f"n{number}" for number in range(1, count + 1)]
        addresses = {
            node: _addresses(number, port_offset=port_offset, has_any_port=has_any_port)
            for number, node in enumerate(nodes)
        }
        try:
            for doors in addresses.values():
                _must_be_free(doors)
        except ConfigError:
            if not (root / CLUSTER_FILE).exists():  # If it exists, its own nodes may have the ports.
                raise
        prepare(root)
        peers = {node: found["native"] for node, found in addresses.items()} if count > 1 else {}
        content = ClusterFile(format=CLUSTER_FORMAT, nodes=tuple(nodes))
        with _alone_in(root):
            if (root / CLUSTER_FILE).exists():
                return cls.open(root)
            _must_be_ours_or_empty(root)
            try:
                # This file comes first. Files beside it then belong to an `up` that may have been killed, and
                # the next `up` may delete them.
                _write_durably(root / UNFINISHED_FILE, msgspec.json.encode(content) + b"\n")
                for left in _unfinished(root):
                    left.unlink()
                for node in nodes:
                    _write(root / f"{node}.toml", _configuration(node, addresses[node], peers).encode())
                (root / UNFINISHED_FILE).replace(root / CLUSTER_FILE)  # The cluster exists from here on.
                sync_directory(root)
            except OSError as error:
                raise ConfigError(
                    f"cannot make a cluster in {root}: {error.strerror or error}; make room, and try again"
                ) from error
        return cls(root, nodes)

    def data_dir(self, node: str) -> Path:
        """The data directory of a node."""
        return self.root / self._setting(node, "node", "data_dir")

    def has_offset(self, port_offset: int) -> bool:
        """Whether the nodes' addresses are those that `port_offset` gives."""
        return all(
            self._setting(node, door, "address") == address
            for number, node in enumerate(self.nodes)
            for door, address in _addresses(number, port_offset=port_offset, has_any_port=False).items()
        )

    def _setting(self, node: str, section: str, field: str) -> str:
        """A value of the node's file that `up` wrote there."""
        path = self.root / f"{node}.toml"
        table = read_table(path).get(section)
        value = table.get(field) if isinstance(table, dict) else None
        if not isinstance(value, str) or not value:
            text = f"{path} has no text {section}.{field}, which `broadsheet up` wrote there: write it anew"
            raise ConfigError(text)
        return value

    def running(self) -> dict[str, Running | None]:
        """Every node with its process, or None if it does not run."""
        return {node: self._running(node) for node in self.nodes}

    def _running(self, node: str) -> Running | None:
        if (found := Running.read(self.data_dir(node))) is not None:
            return found
        return self._told.get(node) if is_running(self.data_dir(node)) else None

    def start(self, *, is_detached: bool, stop: Event | None = None) -> list[Process]:
        """Start every node that does not run, and wait until all nodes are ready.

        Returns the processes that this call started. A node that another command starts meanwhile is not
        among them.

        Args:
            stop: set by a signal to give up.

        Raises:
            ConfigError: a node ended, or took too long.
            KeyboardInterrupt: `stop` was set before all were ready. The started nodes have ended.
        """
        started: list[Process] = []
        others: list[str] = []
        try:
            for node in self.nodes:
                if is_running(self.data_dir(node)):
                    others.append(node)
                else:
                    started.append(self._spawn(node, is_detached=is_detached))
            until = time.monotonic() + READY_SECONDS_MAX
            for process in list(started):
                if not self._is_ready(process, until, stop):
                    started.remove(process)
                    others.append(process.node)
            for node in others:
                self._wait_other(node, until, stop)
        except BaseException:
            for process in started:
                process.popen.terminate()
            for process in started:
                process.popen.wait()
            raise
        return started

    def _spawn(self, node: str, *, is_detached: bool) -> Process:
        ready_read, ready_write = os.pipe()
        command = [sys.executable, "-m", "broadsheet", "serve", "--config", str(self.root / f"{node}.toml")]
        # `status` and `down` look for the node there, whatever the environment says.
        command += ["--data-dir", str(self.data_dir(node)), "--ready-fd", str(ready_write)]
        inherited = [ready_write]
        lifeline_read = lifeline_write = None
        if not is_detached:
            lifeline_read, lifeline_write = os.pipe()
            command += ["--lifeline-fd", str(lifeline_read)]
            inherited.append(lifeline_read)
        with (self.root / f"{node}.log").open("ab") as log:
            log_begin = log.tell()
            popen = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments.
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=inherited,
                start_new_session=True,  # A terminal's Ctrl-C goes to `up`, which then stops nodes in order.
            )
        for fd in inherited:
            os.close(fd)
        return Process(node, popen, ready_read, lifeline_write, log_begin)

    def _is_ready(self, process: Process, until: float, stop: Event | None) -> bool:
        """Wait until a node is ready. False if it ended because another process has its data directory.

        Raises:
            ConfigError: the node ended for another reason, or takes too long.
            KeyboardInterrupt: `stop` was set.
        """
        with os.fdopen(process.ready, "rb") as pipe:
            readable: Sequence[object] = ()
            while not readable and time.monotonic() < until:
                _must_go_on(stop)
                readable, _, _ = select.select([pipe], [], [], READY_LOOK_SECONDS)
            line = pipe.readline() if readable else b""
        if line:
            self._told[process.node] = msgspec.json.decode(line, type=Running)
            return True
        # The pipe is closed, so the process has ended or is about to.
        why = f"ended with status {process.popen.wait()}" if readable else f"took over {READY_SECONDS_MAX} s"
        log = self.root / f"{process.node}.log"
        printed = log.read_bytes()[process.log_begin :].decode(errors="replace").splitlines()
        if readable and any(LOCKED in line for line in printed):
            return False  # Another `up` has started this node: it is not ours to end.
        said = [line for line in printed if line.startswith("broadsheet: ")] or printed[-LOG_LINES_SHOWN:]
        raise ConfigError("\n".join([f"node {process.node} {why}; {log} says:", *(said or ["nothing"])]))

    def _wait_other(self, node: str, until: float, stop: Event | None) -> None:
        """Wait until a node that another command started is ready.

        Raises:
            ConfigError: the node has ended, or takes too long.
            KeyboardInterrupt: `stop` was set.
        """
        data_dir, log = self.data_dir(node), self.root / f"{node}.log"
        while is_running(data_dir):
            _must_go_on(stop)
            running = Running.read(data_dir)
            if running is not None and running.addresses:
                return
            if time.monotonic() > until:
                raise ConfigError(
                    f"node {node} runs, but is not ready after {READY_SECONDS_MAX} s: see {log}, or stop it"
                    f" with `broadsheet down --data-dir {self.root}`"
                )
            time.sleep(READY_LOOK_SECONDS)
        raise ConfigError(f"node {node}, which another command had started, has ended: see {log}; try again")


def _must_go_on(stop: Event | None) -> None:
    if stop is not None and stop.is_set():
        raise KeyboardInterrupt


def data_dirs(root: Path) -> list[Path]:
    """The data directories of the nodes below `root`, or `root` itself."""
    if (root / CLUSTER_FILE).exists():
        cluster = Cluster.open(root)
        return [cluster.data_dir(node) for node in cluster.nodes]
    return [root] if (root / FORMAT_FILE).exists() else []


def running_below(root: Path) -> dict[str, Running | None]:
    """Each node below `root` with its process, or None if it does not run; or the node whose directory it is.

    Raises:
        ConfigError: there is no node, or `cluster.json` is damaged or of a newer version.
    """
    if is_of_one_node(root):
        running = Running.read(root)
        return {running.node if running is not None else str(root): running}
    return Cluster.open(root).running()


def is_of_one_node(root: Path) -> bool:
    """Whether `root` is the data directory of a node that `up` did not make."""
    return (root / FORMAT_FILE).exists() and not (root / CLUSTER_FILE).exists()


def _must_be_ours_or_empty(root: Path) -> None:
    if not root.is_dir() or (root / CLUSTER_FILE).exists():
        return
    ours = {UNFINISHED_FILE, *(path.name for path in _unfinished(root))}
    if strangers := sorted(path.name for path in root.iterdir() if path.name not in ours):
        raise ConfigError(f"{root} is not Broadsheet's, and not empty (it holds {', '.join(strangers[:3])})")


def _unfinished(root: Path) -> list[Path]:
    """The files of an `up` that was killed while it made the cluster. No node has ever read them."""
    if not (root / UNFINISHED_FILE).exists():
        return []
    return [path for pattern in NODE_FILES for path in root.glob(pattern)]


@contextmanager
def _alone_in(root: Path) -> Iterator[None]:
    """Keep other commands from making a cluster in `root`, if its file system can lock directories."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _must_not_be_of_one_node(root: Path) -> None:
    if is_of_one_node(root):
        raise ConfigError(
            f"{root} is the data directory of one node: `broadsheet serve` runs it, and a signal to that"
            " process ends it; `up` and `down` are for directories that `up` made"
        )


def _addresses(number: int, *, port_offset: int, has_any_port: bool) -> dict[str, str]:
    if has_any_port:
        return {door: f"127.0.0.1:{_free_port()}" for door in PORTS}
    ports = {door: port + PORT_STEP * number + port_offset for door, port in PORTS.items()}
    if not 0 < min(ports.values()) <= max(ports.values()) <= PORT_MAX:
        raise ConfigError(
            f"port offset {port_offset} gives ports {sorted(ports.values())}, not 1 to {PORT_MAX}"
        )
    return {door: f"127.0.0.1:{port}" for door, port in ports.items()}


def _must_be_free(doors: dict[str, str]) -> None:
    for door, address in doors.items():
        host, _, port = address.rpartition(":")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As the node does.
            try:
                probe.bind((host, int(port)))
            except OSError as error:
                raise ConfigError(
                    f"the {door} door cannot listen at {address}: {error.strerror}; another cluster "
                    "ends with `broadsheet down --data-dir ITS_DIRECTORY`; this one starts elsewhere with "
                    "--port-offset or --any-port"
                ) from error


def _free_port() -> int:
    """A port that nobody holds now; somebody may take it before the node does, which then says so.

    Below the ports that the kernel gives to clients where it can: one that tries again and again while its
    node is away would some day be given the node's own port, and talk to itself there.
    """
    for _ in range(_PORT_TRIES):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", PORT_ANY_MIN + randbelow(_clients_port_min() - PORT_ANY_MIN)))
            except (OSError, ValueError):
                continue
            port: int = probe.getsockname()[1]
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _clients_port_min() -> int:
    """The lowest port that the kernel gives to clients; Linux's default if that cannot be read."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768


def _configuration(node: str, addresses: dict[str, str], peers: dict[str, str]) -> str:
    """The content of a node's file: only what differs from the defaults."""
    lines = ["[node]", f'id = "{node}"', f'data_dir = "{node}"']
    if peers:
        lines += ["", "[node.peers]", *(f'{name} = "{address}"' for name, address in peers.items())]
    for door, address in addresses.items():
        lines += ["", f"[{door}]", f'address = "{address}"']
    return "\n".join(lines) + "\n"


def _write(path: Path, content: bytes) -> None:
    """Write a file durably, whole or not at all: after a power cut a node's data are useless without it."""
    new = path.with_name(f"{path.name}.new")
    _write_durably(new, content)
    new.replace(path)
    sync_directory(path.parent)


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)
