"""Backoff: the pauses between repeated attempts.

A pause is twice the one before, up to the longest. With a random stream it is anywhere between nothing and
that ("full jitter"), so that callers that failed together come back apart. It neither waits nor counts time:
whoever waits knows by which clock. Source: M. Brooker, "Exponential Backoff And Jitter", 2015.
"""

from typing import Protocol

from broadsheet.base.time import Duration


class Uniform(Protocol):
    """The source of random numbers for a backoff."""

    def random(self) -> float:
        """A number of `[0, 1)`."""
        ...


class Backoff:
    """Pauses between repeated attempts, in nanoseconds: `pause` is the coming one."""

    __slots__ = ("_ceiling", "_first", "_longest", "_random", "pause")

    def __init__(self, first: Duration, longest: Duration, *, random: Uniform | None = None) -> None:
        assert 0 < first <= longest, f"pauses from {first} up to {longest} ns"
        self._first, self._longest, self._random = first, longest, random
        self.reset()

    def reset(self) -> None:
        """Begin again, because the last attempt succeeded."""
        self._ceiling = self._first
        self.pause = self._drawn()

    def next(self) -> Duration:
        """The coming pause; the bound of the one after it doubles."""
        pause = self.pause
        self._ceiling = Duration(min(2 * self._ceiling, self._longest))
        self.pause = self._drawn()
        return pause

    def _drawn(self) -> Duration:
        return self._ceiling if self._random is None else Duration(int(self._ceiling * self._random.random()))
