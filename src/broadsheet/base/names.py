"""Names: the rules for names of journals and files, checked once when a name comes in (access.7).

A name is relative, clean (no empty segment, no `.` or `..`), ASCII, and bounded, so that it may become a
path below a root, a key or a URL without escaping. Lengths are in characters, which are bytes here. Source:
journals.23; access.7; node.5 for the reserved first segments.
"""

import re
from typing import Final

from broadsheet.base.types import JournalName
from broadsheet.errors import InvalidArgument

JOURNAL_NAME_MIN: Final = 4
JOURNAL_NAME_MAX: Final = 512
SEGMENT_MAX: Final = 255
FILE_NAME_MAX: Final = 1024
"""A fragment's name is its journal's and some 90 characters more."""

RESERVED_SEGMENTS: Final = ("-", "metrics", "healthz", "readyz")
"""First segments that the HTTP door keeps for itself: a journal may not begin with one."""

PARTIAL_SEGMENT: Final = ".partial"
"""First segment of what a local object store has not stored yet: no object's name may begin with it."""

_SEGMENT = re.compile(r"[A-Za-z0-9\-_+.=%]+")


def journal_name(text: str) -> JournalName:
    """Take `text` as the name of a journal.

    Raises:
        InvalidArgument: `text` is not a journal name; the message says why.
    """
    if not JOURNAL_NAME_MIN <= len(text) <= JOURNAL_NAME_MAX:
        raise InvalidArgument(
            f"journal name has {len(text)} characters, not {JOURNAL_NAME_MIN} to {JOURNAL_NAME_MAX}: "
            f"{_shown(text)}"
        )
    _check_path("journal name", text)
    first = text.split("/", 1)[0]
    if first in RESERVED_SEGMENTS:
        raise InvalidArgument(f"journal name begins with the reserved segment {first!r}: {_shown(text)}")
    return JournalName(text)


def check_file_name(name: str) -> None:
    """Make sure that `name` stays below the root that it is opened under.

    Raises:
        InvalidArgument: the name might leave the root; the message says why.
    """
    if not 0 < len(name) <= FILE_NAME_MAX:
        length = f"{len(name)} characters, not 1 to {FILE_NAME_MAX}"
        raise InvalidArgument(f"file name has {length}: {_shown(name)}")
    _check_path("file name", name)


def check_prefix(prefix: str) -> None:
    """Make sure that `prefix` can begin a name; it may be empty, and may end anywhere within a name.

    Raises:
        InvalidArgument: no valid name begins so.
    """
    if len(prefix) > FILE_NAME_MAX:
        raise InvalidArgument(f"prefix has {len(prefix)} characters, above {FILE_NAME_MAX}: {_shown(prefix)}")
    whole, _, last = prefix.rpartition("/")
    if whole or prefix.startswith("/"):
        _check_path("prefix", whole)
    if last and not _SEGMENT.fullmatch(last):
        raise InvalidArgument(f"prefix has a character outside A-Z a-z 0-9 - _ + . = %: {_shown(prefix)}")


def _check_path(what: str, text: str) -> None:
    for segment in text.split("/"):
        if segment in ("", ".", ".."):
            raise InvalidArgument(f"{what} is no clean relative path (segment {segment!r}): {_shown(text)}")
        if len(segment) > SEGMENT_MAX:
            raise InvalidArgument(f"{what} has a segment above {SEGMENT_MAX} characters: {_shown(text)}")
        if not _SEGMENT.fullmatch(segment):
            raise InvalidArgument(f"{what} has a character outside A-Z a-z 0-9 - _ + . = % /: {_shown(text)}")


def _shown(text: str) -> str:
    """`text` for a message: escaped, and cut where it is long."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")
