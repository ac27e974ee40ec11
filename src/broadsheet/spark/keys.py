"""Keys: the bytes of a row's key, which choose its journal. Source and sink read them in the same way.

A key that is bytes is itself, and any other is its text; text is UTF-8, and an instant is in UTC. A row
without a key has none, and goes where the empty key goes. Source: pipelines.3; `message.mapping`.
"""

import pyarrow as pa

from broadsheet.spark.json_text import in_utc

TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


def keys_of(column: pa.Array) -> pa.Array:
    """The keys in `column`, as bytes; null where it is."""
    kind = column.type
    if pa.types.is_integer(kind):
        column = column.cast(pa.string())
    elif not any(is_kind(kind) for is_kind in TEXTS):
        column = pa.array(map(_text, in_utc(column).to_pylist()), pa.string())
    return column.cast(pa.binary())


def _text(value: object) -> str | None:
    return None if value is None else str(value)
