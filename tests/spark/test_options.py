"""What a user writes at the sink is judged before anything is appended."""

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from broadsheet.client_sync import connect_sync
from broadsheet.errors import ConfigError, LocalProtocolError, NotFound
from broadsheet.message.mapping import modulo
from broadsheet.message.stamper import Stamper
from broadsheet.message.uuid import Flag, ProducerId
from broadsheet.spark import sink
from broadsheet.spark.checkpoint import logged
from broadsheet.spark.connection import Target
from broadsheet.spark.options import Options
from broadsheet.spark.sink import Appender, Done, Routing, SinkWriter, task_of
from tests.spark.conftest import down, up

ROWS = StructType([StructField("x", LongType()), StructField("k", BinaryType())])
GOOD = {
    "address": "h:1",
    "fence": "f",
    "commitJournal": "com/c",
    "checkpointLocation": "/c",
    "journal": "o/o",
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"createJournal": "true"}, r"options \['createjournal'\] are none of the sink's: .*createJournals"),
        ({"createJournals": "yes"}, "option createJournals is 'yes', not 'true' or 'false'"),
        ({"mode": "atleastonce"}, "option mode is 'atleastonce', not 'exactly-once' or 'at-least-once'"),
        ({"mode": "at-least-once"}, "mode at-least-once has no commit journal"),
        ({"mode": "at-least-once", "fence": ""}, "mode at-least-once has no commit journal"),
        ({"mode": "at-least-once", "commitJournal": ""}, "mode at-least-once has no commit journal"),
        ({"fence": ""}, r"broadsheet\.spark\.start"),
        ({"checkpointLocation": ""}, "give option 'checkpointLocation' at writeStream"),
        ({"patience": "-1"}, "option patience is '-1'"),
        ({"patience": "inf"}, "option patience is 'inf'"),
        ({"toJournals": "a/a,b/b"}, "set either option 'journal'"),
        ({"keyColumn": "x"}, "set either option 'journal'"),
        ({"journal": "", "keyColumn": "x"}, "'toJournals' and 'keyColumn' together"),
        ({"journal": "", "toJournals": "a/a"}, "'toJournals' and 'keyColumn' together"),
        ({"journal": "", "toJournals": "a/a", "keyColumn": "y"}, "keyColumn 'y' is not a column"),
        ({"journal": ""}, "no journal is named for the rows"),
    ],
)
def test_a_wrong_option_of_the_sink_is_refused_by_name(changed: dict[str, str], words: str) -> None:
    """One that was ignored sent rows elsewhere, or failed the first batch after its rows were appended."""
    SinkWriter(GOOD, ROWS)
    with pytest.raises(ConfigError, match=words):
        SinkWriter(GOOD | changed, ROWS)


def test_a_key_goes_where_every_publisher_sends_it() -> None:
    """By its bytes, among the journals in the order of their names: another order is another journal."""
    keys = [b"", b"a", b"b", b"\xff\0", b"some", b"more"]
    batch = pa.record_batch({"x": range(6), "k": pa.array(keys, pa.binary())})
    names = ["t/a", "t/b", "t/c"]
    expected = {key: names[modulo(key, 3)] for key in keys}

    for order in ("t/a,t/b,t/c", "t/c,t/a,t/b,t/a"):
        routing = Routing(Options({"toJournals": order, "keyColumn": "k"}, sink.KNOWN, "sink"), ROWS)
        found = {key: name for name, rows in routing.split(batch) for key in rows.column("k").to_pylist()}
        assert found == expected


def test_a_key_that_is_no_bytes_is_its_text_and_none_is_empty() -> None:
    """Any publisher can say the same of a number; and rows without a key have one journal."""
    batch = pa.record_batch({"x": pa.array([7, None, 8]), "k": pa.array([b""] * 3, pa.binary())})
    names = ["t/a", "t/b", "t/c"]
    routing = Routing(Options({"toJournals": ",".join(names), "keyColumn": "x"}, sink.KNOWN, "sink"), ROWS)

    found = {key: name for name, rows in routing.split(batch) for key in rows.column("x").to_pylist()}
    keys = {7: b"7", None: b"", 8: b"8"}
    assert found == {key: names[modulo(text, 3)] for key, text in keys.items()}


def test_a_checkpoint_is_where_spark_puts_it(tmp_path: Path) -> None:
    """A path with `#` was cut there: the offsets of a neighbour were compared, or none were found."""
    for name in ("plain", "a#b", "a?b", "a%20b", "a b;c"):
        offsets = tmp_path / name / "offsets"
        offsets.mkdir(parents=True)
        (offsets / "7").write_text(name)
    digests = {name: logged(f"{tmp_path}/{name}", 7) for name in ("plain", "a#b", "a?b", "a%20b", "a b;c")}

    assert len(set(digests.values())) == len(digests)
    for scheme in ("file:", "file://"):
        assert {name: logged(f"{scheme}{tmp_path}/{name}", 7) for name in digests} == digests
    with pytest.raises(ConfigError, match="cannot read the offsets of batch 8"):
        logged(f"{tmp_path}/plain", 8)


