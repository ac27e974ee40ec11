"""A node of its own for each module, and one Spark session."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

CLI = (sys.executable, "-c", "from broadsheet.cli.main import main; main()")


class Node(NamedTuple):
    address: str
    data_dir: Path
    pid: int


def up(data_dir: Path, *extra: str) -> Node:
    command = [
        *CLI,
        "up",
        "--data-dir",
        str(data_dir),
        "--detach",
        "--json",
    ]
    ran = subprocess.run([*command, *extra], capture_output=True, text=True, timeout=60, check=True)
    node = json.loads(ran.stdout)["nodes"][0]
    return Node(node["addresses"]["native"], data_dir, node["pid"])


def down(data_dir: Path) -> None:
    command = [*CLI, "down", "--data-dir", str(data_dir)]
    subprocess.run(command, capture_output=True, timeout=60, check=True)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    data_dir = tmp_path_factory.mktemp("node") / "data"
    yield up(data_dir, "--any-port")
    down(data_dir)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from tests.spark.driver import make_session

    session = make_session()
    yield session
    session.stop()
