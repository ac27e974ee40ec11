"""Upkeep: the commands of `broadsheet journals` that change what of a journal is kept."""

from typing import Annotated

import typer

from broadsheet.cli.calling import call_node
from broadsheet.cli.options import (
    DEFAULT_ADDRESS,
    EXIT_DRY_RUN,
    Address,
    AsJSON,
    Name,
    Retained,
    Retention,
    Yes,
    labels_of,
    place_or_time,
    print_result,
    seconds_of,
)
from broadsheet.cli.tables import size_of, size_text
from broadsheet.client import Client

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


@app.command()
def alter(
    name: Name,
    *,
    address: Address = DEFAULT_ADDRESS,
    fragment_length: Annotated[
        int | None,
        typer.Option(parser=size_of, metavar="SIZE", help="After so much a fragment is closed (64MiB)."),
    ] = None,
    codec: Annotated[str | None, typer.Option(help="Of the next fragments: as `create` has it.")] = None,
    store: Annotated[str | None, typer.Option(help="It does not change: the node says why.")] = None,
    flush_interval: Annotated[
        str | None,
        typer.Option(help="As in `10m`; a fragment is closed at each multiple of it, too. 0: not."),
    ] = None,
    retention: Retention = None,
    retained_bytes: Retained = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE sets one, NAME alone removes it; may be repeated."),
    ] = None,
    json: AsJSON = False,
) -> None:
    """Change the settings of a journal. What is stored already stays as it is."""
    values = label or []
    removed: dict[str, str | None] = dict.fromkeys([each for each in values if "=" not in each])
    labels = removed | labels_of([each for each in values if "=" in each])
    if len(labels) < len(values):
        raise typer.BadParameter("--label: a name is given twice")

    async def work(client: Client) -> None:
        before = await client.journals.get(name)
        info = await client.journals.alter(
            name,
            fragment_length=fragment_length,
            codec=codec,
            store=store,
            flush_interval=seconds_of(flush_interval, "--flush-interval"),
            retention=seconds_of(retention, "--retention"),
            retained_bytes=retained_bytes,
            labels=labels,
            create_revision=before.create_revision,
        )
        is_same = info.mod_revision == before.mod_revision
        text = "nothing to change" if is_same else f"changed at revision {info.mod_revision}"
        print_result(info, json, f"{info.name}: {text}")

    call_node(address, work)
