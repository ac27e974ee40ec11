"""The workload of the wire meets what it is there for, in every ten seeds."""

from pathlib import Path

import pytest

from simulator import coverage
from simulator.campaign import run_campaign
from simulator.plan import Tier

MARKS = (
    "wire.cancelled", "wire.drained", "wire.expelled", "wire.goaway", "wire.held", "wire.joined",
    "wire.late", "wire.narrow", "wire.row", "wire.row_waited", "wire.turn_waited",
)  # fmt: skip


def test_the_marks_of_the_wire_are_these() -> None:
    """A mark that is new is met on purpose, or nobody knows whether it ever was."""
    assert coverage.places(("wire",)).marks == MARKS


@pytest.mark.parametrize("first", [1000])
def test_ten_seeds_meet_goaway_cancels_deadlines_tokens_budgets_and_graceful_ends(
    first: int, tmp_path: Path
) -> None:
    """An earlier workload passed for a year without one of them: it never went where the bugs were."""
    total = run_campaign("wire", Tier.SERVICES, counting=10, first=first, keep=tmp_path, jobs=2)

    assert total.failures == [], "\n".join(total.failures)
    assert {
        mark: total.coverage.marks.get(mark, 0) for mark in MARKS if not total.coverage.marks.get(mark)
    } == {}
