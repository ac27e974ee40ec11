"""Read: gives the committed messages of a span of a journal as Arrow batches.

The result depends only on (journal, begin, end), because committed bytes never change. The producers' states
come from the newest producer index at or below `begin`, and the frames from there to `end` are sequenced.
A message that lies before these frames, but whose acknowledgement lies in the span, is fetched from its own
offset (`replay`). A span is sequenced in blocks of a few MiB, which bounds the memory. A column that is none
of `meta_columns` is parsed from the message. Units: byte offsets. Source: pipelines.1-3; journals.29.
"""

import sys
from collections.abc import Generator, Iterator

import numpy as np
import pyarrow as pa

from broadsheet.base.types import ByteOffset
from broadsheet.errors import ConfigError, LocalProtocolError
from broadsheet.journal.core.spec import framing_of
from broadsheet.message.columns import Bool, Frames, frames_of
from broadsheet.message.framing import HEADER, JSON_LINES, Framing, Kind
from broadsheet.message.position import Position
from broadsheet.message.producer_state import ProducerIndex, beginning, begun
from broadsheet.message.replay import Read, Recent, Rows, committed
from broadsheet.message.spans import update
from broadsheet.message.stored_index import index_from
from broadsheet.message.uuid import UUID_BYTES, Flag
from broadsheet.spark.connection import Target, chunks, patiently
from broadsheet.spark.kept import NO_BASE, Kept, Whose
from broadsheet.spark.meta_columns import NO_OPTION, Described, Wanted
from broadsheet.spark.offsets import Span
from broadsheet.spark.parse import Malformed, parser
from broadsheet.spark.values import Values

BLOCK_BYTES = 4 << 20
"""How much of a journal is sequenced at a time."""
ROWS_PER_BATCH = 65_536
REPLAY_BYTES_MAX = 256 << 20
"""How many bytes of messages from before a block are in memory at once: option `maxReplayMemory`.

More than these are fetched for a few producers at a time, and for a single producer a few MiB at a time.
"""


class Shape:
    """The columns that a read gives, and the options that decide which messages become rows."""

    def __init__(
        self,
        columns: pa.Schema,
        *,
        malformed: Malformed = Malformed.FAIL,
        is_committed: bool = True,
        replay_bytes_max: int = REPLAY_BYTES_MAX,
        meta: Wanted = NO_OPTION,
    ) -> None:
        """Judge the columns of a read.

        Raises:
            LocalProtocolError: a meta column has another type.
            ConfigError: a column cannot be null, or as `Wanted.refuse_wrong`.
        """
        meta.refuse_wrong(columns)
        self.columns = columns
        self.meta = meta
        self.replay_bytes_max = replay_bytes_max
        self.malformed = malformed
        self.is_committed = is_committed
        self.parsed = pa.schema([field for field in columns if not meta.has(field.name)])
        strict = [field.name for field in self.parsed if not field.nullable]
        if strict and malformed is Malformed.KEEP:
            raise ConfigError(
                f"columns {strict} are NOT NULL, and with option malformed=keep a message that does not "
                "parse is a row of nulls: let the columns be null, or set malformed to 'drop' or 'fail'"
            )


