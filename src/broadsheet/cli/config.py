"""Config: `broadsheet config`, which shows the settings of a node and where each value comes from."""

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from broadsheet.config import load
from broadsheet.node import Settings

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Look at a configuration.")


@app.callback()
def _group() -> None:
    """Make this a group, although it has one command."""


@app.command()
def show(
    *,
    config: Annotated[Path | None, typer.Option(help="A TOML file.", dir_okay=False)] = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
) -> None:
    """Print every setting that `serve` would use, as a file that `--config` takes."""
    found = load(Settings, path=config, environment=os.environ, flags={}).settings()
    if json:
        rows = {each.name: {"value": each.value, "origin": each.origin} for each in found}
        print(msgspec.json.encode(rows).decode())
        return
    for each in found:
        print(f"{each.name} = {_toml(each.value)}" + (f"    # {each.origin}" if origin else ""))


def _toml(value: object) -> str:
    match value:
        case dict():
            pairs = ", ".join(
                f"{msgspec.json.encode(name).decode()} = {_toml(each)}" for name, each in value.items()
            )
            return f"{{{pairs}}}"
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case _:
            return msgspec.json.encode(value).decode()
