"""Vouching: a batch without records, written once a log has fallen idle, that vouches for its last one.

    VOUCHED --a batch with records is durable--> ALONE --the log rested for `vouch_delay`--> VOUCHED

Damage in a batch that a later one vouches for is corruption; in the last one it may be a write that was
cut short, and nobody can tell. So a batch stays alone only while the log is busy and a few milliseconds
longer. One timer is armed at a time, and not per batch, so that a busy log pays nothing. It does not
write: `vouch` does. Source: log.12; ADR 0110.
"""

import asyncio
from collections.abc import Callable

from broadsheet.base.time import Duration, in_seconds


class Witness:
    """One log's."""

    def __init__(self, delay: Duration, *, is_idle: Callable[[], bool], vouch: Callable[[], None]) -> None:
        """Begin vouched for.

        Args:
            delay: how long a log must rest; it is vouched for within twice that.
            is_idle: whether the log rests.
            vouch: writes the witness.
        """
        self._delay, self._is_idle, self._vouch = in_seconds(delay), is_idle, vouch
        self.is_wanted = False
        """Whether the last durable batch has records, so that nothing vouches for them yet."""
        self._is_fresh = False
        """A batch became durable since the timer was armed."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_armed(self) -> bool:
        """Whether it waits for the log to rest long enough."""
        return self._timer is not None

    def written(self, *, has_records: bool) -> None:
        """A batch is durable; it vouches for all before it."""
        self.is_wanted, self._is_fresh = has_records, True

    def rested(self) -> None:
        """The log has fallen idle."""
        if self.is_wanted and self._timer is None:
            self._arm()

    def cancel(self) -> None:
        """The log is closed, or dead."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._is_fresh = False
        self._timer = asyncio.get_running_loop().call_later(self._delay, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if not self.is_wanted or not self._is_idle():
            return  # `rested` comes again.
        if self._is_fresh:
            self._arm()
        else:
            self._vouch()
