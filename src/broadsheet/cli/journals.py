"""Journals: `broadsheet journals`, which creates, inspects, appends to, reads and deletes journals.

Content and JSON go to standard output. Progress is shown on standard error if that is a terminal. The token
comes from the environment, and there is no flag for it (access.5).
"""

import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, BinaryIO, Final, cast

import msgspec
import typer

from broadsheet.base.time import SECOND
from broadsheet.cli import inspection, upkeep
from broadsheet.cli.append import Appended, append_lines, append_pieces, append_whole, telling
from broadsheet.cli.calling import call_node
from broadsheet.cli.follow import EARLIEST, start_of
from broadsheet.cli.follow import follow as follow_journal
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
    print_result,
    seconds_of,
)
from broadsheet.cli.progress import Progress
from broadsheet.cli.starting import Last, Since, first_offset, require_one
from broadsheet.cli.streams import STANDARD_INPUT_DESCRIPTOR, STANDARD_OUTPUT_DESCRIPTOR, Input, write
from broadsheet.cli.tables import place_of, size_of
from broadsheet.cli.watching import Watch, pause_of, shown
from broadsheet.client import Client
from broadsheet.config import duration_of
from broadsheet.journal.messages import LossReply

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Journals: append-only byte sequences.")
app.registered_commands += upkeep.app.registered_commands

STANDARD_INPUT: Final = Path("-")

EXIT_UNTOLD: Final = 3
"""The exit status of an append that is done and could not be told: that of an unknown outcome.

Whoever sees the status of a failed one appends again."""


@app.command()
def create(
    name: Name,
    *,
    address: Address = DEFAULT_ADDRESS,
    fragment_length: FragmentLength = None,
    codec: Annotated[str | None, typer.Option(help="none, gzip, zstandard or snappy.")] = None,
    store: Annotated[
        str | None, typer.Option(help="URL of the fragment store; the node's own by default.")
    ] = None,
    flush_interval: Annotated[
        str | None, typer.Option(help="As in `10m`; a fragment is also closed at each multiple of it.")
    ] = None,
    retention: Retention = None,
    retained_bytes: Retained = None,
    label: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE; may be repeated, with another NAME.")
    ] = None,
    if_absent: Annotated[bool, typer.Option(help="Succeed if the journal exists.")] = False,
    json: AsJSON = False,
) -> None:
    """Create a journal."""
    labels = labels_of(label or [])
    flushed = seconds_of(flush_interval, "--flush-interval")
    kept = seconds_of(retention, "--retention")

    async def work(client: Client) -> None:
        info = await client.journals.create(
            name,
            fragment_length=fragment_length,
            codec=codec,
            store=store,
            flush_interval=flushed,
            retention=kept,
            retained_bytes=retained_bytes,
            labels=labels,
            if_absent=if_absent,
        )
        print_result(info, json, f"{info.name}: created at revision {info.create_revision}")

    call_node(address, work)


@app.command("list")
def list_(
    prefix: Annotated[str, typer.Argument(help="Only names that begin with this.")] = "",
    *,
    selector: Annotated[
        str, typer.Option(help="Only with these labels: `topic=clicks,env in (eu, us),!draft`.")
    ] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many.")] = None,
    names: Annotated[bool, typer.Option("--names", help="Print only names, one a line.")] = False,
    watch: Watch = None,
    address: Address = DEFAULT_ADDRESS,
    json: AsJSON = False,
) -> None:
    """List journals in the order of their names: state, length, what is not stored yet, labels."""
    pause = pause_of(watch)

    async def work(client: Client) -> None:
        async def show() -> None:
            infos = await client.journals.list(prefix, selector=selector, limit=limit)
            text = "\n".join(info.name for info in infos)
            if not (json or names):
                text = await inspection.listing_text(client, infos)
            print_result({"journals": infos}, json, text)

        await shown(show, pause)

    call_node(address, work)


@app.command()
def status(
    name: Name, *, watch: Watch = None, address: Address = DEFAULT_ADDRESS, json: AsJSON = False
) -> None:
    """Show the state of a journal."""
    pause = pause_of(watch)

    async def work(client: Client) -> None:
        async def show() -> None:
            found = await client.journals.status(name)
            told = {field: each for field, each in msgspec.structs.asdict(found).items() if each is not None}
            lines = [f"{field}: {value}" for field, value in told.items() if value != ""]
            print_result(found, json, "\n".join(lines))

        await shown(show, pause)

    call_node(address, work)


@app.command()
def describe(name: Name, *, address: Address = DEFAULT_ADDRESS, json: AsJSON = False) -> None:
    """Show spec, labels, state, fragments, registers and producers of a journal."""

    async def work(client: Client) -> None:
        told = await inspection.description(client, name)
        print_result(told, json, inspection.description_text(told))

    call_node(address, work)


