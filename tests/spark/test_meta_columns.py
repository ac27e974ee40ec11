"""A message's key and time are columns, as those of Kafka are, for whoever asks for them."""

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from broadsheet.base.time import WallTime
from broadsheet.client_sync import connect_sync
from broadsheet.errors import ConfigError, LocalProtocolError
from broadsheet.message.clock import CLOCK_MAX
from broadsheet.message.framing import FIXED, JSON_LINES, Framing, framed
from broadsheet.message.producer_state import begun
from broadsheet.message.stamper import Stamper
from broadsheet.message.uuid import Clock, Flag, ProducerId, pack
from broadsheet.spark import sink, start
from broadsheet.spark.encode import bodies, bytes_of, frames
from broadsheet.spark.offsets import Span
from broadsheet.spark.options import Options
from broadsheet.spark.read import rows_of
from broadsheet.spark.sink import Routing
from broadsheet.spark.source import BroadsheetDataSource, Sources

SENT = dt.datetime(2026, 11, 23, 15, 17, 5, 123_456, tzinfo=dt.UTC)
META = (
    "value BINARY, journal STRING, offset BIGINT, end BIGINT, uuid STRING, producer BIGINT, clock BIGINT, "
    "flags INT, malformed BOOLEAN"
)


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def read(content: bytes, columns: StructType, framing: Framing = JSON_LINES, /, **options: str) -> pa.Table:
    shape = Sources({"address": "none:1", "journals": "none", **options}).shape(columns)
    span = Span("some/j", 0, len(content))
    return pa.Table.from_batches(
        rows_of(begun(framing), lambda begin, end: iter([content[begin:end]]), span, shape), shape.columns
    )


def sent(*rows: bytes) -> bytes:
    """JSON lines that one publisher sends at `SENT`."""
    stamper = Stamper(ProducerId(7))
    wall = WallTime(int(SENT.timestamp()) * 1_000_000_000 + 123_456_000)
    return b"".join(stamper.committed(JSON_LINES, row, wall) for row in rows)


def at(clock: int) -> bytes:
    """A message with that clock."""
    return framed(FIXED, pack(ProducerId(7), Clock(clock), Flag.OUTSIDE), b"")


def test_a_timestamp_is_when_a_message_was_sent() -> None:
    """Whoever gave Kafka's `timestamp` to withWatermark had a count of 100 ns since 1582, times 16."""
    content = sent(b'{"x":1}', b'{"x":2}') + b'{"x":3}\n'
    found = read(content, schema(timestamp=TimestampType(), x=LongType()), includeTimestamp="true")

    step = dt.timedelta(microseconds=1)
    assert found.to_pylist() == [
        {"timestamp": SENT + step, "x": 1},
        {"timestamp": SENT + 2 * step, "x": 2},
        {"timestamp": None, "x": 3},
    ]


