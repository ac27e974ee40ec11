"""Commits: the host of a query's sink driver, which performs its calls over a connection.

The machine `broadsheet.sink.core.driver` decides. `CommitJournal` performs the calls that the machine asks
for, one after the other, and gives each answer back to it. This module does not use Spark. Units: seconds
in arguments, nanoseconds inside the machine. Source: pipelines.6-11.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from broadsheet.base.machine import Tick
from broadsheet.base.time import SECOND, Duration, Instant, in_seconds
from broadsheet.client_sync import SyncJournals, within
from broadsheet.errors import BroadsheetError, NotFound, is_passing
from broadsheet.message.stamper import Intent
from broadsheet.runtime.checking import checker
from broadsheet.runtime.failpoints import passed
from broadsheet.sink.core.driver import Driver
from broadsheet.sink.core.driver_events import (
    AbortAsked,
    Append,
    Appended,
    Asked,
    Call,
    CallLost,
    CallRefused,
    CommitAsked,
    ContentRead,
    Create,
    Created,
    DriverEvent,
    Fail,
    Finish,
    Pass,
    PlanAsked,
    ReadRegisters,
    RegistersRead,
    Report,
    StartAsked,
)
from broadsheet.sink.core.records import BatchPlan, Fence, SinkRegisters, standing_of
from broadsheet.spark.connection import Target, patiently


class CommitJournal:
    """One query's commit journal."""

    def __init__(self, target: Target, name: str, journals: SyncJournals | None = None) -> None:
        self.target, self.name = target, name
        self._given = journals
        self.pass_by: Callable[[str], None] = passed

    @property
    def journals(self) -> SyncJournals:
        """The journals of the node."""
        return self._given if self._given is not None else self.target.journals()

    def begin(self, fence: Fence) -> SinkRegisters:
        """START: become the author, then append the acknowledgements of the newest committed batch.

        Raises:
            Fenced: another START became the author. ConfigError: the journal holds data and no registers.
        """
        found = self._performed(fence, StartAsked())
        assert isinstance(found, SinkRegisters), "START returns the standing"
        return found

    def plan(self, fence: Fence) -> BatchPlan:
        """PLAN: what the tasks of the next batch must know.

        Raises:
            Fenced: another START became the author.
        """
        found = self._performed(fence, PlanAsked())
        assert isinstance(found, BatchPlan), "PLAN returns a plan"
        return found

    def commit(
        self,
        fence: Fence,
        *,
        batch: int,
        query: str,
        digest: str,
        intents: Sequence[Intent],
        positions: str = "",
        is_next: bool = True,
    ) -> None:
        """COMMIT: record `batch` as the newest batch, exactly once, then acknowledge its messages.

        Args:
            digest: SHA-256 of the offsets that the checkpoint holds for this batch, or of the write. A replay
                of the batch must have the same digest.
            positions: where the batch ends in the journals that it reads, for a query that lost its
                checkpoint.
            is_next: whether `batch` must be the one after the newest; otherwise it may leave a gap.

        Raises:
            Fenced: another START became the author.
            LocalProtocolError: the checkpoint belongs to another history.
            Unknown: the batch may be committed or not; the next START finds out.
        """
        asked = CommitAsked(
            batch=batch, query=query, digest=digest, intents=intents, positions=positions, is_next=is_next
        )
        self._performed(fence, asked)

    def abort(self, fence: Fence, *, batch: int, intents: Sequence[Intent]) -> None:
        """ABORT: nothing is appended."""
        self._performed(fence, AbortAsked(batch=batch, intents=intents))

    def standing(self) -> SinkRegisters:
        """The registers; those of no query if the journal does not exist."""
        try:
            found = patiently(lambda: self.journals.registers(self.name), self.target.patience_s)
        except NotFound:
            return standing_of({}, journal=self.name)
        return standing_of(found.values, journal=self.name)

    def create_revision(self) -> int:
        """Which journal of that name this is."""
        return patiently(lambda: self.journals.get(self.name), self.target.patience_s).create_revision

    def _performed(self, fence: Fence, asked: Asked) -> SinkRegisters | BatchPlan | None:
        driver = Driver(self.name, fence, patience=Duration(round(self.target.patience_s * SECOND)))
        check = checker(driver.check)
        event: DriverEvent = asked
        while True:
            effects = driver.step(event, _now())
            if check is not None:
                check()
            answer: DriverEvent | None = None
            for effect in effects:
                if isinstance(effect, Finish):
                    return effect.result
                if isinstance(effect, Fail):
                    raise effect.error
                answer = self._perform(effect)
            if answer is None:
                resume_at = driver.deadline()
                assert resume_at is not None, "a driver that asks for no call pauses until a time"
                time.sleep(in_seconds(Duration(max(0, resume_at - _now()))))
                answer = Tick()
            event = answer

    def _perform(self, effect: Call | Pass | Report) -> DriverEvent | None:
        """Perform the driver's `effect`, and return the answer if the effect is a call."""
        match effect:
            case Pass():
                self.pass_by(effect.label)
                return None
            case Report():
                sys.stderr.write(f"broadsheet: {effect.text}\n")
                return None
        try:
            with nullcontext() if effect.timeout is None else within(in_seconds(effect.timeout)):
                return self._answer(effect)
        except (BroadsheetError, OSError) as error:
            if is_passing(error):
                return CallLost(effect.call, error)
            return CallRefused(effect.call, error)

    def _answer(self, call: Call) -> DriverEvent:
        match call:
            case Create():
                self.journals.create(call.journal, if_absent=True)
                return Created(call.call)
            case Append():
                done = self.journals.append(
                    call.journal,
                    call.content,
                    offset=call.offset,
                    check=call.check,
                    union=call.union,
                    create_revision=call.create_revision,
                )
                return Appended(call.call, done.end)
            case ReadRegisters():
                return RegistersRead(call.call, self.journals.registers(call.journal).values)
            case _:
                return ContentRead(call.call, self._content(call.offset, call.end))

    def _content(self, offset: int, end: int | None) -> bytes:
        return b"".join(chunk.data for chunk in self.journals.read(self.name, offset, end=end))


def _now() -> Instant:
    return Instant(time.monotonic_ns())
