"""Echo of 100-byte requests, pipelined: the native wire, a bare asyncio `Protocol` and grpcio in one run.

Every contender is a server process of its own on uvloop; the load comes from this process as bytes that
were rendered beforehand, so that what is measured is the server. Both sides parse a length and answer
each request singly: the bare protocol answers with the request's bytes, the native unary call with a
REPLY frame that carries them, the native run with one 40-byte ACK per record. Ratios are of requests per
second, medians of interleaved rounds.

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
    from benchmarks_ports import ports_and_server  # type: ignore[import-not-found]

    from broadsheet.errors import Status
    from broadsheet.wire.method import EMPTY, Call, Empty, Reply, RunOpened, Shape
    from broadsheet.wire.run import FrameRun

    class Sink:
        head = 0

        def on_run(self, run: FrameRun) -> None:
            begin, self.head = self.head, self.head + run.size
            run.reply(Status.OK, begin)

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


def pump(sock: socket.socket, batches: Callable[[], bytes], reply_bytes: int, seconds: float) -> float:
    """Requests per second with two batches in flight; replies are counted by their bytes."""
    buffer = memoryview(bytearray(1 << 20))
    want = BATCH * reply_bytes
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
    hello = f.Hello(f.MAGIC, 1, 1, "", 4 << 20, 16 << 20)
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
    batches = iter(unary_batches(int(seconds * 2_000_000 / BATCH) + 4))
    with socket.create_connection(("127.0.0.1", port)) as sock:
        greet(sock)
        return pump(sock, lambda: next(batches), 16 + 1 + REQUEST_BYTES, seconds)


def load_run(port: int, seconds: float) -> float:
    from broadsheet.wire import frame as f
    from broadsheet.wire.method import EMPTY

    batch = (f.header(f.RECORD, 1, payload_bytes=REQUEST_BYTES) + bytes(REQUEST_BYTES)) * BATCH
    with socket.create_connection(("127.0.0.1", port)) as sock:
        greet(sock)
        sock.sendall(f.frame(f.OPEN_RUN, 1, f.CALL_HEAD.pack(2, 0) + f.encode(EMPTY)))
        read_frame(sock)
        return pump(sock, lambda: batch, 40, seconds)


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


def measure(names: list[str], rounds: int, seconds: float) -> dict[str, list[float]]:
    servers = {name: start(name) for name in names}
    rates: dict[str, list[float]] = {name: [] for name in names}
    try:
        for name in names:
            CONTENDERS[name](servers[name][1], 0.2)
        for _ in range(rounds):
            for name in names:
                rates[name].append(CONTENDERS[name](servers[name][1], seconds))
    finally:
        for child, _ in servers.values():
            child.kill()
            child.wait()
    return rates


def ratios(rates: dict[str, list[float]]) -> dict[str, float]:
    """The figures that the issue asks for, each within this run."""
    median = {name: statistics.median(each) for name, each in rates.items()}
    found = {}
    if "bare" in median:
        found["unary / bare protocol"] = median["native-unary"] / median["bare"]
        found["run / bare protocol"] = median["native-run"] / median["bare"]
    if "bare-singly" in median:
        found["unary / bare protocol, one write per answer"] = median["native-unary"] / median["bare-singly"]
    if "grpc-aio" in median:
        found["unary / grpcio aio"] = median["native-unary"] / median["grpc-aio"]
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
    rates = measure(options.only.split(","), options.rounds, options.seconds)
    found = ratios(rates)
    if options.json:
        print(json.dumps({"rates": rates, "ratios": found}))
        return
    for name, each in rates.items():
        print(
            f"{name:14} {statistics.median(each):12,.0f} requests/s   ({min(each):,.0f} to {max(each):,.0f})"
        )
    for name, ratio in found.items():
        print(f"{name:45} {ratio:8.2f}")


if __name__ == "__main__":
    main()
