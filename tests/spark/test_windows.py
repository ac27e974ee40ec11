"""Exactly once, whenever the driver dies: windows B, D, E, F, K, L, Z1 here, all in `make soak`.

Of a query whose batches a function writes: D and Z1 here.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.driver import finish
from tests.spark.windows import IN_A_COMMIT, ROWS, WINDOWS, ZOMBIES, Case, output_of

ALL = list(range(ROWS))
pytestmark = [pytest.mark.spark, pytest.mark.windows, pytest.mark.timeout(300)]


BY_FUNCTION = "foreach"
"""The sink of a query whose batches a function writes: Spark calls it again with a batch it was killed in."""


def windows(names: Iterable[str], ci: tuple[str, ...], sink: str = "stream") -> list[Any]:
    return [pytest.param(sink, name, marks=[] if name in ci else pytest.mark.soak) for name in names]


@pytest.mark.parametrize(
    ("sink", "name"),
    windows(WINDOWS, ("B", "D", "E", "F", "K")) + windows("ABCDEFHK", ("D",), BY_FUNCTION),
)
def test_a_killed_query_goes_on_exactly_once(
    sink: str, name: str, node: Any, spark: Any, tmp_path: Path
) -> None:
    """Kill -9 of JVM and driver in the middle of a batch, then another run from the same checkpoint."""
    case = Case(node.address, tmp_path, f"window/{sink}/{name}", sink=sink)
    first = output_of(case.driver(WINDOWS[name]))

    assert case.has_acted(), first[-4000:]
    if name != "J":
        assert case.committed() != ALL
    finish(spark, case.plan)
    assert case.committed() == ALL
    commits = [record["batch"] for record in case.records() if record["type"] == "commit"]
    assert commits == sorted(set(commits))


@pytest.mark.parametrize("name", ["L", pytest.param("M", marks=pytest.mark.soak)])
def test_one_large_commit_of_which_a_reader_dies_is_read_once(
    name: str, node: Any, spark: Any, tmp_path: Path
) -> None:
    """Kill -9 of a worker, or of everything, between the rows of a commit that its memory does not hold.

    The task that is started again, in another process, must give the rows that the first one gave or would
    have given, whatever either of them had kept. Source: ADR 0212.
    """
    memory = {"maxReplayMemory": "250000", "minPartitions": "4"}
    case = Case(node.address, tmp_path, f"window/commit/{name}", has_one_commit=True, source=memory)
    first = output_of(case.driver(IN_A_COMMIT[name]))

    assert case.has_acted(), first[-4000:]
    if name == "M":
        assert case.committed() == []
        finish(spark, case.plan)
    assert case.committed() == ALL, first[-4000:]


@pytest.mark.parametrize(("sink", "name"), windows(ZOMBIES, ("Z1",)) + windows(ZOMBIES, ("Z1",), BY_FUNCTION))
def test_a_zombie_driver_adds_nothing(sink: str, name: str, node: Any, spark: Any, tmp_path: Path) -> None:
    """A driver that sleeps through its own replacement wakes up in its commit, or in its function."""
    case = Case(node.address, tmp_path, f"zombie/{sink}/{name}", sink=sink)
    zombie = case.driver(ZOMBIES[name])
    case.wait_until_acted()
    finish(spark, case.plan)
    assert case.committed() == ALL
    case.release()
    out = output_of(zombie)

    assert "FAILED" in out, out[-4000:]
    assert case.committed() == ALL


def test_the_naive_sink_repeats_a_batch(node: Any, spark: Any, tmp_path: Path) -> None:
    """The control: a sink that remembers nothing fails window F, so the harness can see it."""
    case = Case(node.address, tmp_path, "naive/F", sink="naive")
    first = output_of(case.driver(WINDOWS["F"]))

    assert case.has_acted(), first[-4000:]
    finish(spark, case.plan)
    assert len(case.committed()) > ROWS
    assert sorted(set(case.committed())) == ALL
