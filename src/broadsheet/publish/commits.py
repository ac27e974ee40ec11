"""Commits: the host of a publisher's sink driver, on the loop of its client.

The machine `sink.core.driver` decides. `CommitJournal` performs its calls, one after the other, and gives
each answer back to it; the class of the same name in `spark.commits` does so from threads without a loop.
Units: seconds in arguments, nanoseconds inside the machine. Source: pipelines.6-11; docs/adr/0201.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from broadsheet.base.machine import Tick
from broadsheet.base.time import SECOND, Duration, Instant, in_seconds
from broadsheet.errors import BroadsheetError, DeadlineExceeded, Unknown, is_passing
from broadsheet.journal.client import TIMEOUT_SECONDS, Journals
from broadsheet.ports import Time
from broadsheet.runtime.checking import checker
from broadsheet.runtime.failpoints import passed
from broadsheet.sink.core.driver import Driver
from broadsheet.sink.core.driver_events import (
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
from broadsheet.sink.core.records import BatchPlan, Fence, SinkRegisters

NOT_COMMITTED: Final = "is not committed"


class CommitJournal:
    """One publisher's commit journal, under one fence."""

    def __init__(
        self,
        journals: Journals,
        name: str,
        fence: Fence,
        *,
        patience: float,
        time: Time,
        report: Callable[[str], None],
    ) -> None:
        """Decide in journal `name`.

        Args:
            patience: how many seconds a call that does no harm is repeated while its answers are lost.
            report: is told what an operator should know, such as messages that went with a deleted journal.
        """
        self.name, self.fence = name, fence
        self._journals, self._time, self._report = journals, time, report
        self._patience = Duration(round(patience * SECOND))
        self._driver = Driver(name, fence, patience=self._patience)

    @property
    def outcome(self) -> str:
        """Whether the last transaction is committed, in words that follow its number in an error."""
        if self._driver.is_decided:
            return "is committed"
        if self._driver.is_in_doubt or self._driver.asked is not None:  # That call was cancelled.
            return "may be committed or not"
        return NOT_COMMITTED

    @property
    def is_retired(self) -> bool:
        """Whether the last transaction's producer must not be used any more (pipelines.8)."""
        return self._driver.is_retired

    async def begin(self) -> BatchPlan:
        """Become the author, acknowledge what the last author committed, and tell what that was.

        Raises:
            Fenced: a newer author came. ConfigError: the journal holds data that are no commits.
        """
        await self._performed(StartAsked())
        found = await self._performed(PlanAsked())
        assert isinstance(found, BatchPlan), "PLAN returns a plan"
        return found

    async def commit(self, asked: CommitAsked) -> None:
        """Record a transaction, which commits it, then append its acknowledgements.

        Raises:
            Refused: it is not committed; `Fenced`: a newer author came. Unknown: it is committed, or may be;
                the next author finds out.
        """
        try:
            await self._performed(asked)
        except (BroadsheetError, OSError) as error:
            if isinstance(error, Unknown) or self.outcome == NOT_COMMITTED:
                raise
            # The call that ended it was refused, and not the transaction (C2).
            raise Unknown(f"transaction {asked.batch} {self.outcome}: {error}") from error

    async def _performed(self, asked: Asked) -> SinkRegisters | BatchPlan | None:
        driver = self._driver
        check = checker(driver.check)
        event: DriverEvent = asked
        while True:
            effects = driver.step(event, self._now())
            if check is not None:
                check()
            answer: DriverEvent | None = None
            for effect in effects:
                if isinstance(effect, Finish):
                    return effect.result
                if isinstance(effect, Fail):
                    raise effect.error
                answer = await self._perform(effect)
            if answer is None:
                resume_at = driver.deadline()
                assert resume_at is not None, "a driver that asks for no call pauses until a time"
                await asyncio.sleep(in_seconds(Duration(max(0, resume_at - self._now()))))
                answer = Tick()
            event = answer

    def _now(self) -> Instant:
        return self._time.now()

    async def _perform(self, effect: Call | Pass | Report) -> DriverEvent | None:
        """Perform `effect`, and return the answer if the effect is a call."""
        match effect:
            case Pass():
                passed(effect.label)
                return None
            case Report():
                self._report(effect.text)
                return None
        within = TIMEOUT_SECONDS if effect.timeout is None else in_seconds(effect.timeout)
        try:
            async with asyncio.timeout(within):
                return await self._answer(effect)
        except TimeoutError:
            error = DeadlineExceeded(f"commit journal {self.name}: no answer in {within:g} s")
            return CallLost(effect.call, error)
        except (BroadsheetError, OSError) as error:
            if is_passing(error):
                return CallLost(effect.call, error)
            return CallRefused(effect.call, error)

    async def _answer(self, call: Call) -> DriverEvent:
        match call:
            case Create():
                await self._journals.create(call.journal, if_absent=True)
                return Created(call.call)
            case Append():
                done = await self._journals.append(
                    call.journal,
                    call.content,
                    offset=call.offset,
                    check=call.check,
                    union=call.union,
                    create_revision=call.create_revision,
                )
                return Appended(call.call, done.end)
            case ReadRegisters():
                found = await self._journals.registers(call.journal)
                return RegistersRead(call.call, found.values)
            case _:
                chunks = self._journals.read(self.name, call.offset, end=call.end)
                return ContentRead(call.call, b"".join([chunk.data async for chunk in chunks]))
