"""One-node appends over the native door, fsynced, beside a hand-written loop that does the same work.

Both servers are processes of their own on uvloop and take the same bytes, rendered beforehand: RUN frames, of
one append or of many, as our client makes them of what is ready. Each has one answer, which tells where it
began; the node takes small ones that it reads together as one run (ADR 0196), and the loop does not. The loop
parses the same frames with their header checksums, sums the content (SHA-1, crc32c), writes it to a spool and
to a log in a resident segment, and syncs once per batch with one batch on its way; it has no host, machine,
conditions, limits, registers or recovery. Rounds alternate, each side first in every other round, and begin
when the node has prefilled its log; ratios are of appends per second, medians over the rounds of the ratio
within a round. The node's CPU per append is split, case by case, by the module that its own interpreter was
in, a sample per millisecond of CPU time (threads that write count for whoever the loop works for then). That
is done after the rounds, in a load of its own: sampling costs the node a few percent.

The loop's spool is resident as well: it wraps around in a file that was written before. A node's spool is a
new file for each fragment, and its pages are new: where free memory goes back to the host, as in a virtual
machine with a balloon, a new page costs up to 25 times one that is there. So large appends are also compared
with a loop whose spool is a new file.

    python benchmarks/append.py [--rounds 3] [--seconds 1.0] [--directory DIR] [--json]
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha1
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import msgspec
import numpy as np
from crc32c import crc32c

from broadsheet.wire import frame as f

JOURNAL = "bench/append"
SEGMENT_BYTES = 256 << 20
FRAGMENT_BYTES = 1 << 30
"""Of the node's journal, and of the spool of a loop that begins a new file."""
PREFILL_SECONDS_MAX = 120.0
"""A first start prefills the log's segments in the background; the loop's file is resident from the start."""
WINDOW_BYTES = 64 << 20
ANSWER_BYTES = f.HEADER_BYTES + f.RUN_ACK_BODY.size
KIND_AT, RUN_ACK = 8, bytes([f.RUN_ACK])
"""Where an answer tells its kind, and what it must be: a run that is refused costs less, and is no append."""
CASES = (
    ("100 B, one in a frame", 100, 1, 1),
    ("100 B, one in a frame", 100, 256, 1),
    ("100 B, 64 in a frame", 100, 256, 64),
    ("100 B, 1024 in a frame", 100, 4096, 1024),
    ("64 KiB, one in a frame", 65536, 8, 1),
)
"""Title, bytes of an append, appends in flight, appends in a frame."""

KINDS = ("node", "loop", "fresh")
LARGE_BYTES = 64 << 10
"""From here on pages are most of what an append costs: it is compared with a loop of either kind."""


# ---------------------------------------------------------------------- the hand-written loop


