"""Checking: whether machines and other guarded state assert their invariants after each step.

Checks are on in simulations and in every test process, and off in production. An object asks once, when it is
made. `BROADSHEET_CHECK=1` in the environment turns them on for a process, so that tests can check the nodes
that they start. Hosts take no argument for it, so no caller can forget it.

    NEVER: production. SHARED: a real process under test; an expensive check is made less often, so that
    checks take at most a third of the time. ALWAYS: a simulation, where skipping by the real clock would make
    two episodes of one seed differ.
"""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import Enum
from time import perf_counter
from typing import Final

VARIABLE: Final = "BROADSHEET_CHECK"
SHARE: Final = 2
"""A check is not repeated for so many times the time that it took."""


class Level(Enum):
    """How often `check()` is called."""

    NEVER = "never"
    SHARED = "shared"
    ALWAYS = "always"


_level = Level.SHARED if __debug__ and os.environ.get(VARIABLE) == "1" else Level.NEVER


def level() -> Level:
    """How often checks are made by what is constructed now."""
    return _level


@contextmanager
def always() -> Generator[None, None, None]:
    """While this lasts, everything that is constructed is checked at each step (unless under `python -O`)."""
    global _level  # noqa: PLW0603 - one per simulated world, and worlds do not overlap.
    before, _level = _level, Level.ALWAYS if __debug__ else Level.NEVER
    try:
        yield
    finally:
        _level = before


def checker(check: Callable[[], None]) -> Callable[[], None] | None:
    """The function to call after each step in place of `check`; None if checks are off."""
    if _level is Level.NEVER:
        return None
    return check if _level is Level.ALWAYS else _Shared(check)


class _Shared:
    """A check that pauses in proportion to the time that it took."""

    __slots__ = ("_check", "_next")

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._next = 0.0

    def __call__(self) -> None:
        began = perf_counter()
        if began < self._next:
            return
        self._check()
        ended = perf_counter()
        self._next = ended + SHARE * (ended - began)