@app.command()
def fragments(name: Name, *, address: Address = DEFAULT_ADDRESS, json: AsJSON = False) -> None:
    """List the closed fragments of a journal, and whether its store has them."""

    async def work(client: Client) -> None:
        found = await client.journals.fragments(name)
        print_result({"journal": name, "fragments": found}, json, inspection.fragments_text(found))

    call_node(address, work)


@app.command()
def verify(name: Name, *, address: Address = DEFAULT_ADDRESS, json: AsJSON = False) -> None:
    """Read every closed fragment of a journal through its node, and compare its sum with its name.

    The exit status is 1 if one is damaged or cannot be read. What the node has in memory it does not read
    from its store again. `doctor --fragments` reads the stores of a machine without a node.
    """
    told: list[inspection.Verified] = []

    async def work(client: Client) -> None:
        with Progress(f"verify {name}", None) as progress:
            told.append(await inspection.verified(client, name, progress.advance))

    call_node(address, work)
    (found,) = told
    print_result(found, json, inspection.verified_text(found))
    if found.damaged:
        raise typer.Exit(1)


@app.command()
def append(
    name: Name,
    file: Annotated[
        Path | None,
        typer.Argument(help="The file to append; - or nothing for standard input.", dir_okay=False),
    ] = None,
    *,
    address: Address = DEFAULT_ADDRESS,
    offset: Annotated[
        int | None, typer.Option(parser=size_of, metavar="SIZE", help="Append at this offset, or not at all.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Append each line by itself, as lines come.")
    ] = False,
    atomic: Annotated[
        bool, typer.Option("--atomic", help="Append everything as one append, of up to 256 MiB.")
    ] = False,
    skip_bytes: Annotated[
        int,
        typer.Option(
            parser=size_of,
            metavar="SIZE",
            help="Leave out the first bytes of the input, which an earlier call appended.",
        ),
    ] = 0,
    json: AsJSON = False,
) -> None:
    """Append a file or standard input of any size.

    Input of up to 1 MiB is one append. Longer input is appended in pieces, which end at line ends if there
    are any. After a failure the command says how much is in the journal, and how to go on.
    """
    if lines and offset is not None:
        raise typer.BadParameter("--lines makes many appends, and --offset is for one")
    if lines and atomic:
        raise typer.BadParameter("--lines makes many appends, and --atomic one")
    is_standard = file is None or file == STANDARD_INPUT
    append_all = append_lines if lines else append_whole if atomic else append_pieces
    told: dict[str, str | int] = {}
    text = ""

    async def work(client: Client) -> None:
        nonlocal told, text
        total = None if file is None or is_standard else max(0, file.stat().st_size - skip_bytes)
        opened = nullcontext() if file is None or is_standard else _opened(file, "rb")
        with opened as content, Progress(f"append {name}", total) as progress:
            source = Input(STANDARD_INPUT_DESCRIPTOR if content is None else content.fileno())
            done = Appended(name, offset=offset, skipped=skip_bytes, advance=progress.advance)
            with telling(done):
                await append_all(client, name, source, done, await source.skip(skip_bytes))
        told = {"journal": name, "begin": done.begin, "end": done.end, "appends": done.count}
        text = f"{name}: [{done.begin}, {done.end}) in {done.count} append{'s' if done.count != 1 else ''}"

    call_node(address, work)
    try:
        print_result(told, json, text)
        sys.stdout.flush()
    except OSError as error:
        print(f"broadsheet: {text}; standard output took no word of it: {error.strerror}", file=sys.stderr)
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - for the last flush.
        raise typer.Exit(EXIT_UNTOLD) from None


@app.command()
def read(
    name: Name,
    *,
    address: Address = DEFAULT_ADDRESS,
    offset: Annotated[
        int | None,
        typer.Option(
            parser=place_of,
            metavar="SIZE",
            help="Where to begin; -1 for the committed end. By default the first byte that is there.",
        ),
    ] = None,
    last: Last = None,
    since: Since = None,
    end: Annotated[
        int | None, typer.Option(parser=size_of, metavar="SIZE", help="Where to stop (exclusive).")
    ] = None,
    block: Annotated[bool, typer.Option("--block", help="Wait for more at the end.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="The file to write; standard output by default.", dir_okay=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print which span was read; needs --output.")] = False,
) -> None:
    """Read committed bytes; with -n the last lines, with --since what came since then, and a little more."""
    require_one(offset=offset is not None, last=last is not None, since=since is not None)
    if json and output is None:
        raise typer.BadParameter("--json uses standard output, so the content needs --output")

    async def work(client: Client) -> None:
        first = at = await first_offset(client, name, offset, last=last, since=since)
        if end is not None and end < first:
            raise typer.BadParameter(f"--end {end} is below the offset {first}")
        total = None
        if output is not None and not block:
            total = (end if end is not None else await client.journals.end(name)) - first
        sink = None
        with Progress(f"read {name}", total) if output is not None else Progress("", 0) as progress:
            async for chunk in client.journals.read(name, first, end=end, block=block):
                at = chunk.end
                if output is None:
                    await write(STANDARD_OUTPUT_DESCRIPTOR, chunk.data)
                    continue
                # The file is opened only now, so that a refused read leaves an existing file as it is.
                sink = sink or _opened(output, "wb")
                sink.write(chunk.data)
                if block:
                    sink.flush()
                progress.advance(len(chunk.data))
        if output is not None:
            (sink or _opened(output, "wb")).close()
            told = {"journal": name, "begin": first, "end": at}
            print_result(told, json, f"{name}: [{first}, {at}) to {output}")

    call_node(address, work)


