"""Addresses are taken apart and put together without surprises; sockets are prepared."""

import asyncio
import socket
from typing import ClassVar

import pytest

from broadsheet.errors import InvalidArgument
from broadsheet.ports import Transport
from broadsheet.runtime.network import (
    ACCEPTS_MAX,
    FINISHED_MAX,
    KEEPALIVE_IDLE_S,
    SILENT_MAX,
    SILENT_TAKES_MAX,
    SPOKEN_MAX,
    TAKES_MAX,
    TCPListener,
    TCPNetwork,
    join_address,
    split_address,
)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("localhost:6640", "localhost", 6640), ("127.0.0.1:0", "127.0.0.1", 0), ("[::1]:6640", "::1", 6640)],
)
def test_an_address_is_host_and_port(address: str, host: str, port: int) -> None:
    """Both families, and back."""
    assert split_address(address) == (host, port)
    assert join_address(host, port) == address


@pytest.mark.parametrize(
    "address", ["", "host", ":1", "host:", "host:x", "host:-1", "host:65536", "::1:80", "host:1:2", "host:٣"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    """A mistyped address must not become another one."""
    with pytest.raises(InvalidArgument, match="address"):
        split_address(address)


@pytest.mark.parametrize(
    "address",
    ["\ufdfa" * 300_000 + ":1", "host:" + "1" * 5000, "x." * 126 + "xx:65535"],
    ids=["slow to encode", "no number", "one too long"],
)
def test_an_address_that_is_too_long_is_refused_before_anything_looks_at_it(address: str) -> None:
    """While a name of `metastore.replace` was encoded for its look-up, the node stood still (node.2)."""
    with pytest.raises(InvalidArgument, match="characters: 259 at most"):
        split_address(address)


def test_the_longest_name_is_an_address() -> None:
    """253 characters, as the Domain Name System has them."""
    host = "x." * 126 + "x"
    assert split_address(f"{host}:65535") == (host, 65535)


class Silent:
    """A protocol that keeps its transport."""

    transport: Transport

    def connection_made(self, transport: Transport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(bytearray(max(sizehint, 1)))

    def buffer_updated(self, nbytes: int) -> None:
        """Ignore it."""

    def eof_received(self) -> bool | None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Ignore it."""

    def pause_writing(self) -> None:
        """Ignore it."""

    def resume_writing(self) -> None:
        """Ignore it."""


async def test_both_ends_send_at_once_and_notice_a_dead_host() -> None:
    """Nagle's delay would add to every acknowledgement; a host that lost power sends no reset."""
    network = TCPNetwork()
    accepted: list[Silent] = []

    def accept() -> Silent:
        accepted.append(Silent())
        return accepted[-1]

    listener = await network.listen("127.0.0.1:0", accept)
    dialled = await network.dial(listener.address, Silent)
    assert isinstance(dialled, Silent)
    await asyncio.sleep(0.01)
    for end in (dialled, accepted[0]):
        assert isinstance(end.transport, asyncio.Transport)
        sock = end.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEPALIVE_IDLE_S
        end.transport.abort()
    await listener.close()
    await asyncio.sleep(0)


class Counted(asyncio.BufferedProtocol):
    """Says how many connections were made."""

    made = lost = 0

    def connection_made(self, transport: object) -> None:
        Counted.made += 1

    def connection_lost(self, exc: Exception | None) -> None:
        Counted.lost += 1

    def get_buffer(self, sizehint: int) -> bytearray:
        return bytearray(16)

    def pause_writing(self) -> None:
        """Nothing is written."""

    def resume_writing(self) -> None:
        """Nothing is written."""


async def test_few_connections_are_taken_in_one_turn_of_the_loop() -> None:
    """A client that connects faster than we accept held the loop's own server in one callback for ever."""
    Counted.made = 0
    listener = await TCPNetwork().listen("127.0.0.1:0", Counted)  # type: ignore[arg-type]  # all it needs
    host, port = split_address(listener.address)
    socks = [socket.create_connection((host, port)) for _ in range(200)]
    for sock in socks:
        sock.sendall(b"x")
    most = before = 0
    while Counted.made < 200:
        await asyncio.sleep(0)
        most, before = max(most, Counted.made - before), Counted.made
    await listener.close()

    assert most <= 2 * TAKES_MAX
    for sock in socks:
        sock.close()


async def test_fewer_are_taken_in_one_turn_of_many_that_say_nothing() -> None:
    """They are most often a flood: a protocol for each costs the time in which others are served."""
    Counted.made = Counted.lost = 0
    listener = await TCPNetwork().listen("127.0.0.1:0", Counted)  # type: ignore[arg-type]  # all it needs
    address = split_address(listener.address)
    socks = [socket.create_connection(address) for _ in range(100)]
    most = before = 0
    async with asyncio.timeout(10):
        while Counted.made < 50:
            await asyncio.sleep(0)
            most, before = max(most, Counted.made - before), Counted.made
        while Counted.made < 100:  # noqa: ASYNC110 - the condition is the other side of a socket.
            await asyncio.sleep(0)
    await listener.close()

    assert most <= 2 * SILENT_TAKES_MAX
    await all_lost(socks, 100)


async def test_a_connection_that_was_closed_before_it_was_taken_costs_nothing() -> None:
    """Nothing is made for who has gone."""
    Counted.made = 0
    listener = await TCPNetwork().listen("127.0.0.1:0", Counted)  # type: ignore[arg-type]  # all it needs
    host, port = split_address(listener.address)
    for _ in range(50):
        socket.create_connection((host, port)).close()
    with socket.create_connection((host, port)) as last:
        last.sendall(b"x")
        async with asyncio.timeout(10):
            while not Counted.made:  # noqa: ASYNC110 - the condition is the other side of a socket.
                await asyncio.sleep(0)
    await listener.close()

    assert Counted.made == 1


async def test_who_has_gone_keeps_nobody_behind_it_waiting() -> None:
    """All that wait are taken in one turn, also those that came after one that has gone."""
    Counted.made = 0
    listener = await TCPNetwork().listen("127.0.0.1:0", Counted)  # type: ignore[arg-type]  # all it needs
    loop, turns = asyncio.get_running_loop(), [0]
    loop.remove_reader(listener._sock.fileno())
    address = split_address(listener.address)
    for _ in range(5):
        socket.create_connection(address).close()
    with socket.create_connection(address):
        listener._accept()
        async with asyncio.timeout(10):
            while not Counted.made:
                turns[0] += 1
                await asyncio.sleep(0)
        await listener.close()

    assert Counted.made == 1


class Hearing(Counted):
    """Knows how many were made when bytes came."""

    made_before: ClassVar[list[int]] = []

    def buffer_updated(self, nbytes: int) -> None:
        Hearing.made_before.append(Counted.made)


class Asked(Counted):
    """Knows how many were made when somebody asked for health."""

    made_before: ClassVar[list[int]] = []

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes > 1:
            Asked.made_before.append(Counted.made)


async def test_who_has_sent_something_does_not_wait_behind_those_that_have_not() -> None:
    """A thousand connections without a word stood before each request for health: that took 0.2 s.

    Where the kernel's queue was full, it took a second more.
    """
    Counted.made = 0
    Hearing.made_before.clear()
    listener = await TCPNetwork().listen("127.0.0.1:0", Hearing)  # type: ignore[arg-type]  # all it needs
    address = split_address(listener.address)
    silent = [socket.create_connection(address) for _ in range(300)]
    with socket.create_connection(address) as last:
        last.sendall(b"x")
        async with asyncio.timeout(10):
            while not Hearing.made_before:
                await asyncio.sleep(0)
                assert len(listener._silent) <= SILENT_MAX + ACCEPTS_MAX
        await listener.close()

    assert Hearing.made_before[0] < 300 // 2
    assert not listener._silent
    for sock in silent:
        sock.close()
    await asyncio.sleep(0.01)


async def crowd(
    kind: type[Counted], count: int, *, open_files_max: int = 1 << 20
) -> tuple[TCPListener, list[socket.socket]]:
    """A listener, and sockets that have sent it a byte each."""
    Counted.made = Counted.lost = 0
    Asked.made_before.clear()
    network = TCPNetwork(open_files_max=open_files_max)
    listener = await network.listen("127.0.0.1:0", kind)  # type: ignore[arg-type]  # all it needs
    asking = [socket.create_connection(split_address(listener.address)) for _ in range(count)]
    for sock in asking:
        sock.sendall(b"x")
    return listener, asking


async def all_lost(socks: list[socket.socket], count: int) -> None:
    """Close `socks`, and wait until the `count` of them that were taken are lost."""
    for sock in socks:
        sock.close()
    async with asyncio.timeout(10):
        while Counted.lost < count:  # noqa: ASYNC110 - the condition is the other side of a socket.
            await asyncio.sleep(0)


async def test_who_has_sent_something_is_not_closed_to_make_room() -> None:
    """A flood of requests closed the oldest ones that waited, and requests for health among them."""
    listener, asking = await crowd(Counted, 700)
    async with asyncio.timeout(10):
        while Counted.made < 700:
            await asyncio.sleep(0)
            assert len(listener._spoken) <= SPOKEN_MAX + ACCEPTS_MAX
    await listener.close()
    await all_lost(asking, 700)


async def test_few_connections_wait_where_there_are_few_descriptors() -> None:
    """Those that waited took the descriptors that journals need: a door may keep 256 of 300 waiting."""
    most = 0
    listener, asking = await crowd(Counted, 300, open_files_max=160)
    async with asyncio.timeout(10):
        while Counted.made < 300:
            await asyncio.sleep(0)
            most = max(most, len(listener._spoken))
    await listener.close()
    await all_lost(asking, 300)

    assert most <= 160 // 4


async def test_the_last_of_many_does_not_wait_for_all_that_came_before() -> None:
    """A client that connected faster than we took made a request for health wait for 0.1 s and more."""
    listener, asking = await crowd(Asked, 600)
    with socket.create_connection(split_address(listener.address)) as last:
        last.sendall(b"health")
        async with asyncio.timeout(10):
            while not Asked.made_before:  # noqa: ASYNC110 - the other side of a socket.
                await asyncio.sleep(0)
        assert Asked.made_before[0] < 450
        async with asyncio.timeout(10):
            while Counted.made < 601:  # noqa: ASYNC110 - the other side of a socket.
                await asyncio.sleep(0)
        await listener.close()
    await all_lost(asking, 601)


async def test_who_waits_for_an_answer_waits_behind_nobody_who_has_finished() -> None:
    """Requests that a client left filled door and kernel: a request for health waited for 0.1 s, and 0.2 s.

    Whoever said that it sends no more is served later, and the oldest are closed if they are too many.
    """
    listener, left = await crowd(Asked, 600)
    for sock in left:
        sock.shutdown(socket.SHUT_WR)
    with socket.create_connection(split_address(listener.address)) as last:
        last.sendall(b"health")
        async with asyncio.timeout(10):
            while not Asked.made_before:
                await asyncio.sleep(0)
                assert len(listener._finished) <= FINISHED_MAX + ACCEPTS_MAX
            while listener._finished or listener._taking:  # noqa: ASYNC110 - the other side of a socket.
                await asyncio.sleep(0)
        await listener.close()
    await all_lost(left, Counted.made)

    assert Asked.made_before[0] < 150
    assert Counted.made > FINISHED_MAX


async def test_who_finishes_while_it_waits_is_served_all_the_same() -> None:
    """A client may send its request and say that this is all: it was closed without an answer."""
    listener, asking = await crowd(Counted, 4 * TAKES_MAX)
    async with asyncio.timeout(10):
        while not listener._spoken:  # noqa: ASYNC110 - the other side of a socket.
            await asyncio.sleep(0)
        for sock in asking:
            sock.shutdown(socket.SHUT_WR)
        while Counted.made < len(asking):  # noqa: ASYNC110 - the other side of a socket.
            await asyncio.sleep(0)
    await listener.close()
    await all_lost(asking, len(asking))


class Placed(Counted):
    """Knows from where its connections come."""

    sources: ClassVar[list[str]] = []

    def connection_made(self, transport: object) -> None:
        assert isinstance(transport, asyncio.BaseTransport)
        Placed.sources.append(transport.get_extra_info("peername")[0])


async def test_the_source_with_the_most_silent_connections_loses_one_of_them_first() -> None:
    """Otherwise a flood from one host would cost the others their connections, which are older."""
    Placed.sources.clear()
    Counted.lost = 0
    listener = await TCPNetwork().listen("127.0.0.1:0", Placed)  # type: ignore[arg-type]  # all it needs
    address = split_address(listener.address)
    socks = [socket.create_connection(address, source_address=("127.0.0.2", 0)) for _ in range(60)]
    socks += [socket.create_connection(address) for _ in range(700)]
    async with asyncio.timeout(10):
        while Placed.sources.count("127.0.0.2") < 60:  # noqa: ASYNC110 - the other side of a socket.
            await asyncio.sleep(0)
    await listener.close()
    await all_lost(socks, len(Placed.sources))
