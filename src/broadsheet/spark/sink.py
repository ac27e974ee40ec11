"""Sink: the exactly-once sink of Spark, as one writer object that Spark uses in three processes.

`Output` is what a query's writer here shares with that of a batch write (`batch_sink`).

PLAN: Spark makes the writer and pickles it before the tasks of each batch. Nothing else pickles it, so
`__getstate__` reads the registers of the commit journal. TASK: in a worker, the writer appends pending
messages under the worker's own producer id, waits until the journals have acknowledged the appends, and
returns the intents that would commit the messages. COMMIT and ABORT: in a process beside the driver, through
`commits.CommitJournal`.

A producer id belongs to one fence and one worker process, and is used for the next batch only if PLAN lists
it. The journal of a row is given by its column `journal`, by option `journal`, or by options `toJournals`
and `keyColumn`. Source: pipelines.6-11.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from broadsheet.base.time import WallTime
from broadsheet.base.types import JournalName, Revision
from broadsheet.errors import ConfigError, LocalProtocolError, NotFound
from broadsheet.journal.core.spec import FRAMING_LABEL, framing_of
from broadsheet.message.framing import JSON_LINES, Framing, Kind
from broadsheet.message.mapping import modulo_each
from broadsheet.message.stamper import Intent, Stamper
from broadsheet.message.uuid import PRODUCER_BYTES, Flag, ProducerId, producer_from
from broadsheet.runtime.failpoints import passed
from broadsheet.sink.core.history import refuse_other_query
from broadsheet.sink.core.producers import HeldStamper, OutsideStamper
from broadsheet.sink.core.records import BatchPlan, Fence
from broadsheet.spark.checkpoint import Commits, keep_to, logged
from broadsheet.spark.column_types import refuse_types
from broadsheet.spark.commits import CommitJournal
from broadsheet.spark.connection import TARGET_OPTIONS, Target, patiently
from broadsheet.spark.encode import VALUE, portions, rows_framed
from broadsheet.spark.kafka_options import OF_SINK
from broadsheet.spark.keys import keys_of
from broadsheet.spark.options import Options
from broadsheet.spark.worker import freeze_imported

APPEND_BYTES = 4 << 20
"""An append is started once a journal has this many bytes waiting."""
JOURNALS_MAX = 10_000
"""How many journals one task may write to."""
APPENDS_ON_WAY = 4
"""How many appends run at once, each to another journal; this bounds memory and threads."""
QUERIES_MAX = 64
"""Queries whose producers a worker process holds."""
WAITING_BYTES_MAX = 64 << 20
"""Bytes that wait for all journals together. Above them, the journal with the most bytes is appended to."""

UNSTARTED = (
    "the exactly-once sink must be fenced before it starts: call broadsheet.spark.start(df.writeStream…, "
    "commit_journal=…), or set option mode to 'at-least-once'"
)


BATCH_PROPERTY, QUERY_PROPERTY = "streaming.sql.batchId", "sql.streaming.queryId"
MODES = ("exactly-once", "at-least-once")
KNOWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        **TARGET_OPTIONS,
        "journal": "The journal that gets all rows. Without this option the column `journal` names the "
        "journal of each row, or `toJournals` is given.",
        "toJournals": "Names of journals, separated by commas. The key of a row chooses one of them: FNV-1a "
        "of the key's bytes, modulo their count, in the order of their names.",
        "keyColumn": "The column that holds the key. Required with `toJournals`.",
        "createJournals": "Whether a journal that does not exist is created: `true`, or `false` (the "
        "default).",
        "mode": "`exactly-once` (the default), or `at-least-once`: each message commits by itself, and there "
        "is no commit journal.",
        "commitJournal": "The journal in which this query, or these batch writes, record their batches. "
        "`start` sets it.",
        "fence": "The id of this run of the query. `start` sets it.",
        "checkpointLocation": "Spark's own option, of a query. A commit reads the batch's offsets there, and "
        "the first commit writes there which commit journal the query has. It is on this machine or in a "
        "file system that pyarrow can write.",
        "queryName": "Spark's own option.",
    }
)
"""The options of the sink."""


class Done(WriterCommitMessage):
    """The result of a sink's task: the intents that would commit what it appended."""

    def __init__(self, query: str, batch: int, intents: list[Intent], row_count: int) -> None:
        self.query, self.batch, self.intents, self.row_count = query, batch, intents, row_count


