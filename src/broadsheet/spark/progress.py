"""Progress: how far the queries of a session have read their journals, as Spark reports it after each batch.

    progress = broadsheet.spark.watch(spark, address=A)
    progress.text()                  # for Prometheus; or prometheus_client.REGISTRY.register(progress)
    progress.of(query.id).journals["clicks/raw"].lag_bytes
    progress.pending(query.id)       # asks the node, and reads up to 16 MiB of each journal

Spark has no metrics of a Python source's own. What it has is computed with: where a batch began and ended in
each journal, and where the journals ended when it was planned. Counts of messages behind the end are not
known (ADR 0204). Units: bytes of journals, rows, seconds. Source: pipelines.1-5.
"""

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from pyspark.sql.streaming.listener import StreamingQueryListener

from broadsheet.errors import ConfigError
from broadsheet.message.position import Position
from broadsheet.message.producer_state import NOT_OPEN
from broadsheet.spark.connection import PATIENCE_S, Target, token_of
from broadsheet.spark.offsets import Positions, decoded
from broadsheet.spark.read import index_up_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

ENDED_MAX: Final = 64
"""Of how many queries that have ended the last numbers are kept."""


class JournalProgress(NamedTuple):
    """How far a query has read one journal."""

    position: int
    """Where the newest batch ended."""
    end: int
    """The journal's committed end when that batch was planned."""
    read_bytes: int
    """What all batches of this run read together."""
    create_revision: int

    @property
    def lag_bytes(self) -> int:
        """What was committed, and not in a batch yet."""
        return max(0, self.end - self.position)


class QueryProgress(NamedTuple):
    """How far one run of a query is."""

    name: str
    """Of the query; its id if it has none."""
    run: str
    """Which run of the query."""
    batch: int
    """The newest batch."""
    seconds: float
    """How long that batch took."""
    rows: int
    """The rows that all batches of this run read together, of all sources."""
    journals: dict[str, JournalProgress]
    is_running: bool = True


class Pending(NamedTuple):
    """Messages of one journal that a query has read over, and that are not acknowledged yet."""

    transactions: int
    """How many producers have such messages."""
    begin: int
    """Where the first of them is; the query's position if there is none."""


