"""The driver's decisions, answer by answer: what is asked, what is repeated, and what ends an operation."""

import msgspec
import pytest

from broadsheet.base.machine import Tick
from broadsheet.base.time import MILLISECOND, SECOND, Duration, Instant
from broadsheet.base.types import JournalName, Revision
from broadsheet.errors import (
    DeadlineExceeded,
    Fenced,
    LocalProtocolError,
    NotAllowed,
    NotFound,
    RegisterMismatch,
    Unknown,
    WrongAppendOffset,
)
from broadsheet.message.framing import JSON_LINES
from broadsheet.message.stamper import Intent
from broadsheet.message.uuid import Clock, ProducerId
from broadsheet.sink.core.driver import OLDER_BYTES, PAUSE_MIN, Driver, State
from broadsheet.sink.core.driver_events import (
    AbortAsked,
    Append,
    Appended,
    Asked,
    CallLost,
    CallRefused,
    CommitAsked,
    ContentRead,
    Create,
    DriverEffect,
    DriverEvent,
    Fail,
    Finish,
    Pass,
    PlanAsked,
    ReadContent,
    ReadRegisters,
    RegistersRead,
    Report,
    StartAsked,
)
from broadsheet.sink.core.records import BatchPlan, Fence, Record

OURS, PATIENCE = Fence("f1"), Duration(10 * SECOND)
LOST = Unknown("the answer was lost")
REGISTERS = {"author": "f1", "batch": "3", "query": "q", "at": "70"}


class Desk:
    """A driver, and the answers that a test gives it."""

    def __init__(self) -> None:
        self.driver = Driver("commits", OURS, patience=PATIENCE)
        self.now = Instant(0)

    def step(self, event: DriverEvent) -> list[DriverEffect]:
        effects = self.driver.step(event, self.now)
        self.driver.check()
        return effects

    def one(self, event: DriverEvent) -> DriverEffect:
        (effect,) = self.step(event)
        return effect

    def registers(self, effect: DriverEffect, **changed: str) -> list[DriverEffect]:
        """Answer a look at the registers."""
        assert isinstance(effect, ReadRegisters)
        return self.step(RegistersRead(effect.call, REGISTERS | changed))

    def append(self, effect: DriverEffect, end: int = 100) -> list[DriverEffect]:
        """Answer an append."""
        assert isinstance(effect, Append)
        return self.step(Appended(effect.call, end))

    def lose(self, effect: DriverEffect) -> list[DriverEffect]:
        """Lose the answer to an append."""
        assert isinstance(effect, Append)
        return self.step(CallLost(effect.call, LOST))

    def refuse(self, effect: DriverEffect, error: Exception) -> list[DriverEffect]:
        assert isinstance(effect, Append)
        return self.step(CallRefused(effect.call, error))

    def resume(self) -> DriverEffect:
        """Let the pause pass."""
        at = self.driver.deadline()
        assert at is not None
        assert self.driver.step(Tick(), self.now) == [], "not before its time"
        self.now = at
        return self.one(Tick())

    def deciding(self, batch: int = 4, producers: int = 1, journals: int = 2) -> Append:
        """Ask for a commit, and go on to the append that decides."""
        intents = [intent(producer, journal) for producer in range(producers) for journal in range(journals)]
        asked: Asked = CommitAsked(batch=batch, query="q", digest="d", intents=intents)
        (measured,) = self.registers(self.one(asked))
        label, decides = self.append(measured)
        assert label == Pass("sink.commit.deciding")
        assert isinstance(decides, Append)
        return decides


def intent(producer: int, journal: int) -> Intent:
    return Intent(
        journal=JournalName(f"out{journal}"),
        framing=JSON_LINES,
        producer=ProducerId(producer),
        clock=Clock(160 * (producer + journal + 1)),
    )


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_the_append_that_decides_is_bound_to_the_place_and_to_all_registers(desk: Desk) -> None:
    """Whatever else happened since the look must refuse it."""
    decides = desk.deciding()

    assert (decides.journal, decides.offset, decides.check) == ("commits", 100, REGISTERS)
    assert decides.union == {"batch": "4", "query": "q", "at": "100"}


