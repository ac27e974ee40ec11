"""What every network keeps: the words of `ports.Network`, `Transport` and `ByteProtocol`."""

import asyncio
from pathlib import Path

import pytest

from broadsheet.base.types import Buffer
from broadsheet.ports import Network, Transport
from tests.runtime.conformance import LISTEN_AT, NETWORKS, Implementation, over

BUFFER_BYTES = 64 << 10


class Recorder:
    """A protocol that keeps what it was told. Asyncio-free but for its events, as the wire's own is."""

    def __init__(self, *, echo: bool = False) -> None:
        self.transport: Transport | None = None
        self.received = bytearray()
        self.calls: list[str] = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.changed = asyncio.Event()
        self._echo = echo
        self._buffer = bytearray(BUFFER_BYTES)

    def connection_made(self, transport: Transport) -> None:
        self.transport = transport
        self._told("made")

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        content = bytes(self._buffer[:nbytes])
        self.received += content
        if self._echo and self.transport is not None:
            self.transport.write(content)
        self.changed.set()

    def eof_received(self) -> bool | None:
        self._told("eof")
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._told("lost")
        self.lost.set_result(exc)

    def pause_writing(self) -> None:
        self._told("pause")

    def resume_writing(self) -> None:
        self._told("resume")

    def write(self, *parts: Buffer) -> None:
        assert self.transport is not None
        self.transport.writelines(parts)

    async def until_received(self, count: int) -> bytes:
        while len(self.received) < count:
            self.changed.clear()
            await self.changed.wait()
        return bytes(self.received)

    async def until_told(self, call: str) -> None:
        while call not in self.calls:
            self.changed.clear()
            await self.changed.wait()

    def _told(self, call: str) -> None:
        self.calls.append(call)
        self.changed.set()


class Pair:
    """A listener and one connection to it, both ends at hand."""

    def __init__(self) -> None:
        self.accepted: list[Recorder] = []

    async def open(self, network: Network, *, echo: bool = False) -> tuple[Recorder, Recorder]:
        def accept() -> Recorder:
            self.accepted.append(Recorder(echo=echo))
            return self.accepted[-1]

        self.listener = await network.listen(LISTEN_AT, accept)
        dialled = await network.dial(self.listener.address, Recorder)
        assert isinstance(dialled, Recorder)
        while not self.accepted or self.accepted[0].transport is None:  # noqa: ASYNC110 - nobody is told.
            await asyncio.sleep(0)
        return dialled, self.accepted[0]

    async def close(self, *ends: Recorder) -> None:
        await self.listener.close()
        for end in ends:
            assert end.transport is not None
            end.transport.abort()
            await end.lost


@over(NETWORKS)
def test_bytes_arrive_whole_and_in_order_both_ways(implementation: Implementation, tmp_path: Path) -> None:
    """Framing counts on it."""

    async def story(network: Network) -> None:
        pair = Pair()
        client, server = await pair.open(network, echo=True)
        content = b"".join(number.to_bytes(4, "little") for number in range(50_000))
        for at in range(0, len(content), 7777):
            client.write(content[at : at + 5000], memoryview(content)[at + 5000 : at + 7777])

        assert await client.until_received(len(content)) == content
        assert bytes(server.received) == content
        await pair.close(client, server)

    implementation.run(story, tmp_path)


@over(NETWORKS)
def test_a_listener_says_its_port_and_accepts_no_more_once_closed(
    implementation: Implementation, tmp_path: Path
) -> None:
    """Port 0 asks for any; connections that stand outlive their listener."""

    async def story(network: Network) -> None:
        pair = Pair()
        client, server = await pair.open(network, echo=True)
        address = pair.listener.address
        assert address.rpartition(":")[2] not in ("0", "")
        await pair.listener.close()
        with pytest.raises(OSError, match=r"."):
            await network.dial(address, Recorder)

        client.write(b"still here")
        assert await client.until_received(10) == b"still here"
        await pair.close(client, server)

    implementation.run(story, tmp_path)


@over(NETWORKS)
def test_an_address_in_use_is_refused(implementation: Implementation, tmp_path: Path) -> None:
    """Two nodes on one port must not both believe that they serve."""

    async def story(network: Network) -> None:
        listener = await network.listen(LISTEN_AT, Recorder)
        with pytest.raises(OSError, match=r"."):
            await network.listen(listener.address, Recorder)
        await listener.close()

    implementation.run(story, tmp_path)


@over(NETWORKS)
def test_close_sends_what_is_queued_first(implementation: Implementation, tmp_path: Path) -> None:
    """The last reply of a connection is a reply too."""

    async def story(network: Network) -> None:
        pair = Pair()
        client, server = await pair.open(network)
        content = bytes(range(256)) * 8000
        client.write(content)
        assert client.transport is not None
        client.transport.close()
        assert client.transport.is_closing()

        assert await server.until_received(len(content)) == content
        assert await client.lost is None
        assert await server.lost is None
        assert server.calls[-2:] == ["eof", "lost"]
        await pair.close()

    implementation.run(story, tmp_path)


@over(NETWORKS)
def test_abort_ends_both_sides_once(implementation: Implementation, tmp_path: Path) -> None:
    """A connection that broke the protocol is dropped at once; each side is told one time."""

    async def story(network: Network) -> None:
        pair = Pair()
        client, server = await pair.open(network)
        assert client.transport is not None
        client.transport.abort()
        client.transport.abort()
        await client.lost
        await server.lost
        for _ in range(5):
            await asyncio.sleep(0)

        assert client.calls.count("lost") == server.calls.count("lost") == 1
        await pair.close()

    implementation.run(story, tmp_path)


@over(NETWORKS)
def test_a_reader_that_pauses_holds_its_peer_back(implementation: Implementation, tmp_path: Path) -> None:
    """Without it a slow reader is a full memory."""

    async def story(network: Network) -> None:
        pair = Pair()
        client, server = await pair.open(network)
        assert server.transport is not None
        assert client.transport is not None
        server.transport.pause_reading()
        chunk = bytes(1 << 20)
        count = 0
        while "pause" not in client.calls:
            client.write(chunk)
            count += 1
            assert count < 1000, "nothing holds the writer back"
            await asyncio.sleep(0)
        assert client.transport.get_write_buffer_size() > 0

        server.transport.resume_reading()
        await client.until_told("resume")
        await server.until_received(count << 20)
        await pair.close(client, server)

    implementation.run(story, tmp_path)


@over(NETWORKS)
def test_nobody_listening_is_an_error_at_once(implementation: Implementation, tmp_path: Path) -> None:
    """A dead peer's port answers by a refusal, not by silence."""

    async def story(network: Network) -> None:
        listener = await network.listen(LISTEN_AT, Recorder)
        await listener.close()
        with pytest.raises(OSError, match=r"."):
            await network.dial(listener.address, Recorder)

    implementation.run(story, tmp_path)
