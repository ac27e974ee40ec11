"""Production entropy: one generator per purpose, each seeded by the operating system (code.8).

A forked child gets new seeds. Otherwise two Spark workers, forked from one daemon, would draw the same
producer ids.
"""

import os
import random
import weakref
from typing import Final

SEED_BYTES: Final = 32


class Entropy:
    """Maker of generators; `Ports.random` in production."""

    def __init__(self) -> None:
        self._made: weakref.WeakSet[random.Random] = weakref.WeakSet()
        made = self._made  # Not `self`: generators may outlive their maker.
        os.register_at_fork(after_in_child=lambda: _reseed(made))

    def __call__(self, purpose: str) -> random.Random:
        """A new generator. `purpose` matters in simulation only: here no two are alike anyway."""
        assert purpose, "name the purpose: the simulator derives the stream from it"
        made = random.Random(os.urandom(SEED_BYTES))
        self._made.add(made)
        return made


def _reseed(made: "weakref.WeakSet[random.Random]") -> None:
    for generator in made:
        generator.seed(os.urandom(SEED_BYTES))
