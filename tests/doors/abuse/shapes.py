"""What a client may do to a node: one function for each behaviour, for as long as it is told.

None of them has more than a token for `mine/`, many have none. Each opens its connections again when the node
closes them, as somebody would who means it.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Final

from broadsheet.wire import frame as f
from tests.doors.abuse.raw import Gone, Raw, encode, hello
from tests.doors.abuse.site import Target

Attack = Callable[[Target, float], None]
HEAD: Final = (1 << 64) - 1
SHAPES: Final[dict[str, Attack]] = {}


def shape(attack: Attack) -> Attack:
    """Register an attack by its name."""
    SHAPES[attack.__name__] = attack
    return attack


def until(seconds: float) -> Iterator[float]:
    """Rounds until the time is up; a round whose connection was closed is over, and the next one begins."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        yield ends - time.monotonic()


def again(target: Target, seconds: float, attack: Callable[[Raw, float], None]) -> None:
    """Attack over a connection, and over a new one whenever the node has closed it."""
    for left in until(seconds):
        with contextlib.suppress(Gone, OSError):
            caller = Raw(target.native, target.token)
            try:
                attack(caller, left)
            finally:
                caller.close()
        time.sleep(0.001)


def pump(caller: Raw, seconds: float, blob: Callable[[], bytes]) -> None:
    """Send as fast as the node takes it, and throw the answers away."""
    for _ in until(seconds):
        caller.sock.sendall(blob())
        caller.drain()


def strangers(port: int, count: int, seconds: float, data: bytes, *, pause: float = 0.0) -> None:
    """Many connections that send pieces of `data` without waiting for anything."""
    open_: list[tuple[socket.socket, int]] = []
    for _ in until(seconds):
        while len(open_) < count:
            with contextlib.suppress(OSError):
                sock = socket.create_connection(("127.0.0.1", port), timeout=5)
                sock.setblocking(False)
                open_.append((sock, 0))
        kept = []
        for sock, at in open_:
            try:
                sent = sock.send(data[at : at + 400_000]) if data else 0
                kept.append((sock, (at + sent) % max(1, len(data))))
            except BlockingIOError:
                kept.append((sock, at))
            except OSError:
                sock.close()
        if not data:
            kept = [each for each in open_ if _is_open(each[0])]
        open_ = kept
        time.sleep(pause or 0.001)
    for sock, _ in open_:
        sock.close()


def _is_open(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(4096))
    except BlockingIOError:
        return True
    except OSError:
        return False


# ---------------------------------------------------------------------- before the greeting


@shape
def goaway_flood(target: Target, seconds: float) -> None:
    """GOAWAY frames without a greeting, over 8 connections."""
    strangers(target.native, 8, seconds, f.frame(f.GOAWAY, 0, encode([0, "", 0])) * 20_000)


@shape
def silent_native(target: Target, seconds: float) -> None:
    """256 connections that say nothing."""
    strangers(target.native, 256, seconds, b"", pause=0.01)


@shape
def slow_greeting(target: Target, seconds: float) -> None:
    """200 greetings of which a byte comes now and then."""
    socks: list[socket.socket] = []
    greeting = hello(target.token)
    for turn, _ in enumerate(until(seconds)):
        while len(socks) < 200:
            with contextlib.suppress(OSError):
                socks.append(socket.create_connection(("127.0.0.1", target.native), timeout=5))
        for sock in list(socks):
            try:
                sock.send(greeting[turn % len(greeting) : turn % len(greeting) + 1])
            except OSError:
                socks.remove(sock)
        time.sleep(0.1)


@shape
def connect_storm_native(target: Target, seconds: float) -> None:
    """Connections that are closed at once."""
    for _ in until(seconds):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", target.native), timeout=5).close()


@shape
def bad_token_storm(target: Target, seconds: float) -> None:
    """Greetings with forged tokens, one connection each."""
    forged = target.token[:-4] + "AAAA"
    for _ in until(seconds):
        with contextlib.suppress(Gone, OSError):
            Raw(target.native, forged).close()


@shape
def greeting_storm(target: Target, seconds: float) -> None:
    """Good greetings, one connection each."""
    for _ in until(seconds):
        with contextlib.suppress(Gone, OSError):
            Raw(target.native, target.token).close()


@shape
def wrong_checksums(target: Target, seconds: float) -> None:
    """Frames whose header has a wrong checksum, after a good greeting."""

    def attack(caller: Raw, _seconds: float) -> None:
        caller.sock.sendall(b"\xff" * 65536)
        caller.read()

    again(target, seconds, attack)


@shape
def half_greeting_frames(target: Target, seconds: float) -> None:
    """Connections that stop in the middle of a greeting."""
    strangers(target.native, 300, seconds, hello(target.token)[:20], pause=0.05)


