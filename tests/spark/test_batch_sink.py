"""A batch write is there once, however often it is run, and whoever else runs it. Without a JVM."""

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from broadsheet.base.types import ByteOffset
from broadsheet.client_sync import SyncJournals, connect_sync
from broadsheet.errors import ConfigError, Fenced, LocalProtocolError
from broadsheet.message.framing import JSON_LINES, scan
from broadsheet.message.producer_state import begun
from broadsheet.runtime.failpoints import VARIABLE
from broadsheet.sink.core.records import Fence
from broadsheet.spark.batch_sink import OWNER, BatchWriter
from broadsheet.spark.commits import CommitJournal
from broadsheet.spark.connection import Target
from broadsheet.spark.foreach import Foreach
from broadsheet.spark.source import BroadsheetDataSource
from simulator.checkers.sequencer import Sequencer

ROWS = StructType([StructField("x", LongType()), StructField("journal", StringType())])
GOOD = {"address": "h:1", "commitJournal": "com/c", "batchId": "7", "journal": "o/o"}
ROOT = Path(__file__).parents[2]


def rows(name: str, numbers: range) -> pa.RecordBatch:
    """Rows for two journals."""
    return pa.record_batch({"x": [*numbers], "journal": [f"{name}/out-{n % 2}" for n in numbers]})


def planned(address: str, name: str, batch: int, **more: str) -> BatchWriter:
    """The writer as Spark has it after PLAN: pickled in one process, unpickled in others."""
    options = {
        "address": address,
        "commitJournal": f"{name}/commits",
        "batchId": str(batch),
        "patience": "20",
    }
    writer = BatchWriter(options | {"createJournals": "true"} | more, ROWS)
    copy = pickle.loads(pickle.dumps(writer))
    assert isinstance(copy, BatchWriter)
    return copy


