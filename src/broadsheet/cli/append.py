"""Append: `broadsheet journals append`, which appends input of any size in pieces.

Each piece is an append of its own, of up to `PIECE_BYTES`, and ends at a line end if it contains one. If a
pipe is silent for `IDLE_SECONDS`, the whole lines received so far are appended. If a pipe is never silent,
they are appended after `LINGER_SECONDS`. Lengths and offsets are bytes. No state outlives a call: its error
says how many bytes are in the journal and how many may be, and a second call with `--skip-bytes` goes on from
there. If the node has not answered for `WAITING_SECONDS`, a line on standard error says what is waited for,
and until when.
"""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import typer

from broadsheet.cli.streams import PIECE_BYTES, Input
from broadsheet.client import Client
from broadsheet.errors import BroadsheetError, Unknown, WrongAppendOffset
from broadsheet.journal.client import INLINE_BYTES_MAX

LINES_MAX: Final = 10_000
"""How many lines are sent together. Each of them is still an append of its own."""
LINE_BYTES_MAX: Final = 16 << 20
IDLE_SECONDS: Final = 0.2
"""After this silence of the input the whole lines received so far are appended."""
LINGER_SECONDS: Final = 1.0
"""The longest time that a whole line waits for more lines to be appended with it."""
PIECE_SECONDS: Final = 120.0
"""How long the append of one piece is tried."""
WHOLE_SECONDS: Final = 3600.0
"""How long an append with `--atomic` is tried."""
WAITING_SECONDS: Final = 3.0
"""After this silence of the node the command says that it waits, and until when."""

EXIT_TERMINATED: Final = 128 + signal.SIGTERM
"""The exit status that a shell shows for a process ended by SIGTERM."""

Advance = Callable[[int], None]


class Progress(Protocol):
    """How much of an input is done."""

    count: int
    in_flight: int

    def report(self) -> str:
        """What is done, what may be, and the options to go on with."""


class Appended:
    """How much of the input is in the journal, and with which options another call would go on."""

    def __init__(self, name: str, *, offset: int | None, skipped: int, advance: Advance) -> None:
        self.begin = self.end = 0
        self.count = 0
        self.in_flight = 0
        """Bytes of the input that were sent and are not answered."""
        self.advance = advance
        """Called with the number of bytes that were appended."""
        self._name, self._skipped, self._offset = name, skipped, offset
        self._length = self._line_count = 0

    @property
    def offset(self) -> int | None:
        """The offset at which the next piece must begin; None for the journal's head."""
        return self._offset

    def add(self, begin: int, end: int, *, count: int, length: int, line_count: int) -> None:
        """Note that `count` appends of `length` input bytes got the span `[begin, end)`."""
        self.begin = self.begin if self.count else begin
        self.end, self.count, self.in_flight = end, self.count + count, 0
        self._length, self._line_count = self._length + length, self._line_count + line_count
        if self._offset is not None:
            self._offset = end
        self.advance(length)

    def report(self) -> str:
        """The bytes that are in the journal, those that may be, and the options to go on with."""
        report = f"{self._told()}; go on with {self._options(0)}"
        if not self.in_flight:
            return report
        return (
            f"{report} if the next {self.in_flight} bytes of the input are not in the journal, and"
            f" with {self._options(self.in_flight)} if they are: {self._looked_at()}"
        )

    def explain(self, error: BroadsheetError) -> BroadsheetError:
        """`error` with a report of how to go on; as it is, if the same command can simply be repeated."""
        if not isinstance(error, Unknown):
            self.in_flight = 0
        if isinstance(error, WrongAppendOffset):
            look = f"`broadsheet journals read {self._name} --offset {self._offset}`"
            skip = self._skipped + self._length
            return type(error)(
                f"{error}; {self._told()}; with a head below {self._offset} nothing stands there; with a head"
                f" above, {look} shows what does: to go on behind it, give its end as --offset"
                + (f", and --skip-bytes {skip}" if skip else "")
            )
        if not (self.count or self.in_flight):
            return error
        return type(error)(f"{error}; {self.report()}")

    def _looked_at(self) -> str:
        """The command that shows whether the unanswered bytes are in the journal."""
        read = f"`broadsheet journals read {self._name} --offset"
        begin = self.end if self.count else self._offset
        if begin is not None:
            return f"{read} {begin}` shows them"
        status = f"`broadsheet journals status {self._name}`"
        return f"they would be the last before the end that {status} tells, and {read} OFFSET` shows them"

    def _told(self) -> str:
        where = f", up to offset {self.end}" if self.count else ""
        return f"{self._length} bytes of the input ({self._line_count} lines) are in {self._name}{where}"

    def _options(self, more: int) -> str:
        at = "" if self._offset is None else f" --offset {self._offset + more}"
        return f"--skip-bytes {self._skipped + self._length + more}{at}"


