"""Publish: `broadsheet messages publish`, which publishes the lines of standard input, each once.

The command reads a portion of the input, publishes its lines, to each journal in their order, and reads the
next portion when these are durable. No state outlives a call: its error says how many lines are published
for certain, and a second call with `--skip-lines` goes on behind them. Units: lines, bytes, seconds.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import typer

from broadsheet.cli.append import waiting
from broadsheet.cli.streams import Input
from broadsheet.client import Client
from broadsheet.errors import BroadsheetError, InvalidArgument, Unknown
from broadsheet.journal.core.spec import framing_of
from broadsheet.message.framing import FRAME_BYTES_MAX, JSON_LINES, Framing, Kind, framed
from broadsheet.message.uuid import UUID_BYTES
from broadsheet.publish.arguments import chosen
from broadsheet.publish.publisher import MessagePublisher

Object = dict[str, msgspec.Raw]
_object: Final = msgspec.json.Decoder(Object)
_value: Final = msgspec.json.Decoder()
NO_UUID: Final = bytes(UUID_BYTES)


class BadLine(Exception):  # noqa: N818 - told as a parameter, with the line's number.
    """A line that cannot be a message; the text says why."""


class Published:
    """How many lines are published, and how another call would go on."""

    def __init__(self, names: Sequence[str], skipped: int) -> None:
        self.by_journal = dict.fromkeys(names, 0)
        self.count = skipped
        """Lines that are done with, skipped and blank ones included."""
        self.in_flight = 0
        """Lines that were sent and are not answered."""

    def report(self) -> str:
        """The lines that are published, those that may be, and the option to go on with."""
        done = f"{sum(self.by_journal.values())} messages are published: go on with --skip-lines {self.count}"
        if not self.in_flight:
            return done
        looked = ", ".join(f"`broadsheet messages read {name}`" for name in self.by_journal)
        return (
            f"{done} if none of the next {self.in_flight} lines is there; some may be, of each journal the"
            f" first ones: {looked} shows them"
        )


class LinePublisher:
    """Publishes lines to one journal, or to the one of several that a field of each line chooses."""

    def __init__(
        self,
        publisher: MessagePublisher,
        framings: Mapping[str, Framing],
        *,
        key: str | None,
        patience: float,
        done: Published,
    ) -> None:
        """Publish with `publisher`.

        Args:
            framings: of each journal.
            key: the field of a line that chooses its journal, names separated by dots.
            patience: the seconds for which `publisher` tries.
        """
        self._publisher, self._framings, self._key = publisher, framings, key
        self._patience, self._done = patience, done

    async def publish(self, lines: Sequence[bytes]) -> None:
        """Publish `lines`, those before the first bad one if there is one.

        Raises:
            BadParameter: a line cannot be a message. BroadsheetError: some lines may not be published. Either
                text says how to go on.
        """
        by_journal: dict[str, list[bytes]] = {}
        taken, bad = 0, ""
        for line in lines:
            try:
                if line.strip():
                    by_journal.setdefault(self._checked(line), []).append(line)
            except (BadLine, InvalidArgument) as error:
                bad = str(error)
                break
            taken += 1
        await self._publish(by_journal, taken)
        if bad:
            raise typer.BadParameter(f"line {self._done.count + 1}: {bad}; {self._done.report()}")

    async def _publish(self, by_journal: Mapping[str, Sequence[bytes]], taken: int) -> None:
        self._done.in_flight = taken
        size = sum(len(line) for lines in by_journal.values() for line in lines)
        with waiting(", ".join(by_journal), size, self._patience):
            outcomes = await asyncio.gather(
                *(self._publisher.publish_many(name, lines) for name, lines in by_journal.items()),
                return_exceptions=True,
            )
        failed = [error for error in outcomes if isinstance(error, BaseException)]
        if not failed:
            self._done.count, self._done.in_flight = self._done.count + taken, 0
            for name, lines in by_journal.items():
                self._done.by_journal[name] += len(lines)
            return
        for error in failed:
            if not isinstance(error, BroadsheetError):
                raise error
        error = next((each for each in failed if isinstance(each, Unknown)), failed[0])
        raise type(error)(f"{error}; {self._done.report()}") from error

    def _checked(self, line: bytes) -> str:
        """The journal of a line that can be a message of it.

        Raises:
            BadLine, InvalidArgument: it cannot.
        """
        names = [*self._framings]
        if self._key is not None:
            name = chosen(names, _key(_fields(line), self._key))
        else:
            (name,) = names
            if self._framings[name].kind is Kind.JSON_LINES:
                _fields(line)
        framed(self._framings[name], NO_UUID, line)
        return name


def _fields(line: bytes) -> Object:
    try:
        line.decode()
        return _object.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLine(f"{line[:40]!r} is no JSON object: {error}") from error


def _key(fields: Object, path: str) -> str:
    """The text at `path`; a number or a boolean as it stands there."""
    *outer, last = path.split(".")
    try:
        for name in outer:
            fields = _object.decode(fields[name])
        raw = fields[last]
    except (KeyError, msgspec.DecodeError):
        raise BadLine(f"there is no field {path}, which --key names") from None
    found = _value.decode(raw)
    if isinstance(found, str):
        return found
    if isinstance(found, int | float):
        return bytes(raw).decode()
    raise BadLine(
        f"field {path}, which --key names, is {bytes(raw)[:40].decode()}: no text, number or boolean"
    )


async def publish_lines(
    client: Client, names: Sequence[str], source: Input, done: Published, *, key: str | None, patience: float
) -> None:
    """Publish the lines of `source` behind the first `done.count`, as they come.

    Args:
        patience: seconds for which the node may be away.

    Raises:
        BadParameter, BroadsheetError: as `LinePublisher.publish`.
    """
    infos = [await client.journals.get(name, timeout=patience) for name in names]
    framings: dict[str, Framing] = {info.name: framing_of(info.spec) or JSON_LINES for info in infos}
    skip, rest, is_end = done.count, bytearray(), False
    async with client.publisher(patience=patience) as publisher:
        lines_to = LinePublisher(publisher, framings, key=key, patience=patience, done=done)
        while not is_end:
            found = await source.read() or b""
            is_end = not found
            rest += found
            at = len(rest) if is_end else rest.rfind(b"\n", len(rest) - len(found)) + 1
            lines = bytes(rest[:at]).split(b"\n")
            if not lines[-1]:
                lines.pop()  # Nothing stands behind the last line end.
            del rest[:at]
            if skip:
                skip, lines = skip - min(skip, len(lines)), lines[skip:]
            if lines:
                await lines_to.publish(lines)
            if len(rest) > FRAME_BYTES_MAX:
                raise typer.BadParameter(
                    f"line {done.count + 1} is above {FRAME_BYTES_MAX} bytes; {done.report()}"
                )
    if skip:
        raise typer.BadParameter(f"--skip-lines {done.count}: the input has {done.count - skip} lines")
