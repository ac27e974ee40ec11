"""Foreach: calls a user's function for each batch of a query, and keeps the commit journal in step.

The function gets the options with which it writes the batch exactly once (`batch_sink`). If it did not write,
the batch is recorded as one without rows. So the numbers in the commit journal have no gaps, and a checkpoint
or a commit journal that is lost is noticed, as by the sink of a query. Spark calls the function in
the user's driver. Source: pipelines.6-11; docs/adr/0205.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from broadsheet.errors import ConfigError, LocalProtocolError
from broadsheet.sink.core.records import Fence
from broadsheet.spark.batch_sink import KNOWN
from broadsheet.spark.commits import CommitJournal
from broadsheet.spark.connection import Target
from broadsheet.spark.kafka_options import OF_SINK
from broadsheet.spark.options import Options
from broadsheet.spark.sink import MODES, QUERY_PROPERTY, commit_of_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Function = Callable[["DataFrame", int, dict[str, str]], object]
"""A user's function: the rows of a batch, its number, and the options of its write."""


class Foreach:
    """What Spark calls for each batch of a query."""

    def __init__(self, options: Mapping[str, str], function: Function) -> None:
        """Call `function`.

        Args:
            options: of each write, without number and query.

        Raises:
            ConfigError: one of them is unknown or has a wrong value, or there is no `checkpointLocation`.
        """
        given = Options(options, KNOWN, "batch sink", OF_SINK)
        self.target = Target.of(given)
        self.options, self.function = dict(options), function
        self.fence, self.commit_journal = Fence(given.text("fence")), given.text("commitJournal")
        self.checkpoint = given.text("checkpointLocation")
        given.flag("createJournals", default=False)
        if given.choice("mode", MODES, MODES[0]) != MODES[0]:
            raise ConfigError(
                "foreach_batch writes exactly once: leave out option mode, or write at least once in a "
                "function that you give to writeStream.foreachBatch"
            )
        if not self.checkpoint:
            raise ConfigError(
                "a batch is committed with the checkpoint's offsets: give option 'checkpointLocation' at "
                "writeStream, because the session's setting is not seen"
            )

    def __call__(self, frame: "DataFrame", batch: int) -> None:
        """Let the function write the batch, and record the batch if the function did not.

        Raises:
            Fenced: another run of the query became the author.
        """
        query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_PROPERTY)
        if query is None:
            raise LocalProtocolError(
                f"Spark gave the function of batch {batch} no {QUERY_PROPERTY}: foreach_batch works only "
                "with the version of Spark that broadsheet requires"
            )
        self.function(frame, batch, self.options | {"batchid": str(batch), "queryid": query})
        journal = CommitJournal(self.target, self.commit_journal)
        if not journal.plan(self.fence).is_committed(batch):
            commit_of_query(journal, self.fence, self.checkpoint, batch=batch, query=query, intents=[])
