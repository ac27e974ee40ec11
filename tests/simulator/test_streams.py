"""Simulated connections behave as TCP's do when things go wrong: held back, reset, or silent."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broadsheet.ports import Transport
from simulator.clock import NodeClock
from simulator.links import Links, Profile
from simulator.loop import SimLoop, run_alone
from simulator.streams import HIGH, WINDOW, End, Streams
from simulator.trace import Trace
from simulator.world import Life, World


class Peer:
    """A protocol that remembers what it is told."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.hints: list[int] = []
        self.said: list[str] = []
        self.error: Exception | None = None
        self.transport: Transport
        self.buffer = memoryview(bytearray(1000))

    def connection_made(self, transport: Transport) -> None:
        """It stands."""
        self.transport = transport
        self.said.append("made")

    def get_buffer(self, sizehint: int) -> memoryview:
        """A small buffer."""
        self.hints.append(sizehint)
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Keep the bytes."""
        self.got += self.buffer[:nbytes]

    def eof_received(self) -> bool:
        """Close."""
        self.said.append("eof")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Over."""
        self.error = exc
        self.said.append("lost")

    def pause_writing(self) -> None:
        """Full."""
        self.said.append("pause")

    def resume_writing(self) -> None:
        """Empty again."""
        self.said.append("resume")


class Pair:
    """Two machines, a connection between them, and everything that can be done to it."""

    def __init__(self, world: World, links: Links, streams: Streams) -> None:
        self.world, self.links, self.streams = world, links, streams
        self.up = {"a": True, "b": True}
        self.client, self.server = Peer(), Peer()
        self.lives = {name: Life(name, 1, NodeClock(world, name)) for name in ("a", "b")}

    async def connect(self) -> None:
        """Listen on b, dial from a."""
        await self.streams.port_of(self.lives["b"]).listen("b:1", lambda: self.server)
        await self.streams.port_of(self.lives["a"]).dial("b:1", lambda: self.client)
        await asyncio.sleep(0.1)

    def cut(self, by: int) -> None:
        """Cut both directions, or mend them."""
        for pair in (("a", "b"), ("b", "a")):
            self.links.link(*pair).add("cuts", by)


def story(work: Callable[[Pair], Awaitable[None]]) -> None:
    """Run `work` on a fresh pair, from a life that nothing is done to."""
    world = World(3, Trace())
    links = Links(3, Profile())
    pair: list[Pair] = []
    streams = Streams(world, links, lambda name: pair[0].up.get(name, True))
    pair.append(Pair(world, links, streams))

    async def told(_loop: SimLoop, _life: Life) -> None:
        await pair[0].connect()
        await work(pair[0])

    run_alone(told, world, Life("test", 1))


def test_bytes_arrive_whole_and_in_order_in_odd_chunks() -> None:
    """A stream promises nothing about borders."""

    async def work(pair: Pair) -> None:
        sent = bytes(range(256)) * 2000
        pair.client.transport.write(sent)
        await asyncio.sleep(5)
        assert pair.server.got == sent

    story(work)


def test_a_socket_that_takes_nothing_fills_and_then_sends_all_of_it() -> None:
    """Who waited for the socket is told that it takes bytes again; nothing that was written is lost."""

    async def work(pair: Pair) -> None:
        end = pair.client.transport
        assert isinstance(end, End)
        end.block()
        for number in range(3):
            end.write(bytes([number]) * HIGH)
        await asyncio.sleep(1)
        assert not pair.server.got
        assert pair.client.said == ["made", "pause"]

        end.unblock()
        await asyncio.sleep(5)
        assert pair.server.got == b"".join([bytes([number]) * HIGH for number in range(3)])
        assert pair.client.said == ["made", "pause", "resume"]

    story(work)


def test_what_came_while_nobody_read_is_read_at_once() -> None:
    """A socket gives all that it has: a request and what withdraws it are often in one read."""

    async def work(pair: Pair) -> None:
        pair.server.transport.pause_reading()
        for number in range(5):
            pair.client.transport.write(bytes([number]) * 10)
            await asyncio.sleep(0.1)
        pair.server.transport.resume_reading()
        await asyncio.sleep(1)
        assert pair.server.hints == [50]
        assert len(pair.server.got) == 50

    story(work)