def read_span(
    target: Target,
    framing: Framing,
    span: Span,
    shape: Shape,
    *,
    create_revision: int,
    journal_begin: int = 0,
    base: int = NO_BASE,
    kept: Kept | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a span in commit order.

    Create revisions only rise, and the index is asked for before any byte is read. So if the bytes are those
    of the planned journal, the index is that journal's too.

    Args:
        create_revision: of the journal that was planned.
        journal_begin: where the journal began when the query did.
        base: the newest index point at or below the span's begin.
        kept: what this process keeps of its reads; this one begins there if it can, and is kept there.

    Raises:
        NotFound: the journal was deleted, or another one has its name.
        LocalProtocolError: a message does not parse and option `malformed` is `fail`. The error names the
            journal and the offset.
        Corrupt, Trimmed: bytes that are needed for the producers' states are damaged or gone.
    """

    def read(begin: int, end: int) -> Iterator[bytes]:
        return chunks(target, span.journal, create_revision=create_revision, begin=begin, end=end)

    whose = Whose(target.address, span.journal, create_revision, journal_begin, framing, shape.is_committed)
    index = kept.at(whose, base=base, begin=span.begin) if kept is not None else None
    if index is None:
        index = beginning(index_at(target, framing, span.journal, span.begin), journal_begin)
        base = int(index.offset)
    after = yield from rows_of(index, read, span, shape)
    if kept is not None:
        kept.keep(whose, after, base=base)


def index_at(target: Target, framing: Framing, journal: str, offset: int) -> ProducerIndex:
    """The newest producer index of a journal at or below `offset`."""
    found = patiently(lambda: target.journals().producer_index(journal, offset), target.patience_s)
    return index_from(bytes(found.encoded), found.offset, framing=framing, journal=journal, asked=offset)


def index_up_to(target: Target, journal: str, position: Position) -> ProducerIndex:
    """The producer index at a position, or at the begin of the frame that it is in.

    It reads what lies above the newest stored index: 16 MiB at most while the journal is indexed.

    Raises:
        NotFound: the journal was deleted, or another one has its name.
    """
    info = patiently(lambda: target.journals().get(journal), target.patience_s)
    index, rest = index_at(target, framing_of(info.spec) or JSON_LINES, journal, position.offset), b""
    revision, end = position.create_revision, position.offset
    for data in chunks(target, journal, create_revision=revision, begin=int(index.offset), end=end):
        begin, content = int(index.offset), rest + data
        index = update(index, content)
        rest = content[int(index.offset) - begin :]
    return index


def rows_of(
    index: ProducerIndex, read: Read, span: Span, shape: Shape
) -> Generator[pa.RecordBatch, None, ProducerIndex]:
    """Yield the rows of a span, given a producer index at or below `span.begin`; return the one at its end.

    If the span ends inside a frame, that is the index at the frame's begin.
    """
    recent, rest = Recent(int(index.offset), shape.replay_bytes_max // 2), bytearray()
    for data in read(index.offset, span.end):
        rest += data
        if len(rest) < BLOCK_BYTES and index.offset + len(rest) < span.end:
            continue
        content, rest = bytes(rest), bytearray()
        frames = frames_of(index.framing, content, index.offset)
        if not len(frames.begin):
            rest += content
            continue
        base, after = index.offset, ByteOffset(int(frames.end[-1]))
        index = yield from _block(index, frames, content, read, span, shape, recent)
        rest += content[after - base :]
    return index


def _block(  # noqa: PLR0917 - what one block is made of.
    index: ProducerIndex, frames: Frames, content: bytes, read: Read, span: Span, shape: Shape, recent: Recent
) -> Generator[pa.RecordBatch, None, ProducerIndex]:
    """Yield the rows that one block commits, earlier pending messages included; return the index after it."""
    if shape.is_committed:
        found = committed(
            index, frames, content, read, span.begin, bytes_max=shape.replay_bytes_max, recent=recent
        )
        while True:
            try:
                rows = next(found)
            except StopIteration as ended:
                after: ProducerIndex = ended.value
                return after
            yield from _batches(index.framing, rows, span, shape)
    chosen = frames.take((frames.end > span.begin) & frames.has_data & (frames.flags != Flag.ACK))
    shift = np.full(len(chosen.begin), -int(index.offset), np.int64)
    yield from _batches(index.framing, Rows(chosen, shift, np.frombuffer(content, np.uint8)), span, shape)
    return begun(index.framing, ByteOffset(int(frames.end[-1])))  # Uncommitted reading needs no states.


def frame_around(index: ProducerIndex, read: Read, offset: int, head: int) -> tuple[int, int]:
    """The bounds of the frame inside which `offset` lies; `(offset, offset)` if it is a frame boundary.

    Args:
        index: a producer index at or below `offset`, which gives a known frame boundary.
        head: the committed end of the journal. Reading stops there; the end of a frame that goes on after
            `head` is given as -1.
    """
    at, rest = int(index.offset), bytearray()
    for data in read(at, head) if at < offset else ():
        rest += data
        frames = frames_of(index.framing, bytes(rest), at)
        if not len(frames.begin):
            continue
        place = int(np.searchsorted(frames.end, offset))  # The first frame that ends at or after `offset`.
        if place < len(frames.end):
            begin, end = int(frames.begin[place]), int(frames.end[place])
            return (begin, end) if begin < offset < end else (offset, offset)
        rest = rest[int(frames.end[-1]) - at :]
        at = int(frames.end[-1])
    return (at, -1) if at < offset else (offset, offset)


def _batches(framing: Framing, rows: Rows, span: Span, shape: Shape) -> Iterator[pa.RecordBatch]:
    frames, shift, raw = rows
    is_json = framing.kind is Kind.JSON_LINES
    head = 0 if is_json else HEADER.size + np.where(frames.clock != 0, UUID_BYTES, 0)
    begins, ends = frames.begin + shift + head, frames.end + shift - (1 if is_json else 0)
    for low in range(0, len(begins), ROWS_PER_BATCH):
        part = frames.take(np.arange(low, min(low + ROWS_PER_BATCH, len(begins))))
        values = Values(raw, begins[low : low + ROWS_PER_BATCH], ends[low : low + ROWS_PER_BATCH])
        table, good = parser(framing, shape.parsed).parse(values)
        keep = _judge(good, part, span, shape)
        described = Described(span.journal, part, values, table, good, shape.meta)
        columns = [
            described.column(field) if shape.meta.has(field.name) else table.column(field.name)
            for field in shape.columns
        ]
        columns = [each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in columns]
        batch = pa.record_batch(columns, schema=shape.columns)
        yield batch if keep is None else batch.filter(pa.array(keep))


def _judge(good: Bool, frames: Frames, span: Span, shape: Shape) -> Bool | None:
    if good.all() or shape.malformed is Malformed.KEEP:
        return None
    bad = np.flatnonzero(~good)
    first = int(frames.begin[bad[0]])
    if shape.malformed is Malformed.FAIL:
        raise LocalProtocolError(
            f"the message at offset {first} of {span.journal} does not parse as the schema says: correct the "
            "schema, or set option malformed to 'drop' or 'keep'"
        )
    text = f"broadsheet: dropped {len(bad)} malformed messages of {span.journal}, first at {first}\n"
    sys.stderr.write(text)
    return good
