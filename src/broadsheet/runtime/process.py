"""Process: the limit of open files at a start, and the end of a process that found a bug in itself (code.5).

At such an end nothing is flushed or closed: everything acknowledged is durable already, and wrong code must
not write more.
"""

import os
import resource
import sys
import traceback
from typing import Final

from broadsheet.observe.story import Story

EXIT_WRONG: Final = 70
"""Exit status after an assertion or a failed disk (EX_SOFTWARE of sysexits.h): the supervisor restarts us."""


def end_process(error: BaseException, story: Story | None = None) -> None:
    """Write `error` and the story to standard error and exit. Fits both a host's `crash` and a scope's."""
    lines = traceback.format_exception(error)
    if story is not None:
        lines += [f"story of {story.name}, oldest step first:\n", *(f"  {line}\n" for line in story.lines())]
    try:
        sys.stderr.write("".join(lines))
        sys.stderr.flush()
    finally:
        os._exit(EXIT_WRONG)


def lift_file_limit() -> int:
    """Raise the soft limit of open files to the hard limit; the limit from then on.

    Every open journal, segment and connection needs one. The usual soft limit of 1,024 is meant for programs
    that use `select`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft  # Some systems allow less than they say.
    return hard
