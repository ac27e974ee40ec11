"""Links: delay and lose what one name sends to another. Links are directed, for datagrams and byte streams.

Delays are nanoseconds: a minimum plus an exponential part, and one in a hundred is twenty times as long.
Each link draws from its own counter-based stream. Partitions that overlap are counted, so that healing one
does not heal another.
"""

from collections.abc import Callable, Iterator, Sequence
from math import log
from typing import Final

import msgspec

from simulator.entropy import Draws

_EXPONENTIAL: Final = tuple(int(-1024 * log(1 - (i + 0.5) / 1024)) for i in range(1024))
"""Quantiles of an exponential distribution with mean 1024."""
CALM_DELAY_NS: Final = 5_000_000


class Profile(msgspec.Struct, frozen=True):
    """How a healthy network of this run behaves; its numbers come from the plan's knobs."""

    delay_min_ns: int = 200_000
    delay_mean_ns: int = 1_000_000
    drop_ppm: int = 0
    duplicate_ppm: int = 0
    tail: int = 20
    """How many times as long one delay in a hundred is."""
    straggle_ppm: int = 0
    """How many datagrams in a million come again much later."""
    echo_ppm: int = 0
    """How many datagrams in a million bring back an old one of the other direction."""


class Link:
    """One direction between two names."""

    __slots__ = ("cuts", "draws", "drop_ppm", "duplicate_ppm", "extra_ns", "on_mend", "profile")

    def __init__(self, profile: Profile, draws: Draws) -> None:
        self.profile, self.draws = profile, draws
        self.cuts = 0
        self.on_mend: list[Callable[[], None]] = []
        """Streams that wait for it to be whole again."""
        self.extra_ns = self.drop_ppm = self.duplicate_ppm = 0

    def add(self, field: str, amount: int) -> None:
        """Change one of its troubles by `amount`; streams go on when the last cut is mended."""
        setattr(self, field, getattr(self, field) + amount)
        if field == "cuts" and not self.cuts:
            for wake in self.on_mend:
                wake()

    def delay(self, bits: int) -> int:
        """A delay made of 20 random bits."""
        profile = self.profile
        part = profile.delay_mean_ns * _EXPONENTIAL[bits & 1023] >> 10
        if (bits >> 10) & 1023 < 10:
            part *= profile.tail
        return profile.delay_min_ns + part + self.extra_ns


class Links:
    """All links of a world."""

    def __init__(self, seed: int, profile: Profile) -> None:
        self._seed, self.profile = seed, profile
        self._links: dict[tuple[str, str], Link] = {}

    def calm(self) -> None:
        """No loss, no doubling and short delays from now on: what is left to fail is ours."""
        self.profile = Profile(
            delay_min_ns=self.profile.delay_min_ns,
            delay_mean_ns=min(self.profile.delay_mean_ns, CALM_DELAY_NS),
            tail=1,
        )
        for link in self._links.values():
            link.profile = self.profile

    def link(self, source: str, target: str) -> Link:
        """The link from `source` to `target`."""
        found = self._links.get((source, target))
        if found is None:
            found = self._links[(source, target)] = Link(
                self.profile, Draws(self._seed, source, target, "link")
            )
        return found


def pairs(target: str, everybody: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The directed pairs that a target means: `a,b|c` both ways, `a,b>c` one way; `*` is everybody else."""
    arrow = ">" if ">" in target else "|"
    left, _, right = target.partition(arrow)
    sources = _names(left, everybody)
    targets = [
        name for name in _names(right or "*", everybody) if right not in ("", "*") or name not in sources
    ]
    for a in sources:
        for b in targets:
            if a != b:
                yield a, b
                if arrow == "|":
                    yield b, a


def _names(text: str, everybody: Sequence[str]) -> list[str]:
    return list(everybody) if text in ("", "*") else text.split(",")
