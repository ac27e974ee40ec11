"""Invariants are asserted after every step in tests and simulations, and cost production nothing."""

import os
import subprocess
import sys

import pytest

from broadsheet.runtime import checking
from broadsheet.runtime.checking import Level, always, checker, level
from simulator.plan import Tier
from simulator.runner import plan_of, run_plan
from simulator.workloads import WORKLOADS

WRONG = """
from broadsheet.base.machine import Tick
from broadsheet.observe.story import Story
from broadsheet.runtime.host import Host
from broadsheet.runtime.time import SystemTime

class Wrong:
    def step(self, event, now): return []
    def deadline(self): return None
    def check(self): raise AssertionError("an invariant is broken")

def crash(error, story): print("crashed", error)

Host(Wrong(), {}, time=SystemTime(), timers=None, crash=crash, story=Story("wrong")).deliver(Tick())
print("done")
"""


def said(**environment: str) -> list[str]:
    """What a process with one wrong machine says."""
    plain = {key: value for key, value in os.environ.items() if key != checking.VARIABLE}
    command = [sys.executable, "-c", WRONG]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**plain, **environment})
    return done.stdout.splitlines()


def test_this_process_checks() -> None:
    """No test has to ask for it: a host has no argument that could be forgotten."""
    assert level() is Level.SHARED


def test_a_process_checks_where_the_environment_says_so() -> None:
    """Nodes that a test starts inherit it; a node in production steps without."""
    assert said(BROADSHEET_CHECK="1") == ["crashed an invariant is broken", "done"]
    assert said() == ["done"]


def test_checks_take_a_share_of_the_time_of_a_real_process() -> None:
    """A map of 10,000 keys that is checked whole at each step would make a test quadratic."""
    calls: list[None] = []
    shared = checker(lambda: calls.extend([None] * 10_000))
    assert shared is not None
    for _ in range(100):
        shared()

    assert 1 <= len(calls) // 10_000 < 90


def test_a_simulation_checks_at_every_step() -> None:
    """A check that is skipped by the real clock would make two runs of a plan differ."""
    calls: list[None] = []
    with always():
        each = checker(lambda: calls.append(None))
        assert each is not None
        each()
        each()

    assert len(calls) == 2
    assert level() is Level.SHARED


@pytest.mark.parametrize(("name", "tier"), WORKLOADS, ids=lambda each: getattr(each, "name", each))
def test_every_workload_runs_with_checks(name: str, tier: Tier) -> None:
    """Both tiers: `is_checked` was a parameter that nobody set, and the machines of tier 2 went unchecked.

    Source: code.6.
    """
    seen: list[Level] = []
    run_plan(plan_of(name, tier, 0), show=lambda _: seen.append(level()), until=10_000_000)

    assert list(dict.fromkeys(seen)) == [Level.ALWAYS]


def test_where_nothing_is_checked_there_is_nothing_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Production calls nothing after a step: not even something that does nothing."""
    monkeypatch.setattr(checking, "_level", Level.NEVER)

    assert checker(lambda: None) is None
