"""The data source `format("broadsheet")`: journals as rows, for batch and for streams.

`latestOffset` and its kin run in one process beside the driver, `read` in the workers; a reader crosses by
pickling, and what a task needs is in its partition. Arrow batches only. `.schema(…)` may name exactly the
wanted columns instead of option `schema`. Source: pipelines.1-5.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
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

from broadsheet.errors import ConfigError, LocalProtocolError
from broadsheet.message.framing import Framing
from broadsheet.spark.connection import TARGET_OPTIONS, Target, chunks, head, patiently
from broadsheet.spark.offsets import (
    Position,
    Positions,
    Span,
    decoded,
    encoded,
    limited,
    refuse_remade,
    starting,
    tasks,
)
from broadsheet.spark.options import Options
from broadsheet.spark.parse import Malformed
from broadsheet.spark.read import META_DDL, REPLAY_BYTES_MAX, Shape, frame_around, index_at, read_span
from broadsheet.spark.worker import framing_of, freeze_once

KNOWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        **TARGET_OPTIONS,
        "journals": "Names by comma. Needed.",
        "schema": "The parsed columns, as DDL; without it there are the meta columns alone.",
        "startingOffsets": "Where a new query begins: `earliest` (the default), or JSON of byte offsets by "
        "journal.",
        "startingInsideFrame": "What to do with an offset inside a frame: `fail` (the default), or "
        "`next`: begin at the next frame, with a warning.",
        "maxBytesPerTrigger": "How many bytes one micro-batch reads, about; 0 (the default): all.",
        "maxReplayMemory": "How many bytes of messages that were pending before a block are held at once; "
        f"{REPLAY_BYTES_MAX} by default. Above it they are read again more often, in the "
        "same order.",
        "malformed": "What to do with a message that does not parse: `fail` (the default), `drop` with a "
        "count, or `keep` as a row of nulls whose column `malformed` is true.",
        "readCommitted": "`true` (the default): messages once they are acknowledged. "
        "`false`: all, as they lie there.",
        "tasks": "Into how many tasks a batch is cut at most; 0 (the default): one for each core of "
        "the driver.",
    }
)
"""The options of the source."""


class SpanPartition(InputPartition):
    """What one task reads."""

    def __init__(self, spans: list[Span], framings: dict[str, Framing], ends: Positions) -> None:
        super().__init__(None)
        self.spans, self.framings, self.ends = spans, framings, ends


class Sources:
    """The journals that a query reads, by one connection."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = Options(options, KNOWN, "source")
        self.target = Target.of(given)
        self.names = given.names("journals")
        if not self.names:
            raise ConfigError("option 'journals' is missing: names of journals, separated by commas")
        self.task_count = given.count("tasks", 0) or os.cpu_count() or 1
        self.bytes_max = given.count("maxBytesPerTrigger", 0)
        self.starting = given.text("startingOffsets", "earliest")
        self.malformed = Malformed(given.choice("malformed", [each.value for each in Malformed], "fail"))
        self.is_committed = given.flag("readCommitted", default=True)
        self.replay_bytes_max = given.count("maxReplayMemory", REPLAY_BYTES_MAX)
        self.inside_frame = given.choice("startingInsideFrame", ("fail", "next"), "fail")

    def shape(self, schema: StructType) -> Shape:
        """What rows `schema` asks for."""
        columns: pa.Schema = to_arrow_schema(schema)
        return Shape(
            columns,
            malformed=self.malformed,
            is_committed=self.is_committed,
            replay_bytes_max=self.replay_bytes_max,
        )

    def revisions(self) -> dict[str, int]:
        """The journals with their create revisions."""
        return {name: self._info(name).create_revision for name in self.names}

    def start(self) -> Positions:
        """Where a new query begins: a frame's begin in each journal.

        Raises:
            LocalProtocolError: an explicit offset is inside a frame, and `startingInsideFrame` is `fail`.
        """
        positions = starting(self.starting, self.revisions())
        if explicit := [name for name, position in positions.items() if position.offset]:
            heads = self.heads()
            for name in explicit:
                framing = framing_of(self._info(name).spec.labels)
                begin = self._frame_begin(name, positions[name].offset, heads[name].offset, framing)
                positions[name] = positions[name]._replace(offset=begin)
        return positions

    def _frame_begin(self, journal: str, offset: int, head: int, framing: Framing) -> int:
        if offset > head:
            raise LocalProtocolError(f"startingOffsets: {journal} ends at {head}, below {offset}")

        def read(begin: int, end: int) -> Iterator[bytes]:
            return chunks(self.target, journal, begin=begin, end=end)

        index = index_at(self.target, framing, journal, offset)
        begin, end = frame_around(index, read, offset, head)
        if begin == end:
            return offset
        bounds = f"[{begin}, {end})" if end > 0 else f"at {begin}, whose end is not committed yet"
        inside = f"startingOffsets: offset {offset} of {journal} is inside the frame {bounds}"
        if self.inside_frame == "fail" or end < 0:
            raise LocalProtocolError(
                f"{inside}: name a frame's begin, or set option startingInsideFrame to 'next'"
            )
        sys.stderr.write(f"broadsheet: {inside}; the query begins at {end}\n")
        return end

    def heads(self) -> Positions:
        """The committed ends, each told by a journal that is open and whole.

        Raises:
            StoreUnhealthy: one is still being opened when the patience ends.
            Corrupt: one lacks bytes that were acknowledged.
        """
        return {name: patiently(partial(self._head, name), self.target.patience_s) for name in self.names}

    def _head(self, name: str) -> Position:
        return head(self.target.journals(), name)

    def points(self, names: Sequence[str]) -> dict[str, Sequence[int]]:
        """Index points."""
        return {
            name: patiently(partial(self.target.journals().index_points, name), self.target.patience_s)
            for name in names
        }

    def partitions(self, start: Positions, end: Positions) -> list[InputPartition]:
        """The tasks that read `[start, end)`, of journals that may be left out by now.

        Raises:
            LocalProtocolError: one of them was made again.
        """
        moved = [name for name in end if end[name].offset > (start[name].offset if name in start else 0)]
        infos = {name: self._info(name) for name in moved}
        revisions = {name: info.create_revision for name, info in infos.items()}
        refuse_remade({name: start[name] for name in moved if name in start}, revisions)
        refuse_remade({name: end[name] for name in moved}, revisions)
        if not moved:
            return []
        framings = {name: framing_of(info.spec.labels) for name, info in infos.items()}
        groups = tasks(start, end, self.points(moved), self.task_count)
        return [
            SpanPartition(
                spans,
                {span.journal: framings[span.journal] for span in spans},
                {span.journal: end[span.journal] for span in spans},
            )
            for spans in groups
        ]

    def read(self, partition: InputPartition | None, shape: Shape) -> Iterator[pa.RecordBatch]:
        """The rows of one task.

        Raises:
            LocalProtocolError: a journal was made again since the task was planned.
        """
        freeze_once()
        if isinstance(partition, SpanPartition):
            for span in partition.spans:
                yield from read_span(self.target, partition.framings[span.journal], span, shape)
                # Revisions rise, so what was read before this look was read of the planned journal.
                now = {span.journal: self._info(span.journal).create_revision}
                refuse_remade({span.journal: partition.ends[span.journal]}, now)

    def _info(self, name: str) -> Any:  # noqa: ANN401 - a JournalInfo; the lambda loses it.
        return patiently(lambda: self.target.journals().get(name), self.target.patience_s)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of micro-batches."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.sources = Sources(options)
        self.shape = self.sources.shape(schema)
        self.bounds: Positions | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name.
        """Where a new query begins; the same answer however often Spark asks."""
        return encoded(self.sources.start())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name.
        """The option's bytes, or all."""
        bytes_max = self.sources.bytes_max
        return ReadMaxBytes(bytes_max) if bytes_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name.
        """Go no further than what is there now."""
        self.bounds = self.sources.heads()

    def latestOffset(  # noqa: N802 - Spark's name.
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """The end of the next batch."""
        begin = decoded(start)
        heads = self.bounds or self.sources.heads()
        refuse_remade(begin, {name: head.create_revision for name, head in heads.items()})
        if behind := [n for n, p in begin.items() if n in heads and heads[n].offset < p.offset]:
            raise LocalProtocolError(
                f"journals {behind} end below where this query has read: another data directory, or bytes "
                f"were lost"
            )
        # What is left out for now keeps its place: listed again, it goes on there.
        left_out = {name: position for name, position in begin.items() if name not in heads}
        if not isinstance(limit, ReadMaxBytes):
            return encoded(left_out | heads)
        moved = [name for name in heads if heads[name].offset > (begin[name].offset if name in begin else 0)]
        ends = limited(begin, heads, self.sources.points(moved), limit.max_bytes)
        return encoded(left_out | ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name.
        """The committed ends, from which progress shows the lag."""
        return encoded(self.sources.heads())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        return self.sources.partitions(decoded(start), decoded(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return self.sources.read(partition, self.shape)

    def commit(self, end: dict[str, Any]) -> None:
        """Journals keep what was read; nothing to do."""


class BatchReader(DataSourceReader):
    """Everything committed when it is asked."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.sources = Sources(options)
        self.shape = self.sources.shape(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        return self.sources.partitions(self.sources.start(), self.sources.heads())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return self.sources.read(partition, self.shape)


class BroadsheetDataSource(DataSource):
    """`format("broadsheet")`."""

    @classmethod
    def name(cls) -> str:
        """What users write."""
        return "broadsheet"

    def schema(self) -> str:
        """The parsed columns of option `schema`, and the meta columns."""
        parsed = self.options.get("schema", "")
        return f"{parsed}, {META_DDL}" if parsed else META_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name.
        """For `spark.readStream`."""
        return StreamReader(self.options, schema)

    def streamWriter(  # noqa: N802 - Spark's name.
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's signature.
    ) -> DataSourceStreamArrowWriter:
        """For `writeStream`: the exactly-once sink."""
        from broadsheet.spark.sink import SinkWriter

        if overwrite:
            raise ConfigError("journals only grow: use output mode append, not complete")
        return SinkWriter(self.options, schema)
