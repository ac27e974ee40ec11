"""Upkeep: the commands of `broadsheet journals` that change what of a journal is kept."""

from pathlib import Path
from typing import Annotated, Final

import typer

from broadsheet.base.time import SECOND
from broadsheet.cli.calling import call_node
from broadsheet.cli.options import (
    DEFAULT_ADDRESS,
    EXIT_DRY_RUN,
    Address,
    AsJSON,
    FragmentLength,
    Name,
    Retained,
    Retention,
    Yes,
    labels_of,
    place_or_time,
    print_result,
    seconds_of,
)
from broadsheet.cli.progress import Progress
from broadsheet.cli.streams import STANDARD_OUTPUT_DESCRIPTOR, write
from broadsheet.cli.tables import size_text
from broadsheet.cli.transfer import exported, imported, manifest_of, source_of
from broadsheet.client import Client
from broadsheet.errors import NotFound
from broadsheet.journal.core.spec import JournalSpec
from broadsheet.journal.messages import JournalInfo

app = typer.Typer()

STANDARD_OUTPUT: Final = Path("-")


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
    fragment_length: FragmentLength = None,
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


@app.command("export")
def export_(
    name: Name,
    place: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory, or - for standard output.")],
    *,
    address: Address = DEFAULT_ADDRESS,
    json: AsJSON = False,
) -> None:
    """Write the content of a journal into the files of a directory, with their sums.

    Said again it goes on: after a Ctrl-C, and later with what was appended since.
    """
    if place == STANDARD_OUTPUT and json:
        raise typer.BadParameter("--json uses standard output, so the content needs a directory")

    async def work(client: Client) -> None:
        info = await client.journals.get(name)
        end = await client.journals.end(name)
        if place == STANDARD_OUTPUT:
            begin = (await client.journals.status(name)).begin or 0
            async for chunk in client.journals.read(
                name, begin, end=end, create_revision=info.create_revision
            ):
                await write(STANDARD_OUTPUT_DESCRIPTOR, chunk.data)
            return
        with Progress(f"export {name}", end) as progress:
            begin, end = await exported(client, info, place, end=end, advance=progress.advance)
        told = {"journal": name, "begin": begin, "end": end}
        print_result(told, json, f"{name}: [{begin}, {end}), {size_text(end - begin)}, in {place}")

    call_node(address, work)


@app.command("import")
def import_(
    name: Name,
    place: Annotated[Path, typer.Argument(metavar="FILE", help="A file, or the directory of an export.")],
    *,
    address: Address = DEFAULT_ADDRESS,
    json: AsJSON = False,
) -> None:
    """Append a file, or an export, to a journal that has nothing else, and compare the sums of both.

    Said again it goes on. A journal that is not there is created: for an export with labels, fragment length,
    codec and flush interval of the exported one. Registers and retention are not imported, and offsets begin
    at 0.
    """
    parts = source_of(place)
    total = parts[-1].end - parts[0].begin

    async def work(client: Client) -> None:
        try:
            info = await client.journals.get(name)
        except NotFound:
            spec = manifest_of(place).journal.spec if place.is_dir() else None
            info = await created_like(client, name, spec)
        with Progress(f"import {name}", total) as progress:
            begin, end = await imported(client, info, parts, advance=progress.advance)
        told = {"journal": name, "begin": begin, "end": end}
        print_result(told, json, f"{name}: [{begin}, {end}) appended; the sums of [0, {end}) are equal")

    call_node(address, work)


async def created_like(client: Client, name: str, spec: JournalSpec | None) -> JournalInfo:
    """Create journal `name` with the settings of another one, in the node's own store."""
    if spec is None:
        return await client.journals.create(name)
    fragment = spec.fragment
    return await client.journals.create(
        name,
        fragment_length=fragment.length,
        codec=fragment.codec.value,
        flush_interval=fragment.flush_interval / SECOND,
        labels=spec.labels,
    )
