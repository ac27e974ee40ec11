"""What a JSON line means as columns: each message gives its own row, or is malformed, and nothing else."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.errors import ConfigError
from broadsheet.spark.encode import bodies
from broadsheet.spark.json_read import ArrowReader, ValueReader, can_arrow_read
from broadsheet.spark.parse import FixedParser, JSONParser
from broadsheet.spark.values import Values

MONEY, INSTANT = pa.decimal128(10, 2), pa.timestamp("us", "UTC")
A_AND_B = pa.schema([("a", pa.int64()), ("b", pa.int64())])
fragment = st.sampled_from(
    [
        b'{"a":1}',
        b'{"a":1',
        b',"b":2}',
        b"null",
        b" ",
        b"\t",
        b'"} null"',
        b"[",
        b"]",
        b"{",
        b"}",
        b"\r",
        b"\0",
    ]
)


def values_of(lines: list[bytes]) -> Values:
    raw = np.frombuffer(b"".join(line + b"\n" for line in lines), np.uint8)
    ends = np.cumsum([len(line) + 1 for line in lines]) - 1
    return Values(raw, np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1)), ends)


def parsed(fields: Any, lines: list[bytes]) -> list[Any]:
    """The rows; `"bad"` for a malformed one."""
    table, good = JSONParser(pa.schema(fields)).parse(values_of(lines))
    return [row if is_good else "bad" for row, is_good in zip(table.to_pylist(), good, strict=True)]


@pytest.mark.parametrize("line", [b"null", b"null ", b"[1]", b"5", b'"x"', b"\xef\xbb\xbf", b'{"a":1} null'])
def test_a_line_that_is_no_object_is_malformed(line: bytes) -> None:
    """`null` as the first value ended the process by a signal: one message stopped every worker for good."""
    assert parsed(A_AND_B, [line]) == ["bad"]
    assert parsed(A_AND_B, [line, b'{"a":2}']) == ["bad", {"a": 2, "b": None}]
    assert parsed(A_AND_B, [b'{"a":2}', line]) == [{"a": 2, "b": None}, "bad"]


def test_an_object_over_two_lines_does_not_stand_for_two_messages() -> None:
    """Where another line held two objects, the count was right and each row was another message's."""
    lines = [b'{"a":1', b',"b":2}', b'{"a":3} {"a":4}', b'{"a":5}']

    assert parsed(A_AND_B, lines) == ["bad", "bad", "bad", {"a": 5, "b": None}]


@given(st.lists(st.lists(fragment, min_size=1, max_size=4).map(b"".join), min_size=1, max_size=6))
def test_lines_are_parsed_as_each_by_itself(lines: list[bytes]) -> None:
    """What stands beside a message must not change it."""
    lines = [line for line in lines if line.strip()] or [b"{}"]

    together = parsed(A_AND_B, lines)
    assert together == [parsed(A_AND_B, [line])[0] for line in lines]
    for line, row in zip(lines, together, strict=True):
        try:
            is_object = isinstance(msgspec.json.decode(line), dict)
        except (msgspec.DecodeError, UnicodeDecodeError):
            is_object = False
        assert (row != "bad") == is_object, line


LINES = {
    b'{"a":1,"b":2}': {"a": 1, "b": 2},
    b'{"b":null}': {"a": None, "b": None},
    b'{"a":-5,"c":{"d":[{}]}}': {"a": -5, "b": None},
    b'{"a":"text"}': "bad",
    b'{"a":[1]}': "bad",
    b'{"a":1,}': "bad",
    b'{"a":99999999999999999999}': "bad",  # No error names the row of a number that is out of range.
    b'{"a":1}{"a":2}': "bad",
    b'{"a":1}{"a":"text"}': "bad",  # An error counts objects, and not lines.
    b'{"a":1': "bad",
    b"text": "bad",
}


