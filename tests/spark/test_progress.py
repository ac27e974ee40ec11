"""What an operator sees of a query: lag, bytes and rows by Spark's reports, pending messages by the node."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from broadsheet.base.time import WallTime
from broadsheet.base.types import JournalName
from broadsheet.client_sync import connect_sync
from broadsheet.errors import ConfigError, NotFound
from broadsheet.journal.core.spec import FRAMING_LABEL
from broadsheet.message.framing import JSON_LINES
from broadsheet.message.stamper import Stamper
from broadsheet.message.uuid import ProducerId
from broadsheet.spark import progress as module
from broadsheet.spark import watch
from broadsheet.spark.progress import Pending, Progress

WALL = WallTime(1_700_000_000_000_000_000)


class Streams:
    """A session's list of listeners, without a JVM."""

    def __init__(self) -> None:
        self.streams, self.listeners = self, list[object]()

    def addListener(self, listener: object) -> None:  # noqa: N802 - Spark's name.
        self.listeners.append(listener)

    def removeListener(self, listener: object) -> None:  # noqa: N802 - Spark's name.
        self.listeners.remove(listener)


class Report:
    """A report of Spark, or the end of a query, with the fields that are read."""

    def __init__(self, query: str, run: str, batch: int, rows: int, *sources: tuple[Any, Any, Any]) -> None:
        self.id, self.runId, self.batchId, self.numInputRows = query, run, batch, rows
        self.name, self.batchDuration, self.progress = "clicks", 1500, self
        self.sources = [Source(*each) for each in sources]


class Source:
    def __init__(self, start: Any, end: Any, latest: Any) -> None:
        self.startOffset, self.endOffset, self.latestOffset = (
            None if each is None else json.dumps(each) for each in (start, end, latest)
        )


def at(revision: int = 1, **offsets: int) -> dict[str, dict[str, int]]:
    return {name: {"offset": offset, "create_revision": revision} for name, offset in offsets.items()}


def listening() -> Any:
    streams: Any = Streams()
    return Progress(streams)


def test_lag_and_bytes_of_each_journal_are_those_of_the_batches() -> None:
    """Who watches a query asks how far behind it is, and whether it moves."""
    progress = listening()
    progress.onQueryProgress(Report("q", "r1", 0, 3, (None, at(a=100, b=50), at(a=400, b=50))))
    progress.onQueryProgress(Report("q", "r1", 1, 4, (at(a=100, b=50), at(a=150, b=70), at(a=500, b=90))))

    found = progress.of("q")
    assert (found.batch, found.rows, found.seconds, found.name) == (1, 7, 1.5, "clicks")
    assert {n: (j.position, j.lag_bytes, j.read_bytes) for n, j in found.journals.items()} == {
        "a": (150, 350, 150),
        "b": (70, 20, 70),
    }
    lines = progress.text().splitlines()
    assert 'broadsheet_spark_lag_bytes{journal="a",query="clicks"} 350.0' in lines
    assert 'broadsheet_spark_read_bytes_total{journal="b",query="clicks"} 70.0' in lines
    assert 'broadsheet_spark_rows_total{query="clicks"} 7.0' in lines


def test_a_restarted_query_counts_anew_and_a_journal_made_again_has_no_past() -> None:
    """A counter of a run begins at 0; the bytes of a former journal are none of the new one."""
    progress = listening()
    progress.told(Report("q", "r1", 0, 3, (None, at(a=100), at(a=100))))
    progress.told(Report("q", "r2", 1, 1, (at(a=100), at(2, a=30), at(2, a=40))))
    progress.onQueryTerminated(Report("q", "r1", 0, 0))

    found = progress.of("q")
    assert (found.run, found.rows, found.is_running) == ("r2", 1, True)
    assert found.journals["a"] == module.JournalProgress(30, 40, 30, 2)


