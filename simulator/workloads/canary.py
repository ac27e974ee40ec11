"""Canary: the example workload without its guard. A simulator that does not catch this bug is broken itself.

The cell answers before its record is durable, so a power cut takes back what was acknowledged. Source:
TigerBeetle's canary fuzzer, which must fail, so that a dead pipeline is noticed.
"""

from collections.abc import Callable
from typing import ClassVar

from broadsheet.base.machine import Tick
from broadsheet.base.time import Instant
from broadsheet.base.types import NodeId
from simulator.plan import Budget, Kind
from simulator.workloads.register import (
    NO_TAG,
    Answer,
    Cell,
    Persist,
    Persisted,
    Queried,
    RegisterWorkload,
    Stored,
    Tag,
)


class HastyCell(Cell):
    """Answers before it is durable."""

    def step(self, event: Queried | Stored | Persisted | Tick, now: Instant) -> list[Persist | Answer]:
        """Apply one event, wrongly."""
        if not isinstance(event, Stored) or event.tag <= self.durable.get(event.key, (NO_TAG, 0))[0]:
            return super().step(event, now)
        effects = super().step(event, now)
        self.durable[event.key] = (event.tag, event.value)
        self.waiting.clear()
        return [*effects, self._answer(event)]


class CanaryWorkload(RegisterWorkload):
    """As `register`, and must be caught."""

    name: ClassVar[str] = "canary"
    budget: ClassVar[Budget] = Budget(kinds=(Kind.POWER_CUT, Kind.SLOW_SYNC))
    cell: ClassVar[Callable[[dict[str, tuple[Tag, int]]], Cell]] = HastyCell

    def nodes(self, knobs: dict[str, int]) -> tuple[NodeId, ...]:
        """One cell: no other one remembers what it forgets."""
        return (NodeId("a"),)
