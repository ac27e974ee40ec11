"""Starting: where a reader begins that wants a journal's last lines or messages, or those since a time.

Units: byte offsets, seconds since 1970.
"""

from contextlib import aclosing
from typing import Annotated, Final

import typer

from broadsheet.base.time import SECOND, WallTime
from broadsheet.cli.options import time_of
from broadsheet.client import Client
from broadsheet.consume.message import Message
from broadsheet.errors import Trimmed
from broadsheet.message.clock import clock_at
from broadsheet.message.uuid import NO_ID

STEP_BYTES: Final = 64 << 10
"""How far before the end lines are looked for at first; doubles up to `STEP_BYTES_MAX`."""
STEP_BYTES_MAX: Final = 16 << 20
LAST_MAX: Final = 1_000_000_000

Last = Annotated[
    int | None, typer.Option("-n", "--last", min=0, max=LAST_MAX, help="Begin so many before the end.")
]
Since = Annotated[str | None, typer.Option(help="Begin at a time (2026-11-20T12:00), or so long ago (10m).")]


def require_one(**options: bool) -> None:
    """Refuse several options that say where to begin.

    Raises:
        BadParameter: more than one is given.
    """
    given = [name for name, is_given in options.items() if is_given]
    if len(given) > 1:
        raise typer.BadParameter(
            f"{' and '.join(f'--{name}' for name in given)}: one of them says where to begin"
        )


async def begin_of(client: Client, name: str) -> int:
    """The first byte of journal `name` that can be read; waits until the journal is open."""
    await client.journals.end(name)
    return (await client.journals.status(name)).begin or 0


async def first_offset(
    client: Client, name: str, offset: int | None, *, last: int | None, since: str | None
) -> int:
    """The offset at which a reader of bytes begins, by the options that say so.

    Args:
        offset: -1: at the committed end. None, like the others: not given.
    """
    if last is not None:
        return await lines_before_end(client, name, last)
    if since is not None:
        return await client.journals.offset_at(name, time_of(since, "--since"))
    if offset is None:
        return await begin_of(client, name)
    return offset if offset >= 0 else await client.journals.end(name)


async def lines_before_end(client: Client, name: str, count: int) -> int:
    """The offset at which the last `count` lines of a journal begin; its begin if it has fewer.

    Bytes behind the last line end are a line as well. What a hole hides is not looked for behind it.
    """
    end, begin = await client.journals.end(name), await begin_of(client, name)
    at, step, wanted = end, STEP_BYTES, count
    while at > begin and wanted >= 0:
        low = max(begin, at - step)
        try:
            content = b"".join([chunk.data async for chunk in client.journals.read(name, low, end=at)])
        except Trimmed:
            return at
        if at == end and count and not content.endswith(b"\n"):
            wanted -= 1
        found = len(content)
        while wanted >= 0 and (found := content.rfind(b"\n", 0, found)) >= 0:
            if not wanted:
                return low + found + 1
            wanted -= 1
        at, step = low, min(2 * step, STEP_BYTES_MAX)
    return begin


async def messages_before_end(
    client: Client, name: str, count: int, *, is_committed: bool
) -> tuple[int, int]:
    """An offset from which on a journal has at least `count` messages, and how many to leave out there.

    The messages are counted from the last index point on, then from twice as many points before the end, and
    so on. Readers see them in one order, so what is counted here is what a later read from there gives first.
    """
    begin = await begin_of(client, name)
    points = [begin, *(each for each in await client.journals.index_points(name) if each > begin)]
    back, seen = 1, 0
    while True:
        start = points[max(0, len(points) - back)]
        seen = 0
        reader = client.messages(name, start, is_committed=is_committed)
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                seen += len(batch)
        if seen >= count or start == begin:
            return start, max(0, seen - count)
        back *= 2


def is_since(message: Message, when: float) -> bool:
    """Whether a message was stamped at or after a time; one without a UUID may be."""
    return message.id == NO_ID or message.id.clock >= clock_at(WallTime(int(when * SECOND)))
