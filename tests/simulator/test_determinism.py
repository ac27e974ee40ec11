"""Determinism is itself a gate: without it no plan reproduces anything."""

from simulator.determinism import differences
from simulator.workloads import WORKLOADS


def test_25_runs_have_equal_digests_under_two_hash_seeds() -> None:
    """Over every event and effect, in both tiers; `make sim` does 200 (simulation.1)."""
    assert differences(list(WORKLOADS), seeds=25) == []
