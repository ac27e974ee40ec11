"""Requests: from what a user passes to what the journal client sends. No state, no IO."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping

from broadsheet.base.types import Buffer, ByteOffset
from broadsheet.errors import InvalidArgument
from broadsheet.journal.core.fragment import Codec
from broadsheet.journal.core.registers import Condition


def condition_of(
    offset: int | None,
    check: Mapping[str, str | None] | None,
    union: Mapping[str, str] | None,
    subtract: Mapping[str, str] | None,
) -> Condition | None:
    """The condition of an append; None where there is none."""
    if offset is None and not check and not union and not subtract:
        return None
    return Condition(
        offset=None if offset is None else ByteOffset(offset),
        check=dict(check) if check else None,
        union=dict(union) if union else None,
        subtract=dict(subtract) if subtract else None,
    )


def is_repeatable(condition: Condition | None) -> bool:
    """Whether a second attempt cannot append twice: it would be refused, where the first one took effect."""
    if condition is None:
        return False
    if condition.offset is not None:
        return True
    check = condition.check or {}
    union = condition.union or {}
    return any(name in check and check[name] != value for name, value in union.items())


async def pieces_of(content: Iterable[Buffer] | AsyncIterable[Buffer]) -> AsyncIterator[Buffer]:
    """Every piece of the content, however it comes."""
    if isinstance(content, AsyncIterable):
        async for piece in content:
            yield piece
    else:
        for piece in content:
            yield piece


def codec_of(name: str) -> Codec:
    """The codec of that name.

    Raises:
        InvalidArgument: there is none.
    """
    try:
        return Codec(name)
    except ValueError:
        names = ", ".join(codec.value for codec in Codec)
        raise InvalidArgument(f"codec {name!r} is none of {names}") from None
