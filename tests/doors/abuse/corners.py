"""Clients at the corners of what is allowed: names, deadlines, tables and windows at their limits.

More of `shapes`, found by going through each field of each frame and asking what its ends cost the node.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Callable

from broadsheet.journal.core.spec import FRAMING_LABEL
from broadsheet.message.framing import FIXED, framed
from broadsheet.message.uuid import Clock, Flag, ProducerId, pack
from broadsheet.wire import frame as f
from tests.doors.abuse.raw import Gone, Raw, encode, hello
from tests.doors.abuse.shapes import HEAD, SHAPES, again, pump, shape, until
from tests.doors.abuse.site import Target

__all__ = ["SHAPES"]


def request(caller: Raw, kind: int, method: str, body: object, *, timeout_ms: int) -> bytes:
    """A request with a deadline."""
    whole = struct.pack("<II", caller.methods[method], timeout_ms) + encode(body)
    return f.frame(kind, caller.stream(), whole)


@shape
def instant_deadlines(target: Target, seconds: float) -> None:
    """Barriers that may take a millisecond."""

    def attack(caller: Raw, left: float) -> None:
        def calls() -> bytes:
            body = {"journal": "mine/a"}
            return b"".join(
                request(caller, f.CALL, "journal.registers", body, timeout_ms=1) for _ in range(500)
            )

        pump(caller, left, calls)

    again(target, seconds, attack)


@shape
def reads_that_end_at_once(target: Target, seconds: float) -> None:
    """Reads of 2 MB that are cancelled when their first message comes."""

    def attack(caller: Raw, left: float) -> None:
        for _ in until(left):
            body = {"journal": "mine/full", "offset": 0}
            opened = [caller.request(f.OPEN, "journal.read", body) for _ in range(64)]
            caller.sock.sendall(b"".join([frame for _, frame in opened]))
            caller.read()
            caller.sock.sendall(b"".join([f.frame(f.CANCEL, stream) for stream, _ in opened]))
            caller.drain()

    again(target, seconds, attack)


@shape
def unread_lists(target: Target, seconds: float) -> None:
    """Long lists over 150 connections that never read an answer."""
    writer = Raw(target.native, target.token)
    labels = {f"label-{number:03d}": "v" * 200 for number in range(16)}
    for number in range(100):
        writer.call("journal.create", {"spec": {"name": f"mine/long-{number}", "labels": labels}})
    callers: list[Raw] = []
    for _ in until(seconds):
        while len(callers) < 150:
            with contextlib.suppress(Gone, OSError):
                callers.append(Raw(target.native, target.token))
                callers[-1].sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                callers[-1].sock.setblocking(False)
        for caller in list(callers):
            blob = caller.row(f.CALL, "journal.list", {"prefix": "mine/"}, count=20)
            try:
                caller.sock.send(blob)
            except BlockingIOError:
                pass
            except OSError:
                callers.remove(caller)
        time.sleep(0.01)


@shape
def unread_reads(target: Target, seconds: float) -> None:
    """1,600 reads of 2 MB over 50 connections, with endless windows, of which nothing is read."""
    callers: list[Raw] = []
    for _ in until(seconds):
        while len(callers) < 50:
            with contextlib.suppress(Gone, OSError):
                caller = Raw(target.native, greeting=hello(target.token, window_bytes=1 << 31))
                caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                for _ in range(32):
                    stream = caller.open(f.OPEN, "journal.read", {"journal": "mine/full", "offset": 0})
                    caller.sock.sendall(f.frame(f.WINDOW, stream, struct.pack("<I", (1 << 32) - 1)))
                callers.append(caller)
        time.sleep(0.05)


@shape
def huge_prefixes(target: Target, seconds: float) -> None:
    """Lists of names that begin with 900,000 letters."""
    _named(target, seconds, "journal.list", lambda name: {"prefix": name})


@shape
def huge_names(target: Target, seconds: float) -> None:
    """Appends to journals whose names have 900,000 letters."""
    _named(target, seconds, "journal.append", lambda name: {"journal": name})


@shape
def huge_journals(target: Target, seconds: float) -> None:
    """Journals to be made whose names have 900,000 letters."""
    _named(target, seconds, "journal.create", lambda name: {"spec": {"name": name}})


def _named(target: Target, seconds: float, method: str, body: Callable[[str], object]) -> None:
    def attack(caller: Raw, left: float) -> None:
        whole = body("mine/" + "x" * 900_000)
        pump(caller, left, lambda: caller.request(f.CALL, method, whole)[1])

    again(target, seconds, attack)


@shape
def small_runs(target: Target, seconds: float) -> None:
    """RUN frames of one record of one byte."""

    def attack(caller: Raw, left: float) -> None:
        stream = caller.open(f.OPEN_RUN, "journal.append_run", {"journal": "mine/a"})
        caller.read()
        table = struct.pack("<QI", HEAD, 1)
        blob = (f.header(f.RUN, stream, body_bytes=len(table), payload_bytes=1) + table + b"x") * 10_000
        pump(caller, left, lambda: blob)

    again(target, seconds, attack)


@shape
def wrong_runs(target: Target, seconds: float) -> None:
    """RUN frames at an offset that is not the journal's end: each is refused."""

    def attack(caller: Raw, left: float) -> None:
        stream = caller.open(f.OPEN_RUN, "journal.append_run", {"journal": "mine/a"})
        caller.read()
        table = struct.pack("<QI", 1 << 40, 1)
        blob = (f.header(f.RUN, stream, body_bytes=len(table), payload_bytes=1) + table + b"x") * 10_000
        pump(caller, left, lambda: blob)

    again(target, seconds, attack)


