"""Failpoints: labelled places at which a test ends the process, as kill -9 would.

`BROADSHEET_FAILPOINT=label:count` in the environment kills the process at the count-th passage (from 1) of
`label`. Hosts, services and procedures pass through them; machines never do.
"""

import os
import signal
import sys
from collections.abc import Callable

VARIABLE = "BROADSHEET_FAILPOINT"

EXIT_USAGE = 2


def _wanted(text: str) -> tuple[str, int]:
    """The label, and the number of the passage at which the process dies; 0 for never."""
    label, _, count = text.partition(":")
    if count and not (count.isdecimal() and int(count)):
        sys.stderr.write(f"broadsheet: {VARIABLE}={text}: it is LABEL or LABEL:COUNT, counted from 1\n")
        raise SystemExit(EXIT_USAGE)
    return label, int(count or 1) if label else 0


_label, _left = _wanted(os.environ.get(VARIABLE, ""))
_listener: Callable[[str], None] | None = None


def install(listener: Callable[[str], None] | None) -> None:
    """Tell `listener` of each passage from now on; None ends it. Only a simulation listens."""
    global _listener  # noqa: PLW0603 - one per simulated world, and worlds do not overlap.
    _listener = listener


def passed(label: str) -> None:
    """Pass the failpoint `label`: end the process if the environment says so, otherwise go on."""
    if label == _label or _listener is not None:
        _pass(label)


def _pass(label: str) -> None:
    global _left  # noqa: PLW0603 - the process's own remaining life.
    if _listener is not None:
        _listener(label)
    if label != _label:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