def test_every_clock_has_a_time() -> None:
    """Clocks come from any publisher: those at the ends of their range must not be times of another age."""
    content = at(1) + at(159) + at(160) + at(1 << 63) + at(CLOCK_MAX)
    found = read(content, schema(timestamp=TimestampType()), FIXED, includeTimestamp="true")

    first = dt.datetime(1582, 10, 15, tzinfo=dt.UTC)
    last = first + dt.timedelta(microseconds=((1 << 60) - 1) // 10)
    assert found.column("timestamp").to_pylist() == [
        first,
        first,
        first + dt.timedelta(microseconds=1),
        first + dt.timedelta(microseconds=(1 << 59) // 10),
        last,
    ]
    assert last.year == 5236


KEYS: list[tuple[DataType, Any, list[bytes | None]]] = [
    (StringType(), pa.array(["a", "", None, "\u00e9"]), [b"a", b"", None, b"\xc3\xa9"]),
    (LongType(), pa.array([7, -(1 << 63), None]), [b"7", b"-9223372036854775808", None]),
    (BinaryType(), pa.array([b"\xff\0", None]), [b"\xff\0", None]),
    (BooleanType(), pa.array([True, None]), [b"True", None]),
    (DoubleType(), pa.array([1.5, None]), [b"1.5", None]),
    (DecimalType(5, 2), pa.array([decimal.Decimal("1.10")], pa.decimal128(5, 2)), [b"1.10"]),
    (
        TimestampType(),
        pa.array([dt.datetime(2024, 2, 29, 1, tzinfo=dt.UTC)], pa.timestamp("us", "Europe/Rome")),
        [b"2024-02-29 01:00:00+00:00"],
    ),
]


@pytest.mark.parametrize(("kind", "keys", "expected"), KEYS, ids=lambda each: str(each)[:12])
def test_a_key_is_the_bytes_that_chose_its_journal(
    kind: DataType, keys: pa.Array, expected: list[bytes | None]
) -> None:
    """A row that was copied by its key would go to another journal than the row itself."""
    names = {"toJournals": "t/a,t/b,t/c"}
    batch = pa.record_batch({"k": keys, "x": [*range(len(keys))]})
    by_column = Routing(Options(names | {"keyColumn": "k"}, sink.KNOWN, "sink"), schema(k=kind, x=LongType()))
    by_key = Routing(
        Options(names | {"keyColumn": "key"}, sink.KNOWN, "sink"), schema(key=BinaryType(), x=LongType())
    )

    for journal, rows in by_column.split(batch):
        content = bytes_of(
            frames(JSON_LINES, bodies(rows, frozenset()), ProducerId(1), Clock(160), Flag.OUTSIDE)
        )
        columns = schema(k=kind, x=LongType(), key=BinaryType())
        found = read(content, columns, keyColumn="k")
        assert found.column("key").to_pylist() == [expected[x] for x in rows.column("x").to_pylist()]
        copied = found.select(["key", "x"]).combine_chunks().to_batches()[0]
        assert [name for name, _ in by_key.split(copied)] == [journal]


def test_a_message_that_does_not_parse_has_no_key() -> None:
    """Its row is one of nulls, of which the key is one."""
    content = sent(b'{"k":"a"}', b'{"k":}', b'{"k":7}', b"{}")
    columns = schema(key=BinaryType(), k=StringType(), malformed=BooleanType())
    found = read(content, columns, keyColumn="k", malformed="keep")

    assert [*found.select(["key", "malformed"]).to_pylist()] == [
        {"key": b"a", "malformed": False},
        {"key": None, "malformed": True},
        {"key": None, "malformed": True},
        {"key": None, "malformed": False},
    ]


def test_key_and_timestamp_are_fields_of_a_message_for_those_who_do_not_ask() -> None:
    """Many a message has fields of these names, and queries that read them were there before."""
    columns = schema(key=StringType(), timestamp=StringType())
    content = sent(b'{"key":"k","timestamp":"t"}')
    assert read(content, columns).to_pylist() == [{"key": "k", "timestamp": "t"}]

    of_ours = schema(key=BinaryType(), timestamp=TimestampType())
    both = StructType([*columns, StructField("m", of_ours)])
    asked = {"keyColumn": "key", "includeTimestamp": "TRUE", "metaColumn": "m"}
    ours = {"key": b"k", "timestamp": SENT + dt.timedelta(microseconds=1)}
    assert read(content, both, JSON_LINES, **asked).to_pylist() == [{"key": "k", "timestamp": "t", "m": ours}]
    assert BroadsheetDataSource({"metaColumn": "m"}).schema() == f"`m` STRUCT<{META}>"
    with pytest.raises(LocalProtocolError, match=r"\['key', 'timestamp'\] are none of value, journal"):
        read(content, both, metaColumn="m")


def test_a_query_that_names_no_columns_has_those_that_it_asks_for() -> None:
    """A query without a schema shows what an option is for."""
    options = {"schema": "user long", "KEYCOLUMN": "user", "includetimestamp": "true"}

    assert BroadsheetDataSource({}).schema() == META
    assert BroadsheetDataSource(options).schema() == f"user long, {META}, key BINARY, timestamp TIMESTAMP"


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (schema(key=BinaryType()), {"keyColumn": "k"}, r"keyColumn 'k' is no field.*name one of \[\]"),
        (schema(key=BinaryType()), {"keyColumn": "key"}, "keyColumn 'key' is no field of a message"),
        (schema(key=BinaryType(), k=LongType()), {"keyColumn": "K"}, r"name one of \['k'\]"),
        (schema(Timestamp=TimestampType()), {"includeTimestamp": "true"}, r"says \['Timestamp'\]: spell it"),
        (schema(timestamp=TimestampType()), {"includeTimestamp": "yes"}, "option includeTimestamp is 'yes'"),
        (
            schema(timestamp=TimestampNTZType()),
            {"includeTimestamp": "true"},
            r"column timestamp is timestamp\[us, tz=UTC\], and the schema says timestamp\[us\]",
        ),
        (schema(key=StringType(), k=LongType()), {"keyColumn": "k"}, "column key is binary"),
    ],
)
def test_a_column_that_would_be_null_or_wrong_is_refused(
    columns: StructType, options: dict[str, str], words: str
) -> None:
    """Before a query runs: rows whose key is null all go to one journal."""
    with pytest.raises((ConfigError, LocalProtocolError), match=words):
        read(b"", columns, JSON_LINES, **options)


