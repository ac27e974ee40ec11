"""A turn ends once: every dirty flusher runs one time, logs before wires."""

import pytest

from broadsheet.runtime.turn import Rank, Turn
from tests.support.hand import HandClock


def test_each_flusher_runs_once_and_logs_come_first() -> None:
    """A batch is on its way to the disk while its turn's replies leave."""
    clock, ran = HandClock(), list[str]()
    turn = Turn(clock)

    def log() -> None:
        ran.append("log")

    def wire() -> None:
        ran.append("wire")

    for _ in range(3):
        turn.at_end(Rank.WIRE, wire)
        turn.at_end(Rank.LOG, log)
    assert ran == []
    clock.turn()
    clock.turn()

    assert ran == ["log", "wire"]


def test_a_flusher_may_make_work_for_the_same_turn() -> None:
    """A log that refuses a batch answers it on the wire, in this turn still."""
    clock, ran = HandClock(), list[str]()
    turn = Turn(clock)

    def wire() -> None:
        ran.append("wire")
        turn.at_end(Rank.LOG, lambda: ran.append("log"))

    turn.at_end(Rank.WIRE, wire)
    clock.turn()

    assert ran == ["wire", "log"]


def test_a_turn_may_be_ended_before_the_loop_comes_round() -> None:
    """Who knows that nothing more comes has batch and answers leave now; nobody runs a second time."""
    clock, ran = HandClock(), list[str]()
    turn = Turn(clock)

    turn.at_end(Rank.WIRE, lambda: ran.append("wire"))
    turn.at_end(Rank.LOG, lambda: ran.append("log"))
    turn.end()
    assert ran == ["log", "wire"]
    clock.turn()
    turn.at_end(Rank.LOG, lambda: ran.append("next"))
    clock.turn()

    assert ran == ["log", "wire", "next"]


def test_a_flusher_that_raises_ends_the_node_and_not_the_turns() -> None:
    """One error must not silence every later turn: without the end of a turn nothing is ever answered."""
    clock, ends, ran = HandClock(), list[BaseException](), list[str]()
    turn = Turn(clock, crash=ends.append)

    def fail() -> None:
        raise KeyError("a bug")

    turn.at_end(Rank.LOG, fail)
    turn.at_end(Rank.WIRE, lambda: ran.append("answers of a turn that is wrong"))
    clock.turn()
    turn.at_end(Rank.LOG, lambda: ran.append("next"))
    clock.turn()

    assert [type(end) for end in ends] == [KeyError]
    assert ran == ["next"]


def test_flushers_that_keep_each_other_dirty_are_found() -> None:
    """They would take the loop."""
    clock = HandClock()
    turn = Turn(clock)

    def again() -> None:
        turn.at_end(Rank.LOG, again)

    turn.at_end(Rank.LOG, again)
    with pytest.raises(AssertionError, match="keep each other dirty"):
        clock.turn()
