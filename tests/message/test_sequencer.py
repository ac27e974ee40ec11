"""A reader sees each committed message once: the sequencer's cases, and the vectorised one beside it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadsheet.base.types import ByteOffset
from broadsheet.message import spans
from broadsheet.message.columns import Frames
from broadsheet.message.framing import FIXED, Frame
from broadsheet.message.producer_state import begun
from broadsheet.message.spans import Replay, reopened, replays, sequence
from broadsheet.message.uuid import NO_ID, Clock, Flag, MessageId, ProducerId
from simulator.checkers.sequencer import Sequencer

SIZE = 10
KINDS = {"c": Flag.CONTINUE, "a": Flag.ACK, "o": Flag.OUTSIDE}


def journal(script: str) -> list[Frame]:
    """`A3c` is producer A, clock 3, CONTINUE; `a` is ACK, `o` OUTSIDE; `-` a message without UUID."""
    frames = []
    for place, word in enumerate(script.split()):
        begin = ByteOffset(place * SIZE)
        found = (
            NO_ID
            if word == "-"
            else MessageId(ProducerId(ord(word[0])), Clock(int(word[1:-1])), KINDS[word[-1]])
        )
        frames.append(Frame(begin, ByteOffset(begin + SIZE), found, found.flags != Flag.ACK))
    return frames


def columns(frames: list[Frame]) -> Frames:
    return Frames(
        np.array([frame.begin for frame in frames], np.int64),
        np.array([frame.end for frame in frames], np.int64),
        np.array([frame.id.producer for frame in frames], np.int64),
        np.array([frame.id.clock for frame in frames], np.uint64),
        np.array([frame.id.flags for frame in frames], np.int64),
        np.array([frame.has_data for frame in frames], np.bool_),
    )


def run(script: str) -> tuple[list[str], str]:
    """Outcomes, and what was committed, as positions in the script."""
    sequencer, outcomes, committed = Sequencer(begun(FIXED)), [], []
    for frame in journal(script):
        outcome, frames = sequencer.step(frame)
        sequencer.check()
        outcomes.append(outcome.value)
        committed += [script.split()[each.begin // SIZE] for each in frames]
    return outcomes, " ".join(committed)


@pytest.mark.parametrize(
    ("script", "committed"),
    [
        ("A1c A2c A1c A2c A3a", "A1c A2c"),
        ("A4a", ""),
        ("A5c A7c A6a", "A5c"),
        ("A6a A7c B1c A7c A8c B2c A6a B3a", "B1c B2c"),
        ("A8a A9c A11c A12c A13c A10a", "A9c"),
        ("A1o A2o A1o A2o A3c A4c A5o A6a", "A1o A2o A5o"),
        ("- A1c - A2a", "- - A1c"),
        ("A8a A9c A10c A13c A13a A14c A8a A9c A10c A11a", "A9c A10c A13c A9c A10c"),
        ("A1c B1c A2c B2c B9a A9a", "B1c B2c A1c A2c"),
        ("A1c A2a A2a A3c A2a A4a", "A1c"),
    ],
)
def test_what_is_committed(script: str, committed: str) -> None:
    """What the original's tests pin: duplicates, roll-backs, interleaving, re-use after a roll-back."""
    assert run(script)[1] == committed


def test_outcomes_have_names() -> None:
    """An operator who asks why a message is missing reads them."""
    assert run("A1c A2c A2c A3a A3a A9a A8o")[0] == [
        "continue_begin", "continue_extend", "continue_duplicate", "ack_commit", "ack_rollback", "ack_empty",
        "outside_duplicate",
    ]  # fmt: skip


word = st.one_of(
    st.just("-"),
    st.builds(
        lambda producer, clock, kind: f"{producer}{clock}{kind}",
        st.sampled_from("ABC"),
        st.one_of(st.integers(1, 12), st.integers(2**63, 2**63 + 3)),
        st.sampled_from("cccccao"),
    ),
)
scripts = st.lists(word, max_size=60).map(" ".join)


@settings(max_examples=600)
@given(scripts)
def test_a_whole_span_at_once_commits_what_one_at_a_time_does(script: str) -> None:
    """The readers use the vectorised one; this is why they may."""
    sequencer, frames = Sequencer(begun(FIXED)), journal(script)
    expected = [each.begin for frame in frames for each in sequencer.step(frame)[1] if each.has_data]
    got = sequence(begun(FIXED), columns(frames))

    assert [frames[row].begin for row in got.rows.tolist()] == expected
    assert got.after == sequencer.index()


@settings(max_examples=600)
@given(scripts, st.data())
def test_spans_read_apart_give_each_message_once(script: str, data: st.DataObject) -> None:
    """Micro-batches together see what one reader sees: a message belongs to the span that holds its ACK."""
    frames = journal(script)
    sequencer, expected = Sequencer(begun(FIXED)), []
    indexes = [sequencer.index()]
    for frame in frames:
        expected.append([each.begin for each in sequencer.step(frame)[1] if each.has_data])
        indexes.append(sequencer.index())
    begin = data.draw(st.integers(0, len(frames)))
    end = data.draw(st.integers(begin, len(frames)))
    point = data.draw(st.integers(0, begin))
    start = begin * SIZE + data.draw(st.integers(0, SIZE - 1))  # Inside a frame is as good.

    index, span = indexes[point], frames[point:end]
    wanted = replays(index, columns(span), start)
    if wanted:
        first = min(replay.begin for replay in wanted.values())
        span = [each for each in frames[:point] if each.begin >= first and each.id.producer in wanted] + span
    got = sequence(reopened(index, wanted), columns(span), start)

    assert [span[row].begin for row in got.rows.tolist()] == [
        at for each in expected[begin:end] for at in each
    ]


def test_a_message_that_decides_nothing_hides_no_acknowledgement_behind_it() -> None:
    """B repeats what was acknowledged long ago; A's span is committed all the same."""
    sequencer = Sequencer(begun(FIXED))
    for frame in journal("A1c B5a B6c"):
        sequencer.step(frame)

    assert replays(sequencer.index(), columns(journal("B5o A2a")), 0) == {
        ProducerId(ord("A")): Replay(ByteOffset(0), 1)
    }


def test_a_span_that_goes_on_is_committed_from_where_it_began() -> None:
    """Its further messages decide nothing: what came before them would be lost."""
    sequencer = Sequencer(begun(FIXED))
    for frame in journal("A1c"):
        sequencer.step(frame)

    assert replays(sequencer.index(), columns(journal("A2c A3a")), 0) == {
        ProducerId(ord("A")): Replay(ByteOffset(0), 1)
    }


@pytest.mark.parametrize(
    ("script", "start"), [("A9o", 0), ("A9a", SIZE), ("A1a", 0)], ids=["outside", "read before", "old"]
)
def test_what_commits_no_part_of_an_open_span_wants_none_of_it_read_again(script: str, start: int) -> None:
    """Reading a span again costs what lies between, of every other producer too."""
    sequencer = Sequencer(begun(FIXED))
    for frame in journal("A1a A2c"):
        sequencer.step(frame)

    assert replays(sequencer.index(), columns(journal(script)), start) == {}


def test_ranks_of_clocks_are_small() -> None:
    """A run's number stands above them in 64 bits: ranks as large as clocks would leave it no room."""
    clocks = np.array([1 << 62, (1 << 62) + 5, 1 << 62], np.uint64)

    assert spans._ranks(clocks, 1).tolist() == [1, 6, 1]
    assert spans._ranks(np.array([1, 1 << 62], np.uint64), 1 << 20).tolist() == [1, 2]
