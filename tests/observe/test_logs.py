"""Logs are one object a line, at the node's own time, without secrets."""

import io
import json

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
