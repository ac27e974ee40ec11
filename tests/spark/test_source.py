"""Where a query begins, asked of a real node and without Spark."""

import datetime as dt
import decimal
import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from broadsheet.base.time import WallTime
from broadsheet.client_sync import connect_sync
from broadsheet.errors import ConfigError, LocalProtocolError
from broadsheet.journal.core.spec import FRAMING_LABEL
from broadsheet.message.framing import JSON_LINES
from broadsheet.message.position import Position
from broadsheet.message.producer_state import begun
from broadsheet.message.stamper import Stamper
from broadsheet.message.uuid import ProducerId
from broadsheet.spark import source
from broadsheet.spark.meta_columns import Wanted
from broadsheet.spark.offsets import Span
from broadsheet.spark.read import rows_of
from broadsheet.spark.source import BatchReader, BroadsheetDataSource, Sources, StreamReader

X = StructType([StructField("x", LongType())])


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (BooleanType(), b"true", True),
        (ByteType(), b"-1", -1),
        (ShortType(), b"-1", -1),
        (IntegerType(), b"-1", -1),
        (LongType(), b"9223372036854775807", 2**63 - 1),
        (FloatType(), b"1.5", 1.5),
        (DoubleType(), b"0.1", 0.1),
        (DecimalType(5, 2), b'"1.10"', decimal.Decimal("1.10")),
        (StringType(), b'"x"', "x"),
        (BinaryType(), b'"eA=="', b"x"),
        (DateType(), b'"2024-02-29"', dt.date(2024, 2, 29)),
        (TimestampType(), b'"2024-02-29T01:00:00+01:00"', dt.datetime(2024, 2, 29, tzinfo=dt.UTC)),
        (TimestampNTZType(), b'"2024-02-29T01:00:00"', dt.datetime(2024, 2, 29, 1)),  # noqa: DTZ001
        (ArrayType(TimestampType()), b'["2024-02-29T00:00:00"]', [dt.datetime(2024, 2, 29, tzinfo=dt.UTC)]),
        (StructType([StructField("y", LongType())]), b'{"y":1}', {"y": 1}),
    ],
    ids=str,
)
def test_a_column_may_have_any_of_these_types(kind: DataType, text: bytes, value: object) -> None:
    """Whoever named a column `timestamp` was told `AssertionError`: Spark wants to be told the zone."""
    shape = Sources({"address": "none:1", "journals": "none"}).shape(StructType([StructField("x", kind)]))
    line = b'{"x":%s}\n' % text

    span = Span("none", 0, len(line))
    rows = [*rows_of(begun(JSON_LINES), lambda begin, end: iter([line[begin:end]]), span, shape)]
    assert [row["x"] for batch in rows for row in batch.to_pylist()] == [value]


def rows_of_line(line: bytes, schema: str, **options: str) -> list[dict[str, object]]:
    kind = StructType.fromDDL(schema)
    assert isinstance(kind, StructType)
    shape = Sources({"address": "none:1", "journals": "none", **options}).shape(kind)
    span = Span("some/j", 0, len(line))
    found = rows_of(begun(JSON_LINES), lambda begin, end: iter([line[begin:end]]), span, shape)
    return [row for batch in found for row in batch.to_pylist()]


@pytest.mark.usefixtures("spark")  # Spark parses the columns.
def test_a_field_that_is_named_like_a_meta_column_is_read() -> None:
    """Whoever had a field `offset` or `journal` got ours in its place, or an error over its type."""
    line = b'{"offset":"first","journal":7,"value":{"end":0.5},"m":1}\n'
    schema = "offset string, journal int, value struct<end: double>, m struct<journal: string, end: bigint>"

    assert rows_of_line(line, schema, metaColumn="m") == [
        {
            "offset": "first",
            "journal": 7,
            "value": {"end": 0.5},
            "m": {"journal": "some/j", "end": len(line)},
        }
    ]
    data = BroadsheetDataSource({"schema": "offset string", "metaColumn": "m"})
    assert data.schema() == f"offset string, {Wanted(struct='m').ddl()}"


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("bigint", r"column m is named by option metaColumn.*\['m'\] are none of value, journal"),
        ("struct<end: bigint, other: int>", r"\['other'\] are none of value, journal"),
        ("struct<end: int>", "column end is int64, and the schema says int32"),
    ],
)
def test_a_meta_column_that_is_no_such_struct_is_refused(kind: str, words: str) -> None:
    """Its fields would be null, or its rows those of a field of the message."""
    with pytest.raises(LocalProtocolError, match=words):
        rows_of_line(b"", f"m {kind}", metaColumn="m")


