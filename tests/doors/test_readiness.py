"""`/readyz` tells whether the node can serve and why not, and its log has each reason once (node.12)."""

import asyncio
import io
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import broadsheet
from broadsheet.base.time import Duration, WallTime
from broadsheet.base.types import NodeId
from broadsheet.cli.running import Running
from broadsheet.doors.readiness import LOOK_INTERVAL, Readiness, ReadinessMetrics
from broadsheet.doors.status import State, Status
from broadsheet.observe.logs import Logs
from broadsheet.runtime.identity import Identity
from broadsheet.runtime.readiness import ReadinessSource, Trouble
from broadsheet.runtime.role import Services
from tests.control.processes import Processes
from tests.doors.test_http import ask, door
from tests.doors.test_status import HandTime
from tests.journal.node_process import CONFIG, NodeProcess
from tests.journal.test_full_disk import NAME, fill, small

__all__ = ["small"]

SECONDS_MAX = 60.0
FULL = Trouble("disk_full", "the disk is full: free some")
STOPPED = Trouble("journals_stopped", "1 of 2 journals is stopped", is_warning=True)


class Roles:
    """A node of two roles whose troubles are set by hand, and what it logs."""

    def __init__(self) -> None:
        self.time, self.log, services = HandTime(), io.StringIO(), Services()
        self.journals: list[Trouble] = []
        services.offer(ReadinessSource, ReadinessSource("keyspace", troubles=list))
        services.offer(ReadinessSource, ReadinessSource("journals", lambda: self.journals))
        identity = Identity(node=NodeId("n1"), cluster="c1", peers={NodeId("n1"): ""}, version="1")
        self.status = Status(identity, self.time, services, lag=lambda: Duration(0))
        logs = Logs(self.log, wall=lambda: WallTime(0), is_console=False)
        self.readiness = Readiness(self.status, services, self.time, logs.of("node"))

    def lines(self) -> list[tuple[str, str, str]]:
        found = [msgspec.json.decode(line) for line in self.log.getvalue().splitlines()]
        return [(each["level"], each["event"], each["cause"]) for each in found]


@pytest.mark.parametrize("state", [State.STARTING, State.STOPPING])
def test_a_node_that_starts_or_stops_is_not_ready(state: State) -> None:
    """Whatever its roles say: they may not have started, or be closed already."""
    roles = Roles()
    roles.status.state = state

    found = roles.readiness.look()

    assert (found.is_ready, found.state) == (False, state.value)


def test_a_warning_leaves_a_node_ready_and_a_trouble_of_one_role_does_not() -> None:
    """One stopped journal of thousands must not send the writers of all others away."""
    roles = Roles()
    roles.status.state = State.READY
    assert roles.readiness.look().is_ready

    roles.journals = [STOPPED]
    assert roles.readiness.look().is_ready
    assert roles.readiness.look().roles["journals"].reasons[0].text == STOPPED.text

    roles.journals = [STOPPED, FULL]
    found = roles.readiness.look()
    assert not found.is_ready
    assert (found.roles["keyspace"].is_ready, found.roles["journals"].is_ready) == (True, False)


def test_each_trouble_is_logged_once_when_it_begins_and_once_when_it_ends() -> None:
    """A node that was full for a week has one line of it, not two million; its numbers change meanwhile."""
    roles = Roles()
    roles.status.state = State.READY
    for free in range(100):
        roles.journals = [STOPPED, Trouble("disk_full", f"{free} MiB free")]
        roles.readiness.look()
    roles.journals = [STOPPED]
    roles.readiness.look()
    roles.journals = [FULL]
    roles.readiness.look()

    assert roles.lines() == [
        ("warning", "trouble.began", "journals_stopped"),
        ("error", "trouble.began", "disk_full"),
        ("info", "trouble.ended", "disk_full"),
        ("error", "trouble.began", "disk_full"),
        ("info", "trouble.ended", "journals_stopped"),
    ]


def test_the_metrics_name_each_role_and_each_trouble() -> None:
    """An alert says which it is without anybody asking the node."""
    roles = Roles()
    roles.status.state, roles.journals = State.READY, [STOPPED, FULL]

    found = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in ReadinessMetrics(roles.readiness).collect()
        for sample in metric.samples
    }

    assert found == {
        ("broadsheet_node_ready",): 0.0,
        ("broadsheet_role_ready", "keyspace"): 1.0,
        ("broadsheet_role_ready", "journals"): 0.0,
        ("broadsheet_role_trouble", "journals", "journals_stopped"): 1.0,
        ("broadsheet_role_trouble", "journals", "disk_full"): 1.0,
    }


