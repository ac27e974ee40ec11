"""Framing: where each message of a journal begins and ends, and where its UUID is.

JSON lines: a JSON object and a newline. The UUID is the string at `uuid_field` (`_meta.uuid`). In a line of
our publisher it comes first and is found by position; any other line is parsed. A blank line is a frame
without data; a line with nothing but a UUID is a message, whose body is empty.

Fixed frames: bytes 66 33 93 36, then the payload's length (unsigned 32 bits, little-endian), then the
payload: a UUID of sixteen bytes and the body. A payload shorter than sixteen bytes, or one that does not
begin with a version 1 UUID, is a message without UUID. After bytes that are not a frame, reading goes on at
the next magic word; otherwise one foreign append would make the rest of the journal unreadable.

Units: byte offsets of the journal, spans half open. This module does not decide which messages are
committed. Source: journals.28; docs/protocols/messages.md.
"""

from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec

from broadsheet.base.types import ByteOffset
from broadsheet.errors import Corrupt, InvalidArgument
from broadsheet.message.uuid import NO_ID, TEXT_BYTES, UUID_BYTES, MessageId, from_text, to_text, unpack

MAGIC: Final = bytes((0x66, 0x33, 0x93, 0x36))
HEADER: Final = Struct("<4sI")
FRAME_BYTES_MAX: Final = 16 << 20
"""The longest frame in bytes, header or newline included."""
UUID_FIELD: Final = "_meta.uuid"


class Kind(Enum):
    """The kind of framing; the values are those of the label `broadsheet.dev/framing`."""

    JSON_LINES = "json-lines"
    FIXED = "fixed"


@lru_cache(64)
def _prefix(uuid_field: str) -> bytes:
    return b"".join(b'{"%s":' % part.encode() for part in uuid_field.split(".")) + b'"'


class Framing(msgspec.Struct, frozen=True):
    """A kind of framing with its one setting."""

    kind: Kind = Kind.JSON_LINES
    uuid_field: str = UUID_FIELD
    """The field of a JSON line that holds the UUID, as names separated by dots."""

    def prefix(self) -> bytes:
        """The bytes of our publisher's JSON line before the text of the UUID."""
        return _prefix(self.uuid_field)

    def closing(self) -> bytes:
        """The bytes of such a line between the text of the UUID and the message's own fields."""
        return b'"' + b"}" * self.uuid_field.count(".")


JSON_LINES: Final = Framing()
FIXED: Final = Framing(kind=Kind.FIXED)


class Frame(NamedTuple):
    """One message of a journal in its frame."""

    begin: ByteOffset
    end: ByteOffset
    """The end of the frame (exclusive), header or newline included."""
    id: MessageId
    has_data: bool
    """False if the frame holds nothing: a blank line, or a fixed frame without payload."""


def framed(framing: Framing, raw_uuid: bytes, body: bytes) -> bytes:
    """The frame of one message of a journal.

    Args:
        body: a JSON object for JSON lines, any bytes for fixed frames; empty for an acknowledgement.

    Raises:
        InvalidArgument: the frame would be too long. For JSON lines also: `body` is not one JSON object on
            one line, or it has a field of the UUID's name.
    """
    if framing.kind is Kind.FIXED:
        frame = HEADER.pack(MAGIC, UUID_BYTES + len(body)) + raw_uuid + body
    else:
        frame = _json_line(framing, raw_uuid, body)
    if len(frame) > FRAME_BYTES_MAX:
        raise InvalidArgument(
            f"a message of {len(frame)} bytes is above the limit of {FRAME_BYTES_MAX} bytes: split it"
        )
    return frame


def _json_line(framing: Framing, raw_uuid: bytes, body: bytes) -> bytes:
    rest = body.strip() or b"{}"
    if rest[:1] != b"{" or rest[-1:] != b"}" or b"\n" in rest:
        raise InvalidArgument(f"a JSON-lines message must be one object on one line, not {rest[:40]!r}")
    first = framing.uuid_field.split(".")[0]
    if b'"%s"' % first.encode() in rest and first in _fields(rest):
        raise InvalidArgument(
            f"the message has a field {first!r}, which is reserved for the UUID: rename it, or set another "
            "uuid_field"
        )
    fields = rest[1:].lstrip()
    comma = b"" if fields == b"}" else b","
    return framing.prefix() + to_text(raw_uuid).encode() + framing.closing() + comma + fields + b"\n"


