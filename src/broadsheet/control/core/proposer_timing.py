"""Proposer timing: how long a proposer waits before it repeats a round, and how long it pauses after a loss.

Times are in nanoseconds. The wait follows the longest recent round trip; a shorter one counts by an eighth. A
round that was given up doubles the wait, so that it becomes long enough for any link. This is a part of
`core.proposer`, not a machine, and it knows no ballots. Source: control.3; docs/adr/0161.
"""

from broadsheet.base.time import Duration, Instant
from broadsheet.control.core.settings import ProposerConfig
from broadsheet.ports import Random

DOUBLINGS_MAX = 6
"""A wait doubles at most so often."""


class ProposerTiming:
    """The waits and pauses of one proposer, by the round trips that it has seen."""

    def __init__(self, config: ProposerConfig, random: Random) -> None:
        self._config, self._random = config, random
        self.round_trip = 0
        self._asked_at = Instant(0)
        self._resends = 0
        self._given_up = 0
        self._losses = 0

    def asked(self, now: Instant) -> None:
        """Note that a round begins."""
        self._asked_at, self._resends = now, 0

    def repeated(self) -> None:
        """Note that the round's request is repeated to silent acceptors."""
        self._resends += 1

    def heard(self, now: Instant) -> None:
        """Note that the round was decided."""
        took = now - self._asked_at
        self.round_trip = max(took, (7 * self.round_trip + took) // 8)
        self._given_up = 0

    def gave_up(self) -> None:
        """Note that a round was given up: the next one must wait longer, or it might never get a majority."""
        self._given_up += 1

    def won(self) -> None:
        """Note that a value was chosen: pauses are short again."""
        self._losses = 0

    def wait(self) -> Duration:
        """How long until a request is repeated to silent acceptors; short enough for two in an operation."""
        seen = max(self._config.resend_after, min(2 * self.round_trip, self._longest()))
        wait = seen << min(self._given_up, DOUBLINGS_MAX) << min(self._resends, DOUBLINGS_MAX)
        return Duration(min(wait, max(2 * self._longest(), self._config.resend_after)))

    def pause(self) -> Duration:
        """A random time after a loss, so that one of the rivals wins; its bound doubles with each loss."""
        seen = min(self.round_trip, self._longest())
        first = max(self._config.backoff_min, seen)  # A winner needs two round trips alone.
        longest = max(self._config.backoff_max, min(4 * seen, 2 * self._longest()))
        pause = min(longest, first << min(self._losses, 16))
        self._losses += 1
        return Duration(self._random.randrange(1, pause + 1))

    def _longest(self) -> int:
        """The longest round trip that counts: one very late answer must not use up an operation's time."""
        return self._config.operation_timeout // 4