async def test_a_node_that_stops_is_alive_and_not_ready(tmp_path: Path) -> None:
    """A supervisor that kills what is not alive must not kill what ends in order (ADR 0203)."""
    async with door(tmp_path) as (host, port, node):
        assert (await ask(host, port, "/readyz")).endswith(b"\r\n\r\nready\n")
        node.status.state = State.STOPPING

        assert (await ask(host, port, "/healthz")).startswith(b"HTTP/1.1 200 OK")
        text = await ask(host, port, "/readyz")
        assert text.startswith(b"HTTP/1.1 503")
        assert text.endswith(b"not ready\nnode: it is stopping\n")
        body = (await ask(host, port, "/readyz?format=json")).partition(b"\r\n\r\n")[2]
        told = msgspec.json.decode(body)
        assert (told["is_ready"], told["state"], [*told["roles"]]) == (
            False,
            "stopping",
            ["metastore", "keyspace", "journals"],
        )
        node.status.state = State.READY


class Watched:
    """A real node's `/readyz`, found by the file in which its process names itself."""

    def __init__(self, data_dir: Path) -> None:
        running = Running.read(data_dir)
        assert running is not None, "it runs"
        self.host, _, port = running.addresses["http"].rpartition(":")
        self.port = int(port)

    async def says(self, status: int, *words: str) -> str:
        """The page, once it has this status and these words."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                page = (await ask(self.host, self.port, "/readyz")).decode()
                if page.startswith(f"HTTP/1.1 {status} ") and all(word in page for word in words):
                    return page
                await asyncio.sleep(0.05)


def logged(log: Path, event: str, cause: str) -> int:
    """How often a node's log tells that a trouble began, or ended."""
    count = 0
    for line in log.read_text().splitlines():
        if line.startswith("{"):
            told = msgspec.json.decode(line)
            count += told["event"] == event and told.get("cause") == cause
    return count


@pytest.mark.needs_root
@pytest.mark.parametrize("percent", [85, 100])
async def test_a_node_with_a_full_disk_is_not_ready_until_there_is_space(small: Path, percent: int) -> None:
    """Health said ready while appends were refused: above the watermark (85), or at the last byte (100)."""
    node = NodeProcess(small)
    (small / "node.toml").write_text(
        CONFIG.replace("used_percent_max = 100", f"used_percent_max = {percent}")
    )
    try:
        assert await node.start(), (small / "node.log").read_text()
        http = Watched(small / "data")
        await http.says(200)
        async with broadsheet.connect(node.address) as client:
            await client.journals.create(NAME, fragment_length=1 << 30)
            ballast = fill(small, leave_bytes=5 << 20 if percent == 85 else 64 << 10)
            appending = asyncio.create_task(_append_on(client))
            page = await http.says(503, "journals: ")
            assert "appends are refused" in page or "no space" in page
            assert "free some" in page.lower()
            assert (await ask(http.host, http.port, "/healthz")).startswith(b"HTTP/1.1 200 OK")

            appending.cancel()
            await asyncio.gather(appending, return_exceptions=True)
            ballast.unlink()
            await http.says(200)
    finally:
        node.kill()


async def _append_on(client: "broadsheet.client.Client") -> None:
    while True:
        try:
            await client.journals.append(NAME, b"x" * 20_000)
        except broadsheet.errors.StoreUnhealthy:
            await asyncio.sleep(0.05)


async def test_a_node_whose_fragment_store_is_gone_is_not_ready_until_it_is_back(tmp_path: Path) -> None:
    """Nobody asks the store for anything meanwhile: the node finds out by itself, and tells it once."""
    node = NodeProcess(tmp_path)
    store, away = tmp_path / "data" / "fragments", tmp_path / "away"
    try:
        assert await node.start(), (tmp_path / "node.log").read_text()
        http = Watched(tmp_path / "data")
        async with asyncio.timeout(SECONDS_MAX):
            while not (store / ".partial").exists():  # noqa: ASYNC110 - another process makes it.
                await asyncio.sleep(0.05)
        shutil.copytree(store, away)
        shutil.rmtree(store)

        page = await http.says(503, "the fragment store cannot be read")
        assert str(tmp_path) not in page, "the page needs no token, and names no path"
        shutil.copytree(away, store)
        await http.says(200)
    finally:
        node.kill()
    assert logged(tmp_path / "node.log", "trouble.began", "store_down") == 1
    assert logged(tmp_path / "node.log", "trouble.ended", "store_down") == 1


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Processes]:
    nodes = Processes(tmp_path)
    for name in nodes.names:
        nodes.start(name)
    try:
        yield nodes
    finally:
        nodes.close()


async def test_a_node_that_lost_its_majority_is_not_ready_until_one_is_there(
    three: Processes, tmp_path: Path
) -> None:
    """Nobody uses the metastore meanwhile; a killed node and one that does not answer are both no vote."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            running = Running.read(tmp_path / "n1")
            if running is not None and "http" in running.addresses:
                break
            await asyncio.sleep(0.05)
    http = Watched(tmp_path / "n1")
    await http.says(200)
    three.kill("n2")
    began = time.monotonic()
    while time.monotonic() < began + 3 * LOOK_INTERVAL / 1e9:
        await http.says(200)
    three.pause("n3")

    await http.says(503, "metastore: no majority")
    three.resume("n3")
    await http.says(200)
    assert logged(tmp_path / "n1.log", "trouble.began", "no_quorum") >= 1
