"""Frames: one message at a time and by column give the same, for any bytes."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadsheet.base.types import ByteOffset
from broadsheet.errors import Corrupt, InvalidArgument
from broadsheet.message import columns
from broadsheet.message import framing as module
from broadsheet.message.columns import frames_of, ids_of, texts_of, uuids_of
from broadsheet.message.framing import FIXED, HEADER, JSON_LINES, MAGIC, Frame, Framing, framed, scan
from broadsheet.message.uuid import NO_ID, Clock, ProducerId, pack, to_text, unpack

UUID = pack(ProducerId(0x010203040506), Clock(77777), 1)
TEXT = to_text(UUID).encode()

pieces = st.one_of(
    st.sampled_from([
        b"\n", b"{}", b"{", b'"', b'{"_meta":{"uuid":"', TEXT, TEXT.upper(),
        TEXT.replace(b"-8001-", b"-0001-"),
        b'"}', b'"}}\n', b'"},"a":1}\n', b'{"a":1,"_meta":{"uuid":"', b" ", b"null\n", b"\xff",
        framed(JSON_LINES, UUID, b'{"x":1}'), framed(JSON_LINES, UUID, b""),
        MAGIC, MAGIC[:2], HEADER.pack(MAGIC, 0), HEADER.pack(MAGIC, 3), HEADER.pack(MAGIC, 16), UUID,
        HEADER.pack(MAGIC, 1 << 31), framed(FIXED, UUID, b"body"), framed(FIXED, UUID, b"other"),
        framed(FIXED, UUID, MAGIC * 3), framed(FIXED, UUID, b""),
    ]),
    st.binary(max_size=8),
)  # fmt: skip


def by_columns(framing: Framing, content: bytes, base: int) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in frames_of(framing, content, base)), strict=True))


def as_row(frame: Frame) -> tuple[int, ...]:
    return (frame.begin, frame.end, *frame.id, frame.has_data)


@settings(max_examples=400)
@given(st.sampled_from([JSON_LINES, FIXED, Framing(uuid_field="id")]), st.lists(pieces), st.integers(0, 9))
def test_columns_say_what_the_scan_says(framing: Framing, parts: list[bytes], base: int) -> None:
    """The fast path must not know another truth than the simple one, whatever stands in a journal."""
    content = b"".join(parts)

    assert by_columns(framing, content, base) == [
        as_row(frame) for frame in scan(framing, content, ByteOffset(base))
    ]


@pytest.mark.parametrize("place", range(len(MAGIC)))
def test_a_frame_whose_magic_word_is_damaged_is_passed_over(place: int) -> None:
    """What stands at its length is no length: the frames behind it would be lost."""
    good = framed(FIXED, UUID, b"body")
    wrong = bytearray(good)
    wrong[place] ^= 1

    found = by_columns(FIXED, good + bytes(wrong) + good, 0)
    assert [row[0] for row in found] == [0, 2 * len(good)]


@settings(max_examples=200)
@given(st.sampled_from([JSON_LINES, FIXED]), st.lists(pieces), st.data())
def test_frames_do_not_depend_on_where_reads_are_cut(
    framing: Framing, parts: list[bytes], data: st.DataObject
) -> None:
    """Producer state is a function of bytes, not of the read sizes of whoever looked at them."""
    content = b"".join(parts)
    cut = data.draw(st.integers(0, len(content)))
    first = by_columns(framing, content[:cut], 0)
    at = first[-1][1] if first else 0

    assert first + by_columns(framing, content[at:], at) == by_columns(framing, content, 0)


def test_a_json_line_carries_its_uuid_first() -> None:
    """A reader then finds it by position, without parsing."""
    assert framed(JSON_LINES, UUID, b'{"a": 1}') == b'{"_meta":{"uuid":"%s"},"a": 1}\n' % TEXT
    assert framed(JSON_LINES, UUID, b"") == b'{"_meta":{"uuid":"%s"}}\n' % TEXT
    assert framed(Framing(uuid_field="id"), UUID, b'{"a":1}') == b'{"id":"%s","a":1}\n' % TEXT


def test_a_fixed_frame_has_the_published_header() -> None:
    """Magic word 66 33 93 36, then the payload's length, little-endian."""
    assert framed(FIXED, UUID, b"xyz") == bytes.fromhex("66339336 13000000") + UUID + b"xyz"