@given(st.lists(st.sampled_from(list(LINES)), min_size=1, max_size=12))
def test_a_malformed_line_is_told_from_those_around_it(lines: list[bytes]) -> None:
    """A row that is left out because of another line's error is a lost message."""
    assert parsed(A_AND_B, lines) == [LINES[line] for line in lines]


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.date32(), pa.decimal128(9, 2), pa.string()], ids=str)
@pytest.mark.parametrize(
    "text", ["x in row 0", "JSON parse error: x in row 0", "x\\nJSON parse error: in row 0"]
)
def test_a_malformed_text_does_not_name_another_message(kind: pa.DataType, text: str) -> None:
    """An error of pyarrow ends with the text that is no date, and a message that was sound was left out."""
    good = b'{"t":"2024-02-29"}' if kind != pa.decimal128(9, 2) else b'{"t":"1.5"}'
    bad = b'{"t":"%s"}' % text.encode()

    rows = parsed([("t", kind)], [good, bad, good])
    assert rows == [parsed([("t", kind)], [line])[0] for line in (good, bad, good)]
    assert rows[0] != "bad"


@pytest.mark.parametrize("number", [b"12345", b'"12345"', b"9e4", b"-1000"])
def test_a_number_that_is_too_large_for_its_decimal_is_malformed(number: bytes) -> None:
    """It was a row, and Spark failed on it at each start of the query: option `malformed` did not help."""
    small = pa.decimal128(5, 2)
    lines = [b'{"d":999.99,"s":[{"d":-999.99}]}', b'{"d":%s}' % number, b'{"s":[{"d":%s}]}' % number]

    rows = parsed([("d", small), ("s", pa.list_(pa.struct([("d", small)])))], lines)
    assert rows == [{"d": Decimal("999.99"), "s": [{"d": Decimal("-999.99")}]}, "bad", "bad"]


class CountedReads(ArrowReader):
    """A reader that counts how often it calls pyarrow."""

    count = 0

    def _read(self, content: pa.Buffer | bytes) -> pa.Table:
        self.count += 1
        return super()._read(content)


def test_a_malformed_line_costs_one_more_read() -> None:
    """A read costs 90 us. One malformed line in a hundred made a batch of 16,384 twenty times slower."""
    lines = [b'{"a":%d}' % number for number in range(4096)]
    lines[100::400] = [b'{"a":"text"}'] * 10
    reader = CountedReads(A_AND_B)

    part = reader.read(values_of(lines), np.arange(len(lines)))
    assert [*part.rows] == [number for number in range(4096) if number % 400 != 100]
    assert part.table.column("a").to_pylist() == [*part.rows]
    assert reader.count <= 10 + 3


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.int8(), b"-128", b"128"),
        (pa.int64(), b"9223372036854775807", b"9223372036854775808"),
        (pa.decimal128(5, 2), b"1.25", b"1.255"),
        (pa.date32(), b'"2024-02-29"', b'""'),
        (INSTANT, b'"2024-02-29T01:02:03.123456Z"', b'"2024-02-29T01:02:03.1234567Z"'),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_its_column_costs_two_more_reads(
    kind: pa.DataType, good: bytes, bad: bytes
) -> None:
    """No error names its row, and one such message in ten made a batch two hundred times slower."""
    lines = [b'{"a":%s}' % (good if number % 10 else bad) for number in range(4096)]
    reader = CountedReads(pa.schema([("a", kind)]))

    part = reader.read(values_of(lines), np.arange(len(lines)))
    assert [*part.rows] == [number for number in range(4096) if number % 10]
    assert reader.count <= 2 * 410 + 3


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2024-02-29", dt.datetime(2024, 2, 29)),  # noqa: DTZ001
        ("2024-02-29 23", dt.datetime(2024, 2, 29, 23)),  # noqa: DTZ001
        ("2024-02-29T23:59Z", dt.datetime(2024, 2, 29, 23, 59)),  # noqa: DTZ001
        ("2024-02-29T23:59:58.5-01", dt.datetime(2024, 3, 1, 0, 59, 58, 500_000)),  # noqa: DTZ001
        ("2024-02-29T00:00:00+0530", dt.datetime(2024, 2, 28, 18, 30)),  # noqa: DTZ001
        ("2024-02-29T01:02:03.1234567Z", None),
        ("2023-02-29T01:02:03Z", None),
        ("2024-02-29T01:02:03z", None),
        ("2024-W09-4", None),
        ("20240229", None),
        ("", None),
    ],
)
def test_an_instant_is_read_alike_whatever_stands_beside_it(text: str, found: dt.datetime | None) -> None:
    """A day alone was no instant in a struct that also held bytes, and seven digits were rounded there."""
    for kind, zone in ((pa.timestamp("us"), None), (INSTANT, dt.UTC)):
        fields = [("t", kind), ("s", pa.struct([("t", kind), ("raw", pa.binary())]))]
        wanted = found and found.replace(tzinfo=zone)

        alone = parsed(fields[:1], [json.dumps({"t": text}).encode()])
        beside = parsed(fields, [json.dumps({"s": {"t": text}}).encode()])
        assert alone == ([{"t": wanted}] if found else ["bad"])
        assert beside == ([{"t": None, "s": {"t": wanted, "raw": None}}] if found else ["bad"])


