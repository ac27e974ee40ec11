"""The pipeline answers each append once, in order, when it is durable and its registers are put."""

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from broadsheet.base.machine import Tick
from broadsheet.base.time import SECOND, Instant, after
from broadsheet.base.types import ByteOffset, Token
from broadsheet.errors import Status
from broadsheet.journal.core.append_admission import Limits
from broadsheet.journal.core.attempts import (
    ATTEMPT_BYTES,
    KEPT,
    SETTLED_FOR,
    SETTLED_KEPT,
    Attempts,
    Remembered,
)
from broadsheet.journal.core.pipeline import PUT_RETRY, Pipeline
from broadsheet.journal.core.pipeline_events import (
    Abort,
    Advance,
    AttemptAsked,
    ChunkStaged,
    Closed,
    EpochLost,
    FellBehind,
    Fullness,
    Grant,
    Persist,
    Persisted,
    PersistRefused,
    PutRegisters,
    RegistersPut,
    Reply,
    Roll,
    RollAsked,
    Rollback,
    Stage,
    StreamEnded,
    StreamFailed,
    StreamOpened,
    StreamPlaced,
    Submitted,
)
from broadsheet.journal.core.registers import NO_REGISTERS, Condition, RegisterState, changed, is_met

T0 = Instant(1_000)


def at(n: int) -> ByteOffset:
    return ByteOffset(n)


def pipeline(
    *,
    head: int = 0,
    length: int = 1 << 20,
    is_behind: bool = False,
    registers: RegisterState | None = NO_REGISTERS,
) -> Pipeline:
    return Pipeline(
        head=at(head),
        fragment_begin=at(head),
        fragment_length=length,
        registers=registers,
        is_behind=is_behind,
        limits=Limits(),
    )


def submitted(run: object, length: int, **condition: object) -> Submitted:
    wanted = Condition(**condition) if condition else None  # type: ignore[arg-type]
    return Submitted(run=run, count=1, length=length, condition=wanted)


def persist(token: int, run: object, begin: int, end: int, **other: object) -> Persist:
    return Persist(
        token=Token(token),
        run=run,
        begin=at(begin),
        end=at(end),
        fragment_begin=at(int(other.get("fragment", 0))),  # type: ignore[call-overload]
        registers=other.get("registers"),  # type: ignore[arg-type]
        stream=other.get("stream"),  # type: ignore[arg-type]
        attempt=other.get("attempt", b""),  # type: ignore[arg-type]
    )


def grant(stream: int, begin: int) -> Grant:
    return Grant(stream=stream, begin=at(begin), fragment_begin=at(0))


def reply(run: object, status: Status, begin: int, end: int) -> Reply:
    return Reply(run=run, status=status, begin=at(begin), end=at(end))


def test_an_append_is_answered_when_it_is_durable_and_not_before() -> None:
    """W1: what was acknowledged survives a power cut (journals.13)."""
    m = pipeline()

    assert m.step(submitted("a", 5), T0) == [persist(1, "a", 0, 5)]
    assert m.committed_end == 0
    assert m.step(Persisted(token=Token(1)), T0) == [Advance(end=at(5)), reply("a", Status.OK, 0, 5)]


def test_a_refusal_waits_for_the_appends_that_it_depends_on() -> None:
    """journals.9: a refusal is a read of the head, which must not be told before it is committed."""
    m = pipeline()
    m.step(submitted("a", 5), T0)

    assert m.step(submitted("b", 5, offset=at(0)), T0) == []
    assert m.step(Persisted(token=Token(1)), T0) == [
        Advance(end=at(5)),
        reply("a", Status.OK, 0, 5),
        reply("b", Status.WRONG_APPEND_OFFSET, 5, 5),
    ]


def test_an_explicit_offset_holds_against_appends_still_on_their_way() -> None:
    """J7: two successful appends never carry the same expected offset."""
    m = pipeline()
    m.step(submitted("a", 5, offset=at(0)), T0)

    m.step(submitted("b", 5, offset=at(0)), T0)
    assert m.step(submitted("c", 5, offset=at(5)), T0) == [persist(2, "c", 5, 10)]


def test_offset_zero_is_an_expectation() -> None:
    """journals.24: on the native door None means head, and 0 means 0."""
    m = pipeline(head=7)

    assert m.step(submitted("a", 5, offset=at(0)), T0) == [reply("a", Status.WRONG_APPEND_OFFSET, 7, 7)]


def test_registers_are_put_before_the_answer_and_the_committed_end_waits_for_them() -> None:
    """journals.11: else a fence that was answered could be lost with the replicas."""
    m = pipeline()
    state = RegisterState(values={"author": "x"}, version=1, at=at(5))

    assert m.step(submitted("a", 5, union={"author": "x"}), T0) == [persist(1, "a", 0, 5, registers=state)]
    m.step(submitted("b", 5), T0)
    assert m.step(Persisted(token=Token(2)), T0) == [PutRegisters(registers=state)]
    assert m.committed_end == 0
    assert m.step(RegistersPut(version=1, is_known=True), T0) == [
        Advance(end=at(10)),
        reply("a", Status.OK, 0, 5),
        reply("b", Status.OK, 5, 10),
    ]


