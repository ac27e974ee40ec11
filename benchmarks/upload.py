"""Uploads of 1 MiB: the native wire beside a bare socket, in one run.

The bare server is a process that reads a blocking socket into one buffer, parses a length and answers each
MiB with 16 bytes. The native ones are unary calls with a payload, and messages of one STREAM under flow
control, into a handler that takes a view and counts. The same blocking sender feeds all, two MiB ahead of
the answers, or as far as the window reaches. Medians of interleaved rounds, of MB/s and of server CPU.

Where the microseconds of one MiB go (samples of the server's CPU on a loaded machine: bare socket 120 us,
nearly all in the kernel; calls 180, streams 210):

    kernel copy            75 to 105   the bare socket's 75; more where messages wait in their queue, so
                                       that ten slabs are in use in turn, and the cache holds two
    rest of the kernel     40 to 50    1.1 to 1.2 reads, the poll before each, the send of answer or WINDOW
    interpreter            45 to 55    read, parse, dispatch, reply; with streams a task's turn. A small
                                       call takes 7 us: probably the megabyte just copied has pushed code
                                       and tables out of the cache
    copies of our own      0           large frames are read to their end where they stay (ADR 0045)

    python benchmarks/upload.py [--rounds 5] [--seconds 1.0] [--json]
"""

import argparse
import asyncio
import json
import select
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from _ports import cpu_us  # type: ignore[import-not-found]

SIZE = 1 << 20
AHEAD = 2
U32 = struct.Struct("<I")


def serve_bare() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        sock, _ = listener.accept()
        with sock, suppress(ConnectionError):  # A client whose time is up leaves without its last answers.
            answer_bare(sock)


def answer_bare(sock: socket.socket) -> None:
    buffer = memoryview(bytearray(4 << 20))
    begin = end = 0
    while got := sock.recv_into(buffer[end:]):
        end += got
        while end - begin >= 16 and end - begin >= (whole := 16 + U32.unpack_from(buffer, begin)[0]):
            begin += whole
            sock.sendall(bytes(16))
        if begin == end:
            begin = end = 0
        elif len(buffer) - begin < SIZE + 16:
            buffer[: end - begin] = bytes(buffer[begin:end])
            begin, end = 0, end - begin


async def serve_native() -> None:
    from _ports import ports_and_server

    from broadsheet.wire.method import EMPTY, Call, Empty, Reply, Shape, WireStream

    def upload(_call: Call, _request: Empty, payload: memoryview) -> Reply:
        assert len(payload) == SIZE
        return Reply(EMPTY)

    async def stream(_call: Call, _request: Empty, messages: WireStream) -> Reply:
        while (message := await messages.receive()) is not None:
            assert len(message.payload) == SIZE
        return Reply(EMPTY)

    rows = [("bench.upload", 1, Shape.UNARY, upload), ("bench.stream", 2, Shape.STREAM, stream)]
    print((await ports_and_server(rows)).rpartition(":")[2], flush=True)
    await asyncio.Event().wait()


def greet(sock: socket.socket) -> None:
    from broadsheet.wire import frame as f

    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    hello = f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", 4 << 20, 16 << 20)
    sock.sendall(f.frame(f.HELLO, 0, f.encode(hello)))
    head = sock.recv(16, socket.MSG_WAITALL)
    sock.recv(U32.unpack_from(head)[0], socket.MSG_WAITALL)


def push(sock: socket.socket, heads: Callable[[], bytes], answer_bytes: int, seconds: float) -> float:
    """MB/s with `AHEAD` uploads ahead of their answers."""
    payload = bytes(SIZE)
    done = ahead = got = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        while ahead < AHEAD:
            sock.sendmsg([heads(), b""])
            sock.sendall(payload)
            ahead += 1
        got += len(sock.recv(4096))
        while got >= answer_bytes:
            got -= answer_bytes
            ahead, done = ahead - 1, done + 1
    return done * SIZE / (time.perf_counter() - began) / 1e6


def load_bare(port: int, seconds: float) -> float:
    head = U32.pack(SIZE) + bytes(12)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return push(sock, lambda: head, 16, seconds)