class Routing:
    """Decides to which journal each row of the sink goes."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.to, self.key = options.text("journal"), options.text("keyColumn")
        # Every publisher must use this order: see `message.mapping`.
        self.names = sorted(options.names("toJournals"))
        self.by_column = "journal" in schema.names and not self.to and not self.names
        self.leave_out = frozenset({"journal"}) if self.by_column else frozenset()
        if (self.to and (self.names or self.key)) or bool(self.names) != bool(self.key):
            raise ConfigError("set either option 'journal', or options 'toJournals' and 'keyColumn' together")
        if not (self.to or self.by_column or self.names):
            raise ConfigError(
                "no journal is named for the rows: add a column 'journal', or set option 'journal', or "
                "options 'toJournals' and 'keyColumn'"
            )
        if self.key and self.key not in schema.names:
            raise ConfigError(f"keyColumn {self.key!r} is not a column: choose one of {schema.names}")

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The sink's rows of each journal, in their order."""
        if not batch.num_rows:
            return
        if self.to:
            yield self.to, batch
            return
        if self.by_column:
            encoded = batch.column("journal").cast(pa.string()).dictionary_encode()
            if encoded.null_count:
                raise LocalProtocolError(
                    f"{encoded.null_count} rows have a null journal: filter these rows, or name a journal"
                )
            places, names = np.asarray(encoded.indices), encoded.dictionary.to_pylist()
        else:
            keys = [key or b"" for key in keys_of(batch.column(self.key)).to_pylist()]
            places, names = np.array(modulo_each(keys, len(self.names))), self.names
        for place in np.unique(places).tolist():
            yield names[place], batch.take(pa.array(np.flatnonzero(places == place)))


_held: dict[Fence, HeldStamper] = {}
"""By query, the one used longest ago first: the queries of a session take turns in this process."""
_outside = OutsideStamper()


def _held_of(fence: Fence) -> HeldStamper:
    held = _held[fence] = _held.pop(fence) if fence in _held else HeldStamper()
    if len(_held) > QUERIES_MAX:
        del _held[next(iter(_held))]
    return held


def new_producer() -> ProducerId:
    """A random producer id, so that no other stamper has it."""
    return producer_from(os.urandom(PRODUCER_BYTES))


