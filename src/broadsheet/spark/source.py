"""Source: the data source `format("broadsheet")`, which reads journals as rows in batches and in streams.

Spark calls the planning methods (`latestOffset`, `partitions` and others) in a Python process beside the
driver, and `read` in its workers. Readers and partitions are pickled on the way, so a partition holds all
that its task needs. Rows are returned as Arrow batches. `.schema(…)` may be used in place of option
`schema`; it names exactly the wanted columns. Source: pipelines.1-5.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from broadsheet.base.time import Instant
from broadsheet.client_sync import SyncJournals
from broadsheet.errors import ConfigError, LocalProtocolError, NotFound, Trimmed
from broadsheet.journal.core.spec import FRAMING_LABEL, framing_of
from broadsheet.message.framing import JSON_LINES, Framing, Kind
from broadsheet.message.position import Position
from broadsheet.message.producer_state import INDEX_BYTES_EVERY
from broadsheet.spark.column_types import refuse_types
from broadsheet.spark.connection import Target, chunks, head
from broadsheet.spark.kafka_options import OF_SOURCE
from broadsheet.spark.kept import Kept
from broadsheet.spark.losses import Losses
from broadsheet.spark.meta_columns import Wanted
from broadsheet.spark.offsets import (
    Positions,
    Span,
    alive,
    as_planned,
    at_begin,
    base_of,
    decoded,
    encoded,
    ending,
    equal_tasks,
    limited,
    refuse_other_mode,
    starting,
    tasks,
)
from broadsheet.spark.options import Options
from broadsheet.spark.pace import Pace
from broadsheet.spark.parse import Malformed
from broadsheet.spark.read import REPLAY_BYTES_MAX, Shape, frame_around, index_at, read_span
from broadsheet.spark.source_options import KNOWN
from broadsheet.spark.subscription import Subscription, not_existing, of_each, of_each_that_exists
from broadsheet.spark.worker import freeze_imported

UNINDEXED_BYTES_MAX: Final = 2 * INDEX_BYTES_EVERY
"""So many bytes behind the last index point of a journal an operator is told."""
NO_LIMIT: Final = (1 << 63) - 1
"""The limit in bytes of a stream that has none: more than a journal can have."""


_kept = Kept()
"""What this process keeps of its reads."""


class SpanPartition(InputPartition):
    """The spans that one task reads, with what the task must know of their journals."""

    def __init__(
        self, spans: list[Span], bases: list[int], framings: dict[str, Framing], ends: Positions
    ) -> None:
        super().__init__(None)
        self.spans, self.bases, self.framings, self.ends = spans, bases, framings, ends
        """Of each span, `bases` has the newest index point at or below its begin."""


class Sources:
    """A query's journals and options: where it starts, its cut into tasks, and the reading of one."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = Options(options, KNOWN, "source", OF_SOURCE)
        self.target = Target.of(given)
        self.subscription = Subscription.of(given)
        self.losses = Losses(is_fatal=given.flag("failOnDataLoss", default=True))
        self.task_count = given.count("tasks", 0) or os.cpu_count() or 1
        self.task_count_min = given.count("minPartitions", 0)
        self.pace = Pace.by(given)
        self.starting = given.text("startingOffsets", "earliest")
        self.ending = given.text("endingOffsets", "latest")
        self.ends_early = self.ending.strip().lower() != "latest"
        self.malformed = Malformed(given.choice("malformed", [each.value for each in Malformed], "fail"))
        self.is_committed = given.flag("readCommitted", default=True)
        self.replay_bytes_max = given.count("maxReplayMemory", REPLAY_BYTES_MAX)
        self.meta = Wanted.by(given)
        self.inside_frame = given.choice("startingInsideFrame", ("fail", "next"), "fail")
        self._told: dict[str, None] = {}

    def shape(self, schema: StructType) -> Shape:
        """The shape of the rows that `schema` asks for."""
        refuse_types(schema)
        return Shape(
            _arrow_schema(schema),
            malformed=self.malformed,
            is_committed=self.is_committed,
            replay_bytes_max=self.replay_bytes_max,
            meta=self.meta,
        )

    def batch(self) -> tuple[Positions, Positions]:
        """Where a batch read begins and ends in each journal.

        Raises:
            ConfigError: as `start`, or `endingOffsets` does not fit the journals, or is below
                `startingOffsets`.
            LocalProtocolError: as `start`.
        """
        end = ending(self.ending, self.heads())
        return self.start(end if self.ends_early else None), end

    def start(self, end: Positions | None = None) -> Positions:
        """Where a new query begins in each journal, always at a frame boundary.

        Args:
            end: where it ends, if it ends.

        Raises:
            ConfigError: a journal of option `journals` does not exist, or begins above `end`.
            LocalProtocolError: an explicit offset is inside a frame and `startingInsideFrame` is `fail`, or
                it is above the journal's end.
        """
        infos = self.subscription.infos(self.target)
        if absent := [name for name in self.subscription.names if name not in infos]:
            raise not_existing(absent)
        heads = of_each_that_exists(head, self.target, infos)
        positions = starting(self.starting, heads)
        if above := [n for n, at in positions.items() if end and n in end and at.offset > end[n].offset]:
            raise ConfigError(
                f"startingOffsets is above endingOffsets for {above}: let each read end where it begins, or "
                "after that"
            )
        explicit = [name for name, position in positions.items() if position.offset > position.begin]

        def begin(name: str) -> int:
            framing = framing_of(infos[name].spec) or JSON_LINES
            return self._frame_begin(name, positions[name], heads[name].offset, framing)

        begins = of_each(begin, explicit)
        return positions | {name: positions[name]._replace(offset=at) for name, at in begins.items()}

    def _frame_begin(self, journal: str, position: Position, head: int, framing: Framing) -> int:
        offset = position.offset
        if offset > head:
            raise LocalProtocolError(
                f"startingOffsets: {journal} ends at {head}, below {offset}: give an offset up to its end"
            )

        def read(begin: int, end: int) -> Iterator[bytes]:
            revision = position.create_revision
            return chunks(self.target, journal, create_revision=revision, begin=begin, end=end)

        index = index_at(self.target, framing, journal, offset)
        begin, end = frame_around(index, read, offset, head)
        if begin == end:
            return offset
        bounds = f"[{begin}, {end})" if end > 0 else f"at {begin}, whose end is not committed yet"
        inside = f"startingOffsets: offset {offset} of {journal} is inside the frame {bounds}"
        if self.inside_frame == "fail" or end < 0:
            raise LocalProtocolError(
                f"{inside}: give the offset where a frame begins, or set option startingInsideFrame to 'next'"
            )
        sys.stderr.write(f"broadsheet: {inside}; the query begins at {end}\n")
        return end

    def heads(self) -> Positions:
        """The committed end of each journal that exists, as `Subscription.heads`."""
        return self.subscription.heads(self.target)

    def followed(self, begin: Positions, heads: Positions) -> Positions:
        """`begin` without the journals that are gone, which `heads` do not have or have another life of.

        A journal that the options do not name now keeps its position. If it is named again, the query goes on
        from there. One that is named anew is read from its begin, and so is one that begins behind where the
        query stands.

        Raises:
            LocalProtocolError: a journal is gone, or what the query was to read of it, and option
                `failOnDataLoss` is true; or a journal ends below where the query has read.
            ConfigError: a journal that is named anew does not exist, and `failOnDataLoss` is true.
        """
        absent = [n for n in self.subscription.names if n not in heads and n not in begin]
        if absent and self.losses.is_fatal:
            raise not_existing(absent)
        missing = [name for name in begin if name not in heads and self.subscription.asks_for(name)]
        standing = of_each_that_exists(SyncJournals.get, self.target, missing)
        followed = dict(begin)
        for name, position in begin.items():
            if name in heads and heads[name].create_revision != position.create_revision:
                self.losses.of_journal(name, followed.pop(name), heads[name].create_revision)
            elif name in heads and heads[name].offset < position.offset:
                raise LocalProtocolError(
                    f"journal {name} ends below where this query has read ({heads[name].offset}, and "
                    f"{position.offset}): the node has another data directory, or lost bytes. Point the "
                    "query at the node that it read from, or begin with a new checkpoint"
                )
            elif name in heads and position.offset < heads[name].begin:
                self.losses.of_begin(name, position, heads[name].begin)
                del followed[name]
            elif name in missing and name not in standing:
                self.losses.of_journal(name, followed.pop(name), None)
        return {name: at_begin(at) for name, at in heads.items()} | followed

    def points(self, names: Iterable[str]) -> dict[str, Sequence[int]]:
        """The index points of each journal that exists, ascending."""
        return of_each_that_exists(SyncJournals.index_points, self.target, names)

    def partitions(self, start: Positions, end: Positions) -> list[InputPartition]:
        """The tasks that read `[start, end)`. A journal that the options no longer name may occur.

        Raises:
            LocalProtocolError: a journal was deleted and option `failOnDataLoss` is true.
        """
        for name in [name for name in start if name in end]:
            if start[name].create_revision != end[name].create_revision:
                self.losses.of_journal(name, start[name], end[name].create_revision)
        start = alive(start, end)
        end = self._left(start, end)
        start = alive(start, end)
        moved = {name: at for name, at in end.items() if at.offset > start[name].offset}
        infos = of_each_that_exists(SyncJournals.get, self.target, moved)
        for name, at in list(moved.items()):
            now = infos[name].create_revision if name in infos else None
            if now != at.create_revision:
                self.losses.of_journal(name, at, now, size=at.offset - start[name].offset)
                del moved[name]
        framings = {name: framing_of(infos[name].spec) or JSON_LINES for name in moved}
        points = self.points(moved)
        for name in points:
            self._tell_unindexed(name, start[name].offset, points[name])
        groups = tasks(start, moved, points, self.task_count)
        if len(groups) < self.task_count_min:
            groups = equal_tasks(start, moved, self.task_count_min)
        return [
            SpanPartition(
                spans,
                [base_of(points.get(span.journal, ()), span.begin) for span in spans],
                {span.journal: framings[span.journal] for span in spans},
                {span.journal: moved[span.journal] for span in spans},
            )
            for spans in groups
        ]

    def _left(self, start: Positions, end: Positions) -> Positions:
        """`end` with the begins of today, if the query goes on without what was removed meanwhile."""
        if self.losses.is_fatal:
            return end  # A task that needs it ends the query.
        moved = [name for name, at in end.items() if at.offset > start[name].offset]
        left = dict(end)
        for name, now in of_each_that_exists(head, self.target, moved).items():
            if now.create_revision == end[name].create_revision and now.begin > end[name].begin:
                if now.begin > start[name].offset:
                    self.losses.of_begin(name, start[name], min(now.begin, end[name].offset))
                left[name] = end[name]._replace(begin=now.begin)
        return left

    def _tell_unindexed(self, name: str, begin: int, points: Sequence[int]) -> None:
        """Tell once if every batch reads much that lies before it, because index points end there."""
        at = max(points, default=0)
        if begin - at < UNINDEXED_BYTES_MAX or name in self._told:
            return
        self._told[name] = None
        why = (
            f"its producer index ends at {at}, and `broadsheet journals status {name}` says why"
            if points
            else "it has no producer index: the node indexes journals that are created with label "
            f"{FRAMING_LABEL}={Kind.JSON_LINES.value} or {Kind.FIXED.value}"
        )
        sys.stderr.write(
            f"broadsheet: of journal {name} a worker that has not just read it reads {begin - at} bytes "
            f"before the batch again, in one task, because {why}\n"
        )

    def read(self, partition: InputPartition | None, shape: Shape) -> Iterator[pa.RecordBatch]:
        """The rows of one task.

        Raises:
            LocalProtocolError: a journal was deleted since the task was planned, and option `failOnDataLoss`
                is true.
        """
        freeze_imported()
        if isinstance(partition, SpanPartition):
            for span, base in zip(partition.spans, partition.bases, strict=True):
                yield from self._read_span(span, base, partition, shape)

    def _read_span(
        self, span: Span, base: int, partition: SpanPartition, shape: Shape
    ) -> Iterator[pa.RecordBatch]:
        end, framing = partition.ends[span.journal], partition.framings[span.journal]
        try:
            revision = end.create_revision
            yield from read_span(
                self.target,
                framing,
                span,
                shape,
                create_revision=revision,
                journal_begin=end.begin,
                base=base,
                kept=_kept,
            )
        except Trimmed as error:
            if self.losses.is_fatal:
                self.losses.tell(str(error), size=None)
            raise  # The batch is planned again, without what was removed meanwhile.
        except NotFound:
            found = of_each_that_exists(SyncJournals.get, self.target, [span.journal])
            now = found[span.journal].create_revision if found else None
            if now == end.create_revision:
                raise
            self.losses.of_journal(
                span.journal, end._replace(offset=span.end), now, size=span.end - span.begin
            )


