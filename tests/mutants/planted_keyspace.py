"""Bugs planted in the key space, caught by its workload in tier 2."""

from collections.abc import Callable
from typing import Any

from broadsheet.keyspace.core.store import Persisted
from simulator.plan import Tier
from tests.mutants.registry import Mutant


def _at_once(persist: Callable[..., None]) -> Any:
    def hasty(self: Any, effect: Any) -> None:
        persist(self, effect)
        self._host.deliver(Persisted(effect.token))

    return hasty


def _forgets_compares(_: Any) -> Any:
    return lambda _self, _compare: True


MUTANTS = [
    Mutant(
        "keyspace_answer_before_durable",
        "A transaction is shown and answered once it is appended, before it is synced.",
        "broadsheet.keyspace.local.keyspace:LocalKeyspace._persist",
        _at_once,
        workload="keyspace",
        tier=Tier.SERVICES,
    ),
    Mutant(
        "keyspace_compare_unchecked",
        "A transaction's compares are taken to hold (control.17).",
        "broadsheet.keyspace.core.store:Store._holds",
        _forgets_compares,
        workload="keyspace",
        tier=Tier.SERVICES,
    ),
]
