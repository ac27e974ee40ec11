"""Append admission: one submitted append, the limits that it meets, and what becomes of it at some head.

Lengths are bytes. Pure: the order of the checks stands here once, and nowhere else.
Source: journals.12, 15, 24.
"""

import msgspec

from broadsheet.base.time import SECOND, Duration
from broadsheet.base.types import ByteOffset, Token
from broadsheet.errors import Status
from broadsheet.journal.core.registers import Condition, RegisterState, changed, is_met, is_within_limits


class Limits(msgspec.Struct, frozen=True):
    """What one journal may have on its way."""

    pending_bytes_max: int = 64 << 20
    """Bytes submitted and not yet answered."""
    pending_count_max: int = 65_536
    """Runs and requests submitted and not yet answered."""
    append_bytes_max: int = 256 << 20
    """Length of one streaming append."""
    flow_bytes_per_second_min: int = 64 << 10
    """A streaming client that is slower than this, after `flow_stall`, is refused."""
    flow_stall: Duration = Duration(10 * SECOND)
    """How long a streaming client may send nothing. It holds nobody, but it takes space."""

    def __post_init__(self) -> None:
        """Refuse what would admit nothing."""
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


class Entry:
    """One submitted run or request, in the order of evaluation."""

    __slots__ = (
        "begin",
        "condition",
        "count",
        "end",
        "is_whole",
        "length",
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
        self.registers: RegisterState | None = None  # Those it sets, where it changes them.
        self.settles = b""  # The attempt that is asked about.
        self.is_whole = stream is None  # A stream's length is not known before.

    @property
    def pending_bytes(self) -> int:
        """What it holds in memory: a stream is staged in a file."""
        return self.length if self.stream is None else 0

    @property
    def attempt(self) -> bytes:
        """Whose it is; empty where nobody will ask."""
        return self.condition.attempt if self.condition is not None else b""


def verdict(entry: Entry, head: ByteOffset, registers: RegisterState | None, *, is_behind: bool) -> Status:
    """What becomes of `entry` where the head is `head`, with these registers behind it."""
    has_content = bool(entry.length) or not entry.is_whole
    if is_behind and has_content:
        return Status.INDEX_HAS_GREATER_OFFSET
    condition = entry.condition
    if condition is None:
        return Status.OK
    if condition.check or condition.may_change_registers:
        if registers is None:
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
