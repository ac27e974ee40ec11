"""Fuzz: malformed sessions against a real server process over real sockets.

A session is a recorded good one, mutated: bits flipped, header fields set to awkward values under a valid
checksum, frames cut, swapped, repeated or dropped, bodies that are no MessagePack or too deep, tables that
do not add up, floods. The oracle: the process stays up, closes every session once its peer has, answers a
healthy client after each round, raises nothing unforeseen in a handler's edge, and keeps its memory and
descriptors bounded. The same seed makes the same sessions. Source: reliability 5.3; DESIGN 10.
"""

import argparse
import asyncio
import os
import random
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from crc32c import crc32c
from rich.progress import Progress

from broadsheet.access.authorizer import Authorizer
from broadsheet.access.capability import Capability
from broadsheet.base.time import MILLISECOND, SECOND, Duration
from broadsheet.errors import Status
from broadsheet.ports import Network, Random, Time, Timers
from broadsheet.runtime.entropy import Entropy
from broadsheet.runtime.loop import run
from broadsheet.runtime.network import TCPNetwork
from broadsheet.runtime.scope import Crash, Scope
from broadsheet.runtime.time import LoopTimers, SystemTime
from broadsheet.runtime.turn import Turn
from broadsheet.wire import frame as f
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import EMPTY, Call, Empty, Method, Reply, RunOpened, Shape, WireStream
from broadsheet.wire.run import FrameRun
from broadsheet.wire.server import Server

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
DEPTH: Final = 2_000
"""Nesting of the deepest body."""

LIMITS: Final = WireLimits(
    frame_bytes_max=256 << 10,
    body_bytes_max=64 << 10,
    window_bytes=1 << 20,
    streams_max=32,
    run_count_max=4096,
    in_flight_bytes_max=1 << 20,
    send_buffer_bytes_max=4 << 20,
    call_timeout=Duration(200 * MILLISECOND),
    drain_timeout=Duration(SECOND),
)

ECHO, SUM, APPEND = 1, 2, 3


class Failure(Exception):  # noqa: N818 - what was found.
    """The server did what it must not."""


# ---------------------------------------------------------------------- the server (a process of its own)


class _Asked(msgspec.Struct, frozen=True, array_like=True):
    name: str = ""
    tags: dict[str, list[int]] = {}


class _Sink:
    """Answers most runs at once, refuses some, and keeps one back now and then until the end."""

    def __init__(self) -> None:
        self._head = 0
        self._kept: list[FrameRun] = []

    def on_run(self, run: FrameRun) -> None:
        assert sum([len(part) for part in run.parts]) == run.size, "the parts are the run"
        if run.sequence % 7 == 3 and len(self._kept) < 4:
            self._kept.append(run)
        elif run.at not in (None, self._head):
            run.reply(Status.WRONG_APPEND_OFFSET, message=f"the head is at {self._head}")
        else:
            begin, self._head = self._head, self._head + run.size
            run.reply(Status.OK, begin)

    def on_end(self) -> None:
        kept, self._kept = self._kept, []
        for each in kept:
            each.reply(Status.UNKNOWN, message="the stream ended")


async def _echo(_call: Call, request: _Asked, payload: memoryview) -> Reply:
    await asyncio.sleep(0.001 if request.name == "slow" else 0)
    return Reply(request, (payload,))


async def _sum(_call: Call, _request: Empty, stream: WireStream) -> Reply:
    while (message := await stream.receive()) is not None:
        await stream.send(None, (message.payload,))
    return Reply(EMPTY)


def _methods() -> list[Method]:
    def row(
        name: str, number: int, shape: Shape, request: type[msgspec.Struct], handler: Callable[..., Any]
    ) -> Method:
        return Method(
            name,
            number=number,
            shape=shape,
            capability=Capability.NONE,
            request=request,
            name_of=None,
            handler=handler,
        )

    return [
        row("fuzz.echo", ECHO, Shape.UNARY, _Asked, _echo),
        row("fuzz.sum", SUM, Shape.STREAM, Empty, _sum),
        row("fuzz.append", APPEND, Shape.RUN, Empty, lambda _call, _request: RunOpened(EMPTY, _Sink())),
    ]


class _Ports:
    """What the server needs of this process."""

    def __init__(self) -> None:
        self.time: Time = SystemTime()
        self.network: Network = TCPNetwork()
        self.random: Callable[[str], Random] = Entropy()
        self.timers: Timers = LoopTimers(asyncio.get_running_loop())
        self.crash: Crash = _die
        self.turn = Turn(self.timers, crash=self.crash)


def _die(error: BaseException) -> None:
    """Die loudly: the fuzzer is looking for it."""
    sys.stderr.write(f"crash: {error!r}\n")
    sys.stderr.flush()
    os._exit(3)