def test_text_that_is_no_utf8_is_malformed() -> None:
    """The sink fails on such a text, on every attempt, and cannot say which message it was."""
    lines = [b'{"s":"\xff"}', '{"s":"é😀"}'.encode(), b'{"s":"a","other":"\xff"}']

    assert parsed([("s", pa.string())], lines)[:2] == ["bad", {"s": "é😀"}]


def test_dates_are_texts_wherever_they_stand() -> None:
    """As the sink and Spark's `to_json` write them; every row with a date was malformed."""
    date = pa.date32()
    fields = [("d", date), ("s", pa.struct([("d", date)])), ("l", pa.list_(date))]
    day, old = dt.date(2024, 2, 29), dt.date(1969, 12, 31)

    assert parsed(fields, [b'{"d":"2024-02-29","s":{"d":"1969-12-31"},"l":["2024-02-29",null]}']) == [
        {"d": day, "s": {"d": old}, "l": [day, None]}
    ]
    assert parsed(fields, [b'{"s":null}', b'{"d":"2023-02-29"}']) == [dict.fromkeys("dsl"), "bad"]


def test_bytes_are_base64() -> None:
    """As the sink and Spark's `to_json` write them; the text itself was taken for the bytes."""
    lines = [b'{"x":"YWL/"}', b'{"x":null}', b"{}", b'{"x":"YWL"}', b'{"x":"Y W L /"}']

    assert parsed([("x", pa.binary())], lines) == [{"x": b"ab\xff"}, {"x": None}, {"x": None}, "bad", "bad"]


@given(st.lists(st.text("AB+/=-\\ é", max_size=9) | st.binary(max_size=5), min_size=1, max_size=6))
def test_bytes_are_those_that_msgspec_decodes(values: list[str | bytes]) -> None:
    """All texts of a batch are decoded at once, and each must give the bytes that it gives by itself."""
    fields = pa.schema([("x", pa.binary())])
    lines = [msgspec.json.encode({"x": value}) for value in values]

    wanted = [ValueReader(fields).read(values_of([line]), np.arange(1)).table.to_pylist() for line in lines]
    assert parsed(fields, lines) == [row[0] if row else "bad" for row in wanted]


def test_bytes_are_read_with_all_else_wherever_they_stand() -> None:
    """To read them by themselves took as long as half of the other columns of a nested row."""
    raw = pa.binary()
    inner = pa.struct([("b", raw), ("d", pa.date32()), ("n", pa.int64())])
    fields = pa.schema([("b", raw), ("s", inner), ("l", pa.list_(raw)), ("o", pa.list_(inner))])
    one = {"b": b"\xff", "d": dt.date(2024, 2, 29), "n": 1}
    rows: list[dict[str, Any]] = [
        {"b": b"", "s": one, "l": [b"a", None, b"ab", b"abc"], "o": [one, None, dict.fromkeys("bdn")]},
        dict.fromkeys("bslo"),
        {"b": b"a", "s": dict.fromkeys("bdn"), "l": [], "o": []},
    ]
    reader = CountedReads(fields)

    part = reader.read(values_of([msgspec.json.encode(row) for row in rows]), np.arange(3))
    assert part.table.to_pylist() == rows
    assert part.table.schema == fields
    assert can_arrow_read(inner)
    assert reader.count == 1


