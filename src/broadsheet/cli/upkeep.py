"""Upkeep: the commands of `broadsheet journals` that change what of a journal is kept."""

import time
from datetime import datetime
from typing import Annotated

import typer

from broadsheet.base.time import SECOND
from broadsheet.cli.calling import call_node
from broadsheet.cli.options import DEFAULT_ADDRESS, EXIT_DRY_RUN, Address, AsJSON, Name, Yes, print_result
from broadsheet.cli.tables import size_of, size_text
from broadsheet.client import Client
from broadsheet.config import duration_of
from broadsheet.errors import ConfigError

app = typer.Typer()


@app.command()
def trim(
    name: Name,
    *,
    to: Annotated[
        str,
        typer.Option(
            help="An offset (64GiB), a time (2026-11-20T12:00), or an age (7d): what ends before it goes."
        ),
    ],
    address: Address = DEFAULT_ADDRESS,
    yes: Yes = False,
    json: AsJSON = False,
) -> None:
    """Remove the oldest content of a journal for ever: whole stored fragments, from its begin on.

    Without --yes it says what would go, changes nothing, and exits with status 4. The newest stored fragment
    stays, and what is not stored yet; of a commit journal also what its author needs.
    """
    place = place_or_time(to, "--to")
    is_done = True

    async def work(client: Client) -> None:
        nonlocal is_done
        info = await client.journals.get(name)
        below = place
        if isinstance(below, float):
            below = await client.journals.offset_at(name, below, create_revision=info.create_revision)
        begin = (await client.journals.status(name)).begin or 0
        if not yes:
            found = [each for each in await client.journals.fragments(name) if each.is_stored]
            doomed = [each for each in found[:-1] if each.end <= below]
            size = sum(each.end - each.begin for each in doomed)
            told = {
                "journal": name,
                "begin": begin,
                "below": below,
                "bytes": size,
                "is_done": False,
            }
            text = f"{name}: at most {len(doomed)} fragments below {below} go, {size_text(size)}"
            print_result(told, json, f"{text}\nnothing was changed: --yes removes them")
            is_done = False
            return
        done = await client.journals.trim(name, below, create_revision=info.create_revision)
        told = {"journal": name, "begin": done.begin, "below": below, "kept": done.kept, "is_done": True}
        text = f"{name}: begins at {done.begin}, {size_text(done.begin - begin)} were removed"
        print_result(told, json, text + (f"; what lies between stays: {done.kept}" if done.kept else ""))

    call_node(address, work)
    if not is_done:
        raise typer.Exit(EXIT_DRY_RUN)


def place_or_time(text: str, option: str) -> int | float:
    """An offset, as a whole number; or a time in seconds since 1970, as a float.

    A time is written as in ISO 8601, of this machine's zone if it names none, or as an age, as in `10m`.

    Raises:
        BadParameter: `text` is none of them.
    """
    try:
        return size_of(text)
    except typer.BadParameter:
        return time_of(text, option, f"{option} {text}: an offset as in 64GiB, a time, or an age as in 7d")


def time_of(text: str, option: str, refusal: str = "") -> float:
    """A time in seconds since 1970: ISO 8601, or an age as in `10m`.

    Raises:
        BadParameter: `text` is neither; it says `refusal`, if that is given.
    """
    try:
        return time.time() - duration_of(text, option) / SECOND
    except ConfigError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        text = refusal or f"{option} {text}: a time as in 2026-11-20T12:00, or an age as in 10m"
        raise typer.BadParameter(text) from None
