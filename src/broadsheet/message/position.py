"""Position: where a reader of committed messages stands in one journal.

The committed messages of a journal have one order, which its bytes alone decide: by the end of what commits
them, then by where they begin. So a byte offset and a count tell exactly which message comes next. Units:
byte offsets. This module does no IO. Source: pipelines.2.
"""

from typing import NamedTuple


class Position(NamedTuple):
    """Where a reader stands in one journal."""

    offset: int
    """What was committed at or below this offset is behind the reader, but for `delivered`."""
    create_revision: int
    """Which life of the name was read: a journal that is deleted and created again has another one."""
    delivered: int = 0
    """So many of the messages that are committed above `offset` are behind the reader as well."""
