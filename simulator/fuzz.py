"""Fuzz: sends malformed sessions to a real server process over real sockets.

The fuzzer demands that the process stays up, closes every session after its peer has closed it, answers a
healthy client after each round, raises only declared errors, and keeps memory and descriptors bounded.
The same seed makes the same sessions (`fuzz_sessions`). Source: access.7.
"""

import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broadsheet.wire import frame as f
from simulator.fuzz_sessions import ECHO, Asked, mutated, with_payload

SESSIONS_CI: Final = 5_000
SESSIONS_LONG: Final = 100_000
ROUND: Final = 250
"""Sessions between two looks at the server."""
TOGETHER: Final = 8
"""Sessions open at once."""
RSS_GROWTH_MAX: Final = 96 << 20
"""Bytes that the server may grow by, however many sessions come."""
DESCRIPTORS_GROWTH_MAX: Final = 2 * TOGETHER
PATIENCE_S: Final = 10.0
"""How long a server may take to close a session whose peer has gone."""


class Failure(Exception):  # noqa: N818 - what was found.
    """The server did what it must not."""


class Target:
    """The server process under test."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "simulator.fuzz_server"], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None, "a pipe was asked for"
        self.port = int(self._process.stdout.readline())

    def rss_bytes(self) -> int:
        """Resident memory."""
        return int(self._proc("statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptor_count(self) -> int:
        """Open descriptors."""
        return len(list(self._proc("fd").iterdir()))

    def must_live(self) -> None:
        """Find out whether it has died.

        Raises:
            Failure: it has.
        """
        if (code := self._process.poll()) is not None:
            raise Failure(f"the server ended with {code}")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _proc(self, name: str) -> Path:
        return Path(f"/proc/{self._process.pid}/{name}")


def attack(port: int, data: bytes, rng: random.Random) -> socket.socket:
    """Send one session, in pieces or at once; returns the socket, with our side closed."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    try:
        at, size = 0, rng.choice((len(data) + 1, len(data) + 1, 1000, 17))
        while at < len(data):
            sock.sendall(data[at : at + size])
            at += size
            size = max(size, len(data) // 50)
        sock.shutdown(socket.SHUT_WR)
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise Failure(f"the server neither read nor closed for {PATIENCE_S} s") from None
        # It has seen enough.
    return sock


def see_off(sock: socket.socket) -> None:
    """Read until the server closes.

    Raises:
        Failure: it does not.
    """
    try:
        while sock.recv(1 << 16):
            pass
    except TimeoutError:
        raise Failure(f"the server kept a session open for {PATIENCE_S} s after its peer had gone") from None
    except ConnectionError:
        pass
    finally:
        sock.close()


def must_serve(port: int) -> None:
    """One healthy call.

    Raises:
        Failure: it was not answered as it must be.
    """
    asked, payload = f.encode(Asked(name="healthy")), b"payload"
    hello = f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", 256 << 10, 1 << 20)
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        sock.sendall(f.frame(f.HELLO, 0, f.encode(hello)))
        _read(sock)
        sock.sendall(with_payload(f.CALL, 1, f.CALL_HEAD.pack(ECHO, 5000) + asked, payload))
        kind, rest = _read(sock)
    if kind != f.REPLY or rest != asked + payload:
        raise Failure(f"a healthy call was answered by {f.FRAME_NAMES.get(kind, kind)} {rest!r}")


def _read(sock: socket.socket) -> tuple[int, bytes]:
    head = sock.recv(f.HEADER_BYTES, socket.MSG_WAITALL)
    if len(head) < f.HEADER_BYTES:
        raise Failure("a healthy session was closed")
    length, _, word, _ = f.HEADER.unpack(head)
    return word & f.KIND_MASK, sock.recv(length, socket.MSG_WAITALL) if length else b""


def fuzz(count: int, seed: int) -> Iterator[tuple[int, int]]:
    """Attack a fresh server with `count` sessions; yields how many are done, and its memory, once a round.

    Raises:
        Failure: the server did what it must not; the message says after which session of which seed.
    """
    target = Target()
    done = 0
    try:
        rng = random.Random(f"wire {seed} warm")
        for _ in range(ROUND):
            see_off(attack(target.port, mutated(rng), rng))
        rss, descriptors = target.rss_bytes(), target.descriptor_count()
        rng = random.Random(f"wire {seed}")
        while done < count:
            for _ in range(min(ROUND, count - done) // TOGETHER + 1):
                socks = [attack(target.port, mutated(rng), rng) for _ in range(TOGETHER)]
                for sock in socks:
                    see_off(sock)
                done += TOGETHER
            target.must_live()
            must_serve(target.port)
            grown = target.rss_bytes() - rss
            if grown > RSS_GROWTH_MAX:
                raise Failure(f"the server grew by {grown >> 20} MiB")
            if target.descriptor_count() > descriptors + DESCRIPTORS_GROWTH_MAX:
                raise Failure(
                    f"the server has {target.descriptor_count()} descriptors open, after {descriptors}"
                )
            yield done, target.rss_bytes()
    except (Failure, OSError) as error:
        raise Failure(f"seed {seed}, session {done}: {error}") from error
    finally:
        target.close()
