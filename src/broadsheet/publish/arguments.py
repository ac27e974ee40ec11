"""Arguments: what callers of a publisher give, checked before anything is stamped."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from broadsheet.base.types import Buffer
from broadsheet.errors import InvalidArgument
from broadsheet.message.framing import Framing, Kind
from broadsheet.message.mapping import modulo

PORTION_BYTES: Final = 256 << 10
"""Messages up to this size together are stamped and appended as one piece."""
MESSAGES_IN_A_ROW: Final = 1024
Body = Buffer | str | Mapping[str, Any] | msgspec.Struct
"""A message: bytes or text as they are; anything else becomes one JSON object."""


def chosen(journal: str | Sequence[str], key: bytes | str | None) -> str:
    """The journal that is meant: the one that is named, or the one of `key` among several.

    Raises:
        InvalidArgument: several are named and there is no key, or one is and there is; or none is named.
    """
    if isinstance(journal, str):
        if key is not None:
            raise InvalidArgument(
                f"a key chooses among several journals, and only {journal} is named: leave the key out"
            )
        return journal
    if not journal or key is None:
        raise InvalidArgument(
            f"{len(journal)} journals are named and the key is {key!r}: name one, or several with a key"
        )
    names = sorted(journal)
    return names[modulo(key.encode() if isinstance(key, str) else bytes(key), len(names))]


async def portions(framing: Framing, messages: Sequence[Body]) -> list[list[bytes]]:
    """The bytes of messages, in portions that are appended each as one piece.

    It lets others run between thousands of messages.

    Raises:
        InvalidArgument: as `body_of`, of any of them.
    """
    found: list[list[bytes]] = []
    size = PORTION_BYTES
    for number, message in enumerate(messages, 1):
        if not number % MESSAGES_IN_A_ROW:
            await asyncio.sleep(0)
        body = body_of(framing, message)
        size += len(body)
        if size > PORTION_BYTES:
            found.append([])
            size = len(body)
        found[-1].append(body)
    return found


def body_of(framing: Framing, message: Body) -> bytes:
    """The bytes of a message, before it gets its UUID.

    Raises:
        InvalidArgument: a journal of fixed frames takes bytes only, or `message` cannot be JSON.
    """
    if isinstance(message, Buffer):
        return bytes(message)  # A copy: the caller may use its buffer again.
    if framing.kind is Kind.FIXED:
        raise InvalidArgument(
            f"a message of type {type(message).__name__}: a journal of fixed frames takes bytes"
        )
    try:
        return message.encode() if isinstance(message, str) else msgspec.json.encode(message)
    except (TypeError, ValueError, RecursionError) as error:  # Of the latter are also texts without UTF-8.
        raise InvalidArgument(f"a message of type {type(message).__name__} is not JSON: {error}") from error
