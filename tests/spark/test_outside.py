"""Messages that commit by themselves: which producer ids the tasks of one worker process use."""

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
from broadsheet.spark import sink
from broadsheet.spark.sink import BATCH_PROPERTY, QUERY_PROPERTY, SinkWriter

JOURNAL = "outside/j"


@pytest.fixture
def writer(node: Any) -> Iterator[SinkWriter]:
    """The sink in a task of this process."""
    context = TaskContext._getOrCreate()
    context._localProperties = {BATCH_PROPERTY: "0", QUERY_PROPERTY: "q"}
    options = {"address": node.address, "journal": JOURNAL, "createJournals": "true", "mode": "at-least-once"}
    yield SinkWriter(options, StructType([StructField("n", LongType())]))
    TaskContext._setTaskContext(None)


def rows(*numbers: int) -> Iterator[pa.RecordBatch]:
    for number in numbers:
        assert number >= 0, "a row that ends its task"
        yield pa.record_batch({"n": [number]})


def test_the_tasks_of_a_worker_go_on_with_its_producer_unless_one_failed(
    node: Any, writer: SinkWriter
) -> None:
    """Each task took a new one: 200,000, all that a producer index holds, are the tasks of some hours."""
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
