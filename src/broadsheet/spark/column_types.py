"""Column types: refuses the types of Spark that a JSON message cannot have, before a query runs.

Intervals of months have no Arrow type here, a VARIANT would be written as the bytes in which Spark keeps it,
and not everything can be the name of a field, which is what the key of a map becomes. Every other type is
written by the sink and read by the source. Source: pipelines.1, pipelines.11.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    CalendarIntervalType,
    DataType,
    MapType,
    NullType,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from broadsheet.errors import ConfigError

_REFUSED: Final = (CalendarIntervalType, VariantType, YearMonthIntervalType)
_REFUSED_KEYS: Final = (ArrayType, BooleanType, NullType, StructType)


def refuse_types(schema: StructType) -> None:
    """Raise if a column cannot be a field of a message.

    Raises:
        ConfigError: it names the columns, and what to do.
    """
    bad = [f"{field.name} {field.dataType.simpleString()}" for field in schema if _is_refused(field.dataType)]
    if bad:
        raise ConfigError(
            f"columns {bad}: a message has no such values. Cast an interval to text or to a number of months,"
            " make text of a variant with to_json, and make the keys of a map text, numbers, bytes or times"
        )


def _is_refused(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_is_refused(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _is_refused(kind.elementType)
    if isinstance(kind, MapType):
        is_key = not isinstance(kind.keyType, _REFUSED_KEYS) and not _is_refused(kind.keyType)
        return not is_key or _is_refused(kind.valueType)
    return isinstance(kind, _REFUSED)