def test_registers_of_an_append_that_is_not_durable_are_not_put() -> None:
    """journals.15: after a crash the key would name more than the head, and no content would be taken."""
    m = pipeline()
    first = RegisterState(values={"author": "x"}, version=1, at=at(5))
    second = RegisterState(values={"author": "y"}, version=2, at=at(10))
    m.step(submitted("a", 5, union={"author": "x"}), T0)
    m.step(submitted("b", 5, union={"author": "y"}), T0)

    assert m.step(Persisted(token=Token(1)), T0) == [PutRegisters(registers=first)]
    assert m.step(RegistersPut(version=1, is_known=True), T0) == [
        Advance(end=at(5)),
        reply("a", Status.OK, 0, 5),
    ]
    assert m.step(Persisted(token=Token(2)), T0) == [PutRegisters(registers=second)]


def test_an_unknown_put_is_repeated_with_its_version() -> None:
    """journals.11: after all acks it is never rolled back; unknown is not failed."""
    m = pipeline()
    state = RegisterState(values={"author": "x"}, version=1, at=at(5))
    m.step(submitted("a", 5, union={"author": "x"}), T0)
    m.step(Persisted(token=Token(1)), T0)

    assert m.step(RegistersPut(version=1, is_known=False), T0) == []
    assert m.deadline() == T0 + PUT_RETRY
    assert m.step(Tick(), Instant(T0 + PUT_RETRY)) == [PutRegisters(registers=state)]
    assert m.step(RegistersPut(version=1, is_known=True), T0)[0] == Advance(end=at(5))


def test_an_unknown_put_is_repeated_as_it_was_while_newer_registers_wait() -> None:
    """journals.11: if the newer ones were put first, the put in doubt could still come behind them."""
    m = pipeline()
    first = RegisterState(values={"author": "x"}, version=1, at=at(5))
    second = RegisterState(values={"author": "y"}, version=2, at=at(8))
    m.step(submitted("a", 5, union={"author": "x"}), T0)
    assert m.step(Persisted(token=Token(1)), T0) == [PutRegisters(registers=first)]
    m.step(submitted("b", 3, union={"author": "y"}), T0)
    assert m.step(Persisted(token=Token(2)), T0) == []
    m.step(RegistersPut(version=1, is_known=False), T0)

    assert m.step(Tick(), Instant(T0 + PUT_RETRY)) == [PutRegisters(registers=first)]
    answered = m.step(RegistersPut(version=1, is_known=True), T0)
    assert PutRegisters(registers=second) in answered
    assert Advance(end=at(5)) in answered
    m.check()


def test_an_unknown_put_is_not_repeated_once_the_epoch_is_lost() -> None:
    """journals.1: another pipeline may acknowledge now, and nobody waits for these registers any more."""
    m = pipeline()
    m.step(submitted("a", 5, union={"author": "x"}), T0)
    m.step(Persisted(token=Token(1)), T0)
    m.step(EpochLost(), T0)

    assert m.step(RegistersPut(version=1, is_known=False), T0) == []
    assert m.deadline() is None
    assert m.step(Tick(), Instant(T0 + PUT_RETRY)) == []


def test_an_answer_to_a_put_that_comes_twice_shows_nothing_new() -> None:
    """code.4: the first one has told everything, also where the second one says that it does not know."""
    p = pipeline()
    p.step(submitted("a", 5, union={"author": "a"}), T0)
    p.step(Persisted(token=Token(1)), T0)
    assert p.step(RegistersPut(version=1, is_known=True), T0)

    for is_known in (True, False):
        assert p.step(RegistersPut(version=1, is_known=is_known), T0) == []
        assert p.deadline() is None
        p.check()


def test_an_attempt_takes_effect_once_also_where_its_check_holds_again() -> None:
    """J5: the register went back to what the first try had checked for, and the second try came late."""
    m, mine = pipeline(), b"m" * ATTEMPT_BYTES
    m.step(submitted("a", 5, check={"p": None}, union={"p": "x"}, attempt=mine), T0)
    assert m.step(submitted("twin", 5, attempt=mine), T0) == []
    m.step(submitted("b", 5, subtract={"p": "x"}), T0)
    m.step(Persisted(token=Token(2)), T0)
    m.step(RegistersPut(version=2, is_known=True), T0)

    assert m.attempts.find(mine) == Remembered(mine, at(0), at(5))
    assert m.step(submitted("again", 5, check={"p": None}, union={"p": "x"}, attempt=mine), T0) == [
        reply("again", Status.ALREADY_EXISTS, 10, 10)
    ]


def test_what_comes_of_an_attempt_after_its_client_was_told_is_refused() -> None:
    """C2: its client reads that nothing was appended, while a copy is still on its way."""
    m, mine = pipeline(), b"m" * ATTEMPT_BYTES
    m.step(submitted("before", 5), T0)

    assert m.step(AttemptAsked(run="ask", attempt=mine), T0) == []
    assert m.step(Persisted(token=Token(1)), T0)[-1] == reply("ask", Status.OK, 5, 5)
    assert m.attempts.find(mine) is None
    assert m.step(submitted("late", 5, offset=at(5), attempt=mine), T0) == [
        reply("late", Status.CANCELLED, 5, 5)
    ]


