"""Encode: turns Arrow batches into framed messages, a whole column at a time.

The body of a message is the row's column `value` (text or bytes; for JSON lines a JSON object). Without that
column the body is a JSON object of the row's columns, except those that only choose the journal. The clocks
of the messages are consecutive, `TICK` apart. Encoding a column at a time costs a fifth of encoding row by
row. The columns of a row and the head of its frame are joined at once, because each join copies all bytes.
This module appends nothing and draws no entropy. Source: pipelines.11.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broadsheet.errors import ConfigError, InvalidArgument
from broadsheet.message.clock import TICK
from broadsheet.message.columns import Bytes, Int, texts_of, uuids_of
from broadsheet.message.framing import FRAME_BYTES_MAX, MAGIC, Framing, Kind, framed
from broadsheet.message.uuid import UUID_BYTES, Clock, ProducerId
from broadsheet.spark.json_text import TEXT, concatenated, object_pieces, texts
from broadsheet.spark.keys import TEXTS

VALUE = "value"


def bodies(batch: pa.RecordBatch, leave_out: frozenset[str]) -> pa.Array:
    """The bodies of a batch's rows, as large binary.

    Raises:
        ConfigError: `value` is neither text nor bytes. InvalidArgument: it is null in a row, a map has keys
            that a JSON object cannot have, or a value is none that JSON can have.
    """
    if VALUE in batch.schema.names:
        column = batch.column(VALUE)
        if not any(is_kind(column.type) for is_kind in TEXTS):
            raise ConfigError(
                f"column '{VALUE}' is {column.type}, and a body is text or bytes: cast the column, "
                "or rename it"
            )
        column = column.cast(pa.large_binary())
        if column.null_count:
            raise InvalidArgument(
                f"{column.null_count} rows have a null {VALUE}: filter these rows, or fill them"
            )
        return column
    return texts(_objects(batch, leave_out)).cast(pa.large_binary())


def _objects(batch: pa.RecordBatch, leave_out: frozenset[str]) -> pa.StructArray:
    kept = batch.select([name for name in batch.schema.names if name not in leave_out])
    if not kept.num_columns:
        raise ConfigError(
            "no column is left for the body: select another one beside those that choose the journal"
        )
    return kept.to_struct_array()


def rows_framed(
    framing: Framing,
    batch: pa.RecordBatch,
    leave_out: frozenset[str],
    *,
    producer: ProducerId,
    first: Clock,
    flags: int,
) -> pa.Array:
    """The rows of a batch as frames of one producer, clocks from `first` on.

    Raises:
        ConfigError, InvalidArgument: as `bodies`, or a row does not fit into a frame.
    """
    names = batch.schema.names
    if framing.kind is Kind.FIXED or VALUE in names or _reserved(framing) in names or not len(batch):
        return frames(framing, bodies(batch, leave_out), producer, first, flags)
    opening, *rest = object_pieces(_objects(batch, leave_out))
    assert isinstance(opening, str), "an object with columns begins with a brace and a name"
    before, behind = framing.prefix().decode(), f"{framing.closing().decode()},{opening[1:]}"
    ids = _texts(texts_of(_uuids(producer, first, flags, len(batch))))
    found = concatenated([before, ids, behind, *rest, "\n"])
    _refuse_long(found)
    return found


def frames(framing: Framing, column: pa.Array, producer: ProducerId, first: Clock, flags: int) -> pa.Array:
    """The bodies of `column` as frames of one producer, clocks from `first` on."""
    _refuse_long(column)
    uuids = _uuids(producer, first, flags, len(column))
    if framing.kind is Kind.FIXED:
        return _fixed(column, uuids)
    if _are_plain_objects(framing, column):
        return _lines(framing, column, uuids)
    rows = zip(uuids, column.to_pylist(), strict=True)
    return pa.array([framed(framing, uuid.tobytes(), body) for uuid, body in rows], pa.large_binary())


def bytes_of(rows: pa.Array) -> bytes:
    """The rows back to back."""
    return _content(rows).tobytes() if len(rows) else b""


def portions(rows: pa.Array, bytes_max: int) -> Iterator[bytes]:
    """The rows back to back, in portions of at most `bytes_max` or one row."""
    ends, content = _ends(rows), _content(rows)
    base, at = int(ends[0]), 0
    while at < len(rows):
        to = max(at + 1, int(np.searchsorted(ends, ends[at] + bytes_max, "right")) - 1)
        yield content[int(ends[at]) - base : int(ends[to]) - base].tobytes()
        at = to


def _reserved(framing: Framing) -> str:
    """The field of an object that the UUID is in."""
    return framing.uuid_field.split(".", maxsplit=1)[0]


def _uuids(producer: ProducerId, first: Clock, flags: int, count: int) -> Bytes:
    clocks = np.uint64(first) + np.arange(count, dtype=np.uint64) * np.uint64(TICK)
    return uuids_of(producer, clocks, flags)


def _refuse_long(column: pa.Array) -> None:
    longest = pc.max(pc.binary_length(column)).as_py() or 0
    if longest + 128 > FRAME_BYTES_MAX:
        raise InvalidArgument(
            f"a body of {longest} bytes does not fit into a frame of {FRAME_BYTES_MAX} bytes "
            "with its header: split the row"
        )


def _ends(column: pa.Array) -> Int:
    """Where the first value begins, and where each one ends."""
    return np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]


def _content(column: pa.Array) -> Bytes:
    offsets = _ends(column)
    data = column.buffers()[2]
    raw = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return raw[int(offsets[0]) : int(offsets[-1])] if len(offsets) else raw


def _are_plain_objects(framing: Framing, column: pa.Array) -> bool:
    """Whether every body is an object on one line that cannot contain the UUID's field.

    Only then may the UUID be put in front of all bodies at once. Otherwise each body is framed by itself.
    """
    bounds = _ends(column) if len(column) else np.zeros(1, np.int64)
    lengths = np.diff(bounds)
    if not len(lengths) or int(np.min(lengths)) < 3:
        return False
    raw, begins, ends = _content(column), bounds[:-1] - bounds[0], bounds[1:] - bounds[0]
    name = b'"%s"' % _reserved(framing).encode()
    content = raw.tobytes()  # Bytes are searched at the speed of memory, and columns are not.
    return bool(
        (raw[begins] == ord("{")).all()
        and (raw[begins + 1] == ord('"')).all()
        and (raw[ends - 1] == ord("}")).all()
        and b"\n" not in content
        and name not in content
    )


def _texts(items: Bytes) -> pa.Array:
    """The rows of `items` as text."""
    offsets = np.arange(len(items) + 1, dtype=np.int64) * items.shape[1]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(items))]
    return pa.Array.from_buffers(TEXT, len(items), buffers)


def _lines(framing: Framing, column: pa.Array, uuids: Bytes) -> pa.Array:
    ends = [framing.prefix().decode(), framing.closing().decode() + ",", "\n", ""]
    prefix, closing, newline, nothing = (pa.scalar(each.encode(), pa.large_binary()) for each in ends)
    ids, rest = _texts(texts_of(uuids)).cast(pa.large_binary()), pc.binary_slice(column, 1, FRAME_BYTES_MAX)
    return pc.binary_join_element_wise(prefix, ids, closing, rest, newline, nothing)


def _fixed(column: pa.Array, uuids: Bytes) -> pa.Array:
    heads = np.empty((len(column), 8 + UUID_BYTES), np.uint8)
    heads[:, :4] = np.frombuffer(MAGIC, np.uint8)
    lengths = pc.binary_length(column).to_numpy(zero_copy_only=False)
    heads[:, 4:8] = (lengths + UUID_BYTES).astype("<u4").view(np.uint8).reshape(-1, 4)
    heads[:, 8:] = uuids
    nothing = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(_texts(heads).cast(pa.large_binary()), column, nothing)