@pytest.mark.parametrize("body", [b"[1]", b'{"a":\n1}', b'{"_meta":{"uuid":"mine"}}', b"{"])
def test_a_body_that_would_break_the_line_is_refused(body: bytes) -> None:
    """Before it is in a journal, where nobody can take it out again."""
    with pytest.raises(InvalidArgument):
        framed(JSON_LINES, UUID, body)


def test_after_foreign_bytes_reading_goes_on_at_the_next_frame() -> None:
    """One append of garbage must not end a journal."""
    good = framed(FIXED, UUID, b"ok")

    assert [frame.begin for frame in scan(FIXED, b"junk" + good + MAGIC + good, ByteOffset(0))] == [4, 34]


def test_a_truncated_message_with_a_uuid_is_still_sequenced() -> None:
    """Its producer's ACK decides about it; that it does not parse is the reader's business."""
    line = b'{"_meta":{"uuid":"%s"},"a":tru\n' % TEXT

    assert next(scan(JSON_LINES, line, ByteOffset(0))).id.clock == 77777
    assert next(scan(JSON_LINES, b"garbage\n", ByteOffset(0))).id == NO_ID


def test_a_frame_above_the_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong framing label must not make a reader buffer a whole journal."""
    monkeypatch.setattr(module, "FRAME_BYTES_MAX", 100)

    with pytest.raises(Corrupt, match="offset 5"):
        list(scan(JSON_LINES, b"x" * 101, ByteOffset(5)))
    with pytest.raises(Corrupt, match="offset 5"):
        frames_of(JSON_LINES, b"x" * 101, 5)
    first = framed(FIXED, UUID, b"")
    for framing, content, place in (
        (JSON_LINES, b"{}\n" + b"x" * 100 + b"\n", 8),
        (JSON_LINES, b"{}\n" + b"x" * 101, 8),
        (FIXED, first + b"x" * 101, 5 + len(first)),
    ):
        for look in (frames_of, lambda *given: list(scan(*given))):
            with pytest.raises(Corrupt, match=f"offset {place}:"):
                look(framing, content, ByteOffset(5))
    with pytest.raises(InvalidArgument, match="limit"):
        framed(FIXED, UUID, b"x" * 100)


@given(st.lists(st.integers(1, 2**64 - 1), min_size=1), st.integers(0, 0x3FF))
def test_uuids_by_column_are_those_of_the_scalar(clocks: list[int], flags: int) -> None:
    """The sink writes them by the thousand."""
    import numpy as np

    raw = uuids_of(0x010203040506, np.array(clocks, np.uint64), flags)

    assert [row.tobytes() for row in raw] == [
        pack(ProducerId(0x010203040506), Clock(each), flags) for each in clocks
    ]
    assert [row.tobytes().decode() for row in texts_of(raw)] == [to_text(row.tobytes()) for row in raw]
    assert ids_of(raw)[1].tolist() == clocks


def test_many_frames_may_be_longer_together_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is one frame's, however far from the begin of what is read it stands."""
    monkeypatch.setattr(module, "FRAME_BYTES_MAX", 100)

    for framing in (JSON_LINES, FIXED):
        one, longest = framed(framing, UUID, b'{"x":1}'), framed(framing, UUID, b'{"x":12345}')
        assert len(longest) <= 100
        assert len(by_columns(framing, one * 20 + longest, 0)) == 21


