"""Exactly once, whenever the driver dies: windows B, D, E, F, K, Z1 here, all in `make soak`.

Of a query whose batches a function writes: D and Z1 here.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.spark.driver import finish
from tests.spark.windows import ROWS, WINDOWS, ZOMBIES, Case, output_of

ALL = list(range(ROWS))
pytestmark = [pytest.mark.spark, pytest.mark.windows, pytest.mark.timeout(300)]
CI = ("B", "D", "E", "F", "K")


def windows(names: dict[str, Any], ci: tuple[str, ...]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in ci else pytest.mark.soak) for name in names]


@pytest.mark.parametrize("name", windows(WINDOWS, CI))
def test_a_killed_query_goes_on_exactly_once(name: str, node: Any, spark: Any, tmp_path: Path) -> None:
    """Kill -9 of JVM and driver in the middle of a batch, then another run from the same checkpoint."""
    case = Case(node.address, tmp_path, f"window/{name}")
    first = output_of(case.driver(WINDOWS[name]))

    assert case.has_acted(), first[-4000:]
    if name != "J":
        assert case.committed() != ALL
    finish(spark, case.plan)
    assert case.committed() == ALL
    commits = [record["batch"] for record in case.records() if record["type"] == "commit"]
    assert commits == sorted(set(commits))


@pytest.mark.parametrize("name", windows({name: WINDOWS[name] for name in "ABCDEFHK"}, ("D",)))
def test_a_killed_query_of_a_function_goes_on_exactly_once(
    name: str, node: Any, spark: Any, tmp_path: Path
) -> None:
    """The same with `foreach_batch`: Spark calls the function again with the batch that it was killed in."""
    case = Case(node.address, tmp_path, f"function/{name}", sink="foreach")
    first = output_of(case.driver(WINDOWS[name]))

    assert case.has_acted(), first[-4000:]
    assert case.committed() != ALL
    finish(spark, case.plan)
    assert case.committed() == ALL
    commits = [record["batch"] for record in case.records() if record["type"] == "commit"]
    assert commits == sorted(set(commits))


@pytest.mark.parametrize("name", windows(ZOMBIES, ("Z1",)))
def test_a_zombie_driver_of_a_function_adds_nothing(name: str, node: Any, spark: Any, tmp_path: Path) -> None:
    """It sleeps in its function while another driver runs the query to its end."""
    case = Case(node.address, tmp_path, f"sleeper/{name}", sink="foreach")
    zombie = case.driver(ZOMBIES[name])
    case.wait_until_acted()
    finish(spark, case.plan)
    assert case.committed() == ALL
    case.release()
    out = output_of(zombie)

    assert "FAILED" in out, out[-4000:]
    assert case.committed() == ALL


@pytest.mark.parametrize("name", windows(ZOMBIES, ("Z1",)))
def test_a_zombie_driver_adds_nothing(name: str, node: Any, spark: Any, tmp_path: Path) -> None:
    """A driver that sleeps through its own replacement wakes up in the middle of its commit."""
    case = Case(node.address, tmp_path, f"zombie/{name}")
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
