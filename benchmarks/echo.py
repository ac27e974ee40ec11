"""Echo of 100-byte requests, pipelined: the native wire, a bare asyncio `Protocol` and grpcio in one run.

Every contender is a server process of its own on uvloop; the load comes from this process as bytes that
were rendered beforehand, so that what is measured is the server. Both sides parse a length and answer
each request singly: the bare protocol answers with the request's bytes, the native unary call with a
REPLY frame that carries them. The native run has the 512 requests of a send in one RUN frame, with one
answer: where they are. Two ratios, medians of
interleaved rounds: of requests per second, and of the server's CPU a request, which neighbours on the
machine disturb less.

The bare protocol is the fast one of two: it joins the answers of a read into one write, as the native
server does. The other writes each answer by itself (`bare-singly`); it is five times slower, and beating
it proves little, so that the target is held to the first.

Where the microseconds of a native unary call go (512 requests a read; best rounds on a loaded machine:
0.58 us of server CPU, the bare protocol 0.22; the parts were timed in one process, the first is what is
left):

    loop and socket       0.08   recv, send, epoll; 25 bytes a request and 17 a reply are not payload
    wire parse            0.08   header checksums, lengths, streams and bodies by column
    dispatch              0.15   a view of the payload, the loop over the row; authorization once a row
    handler               0.20   `echo` itself: the call, a `Reply` and its tuple
    reply rendering       0.07   headers, checksums and payloads by column
    task                  0      a plain handler has none

    python benchmarks/echo.py [--rounds 5] [--seconds 1.0] [--json]
"""

import argparse
import asyncio
import json
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from _ports import cpu_us  # type: ignore[import-not-found]

REQUEST_BYTES = 100
BATCH = 512
"""Requests in one send; two batches are in flight."""
U32 = struct.Struct("<I")


# ---------------------------------------------------------------------- servers (child processes)


class Bare(asyncio.Protocol):
    """The least that an echo with length-prefixed frames can be in asyncio."""

    def connection_made(self, transport: Any) -> None:
        self.transport, self.rest = transport, b""

    def data_received(self, data: bytes) -> None:
        if self.rest:
            data = self.rest + data
        at, end, out, unpack = 0, len(data), [], U32.unpack_from
        while end - at >= 4:
            stop = at + 4 + unpack(data, at)[0]
            if stop > end:
                break
            out.append(data[at:stop])
            at = stop
        self.rest = data[at:]
        self.transport.write(b"".join(out))


class BareSingly(Bare):
    """The same with one write for each answer."""

    def data_received(self, data: bytes) -> None:
        if self.rest:
            data = self.rest + data
        at, end, write, unpack = 0, len(data), self.transport.write, U32.unpack_from
        while end - at >= 4:
            stop = at + 4 + unpack(data, at)[0]
            if stop > end:
                break
            write(data[at:stop])
            at = stop
        self.rest = data[at:]


