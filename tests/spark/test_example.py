"""The example of the README runs as it is written."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline.py"


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_example_gives_each_square_once(node: Any, tmp_path: Path) -> None:
    """What a reader copies must work, also a second time over the same checkpoint."""
    command = [sys.executable, str(EXAMPLE), node.address, str(tmp_path / "checkpoint")]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, env={**os.environ}
    )

    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "1000 numbers, 1000 squares" in ran.stdout
    assert [line.split("|")[1:3] for line in ran.stdout.splitlines() if line.startswith("|")][1:4] == [
        ["  0", "     0"],
        ["  1", "     1"],
        ["  2", "     4"],
    ]
