"""The package as a user gets it: light to import, and whole when it is installed elsewhere."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.project.rules import ROOT, tracked

IMPORT_SECONDS_MAX = 0.1
ATTEMPTS = 7
HEAVY = ("grpc", "pyarrow", "pyspark", "rocksdict", "starlette", "numpy", "pandas")
QUICK_START_SECONDS_MAX = 120


def test_importing_it_takes_a_tenth_of_a_second_at_most() -> None:
    """Spark starts a worker per task, and `up` starts nodes (DESIGN 11); the best run of a few counts."""
    code = "import time; t = time.perf_counter(); import broadsheet; print(time.perf_counter() - t)"

    took = [float(_python("-c", code)) for _ in range(ATTEMPTS)]

    assert min(took) <= IMPORT_SECONDS_MAX


def test_importing_it_loads_nothing_heavy() -> None:
    """What a worker does not use, it must not wait for."""
    code = f"import sys, broadsheet; print([name for name in {HEAVY!r} if name in sys.modules])"

    assert _python("-c", code).strip() == "[]"


def test_what_users_import_is_what_the_package_offers() -> None:
    """Lazy names resolve, and a mistyped one is an AttributeError."""
    code = (
        "import broadsheet; [getattr(broadsheet, name) for name in broadsheet.__all__]; broadsheet.nonsense"
    )

    with pytest.raises(subprocess.CalledProcessError) as caught:
        _python("-c", code)
    assert "module 'broadsheet' has no attribute 'nonsense'" in caught.value.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` builds, built elsewhere."""
    directory = tmp_path_factory.mktemp("dist")
    _python("-m", "build", "--no-isolation", "--wheel", "--outdir", str(directory), str(ROOT))
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python environment with the wheel and its dependencies, and nothing of the checkout.

    The dependencies are those of this environment, by a path file: their versions are the lock file's, and
    a test needs no network.
    """
    home = tmp_path_factory.mktemp("installed")
    _python("-m", "venv", "--without-pip", str(home))
    site = next((home / "lib").glob("python3*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]
    _python("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel))
    ours = [Path(place) for place in sys.path if place.endswith("site-packages")]
    (site / "dependencies.pth").write_text("".join(f"{place}\n" for place in ours))
    return home / "bin" / "python"


def test_the_wheel_has_every_module_and_says_that_it_is_typed(wheel: Path) -> None:
    """A package that lacks a folder works on the machine that built it, and nowhere else."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    modules = [str(path.relative_to(ROOT / "src")) for path in tracked("src/**/*.py")]

    assert [module for module in modules if module not in names] == []
    assert "broadsheet/py.typed" in names
    assert "pyspark_broadsheet/__init__.py" in names


def test_the_wheel_runs_the_quick_start_outside_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    """The README's first commands, by somebody who has only the wheel (issue 3, line 1)."""
    where = _run(installed, "-c", "import broadsheet; print(broadsheet.__file__)", cwd=tmp_path)
    assert where.strip().startswith(str(installed.parents[1]))

    up = _run(installed, "-m", "broadsheet", "up", "--any-port", "--detach", "--json", cwd=tmp_path)
    try:
        address = json.loads(up)["nodes"][0]["addresses"]["native"]
        status = _run(installed, "-m", "broadsheet", "status", cwd=tmp_path)
        found = _run(installed, "-c", QUICK_START, address, cwd=tmp_path)
    finally:
        _run(installed, "-m", "broadsheet", "down", cwd=tmp_path)

    assert "n1: ready" in status
    assert found.strip() == "hello, world"


QUICK_START = """
import sys
import broadsheet
with broadsheet.connect_sync(sys.argv[1]) as client:
    client.journals.create("quick/start")
    client.journals.append("quick/start", b"hello, ")
    client.journals.append("quick/start", b"world")
    print(b"".join(bytes(chunk.data) for chunk in client.journals.read("quick/start")).decode())
"""


def _python(*arguments: str) -> str:
    return _run(Path(sys.executable), *arguments, cwd=ROOT)


def _run(python: Path, *arguments: str, cwd: Path) -> str:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("BROADSHEET_", "PYTHON"))
    }
    done = subprocess.run(
        [python, *arguments],
        cwd=cwd,
        check=True,
        capture_output=True,
        text=True,
        timeout=QUICK_START_SECONDS_MAX,
        env=kept,
    )
    return done.stdout
