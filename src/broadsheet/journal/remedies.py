"""Remedies: what an operator is told to run about a journal that takes no appends, or that wants a file."""

from broadsheet.base.time import SECOND, Duration
from broadsheet.base.types import JournalName


def accept_loss(name: JournalName) -> str:
    """Bytes of it are damaged or missing."""
    return f"`broadsheet journals accept-loss {name}` shows what is lost, and goes on without it"


def reset_head(name: JournalName) -> str:
    """A greater offset is known than could be reached."""
    return f"`broadsheet journals reset-head {name}` shows what is lost, and goes on above it"


def more_files(wait: Duration) -> str:
    """None could be opened for `wait`."""
    return (
        f"no file could be opened for it within journals.descriptor_wait, {wait / SECOND:g} s: raise the"
        " limit of open files (ulimit -n)"
    )
