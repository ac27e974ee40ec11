"""Production byte streams: TCP on the running loop, uvloop or asyncio, through `BufferedProtocol`.

Sockets get TCP_NODELAY, since whole turns leave in one write, and keepalive probes, which find a dead host
that sends no reset. Bounds on time, number and size are the wire's.
"""

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from broadsheet.errors import InvalidArgument
from broadsheet.ports import ByteProtocol, Transport

BACKLOG: Final = 1024
KEEPALIVE_IDLE_S: Final = 30
KEEPALIVE_INTERVAL_S: Final = 10
KEEPALIVE_PROBES: Final = 3
PORT_MAX: Final = 65_535


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`, taken apart.

    Raises:
        InvalidArgument: it is neither.
    """
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidArgument(f"address {address!r}: an IPv6 host stands in brackets, as in [::1]:6640")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise InvalidArgument(f"address {address!r} is not host:port with a port of 0 to {PORT_MAX}")
    return host, int(port)


def check_address(name: str, address: str) -> None:
    """Refuse the setting `name` where it is no address, before anything listens there or dials it.

    Raises:
        ValueError: it is not `host:port`.
    """
    try:
        split_address(address)
    except InvalidArgument as error:
        raise ValueError(f"{name}: {error}") from None


def join_address(host: str, port: int) -> str:
    """The opposite of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class TCPListener:
    """A bound port."""

    def __init__(self, server: asyncio.AbstractServer, address: str) -> None:
        self._server, self._address = server, address

    @property
    def address(self) -> str:
        """`host:port` as bound."""
        return self._address

    async def close(self) -> None:
        """Accept no more. `wait_closed` would wait for the connections, since Python 3.12."""
        self._server.close()
        for _ in range(2):
            await asyncio.sleep(0)  # uvloop closes the socket in a later turn.


class TCPNetwork:
    """TCP of this machine."""

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
            sock.setblocking(False)  # noqa: FBT003 - the standard library's signature.
            sock.bind(bind_to)
            sock.listen(BACKLOG)
            bound = sock.getsockname()
            server = await loop.create_server(lambda: Buffered(factory()), sock=sock, backlog=BACKLOG)
        except BaseException:
            sock.close()
            raise
        return TCPListener(server, join_address(bound[0], bound[1]))

    async def dial(self, address: str, factory: Callable[[], ByteProtocol]) -> ByteProtocol:
        """Open a connection; returns once it stands.

        Raises:
            InvalidArgument: `address` is not `host:port`.
            OSError: refused or unreachable.
        """
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        _, buffered = await loop.create_connection(lambda: Buffered(factory()), host, port)
        return buffered.inner


class Buffered(asyncio.BufferedProtocol):
    """A `ByteProtocol` as the loops want it: asyncio asks by `isinstance`, and ours need not know asyncio.

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
        """Prepare the socket, then tell the inner protocol."""
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
        if isinstance(transport, asyncio.WriteTransport):
            # The selector loop's own, since Python 3.12, never tells the protocol to pause, so that nobody is
            # held back, and fails on a connection that was just lost. The one that it inherits does neither.
            joining = partial(asyncio.WriteTransport.writelines, transport)
            transport.writelines = joining  # type: ignore[method-assign]
        self.inner.connection_made(cast(Transport, transport))  # uvloop's inherits from none of asyncio's.
