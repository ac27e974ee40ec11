"""Errors: every error that crosses a door, with the state that it leaves behind (code.16).

A class exists only where a caller can sensibly act on it. Each concrete class has one `Status` on the wire,
and each status one class. Inside a core a refusal is a `Status` in a reply; the client's edge raises.
"""

from enum import Enum, IntEnum
from typing import ClassVar


class Status(IntEnum):
    """Outcome of a request on the native wire. Numbers are never reused."""

    OK = 0
    LOCAL_PROTOCOL = 1
    REMOTE_PROTOCOL = 2
    UNKNOWN = 3
    CORRUPT = 4
    CONFIG = 5
    UNAUTHENTICATED = 6
    NOT_ALLOWED = 7
    NOT_FOUND = 8
    ALREADY_EXISTS = 9
    UNEXPECTED_VERSION = 10
    REGISTER_MISMATCH = 11
    WRONG_APPEND_OFFSET = 12
    INDEX_HAS_GREATER_OFFSET = 13
    OFFSET_NOT_YET_AVAILABLE = 14
    TRIMMED = 15
    NOT_LEADER = 16
    WRONG_ROUTE = 17
    INSUFFICIENT_REPLICAS = 18
    THROTTLED = 19
    SHUTTING_DOWN = 20
    STORE_UNHEALTHY = 21
    REGISTERS_UNKNOWN = 22
    INVALID_ARGUMENT = 23
    DEADLINE_EXCEEDED = 24
    CANCELLED = 25
    UNSUPPORTED = 26
    TOO_LARGE = 27
    SPAN_FORGOTTEN = 28
    FENCED = 29
    UNREACHABLE = 30
    TOO_SLOW = 31


class Retry(Enum):
    """What a caller may do after a refusal."""

    NEVER = "never"
    """The same request will be refused again: the caller must decide."""
    LATER = "later"
    """The same request may succeed after a while."""
    ELSEWHERE = "elsewhere"
    """The same request may succeed at another node; `hint` names it, if it is known."""


class BroadsheetError(Exception):
    """Every error that Broadsheet raises on purpose."""

    status: ClassVar[Status]


class ProtocolError(BroadsheetError):
    """One side broke the rules of a protocol."""


class LocalProtocolError(ProtocolError):
    """Our caller broke the rules: a bug, never retried. Nothing changed."""

    status = Status.LOCAL_PROTOCOL


class RemoteProtocolError(ProtocolError):
    """The peer broke the rules: its stream is dropped and counted. Nothing changed."""

    status = Status.REMOTE_PROTOCOL


class Refused(BroadsheetError):  # noqa: N818 - the field's word, and an expected outcome.
    """The request was understood and not executed. The state is certainly unchanged."""

    retry: ClassVar[Retry] = Retry.NEVER

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Unauthenticated(Refused):
    """The token is missing, expired or forged. Get another token."""

    status = Status.UNAUTHENTICATED


class NotAllowed(Refused):
    """The token lacks the capability, or the name is outside its prefix."""

    status = Status.NOT_ALLOWED


class NotFound(Refused):
    """Nothing has that name."""

    status = Status.NOT_FOUND


class AlreadyExists(Refused):
    """The name is taken already."""

    status = Status.ALREADY_EXISTS


class UnexpectedVersion(Refused):
    """A compare failed: the value has moved on. Read it again and decide."""

    status = Status.UNEXPECTED_VERSION


class RegisterMismatch(Refused):
    """The journal's registers are not as expected. Read them and decide."""

    status = Status.REGISTER_MISMATCH


class RegistersUnknown(Refused):
    """The journal's registers are lost (journals.12). `broadsheet journals accept-loss` begins them anew."""

    status = Status.REGISTERS_UNKNOWN


class WrongAppendOffset(Refused):
    """The journal's head is not at the expected offset. Read from there on and decide."""

    status = Status.WRONG_APPEND_OFFSET


class IndexHasGreaterOffset(Refused):
    """A greater offset is known than can be reached. `broadsheet journals accept-loss` shows the loss."""

    status = Status.INDEX_HAS_GREATER_OFFSET


