"""Spark's Python processes start from the installed packages, not from Spark's zips."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from broadsheet.spark.launchers import placed, python_launcher

LIB = Path(pyspark.__file__).parent / "python" / "lib"


def test_the_launcher_runs_this_python_without_sparks_zips(tmp_path: Path) -> None:
    """A zip holds no compiled modules: each process would compile Spark anew, within ten seconds or fail."""
    python = python_launcher(sys.executable, {"XDG_CACHE_HOME": str(tmp_path / "a cache")})
    zips = [str(each) for each in sorted(LIB.glob("*.zip"))]
    wanted = [str(tmp_path / "one"), str(tmp_path / "with a space"), "/spark/jars/*"]
    script = "import sys, pyspark; print(pyspark.__file__, sys.argv[1:], sys.executable)"
    ran = subprocess.run(
        [python, "-c", script, "a b", "c'd"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*zips, *wanted])},
        capture_output=True,
        text=True,
        check=True,
    )
    shown = subprocess.run(
        [python, "-c", "import os; print(os.environ['PYTHONPATH'])"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*zips, *wanted])},
        capture_output=True,
        text=True,
        check=True,
    )

    assert len(zips) == 2
    assert ran.stdout.split(" ", 1)[0] == pyspark.__file__
    assert str(["a b", "c'd"]) in ran.stdout
    assert sys.executable in ran.stdout
    assert shown.stdout.strip().split(os.pathsep) == wanted


def test_a_launcher_is_written_once_and_anew_where_it_differs(tmp_path: Path) -> None:
    """An older release's script must not stay; a cache that cannot be written is no reason to fail."""
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    first = placed(Path("x", "run"), "#!/bin/sh\n", cache)
    before = first.stat().st_mtime_ns

    assert placed(Path("x", "run"), "#!/bin/sh\n", cache).stat().st_mtime_ns == before
    assert placed(Path("x", "run"), "#!/bin/sh\nexit 1\n", cache).read_text().endswith("exit 1\n")
    (tmp_path / "file").write_text("")
    elsewhere = placed(Path("x"), "#!/bin/sh\n", {"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert os.access(elsewhere, os.X_OK)
