"""Network: production byte streams: TCP on the running loop, uvloop or asyncio, through `BufferedProtocol`.

Sockets get TCP_NODELAY, because a whole turn leaves in one write, and keepalive probes, which find a dead
host that sends no reset. The wire bounds times, numbers and sizes.
"""

import asyncio
import select
import socket
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final, cast

from broadsheet.errors import InvalidArgument
from broadsheet.ports import ByteProtocol, Transport

BACKLOG: Final = 1024
ACCEPTS_MAX: Final = 128
"""Connections that are accepted in one turn of the loop: a millisecond of work."""
TAKES_MAX: Final = 16
"""Accepted connections that get a protocol in one turn: about a millisecond of work."""
SILENT_TAKES_MAX: Final = 4
"""Silent ones among them, if more wait than one turn takes."""
SPOKEN_MAX: Final = 256
"""Accepted connections that have sent something and wait for a protocol. Above this, no more are accepted for
a while."""
FINISHED_MAX: Final = 256
"""Accepted connections that have sent something and say that they send no more. Above this, the oldest one is
closed."""
SILENT_MAX: Final = 256
"""Accepted connections that have sent nothing. Above this, the source with the most of them loses its oldest
one."""
OPEN_FILES_RATIO: Final = 16
"""Each kind has at most this part of the descriptors that the process may have."""
ACCEPT_PAUSE_S: Final = 0.1
"""Pause before the next accept, if no descriptor is free."""
KEEPALIVE_IDLE_S: Final = 30
KEEPALIVE_INTERVAL_S: Final = 10
KEEPALIVE_PROBES: Final = 3
PORT_MAX: Final = 65_535
ADDRESS_CHARACTERS_MAX: Final = 259
"""A name of 253, which is the longest, and a port. The look-up of a longer one held the loop for minutes."""


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`, taken apart.

    Raises:
        InvalidArgument: `address` has neither form.
    """
    if len(address) > ADDRESS_CHARACTERS_MAX:
        raise InvalidArgument(
            f"address {address[:40]!r}... has {len(address)} characters: {ADDRESS_CHARACTERS_MAX} at most"
        )
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidArgument(f"address {address!r}: an IPv6 host stands in brackets, as in [::1]:6640")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise InvalidArgument(f"address {address!r} is not host:port with a port of 0 to {PORT_MAX}")
    return host, int(port)


def check_address(name: str, address: str) -> None:
    """Refuse the setting `name` if it is not an address, before anything listens there or dials it.

    Raises:
        ValueError: `address` is not `host:port`.
    """
    try:
        split_address(address)
    except InvalidArgument as error:
        raise ValueError(f"{name}: {error}") from None


def join_address(host: str, port: int) -> str:
    """The opposite of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class TCPListener:
    """A bound port that takes connections, a few in each turn of the loop.

    The loop's own server accepts as long as connections come, so a client that opens them fast enough would
    never let it end. A connection that its client has closed again is dropped without a protocol. Connections
    that have sent something are taken first: in every protocol here the client speaks first. Otherwise a
    request could wait behind a thousand silent connections. Of those, the oldest and the newest are taken
    alternately: a client that connects faster than we take would make everybody wait as long as the oldest.
    Those that say that they send no more come last. Most of them were left by their clients, and one client
    may leave 10,000 in a second: a client that waits for its answer would wait behind all of these.
    """

    def __init__(
        self,
        sock: socket.socket,
        factory: Callable[[], ByteProtocol],
        address: str,
        *,
        open_files_max: int,
    ) -> None:
        self._sock, self._factory, self._address = sock, factory, address
        waiting_max = max(1, open_files_max // OPEN_FILES_RATIO)
        self._spoken_max, self._silent_max = min(SPOKEN_MAX, waiting_max), min(SILENT_MAX, waiting_max)
        self._finished_max = min(FINISHED_MAX, waiting_max)
        self._loop = asyncio.get_running_loop()
        self._taking: dict[asyncio.Task[None], None] = {}
        self._silent: dict[socket.socket, str] = {}
        """Accepted connections that have sent nothing and have no protocol yet, in order, and their hosts."""
        self._spoken: dict[socket.socket, None] = {}
        """Those that have sent something, and have no protocol yet."""
        self._finished: dict[socket.socket, None] = {}
        """Those that have sent something and send no more, and have no protocol yet."""
        self._is_armed = self._is_full = False
        """`_is_full`: too many that have sent something wait, and no more are accepted."""
        self._is_closed = False
        self._loop.add_reader(sock.fileno(), self._accept)

    @property
    def address(self) -> str:
        """`host:port` as bound."""
        return self._address

    async def close(self) -> None:
        """Accept no more; what was accepted goes on."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._sock.fileno())
        for waiting in (self._silent, self._spoken, self._finished):
            for sock in waiting:
                sock.close()
            waiting.clear()
        await asyncio.gather(*self._taking, return_exceptions=True)
        await asyncio.sleep(0)  # uvloop lets go of the descriptor in a later turn.
        self._sock.close()

    def _accept(self) -> None:
        for _ in range(min(ACCEPTS_MAX, self._spoken_max)):
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError:  # No descriptor, or no memory: those that wait are taken once there is one.
                self._loop.remove_reader(self._sock.fileno())
                self._loop.call_later(ACCEPT_PAUSE_S, self._go_on)
                break
            sock.setblocking(False)  # noqa: FBT003 - the standard library's signature.
            self._silent[sock] = str(peer[0])
        if not self._is_armed:
            self._take_some()

    def _take_some(self) -> None:
        """Make protocols for a few waiting connections, and leave the others to the next turn."""
        self._is_armed = False
        for sock in list(self._silent):
            heard = _heard(sock)
            if heard is not Heard.NOTHING:
                del self._silent[sock]
                self._sort(sock, heard)
        chosen = self._next_spoken()
        while self._finished and len(chosen) < TAKES_MAX:
            sock = next(iter(self._finished))
            del self._finished[sock]
            if _heard(sock) is Heard.ALL:
                chosen.append(sock)
            else:
                sock.close()  # It was reset while it waited.
        room = TAKES_MAX - len(chosen)  # None, if more of the others wait.
        for sock in list(self._silent)[: room if len(self._silent) <= room else min(room, SILENT_TAKES_MAX)]:
            del self._silent[sock]
            chosen.append(sock)
        for sock in chosen:
            task = self._loop.create_task(self._take(sock))
            self._taking[task] = None
            task.add_done_callback(self._taking.pop)
        self._thin()
        if (self._silent or self._spoken or self._finished) and not self._is_closed:
            self._is_armed = True
            self._loop.call_soon(self._take_some)

    def _sort(self, sock: socket.socket, heard: "Heard") -> None:
        """Have a connection wait with those from which the same was heard; close it if its client left."""
        if heard is Heard.SOMETHING:
            self._spoken[sock] = None
        elif heard is Heard.ALL:
            self._finished[sock] = None
        else:
            sock.close()

    def _next_spoken(self) -> list[socket.socket]:
        """The oldest and the newest connection that has sent something, alternately."""
        chosen: list[socket.socket] = []
        while self._spoken and len(chosen) < TAKES_MAX:
            sock = next(reversed(self._spoken) if len(chosen) % 2 else iter(self._spoken))
            del self._spoken[sock]
            heard = _heard(sock)
            if heard is Heard.SOMETHING:
                chosen.append(sock)
            else:
                self._sort(sock, heard)  # Its client has finished or left while it waited.
        return chosen

    def _thin(self) -> None:
        """Close silent and finished connections that are too many, then stop or go on accepting."""
        while len(self._finished) > self._finished_max:
            sock = next(iter(self._finished))
            del self._finished[sock]
            sock.close()
        excess = len(self._silent) - self._silent_max
        if excess > 0:
            by_source: dict[str, deque[socket.socket]] = {}
            for sock, source in self._silent.items():
                by_source.setdefault(source, deque()).append(sock)
            for _ in range(excess):
                sock = max(by_source.values(), key=len).popleft()
                del self._silent[sock]
                sock.close()
        if not self._is_full and len(self._spoken) > self._spoken_max:
            self._is_full = True
            self._loop.remove_reader(self._sock.fileno())
        elif self._is_full and len(self._spoken) <= self._spoken_max * 7 // 8:
            self._is_full = False
            self._go_on()

    def _go_on(self) -> None:
        if not (self._is_closed or self._is_full):
            self._loop.add_reader(self._sock.fileno(), self._accept)

    async def _take(self, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: Buffered(self._factory()), sock)
        except OSError:
            sock.close()  # The connection was lost meanwhile.


class Heard(Enum):
    """What has come from an accepted connection."""

    NOTHING = "nothing"
    SOMETHING = "something"
    """Bytes, and more may come."""
    ALL = "all"
    """Bytes, and the client says that it sends no more; it may have closed the connection."""
    GONE = "gone"
    """The client closed the connection before it sent any, or reset it."""


def _heard(sock: socket.socket) -> Heard:
    try:
        if not sock.recv(1, socket.MSG_PEEK):
            return Heard.GONE
    except BlockingIOError:
        return Heard.NOTHING
    except OSError:
        return Heard.GONE
    ended = select.poll()
    ended.register(sock, select.POLLRDHUP)
    return Heard.ALL if ended.poll(0) else Heard.SOMETHING


def _prepare(sock: socket.socket) -> None:
    """Set the options of a connection, or of a listener: the system gives them to what it accepts."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


class TCPNetwork:
    """TCP of this machine."""

    def __init__(self, *, open_files_max: int = 1 << 20) -> None:
        """Let few connections wait where the process may have few descriptors."""
        self._open_files_max = open_files_max

    async def listen(self, address: str, factory: Callable[[], ByteProtocol]) -> TCPListener:
        """Accept connections, each with a protocol of its own; a name is bound by its first address.

        Raises:
            InvalidArgument: `address` is not `host:port`.
            OSError: it cannot be bound.
        """
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, bind_to = found[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _prepare(sock)
            sock.setblocking(False)  # noqa: FBT003 - the standard library's signature.
            sock.bind(bind_to)
            sock.listen(BACKLOG)
            bound = sock.getsockname()
            listening_at = join_address(bound[0], bound[1])
            return TCPListener(sock, factory, listening_at, open_files_max=self._open_files_max)
        except BaseException:
            sock.close()
            raise

    async def dial(self, address: str, factory: Callable[[], ByteProtocol]) -> ByteProtocol:
        """Open a connection; returns when it is established.

        Raises:
            InvalidArgument: `address` is not `host:port`.
            OSError: refused or unreachable.
        """
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        _, buffered = await loop.create_connection(lambda: Dialled(factory()), host, port)
        return buffered.inner


class Buffered(asyncio.BufferedProtocol):
    """A `ByteProtocol` as an asyncio protocol: asyncio tests by `isinstance`, and ours need not know asyncio.

    Its methods are the inner one's own, bound, so that this layer costs nothing per read.
    """

    def __init__(self, inner: ByteProtocol) -> None:
        self.inner = inner
        self.get_buffer = inner.get_buffer  # type: ignore[method-assign]  # see the docstring.
        self.buffer_updated = inner.buffer_updated  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.connection_lost = inner.connection_lost  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the inner protocol."""
        if isinstance(transport, asyncio.WriteTransport):
            # The selector loop's own, since Python 3.12, never tells the protocol to pause, so that nobody is
            # held back, and fails on a connection that was just lost. The one that it inherits does neither.
            joining = partial(asyncio.WriteTransport.writelines, transport)
            transport.writelines = joining  # type: ignore[method-assign]
        self.inner.connection_made(cast(Transport, transport))  # uvloop's inherits from none of asyncio's.


class Dialled(Buffered):
    """The protocol of a connection that was dialled, whose socket has no options of a listener yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Prepare the socket, then tell the inner protocol."""
        sock = transport.get_extra_info("socket")
        if sock is not None:
            _prepare(sock)
        super().connection_made(transport)
