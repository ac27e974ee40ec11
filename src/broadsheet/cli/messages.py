"""Messages: `broadsheet messages`, which publishes messages, each once, and reads those that are committed.

Messages go to standard output, one a line. Source: `docs/concepts/publishers-and-readers.md`.
"""

import base64
from contextlib import aclosing
from typing import Annotated, Any, Final

import msgspec
import typer

from broadsheet.base.time import SECOND
from broadsheet.cli.append import telling
from broadsheet.cli.calling import call_node
from broadsheet.cli.follow import EARLIEST, start_of
from broadsheet.cli.options import DEFAULT_ADDRESS, Address, AsJSON, Name, time_of
from broadsheet.cli.publish import Published, publish_lines
from broadsheet.cli.starting import Last, Since, is_since, messages_before_end, require_one
from broadsheet.cli.streams import (
    STANDARD_INPUT_DESCRIPTOR,
    STANDARD_OUTPUT_DESCRIPTOR,
    Input,
    write,
)
from broadsheet.client import Client
from broadsheet.config import duration_of
from broadsheet.consume.message import Message
from broadsheet.errors import InvalidArgument
from broadsheet.message.framing import Kind
from broadsheet.message.position import Position, positions_from_text
from broadsheet.message.uuid import NO_ID

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Messages in journals: each once, committed ones only."
)

Patience = Annotated[str, typer.Option(help="How long the node may be away, as in `10m`.")]
_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any: Final = msgspec.json.Decoder(msgspec.Raw)


@app.command()
def read(
    name: Name,
    *,
    address: Address = DEFAULT_ADDRESS,
    start: Annotated[
        str | None,
        typer.Option(
            help="earliest (the default), latest, an offset, or a `position` that --json printed: the one"
            " behind it."
        ),
    ] = None,
    last: Last = None,
    since: Since = None,
    committed: Annotated[
        bool,
        typer.Option(
            "--committed/--uncommitted",
            help="Each once, when it is committed; or everything, also what is pending or rolled back.",
        ),
    ] = True,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more at the end, until Ctrl-C.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many messages.")] = None,
    patience: Patience = "10m",
    json: Annotated[
        bool, typer.Option("--json", help="Print an object for each message, with its position and UUID.")
    ] = False,
) -> None:
    """Print messages, one a line, without their UUIDs; with -n the last ones, with --since younger ones."""
    require_one(start=start is not None, last=last is not None, since=since is not None)
    begin, seconds = (
        _start(name, EARLIEST if start is None else start),
        duration_of(patience, "--patience") / SECOND,
    )
    when = None if since is None else time_of(since, "--since")

    async def work(client: Client) -> None:
        nonlocal begin
        skip = 0
        if last is not None:
            begin, skip = await messages_before_end(client, name, last, is_committed=committed)
        elif when is not None:
            begin = await client.journals.offset_at(name, when)
        reader = client.messages(name, begin, is_committed=committed, block=follow, patience=seconds)
        left = limit
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                left_out, skip = min(skip, len(batch)), max(0, skip - len(batch))
                found = [each for each in batch[left_out:] if when is None or is_since(each, when)]
                chosen = found[:left]
                lines = [_object_of(each) if json else _line_of(each) for each in chosen]
                await write(STANDARD_OUTPUT_DESCRIPTOR, b"".join([line + b"\n" for line in lines]))
                if left is not None:
                    left -= len(chosen)
                    if not left:
                        return

    call_node(address, work)


@app.command()
def publish(
    names: Annotated[list[str], typer.Argument(help="The journal; or several, of which --key chooses.")],
    *,
    address: Address = DEFAULT_ADDRESS,
    key: Annotated[
        str | None,
        typer.Option(
            help="The field that chooses the journal, as in `customer.id`: equal values, one journal."
        ),
    ] = None,
    skip_lines: Annotated[
        int, typer.Option(min=0, help="Leave out the first lines, which an earlier call published.")
    ] = 0,
    patience: Patience = "2m",
    json: AsJSON = False,
) -> None:
    """Publish each line of standard input, a JSON object, as one message that readers see once.

    A lost answer or a restart of the node doubles nothing. After a failure the command says how many lines
    are published, and how to go on.
    """
    if (len(names) > 1) != (key is not None):
        raise typer.BadParameter("--key chooses among several journals: name several with it, one without")
    if len(set(names)) < len(names):
        raise typer.BadParameter("a journal is named twice")
    seconds = duration_of(patience, "--patience") / SECOND
    done = Published(names, skip_lines)

    async def work(client: Client) -> None:
        with telling(done):
            source = Input(STANDARD_INPUT_DESCRIPTOR)
            await publish_lines(client, names, source, done, key=key, patience=seconds)

    call_node(address, work)
    if json:
        print(msgspec.json.encode({"published": done.by_journal}).decode())
    else:
        print("\n".join(f"{name}: {count} messages" for name, count in done.by_journal.items()))


def _start(name: str, text: str) -> str | int | Position:
    if not text.startswith("{"):
        return start_of(text, "--start")
    try:
        return positions_from_text(msgspec.json.encode({name: msgspec.Raw(text.encode())}).decode())[name]
    except InvalidArgument as error:
        raise typer.BadParameter(f"--start: {error}") from error


def _line_of(message: Message) -> bytes:
    """A message for people and pipes: its JSON without the UUID, or its bytes where they are no JSON."""
    return message.value if (value := _json_of(message)) is None else bytes(value)


def _object_of(message: Message) -> bytes:
    value = _json_of(message)
    told: dict[str, Any] = {
        "journal": message.journal,
        "offset": message.offset,
        "end": message.end,
        "uuid": message.uuid,
        "position": message.position._asdict(),
    }
    return msgspec.json.encode(
        told | ({"base64": base64.b64encode(message.value).decode()} if value is None else {"value": value})
    )


def _json_of(message: Message) -> msgspec.Raw | None:
    """The value of a JSON line as it stands there, without the field of the UUID; None if it is no JSON."""
    if message.framing.kind is not Kind.JSON_LINES:
        return None
    try:
        message.value.decode()
        if message.id == NO_ID:
            return _any.decode(message.value)
        fields = _object.decode(message.value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    fields.pop(message.framing.uuid_field.split(".")[0], None)
    return msgspec.Raw(msgspec.json.encode(fields))
