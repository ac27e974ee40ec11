"""Every type of Spark: what the sink writes, the source reads as the same value."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from broadsheet.client_sync import connect_sync
from broadsheet.errors import ConfigError
from broadsheet.message.framing import Kind
from broadsheet.spark.sink import SinkWriter
from broadsheet.spark.source import Sources

LABELS = {"broadsheet.dev/framing": Kind.JSON_LINES.value}
VALUES = {
    "boolean": "true",
    "tinyint": "cast(-128 as tinyint)",
    "smallint": "cast(-32768 as smallint)",
    "int": "2147483647",
    "bigint": "-9223372036854775808",
    "float": "cast(0.1 as float)",
    "double": "1.7976931348623157e308",
    "decimal(38,18)": "cast('-12345678901234567890.123456789012345678' as decimal(38,18))",
    "string": "concat('za', char(34), char(92), 'ż😀', char(10))",
    "binary": "X'00ff'",
    "date": "date'0001-01-01'",
    "timestamp": "timestamp'1850-06-01 12:00:00.000005'",
    "timestamp_ntz": "timestamp_ntz'9999-12-31 23:59:59.999999'",
    "interval day to second": "interval '-1 02:03:04.000005' day to second",
    "void": "null",
    "array<int>": "array(1, null, 3)",
    "array<binary>": "array(X'ff', null)",
    "array<array<timestamp>>": "array(array(timestamp'2024-11-03 01:30:00'))",
    "struct<a:int,b:struct<c:array<date>,d:binary>>": "named_struct('a', 1, 'b', named_struct('c',"
    " array(date'2024-02-29'), 'd', X''))",
    "map<string,int>": "map('k', 1, '', null)",
    "map<int,array<decimal(10,2)>>": "map(-7, array(cast('1.50' as decimal(10,2))))",
    "array<map<string,struct<t:timestamp>>>": "array(map('k', named_struct('t',"
    " timestamp'2024-03-10 03:00:00')))",
}
REFUSED = [
    "v variant",
    "m interval year to month",
    "s struct<a:array<map<string,variant>>>",
    "m map<boolean,int>",
    "m map<array<int>,int>",
    "s struct<m:map<struct<a:int>,int>>",
    "m map<string,map<void,int>>",
]


def test_every_type_is_read_as_it_was_written(spark: Any, node: Any, tmp_path: Path) -> None:
    """A type error at the first batch is what a user meets first. With summer time, and also as nulls."""
    source, out = "types/in", "types/out"
    with connect_sync(node.address) as client:
        client.journals.create(source, labels=LABELS)
        client.journals.create(out, labels=LABELS)
        client.journals.append(source, b'{"id":1}\n{"id":2}\n')
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        values = [f"if(id = 1, {value}, null) as `{kind}`" for kind, value in VALUES.items()]
        given = {"address": node.address, "journals": source}
        rows = spark.readStream.format("broadsheet").options(**given).schema("id bigint").load()
        given = {"address": node.address, "journal": out, "mode": "at-least-once"}
        given["checkpointLocation"] = str(tmp_path / "checkpoint")
        writer = rows.selectExpr("id", *values).writeStream.format("broadsheet").options(**given)
        writer.trigger(availableNow=True).start().awaitTermination()

        wanted = spark.range(1, 3).selectExpr("id", *values)
        given = {"address": node.address, "journals": out}
        found = spark.read.format("broadsheet").options(**given).schema(wanted.schema).load()
        assert [*VALUES] == [field.dataType.simpleString() for field in wanted.schema.fields[1:]]
        assert found.orderBy("id").collect() == wanted.collect()
        given |= {"schema": "id bigint, journal string", "metaColumn": "m"}
        described = spark.read.format("broadsheet").options(**given).load().selectExpr("journal", "m.journal")
        assert described.collect() == [(None, out)] * 2
        first = found.where("id = 1").drop("void").dropna()
        assert first.count() == 1, "the values, and not only nulls"
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def ddl(columns: str) -> StructType:
    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    return schema


@pytest.mark.usefixtures("spark")  # Spark parses the columns.
@pytest.mark.parametrize("column", REFUSED)
def test_a_type_that_a_message_cannot_have_is_refused_by_name(column: str) -> None:
    """Spark's error was a KeyError of a task, a variant was written as bytes, and each map was malformed."""
    schema = ddl(f"id bigint, {column}")
    name = column.partition(" ")[0]
    given = {"address": "h:1", "journal": "o/o", "mode": "at-least-once"}

    with pytest.raises(ConfigError, match=rf"columns \['{name} .*to_json"):
        SinkWriter(given, schema)
    with pytest.raises(ConfigError, match=rf"columns \['{name} .*to_json"):
        Sources({"address": "h:1", "journals": "i/i"}).shape(schema)
    SinkWriter(given, ddl(f"value string, {column}"))
