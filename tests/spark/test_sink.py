"""The source and the sink in Spark, as users write them."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broadsheet.base.time import WallTime
from broadsheet.base.types import JournalName
from broadsheet.client_sync import connect_sync
from broadsheet.errors import ConfigError, LocalProtocolError
from broadsheet.message.framing import FIXED, JSON_LINES
from broadsheet.message.stamper import Stamper
from broadsheet.message.uuid import ProducerId
from broadsheet.spark import read_stream_options, resume_options, start
from tests.spark.driver import finish, start_query
from tests.spark.windows import ROWS, Case

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
ALL = list(range(ROWS))


def test_a_deleted_checkpoint_fails_loudly(node: Any, spark: Any, tmp_path: Path) -> None:
    """Batch numbers begin at 0 again: to skip them in silence would lose everything that is new."""
    case = Case(node.address, tmp_path, "sink/deleted")
    finish(spark, case.plan)
    shutil.rmtree(case.plan["checkpoint"])

    with connect_sync(node.address) as client:
        before = client.journals.registers("sink/deleted/commits").values
        with pytest.raises(LocalProtocolError, match=r"belongs to query .*, not a new one"):
            start_query(spark, case.plan)
        assert client.journals.registers("sink/deleted/commits").values == before, "a run of it goes on"
    assert case.committed() == ALL


def test_a_query_that_lost_its_checkpoint_goes_on_from_its_commits(
    node: Any, spark: Any, tmp_path: Path
) -> None:
    """The commit says where its batch ends: what came meanwhile is written once, and nothing twice."""
    case = Case(node.address, tmp_path, "sink/resumed")
    finish(spark, case.plan)
    shutil.rmtree(case.plan["checkpoint"])
    more = Stamper(ProducerId(77))
    with connect_sync(node.address) as client:
        wall = WallTime(1_800_000_000_000_000_000)
        lines = [more.committed(JSON_LINES, b'{"x":%d}' % (ROWS + n), wall) for n in range(10)]
        client.journals.append("sink/resumed/in-0", b"".join(lines))

    options = resume_options(address=node.address, commit_journal="sink/resumed/commits")
    rows = spark.readStream.format("broadsheet").options(**options).schema("x long").load()
    routed = rows.selectExpr("x", "concat('sink/resumed/out-', cast(x % 2 as string)) as journal")
    writer = routed.writeStream.option("checkpointLocation", str(tmp_path / "new")).trigger(availableNow=True)
    start(writer, address=node.address, commit_journal="sink/resumed/commits-2").awaitTermination()

    assert case.committed() == [*ALL, *range(ROWS, ROWS + 10)]
    with connect_sync(node.address) as client:
        client.journals.create("sink/resumed/empty")
        client.journals.delete("sink/resumed/in-1")
        client.journals.create("sink/resumed/in-1")
    for name, text in (
        ("commits", "deleted, or made again"),
        ("nothing", "name the commit journal"),
        ("out-0", "no query's registers"),
        ("empty", "does not say where its batch ends"),
    ):
        with pytest.raises(ConfigError, match=text):
            resume_options(address=node.address, commit_journal=f"sink/resumed/{name}")


def test_a_checkpoint_is_tried_before_an_older_run_is_ended(node: Any, spark: Any, tmp_path: Path) -> None:
    """Spark refused its file system, or a commit could not read it, after the older run had been fenced."""
    case = Case(node.address, tmp_path, "sink/tried")

    for where, words in (
        ("s3a://bucket/c", "Spark cannot open checkpointLocation 's3a://bucket/c'"),
        ("hdfs://127.0.0.1:1/c", "cannot be read and written from Python"),
    ):
        with pytest.raises(ConfigError, match=words):
            start_query(spark, case.plan | {"checkpoint": where})
    with connect_sync(node.address) as client:
        assert "sink/tried/commits" not in [each.name for each in client.journals.list()]
    finish(spark, case.plan | {"checkpoint": os.path.relpath(tmp_path / "c")})
    assert case.committed() == ALL
    assert (tmp_path / "c" / "broadsheet-commits").is_file(), "Spark and we mean the same directory"


def test_the_sink_must_be_fenced_first(node: Any, spark: Any, tmp_path: Path) -> None:
    """Without a fence there is no exactly once, and nobody shall think so."""
    case = Case(node.address, tmp_path, "sink/bare")
    rows = (
        spark.readStream.format("broadsheet")
        .options(address=node.address, journals="sink/bare/in-0")
        .schema("x long")
        .load()
    )
    writer = rows.writeStream.option("checkpointLocation", case.plan["checkpoint"]).trigger(availableNow=True)

    with pytest.raises(Exception, match=r"broadsheet\.spark\.start"):
        writer.format("broadsheet").options(
            address=node.address, journal="sink/bare/out-0"
        ).start().awaitTermination()


def test_fixed_frames_are_read_by_column_and_routed_by_key(node: Any, spark: Any, tmp_path: Path) -> None:
    """Batch and stream read the same rows; a key always goes to the same journal."""
    stamper, wall = Stamper(ProducerId(9)), WallTime(1_700_000_000_000_000_000)
    bodies = [np.array([(n, n / 2)], [("n", "<i8"), ("half", "<f8")]).tobytes() for n in range(100)]
    with connect_sync(node.address) as client:
        source = JournalName("fixed/source")
        client.journals.create(source, labels={"broadsheet.dev/framing": "fixed"})
        client.journals.append(source, b"".join(stamper.pending(source, FIXED, b, wall) for b in bodies[:60]))
        client.journals.append(source, stamper.intents()[0].content())
        client.journals.append(source, b"".join(stamper.pending(source, FIXED, b, wall) for b in bodies[60:]))
        client.journals.create("fixed/even")
        client.journals.create("fixed/odds")
    options = read_stream_options(address=node.address, journals=["fixed/source"])
    batch = (
        spark.read.format("broadsheet").options(**options).schema("n long, half double, clock long").load()
    )
    assert [(row.n, row.half) for row in batch.orderBy("n").collect()] == [(n, n / 2) for n in range(60)]

    rows = spark.readStream.format("broadsheet").options(**options).schema("n long, half double").load()
    keyed = rows.selectExpr("n", "n % 7 as k").writeStream.option("checkpointLocation", str(tmp_path / "c"))
    routed = keyed.options(toJournals="fixed/even,fixed/odds", keyColumn="k").trigger(availableNow=True)
    start(routed, address=node.address, commit_journal="fixed/commits").awaitTermination()
    places: dict[int, set[str]] = {}
    out = spark.read.format("broadsheet").options(address=node.address, journals="fixed/even,fixed/odds")
    found = out.schema("n long, k long, journal string").load().collect()
    for row in found:
        places.setdefault(row.k, set()).add(row.journal)
    assert sorted(row.n for row in found) == list(range(60))
    assert all(len(journals) == 1 for journals in places.values())
    assert len(set.union(*places.values())) == 2


def test_at_least_once_needs_no_commit_journal(node: Any, spark: Any, tmp_path: Path) -> None:
    """Who can bear repeats gets one append less a batch."""
    case = Case(node.address, tmp_path, "sink/least")
    rows = (
        spark.readStream.format("broadsheet")
        .options(address=node.address, journals="sink/least/in-0,sink/least/in-1")
        .schema("x long")
        .load()
    )
    writer = rows.writeStream.option("checkpointLocation", case.plan["checkpoint"]).trigger(availableNow=True)
    plain = writer.format("broadsheet").options(address=node.address, journal="sink/least/out-0")
    plain.option("mode", "at-least-once").start().awaitTermination()

    assert case.committed() == ALL


def test_a_wrong_option_ends_no_query_that_runs(node: Any, spark: Any, tmp_path: Path) -> None:
    """It was refused after the older run had been fenced: a typing error stopped the production job."""
    name = "sink/typing"
    with connect_sync(node.address) as client:
        client.journals.create(f"{name}/in")
        client.journals.create(f"{name}/commits")
    source = {"address": node.address, "JOURNALS": f"{name}/in"}

    def begin(more: dict[str, str], **wrong: str) -> Any:
        rows = spark.readStream.format("broadsheet").options(**source, **more).schema("x long").load()
        writer = rows.writeStream.option("checkpointLocation", str(tmp_path)).options(
            journal=f"{name}/out", **wrong
        )
        return start(writer, address=node.address, commit_journal=f"{name}/commits")

    for more, wrong, words in (
        ({}, {"createJournal": "true"}, r"\['createjournal'\] are none of the sink's"),
        ({}, {"createjournals": "yes"}, "option createJournals is 'yes'"),
        ({}, {"keyColumn": "x"}, "set either option 'journal'"),
        ({"startingOffset": "earliest"}, {}, r"\['startingoffset'\] are none of the source's"),
        ({"selector": "topic=x"}, {}, r"\['journals', 'selector'\] are given"),
    ):
        with pytest.raises(Exception, match=words):
            begin(more, **wrong)
    with connect_sync(node.address) as client:
        assert client.journals.registers(f"{name}/commits").values == {}
    query = begin({}, CREATEJOURNALS="true")
    query.stop()
    with connect_sync(node.address) as client:
        assert client.journals.registers(f"{name}/commits").values["author"]
