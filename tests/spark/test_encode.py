"""What the sink writes is what a publisher would have written one message at a time."""

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.errors import ConfigError, InvalidArgument
from broadsheet.message.clock import TICK
from broadsheet.message.framing import FIXED, JSON_LINES, Framing, framed
from broadsheet.message.uuid import Clock, Flag, ProducerId, pack
from broadsheet.spark.encode import bodies, bytes_of, frames, portions, rows_framed

PRODUCER, FIRST = ProducerId(0x010203040506), Clock(1 << 60)
json_bodies = st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=8))).map(
    msgspec.json.encode
)


@given(st.lists(st.one_of(json_bodies, st.just(b"{}"), st.just(b' {"a": 1} '))), st.integers(0, 3))
def test_json_lines_are_those_of_the_scalar(rows: list[bytes], cut: int) -> None:
    """A byte in the wrong place would be in a journal for good."""
    rows = [row for row in rows if b'"_meta"' not in row]
    column = pa.array([b"xx"] * cut + rows, pa.large_binary())[cut:]

    assert bytes_of(frames(JSON_LINES, column, PRODUCER, FIRST, Flag.CONTINUE)) == b"".join(
        framed(JSON_LINES, pack(PRODUCER, Clock(FIRST + n * TICK), 1), row) for n, row in enumerate(rows)
    )


@given(st.lists(st.binary(max_size=20)))
def test_fixed_frames_are_those_of_the_scalar(rows: list[bytes]) -> None:
    """As above."""
    assert bytes_of(frames(FIXED, pa.array(rows, pa.large_binary()), PRODUCER, FIRST, Flag.ACK)) == b"".join(
        framed(FIXED, pack(PRODUCER, Clock(FIRST + n * TICK), 2), row) for n, row in enumerate(rows)
    )


def test_a_body_with_the_uuids_field_is_refused() -> None:
    """A message copied from one journal to another must not keep the identity of the first."""
    column = pa.array([b'{"a":1}', b'{"_meta":{"uuid":"x"},"a":1}'], pa.large_binary())

    with pytest.raises(InvalidArgument, match="_meta"):
        frames(JSON_LINES, column, PRODUCER, FIRST, 0)


@pytest.mark.parametrize("framing", [JSON_LINES, FIXED])
def test_rows_are_framed_as_their_bodies_would_be(framing: Framing) -> None:
    """Columns and heads are joined at once; a body by itself is what the format says."""
    texts = pa.array(["plain", "\n", 'a "_meta" b', "_meta", "", None, "é", "x"])
    columns = {"a": [1, None, 3, 4, 5, 6, 7, 8], "journal": ["a/b"] * 8, "t": texts}
    nested = pa.StructArray.from_arrays([texts], ["_meta"])
    for more in ({}, {"n": nested}, {'"é\n': texts}, {"value": pa.array([b"{}", b' {"a":1}'] * 4)}):
        for batch in (pa.record_batch(columns | more), pa.record_batch(columns | more)[3:6]):
            out = rows_framed(
                framing, batch, frozenset({"journal"}), producer=PRODUCER, first=FIRST, flags=Flag.CONTINUE
            )
            assert bytes_of(out) == b"".join(
                framed(framing, pack(PRODUCER, Clock(FIRST + n * TICK), 1), body)
                for n, body in enumerate(bodies(batch, frozenset({"journal"})).to_pylist())
            )
    with pytest.raises(InvalidArgument, match="_meta"):
        rows_framed(
            JSON_LINES,
            pa.record_batch({"_meta": [1]}),
            frozenset(),
            producer=PRODUCER,
            first=FIRST,
            flags=Flag.CONTINUE,
        )


@given(st.lists(st.binary(max_size=9)), st.integers(0, 3), st.integers(1, 30))
def test_portions_are_whole_rows_up_to_a_limit(rows: list[bytes], cut: int, bytes_max: int) -> None:
    """An append that ends within a row could be the last one that a task makes."""
    column = pa.array([b"xx"] * cut + rows, pa.large_binary())[cut:]

    ends = {0, *(len(b"".join(rows[: at + 1])) for at in range(len(rows)))}
    at = 0
    for portion in portions(column, bytes_max):
        assert bytes_of(column)[at : at + len(portion)] == portion
        assert len(portion) <= bytes_max or portion in rows
        at += len(portion)
        assert at in ends
    assert at == len(bytes_of(column)) == len(b"".join(rows))


def test_a_row_without_value_becomes_an_object_of_its_columns() -> None:
    """The shortest job has no `to_json`."""
    batch = pa.record_batch({"journal": ["a/b"], "x": [1], "y": ["z"]})

    assert bodies(batch, frozenset({"journal"})).to_pylist() == [b'{"x":1,"y":"z"}']
    with pytest.raises(ConfigError, match="no column"):
        bodies(batch.select(["journal"]), frozenset({"journal"}))
    with pytest.raises(InvalidArgument, match="null"):
        bodies(pa.record_batch({"value": pa.array([None], pa.string())}), frozenset())


def test_a_map_becomes_an_object() -> None:
    """As Spark's `to_json` writes it; it was a list of pairs, which no reader takes for a map."""
    pairs = pa.array([[("k", 1), ("l", None)], None], pa.map_(pa.string(), pa.int64()))
    batch = pa.record_batch(
        {"m": pairs, "n": pa.array([[[(7, 8)]], []], pa.list_(pa.map_(pa.int64(), pa.int8())))}
    )

    assert bodies(batch, frozenset()).to_pylist() == [
        b'{"m":{"k":1,"l":null},"n":[{"7":8}]}',
        b'{"m":null,"n":[]}',
    ]


@pytest.mark.parametrize(
    ("key", "pairs"),
    [
        (pa.string(), [("k", 1), ("k", 2)]),
        (pa.bool_(), [(True, 1)]),
        (pa.list_(pa.int8()), [([1], 1)]),
        (pa.struct({"a": pa.int8()}), [({"a": 1}, 1)]),
    ],
)
def test_a_map_that_is_no_object_is_refused_by_name(key: pa.DataType, pairs: list[Any]) -> None:
    """The query ended with a bare KeyError or TypeError, which names neither the map nor what to do."""
    column = pa.array([pairs], pa.map_(key, pa.int64()))

    with pytest.raises(InvalidArgument, match="map does not become a JSON object"):
        bodies(pa.record_batch({"m": column}), frozenset())


def test_the_instants_of_a_map_are_in_utc() -> None:
    """A row says the same in whatever zone the session is."""
    instant = pa.timestamp("us", "Asia/Kolkata")
    column = pa.array([[(0, 3_600_000_000)]], pa.map_(pa.int64(), pa.int64())).cast(pa.map_(instant, instant))

    assert bodies(pa.record_batch({"m": column}), frozenset()).to_pylist() == [
        b'{"m":{"1970-01-01T00:00:00Z":"1970-01-01T01:00:00Z"}}'
    ]


def test_a_value_that_is_no_text_is_refused_by_name() -> None:
    """The library's error names a cast that nobody wrote."""
    with pytest.raises(ConfigError, match=r"column 'value' is int64, and a body is text or bytes"):
        bodies(pa.record_batch({"value": [1]}), frozenset())