def test_acknowledgements_follow_the_decision_one_after_the_other(desk: Desk) -> None:
    """Nothing is acknowledged before the record stands, and the plain course retires nobody."""
    label, first = desk.append(desk.deciding())
    assert label == Pass("sink.commit.decided")
    acknowledged, second = desk.append(first)
    assert acknowledged == Pass("sink.commit.acknowledged")
    last, finished = desk.append(second)

    assert [each.journal for each in (first, second) if isinstance(each, Append)] == ["out0", "out1"]
    assert last == Pass("sink.commit.acknowledged")
    assert isinstance(finished, Finish)
    assert desk.driver.state is State.IDLE


@pytest.mark.parametrize("error", [RegisterMismatch("registers"), WrongAppendOffset("end")])
def test_a_refused_decision_is_looked_at_again(desk: Desk, error: Exception) -> None:
    """Our own append whose answer was lost may be what refuses the second one."""
    (look,) = desk.refuse(desk.deciding(), error)
    (read,) = desk.registers(look, batch="4", at="100")

    assert isinstance(read, ReadContent)
    assert read.offset == 100


def test_a_lost_decision_pauses_and_is_looked_at_again(desk: Desk) -> None:
    """A lost answer is no no, and the append may still land."""
    assert desk.lose(desk.deciding()) == []
    assert desk.driver.deadline() == desk.now + PAUSE_MIN

    assert isinstance(desk.resume(), ReadRegisters)


def test_a_decision_in_doubt_for_longer_than_the_patience_ends_unknown(desk: Desk) -> None:
    """A query that hangs for a thousand timeouts tells nobody that its node is sick."""
    decides = desk.deciding()
    desk.now = Instant(PATIENCE)
    desk.lose(decides)
    failed = desk.resume()

    assert isinstance(failed, Fail)
    assert isinstance(failed.error, Unknown)
    assert "start the query again" in str(failed.error)


def test_producers_are_retired_before_an_acknowledgement_is_repeated(desk: Desk) -> None:
    """The first one may land behind the next batch of the same producer, and roll it back (pipelines.8)."""
    _, first = desk.append(desk.deciding(producers=2))
    (retire,) = desk.lose(first)
    assert isinstance(retire, Append)
    assert (retire.journal, retire.check) == ("commits", {"author": "f1"})
    assert (
        Record(type="retire", fence="f1", producers=[ProducerId(0), ProducerId(1)]).line() == retire.content
    )
    (again,) = desk.append(retire)

    assert isinstance(again, Append)
    assert isinstance(first, Append)
    assert (again.journal, again.content) == (first.journal, first.content)


def test_a_batch_that_is_found_committed_retires_its_producers_first(desk: Desk) -> None:
    """An earlier attempt may have sent acknowledgements that are still on their way (pipelines.8).

    If the producers were used again, those would roll back the next batch.
    """
    intents = [intent(0, 0), intent(1, 0)]
    asked = CommitAsked(batch=3, query="q", digest="d", intents=intents)
    (read,) = desk.registers(desk.one(asked))
    assert isinstance(read, ReadContent)
    stored = Record(type="commit", fence=OURS, batch=3, query="q", digest="d", intents=intents)
    (retire,) = desk.step(ContentRead(read.call, stored.line()))

    assert isinstance(retire, Append)
    assert retire.journal == "commits"
    assert (
        retire.content == Record(type="retire", fence=OURS, producers=[ProducerId(0), ProducerId(1)]).line()
    )
    (again,) = desk.append(retire)
    assert isinstance(again, Append)
    assert (again.journal, again.content) == ("out0", b"".join(each.content() for each in intents))
    (finished,) = desk.append(again)
    assert isinstance(finished, Finish)


def found(desk: Desk, stored_by: str, intents: list[Intent]) -> DriverEffect:
    """What follows when batch 3, with one row of producer 0, is found while `intents` are to be committed."""
    (read,) = desk.registers(desk.one(CommitAsked(batch=3, query="q", digest="d", intents=intents)))
    assert isinstance(read, ReadContent)
    stored = Record(type="commit", fence=stored_by, batch=3, query="q", digest="d", intents=[intent(0, 0)])
    return desk.one(ContentRead(read.call, stored.line()))


