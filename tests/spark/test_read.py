"""A span of a journal gives the rows that are committed in it, however it is cut."""

import time
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadsheet.base.types import ByteOffset
from broadsheet.errors import LocalProtocolError
from broadsheet.message import replay
from broadsheet.message.columns import frames_of
from broadsheet.message.framing import FIXED, JSON_LINES, Framing, framed, scan
from broadsheet.message.producer_state import ProducerIndex, begun
from broadsheet.message.replay import Read
from broadsheet.message.spans import update
from broadsheet.message.uuid import Clock, Flag, ProducerId, pack, to_text
from broadsheet.spark import read as module
from broadsheet.spark.encode import bytes_of, frames
from broadsheet.spark.meta_columns import META
from broadsheet.spark.offsets import Span
from broadsheet.spark.parse import Malformed
from broadsheet.spark.read import Shape, frame_around, rows_of
from tests.message.histories import Drawn, committed, content_of, histories, rising

ALL = pa.schema([("n", pa.int64()), *META.items()])


def body_of(framing: Framing, n: int) -> bytes:
    return b'{"n":%d,"more":"\xc3\xa9"}' % n if framing == JSON_LINES else n.to_bytes(8, "little")


@pytest.mark.parametrize(("framing", "empty"), [(JSON_LINES, b"{}"), (FIXED, b"")])
@pytest.mark.parametrize("flags", [Flag.OUTSIDE, Flag.CONTINUE])
def test_a_message_with_an_empty_body_is_a_row(framing: Framing, empty: bytes, flags: Flag) -> None:
    """The sink wrote and acknowledged it, and no reader saw it: it was taken for an acknowledgement."""
    bodies = pa.array([empty, body_of(framing, 1), empty], pa.large_binary())
    content = bytes_of(frames(framing, bodies, ProducerId(1), Clock(160), flags))
    content += framed(framing, pack(ProducerId(1), Clock(640), Flag.ACK), b"")
    columns = pa.schema([("clock", META["clock"])])

    for is_committed in (True, False):
        shape = Shape(columns, is_committed=is_committed)
        found = rows(begun(framing), reader(content), Span("t/j", 0, len(content)), shape)
        assert [row["clock"] for row in found] == [160, 320, 480]


def test_rows_of_many_producers_cost_what_rows_of_one_cost() -> None:
    """The UUIDs were made for one producer after the other: 65,536 rows of as many producers took 53 s."""
    count = 20_000
    rising = [pack(ProducerId(at + 1), Clock(1 << 40 | at), at % 2) for at in range(count)]
    content = b"".join(framed(FIXED, each, b"") for each in rising)
    content += b"".join(
        framed(FIXED, pack(ProducerId(at), Clock(1 << 50), Flag.ACK), b"") for at in range(count + 1)
    )
    shape = Shape(pa.schema([("uuid", META["uuid"])]))
    began = time.process_time()

    found = rows(begun(FIXED), reader(content, 1 << 20), Span("t/j", 0, len(content)), shape)

    assert len(found) == count
    assert {row["uuid"] for row in found} == set(map(to_text, rising))
    assert time.process_time() - began < 2, "it took 6 s"


def reader(content: bytes, step: int = 1000) -> Read:
    def read(begin: int, end: int) -> Iterator[bytes]:
        for at in range(begin, end, step):
            yield content[at : min(end, at + step)]

    return read


def rows(
    index: ProducerIndex, read: Read, span: Span, shape: Shape, after: list[ProducerIndex] | None = None
) -> list[dict[str, object]]:
    """The rows of a span; the index at its end is added to `after`."""
    found: list[dict[str, object]] = []
    reading = rows_of(index, read, span, shape)
    while True:
        try:
            found += next(reading).to_pylist()
        except StopIteration as ended:
            if after is not None:
                after.append(ended.value)
            return found


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([JSON_LINES, FIXED]), histories(30), st.booleans(), st.data())
def test_batches_together_give_what_one_reader_sees(
    framing: Framing, messages: list[Drawn], is_rising: bool, data: st.DataObject
) -> None:
    """Any cut, any index point, any block, any read size and any memory give each row once.

    So does a read that goes on from what an earlier one kept.
    """
    if is_rising:
        messages = rising(messages)
    content = content_of(framing, messages, partial(body_of, framing))
    expected = committed(framing, content)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=4)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", data.draw(st.sampled_from([1, 200, 600, 1 << 20])))
        patch.setattr(replay, "PORTION_BYTES", data.draw(st.sampled_from([1, 300, 1 << 20])))
        patch.setattr(replay, "SMALL_BYTES", data.draw(st.sampled_from([0, 400, 1 << 20])))
        got: list[object] = []
        after: list[ProducerIndex] = []
        for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
            stored = update(begun(framing), content[: data.draw(st.integers(0, begin))])
            index = data.draw(st.sampled_from([stored, *after]))  # Or what an earlier read kept.
            read = reader(content, data.draw(st.sampled_from([1, 37, 5000])))
            bytes_max = data.draw(st.sampled_from([0, 150, 500, 2000, 1 << 30]))
            span = Span("t/j", begin, end)
            found = rows(index, read, span, Shape(ALL, replay_bytes_max=bytes_max), after)
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
    """One bad message must neither vanish in silence nor stop those who said what to do with it.

    Source: pipelines.1.
    """
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
    content = content_of(framing, [(1, clock, 0) for clock in range(1, 6)], partial(body_of, framing))
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


