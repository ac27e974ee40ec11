"""A query that may wait has fewer and larger batches, and never waits for ever."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import LongType, StructField, StructType

from broadsheet.base.time import SECOND, Instant
from broadsheet.client_sync import connect_sync
from broadsheet.errors import ConfigError
from broadsheet.spark.options import Options
from broadsheet.spark.pace import DELAY_MAX, Pace
from broadsheet.spark.source import NO_LIMIT, BatchReader, StreamReader
from broadsheet.spark.source_options import KNOWN

X = StructType([StructField("x", LongType())])
MINUTE = 60 * SECOND


def by(**options: str) -> Pace:
    return Pace.by(Options(options, KNOWN, "source"))


@given(st.lists(st.tuples(st.integers(0, 3 * MINUTE), st.integers(0, 30))))
def test_a_batch_waits_for_bytes_and_no_longer_than_it_may(steps: list[tuple[int, int]]) -> None:
    """The oracle: due if it is the first, or large, or the batch before is long ago; nothing is no batch."""
    pace, now, waiting, batches = (
        by(minBytesPerTrigger="20", maxTriggerDelay="2m"),
        7 * SECOND,
        0,
        [-MINUTE * 9],
    )
    for later, new_bytes in steps:
        now, waiting = now + later, waiting + new_bytes
        is_due = pace.is_due(waiting, Instant(now))
        assert is_due == (len(batches) == 1 or waiting >= 20 or now - batches[-1] >= 2 * MINUTE)
        if is_due and waiting:
            batches.append(now)
            waiting = 0


def test_the_longest_wait_is_that_of_kafka_unless_it_is_said() -> None:
    """A query of few messages gave none of them for as long as it ran."""
    assert by(minBytesPerTrigger="9").delay_max == 15 * MINUTE
    assert DELAY_MAX == "15m"
    assert by(minBytesPerTrigger="9", maxTriggerDelay="500ms").delay_max == SECOND // 2
    assert by().is_due(1, Instant(0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"minBytesPerTrigger": "9", "maxBytesPerTrigger": "8"},
            "minBytesPerTrigger is 9, above maxBytesPer",
        ),
        ({"minBytesPerTrigger": "9", "maxTriggerDelay": "900"}, "maxTriggerDelay: 900 has no unit: write"),
        ({"minBytesPerTrigger": "9", "maxTriggerDelay": "-1s"}, "'-1s' is no duration"),
        ({"maxTriggerDelay": "1h"}, "waits for minBytesPerTrigger, which is not set"),
    ],
)
def test_limits_that_do_not_fit_are_refused(options: dict[str, str], words: str) -> None:
    """Kafka ignores a delay without a minimum; a number without a unit is milliseconds there."""
    for reader in (StreamReader, BatchReader):
        with pytest.raises(ConfigError, match=words):
            reader({"address": "h:1", "journals": "a/b", **options}, X)


def line(x: int) -> bytes:
    return b'{"x":%d}\n' % x


def test_a_stream_waits_between_batches_and_not_before_the_first(node: Any) -> None:
    """A run that waited for its first batch would leave what an ended run had let wait for as long again."""
    options = {"address": node.address, "journals": "pace/a,pace/b", "minBytesPerTrigger": "16"}
    with connect_sync(node.address) as client:
        for name in ("pace/a", "pace/b"):
            client.journals.create(name)
        first = StreamReader(options | {"maxTriggerDelay": "1h"}, X)
        limit = first.getDefaultReadLimit()
        assert limit == ReadMaxBytes(NO_LIMIT)
        start = first.initialOffset()
        assert first.latestOffset(start, limit) == start
        client.journals.append("pace/a", line(1))
        one = first.latestOffset(start, limit)
        assert (one["pace/a"]["offset"], one["pace/b"]["offset"]) == (8, 0)

        client.journals.append("pace/b", line(2))
        assert first.latestOffset(one, limit) is one
        assert first.reportLatestOffset() != one
        again = StreamReader(options | {"maxTriggerDelay": "1h"}, X)
        assert again.latestOffset(one, limit)["pace/b"]["offset"] == 8
        never = StreamReader(options | {"maxTriggerDelay": "0"}, X)
        for _ in range(2):
            assert never.latestOffset(one, limit)["pace/b"]["offset"] == 8
        client.journals.append("pace/a", line(3))
        both = first.latestOffset(one, limit)
        assert (both["pace/a"]["offset"], both["pace/b"]["offset"]) == (16, 8)


def test_a_query_that_ends_does_not_wait(node: Any) -> None:
    """With trigger availableNow it ended before what was there, and with trigger once it did nothing."""
    options = {"address": node.address, "journals": "ends/a", "minBytesPerTrigger": "800"}
    with connect_sync(node.address) as client:
        client.journals.create("ends/a")
        reader = StreamReader(options | {"maxBytesPerTrigger": "800"}, X)
        start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
        client.journals.append("ends/a", line(1))
        one = reader.latestOffset(start, limit)
        client.journals.append("ends/a", line(2))
        assert reader.latestOffset(one, limit) is one

        assert reader.latestOffset(one, ReadAllAvailable())["ends/a"]["offset"] == 16
        reader.prepareForTriggerAvailableNow()
        client.journals.append("ends/a", line(3))
        for _ in range(2):
            assert reader.latestOffset(one, limit)["ends/a"]["offset"] == 16
        assert reader.latestOffset(one, ReadMaxBytes(5))["ends/a"]["offset"] == 13


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_query_of_spark_that_may_wait_has_larger_batches(node: Any, spark: Any, tmp_path: Path) -> None:
    """And a restarted one goes on with what waited; trigger availableNow takes the rest."""
    rows = spark.readStream.format("broadsheet").options(address=node.address, journals="wait/a")
    limited = rows.options(minBytesPerTrigger="80", maxTriggerDelay="1h").schema("x long")
    seen: list[list[int]] = []

    def take(frame: Any, _batch: int) -> None:
        seen.append(sorted(row.x for row in frame.collect()))

    def start(**trigger: Any) -> Any:
        writer = limited.load().writeStream.option("checkpointLocation", str(tmp_path / "c"))
        return writer.trigger(**trigger).foreachBatch(take).start()

    with connect_sync(node.address) as client:
        client.journals.create("wait/a")

        def append(*numbers: int) -> None:
            client.journals.append("wait/a", b"".join(line(x) for x in numbers))

        append(0)
        query = start(processingTime="0 seconds")
        query.processAllAvailable()
        append(1)
        query.processAllAvailable()
        assert seen == [[0]]
        append(*range(2, 10), 99)
        query.processAllAvailable()
        assert seen == [[0], [*range(1, 10), 99]]
        append(10)
        query.processAllAvailable()
        query.stop()
        query = start(processingTime="0 seconds")
        query.processAllAvailable()
        assert seen[2:] == [[10]]
        append(11)
        query.processAllAvailable()
        query.stop()
        start(availableNow=True).awaitTermination()
        assert seen[2:] == [[10], [11]]
