"""Position: where a reader of committed messages stands in one journal.

The committed messages of a journal have one order, which its bytes alone decide: by the end of what commits
them, then by where they begin. So a byte offset and a count tell exactly which message comes next. Units:
byte offsets. This module does no IO. Source: pipelines.2, 19.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from broadsheet.errors import InvalidArgument


class Position(NamedTuple):
    """Where a reader stands in one journal."""

    offset: int
    """What was committed at or below this offset is behind the reader, but for `delivered`."""
    create_revision: int
    """Which life of the name was read: a journal that is deleted and created again has another one."""
    delivered: int = 0
    """So many of the messages that are committed above `offset` are behind the reader as well."""
    begin: int = 0
    """Where the journal began when the reader did: of a span that is open there, it gets what is left."""


class _Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reader's position as it is kept in a text."""

    offset: int
    create_revision: int
    delivered: int = 0
    begin: int = 0


_decoder = msgspec.json.Decoder(dict[str, _Kept])


def positions_to_text(positions: Mapping[str, Position]) -> str:
    """Positions by journal as one line of JSON, to be kept in a register, a file or a database."""
    kept = {name: _Kept(*position) for name, position in sorted(positions.items())}
    return msgspec.json.encode(kept).decode()


def positions_from_text(text: str) -> dict[str, Position]:
    """The inverse of `positions_to_text`; an empty text is no position.

    Raises:
        InvalidArgument: `text` is something else.
    """
    if not text:
        return {}
    try:
        found = _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidArgument(
            f"positions are JSON of journal to offset, not {text[:80]!r}: {error}"
        ) from error
    return {
        name: Position(each.offset, each.create_revision, each.delivered, each.begin)
        for name, each in found.items()
    }