@pytest.mark.usefixtures("spark")
def test_a_meta_column_that_is_spelt_in_another_case_is_refused() -> None:
    """Spark finds it, and the source took it for a field that no message has: all of it was null."""
    with pytest.raises(ConfigError, match=r"asks for column 'm', and the schema says \['M'\]"):
        rows_of_line(b"", "M struct<end: bigint>", metaColumn="m")


def test_a_column_without_nulls_does_not_go_with_rows_of_nulls() -> None:
    """Spark met a null where its plan had none, and ended the task with a NullPointerException."""
    strict = StructType([StructField("x", LongType(), nullable=False)])
    options = {"address": "none:1", "journals": "none"}

    with pytest.raises(ConfigError, match=r"\['x'\] are NOT NULL.*'drop' or 'fail'"):
        Sources(options | {"malformed": "keep"}).shape(strict)
    assert Sources(options).shape(strict).parsed.names == ["x"]


def test_an_explicit_offset_inside_a_frame_fails_or_moves_on(
    node: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """Else the query would begin with a message that the user meant to leave out, and nobody would know."""
    stamper, wall = Stamper(ProducerId(5)), WallTime(1_700_000_000_000_000_000)
    messages = [stamper.committed(JSON_LINES, b'{"x":%d}' % x, wall) for x in range(3)]
    with connect_sync(node.address) as client:
        client.journals.create("start/j")
        client.journals.append("start/j", b"".join(messages) + messages[0][:9])
    one, two = len(messages[0]), len(messages[0] + messages[1])
    options = {"address": node.address, "journals": "start/j"}

    def start(at: int, **more: str) -> int:
        wanted = {"startingoffsets": f'{{"start/j":{at}}}', **more}
        return Sources(options | wanted).start()["start/j"].offset

    assert [start(at) for at in (0, one, two)] == [0, one, two]
    with pytest.raises(LocalProtocolError, match=rf"offset {one + 1} of start/j .*\[{one}, {two}\)"):
        start(one + 1)
    assert start(one + 1, startinginsideframe="next") == two
    assert f"begins at {two}" in capfd.readouterr().err
    with pytest.raises(LocalProtocolError, match="not committed yet"):
        start(3 * one + 5, startinginsideframe="next")
    with pytest.raises(LocalProtocolError, match=f"ends at {3 * one + 9}, below 999"):
        start(999)
    with pytest.raises(ConfigError, match="startingInsideFrame is 'skip'"):
        start(0, startinginsideframe="skip")


def test_a_journal_that_is_left_out_for_a_while_is_not_read_again(node: Any) -> None:
    """Its position was forgotten with it: listed again, it began at 0, and every row came twice."""
    with connect_sync(node.address) as client:
        for name in ("left/a", "left/b"):
            client.journals.create(name)
            client.journals.append(name, b'{"x":1}\n')
    both, one = (
        StreamReader({"address": node.address, "journals": names}, X) for names in ("left/a,left/b", "left/a")
    )
    first = both.latestOffset(both.initialOffset(), ReadAllAvailable())

    for limit in (ReadAllAvailable(), ReadMaxBytes(5)):
        without = one.latestOffset(first, limit)
        assert without["left/b"] == first["left/b"]
        assert list(without) == sorted(without)
        assert one.partitions(first, without) == []
        assert both.latestOffset(without, ReadAllAvailable()) == first


@pytest.mark.parametrize(
    ("field", "said"), [("offset", "ends below where"), ("create_revision", "made again")]
)
def test_a_journal_that_is_not_the_one_that_was_read_fails_the_next_plan(
    node: Any, field: str, said: str
) -> None:
    """Another data directory, lost bytes, or a journal of the same name: its offsets mean other messages."""
    name = f"other/{field}"
    with connect_sync(node.address) as client:
        client.journals.create(name)
        client.journals.append(name, b'{"x":1}\n')
    reader = StreamReader({"address": node.address, "journals": name}, X)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    start[name][field] += 1

    for limit in (ReadAllAvailable(), ReadMaxBytes(5)):
        with pytest.raises(LocalProtocolError, match=said):
            reader.latestOffset(start, limit)


def test_a_logged_batch_is_read_whole_after_a_journal_was_left_out(node: Any) -> None:
    """Spark runs the batch of its log again, whatever the options say by now."""
    with connect_sync(node.address) as client:
        for name in ("logged/a", "logged/b"):
            client.journals.create(name)
            client.journals.append(name, b'{"x":1}\n')
    both, one = (
        StreamReader({"address": node.address, "journals": names}, X)
        for names in ("logged/a,logged/b", "logged/a")
    )
    begin = both.initialOffset()
    end = both.latestOffset(begin, ReadAllAvailable())

    def rows(reader: StreamReader) -> int:
        return sum(batch.num_rows for each in reader.partitions(begin, end) for batch in reader.read(each))

    assert rows(both) == rows(one) == 2


@pytest.mark.parametrize("first", ["true", "false"])
def test_read_committed_cannot_be_changed_between_two_runs(node: Any, first: str) -> None:
    """Messages that were pending where a batch ended were read by both runs, or by neither."""
    options = {"address": node.address, "journals": f"mode/{first}"}
    with connect_sync(node.address) as client:
        client.journals.create(options["journals"])
        client.journals.append(options["journals"], b'{"x":1}\n')
    former = StreamReader(options | {"readCommitted": first}, X)
    begin = former.initialOffset()
    end = former.latestOffset(begin, ReadAllAvailable())
    assert former.partitions(begin, end)
    second = "false" if first == "true" else "true"
    latter = StreamReader(options | {"readCommitted": second}, X)

    said = f"readCommitted is {second}, and the checkpoint was written with {first}"
    with pytest.raises(LocalProtocolError, match=said):
        latter.latestOffset(end, ReadAllAvailable())
    with pytest.raises(LocalProtocolError, match=said):
        latter.partitions(begin, end)


def test_a_journal_made_again_while_a_task_reads_ends_the_task(node: Any) -> None:
    """Its bytes are others, at the same offsets: between planning and reading nobody looked."""
    options = {"address": node.address, "journals": "again/j"}
    with connect_sync(node.address) as client:
        client.journals.create("again/j")
        client.journals.append("again/j", b'{"x":1}\n')
        stream, batch = StreamReader(options, X), BatchReader(options, X)
        begin = stream.initialOffset()
        planned = stream.partitions(begin, stream.latestOffset(begin, ReadAllAvailable()))
        asked = batch.partitions()
        client.journals.delete("again/j")
        client.journals.create("again/j")
        client.journals.append("again/j", b'{"x":2}\n')

    for reader, parts in ((stream, planned), (batch, asked)):
        with pytest.raises(LocalProtocolError, match="again/j was deleted and made again"):
            list(reader.read(parts[0]))


def test_a_journal_of_which_every_batch_reads_what_is_before_it_is_told_once(
    node: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the label, or with too many producers, ten rows behind 10 GB cost the reading of 10 GB."""
    monkeypatch.setattr(source, "UNINDEXED_BYTES_MAX", 500)
    content = b'{"x":1}\n' * 300
    with connect_sync(node.address) as client:
        client.journals.create("plain/j", fragment_length=1 << 10)
        client.journals.create("plain/k", fragment_length=1 << 10, labels={FRAMING_LABEL: "json-lines"})
        for _ in range(2):
            client.journals.append("plain/j", content)
            client.journals.append("plain/k", content)
        client.journals.append("plain/k", content[:960])  # Not enough for another fragment.
        while len(client.journals.index_points("plain/k")) < 2:
            time.sleep(0.01)
        revisions = {name: client.journals.get(name).create_revision for name in ("plain/j", "plain/k")}
    reader = StreamReader({"address": node.address, "journals": "plain/j,plain/k"}, X)
    begin, middle, end, late = (
        {name: Position(at, revision) for name, revision in revisions.items()}
        for at in (0, 2_400, 4_800, 5_752)
    )

    for low, high in ((begin, middle), (middle, end), (middle, end)):
        reader.sources.partitions(low, high)
    (told,) = capsys.readouterr().err.splitlines()
    assert (
        "of journal plain/j a worker that has not just read it reads 2400 bytes before the batch again"
        in told
    )
    assert "broadsheet.dev/framing=json-lines" in told

    for _ in range(2):
        reader.sources.partitions(late, {"plain/k": Position(5_760, revisions["plain/k"])})
    (told,) = capsys.readouterr().err.splitlines()
    assert (
        "of journal plain/k a worker that has not just read it reads 952 bytes before the batch again" in told
    )
    assert "its producer index ends at 4800, and `broadsheet journals status plain/k` says why" in told


def test_a_batch_reads_between_the_offsets_that_it_is_given(node: Any) -> None:
    """A day of a journal could be read only from its begin or to its end."""
    with connect_sync(node.address) as client:
        for name in ("between/a", "between/b"):
            client.journals.create(name)
            client.journals.append(name, b"".join(b'{"x":%d}\n' % x for x in range(5)))

    def read(names: str = "between/a", **options: str) -> list[int]:
        reader = BatchReader({"address": node.address, "journals": names, **options}, X)
        found = [batch for part in reader.partitions() for batch in reader.read(part)]
        return sorted(x for batch in found for x in batch.column("x").to_pylist())

    assert read(startingOffsets='{"between/a":8}', endingOffsets='{"between/a":24}') == [1, 2]
    assert read(endingOffsets='{"between/a":23}') == [0, 1]  # The third message has its last byte there.
    assert read(startingOffsets='{"between/a":16}', endingOffsets='{"between/a":16}') == []
    assert read("between/a,between/b", endingOffsets='{"between/a":8}') == [0, 0, 1, 2, 3, 4]
    for start, end, words in (
        (24, 16, "startingOffsets is above endingOffsets"),
        (0, 41, "is above the ends of"),
    ):
        with pytest.raises(ConfigError, match=words):
            read(startingOffsets=f'{{"between/a":{start}}}', endingOffsets=f'{{"between/a":{end}}}')
    with pytest.raises(ConfigError, match=r"endingOffsets is for batch reads.*availableNow"):
        StreamReader({"address": node.address, "journals": "between/a", "endingOffsets": "{}"}, X)


@pytest.mark.parametrize("is_committed", ["true", "false"])
def test_a_batch_is_cut_into_as_many_tasks_as_are_wanted(node: Any, is_committed: str) -> None:
    """Costly work on few bytes had one task: index points are 16 MiB apart. No message is lost at a cut."""
    name, stamper, wall = f"cuts/{is_committed}", Stamper(ProducerId(9)), WallTime(1_700_000_000_000_000_000)
    with connect_sync(node.address) as client:
        client.journals.create(name)
        for x in range(40):
            client.journals.append(name, stamper.committed(JSON_LINES, b'{"x":%d}' % x, wall))

    for count in (2, 7, 39, 500):
        options = {"minPartitions": str(count), "tasks": "1", "readCommitted": is_committed}
        reader = BatchReader({"address": node.address, "journals": name, **options}, X)
        parts = reader.partitions()
        found = [x for part in parts for batch in reader.read(part) for x in batch.column("x").to_pylist()]
        assert (len(parts), found) == (count, [*range(40)])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "startingOffset",
            "earliest",
            r"options \['startingoffset'\] are none of the source's: .*startingOffsets",
        ),
        ("path", "some/journal", "'path'.*journals"),
        ("tasks", "many", "option tasks is 'many', not a whole number"),
        ("tasks", "-1", "option tasks is '-1'"),
        ("minPartitions", "few", "option minPartitions is 'few'"),
        ("maxBytesPerTrigger", "-5", "option maxBytesPerTrigger is '-5'"),
        ("maxBytesPerTrigger", "10m", "option maxBytesPerTrigger is '10m'"),
        ("minBytesPerTrigger", "-5", "option minBytesPerTrigger is '-5'"),
        ("maxTriggerDelay", "15m", "waits for minBytesPerTrigger, which is not set: set both, or"),
        ("maxReplayMemory", "1e9", "option maxReplayMemory is '1e9'"),
        ("malformed", "ignore", "option malformed is 'ignore', not 'fail' or 'drop' or 'keep'"),
        ("readCommitted", "no", "option readCommitted is 'no', not 'true' or 'false'"),
        ("patience", "soon", "option patience is 'soon'"),
        ("journals", " , ", "option 'journals' is missing"),
        ("subscribePattern", "a/.*", r"options \['journals', 'subscribePattern'\] are given: set one"),
        ("selector", "a=b", r"options \['journals', 'selector'\] are given: set one"),
        ("failOnDataLoss", "no", "option failOnDataLoss is 'no'"),
        ("address", "", "option 'address' is missing"),
    ],
)
def test_a_wrong_option_of_the_source_is_refused_by_name(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was ignored ran another query than the user meant, such as one of a single byte a batch."""
    monkeypatch.delenv("BROADSHEET_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=words):
        StreamReader({"address": "127.0.0.1:1", "journals": "a/b", name: value}, X)


def test_names_of_options_do_not_differ_by_case() -> None:
    """As everywhere in Spark."""
    reader = StreamReader(
        {"ADDRESS": "h:1", "Journals": "b, a,b", "MAXBYTESPERTRIGGER": "7", "ReadCommitted": "False"}, X
    )

    assert (reader.sources.subscription.names, reader.sources.is_committed) == (("b", "a"), False)
    assert reader.getDefaultReadLimit() == ReadMaxBytes(7)
