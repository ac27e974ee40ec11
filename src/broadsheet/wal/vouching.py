"""Vouching: when a log falls idle, an empty batch is written that vouches for the last batch with records.

    VOUCHED --a batch with records is durable--> ALONE --the log rested for `vouch_delay`--> VOUCHED

Damage in a batch that a later one vouches for is corruption. Damage in the last batch may also be a write
that a crash cut short, and recovery cannot tell which. So the last batch should not stay without a voucher
for longer than the log is busy and a few milliseconds more. There is one timer, not one for each batch, so
that a busy log pays nothing. This module does not write: `vouch` does. Source: log.12; ADR 0110.
"""

import asyncio
from collections.abc import Callable

from broadsheet.base.time import Duration, in_seconds


class VouchTimer:
    """The timer of one log that vouches for its last batch."""

    def __init__(self, delay: Duration, *, is_idle: Callable[[], bool], vouch: Callable[[], None]) -> None:
        """Begin a log's timer in VOUCHED.

        Args:
            delay: how long a log must be idle; it vouches within twice that time.
            is_idle: whether the log is idle.
            vouch: writes the empty batch.
        """
        self._delay, self._is_idle, self._vouch = in_seconds(delay), is_idle, vouch
        self.is_wanted = False
        """Whether the last durable batch has records, and so needs a later batch to vouch for them."""
        self._is_fresh = False
        """Whether a batch became durable since the timer was armed."""
        self._timer: asyncio.TimerHandle | None = None

    def written(self, *, has_records: bool) -> None:
        """Note that a batch is durable: it vouches for all batches before it."""
        self.is_wanted, self._is_fresh = has_records, True

    def rested(self) -> None:
        """Note that the log has fallen idle."""
        if self.is_wanted and self._timer is None:
            self._arm()

    def cancel(self) -> None:
        """Stop the timer: the log is closed, or dead."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._is_fresh = False
        self._timer = asyncio.get_running_loop().call_later(self._delay, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if not self.is_wanted or not self._is_idle():
            return  # A busy log calls `rested` when it falls idle again.
        if self._is_fresh:
            self._arm()
        else:
            self._vouch()