class Waiting:
    """Says on standard error that the node's answer is waited for, once for each append.

    A node that restarts or hangs takes minutes. Until then a user could not tell a slow node from a command
    that waits for input.
    """

    def __init__(self, name: str, seconds: float) -> None:
        """Wait for the append to journal `name`, which is given up after `seconds`."""
        self._name, self._seconds = name, seconds
        self._since = time.time()
        self._timer: asyncio.TimerHandle | None = None
        self._is_told = False

    def begin(self, length: int) -> None:
        """The node has `length` bytes to answer for, or to take."""
        self.end()
        if not self._is_told:
            self._timer = asyncio.get_running_loop().call_later(WAITING_SECONDS, self._tell, length)

    def end(self) -> None:
        """It has; the input may be waited for."""
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self, length: int) -> None:
        self._is_told = True
        until = time.strftime("%H:%M:%S", time.localtime(self._since + self._seconds))
        print(
            f"broadsheet: no commit for {WAITING_SECONDS:g} s of {length} bytes for {self._name}: the node"
            f" may be busy, full, starting or gone (`broadsheet status`); waiting until {until}, and saying"
            " then how to go on",
            file=sys.stderr,
        )


@contextmanager
def waiting(name: str, length: int, seconds: float) -> Iterator[None]:
    """Wait for one answer of the node, as `Waiting` does."""
    answer = Waiting(name, seconds)
    answer.begin(length)
    try:
        yield
    finally:
        answer.end()


async def append_pieces(client: Client, name: str, source: Input, appended: Appended, rest: bytes) -> None:
    """Append the input piece by piece. `rest` was read from it already.

    Raises:
        BroadsheetError: an append failed; the text says how much is in the journal, and how to go on.
    """
    buffer = bytearray(rest)
    is_end = False
    clock = asyncio.get_running_loop().time
    since: float | None = None  # When the oldest whole line in the buffer came.
    while not is_end:
        if b"\n" not in buffer:
            since = None
        elif since is None:
            since = clock()
        found = None
        if since is None or clock() < since + LINGER_SECONDS:
            found = await source.read(within=None if since is None else IDLE_SECONDS)
        if found is None:
            since = None
            await _append_piece(client, name, appended, _cut(buffer, buffer.rfind(b"\n") + 1))
            continue
        buffer += found
        is_end = not found
        while len(buffer) >= PIECE_BYTES or (is_end and buffer):
            line_end = buffer.rfind(b"\n", 0, PIECE_BYTES) + 1
            is_last = is_end and len(buffer) <= PIECE_BYTES
            await _append_piece(client, name, appended, _cut(buffer, 0 if is_last else line_end))
            since = None
    if not appended.count:
        await _append_piece(client, name, appended, b"")  # An empty append returns the journal's end.


def _cut(buffer: bytearray, at: int) -> bytes:
    """Take `[0, at)` out of `buffer`; if `at` is 0, take up to a piece."""
    piece = bytes(buffer[: at or PIECE_BYTES])
    del buffer[: len(piece)]
    return piece


