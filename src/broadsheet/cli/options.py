"""Options: the options that several commands have, and what they mean."""

import asyncio
import os
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

import msgspec
import typer

from broadsheet.base.time import SECOND
from broadsheet.cli import contexts
from broadsheet.cli.calling import token_of
from broadsheet.cli.contexts import ADDRESS_VARIABLE
from broadsheet.cli.tables import size_of
from broadsheet.config import duration_of
from broadsheet.errors import BroadsheetError, ConfigError
from broadsheet.runtime.loop import run

Address = Annotated[str, typer.Option(envvar=ADDRESS_VARIABLE, help="The node's native door, host:port.")]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def journals_that_begin(context: typer.Context, incomplete: str) -> list[str]:
    """The names of journals that begin with what is typed, for the shell; none if no node says so in time."""
    from broadsheet.client import connect

    async def ask(address: str) -> list[str]:
        async with asyncio.timeout(COMPLETION_SECONDS), connect(address, token_of(address) or None) as client:
            return [each.name for each in await client.journals.list(incomplete, limit=COMPLETION_MAX)]

    try:
        contexts.use(context.find_root().params.get("context"))
        source = context.get_parameter_source("address")
        is_typed = source is not None and source.name == "COMMANDLINE"
        typed = context.params.get("address") if is_typed else ""
        address = str(typed or os.environ.get(contexts.ADDRESS_VARIABLE) or DEFAULT_ADDRESS)
        return run(ask(address))
    except (BroadsheetError, OSError, TimeoutError):
        return []  # A shell shows no error here.


Name = Annotated[str, typer.Argument(help="The journal.", autocompletion=journals_that_begin)]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without --yes nothing changes.")]
Retention = Annotated[
    str | None, typer.Option(help="As in `7d`; what was stored longer ago is removed. 0: it is kept.")
]
FragmentLength = Annotated[
    int | None,
    typer.Option(parser=size_of, metavar="SIZE", help="After so much a fragment is closed (64MiB)."),
]
Retained = Annotated[
    int | None,
    typer.Option(parser=size_of, metavar="SIZE", help="What lies further below the end is removed (100GiB)."),
]
DEFAULT_ADDRESS: Final = "127.0.0.1:6640"
COMPLETION_SECONDS: Final = 1.0
"""How long a shell waits for the names of journals."""
COMPLETION_MAX: Final = 200
EXIT_DRY_RUN: Final = 4
"""The exit status of a command that needs `--yes` and did not get it. Nothing was changed."""


def seconds_of(text: str | None, option: str) -> float | None:
    """The seconds of a duration that an option gives, as in `30s`; None if it is not given."""
    return None if text is None else duration_of(text, option) / SECOND


def labels_of(texts: Sequence[str]) -> dict[str, str]:
    """The labels that options give as NAME=VALUE.

    Raises:
        BadParameter: one has another form, or a name stands twice.
    """
    labels: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise typer.BadParameter(f"label {text!r} is not NAME=VALUE")
        if name in labels:
            raise typer.BadParameter(
                f"--label {name} is given twice, as {labels[name]!r} and {value!r}: a journal has one value"
                " for each name"
            )
        labels[name] = value
    return labels


def print_result(what: object, is_json: bool, text: str) -> None:
    """Print `what` as JSON, or `text`."""
    if is_json:
        print(msgspec.json.encode(what).decode())
    elif text:
        print(text)


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
