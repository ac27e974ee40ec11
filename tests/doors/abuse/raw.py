"""Frames by hand over a blocking socket, so that a client may do what ours never would."""

import contextlib
import socket
import struct
from typing import Any

import msgspec

from broadsheet.wire import frame as f

encode = msgspec.msgpack.encode


def hello(token: str = "", *, frame_bytes: int = 4 << 20, window_bytes: int = 9 << 20) -> bytes:
    """A greeting."""
    return f.frame(
        f.HELLO, 0, encode([f.MAGIC, f.VERSION, f.VERSION, token, frame_bytes, window_bytes, "", ""])
    )


class Gone(Exception):  # noqa: N818 - an expected end.
    """The node has closed the connection."""


class Raw:
    """One connection."""

    def __init__(self, port: int, token: str = "", *, greeting: bytes = b"", timeout: float = 10.0) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""
        self.next = 1
        self.sock.sendall(greeting or hello(token))
        kind, _, body, _ = self.read()
        if kind != f.HELLO:
            raise Gone(msgspec.msgpack.decode(body))
        self.methods: dict[str, int] = msgspec.msgpack.decode(body)[5]

    def read(self) -> tuple[int, int, bytes, bytes]:
        """The next frame: kind, stream, body, payload."""
        while True:
            if len(self.rest) >= f.HEADER_BYTES:
                length, stream, word, _ = f.HEADER.unpack_from(self.rest)
                if len(self.rest) >= f.HEADER_BYTES + length:
                    content = self.rest[16 : 16 + length]
                    self.rest = self.rest[16 + length :]
                    body = word >> f.WORD_BODY_SHIFT
                    return word & f.KIND_MASK, stream, content[:body], content[body:]
            data = self.sock.recv(1 << 20)
            if not data:
                raise Gone("closed")
            self.rest += data

    def stream(self) -> int:
        """The number of a new stream."""
        self.next += 2
        return self.next - 2

    def request(self, kind: int, method: str, body: object, payload: bytes = b"") -> tuple[int, bytes]:
        """A new stream and the frame that opens it."""
        stream = self.stream()
        whole = struct.pack("<II", self.methods[method], 0) + encode(body)
        head = f.header(kind, stream, body_bytes=len(whole), payload_bytes=len(payload))
        return stream, head + whole + payload

    def row(self, kind: int, method: str, body: object, payload: bytes = b"", *, count: int) -> bytes:
        """Frames of `count` equal requests."""
        return b"".join(self.request(kind, method, body, payload)[1] for _ in range(count))

    def open(self, kind: int, method: str, body: object) -> int:
        """Send a request; returns its stream."""
        stream, frame = self.request(kind, method, body)
        self.sock.sendall(frame)
        return stream

    def call(self, method: str, body: object, payload: bytes = b"") -> tuple[int, Any]:
        """A unary call: the kind of the answer and its body."""
        stream, frame = self.request(f.CALL, method, body, payload)
        self.sock.sendall(frame)
        while True:
            kind, other, answer, _ = self.read()
            if kind == f.PING:
                self.sock.sendall(f.frame(f.PONG, 0))
            elif kind == f.GOAWAY:
                raise Gone(msgspec.msgpack.decode(answer))
            elif other == stream:
                return kind, msgspec.msgpack.decode(answer)

    def drain(self) -> None:
        """Throw away what has come, without waiting."""
        self.rest = b""
        self.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self.sock.recv(1 << 20):
                pass
        self.sock.settimeout(10.0)

    def close(self) -> None:
        """Leave."""
        self.sock.close()
