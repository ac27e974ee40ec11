"""Client requests: checks a user's arguments and turns them into what is sent. No state, no IO."""

from collections.abc import AsyncIterable, Iterable, Mapping
from operator import index
from typing import Final, TypeGuard

import msgspec

from broadsheet.base.time import MILLISECOND, SECOND, Duration
from broadsheet.base.types import ByteOffset, JournalName, Revision
from broadsheet.errors import InvalidArgument, Unreachable
from broadsheet.journal.core.fragment import Codec
from broadsheet.journal.core.registers import Condition, validate_condition

RETRY_MIN: Final = Duration(50 * MILLISECOND)
RETRY_MAX: Final = Duration(2 * SECOND)
"""The first and the longest pause between two tries of a client whose node is unreachable."""
SECONDS_BELOW: Final = 1e9
"""Times must be below this, so that their nanoseconds fit into the message."""


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


def interval_of(flush_interval: object) -> Duration:
    """The interval at which fragments are closed. Nodes accept a part of what is sent.

    Raises:
        InvalidArgument: it is not a number of seconds from 0 to below `SECONDS_BELOW`.
    """
    if not _is_number(flush_interval) or not 0 <= flush_interval < SECONDS_BELOW:
        raise InvalidArgument(f"flush_interval of {flush_interval!r} s: 0, or a minute to 366 days")
    return Duration(int(flush_interval * SECOND))


def _is_number(given: object) -> TypeGuard[int | float]:
    return isinstance(given, int | float) and not isinstance(given, bool)


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