def test_headers_are_a_nested_column_of_a_message() -> None:
    """Kafka has them beside a message; here they are written into it, and read from it."""
    header = schema(key=StringType(), value=BinaryType())
    columns = StructType([StructField("x", LongType()), StructField("headers", ArrayType(header))])
    rows: list[dict[str, Any]] = [
        {"x": 1, "headers": [{"key": "trace", "value": b"\xff\0"}, {"key": "trace", "value": b""}]},
        {"x": 2, "headers": []},
        {"x": 3, "headers": None},
    ]
    kind = pa.struct([("key", pa.string()), ("value", pa.binary())])
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([("x", pa.int64()), ("headers", pa.list_(kind))]))
    content = bytes_of(
        frames(JSON_LINES, bodies(batch, frozenset()), ProducerId(1), Clock(160), Flag.OUTSIDE)
    )

    assert read(content, columns).to_pylist() == rows


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_messages_are_copied_by_their_keys(node: Any, spark: Any, tmp_path: Path) -> None:
    """As a job does it that reads key and value of Kafka, and writes both."""
    users = [f"user-{number % 7}" for number in range(50)]
    begin = dt.datetime.now(dt.UTC)
    with connect_sync(node.address) as client:
        for name in ("key/in-0", "key/in-1", "key/in-2", "key/out-0", "key/out-1", "key/out-2"):
            client.journals.create(name, labels={"broadsheet.dev/framing": "json-lines"})
        for at, user in enumerate(users):
            client.journals.append(f"key/in-{at % 3}", b'{"user":"%s","x":%d}\n' % (user.encode(), at))
    options = {"address": node.address, "schema": "user string, x long"}
    columns = {"keyColumn": "user", "includeTimestamp": "true"}
    rows = spark.readStream.format("broadsheet").options(**options, **columns)
    copied = rows.options(journals="key/in-0,key/in-1,key/in-2").load().select("key", "value")
    writer = copied.writeStream.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    routed = writer.options(toJournals="key/out-0,key/out-1,key/out-2", keyColumn="key")
    start(routed, address=node.address, commit_journal="key/commits").awaitTermination()

    out = spark.read.format("broadsheet").options(**options, **columns)
    found = out.options(journals="key/out-0,key/out-1,key/out-2").load()
    seen = found.selectExpr("x", "key", "journal", "unix_micros(timestamp) as sent").collect()
    now = dt.datetime.now(dt.UTC).timestamp() + 1
    by_publisher = Routing(
        Options({"toJournals": "key/out-0,key/out-1,key/out-2", "keyColumn": "user"}, sink.KNOWN, "sink"),
        schema(user=StringType()),
    )
    places = {
        user: name
        for name, each in by_publisher.split(pa.record_batch({"user": users}))
        for user in each.column("user").to_pylist()
    }
    assert sorted((row.x, bytes(row.key).decode(), row.journal) for row in seen) == [
        (at, user, places[user]) for at, user in enumerate(users)
    ]
    assert all(begin.timestamp() - 1 <= row.sent / 1e6 <= now for row in seen)