def test_rows_beside_those_that_the_same_run_committed_are_refused(desk: Desk) -> None:
    """Two writes of one batch overlapped: the rows of the second were left out in silence."""
    refused = found(desk, OURS, [intent(1, 0)])
    assert isinstance(refused, Fail)
    assert "another write of the same run" in str(refused.error)

    for stored_by, intents in ((OURS, [intent(0, 0)]), (OURS, []), ("f0", [intent(1, 0)])):
        desk = Desk()
        assert isinstance(found(desk, stored_by, intents), Append), "it is acknowledged again"


@pytest.mark.parametrize(("batch", "is_next"), [(5, True), (2, True), (2, False), (5, False), (4, False)])
def test_only_a_batch_that_need_not_be_the_next_may_leave_a_gap(
    desk: Desk, batch: int, is_next: bool
) -> None:
    """The number of a batch by itself is its writer's; that of a query's batch tells that none is missing."""
    asked = CommitAsked(batch=batch, query="q", digest="d", intents=[intent(0, 0)], is_next=is_next)
    (follows,) = desk.registers(desk.one(asked))

    assert isinstance(follows, Append if batch > 3 and not is_next else Fail)


def test_a_batch_of_another_query_is_refused_at_its_commit_as_well(desk: Desk) -> None:
    """Its tasks looked before the journal's first batch was committed, when no query owned it."""
    asked = CommitAsked(batch=4, query="q", digest="d", intents=[intent(0, 0)])
    (refused,) = desk.registers(desk.one(asked), query="another")

    assert isinstance(refused, Fail)
    assert "belongs to query another" in str(refused.error)


def test_what_was_answered_before_a_lost_acknowledgement_is_not_sent_again(desk: Desk) -> None:
    """It stands: another one would be a line more in the user's journal."""
    _, first = desk.append(desk.deciding(journals=3))
    _, second = desk.append(first)
    (retire,) = desk.lose(second)
    (again,) = desk.append(retire)
    (third,) = desk.append(again)
    (finished,) = desk.append(third)

    assert [each.journal for each in (again, third) if isinstance(each, Append)] == ["out1", "out2"]
    assert isinstance(finished, Finish)


def test_a_retire_that_is_refused_by_a_newer_fence_ends_the_operation(desk: Desk) -> None:
    """The newer driver publishes the acknowledgements; ours could roll back its producers."""
    _, first = desk.append(desk.deciding())
    (retire,) = desk.lose(first)
    (look,) = desk.refuse(retire, RegisterMismatch("author"))
    (failed,) = desk.registers(look, author="f2")

    assert isinstance(failed, Fail)
    assert isinstance(failed.error, Fenced)


def test_an_acknowledgement_that_is_refused_keeps_no_other_back(desk: Desk) -> None:
    """The batch is committed: each journal that takes its part shows it, and then the query fails."""
    _, first = desk.append(desk.deciding(journals=3))
    (second,) = desk.refuse(first, NotAllowed("out0"))
    reported, third = desk.refuse(second, NotFound("out1"))
    acknowledged, failed = desk.append(third)

    assert isinstance(reported, Report)
    assert reported.text.startswith("out1 was deleted")
    assert acknowledged == Pass("sink.commit.acknowledged")
    assert isinstance(failed, Fail)
    assert isinstance(failed.error, NotAllowed)


def test_an_acknowledgement_goes_to_the_journal_that_has_the_messages(desk: Desk) -> None:
    """Another one of its name would take it, and the messages that were deleted would be missed by nobody."""
    intents = [msgspec.structs.replace(intent(0, 0), create_revision=Revision(7))]
    (measured,) = desk.registers(desk.one(CommitAsked(batch=4, query="q", digest="d", intents=intents)))
    _, decides = desk.append(measured)
    _, acknowledges = desk.append(decides)

    assert isinstance(acknowledges, Append)
    assert (acknowledges.journal, acknowledges.create_revision) == ("out0", 7)


def test_a_batch_is_not_committed_whose_parts_are_in_two_journals_of_one_name(desk: Desk) -> None:
    """What the first one had is deleted: written again, the batch is whole."""
    intents = [intent(0, 0), msgspec.structs.replace(intent(1, 0), create_revision=Revision(7))]
    (failed,) = desk.step(CommitAsked(batch=4, query="q", digest="d", intents=intents))

    assert isinstance(failed, Fail)
    assert isinstance(failed.error, LocalProtocolError)
    assert "out0 was deleted and made again" in str(failed.error)


