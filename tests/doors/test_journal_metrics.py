"""The metrics of journals count what was committed, refused, read and stored (code.18)."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import broadsheet
from broadsheet.doors.status import Status
from broadsheet.errors import WrongAppendOffset
from broadsheet.journal.broker import Broker
from broadsheet.journal.core.pipeline_events import AttemptAsked
from broadsheet.journal.service import UnaryAppend
from broadsheet.node import Node
from broadsheet.observe.metrics import Metrics
from tests.doors.test_http import door

SECONDS_MAX = 30.0
NAME = "counted/a"


def series(node: Node) -> dict[tuple[str, ...], float]:
    """The samples of the node's page, by name and values of labels."""
    return {
        (sample.name.removeprefix("broadsheet_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(node.services.one(Metrics).page().decode())
        for sample in family.samples
    }


async def until(node: Node, name: str, least: float) -> dict[tuple[str, ...], float]:
    """The samples, once one of them has this value or more: roles are asked at most each 50 ms."""
    async with asyncio.timeout(SECONDS_MAX):
        while (found := series(node))[(name,)] < least:  # noqa: ASYNC110 - a scrape is no event.
            await asyncio.sleep(0.01)
        return found


async def test_appends_are_counted_when_they_are_committed_and_reads_when_they_are_sent(
    tmp_path: Path,
) -> None:
    """A run counts as its appends; a refused one, a barrier and the question for an attempt add no bytes."""
    async with door(tmp_path) as (_, _, node):
        address = node.services.one(Status).read().addresses["native"]
        async with broadsheet.connect(address) as client:
            await client.journals.create(NAME)
            await client.journals.append(NAME, b"x" * 1_000)
            await client.journals.append_many(NAME, [b"y" * 10] * 300)
            await client.journals.append(NAME, b"z" * 200_000)  # Streamed.
            with pytest.raises(WrongAppendOffset):
                await client.journals.append(NAME, b"late", offset=0)
            await client.journals.registers(NAME)
            replica = await node.services.one(Broker).replica(NAME)
            asked = UnaryAppend(b"")
            replica.deliver(AttemptAsked(run=asked, attempt=b"a" * 16))
            await asked.answered
            content = [bytes(chunk.data) async for chunk in client.journals.read(NAME, 500)]
        found = await until(node, "journals_read_bytes_total", 203_500)

    assert sum(map(len, content)) == 203_500
    assert found["journals_appends_total",] == 302
    assert found["journals_append_bytes_total",] == 204_000
    assert found["journals_appends_refused_total",] == 1


async def test_fragments_are_counted_while_they_wait_and_once_they_are_stored(tmp_path: Path) -> None:
    """An operator sees the disk fill, and that it is the store; the answered calls tell how slow it is."""
    async with door(tmp_path) as (_, _, node):
        address = node.services.one(Status).read().addresses["native"]
        taken = tmp_path / "data" / "fragments" / "counted"
        async with broadsheet.connect(address) as client:
            taken.write_text("a file where a directory should be made")
            await client.journals.create(NAME, fragment_length=1 << 10)
            for _ in range(4):
                await client.journals.append(NAME, b"x" * 2_000)
            waiting = await until(node, "journals_fragments_waiting", 3)
            failed = await until(node, "journals_store_errors_total", 1)
            taken.unlink()
            stored = await until(node, "journals_fragments_stored_total", 3)

    assert waiting["journals_fragments_stored_total",] == 0
    assert failed["store_call_seconds_count", "put"] == 0, "what failed took no time that counts"
    assert stored["journals_fragment_bytes_stored_total",] == 6_000
    assert stored["store_call_seconds_count", "put"] == 3
    assert stored["store_call_seconds_count", "get"] >= 3, "each was read back"
    assert stored["store_call_seconds_count", "list"] >= 1
    assert stored["store_call_seconds_count", "delete"] == 0


async def test_the_room_of_every_log_is_told(tmp_path: Path) -> None:
    """The key space's log was nowhere: a node whose map could not be written said so only when it stopped."""
    async with door(tmp_path) as (_, _, node):
        found = series(node)

    for log in ("journals", "keyspace"):
        assert 0 <= found["log_segments_free", log] < found["log_segments", log]
        assert found["log_segments", log] <= found["log_segments_max", log]
        assert (found["log_pending_bytes", log], found["log_quarantined", log]) == (0, 0)
