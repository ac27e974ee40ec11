"""The HTTP door answers whoever asks, whatever else is connected to it."""

import asyncio
import io
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from broadsheet.doors.http.door import CONNECTIONS_MAX, TURN_READS_MAX, Connection, DoorConnections
from broadsheet.doors.http.exchange import Page
from broadsheet.doors.native.door import NativeConfig
from broadsheet.doors.status import Status
from broadsheet.node import Node, NodeConfig, Settings
from broadsheet.observe.logs import Logs
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.network import TCPNetwork
from broadsheet.runtime.system import system_ports
from broadsheet.runtime.time import LoopTimers
from broadsheet.wire import frame as f
from tests.wire.harness import until


@asynccontextmanager
async def door(tmp_path: Path, *, open_files_max: int = 1 << 20) -> AsyncIterator[tuple[str, int, Node]]:
    settings = Settings(
        node=NodeConfig(id="n1", cluster="c1"),
        native=NativeConfig(address="127.0.0.1:0"),
        http=msgspec.structs.replace(Settings().http, address="127.0.0.1:0"),
    )
    crashed: list[BaseException] = []
    root = tmp_path / "data"
    root.mkdir(mode=0o700)
    ports = system_ports(LocalDisk(root), crash=crashed.append)
    ports.open_files_max = open_files_max
    node = Node(settings, ports, logs=Logs(io.StringIO(), wall=ports.time.wall, is_console=False))
    addresses = await node.start()
    host, _, port = addresses["http"].rpartition(":")
    try:
        yield host, int(port), node
    finally:
        await node.close()
    assert not crashed


async def ask(host: str, port: int, path: str) -> bytes:
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
    return answer


@pytest.mark.parametrize("data", [b"", b"GET /healthz HTTP/1.1\r\nX-A: "])
async def test_connections_that_ask_nothing_lock_nobody_out(tmp_path: Path, data: bytes) -> None:
    """Reproduced before: 256 silent connections made `/healthz` fail for ten seconds."""
    async with door(tmp_path) as (host, port, _):
        socks = []
        for _ in range(CONNECTIONS_MAX + 20):
            socks.append(socket.create_connection((host, port)))
            socks[-1].sendall(data)
            await asyncio.sleep(0)
        for _ in range(3):
            assert (await ask(host, port, "/healthz")).startswith(b"HTTP/1.1 200 OK")
        for sock in socks:
            sock.close()


async def test_connections_leave_files_for_the_journals(tmp_path: Path) -> None:
    """Where a process may open 1,024 files, one client with 992 connections left none.

    No journal could be opened, and `/healthz` was not answered.
    """
    hello = f.frame(f.HELLO, 0, f.encode(f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", 4 << 20, 9 << 20)))
    async with door(tmp_path, open_files_max=160) as (host, port, node):
        native = node.services.one(Status).read().addresses["native"].rpartition(":")
        writers = []
        for _ in range(80):
            reader, writer = await asyncio.open_connection(native[0], int(native[2]))
            writers.append(writer)
            writer.write(hello)
            await reader.readexactly(f.HEADER_BYTES)
        page = await ask(host, port, "/metrics")

        (line,) = [each for each in page.split(b"\n") if each.startswith(b"broadsheet_wire_connections ")]
        assert float(line.split()[1]) <= 160 // 4
        for writer in writers:
            writer.close()


class CountedPages:
    """Pages that say how many were asked for."""

    def __init__(self) -> None:
        self.count = 0

    def page(self, _path: str) -> Page:
        self.count += 1
        return Page(body=b"x")


async def test_few_requests_are_looked_at_in_one_turn() -> None:
    """A hundred connections that ask in the same moment must not hold the loop up together."""
    pages = CountedPages()
    hall = DoorConnections(pages, LoopTimers(asyncio.get_running_loop()))
    listener = await TCPNetwork().listen("127.0.0.1:0", lambda: Connection(hall))
    host, _, port = listener.address.rpartition(":")
    asking = [asyncio.ensure_future(ask(host, int(port), "/healthz")) for _ in range(100)]
    most = before = 0
    while pages.count < 100:
        await asyncio.sleep(0)
        most, before = max(most, pages.count - before), pages.count
    answers = await asyncio.gather(*asking)
    await listener.close()

    assert all(answer.startswith(b"HTTP/1.1 200 OK") for answer in answers)
    assert most <= 2 * TURN_READS_MAX


async def test_a_whole_request_does_not_wait_behind_many_that_come_in_pieces() -> None:
    """250 connections that sent a byte now and then made `/healthz` wait for all of them."""
    pages = CountedPages()
    hall = DoorConnections(pages, LoopTimers(asyncio.get_running_loop()))
    listener = await TCPNetwork().listen("127.0.0.1:0", lambda: Connection(hall))
    host, _, port = listener.address.rpartition(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(200)]
    for sock in slow:
        sock.sendall(b"G")
    await until(lambda: sum([not each.is_fresh for each in crowd(hall)]) == 200)
    with socket.create_connection((host, int(port))) as asking:
        await until(lambda: len(crowd(hall)) == 201)
        for sock in slow:
            sock.sendall(b"E")
        asking.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        while not pages.count:  # noqa: ASYNC110 - turn by turn, to look in the same turn.
            await asyncio.sleep(0)
        assert len(hall._slow) > 100, "the slow ones were served before it"
    for sock in slow:
        sock.close()
    await until(lambda: not crowd(hall))
    await listener.close()


def crowd(hall: DoorConnections) -> list[Connection]:
    return [connection for each in hall._sources.values() for connection in each]


async def test_a_costly_page_is_made_once_for_many(tmp_path: Path) -> None:
    """`/metrics` costs milliseconds, and anybody may ask for it without end; health is never an old one."""
    async with door(tmp_path) as (host, port, node):
        pages = await asyncio.gather(*[ask(host, port, "/metrics") for _ in range(20)])
        assert len(dict.fromkeys(pages)) <= 3
        status: Status = node.services.one(Status)
        status.state = type(status.state).STOPPING

        assert b"stopping" in await ask(host, port, "/healthz")
        status.state = type(status.state).READY
