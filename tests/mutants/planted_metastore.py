"""Bugs planted in the metastore's machines: each takes out one rule of control.3-6."""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from broadsheet.control.core.acceptor import Send
from broadsheet.control.core.value import AcceptorSets
from simulator.plan import Tier
from tests.mutants.hunt_metastore import hunt
from tests.mutants.registry import Mutant

CORE = "broadsheet.control.core"


def _one_step(_: Any) -> Any:
    return lambda old=(), new=(): AcceptorSets(old=new or old)


def _counts_messages(on_promised: Callable[..., Any]) -> Any:
    def counting(self: Any, event: Any, now: Any) -> Any:
        if event.ballot == self.ballot and event.acceptor in self._votes:
            others = [member for member in self._sets.members() if member not in self._votes]
            event = replace(event, acceptor=others[0]) if others else event
        return on_promised(self, event, now)

    return counting


def _reuses_its_ballot(prepare: Callable[..., Any]) -> Any:
    def reusing(self: Any, *arguments: Any) -> Any:
        if self.ballot.node == self.node and self.ballot.counter == self._top:
            self._top -= 1
        return prepare(self, *arguments)

    return reusing


def _at_once(_: Any) -> Any:
    return lambda _self, to, message: [Send(to, message)]


def _takes_for_chosen(next_step: Callable[..., Any]) -> Any:
    def hasty(operation: Any, value: Any, **known: Any) -> Any:
        return next_step(operation, value, **{**known, "is_chosen": True})

    return hasty


def _frees_early(_: Any) -> Any:
    return lambda work: asyncio.shield(asyncio.ensure_future(work))


def _forgets_attempts(_: Any) -> Any:
    return lambda _self, _attempt: None


MUTANTS = [
    Mutant(
        "metastore_one_step_change",
        "The acceptor set is changed by one write instead of two (control.6).",
        f"{CORE}.operation:AcceptorSets",
        _one_step,
        workload="metastore",
    ),
    Mutant(
        "metastore_duplicate_promise",
        "A promise that comes twice is counted as two acceptors'.",
        f"{CORE}.proposer:ProposerMachine._handlers[Promised]",
        _counts_messages,
        hunt=hunt,
    ),
    Mutant(
        "metastore_ballot_reused",
        "A proposer prepares again under the ballot that it used before (control.3).",
        f"{CORE}.proposer:ProposerMachine._prepare",
        _reuses_its_ballot,
        hunt=hunt,
    ),
    Mutant(
        "metastore_promise_before_sync",
        "An acceptor answers before its record is durable (control.4).",
        f"{CORE}.acceptor:AcceptorMachine._answer",
        _at_once,
        workload="metastore",
    ),
    Mutant(
        "metastore_unchosen_read",
        "A value that an acceptor holds is taken for chosen, and answered.",
        f"{CORE}.proposer:next_step",
        _takes_for_chosen,
        workload="metastore",
    ),
    Mutant(
        "metastore_cancelled_write_frees_its_lock",
        "A cancelled caller of provider `file` lets the next write begin beside its own (control.4).",
        "broadsheet.control.file:to_the_end",
        _frees_early,
        workload="metastore-file",
        tier=Tier.SERVICES,
    ),
    Mutant(
        "metastore_attempt_forgotten",
        "Who finds a newer version does not look for its own attempt, and reports a refusal (control.5).",
        f"{CORE}.value:Value.version_of",
        _forgets_attempts,
        workload="metastore",
    ),
]
