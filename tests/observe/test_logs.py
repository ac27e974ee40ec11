"""Logs are one object a line, at the node's own time, without secrets."""

import errno
import io
import json
from typing import Any

from broadsheet.base.time import WallTime
from broadsheet.observe.logs import Level, Logs


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_the_given_clock() -> None:
    """In a simulation the time is simulated, so that two runs of a seed log the same bytes (code.18)."""
    stream = io.StringIO()
    logs = Logs(stream, wall=lambda: WallTime(1_500_000_000_123_456_789), node="n1")

    logs.of("journals").info("journal.created", journal="a/b", offset=7)

    assert lines(stream) == [
        {
            "event": "journal.created",
            "journal": "a/b",
            "level": "info",
            "node": "n1",
            "offset": 7,
            "part": "journals",
            "timestamp": "2017-07-14T02:40:00.123456Z",
        }
    ]


def test_what_is_below_the_level_is_not_written() -> None:
    """A refusal per request at DEBUG must cost nothing where nobody reads it."""
    stream = io.StringIO()
    logger = Logs(stream, wall=lambda: WallTime(0), level=Level.WARNING).of("wire")

    logger.info("peer.greeted")
    logger.warning("peer.refused")

    assert [line["event"] for line in lines(stream)] == ["peer.refused"]


def test_secrets_are_hidden() -> None:
    """A token in a log is a token in a ticket."""
    stream = io.StringIO()

    Logs(stream, wall=lambda: WallTime(0)).of("access").info("token.refused", token="eyJhbGc")

    assert "eyJhbGc" not in stream.getvalue()


def test_a_newline_in_a_value_does_not_start_a_line() -> None:
    """Whoever chooses a journal's name must not be able to forge log lines."""
    stream = io.StringIO()

    Logs(stream, wall=lambda: WallTime(0)).of("x").info("journal.refused", journal='a\n{"event":"fake"}')

    assert len(stream.getvalue().splitlines()) == 1


def test_a_terminal_gets_readable_lines() -> None:
    """People read words, machines read objects."""
    stream = io.StringIO()

    Logs(stream, wall=lambda: WallTime(0), is_console=True).of("node").info("node.ready")

    assert "node.ready" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


class Refusing(io.RawIOBase):
    """A file on a disk with room for some bytes more."""

    def __init__(self, room: int) -> None:
        self.room, self.content = room, b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        content = bytes(data)[: self.room]
        if not content:
            raise OSError(errno.ENOSPC, "no space")
        self.room -= len(content)
        self.content += content
        return len(content)


def test_a_line_that_the_disk_refuses_is_dropped_and_the_next_one_is_whole() -> None:
    """The log stands on the disk of the data: a full one ended the node at its next line, or at its start."""
    file = Refusing(room=30)
    buffer = io.BufferedWriter(file)
    stream = io.TextIOWrapper(buffer)
    logger = Logs(stream, wall=lambda: WallTime(0)).of("x")

    logger.info("first.torn")
    logger.info("second.dropped")
    file.room = 1 << 20
    logger.info("third.whole")

    torn, whole = file.content.splitlines()
    assert len(torn) == 30
    assert json.loads(whole)["event"] == "third.whole"
    stream.flush()


def test_lines_to_a_stream_that_is_closed_are_dropped() -> None:
    """A host logs in the middle of its effects, where nothing may raise."""
    stream = io.StringIO()
    logger = Logs(stream, wall=lambda: WallTime(0)).of("x")
    stream.close()

    logger.error("nobody.reads")
