"""Tail: which streaming append owns the end of the journal, and whether its client keeps up.

A client earns time by sending: each byte pays for itself at the minimum rate, at most `flow_stall` ahead, so
that a slow one holds
the tail no longer than that beyond its last byte. IDLE --grant--> OWNED --staged or failed--> IDLE; an abort
stops
the clock and waits for the host's word.
Source: journals.17; reference/gazette.md 1.8 "Flow control".
"""

from broadsheet.base.time import SECOND, Instant, after
from broadsheet.journal.core.admission import Entry, Limits


class Tail:
    """The owner of the tail, if there is one."""

    def __init__(self, limits: Limits) -> None:
        self.owner: Entry | None = None
        self.due: Instant | None = None
        """When a client that sends nothing more is aborted; None where there is none, or it was."""
        self._limits = limits
        self._staged = 0

    @property
    def is_free(self) -> bool:
        """Whether nobody owns it."""
        return self.owner is None

    def is_owned_by(self, stream: int) -> bool:
        """Whether it is that stream's."""
        return self.owner is not None and self.owner.stream == stream

    def grant(self, entry: Entry, now: Instant) -> None:
        """Give it to `entry`."""
        assert self.owner is None, "one owner at a time"
        self.owner, self._staged = entry, 0
        self.due = after(now, self._limits.flow_stall)

    def staged(self, length: int, now: Instant) -> bool:
        """The owner sent `length` more bytes; False where that is too much."""
        if self.due is None:
            return True  # It was aborted meanwhile.
        self._staged += length
        earned = length * SECOND // self._limits.flow_bytes_per_second_min
        self.due = Instant(min(self.due + earned, now + self._limits.flow_stall))
        return self._staged <= self._limits.append_bytes_max

    def stop_clock(self) -> int:
        """The owner is being aborted; returns its stream."""
        assert self.owner is not None
        assert self.owner.stream is not None
        self.due = None
        return self.owner.stream

    def release(self) -> Entry:
        """The owner is done with it; returns it."""
        owner, self.owner, self.due = self.owner, None, None
        assert owner is not None, "nobody owns the tail"
        return owner
