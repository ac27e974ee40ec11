"""Watching: a command that shows something again and again, until Ctrl-C."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

import typer

from broadsheet.base.time import SECOND
from broadsheet.config import duration_of

Watch = Annotated[str | None, typer.Option(help="Show it again each time so long has passed, as in `2s`.")]
EVERY_SECONDS_MIN: Final = 0.1
CLEAR: Final = "\x1b[H\x1b[2J"
"""Moves a terminal's cursor to the top, and clears the screen."""


def pause_of(watch: str | None) -> float | None:
    """The seconds between two shows; None: it is shown once.

    Raises:
        BadParameter: it is shorter than a tenth of a second.
    """
    if watch is None:
        return None
    seconds = duration_of(watch, "--watch") / SECOND
    if seconds < EVERY_SECONDS_MIN:
        raise typer.BadParameter(f"--watch {watch}: {EVERY_SECONDS_MIN} s or more")
    return seconds


async def shown(show: Callable[[], Awaitable[None]], pause: float | None) -> None:
    """Await `show` once; with a pause again and again, each on a clear screen if this is a terminal."""
    while True:
        if pause is not None and sys.stdout.isatty():
            print(CLEAR, end="")
        await show()
        sys.stdout.flush()
        if pause is None:
            return
        await asyncio.sleep(pause)
