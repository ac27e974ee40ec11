"""Driver events: the events and effects of the sink's driver. Events are past tense, effects imperative.

The driver numbers its calls from 1. The answer, refusal or loss of a call carries the call's number.
"""

from collections.abc import Mapping, Sequence

from broadsheet.base.machine import Effect, Event, Tick
from broadsheet.base.time import Duration
from broadsheet.base.types import Revision
from broadsheet.message.stamper import Intent
from broadsheet.sink.core.records import BatchPlan, SinkRegisters


class StartAsked(Event, frozen=True):
    """START: become the author, then append the acknowledgements of the newest committed batch."""


class PlanAsked(Event, frozen=True):
    """PLAN: say what the tasks of the next batch must know."""


class CommitAsked(Event, frozen=True, gc=True):
    """COMMIT: record `batch` as the newest batch, exactly once, then acknowledge its messages."""

    batch: int
    query: str
    digest: str
    """SHA-256 of what decides over the batch's rows, as its checkpoint's offsets; a replay has the same."""
    intents: Sequence[Intent]
    positions: str = ""
    """Where the batch's input ends, as its caller encodes that. The record keeps it, and PLAN gives it."""
    is_next: bool = True
    """Whether the batch must be the one after the newest; otherwise it may leave a gap."""


class AbortAsked(Event, frozen=True, gc=True):
    """ABORT: a task of the batch failed, or COMMIT did, but may have happened: so nothing is appended."""

    batch: int
    intents: Sequence[Intent]


class Created(Event, frozen=True):
    """The driver's commit journal exists."""

    call: int


class Appended(Event, frozen=True):
    """What the driver appended is durable in the journal, and ends at `end` (exclusive)."""

    call: int
    end: int


class RegistersRead(Event, frozen=True, gc=True):
    """The commit journal's registers, after every append that was acknowledged before the driver's call."""

    call: int
    values: Mapping[str, str]


class ContentRead(Event, frozen=True):
    """All committed bytes of the range that the driver asked for."""

    call: int
    content: bytes


class CallRefused(Event, frozen=True, gc=True):
    """The driver's call had no effect and will have none. The same call would be refused again."""

    call: int
    error: Exception


class CallLost(Event, frozen=True, gc=True):
    """The outcome of the driver's call is unknown, or the journal cannot serve now."""

    call: int
    error: Exception


class Create(Effect, frozen=True):
    """Create the driver's commit journal if it does not exist."""

    journal: str
    call: int = 0
    timeout: Duration | None = None


class Append(Effect, frozen=True, gc=True):
    """Append for the driver, under conditions. An append of empty content tells where the journal ends."""

    journal: str
    content: bytes = b""
    offset: int | None = None
    check: Mapping[str, str | None] | None = None
    union: Mapping[str, str] | None = None
    create_revision: Revision | None = None
    """The create revision that the journal must have; None for any journal of that name."""
    call: int = 0
    timeout: Duration | None = None
    """The longest wait for the answer; None for the client's default."""


class ReadRegisters(Effect, frozen=True):
    """Read the commit journal's registers after the effect of every acknowledged append."""

    journal: str
    call: int = 0
    timeout: Duration | None = None


class ReadContent(Effect, frozen=True):
    """Read all committed bytes of `[offset, end)` of the commit journal."""

    journal: str
    offset: int
    end: int | None = None
    """None: the committed end."""
    call: int = 0
    timeout: Duration | None = None


class Pass(Effect, frozen=True):
    """Pass a failpoint of the driver: a label at which a test may end the process."""

    label: str


class Report(Effect, frozen=True):
    """Write a line of the driver for the operator."""

    text: str


class Finish(Effect, frozen=True, gc=True):
    """The driver's operation has ended with `result`."""

    result: SinkRegisters | BatchPlan | None


class Fail(Effect, frozen=True, gc=True):
    """The driver's operation failed with `error`. If `Unknown` or a lost call, it may have taken effect."""

    error: Exception


Asked = StartAsked | PlanAsked | CommitAsked | AbortAsked
Answer = Created | Appended | RegistersRead | ContentRead | CallRefused | CallLost
Call = Create | Append | ReadRegisters | ReadContent
DriverEvent = Asked | Answer | Tick
DriverEffect = Call | Pass | Report | Finish | Fail
