"""What the benchmarks of Spark share: a node, cases that take turns, and whose CPU a row costs."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from broadsheet.cli.cluster import Cluster


class Case(NamedTuple):
    """A piece of work, and how many rows it passes on."""

    rows: int
    work: Callable[[int], object]
    warm: Callable[[int], object] | None = None
    """Runs before each measured run: Spark ends Python processes that were idle for a minute."""


@contextmanager
def node(directory: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A node: its native address, and its process."""
    cluster = Cluster.make(directory, count=1, port_offset=0, has_any_port=True)
    cluster.start(is_detached=True)
    running = next(iter(cluster.running().values()))
    assert running is not None, "the node runs"
    process = psutil.Process(running.pid)
    try:
        yield running.addresses["native"], process
    finally:
        process.terminate()
        process.wait(30)


def cpu_seconds(node: psutil.Process) -> dict[str, float]:
    """CPU so far of JVM, Python processes (with those that have ended) and node."""
    own = psutil.Process().cpu_times()
    spent = {"JVM": 0.0, "Python": own.user + own.system, "node": 0.0}
    for process in psutil.Process().children(recursive=True):
        try:
            times, name = process.cpu_times(), process.name()
        except psutil.NoSuchProcess:
            continue
        kind = "node" if process.pid == node.pid else "JVM" if name == "java" else "Python"
        spent[kind] += times.user + times.system
        spent["Python"] += times.children_user + times.children_system
    return spent


def measure(cases: dict[str, Case], rounds: int, node: psutil.Process) -> dict[str, dict[str, float]]:
    """Every case once a round, in turn; medians of all rounds but the first."""
    walls: dict[str, list[float]] = {name: [] for name in cases}
    spent: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, case in cases.items():
            if case.warm is not None:
                case.warm(number)
            wall, before = time.perf_counter(), cpu_seconds(node)
            case.work(number)
            took, after = time.perf_counter() - wall, cpu_seconds(node)
            if number:
                walls[name].append(took)
                spent[name].append({kind: after[kind] - before[kind] for kind in after})
    report = {}
    for name, case in cases.items():
        cpu = statistics.median(sum(each.values()) for each in spent[name])
        report[name] = {
            "rows_per_s": case.rows / statistics.median(walls[name]),
            "rows_per_cpu_s": case.rows / max(cpu, 1e-6),
        } | {
            f"{kind}_us_per_row": statistics.median(each[kind] for each in spent[name]) / case.rows * 1e6
            for kind in spent[name][0]
        }
    return report


def table(report: dict[str, dict[str, float]], bases: dict[str, str], title: str) -> None:
    """Print a report, with the ratio of each case to its base by CPU."""
    heads = f"{'rows/s':>11}{'rows/cpu s':>12}{title:>12}"
    print(f"{'case':<44}{heads}{'JVM us':>9}{'Python us':>11}{'node us':>9}")
    for name, each in report.items():
        rate = f"{each['rows_per_s']:>11,.0f}{each['rows_per_cpu_s']:>12,.0f}"
        jvm, python, node = (each[f"{kind}_us_per_row"] for kind in ("JVM", "Python", "node"))
        ratio = each["rows_per_cpu_s"] / report[bases[name]]["rows_per_cpu_s"]
        print(f"{name:<44}{rate}{ratio:>12.2f}{jvm:>9.2f}{python:>11.2f}{node:>9.2f}")
