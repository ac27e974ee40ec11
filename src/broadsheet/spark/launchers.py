"""Launchers: small scripts in the user's cache that correct how Spark starts Python and Java.

`python_launcher` takes `pyspark.zip` off PYTHONPATH. Spark puts that zip in front of the installed package.
A zip holds no compiled modules, so each Python process of a query would compile the same files again: a
process then needs 0.96 s of CPU before it does anything, and 0.31 s without the zip. Spark gives a new
process ten seconds to connect back, which no setting changes; a machine with five times more work than
cores misses that limit. Source: pipelines.13; docs/adr/0074 has the measurements.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

_PYTHON = """#!/bin/sh
# A zip holds no compiled modules: every process would compile them again. The installed package is the same.
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
    """The command to give to Spark as its Python on this machine.

    Args:
        python: the interpreter. It is returned unchanged if `pyspark` is not installed for it.
    """
    found = find_spec("pyspark")
    if found is None or found.origin is None or ".zip" in found.origin or '"' in python:
        return python
    name = f"python-{hashlib.sha256(python.encode()).hexdigest()[:12]}"
    return str(placed(Path(name), _PYTHON.format(python=python), environ))


def placed(name: Path, script: str, environ: Mapping[str, str]) -> Path:
    """Write an executable file into the user's cache, or into a new directory if the cache is read-only."""
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
    draft.replace(file)  # Atomic, so a session that starts at the same time never runs half a script.
    return file
