"""Column types: refuses the types of Spark that a JSON message cannot have, before a query runs.

Intervals of months have no Arrow type here, and a VARIANT would be written as the bytes in which Spark keeps
it. Every other type is written by the sink and read by the source. Source: pipelines.1, pipelines.11.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    MapType,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from broadsheet.errors import ConfigError

_REFUSED: Final = (CalendarIntervalType, VariantType, YearMonthIntervalType)


def refuse_types(schema: StructType) -> None:
    """Raise if a column cannot be a field of a message.

    Raises:
        ConfigError: it names the columns, and what to do.
    """
    bad = [f"{field.name} {field.dataType.simpleString()}" for field in schema if _is_refused(field.dataType)]
    if bad:
        raise ConfigError(
            f"columns {bad}: a message has no such values. Cast an interval to text or to a number of months,"
            " and make text of a variant with to_json"
        )


def _is_refused(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_is_refused(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _is_refused(kind.elementType)
    if isinstance(kind, MapType):
        return _is_refused(kind.keyType) or _is_refused(kind.valueType)
    return isinstance(kind, _REFUSED)
