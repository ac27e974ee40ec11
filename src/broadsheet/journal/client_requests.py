"""Client requests: checks a user's arguments and turns them into what is sent. No state, no IO."""

from collections.abc import AsyncIterable, Iterable, Mapping
from operator import index
from typing import Final, TypeGuard, TypeVar

import msgspec

from broadsheet.base.time import MILLISECOND, SECOND, Duration, WallTime
from broadsheet.base.types import ByteOffset, JournalName, Revision
from broadsheet.errors import InvalidArgument, RemoteProtocolError, Unreachable
from broadsheet.journal.core.fragment import Codec
from broadsheet.journal.core.registers import Condition, validate_condition
from broadsheet.journal.core.spec import FragmentSpec, JournalSpec
from broadsheet.journal.messages import SpecChange

RETRY_MIN: Final = Duration(50 * MILLISECOND)
RETRY_MAX: Final = Duration(2 * SECOND)
"""The first and the longest pause between two tries of a client whose node is unreachable."""
PATIENCE: Final = Duration(30 * SECOND)
"""How long a refused call is sent again whose answer may be waited for longer."""
SECONDS_BELOW: Final = 1e9
"""Times must be below this, so that their nanoseconds fit into the message."""
P = TypeVar("P", str, int)
"""Where a page of a listing ends: a name or an offset."""


def require_progress(what: str, before: P, reached: P) -> None:
    """Refuse a page of a node's answer that is not above the page before it: there would be no last one."""
    if reached <= before:
        raise RemoteProtocolError(
            f"{what}: a page that ends at {reached!r} follows one that ends at {before!r}"
        )


def not_sent(journal: JournalName, seconds: float) -> Unreachable:
    """The refusal of an append whose time was up before anything of it was sent."""
    return Unreachable(f"journal {journal}: it could not be sent in {seconds} s, and is not appended")


def condition_of(
    offset: int | None,
    check: Mapping[str, str | None] | None,
    union: Mapping[str, str] | None,
    subtract: Mapping[str, str] | None,
) -> Condition | None:
    """The condition of an append; None if every argument is empty.

    Raises:
        InvalidArgument: an argument has the wrong type, or a name or value is not allowed.
    """
    if offset is None and not check and not union and not subtract:
        return None
    try:
        condition = Condition(
            offset=None if offset is None else ByteOffset(index(offset)),
            check=dict(check) if check else None,
            union=dict(union) if union else None,
            subtract=dict(subtract) if subtract else None,
        )
        msgspec.convert(msgspec.structs.asdict(condition), Condition)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"condition of an append: {error}") from None
    validate_condition(condition)
    return condition


def is_repeatable(condition: Condition | None) -> bool:
    """Whether an append can be sent again: if the first try took effect, the condition refuses the second."""
    if condition is None:
        return False
    if condition.offset is not None:
        return True
    check = condition.check or {}
    union = condition.union or {}
    return any(name in check and check[name] != value for name, value in union.items())


def is_buffer(content: object) -> bool:
    """Whether `content` is one buffer of bytes, and not an iterable of pieces."""
    try:
        memoryview(content)  # type: ignore[arg-type]  # The call tests whether `content` has a buffer.
    except TypeError:
        return False
    return True


def as_bytes(piece: object) -> bytes | memoryview:
    """`piece` of an append's content as bytes to send; a copy if its owner may use the memory again.

    They may be sent after the call has ended: an append whose time is up is not withdrawn.

    Raises:
        InvalidArgument: `piece` has no buffer of bytes.
    """
    if isinstance(piece, bytes):
        return piece
    try:
        view = memoryview(piece)  # type: ignore[arg-type]  # As above.
    except TypeError:
        hint = ": encode it first" if isinstance(piece, str) else ""
        raise InvalidArgument(
            f"content of type {type(piece).__name__}, not bytes, bytearray or memoryview{hint}"
        ) from None
    if not (view.readonly and view.c_contiguous):
        return view.tobytes()
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def pieces_of(content: object) -> list[bytes | memoryview] | None:
    """The pieces of an append's content that is in memory; None for an iterator.

    Raises:
        InvalidArgument: the content, or a piece of it, is not bytes. Nothing was sent.
    """
    if isinstance(content, list | tuple):
        return [as_bytes(piece) for piece in content]
    if isinstance(content, str | Mapping) or is_buffer(content):
        return [as_bytes(content)]
    if isinstance(content, Iterable | AsyncIterable):
        return None
    return [as_bytes(content)]


