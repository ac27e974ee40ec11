"""Frame: the bytes of the native wire, version 2. `docs/protocols/native.md` is its public form.

    u32 length    bytes after this header: body, then payload
    u32 stream    0 for the connection itself
    u32 word      kind (low 8 bits) and body length (high 24 bits)
    u32 crc       crc32c of the 12 bytes before it

All integers are little-endian. The body is MessagePack, except for the fixed fields named here. The payload
is raw bytes. This module knows bytes and no state. Source: wire.1; ADR 0040.
"""

import struct
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from crc32c import crc32c

from broadsheet.base.types import Buffer
from broadsheet.errors import RemoteProtocolError

VERSION: Final = 2
"""The only version that is spoken; both sides greet with a range. Version 1 had more kinds (ADR 0156)."""
MAGIC: Final = "broadsheet"
"""The first field of a greeting."""

HEADER: Final = struct.Struct("<IIII")
HEADER_BYTES: Final = 16
WORD_BODY_SHIFT: Final = 8
KIND_MASK: Final = 0xFF

HELLO: Final = 1
"""Dialler: `Hello`. Listener: `Welcome`. The first frame of each side."""
GOAWAY: Final = 2
"""`GoAway`: no stream above `last_stream` was processed or will be."""
PING: Final = 3
"""The peer answers at once with PONG. Body empty."""
PONG: Final = 4
"""The answer to a PING."""
CALL: Final = 6
"""Unary request: u32 method, u32 timeout in ms (0: the listener's default), MessagePack request; payload."""
OPEN: Final = 7
"""Opens a STREAM; body as of CALL (timeout 0: none), payload empty."""
OPEN_RUN: Final = 8
"""Opens a RUN stream; body as of OPEN, payload empty."""
OPENED: Final = 9
"""The RUN stream is open: MessagePack reply. Records may follow."""
REPLY: Final = 10
"""Ends a stream with success: MessagePack reply; payload."""
REFUSE: Final = 11
"""Ends a stream with an error: `Refusal`."""
CANCEL: Final = 12
"""The dialler no longer wants the stream. Body empty."""
MESSAGE: Final = 13
"""A message of a STREAM.

Body: MessagePack or empty; then payload. It costs its length plus `MESSAGE_COST` bytes of the window.
"""
WINDOW: Final = 14
"""u32: the peer may send so many more bytes on the stream."""
FINISH: Final = 15
"""The sender sends no more messages or records on the stream. Body empty."""
RUN: Final = 17
"""Records of a RUN stream, one or more.

Body: u64 wanted offset of the first byte (2**64 - 1: the head), then a u32 length for each record. The
payload is the records back to back.
"""
RUN_ACK: Final = 19
"""Answers a RUN: u64 sequence of its first record, u64 count, u64 begin, u64 end."""
RUN_REFUSE: Final = 20
"""Refuses records: `RunRefusal`. Kinds 5, 16 and 18 were in use once, and are not used again."""

FRAME_NAMES: Final = {
    HELLO: "HELLO", GOAWAY: "GOAWAY", PING: "PING", PONG: "PONG", CALL: "CALL", OPEN: "OPEN",
    OPEN_RUN: "OPEN_RUN", OPENED: "OPENED", REPLY: "REPLY", REFUSE: "REFUSE", CANCEL: "CANCEL",
    MESSAGE: "MESSAGE",
    WINDOW: "WINDOW", FINISH: "FINISH", RUN: "RUN", RUN_ACK: "RUN_ACK",
    RUN_REFUSE: "RUN_REFUSE",
}  # fmt: skip
"""Names of the frame kinds, for error messages and documents."""

CALL_HEAD: Final = struct.Struct("<II")
RUN_ACK_BODY: Final = struct.Struct("<QQQQ")
U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")
AT_HEAD: Final = (1 << 64) - 1
"""In a RUN: append at the head, wherever it is."""
MESSAGE_COST: Final = 64
"""Added to a message's bytes, so that empty messages are bounded too."""
INITIAL_WINDOW_BYTES: Final = 64 << 10
"""Bytes that either side may send on a new STREAM before the first WINDOW."""
STREAM_MAX: Final = (1 << 32) - 1
"""The last stream number of a connection. The dialler's are odd; even ones are kept for the listener."""

_TWELVE: Final = struct.Struct("<III")
_pack_twelve, _pack_sixteen = _TWELVE.pack, HEADER.pack


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The dialler's greeting."""

    magic: str
    version_min: int
    version_max: int
    token: str
    frame_bytes_max: int
    """Largest frame that the sender accepts, without its header."""
    window_bytes: int
    """Largest window that the sender will grant on a stream."""
    node: str = ""
    cluster: str = ""
    """If not empty, the listener must be of this cluster."""


MethodNumber = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
"""A method's number as a node tells it, which must fit into `CALL_HEAD`."""


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    """The listener's greeting."""

    version: int
    frame_bytes_max: int
    window_bytes: int
    streams_max: int
    run_count_max: int
    methods: dict[str, MethodNumber]
    """The node's methods by name, so that a caller knows what this version can do."""
    node: str = ""
    cluster: str = ""


class GoAway(msgspec.Struct, frozen=True, array_like=True):
    """The reason why a native connection ends, or takes no more streams."""

    status: int
    message: str
    last_stream: int


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """A frame's status other than OK, with its text."""

    status: int
    message: str = ""
    hint: str = ""


class RunRefusal(msgspec.Struct, frozen=True, array_like=True):
    """The records [sequence, sequence + count) were refused, or are unknown."""

    sequence: int
    count: int
    status: int
    message: str = ""
    hint: str = ""


_encode = msgspec.msgpack.Encoder().encode


def header(kind: int, stream: int, *, body_bytes: int = 0, payload_bytes: int = 0) -> bytes:
    """The 16 bytes of a frame's header."""
    length, word = body_bytes + payload_bytes, kind | body_bytes << 8
    return _pack_sixteen(length, stream, word, crc32c(_pack_twelve(length, stream, word)))


def frame(kind: int, stream: int, body: bytes = b"") -> bytes:
    """A frame without payload."""
    length, word = len(body), kind | len(body) << 8
    return _pack_sixteen(length, stream, word, crc32c(_pack_twelve(length, stream, word))) + body


def encode(body: Any) -> bytes:  # noqa: ANN401 - any struct.
    """`body` as MessagePack."""
    return _encode(body)


def payload_bytes(parts: Sequence[Buffer]) -> int:
    """Bytes of all parts together."""
    return sum([len(part) if type(part) is not memoryview else part.nbytes for part in parts])


def decode_with(decoder: "msgspec.msgpack.Decoder[Any]", body: Buffer, what: str) -> Any:  # noqa: ANN401
    """The `body` of a wire frame, decoded.

    Raises:
        RemoteProtocolError: `body` does not decode as a `what`.
    """
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise RemoteProtocolError(f"{what} is malformed: {error}") from None
