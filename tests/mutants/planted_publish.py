"""Bugs planted in the public publisher and reader."""

from collections.abc import Callable
from typing import Any

from simulator.plan import Tier
from tests.mutants.registry import Mutant, edited


def planted(name: str, guard: str, target: str, replacement: Callable[[Any], Any]) -> Mutant:
    return Mutant(f"publish_{name}", guard, target, replacement, workload="publish", tier=Tier.SERVICES)


def _keeps_its_producer(_: Any) -> Callable[..., Any]:
    def roll_back(self: Any) -> None:
        if self._is_open:
            self._is_open = False
            self._stamper.rollbacks()
            self._ended(self._stamper)

    return roll_back


MUTANTS = [
    planted(
        "position_before_its_message",
        "A reader that goes on from a message's position gives that message again.",
        "broadsheet.consume.reader:_Span.messages",
        edited("first + 1", "first"),
    ),
    planted(
        "lost_append_taken_for_done",
        "An append whose answer was lost is taken for durable (pipelines.18).",
        "broadsheet.publish.lanes:Lane._append",
        edited("lost = error", "return self._answer(batch, None)"),
    ),
    planted(
        "last_refusal_told_as_the_outcome",
        "A commit in doubt is refused if its last call was, so that its caller transacts again (C2).",
        "broadsheet.publish.commits:CommitJournal.commit",
        edited("self.outcome == NOT_COMMITTED", "True"),
    ),
    planted(
        "rolled_back_producer_goes_on",
        "What was rolled back joins the next transaction of the same producer (pipelines.18).",
        "broadsheet.publish.transaction:Transaction.roll_back",
        _keeps_its_producer,
    ),
]