@shape
def huge_tokens(target: Target, seconds: float) -> None:
    """Greetings with bad tokens of 16 KB."""
    for _ in until(seconds):
        with contextlib.suppress(Gone, OSError):
            Raw(target.native, "a" * 16_000).close()


@shape
def half_open_http(target: Target, seconds: float) -> None:
    """Requests for pages whose asker says at once that it sends no more, or resets."""
    for number, _ in enumerate(until(seconds)):
        with contextlib.suppress(OSError):
            sock = socket.create_connection(("127.0.0.1", target.http), timeout=5)
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"\r\n" * (number % 2))
            if number % 3:
                sock.shutdown(socket.SHUT_WR)
            else:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()


@shape
def idle_callers(target: Target, seconds: float) -> None:
    """1,500 connections that greet and ask once."""
    callers: list[Raw] = []
    for _ in until(seconds):
        with contextlib.suppress(Gone, OSError):
            if len(callers) < 1500:
                callers.append(Raw(target.native, target.token))
                callers[-1].call("journal.get", {"journal": "mine/a"})


@shape
def made_and_deleted(target: Target, seconds: float) -> None:
    """Journals that are made, filled and deleted."""

    def attack(caller: Raw, left: float) -> None:
        serial = int(time.monotonic() * 1e6)
        for number, _ in enumerate(until(left)):
            names = [f"mine/brief-{serial}-{number}-{each}" for each in range(20)]
            for name in names:
                caller.sock.sendall(caller.request(f.CALL, "journal.create", {"spec": {"name": name}})[1])
            for name in names:
                caller.sock.sendall(
                    caller.request(f.CALL, "journal.append", {"journal": name}, b"x" * 1000)[1]
                )
            for name in names:
                caller.call("journal.delete", {"journal": name})

    again(target, seconds, attack)


@shape
def wide_conditions(target: Target, seconds: float) -> None:
    """Appends that set as many and as long registers as there may be."""

    def attack(caller: Raw, left: float) -> None:
        values = {f"register-{number}": "v" * 250 for number in range(16)}
        body = {"journal": "mine/a", "condition": {"union": values}}
        blob = [(f.CALL, "journal.append", body, b"x")] * 100
        pump(caller, left, lambda: b"".join([caller.request(*each)[1] for each in blob]))

    again(target, seconds, attack)


@shape
def pings_of_four_mebibytes(target: Target, seconds: float) -> None:
    """PING frames with a payload as large as a frame may be, over 20 connections in turn."""
    size = (4 << 20) - 64
    blob = f.header(f.PING, 0, payload_bytes=size) + bytes(size)
    again(target, seconds, lambda caller, left: pump(caller, left, lambda: blob))


@shape
def ping_crowd(target: Target, seconds: float) -> None:
    """800 connections of one caller that ping in the same moment, again and again."""
    callers: list[Raw] = []
    while len(callers) < 800:
        with contextlib.suppress(Gone, OSError):
            callers.append(Raw(target.native, target.token))
    for caller in callers:
        caller.sock.setblocking(False)
    for _ in until(seconds):
        for caller in callers:
            with contextlib.suppress(OSError):
                caller.sock.send(f.frame(f.PING, 0))
        for caller in callers:
            with contextlib.suppress(OSError):
                caller.sock.recv(1 << 16)


