"""Context: `broadsheet context`, which gives nodes names, in place of address and token."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from broadsheet.cli import contexts
from broadsheet.cli.contexts import NAME, Contexts, Named
from broadsheet.cli.options import AsJSON, print_result
from broadsheet.cli.tables import table
from broadsheet.errors import InvalidArgument
from broadsheet.runtime.network import split_address

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Contexts: names of nodes, each with address and token."
)

Context = Annotated[str, typer.Argument(help="The context.")]


@app.command()
def add(
    name: Context,
    *,
    address: Annotated[str, typer.Option(help="The node's native door, host:port.")],
    token_file: Annotated[
        Path | None, typer.Option(help="The file that holds the token for it.", dir_okay=False)
    ] = None,
) -> None:
    """Add a context, or change one. The first one is in use at once."""
    if not NAME.fullmatch(name):
        raise typer.BadParameter(f"context {name!r}: up to 64 letters, digits, dots, dashes, underscores")
    try:
        split_address(address)
    except InvalidArgument as error:
        raise typer.BadParameter(f"--address: {error}") from None
    if token_file is not None and not token_file.is_file():
        raise typer.BadParameter(f"--token-file: there is no file {token_file}")
    found = contexts.read()
    place = "" if token_file is None else str(token_file.absolute())
    known = {**found.contexts, name: Named(address=address, token_file=place)}
    Contexts(current=found.current or name, contexts=known).write()
    print(f"{name}: {'changed' if name in found.contexts else 'added'} in {contexts.path()}")


@app.command()
def use(
    name: Annotated[str | None, typer.Argument(help="The context; without it none is used.")] = None,
) -> None:
    """Have later commands ask the node of a context."""
    found = contexts.read()
    if name is not None:
        found.named(name)
    msgspec.structs.replace(found, current=name or "").write()
    print(f"{name}: in use" if name is not None else "no context is in use")


@app.command("list")
def list_(*, json: AsJSON = False) -> None:
    """List the contexts; the one in use has a star."""
    found = contexts.read()
    rows = [
        ("*" if name == found.current else "", name, each.address, each.token_file)
        for name, each in sorted(found.contexts.items())
    ]
    print_result(found, json, table(("", "NAME", "ADDRESS", "TOKEN FILE"), rows) if rows else "")


@app.command()
def remove(name: Context) -> None:
    """Remove a context. The file of its token stays."""
    found = contexts.read()
    found.named(name)
    known = {each: value for each, value in found.contexts.items() if each != name}
    Contexts(current="" if found.current == name else found.current, contexts=known).write()
    print(f"{name}: removed")
