"""Spec: the settings of a journal, and which names and numbers are legal.

Lengths are bytes. The Keyspace holds a spec under `items/<journal>`; two more keys hold the pipeline
epoch and the registers (journals.1). Labels are those of `base.labels`, with one value each. This module does
not know where a journal is or what it contains. Source: journals.1, journals.13, journals.23-25;
node.5; access.7, access.8.
"""

import re
from typing import Annotated, Final

import msgspec

from broadsheet.base.labels import LABELS_MAX, LEGACY_PREFIX, META_NAME, check_labels
from broadsheet.base.names import PARTIAL_SEGMENT, journal_name
from broadsheet.base.time import SECOND, Duration
from broadsheet.base.types import JournalName
from broadsheet.errors import InvalidArgument
from broadsheet.journal.core.fragment import Codec
from broadsheet.message.framing import FIXED, JSON_LINES, Framing, Kind

DAY: Final = 86_400 * SECOND
FRAGMENT_BYTES_MIN: Final = 1 << 10
FRAGMENT_BYTES_MAX: Final = 1 << 30
"""The greatest `fragment.length` of a spec (ADR 0067)."""
FLUSH_INTERVAL_MIN: Final = Duration(60 * SECOND)
FLUSH_INTERVAL_MAX: Final = Duration(366 * DAY)
RETENTION_MIN: Final = Duration(60 * SECOND)
RETENTION_MAX: Final = Duration(36_600 * DAY)
RETAINED_BYTES_MAX: Final = 1 << 62
SIDE_DIRECTORY: Final = ".broadsheet"
"""The directory of a store for index files, beside those of the journals (journals.25)."""

_STORED: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f-]+\.[a-z]+", re.IGNORECASE)
"""The names of fragments, and of side files."""

FRAMING_LABEL: Final = "broadsheet.dev/framing"
DURABILITY_LABEL: Final = "broadsheet.dev/durability"
CONTENT_TYPE_LABEL: Final = "content-type"


class FragmentSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a journal's bytes are cut into fragments and stored."""

    length: int = 64 << 20
    """A fragment longer than this is closed before the next append; an append is never split."""
    codec: Codec = Codec.NONE
    """How stored fragments are compressed, from the next roll on."""
    store: str = ""
    """URL of the fragment store; empty: the node's own."""
    flush_interval: Duration = Duration(0)
    """At each multiple of this interval (since 1970, UTC) a fragment with older content is closed, so that a
    slow journal is stored in time, too. 0: fragments are closed by length only."""
    retention: Duration = Duration(0)
    """A fragment that was stored longer ago is removed (journals.32). An open fragment is closed at its
    multiples, if `flush_interval` is 0. 0: content is kept, whatever its age."""
    retained_bytes: int = 0
    """A fragment that lies further below the committed end is removed. 0: however long the journal is."""


class JournalSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A journal's specification."""

    name: JournalName
    fragment: FragmentSpec = FragmentSpec()
    labels: Annotated[dict[str, str], msgspec.Meta(max_length=4 * LABELS_MAX)] = {}
    """The decoder refuses a map far above `LABELS_MAX`: decoding 1 MiB of labels held the loop for 55 ms."""
    is_deleting: bool = False
    """Set by a delete, which then removes the content. A journal with this mark serves nothing."""


def validate_name(name: str) -> JournalName:
    """Return `name` as a journal's name.

    Raises:
        InvalidArgument: the name is not relative and clean, is too long, or is reserved.
    """
    valid = journal_name(name)
    first = valid.split("/", 1)[0]
    if first in (SIDE_DIRECTORY, PARTIAL_SEGMENT):
        raise InvalidArgument(f"journal name {name!r} begins with {first}, which stores use themselves")
    for segment in valid.split("/"):
        if _STORED.fullmatch(segment):  # Its directory would stand where the fragment of another belongs.
            raise InvalidArgument(
                f"journal name {name!r} has a segment that is the name of a fragment's file"
            )
    return valid


def framing_of(spec: JournalSpec) -> Framing | None:
    """The framing of a journal's messages, by its labels; None if it has none that is known."""
    by_label = {Kind.JSON_LINES.value: JSON_LINES, Kind.FIXED.value: FIXED}
    framing = by_label.get(spec.labels.get(FRAMING_LABEL, ""))
    if framing is None and spec.labels.get(CONTENT_TYPE_LABEL) == "application/x-ndjson":
        return JSON_LINES
    return framing


def validate_spec(spec: JournalSpec) -> JournalSpec:
    """Return the journal's `spec` if it is legal.

    Raises:
        InvalidArgument: a field is not legal; the text names it, its value and what is allowed.
    """
    validate_name(spec.name)
    length = spec.fragment.length
    if not FRAGMENT_BYTES_MIN <= length <= FRAGMENT_BYTES_MAX:
        raise InvalidArgument(
            f"fragment.length {length}: {FRAGMENT_BYTES_MIN} to {FRAGMENT_BYTES_MAX} bytes allowed"
        )
    interval = spec.fragment.flush_interval
    if interval and not FLUSH_INTERVAL_MIN <= interval <= FLUSH_INTERVAL_MAX:
        raise InvalidArgument(
            f"fragment.flush_interval of {interval} ns: 0, or a minute to {FLUSH_INTERVAL_MAX // DAY} days"
        )
    _validate_retention(spec.fragment)
    for reserved in (META_NAME, LEGACY_PREFIX):
        if reserved in spec.labels:
            raise InvalidArgument(f"label {reserved!r} is reserved: in selectors it means the journal's name")
    check_labels(spec.labels)
    durability = spec.labels.get(DURABILITY_LABEL, "fsynced")
    if durability != "fsynced":
        raise InvalidArgument(
            f"label {DURABILITY_LABEL}={durability!r}: only fsynced is served by a single replica"
        )
    framing = spec.labels.get(FRAMING_LABEL)
    if framing is not None and framing not in (kinds := [kind.value for kind in Kind]):
        raise InvalidArgument(f"label {FRAMING_LABEL}={framing!r}: it is one of {', '.join(kinds)}")
    if spec.is_deleting:
        raise InvalidArgument("is_deleting is true: only a delete sets it; leave it out")
    return spec


def _validate_retention(fragment: FragmentSpec) -> None:
    age, kept = fragment.retention, fragment.retained_bytes
    if age and not RETENTION_MIN <= age <= RETENTION_MAX:
        raise InvalidArgument(
            f"fragment.retention of {age} ns: 0, or a minute to {RETENTION_MAX // DAY} days"
        )
    if kept and not FRAGMENT_BYTES_MIN <= kept <= RETAINED_BYTES_MAX:
        raise InvalidArgument(
            f"fragment.retained_bytes {kept}: 0, or {FRAGMENT_BYTES_MIN} to {RETAINED_BYTES_MAX} bytes"
        )


SPEC_PREFIX: Final = "items/"
"""The prefix of every spec key."""


def spec_key(name: JournalName) -> str:
    """The Keyspace key of the spec."""
    return f"{SPEC_PREFIX}{name}"


EPOCH_PREFIX: Final = "epoch/"
"""The prefix of every epoch key."""


def epoch_key(name: JournalName) -> str:
    """The Keyspace key whose mod_revision is the pipeline epoch (journals.1)."""
    return f"{EPOCH_PREFIX}{name}"


def registers_key(name: JournalName) -> str:
    """The Keyspace key of the registers (journals.11)."""
    return f"registers/{name}"
