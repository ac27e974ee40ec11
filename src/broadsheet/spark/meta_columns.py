"""Meta columns: what the source tells of a message besides its content.

`META` are there by themselves, those of `ASKED_FOR` if an option asks for them: many a message has fields of
their names. Columns that a query does not name are not made. Units: byte offsets; 100 ns of a clock, and
microseconds of a timestamp. Source: pipelines.1; journals.28.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from broadsheet.errors import ConfigError, LocalProtocolError
from broadsheet.message.clock import UNIX_TO_GREGORIAN
from broadsheet.message.columns import Bool, Clocks, Frames, Int, texts_of, uuids_of
from broadsheet.spark.keys import keys_of
from broadsheet.spark.options import Options
from broadsheet.spark.values import Values

META: Final = {
    "value": pa.binary(),
    "journal": pa.string(),
    "offset": pa.int64(),
    "end": pa.int64(),
    "uuid": pa.string(),
    "producer": pa.int64(),
    "clock": pa.int64(),
    "flags": pa.int32(),
    "malformed": pa.bool_(),
}
ASKED_FOR: Final = {"key": pa.binary(), "timestamp": pa.timestamp("us", "UTC")}
META_IS: Final = {
    "value": "The message's bytes. For fixed frames without header and UUID; for JSON lines the line.",
    "journal": "The name of the journal that holds the message.",
    "offset": "Where the message's frame begins, in bytes of the journal.",
    "end": "Where the message's frame ends, in bytes of the journal (exclusive).",
    "uuid": "The message's UUID as text; null if it has none.",
    "producer": "The producer id: 48 bits of the UUID.",
    "clock": "When the message was sent, by its producer's clock: 100 ns since 1582-10-15, times 16, plus a "
    "sequence number.",
    "flags": "0: the message commits by itself. 1: a later acknowledgement of its producer committed it.",
    "malformed": "Whether the message does not parse as the schema says. Such rows appear only with option "
    "`malformed=keep`.",
    "key": "Only with option `keyColumn`. The bytes of that column, which choose a journal if `keyColumn` of "
    "the sink names it: its UTF-8 if it is text, its digits if it is a number; null if it is null.",
    "timestamp": "Only with option `includeTimestamp`. When the message was sent, by its producer's clock, "
    "which may run ahead by a microsecond for each message; null if it has no UUID.",
}
"""The meta columns as the documentation describes them."""
_DDL: Final = {
    "value": "BINARY",
    "journal": "STRING",
    "offset": "BIGINT",
    "end": "BIGINT",
    "uuid": "STRING",
    "producer": "BIGINT",
    "clock": "BIGINT",
    "flags": "INT",
    "malformed": "BOOLEAN",
    "key": "BINARY",
    "timestamp": "TIMESTAMP",
}


class Wanted:
    """Which meta columns a source has, and where they stand."""

    def __init__(self, *, struct: str = "", key_column: str = "", has_timestamp: bool = False) -> None:
        """The meta columns that the options of a source ask for.

        Args:
            struct: the struct that has the meta columns as its fields. Without it they stand beside the
                columns that are parsed from a message.
            key_column: the parsed column that holds the key of a message; empty if none does.
        """
        self.struct, self.key_column = struct, key_column
        asked = {"key": bool(key_column), "timestamp": has_timestamp}
        self.types = META | {name: kind for name, kind in ASKED_FOR.items() if asked[name]}

    @staticmethod
    def by(options: Options) -> "Wanted":
        """Those that a user asks for.

        Raises:
            ConfigError: an option has a wrong value.
        """
        return Wanted(
            struct=options.text("metaColumn"),
            key_column=options.text("keyColumn"),
            has_timestamp=options.flag("includeTimestamp", default=False),
        )

    def ddl(self) -> str:
        """All of them, for a query that names no columns."""
        columns = ", ".join(f"{name} {_DDL[name]}" for name in self.types)
        return f"`{self.struct}` STRUCT<{columns}>" if self.struct else columns

    def has(self, name: str) -> bool:
        """Whether a column describes the message, and is not parsed from it."""
        return name == self.struct if self.struct else name in self.types

    def refuse_wrong(self, columns: pa.Schema) -> None:
        """Judge the columns of a read.

        Raises:
            LocalProtocolError: a meta column has another type, or the struct has other fields.
            ConfigError: the key is read from no column, or what an option asks for is spelt in another case.
        """
        asked_for = [self.struct] if self.struct else [name for name in ASKED_FOR if name in self.types]
        for name in asked_for:
            if alike := [each for each in columns.names if each != name and each.lower() == name.lower()]:
                raise ConfigError(
                    f"an option asks for column {name!r}, and the schema says {alike}: spell it so"
                )
        described = [field for field in columns if self.has(field.name)]
        if self.struct:
            described = [each for field in described for each in self._fields(field)]
        for field in described:
            if field.type != self.types[field.name]:
                raise LocalProtocolError(
                    f"column {field.name} is {self.types[field.name]}, and the schema says {field.type}: "
                    "correct it"
                )
        parsed = [name for name in columns.names if not self.has(name)]
        if any(field.name == "key" for field in described) and self.key_column not in parsed:
            raise ConfigError(
                f"keyColumn {self.key_column!r} is no field of a message that is read: name one of {parsed} "
                "(with option metaColumn it may be called as a meta column is)"
            )

    def _fields(self, column: pa.Field) -> list[pa.Field]:
        """The fields of the struct that describes a message.

        Raises:
            LocalProtocolError: it is no struct, or a field is no meta column.
        """
        fields = column.type.fields if pa.types.is_struct(column.type) else [column]
        if strange := [field.name for field in fields if field.name not in self.types]:
            raise LocalProtocolError(
                f"column {column.name} is named by option metaColumn, so it is a struct of meta columns: "
                f"{strange} are none of {', '.join(self.types)}"
            )
        return list(fields)


NO_OPTION: Final = Wanted()
"""Those that are there by themselves."""


class Described:
    """What is known of some messages of one journal, from which their meta columns are made."""

    def __init__(  # noqa: PLR0917 - what is known of them.
        self, journal: str, frames: Frames, values: Values, parsed: pa.Table, good: Bool, wanted: Wanted
    ) -> None:
        """Describe messages.

        Args:
            good: which of them parsed.
        """
        self.journal, self.frames, self.values, self.parsed = journal, frames, values, parsed
        self.good, self.wanted = good, wanted

    def column(self, field: pa.Field) -> pa.Array:
        """A meta column, or the struct of them."""
        if field.name != self.wanted.struct:
            return self._meta(field.name)
        parts = [self._meta(each.name) for each in field.type.fields]
        return pa.StructArray.from_arrays(parts, fields=field.type.fields)

    def _meta(self, name: str) -> pa.Array:
        match name:
            case "value":
                return self.values.binary()
            case "journal":
                nowhere = pa.array(np.zeros(len(self.values), np.int64))
                return pa.array([self.journal], pa.string()).take(nowhere)
            case "offset":
                return pa.array(self.frames.begin)
            case "uuid":
                return _uuids(self.frames)
            case "malformed":
                return pa.array(~self.good)
            case "clock":
                return pa.array(self.frames.clock.astype(np.int64))
            case "flags":
                return pa.array(self.frames.flags.astype(np.int32))
            case "key":
                return keys_of(self.parsed.column(self.wanted.key_column).combine_chunks())
            case "timestamp":
                return _timestamps(self.frames.clock)
            case _:
                column: Int = getattr(self.frames, name)
                return pa.array(column)


def _uuids(frames: Frames) -> pa.Array:
    """The UUIDs as text; null if a message has none."""
    raw = uuids_of(frames.producer, frames.clock, frames.flags)
    texts = np.ascontiguousarray(texts_of(raw)).view("S36").reshape(-1).astype("U36")
    return pa.array(texts, mask=frames.clock == 0)


def _timestamps(clock: Clocks) -> pa.Array:
    """When the messages were sent; null if one has no UUID."""
    microseconds = (clock >> np.uint64(4)).astype(np.int64) // 10 - UNIX_TO_GREGORIAN // 10
    return pa.array(microseconds, mask=clock == 0).cast(ASKED_FOR["timestamp"])
