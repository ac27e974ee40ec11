"""Logs: structured logs, as one JSON object per line, or as readable lines on a terminal.

Event names are `noun.verb` (`node.ready`), keys are the words of the glossary. The timestamp is the node's
own wall clock, so that the logs of a simulation show simulated time and diff cleanly. Nothing here is global:
a node makes its `Logs` and hands them on. Machines do not log; their hosts do. Keys that hold secrets are not
printed. A line that the system refuses is dropped: a node does not end because its log cannot be written.
"""

import datetime as dt
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from enum import IntEnum
from io import RawIOBase
from typing import Any, Final, TextIO

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger

from broadsheet.base.time import MICROSECOND, SECOND, WallTime

Logger = FilteringBoundLogger
"""What a host or service writes to: `logger.info("journal.created", journal=name)`."""

SECRET_KEYS: Final = ("token", "secret", "password", "authorization")


class Level(IntEnum):
    """The severity of a line; a log writes lines of its level and above."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50


class Logs:
    """The logs of one node."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        wall: Callable[[], WallTime],
        level: Level = Level.INFO,
        is_console: bool | None = None,
        **bound: object,
    ) -> None:
        """Write log lines to `stream`, standard output where it is None.

        Args:
            is_console: readable lines instead of JSON; None asks whether the stream is a terminal.
            bound: keys on every line, such as the node's id.
        """
        stream = sys.stdout if stream is None else stream
        is_console = stream.isatty() if is_console is None else is_console
        render = structlog.dev.ConsoleRenderer() if is_console else structlog.processors.JSONRenderer(_json)
        logger: Logger = structlog.wrap_logger(
            _Lines(stream),
            processors=[
                structlog.processors.add_log_level,
                _Stamp(wall),
                _hide_secrets,
                structlog.processors.format_exc_info,
                render,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(level),
        )
        self._root: Logger = logger.bind(**bound)

    def of(self, part: str) -> Logger:
        """The logger of one part of the node."""
        logger: Logger = self._root.bind(part=part)
        return logger


class _Lines:
    """Writes log lines to a stream, and drops those that the stream refuses.

    A disk is full, or the reader of a pipe is gone: neither is a reason to end a node, or to keep one from
    its start. A line goes past the buffer of the stream, whose rest would be refused once more at the exit.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._raw: RawIOBase | None = getattr(getattr(stream, "buffer", None), "raw", None)
        self._is_torn = False

    def write(self, line: str) -> None:
        """Write one log line, or a part of it, or nothing."""
        with suppress(OSError, ValueError):  # ValueError: the stream is closed.
            if self._raw is None:
                print(line, file=self._stream, flush=True)
                return
            content = f"{line}\n".encode(errors="backslashreplace")
            if self._is_torn:
                content = b"\n" + content  # The last line was written in part: this one begins a new one.
            written = self._raw.write(content) or 0
            self._is_torn = written < len(content) if written else self._is_torn

    debug = info = warning = error = critical = write


class _Stamp:
    """Adds the time to a log line, in UTC with microseconds."""

    def __init__(self, wall: Callable[[], WallTime]) -> None:
        self._wall = wall

    def __call__(
        self, _logger: object, _method: str, line: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        wall = self._wall()
        at = dt.datetime.fromtimestamp(wall // SECOND, dt.UTC)
        at += dt.timedelta(microseconds=wall % SECOND // MICROSECOND)
        line["timestamp"] = at.isoformat(timespec="microseconds").replace("+00:00", "Z")
        return line


def _hide_secrets(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key in SECRET_KEYS:
        if key in line:
            line[key] = "(hidden)"
    return line


def _json(line: object, **_options: object) -> str:
    return msgspec.json.encode(line, enc_hook=repr).decode()