def test_an_attempt_whose_append_the_disk_refused_may_come_again() -> None:
    """journals.20: nothing of it stands anywhere."""
    m, mine = pipeline(), b"m" * ATTEMPT_BYTES
    m.step(submitted("a", 5, offset=at(0), attempt=mine), T0)
    m.step(PersistRefused(token=Token(1)), T0)

    assert m.step(submitted("b", 5, offset=at(0), attempt=mine), T0) == [persist(1, "b", 0, 5, attempt=mine)]


def test_the_oldest_attempts_are_forgotten_and_the_journal_says_from_where_it_knows_all() -> None:
    """Memory is bounded, and a doubt about what was forgotten is never settled by a guess."""
    attempts = Attempts()
    ids = [bytes([n]) * ATTEMPT_BYTES for n in range(KEPT + 2)]
    for n, each in enumerate(ids):
        attempts.remember(Remembered(each, at(10 * n), at(10 * n + 10)))
        attempts.settle(each, T0)
        attempts.check()

    assert [attempts.find(each) is None for each in ids] == [True, True] + [False] * KEPT
    assert attempts.known_from == 11
    assert attempts.copy().remembered() == attempts.remembered()
    assert all(attempts.is_settled(each) for each in ids)


def test_of_too_many_questions_the_last_ones_are_told_nothing_for_certain() -> None:
    """C2: an earlier one was forgotten, and its copy took effect after its client had read "not appended"."""
    m, mine = pipeline(), b"m" * ATTEMPT_BYTES
    m.step(AttemptAsked(run="mine", attempt=mine), T0)
    others = [n.to_bytes(ATTEMPT_BYTES) for n in range(SETTLED_KEPT)]
    for each in others:
        m.step(AttemptAsked(run="other", attempt=each), T0)
    m.check()
    assert m.step(submitted("late", 5, offset=at(0), attempt=mine), T0) == [
        reply("late", Status.CANCELLED, 0, 0)
    ]
    assert not m.attempts.is_settled(others[-1])

    m.step(AttemptAsked(run="later", attempt=others[-1]), after(T0, SETTLED_FOR))
    m.check()
    assert m.attempts.is_settled(others[-1])
    assert not m.attempts.is_settled(mine), "no connection is left that could bring it"


def test_an_absent_register_fails_a_strict_check() -> None:
    """journals.12: lost is not empty; Gazette's rule is for its own door."""
    m = pipeline()

    assert m.step(submitted("a", 5, check={"author": "x"}), T0) == [
        reply("a", Status.REGISTER_MISMATCH, 0, 0)
    ]
    assert m.step(submitted("b", 5, check={"author": None}), T0) == [persist(1, "b", 0, 5)]
    assert m.step(submitted("c", 5, check={"author": "x"}, is_strict=False), T0) == [persist(2, "c", 5, 10)]


def test_lost_registers_pass_no_check() -> None:
    """journals.12: a zombie must not pass its author check because the registers are gone."""
    m = pipeline(registers=None)

    assert m.step(submitted("a", 5, check={"author": "x"}, is_strict=False), T0) == [
        reply("a", Status.REGISTERS_UNKNOWN, 0, 0)
    ]


def test_registers_change_with_content_only() -> None:
    """J6: zero-byte appends never change registers."""
    m = pipeline()

    assert m.step(submitted("a", 0, union={"author": "x"}), T0) == [reply("a", Status.INVALID_ARGUMENT, 0, 0)]


def test_a_barrier_tells_the_committed_end_behind_everything_before_it() -> None:
    """A zero-byte append is how a client waits for others' appends."""
    m = pipeline()
    m.step(submitted("a", 5), T0)

    assert m.step(submitted("b", 0), T0) == []
    assert m.step(Persisted(token=Token(1)), T0)[-1] == reply("b", Status.OK, 5, 5)


def test_a_refused_persist_is_taken_back_and_what_depended_on_it_is_evaluated_again() -> None:
    """journals.9, journals.20: ENOSPC is roll-back, and a refusal that saw the bytes is not told."""
    m = pipeline()
    m.step(submitted("a", 5), T0)
    m.step(submitted("b", 5), T0)
    m.step(submitted("c", 5, offset=at(5)), T0)

    assert m.step(PersistRefused(token=Token(2)), T0) == [
        Rollback(end=at(5), fragment_begin=at(0)),
        persist(2, "c", 5, 10),
    ]
    m.check()
    assert m.step(Persisted(token=Token(2)), T0) == [
        Advance(end=at(10)),
        reply("a", Status.OK, 0, 5),
        reply("b", Status.STORE_UNHEALTHY, 5, 5),
        reply("c", Status.OK, 5, 10),
    ]


