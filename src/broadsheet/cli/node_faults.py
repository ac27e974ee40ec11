"""Node faults: what checks of `broadsheet doctor` that look at each node of a directory have in common."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from broadsheet.cli.cluster import CLUSTER_FILE, Cluster, data_dirs
from broadsheet.cli.findings import Finding, Verdict
from broadsheet.config import load
from broadsheet.errors import ConfigError
from broadsheet.node import Settings


def faults_of_nodes(
    good: Finding,
    root: Path,
    fault: Callable[[Path, str], str],
    remedy: str,
    *,
    verdict: Verdict = Verdict.BAD,
) -> Finding:
    """`good`, or a finding with the faults that `fault` tells of each node's directory and name."""
    try:
        faults = [found for path, node in nodes_below(root) if (found := fault(path, node))]
    except (ConfigError, OSError) as error:
        return Finding(good.check, Verdict.WARNING, f"unknown: {error}", "mend the directory first")
    return Finding(good.check, verdict, "; ".join(faults), remedy) if faults else good


def nodes_below(root: Path) -> Iterator[tuple[Path, str]]:
    """The directory of each node below `root` that was started once, and its name, empty where not known."""
    if (root / CLUSTER_FILE).exists():
        cluster = Cluster.open(root)
        yield from ((path, node) for node in cluster.nodes if (path := cluster.data_dir(node)).is_dir())
    else:
        yield from ((path, "") for path in data_dirs(root))


def settings_of_node(path: Path, node: str) -> Settings:
    """The settings of a node: of the file that `up` made, or else of the environment."""
    if node:
        return load(Settings, path=path.parent / f"{node}.toml", environment={}, flags={}).config
    return load(Settings, path=None, environment=os.environ, flags={}).config