async def serve_bare(kind: type[asyncio.Protocol]) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(kind, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


async def serve_native() -> None:
    from _ports import ports_and_server

    from broadsheet.errors import Status
    from broadsheet.wire.method import EMPTY, Call, Empty, Reply, RunOpened, Shape
    from broadsheet.wire.run import Run

    class Sink:
        head = 0

        def on_run(self, run: Run) -> None:
            begin, self.head = self.head, self.head + run.size
            run.answer(Status.OK, begin, begin + run.size)

        def on_end(self) -> None: ...

    def echo(_call: Call, _request: Empty, payload: memoryview) -> Reply:
        return Reply(EMPTY, (payload,))

    def open_run(_call: Call, _request: Empty) -> RunOpened:
        return RunOpened(EMPTY, Sink())

    rows = [("bench.echo", 1, Shape.UNARY, echo), ("bench.run", 2, Shape.RUN, open_run)]
    print((await ports_and_server(rows)).rpartition(":")[2], flush=True)
    await asyncio.Event().wait()


async def serve_grpc() -> None:
    import grpc

    async def echo(request: bytes, _context: Any) -> bytes:
        return request

    handler = grpc.method_handlers_generic_handler(
        "bench.Echo", {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


# ---------------------------------------------------------------------- load (this process)


def pump(
    sock: socket.socket,
    batches: Callable[[], bytes],
    reply_bytes: int,
    seconds: float,
    *,
    per_reply: int = 1,
) -> float:
    """Requests per second with two batches in flight; replies are counted by their bytes.

    One reply answers `per_reply` requests.
    """
    buffer = memoryview(bytearray(1 << 20))
    want = BATCH // per_reply * reply_bytes
    sock.sendall(batches())
    sock.sendall(batches())
    done, got = 0, 0
    began = time.perf_counter()
    while True:
        got += sock.recv_into(buffer)
        while got >= want:
            got -= want
            done += BATCH
            sock.sendall(batches())
        if time.perf_counter() - began >= seconds:
            elapsed = time.perf_counter() - began
            break
    return done / elapsed


def load_bare(port: int, seconds: float) -> float:
    batch = (U32.pack(REQUEST_BYTES) + bytes(REQUEST_BYTES)) * BATCH
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return pump(sock, lambda: batch, REQUEST_BYTES + 4, seconds)


def greet(sock: socket.socket) -> None:
    from broadsheet.wire import frame as f

    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    hello = f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", 4 << 20, 16 << 20)
    sock.sendall(f.frame(f.HELLO, 0, f.encode(hello)))
    read_frame(sock)


def read_frame(sock: socket.socket) -> bytes:
    head = sock.recv(16, socket.MSG_WAITALL)
    return head + sock.recv(U32.unpack_from(head)[0], socket.MSG_WAITALL)


_rendered: list[bytes] = []


def unary_batches(count: int) -> list[bytes]:
    from broadsheet.wire import frame as f
    from broadsheet.wire.method import EMPTY

    body = f.CALL_HEAD.pack(1, 30_000) + f.encode(EMPTY)
    while len(_rendered) < count:
        first = len(_rendered) * BATCH
        rest = body + bytes(REQUEST_BYTES)
        _rendered.append(
            b"".join(
                [
                    f.header(f.CALL, 2 * (first + n) + 1, body_bytes=len(body), payload_bytes=REQUEST_BYTES)
                    + rest
                    for n in range(BATCH)
                ]
            )
        )
    return _rendered


def load_unary(port: int, seconds: float) -> float:
    """Stream numbers rise, so every request differs: all were rendered before the clock starts."""
    batches = iter(unary_batches(int(seconds * 3_000_000 / BATCH) + 4))
    with socket.create_connection(("127.0.0.1", port)) as sock:
        greet(sock)
        return pump(sock, lambda: next(batches), 16 + 1 + REQUEST_BYTES, seconds)


def load_run(port: int, seconds: float) -> float:
    from broadsheet.wire import frame as f
    from broadsheet.wire.method import EMPTY

    table = f.U64.pack(f.AT_HEAD) + f.U32.pack(REQUEST_BYTES) * BATCH
    content = bytes(REQUEST_BYTES * BATCH)
    batch = f.header(f.RUN, 1, body_bytes=len(table), payload_bytes=len(content)) + table + content
    with socket.create_connection(("127.0.0.1", port)) as sock:
        greet(sock)
        sock.sendall(f.frame(f.OPEN_RUN, 1, f.CALL_HEAD.pack(2, 0) + f.encode(EMPTY)))
        read_frame(sock)
        return pump(sock, lambda: batch, f.HEADER_BYTES + f.RUN_ACK_BODY.size, seconds, per_reply=BATCH)


def load_grpc(port: int, seconds: float) -> float:
    import grpc

    async def main() -> float:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/bench.Echo/Echo")
            payload, done, ends = bytes(REQUEST_BYTES), 0, time.perf_counter() + seconds

            async def one() -> None:
                nonlocal done
                while time.perf_counter() < ends:
                    await call(payload)
                    done += 1

            began = time.perf_counter()
            await asyncio.gather(*[one() for _ in range(256)])
            return done / (time.perf_counter() - began)

    return asyncio.run(main())


CONTENDERS: dict[str, Callable[[int, float], float]] = {
    "bare": load_bare,
    "bare-singly": load_bare,
    "native-unary": load_unary,
    "native-run": load_run,
    "grpc-aio": load_grpc,
}


def start(name: str) -> tuple["subprocess.Popen[str]", int]:
    server = "native" if name.startswith("native") else name
    child = subprocess.Popen([sys.executable, __file__, "--serve", server], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    return child, int(child.stdout.readline())


Figures = dict[str, list[float]]


def measure(names: list[str], rounds: int, seconds: float) -> tuple[Figures, Figures]:
    """Requests per second, and server CPU in microseconds a request, of each round."""
    servers = {name: start(name) for name in names}
    rates: Figures = {name: [] for name in names}
    costs: Figures = {name: [] for name in names}
    try:
        for name in names:
            CONTENDERS[name](servers[name][1], 0.2)
        for _ in range(rounds):
            for name in names:
                child, port = servers[name]
                before = cpu_us(child.pid)
                rate = CONTENDERS[name](port, seconds)
                rates[name].append(rate)
                costs[name].append((cpu_us(child.pid) - before) / (rate * seconds))
    finally:
        for child, _ in servers.values():
            child.kill()
            child.wait()
    return rates, costs


PAIRS = (
    ("native-unary", "bare"),
    ("native-run", "bare"),
    ("native-unary", "bare-singly"),
    ("native-unary", "grpc-aio"),
)


def ratios(rates: Figures, costs: Figures) -> dict[str, float]:
    """The figures that the issue asks for, each within this run."""
    found = {}
    for one, other in PAIRS:
        if one in rates and other in rates:
            pair = f"{one} / {other}"
            found[pair] = statistics.median(rates[one]) / statistics.median(rates[other])
            if other != "grpc-aio":  # It works in threads of its own.
                found[f"{pair}, by CPU"] = statistics.median(costs[other]) / statistics.median(costs[one])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--only", default=",".join(CONTENDERS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.serve:
        import uvloop

        servers: dict[str, Callable[[], Any]] = {
            "bare": lambda: serve_bare(Bare),
            "bare-singly": lambda: serve_bare(BareSingly),
            "native": serve_native,
            "grpc-aio": serve_grpc,
        }
        main_of = servers[options.serve]()
        asyncio.run(main_of) if options.serve == "grpc-aio" else uvloop.run(main_of)
        return
    rates, costs = measure(options.only.split(","), options.rounds, options.seconds)
    found = ratios(rates, costs)
    if options.json:
        print(json.dumps({"rates": rates, "cpu_us": costs, "ratios": found}))
        return
    for name, each in rates.items():
        print(
            f"{name:14} {statistics.median(each):12,.0f} requests/s ({min(each):,.0f} to {max(each):,.0f}),"
            f" {statistics.median(costs[name]):.3f} us of CPU each"
        )
    for name, ratio in found.items():
        print(f"{name:45} {ratio:8.2f}")


if __name__ == "__main__":
    main()
