"""Framing: where a message begins and ends in a journal, and where its UUID stands.

JSON lines: one JSON object and a newline; the UUID is the string at `uuid_field` (`_meta.uuid`). Where our
publisher wrote the line it comes first and is found by position; elsewhere the line is parsed. Blank lines
are frames without data. Fixed frames: bytes 66 33 93 36, the length of the payload (unsigned 32 bits,
little-endian), the payload: sixteen bytes of UUID, then the body. A payload below sixteen bytes, or one
that does not begin with a version 1 UUID, is a message without UUID. After bytes that are no frame, reading
goes on at the next magic word, so that one foreign append does not end a journal. Units: byte offsets of
the journal, spans half open. Scanning is total: any bytes give frames. It decides nothing about commitment.
Source: journals.28; docs/protocols/messages.md.
"""

from collections.abc import Iterator
from enum import Enum
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec

from broadsheet.base.types import ByteOffset
from broadsheet.errors import Corrupt, InvalidArgument
from broadsheet.message.uuid import NO_ID, TEXT_BYTES, UUID_BYTES, MessageId, from_text, to_text, unpack

MAGIC: Final = bytes((0x66, 0x33, 0x93, 0x36))
HEADER: Final = Struct("<4sI")
FRAME_BYTES_MAX: Final = 16 << 20
"""The longest frame with its header or newline."""
UUID_FIELD: Final = "_meta.uuid"


class Kind(Enum):
    """How messages stand in a journal's bytes; the value is that of the label `broadsheet.dev/framing`."""

    JSON_LINES = "json-lines"
    FIXED = "fixed"


class Framing(msgspec.Struct, frozen=True):
    """A kind of framing with its one setting."""

    kind: Kind = Kind.JSON_LINES
    uuid_field: str = UUID_FIELD
    """Path of the UUID in a JSON line, by dots."""

    def prefix(self) -> bytes:
        """How a JSON line of our publisher begins, up to the text of the UUID."""
        return b"".join(b'{"%s":' % part.encode() for part in self.uuid_field.split(".")) + b'"'

    def closing(self) -> bytes:
        """What stands after the UUID's text in such a line, before the message's own fields."""
        return b'"' + b"}" * self.uuid_field.count(".")


JSON_LINES: Final = Framing()
FIXED: Final = Framing(kind=Kind.FIXED)


class Frame(NamedTuple):
    """One message of a journal."""

    begin: ByteOffset
    end: ByteOffset
    """With header or newline."""
    id: MessageId
    has_data: bool
    """False where there is nothing but the UUID."""


def framed(framing: Framing, raw_uuid: bytes, body: bytes) -> bytes:
    """One frame of a message.

    Args:
        body: a JSON object for JSON lines, any bytes for fixed frames; empty for an acknowledgement.

    Raises:
        InvalidArgument: not one JSON object on one line, or it has a field of the UUID's name, or it is
        too long.
    """
    if framing.kind is Kind.FIXED:
        frame = HEADER.pack(MAGIC, UUID_BYTES + len(body)) + raw_uuid + body
    else:
        frame = _json_line(framing, raw_uuid, body)
    if len(frame) > FRAME_BYTES_MAX:
        raise InvalidArgument(
            f"a message of {len(frame)} bytes is above the limit of {FRAME_BYTES_MAX} bytes"
        )
    return frame


def _json_line(framing: Framing, raw_uuid: bytes, body: bytes) -> bytes:
    rest = body.strip() or b"{}"
    if rest[:1] != b"{" or rest[-1:] != b"}" or b"\n" in rest:
        raise InvalidArgument(f"a JSON-lines message is one object on one line, not {rest[:40]!r}")
    first = framing.uuid_field.split(".")[0]
    if b'"%s"' % first.encode() in rest and first in _object(rest):
        raise InvalidArgument(f"field {first!r} is the UUID's: take it out or set another uuid_field")
    fields = rest[1:].lstrip()
    comma = b"" if fields == b"}" else b","
    return framing.prefix() + to_text(raw_uuid).encode() + framing.closing() + comma + fields + b"\n"


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def line_id(framing: Framing, line: bytes) -> MessageId:
    """The identity in a JSON line, by position where our publisher wrote it, else by parsing."""
    prefix = framing.prefix()
    if line.startswith(prefix):
        begin = len(prefix)
        if line[begin + TEXT_BYTES : begin + TEXT_BYTES + 1] == b'"':
            found = from_text(line[begin : begin + TEXT_BYTES])
            if found is not NO_ID:
                return found
    value: Any = _object(line)
    for part in framing.uuid_field.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return from_text(value.encode("utf-8", "replace")) if isinstance(value, str) else NO_ID


def line_has_data(framing: Framing, line: bytes) -> bool:
    """Whether a JSON line holds anything but its UUID."""
    carrier = len(framing.prefix()) + TEXT_BYTES + len(framing.closing()) + 1
    is_carrier = len(line) == carrier and line.startswith(framing.prefix()) and line.endswith(b"}")
    return bool(line.strip()) and not is_carrier


def scan(framing: Framing, content: bytes, base: ByteOffset) -> Iterator[Frame]:
    """The whole frames of `content`, whose first byte stands at `base`; a partial last one is left.

    Raises:
        Corrupt: what may be a frame is longer than `FRAME_BYTES_MAX`. The frames before it were given.
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
            line_has_data(framing, line),
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
        has_data = length > (0 if found is NO_ID else UUID_BYTES)
        yield Frame(ByteOffset(base + begin), ByteOffset(base + end), found, has_data)
        at = end
    if begin < 0:
        refuse_long(len(content) - at, base + at)


def next_fixed(content: bytes, at: int) -> int:
    """Where the next whole header of a possible frame stands at or after `at`; -1 for nowhere yet."""
    while (begin := content.find(MAGIC, at)) >= 0:
        if begin + HEADER.size > len(content):
            return -1
        if HEADER.size + HEADER.unpack_from(content, begin)[1] <= FRAME_BYTES_MAX:
            return begin
        at = begin + 1  # A magic word by accident: its length cannot be one.
    return -1


def refuse_long(length: int, offset: int) -> None:
    """Raise where bytes that should be one frame are too many.

    Raises:
        Corrupt: longer than `FRAME_BYTES_MAX`.
    """
    if length > FRAME_BYTES_MAX:
        raise Corrupt(
            f"no frame ends within {FRAME_BYTES_MAX} bytes of offset {offset}: "
            "the journal's framing label is wrong, or a foreign append stands there"
        )
