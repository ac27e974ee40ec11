"""Shrinking: the smallest plan that still fails, by leaving faults out, then clients, then time (ddmin).

Streams are keyed by purpose, so that what is left keeps its draws and mostly still fails. A plan that fails
in another way counts as failing too: one cause often shows in several. Bounded by runs. Source: Zeller,
Hildebrandt 2002.
"""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from simulator.plan import Fault, Plan
from simulator.workloads import make

RUNS_MAX: Final = 200


class Shrinker:
    """Searches for a smaller plan."""

    def __init__(self, fails: Callable[[Plan], bool], *, runs_max: int = RUNS_MAX) -> None:
        self.runs = 0
        self._fails, self._runs_max = fails, runs_max

    def shrink(self, plan: Plan) -> Plan:
        """The smallest plan found. `plan` itself must fail."""
        plan = self._faults(plan)
        plan = self._clients(plan)
        return self._time(plan)

    def _try(self, plan: Plan) -> bool:
        if self.runs >= self._runs_max:
            return False
        self.runs += 1
        return self._fails(plan)

    def _faults(self, plan: Plan) -> Plan:
        """Leave out ever smaller parts of the faults."""
        parts = 2
        while len(plan.faults) >= 1 and parts <= 2 * len(plan.faults):
            size = max(1, len(plan.faults) // parts)
            smaller = next(
                (
                    candidate
                    for begin in range(0, len(plan.faults), size)
                    if self._try(candidate := _without(plan, begin, begin + size))
                ),
                None,
            )
            if smaller is not None:
                plan, parts = smaller, max(2, parts - 1)
            elif size == 1:
                break
            else:
                parts *= 2
        return plan

    def _clients(self, plan: Plan) -> Plan:
        for clients in range(make(plan.workload, plan.tier).clients_min, plan.knobs["clients"]):
            candidate = replace(plan, knobs={**plan.knobs, "clients": clients})
            if self._try(candidate):
                return candidate
        return plan

    def _time(self, plan: Plan) -> Plan:
        last = max((fault.at_ns + fault.lasts_ns for fault in plan.faults), default=0)
        candidate = replace(plan, safety_ns=min(plan.safety_ns, last + 500_000_000))
        return candidate if self._try(candidate) else plan


def _without(plan: Plan, begin: int, end: int) -> Plan:
    left: tuple[Fault, ...] = plan.faults[:begin] + plan.faults[end:]
    return replace(plan, faults=left)