@pytest.mark.parametrize(("framing", "partial"), [(JSON_LINES, b"x"), (FIXED, b"x")])
def test_an_unfinished_frame_may_be_as_long_as_a_whole_one(
    framing: Framing, partial: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end may be the next byte; one byte more and it can be no frame."""
    monkeypatch.setattr(module, "FRAME_BYTES_MAX", 100)

    assert by_columns(framing, partial * 100, 0) == []
    with pytest.raises(Corrupt, match="of offset 7"):
        by_columns(framing, partial * 101, 7)


def test_frames_back_to_back_are_found_by_column_not_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One search for each of a million frames is what the columns are there to avoid."""
    found = [0]

    def counted(content: bytes, at: int) -> int:
        found[0] += 1
        return module.next_fixed(content, at)

    monkeypatch.setattr(columns, "next_fixed", counted)
    bodies = [b"", b"x" * 300, MAGIC[:1] * 70_000, MAGIC[:2]]

    assert len(by_columns(FIXED, b"".join(framed(FIXED, UUID, body) for body in bodies * 20), 0)) == 80
    assert found[0] == 1, "only for what stands behind the last one"


@given(st.lists(st.binary(min_size=16, max_size=16), min_size=1))
def test_a_column_of_uuids_says_what_each_one_says(uuids: list[bytes]) -> None:
    """Random bytes that look half like ours (the version, or the variant) belong to no producer."""
    uuids = [*uuids, UUID[:6] + b"\x70" + UUID[7:], UUID[:8] + b"\x00" + UUID[9:]]
    found = ids_of(np.frombuffer(b"".join(uuids), np.uint8).reshape(-1, 16))

    assert list(zip(*(each.tolist() for each in found), strict=True)) == [unpack(uuid) for uuid in uuids]


@pytest.mark.parametrize("item", [b"[],", b"[[]],", b'{"a":{}},', b'"text",'])
def test_of_a_foreign_line_only_the_uuid_becomes_a_value(item: bytes) -> None:
    """Eight lines of 16 MiB of empty lists held every thread of a node for 18 seconds, and took a GiB."""
    items = item * 50_000
    line = b'{"list":[' + items + b'0],"_meta":{"more":[' + items + b'0],"uuid":"' + TEXT + b'"}}'
    tracemalloc.start()
    try:
        found = module.line_id(JSON_LINES, line)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert found == unpack(UUID)
    assert peak < 100_000


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b'{"_meta":null}',
        b'{"_meta":{}}',
        b'{"_meta":{"uuid":null}}',
        b'{"_meta":{"uuid":5}}',
        b'{"_meta":["uuid"]}',
        b'{"_meta":"' + TEXT + b'"}',
        b'{"uuid":"' + TEXT + b'"}',
        b'{"a":1,"_meta":{"uuid":"' + TEXT + b'"}',
    ],
)
def test_a_line_whose_uuid_is_not_at_its_field_has_none(line: bytes) -> None:
    """Such a message is committed by itself."""
    assert module.line_id(JSON_LINES, line) is NO_ID


@pytest.mark.parametrize(("line", "share"), [(b"\n", 96), (b"{}\n", 32), (b"[" * 54 + b"\n", 16)])
def test_lines_without_a_uuid_take_memory_for_their_columns_only(line: bytes, share: int) -> None:
    """A MiB of line ends took 200 MiB and a quarter of a second of the node, for each of its threads."""
    content = line * ((1 << 20) // len(line))
    tracemalloc.start()
    try:
        found = frames_of(JSON_LINES, content, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert not found.clock.any()
    assert peak < share << 20


def test_lines_of_our_publishers_and_lines_too_short_for_a_uuid_are_not_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A parse costs 4 us: of 70 MB of lines of one character a node did nothing else for two minutes."""
    parsed = [0]

    def counted(framing: Framing, line: bytes) -> object:
        parsed[0] += 1
        return module.line_id(framing, line)

    monkeypatch.setattr(columns, "line_id", counted)
    by_columns(JSON_LINES, framed(JSON_LINES, UUID, b'{"x":1}') * 20, 0)
    by_columns(JSON_LINES, b'\n \n{\n{"x":1}\n{"_meta":{"uuid":"' + TEXT[:-4] + b'"}}\n', 0)
    assert parsed[0] == 0
    by_columns(JSON_LINES, b'{"x":"' + TEXT * 2 + b'"}\n', 0)
    assert parsed[0] == 1
