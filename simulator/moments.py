"""Moments: named points in the work of a node, at which a fault can strike.

A moment is passed when the node is about to go on from it:

| name | the node |
|---|---|
| `step.EVENT` | stepped a machine with EVENT; none of the effects is performed yet |
| `effect.EFFECT` | is about to perform EFFECT (tier 1) |
| `mark.MARK` | came by `hit("MARK")` |
| `label.LABEL` | came by `passed("LABEL")` |
| `disk.OPERATION` | begins OPERATION of its disk (tier 2) |

A name that ends with `*` means all moments that begin with it. A strike that ends the node's life also ends
the running call, so nothing after the moment happens. `fault_injector.py` arms moments and performs faults.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec


class Gone(BaseException):
    """The process that called is dead: it must not act. Not an `Exception`, so that nobody catches it."""


class _Trap(msgspec.Struct):
    """One fault that waits for a moment of one node."""

    moment: str
    left: int
    strike: Callable[[], None]

    def is_for(self, moment: str) -> bool:
        """Whether `moment` is the one."""
        if self.moment.endswith("*"):
            return moment.startswith(self.moment[:-1])
        return moment == self.moment


class Living(Protocol):
    """One life of one node."""

    @property
    def node(self) -> str:
        """Whose."""
        ...

    @property
    def is_dead(self) -> bool:
        """Whether it has ended."""
        ...


class Scene(Protocol):
    """Where moments are passed."""

    @property
    def current(self) -> Living | None:
        """Whose call runs now."""
        ...


class Moments:
    """Who waits for which moment of which node."""

    def __init__(self, scene: Scene) -> None:
        self.planned: dict[str, None] = {}
        """The moments that the plan names; what is costly to watch is watched for these only."""
        self.is_armed = False
        """Asked before `reach`, which costs more."""
        self._scene = scene
        self._traps: dict[str, list[_Trap]] = {}

    def arm(self, node: str, moment: str, *, passage: int, strike: Callable[[], None]) -> None:
        """Call `strike` when `node` passes `moment` for the `passage`-th time from now on."""
        self._traps.setdefault(node, []).append(_Trap(moment, passage, strike))
        self.is_armed = True

    def clear(self) -> None:
        """Nobody waits any more."""
        self._traps.clear()
        self.is_armed = False

    def reach(self, moment: str) -> None:
        """Whoever's call runs now passes `moment`.

        Raises:
            Gone: what struck there ended its life.
        """
        life = self._scene.current
        traps = None if life is None else self._traps.get(life.node)
        if life is None or not traps:
            return
        for trap in list(traps):
            if not trap.is_for(moment):
                continue
            trap.left -= 1
            if trap.left == 0:
                traps.remove(trap)
                self.is_armed = any(self._traps.values())
                trap.strike()
        if life.is_dead:
            raise Gone(f"{life!r} at {moment}")
