"""Parse: turns the bytes of committed messages into Arrow columns, and finds those that do not parse.

pyarrow parses JSON lines with the wanted schema: it ignores other fields, and expects bytes as base64 and
dates as text. numpy parses fixed frames: numbers in the schema's order, little-endian, without gaps. If a
JSON batch does not parse, the rows that pyarrow's errors name are left out, one after the other. If the rest
does not parse either, it is halved until each malformed message is alone. Option `malformed` decides over
these: FAIL raises an error with the offset of the first, DROP leaves them out and reports how many, KEEP
gives rows whose parsed columns are null. This module does no IO. Source: pipelines.1.
"""

import binascii
import re
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from broadsheet.errors import ConfigError, TooLarge
from broadsheet.message.columns import Bool, Bytes, Int
from broadsheet.message.framing import Framing, Kind

_FIXED_TYPES = {
    pa.int8(): "<i1", pa.int16(): "<i2", pa.int32(): "<i4", pa.int64(): "<i8", pa.float32(): "<f4",
    pa.float64(): "<f8", pa.bool_(): "?",
}  # fmt: skip
_BLOCK_BYTES_MIN = 1 << 20
_NAMED_ROW = re.compile(r" in row (\d+)$")
"""The end of most of pyarrow's errors; numbers and dates that are out of range are told without a row."""


class Malformed(Enum):
    """What becomes of a message that does not parse; the values are those of option `malformed`."""

    FAIL = "fail"
    DROP = "drop"
    KEEP = "keep"


class Values:
    """The bodies of some messages of one journal: body `i` is `raw[begins[i]:ends[i]]`."""

    def __init__(self, raw: Bytes, begins: Int, ends: Int) -> None:
        self.raw, self.begins, self.ends = raw, begins, ends

    def __len__(self) -> int:
        return len(self.begins)

    def at(self, rows: Int) -> "Values":
        """The bodies with these numbers."""
        return Values(self.raw, self.begins[rows], self.ends[rows])

    def joined(self, tail: int = 0) -> bytes:
        """The bodies back to back, each with the `tail` bytes that follow it in `raw`.

        Bodies that are neighbours in `raw` are copied as one slice: a batch of one producer is a few slices,
        and not thousands.
        """
        if not len(self):
            return b""
        ends = self.ends + tail
        breaks = np.flatnonzero(self.begins[1:] != ends[:-1]) + 1
        lows = self.begins[np.concatenate((np.zeros(1, np.int64), breaks))].tolist()
        highs = ends[np.concatenate((breaks - 1, np.array([len(ends) - 1])))].tolist()
        view = self.raw.data
        return b"".join([view[low:high] for low, high in zip(lows, highs, strict=True)])

    def binary(self) -> pa.Array:
        """The bodies as an Arrow column."""
        lengths = self.ends - self.begins
        offsets = np.zeros(len(self) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if offsets[-1] < 1 << 31:
            buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(self.joined())]
            return pa.Array.from_buffers(pa.binary(), len(self), buffers)
        raise TooLarge(
            f"{len(self)} bodies have {offsets[-1]} bytes together, and an Arrow batch holds less than 2 GiB"
        )


class Part(NamedTuple):
    """The columns of some rows."""

    rows: Int
    table: pa.Table


@lru_cache(maxsize=16)
def parser(framing: Framing, fields: pa.Schema) -> "JSONParser | FixedParser":
    """The parser of bodies of that framing into `fields`."""
    return JSONParser(fields) if framing.kind is Kind.JSON_LINES else FixedParser(fields)


