"""Pipeline events: what the pipeline is told, and the effects that it asks for.

A run is opaque to the pipeline: only the data path knows where each append of a run begins and how to answer
it. Offsets are bytes.
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
    """A run of `count` appends with `length` bytes in all arrived; with a condition it is one append."""

    run: object
    count: int
    length: int
    """0: a barrier, an append without content that only waits for all earlier ones."""
    condition: Condition | None = None


class AttemptAsked(Event, frozen=True, gc=True):
    """A client that lost an answer asks for the outcome of its append.

    The question is a barrier: after it, an append with that attempt id that has not taken effect never will.
    """

    run: object
    attempt: bytes


class Persisted(Event, frozen=True):
    """Every `Persist` of the pipeline up to and including `token` is durable."""

    token: Token


class PersistRefused(Event, frozen=True):
    """The pipeline's `Persist` of `token` had no room: nothing of it, or of a later one, was written."""

    token: Token
    status: Status = Status.STORE_UNHEALTHY


class RegistersPut(Event, frozen=True):
    """The journal's registers key holds `version`; if not `is_known`, the outcome of the put is unknown."""

    version: int
    is_known: bool


class StreamOpened(Event, frozen=True, gc=True):
    """A client wants to append to the journal content that it streams."""

    stream: int
    run: object
    condition: Condition | None = None


class ChunkStaged(Event, frozen=True):
    """`length` more bytes of a streaming append are staged beside the journal's tail."""

    stream: int
    length: int


class StreamEnded(Event, frozen=True):
    """The client has sent all of a streaming append's content: `length` bytes are staged."""

    stream: int
    length: int


class StreamPlaced(Event, frozen=True):
    """The whole content of a streaming append is at the tail of the spool, synced."""

    stream: int


class StreamFailed(Event, frozen=True):
    """A streaming append ended without its content, and the spool holds nothing of it."""

    stream: int
    status: Status


class RollAsked(Event, frozen=True):
    """The journal's open fragment is old: close it if it has content (`flush_interval`)."""


class LengthChanged(Event, frozen=True):
    """The spec says another length of the journal's fragments, which counts from the next append on."""

    length: int


class Fullness(Event, frozen=True):
    """The disk became fuller than the journals' watermark, or free again."""

    is_full: bool


class FellBehind(Event, frozen=True):
    """Acknowledged bytes turned out to be missing here: the journal takes no more content (journals.15)."""


class EpochLost(Event, frozen=True):
    """The journal's epoch key is no longer the one that this pipeline wrote."""


class Closed(Event, frozen=True):
    """The pipeline takes no more appends; `status` says why."""

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
    | LengthChanged
    | Fullness
    | FellBehind
    | EpochLost
    | Closed
)


class Persist(Effect, frozen=True, gc=True):
    """Write the content of `run` at `[begin, end)` and its proposal to the log, then report `Persisted`.

    The open fragment begins at `fragment_begin`: if the spool begins elsewhere, close it first.
    """

    token: Token
    run: object
    begin: ByteOffset
    end: ByteOffset
    fragment_begin: ByteOffset
    registers: RegisterState | None
    """The new state, if the append changes registers."""
    stream: int | None
    """The stream of a streaming append: its content is in the spool already, synced. None for others."""
    attempt: bytes = b""
    """The attempt id, if the client may ask for the outcome."""


class PutRegisters(Effect, frozen=True):
    """Put the registers key in a transaction that compares the journal's epoch key: it must be unchanged."""

    registers: RegisterState


class Reply(Effect, frozen=True, gc=True):
    """Answer `run`: `[begin, end)` is the span of the whole run; for a refusal, the head that it met."""

    run: object
    status: Status
    begin: ByteOffset
    end: ByteOffset


class Advance(Effect, frozen=True):
    """Everything of the journal below `end` is committed: wake the readers."""

    end: ByteOffset


class Stage(Effect, frozen=True):
    """Stage a streaming append's content beside the tail. Ends as `StreamEnded` or `StreamFailed`."""

    stream: int


class Grant(Effect, frozen=True):
    """Copy a streamed append to the tail, from `begin` on. Ends as `StreamPlaced` or `StreamFailed`."""

    stream: int
    begin: ByteOffset
    fragment_begin: ByteOffset


class Abort(Effect, frozen=True):
    """Drop a streaming append's staged content, remove it from the tail, and report `StreamFailed`."""

    stream: int
    status: Status


class Rollback(Effect, frozen=True):
    """The refused `Persist`s of the pipeline are undone: the next one begins at `end`."""

    end: ByteOffset
    fragment_begin: ByteOffset


class Roll(Effect, frozen=True):
    """A journal's next fragment begins at `fragment_begin`, the head: close the open one, if possible now."""

    fragment_begin: ByteOffset


Output = Roll | Persist | PutRegisters | Reply | Advance | Stage | Grant | Abort | Rollback
