"""Argument checks: the values that a caller passes to the wire are checked before the first byte is sent.

Without these checks a value of the wrong type would fail only while the frames of a whole turn are written,
and would bring down the connection with everybody's requests. A refusal changes nothing and sends nothing.
"""

from collections.abc import Sequence
from typing import Any, Final

from broadsheet.base.time import Duration
from broadsheet.base.types import Buffer
from broadsheet.errors import InvalidArgument
from broadsheet.wire import frame as f

BUFFERS: Final = (bytes, bytearray, memoryview)
_KINDS: Final = frozenset(BUFFERS)
OFFSET_MAX: Final = (1 << 63) - 1


def buffers(what: str, parts: Sequence[Buffer]) -> None:
    """Refuse a caller's `parts` unless each is bytes, a bytearray or a memoryview of bytes.

    Raises:
        InvalidArgument: a part is something else; the error names the first such part.
    """
    if isinstance(parts, (str, *BUFFERS)):
        raise InvalidArgument(
            f"{what} is one {type(parts).__name__}: pass a sequence of buffers, as in (data,)"
        )
    kinds = frozenset(map(type, parts))
    if kinds <= _KINDS and memoryview not in kinds:
        return
    for number, part in enumerate(parts):
        if not isinstance(part, BUFFERS):
            raise InvalidArgument(f"{what}: part {number} is a {type(part).__name__}, and not bytes")
        if isinstance(part, memoryview) and not (part.contiguous and part.itemsize == 1 and part.ndim == 1):
            raise InvalidArgument(
                f"{what}: part {number} is a memoryview of {part.format!r}: cast it to bytes"
            )


def encoded(what: str, body: object) -> bytes:
    """A caller's `body` as MessagePack.

    Raises:
        InvalidArgument: `body` holds a value that MessagePack cannot express, such as an integer of 65 bits.
    """
    try:
        return f.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgument(f"{what} cannot be sent: {error}") from None


def timeout(given: Any) -> None:  # noqa: ANN401 - whatever the caller gave.
    """Refuse a caller's timeout that is not a whole number of nanoseconds.

    Raises:
        InvalidArgument: `given` is neither None nor such a number. Nothing was sent.
    """
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 0):
        raise InvalidArgument(
            f"timeout {given!r} is no {Duration.__name__}: give a whole number of nanoseconds, 0 or more"
        )


def offset(given: Any) -> None:  # noqa: ANN401 - whatever the caller gave.
    """Refuse a caller's value that is not an offset.

    Raises:
        InvalidArgument: `given` is neither None nor an offset. Nothing was sent.
    """
    if given is None:
        return
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= OFFSET_MAX:
        raise InvalidArgument(f"offset {given!r} is not a whole number in [0, 2**63)")


def text(what: str, given: Any) -> None:  # noqa: ANN401 - whatever the caller gave.
    """Refuse a caller's value that is not text.

    Raises:
        InvalidArgument: `given` is not a string, or has no form in UTF-8. Nothing was sent.
    """
    if not isinstance(given, str):
        raise InvalidArgument(f"{what} is a {type(given).__name__}, and not text")
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{what} cannot be UTF-8: {error.reason} at {error.start}") from None
