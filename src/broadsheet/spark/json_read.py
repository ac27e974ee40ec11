"""JSON read: gives the columns of JSON messages, and which messages have them.

`ArrowReader` has pyarrow parse many messages at once. If they do not parse together, the rows that its
errors name are left out, one after the other. If the rest does not parse either, `ValueReader` tells which
messages probably do. These, and then the others, are halved until each malformed message is alone.
`ValueReader` has msgspec check one message after the other, in 1.7 us for a column of maps, and 8 us more for
each instant. It reads the types that pyarrow does not read, or reads wrongly: maps, durations, times of day,
and structs with NOT NULL fields, also inside structs and lists. Bytes are base64, which `ArrowReader` decodes
for all messages at once; a column of bytes takes 0.1 us. Either ignores fields that are no columns.
Source: pipelines.1.
"""

import binascii
import datetime as dt
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final, NamedTuple, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from broadsheet.message.columns import Int
from broadsheet.spark.values import Values

_BLOCK_BYTES_MIN: Final = 1 << 20
_NAMED_ROW: Final = re.compile(r"JSON parse error: .* in row (\d+)", re.DOTALL)
"""Most of pyarrow's errors, whose end is its own. Numbers and dates that are out of range are told without a
row, and with the message's text, which may itself end like this."""
_INSTANT: Final = re.compile(
    r"\d{4}-\d\d-\d\d([ T]\d\d(:\d\d(:\d\d(\.\d{1,6})?)?)?(Z|[+-]\d\d(:?[0-5]\d)?)?)?", re.ASCII
)
"""The texts that pyarrow takes for an instant."""


class _Instant(dt.datetime):
    """An instant as pyarrow reads it. A plain one msgspec reads with more digits, and rounds it."""


_TYPES: Final[Mapping[Any, Any]] = {
    pa.types.is_null: type(None),
    pa.types.is_boolean: bool,
    pa.types.is_int8: Annotated[int, msgspec.Meta(ge=-(1 << 7), lt=1 << 7)],
    pa.types.is_int16: Annotated[int, msgspec.Meta(ge=-(1 << 15), lt=1 << 15)],
    pa.types.is_int32: Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)],
    pa.types.is_int64: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)],
    pa.types.is_floating: float,
    pa.types.is_string: str,
    pa.types.is_binary: bytes,
    pa.types.is_decimal: Decimal,
    pa.types.is_date32: dt.date,
    pa.types.is_timestamp: _Instant,
    pa.types.is_time: dt.time,
    pa.types.is_duration: dt.timedelta,
}


class Part(NamedTuple):
    """Some rows of JSON messages and their columns."""

    rows: Int
    """Their numbers."""
    table: pa.Table


class ArrowReader:
    """Reads columns of JSON objects with pyarrow. In `Values.raw` a newline must follow each body."""

    def __init__(self, fields: pa.Schema) -> None:
        self.fields = fields
        self._schema = pa.schema([field.with_type(_as_read(field.type)) for field in fields])
        self._guess = ValueReader(fields)

    def read(self, values: Values, rows: Int) -> Part:
        """Those of `rows` that pyarrow can read, in order. Each body begins and ends with a brace."""
        table = self._table(values.at(rows))
        if table is not None:
            return Part(rows, table)
        named = self._named(values.at(rows))
        rest = np.delete(rows, named)
        table = self._table(values.at(rest)) if named else None
        if table is not None:  # Each of these lines is one object, so the numbers are those of the lines.
            return Part(rest, table)
        # A line may hold two objects, and the numbers be those of other lines. Or a number or a time does not
        # fit its column: to find these by halving alone makes a batch two hundred times slower.
        sound = self._guess.read(values, rest).rows
        parts: list[Part] = []
        for each in (sound, np.setdiff1d(rest, sound), *rows[named].reshape(-1, 1)):
            self._halve(values, each, parts)
        found = np.concatenate([rest[:0], *(part.rows for part in parts)])
        order = np.argsort(found)
        table = pa.concat_tables([self.fields.empty_table(), *(part.table for part in parts)])
        return Part(found[order], table.combine_chunks().take(order))

    def _halve(self, values: Values, rows: Int, parts: list[Part]) -> None:
        """Find those of `rows` that pyarrow parses, half by half."""
        if not len(rows):
            return
        table = self._table(values.at(rows))
        if table is not None:
            parts.append(Part(rows, table))
        elif len(rows) > 1:
            for half in np.array_split(rows, 2):
                self._halve(values, half, parts)

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
                found = _NAMED_ROW.fullmatch(str(error))
                if found is None or (bad := row + int(found[1])) >= len(values):
                    break
            named.append(bad)
            row = bad + 1
        return named

    def _read(self, content: pa.Buffer | bytes) -> pa.Table:
        size = max(_BLOCK_BYTES_MIN, len(content) + 1)
        return pj.read_json(
            pa.BufferReader(content),
            read_options=pj.ReadOptions(use_threads=False, block_size=size),
            parse_options=pj.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="ignore"),
        )

    def _table(self, values: Values) -> pa.Table | None:
        """The columns of JSON bodies, one row for each; None if at least one body does not parse."""
        if not len(values):
            return self.fields.empty_table()
        try:
            table = self._read(values.joined(tail=1)).select(self.fields.names)
            if table.num_rows != len(values):
                return None
            table.validate(full=True)  # The parser lets invalid UTF-8 through, and 12345 as a decimal(5,2).
            columns = table.combine_chunks().columns
            fields = zip(columns, self.fields, strict=True)
            found = [_as_told(column.chunk(0), field.type) for column, field in fields]
        except (pa.ArrowInvalid, ValueError):
            return None
        table = pa.table(found, schema=self.fields)
        return table if _is_whole(table) else None