class OffsetNotYetAvailable(Refused):
    """The offset is at or above the committed end. Read with `block`, or later."""

    status = Status.OFFSET_NOT_YET_AVAILABLE
    retry = Retry.LATER


class Trimmed(Refused):
    """No fragment has the requested data: a trim or a retention removed it, or it was given up."""

    status = Status.TRIMMED


class NotLeader(Refused):
    """Another node leads this now."""

    status = Status.NOT_LEADER
    retry = Retry.ELSEWHERE


class WrongRoute(Refused):
    """The request names a route that has changed."""

    status = Status.WRONG_ROUTE
    retry = Retry.ELSEWHERE


class InsufficientReplicas(Refused):
    """Too few replicas for the promised durability."""

    status = Status.INSUFFICIENT_REPLICAS
    retry = Retry.LATER


class Throttled(Refused):
    """A limit on work in flight was reached."""

    status = Status.THROTTLED
    retry = Retry.LATER


class ShuttingDown(Refused):
    """The node is shutting down."""

    status = Status.SHUTTING_DOWN
    retry = Retry.LATER


class StoreUnhealthy(Refused):
    """The disk or the fragment store cannot take more (journals.20). Free space, then try again."""

    status = Status.STORE_UNHEALTHY
    retry = Retry.LATER


class Unreachable(Refused):
    """No connection to the node could be made, or it was lost before the request was sent.

    Nothing was executed.
    """

    status = Status.UNREACHABLE
    retry = Retry.LATER


class InvalidArgument(Refused):
    """The request is malformed; the message says which field and why."""

    status = Status.INVALID_ARGUMENT


class TooLarge(Refused):
    """The request is above a limit; the message names it."""

    status = Status.TOO_LARGE


class TooSlow(Refused):
    """A streamed append came too slowly. Nothing was appended: collect the bytes first, then append them."""

    status = Status.TOO_SLOW


class Unsupported(Refused):
    """This node, version or provider cannot do that."""

    status = Status.UNSUPPORTED


class Cancelled(Refused):
    """The caller withdrew the request before it took effect."""

    status = Status.CANCELLED


class SpanForgotten(Refused):
    """An acknowledgement came for a span that was already given up (journals.30)."""

    status = Status.SPAN_FORGOTTEN


class Fenced(Refused):
    """A newer owner has taken over; this one must stop."""

    status = Status.FENCED


class Unknown(BroadsheetError):  # noqa: N818 - not a failure.
    """The request may have taken effect. Retry it only if it is idempotent; otherwise read and compare."""

    status = Status.UNKNOWN


class DeadlineExceeded(Unknown):
    """Time ran out before the answer came. The outcome is unknown: this is not a refusal."""

    status = Status.DEADLINE_EXCEEDED


class Corrupt(BroadsheetError):  # noqa: N818 - the field's word.
    """A checksum or a format is wrong: the object is not served before a repair. Nothing was deleted."""

    status = Status.CORRUPT


class ConfigError(BroadsheetError):
    """The configuration, the data directory or the command line is wrong. Nothing was started."""

    status = Status.CONFIG


def _concrete(cls: type[BroadsheetError]) -> list[type[BroadsheetError]]:
    found = [cls] if "status" in cls.__dict__ else []
    return found + [each for sub in cls.__subclasses__() for each in _concrete(sub)]


BY_STATUS: dict[Status, type[BroadsheetError]] = {cls.status: cls for cls in _concrete(BroadsheetError)}
"""The class that the client's edge raises for a status; it has every status except OK."""


def is_passing(error: Exception) -> bool:
    """Whether the cause of `error` passes, so that the same request may succeed a little later.

    Content that was not whole in time (`Cancelled`, `TooSlow`) may arrive in time when it is sent again.
    """
    if isinstance(error, Unknown | OSError | Cancelled | TooSlow):
        return True
    return isinstance(error, Refused) and error.retry is Retry.LATER
