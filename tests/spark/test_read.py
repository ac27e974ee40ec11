"""A span of a journal gives the rows that are committed in it, however it is cut."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadsheet.base.types import ByteOffset
from broadsheet.errors import LocalProtocolError, TooLarge
from broadsheet.message.framing import FIXED, JSON_LINES, Framing, framed, scan
from broadsheet.message.producer_state import ProducerIndex, begun, update
from broadsheet.message.sequencer import Sequencer
from broadsheet.message.uuid import Clock, Flag, ProducerId, pack, to_text
from broadsheet.spark import read as module
from broadsheet.spark.offsets import Span
from broadsheet.spark.parse import Malformed
from broadsheet.spark.read import META, Read, Shape, frame_around, rows_of

ALL = pa.schema([("n", pa.int64()), *META.items()])
message = st.tuples(st.integers(1, 3), st.integers(1, 20), st.sampled_from([0, 1, 1, 1, 2]))


def content_of(framing: Framing, messages: list[tuple[int, int, int]]) -> bytes:
    return b"".join(
        framed(framing, pack(ProducerId(producer), Clock(clock), flags), body_of(framing, n, flags))
        for n, (producer, clock, flags) in enumerate(messages)
    )


def body_of(framing: Framing, n: int, flags: int) -> bytes:
    if flags == Flag.ACK:
        return b""
    return b'{"n":%d,"more":"\xc3\xa9"}' % n if framing == JSON_LINES else n.to_bytes(8, "little")


def reader(content: bytes, step: int = 1000) -> Read:
    def read(begin: int, end: int) -> Iterator[bytes]:
        for at in range(begin, end, step):
            yield content[at : min(end, at + step)]

    return read


def rows(index: ProducerIndex, read: Read, span: Span, shape: Shape) -> list[dict[str, object]]:
    return [row for batch in rows_of(index, read, span, shape) for row in batch.to_pylist()]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([JSON_LINES, FIXED]), st.lists(message, max_size=30), st.data())
def test_batches_together_give_what_one_reader_sees(
    framing: Framing, messages: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """Any cut, any index point, any block and any read size give each row once."""
    content = content_of(framing, messages)
    sequencer, expected = Sequencer(begun(framing)), []
    for frame in scan(framing, content, ByteOffset(0)):
        expected += [each.begin for each in sequencer.step(frame)[1] if each.has_data]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=4)))
    module.BLOCK_BYTES = data.draw(st.sampled_from([1, 200, 1 << 20]))
    got: list[object] = []
    for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        index = update(begun(framing), content[: data.draw(st.integers(0, begin))])
        read = reader(content, data.draw(st.sampled_from([1, 37, 5000])))
        found = rows(index, read, Span("t/j", begin, end), Shape(ALL))
        got += [row["offset"] for row in found]
        for row in found:
            producer, clock, flags = messages[int(str(row["n"]))]
            assert (row["producer"], row["clock"], row["flags"]) == (producer, clock, flags)
            assert row["uuid"] == to_text(pack(ProducerId(producer), Clock(clock), flags))
            frame_bytes = content[int(str(row["offset"])) : int(str(row["end"]))]
            body = frame_bytes[:-1] if framing == JSON_LINES else frame_bytes[24:]
            assert (row["value"], row["malformed"], row["journal"]) == (body, False, "t/j")

    assert got == expected


def test_a_message_that_does_not_parse_is_named_dropped_or_kept(capfd: pytest.CaptureFixture[str]) -> None:
    """One bad message must neither vanish in silence nor stop those who said what to do with it."""
    lines = [b'{"n":%d}' % n for n in range(100)]
    lines[41], lines[77] = b'{"n":"many"}', b'{"n":'
    content = b"\n".join(lines) + b"\n"
    span, columns = Span("t/j", 0, len(content)), pa.schema([ALL.field("n"), ALL.field("malformed")])

    with pytest.raises(LocalProtocolError, match=f"offset {content.index(lines[41])} of t/j"):
        rows(begun(JSON_LINES), reader(content), span, Shape(columns))
    dropped = rows(begun(JSON_LINES), reader(content), span, Shape(columns, malformed=Malformed.DROP))
    kept = rows(begun(JSON_LINES), reader(content), span, Shape(columns, malformed=Malformed.KEEP))
    assert [row["n"] for row in dropped] == [n for n in range(100) if n not in (41, 77)]
    assert [n for n, row in enumerate(kept) if row["malformed"]] == [41, 77]
    assert kept[41] == {"n": None, "malformed": True}
    assert "dropped 2 malformed messages" in capfd.readouterr().err


def test_a_fixed_frame_of_another_length_is_malformed() -> None:
    """A producer with another schema must not shift everybody's columns."""
    good, bad = pack(ProducerId(1), Clock(1), 0), pack(ProducerId(1), Clock(2), 0)
    content = framed(FIXED, good, bytes(8)) + framed(FIXED, bad, bytes(7))
    shape = Shape(pa.schema([ALL.field("n"), ALL.field("malformed")]), malformed=Malformed.KEEP)

    assert rows(begun(FIXED), reader(content), Span("t/j", 0, len(content)), shape) == [
        {"n": 0, "malformed": False},
        {"n": None, "malformed": True},
    ]


def test_uncommitted_rows_are_seen_by_those_who_ask() -> None:
    """To look at what a stuck producer has sent."""
    content = content_of(JSON_LINES, [(1, 1, 1), (1, 2, 1), (1, 9, 2)])[:-30]
    shape = Shape(pa.schema([ALL.field("n")]), is_committed=False)

    assert rows(begun(JSON_LINES), reader(content), Span("t/j", 0, len(content)), shape) == [
        {"n": 0},
        {"n": 1},
    ]


@pytest.mark.parametrize("framing", [JSON_LINES, FIXED])
def test_an_offset_inside_a_frame_is_told_from_one_between_two(framing: Framing) -> None:
    """An explicit starting offset that is off by some bytes would silently begin with another message."""
    content = content_of(framing, [(1, clock, 0) for clock in range(1, 6)])
    bounds = [(frame.begin, frame.end) for frame in scan(framing, content, ByteOffset(0))]
    torn = content + content[:20]
    for step in (1, 7, 5000):
        for known in (0, *(end for _, end in bounds)):
            index, read = update(begun(framing), content[:known]), reader(torn, step)
            for begin, end in bounds:
                if begin >= known:
                    assert frame_around(index, read, begin, len(torn)) == (begin, begin)
                    assert frame_around(index, read, begin + 1, len(torn)) == (begin, end)
                    assert frame_around(index, read, end - 1, len(torn)) == (begin, end)
            size = len(content)
            assert frame_around(index, read, size, len(torn)) == (size, size)
            assert frame_around(index, read, size + 5, len(torn)) == (size, -1)


def test_what_was_pending_before_a_span_is_held_up_to_a_limit() -> None:
    """A producer that sends for hours before it acknowledges must not end the worker by its memory."""
    content = content_of(JSON_LINES, [(7, clock, 1) for clock in range(1, 200)])
    ack = framed(JSON_LINES, pack(ProducerId(7), Clock(300), Flag.ACK), b"")
    index, read = update(begun(JSON_LINES), content), reader(content + ack)
    span, columns = Span("t/j", len(content), len(content + ack)), pa.schema([ALL.field("n")])

    assert len(rows(index, read, span, Shape(columns, replay_bytes_max=len(content)))) == 199
    with pytest.raises(TooLarge, match=rf"\[0, {len(content)}\) of t/j .* producer 000000000007"):
        rows(index, read, span, Shape(columns, replay_bytes_max=len(content) - 1))