@pytest.mark.parametrize(
    "kind", [pa.month_day_nano_interval(), pa.list_(pa.month_day_nano_interval())], ids=str
)
def test_a_type_that_json_cannot_give_is_refused_by_name(kind: pa.DataType) -> None:
    """An error of the parser's library, of a task, says neither which column nor what to do."""
    with pytest.raises(ConfigError, match=r"columns \['m'\].*from_json"):
        JSONParser(pa.schema([("n", pa.int64()), ("m", kind)]))


def test_maps_and_bytes_are_read_wherever_they_stand() -> None:
    """Such a column was refused, and all of its rows with it."""
    counts, inner = pa.map_(pa.string(), pa.int8()), pa.struct([("raw", pa.binary()), ("n", pa.int64())])
    fields = [("m", counts), ("s", inner), ("n", pa.int64()), ("d", pa.duration("us"))]

    assert parsed(
        fields,
        [
            b'{"m":{"k":1,"l":null},"s":{"raw":"AP8=","other":{}},"n":7,"d":"PT1M"}',
            b'{"m":{"k":128},"n":1}',
            b'{"m":{},"n":"text"}',
            b'{"s":{"raw":"AP8"}}',
            b'{"x":5}',
            b'{"m":{"k":"text"}}',
            b"{",
        ],
    ) == [
        {
            "m": [("k", 1), ("l", None)],
            "s": {"raw": b"\0\xff", "n": None},
            "n": 7,
            "d": dt.timedelta(minutes=1),
        },
        "bad",
        "bad",
        "bad",
        dict.fromkeys("msnd"),
        "bad",
        "bad",
    ]


RAW, NUMBER = pa.field("x", pa.binary(), nullable=False), pa.field("x", pa.int64(), nullable=False)


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        (RAW, b'{"x":""}', b"{}"),
        (NUMBER, b'{"x":1}', b'{"x":null}'),
        (pa.field("s", pa.struct([RAW])), b'{"s":{"x":""}}', b'{"s":{}}'),
        (pa.field("s", pa.struct([NUMBER])), b'{"s":{"x":1}}', b'{"s":{"x":null}}'),
        (pa.field("l", pa.list_(pa.struct([NUMBER]))), b'{"l":[null,{"x":1}]}', b'{"l":[{"x":1},{}]}'),
        (pa.field("l", pa.list_(pa.list_(NUMBER))), b'{"l":[[1],[],null]}', b'{"l":[[1],[null]]}'),
        (pa.field("l", pa.list_(RAW)), b'{"l":[""]}', b'{"l":["",null]}'),
        (pa.field("m", pa.map_(pa.string(), NUMBER)), b'{"m":{"k":1}}', b'{"m":{"k":null}}'),
    ],
    ids=str,
)
def test_a_message_without_a_value_that_is_not_null_is_malformed(
    field: pa.Field, good: bytes, bad: bytes
) -> None:
    """Spark ended the query with a NullPointerException at each start, whatever option `malformed` said."""
    lines = [good, bad, good] if not field.nullable else [good, b"{}", bad, good]

    assert ["bad" if row == "bad" else "good" for row in parsed([field], lines)] == [
        "bad" if line == bad else "good" for line in lines
    ]
    assert parsed([field], [bad]) == ["bad"]


def test_a_list_of_nulls_is_read() -> None:
    """It was malformed, but not if another message with such a list came after it in the batch."""
    assert parsed([("l", pa.list_(pa.null()))], [b'{"l":[null,null]}']) == [{"l": [None, None]}]