def write(address: str, name: str, batch: int, numbers: range, **more: str) -> None:
    """One batch write of two tasks, from PLAN to COMMIT."""
    writer = planned(address, name, batch, **more)
    middle = numbers[len(numbers) // 2 :][0]
    parts = (range(numbers[0], middle), range(middle, numbers[-1] + 1))
    done = [pickle.loads(pickle.dumps(writer)).write(iter([rows(name, part)])) for part in parts]
    writer.commit(done)


def committed(journals: SyncJournals, name: str) -> list[int]:
    """The numbers that a reader of the outputs sees, by a sequencer that is none of the connector's."""
    found: list[int] = []
    for output in (f"{name}/out-0", f"{name}/out-1"):
        content = b"".join(chunk.data for chunk in journals.read(output))
        sequencer = Sequencer(begun(JSON_LINES))
        for frame in scan(JSON_LINES, content, ByteOffset(0)):
            seen = [each for each in sequencer.step(frame)[1] if each.has_data]
            found += [json.loads(content[each.begin : each.end])["x"] for each in seen]
    return sorted(found)


@pytest.fixture
def journals(node: Any) -> Iterator[SyncJournals]:
    with connect_sync(node.address) as client:
        yield client.journals


def test_a_batch_that_is_written_again_under_its_number_is_there_once(
    node: Any, journals: SyncJournals
) -> None:
    """A scheduler runs a task again if it does not know how it ended; numbers leave gaps (pipelines.20)."""
    for batch, numbers in ((3, range(10)), (3, range(10)), (7, range(10, 20)), (7, range(10, 20))):
        write(node.address, "twice", batch, numbers)

    assert committed(journals, "twice") == [*range(20)]
    assert journals.registers("twice/commits").values["query"] == OWNER


def test_a_number_below_the_newest_is_refused_and_fences_nobody(node: Any, journals: SyncJournals) -> None:
    """Whether an older batch was written is not known: to skip it could lose it, to write it double it."""
    write(node.address, "below", 7, range(4))
    author = journals.registers("below/commits").values["author"]

    with pytest.raises(LocalProtocolError, match="batch 6 is below batch 7, the newest of below/commits"):
        planned(node.address, "below", 6)
    assert journals.registers("below/commits").values["author"] == author


def test_a_number_that_another_write_has_is_refused(node: Any, journals: SyncJournals) -> None:
    """One number for the writes to two tables: the second was taken for a rerun, and its rows were lost."""
    write(node.address, "number", 7, range(4))

    with pytest.raises(LocalProtocolError, match="batch 7 was committed by a write to other journals"):
        write(node.address, "number", 7, range(4, 8), journal="number/other")
    write(node.address, "number", 7, range(4))
    assert committed(journals, "number") == [*range(4)]


def test_a_batch_by_itself_does_not_end_the_query_whose_commit_journal_it_names(
    node: Any, journals: SyncJournals
) -> None:
    """A wrong name stopped a query that ran."""
    query = CommitJournal(Target(node.address), "query/commits")
    query.begin(Fence("theirs"))
    query.commit(Fence("theirs"), batch=0, query="q", digest="d", intents=[])

    with pytest.raises(LocalProtocolError, match=f"belongs to query q, not {OWNER}"):
        planned(node.address, "query", 1)
    assert journals.registers("query/commits").values["author"] == "theirs"


def test_a_write_that_slept_through_its_repetition_commits_nothing(node: Any, journals: SyncJournals) -> None:
    """The scheduler took it for dead; it wakes up before its commit, and its rows are the same rows."""
    zombie = planned(node.address, "zombie", 1)
    done = zombie.write(iter([rows("zombie", range(8))]))
    write(node.address, "zombie", 1, range(8))

    with pytest.raises(Fenced, match="another run"):
        zombie.commit([done])
    assert committed(journals, "zombie") == [*range(8)]


KILLS = (
    "sink.start.fenced",
    "sink.start.end",
    "sink.task.framed",
    "sink.task.appended",
    "sink.commit.begin",
    "sink.commit.deciding",
    "sink.commit.decided",
    "sink.commit.acknowledged",
    "sink.commit.end",
)


@pytest.mark.parametrize("label", KILLS)
def test_a_killed_write_that_is_run_again_is_there_once(
    label: str, node: Any, journals: SyncJournals
) -> None:
    """Kill -9 before, between and after the steps of START, TASK and COMMIT."""
    name = f"killed/{label}"
    write(node.address, name, 1, range(6))
    script = f"from tests.spark.test_batch_sink import *; write({node.address!r}, {name!r}, 2, range(6, 16))"
    environ = os.environ | {VARIABLE: label, "PYTHONPATH": str(ROOT)}

    killed = subprocess.run([sys.executable, "-c", script], env=environ, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    write(node.address, name, 2, range(6, 16))
    assert committed(journals, name) == [*range(16)]


def of_query(tmp_path: Path, name: str, address: str, fence: str) -> dict[str, str]:
    """The options of batches of a query, as `start` gives them."""
    (tmp_path / "offsets").mkdir(exist_ok=True)
    for batch in range(3):
        (tmp_path / "offsets" / str(batch)).write_text(f"offsets {batch}")
    CommitJournal(Target(address), f"{name}/commits").begin(Fence(fence))
    return {"fence": fence, "queryId": "q", "checkpointLocation": str(tmp_path)}


def test_a_second_write_of_a_query_s_batch_is_refused(
    node: Any, journals: SyncJournals, tmp_path: Path
) -> None:
    """It found the batch committed and wrote nothing: all its rows were lost, in silence."""
    options = of_query(tmp_path, "second", node.address, "f1")
    write(node.address, "second", 0, range(4), **options)

    with pytest.raises(ConfigError, match="a batch is written once"):
        planned(node.address, "second", 0, **options)
    beside = [planned(node.address, "second", 1, **options) for _ in range(2)]
    done = [each.write(iter([rows("second", range(4, 8))])) for each in beside]
    beside[0].commit([done[0]])
    with pytest.raises(LocalProtocolError, match="committed by another write of the same run"):
        beside[1].commit([done[1]])
    assert committed(journals, "second") == [*range(8)]


def test_a_restarted_query_s_batch_is_there_once_and_its_zombie_is_fenced(
    node: Any, journals: SyncJournals, tmp_path: Path
) -> None:
    """Spark calls the function again with the batch that it does not know to be done."""
    old = of_query(tmp_path, "again", node.address, "f1")
    write(node.address, "again", 0, range(4), **old)
    asleep = planned(node.address, "again", 1, **old)
    done = asleep.write(iter([rows("again", range(4, 8))]))
    new = of_query(tmp_path, "again", node.address, "f2")
    write(node.address, "again", 0, range(4), **new)
    write(node.address, "again", 1, range(4, 8), **new)

    with pytest.raises(Fenced):
        asleep.commit([done])
    with pytest.raises(Fenced):
        planned(node.address, "again", 2, **old)
    assert committed(journals, "again") == [*range(8)]


def test_a_query_s_batch_of_another_checkpoint_is_refused(node: Any, tmp_path: Path) -> None:
    """Its offsets are others, and so are its rows: to leave them out would lose them."""
    options = of_query(tmp_path, "other", node.address, "f1")
    write(node.address, "other", 0, range(4), **options)
    options = of_query(tmp_path, "other", node.address, "f2")
    (tmp_path / "offsets" / "0").write_text("offsets of another history")

    with pytest.raises(LocalProtocolError, match="other source offsets"):
        write(node.address, "other", 0, range(4), **options)
    with pytest.raises(LocalProtocolError, match="batch 2 does not follow batch 0"):
        write(node.address, "other", 2, range(4), **options)


def test_at_least_once_needs_no_number(node: Any, journals: SyncJournals) -> None:
    """Who can bear repeats names a journal, and no more."""
    options = {"address": node.address, "createJournals": "true", "mode": "at-least-once"}
    writer: BatchWriter = pickle.loads(pickle.dumps(BatchWriter(options, ROWS)))
    for _ in range(2):
        writer.commit([writer.write(iter([rows("least", range(4))]))])

    assert committed(journals, "least") == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"batchId": ""}, "needs option 'commitJournal'.* and option 'batchId'"),
        ({"commitJournal": ""}, "needs option 'commitJournal'.* and option 'batchId'"),
        ({"batchId": "-1"}, "option batchId is '-1'"),
        ({"batchId": str(1 << 63)}, "not below 2\\^63"),
        ({"batch": "7"}, r"options \['batch'\] are none of the batch sink's"),
        ({"mode": "at-least-once"}, "leave out options 'commitJournal' and 'batchId'"),
        ({"fence": "f"}, "'fence', 'queryId' and 'checkpointLocation' go together"),
        ({"queryId": "q"}, "'fence', 'queryId' and 'checkpointLocation' go together"),
        ({"fence": "f", "queryId": "q"}, "'fence', 'queryId' and 'checkpointLocation' go together"),
        ({"journal": "", "toJournals": "a/a"}, "'toJournals' and 'keyColumn' together"),
    ],
)
def test_a_wrong_option_of_a_batch_write_is_refused_by_name(changed: dict[str, str], words: str) -> None:
    """Before anything is fenced or written."""
    BatchWriter(GOOD, ROWS)
    with pytest.raises(ConfigError, match=words):
        BatchWriter(GOOD | changed, ROWS)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"mode": "at-least-once"}, "foreach_batch writes exactly once: leave out option mode"),
        ({"mode": "twice"}, "option mode is 'twice'"),
        ({"createJournals": "yes"}, "option createJournals is 'yes'"),
        ({"patience": "-1"}, "option patience is '-1'"),
        ({"topic": "t"}, "option topic: give option journal"),
        ({"checkpointLocation": ""}, "give option 'checkpointLocation' at writeStream"),
    ],
)
def test_a_wrong_option_of_a_function_is_refused_before_the_older_run_is_fenced(
    changed: dict[str, str], words: str
) -> None:
    """It was found by the first write: the older run had ended by then."""
    options = {"address": "h:1", "commitJournal": "com/c", "fence": "f", "checkpointLocation": "/c"}

    Foreach(options, print)
    with pytest.raises(ConfigError, match=words):
        Foreach(options | changed, print)


def test_a_journal_is_not_overwritten() -> None:
    """Whoever writes with mode overwrite expects that older rows are gone."""
    source = BroadsheetDataSource(dict(GOOD))

    assert isinstance(source.writer(ROWS, overwrite=False), BatchWriter)
    with pytest.raises(ConfigError, match=r"use mode\('append'\)"):
        source.writer(ROWS, overwrite=True)


def test_a_write_whose_task_gave_no_result_commits_nothing() -> None:
    """Its rows would be missing from the batch for ever."""
    writer = BatchWriter(GOOD, ROWS)

    with pytest.raises(LocalProtocolError, match="the results of 0 of 1 tasks"):
        writer.commit([None])