@shape
def uploads_whole_at_once(target: Target, seconds: float) -> None:
    """Uploads of 4 MiB to 60 journals, whose last messages come in the same moment, again and again."""
    writer = Raw(target.native, target.token)
    for number in range(60):
        writer.call("journal.create", {"spec": {"name": f"mine/whole-{number}"}})
    blob = bytes(1 << 20)
    for _ in until(seconds):
        with contextlib.suppress(Gone, OSError):
            _upload_at_once(target, blob)


def _upload_at_once(target: Target, blob: bytes) -> None:
    callers = [Raw(target.native, target.token) for _ in range(10)]
    streams = []
    for number in range(60):
        caller = callers[number % 10]
        stream = caller.open(f.OPEN, "journal.append_stream", {"journal": f"mine/whole-{number}"})
        caller.read()  # The window.
        streams.append((caller, stream))
        for _ in range(4):
            caller.sock.sendall(f.header(f.MESSAGE, stream, payload_bytes=len(blob)) + blob)
    for caller, stream in streams:
        caller.sock.sendall(f.frame(f.MESSAGE, stream, encode({"is_last": True})))
    for caller in callers:
        answers = 0
        while answers < 6:
            answers += caller.read()[0] in (f.REPLY, f.REFUSE)
        caller.close()


@shape
def large_gets(target: Target, seconds: float) -> None:
    """Rows of `journal.get` for a journal with 250 KiB of labels: 60 KiB ask for 270 MB."""
    labels = {f"label-{number:03d}": "v" * 1000 for number in range(250)}
    body = {"journal": "mine/large"}

    def attack(caller: Raw, left: float) -> None:
        caller.call("journal.create", {"spec": {"name": "mine/large", "labels": labels}})

        pump(caller, left, lambda: caller.row(f.CALL, "journal.get", body, count=1024))

    again(target, seconds, attack)


@shape
def fragment_lists(target: Target, seconds: float) -> None:
    """Lists of the fragments of a journal that closes one with each append."""
    body = {"journal": "mine/fragments"}

    def attack(caller: Raw, left: float) -> None:
        caller.call("journal.create", {"spec": {"name": "mine/fragments", "fragment": {"length": 1024}}})

        caller.sock.sendall(caller.row(f.CALL, "journal.append", body, bytes(1100), count=900))
        pump(caller, left, lambda: caller.row(f.CALL, "journal.fragments", body, count=500))

    again(target, seconds, attack)


@shape
def offsets_at_a_time(target: Target, seconds: float) -> None:
    """The offset at a time, of a journal with some thousands of fragments, whose listing tells it."""
    body = {"journal": "mine/dated", "time": 1 << 62}
    spec = {"name": "mine/dated", "fragment": {"length": 1024}}

    def attack(caller: Raw, left: float) -> None:
        if caller.call("journal.create", {"spec": spec})[0] == f.REPLY:
            for _ in range(3_000):
                caller.call("journal.append", {"journal": "mine/dated"}, bytes(1100))
        pump(caller, left, lambda: caller.row(f.CALL, "journal.offset_at", body, count=500))

    again(target, seconds, attack)


@shape
def large_indexes(target: Target, seconds: float) -> None:
    """1,000 reads at a time of a producer index of 7 MB, which the node verifies whole for each."""
    body = {"journal": "mine/index"}
    spec = {"name": "mine/index", "labels": {FRAMING_LABEL: "fixed"}, "fragment": {"length": 4_500_000}}
    writer = Raw(target.native, target.token)
    if writer.call("journal.create", {"spec": spec})[0] == f.REPLY:
        for begin in range(0, 196_000, 2_000):
            ids = [
                (ProducerId((1 << 40) + n), Clock((1 << 60) + 160 * n)) for n in range(begin, begin + 2_000)
            ]
            lines = b"".join([framed(FIXED, pack(who, at, Flag.OUTSIDE), b"") for who, at in ids])
            writer.call("journal.append", body, lines)
    offsets: list[int] = []
    while not offsets:
        offsets = writer.call("journal.index_points", body)[1]["offsets"]
    request = {**body, "offset": offsets[-1]}

    def attack(caller: Raw, left: float) -> None:
        pump(caller, left, lambda: caller.row(f.OPEN, "journal.producer_index", request, count=1000))

    again(target, seconds, attack)


