"""Entropy: random streams, one for each purpose, so that unrelated choices stay when a plan is shrunk.

The key of a stream has several parts, such as (seed, node, boot, purpose). `Draws` is counter-based: its n-th
draw depends only on the key and n. It takes a third of a microsecond to make; a `random.Random` takes ten.
It is not for cryptography. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators"
(2014).
"""

from hashlib import blake2b
from random import Random as RandomStream
from typing import Final

MASK: Final = (1 << 64) - 1
GOLDEN: Final = 0x9E3779B97F4A7C15


def key(*parts: str | int) -> int:
    """A 64-bit key of `parts`, the same in every process."""
    return int.from_bytes(blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest(), "big")


def stream(*parts: str | int) -> RandomStream:
    """A whole random stream for the purpose that `parts` name."""
    return RandomStream(key(*parts))


class Draws:
    """A counter-based stream of 64-bit draws (splitmix64)."""

    __slots__ = ("_state",)

    def __init__(self, *parts: str | int) -> None:
        self._state = key(*parts)

    def bits(self) -> int:
        """The next 64 bits."""
        self._state = z = (self._state + GOLDEN) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, end: int) -> int:
        """An integer in [0, end)."""
        return self.bits() % end

    def chance(self, per_million: int) -> bool:
        """Whether something of that probability happens this time."""
        return self.bits() % 1_000_000 < per_million
