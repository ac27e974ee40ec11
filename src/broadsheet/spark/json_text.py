"""JSON text: turns Arrow columns into JSON, a whole column at a time.

Every value becomes what `msgspec.json.encode` makes of it: bytes are base64, decimals, dates and instants are
text, and floats that are no numbers are null. (Floats may have other digits for the same number.) Instants
are in UTC, because a zone's distance from UTC has seconds before standard time, and the first and the last
hours of the calendar have no local time at all. A column at a time takes a third of the time of row by row,
and a twentieth if rows are nested. Text that must be escaped, bytes, durations and types that Spark does not
have are encoded value by value. Source: pipelines.11.
"""

import datetime as dt
from typing import Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broadsheet.errors import InvalidArgument

TEXT: Final = pa.large_string()
Piece: TypeAlias = str | pa.Array
"""Text that is the same in each row, or the texts of the rows."""
_ESCAPED: Final = r'["\\\x00-\x1f]'
"""What JSON text may not contain as it is."""
_NO_OBJECT: Final = "a map does not become a JSON object"
_MAP_REMEDY: Final = (
    "Keys of a map must differ, and be text, numbers, bytes or times: cast the column, or make the body"
    " yourself as column 'value'"
)
_YEARS: Final = (dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999))  # noqa: DTZ001


def texts(column: pa.Array) -> pa.Array:
    """The JSON of each value of `column`, as large text without nulls.

    Raises:
        InvalidArgument: a text is no UTF-8, a time lies outside the years 1 to 9999, or a map has keys that
            the fields of an object cannot have.
    """
    return concatenated(_pieces(column))


def object_pieces(column: pa.StructArray) -> "list[Piece]":
    """The pieces of text that are the JSON of each value of `column`, of which none is null, in their order.

    Raises:
        InvalidArgument: as `texts`.
    """
    return _object(column)


def _pieces(column: pa.Array) -> list[Piece]:
    """Pieces of text that are the JSON of each value if they stand back to back; none is null.

    The pieces of a struct are joined with what stands around it, because each join copies all bytes.
    """
    found = _of_known(column)
    if not column.null_count:
        return found
    return [pc.if_else(column.is_valid(), concatenated(found), pa.scalar("null", TEXT))]


def _of_known(column: pa.Array) -> list[Piece]:
    """As `_pieces`, but the text of a value that is null is anything."""
    kind, types = column.type, pa.types
    if types.is_struct(kind):
        return _object(column)
    if types.is_list(kind) or types.is_large_list(kind):
        return _list(column)
    if types.is_map(kind):
        return _map(column)
    if types.is_string(kind) or types.is_large_string(kind):
        return _quoted_text(column.cast(TEXT))
    if types.is_integer(kind) or types.is_boolean(kind):
        return [column.cast(TEXT)]
    if types.is_float32(kind) or types.is_float64(kind):
        return [_floats(column)]
    if types.is_decimal(kind):
        return ['"', column.cast(TEXT), '"']
    if types.is_date32(kind) or (types.is_timestamp(kind) and kind.unit == "us"):
        return _time(column)
    return [_one_by_one(column)]


def in_utc(column: pa.Array) -> pa.Array:
    """`column`; if it has instants, in UTC in place of the session's time zone."""
    kind = column.type
    is_zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    return column.cast(pa.timestamp(kind.unit, "UTC")) if is_zoned else column


def _object(column: pa.StructArray) -> list[Piece]:
    pieces: list[Piece] = []
    for at, field in enumerate(column.type.fields):
        name = msgspec.json.encode(field.name).decode()
        pieces += [f"{',' if at else '{'}{name}:", *_pieces(column.field(at))]
    return [*pieces, "}"] if pieces else [pa.repeat(pa.scalar("{}", TEXT), len(column))]


def _list(column: pa.ListArray) -> list[Piece]:
    first, last, offsets = _bounds(column)
    items = texts(column.values.slice(first, last - first))
    return ["[", _joined(offsets, items), "]"]


def _map(column: pa.MapArray) -> list[Piece]:
    first, last, offsets = _bounds(column)
    keys, items = column.keys.slice(first, last - first), column.items.slice(first, last - first)
    names = _names(keys)
    rows = np.repeat(np.arange(len(column)), np.diff(offsets))
    if pa.table({"row": rows, "name": names}).group_by(["row", "name"]).aggregate([]).num_rows < len(rows):
        raise InvalidArgument(f"{_NO_OBJECT}: a key occurs twice. {_MAP_REMEDY}")
    return ["{", _joined(offsets, concatenated([names, ":", *_pieces(items)])), "}"]


