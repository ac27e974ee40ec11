"""Failpoints: labelled places at which a test ends the process, as kill -9 would.

`BROADSHEET_FAILPOINT=label:count` in the environment kills the process at the count-th passage (from 1) of
`label`. Hosts, services and procedures pass through them; machines never do.
"""

import os
import signal

VARIABLE = "BROADSHEET_FAILPOINT"

_label, _, _count = os.environ.get(VARIABLE, "").partition(":")
_left = int(_count or 1) if _label else 0


def passed(label: str) -> None:
    """Go on, unless this is the place and the time to die."""
    global _left  # noqa: PLW0603 - the process's own remaining life.
    if label != _label:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
