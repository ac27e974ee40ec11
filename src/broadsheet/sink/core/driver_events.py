"""What a driver is told, and what it wants: events in the past tense, effects in the imperative.

A call is numbered from 1 by the driver; its answer, refusal or loss carries the number. It decides nothing.
"""

from collections.abc import Mapping, Sequence

from broadsheet.base.machine import Effect, Event, Tick
from broadsheet.base.time import Duration
from broadsheet.base.types import Revision
from broadsheet.message.publisher import Intent
from broadsheet.sink.core.records import BatchPlan, Standing


class StartAsked(Event, frozen=True):
    """Become the author, then finish what the last author had committed."""


class PlanAsked(Event, frozen=True):
    """Say what the tasks of the next batch must know."""


class CommitAsked(Event, frozen=True, gc=True):
    """Make `batch` the newest, once, then acknowledge its messages."""

    batch: int
    query: str
    digest: str
    """Of the checkpoint's offsets of this batch: a replay must have read the same."""
    intents: Sequence[Intent]


class AbortAsked(Event, frozen=True, gc=True):
    """A batch has failed: some task, or COMMIT, which may have happened all the same."""

    batch: int
    intents: Sequence[Intent]


class Created(Event, frozen=True):
    """The journal is there."""

    call: int


class Appended(Event, frozen=True):
    """The content stands, and ends at `end`."""

    call: int
    end: int


class RegistersRead(Event, frozen=True, gc=True):
    """The registers, behind every append that was acknowledged before the call."""

    call: int
    values: Mapping[str, str]


class ContentRead(Event, frozen=True):
    """All committed bytes from the asked offset on."""

    call: int
    content: bytes


class CallRefused(Event, frozen=True, gc=True):
    """Nothing happened, and nothing will: the same call would be refused again."""

    call: int
    error: Exception


class CallLost(Event, frozen=True, gc=True):
    """The answer is unknown, or the journal cannot serve now."""

    call: int
    error: Exception


class Create(Effect, frozen=True):
    """Make the journal where it is absent."""

    journal: str
    call: int = 0
    timeout: Duration | None = None


class Append(Effect, frozen=True, gc=True):
    """Append under a condition; empty content tells the end."""

    journal: str
    content: bytes = b""
    offset: int | None = None
    check: Mapping[str, str | None] | None = None
    union: Mapping[str, str] | None = None
    create_revision: Revision | None = None
    """Of the journal that is meant; None: whichever has the name."""
    call: int = 0
    timeout: Duration | None = None
    """How long the answer is waited for at most; None: as the client does."""


class ReadRegisters(Effect, frozen=True):
    """Read the registers, strictly."""

    journal: str
    call: int = 0
    timeout: Duration | None = None


class ReadContent(Effect, frozen=True):
    """Read all committed bytes from `offset` on."""

    journal: str
    offset: int
    call: int = 0
    timeout: Duration | None = None


class Pass(Effect, frozen=True):
    """Come by a label, where a test may end the process."""

    label: str


class Report(Effect, frozen=True):
    """Tell the operator."""

    text: str


class Finish(Effect, frozen=True, gc=True):
    """The operation is done."""

    result: Standing | BatchPlan | None


class Fail(Effect, frozen=True, gc=True):
    """The operation ends by `error`. It may have taken effect where that is `Unknown`, or anything lost."""

    error: Exception


Asked = StartAsked | PlanAsked | CommitAsked | AbortAsked
Answer = Created | Appended | RegistersRead | ContentRead | CallRefused | CallLost
Call = Create | Append | ReadRegisters | ReadContent
DriverEvent = Asked | Answer | Tick
DriverEffect = Call | Pass | Report | Finish | Fail
