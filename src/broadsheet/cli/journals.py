"""`broadsheet journals`: make, list, fill, read and delete journals of a node.

Progress goes to standard error, and only where that is a terminal; content and JSON go to standard output.
The token comes from the environment, never from a flag (access.5).
"""

import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Self, cast

import msgspec
import typer

from broadsheet.cli.append import Appended, Input, append_lines, append_pieces, append_whole, telling
from broadsheet.cli.calling import TOKEN_VARIABLE
from broadsheet.client import Client, connect
from broadsheet.errors import Unreachable
from broadsheet.journal.messages import LossReply
from broadsheet.runtime.loop import run

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Journals: append-only byte sequences.")

STANDARD_INPUT: Final = Path("-")
STANDARD_INPUT_DESCRIPTOR: Final = 0

Address = Annotated[str, typer.Option(envvar="BROADSHEET_ADDRESS", help="The node's native door, host:port.")]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Name = Annotated[str, typer.Argument(help="The journal.")]
DEFAULT_ADDRESS: Final = "127.0.0.1:6640"
EXIT_DRY_RUN: Final = 4
"""Nothing was changed, because nobody said `--yes`."""


@app.command()
def create(
    name: Name,
    *,
    address: Address = DEFAULT_ADDRESS,
    fragment_length: Annotated[
        int | None, typer.Option(help="Bytes after which a fragment is closed (64 MiB).")
    ] = None,
    codec: Annotated[str | None, typer.Option(help="none, gzip, zstandard or snappy.")] = None,
    store: Annotated[str | None, typer.Option(help="URL of the fragment store; the node's own.")] = None,
    flush_interval: Annotated[
        float | None, typer.Option(help="Seconds; a fragment is closed at its multiples too.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; may be repeated.")] = None,
    if_absent: Annotated[bool, typer.Option(help="Succeed where it exists.")] = False,
    json: AsJSON = False,
) -> None:
    """Make a journal."""
    labels = dict(_label(text) for text in label or [])

    async def work(client: Client) -> None:
        info = await client.journals.create(
            name,
            fragment_length=fragment_length,
            codec=codec,
            store=store,
            flush_interval=flush_interval,
            labels=labels,
            if_absent=if_absent,
        )
        _print(info, json, f"{info.name}: created at revision {info.create_revision}")

    _run(address, work)


@app.command("list")
def list_(
    prefix: Annotated[str, typer.Argument(help="Only names that begin so.")] = "",
    *,
    selector: Annotated[
        str, typer.Option(help="Only with these labels: `topic=clicks,env in (eu, us),!draft`.")
    ] = "",
    address: Address = DEFAULT_ADDRESS,
    json: AsJSON = False,
) -> None:
    """List journals, by name."""

    async def work(client: Client) -> None:
        infos = await client.journals.list(prefix, selector=selector)
        _print({"journals": infos}, json, "\n".join(info.name for info in infos))

    _run(address, work)


@app.command()
def status(name: Name, *, address: Address = DEFAULT_ADDRESS, json: AsJSON = False) -> None:
    """Show where a journal stands."""

    async def work(client: Client) -> None:
        found = await client.journals.status(name)
        told = {field: value for field, value in msgspec.structs.asdict(found).items() if value is not None}
        lines = [f"{field}: {value}" for field, value in told.items() if value != ""]
        _print(found, json, "\n".join(lines))

    _run(address, work)


@app.command()
def append(
    name: Name,
    file: Annotated[
        Path | None, typer.Argument(help="The content; - or none: standard input.", dir_okay=False)
    ] = None,
    *,
    address: Address = DEFAULT_ADDRESS,
    offset: Annotated[int | None, typer.Option(min=0, help="Append exactly here, or not at all.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Append each line by itself, as it comes.")] = False,
    atomic: Annotated[
        bool, typer.Option("--atomic", help="All of it as one append, or nothing; up to 256 MiB.")
    ] = False,
    skip_bytes: Annotated[
        int, typer.Option(min=0, help="Leave out so much of the input: where an earlier call ended.")
    ] = 0,
    json: AsJSON = False,
) -> None:
    """Append a file or standard input, of any size, as it comes.

    Up to 1 MiB is one append. More is appended in pieces, which end at line ends where there are such; after
    a failure it says how much is in, and how to go on.
    """
    if lines and offset is not None:
        raise typer.BadParameter("--lines makes many appends, and --offset is for one")
    if lines and atomic:
        raise typer.BadParameter("--lines makes many appends, and --atomic one")
    is_standard = file is None or file == STANDARD_INPUT
    append_all = append_lines if lines else append_whole if atomic else append_pieces

    async def work(client: Client) -> None:
        total = None if file is None or is_standard else max(0, file.stat().st_size - skip_bytes)
        opened = nullcontext() if file is None or is_standard else _opened(file, "rb")
        with opened as content, _Progress(f"append {name}", total) as progress:
            source = Input(STANDARD_INPUT_DESCRIPTOR if content is None else content.fileno())
            done = Appended(name, offset=offset, skipped=skip_bytes, advance=progress.advance)
            with telling(done):
                await append_all(client, name, source, done, await source.skip(skip_bytes))
        told = {"journal": name, "begin": done.begin, "end": done.end, "appends": done.count}
        plural = "s" if done.count != 1 else ""
        _print(told, json, f"{name}: [{done.begin}, {done.end}) in {done.count} append{plural}")

    _run(address, work)


