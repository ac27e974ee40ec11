"""The byte streams of tier 2: the `Network` port with delays, odd chunks, back-pressure, half-open and reset.

Sizes are bytes. One direction of a connection is an *end*'s outgoing buffer, what is flying, and what the
peer has not read; a full window stops it, a full buffer pauses the writer. A cut link holds bytes back
until it is mended, as TCP does by sending again. A killed process resets its connections; one that lost
power tells nobody, and its peers learn it when they send to the machine's next boot.
    end: OPEN --close--> CLOSING --flushed--> LOST; --abort|reset|peer's end--> LOST. Silent ends stay OPEN.
It does not do: loss, doubling or reordering within a stream (TCP has none).
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from broadsheet.base.types import Buffer
from broadsheet.ports import ByteProtocol
from simulator.links import Link, Links
from simulator.moments import Gone
from simulator.violation import Violation
from simulator.world import Life, World

WINDOW: Final = 256 * 1024
CHUNK: Final = 64 * 1024
HIGH: Final = 64 * 1024
LOW: Final = 16 * 1024
RETRY_NS: Final = 1_000_000_000
CONNECT_NS: Final = 20_000_000_000
LOOPBACK: Final = ("127.0.0.1", "localhost", "0.0.0.0", "[::1]")  # noqa: S104 - nothing is bound.
FIRST_PORT: Final = 20_000


class End:
    """One end of a connection: the `Transport` of its protocol."""

    def __init__(self, streams: "Streams", life: Life, link: Link) -> None:
        self.streams, self.life, self.link = streams, life, link
        self.peer: End
        self.protocol: ByteProtocol
        self.is_broken = False
        """Half-open: nothing passes any more, and nobody is told."""
        self.is_lost = False
        self._is_closing = self._is_reading = self._has_begun = False
        self._has_sent_end = False
        self._is_write_paused = False
        self._is_blocked = False
        self._outgoing: deque[bytes] = deque()
        self._outgoing_bytes = 0
        self.flying_bytes = 0
        self._last_arrival = 0
        self._stalled: deque[bytes | None] = deque()
        self.incoming: deque[bytes | None] = deque()
        self._is_feeding = False
        link.on_mend.append(self._mended)

    # -- Transport

    def write(self, data: Buffer) -> None:
        """Queue bytes."""
        if self.life.is_dead or self._is_closing or self.is_lost or not data:
            return
        data = bytes(data)
        if self.streams.tap is not None:
            self.streams.tap.wrote(self, data)
        self._outgoing.append(data)
        self._outgoing_bytes += len(data)
        self.pump()
        if self._outgoing_bytes > HIGH and not self._is_write_paused:
            self._is_write_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Sequence[Buffer]) -> None:
        """Queue many buffers as one write."""
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """Bytes not yet on their way."""
        return self._outgoing_bytes

    def pause_reading(self) -> None:
        """Keep what comes, so that the window fills."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Go on."""
        if not self._is_reading and not self.is_lost:
            self._is_reading = True
            self.feed_soon()

    @property
    def is_reading(self) -> bool:
        """Whether its protocol wants what comes."""
        return self._is_reading

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        return self._is_closing or self.is_lost

    def close(self) -> None:
        """Send what is queued, then close."""
        if not self.is_closing():
            self._is_closing = True
            self._is_reading = False
            self.pump()

    def abort(self) -> None:
        """Close at once, and reset the peer."""
        if self.is_lost or self.life.is_dead:
            return
        self._is_closing = True
        self.send_reset()
        self.lose(None)

    def block(self) -> None:
        """Send nothing until `unblock`: the socket fills."""
        self._is_blocked = True

    def unblock(self) -> None:
        """Send on. What was written meanwhile goes as one piece, as a kernel sends it."""
        self._is_blocked = False
        if self._outgoing:
            self._outgoing = deque([b"".join(self._outgoing)])
        self.pump()

    # -- the network's side

    def begin(self, protocol: ByteProtocol) -> None:
        """The connection stands, unless it was lost on the way."""
        if self.is_lost:
            return
        self.protocol, self._is_reading, self._has_begun = protocol, True, True
        protocol.connection_made(self)
        self.feed_soon()

    def accept(self, factory: Callable[[], ByteProtocol]) -> None:
        """The listener's side of `begin`."""
        if not self.is_lost:
            self.begin(factory())

    def lose(self, error: Exception | None) -> None:
        """Tell the protocol, once, that it is over."""
        if self.is_lost:
            return
        self.is_lost = True
        self._outgoing.clear()
        self._outgoing_bytes = 0
        self.link.on_mend.remove(self._mended)
        self.streams.forget(self)
        if self.streams.tap is not None:
            self.streams.tap.lost(self)
        self.streams.world.soon(self.life, self._tell_lost, error)

    def send_reset(self) -> None:
        """A reset goes to the peer; a cut link swallows it."""
        world, peer = self.streams.world, self.peer
        if self.is_broken or self.link.cuts:
            return
        delay = self.link.delay(self.link.draws.bits() >> 20)
        world.at(world.now + delay, None, peer.got_reset, self.link)

    def got_reset(self, link: Link | None = None) -> None:
        """A reset came."""
        if not self.life.is_dead and not (link is not None and link.cuts):
            self.lose(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    def _tell_lost(self, error: Exception | None) -> None:
        self.incoming.clear()
        if self._has_begun:
            self.protocol.connection_lost(error)

    def pump(self) -> None:
        """Send what fits into the window. The peer calls it when it has read."""
        while self._outgoing and self.flying_bytes < WINDOW and not self._is_blocked:
            bits = self.link.draws.bits()
            limit = min(CHUNK, WINDOW - self.flying_bytes)
            if bits & 15 == 0:
                limit = min(limit, 1 + (bits >> 4) % 100)  # One in sixteen is cut at an odd place.
            whole = self._outgoing[0]
            chunk = whole[:limit]
            if len(chunk) == len(whole):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = whole[limit:]
            self._outgoing_bytes -= len(chunk)
            self.flying_bytes += len(chunk)
            self._fly(chunk, self.link.delay(bits >> 20))
        if self._is_write_paused and self._outgoing_bytes <= LOW and not self.life.is_dead:
            self._is_write_paused = False
            self.streams.world.soon(self.life, self.protocol.resume_writing)
        if self._is_closing and not self._outgoing and not self._has_sent_end and not self.is_lost:
            self._has_sent_end = True
            self._fly(None, self.link.delay(self.link.draws.bits() >> 20))
            self.lose(None)

    def _fly(self, chunk: bytes | None, delay: int) -> None:
        world = self.streams.world
        self._last_arrival = max(self._last_arrival + 1, world.now + delay)
        world.at(self._last_arrival, None, self._arrived, chunk)

    def _arrived(self, chunk: bytes | None) -> None:
        if self.is_broken:
            return
        if self.link.cuts or self._stalled:
            self._stalled.append(chunk)
            return
        self._deliver(chunk)

    def _deliver(self, chunk: bytes | None) -> None:
        peer, streams = self.peer, self.streams
        if peer.life.is_dead:
            if streams.is_machine_up(peer.life.node):
                streams.world.soon(None, self.got_reset, None)
            elif chunk is not None:
                self._stalled.append(chunk)
                streams.world.at(streams.world.now + RETRY_NS, None, self._unstall)
            return
        if peer.is_lost:
            if chunk is not None and not self.life.is_dead:
                streams.world.soon(None, self.got_reset, None)  # It has closed: what comes late is refused.
            return
        peer.incoming.append(chunk)
        peer.feed_soon()

    def _mended(self) -> None:
        if self._stalled:
            world = self.streams.world
            world.at(world.now + self.link.delay(self.link.draws.bits() >> 20), None, self._unstall)

    def _unstall(self) -> None:
        while self._stalled and not self.link.cuts and not self.is_broken:
            left = len(self._stalled)
            self._deliver(self._stalled.popleft())
            if len(self._stalled) >= left:
                return  # The machine is still down.

    def feed_soon(self) -> None:
        """Let the protocol read in a call of its own life."""
        if self.incoming and self._is_reading and not self._is_feeding:
            self._is_feeding = True
            self.streams.world.soon(self.life, self._feed)

    def _feed(self) -> None:
        """Give the protocol one chunk, in buffers of its own."""
        self._is_feeding = False
        if not self.incoming or not self._is_reading or self.is_lost:
            return
        chunk = self.incoming.popleft()
        if chunk is None:
            self._got_end()
            return
        if self.incoming:
            chunk = self._joined(chunk)
        trace = self.streams.world.trace
        trace.counts.messages += 1
        trace.note_bytes(f"{self.peer.life!r}>{self.life!r}", chunk)
        view = memoryview(chunk)
        while view and not self.is_lost:
            buffer = self.protocol.get_buffer(len(view))
            if not len(buffer):  # No assertion: under -O it would be asked for ever.
                raise Violation(f"{self.life!r} has no room for the bytes that it reads")
            part = min(len(buffer), len(view))
            buffer[:part] = view[:part]
            view = view[part:]
            if self.streams.tap is not None:
                self.streams.tap.read(self, part)
            self.protocol.buffer_updated(part)
            if view and self._is_held():
                self.incoming.appendleft(bytes(view))
                break
        sender = self.peer
        sender.flying_bytes -= len(chunk) - len(view)
        if not sender.is_lost and not sender.life.is_dead:
            sender.pump()
        self.feed_soon()

    def _joined(self, chunk: bytes) -> bytes:
        """`chunk` and what came behind it while nobody read, as a socket gives it."""
        pieces, size = [chunk], len(chunk)
        while self.incoming and (behind := self.incoming[0]) is not None and size + len(behind) <= WINDOW:
            pieces.append(behind)
            size += len(behind)
            self.incoming.popleft()
        return b"".join(pieces)

    def _is_held(self) -> bool:
        """Whether the protocol wants no more for now."""
        return not self._is_reading and not self.is_lost

    def _got_end(self) -> None:
        stays = self.protocol.eof_received()
        if not stays and not self.is_closing():
            self.close()


class Tap(Protocol):
    """Whoever listens in on all connections."""

    def began(self, dialler: End, listener: End) -> None:
        """A connection was made."""
        ...

    def wrote(self, end: End, data: bytes) -> None:
        """`end` says `data`."""
        ...

    def read(self, end: End, size: int) -> None:
        """`end` has read `size` bytes more."""
        ...

    def lost(self, end: End) -> None:
        """`end` is over."""
        ...


class SimListener:
    """A bound simulated port."""

    def __init__(self, streams: "Streams", key: tuple[str, int], address: str) -> None:
        self._streams, self._key, self._address = streams, key, address

    @property
    def address(self) -> str:
        """`host:port` as bound."""
        return self._address

    async def close(self) -> None:
        """Accept no more."""
        self._streams.listeners.pop(self._key, None)


class Streams:
    """All connections of a world."""

    def __init__(self, world: World, links: Links, is_machine_up: Callable[[str], bool]) -> None:
        self.world, self.links, self.is_machine_up = world, links, is_machine_up
        self.listeners: dict[tuple[str, int], tuple[Life, Callable[[], ByteProtocol]]] = {}
        self._ends: dict[Life, dict[End, None]] = {}
        self._next_port = FIRST_PORT
        self.tap: Tap | None = None

    def port_of(self, life: Life) -> "SimNetwork":
        """The `Network` port of one life."""
        return SimNetwork(self, life)

    def next_port(self) -> int:
        """A port that nobody asked for."""
        self._next_port += 1
        return self._next_port

    def pair(self, client: Life, server: Life) -> tuple[End, End]:
        """The two ends of a new connection."""
        near = self._end(client, server)
        far = self._end(server, client)
        near.peer, far.peer = far, near
        if self.tap is not None:
            self.tap.began(near, far)
        return near, far

    def forget(self, end: End) -> None:
        """It is over."""
        self._ends.get(end.life, {}).pop(end, None)

    def sever(self, chosen: list[tuple[str, str]], *, is_reset: bool) -> int:
        """End the connections between pairs: both ends are told, or neither. Returns how many there were."""
        wanted = dict.fromkeys(chosen)
        found = [
            end
            for ends in list(self._ends.values())
            for end in list(ends)
            if (end.life.node, end.peer.life.node) in wanted and not end.is_broken
        ]
        for end in found:
            if is_reset:
                end.got_reset()
                end.peer.got_reset()
            else:
                end.is_broken = end.peer.is_broken = True
        return len(found)

    def _end(self, life: Life, other: Life) -> End:
        end = End(self, life, self.links.link(life.node, other.node))
        ends = self._ends.get(life)
        if ends is None:
            ends = self._ends[life] = {}
            life.on_end.append(lambda: self._life_ended(life))
        ends[end] = None
        return end

    def _life_ended(self, life: Life) -> None:
        """What the kernel does: reset every connection, where there still is a kernel."""
        for end in list(self._ends.pop(life, {})):
            if not life.is_silent:
                end.send_reset()


class SimNetwork:
    """The `Network` port of one life."""

    def __init__(self, streams: Streams, life: Life) -> None:
        self._streams, self._life = streams, life

    async def listen(self, address: str, factory: Callable[[], ByteProtocol]) -> SimListener:
        """Accept connections."""
        self._gate()
        host, port = self._resolve(address, own=True)
        streams = self._streams
        if port == 0:
            port = streams.next_port()
        key = (self._life.node, port)
        bound = streams.listeners.get(key)
        if bound is not None and not bound[0].is_dead:
            raise OSError(errno.EADDRINUSE, "address already in use", address)
        streams.listeners[key] = (self._life, factory)
        return SimListener(streams, key, f"{address.rpartition(':')[0] or host}:{port}")

    async def dial(self, address: str, factory: Callable[[], ByteProtocol]) -> ByteProtocol:
        """Open a connection: one round trip, longer where the link is cut, refused where nobody listens."""
        self._gate()
        host, port = self._resolve(address, own=False)
        streams, world = self._streams, self._streams.world
        there, back = streams.links.link(self._life.node, host), streams.links.link(host, self._life.node)
        deadline = world.now + CONNECT_NS
        while True:
            await asyncio.sleep(there.delay(there.draws.bits() >> 20) / RETRY_NS)
            if not there.cuts and not back.cuts and streams.is_machine_up(host):
                break
            if world.now >= deadline:
                raise TimeoutError(errno.ETIMEDOUT, "connection timed out", address)
            await asyncio.sleep(min(1.0, (deadline - world.now) / RETRY_NS))
        bound = streams.listeners.get((host, port))
        if bound is None or bound[0].is_dead:
            await asyncio.sleep(back.delay(back.draws.bits() >> 20) / RETRY_NS)
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused", address)
        server, accept = bound
        near, far = streams.pair(self._life, server)
        world.soon(server, far.accept, accept)
        try:
            await asyncio.sleep(back.delay(back.draws.bits() >> 20) / RETRY_NS)
        except asyncio.CancelledError:
            near.abort()  # As a kernel does with what nobody has.
            raise
        if near.is_lost or server.is_dead:
            near.is_lost = True
            streams.forget(near)
            raise ConnectionResetError(errno.ECONNRESET, "connection reset", address)
        protocol = factory()
        near.begin(protocol)
        return protocol

    def _resolve(self, address: str, *, own: bool) -> tuple[str, int]:
        host, _, port = address.rpartition(":")
        if not port.isdigit():
            raise OSError(errno.EINVAL, "not host:port", address)
        if host in LOOPBACK:
            host = self._life.node
        if own and host != self._life.node:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of {self._life.node}", address)
        return host, int(port)

    def _gate(self) -> None:
        if self._life.is_dead:
            raise Gone(repr(self._life))
