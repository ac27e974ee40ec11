"""Bugs planted in the example: they test the harness, in both tiers. No production code is in them."""

from collections.abc import Callable
from typing import Any

from broadsheet.base.time import Instant
from simulator.plan import Tier
from simulator.workloads.register import Cell, Store, Stored, Told
from tests.mutants.registry import Mutant

Step = Callable[[Cell, Any, Instant], list[Any]]


def _takes_older_tags(step: Step) -> Step:
    def forgetful(self: Cell, event: Any, now: Instant) -> list[Any]:
        if isinstance(event, Stored):
            self.durable.pop(event.key, None)
        return step(self, event, now)

    return forgetful


def _asks_one_cell(_: Any) -> Any:
    async def hasty(self: Any, make: Callable[[int], Any]) -> list[Told] | None:
        self.request += 1
        message = make(self.request)
        cell = self.cells[1 if isinstance(message, Store) else 0]
        told = await self.context.request(
            cell, message, is_answer=lambda each: each.request == self.request, timeout=500_000_000
        )
        return None if told is None else [told]

    return hasty


REGISTER = "simulator.workloads.register"
MUTANTS = [
    Mutant(
        "example_older_tag_wins",
        "A cell lets an older tag replace a newer one.",
        f"{REGISTER}:Cell.step",
        _takes_older_tags,
        workload="register",
    ),
    Mutant(
        "example_older_tag_wins_in_service",
        "As above, in tier 2.",
        f"{REGISTER}:Cell.step",
        _takes_older_tags,
        workload="register",
        tier=Tier.SERVICES,
    ),
    Mutant(
        "example_no_majority",
        "A client is content with one cell.",
        f"{REGISTER}:_Session._majority",
        _asks_one_cell,
        workload="register",
    ),
]