def test_a_fragment_that_would_begin_in_what_is_taken_back_begins_where_that_began() -> None:
    """journals.6: no content stands there any more, and a spool file begins where the one before it ends."""
    for end in (PersistRefused(token=Token(2)), EpochLost(), Closed(status=Status.SHUTTING_DOWN)):
        m = pipeline(length=10)
        m.step(submitted("a", 20), T0)
        m.step(Persisted(token=Token(1)), T0)
        assert m.step(submitted("b", 20), T0) == [persist(2, "b", 20, 40, fragment=20)]
        assert m.step(submitted("c", 5), T0) == [persist(3, "c", 40, 45, fragment=40)]
        m.step(end, T0)

        assert m.fragment_begin == m.adopted_end == 20
        m.check()


def test_a_refused_stream_is_not_answered_as_done_when_its_refusal_no_longer_holds() -> None:
    """Found by simulation (J7): its content was never read, so evaluating it again said OK for nothing."""
    m = pipeline()
    m.step(submitted("a", 5), T0)
    m.step(StreamOpened(stream=7, run="s", condition=Condition(offset=at(0))), T0)

    assert m.step(PersistRefused(token=Token(1)), T0) == [
        Rollback(end=at(0), fragment_begin=at(0)),
        reply("a", Status.STORE_UNHEALTHY, 0, 0),
        reply("s", Status.STORE_UNHEALTHY, 0, 0),
    ]


def test_a_fragment_rolls_when_it_is_strictly_longer_than_its_length() -> None:
    """Gazette's rule; an append is never split."""
    m = pipeline(length=10)
    m.step(submitted("a", 10), T0)

    assert m.step(submitted("b", 5), T0) == [persist(2, "b", 10, 15)]
    assert m.step(submitted("c", 5), T0) == [persist(3, "c", 15, 20, fragment=15)]


def test_an_old_fragment_is_closed_where_it_has_anything_and_nobody_streams_into_it() -> None:
    """`flush_interval`: a journal that gets little is stored too. The host is told again, as it may fail."""
    m = pipeline()
    assert m.step(RollAsked(), T0) == [Roll(fragment_begin=at(0))], "the fragment that is open"
    m.step(submitted("a", 10), T0)

    for _ in range(2):
        assert m.step(RollAsked(), T0) == [Roll(fragment_begin=at(10))]
    assert m.step(submitted("b", 1), T0) == [persist(2, "b", 10, 11, fragment=10)]
    m.step(StreamOpened(stream=7, run="s"), T0)
    m.step(StreamEnded(stream=7, length=5), T0)
    assert m.step(RollAsked(), T0) == []
    m.step(StreamPlaced(stream=7), T0)
    assert m.step(RollAsked(), T0) == [Roll(fragment_begin=at(16))]
    m.step(Closed(status=Status.SHUTTING_DOWN), T0)
    assert m.step(RollAsked(), T0) == []


def test_a_stream_that_is_not_whole_holds_nobody_and_takes_its_place_when_it_is() -> None:
    """journals.17: a client that sends slowly must not stop the journal for all others."""
    m = pipeline()

    assert m.step(StreamOpened(stream=7, run="s"), T0) == [Stage(stream=7)]
    m.step(ChunkStaged(stream=7, length=100), T0)
    assert m.step(submitted("b", 5), T0) == [persist(1, "b", 0, 5)]
    assert m.step(StreamEnded(stream=7, length=100), T0) == [grant(7, 5)]
    assert m.step(submitted("c", 5), T0) == []
    assert m.step(StreamPlaced(stream=7), T0) == [
        persist(2, "s", 5, 105, stream=7),
        persist(3, "c", 105, 110),
    ]
    m.check()


def test_streams_that_are_whole_take_their_places_one_after_the_other() -> None:
    """All or nothing: spans never interleave, and the order is that of their ends."""
    m = pipeline()
    for stream in (7, 8):
        m.step(StreamOpened(stream=stream, run=stream), T0)

    assert m.step(StreamEnded(stream=8, length=5), T0) == [grant(8, 0)]
    assert m.step(StreamEnded(stream=7, length=5), T0) == []
    assert m.step(StreamPlaced(stream=8), T0) == [
        persist(1, 8, 0, 5, stream=8),
        grant(7, 5),
    ]
    assert m.step(StreamFailed(stream=7, status=Status.STORE_UNHEALTHY), T0) == [
        reply(7, Status.STORE_UNHEALTHY, 0, 0)
    ]


def test_a_streams_condition_is_evaluated_when_it_takes_its_place() -> None:
    """J7: what came while its content was on its way stands before it."""
    m = pipeline()
    ahead, here = Condition(offset=at(5)), Condition(offset=at(0))
    assert m.step(StreamOpened(stream=7, run="ahead", condition=ahead), T0) == [Stage(stream=7)]
    m.step(StreamOpened(stream=8, run="late", condition=here), T0)
    m.step(submitted("b", 5), T0)
    m.step(Persisted(token=Token(1)), T0)

    assert m.step(StreamEnded(stream=8, length=9), T0) == [reply("late", Status.WRONG_APPEND_OFFSET, 5, 5)]
    assert m.step(StreamEnded(stream=7, length=9), T0) == [grant(7, 5)]


