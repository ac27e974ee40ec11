"""Proposer timing: how long a proposer waits before it repeats a round, and pauses after it has lost one.

Nanoseconds. Follows the longest round trip seen of late; a shorter one counts by an eighth. A round that was
given up doubles it, so it outgrows any link. Not a machine: a noun of `core.proposer`. It knows no ballots.
Source: control.3; docs/adr/0161.
"""

from broadsheet.base.time import Duration, Instant
from broadsheet.control.core.settings import ProposerConfig
from broadsheet.ports import Random

DOUBLINGS_MAX = 6
"""How often a wait doubles."""


class Patience:
    """What a proposer has learnt of its links."""

    def __init__(self, config: ProposerConfig, random: Random) -> None:
        self._config, self._random = config, random
        self.round_trip = 0
        self._asked_at = Instant(0)
        self._resends = 0
        self._given_up = 0
        self._losses = 0

    def asked(self, now: Instant) -> None:
        """A round begins."""
        self._asked_at, self._resends = now, 0

    def repeated(self) -> None:
        """The round is asked again of who is silent."""
        self._resends += 1

    def heard(self, now: Instant) -> None:
        """The round was decided."""
        took = now - self._asked_at
        self.round_trip = max(took, (7 * self.round_trip + took) // 8)
        self._given_up = 0

    def gave_up(self) -> None:
        """Somebody refused, and no majority answered in time: with no more patience none ever might."""
        self._given_up += 1

    def won(self) -> None:
        """A value was chosen: pauses are short again."""
        self._losses = 0

    def wait(self) -> Duration:
        """How long until a round is repeated to who is silent: twice in an operation at least."""
        seen = max(self._config.resend_after, min(2 * self.round_trip, self._longest()))
        wait = seen << min(self._given_up, DOUBLINGS_MAX) << min(self._resends, DOUBLINGS_MAX)
        return Duration(min(wait, max(2 * self._longest(), self._config.resend_after)))

    def pause(self) -> Duration:
        """A random while after a loss, so that one of the rivals wins; longer with each loss."""
        seen = min(self.round_trip, self._longest())
        first = max(self._config.backoff_min, seen)  # A winner needs two round trips alone.
        longest = max(self._config.backoff_max, min(4 * seen, 2 * self._longest()))
        pause = min(longest, first << min(self._losses, 16))
        self._losses += 1
        return Duration(self._random.randrange(1, pause + 1))

    def _longest(self) -> int:
        """What an operation can spare for one wait, whatever a peer that was paused has taught us."""
        return self._config.operation_timeout // 4
