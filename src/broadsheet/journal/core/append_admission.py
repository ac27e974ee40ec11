"""Append admission: one submitted append, its limits, and whether it is accepted at a given head.

Lengths are bytes. Pure. `verdict` defines the order in which a condition is checked.
Source: journals.12, 15, 24.
"""

import msgspec

from broadsheet.base.time import SECOND, Duration, Instant
from broadsheet.base.types import ByteOffset, Token
from broadsheet.errors import Status
from broadsheet.journal.core.registers import Condition, RegisterState, changed, is_met, is_within_limits


class Limits(msgspec.Struct, frozen=True):
    """Bounds of the appends of one journal that are not answered yet."""

    pending_bytes_max: int = 64 << 20
    """Bytes submitted and not yet answered."""
    pending_count_max: int = 65_536
    """Runs and requests submitted and not yet answered."""
    append_bytes_max: int = 256 << 20
    """Length of one streaming append."""
    flow_bytes_per_second_min: int = 64 << 10
    """A streaming client that has used up `flow_stall` and is slower than this is refused."""
    flow_stall: Duration = Duration(10 * SECOND)
    """How long a streaming client may send nothing. It delays nobody, but its staged content takes space."""

    def __post_init__(self) -> None:
        """Refuse limits under which no append would be admitted."""
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"journals.limits.{name} must be at least 1, not {getattr(self, name)}")


class PendingAppend:
    """One submitted run or request, in the order of evaluation."""

    __slots__ = (
        "attempt",
        "begin",
        "condition",
        "count",
        "end",
        "is_whole",
        "length",
        "pending_bytes",
        "registers",
        "run",
        "settles",
        "status",
        "stream",
        "token",
    )

    def __init__(
        self, run: object, *, count: int, length: int, condition: Condition | None, stream: int | None = None
    ) -> None:
        self.run, self.count, self.length, self.condition, self.stream = run, count, length, condition, stream
        self.status = Status.OK
        self.begin = self.end = ByteOffset(0)
        self.token = Token(0)  # 0: there is nothing to persist.
        self.registers: RegisterState | None = None  # The new state, if the append changes registers.
        self.settles: tuple[bytes, Instant] | None = (
            None  # An attempt id that a client asked about, and when.
        )
        self.is_whole = stream is None  # The length of a stream is known only at its end.
        self.pending_bytes = length if stream is None else 0
        """Bytes of content in memory: none for a stream, because it is staged in a file."""
        self.attempt = condition.attempt if condition is not None else b""
        """The attempt id of the append; empty if its client will not ask for the outcome."""


def verdict(
    entry: PendingAppend, head: ByteOffset, registers: RegisterState | None, *, is_behind: bool
) -> Status:
    """Whether `entry` is accepted (OK) or why it is refused, at this head and these registers.

    Args:
        registers: the state after every earlier append; None if it is lost (journals.12).
        is_behind: whether a greater offset than `head` is known to exist (journals.15).
    """
    has_content = bool(entry.length) or not entry.is_whole
    if is_behind and has_content:
        # Acknowledged bytes are missing above this head: content would get their offsets (journals.15).
        return Status.INDEX_HAS_GREATER_OFFSET
    condition = entry.condition
    if condition is None:
        return Status.OK
    if condition.check or condition.may_change_registers:
        if registers is None:  # Lost is not empty: a check for an absent register would pass wrongly.
            return Status.REGISTERS_UNKNOWN
        if not is_met(condition, registers):
            return Status.REGISTER_MISMATCH
    if condition.offset is not None and condition.offset != head:
        return Status.WRONG_APPEND_OFFSET
    if registers is not None and condition.may_change_registers:
        if not has_content:
            return Status.INVALID_ARGUMENT  # Registers change with content only.
        after = changed(condition, registers, head)
        if after is not None and not is_within_limits(after):
            return Status.TOO_LARGE
    return Status.OK
