"""Determinism is itself a gate: without it no plan reproduces anything."""

from broadsheet.sim.determinism import differences
from broadsheet.sim.workloads import WORKLOADS


def test_25_runs_have_equal_digests_under_two_hash_seeds() -> None:
    """Over every event and effect, in both tiers; `make sim` does 200 (simulation.1)."""
    assert differences(list(WORKLOADS), seeds=25) == []