async def _append_piece(client: Client, name: str, appended: Appended, piece: bytes) -> None:
    appended.in_flight = len(piece)
    try:
        with waiting(name, len(piece), PIECE_SECONDS):
            commit = await client.journals.append(name, piece, offset=appended.offset, timeout=PIECE_SECONDS)
    except BroadsheetError as error:
        raise appended.explain(error) from error
    appended.add(commit.begin, commit.end, count=1, length=len(piece), line_count=piece.count(b"\n"))


async def append_lines(client: Client, name: str, source: Input, appended: Appended, rest: bytes) -> None:
    """Append the input line by line, as lines come. `rest` was read from it already.

    Raises:
        BadParameter: a line is too long.
        BroadsheetError: an append failed; the text says how much is in the journal, and how to go on.
    """
    is_end = False
    while not is_end:
        found = await source.read() or b""
        is_end = not found
        *whole, rest = (rest + found).split(b"\n")
        lines = [line + b"\n" for line in whole]
        if is_end and rest:
            lines.append(rest)
        for group in _groups(lines):
            await _append_group(client, name, appended, group)
        if len(rest) > LINE_BYTES_MAX:
            raise typer.BadParameter(
                f"line {appended.count + 1} is above {LINE_BYTES_MAX} bytes: append it as a file;"
                f" {appended.report()}"
            )


async def _append_group(client: Client, name: str, appended: Appended, group: Sequence[bytes]) -> None:
    appended.in_flight = length = sum(map(len, group))
    try:
        with waiting(name, length, PIECE_SECONDS):
            if len(group[0]) > INLINE_BYTES_MAX:
                commits = [await client.journals.append(name, group[0], timeout=PIECE_SECONDS)]
            else:
                commits = [*await client.journals.append_many(name, group, timeout=PIECE_SECONDS)]
    except BroadsheetError as error:
        raise appended.explain(error) from error
    appended.add(commits[0].begin, commits[-1].end, count=len(group), length=length, line_count=len(group))


def _groups(lines: Iterable[bytes]) -> Iterable[Sequence[bytes]]:
    """Groups of lines that fit into one frame, which the node takes whole or not at all.

    A line that is too long for that is a group of its own.
    """
    group: list[bytes] = []
    size = 0
    for line in lines:
        is_long = len(line) > INLINE_BYTES_MAX
        if group and (is_long or size + len(line) > PIECE_BYTES or len(group) >= LINES_MAX):
            yield group
            group, size = [], 0
        if is_long:
            yield [line]
            continue
        group.append(line)
        size += len(line)
    if group:
        yield group


async def append_whole(client: Client, name: str, source: Input, appended: Appended, rest: bytes) -> None:
    """Append the whole input as one append.

    Raises:
        Refused: nothing was appended. Unknown: all of it may be in the journal.
    """
    answer = Waiting(name, WHOLE_SECONDS)

    async def pieces() -> AsyncIterator[bytes]:
        sent = 0
        found: bytes | None = rest or await source.read()
        while found:
            answer.begin(len(found))
            yield found
            answer.end()
            appended.advance(len(found))
            sent += len(found)
            found = await source.read()
        appended.in_flight = sent  # Until the end is sent, the node certainly appends nothing.
        answer.begin(sent)

    try:
        commit = await client.journals.append(name, pieces(), offset=appended.offset, timeout=WHOLE_SECONDS)
    finally:
        answer.end()
    appended.add(commit.begin, commit.end, count=1, length=0, line_count=0)


@contextmanager
def telling(progress: Progress) -> Iterator[None]:
    """If Ctrl-C or SIGTERM ends the work, print how much of the input is done, and how much may be."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    is_terminated = False

    def terminate() -> None:
        nonlocal is_terminated
        is_terminated = True
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        yield
    except asyncio.CancelledError:
        if progress.count or progress.in_flight:
            print(f"broadsheet: {progress.report()}", file=sys.stderr)
        if is_terminated:
            raise typer.Exit(EXIT_TERMINATED) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