def test_a_start_asks_for_the_fence_again_before_it_acknowledges(desk: Desk) -> None:
    """Else it may acknowledge what a newer driver goes on with, and roll back its next batch."""
    create = desk.one(StartAsked())
    assert isinstance(create, Create)
    (look,) = desk.step(Appended(create.call, 0))
    (fence,) = desk.registers(look, author="f0")
    assert isinstance(fence, Append)
    assert fence.check == REGISTERS | {"author": "f0"}
    label, again = desk.append(fence)
    assert label == Pass("sink.start.fenced")
    (failed,) = desk.registers(again, author="f2", at="200", batch="4")

    assert isinstance(failed, Fail)
    assert isinstance(failed.error, Fenced)


def test_a_start_that_was_overtaken_looks_again_and_fences_over_the_newer_one(desk: Desk) -> None:
    """Whoever starts last goes on; it took itself for fenced, and the query ended."""
    create = desk.one(StartAsked())
    assert isinstance(create, Create)
    (look,) = desk.step(Appended(create.call, 0))
    (fence,) = desk.registers(look, author="f0")
    (look,) = desk.refuse(fence, RegisterMismatch("registers"))
    (again,) = desk.registers(look, author="f2")

    assert isinstance(again, Append)
    assert (again.check, again.union) == (REGISTERS | {"author": "f2"}, {"author": "f1"})


def test_a_start_whose_fence_stands_appends_no_second_one(desk: Desk) -> None:
    """The answer was lost, and the append was not. An older fence has no producers to retire."""
    create = desk.one(StartAsked())
    assert isinstance(create, Create)
    (look,) = desk.step(Appended(create.call, 0))
    (fence,) = desk.registers(look, author="f0")
    assert desk.lose(fence) == []
    label, again = desk.registers(desk.resume())
    assert label == Pass("sink.start.fenced")
    (read,) = desk.registers(again)
    assert isinstance(read, ReadContent)
    stored = Record(type="commit", fence=Fence("f0"), batch=3, query="q", digest="d", intents=[intent(0, 0)])
    (acknowledges,) = desk.step(ContentRead(read.call, stored.line()))

    assert isinstance(acknowledges, Append)
    assert (acknowledges.journal, acknowledges.content) == ("out0", intent(0, 0).content())


def test_a_journal_that_another_start_fenced_between_two_looks_is_not_taken_for_data(desk: Desk) -> None:
    """Two drivers start together: the bytes that the second one meets are the fence of the first."""
    create = desk.one(StartAsked())
    assert isinstance(create, Create)
    (look,) = desk.step(Appended(create.call, 0))
    assert isinstance(look, ReadRegisters)
    (again,) = desk.append(desk.one(RegistersRead(look.call, {})), end=50)
    (fence,) = desk.registers(again, author="f2")

    assert isinstance(fence, Append)
    assert fence.check == dict.fromkeys(REGISTERS)
    (look,) = desk.refuse(fence, RegisterMismatch("registers"))
    assert isinstance(look, ReadRegisters)


def planned(desk: Desk, at: int, older: bytes | Exception, content: bytes) -> dict[ProducerId, Clock]:
    """The reusable producers of a plan: the newest commit lies at `at`, and `older` right before it."""
    (read,) = desk.registers(desk.one(PlanAsked()), at=str(at))
    assert isinstance(read, ReadContent)
    assert (read.offset, read.end) == (at, None)
    look = desk.one(ContentRead(read.call, content))
    assert isinstance(look, ReadContent)
    assert (look.offset, look.end) == (max(0, at - OLDER_BYTES), at)
    assert look.timeout is not None
    if isinstance(older, bytes):
        finished = desk.one(ContentRead(look.call, older))
    else:
        finished = desk.one((CallLost if isinstance(older, Unknown) else CallRefused)(look.call, older))
    assert isinstance(finished, Finish)
    assert isinstance(finished.result, BatchPlan)
    plan = finished.result
    assert plan == BatchPlan(OURS, 3, "q", reusable=plan.reusable, committed_by=plan.committed_by)
    return dict(plan.reusable)