def test_rows_for_the_commit_journal_are_refused(node: Any) -> None:
    """They made it unreadable: the batch committed, and the query never started again."""
    with connect_sync(node.address) as client:
        client.journals.create("com/c")
        writer = SinkWriter(GOOD | {"address": node.address, "journal": "com/c"}, ROWS)

        with pytest.raises(LocalProtocolError, match="com/c is the query's commit journal"):
            writer._append(iter([pa.record_batch({"x": [1]})]), Stamper(ProducerId(1)), Flag.CONTINUE)
        assert client.journals.status("com/c").end == 0


def test_the_rows_of_a_task_are_in_the_journals_when_it_tells_what_to_commit(node: Any) -> None:
    """Its intents are committed next: rows that still waited in the task would be lost."""
    with connect_sync(node.address) as client:
        client.journals.create("o/rows")
        writer = SinkWriter(GOOD | {"address": node.address, "journal": "o/rows"}, ROWS)
        batches = [pa.record_batch({"x": [1, 2]}), pa.record_batch({"x": [3]})]

        intents, row_count = writer._append(iter(batches), Stamper(ProducerId(1)), Flag.CONTINUE)
        stored = b"".join(chunk.data for chunk in client.journals.read("o/rows"))
        assert (len(intents), row_count, stored.count(b"\n")) == (1, 3, 3)


def test_what_waits_for_many_journals_is_bounded(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task with rows for thousands of journals held megabytes of each until its end."""
    monkeypatch.setattr(sink, "WAITING_BYTES_MAX", 100_000)
    names = [f"bound/{number}" for number in range(10)]
    row = pa.record_batch({"x": ["y" * 2000]})
    with connect_sync(node.address) as client:
        for name in names:
            client.journals.create(name)
        appender = Appender(Target(node.address), Stamper(ProducerId(1)), Flag.CONTINUE, creates=False)
        for _ in range(40):
            for name in names:
                appender.add(name, row)
                assert sum(len(each) for waits in appender.waiting.values() for each in waits) <= 100_000
        appender.flush()
        appender.close()
        assert {client.journals.status(name).end for name in names} == {40 * (len('{"x":""}') + 2000 + 57)}


def test_a_batch_of_long_rows_is_appended_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was one append, of 64 MiB and more, which a node with a lower limit refused at each start."""
    monkeypatch.setenv("BROADSHEET_JOURNALS__LIMITS__APPEND_BYTES_MAX", str(8 << 20))
    rows = [b'{"x":%d,"y":"%s"}' % (number, b"y" * (1 << 20)) for number in range(20)]
    node = up(tmp_path / "data", "--any-port")
    try:
        with connect_sync(node.address) as client:
            client.journals.create("long/rows")
            appender = Appender(Target(node.address), Stamper(ProducerId(1)), Flag.CONTINUE, creates=False)
            appender.add("long/rows", pa.record_batch({"value": rows}))
            appender.flush()
            appender.close()

            stored = b"".join(chunk.data for chunk in client.journals.read("long/rows"))
            assert [line[line.index(b"}") + 2 :] for line in stored.splitlines()] == [row[1:] for row in rows]
            assert appender.row_count == len(rows)
    finally:
        down(tmp_path / "data")


def test_a_task_whose_journal_is_made_again_fails_and_writes_no_half_of_its_rows(node: Any) -> None:
    """What it had appended is deleted: the rest, in the other journal of that name, was committed as all."""
    row = pa.record_batch({"x": [1]})
    with connect_sync(node.address) as client:
        client.journals.create("again/a")
        appender = Appender(Target(node.address), Stamper(ProducerId(1)), Flag.CONTINUE, creates=False)
        appender.add("again/a", row)
        appender.flush()
        client.journals.delete("again/a")
        client.journals.create("again/a")

        appender.add("again/a", row)
        with pytest.raises(NotFound, match="deleted and made again"):
            appender.flush()
        appender.close()
        assert client.journals.end("again/a") == 0
        assert not [each for each in threading.enumerate() if each.name.startswith("broadsheet-append")]


def test_what_tasks_did_for_another_batch_is_not_committed(tmp_path: Path) -> None:
    """Rows that a task drained for a committed batch would be lost as those of another."""
    writer = SinkWriter(GOOD | {"checkpointLocation": str(tmp_path)}, ROWS)
    (tmp_path / "offsets").mkdir()
    for batch in ("4", "5"):
        (tmp_path / "offsets" / batch).touch()

    for messages in (
        [Done("q", 5, [], 3), Done("q", 4, [], 3)],
        [Done("q", 5, [], 1), Done("r", 5, [], 1)],
        [],
    ):
        with pytest.raises(LocalProtocolError, match="commits batch 5 with results of tasks of"):
            writer.commit(list(messages), 5)


@pytest.mark.parametrize("missing", ["streaming.sql.batchId", "sql.streaming.queryId"])
def test_a_task_that_is_not_told_its_batch_writes_nothing(missing: str) -> None:
    """It took itself for one of batch 0, which most often is committed: its rows were drained."""
    properties = {"streaming.sql.batchId": "7", "sql.streaming.queryId": "q"}

    assert task_of(properties.get) == (7, "q")
    del properties[missing]
    with pytest.raises(LocalProtocolError, match=missing):
        task_of(properties.get)


def test_what_appends_at_least_once_asks_no_node_for_a_plan() -> None:
    """Spark pickles the writer for each batch: without a commit journal there is nothing to read."""
    writer = SinkWriter(
        {"address": "127.0.0.1:1", "journal": "o/o", "mode": "at-least-once", "patience": "0"}, ROWS
    )

    assert writer.__getstate__()["plan"] is None
