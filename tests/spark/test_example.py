"""The example, and the README's own lines for Spark, run as they are written."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from broadsheet import connect_sync

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "pipeline.py"
DEFAULT_ADDRESS = "127.0.0.1:6640"


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


@pytest.mark.spark
@pytest.mark.timeout(520)
def test_the_lines_of_the_readme_route_each_click_once(node: Any, tmp_path: Path) -> None:
    """They are what a reader copies first: each ends, a second run takes up where the first ended."""
    code = (ROOT / "README.md").read_text().split("```python\n")[2].split("```", 1)[0]
    assert code.count(DEFAULT_ADDRESS) == 2
    (tmp_path / "readme.py").write_text(code.replace(DEFAULT_ADDRESS, node.address))

    with connect_sync(node.address) as client:
        client.journals.create("events/clicks")
        for page in (b"/", b"/about"):
            client.journals.append("events/clicks", b'{"page": "%s"}\n' % page)
            ran = subprocess.run(
                [sys.executable, "readme.py"],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr[-3000:]
        content = b"".join(bytes(chunk.data) for chunk in client.journals.read("events/pages"))

    rows = [row for row in map(json.loads, content.splitlines()) if "page" in row]
    assert [(row["page"], row["click"]) for row in rows] == [("/", 0), ("/about", 14)]
