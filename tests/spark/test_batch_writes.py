"""Batch writes and functions of batches in Spark, as users write them."""

from pathlib import Path
from typing import Any

import pytest

from broadsheet.client_sync import connect_sync
from broadsheet.errors import BroadsheetError
from broadsheet.spark import start
from tests.spark.windows import ROWS, Case

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
ALL = list(range(ROWS))


def test_a_frame_is_written_once_under_its_number(node: Any, spark: Any, tmp_path: Path) -> None:
    """Spark plans a write once, so each has one fence; the rows come back by a batch read."""
    case = Case(node.address, tmp_path, "batch/once")
    frame = spark.range(10, numPartitions=3).selectExpr(
        "id as x", "concat('batch/once/out-', cast(id % 2 as string)) as journal"
    )
    options = {"address": node.address, "commitJournal": "batch/once/commits"}

    for number in (5, 5, 9):
        write = frame.write.format("broadsheet").mode("append").options(**options, batchId=number)
        write.save()
    assert case.committed() == sorted([*range(10), *range(10)])
    kinds = [(record["type"], record["batch"]) for record in case.records() if record["type"] == "commit"]
    assert kinds == [("commit", 5), ("commit", 9)]
    assert sum(record["type"] == "fence" for record in case.records()) == 3
    with pytest.raises(Exception, match=r"batch 5 is below batch 9"):
        frame.write.format("broadsheet").mode("append").options(**options, batchId=5).save()
    with pytest.raises(Exception, match=r"needs option 'commitJournal'"):
        frame.write.format("broadsheet").mode("append").option("address", node.address).save()
    with pytest.raises(Exception, match=r"use mode\('append'\)"):
        frame.write.format("broadsheet").mode("overwrite").options(**options, batchId=10).save()


def test_a_function_writes_the_batches_of_a_query_in_update_mode(
    node: Any, spark: Any, tmp_path: Path
) -> None:
    """The sink of a query has no update mode; a function has. Batches that it leaves out are recorded."""
    case = Case(node.address, tmp_path, "batch/update")
    seen: list[int] = []

    def write(frame: Any, batch: int, options: dict[str, str]) -> None:
        seen.append(batch)
        if batch == 1:
            frame.collect()  # Spark wants the state to advance.
        else:
            frame.write.format("broadsheet").mode("append").options(**options).save()

    rows = (
        spark.readStream.format("broadsheet")
        .options(address=node.address, journals="batch/update/in-0,batch/update/in-1")
        .option("maxBytesPerTrigger", case.plan["bytes_max"])
        .schema("x long")
        .load()
    )
    counts = rows.groupBy((rows.x % 2).alias("part")).count()
    routed = counts.selectExpr("count as x", "concat('batch/update/out-', cast(part as string)) as journal")
    writer = routed.writeStream.option("checkpointLocation", str(tmp_path / "c")).outputMode("update")
    query = start(
        writer.trigger(availableNow=True),
        address=node.address,
        commit_journal="batch/update/commits",
        foreach_batch=write,
    )
    query.awaitTermination()

    commits = [record for record in case.records() if record["type"] == "commit"]
    assert [record["batch"] for record in commits] == seen == [*range(len(seen))]
    assert len(seen) >= 3
    assert [bool(record.get("intents")) for record in commits] == [batch != 1 for batch in seen]
    assert {record["query"] for record in commits} == {query.id}
    assert case.committed()[-1] == ROWS // 2


def test_a_query_of_a_function_is_checked_before_it_is_fenced(node: Any, spark: Any, tmp_path: Path) -> None:
    """A misspelt option, a column of a wrong type, or a checkpoint that is not named, ends no older run."""
    Case(node.address, tmp_path, "batch/checked")
    rows = spark.readStream.format("broadsheet").options(address=node.address, journals="batch/checked/in-0")
    stream = rows.schema("x long").load().writeStream

    def begin(writer: Any) -> None:
        start(
            writer,
            address=node.address,
            commit_journal="batch/checked/commits",
            foreach_batch=lambda *_: None,
        )

    with pytest.raises(Exception, match="give option 'checkpointLocation' at writeStream"):
        begin(stream)
    with pytest.raises(Exception, match=r"\['createjournal'\] are none of the batch sink's"):
        begin(stream.option("checkpointLocation", str(tmp_path / "c")).option("createJournal", "true"))
    for schema, more, words in (
        ("x long, offset int", {}, "column offset is int64, and the schema says int32"),
        ("x long, i interval year to month", {}, "a message has no such values"),
        ("x long, key binary", {"keyColumn": "y"}, "keyColumn 'y' is no field of a message"),
    ):
        wrong = rows.options(**more).schema(schema).load().writeStream
        with pytest.raises(BroadsheetError, match=words):
            begin(wrong.option("checkpointLocation", str(tmp_path / "c")))
    with connect_sync(node.address) as client:
        assert "batch/checked/commits" not in [each.name for each in client.journals.list()]