def load_call(port: int, seconds: float) -> float:
    from broadsheet.wire import frame as f
    from broadsheet.wire.method import EMPTY

    body, stream = f.CALL_HEAD.pack(1, 30_000) + f.encode(EMPTY), -1

    def head() -> bytes:
        nonlocal stream
        stream += 2
        return f.header(f.CALL, stream, body_bytes=len(body), payload_bytes=SIZE) + body

    with socket.create_connection(("127.0.0.1", port)) as sock:
        greet(sock)
        return push(sock, head, 17, seconds)


def load_stream(port: int, seconds: float) -> float:
    """Messages of one stream: what is sent is bounded by the window that the node grants."""
    from broadsheet.wire import frame as f
    from broadsheet.wire.method import EMPTY

    head, payload = f.header(f.MESSAGE, 1, payload_bytes=SIZE), bytes(SIZE)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        greet(sock)
        sock.sendall(f.frame(f.OPEN, 1, f.CALL_HEAD.pack(2, 0) + f.encode(EMPTY)))
        credit, granted, done, rest = f.INITIAL_WINDOW_BYTES, 0, 0, b""
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            is_short = credit < SIZE + f.MESSAGE_COST
            if is_short or select.select([sock], [], [], 0)[0]:
                rest += sock.recv(4096)
                while len(rest) >= 20:
                    credit, rest = credit + U32.unpack_from(rest, 16)[0], rest[20:]
                    granted += 1
                continue
            sock.sendall(head)
            sock.sendall(payload)
            credit -= SIZE + f.MESSAGE_COST
            done += 1
        return done * SIZE / (time.perf_counter() - began) / 1e6


CONTENDERS: dict[str, Callable[[int, float], float]] = {
    "bare-socket": load_bare,
    "native-call": load_call,
    "native-stream": load_stream,
}


def start(name: str) -> tuple["subprocess.Popen[str]", int]:
    child = subprocess.Popen(
        [sys.executable, __file__, "--serve", name.partition("-")[0]], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    return child, int(child.stdout.readline())


Figures = dict[str, list[float]]


def measure(rounds: int, seconds: float) -> tuple[Figures, Figures]:
    """MB/s, and server CPU in microseconds a MiB, of each round."""
    servers = {name: start(name) for name in CONTENDERS}
    rates: Figures = {name: [] for name in CONTENDERS}
    costs: Figures = {name: [] for name in CONTENDERS}
    try:
        for name, load in CONTENDERS.items():
            load(servers[name][1], 0.2)
        for _ in range(rounds):
            for name, load in CONTENDERS.items():
                child, port = servers[name]
                before = cpu_us(child.pid)
                rate = load(port, seconds)
                rates[name].append(rate)
                costs[name].append((cpu_us(child.pid) - before) / (rate * 1e6 * seconds / SIZE))
    finally:
        for child, _ in servers.values():
            child.kill()
            child.wait()
    return rates, costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.serve == "bare":
        serve_bare()
    elif options.serve:
        import uvloop

        uvloop.run(serve_native())
    else:
        report(*measure(options.rounds, options.seconds), as_json=options.json)


def report(rates: Figures, costs: Figures, *, as_json: bool) -> None:
    """Print the medians, and the ratios to the bare socket."""
    rate = {name: statistics.median(each) for name, each in rates.items()}
    cost = {name: statistics.median(each) for name, each in costs.items()}
    ratios: dict[str, float] = {}
    for name in list(CONTENDERS)[1:]:
        ratios[f"{name} / bare-socket"] = rate[name] / rate["bare-socket"]
        ratios[f"{name} / bare-socket, by CPU"] = cost["bare-socket"] / cost[name]
    if as_json:
        print(json.dumps({"rates": rates, "cpu_us": costs, "ratios": ratios}))
        return
    for name, each in rates.items():
        print(
            f"{name:14} {rate[name]:8,.0f} MB/s ({min(each):,.0f} to {max(each):,.0f}),"
            f" {cost[name]:.0f} us of CPU a MiB"
        )
    for name, ratio in ratios.items():
        print(f"{name:40} {ratio:.2f}")


if __name__ == "__main__":
    main()
