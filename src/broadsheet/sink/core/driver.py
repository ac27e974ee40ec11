"""Driver: the machine of one query's sink, which decides START, PLAN, COMMIT and ABORT.

It runs one operation at a time, and one call of it at a time. The host performs a call on a journal and
tells the machine that the call was answered, refused, or lost: a lost call may have happened, or may happen
later. The machine repeats a lost call after a pause, for `patience` in all, if a repetition does no harm.
After a lost append under a condition it reads the registers again and decides again.
    IDLE --StartAsked--> FENCING [--a batch is committed--> REDOING] --> IDLE
    IDLE --CommitAsked--> DECIDING --> ACKNOWLEDGING [--lost answer--> REDOING] --> IDLE
                          DECIDING --the batch is found committed--> REDOING --> IDLE
    IDLE --PlanAsked--> READING --> IDLE; IDLE --AbortAsked--> ABORTING --> IDLE
FENCING makes every later append of an older author fail. DECIDING is one append at an explicit offset under
a check of all registers. REDOING appends acknowledgements that may have been appended before, and therefore
retires their producers first. ABORTING appends nothing.
A lost answer is never treated as a refusal. Units: nanoseconds. Source: pipelines.6-10; ADR 0073, 0180, 0181.
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
from broadsheet.sink.core import history
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
    SinkRegisters,
    records_before,
    records_from,
    reusable_of,
    standing_of,
)

PATIENCE: Final = Duration(120 * SECOND)
PAUSE_MIN: Final = Duration(50 * MILLISECOND)
PAUSE_MAX: Final = Duration(SECOND)
OLDER_BYTES: Final = 64 << 10
"""How far before the newest commit PLAN looks for producers. Spark gives idle workers tasks in turn, so
the last batch of a worker is often some batches old."""
OLDER_WAIT: Final = Duration(SECOND)
"""How long PLAN waits for these bytes, without which workers only take new producers."""
ATTEMPTS_MAX: Final = 1000
"""How often a fence or a commit is tried again because the journal changed after it was read."""


class State(Enum):
    """What the driver is doing."""

    IDLE = "idle"
    FENCING = "fencing"
    READING = "reading"
    DECIDING = "deciding"
    ACKNOWLEDGING = "acknowledging"
    """Appends acknowledgements for the first time; their producers may be used again."""
    ABORTING = "aborting"
    REDOING = "redoing"
    """Appends acknowledgements that may have been appended before; their producers are retired."""


Outcome = SinkRegisters | BatchPlan | None
"""The result of an operation: START and COMMIT give the last standing they read, PLAN a plan, ABORT None."""
T = TypeVar("T")
Steps = Generator[Call | None, Answer | None, T]
"""A part of an operation. It yields a call and is sent its answer; it yields None for a pause."""


class Driver:
    """The sink's driver: decides for one fence over one commit journal."""

    def __init__(self, journal: str, fence: Fence, *, patience: Duration = PATIENCE) -> None:
        self.journal, self.fence, self.patience = journal, fence, patience
        self.state = State.IDLE
        self.is_decided = False
        """Whether the commit record of this operation is known to be in the journal."""
        self.is_in_doubt = False
        """Whether the answer to an append of it was lost: it may be in the journal, or come there later."""
        self.is_retired = False
        """Whether it is known that no task uses the record's producers any more."""
        self.asked: Call | None = None
        """The call that has no answer yet."""
        self._course: Steps[Outcome] | None = None
        self._effects: list[DriverEffect] = []
        self._call = 0
        self._resume_at: Instant | None = None
        self._now = Instant(0)

    def step(self, event: DriverEvent, now: Instant) -> list[DriverEffect]:
        """Apply one event to the sink's driver."""
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
                    return []  # A late answer to a call that this machine no longer waits for.
                self.asked = None
                return self._go(event)

    def deadline(self) -> Instant | None:
        """When a pause ends."""
        return self._resume_at

    def check(self) -> None:
        """Assert the invariants."""
        assert (self.state is State.IDLE) == (self._course is None), "an idle driver has no operation"
        assert self.asked is None or self._resume_at is None, "it waits for an answer or for a time"
        if isinstance(self.asked, Append) and self.asked.journal != self.journal:
            assert self.is_decided, "nothing is acknowledged before it is committed"
            if self.state is State.REDOING:
                assert self.is_retired, "producers are retired before they are acknowledged again"

    def _course_of(self, event: Asked) -> Steps[Outcome]:
        self.is_decided = self.is_in_doubt = self.is_retired = False
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
        """Run the driver's operation on to its next call, its next pause, or its end."""
        assert self._course is not None, "an operation is running"
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
        """START: become the author, then append the acknowledgements of the newest committed batch.

        Raises:
            Fenced: another START became the author. ConfigError: the journal holds data and no registers.
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
            raise Fenced(
                f"{ATTEMPTS_MAX} attempts to become the author of commit journal {self.journal} met another "
                "one: other runs of the query start again and again. Stop them"
            )
        self._effects.append(Pass("sink.start.fenced"))
        # Read the fence again: a newer driver's batch may be the newest, and to acknowledge it would roll
        # back what its producers append now.
        now = yield from self._ours()
        if now.at >= 0:
            hit("sink.start.redo")
            newest = (yield from self._records(now))[0]
            yield from self._redo(newest, newest.by_journal())
        return now

    def _fence_over(self, old: SinkRegisters, give_up: Instant) -> Steps[bool]:
        """Append a fence if the registers have not changed since they were read. False: read them again."""
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
        """Refuse a journal that holds bytes and no registers: it has data that is not a query's commits."""
        end = yield from self._measured()
        if end and (yield from self._standing()).author is None:
            raise ConfigError(
                f"journal {self.journal} holds {end} bytes and no query's registers: name another journal "
                "for the commits"
            )

    def _plan(self) -> Steps[Outcome]:
        """PLAN: the newest committed batch, and the producers that may be used again."""
        now = yield from self._ours()
        plan = BatchPlan(fence=self.fence, committed=now.batch, query=now.query)
        if now.at < 0:
            return plan
        records = yield from self._records(now)
        older = yield from self._older(now)
        reusable = reusable_of([*older, *records], self.fence)
        return replace(plan, reusable=reusable, positions=records[0].positions, committed_by=records[0].fence)

    def _commit(self, asked: CommitAsked) -> Steps[Outcome]:
        """COMMIT: record the batch as the newest one, exactly once, then acknowledge its messages.

        Raises:
            Fenced: another START became the author.
            LocalProtocolError: the checkpoint belongs to another history.
            Unknown: the patience ended while it was not known whether the record is in the journal.
        """
        record = Record(
            type="commit",
            fence=self.fence,
            batch=asked.batch,
            query=asked.query,
            digest=asked.digest,
            intents=list(asked.intents),
            positions=asked.positions,
        )
        line = record.line()
        if len(line) > RECORD_BYTES_MAX:
            raise LocalProtocolError(
                f"the commit record of batch {asked.batch} has {len(asked.intents)} acknowledgements and "
                f"{len(line)} bytes, above the limit of {RECORD_BYTES_MAX}: write to fewer journals, or with "
                "fewer tasks"
            )
        self._refuse_remade(asked)
        give_up = after(self._now, self.patience)
        for _ in range(ATTEMPTS_MAX):
            now = yield from self._ours()
            history.refuse_other_query(now.query, asked.query, journal=self.journal)
            history.refuse_other_batch(now, asked.batch, journal=self.journal, is_next=asked.is_next)
            if now.batch == asked.batch:
                hit("sink.commit.found")
                stored = (yield from self._records(now))[0]
                history.refuse_other_digest(stored, asked.digest, is_next=asked.is_next)
                history.refuse_second_write(stored, asked.intents, self.fence)
                # An earlier attempt may have sent acknowledgements of this batch that are still on their
                # way. If they arrived after the producers' next messages, they would roll these back.
                yield from self._redo(stored, stored.by_journal())
                return now
            if (yield from self._decide(now, line, asked)):
                yield from self._acknowledge(record)
                return now
            if self._now >= give_up:
                hit("sink.commit.gave_up")
                break
        raise Unknown(
            f"it is not known whether batch {asked.batch} is committed in {self.journal}: start the query "
            "again, or write the batch again, which finds out"
        )

    def _abort(self, _asked: AbortAsked) -> Steps[Outcome]:
        """ABORT: append nothing, because the commit may have happened, or may still happen (pipelines.10)."""
        yield from ()
        return None

    def _decide(self, now: SinkRegisters, line: bytes, asked: CommitAsked) -> Steps[bool]:
        """Append the commit record, which commits the batch. False: undecided, read the registers again."""
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
            self.is_in_doubt = True
            yield from self._pause(PAUSE_MIN)
            return False
        self._effects.append(Pass("sink.commit.decided"))
        return True

    def _acknowledge(self, record: Record) -> Steps[None]:
        """Append each acknowledgement once. After a lost answer, `_redo` appends the rest."""
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
        """Retire the producers of `record`, then append acknowledgements that may be repetitions.

        Readers roll back what a producer sent after an acknowledgement if that one is repeated later.
        Therefore no task may use the producers again.

        Raises:
            Fenced: another START became the author; it appends these acknowledgements.
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
        """Note that an acknowledgement was refused; the other journals still get theirs.

        A deleted journal is reported and is no error, because an error would recur at every later START.
        """
        if not isinstance(error, NotFound):
            failed.append(error)
            return
        hit("sink.journal_gone")
        self._effects.append(
            Report(f"{journal} was deleted with messages of a committed batch in it: they are lost ({error})")
        )

    def _retire(self, record: Record) -> Steps[None]:
        """Record that no later batch uses the record's producers; those of another fence are never used."""
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

    def _ours(self) -> Steps[SinkRegisters]:
        """The registers, if this fence is still the author; otherwise raises `Fenced`."""
        now = yield from self._standing()
        if now.author != self.fence:
            hit("sink.fenced")
            raise Fenced(
                f"another run of the query became the author of commit journal {self.journal} (fence "
                f"{now.author}, this run's {self.fence}): this run is over, stop it"
            )
        return now

    def _standing(self) -> Steps[SinkRegisters]:
        answer = yield from self._surely(ReadRegisters(self.journal))
        assert isinstance(answer, RegistersRead), "registers were asked for"
        return standing_of(answer.values, journal=self.journal)

    def _measured(self) -> Steps[int]:
        """The journal's end, measured by an empty append."""
        answer = yield from self._surely(Append(self.journal))
        assert isinstance(answer, Appended), "an append was asked for"
        return answer.end

    def _records(self, now: SinkRegisters) -> Steps[list[Record]]:
        answer = yield from self._surely(ReadContent(self.journal, now.at))
        assert isinstance(answer, ContentRead), "content was asked for"
        return records_from(answer.content, now, journal=self.journal)

    def _older(self, now: SinkRegisters) -> Steps[list[Record]]:
        """The commit journal's records before the newest commit, if needed; none if they cannot be read.

        They may be damaged, or in a fragment store that is down, and no batch depends on them.
        """
        begin = max(0, now.at - OLDER_BYTES)
        answer = yield from self._ask(ReadContent(self.journal, begin, now.at), OLDER_WAIT)
        if not isinstance(answer, ContentRead):
            hit("sink.plan.older_unread")
            return []
        return records_before(answer.content, is_whole=begin == 0)

    def _refuse_remade(self, asked: CommitAsked) -> None:
        """Refuse a batch whose messages lie partly in a deleted journal and partly in its successor."""
        revisions: dict[str, Revision] = {}
        for intent in asked.intents:
            if revisions.setdefault(intent.journal, intent.create_revision) != intent.create_revision:
                hit("sink.commit.remade")
                raise LocalProtocolError(
                    f"journal {intent.journal} was deleted and made again while batch {asked.batch} was"
                    " written. Nothing of the batch is committed: start the query again, which writes the"
                    " whole batch"
                )

    def _ask(self, call: Call, timeout: Duration | None = None) -> Steps[Answer]:
        """Ask for one call, and return its answer, refusal or loss."""
        self._call += 1
        answer = yield replace(call, call=self._call, timeout=timeout)
        assert answer is not None, "a call is answered"
        return answer

    def _surely(self, call: Call) -> Steps[Answer]:
        """The answer to a call of the driver that may be repeated.

        Raises:
            Exception: the call was refused, or the patience ended; then the last error is raised.
        """
        answer = yield from self._repeatedly(call)
        if isinstance(answer, CallRefused):
            raise answer.error
        return answer

    def _repeatedly(self, call: Call) -> Steps[Answer]:
        """Repeat a driver's call while it is lost, for `patience` in all; its answer or its refusal.

        Raises:
            Exception: the patience ended; the last error that says more than `DeadlineExceeded`, if any.
        """
        give_up, pause = after(self._now, self.patience), PAUSE_MIN
        said: Exception | None = None
        while True:
            answer = yield from self._ask(call, Duration(max(0, give_up - self._now)))
            if not isinstance(answer, CallLost):
                return answer
            if self._now + pause >= give_up:
                if isinstance(answer.error, DeadlineExceeded) and said is not None:
                    raise said from answer.error  # The earlier error says more than that the time is up.
                raise answer.error
            if not isinstance(answer.error, DeadlineExceeded):
                said = answer.error
            yield from self._pause(pause)
            pause = min(PAUSE_MAX, Duration(2 * pause))

    def _pause(self, length: Duration) -> Steps[None]:
        self._resume_at = after(self._now, length)
        yield None
