"""The producer index is a function of the journal's bytes, and forgets producers by clock and by bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadsheet.base.time import SECOND, Duration, WallTime
from broadsheet.base.types import ByteOffset
from broadsheet.errors import SpanForgotten
from broadsheet.message.clock import clock_at
from broadsheet.message.columns import frames_of
from broadsheet.message.framing import FIXED, JSON_LINES, Framing, framed, scan
from broadsheet.message.producer_state import (
    ABSENT_BYTES,
    NOT_OPEN,
    ProducerIndex,
    ProducerState,
    begun,
    behind_hole,
    pruned,
    ticks,
)
from broadsheet.message.spans import sequence, update
from broadsheet.message.stored_index import decode, encode
from broadsheet.message.uuid import Clock, Flag, ProducerId, pack
from simulator.checkers.sequencer import Sequencer
from tests.message.histories import Drawn, content_of, histories


@settings(max_examples=200)
@given(st.sampled_from([JSON_LINES, FIXED]), histories(40, clock_max=30), st.data())
def test_the_index_is_a_function_of_the_bytes(
    framing: Framing, messages: list[Drawn], data: st.DataObject
) -> None:
    """Whoever computes it, in whatever pieces, gets what the scalar sequencer gets."""
    content = content_of(framing, messages)
    sequencer = Sequencer(begun(framing))
    for frame in scan(framing, content, ByteOffset(0)):
        sequencer.step(frame)
    index, at = begun(framing), 0
    while at < len(content):
        at = data.draw(st.integers(at + 1, len(content)))
        index = update(index, content[index.offset : at])

    assert index == sequencer.index()
    stored, total = encode(index, previous=7)
    assert decode(stored, previous=7) == index
    assert encode(decode(stored), previous=7) == (stored, total)


def held(producers: dict[int, ProducerState], *, newest: int, offset: int) -> ProducerIndex:
    return ProducerIndex(
        framing=FIXED,
        offset=ByteOffset(offset),
        newest=Clock(newest),
        states={ProducerId(each): state for each, state in producers.items()},
    )


def state(clock: int, *, begin: int = NOT_OPEN, seen: int = 0) -> ProducerState:
    return ProducerState(
        last_ack=Clock(clock), last=Clock(clock), begin=ByteOffset(begin), seen=ByteOffset(seen)
    )


def test_one_producer_a_year_ahead_ages_out_nobody() -> None:
    """Clocks are the producers' own; only bytes are the journal's."""
    year = ticks(Duration(365 * 24 * 3600 * SECOND))
    old = {1: state(1 << 60), 2: state((1 << 60) + year)}

    assert pruned(held(old, newest=(1 << 60) + year, offset=1000)).states.keys() == {1, 2}
    assert pruned(held(old, newest=(1 << 60) + year, offset=ABSENT_BYTES + 1)).states.keys() == {2}


def test_a_forgotten_open_span_leaves_a_tombstone() -> None:
    """A late ACK must fail loudly: committing nothing would lose messages in silence (journals.30)."""
    week = ticks(Duration(8 * 24 * 3600 * SECOND))
    index = pruned(held({1: state(1 << 60, begin=50)}, newest=(1 << 60) + week, offset=ABSENT_BYTES + 1))
    late = framed(FIXED, pack(ProducerId(1), Clock((1 << 60) + 5), Flag.ACK), b"")
    stored, _ = encode(index, previous=0)

    assert not index.states
    with pytest.raises(SpanForgotten):
        sequence(decode(stored), frames_of(FIXED, late, index.offset))
    with pytest.raises(SpanForgotten):
        Sequencer(index).step(next(scan(FIXED, late, index.offset)))


def test_a_roll_back_of_a_forgotten_span_is_harmless() -> None:
    """It says that nothing of the span counts, which is what forgetting did."""
    index = ProducerIndex(framing=FIXED, offset=ByteOffset(9), forgotten={ProducerId(1): 1 << 28})
    back = framed(FIXED, pack(ProducerId(1), Clock(1 << 50), Flag.ACK), b"")

    assert not len(sequence(index, frames_of(FIXED, back, 9)).rows)


def test_who_goes_on_behind_a_forgotten_span_reads_what_its_producer_sent_later() -> None:
    """The error says "go on behind this offset", and its producer was refused there again, for ever."""
    producer, second = ProducerId(1), 160 << 32

    def frame(at: int, flag: Flag, body: bytes = b"") -> bytes:
        return framed(FIXED, pack(producer, Clock(at * second), flag), body)

    opened = update(begun(FIXED), frame(10, Flag.ACK) + frame(11, Flag.CONTINUE, b"lost in part"))
    index = behind_hole(opened, ByteOffset(opened.offset + 1000))
    refused = frame(12, Flag.ACK)
    rest = frame(13, Flag.CONTINUE, b"a") + frame(14, Flag.ACK) + frame(15, Flag.CONTINUE, b"b")
    rest += frame(16, Flag.ACK)
    frames, behind = frames_of(FIXED, refused + rest, index.offset), index.offset + len(refused)

    with pytest.raises(SpanForgotten):
        sequence(index, frames, behind - 1)
    assert sequence(index, frames, behind).rows.tolist() == [1, 3]
    after = update(index, refused)
    assert after.forgotten == {}
    assert update(index, refused + rest) == update(after, rest)
    assert sequence(after, frames_of(FIXED, rest, behind), behind).rows.tolist() == [0, 2]


def test_a_hole_forgets_open_spans_and_keeps_the_clocks_of_all_others() -> None:
    """Else messages that were committed before the hole would be committed again behind it."""
    closed = ProducerState(Clock(7 << 32), Clock(7 << 32), NOT_OPEN, ByteOffset(5))
    opened = ProducerState(Clock(3 << 32), Clock(4 << 32), ByteOffset(6), ByteOffset(9))
    states = {ProducerId(1): closed, ProducerId(2): opened}
    index = behind_hole(ProducerIndex(framing=FIXED, offset=ByteOffset(9), states=states), ByteOffset(100))

    assert (index.offset, index.states, index.forgotten) == (100, {1: closed}, {2: 3})


@pytest.mark.parametrize("is_known", [False, True], ids=["it first speaks in the hole", "it spoke before"])
def test_what_is_left_of_a_span_that_began_in_a_hole_is_committed(*, is_known: bool) -> None:
    """ADR 0123: nothing that is left tells of it. An index that begins behind a lost begin says no less."""
    first, *span = (
        framed(FIXED, pack(ProducerId(1), Clock(at << 32), flag), b"x")
        for at, flag in ((1, Flag.OUTSIDE), (2, Flag.CONTINUE), (3, Flag.CONTINUE), (4, Flag.ACK))
    )
    before = update(begun(FIXED), first) if is_known else begun(FIXED)
    index = behind_hole(before, ByteOffset(before.offset + len(span[0])))

    assert index.forgotten == {}
    assert sequence(index, frames_of(FIXED, span[1] + span[2], index.offset)).rows.tolist() == [0]


def test_a_roll_back_ends_a_forgotten_span_for_good() -> None:
    """Its producer said that nothing of it counts, so that what follows is whole."""
    index = ProducerIndex(framing=FIXED, offset=ByteOffset(9), forgotten={ProducerId(1): 1 << 28})
    later = [(1 << 50, Flag.ACK, b""), (1 << 61, Flag.CONTINUE, b"x"), ((1 << 61) + 16, Flag.ACK, b"")]
    content = b"".join(framed(FIXED, pack(ProducerId(1), Clock(at), f), body) for at, f, body in later)

    assert sequence(index, frames_of(FIXED, content, 9)).rows.tolist() == [1]
    sequencer = Sequencer(index)
    assert [len(sequencer.step(each)[1]) for each in scan(FIXED, content, ByteOffset(9))] == [0, 0, 1]
    assert sequencer.index() == update(index, content)


def test_a_duration_is_counted_in_the_units_of_a_clock() -> None:
    """A producer whose span is forgotten too early loses messages."""
    wall = WallTime(1_700_000_000_000_000_000)

    assert ticks(Duration(30 * SECOND)) == clock_at(WallTime(wall + 30 * SECOND)) - clock_at(wall)
