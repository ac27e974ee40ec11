"""Which producer ids the tasks of one worker process use."""

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import LongType, StructField, StructType

from broadsheet.base.types import ByteOffset
from broadsheet.client_sync import connect_sync
from broadsheet.message.framing import JSON_LINES, scan
from broadsheet.sink.core.records import Fence
from broadsheet.spark import sink
from broadsheet.spark.commits import CommitJournal
from broadsheet.spark.connection import Target
from broadsheet.spark.sink import BATCH_PROPERTY, QUERY_PROPERTY, Done, SinkWriter

JOURNAL = "outside/j"
SCHEMA = StructType([StructField("n", LongType())])


@pytest.fixture
def properties() -> Iterator[dict[str, str]]:
    """This process runs a task; its properties, by which a task knows its batch and its query."""
    context = TaskContext._getOrCreate()
    context._localProperties = {BATCH_PROPERTY: "0", QUERY_PROPERTY: "q"}
    yield context._localProperties
    TaskContext._setTaskContext(None)


def rows(*numbers: int) -> Iterator[pa.RecordBatch]:
    for number in numbers:
        assert number >= 0, "a row that ends its task"
        yield pa.record_batch({"n": [number]})


@pytest.mark.usefixtures("properties")
def test_the_tasks_of_a_worker_go_on_with_its_producer_unless_one_failed(node: Any) -> None:
    """Each task took a new one: 200,000, all that a producer index holds, are the tasks of some hours."""
    options = {"address": node.address, "journal": JOURNAL, "createJournals": "true", "mode": "at-least-once"}
    writer = SinkWriter(options, SCHEMA)
    for number in range(3):
        writer.write(rows(number))
    with pytest.raises(AssertionError, match="ends its task"):
        writer.write(rows(3, -1))  # What it has sent may still arrive, behind what the producer sends next.
    writer.write(rows(4))
    sink._outside.process = os.getppid()  # As the copy in a forked child has it.
    writer.write(rows(5))

    with connect_sync(node.address) as client:
        content = b"".join(chunk.data for chunk in client.journals.read(JOURNAL))
    producers = [frame.id.producer for frame in scan(JSON_LINES, content, ByteOffset(0))]
    numbers = {producer: producers.index(producer) for producer in producers}
    assert [numbers[each] for each in producers] == [0, 0, 0, 3, 4]


def test_queries_that_take_turns_in_a_worker_keep_a_producer_each(
    node: Any, properties: dict[str, str]
) -> None:
    """The queries of a session share its workers: of two, two tasks of five took a new one (ADR 0136)."""
    found: dict[str, set[int]] = {}
    for batch, query in itertools.product(range(3), "ab"):
        properties |= {BATCH_PROPERTY: str(batch), QUERY_PROPERTY: query}
        journal = CommitJournal(Target(node.address), f"turns/{query}/commits")
        if not batch:
            journal.begin(Fence(query))
        options = {"address": node.address, "journal": f"turns/{query}/out", "createJournals": "true"}
        options |= {"commitJournal": journal.name, "fence": query, "checkpointLocation": "unused"}
        writer = SinkWriter(options, SCHEMA)
        writer.plan = journal.plan(Fence(query))
        done = writer.write(rows(batch))
        assert isinstance(done, Done)
        found.setdefault(query, set()).update(intent.producer for intent in done.intents)
        journal.commit(Fence(query), batch=batch, query=query, digest="d", intents=done.intents)

    assert len(found["a"]) == len(found["b"]) == 1
    assert found["a"] != found["b"], "a producer belongs to one fence"


def test_a_worker_holds_the_producers_of_a_bounded_number_of_queries() -> None:
    """Each run of a query has a fence of its own, and a worker may live as long as its session."""
    first = sink._held_of(Fence("first"))
    assert sink._held_of(Fence("first")) is first
    for number in range(sink.QUERIES_MAX):
        sink._held_of(Fence(f"later {number}"))
    assert len(sink._held) == sink.QUERIES_MAX
    assert sink._held_of(Fence("first")) is not first