class JSONParser:
    """Parses JSON objects, one a line. In `Values.raw` a newline must follow each body."""

    def __init__(self, fields: pa.Schema) -> None:
        """Parse into `fields`.

        Raises:
            ConfigError: a field has a type that cannot be read from JSON.
        """
        self.fields = fields
        strange = [field.name for field in fields if not _is_possible(field.type)]
        if strange:
            raise ConfigError(
                f"columns {strange}: JSON cannot be parsed into their types. Read the column value, and "
                "parse it with Spark's from_json"
            )
        self._schema = pa.schema([field.with_type(_as_read(field.type)) for field in fields])
        self._binary = [place for place, field in enumerate(fields) if pa.types.is_binary(field.type)]

    def parse(self, values: Values) -> tuple[pa.Table, Bool]:
        """The columns, and which rows parsed. A row that did not is null in every column."""
        if not len(self.fields):
            return pa.table({}), np.ones(len(values), np.bool_)
        good = _are_braced(values)
        rows = np.flatnonzero(good)
        parts: list[Part] = []
        table = self._table(values.at(rows))
        if table is None:
            named = self._named(values.at(rows))
            good[rows[named]] = False
            blamed, rows = rows[named], np.delete(rows, named)
            table = self._table(values.at(rows)) if len(named) else None
            if table is None:  # So a line may hold two objects, and the numbers be those of other lines.
                for each in (rows, *blamed.reshape(-1, 1)):
                    self._halve(values, each, good, parts)
        if table is not None:  # Each of these lines is one object, so the numbers are those of the lines.
            parts.append(Part(rows, table))
        return self._in_order(parts, len(values)), good

    def _halve(self, values: Values, rows: Int, good: Bool, parts: list[Part]) -> None:
        """Find the malformed ones of `rows`, and the columns of the others."""
        if not len(rows):
            return
        table = self._table(values.at(rows))
        good[rows] = table is not None
        if table is not None:
            parts.append(Part(rows, table))
        elif len(rows) > 1:
            for half in np.array_split(rows, 2):
                self._halve(values, half, good, parts)

    def _named(self, values: Values) -> list[int]:
        """The rows that pyarrow's errors name, up to the first error that names none.

        The next attempt begins behind the row that was named, so that no row is read twice.
        """
        content = pa.py_buffer(values.joined(tail=1))
        begins = np.concatenate((np.zeros(1, np.int64), np.cumsum(values.ends - values.begins + 1)))
        named: list[int] = []
        row = 0
        while row < len(values):
            try:
                self._read(content.slice(int(begins[row])))
                break
            except pa.ArrowInvalid as error:
                found = _NAMED_ROW.search(str(error))
                if found is None or (bad := row + int(found[1])) >= len(values):
                    break
            named.append(bad)
            row = bad + 1
        return named

    def _in_order(self, parts: list[Part], count: int) -> pa.Table:
        """The parts as `count` rows; a row that is in none of them is null in every column."""
        rows = np.concatenate([np.empty(0, np.int64), *(part.rows for part in parts)])
        if not len(rows):
            return pa.table([pa.nulls(count, field.type) for field in self.fields], schema=self.fields)
        table = pa.concat_tables([part.table for part in parts])
        if len(parts) == 1 and len(rows) == count:
            return table
        places = np.full(count, -1)
        places[rows] = np.arange(len(rows))
        return table.combine_chunks().take(pa.array(places, mask=places < 0))

    def _read(self, content: pa.Buffer | bytes) -> pa.Table:
        size = max(_BLOCK_BYTES_MIN, len(content) + 1)
        return pj.read_json(
            pa.BufferReader(content),
            read_options=pj.ReadOptions(use_threads=False, block_size=size),
            parse_options=pj.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="ignore"),
        )

    def _table(self, values: Values) -> pa.Table | None:
        """The columns, one row for each body; None if at least one body does not parse."""
        if not len(values):
            return self.fields.empty_table()
        content = values.joined(tail=1)
        try:
            table = self._read(content).select(self.fields.names)
            if table.num_rows != len(values):
                return None
            if not content.isascii():
                table.validate(full=True)  # pyarrow's parser lets invalid UTF-8 through.
            for place in self._binary:
                table = table.set_column(place, self._schema.field(place), _from_base64(table.column(place)))
            return table.cast(self.fields)
        except (pa.ArrowInvalid, binascii.Error, ValueError):
            return None


