"""Malformed sessions: a recorded good one, mutated.

Bits flipped, header fields set to awkward values under a valid checksum, frames cut, swapped, repeated or
dropped, bodies that are no MessagePack or too deep, tables that do not add up, floods. The same generator
state makes the same session. Source: access.7.
"""

import random
import struct
from collections.abc import Callable
from typing import Final

import msgspec
from crc32c import crc32c

from broadsheet.wire import frame as f
from broadsheet.wire.method import EMPTY

ECHO, SUM, APPEND = 1, 2, 3
"""Numbers of the methods that `fuzz_server` serves: unary, stream, run."""
DEPTH: Final = 2_000
"""Nesting of the deepest body."""


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """What `fuzz.echo` is asked."""

    name: str = ""
    tags: dict[str, list[int]] = {}


def good_session() -> list[bytes]:
    """A session that uses every kind of frame a dialler may send."""
    hello = f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", 256 << 10, 1 << 20)
    asked, empty = f.encode(Asked(name="a", tags={"x": [1, 2]})), f.encode(EMPTY)
    return [
        f.frame(f.HELLO, 0, f.encode(hello)),
        with_payload(f.CALL, 1, f.CALL_HEAD.pack(ECHO, 1000) + asked, b"p" * 100),
        f.frame(f.OPEN, 3, f.CALL_HEAD.pack(SUM, 0) + empty),
        with_payload(f.MESSAGE, 3, b"", b"m" * 500),
        f.frame(f.WINDOW, 3, f.U32.pack(1000)),
        f.frame(f.OPEN_RUN, 5, f.CALL_HEAD.pack(APPEND, 0) + empty),
        f.frame(f.PING, 0),
        *[run(5, b"r" * 40) for _ in range(60)],
        run(5, b"abc", b"", b"defgh"),
        f.frame(f.FINISH, 3),
        f.frame(f.CALL, 7, f.CALL_HEAD.pack(ECHO, 0) + f.encode(Asked(name="slow"))),
        f.frame(f.CANCEL, 7),
        f.frame(f.FINISH, 5),
        f.frame(f.GOAWAY, 0, f.encode(f.GoAway(0, "bye", 0))),
    ]


def with_payload(kind: int, stream: int, body: bytes, payload: bytes) -> bytes:
    """A frame with a payload."""
    return f.header(kind, stream, body_bytes=len(body), payload_bytes=len(payload)) + body + payload


def run(stream: int, *records: bytes) -> bytes:
    """A run frame."""
    table = struct.pack(f"<Q{len(records)}I", f.AT_HEAD, *map(len, records))
    return with_payload(f.RUN, stream, table, b"".join(records))


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
        (f.PING, f.PONG, f.WINDOW, f.CANCEL, f.FINISH, f.OPEN, f.OPEN_RUN, f.CALL, f.MESSAGE, f.RUN)
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
    kind, stream = rng.choice(((f.MESSAGE, 3), (f.RUN, 5), (f.CALL, 9)))
    if kind == f.RUN:
        frame = run(stream, bytes(size - f.U64.size - f.U32.size))
    else:
        body = f.CALL_HEAD.pack(ECHO, 100) + f.encode(Asked()) if kind == f.CALL else b""
        frame = with_payload(kind, stream, body, bytes(size - len(body)))
    frames.insert(rng.randrange(1, len(frames) + 1), frame)


_MUTATIONS: Final[tuple[Callable[[random.Random, list[bytes]], None], ...]] = (
    _flip, _flip_body, _awkward, _awkward, _rebody, _rebody, _shuffle, _repeat, _drop, _cut,
    _noise, _flood, _big,
)  # fmt: skip