@shape
def tail_crowd(target: Target, seconds: float) -> None:
    """8,000 readers over 8 connections at the tail of a journal that is appended to."""
    body = {"journal": "mine/a", "block": True}
    callers: list[Raw] = []
    writer = Raw(target.native, target.token)
    for _ in until(seconds):
        with contextlib.suppress(Gone, OSError):
            while len(callers) < 8:
                caller = Raw(target.native, target.token)
                callers.append(caller)
                caller.sock.sendall(caller.row(f.OPEN, "journal.read", body, count=1000))
                caller.read()
            writer.call("journal.append", {"journal": "mine/a"}, b"x")
            for caller in callers:
                caller.drain()


@shape
def large_point_pages(target: Target, seconds: float) -> None:
    """Pages of the index points of a journal that has as many as one page may tell, by the thousand."""
    body = {"journal": "mine/points"}
    labels = {FRAMING_LABEL: "json-lines"}
    spec = {"name": "mine/points", "labels": labels, "fragment": {"length": 1024}}
    writer = Raw(target.native, target.token)
    if writer.call("journal.create", {"spec": spec})[0] == f.REPLY:
        line = b'{"x":"' + b"y" * 1100 + b'"}\n'
        for _ in range(20):
            writer.sock.sendall(writer.row(f.CALL, "journal.append", body, line, count=100))
            for _ in range(100):
                writer.read()
    writer.call("journal.index_points", body)

    def attack(caller: Raw, left: float) -> None:
        pump(caller, left, lambda: caller.row(f.CALL, "journal.index_points", body, count=1000))

    again(target, seconds, attack)


@shape
def append_crowd(target: Target, seconds: float) -> None:
    """8,000 appends over 8 connections at a time."""
    body = {"journal": "mine/a"}
    _crowd(target, seconds, lambda caller: caller.request(f.CALL, "journal.append", body, b"x")[1])


@shape
def index_crowd(target: Target, seconds: float) -> None:
    """8,000 readers over 8 connections of one producer index, which wait until it is verified."""
    large_indexes(target, 0.1)
    writer = Raw(target.native, target.token)
    offsets = writer.call("journal.index_points", {"journal": "mine/index"})[1]["offsets"]
    body = {"journal": "mine/index", "offset": offsets[-1]}
    _crowd(target, seconds, lambda caller: caller.request(f.OPEN, "journal.producer_index", body)[1])


@shape
def alter_crowd(target: Target, seconds: float) -> None:
    """8,000 alterations over 8 connections of one journal with 250 KiB of labels."""
    labels = {f"label-{number:03d}": "v" * 1000 for number in range(250)}
    writer = Raw(target.native, target.token)
    writer.call("journal.create", {"spec": {"name": "mine/altered", "labels": labels}})
    writer.close()
    lengths = iter(range(1 << 20, 1 << 30))

    def request(caller: Raw) -> bytes:
        body = {"journal": "mine/altered", "change": {"length": next(lengths)}}
        return caller.request(f.CALL, "journal.alter", body)[1]

    _crowd(target, seconds, request)


@shape
def delete_crowd(target: Target, seconds: float) -> None:
    """8,000 deletions over 8 connections of one journal with 250 KiB of labels."""
    labels = {f"label-{number:03d}": "v" * 1000 for number in range(250)}
    body = {"journal": "mine/deleted"}
    writer = Raw(target.native, target.token)

    def made() -> None:
        writer.call("journal.create", {"spec": {"name": "mine/deleted", "labels": labels}})

    _crowd(target, seconds, lambda caller: caller.request(f.CALL, "journal.delete", body)[1], before=made)


def _crowd(
    target: Target,
    seconds: float,
    request: Callable[[Raw], bytes],
    *,
    before: Callable[[], None] = lambda: None,
) -> None:
    callers: list[Raw] = []
    for _ in until(seconds):
        with contextlib.suppress(Gone, OSError):
            while len(callers) < 8:
                callers.append(Raw(target.native, target.token))
        before()
        for caller in [*callers]:
            try:
                caller.sock.sendall(b"".join([request(caller) for _ in range(1000)]))
                caller.drain()
            except OSError:
                callers.remove(caller)