@app.command()
def follow(
    name: Name,
    *,
    address: Address = DEFAULT_ADDRESS,
    start: Annotated[
        str | None,
        typer.Option("--from", help="Where to begin: earliest (the default), latest, or an offset in bytes."),
    ] = None,
    last: Last = None,
    since: Since = None,
    lines: Annotated[bool, typer.Option("--lines", help="Print each line when it is whole.")] = False,
    patience: Annotated[str, typer.Option(help="How long the node may be away, as in `10m`.")] = "10m",
) -> None:
    """Print committed bytes as they come, until Ctrl-C, also while the node is restarted.

    With -n the last lines are printed first, with --since what was appended since, and a little more.
    """
    require_one(**{"from": start is not None, "last": last is not None, "since": since is not None})
    begin: str | int = start_of(EARLIEST if start is None else start, "--from")
    seconds = duration_of(patience, "--patience") / SECOND

    async def work(client: Client) -> None:
        nonlocal begin
        if last is not None or since is not None:
            begin = await first_offset(client, name, None, last=last, since=since)
        await follow_journal(client, name, begin, by_line=lines, patience=seconds)

    call_node(address, work)


@app.command()
def delete(
    name: Name,
    *,
    address: Address = DEFAULT_ADDRESS,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: AsJSON = False,
) -> None:
    """Delete a journal with all its content."""
    if not yes:
        typer.confirm(f"Delete journal {name} and everything in it?", abort=True, err=True)

    async def work(client: Client) -> None:
        await client.journals.delete(name)
        print_result({"journal": name, "deleted": True}, json, f"{name}: deleted")

    call_node(address, work)


Head = Annotated[
    int | None,
    typer.Option(
        parser=size_of,
        metavar="SIZE",
        help="Where appends go on; the lowest safe offset by default. `--retained-bytes` count from there.",
    ),
]
DRY_RUN: Final = "Without --yes it shows what is lost, changes nothing, and exits with status 4."
WAYS_OUT: Final = (
    (
        "reset-head",
        "Let appends go on above the greatest known offset, which the journal's log does not reach.",
    ),
    (
        "accept-loss",
        "Let a journal go on without the bytes that are damaged or missing. No file is deleted.",
    ),
)


def _way_out(command: str, what: str) -> None:
    """Make one of the two commands, which have the same options and output."""

    @app.command(command, help=f"{what}\n\n{DRY_RUN}")
    def _act(
        name: Name,
        *,
        address: Address = DEFAULT_ADDRESS,
        head: Head = None,
        yes: Yes = False,
        json: AsJSON = False,
    ) -> None:
        async def work(client: Client) -> LossReply:
            ask = client.journals.reset_head if command == "reset-head" else client.journals.accept_loss
            return await ask(name, head=head, may_act=yes)

        _accept(address, work, is_json=json)


for _command, _what in WAYS_OUT:
    _way_out(_command, _what)


def _accept(address: str, work: Callable[[Client], Awaitable[LossReply]], *, is_json: bool) -> None:
    told: list[LossReply] = []

    async def ask(client: Client) -> None:
        told.append(await work(client))

    call_node(address, ask)
    (loss,) = told
    lines = [f"{loss.journal}: {loss.reason}"]
    for each in loss.lost:
        when = datetime.fromtimestamp(each.first_append / 1e9, UTC).isoformat() if each.first_append else ""
        line = f"lost [{each.begin}, {each.end}), {each.end - each.begin} bytes: {each.why}"
        line += f"; SHA-1 of its fragment {each.sum}" if each.sum else ""
        lines.append(line + (f"; its fragment began at {when}" if when else ""))
    lines += [f"kept aside: {each}" for each in loss.kept_aside]
    if loss.are_registers_lost:
        lines.append("its registers are lost: they begin anew, empty")
    lines.append(f"appends go on at {loss.head}")
    if not loss.is_done:
        lines.append("nothing was changed: --yes accepts this loss")
    print_result(loss, is_json, "\n".join(lines))
    if not loss.is_done:
        raise typer.Exit(EXIT_DRY_RUN)


def _opened(path: Path, mode: str) -> BinaryIO:
    """Open a file that the user named.

    Raises:
        BadParameter: it cannot be opened.
    """
    try:
        return cast(BinaryIO, path.open(mode))
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}") from None