class Appender:
    """Appends pending messages to journals, a few MiB at a time, while the next messages are framed.

    At most one append to a journal runs at a time, so messages arrive in the order of their clocks. Otherwise
    an append could overtake an older one, whose messages would then be dropped as duplicates.
    """

    def __init__(
        self,
        target: Target,
        stamper: Stamper,
        flags: Flag,
        *,
        creates: bool,
        leave_out: frozenset[str] = frozenset(),
    ) -> None:
        """Append to the journals of `target`.

        Args:
            leave_out: columns that are in no body.
        """
        self.target, self.stamper, self.flags, self.creates = target, stamper, flags, creates
        self.leave_out = leave_out
        self.found: dict[str, tuple[Framing, Revision]] = {}
        self.waiting: dict[str, list[bytes]] = {}
        self.waiting_bytes: dict[str, int] = {}
        self.total_bytes = 0
        self.on_way: dict[str, Future[None]] = {}
        self.threads = ThreadPoolExecutor(APPENDS_ON_WAY, "broadsheet-append")
        self.row_count = 0

    def add(self, journal: str, rows: pa.RecordBatch) -> None:
        """Frame the rows of one journal, and start appends if enough bytes are waiting.

        A batch of Spark has 64 MiB, or what the session allows, if its rows are long. It is appended in
        portions, because a node may take no append of that length, or not in the time of one append.
        """
        framing, revision = self._find(journal)
        wall = WallTime(time.time_ns())
        first = self.stamper.reserve(
            JournalName(journal), framing, rows.num_rows, wall, create_revision=revision
        )
        framed = rows_framed(
            framing, rows, self.leave_out, producer=self.stamper.producer, first=first, flags=self.flags
        )
        self.row_count += rows.num_rows
        for content in portions(framed, APPEND_BYTES):
            self._wait(journal, content)

    def _wait(self, journal: str, content: bytes) -> None:
        self.waiting.setdefault(journal, []).append(content)
        self.waiting_bytes[journal] = self.waiting_bytes.get(journal, 0) + len(content)
        self.total_bytes += len(content)
        if self.waiting_bytes[journal] >= APPEND_BYTES:
            self._flush(journal)
        while self.total_bytes > WAITING_BYTES_MAX:
            self._flush(max(self.waiting_bytes, key=self.waiting_bytes.__getitem__))

    def flush(self) -> None:
        """Append all that is waiting, and return when everything is durable."""
        for journal in list(self.waiting):
            self._flush(journal)
        for appended in self.on_way.values():
            appended.result()

    def close(self) -> None:
        """Cancel appends that have not started, and wait for those that have."""
        self.threads.shutdown(cancel_futures=True)

    def _flush(self, journal: str) -> None:
        while (before := self.on_way.pop(journal, None)) or len(self.on_way) >= APPENDS_ON_WAY:
            (before or self.on_way.pop(next(iter(self.on_way)))).result()
        content = b"".join(self.waiting.pop(journal))
        self.total_bytes -= self.waiting_bytes.pop(journal)
        self.on_way[journal] = self.threads.submit(self._append, journal, content)

    def _append(self, journal: str, content: bytes) -> None:
        # This append may be repeated: readers drop the second copy by its clocks. If the journal was deleted
        # and created again, the new one lacks what the old one got. Then `create_revision` makes the append
        # fail, and with it the task; its next attempt writes all of the messages.
        _, revision = self.found[journal]
        journals = self.target.journals
        patiently(
            lambda: journals().append(journal, content, create_revision=revision), self.target.patience_s
        )

    def _find(self, journal: str) -> tuple[Framing, Revision]:
        """The framing of a journal and its create revision; creates the journal if that is allowed."""
        if journal in self.found:
            return self.found[journal]
        if len(self.found) >= JOURNALS_MAX:
            raise LocalProtocolError(
                f"one task writes to more than {JOURNALS_MAX} journals: partition the rows by journal first"
            )
        journals = self.target.journals()
        try:
            info = patiently(lambda: journals.get(journal), self.target.patience_s)
        except NotFound:
            if not self.creates:
                raise
            labels = {FRAMING_LABEL: Kind.JSON_LINES.value}
            info = patiently(
                lambda: journals.create(journal, labels=labels, if_absent=True), self.target.patience_s
            )
        self.found[journal] = framing_of(info.spec) or JSON_LINES, info.create_revision
        return self.found[journal]


def task_of(local_property: Callable[[str], str | None]) -> tuple[int, str]:
    """The batch and the query of the running task, from Spark's local properties.

    Raises:
        LocalProtocolError: Spark did not set one of them.
    """
    batch, query = (local_property(name) for name in (BATCH_PROPERTY, QUERY_PROPERTY))
    if batch is None or query is None:
        raise LocalProtocolError(
            f"Spark gave this task no {BATCH_PROPERTY if batch is None else QUERY_PROPERTY}: the sink works "
            "only in a streaming query (writeStream), with the version of Spark that broadsheet requires"
        )
    return int(batch), query