def commit_of(*intents: Intent, fence: str = OURS, batch: int = 3) -> bytes:
    return Record(type="commit", fence=fence, batch=batch, intents=list(intents)).line()


def retire_of(*producers: int) -> bytes:
    return Record(type="retire", fence=OURS, producers=[ProducerId(each) for each in producers]).line()


def test_a_plan_lists_the_producers_of_its_own_fence_less_the_retired(desk: Desk) -> None:
    """The acknowledgement of every other may still be on its way (pipelines.8)."""
    content = commit_of(intent(0, 0), intent(0, 1), intent(1, 0)) + retire_of(1)

    assert planned(desk, 70, b"", content) == {ProducerId(0): Clock(320)}


def test_a_plan_lists_the_producers_of_older_batches_of_its_fence_less_the_retired(desk: Desk) -> None:
    """A pool of workers takes turns. With a new producer each time, a producer index ends within a day."""
    older = (
        commit_of(intent(0, 0), fence="f0", batch=0)
        + Record(type="fence", fence=OURS).line()
        + commit_of(intent(1, 0), intent(2, 0), batch=1)
        + retire_of(2)
        + commit_of(intent(3, 0), intent(4, 0), batch=2)
    )
    content = commit_of(intent(1, 1), intent(5, 0)) + retire_of(4)

    assert planned(desk, len(older), older, content) == {
        ProducerId(1): Clock(480), ProducerId(3): Clock(640), ProducerId(5): Clock(960),
    }  # fmt: skip


def test_a_plan_lists_no_producer_of_a_commit_before_bytes_that_it_cannot_read(desk: Desk) -> None:
    """The record that retired the producer may have been there."""
    cut = commit_of(intent(0, 0), batch=0)
    older = commit_of(intent(1, 0), batch=1) + b"{damaged\n" + commit_of(intent(2, 0), batch=2)

    assert planned(desk, 1 << 20, cut + older, commit_of()) == {ProducerId(2): Clock(480)}
    assert planned(desk, 1 << 20, cut, commit_of()) == {}, "its first line may have been cut"
    assert planned(desk, len(cut), cut, commit_of()) == {ProducerId(0): Clock(160)}


@pytest.mark.parametrize("error", [LOST, NotAllowed("trimmed")])
def test_a_plan_needs_no_bytes_before_the_newest_commit(desk: Desk, error: Exception) -> None:
    """They may be damaged, or in a store that is down; without them workers only take new producers."""
    assert planned(desk, 70, error, commit_of(intent(0, 0))) == {ProducerId(0): Clock(160)}


def test_a_lost_look_is_repeated_with_growing_pauses_until_the_patience_ends(desk: Desk) -> None:
    """A node that restarts must not fail a query, and one that is gone must, with more words than "late"."""
    look = desk.one(PlanAsked())
    pauses = []
    error: Exception = LOST
    while True:
        assert isinstance(look, ReadRegisters)
        effects = desk.step(CallLost(look.call, error))
        if effects:
            break
        pauses.append((desk.driver.deadline() or 0) - desk.now)
        look = desk.resume()
        error = DeadlineExceeded("late") if desk.now > 8 * SECOND else LOST

    assert pauses[:6] == [each * MILLISECOND for each in (50, 100, 200, 400, 800, 1000)]
    assert desk.now < PATIENCE
    assert effects == [Fail(LOST)]


def test_an_answer_to_a_call_that_was_given_up_changes_nothing(desk: Desk) -> None:
    """Late, doubled and foreign answers are normal."""
    look = desk.one(PlanAsked())
    assert isinstance(look, ReadRegisters)
    desk.step(CallLost(look.call, LOST))

    assert desk.step(RegistersRead(look.call, REGISTERS)) == []
    again = desk.resume()
    assert desk.step(RegistersRead(look.call, REGISTERS | {"author": "f9"})) == []
    assert isinstance(desk.registers(again)[0], ReadContent)


def test_an_abort_appends_nothing(desk: Desk) -> None:
    """Spark aborts after a commit that raised, and that commit may still be on its way (pipelines.10)."""
    decides = desk.deciding(batch=4)
    (failed,) = desk.refuse(decides, NotAllowed("commits"))
    assert isinstance(failed, Fail)

    assert desk.one(AbortAsked(batch=4, intents=[intent(0, 0)])) == Finish(None)