def _fields(line: bytes) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def line_id(framing: Framing, line: bytes) -> MessageId:
    """The identity in a JSON line: by position if the line is our publisher's, otherwise by parsing."""
    prefix = framing.prefix()
    if line.startswith(prefix):
        begin = len(prefix)
        if line[begin + TEXT_BYTES : begin + TEXT_BYTES + 1] == b'"':
            found = from_text(line[begin : begin + TEXT_BYTES])
            if found is not NO_ID:
                return found
    try:
        value = _decoder_of(framing.uuid_field).decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NO_ID
    for _ in framing.uuid_field.split("."):
        value = value and value.inner
    return from_text(value.encode()) if value else NO_ID


@lru_cache(maxsize=16)
def _decoder_of(field: str) -> msgspec.json.Decoder[Any]:
    """Decodes the text at `field` of a JSON line, and passes over all else.

    To make values of all of a line of 16 MiB would hold every thread for seconds, and take a GiB.
    """
    kind: Any = str
    for part in reversed(field.split(".")):
        inner = [("inner", kind | None, None)]
        kind = msgspec.defstruct("Object", inner, rename={"inner": part}, frozen=True, gc=False)
    return msgspec.json.Decoder(kind)


def scan(framing: Framing, content: bytes, base: ByteOffset) -> Iterator[Frame]:
    """The whole frames of `content` one by one, its first byte at `base`. A partial last frame is left out.

    Raises:
        Corrupt: `FRAME_BYTES_MAX` bytes follow each other without the end of a frame. All frames before them
            have been yielded.
    """
    return (
        _scan_lines(framing, content, base) if framing.kind is Kind.JSON_LINES else _scan_fixed(content, base)
    )


def _scan_lines(framing: Framing, content: bytes, base: ByteOffset) -> Iterator[Frame]:
    at = 0
    while (newline := content.find(b"\n", at)) >= 0:
        line = content[at:newline]
        refuse_long(newline + 1 - at, base + at)
        yield Frame(
            ByteOffset(base + at),
            ByteOffset(base + newline + 1),
            line_id(framing, line),
            bool(line.strip()),
        )
        at = newline + 1
    refuse_long(len(content) - at, base + at)


def _scan_fixed(content: bytes, base: ByteOffset) -> Iterator[Frame]:
    at = 0
    while (begin := next_fixed(content, at)) >= 0:
        length = HEADER.unpack_from(content, begin)[1]
        end = begin + HEADER.size + length
        if end > len(content):
            break
        payload = begin + HEADER.size
        found = unpack(content[payload : payload + UUID_BYTES]) if length >= UUID_BYTES else NO_ID
        yield Frame(ByteOffset(base + begin), ByteOffset(base + end), found, has_data=length > 0)
        at = end
    if begin < 0:
        refuse_long(len(content) - at, base + at)


def next_fixed(content: bytes, at: int) -> int:
    """The position of the next whole header of a possible frame at or after `at`; -1 if there is none yet."""
    while (begin := content.find(MAGIC, at)) >= 0:
        if begin + HEADER.size > len(content):
            return -1
        if HEADER.size + HEADER.unpack_from(content, begin)[1] <= FRAME_BYTES_MAX:
            return begin
        at = begin + 1  # These bytes equal the magic word by accident: no frame is that long.
    return -1


def may_have_frame(framing: Framing, content: bytes | bytearray, looked: int) -> bool:
    """Whether a frame may end in `content`; a long message comes in hundreds of pieces.

    Args:
        looked: in so many first bytes no line ends.
    """
    if len(content) > FRAME_BYTES_MAX:
        return True  # The search for its end refuses it.
    if framing.kind is Kind.JSON_LINES:
        return content.find(b"\n", looked) >= 0
    is_known = len(content) >= HEADER.size and content.startswith(MAGIC)
    return not is_known or len(content) >= HEADER.size + int(HEADER.unpack_from(content)[1])


def refuse_long(length: int, offset: int) -> None:
    """Refuse `length` bytes from `offset` on that do not contain the end of a frame.

    Raises:
        Corrupt: `length` is above `FRAME_BYTES_MAX`.
    """
    if length > FRAME_BYTES_MAX:
        raise Corrupt(
            f"no frame ends within {FRAME_BYTES_MAX} bytes of offset {offset}: either the journal's framing "
            "label is wrong, or bytes that are no message were appended there. Correct the label, or read "
            "from behind them"
        )