def test_a_reader_that_stops_holds_the_writer_back() -> None:
    """Back-pressure: the window fills, then the buffer; the writer is paused, and resumed."""

    async def work(pair: Pair) -> None:
        pair.server.transport.pause_reading()
        sent = b"x" * (WINDOW + 2 * HIGH)
        pair.client.transport.write(sent)
        await asyncio.sleep(5)
        assert pair.client.said == ["made", "pause"]
        assert pair.client.transport.get_write_buffer_size() >= 2 * HIGH
        assert not pair.server.got

        pair.server.transport.resume_reading()
        await asyncio.sleep(5)
        assert pair.client.said == ["made", "pause", "resume"]
        assert pair.server.got == sent

    story(work)


def test_a_close_delivers_what_was_written_before() -> None:
    """Both ends are told once, and nothing follows."""

    async def work(pair: Pair) -> None:
        pair.client.transport.write(b"last words")
        pair.client.transport.close()
        pair.client.transport.write(b"too late")
        await asyncio.sleep(1)
        assert pair.server.got == b"last words"
        assert pair.server.said == ["made", "eof", "lost"]
        assert pair.client.said == ["made", "lost"]
        assert pair.client.error is None

    story(work)


def test_a_cut_link_holds_bytes_until_it_is_mended() -> None:
    """TCP sends again: a short partition is only a delay."""

    async def work(pair: Pair) -> None:
        pair.cut(1)
        pair.client.transport.write(b"hello")
        await asyncio.sleep(10)
        assert not pair.server.got
        pair.cut(-1)
        await asyncio.sleep(1)
        assert pair.server.got == b"hello"

    story(work)


def test_a_killed_process_resets_its_connections() -> None:
    """Its kernel lives, and tells the peer."""

    async def work(pair: Pair) -> None:
        pair.world.end(pair.lives["b"])
        await asyncio.sleep(1)
        assert isinstance(pair.client.error, ConnectionResetError)
        assert pair.server.said == ["made"]

    story(work)


def test_lost_power_is_silent_until_the_next_boot_is_spoken_to() -> None:
    """Half-open: the peer learns nothing by waiting."""

    async def work(pair: Pair) -> None:
        pair.lives["b"].is_silent = True
        pair.up["b"] = False
        pair.world.end(pair.lives["b"])
        await asyncio.sleep(60)
        pair.client.transport.write(b"are you there")
        await asyncio.sleep(60)
        assert pair.client.said == ["made"]

        pair.up["b"] = True
        await asyncio.sleep(3)
        assert isinstance(pair.client.error, ConnectionResetError)

    story(work)


@pytest.mark.parametrize("is_reset", [True, False])
def test_a_severed_connection_is_reset_or_silently_dead(is_reset: bool) -> None:
    """The two things that a broken middlebox does."""

    async def work(pair: Pair) -> None:
        assert pair.streams.sever([("a", "b"), ("b", "a")], is_reset=is_reset) >= 1
        pair.client.transport.write(b"x")
        await asyncio.sleep(60)
        lost = ["made", "lost"]
        assert pair.client.said == pair.server.said == (lost if is_reset else lost[:1])
        assert not pair.server.got

    story(work)


def test_dialling_says_refused_unreachable_or_nothing_for_a_while() -> None:
    """Nobody listens; the machine is down; the link is cut and mended in time."""

    async def work(pair: Pair) -> None:
        network = pair.streams.port_of(pair.lives["a"])
        with pytest.raises(ConnectionRefusedError):
            await network.dial("b:2", Peer)
        pair.up["b"] = False
        with pytest.raises(TimeoutError):
            await network.dial("b:1", Peer)
        pair.up["b"] = True
        pair.cut(1)
        dialling = asyncio.ensure_future(network.dial("b:1", Peer))
        await asyncio.sleep(2)
        assert not dialling.done()
        pair.cut(-1)
        await asyncio.sleep(3)
        assert dialling.done()
        result: Any = dialling.result()
        assert result.said == ["made"]

    story(work)


def test_a_dial_that_is_given_up_leaves_no_connection_behind() -> None:
    """A kernel resets what nobody has: a server that kept it was told to have leaked a connection."""

    async def work(pair: Pair) -> None:
        server = Peer()
        await pair.streams.port_of(pair.lives["b"]).listen("b:2", lambda: server)
        dialling = asyncio.ensure_future(pair.streams.port_of(pair.lives["a"]).dial("b:2", Peer))
        for _ in range(1_000_000):
            await asyncio.sleep(1e-6)
            if server.said:
                break
        assert not dialling.done()
        dialling.cancel()
        await asyncio.sleep(1)
        assert server.said == ["made", "lost"]

    story(work)