def _arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of the rows; instants are in UTC, as Spark expects them of a data source."""
    # Spark 4.2 has no such argument, and always means UTC.
    in_utc: dict[str, Any] = (
        {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    )
    return to_arrow_schema(schema, **in_utc)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of micro-batches."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.sources = Sources(options)
        if self.sources.ends_early:
            raise ConfigError(
                "option endingOffsets is for batch reads: let a stream end with trigger availableNow"
            )
        self.shape = self.sources.shape(schema)
        self.bounds: Positions | None = None
        self.seen: Positions | None = None
        """The ends that the newest batch was planned with, if nobody has been told them."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name.
        """Where a new query begins. Spark may ask again, and a trimmed journal has another answer then."""
        return self._encoded(self.sources.start())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name.
        """The limit of option `maxBytesPerTrigger`, or none.

        By a limit a batch that may wait is told from one of trigger `once`, for which Spark asks for all.
        """
        pace = self.sources.pace
        is_any = pace.bytes_min or pace.bytes_max
        return ReadMaxBytes(pace.bytes_max or NO_LIMIT) if is_any else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name.
        """Note the present ends, above which a query with trigger AvailableNow does not read."""
        self.bounds = self.sources.heads()

    def latestOffset(  # noqa: N802 - Spark's name.
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """The end of the next batch; `start`, if the batch waits for more."""
        heads = self.bounds if self.bounds is not None else self.sources.heads()
        begin = self.sources.followed(self._decoded(start), heads)
        self.seen = heads
        ends = {name: at._replace(begin=begin[name].begin) for name, at in heads.items()}
        if isinstance(limit, ReadMaxBytes):
            moved = [name for name in ends if ends[name].offset > begin[name].offset]
            new_bytes = sum(ends[name].offset - begin[name].offset for name in moved)
            if self.bounds is None and not self.sources.pace.is_due(new_bytes, Instant(time.monotonic_ns())):
                return start
            if new_bytes > limit.max_bytes:
                ends = limited(begin, ends, self.sources.points(moved), limit.max_bytes)
        return self._encoded(begin | ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name.
        """The committed ends, from which Spark's progress reports compute the lag.

        Spark asks right after `latestOffset`, so the ends that were planned with are told, and not asked for
        again.
        """
        seen, self.seen = self.seen, None
        return self._encoded(seen if seen is not None else self.sources.heads())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        begin, ends = self._decoded(start), self._decoded(end)
        return self.sources.partitions(as_planned(begin, ends), ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return self.sources.read(partition, self.shape)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: reading does not change a journal."""

    def _encoded(self, positions: Positions) -> dict[str, Any]:
        return encoded(positions, is_committed=self.sources.is_committed)

    def _decoded(self, raw: dict[str, Any]) -> Positions:
        refuse_other_mode(raw, is_committed=self.sources.is_committed)
        return decoded(raw)


class BatchReader(DataSourceReader):
    """Reads what is committed when Spark plans the batch, or what `endingOffsets` says of it."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.sources = Sources(options)
        self.shape = self.sources.shape(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        return self.sources.partitions(*self.sources.batch())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return self.sources.read(partition, self.shape)


class BroadsheetDataSource(DataSource):
    """`format("broadsheet")`."""

    @classmethod
    def name(cls) -> str:
        """The name that users pass to `format`."""
        return "broadsheet"

    def schema(self) -> str:
        """The parsed columns of option `schema`, and the meta columns."""
        given = Options(self.options, KNOWN, "source", OF_SOURCE)
        parsed, described = given.text("schema"), Wanted.by(given).ddl()
        return f"{parsed}, {described}" if parsed else described

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name.
        """For `spark.readStream`."""
        return StreamReader(self.options, schema)

    def writer(
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's signature.
    ) -> DataSourceWriter:
        """For `write`: the sink of batches."""
        from broadsheet.spark.batch_sink import BatchWriter

        if overwrite:
            raise ConfigError("journals only grow, so a write cannot overwrite them: use mode('append')")
        return BatchWriter(self.options, schema)

    def streamWriter(  # noqa: N802 - Spark's name.
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's signature.
    ) -> DataSourceStreamArrowWriter:
        """For `writeStream`: the exactly-once sink."""
        from broadsheet.spark.sink import SinkWriter

        if overwrite:
            raise ConfigError(
                "journals only grow, so a query cannot overwrite its output: use output mode append"
            )
        return SinkWriter(self.options, schema)