def test_a_stream_that_is_opened_while_another_takes_its_place_is_not_refused_by_the_old_head() -> None:
    """J6: the registers that it checks for are being set just now."""
    m = pipeline()
    m.step(StreamOpened(stream=7, run="s", condition=Condition(union={"p": "x"})), T0)
    m.step(StreamEnded(stream=7, length=5), T0)

    after = Condition(check={"p": "x"})
    assert m.step(StreamOpened(stream=8, run="t", condition=after), T0) == [Stage(stream=8)]


def test_a_stream_without_content_changes_no_registers() -> None:
    """J6: it is a barrier, and nothing but that; how long it would be was not known when it was opened."""
    m = pipeline()
    m.step(StreamOpened(stream=7, run="s", condition=Condition(union={"p": "x"})), T0)
    m.step(StreamOpened(stream=8, run="barrier"), T0)

    assert m.step(StreamEnded(stream=7, length=0), T0) == [reply("s", Status.INVALID_ARGUMENT, 0, 0)]
    assert m.step(StreamEnded(stream=8, length=0), T0) == [reply("barrier", Status.OK, 0, 0)]


def test_a_slow_client_is_refused_for_certain() -> None:
    """journals.17: what it has staged takes space; nothing of it was appended, and it is told so."""
    m = pipeline()
    m.step(StreamOpened(stream=7, run="s"), T0)
    due = Instant(T0 + Limits().flow_stall)

    assert m.deadline() == due
    m.step(ChunkStaged(stream=7, length=1 << 30 >> 4), T0)
    assert m.deadline() == due, "a fast start buys no long stall"
    assert m.step(Tick(), due) == [Abort(stream=7, status=Status.TOO_SLOW)]
    assert m.step(Tick(), due) == [], "once"
    assert m.step(StreamFailed(stream=7, status=Status.TOO_SLOW), due) == [reply("s", Status.TOO_SLOW, 0, 0)]
    assert m.deadline() is None


def test_a_stream_above_the_limit_is_refused_before_it_is_whole() -> None:
    """Its length is not known before; what is too long takes no more space."""
    m = pipeline()
    m.step(StreamOpened(stream=7, run="s"), T0)

    assert m.step(ChunkStaged(stream=7, length=Limits().append_bytes_max), T0) == []
    assert m.step(ChunkStaged(stream=7, length=1), T0) == [Abort(stream=7, status=Status.TOO_LARGE)]


def test_no_clock_runs_against_a_stream_that_is_whole() -> None:
    """journals.17: 256 MiB may take longer to sync than a client may be silent; they were never appended."""
    m = pipeline()
    m.step(StreamOpened(stream=7, run="s"), T0)
    m.step(ChunkStaged(stream=7, length=100), T0)
    m.step(StreamEnded(stream=8, length=3), T0)
    assert m.deadline() is not None, "somebody else's end"
    m.step(StreamEnded(stream=7, length=100), T0)

    assert m.deadline() is None
    assert m.step(Tick(), Instant(T0 + 60 * SECOND)) == []
    assert m.step(StreamPlaced(stream=7), T0) == [persist(1, "s", 0, 100, stream=7)]


def test_a_large_stream_leaves_room_for_the_appends_behind_it() -> None:
    """Its content is in a file: 256 MiB of it must not use up the bytes that others may have in memory."""
    m = pipeline()
    m.step(StreamOpened(stream=7, run="s"), T0)
    m.step(StreamEnded(stream=7, length=Limits().append_bytes_max), T0)
    m.step(StreamPlaced(stream=7), T0)

    assert isinstance(m.step(submitted("b", 5), T0)[0], Persist)


def test_a_disk_that_fills_up_drops_what_is_staged() -> None:
    """journals.20: it takes space that nobody can use; what is whole already is refused at its place."""
    m = pipeline()
    for stream in (7, 8, 9):
        m.step(StreamOpened(stream=stream, run=stream), T0)
    m.step(StreamEnded(stream=8, length=5), T0)
    m.step(StreamEnded(stream=9, length=5), T0)

    assert m.step(Fullness(is_full=True), T0) == [Abort(stream=7, status=Status.STORE_UNHEALTHY)]
    for stream in (7, 8):
        assert m.step(ChunkStaged(stream=stream, length=5), T0) == [], "it was under way, and is dropped"
    assert m.step(StreamPlaced(stream=8), T0) == [persist(1, 8, 0, 5, stream=8)]
    assert m.step(Persisted(token=Token(1)), T0)[-1] == reply(9, Status.STORE_UNHEALTHY, 5, 5)


def test_a_stream_is_refused_before_its_content_is_read() -> None:
    """A client must not send a gigabyte to learn that its offset was wrong."""
    m = pipeline(head=3)

    assert m.step(StreamOpened(stream=7, run="s", condition=Condition(offset=at(0))), T0) == [
        Abort(stream=7, status=Status.WRONG_APPEND_OFFSET),
        reply("s", Status.WRONG_APPEND_OFFSET, 3, 3),
    ]


