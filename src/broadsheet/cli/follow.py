"""Follow: `broadsheet journals follow`, which prints the bytes of a journal as they come.

The journal's client goes on where a lost connection broke off, so a restart of the node makes no byte appear
twice, and none is left out. Units: byte offsets, seconds. Source: journals.20; ADR 0008.
"""

from contextlib import aclosing
from typing import Final

import typer

from broadsheet.cli.streams import STANDARD_OUTPUT_DESCRIPTOR, write
from broadsheet.cli.tables import size_of
from broadsheet.client import Client

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
LINE_BYTES_MAX: Final = 16 << 20
"""With `--lines` a longer line is printed in parts."""


def start_of(text: str, option: str) -> str | int:
    """Where to start: `earliest`, `latest` or an offset.

    Raises:
        BadParameter: `text` is none of them.
    """
    if text in (EARLIEST, LATEST):
        return text
    try:
        return size_of(text)
    except typer.BadParameter:
        raise typer.BadParameter(f"{option} {text}: {EARLIEST}, {LATEST}, or an offset in bytes") from None


async def follow(client: Client, name: str, start: str | int, *, by_line: bool, patience: float) -> None:
    """Print the bytes of journal `name` from `start` on, for ever.

    Args:
        by_line: print a line when it is whole, so that its parts never stand apart.
        patience: seconds for which the node may be away.

    Raises:
        NotFound: there is no such journal, or it was deleted meanwhile.
        DeadlineExceeded: the node was away for longer than `patience`; the text has the offset to go on from.
    """
    rest = bytearray()
    begin = await _offset(client, name, start, patience)
    reading = client.journals.read(name, begin, block=True, patience=patience)
    async with aclosing(reading) as chunks:
        async for chunk in chunks:
            rest += chunk.data
            whole = len(rest)
            if by_line and whole <= LINE_BYTES_MAX:
                whole = rest.rfind(b"\n", whole - len(chunk.data)) + 1
            if whole:
                await write(STANDARD_OUTPUT_DESCRIPTOR, bytes(rest[:whole]))
                del rest[:whole]


async def _offset(client: Client, name: str, start: str | int, patience: float) -> int | None:
    """The offset to read from; None for the end as the node knows it when the read begins."""
    if start == LATEST:
        return None
    if start != EARLIEST:
        return int(start)
    journals = client.journals
    await journals.end(name, timeout=patience)  # Wait until the journal is open: before, it has no begin.
    return (await journals.status(name, timeout=patience)).begin or 0
