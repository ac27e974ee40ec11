"""The end of a process that found itself wrong: say why, with the machine's story, and exit (STYLE 7).

Nothing is flushed or closed on the way: what was acknowledged is durable already, and code that is wrong
must not write more.
"""

import os
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