class Progress(StreamingQueryListener, Collector):
    """The progress of all queries of a session that begin from now on; a collector of prometheus_client."""

    def __init__(
        self, spark: "SparkSession", *, address: str = "", token: str = "", patience_s: float = PATIENCE_S
    ) -> None:
        """Listen to the queries of `spark`.

        Args:
            address: `host:port` of a node, which only `pending` asks.
            token: by default `BROADSHEET_TOKEN` of the environment.
            patience_s: how long `pending` waits for the node.
        """
        self._target = Target(address, token_of(token), patience_s)
        self._spark = spark
        self._lock = threading.Lock()
        self._queries: dict[str, QueryProgress] = {}
        """By id, the one that was told longest ago first."""
        spark.streams.addListener(self)

    def of(self, query: str) -> QueryProgress | None:
        """What is known of the query with this id; None before its first report."""
        with self._lock:
            return self._queries.get(query)

    def text(self) -> str:
        """All numbers in Prometheus's text format."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()

    def close(self) -> None:
        """Listen no longer."""
        self._spark.streams.removeListener(self)

    def pending(self, query: str) -> dict[str, Pending]:
        """The messages that no acknowledgement has decided at the query's position, by journal.

        Reads the journal from the last index point on, up to 16 MiB.

        Raises:
            ConfigError: this object has no address, or the query has not reported yet.
            NotFound: a journal was deleted, or another one has its name.
        """
        found = self.of(query)
        if not self._target.address or found is None:
            raise ConfigError(
                f"pending messages of query {query} are not known: give broadsheet.spark.watch an address, "
                "and wait for the query's first batch"
            )
        return {name: self._pending(name, each) for name, each in found.journals.items()}

    def collect(self) -> Iterable[Metric]:
        """The numbers of the queries, as prometheus_client asks for them."""
        with self._lock:
            queries = list(self._queries.values())
        of_query: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
            "is_running": GaugeMetricFamily(
                "broadsheet_spark_is_running", "1 while the query runs.", labels=["query"]
            ),
            "batch": GaugeMetricFamily(
                "broadsheet_spark_batch", "The number of the newest batch.", labels=["query"]
            ),
            "seconds": GaugeMetricFamily(
                "broadsheet_spark_batch_seconds", "How long the newest batch took.", labels=["query"]
            ),
            "rows": CounterMetricFamily(
                "broadsheet_spark_rows", "Rows that this run has read, of all sources.", labels=["query"]
            ),
        }
        labels = ["query", "journal"]
        of_journal: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
            "position": GaugeMetricFamily(
                "broadsheet_spark_position_bytes", "Where the newest batch ended.", labels=labels
            ),
            "end": GaugeMetricFamily(
                "broadsheet_spark_end_bytes",
                "The journal's committed end when the batch was planned.",
                labels=labels,
            ),
            "lag_bytes": GaugeMetricFamily(
                "broadsheet_spark_lag_bytes", "What is committed, and in no batch yet.", labels=labels
            ),
            "read_bytes": CounterMetricFamily(
                "broadsheet_spark_read_bytes", "What this run has read of the journal.", labels=labels
            ),
        }
        for query in queries:
            for field, family in of_query.items():
                family.add_metric([query.name], float(getattr(query, field)))
            for journal, progress in query.journals.items():
                for field, family in of_journal.items():
                    family.add_metric([query.name, journal], float(getattr(progress, field)))
        return [*of_query.values(), *of_journal.values()]

    def describe(self) -> Iterable[Metric]:
        """Nothing: the metrics are made when they are collected."""
        return ()

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:  # noqa: N802 - Spark's name.
        """Nothing: a query is known from its first batch on."""

    def onQueryIdle(self, event: "QueryIdleEvent") -> None:  # noqa: N802 - Spark's name.
        """Nothing: nothing has changed."""

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:  # noqa: N802 - Spark's name.
        """Take up a report of Spark."""
        self.told(event.progress)

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:  # noqa: N802 - Spark's name.
        """Note that a query has ended; its last numbers stay for a while."""
        with self._lock:
            last = self._queries.get(str(event.id))
            if last is not None and last.run == str(event.runId):
                self._queries[str(event.id)] = last._replace(is_running=False)
            ended = [query for query, each in self._queries.items() if not each.is_running]
            for query in ended[:-ENDED_MAX]:
                del self._queries[query]

    def told(self, report: "StreamingQueryProgress") -> None:
        """Add what one report of Spark says."""
        query, run = str(report.id), str(report.runId)
        with self._lock:
            last = self._queries.pop(query, None)
            if last is None or last.run != run:
                last = QueryProgress(report.name or query, run, -1, 0.0, 0, {})
            journals: dict[str, JournalProgress] = {}
            for source in report.sources:
                for name, each in _read(source.startOffset, source.endOffset, source.latestOffset):
                    before = journals.get(name) or last.journals.get(name)
                    read_bytes = each.read_bytes + (before.read_bytes if before is not None else 0)
                    journals[name] = each._replace(read_bytes=read_bytes)
            self._queries[query] = last._replace(
                batch=report.batchId,
                seconds=report.batchDuration / 1000,
                rows=last.rows + report.numInputRows,
                journals=journals or last.journals,
            )

    def _pending(self, journal: str, progress: JournalProgress) -> Pending:
        at = Position(progress.position, progress.create_revision)
        index = index_up_to(self._target, journal, at)
        begins = [int(state.begin) for state in index.states.values() if state.begin != NOT_OPEN]
        return Pending(len(begins), min(begins, default=at.offset))


def _read(start: str | None, end: str | None, latest: str | None) -> Iterator[tuple[str, JournalProgress]]:
    """What a batch read of each journal, if the offsets are those of our source."""
    ours = [_positions(text) for text in (start, end, latest)]
    if ours[1] is None:
        return
    for name, position in ours[1].items():
        begin, head = ((each or {}).get(name, Position(0, 0)) for each in (ours[0], ours[2]))
        is_same = begin.create_revision == position.create_revision
        yield (
            name,
            JournalProgress(
                position=position.offset,
                end=head.offset if head.create_revision == position.create_revision else position.offset,
                read_bytes=position.offset - (begin.offset if is_same else 0),
                create_revision=position.create_revision,
            ),
        )


def _positions(text: str | None) -> Positions | None:
    """The positions in an offset of our source; None of another source's, or of none."""
    try:
        return decoded(msgspec.json.decode(text or "null", type=dict[str, dict[str, int]]))
    except (msgspec.MsgspecError, KeyError):
        return None