def _are_braced(values: Values) -> Bool:
    """Which bodies begin with an opening brace and end with a closing one.

    The others are no objects. Without this check an object could continue over the end of a line, and rows
    would be matched with the wrong messages. After a line that ends with a closing brace, no object can
    continue with an opening one; so if there are as many rows as lines, each row is one line. A body that is
    no object, such as `null`, can also crash pyarrow's parser.
    """
    raw, begins, ends = values.raw, values.begins, values.ends
    braced: Bool = (raw[begins] == ord("{")) & (raw[ends - 1] == ord("}"))
    for at in np.flatnonzero(~braced).tolist():
        body = raw[begins[at] : ends[at]].tobytes().strip(b" \t\r")
        braced[at] = body[:1] == b"{" and body[-1:] == b"}"
    return braced


def _is_possible(kind: pa.DataType) -> bool:
    """Whether a column of that type can be parsed from JSON.

    Times of day cannot, and neither can bytes inside a struct or a list.
    """
    if pa.types.is_binary(kind):
        return True
    try:
        pj.read_json(
            pa.BufferReader(b"{}\n"), parse_options=pj.ParseOptions(explicit_schema=pa.schema([("x", kind)]))
        )
    except pa.ArrowException:
        return False
    return not _holds_unparsed(kind)


def _holds_unparsed(kind: pa.DataType) -> bool:
    """Whether pyarrow would find a type somewhere in `kind` that it parses from no JSON text."""
    if pa.types.is_binary(kind) or pa.types.is_time(kind):
        return True
    return any(_holds_unparsed(kind.field(at).type) for at in range(kind.num_fields))


def _as_read(kind: pa.DataType) -> pa.DataType:
    """The type to read in place of `kind`, to be cast afterwards.

    pyarrow would read a date as a number of days and not as text, so dates are read as timestamps.
    """
    if pa.types.is_date32(kind):
        return pa.timestamp("s")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_read(field.type)) for field in kind.fields])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_read(kind.value_type)))
    return kind


def _from_base64(column: pa.ChunkedArray) -> pa.Array:
    bodies = [
        None if text is None else binascii.a2b_base64(text, strict_mode=True) for text in column.to_pylist()
    ]
    return pa.array(bodies, pa.binary())


class FixedParser:
    """Parses messages that are numbers of fixed width, back to back."""

    def __init__(self, fields: pa.Schema) -> None:
        self.fields = fields
        strange = [field.name for field in fields if field.type not in _FIXED_TYPES]
        if strange:
            raise ConfigError(
                f"columns {strange}: a fixed frame holds only numbers and booleans. Read the column value "
                "for anything else"
            )
        self.layout = np.dtype([(field.name, _FIXED_TYPES[field.type]) for field in fields])

    def parse(self, values: Values) -> tuple[pa.Table, Bool]:
        """The columns, and which rows parsed. A body of another length than the schema's is all null."""
        good: Bool = values.ends - values.begins == self.layout.itemsize
        if not len(self.fields):
            return pa.table({}), np.ones(len(values), np.bool_)
        if good.all():
            return self._columns(self._records(values), None), good
        records = np.zeros(len(values), self.layout)
        records[good] = self._records(Values(values.raw, values.begins[good], values.ends[good]))
        return self._columns(records, ~good), good

    def _records(self, values: Values) -> np.ndarray[Any, np.dtype[np.void]]:
        steps = np.unique(np.diff(values.begins))
        if len(steps) == 1 and steps[0] >= self.layout.itemsize:
            begin = int(values.begins[0])
            return np.ndarray(
                (len(values),), self.layout, values.raw.data, offset=begin, strides=(int(steps[0]),)
            )
        return np.frombuffer(values.joined(), self.layout)

    def _columns(self, records: np.ndarray[Any, np.dtype[np.void]], bad: Bool | None) -> pa.Table:
        columns = [
            pa.array(np.ascontiguousarray(records[field.name]), type=field.type, mask=bad)
            for field in self.fields
        ]
        return pa.table(columns, schema=self.fields)
