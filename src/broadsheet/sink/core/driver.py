"""The driver of a query: START, PLAN and COMMIT as decisions over answers of journals.

One operation at a time, and of it one call at a time; a call is asked, and later it is answered, refused or
lost (it may have happened, or happen later). Lost calls that may be repeated are repeated after a pause,
for `patience` in all; after a lost append under a condition the driver reads again and decides again.
    IDLE --StartAsked--> FENCING --> REDOING --> IDLE
    IDLE --PlanAsked--> READING --> IDLE
    IDLE --CommitAsked--> DECIDING --> ACKNOWLEDGING [--lost answer--> REDOING] --> IDLE
Fencing ends every older author for good. Deciding is one append at an explicit offset under a check of all
four registers. Redoing appends acknowledgements that may have been appended before, so it retires their
producers first. ABORT appends nothing.
Units: nanoseconds. It appends nothing itself, knows nothing of Spark, and never takes a lost answer for a
no. Source: pipelines.6-10; docs/adr/0073, 0180, 0181.
"""

from collections.abc import Generator, Sequence
from enum import Enum
from typing import Final, TypeVar

from msgspec.structs import replace

from broadsheet.base.machine import Tick
from broadsheet.base.marks import hit
from broadsheet.base.time import MILLISECOND, SECOND, Duration, Instant, after
from broadsheet.base.types import Revision
from broadsheet.errors import (
    BroadsheetError,
    ConfigError,
    DeadlineExceeded,
    Fenced,
    LocalProtocolError,
    NotFound,
    RegisterMismatch,
    Unknown,
    WrongAppendOffset,
)
from broadsheet.sink.core.driver_events import (
    AbortAsked,
    Answer,
    Append,
    Appended,
    Asked,
    Call,
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
from broadsheet.sink.core.records import (
    NO_BATCH,
    RECORD_BYTES_MAX,
    Acknowledgements,
    BatchPlan,
    Fence,
    Record,
    Standing,
    records_from,
    reusable_of,
    standing_of,
)

PATIENCE: Final = Duration(120 * SECOND)
PAUSE_MIN: Final = Duration(50 * MILLISECOND)
PAUSE_MAX: Final = Duration(SECOND)
ATTEMPTS_MAX: Final = 1000
"""How often a fence or a commit may find that the journal has changed under it."""


class State(Enum):
    """What the driver is about."""

    IDLE = "idle"
    FENCING = "fencing"
    READING = "reading"
    DECIDING = "deciding"
    ACKNOWLEDGING = "acknowledging"
    """For the first time: its producers may be used again."""
    ABORTING = "aborting"
    REDOING = "redoing"
    """Perhaps not for the first time."""


Outcome = Standing | BatchPlan | None
"""What an operation tells: START and COMMIT the standing, PLAN a plan, ABORT nothing."""
T = TypeVar("T")
Steps = Generator[Call | None, Answer | None, T]
"""A part of an operation: it yields calls and is sent their answers; None is a pause."""


class Driver:
    """One fence's decisions about one commit journal."""

    def __init__(self, journal: str, fence: Fence, *, patience: Duration = PATIENCE) -> None:
        self.journal, self.fence, self.patience = journal, fence, patience
        self.state = State.IDLE
        self.is_decided = False
        """Whether the record at hand is known to stand in the journal."""
        self.is_retired = False
        """Whether its producers are known to be used by nobody any more."""
        self.asked: Call | None = None
        """What is not answered yet."""
        self._course: Steps[Outcome] | None = None
        self._effects: list[DriverEffect] = []
        self._call = 0
        self._resume_at: Instant | None = None
        self._now = Instant(0)

    def step(self, event: DriverEvent, now: Instant) -> list[DriverEffect]:
        """Apply one event."""
        self._now = max(self._now, now)
        match event:
            case StartAsked() | PlanAsked() | CommitAsked() | AbortAsked():
                assert self._course is None, "one operation at a time"
                self._course = self._course_of(event)
                return self._go(None)
            case Tick():
                if self._resume_at is None or self._now < self._resume_at:
                    return []
                self._resume_at = None
                return self._go(None)
            case _:
                if self.asked is None or event.call != self._call:
                    return []  # Late: the answer to a call that was given up.
                self.asked = None
                return self._go(event)

    def deadline(self) -> Instant | None:
        """When a pause ends."""
        return self._resume_at

    def check(self) -> None:
        """Assert the invariants."""
        assert (self.state is State.IDLE) == (self._course is None), "a state belongs to a course"
        assert self.asked is None or self._resume_at is None, "a course waits for an answer or for a time"
        if isinstance(self.asked, Append) and self.asked.journal != self.journal:
            assert self.is_decided, "nothing is acknowledged before it is committed"
            if self.state is State.REDOING:
                assert self.is_retired, "producers are retired before they are acknowledged again"

    def _course_of(self, event: Asked) -> Steps[Outcome]:
        self.is_decided = self.is_retired = False
        match event:
            case StartAsked():
                self.state = State.FENCING
                return self._start()
            case PlanAsked():
                self.state = State.READING
                return self._plan()
            case CommitAsked():
                self.state = State.DECIDING
                return self._commit(event)
            case AbortAsked():
                self.state = State.ABORTING
                return self._abort(event)

    def _go(self, answer: Answer | None) -> list[DriverEffect]:
        """Let the course go on to its next call, its next pause, or its end."""
        assert self._course is not None, "there is a course to go on with"
        self._effects = []
        try:
            call = self._course.send(answer)
        except StopIteration as done:
            self._end(Finish(done.value))
        except (BroadsheetError, OSError) as error:
            self._end(Fail(error))
        else:
            self.asked = call
            if call is not None:
                self._effects.append(call)
        return self._effects

    def _end(self, effect: Finish | Fail) -> None:
        self._course, self._resume_at, self.state = None, None, State.IDLE
        self._effects.append(effect)

    def _start(self) -> Steps[Outcome]:
        """START.

        Raises:
            Fenced: another START keeps winning. ConfigError: the journal holds data.
        """
        yield from self._surely(Create(self.journal))
        give_up = after(self._now, self.patience)
        for _ in range(ATTEMPTS_MAX):
            old = yield from self._standing()
            if old.author == self.fence:
                break
            if (yield from self._fence_over(old, give_up)):
                break
        else:
            raise Fenced(f"commit journal {self.journal} changes its author faster than we can read it")
        self._effects.append(Pass("sink.start.fenced"))
        # Read the fence again: if a newer driver has come, the newest batch may be its own, and to
        # acknowledge it would roll back what its producers append now.
        now = yield from self._ours()
        if now.at >= 0:
            hit("sink.start.redo")
            newest = (yield from self._records(now))[0]
            yield from self._redo(newest, newest.by_journal())
        return now

    def _fence_over(self, old: Standing, give_up: Instant) -> Steps[bool]:
        """Append a fence where the registers are still as they were read. False: look again."""
        union = {"author": str(self.fence)}
        if old.author is None:
            yield from self._refuse_data()
            union |= {"batch": str(NO_BATCH), "query": "", "at": str(NO_BATCH)}
        line = Record(type="fence", fence=self.fence).line()
        # Without the check a fence whose answer was lost could land after a newer one.
        answer = yield from self._ask(Append(self.journal, line, check=old.as_check(), union=union))
        if isinstance(answer, CallRefused):
            if not isinstance(answer.error, RegisterMismatch):
                raise answer.error
            hit("sink.start.overtaken")
            return False
        if isinstance(answer, CallLost):
            hit("sink.start.in_doubt")
            if self._now >= give_up:
                raise answer.error
            yield from self._pause(PAUSE_MIN)
            return False
        return True

    def _refuse_data(self) -> Steps[None]:
        """Refuse a journal with bytes and without registers: a fence sets them for good."""
        end = yield from self._measured()
        if end and (yield from self._standing()).author is None:
            raise ConfigError(
                f"journal {self.journal} holds {end} bytes and no query's registers: name another for the "
                "commits"
            )

    def _plan(self) -> Steps[Outcome]:
        """PLAN.

        Raises:
            Fenced: another START came.
        """
        now = yield from self._ours()
        if now.at < 0:
            return BatchPlan(fence=self.fence, committed=now.batch, query=now.query)
        newest, *later = yield from self._records(now)
        reusable = reusable_of(newest, later, self.fence)
        return BatchPlan(fence=self.fence, committed=now.batch, query=now.query, reusable=reusable)

    def _commit(self, asked: CommitAsked) -> Steps[Outcome]:
        """COMMIT.

        Raises:
            Fenced: another START came. LocalProtocolError: the checkpoint belongs to another history.
        """
        record = Record(
            type="commit",
            fence=self.fence,
            batch=asked.batch,
            query=asked.query,
            digest=asked.digest,
            intents=list(asked.intents),
        )
        line = record.line()
        if len(line) > RECORD_BYTES_MAX:
            raise LocalProtocolError(
                f"batch {asked.batch} has {len(asked.intents)} acknowledgements: too many for one record"
            )
        self._refuse_remade(asked)
        give_up = after(self._now, self.patience)
        for _ in range(ATTEMPTS_MAX):
            now = yield from self._ours()
            self._refuse_other_history(now, asked)
            if now.batch == asked.batch:
                hit("sink.commit.found")
                stored = (yield from self._records(now))[0]
                self._refuse_other_digest(stored, asked)
                # An acknowledgement of it may have been sent already, and may still be on its way.
                yield from self._redo(stored, stored.by_journal())
                return now
            if (yield from self._decide(now, line, asked)):
                yield from self._acknowledge(record)
                return now
            if self._now >= give_up:
                hit("sink.commit.gave_up")
                break
        raise Unknown(
            f"batch {asked.batch} of {self.journal} is undecided: start the query again, which reads what "
            "became of it"
        )

    def _abort(self, _asked: AbortAsked) -> Steps[Outcome]:
        """ABORT appends nothing: the commit may have happened, or be on its way (pipelines.10)."""
        yield from ()
        return None

    def _decide(self, now: Standing, line: bytes, asked: CommitAsked) -> Steps[bool]:
        """The atomic point. False: undecided, look again."""
        head = yield from self._measured()
        self._effects.append(Pass("sink.commit.deciding"))
        union = {"batch": str(asked.batch), "query": asked.query, "at": str(head)}
        answer = yield from self._ask(
            Append(self.journal, line, offset=head, check=now.as_check(), union=union)
        )
        if isinstance(answer, CallRefused):
            if not isinstance(answer.error, RegisterMismatch | WrongAppendOffset):
                raise answer.error
            hit("sink.commit.overtaken")
            return False
        if isinstance(answer, CallLost):
            hit("sink.commit.in_doubt")
            yield from self._pause(PAUSE_MIN)
            return False
        self._effects.append(Pass("sink.commit.decided"))
        return True

    def _acknowledge(self, record: Record) -> Steps[None]:
        """Append each acknowledgement once; where an answer is lost, the rest is a repetition."""
        self.state, self.is_decided = State.ACKNOWLEDGING, True
        contents = record.by_journal()
        failed: list[Exception] = []
        for at, (journal, revision, content) in enumerate(contents):
            answer = yield from self._ask(Append(journal, content, create_revision=revision))
            if isinstance(answer, CallLost):
                hit("sink.commit.acknowledgement_in_doubt")
                yield from self._redo(record, contents[at:])
                break
            if isinstance(answer, CallRefused):
                self._refused(answer.error, journal, failed)
            else:
                self._effects.append(Pass("sink.commit.acknowledged"))
        if failed:
            raise failed[0]

    def _redo(self, record: Record, contents: Sequence[Acknowledgements]) -> Steps[None]:
        """Append acknowledgements of `record` that may have been appended: first retire its producers.

        Raises:
            Fenced: another START came; it publishes them.
        """
        self.state, self.is_decided = State.REDOING, True
        yield from self._retire(record)
        failed: list[Exception] = []
        for journal, revision, content in contents:
            answer = yield from self._repeatedly(Append(journal, content, create_revision=revision))
            if isinstance(answer, CallRefused):
                self._refused(answer.error, journal, failed)
        if failed:
            raise failed[0]

    def _refused(self, error: Exception, journal: str, failed: list[Exception]) -> None:
        """An acknowledgement is refused for good; the other journals get theirs all the same.

        A journal that was deleted has nobody who waits for it. To fail would fail every later START, too.
        """
        if not isinstance(error, NotFound):
            failed.append(error)
            return
        hit("sink.journal_gone")
        self._effects.append(
            Report(f"{journal} was deleted with messages of a committed batch in it: they are lost ({error})")
        )

    def _retire(self, record: Record) -> Steps[None]:
        """Say that no later batch uses the record's producers; under another fence nobody does anyway."""
        producers = list(dict.fromkeys(intent.producer for intent in record.intents))
        if record.fence == self.fence and producers:
            line = Record(type="retire", fence=self.fence, producers=producers).line()
            try:
                yield from self._surely(Append(self.journal, line, check={"author": str(self.fence)}))
            except RegisterMismatch:
                hit("sink.retire.fenced")
                yield from self._ours()
                raise
        self.is_retired = True

    def _ours(self) -> Steps[Standing]:
        """The registers, if this fence is still the author.

        Raises:
            Fenced: it is not.
        """
        now = yield from self._standing()
        if now.author != self.fence:
            hit("sink.fenced")
            raise Fenced(
                f"commit journal {self.journal} belongs to another run of the query now (fence {now.author}, "
                f"ours {self.fence})"
            )
        return now

    def _standing(self) -> Steps[Standing]:
        answer = yield from self._surely(ReadRegisters(self.journal))
        assert isinstance(answer, RegistersRead), "registers were asked for"
        return standing_of(answer.values, journal=self.journal)

    def _measured(self) -> Steps[int]:
        """The journal's end."""
        answer = yield from self._surely(Append(self.journal))
        assert isinstance(answer, Appended), "an append was asked for"
        return answer.end

    def _records(self, now: Standing) -> Steps[list[Record]]:
        answer = yield from self._surely(ReadContent(self.journal, now.at))
        assert isinstance(answer, ContentRead), "content was asked for"
        return records_from(answer.content, now, journal=self.journal)

    def _refuse_other_history(self, now: Standing, asked: CommitAsked) -> None:
        if now.query not in ("", asked.query):
            raise LocalProtocolError(
                f"commit journal {self.journal} belongs to query {now.query}, not {asked.query}: "
                f"{OTHER_HISTORY}"
            )
        if asked.batch not in (now.batch, now.batch + 1):
            hit("sink.commit.other_batch")
            raise LocalProtocolError(
                f"batch {asked.batch} does not follow batch {now.batch} of {self.journal}: {OTHER_HISTORY}"
            )

    def _refuse_remade(self, asked: CommitAsked) -> None:
        """Refuse a batch of which one journal has a part, and another of its name the rest."""
        revisions: dict[str, Revision] = {}
        for intent in asked.intents:
            if revisions.setdefault(intent.journal, intent.create_revision) != intent.create_revision:
                hit("sink.commit.remade")
                raise LocalProtocolError(
                    f"journal {intent.journal} was deleted and made again while batch {asked.batch} was"
                    " written, and nothing of the batch is committed: start the query again, which writes all"
                    " of it"
                )

    def _refuse_other_digest(self, stored: Record, asked: CommitAsked) -> None:
        if stored.digest != asked.digest:
            hit("sink.commit.other_digest")
            raise LocalProtocolError(
                f"batch {asked.batch} was committed with other source offsets ({stored.digest[:12]}, now "
                f"{asked.digest[:12]}): {OTHER_HISTORY}"
            )

    def _ask(self, call: Call, timeout: Duration | None = None) -> Steps[Answer]:
        """One call, and what came of it."""
        self._call += 1
        answer = yield replace(call, call=self._call, timeout=timeout)
        assert answer is not None, "a call is answered"
        return answer

    def _surely(self, call: Call) -> Steps[Answer]:
        """The answer to a call that may be repeated.

        Raises:
            Exception: it is refused, or what was said last when the patience ended.
        """
        answer = yield from self._repeatedly(call)
        if isinstance(answer, CallRefused):
            raise answer.error
        return answer

    def _repeatedly(self, call: Call) -> Steps[Answer]:
        """What came of a call that may be repeated, for `patience` in all; it is not lost.

        Raises:
            Exception: what was said last when the patience ended.
        """
        give_up, pause = after(self._now, self.patience), PAUSE_MIN
        said: Exception | None = None
        while True:
            answer = yield from self._ask(call, Duration(max(0, give_up - self._now)))
            if not isinstance(answer, CallLost):
                return answer
            if self._now + pause >= give_up:
                if isinstance(answer.error, DeadlineExceeded) and said is not None:
                    raise said from answer.error  # It says more than that the time is up.
                raise answer.error
            if not isinstance(answer.error, DeadlineExceeded):
                said = answer.error
            yield from self._pause(pause)
            pause = min(PAUSE_MAX, Duration(2 * pause))

    def _pause(self, length: Duration) -> Steps[None]:
        self._resume_at = after(self._now, length)
        yield None


OTHER_HISTORY: Final = (
    "the checkpoint belongs to another history. Restore the checkpoint that this journal was written with, "
    "or start with a new checkpoint and a new commit journal"
)