async def _serve() -> None:
    ports = _Ports()
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: ports.crash(RuntimeError(repr(context)))
    )
    server = Server(
        ports,
        Scope("fuzz", crash=ports.crash),
        _methods(),
        authorizer=Authorizer(None, time=ports.time),
        limits=LIMITS,
        failed=ports.crash,
    )
    address = await server.listen("127.0.0.1:0")
    sys.stdout.write(address.rpartition(":")[2] + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


# ---------------------------------------------------------------------- sessions


def good_session() -> list[bytes]:
    """A session that uses every kind of frame a dialler may send."""
    hello = f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", 256 << 10, 1 << 20)
    asked, empty = f.encode(_Asked(name="a", tags={"x": [1, 2]})), f.encode(EMPTY)
    lengths = struct.pack("<QIII", f.AT_HEAD, 3, 0, 5)
    return [
        f.frame(f.HELLO, 0, f.encode(hello)),
        _with_payload(f.CALL, 1, f.CALL_HEAD.pack(ECHO, 1000) + asked, b"p" * 100),
        f.frame(f.OPEN, 3, f.CALL_HEAD.pack(SUM, 0) + empty),
        _with_payload(f.MESSAGE, 3, b"", b"m" * 500),
        f.frame(f.WINDOW, 3, f.U32.pack(1000)),
        f.frame(f.OPEN_RUN, 5, f.CALL_HEAD.pack(APPEND, 0) + empty),
        f.frame(f.PING, 0),
        *[_with_payload(f.RECORD, 5, b"", b"r" * 40) for _ in range(60)],
        _with_payload(f.RECORD, 5, b"", b"other"),
        _with_payload(f.RUN, 5, lengths, b"abcdefgh"),
        f.frame(f.FINISH, 3),
        f.frame(f.CALL, 7, f.CALL_HEAD.pack(ECHO, 0) + f.encode(_Asked(name="slow"))),
        f.frame(f.CANCEL, 7),
        f.frame(f.TOKEN, 0, f.encode(f.NewToken("t"))),
        f.frame(f.FINISH, 5),
        f.frame(f.GOAWAY, 0, f.encode(f.GoAway(0, "bye", 0))),
    ]


def _with_payload(kind: int, stream: int, body: bytes, payload: bytes) -> bytes:
    return f.header(kind, stream, body_bytes=len(body), payload_bytes=len(payload)) + body + payload


def mutated(rng: random.Random) -> bytes:
    """One malformed session."""
    frames = good_session()
    for _ in range(rng.randrange(1, 4)):
        rng.choice(_MUTATIONS)(rng, frames)
    data = b"".join(frames)
    if rng.random() < 0.3:
        data = data[: rng.randrange(len(data) + 1)]
    return data


def _flip(rng: random.Random, frames: list[bytes]) -> None:
    place = rng.randrange(len(frames))
    data = bytearray(frames[place])
    for _ in range(rng.randrange(1, 9)):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    frames[place] = bytes(data)


def _flip_body(rng: random.Random, frames: list[bytes]) -> None:
    place = rng.randrange(len(frames))
    data = bytearray(frames[place])
    if len(data) > f.HEADER_BYTES:
        data[rng.randrange(f.HEADER_BYTES, len(data))] = rng.randrange(256)
    frames[place] = bytes(data)


def _awkward(rng: random.Random, frames: list[bytes]) -> None:
    """Set a header field to an awkward value, under a checksum that fits."""
    place = rng.randrange(len(frames))
    data = frames[place]
    if len(data) < f.HEADER_BYTES:
        return
    fields = list(struct.unpack_from("<III", data))
    which = rng.randrange(3)
    values = (
        0,
        1,
        2,
        3,
        5,
        7,
        16,
        255,
        256,
        257,
        0x7FFF_FFFF,
        0xFFFF_FFFF,
        rng.getrandbits(32),
        fields[which] ^ 1,
    )
    fields[which] = rng.choice(
        (*values, fields[which] + 1 & 0xFFFF_FFFF, rng.randrange(32) | fields[which] & ~0xFF)
    )
    twelve = struct.pack("<III", *fields)
    frames[place] = twelve + f.U32.pack(crc32c(twelve)) + data[f.HEADER_BYTES :]


def _rebody(rng: random.Random, frames: list[bytes]) -> None:
    """Another body, of the length that the header says."""
    place = rng.randrange(len(frames))
    if len(frames[place]) < f.HEADER_BYTES:
        return
    _, stream, word, _ = f.HEADER.unpack_from(frames[place])
    body = rng.choice(
        (
            b"\x91" * DEPTH,
            b"\x81\xa1a" * DEPTH,
            b"\xdd\xff\xff\xff\xff",
            b"\xc6\xff\xff\xff\xff" + b"x",
            b"\xdb\x00\x00\x00\x04\xff\xfe\xfd\xfc",
            b"\xc1",
            b"",
            f.CALL_HEAD.pack(rng.randrange(5), rng.getrandbits(32)) + rng.randbytes(rng.randrange(40)),
            f.CALL_HEAD.pack(ECHO, 1) + b"\x92\xa1a" + b"\x81\xa1x" * DEPTH,
            struct.pack("<QI", rng.getrandbits(64), rng.getrandbits(32)),
            rng.randbytes(rng.randrange(200)),
        )
    )
    frames[place] = f.frame(word & 0xFF, stream, body)


def _shuffle(rng: random.Random, frames: list[bytes]) -> None:
    one, other = rng.randrange(len(frames)), rng.randrange(len(frames))
    frames[one], frames[other] = frames[other], frames[one]


def _repeat(rng: random.Random, frames: list[bytes]) -> None:
    place = rng.randrange(len(frames))
    frames[place:place] = [frames[place]] * rng.choice((1, 2, 100))


def _drop(rng: random.Random, frames: list[bytes]) -> None:
    if len(frames) > 1:
        del frames[rng.randrange(len(frames))]


def _cut(rng: random.Random, frames: list[bytes]) -> None:
    place = rng.randrange(len(frames))
    frames[place] = frames[place][: rng.randrange(len(frames[place]) + 1)]


def _noise(rng: random.Random, frames: list[bytes]) -> None:
    noise = rng.choice(
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00", rng.randbytes(rng.randrange(1, 64)))
    )
    frames.insert(rng.choice((0, rng.randrange(len(frames) + 1))), noise)


def _flood(rng: random.Random, frames: list[bytes]) -> None:
    kind = rng.choice(
        (f.PING, f.PONG, f.WINDOW, f.CANCEL, f.FINISH, f.OPEN, f.OPEN_RUN, f.CALL, f.MESSAGE, f.RECORD, f.RUN)
    )
    first = rng.choice((0, 1, 3, 5, 9))
    body = f.U32.pack(1) if kind == f.WINDOW else b""
    if kind in (f.OPEN, f.OPEN_RUN, f.CALL):
        method = {f.CALL: ECHO, f.OPEN: SUM, f.OPEN_RUN: APPEND}[kind]
        body = f.CALL_HEAD.pack(method, rng.choice((0, 1, 50))) + f.encode(EMPTY)
    step = rng.choice((0, 2, 2, 1))
    flood = b"".join([f.frame(kind, first + step * n, body) for n in range(rng.choice((50, 400)))])
    frames.insert(rng.randrange(1, len(frames) + 1), flood)


def _big(rng: random.Random, frames: list[bytes]) -> None:
    size = rng.choice((64 << 10, 256 << 10, (256 << 10) + 1, 300 << 10))
    kind, stream = rng.choice(((f.MESSAGE, 3), (f.RECORD, 5), (f.CALL, 9)))
    body = f.CALL_HEAD.pack(ECHO, 100) + f.encode(_Asked()) if kind == f.CALL else b""
    frames.insert(
        rng.randrange(1, len(frames) + 1), _with_payload(kind, stream, body, bytes(size - len(body)))
    )


_MUTATIONS: Final[tuple[Callable[[random.Random, list[bytes]], None], ...]] = (
    _flip, _flip_body, _awkward, _awkward, _rebody, _rebody, _shuffle, _repeat, _drop, _cut,
    _noise, _flood, _big,
)  # fmt: skip


# ---------------------------------------------------------------------- the fuzzer


class Target:
    """The server process under test."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "broadsheet.sim.fuzz", "--serve"], stdout=subprocess.PIPE, text=True
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
    asked, payload = f.encode(_Asked(name="healthy")), b"payload"
    hello = f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", 256 << 10, 1 << 20)
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        sock.sendall(f.frame(f.HELLO, 0, f.encode(hello)))
        _read(sock)
        sock.sendall(_with_payload(f.CALL, 1, f.CALL_HEAD.pack(ECHO, 5000) + asked, payload))
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


def main() -> None:
    """`make fuzz`: many sessions, with progress; ends with status 1 on the first failure."""
    parser = argparse.ArgumentParser(description="Attack the native door with malformed sessions.")
    parser.add_argument("--sessions", type=int, default=SESSIONS_LONG)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        with Progress() as progress:
            task = progress.add_task("malformed sessions", total=options.sessions)
            for done, rss in fuzz(options.sessions, options.seed):
                progress.update(task, completed=done, description=f"malformed sessions, {rss >> 20} MiB")
    except Failure as failure:
        sys.exit(f"FAILED: {failure}")
    sys.stdout.write(
        f"{options.sessions} malformed sessions of seed {options.seed}: up, and bounded in memory\n"
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        run(_serve())
    else:
        main()