@app.command()
def read(
    name: Name,
    *,
    address: Address = DEFAULT_ADDRESS,
    offset: Annotated[int, typer.Option(min=-1, help="From here on; -1: from the committed end on.")] = 0,
    end: Annotated[int | None, typer.Option(min=0, help="Up to here.")] = None,
    block: Annotated[bool, typer.Option("--block", help="Wait for more.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write there; standard output.", dir_okay=False)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was read; needs --output.")] = False,
) -> None:
    """Read committed bytes."""
    if json and output is None:
        raise typer.BadParameter("--json prints what was read: the content needs --output then")

    async def work(client: Client) -> None:
        first = at = offset if offset >= 0 else await client.journals.end(name)
        if end is not None and end < first:
            raise typer.BadParameter(f"--end {end} is below the offset {first}")
        total = None
        if output is not None and not block:
            total = (end if end is not None else await client.journals.end(name)) - first
        sink = None if output is not None else sys.stdout.buffer
        with _Progress(f"read {name}", total) if output is not None else _Progress("", 0) as progress:
            async for chunk in client.journals.read(name, first, end=end, block=block):
                # Not before: a file that is there already outlives a read that is refused.
                sink = sink or _opened(cast(Path, output), "wb")
                sink.write(chunk.data)
                if block:
                    sink.flush()
                progress.advance(len(chunk.data))
                at = chunk.end
        sink = sink or _opened(cast(Path, output), "wb")
        sink.flush()
        if output is not None:
            sink.close()
            told = {"journal": name, "begin": first, "end": at}
            _print(told, json, f"{name}: [{first}, {at}) to {output}")

    _run(address, work)


@app.command()
def delete(
    name: Name,
    *,
    address: Address = DEFAULT_ADDRESS,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: AsJSON = False,
) -> None:
    """Delete a journal with all that it holds."""
    if not yes:
        typer.confirm(f"Delete journal {name} and everything in it?", abort=True, err=True)

    async def work(client: Client) -> None:
        await client.journals.delete(name)
        _print({"journal": name, "deleted": True}, json, f"{name}: deleted")

    _run(address, work)


Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this nothing changes.")]
Head = Annotated[int | None, typer.Option(min=0, help="Appends go on here; the lowest safe offset.")]
DRY_RUN: Final = "Without --yes it shows what is lost, changes nothing, and ends with the exit status 4."
WAYS_OUT: Final = (
    ("reset-head", "Have a journal go on above an offset that is known and that its log does not reach."),
    (
        "accept-loss",
        "Have a journal go on without the bytes that are damaged or missing. No file is deleted.",
    ),
)


def _way_out(command: str, what: str) -> None:
    """Make the command: both ask and tell alike."""

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

    _run(address, ask)
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
    _print(loss, is_json, "\n".join(lines))
    if not loss.is_done:
        raise typer.Exit(EXIT_DRY_RUN)


def _opened(path: Path, mode: str) -> BinaryIO:
    """The file.

    Raises:
        BadParameter: it cannot be opened so.
    """
    try:
        return cast(BinaryIO, path.open(mode))
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}") from None


class _Progress:
    """A bar on standard error, where that is a terminal."""

    def __init__(self, title: str, total_bytes: int | None) -> None:
        self._title, self._total = title, total_bytes
        self._bar: Any = None
        self._task: Any = None

    def advance(self, count: int) -> None:
        """`count` more bytes are done."""
        if self._bar is not None:
            self._bar.advance(self._task, count)

    def __enter__(self) -> Self:
        if self._title and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _label(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"label {text!r} is not NAME=VALUE")
    return name, value


def _print(what: object, is_json: bool, text: str) -> None:
    if is_json:
        print(msgspec.json.encode(what).decode())
    elif text:
        print(text)


def _run(address: str, work: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with connect(address, os.environ.get(TOKEN_VARIABLE)) as client:
            await work(client)

    try:
        run(main())
    except Unreachable as error:
        raise Unreachable(
            f"{error}; `broadsheet status` tells where your nodes listen: --address or BROADSHEET_ADDRESS "
            "names one, `broadsheet up` starts one"
        ) from error