def contents_of(contents: object, bytes_max: int) -> list[bytes | memoryview]:
    """Contents of appends, each appended by itself.

    Raises:
        InvalidArgument: they are no list of bytes, or one has more than `bytes_max`. Nothing was sent.
    """
    pieces = pieces_of(contents)
    if pieces is None or is_buffer(contents):
        raise InvalidArgument(f"contents of type {type(contents).__name__}: a list of bytes is needed")
    for piece in pieces:
        if len(piece) > bytes_max:
            raise InvalidArgument(
                f"one of the contents has {len(piece)} bytes, above {bytes_max}: use append for it"
            )
    return pieces


def name_of(name: object) -> JournalName:
    """The name of a journal, as a user passed it.

    Raises:
        InvalidArgument: `name` is not a string.
    """
    if not isinstance(name, str):
        raise InvalidArgument(f"a journal's name is text, not {type(name).__name__}")
    return JournalName(name)


def revision_of(revision: object) -> Revision | None:
    """The revision that created a journal, as a user passed it; None for any.

    Raises:
        InvalidArgument: `revision` is not a whole number.
    """
    if revision is None:
        return None
    try:
        return Revision(index(revision))  # type: ignore[arg-type]  # Whether it can be one is the question.
    except TypeError:
        raise InvalidArgument(f"create_revision {revision!r} is not a whole number") from None


def seconds_of(timeout: object, otherwise: float) -> float:
    """A user's timeout in seconds; `otherwise` if it is None.

    Raises:
        InvalidArgument: `timeout` is not a number above 0 and below `SECONDS_BELOW`.
    """
    if timeout is None:
        return otherwise
    if not _is_number(timeout) or not 0 < timeout < SECONDS_BELOW:
        raise InvalidArgument(f"timeout {timeout!r} is not a number of seconds above 0")
    return float(timeout)


def offset_of(offset: object) -> ByteOffset:
    """An offset, as a user passed it.

    Raises:
        InvalidArgument: it is no whole number of bytes from 0 on.
    """
    try:
        found = index(offset)  # type: ignore[arg-type]  # Whether it can be one is the question.
    except TypeError:
        found = -1
    if not 0 <= found < 1 << 63:
        raise InvalidArgument(f"offset {offset!r} is not in [0, 2**63)")
    return ByteOffset(found)


def wall_of(when: object) -> WallTime:
    """A time in seconds since 1970, as a user passed it.

    Raises:
        InvalidArgument: it is no number from 0 to below nine thousand million.
    """
    if not _is_number(when) or not 0 <= when < 9 * SECONDS_BELOW:
        raise InvalidArgument(f"time {when!r} is no number of seconds since 1970")
    return WallTime(int(when * SECOND))


def interval_of(what: str, seconds: object) -> Duration:
    """The interval at which fragments are closed, or for which they are kept, from seconds.

    Args:
        what: the argument's name.

    Raises:
        InvalidArgument: it is not a number of seconds from 0 on. Nodes accept a part of them.
    """
    if not _is_number(seconds) or not 0 <= seconds < 4 * SECONDS_BELOW:
        raise InvalidArgument(f"{what} of {seconds!r} s: 0, or a number of seconds from 60 on")
    return Duration(int(seconds * SECOND))


def _is_number(given: object) -> TypeGuard[int | float]:
    return isinstance(given, int | float) and not isinstance(given, bool)


def change_of(  # noqa: PLR0917 - as `Journals.alter` has them.
    fragment_length: int | None,
    codec: str | None,
    store: str | None,
    flush_interval: float | None,
    retention: float | None,
    retained_bytes: int | None,
    labels: Mapping[str, str | None] | None,
) -> SpecChange:
    """What a user wants of a journal's spec; None: as it is, or as it is by default.

    Raises:
        InvalidArgument: a time is no number of seconds, or there is no such codec.
    """
    return SpecChange(
        length=fragment_length,
        codec=None if codec is None else codec_of(codec),
        store=store,
        flush_interval=None if flush_interval is None else interval_of("flush_interval", flush_interval),
        retention=None if retention is None else interval_of("retention", retention),
        retained_bytes=retained_bytes,
        labels=dict(labels or {}),
    )


def spec_of(name: str, change: SpecChange) -> JournalSpec:
    """The spec of a new journal: `change` of the defaults."""
    values = {field: value for field, value in msgspec.structs.asdict(change).items() if field != "labels"}
    return JournalSpec(
        name=JournalName(name),
        fragment=FragmentSpec(**{field: value for field, value in values.items() if value is not None}),
        labels={label: value for label, value in change.labels.items() if value is not None},
    )


def codec_of(name: str) -> Codec:
    """The codec of fragments that has this name.

    Raises:
        InvalidArgument: there is no such codec.
    """
    try:
        return Codec(name)
    except ValueError:
        names = ", ".join(codec.value for codec in Codec)
        raise InvalidArgument(f"codec {name!r} is unknown: use one of {names}") from None