class Output:
    """What the writer of a query and that of a batch write share: their options, and TASK."""

    def __init__(self, given: Options, schema: StructType) -> None:
        self.target = Target.of(given)
        self.routing = Routing(given, schema)
        if VALUE not in schema.names:  # Otherwise the other columns are not written.
            refuse_types(schema)
        self.is_exact = given.choice("mode", MODES, "exactly-once") == "exactly-once"
        self.fence = Fence(given.text("fence"))
        self.commit_journal = given.text("commitJournal")
        self.creates = given.flag("createJournals", default=False)
        self.checkpoint = given.text("checkpointLocation")
        self.plan: BatchPlan | None = None

    def appended(self, iterator: Iterator[pa.RecordBatch], batch: int, query: str) -> "Done":
        """TASK: append the rows as pending messages, and return the intents that would commit them.

        Rows of a batch that is committed already are read to their end, so that the operators before the
        sink advance, and are not written: the output is committed already.
        """
        freeze_imported()
        if not self.is_exact:
            stamper = _outside.take(process=os.getpid(), new_producer=new_producer)
            _, row_count = self._append(iterator, stamper, Flag.OUTSIDE)
            _outside.keep(stamper, process=os.getpid())
            return Done(query, batch, [], row_count)
        assert self.plan is not None, "PLAN ran"
        refuse_other_query(self.plan.query, query, journal=self.commit_journal)
        if self.plan.is_committed(batch):
            row_count = sum(rows.num_rows for rows in iterator)
            return Done(query, batch, [], row_count)
        held = _held_of(self.fence)
        stamper = held.take(self.plan, process=os.getpid(), new_producer=new_producer)
        intents, row_count = self._append(iterator, stamper, Flag.CONTINUE)
        held.keep(self.plan, stamper, intents, process=os.getpid())
        return Done(query, batch, intents, row_count)

    def give_up(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """ABORT: append nothing, because the batch may be committed all the same."""
        if self.is_exact:
            intents = [intent for each in messages if isinstance(each, Done) for intent in each.intents]
            self._journal().abort(self.fence, batch=batch, intents=intents)

    def _append(
        self, iterator: Iterator[pa.RecordBatch], stamper: Stamper, flags: Flag
    ) -> tuple[list[Intent], int]:
        leave_out = self.routing.leave_out
        with closing(
            Appender(self.target, stamper, flags, creates=self.creates, leave_out=leave_out)
        ) as appender:
            for batch in iterator:
                for journal, rows in self.routing.split(batch):
                    if journal == self.commit_journal:
                        raise LocalProtocolError(
                            f"{journal} is the query's commit journal: send the rows to another journal"
                        )
                    appender.add(journal, rows)
            passed("sink.task.framed")
            appender.flush()
        passed("sink.task.appended")
        return stamper.intents(), appender.row_count

    def _journal(self) -> CommitJournal:
        freeze_imported()  # PLAN and COMMIT run in workers that Spark keeps, too.
        return CommitJournal(self.target, self.commit_journal)


def commit_of_query(
    journal: CommitJournal,
    fence: Fence,
    checkpoint: str,
    *,
    batch: int,
    query: str,
    intents: Sequence[Intent],
) -> None:
    """COMMIT of a batch whose offsets are in a query's checkpoint.

    Raises:
        ConfigError: the checkpoint cannot be read or written. Nothing is committed.
        BroadsheetError: as `CommitJournal.commit`.
    """
    spark_has = logged(checkpoint, batch)
    if batch == 0:  # Of a later batch the commit journal itself tells that it is another one.
        keep_to(checkpoint, Commits(journal.name, journal.create_revision()))
    journal.commit(
        fence,
        batch=batch,
        query=query,
        digest=spark_has.digest,
        intents=intents,
        positions=spark_has.positions,
    )


class SinkWriter(Output, DataSourceStreamArrowWriter):
    """`df.writeStream.format("broadsheet")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(Options(options, KNOWN, "sink", OF_SINK), schema)
        if self.is_exact and not (self.fence and self.commit_journal):
            raise ConfigError(UNSTARTED)
        if self.is_exact and not self.checkpoint:
            raise ConfigError(
                "the exactly-once sink compares the checkpoint's offsets: give option 'checkpointLocation' "
                "at writeStream, because the sink does not see the session's setting"
            )
        if not self.is_exact and (self.fence or self.commit_journal):
            raise ConfigError(
                "mode at-least-once has no commit journal: start the query with writeStream.start(), and not "
                "with broadsheet.spark.start"
            )

    def __getstate__(self) -> dict[str, Any]:
        """PLAN: read the registers, because Spark pickles the writer for the tasks of the next batch."""
        if self.is_exact and self.plan is None:
            self.plan = self._journal().plan(self.fence)
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """TASK: append the rows as pending messages, and return the intents that would commit them."""
        context = TaskContext.get()
        assert context is not None, "a task has a context"
        batch, query = task_of(context.getLocalProperty)
        return self.appended(iterator, batch, query)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name.
    ) -> None:
        """COMMIT: record the batch and acknowledge its messages. Only for mode exactly-once."""
        if not self.is_exact:
            return
        passed("sink.commit.begin")
        done = [message for message in messages if isinstance(message, Done)]
        whose = sorted({(each.query, each.batch) for each in done})
        if len(whose) != 1 or whose[0][1] != batchId:
            raise LocalProtocolError(
                f"Spark commits batch {batchId} with results of tasks of {whose} (query, batch): nothing is "
                "committed. Start the query again"
            )
        intents = [intent for message in done for intent in message.intents]
        commit_of_query(
            self._journal(), self.fence, self.checkpoint, batch=batchId, query=whose[0][0], intents=intents
        )
        passed("sink.commit.end")

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name.
    ) -> None:
        """ABORT: append nothing, because the batch may be committed all the same."""
        self.give_up(messages, batchId)