@pytest.mark.parametrize("name", ["größe", "名前", "😀", 'é"\\\n', "a.b", ""])
def test_a_field_is_found_whatever_its_name(name: str) -> None:
    """A map of a name that is no ASCII was null, but not always: the same batch had other rows later."""
    fields = [(name, pa.map_(pa.string(), pa.int64())), ("s", pa.struct([(name, pa.binary())]))]
    row = {name: [("k", 5)], "s": {name: b"ab"}}
    batch = pa.RecordBatch.from_pylist([row], schema=pa.schema(fields))
    lines = bodies(batch, frozenset()).to_pylist()

    assert parsed(fields, [*lines, json.dumps({name: {"k": 5}, "s": {name: "YWI="}}).encode()]) == [row, row]


def test_the_source_reads_what_the_sink_wrote() -> None:
    """A job after another one must see the same rows."""
    utc = dt.UTC
    batch = pa.record_batch(
        {
            "time": pa.array([dt.datetime(2024, 1, 2, 3, 4, 5, 6, utc), None], pa.timestamp("us", "UTC")),
            "date": pa.array([dt.date(1, 1, 1), None], pa.date32()),
            "money": pa.array([None, 12], pa.decimal128(38, 18)),
            "raw": pa.array([b"\0\xff", b""], pa.binary()),
            "raws": pa.array([[b"\0\xff", None], None], pa.list_(pa.binary())),
            "map": pa.array([[("k", dt.date(1, 1, 1)), ("", None)], []], pa.map_(pa.string(), pa.date32())),
            "numbers": pa.array([[(-7, [0.1])], None], pa.map_(pa.int64(), pa.list_(pa.float64()))),
            "sums": pa.array(
                [[(Decimal("-1.50"), {"t": None})], None], pa.map_(MONEY, pa.struct([("t", INSTANT)]))
            ),
            "waited": pa.array([dt.timedelta(-1, 5, 6), dt.timedelta(9)], pa.duration("us")),
            "text": pa.array(['\0 "é" \n 😀 \\u0041', ""], pa.string()),
            "nested": pa.array([{"l": [{"x": None}, None, {"x": 2**63 - 1}]}, None]),
            "single": pa.array([0.1, -0.0], pa.float32()),
            "double": pa.array([5e-324, 1.7976931348623157e308], pa.float64()),
        }
    )
    lines = bodies(batch, frozenset()).to_pylist()

    table, good = JSONParser(batch.schema).parse(values_of(lines))
    assert good.all()
    assert table.combine_chunks().to_batches() == [batch]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Africa/Monrovia", "America/New_York", "+14:00"])
def test_an_instant_is_the_same_in_whatever_zone_the_sink_runs(zone: str) -> None:
    """Before standard time Berlin was 53 minutes and 28 seconds from UTC: the text left out the seconds."""
    utc = dt.UTC
    instants = [
        dt.datetime(1, 1, 1, tzinfo=utc),
        dt.datetime(1850, 6, 1, 12, 0, 0, 5, tzinfo=utc),
        dt.datetime(2024, 10, 27, 1, 30, tzinfo=utc),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=utc),
    ]
    as_read = pa.array(instants, pa.timestamp("us", "UTC"))
    here = as_read.cast(pa.timestamp("us", zone))
    nested = pa.StructArray.from_arrays(
        [here, pa.array([[x] for x in here.cast(pa.int64()).to_pylist()]).cast(pa.list_(here.type))],
        ["t", "l"],
    )
    lines = bodies(pa.record_batch({"t": here, "n": nested}), frozenset()).to_pylist()

    wanted = [("t", as_read.type), ("n", pa.struct([("t", as_read.type), ("l", pa.list_(as_read.type))]))]
    table, good = JSONParser(pa.schema(wanted)).parse(values_of(lines))
    assert good.all()
    assert table.to_pylist() == [{"t": x, "n": {"t": x, "l": [x]}} for x in instants]


def test_a_flag_of_a_fixed_frame_is_any_byte() -> None:
    """Another language may write true as 255."""
    raw = np.frombuffer(bytes([0, 1, 2, 255]), np.uint8)
    values = Values(raw, np.arange(4), np.arange(1, 5))

    table, good = FixedParser(pa.schema([("b", pa.bool_())])).parse(values)
    assert table.column("b").to_pylist() == [False, True, True, True]
    assert good.all()