# ---------------------------------------------------------------------- frames


@shape
def ping_flood(target: Target, seconds: float) -> None:
    """PING frames."""
    blob = f.frame(f.PING, 0) * 20_000
    again(target, seconds, lambda caller, left: pump(caller, left, lambda: blob))


@shape
def late_frames(target: Target, seconds: float) -> None:
    """Frames for a stream that has ended."""

    def attack(caller: Raw, left: float) -> None:
        caller.call("journal.list", {"prefix": "mine/"})
        blob = f.frame(f.MESSAGE, 1) * 10_000 + f.frame(f.FINISH, 1) * 10_000 + f.frame(f.CANCEL, 1) * 10_000
        pump(caller, left, lambda: blob)

    again(target, seconds, attack)


@shape
def window_flood(target: Target, seconds: float) -> None:
    """WINDOW frames of one byte for a stream that is open."""

    def attack(caller: Raw, left: float) -> None:
        stream = caller.open(f.OPEN, "journal.read", {"journal": "mine/a", "offset": 0, "block": True})
        blob = f.frame(f.WINDOW, stream, struct.pack("<I", 1)) * 20_000
        pump(caller, left, lambda: blob)

    again(target, seconds, attack)


@shape
def torn_frames(target: Target, seconds: float) -> None:
    """120 connections that begin a frame of 4 MiB and stop before its end."""
    callers: list[Raw] = []
    for _ in until(seconds):
        while len(callers) < 120:
            with contextlib.suppress(Gone, OSError):
                caller = Raw(target.native, target.token, timeout=1)
                body = struct.pack("<II", 53, 0) + encode({"journal": "mine/a"})
                size = (4 << 20) - len(body)
                caller.sock.settimeout(0.2)
                callers.append(caller)
                caller.sock.sendall(
                    f.header(f.CALL, 1, body_bytes=len(body), payload_bytes=size)
                    + body
                    + bytes(size - 100_000)
                )
        time.sleep(0.1)


@shape
def garbage_after_greeting(target: Target, seconds: float) -> None:
    """Right headers of unknown kinds."""

    def attack(caller: Raw, _left: float) -> None:
        caller.sock.sendall(f.frame(77, 1, bytes(1000)) * 100)
        caller.read()

    again(target, seconds, attack)


# ---------------------------------------------------------------------- streams


@shape
def rapid_reset(target: Target, seconds: float) -> None:
    """OPEN and CANCEL at once, by the ten thousand."""

    def attack(caller: Raw, left: float) -> None:
        def pairs() -> bytes:
            out = []
            for _ in range(2000):
                stream, frame = caller.request(
                    f.OPEN, "journal.read", {"journal": "mine/a", "offset": 0, "block": True}
                )
                out += [frame, f.frame(f.CANCEL, stream)]
            return b"".join(out)

        pump(caller, left, pairs)

    again(target, seconds, attack)


@shape
def cancelled_calls(target: Target, seconds: float) -> None:
    """Unary appends that are cancelled at once."""

    def attack(caller: Raw, left: float) -> None:
        def pairs() -> bytes:
            out = []
            for _ in range(2000):
                stream, frame = caller.request(f.CALL, "journal.append", {"journal": "mine/a"}, b"x")
                out += [frame, f.frame(f.CANCEL, stream)]
            return b"".join(out)

        pump(caller, left, pairs)

    again(target, seconds, attack)


@shape
def run_streams_opened_and_left(target: Target, seconds: float) -> None:
    """RUN streams that are opened and cancelled."""

    def attack(caller: Raw, left: float) -> None:
        def pairs() -> bytes:
            out = []
            for _ in range(1000):
                stream, frame = caller.request(f.OPEN_RUN, "journal.append_run", {"journal": "mine/a"})
                out += [frame, f.frame(f.CANCEL, stream)]
            return b"".join(out)

        pump(caller, left, pairs)

    again(target, seconds, attack)


