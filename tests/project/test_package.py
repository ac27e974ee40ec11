"""The package as a user gets it: light to import, and whole when it is installed elsewhere."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trove_classifiers
from markdown_it import MarkdownIt
from packaging.metadata import Metadata
from packaging.utils import canonicalize_name

import broadsheet
from tests.project.rules import ROOT, tracked
from tests.project.wheelhouse import WHEELHOUSE, needed

IMPORT_SECONDS_MAX = 0.1
ATTEMPTS = 7
HEAVY = ("grpc", "pyarrow", "pyspark", "rocksdict", "starlette", "numpy", "pandas")
QUICK_START_SECONDS_MAX = 120
LINKS = ("link_open", "image")
DEFAULT_ADDRESS = "127.0.0.1:6640"


def test_importing_it_takes_a_tenth_of_a_second_at_most() -> None:
    """Spark starts a worker per task, and `up` starts nodes (node.8); the best run of a few counts."""
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
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` builds, built elsewhere."""
    directory = tmp_path_factory.mktemp("dist")
    _python("-m", "build", "--no-isolation", "--wheel", "--sdist", "--outdir", str(directory), str(ROOT))
    return directory


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (built,) = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bin_directory(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that was empty until pip installed the wheel, and what the wheel says it needs."""
    home = tmp_path_factory.mktemp("installed")
    _python("-m", "venv", str(home))
    assert WHEELHOUSE.is_dir(), f"{WHEELHOUSE} is not there: `make env` fetches it"
    install = ("-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(WHEELHOUSE))
    _run(home / "bin" / "python", *install, str(wheel), cwd=home)
    _run(home / "bin" / "python", "-m", "pip", "check", cwd=home)
    return home / "bin"


def test_the_wheel_has_every_module_and_says_that_it_is_typed(wheel: Path) -> None:
    """A package that lacks a folder works on the machine that built it, and nowhere else."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    modules = [str(path.relative_to(ROOT / "src")) for path in tracked("src/**/*.py")]

    assert [module for module in modules if module not in names] == []
    assert "broadsheet/py.typed" in names
    assert "pyspark_broadsheet/__init__.py" in names


def test_what_is_published_says_what_it_is(dist: Path, wheel: Path) -> None:
    """What an index refuses, or shows as an empty page, is found before somebody uploads it.

    These are the checks of `twine check --strict` and of the index: valid fields, known classifiers, and a
    description whose type is told and which is not empty.
    """
    (archive,) = dist.glob("*.tar.gz")
    told = {path.name: Metadata.from_email(text, validate=True) for path, text in _told(wheel, archive)}

    assert wheel.name == f"broadsheet-{broadsheet.__version__}-py3-none-any.whl"
    assert archive.name == f"broadsheet-{broadsheet.__version__}.tar.gz"
    for found in told.values():
        assert (found.name, str(found.version)) == ("broadsheet", broadsheet.__version__)
        assert 20 <= len(found.summary or "") <= 512
        assert found.classifiers
        assert [each for each in found.classifiers if each not in trove_classifiers.classifiers] == []
        assert found.license_expression == "Apache-2.0"
        assert found.license_files == ["LICENSE"]
        assert found.description_content_type == "text/markdown"
        assert (found.description or "").strip() == (ROOT / "README.md").read_text().strip()
    assert len(told) == 2


def test_the_readme_leads_nowhere_that_only_a_checkout_has() -> None:
    """Where a package is shown there are no other files: a link to one of them is dead."""
    tokens = MarkdownIt().parse((ROOT / "README.md").read_text())
    inline = [each for token in tokens for each in token.children or ()]
    links = [str(each.attrGet("href") or each.attrGet("src")) for each in inline if each.type in LINKS]

    assert [each for each in links if not each.startswith("https://")] == []


def _told(wheel: Path, archive: Path) -> Iterator[tuple[Path, bytes]]:
    """The metadata of both, as an index reads them."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = [each for each in files.namelist() if each.endswith(".dist-info/METADATA")]
        yield wheel, files.read(name)
    with tarfile.open(archive) as packed:
        member = packed.extractfile(f"{archive.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert member is not None
        yield archive, member.read()


def test_the_wheel_brings_what_it_needs_and_nothing_of_the_checkout(
    bin_directory: Path, tmp_path: Path
) -> None:
    """Whoever installs it into a service wants neither Spark nor a test runner with it."""
    python = bin_directory / "python"
    where = _run(python, "-c", "import broadsheet, sys; print(broadsheet.__file__, sys.path)", cwd=tmp_path)
    listed = _run(python, "-m", "pip", "list", "--format", "json", cwd=tmp_path)

    assert where.startswith(str(bin_directory.parent))
    assert str(ROOT) not in where
    names = {canonicalize_name(package["name"]) for package in json.loads(listed)}
    assert names - {"pip", "setuptools"} == {*needed(), "broadsheet"}


def test_the_wheel_runs_the_quick_start_outside_of_the_checkout(bin_directory: Path, tmp_path: Path) -> None:
    """The README's first commands, as they stand there, and its Python."""
    commands, code = quick_start()
    assert [command.split()[0] for command in commands][:2] == ["pip", "broadsheet"]
    installed, up, *others, down = commands
    assert installed == "pip install ."
    told: dict[str, str] = {}
    try:
        # Tests run beside each other: the node takes the ports that are free.
        started = _shell(f"{up} --any-port --json", bin_directory, cwd=tmp_path)
        address = json.loads(started)["nodes"][0]["addresses"]["native"]
        for command in others:
            told[command] = _shell(
                f"export BROADSHEET_ADDRESS={address}; {command}", bin_directory, cwd=tmp_path
            )
        assert code.count(DEFAULT_ADDRESS) == 1
        found = _run(bin_directory / "python", "-c", code.replace(DEFAULT_ADDRESS, address), cwd=tmp_path)
    finally:
        told[down] = _shell(down, bin_directory, cwd=tmp_path)

    assert told["broadsheet journals read greetings/all"] == "hello\n"
    assert "n1: ready" in told["broadsheet status"]
    assert found.splitlines() == ["0 14", 'b\'{"page": "/"}\\n\'']


def quick_start() -> tuple[list[str], str]:
    """The README's first block of commands, comments left out, and its first block of Python."""
    section = (ROOT / "README.md").read_text().split("## Quick start", 1)[1]
    indented = section.split("From Python:", 1)[0].splitlines()
    commands = [line.split("#", 1)[0].strip() for line in indented if line.startswith("    ")]
    return commands, section.split("```python\n", 1)[1].split("```", 1)[0]


def _python(*arguments: str) -> str:
    return _run(Path(sys.executable), *arguments, cwd=ROOT)


def _run(python: Path, *arguments: str, cwd: Path) -> str:
    return _done([str(python), *arguments], cwd, os.environ["PATH"])


def _shell(command: str, bin_directory: Path, *, cwd: Path) -> str:
    return _done(["/bin/sh", "-c", command], cwd, f"{bin_directory}:{os.environ['PATH']}")


def _done(command: list[str], cwd: Path, path: str) -> str:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("BROADSHEET_", "PIP_", "PYTHON"))
    }
    done = subprocess.run(
        command,
        cwd=cwd,
        check=True,
        capture_output=True,
        text=True,
        timeout=QUICK_START_SECONDS_MAX,
        env={**kept, "PATH": path},
    )
    return done.stdout