def test_an_offset_that_is_known_elsewhere_is_never_written_again() -> None:
    """J11: INDEX_HAS_GREATER_OFFSET instead of an overwrite; barriers go on."""
    m = pipeline(is_behind=True)

    assert m.step(submitted("a", 5), T0) == [reply("a", Status.INDEX_HAS_GREATER_OFFSET, 0, 0)]
    assert m.step(submitted("b", 0), T0) == [reply("b", Status.OK, 0, 0)]


def test_what_turns_out_to_be_behind_takes_no_more_content() -> None:
    """J11: a store that answers late knows more. What was adopted is still acknowledged."""
    m = pipeline()
    m.step(submitted("a", 5), T0)

    assert m.step(FellBehind(), T0) == []
    assert m.step(submitted("b", 5), T0) == []
    assert m.step(Persisted(token=Token(1)), T0) == [
        Advance(end=at(5)),
        reply("a", Status.OK, 0, 5),
        reply("b", Status.INDEX_HAS_GREATER_OFFSET, 5, 5),
    ]
    assert m.step(FellBehind(), T0) == []
    m.check()


def test_who_streams_while_it_turns_out_to_be_behind_is_refused() -> None:
    """J11: its content is dropped, and taken back from the spool where it was being copied."""
    m = pipeline()
    for stream in (1, 2):
        m.step(StreamOpened(stream=stream, run=stream), T0)
    m.step(StreamEnded(stream=2, length=9), T0)

    status = Status.INDEX_HAS_GREATER_OFFSET
    assert m.step(FellBehind(), T0) == [Abort(stream=1, status=status), Abort(stream=2, status=status)]
    for stream in (1, 2):
        assert m.step(StreamFailed(stream=stream, status=status), T0) == [reply(stream, status, 0, 0)]
    m.check()


def test_content_that_is_placed_after_the_end_is_not_adopted() -> None:
    """Its append was refused when the pipeline ended: adopting it would add bytes to a journal of another."""
    for end in (EpochLost(), Closed(status=Status.SHUTTING_DOWN)):
        p = pipeline()
        p.step(StreamOpened(stream=1, run="s"), T0)
        p.step(ChunkStaged(stream=1, length=5), T0)
        assert p.step(StreamEnded(stream=1, length=5), T0) == [
            Grant(stream=1, begin=at(0), fragment_begin=at(0))
        ]
        p.step(end, T0)

        assert p.step(StreamPlaced(stream=1), T0) == []
        assert p.adopted_end == 0
        p.check()


def test_a_full_disk_refuses_content_and_nothing_else() -> None:
    """journals.20: reads and barriers go on."""
    m = pipeline()
    m.step(Fullness(is_full=True), T0)

    assert m.step(submitted("a", 5), T0) == [reply("a", Status.STORE_UNHEALTHY, 0, 0)]
    assert m.step(submitted("b", 0), T0) == [reply("b", Status.OK, 0, 0)]


def test_after_the_epoch_is_lost_nothing_is_acknowledged() -> None:
    """journals.1: a pipeline that lost its epoch never acknowledges again; what was durable is unknown."""
    m = pipeline()
    m.step(submitted("a", 5, union={"author": "x"}), T0)
    m.step(Persisted(token=Token(1)), T0)

    assert m.step(EpochLost(), T0) == [reply("a", Status.UNKNOWN, 0, 0)]
    assert m.step(RegistersPut(version=1, is_known=True), T0) == []
    assert m.step(submitted("b", 5), T0) == [reply("b", Status.FENCED, 0, 0)]
    m.check()


def test_what_was_not_decided_at_the_close_is_unknown() -> None:
    """C1, C2: a shutdown is not a no for what may be durable, and a certain no for everything else."""
    m = pipeline()
    m.step(submitted("a", 5), T0)
    m.step(submitted("refused", 5, offset=at(0)), T0)
    for stream in (7, 8):
        m.step(StreamOpened(stream=stream, run=stream), T0)
    m.step(StreamEnded(stream=8, length=5), T0)
    m.step(submitted("b", 5), T0)

    assert m.step(Closed(status=Status.SHUTTING_DOWN), T0) == [
        reply("a", Status.UNKNOWN, 0, 0),
        reply("refused", Status.SHUTTING_DOWN, 0, 0),
        Abort(stream=8, status=Status.SHUTTING_DOWN),
        reply(8, Status.SHUTTING_DOWN, 0, 0),
        reply("b", Status.SHUTTING_DOWN, 0, 0),
        Abort(stream=7, status=Status.SHUTTING_DOWN),
        reply(7, Status.SHUTTING_DOWN, 0, 0),
    ]
    assert m.step(StreamFailed(stream=8, status=Status.SHUTTING_DOWN), T0) == []
    assert m.step(StreamEnded(stream=7, length=5), T0) == []
    assert m.step(Persisted(token=Token(1)), T0) == []
    m.check()


