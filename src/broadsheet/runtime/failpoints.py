"""Failpoints: labelled places at which a test ends the process, as kill -9 would.

`BROADSHEET_FAILPOINT=label:count` in the environment kills the process at the count-th passage (from 1) of
`label`. Hosts, services and procedures pass through them; machines never do.
"""

import os
import signal
from collections.abc import Callable

VARIABLE = "BROADSHEET_FAILPOINT"

_label, _, _count = os.environ.get(VARIABLE, "").partition(":")
_left = int(_count or 1) if _label else 0
_listener: Callable[[str], None] | None = None


def install(listener: Callable[[str], None] | None) -> None:
    """Tell `listener` of each passage from now on; None ends it. Only a simulation listens."""
    global _listener  # noqa: PLW0603 - one per simulated world, and worlds do not overlap.
    _listener = listener


def passed(label: str) -> None:
    """Go on, unless this is the place and the time to die."""
    global _left  # noqa: PLW0603 - the process's own remaining life.
    if _listener is not None:
        _listener(label)
    if label != _label:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