class Loop(asyncio.BufferedProtocol):
    """Frames in, spool and log, frames out."""

    log_fd = spool_fd = -1
    log_at = spool_at = 0
    chain = 0
    sha = sha1(usedforsecurity=False)
    pool = ThreadPoolExecutor(1)
    pending: ClassVar[list[tuple["Loop", int, int, int, int]]] = []
    parts: ClassVar[list[bytes]] = []
    is_flying = False
    is_fresh = False
    """Whether its spool is a new file, as a node's is, and grows."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.buffer = bytearray(8 << 20)
        self.view = memoryview(self.buffer)
        self.read = self.written = self.sequence = 0
        self.verified: dict[bytes, int] = {}

    def get_buffer(self, _hint: int) -> memoryview:
        if len(self.buffer) - self.written < 1 << 20:
            rest = bytes(self.view[self.read : self.written])
            self.view[: len(rest)] = rest
            self.read, self.written = 0, len(rest)
        return self.view[self.written :]

    def buffer_updated(self, count: int) -> None:
        self.written += count
        at, written, view, unpack = self.read, self.written, self.view, f.HEADER.unpack_from
        verified = self.verified
        while written - at >= 16:
            length, _, word, crc = unpack(view, at)
            end = at + 16 + length
            if end > written:
                break
            if verified.get(crc) != length:
                if crc32c(view[at : at + 12]) != crc:
                    raise ValueError("header")
                verified[crc] = length
            self.on_frame(word & 0xFF, view[at + 16 : end], word >> 8)
            at = end
        self.read = at

    def on_frame(self, kind: int, content: memoryview, body_bytes: int) -> None:
        if kind == f.HELLO:
            welcome = f.Welcome(f.VERSION, 16 << 20, WINDOW_BYTES, 1024, 65536, {"journal.append_run": 55})
            self.transport.write(f.frame(f.HELLO, 0, f.encode(welcome)))
        elif kind == f.OPEN_RUN:
            self.transport.write(f.frame(f.OPENED, 1, f.encode({})))
        elif kind == f.RUN:
            count = (body_bytes - 8) // 4
            lengths = np.frombuffer(content, "<u4", count, 8)
            payload = bytes(content[body_bytes:])
            if int(lengths.sum()) != len(payload):
                raise ValueError("lengths")
            self.take(payload, count)

    def take(self, content: bytes, count: int) -> None:
        cls = Loop
        begin = cls.spool_at
        cls.sha.update(content)
        at = begin % (FRAGMENT_BYTES if cls.is_fresh else SEGMENT_BYTES)
        if cls.is_fresh and at + len(content) > FRAGMENT_BYTES:
            os.ftruncate(cls.spool_fd, 0)
        os.pwritev(cls.spool_fd, (content,), at)
        head = struct.pack("<QQQ20s", 1, begin, begin + len(content), cls.sha.digest())
        cls.chain = crc32c(content, crc32c(head, cls.chain))
        cls.spool_at += len(content)
        cls.parts += [struct.pack("<II", len(content), cls.chain), head, content]
        cls.pending.append((self, self.sequence, count, begin, cls.spool_at))
        self.sequence += count
        if not cls.is_flying:
            cls.is_flying = True
            asyncio.get_running_loop().call_soon(cls.fly)

    @classmethod
    def fly(cls) -> None:
        if not cls.pending:
            cls.is_flying = False
            return
        batch, parts = cls.pending, cls.parts
        cls.pending, cls.parts = [], []
        size = sum(map(len, parts))
        at = cls.log_at = cls.log_at if cls.log_at + size <= SEGMENT_BYTES else 0
        cls.log_at += size

        def persist() -> None:
            offset = at
            for first in range(0, len(parts), 1024):
                offset += os.pwritev(cls.log_fd, parts[first : first + 1024], offset)
            os.fdatasync(cls.log_fd)

        future = asyncio.get_running_loop().run_in_executor(cls.pool, persist)
        future.add_done_callback(lambda _: cls.landed(batch))

    @classmethod
    def landed(cls, batch: list[tuple["Loop", int, int, int, int]]) -> None:
        for connection, *fields in batch:
            connection.transport.write(f.frame(f.RUN_ACK, 1, f.RUN_ACK_BODY.pack(*fields)))
        cls.fly()


async def serve_loop(directory: Path, *, is_fresh: bool) -> None:
    """The loop, on a port of its own."""
    Loop.is_fresh = is_fresh
    for name in ("log", "spool"):
        fd = os.open(directory / name, os.O_RDWR | os.O_CREAT)
        for at in range(0, 0 if is_fresh and name == "spool" else SEGMENT_BYTES, 1 << 20):
            os.pwrite(fd, bytes(1 << 20), at)
        os.fsync(fd)
        setattr(Loop, f"{name}_fd", fd)
    server = await asyncio.get_running_loop().create_server(Loop, "127.0.0.1", 0)
    print(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.Event().wait()


# ---------------------------------------------------------------------- the node

LAYERS = {
    "wire/": "wire",
    "runtime/network": "wire",
    "journal/core/pipeline": "machine",
    "journal/core/": "machine",
    "journal/": "data path",
    "base/checksum": "data path",
    "runtime/host": "host",
    "observe/story": "host",
    "wal/": "WAL",
    "runtime/": "host",
}
SEGMENTS = ("log_segments", "log_segments_free")
samples: Counter[str] = Counter()


def sample(_signal: int, frame: FrameType | None) -> None:
    """One millisecond of CPU was used: by which layer?"""
    while frame is not None:
        name = frame.f_code.co_filename.partition("/broadsheet/")[2]
        for prefix, layer in LAYERS.items():
            if name.startswith(prefix):
                samples[layer] += 1
                return
        frame = frame.f_back
    samples["loop"] += 1


def toggle_sampling() -> None:
    """Begin to sample; or end, and print what was sampled."""
    is_over = signal.getitimer(signal.ITIMER_PROF)[1] > 0
    signal.setitimer(signal.ITIMER_PROF, *((0, 0) if is_over else (0.001, 0.001)))
    print(json.dumps(samples), flush=True)
    samples.clear()


async def serve_node(directory: Path) -> None:
    """The real roles on the real ports, with a sampler; SIGTERM ends it, and it prints the samples."""
    from broadsheet.access.authorizer import Authorizer
    from broadsheet.base.types import NodeId
    from broadsheet.journal.config import JournalsConfig
    from broadsheet.journal.role import JournalsRole
    from broadsheet.keyspace.local.keyspace import KeyspaceConfig
    from broadsheet.keyspace.local.role import KeyspaceRole
    from broadsheet.runtime.disk import LocalDisk
    from broadsheet.runtime.identity import Identity, StatusSource
    from broadsheet.runtime.process import end_process
    from broadsheet.runtime.role import Services
    from broadsheet.runtime.scope import Scope
    from broadsheet.runtime.system import system_ports
    from broadsheet.wal.config import WALConfig
    from broadsheet.wire.limits import WireLimits
    from broadsheet.wire.method import Method
    from broadsheet.wire.server import Server

    disk = LocalDisk(directory)
    ports = system_ports(disk, crash=end_process)
    scope, services, node = Scope("bench", crash=end_process), Services(), NodeId("n1")
    services.offer(
        Identity, Identity(node=node, cluster="c", peers={node: ""}, version="", is_insecure=False)
    )
    await KeyspaceRole().start(scope.child("keyspace"), ports, KeyspaceConfig(), services)
    await JournalsRole().start(scope.child("journals"), ports, JournalsConfig(), services)
    limits = WireLimits(window_bytes=WINDOW_BYTES, in_flight_bytes_max=WINDOW_BYTES)
    authorizer = Authorizer(None, time=ports.time)
    server = Server(ports, scope, services.every(Method), authorizer=authorizer, limits=limits)
    address = await server.listen("127.0.0.1:0")
    (source,) = [each for each in services.every(StatusSource) if each.name == "journals"]
    async with asyncio.timeout(PREFILL_SECONDS_MAX):
        while True:
            await asyncio.sleep(0.1)
            if sum(int(source.read()[key] or 0) for key in SEGMENTS) >= WALConfig().segments_initial:
                break
    print(address, flush=True)
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_signal_handler(signal.SIGUSR1, toggle_sampling)
    signal.signal(signal.SIGPROF, sample)
    await ended.wait()
    await scope.close()


# ---------------------------------------------------------------------- the load


@contextmanager
def child(kind: str, directory: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server process."""
    command = [sys.executable, __file__, "--serve", kind, "--directory", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.terminate()


def make_journal(address: str) -> None:
    """Make the journal that the load goes to."""
    import broadsheet

    with broadsheet.connect_sync(address) as client:
        client.journals.create(JOURNAL, fragment_length=FRAGMENT_BYTES, if_absent=True)


def connect(address: str) -> socket.socket:
    """A connection with an open run stream, by hand."""
    host, _, port = address.partition(":")
    link = socket.create_connection((host, int(port)))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    hello = f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", 16 << 20, WINDOW_BYTES)
    link.sendall(f.frame(f.HELLO, 0, f.encode(hello)))
    read_frame(link)
    body = struct.pack("<II", 55, 60_000) + msgspec.msgpack.encode({"journal": JOURNAL})
    link.sendall(f.frame(f.OPEN_RUN, 1, body))
    read_frame(link)
    return link


def read_frame(link: socket.socket) -> None:
    """One frame, thrown away."""
    head = link.recv(16, socket.MSG_WAITALL)
    link.recv(struct.unpack_from("<I", head)[0], socket.MSG_WAITALL)


def load(
    address: str, pid: int, size: int, *, in_flight: int, per_run: int, seconds: float
) -> tuple[float, float]:
    """Appends per second, and the server's CPU in µs per append."""
    body, content = f.U64.pack(f.AT_HEAD) + f.U32.pack(size) * per_run, b"x" * (size * per_run)
    whole = f.header(f.RUN, 1, body_bytes=len(body), payload_bytes=len(content)) + body + content
    link = connect(address)
    window = in_flight // per_run
    many = memoryview(whole * window)
    buffer, rest, done = bytearray(1 << 20), 0, 0
    cpu, began = cpu_seconds(pid), time.perf_counter()
    link.sendall(many)
    until, sent = began + seconds, window
    while done < sent:
        received = link.recv_into(buffer)
        kinds = buffer[(KIND_AT - rest) % ANSWER_BYTES : received : ANSWER_BYTES]
        if kinds.strip(RUN_ACK):
            raise SystemExit(f"a run was refused: answers of the kinds {sorted(set(kinds))}")
        count, rest = divmod(rest + received, ANSWER_BYTES)
        done += count
        if count and time.perf_counter() < until:
            link.sendall(many[: count * len(whole)])
            sent += count
    took, used = time.perf_counter() - began, cpu_seconds(pid) - cpu
    link.close()
    return done * per_run / took, used * 1e6 / (done * per_run)


def cpu_seconds(pid: int) -> float:
    """What a process has used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run every case, round by round."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument(
        "--case", type=int, action="append", choices=range(len(CASES)), help="Only this one; may be repeated."
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.serve:
        import uvloop

        uvloop.install()
        with suppress(KeyboardInterrupt):
            if options.serve == "node":
                asyncio.run(serve_node(options.directory))
            else:
                asyncio.run(serve_loop(options.directory, is_fresh=options.serve == "fresh"))
        return
    with tempfile.TemporaryDirectory(dir=options.directory) as root:
        cases = options.case or list(range(len(CASES)))
        report(measure(Path(root), cases, options.rounds, options.seconds), as_json=options.json)


Found = tuple[float, float]
"""Appends per second, CPU microseconds per append."""


def measure(root: Path, cases: list[int], rounds: int, seconds: float) -> dict[str, Any]:
    """Rates, CPU and layers of each of `cases`."""
    found: dict[tuple[int, str], list[Found]] = {}
    with ExitStack() as stack:
        servers = {}
        for kind in KINDS:
            (root / kind).mkdir()
            servers[kind] = stack.enter_context(child(kind, root / kind))
        make_journal(servers["node"][0])
        for number in range(-1, rounds):  # The first one warms up.
            for case in cases:
                kinds = KINDS if CASES[case][1] >= LARGE_BYTES else KINDS[:2]
                for kind in kinds[:: -1 if number % 2 else 1]:
                    result = one(*servers[kind], case, seconds if number >= 0 else seconds / 4)
                    if number >= 0:
                        found.setdefault((case, kind), []).append(result)
        layers = {case: split(*servers["node"], case, seconds * rounds) for case in cases}
    return {
        "rows": [
            row(case, found[case, "node"], found[case, "loop"], found.get((case, "fresh")), layers[case])
            for case in cases
        ]
    }


def one(address: str, process: "subprocess.Popen[str]", case: int, seconds: float) -> Found:
    """One server under one case."""
    _, size, in_flight, per_run = CASES[case]
    return load(address, process.pid, size, in_flight=in_flight, per_run=per_run, seconds=seconds)


def split(address: str, process: "subprocess.Popen[str]", case: int, seconds: float) -> dict[str, int]:
    """What the node was at in one case: samples by layer."""
    assert process.stdout is not None
    process.send_signal(signal.SIGUSR1)
    process.stdout.readline()
    one(address, process, case, seconds)
    process.send_signal(signal.SIGUSR1)
    return dict(json.loads(process.stdout.readline()))


def row(
    case: int, node: list[Found], loop: list[Found], fresh: list[Found] | None, layers: dict[str, int]
) -> dict[str, Any]:
    """The medians of one case."""
    total, cpu = sum(layers.values()) or 1, statistics.median(each[1] for each in node)
    return {
        "case": CASES[case][0],
        "in_flight": CASES[case][2],
        "ratio": ratio(node, loop),
        "ratio_new_file": ratio(node, fresh) if fresh else None,
        "node_per_s": round(statistics.median(each[0] for each in node)),
        "loop_per_s": round(statistics.median(each[0] for each in loop)),
        "node_cpu_us": round(cpu, 2),
        "loop_cpu_us": round(statistics.median(each[1] for each in loop), 2),
        "new_file_cpu_us": round(statistics.median(each[1] for each in fresh), 2) if fresh else None,
        "layers_us": {name: round(cpu * count / total, 2) for name, count in sorted(layers.items())},
    }


def ratio(node: list[Found], other: list[Found]) -> float:
    """Of the rates, round by round."""
    return round(statistics.median(mine[0] / its[0] for mine, its in zip(node, other, strict=True)), 2)


def report(found: dict[str, Any], *, as_json: bool) -> None:
    """Print it."""
    if as_json:
        print(json.dumps(found))
        return
    print(f"{'':24}{'in flight':>10}{'node/s':>12}{'loop/s':>12}{'ratio':>7}{'node µs':>9}{'loop µs':>9}")
    for row in found["rows"]:
        print(
            f"{row['case']:24}{row['in_flight']:>10}{row['node_per_s']:>12,}{row['loop_per_s']:>12,}"
            f"{row['ratio']:>7.2f}{row['node_cpu_us']:>9.2f}{row['loop_cpu_us']:>9.2f}"
        )
    for row in found["rows"]:
        if row["ratio_new_file"] is not None:
            told = f"against a loop whose spool is a new file: {row['ratio_new_file']:.2f}"
            print(f"{row['case']:24}{told}, which takes {row['new_file_cpu_us']:.2f} µs")
    names = sorted({name for row in found["rows"] for name in row["layers_us"]})
    print(f"\n{'node CPU µs per append':24}{'in flight':>10}" + "".join(f"{name:>11}" for name in names))
    for row in found["rows"]:
        shares = "".join(f"{row['layers_us'].get(name, 0.0):>11.2f}" for name in names)
        print(f"{row['case']:24}{row['in_flight']:>10}{shares}")


if __name__ == "__main__":
    main()
