"""Columns as JSON: the same as row by row, for every type that Spark sends."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.errors import InvalidArgument
from broadsheet.spark.json_text import texts

LONG = st.integers(-(2**63), 2**63 - 1)
SPECIAL = st.sampled_from(['"', "\\", "\0", "\n", "\x7f", "é", "😀", "null", ""])
INSTANT = st.datetimes(timezones=st.just(dt.UTC))
LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), LONG),
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.floats() | st.sampled_from([1.0, -0.0, 1e17, 1e22, 5e-324])),
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"])) | SPECIAL),
    (pa.large_string(), SPECIAL),
    (pa.binary(), st.binary(max_size=8)),
    (pa.decimal128(38, 18), st.decimals("-1e19", "1e19", places=18)),
    (pa.decimal128(10, 2), st.decimals(-999, 999, places=2)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), INSTANT | INSTANT.map(lambda each: each.replace(microsecond=0))),
    (pa.timestamp("us"), st.datetimes()),
    (pa.null(), st.none()),
    (pa.duration("us"), st.timedeltas(dt.timedelta(-9), dt.timedelta(9))),
    (
        pa.map_(pa.string(), pa.int64()),
        st.dictionaries(SPECIAL, LONG | st.none()).map(lambda d: [*d.items()]),
    ),
]
Columns = st.deferred(lambda: st.sampled_from(LEAVES) | st.one_of(_lists(), _objects()))


def _lists() -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    return Columns.map(lambda each: (pa.list_(each[0]), st.lists(st.none() | each[1], max_size=4)))


def _maps() -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    return Columns.map(
        lambda each: (
            pa.map_(pa.string(), each[0]),
            st.dictionaries(SPECIAL, st.none() | each[1], max_size=3).map(lambda found: [*found.items()]),
        )
    )


def _objects() -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    fields = st.dictionaries(SPECIAL, Columns, max_size=3)
    return fields.map(
        lambda each: (
            pa.struct([(name, kind) for name, (kind, _) in each.items()]),
            st.fixed_dictionaries({name: st.none() | value for name, (_, value) in each.items()}),
        )
    )


def one_by_one(column: pa.Array) -> list[bytes]:
    return [msgspec.json.encode(value) for value in column.to_pylist(maps_as_pydicts="strict")]


def meaning(text: bytes) -> Any:
    """What the text says, whatever the digits of a float are."""
    return json.loads(text, parse_float=float)


@given(st.data())
def test_a_column_becomes_the_json_that_its_values_become(data: st.DataObject) -> None:
    """A message must say what its row says, whatever stands in the rows beside it."""
    kind, value = data.draw(Columns)
    column = pa.array(data.draw(st.lists(st.none() | value, max_size=8)), kind)
    low = data.draw(st.integers(0, len(column)))
    column = column.slice(low, data.draw(st.integers(0, len(column) - low)))

    found = texts(column)
    assert found.null_count == 0
    assert [meaning(text) for text in found.cast(pa.large_binary()).to_pylist()] == [
        meaning(text) for text in one_by_one(column)
    ]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.0, pa.float64()),
        (-0.0, pa.float64()),
        (float("nan"), pa.float64()),
        ('\0"\\é\n', pa.string()),
        (b"\xff", pa.binary()),
        (Decimal("0E-18"), pa.decimal128(38, 18)),
        (dt.date(1, 1, 1), pa.date32()),
        (dt.datetime(1970, 1, 1, tzinfo=dt.UTC), pa.timestamp("us", "UTC")),
        (dt.datetime.fromisoformat("9999-12-31T23:59:59.999999"), pa.timestamp("us")),
        ({"a": None, '"': [True, None]}, pa.struct([("a", pa.int8()), ('"', pa.list_(pa.bool_()))])),
    ],
)
def test_the_text_is_that_of_msgspec(value: object, kind: pa.DataType) -> None:
    """Readers in other languages guess the type of a field by its text: 1.0 must not become 1."""
    column = pa.array([value], kind)

    assert texts(column).cast(pa.large_binary()).to_pylist() == one_by_one(column)


def test_a_short_float_is_not_written_with_the_digits_of_a_long_one() -> None:
    """0.1 was written as 0.10000000149011612."""
    assert texts(pa.array([0.1, 1e30], pa.float32())).to_pylist() == ["0.1", "1e+30"]


def test_text_that_is_no_utf8_is_refused() -> None:
    """The message could not be read by anybody."""
    good = pa.array([b"good", b"\xff"], pa.binary())

    with pytest.raises(InvalidArgument, match="UTF-8"):
        texts(pa.Array.from_buffers(pa.string(), 2, good.buffers()))


@pytest.mark.parametrize("microseconds", [-62_135_596_800_000_001, 253_402_300_800_000_000])
def test_a_year_that_no_reader_knows_is_refused(microseconds: int) -> None:
    """Spark has years of six digits, and JSON readers do not: the error named no remedy."""
    with pytest.raises(InvalidArgument, match="years 1 to 9999"):
        texts(pa.array([0, microseconds]).cast(pa.timestamp("us")))