def _stuff(target: Target, seconds: float, message: bytes) -> None:
    """Streams whose handler never receives, stuffed with messages up to their windows."""

    def attack(caller: Raw, left: float) -> None:
        caller.sock.settimeout(1)
        cost = len(message) - f.HEADER_BYTES + 64
        for _ in until(left):
            stream = caller.open(f.OPEN, "journal.read", {"journal": "mine/a", "offset": 0, "block": True})
            window, waits = 64 << 10, time.monotonic() + 0.05
            with contextlib.suppress(TimeoutError):
                caller.sock.settimeout(0.05)
                while time.monotonic() < waits:
                    kind, other, body, _ = caller.read()
                    if kind == f.WINDOW and other == stream:
                        window += struct.unpack("<I", body)[0]
                        break
            caller.sock.settimeout(1)
            head = bytearray(message)
            head[:16] = f.header(f.MESSAGE, stream, payload_bytes=len(message) - f.HEADER_BYTES)
            caller.sock.sendall(bytes(head) * (window // cost - 1))

    again(target, seconds, attack)


@shape
def stuffed_streams(target: Target, seconds: float) -> None:
    """Messages of 64,000 bytes for reads, which never take one."""
    _stuff(target, seconds, f.header(f.MESSAGE, 1, payload_bytes=60_000) + bytes(60_000))


@shape
def empty_messages(target: Target, seconds: float) -> None:
    """Empty messages for reads."""
    _stuff(target, seconds, f.frame(f.MESSAGE, 1))


@shape
def many_tail_readers(target: Target, seconds: float) -> None:
    """1,000 readers at the tail of a journal that is appended to."""

    def attack(caller: Raw, left: float) -> None:
        body = {"journal": "mine/a", "block": True}
        caller.sock.sendall(caller.row(f.OPEN, "journal.read", body, count=1000))
        writer = Raw(target.native, target.token)
        for _ in until(left):
            writer.call("journal.append", {"journal": "mine/a"}, b"x")
            caller.drain()

    again(target, seconds, attack)


@shape
def unread_answers(target: Target, seconds: float) -> None:
    """Lists and registers whose answers are never read, with a small receive buffer, over 20 connections."""
    callers: list[Raw] = []
    for _ in until(seconds):
        while len(callers) < 20:
            with contextlib.suppress(Gone, OSError):
                callers.append(Raw(target.native, target.token))
                callers[-1].sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                callers[-1].sock.setblocking(False)
        for caller in list(callers):
            blob = caller.row(f.CALL, "node.status", [], count=500)
            try:
                caller.sock.send(blob)
            except BlockingIOError:
                pass
            except OSError:
                callers.remove(caller)
        time.sleep(0.01)


@shape
def tiny_windows(target: Target, seconds: float) -> None:
    """1,000 reads of a full journal that are granted next to nothing."""
    greeting = hello(target.token, frame_bytes=16 << 10, window_bytes=64 << 10)

    def attack(caller: Raw, left: float) -> None:
        caller.close()
        caller = Raw(target.native, greeting=greeting)
        streams = []
        for _ in range(1000):
            streams.append(caller.stream())
            body = struct.pack("<II", 56, 0) + encode({"journal": "mine/full", "offset": 0})
            caller.sock.sendall(f.frame(f.OPEN, streams[-1], body))
        for _ in until(left):
            blob = [f.frame(f.WINDOW, stream, struct.pack("<I", 80)) for stream in streams]
            caller.sock.sendall(b"".join(blob))
            caller.drain()

    again(target, seconds, attack)


# ---------------------------------------------------------------------- requests


def _flood(target: Target, seconds: float, method: str, body: object, payload: bytes = b"") -> None:
    def attack(caller: Raw, left: float) -> None:
        pump(caller, left, lambda: caller.row(f.CALL, method, body, payload, count=500))

    again(target, seconds, attack)


@shape
def list_flood(target: Target, seconds: float) -> None:
    """Lists of what a narrow token may see, beside 5,000 journals that it may not."""
    _flood(target, seconds, "journal.list", {})


@shape
def status_flood(target: Target, seconds: float) -> None:
    """node.status without end."""
    _flood(target, seconds, "node.status", [])


@shape
def journal_status_flood(target: Target, seconds: float) -> None:
    """journal.status without end."""
    _flood(target, seconds, "journal.status", {"journal": "mine/a"})


@shape
def registers_flood(target: Target, seconds: float) -> None:
    """Barriers without end."""
    _flood(target, seconds, "journal.registers", {"journal": "mine/a"})


@shape
def append_flood(target: Target, seconds: float) -> None:
    """Unary appends without end."""
    _flood(target, seconds, "journal.append", {"journal": "mine/a"}, bytes(100))


@shape
def deep_requests(target: Target, seconds: float) -> None:
    """Requests that nest 100,000 levels deep."""

    def attack(caller: Raw, left: float) -> None:
        body = struct.pack("<II", caller.methods["journal.create"], 0)
        body += b"\x81\xa4spec\x81\xa6labels" + b"\x91" * 100_000

        pump(caller, left, lambda: b"".join(f.frame(f.CALL, caller.stream(), body) for _ in range(20)))

    again(target, seconds, attack)


@shape
def label_bombs(target: Target, seconds: float) -> None:
    """Journals with as many and as long labels as are taken, and lists of them."""

    def attack(caller: Raw, left: float) -> None:
        serial = int(time.monotonic() * 1e6)
        for count in (64, 32, 16, 8):
            labels = {f"label-{number:03d}": "v" * 200 for number in range(count)}
            for each in range(100):
                spec = {"name": f"mine/bomb-{serial}-{count}-{each}", "labels": labels}
                caller.sock.sendall(caller.request(f.CALL, "journal.create", {"spec": spec})[1])
        _flood(target, left, "journal.list", {})

    again(target, seconds, attack)


@shape
def run_tables(target: Target, seconds: float) -> None:
    """Run frames of 65,536 empty records."""

    def attack(caller: Raw, left: float) -> None:
        stream = caller.open(f.OPEN_RUN, "journal.append_run", {"journal": "mine/a"})
        caller.read()
        table = struct.pack("<Q", HEAD) + bytes(4 * 65_536)
        blob = (f.header(f.RUN, stream, body_bytes=len(table)) + table) * 4
        pump(caller, left, lambda: blob)

    again(target, seconds, attack)


@shape
def slow_uploads(target: Target, seconds: float) -> None:
    """Uploads that never end own tails; runs of 900 kB wait behind them over 10 connections."""

    def attack(caller: Raw, left: float) -> None:
        journals = [f"mine/s{number}" for number in range(6)]
        uploads = [caller.open(f.OPEN, "journal.append_stream", {"journal": name}) for name in journals]
        message = bytes(1000)
        others: list[Raw] = []
        for _ in range(10):
            others.append(Raw(target.native, target.token))
            others[-1].sock.settimeout(0.05)
            streams = [
                others[-1].open(f.OPEN_RUN, "journal.append_run", {"journal": name}) for name in journals
            ]
            with contextlib.suppress(OSError):
                record = struct.pack("<QI", HEAD, 900_000)
                time.sleep(0.05)
                for _ in range(9):
                    for stream in streams:
                        head = f.header(f.RUN, stream, body_bytes=len(record), payload_bytes=900_000)
                        others[-1].sock.sendall(head + record + bytes(900_000))
        for _ in until(left):
            for stream in uploads:
                caller.sock.sendall(f.header(f.MESSAGE, stream, payload_bytes=1000) + message)
            time.sleep(0.2)
        for other in others:
            other.close()

    again(target, seconds, attack)


# ---------------------------------------------------------------------- HTTP


@shape
def silent_http(target: Target, seconds: float) -> None:
    """256 connections to the HTTP door that say nothing."""
    strangers(target.http, 256, seconds, b"", pause=0.01)


@shape
def slow_http(target: Target, seconds: float) -> None:
    """250 requests of which a byte comes now and then."""
    strangers(target.http, 250, seconds, b"X", pause=0.05)


@shape
def connect_storm_http(target: Target, seconds: float) -> None:
    """Connections to the HTTP door that are closed at once."""
    for _ in until(seconds):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", target.http), timeout=5).close()


@shape
def giant_headers(target: Target, seconds: float) -> None:
    """Headers without end, over 32 connections."""
    strangers(target.http, 32, seconds, b"GET /metrics HTTP/1.1\r\n" + b"X-A: " + b"b" * 100_000)


@shape
def many_headers(target: Target, seconds: float) -> None:
    """Thousands of short headers."""
    strangers(target.http, 32, seconds, b"GET /metrics HTTP/1.1\r\n" + b"X-A: b\r\n" * 3000)


@shape
def pipelined_http(target: Target, seconds: float) -> None:
    """Requests without end on one connection."""
    strangers(target.http, 32, seconds, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)


@shape
def chunked_for_ever(target: Target, seconds: float) -> None:
    """A body in chunks that never ends."""
    head = b"POST /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    strangers(target.http, 64, seconds, head + b"1\r\nx\r\n" * 1000)


@shape
def metrics_flood(target: Target, seconds: float) -> None:
    """The page of metrics, over 100 connections at a time."""
    for _ in until(seconds):
        socks = []
        for _ in range(100):
            with contextlib.suppress(OSError):
                socks.append(socket.create_connection(("127.0.0.1", target.http), timeout=5))
                socks[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.recv(1 << 20)
            sock.close()


@shape
def unread_pages(target: Target, seconds: float) -> None:
    """Pages that are asked for and never read, over 250 connections."""
    socks: list[socket.socket] = []
    for _ in until(seconds):
        while len(socks) < 250:
            with contextlib.suppress(OSError):
                sock = socket.socket()
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
                sock.settimeout(5)
                sock.connect(("127.0.0.1", target.http))
                sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                socks.append(sock)
        time.sleep(0.2)
        for sock in socks[:50]:
            sock.close()
        del socks[:50]
