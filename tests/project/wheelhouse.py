"""The wheels of what the package itself needs, in the lock file's versions, by hash.

`make env` fetches them once (`python -m tests.project.wheelhouse`), so that a test can do what a user does,
install the package into an empty environment, without a network. Extras are left out.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.project.rules import ROOT

WHEELHOUSE: Final = Path(sys.prefix) / "wheels"


def needed(name: str = "broadsheet", extras: frozenset[str] = frozenset()) -> Iterator[str]:
    """Everything that `name` asks for here and now, itself left out; a name may come more than once."""
    environments = [{"extra": extra} for extra in sorted(extras) or [""]]
    for line in distribution(name).requires or []:
        wanted = Requirement(line)
        if wanted.marker is None or any(wanted.marker.evaluate(extra) for extra in environments):
            yield canonicalize_name(wanted.name)
            yield from needed(wanted.name, frozenset(wanted.extras))


def locked(names: set[str]) -> str:
    """The lock file's entries of `names`, hashes included.

    Raises:
        KeyError: the lock file lacks one: `make lock`.
    """
    entries: dict[str, str] = {}
    name = ""
    for line in (ROOT / "requirements.lock").read_text().splitlines(keepends=True):
        if not line.startswith((" ", "#")):
            name = canonicalize_name(line.split("==", 1)[0])
        entries[name] = entries.get(name, "") + line
    return "".join(entries[name] for name in sorted(names))


def fetch() -> None:
    """Fill the wheelhouse."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as lock:
        lock.write(locked(set(needed())))
        lock.flush()
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--require-hashes", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "--dest", str(WHEELHOUSE), "--requirement", lock.name], check=True)


if __name__ == "__main__":
    fetch()
