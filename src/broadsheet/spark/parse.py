"""Parse: turns the bytes of committed messages into Arrow columns, and finds those that do not parse.

A JSON line is an object whose fields are columns; dates and times are text, and bytes are base64
(`json_read`). numpy parses fixed frames: numbers in the schema's order, little-endian, without gaps. Option
`malformed` decides over messages that do not parse: FAIL raises an error with the offset of the first, DROP
leaves them out and reports how many, KEEP gives rows whose parsed columns are null. This module does no IO.
Source: pipelines.1.
"""

from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from broadsheet.errors import ConfigError
from broadsheet.message.columns import Bool
from broadsheet.message.framing import Framing, Kind
from broadsheet.spark.json_read import ArrowReader, Part, ValueReader, can_arrow_read, can_value_read
from broadsheet.spark.values import Values

_FIXED_TYPES = {
    pa.int8(): "<i1", pa.int16(): "<i2", pa.int32(): "<i4", pa.int64(): "<i8", pa.float32(): "<f4",
    pa.float64(): "<f8", pa.bool_(): "?",
}  # fmt: skip


class Malformed(Enum):
    """What becomes of a message that does not parse; the values are those of option `malformed`."""

    FAIL = "fail"
    DROP = "drop"
    KEEP = "keep"


@lru_cache(maxsize=16)
def parser(framing: Framing, fields: pa.Schema) -> "JSONParser | FixedParser":
    """The parser of bodies of that framing into `fields`."""
    return JSONParser(fields) if framing.kind is Kind.JSON_LINES else FixedParser(fields)


class JSONParser:
    """Parses JSON objects, one a line. In `Values.raw` a newline must follow each body."""

    def __init__(self, fields: pa.Schema) -> None:
        """Parse JSON objects into `fields`.

        Raises:
            ConfigError: a field has a type that cannot be read from JSON.
        """
        self.fields = fields
        fast = [field for field in fields if can_arrow_read(field.type)]
        rest = [field for field in fields if field not in fast]
        if strange := [field.name for field in rest if not can_value_read(field.type)]:
            raise ConfigError(
                f"columns {strange}: JSON cannot be parsed into their types. Read the column value, and "
                "parse it with Spark's from_json"
            )
        self._readers: list[ArrowReader | ValueReader] = []
        if rest:
            self._readers.append(ValueReader(pa.schema(rest)))
        if fast:
            self._readers.append(ArrowReader(pa.schema(fast)))

    def parse(self, values: Values) -> tuple[pa.Table, Bool]:
        """The columns of JSON objects, and which rows parsed. A row that did not is null in every column."""
        if not len(self.fields):
            return pa.table({}), np.ones(len(values), np.bool_)
        rows = np.flatnonzero(_are_braced(values))
        parts: list[Part] = []
        for reader in self._readers:
            parts.append(reader.read(values, rows))
            rows = parts[-1].rows
        good = np.zeros(len(values), np.bool_)
        good[rows] = True
        columns = dict[str, Any]()
        for part in parts:
            table = part.table
            if not good.all():
                places = np.where(good, np.searchsorted(part.rows, np.arange(len(good))), 0)
                table = table.combine_chunks().take(pa.array(places, mask=~good))
            columns |= zip(table.schema.names, table.columns, strict=True)
        return pa.table([columns[name] for name in self.fields.names], schema=self.fields), good


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
        """The columns of fixed frames, and which parsed. A body of a wrong length is null in each column."""
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
