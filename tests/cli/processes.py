"""Nodes of the command line, for tests: started in a directory of their own, and never left behind."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broadsheet.cli.cluster import PORTS
from tests.journal.node_process import NodeProcess

COMMAND = [sys.executable, "-m", "broadsheet"]
SECONDS_MAX = 60


def environment(**more: str) -> dict[str, str]:
    """Ours, without settings of whoever runs the tests, which may also keep Python from compiling."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("BROADSHEET_", "PYTHON"))
    }
    return {**kept, "COLUMNS": "120", "NO_COLOR": "1", **more}


def broadsheet(*arguments: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
    )


@contextlib.contextmanager
def from_a_terminal() -> Iterator[None]:
    """What is started here is ended by its signals, also where tests run under `nohup` or in the background.

    A signal that is ignored is ignored by children too.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def node_of(root: Path) -> Iterator[NodeProcess]:
    """A node that has the same address after a restart; it is killed afterwards, in any case."""
    node = NodeProcess(root)
    try:
        assert asyncio.run(node.start())
        configuration = root / "node.toml"
        configuration.write_text(
            configuration.read_text().replace('127.0.0.1:0"\n[http]', f'{node.address}"\n[http]')
        )
        yield node
    finally:
        node.kill()


@contextlib.contextmanager
def cluster(root: Path, *, nodes: int = 1) -> Iterator[dict[str, Any]]:
    """A detached cluster on free ports: what `up --json` printed. It is down afterwards, in any case."""
    try:
        done = broadsheet("up", "--data-dir", root, "--nodes", str(nodes), "--any-port", "--detach", "--json")
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)
    finally:
        for pid in pids(root).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        broadsheet("down", "--data-dir", root)


def free_ports(**addresses: str) -> dict[str, str]:
    """Environment by which every door takes a free port, but for those that are given."""
    doors = dict.fromkeys(PORTS, "127.0.0.1:0") | addresses
    return {f"BROADSHEET_{door.upper()}__ADDRESS": address for door, address in doors.items()}


def pids(root: Path) -> dict[str, int]:
    """The processes that say of themselves that they run."""
    found = [json.loads(path.read_bytes()) for path in root.glob("*/running.json")]
    return {each["node"]: each["pid"] for each in found}


def get(address: str, path: str) -> tuple[int, str]:
    """Status and body of a page."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return answer.status, answer.read().decode()