class Measured:
    """A reader that counts how often the journal is read, and how much of it."""

    def __init__(self, content: bytes) -> None:
        self.reads, self.bytes, self._read = 0, 0, reader(content)

    def read(self, begin: int, end: int) -> Iterator[bytes]:
        self.reads += 1
        self.bytes += end - begin
        return self._read(begin, end)


def test_a_span_above_the_memory_streams_in_its_order() -> None:
    """A producer that sends for hours before it acknowledges must not end the worker, nor the query.

    Source: pipelines.5.
    """
    pending = [(7, clock, 1) for clock in range(1, 2000)]
    content = content_of(JSON_LINES, [(3, 1, 1), *pending[:1000], (3, 2, 1), *pending[1000:]])
    tail = content_of(JSON_LINES, [(4, 1, 0), (3, 9, 2), (7, 5000, 1), (7, 6000, 2), (4, 2, 0)])
    index, columns = update(begun(JSON_LINES), content), pa.schema([ALL.field("n"), ALL.field("producer")])
    span = Span("t/j", len(content), len(content + tail))

    def found(bytes_max: int) -> tuple[list[tuple[object, object]], int, int]:
        measured, got, largest = Measured(content + tail), [], 0
        shape = Shape(columns, replay_bytes_max=bytes_max)
        for batch in rows_of(index, measured.read, span, shape):
            largest = max(largest, batch.num_rows)
            got += [(row["producer"], row["n"]) for row in batch.to_pylist()]
        return got, largest, measured.reads

    whole, _, reads = found(len(content))
    assert reads == 2
    assert [each for each in whole if each[0] == 7][:3] == [(7, 1), (7, 2), (7, 3)]
    assert [producer for producer, _ in whole] == [4, 3, 3, *[7] * 2000, 4]
    for bytes_max in (len(content) - 100_000, 1000, 0):
        streamed, largest, reads = found(bytes_max)
        assert streamed == whole
        assert largest < 100  # As much as one read brings.
        assert reads <= 6