def _names(keys: pa.Array) -> pa.Array:
    """The keys of a map as the quoted names of fields."""
    kind, types = keys.type, pa.types
    if types.is_boolean(kind) or types.is_nested(kind):
        raise InvalidArgument(f"{_NO_OBJECT}: its keys are {kind}. {_MAP_REMEDY}")
    found = texts(keys)
    return concatenated(['"', found, '"']) if types.is_integer(kind) or types.is_floating(kind) else found


def _bounds(column: pa.ListArray | pa.MapArray) -> tuple[int, int, pa.Array]:
    """Where the items of `column` begin and end, and where those of each row begin, from 0."""
    offsets = column.offsets.cast(pa.int64())
    return offsets[0].as_py(), offsets[-1].as_py(), pc.subtract(offsets, offsets[0])


def _joined(offsets: pa.Array, items: pa.Array) -> pa.Array:
    return pc.binary_join(pa.LargeListArray.from_arrays(offsets, items), pa.scalar(",", TEXT))


def _quoted_text(column: pa.Array) -> list[Piece]:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidArgument(f"a text is no UTF-8, so it cannot be in JSON: {error}") from error
    if not _has_escapes(column):
        return ['"', column, '"']
    is_escaped = pc.fill_null(pc.match_substring_regex(column, _ESCAPED), fill_value=False)
    escaped = _one_by_one(column.filter(is_escaped))
    return [pc.replace_with_mask(concatenated(['"', column, '"']), is_escaped, escaped)]


def _has_escapes(column: pa.Array) -> bool:
    _, ends, content = column.buffers()
    if content is None or not len(column):
        return False
    ends = np.frombuffer(ends, np.int64)[column.offset : column.offset + len(column) + 1]
    raw = np.frombuffer(content, np.uint8)[int(ends[0]) : int(ends[-1])]
    return bool(((raw < 0x20) | (raw == ord('"')) | (raw == ord("\\"))).any())


def _floats(column: pa.Array) -> pa.Array:
    found = pc.if_else(pc.is_finite(column), column.cast(TEXT), pa.scalar(None, TEXT))
    is_whole = pc.fill_null(
        pc.and_(pc.is_finite(column), pc.equal(pc.trunc(column), column)), fill_value=False
    )
    if pc.any(
        is_whole
    ).as_py():  # Few are, as a rule: a look at all texts would take longer than to make them.
        whole = found.filter(is_whole)
        is_bare = pc.invert(pc.match_substring_regex(whole, "[.e]"))
        dotted = pc.if_else(is_bare, concatenated([whole, ".0"]), whole)
        found = pc.replace_with_mask(found, is_whole, dotted)
    return pc.fill_null(found, "null")


def _time(column: pa.Array) -> list[Piece]:
    kind = column.type
    ends = pc.min_max(column)
    first, last = (pa.scalar(each).cast(kind) for each in _YEARS)
    if pc.less(ends["min"], first).as_py() or pc.greater(ends["max"], last).as_py():
        raise InvalidArgument(
            "a time lies outside the years 1 to 9999: filter these rows, or cast the column"
        )
    if pa.types.is_date32(kind):
        return ['"', column.cast(TEXT), '"']
    # Arrow makes text of a time with a zone thirty times slower than of one without.
    found = pc.replace_substring(column.cast(pa.timestamp("us")).cast(TEXT), " ", "T")
    return ['"', pc.replace_substring(found, ".000000", ""), 'Z"' if kind.tz is not None else '"']


def _one_by_one(column: pa.Array) -> pa.Array:
    encoded = [None if value is None else msgspec.json.encode(value) for value in column.to_pylist()]
    return pa.array(encoded, pa.large_binary()).cast(TEXT)


def concatenated(pieces: list[Piece]) -> pa.Array:
    """The pieces back to back; null where one of them is."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and isinstance(piece, str) and isinstance(joined[-1], str):
            joined[-1] += piece
        else:
            joined.append(piece)
    if len(joined) == 1 and not isinstance(joined[0], str):
        return joined[0]
    wanted = [pa.scalar(each, TEXT) if isinstance(each, str) else each for each in joined]
    return pc.binary_join_element_wise(*wanted, pa.scalar("", TEXT))