class ValueReader:
    """Reads some columns of JSON objects with msgspec."""

    def __init__(self, fields: pa.Schema) -> None:
        self._fields = fields
        self._decode = msgspec.json.Decoder(_object(fields), dec_hook=_instant).decode

    def read(self, values: Values, rows: Int) -> Part:
        """Decode `rows` one by one, and leave out those that are malformed or do not fit the columns."""
        view, found, objects = values.raw.data, [], []
        bounds = zip(values.begins[rows].tolist(), values.ends[rows].tolist(), strict=True)
        for at, (begin, end) in enumerate(bounds):
            try:
                objects.append(self._decode(view[begin:end]))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            found.append(at)
        table = self._table(objects)
        if table is None:  # A decimal is out of range, for instance.
            fits = self._fitting(objects, 0)
            found = [found[at] for at in fits]
            table = self._table([objects[at] for at in fits])
            assert table is not None, "each of these rows fits by itself"
        return Part(rows[found], table)

    def _fitting(self, objects: Sequence[Mapping[str, Any]], begin: int) -> list[int]:
        """The positions of the objects that fit the columns, of which the first one is at `begin`."""
        if self._table(objects) is not None:
            return [*range(begin, begin + len(objects))]
        if len(objects) == 1:
            return []
        middle = len(objects) // 2
        return self._fitting(objects[:middle], begin) + self._fitting(objects[middle:], begin + middle)

    def _table(self, objects: Sequence[Mapping[str, Any]]) -> pa.Table | None:
        try:
            columns = [
                pa.array([each.get(field.name) for each in objects], field.type) for field in self._fields
            ]
        except (pa.ArrowException, OverflowError):
            return None
        table = pa.table(columns, schema=self._fields)
        return table if _is_whole(table) else None


def _instant(kind: type[_Instant], text: object) -> _Instant:
    """Read an instant for msgspec, which calls this for a type that it does not know."""
    if not isinstance(text, str) or _INSTANT.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no instant")
    return kind.fromisoformat(text)


def _is_whole(table: pa.Table) -> bool:
    """Whether no value is null that is NOT NULL. Spark fails on such a null, and names no message."""
    columns = zip(table.columns, table.schema, strict=True)
    return all(_is_filled(part, field) for column, field in columns for part in column.chunks)


def _is_filled(column: pa.Array, field: pa.Field) -> bool:
    if column.null_count and not field.nullable:
        return False
    kind = field.type
    if pa.types.is_struct(kind):
        column = column.drop_null()
        return all(_is_filled(column.field(at), kind.field(at)) for at in range(kind.num_fields))
    if pa.types.is_list(kind):
        return _is_filled(column.flatten(), kind.value_field)
    return not pa.types.is_map(kind) or _is_filled(column.drop_null().items, kind.item_field)


def can_arrow_read(kind: pa.DataType) -> bool:
    """Whether pyarrow can read a column of that type."""
    if _holds_unparsed(kind):
        return False
    schema = pa.schema([("x", _as_read(kind))])
    try:
        pj.read_json(pa.BufferReader(b"{}\n"), parse_options=pj.ParseOptions(explicit_schema=schema))
    except pa.ArrowException:
        return False
    return True