def test_many_spans_above_the_memory_are_read_some_at_a_time() -> None:
    """Each by itself fits: as many passes as their sum asks for, and not one for each."""
    producers = range(1, 101)
    content = content_of(JSON_LINES, [(each, clock, 1) for clock in range(1, 11) for each in producers])
    tail = content_of(JSON_LINES, [(each, 20, 2) for each in reversed(producers)])
    index, shape = update(begun(JSON_LINES), content), pa.schema([ALL.field("producer")])
    span, measured = Span("t/j", len(content), len(content + tail)), Measured(content + tail)

    limit = Shape(shape, replay_bytes_max=len(content) // 5)
    found = [row["producer"] for row in rows(index, measured.read, span, limit)]
    assert found == [each for each in reversed(producers) for _ in range(10)]
    assert measured.reads <= 3 + 7


def one_commit(messages_each: int) -> bytes:
    """What two tasks of a batch write to one journal, in turns, and then the acknowledgements of both."""
    turns = [(each, clock, 1) for clock in range(1, messages_each + 1) for each in (1, 2)]
    return content_of(JSON_LINES, [*turns, (2, 1 << 20, 2), (1, 1 << 20, 2)])


@pytest.mark.parametrize("open_one", [[], [(9, 1, 1)]], ids=["no other", "one that stays open"])
def test_what_a_read_has_just_sequenced_is_not_read_again(
    open_one: list[Drawn], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every message of the exactly-once sink lies before its acknowledgement, and was read twice.

    Source: ADR 0212.
    """
    monkeypatch.setattr(module, "BLOCK_BYTES", 5000)
    commits = content_of(JSON_LINES, open_one) + b"".join(
        content_of(JSON_LINES, [(at, clock, 1) for clock in range(1, 201)] + [(at, 1 << 20, 2)])
        for at in range(10, 20)
    )
    measured = Measured(commits)
    shape = Shape(pa.schema([ALL.field("producer")]), replay_bytes_max=len(commits) // 2)

    found = rows(begun(JSON_LINES), measured.read, Span("t/j", 0, len(commits)), shape)

    assert [row["producer"] for row in found] == [each for each in range(10, 20) for _ in range(200)]
    assert measured.bytes == len(commits)


@pytest.mark.parametrize(("share", "passes"), [(0, 2), (0.5, 2), (1, 1), (1.5, 1), (4, 0.5)], ids=str)
def test_a_commit_above_the_memory_is_read_again_at_most_once_for_each_producer(
    share: float, passes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One large batch of the sink was read up to five times: whole, to count, and for each producer.

    The span begins in the middle of what it commits: the first half must be read again in any case.
    """
    monkeypatch.setattr(module, "BLOCK_BYTES", 5000)
    content = one_commit(2000)
    middle = update(begun(JSON_LINES), content[: len(content) // 2])
    measured = Measured(content)
    shape = Shape(pa.schema([ALL.field("producer")]), replay_bytes_max=int(share * len(content)))
    span = Span("t/j", int(middle.offset), len(content))

    found = rows(middle, measured.read, span, shape)

    assert [row["producer"] for row in found] == [2] * 2000 + [1] * 2000
    own = span.end - span.begin
    assert measured.bytes - own <= passes * len(content)


def test_what_is_read_again_is_read_a_few_mebibytes_at_a_time() -> None:
    """A node sends 256 KiB at a time. A batch of Arrow for each of these cost more than its rows."""
    content = one_commit(2000)
    index = update(begun(JSON_LINES), content[:-200])
    shape = Shape(pa.schema([ALL.field("producer")]), replay_bytes_max=len(content))
    span = Span("t/j", int(index.offset), len(content))

    found = [batch.num_rows for batch in rows_of(index, reader(content), span, shape)]

    assert sum(found) == 4000
    assert len([count for count in found if count]) <= 16 + 2


def test_what_is_kept_of_open_spans_is_bounded_and_goes_when_they_end() -> None:
    """A worker of a cluster reads for months; the span of a dead writer stays open for a week."""
    recent, index = replay.Recent(0, 20_000), begun(JSON_LINES)

    def block(messages: list[Drawn]) -> int:
        nonlocal index
        content = content_of(JSON_LINES, messages)
        columns = frames_of(JSON_LINES, content, index.offset)
        found = replay.committed(
            index, columns, content, reader(content), int(index.offset), bytes_max=40_000, recent=recent
        )
        assert sum(len(each.shift) for each in found) >= 0
        index = update(index, content)
        return recent.bytes

    held = block([(9, 1, 1)])
    assert [block([(5, clock, 0) for clock in range(100 * at, 100 * at + 90)]) for at in range(1, 9)] == [
        held
    ] * 8
    for clock in range(2, 400):
        assert block([(8, clock, 1)]) <= 20_000
    assert recent.begin > 0
    assert block([(8, 500, 0)]) <= held
    assert block([(9, 0, 2)]) == 0


@pytest.mark.parametrize("bytes_max", [0, 300, 1 << 20])
@pytest.mark.parametrize("framing", [JSON_LINES, FIXED])
def test_what_was_committed_before_an_open_span_is_not_replayed_with_it(
    framing: Framing, bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One producer's long span made another's earlier transactions be read again: their rows came twice."""
    first = [(9, 1, 1), (5, 1, 1), (5, 2, 2), (5, 3, 1), (5, 4, 2), (5, 5, 1)]
    body = partial(body_of, framing)
    content = content_of(framing, first, body)
    more = content_of(framing, [(5, 6, 2), (9, 2, 2)], body)
    monkeypatch.setattr(module, "BLOCK_BYTES", len(content))
    span = Span("t/j", 0, len(content + more))

    shape = Shape(pa.schema([ALL.field("n")]), replay_bytes_max=bytes_max)
    found = rows(begun(framing), reader(content + more, len(content)), span, shape)
    assert [row["n"] for row in found] == [1, 3, 5, 0]