class Model:
    """The naive oracle: a journal as a list, evaluated one append after the other."""

    def __init__(self) -> None:
        self.end, self.registers = 0, NO_REGISTERS
        self.attempts: dict[bytes, tuple[int, int]] = {}
        self.settled: set[bytes] = set()

    def settle(self, attempt: bytes) -> tuple[Status, int, int]:
        self.settled.add(attempt)
        return Status.OK, self.end, self.end

    def append(self, length: int, condition: Condition | None, *, has_room: bool) -> tuple[Status, int, int]:
        wanted = condition or Condition()
        if wanted.attempt in self.attempts:
            return Status.ALREADY_EXISTS, self.end, self.end
        if wanted.attempt in self.settled:
            return Status.CANCELLED, self.end, self.end
        if not is_met(wanted, self.registers):
            return Status.REGISTER_MISMATCH, self.end, self.end
        if wanted.offset is not None and wanted.offset != self.end:
            return Status.WRONG_APPEND_OFFSET, self.end, self.end
        if wanted.may_change_registers and not length:
            return Status.INVALID_ARGUMENT, self.end, self.end
        if length and not has_room:
            return Status.STORE_UNHEALTHY, self.end, self.end
        begin, self.end = self.end, self.end + length
        self.registers = changed(wanted, self.registers, at(self.end)) or self.registers
        if wanted.attempt and length:
            self.attempts[wanted.attempt] = begin, self.end
        return Status.OK, begin, self.end


ATTEMPTS = st.sampled_from([b"m" * ATTEMPT_BYTES, b"n" * ATTEMPT_BYTES])
CONDITIONS = st.one_of(
    st.none(),
    st.builds(
        Condition,
        offset=st.one_of(st.none(), st.integers(0, 12).map(at)),
        check=st.one_of(
            st.none(), st.dictionaries(st.sampled_from("pq"), st.sampled_from(["x", None]), max_size=1)
        ),
        union=st.one_of(st.none(), st.dictionaries(st.sampled_from("pq"), st.sampled_from("xy"), max_size=1)),
        subtract=st.one_of(
            st.none(), st.dictionaries(st.sampled_from("pq"), st.sampled_from("xy"), max_size=1)
        ),
        attempt=ATTEMPTS | st.just(b""),
    ),
)
STEPS = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, 3), CONDITIONS, st.booleans()),
    st.tuples(st.just("stream"), st.integers(0, 3), CONDITIONS, st.booleans()),
    st.tuples(st.just("settle"), ATTEMPTS),
    st.tuples(st.just("finish"), st.booleans()),
    st.tuples(st.just("place"), st.booleans()),
    st.tuples(st.just("sync"), st.integers(1, 4)),
    st.tuples(st.just("put"), st.booleans()),
    st.tuples(st.just("roll"), st.none()),
)


