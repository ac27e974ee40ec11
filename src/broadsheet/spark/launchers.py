"""Launchers: small scripts, kept in the user's cache, that start a program in the way Spark should have.

`python_launcher` takes Spark's packed copies of itself off PYTHONPATH. Spark puts `pyspark.zip` in front of
the installed package; a zip holds no compiled modules, so each Python process of a query compiles the same
files anew: 0.96 s of CPU before it does anything, 0.31 s without. Spark gives such a process ten seconds to
connect back, no setting moves that, and a machine with five times more work than cores does not keep it.
Source: measured; pipelines.13; docs/adr/0074.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

_PYTHON = """#!/bin/sh
# Spark's packed copies of itself would be compiled in every process: the installed ones are the same.
kept=
set -f
IFS=:
for path in $PYTHONPATH; do
  case $path in
    */pyspark.zip | */py4j-*-src.zip) ;;
    *) kept=$kept${{kept:+:}}$path ;;
  esac
done
unset IFS
export PYTHONPATH="$kept"
exec "{python}" "$@"
"""


def python_launcher(python: str, environ: Mapping[str, str]) -> str:
    """What to name as Spark's Python on this machine, so that its processes start fast.

    Args:
        python: the interpreter. It is returned as it is where it has no installed `pyspark` of its own.
    """
    found = find_spec("pyspark")
    if found is None or found.origin is None or ".zip" in found.origin or '"' in python:
        return python
    name = f"python-{hashlib.sha256(python.encode()).hexdigest()[:12]}"
    return str(placed(Path(name), _PYTHON.format(python=python), environ))


def placed(name: Path, script: str, environ: Mapping[str, str]) -> Path:
    """An executable file of this relative name and content in the user's cache, or in a new directory."""
    cache = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", tempfile.gettempdir())) / ".cache")
    try:
        return _written(cache / "broadsheet" / name, script)
    except OSError:
        return _written(Path(tempfile.mkdtemp(prefix="broadsheet-launchers-")) / name, script)


def _written(file: Path, script: str) -> Path:
    if file.is_file() and file.read_text() == script:
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(f".{os.getpid()}")
    draft.write_text(script)
    draft.chmod(0o755)
    draft.replace(file)  # Two sessions that start at once both find a whole script.
    return file