def test_offsets_of_other_sources_and_reports_without_any_are_passed_over() -> None:
    """A query may join journals with a rate source or with Kafka."""
    progress = listening()
    progress.told(Report("q", "r1", 0, 9, (None, 5, 7), ({"t": {"0": 1}}, {"t": {"0": 2}}, None)))
    assert progress.of("q").journals == {}
    progress.told(Report("q", "r1", 1, 1, (None, at(a=10), None)))
    progress.told(Report("q", "r1", 1, 0, (None, None, None)))

    assert progress.of("q").journals["a"].position == 10
    assert (progress.of("q").journals["a"].lag_bytes, progress.of("other")) == (0, None)


def test_the_numbers_of_ended_queries_are_kept_for_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of months starts thousands of queries; one that failed is looked at afterwards."""
    monkeypatch.setattr(module, "ENDED_MAX", 2)
    progress = listening()
    for query in ("q0", "q1", "q2", "q3"):
        progress.told(Report(query, "r", 0, 1))
        if query != "q0":
            progress.onQueryTerminated(Report(query, "r", 0, 0))

    kept = {query: progress.of(query).is_running for query in ("q0", "q2", "q3")}
    assert kept == {"q0": True, "q2": False, "q3": False}
    assert progress.of("q1") is None


def test_pending_messages_are_counted_up_to_where_the_query_stands(node: Any) -> None:
    """A producer that hangs holds its messages back, and nothing else tells so."""
    stampers = [Stamper(ProducerId(number)) for number in (1, 2, 3)]
    name = JournalName("progress/pending")
    with connect_sync(node.address) as client:
        journals = client.journals
        revision = journals.create(name, labels={FRAMING_LABEL: "json-lines"}).create_revision
        first = stampers[0].committed(JSON_LINES, b'{"x":1}', WALL)
        parts = [each.pending(name, JSON_LINES, b'{"x":2}', WALL) for each in stampers[1:]]
        journals.append(name, first + b"".join(parts))
        stands = len(first + parts[0])
        streams: Any = Streams()
        progress = Progress(streams, address=node.address)
        told: Any = Report("q", "r", 0, 1, (None, at(revision, **{name: stands}), None))
        progress.told(told)

        assert progress.pending("q") == {name: Pending(1, len(first))}
        journals.append(name, stampers[1].intents()[0].content())
        later: Any = Report("q", "r", 1, 1, (None, at(revision, **{name: journals.end(name)}), None))
        progress.told(later)
        assert progress.pending("q") == {name: Pending(1, stands)}
        with pytest.raises(ConfigError, match=r"give broadsheet\.spark\.watch an address"):
            progress.pending("unknown")
        journals.delete(name)
        with pytest.raises(NotFound):
            progress.pending("q")
    progress.close()
    assert streams.listeners == []


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_query_of_spark_is_watched(node: Any, spark: Any, tmp_path: Path) -> None:
    """Spark's reports have what is computed with, also when nothing new is there."""
    stamper = Stamper(ProducerId(1))
    content = b"".join(stamper.committed(JSON_LINES, b'{"x":%d}' % x, WALL) for x in range(9))
    with connect_sync(node.address) as client:
        client.journals.create("progress/in", labels={FRAMING_LABEL: "json-lines"})
        client.journals.append("progress/in", content)
    progress = watch(spark)
    rows = spark.readStream.format("broadsheet").options(address=node.address, journals="progress/in")
    limited = rows.option("maxBytesPerTrigger", len(content) // 3).schema("x long").load()
    writer = limited.writeStream.format("noop").queryName("watched").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        query.awaitTermination()
        give_up = time.monotonic() + 60
        while (found := progress.of(query.id)) is None or found.is_running:
            assert time.monotonic() < give_up, "Spark reports in a thread of its own"
            time.sleep(0.02)
    finally:
        progress.close()

    assert (found.name, found.rows) == ("watched", 9)
    (journal,) = found.journals.values()
    assert (journal.position, journal.read_bytes, journal.lag_bytes) == (len(content), len(content), 0)
    assert 'broadsheet_spark_is_running{query="watched"} 0.0' in progress.text()