class World:
    """A host as simple as can be: performs effects, and remembers what was answered."""

    def __init__(self) -> None:
        self.machine = pipeline(length=4)
        self.now = T0
        self.log: list[Token] = []
        self.puts: deque[int] = deque()
        self.staging: deque[tuple[int, int]] = deque()
        self.placing: int | None = None
        self.order: list[int] = []
        """Appends and questions in the order in which they are evaluated: a stream when it is whole."""
        self.lengths: dict[int, tuple[int, Condition | None, bool]] = {}
        self.answered: list[tuple[object, Status, int, int]] = []
        self.committed = 0
        self.room: dict[object, bool] = {}
        self.failed: dict[object, Status] = {}

    def step(self, event: object) -> None:
        inbox: deque[object] = deque([event])
        refusing = False
        while inbox:
            effects = self.machine.step(inbox.popleft(), self.now)  # type: ignore[arg-type]
            self.machine.check()
            for effect in effects:
                if isinstance(effect, Persist) and not refusing:
                    if self.room[effect.run]:
                        self.log.append(effect.token)
                    else:
                        refusing = True
                        inbox.append(PersistRefused(token=effect.token))
                elif isinstance(effect, Rollback):
                    refusing = False
                elif isinstance(effect, Roll | Stage | Abort):
                    self.follow(effect)
                elif isinstance(effect, Grant):
                    inbox.extend(self.place(effect.stream, refusing=refusing))
                elif isinstance(effect, PutRegisters):
                    self.puts.append(effect.registers.version)
                elif isinstance(effect, Advance):
                    assert effect.end > self.committed, "the committed end rises"
                    self.committed = effect.end
                elif isinstance(effect, Reply):
                    self.answered.append((effect.run, effect.status, effect.begin, effect.end))

    def follow(self, effect: Roll | Stage | Abort) -> None:
        """What takes no answer at once."""
        if isinstance(effect, Roll):
            assert self.placing is None, "nobody's content is cut in two"
            assert effect.fragment_begin == self.machine.adopted_end
        elif isinstance(effect, Stage):
            self.staging.append((effect.stream, self.lengths[effect.stream][0]))
        else:
            self.order.append(effect.stream)  # Refused before its content came.

    def place(self, stream: int, *, refusing: bool) -> list[StreamFailed]:
        """The tail is granted; after a refused persist of the same step the host takes nothing."""
        assert self.placing is None, "one at a time"
        if not refusing:
            self.placing = stream
            return []
        self.failed[stream] = Status.STORE_UNHEALTHY
        return [StreamFailed(stream=stream, status=Status.STORE_UNHEALTHY)]

    def admit(self, number: int, step: tuple[object, ...]) -> tuple[int, Condition | None, bool]:
        """An append arrives; what it is, for the model."""
        kind, length, condition, has_room = step
        assert isinstance(length, int)
        assert condition is None or isinstance(condition, Condition)
        self.room[number] = bool(has_room)
        if kind == "stream":
            self.lengths[number] = (length, condition, bool(has_room))
            self.step(StreamOpened(stream=number, run=number, condition=condition))
        else:
            self.order.append(number)
            self.step(Submitted(run=number, count=1, length=length, condition=condition))
        return length, condition, bool(has_room)

    def go_on(self, kind: object, how: object) -> None:
        """Something that was under way ends, where anything was."""
        if kind == "finish" and self.staging:
            stream, length = self.staging.popleft()
            if how:
                self.order.append(stream)
                self.step(StreamEnded(stream=stream, length=length))
            else:
                self.failed[stream] = Status.CANCELLED
                self.step(StreamFailed(stream=stream, status=Status.CANCELLED))
        elif kind == "place" and self.placing is not None:
            stream, self.placing = self.placing, None
            if how:
                self.step(StreamPlaced(stream=stream))
            else:
                self.failed[stream] = Status.STORE_UNHEALTHY
                self.step(StreamFailed(stream=stream, status=Status.STORE_UNHEALTHY))
        elif kind == "sync" and self.log:
            assert isinstance(how, int)
            count = min(how, len(self.log))
            token = self.log[count - 1]
            del self.log[:count]
            self.step(Persisted(token=token))
        elif kind == "roll":
            self.step(RollAsked())
        elif kind == "put" and self.puts:
            self.step(RegistersPut(version=self.puts.popleft(), is_known=bool(how)))
            self.now = Instant(self.now + SECOND // 10)
            if self.machine._put_again_at is not None:
                self.step(Tick())

    def drain(self) -> None:
        """Everything that is under way ends well."""
        while self.staging or self.placing is not None or self.log or self.puts:
            self.go_on("finish", how=True)
            self.go_on("place", how=True)
            self.go_on("sync", how=len(self.log))
            self.go_on("put", how=True)


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=40))
def test_any_schedule_answers_as_one_append_after_the_other(steps: list[tuple[object, ...]]) -> None:
    """Oracle: appends evaluated one by one, a stream when it is whole, with the disk's refusals."""
    world = World()
    model = Model()
    admitted: dict[int, tuple[int, Condition | None, bool] | bytes] = {}
    for number, step in enumerate(steps):
        if step[0] in ("submit", "stream"):
            admitted[number] = world.admit(number, step)
        elif step[0] == "settle":
            assert isinstance(step[1], bytes)
            admitted[number] = step[1]
            world.order.append(number)
            world.step(AttemptAsked(run=number, attempt=step[1]))
        else:
            world.go_on(*step)
    world.drain()
    answered = {run: (status, begin, end) for run, status, begin, end in world.answered}
    assert len(answered) == len(world.answered) == len(admitted), "each is answered once"
    assert len(dict.fromkeys(world.order)) == len(world.order), "each is evaluated once"
    assert admitted.keys() == {*world.order, *world.failed}
    for number in world.order:
        asked = admitted[number]
        if isinstance(asked, bytes):
            assert answered[number] == model.settle(asked), number
            continue
        length, condition, room = asked
        if answered[number][0] is Status.CANCELLED and number not in world.failed:
            assert condition is not None
            assert condition.attempt in admitted.values(), "its client asked later"
            continue
        refused = number in world.failed or answered[number][0] is Status.STORE_UNHEALTHY
        if not refused:  # What shares a step with a refused persist is refused with it.
            assert answered[number] == model.append(length, condition, has_room=room), number
    if all(world.room.values()):
        unhealthy = [run for run, told in answered.items() if told[0] is Status.STORE_UNHEALTHY]
        assert all(world.failed.get(run) is Status.STORE_UNHEALTHY for run in unhealthy)
    assert world.machine.committed_end == model.end
    assert world.machine.committed_registers == model.registers
    for attempt, (begin, end) in model.attempts.items():
        assert world.machine.attempts.find(attempt) == Remembered(attempt, at(begin), at(end))


def test_what_is_not_answered_is_counted_wherever_it_waits() -> None:
    """A journal is closed, or moved away from, once nothing is pending: a stream at the tail counts."""
    p = pipeline()
    assert p.pending_count == 0
    p.step(StreamOpened(stream=1, run=1, condition=None), T0)
    p.step(StreamOpened(stream=2, run=2, condition=None), T0)
    assert p.pending_count == 2
    assert [type(each) for each in p.step(StreamEnded(stream=1, length=5), T0)] == [Grant]
    assert p.pending_count == 2, "it owns the tail"


def test_a_stream_that_is_not_admitted_is_answered_and_aborted() -> None:
    """Its caller waits for the answer: an abort alone would leave it waiting for ever."""
    p = pipeline()
    p.step(Closed(status=Status.SHUTTING_DOWN), T0)
    effects = p.step(StreamOpened(stream=1, run=7, condition=None), T0)

    assert [type(each) for each in effects] == [Abort, Reply]
