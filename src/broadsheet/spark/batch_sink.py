"""Batch sink: `df.write.format("broadsheet")`, which writes the rows of each batch once.

A commit journal records batches by number, as it does for a query. The rows of a batch that it has already
are read and not written.

* A batch of a query (`broadsheet.spark.start(…, foreach_batch=…)`): `start` has placed the fence, and Spark
  gives number and offsets. All that holds for a query's sink holds here.
* A batch by itself: option `batchId` is its number. Numbers rise, and may leave gaps. PLAN places a fence of
  this write's own, so that an older write that still runs cannot commit any more.

PLAN: Spark pickles the writer once it has made it, and nothing else does. TASK: `sink.Output`. COMMIT and
ABORT: Spark unpickles that writer in a process beside the driver. Source: pipelines.6-11; docs/adr/0205.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from broadsheet.errors import ConfigError, LocalProtocolError
from broadsheet.runtime.failpoints import passed
from broadsheet.sink.core.history import refuse_other_batch, refuse_other_query
from broadsheet.sink.core.records import FENCE_BYTES, BatchPlan, Fence
from broadsheet.spark import sink
from broadsheet.spark.kafka_options import OF_SINK
from broadsheet.spark.options import Options
from broadsheet.spark.sink import Done, Output, Routing, commit_of_query

OWNER: Final = "batch writes"
"""The register `query` of a commit journal of batches that belong to no query."""
BATCH_MAX: Final = (1 << 63) - 1
KNOWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        **sink.KNOWN,
        "batchId": "The number of this batch: a whole number below 2^63, greater than that of every batch "
        "that the commit journal has, such as the hour whose rows it holds. A write under the number of the "
        "newest one writes nothing. `start` sets it for `foreach_batch`.",
        "queryId": "The query whose batch this is. `start` sets it for `foreach_batch`.",
    }
)
"""The options of a batch write."""
UNNUMBERED: Final = (
    "an exactly-once write needs option 'commitJournal', the journal that records which batches are written, "
    "and option 'batchId', the number of this one: give both, or set option mode to 'at-least-once'"
)


def _digest(routing: Routing, schema: StructType) -> str:
    """SHA-256 of where the rows go and of their columns, by which a rerun is told from another write."""
    columns = [[field.name, field.dataType.simpleString()] for field in schema]
    return hashlib.sha256(msgspec.json.encode([routing.to, routing.names, routing.key, columns])).hexdigest()


class BatchWriter(Output, DataSourceArrowWriter):
    """`df.write.format("broadsheet")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        given = Options(options, KNOWN, "batch sink", OF_SINK)
        super().__init__(given, schema)
        self.query = given.text("queryId", OWNER)
        self.is_of_query = bool(self.fence)
        self.digest = _digest(self.routing, schema)
        if not self.is_exact and (self.fence or self.commit_journal or given.text("batchId")):
            raise ConfigError(
                "mode at-least-once has no commit journal and no numbers: leave out options 'commitJournal' "
                "and 'batchId'"
            )
        if self.is_exact and not (self.commit_journal and given.text("batchId")):
            raise ConfigError(UNNUMBERED)
        self.batch = given.count("batchId", 0) if self.is_exact else 0
        if self.batch > BATCH_MAX:
            raise ConfigError(f"option batchId is {self.batch}, not below 2^63")
        if self.is_of_query != bool(given.text("queryId")) or (self.is_of_query and not self.checkpoint):
            raise ConfigError(
                "options 'fence', 'queryId' and 'checkpointLocation' go together: give a batch of a query "
                "all options that broadsheet.spark.start(…, foreach_batch=…) passes to its function"
            )

    def __getstate__(self) -> dict[str, Any]:
        """PLAN, because Spark pickles the writer for the tasks and for COMMIT."""
        if self.is_exact and self.plan is None:
            self.plan = self._planned()
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """TASK: append the rows as pending messages, and return the intents that would commit them."""
        return self.appended(iterator, self.batch, self.query)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """COMMIT: record the batch and acknowledge its messages. Only for mode exactly-once."""
        if not self.is_exact:
            return
        passed("sink.commit.begin")
        done = [message for message in messages if isinstance(message, Done)]
        if len(done) != len(messages):
            raise LocalProtocolError(
                f"Spark commits batch {self.batch} with the results of {len(done)} of {len(messages)} tasks: "
                "nothing is committed. Write the batch again"
            )
        journal, intents = self._journal(), [intent for each in done for intent in each.intents]
        if self.is_of_query:
            commit_of_query(
                journal, self.fence, self.checkpoint, batch=self.batch, query=self.query, intents=intents
            )
        else:
            journal.commit(
                self.fence,
                batch=self.batch,
                query=self.query,
                digest=self.digest,
                intents=intents,
                is_next=False,
            )
        passed("sink.commit.end")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """ABORT: append nothing, because the batch may be committed all the same."""
        self.give_up(messages, self.batch)

    def _planned(self) -> BatchPlan:
        """START, for a batch by itself, and PLAN.

        Raises:
            ConfigError: this run of the query has written the batch already.
            Fenced: another run of the query, or another write, became the author.
            LocalProtocolError: the commit journal has a greater batch, or belongs to a query. Nothing was
                fenced.
        """
        journal = self._journal()
        if not self.is_of_query:
            now = journal.standing()
            refuse_other_query(now.query, self.query, journal=self.commit_journal)
            refuse_other_batch(now, self.batch, journal=self.commit_journal, is_next=False)
            self.fence = Fence(os.urandom(FENCE_BYTES).hex())
            journal.begin(self.fence)
            passed("sink.start.end")
        plan = journal.plan(self.fence)
        if plan.committed == self.batch and plan.committed_by == self.fence:
            raise ConfigError(
                f"batch {self.batch} has been written to commit journal {self.commit_journal} by this run of "
                "the query, and a batch is written once: join the rows in one frame with a column 'journal', "
                "or give the second write a commit journal of its own, without options fence and queryId"
            )
        return plan
