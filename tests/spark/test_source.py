"""Where a query begins, asked of a real node and without Spark."""

from typing import Any

import pytest

from broadsheet.base.time import WallTime
from broadsheet.client import connect_sync
from broadsheet.errors import ConfigError, LocalProtocolError
from broadsheet.message.framing import JSON_LINES
from broadsheet.message.publisher import Publisher
from broadsheet.message.uuid import ProducerId
from broadsheet.spark.source import Sources


def test_an_explicit_offset_inside_a_frame_fails_or_moves_on(
    node: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """Else the query would begin with a message that the user meant to leave out, and nobody would know."""
    publisher, wall = Publisher(ProducerId(5)), WallTime(1_700_000_000_000_000_000)
    messages = [publisher.committed(JSON_LINES, b'{"x":%d}' % x, wall) for x in range(3)]
    with connect_sync(node.address) as client:
        client.journals.create("start/j")
        client.journals.append("start/j", b"".join(messages) + messages[0][:9])
    one, two = len(messages[0]), len(messages[0] + messages[1])
    options = {"address": node.address, "journals": "start/j"}

    def start(at: int, **more: str) -> int:
        wanted = {"startingoffsets": f'{{"start/j":{at}}}', **more}
        return Sources(options | wanted).start()["start/j"].offset

    assert [start(at) for at in (0, one, two)] == [0, one, two]
    with pytest.raises(LocalProtocolError, match=rf"offset {one + 1} of start/j .*\[{one}, {two}\)"):
        start(one + 1)
    assert start(one + 1, startinginsideframe="next") == two
    assert f"begins at {two}" in capfd.readouterr().err
    with pytest.raises(LocalProtocolError, match="not committed yet"):
        start(3 * one + 5, startinginsideframe="next")
    with pytest.raises(LocalProtocolError, match=f"ends at {3 * one + 9}, below 999"):
        start(999)
    with pytest.raises(ConfigError, match="startingInsideFrame is 'skip'"):
        start(0, startinginsideframe="skip")
