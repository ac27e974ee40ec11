"""Events and effects of the pipeline.

Runs are opaque: the data path below knows where each append of a run begins and how to answer it. Offsets are
bytes.
"""

from enum import Enum

from broadsheet.base.machine import Effect, Event
from broadsheet.base.types import ByteOffset, Token
from broadsheet.errors import Status
from broadsheet.journal.core.registers import Condition, RegisterState


class State(Enum):
    """Whether a pipeline takes appends."""

    OPEN = "open"
    BEHIND = "behind-index"
    LOST = "lost"
    CLOSED = "closed"


class Submitted(Event, frozen=True, gc=True):
    """A run of `count` appends with `length` bytes in all came; one with a condition is a run of one."""

    run: object
    count: int
    length: int
    """0: a barrier."""
    condition: Condition | None = None


class AttemptAsked(Event, frozen=True, gc=True):
    """A client that lost an answer asks what became of its append.

    A barrier: behind it nothing of that attempt takes effect any more.
    """

    run: object
    attempt: bytes


class Persisted(Event, frozen=True):
    """Everything through `token` is durable."""

    token: Token


class PersistRefused(Event, frozen=True):
    """There was no room for `token`, and nothing of it or of a later one was written."""

    token: Token
    status: Status = Status.STORE_UNHEALTHY


class RegistersPut(Event, frozen=True):
    """The registers key holds `version`; or (not `is_known`) it is unknown whether it does."""

    version: int
    is_known: bool


class StreamOpened(Event, frozen=True, gc=True):
    """A client wants to append content that it streams."""

    stream: int
    run: object
    condition: Condition | None = None


class ChunkStaged(Event, frozen=True):
    """`length` more bytes of the stream are staged beside the tail."""

    stream: int
    length: int


class StreamEnded(Event, frozen=True):
    """The client has sent all of the stream's content: `length` bytes are staged."""

    stream: int
    length: int


class StreamPlaced(Event, frozen=True):
    """The whole content stands at the tail of the spool, synced."""

    stream: int


class StreamFailed(Event, frozen=True):
    """Nothing of the stream's content will come, and the spool has nothing of it."""

    stream: int
    status: Status


class RollAsked(Event, frozen=True):
    """The open fragment is old: close it where it has anything (`flush_interval`)."""


class Fullness(Event, frozen=True):
    """The disk passed its watermark, one way or the other."""

    is_full: bool


class FellBehind(Event, frozen=True):
    """It turned out that acknowledged bytes are missing here: take no more content (journals.15)."""


class EpochLost(Event, frozen=True):
    """The epoch key is not the one that this pipeline wrote."""


class Closed(Event, frozen=True):
    """No more appends; `status` says why."""

    status: Status


Input = (
    Submitted
    | AttemptAsked
    | Persisted
    | PersistRefused
    | RegistersPut
    | StreamOpened
    | ChunkStaged
    | StreamEnded
    | StreamPlaced
    | StreamFailed
    | RollAsked
    | Fullness
    | FellBehind
    | EpochLost
    | Closed
)


class Persist(Effect, frozen=True, gc=True):
    """Write the content of `run` at `[begin, end)` and its proposal to the log, then report `Persisted`.

    The open fragment begins at `fragment_begin`: where that is not the spool's, close the spool first.
    """

    token: Token
    run: object
    begin: ByteOffset
    end: ByteOffset
    fragment_begin: ByteOffset
    registers: RegisterState | None
    """Those that the append sets, where it changes them."""
    stream: int | None
    """The content stands in the spool already, synced."""
    attempt: bytes = b""
    """Whose it is, where a client may ask."""


class PutRegisters(Effect, frozen=True):
    """Put the registers key, under the compare that the epoch key is unchanged."""

    registers: RegisterState


class Reply(Effect, frozen=True, gc=True):
    """Answer `run`: `[begin, end)` is what all of it got; for a refusal, the head that it saw."""

    run: object
    status: Status
    begin: ByteOffset
    end: ByteOffset


class Advance(Effect, frozen=True):
    """Everything below `end` is committed: wake the readers."""

    end: ByteOffset


class Stage(Effect, frozen=True):
    """Stage the stream's content beside the tail. Ends as `StreamEnded` or `StreamFailed`."""

    stream: int


class Grant(Effect, frozen=True):
    """Put the staged content at the tail, from `begin` on. Ends as `StreamPlaced` or `StreamFailed`."""

    stream: int
    begin: ByteOffset
    fragment_begin: ByteOffset


class Abort(Effect, frozen=True):
    """Drop what is staged of the stream, take it back from the tail, and report it as failed."""

    stream: int
    status: Status


class Rollback(Effect, frozen=True):
    """The refused persists are taken back: the log is taken up again at `end`."""

    end: ByteOffset
    fragment_begin: ByteOffset


class Roll(Effect, frozen=True):
    """The next fragment begins at `fragment_begin`, the head: close the one before, if that can be."""

    fragment_begin: ByteOffset


Output = Roll | Persist | PutRegisters | Reply | Advance | Stage | Grant | Abort | Rollback