def _holds_unparsed(kind: pa.DataType) -> bool:
    """Whether pyarrow would find a type somewhere in `kind` that it parses from no JSON text, or wrongly.

    In a list it miscounts nulls, and takes no null for an object one of whose fields is NOT NULL.
    """
    if pa.types.is_time(kind) or pa.types.is_null(kind):
        return True
    if pa.types.is_struct(kind) and not all(field.nullable for field in kind.fields):
        return True
    return any(_holds_unparsed(kind.field(at).type) for at in range(kind.num_fields))


def _as_read(kind: pa.DataType) -> pa.DataType:
    """The type that pyarrow is to read in place of `kind`, of which `_as_told` makes `kind`.

    pyarrow would read a date as a number of days and not as text, so dates are read as timestamps, and bytes
    are read as the text that is their base64.
    """
    if pa.types.is_date32(kind):
        return pa.timestamp("s")
    if pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_read(field.type)) for field in kind.fields])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_read(kind.value_type)))
    return kind


def _as_told(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column that was read as `_as_read(kind)`, as `kind`.

    Raises:
        ArrowInvalid: a time is no date, or a null is none that `kind` may have.
        ValueError: a text is no base64.
    """
    if pa.types.is_binary(kind):
        return _from_base64(column)
    if not _holds_bytes(kind):
        return column.cast(kind)
    assert column.offset == 0, "pyarrow has just read it"
    is_struct = pa.types.is_struct(kind)
    parts = [column.field(at) for at in range(kind.num_fields)] if is_struct else [column.values]
    return pa.Array.from_buffers(
        kind,
        len(column),
        column.buffers()[: 1 if is_struct else 2],
        column.null_count,
        children=[_as_told(part, kind.field(at).type) for at, part in enumerate(parts)],
    )


def _holds_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or any(_holds_bytes(kind.field(at).type) for at in range(kind.num_fields))


def _from_base64(column: pa.StringArray) -> pa.BinaryArray:
    """The bytes whose base64 the texts are.

    All texts are decoded at once. Their padding is taken for digits that are zeros, and what it gives is
    taken out.

    Raises:
        ValueError: a text is no base64.
    """
    validity, ends, content = column.buffers()
    if content is None:
        return column.cast(pa.binary())
    offsets = np.frombuffer(ends, np.int32)[: len(column) + 1].astype(np.int64)
    raw = np.frombuffer(content, np.uint8)[: offsets[-1]].copy()
    lengths = np.diff(offsets)
    last = offsets[1:][lengths > 0] - 1
    padding = last[raw[last] == ord("=")]
    padding = np.concatenate((padding, padding[raw[padding - 1] == ord("=")] - 1))
    if (lengths % 4).any() or np.count_nonzero(raw == ord("=")) != len(padding):
        raise ValueError("a text has no length of base64, or padding before its end")
    raw[padding] = ord("A")
    found = np.frombuffer(binascii.a2b_base64(raw.data, strict_mode=True), np.uint8)
    padded = np.zeros(len(raw) // 4 + 1, np.int64)
    np.add.at(padded, padding // 4 + 1, 1)
    offsets = offsets // 4 * 3 - np.cumsum(padded)[offsets // 4]
    found = np.delete(found, padding // 4 * 3 + padding % 4 - 1)
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(found)]
    return pa.Array.from_buffers(pa.binary(), len(column), buffers, column.null_count)


def can_value_read(kind: pa.DataType) -> bool:
    """Whether a value of that type can be read."""
    if pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_map(kind):
        return all(can_value_read(kind.field(at).type) for at in range(kind.num_fields))
    return any(is_kind(kind) for is_kind in _TYPES)


def _object(fields: Sequence[pa.Field]) -> Any:  # noqa: ANN401 - a type that msgspec decodes into.
    types = {each.name: _type(each.type) | None for each in fields}
    for name in types:  # msgspec finds a name that is no ASCII only by the UTF-8 that its text object holds.
        msgspec.json.encode(name)  # This makes the object hold it.
    make: Any = TypedDict  # Only a call can make fields whose names are no identifiers.
    return make("Object", types, total=False)


def _type(kind: pa.DataType) -> Any:  # noqa: ANN401 - a type that msgspec decodes into.
    if pa.types.is_struct(kind):
        return _object(kind.fields)
    if pa.types.is_list(kind):
        return list[_type(kind.value_type) | None]  # type: ignore[misc]
    if pa.types.is_map(kind):
        return dict[_type(kind.key_type), _type(kind.item_type) | None]  # type: ignore[misc]
    return next(found for is_kind, found in _TYPES.items() if is_kind(kind))
