"""Remedies: what an operator is told to do about a journal that takes no appends, or that wants a file."""

import errno

from broadsheet.base.time import SECOND, Duration
from broadsheet.base.types import JournalName


class TooManyClosed(OSError):  # noqa: N818 - as the names of `broadsheet.errors`.
    """So many closed fragments wait for their store that no other may join them. Nothing changed."""

    def __init__(self, count: int) -> None:
        super().__init__(
            errno.ENOSPC,
            f"{count} closed fragments of it wait for their store, as many as may"
            " (journals.closed_fragments_max), and appends go on when some are stored: look whether the store"
            " answers, and whether fragment.length is too small",
        )


def require_place(count: int, most: int) -> None:
    """Refuse to close another fragment where `count` would wait for the store, and `most` may.

    Raises:
        OSError: it would be one too many.
    """
    if count > most:
        raise TooManyClosed(most)


def want_of(error: Exception) -> str:
    """What was missing for an append that is refused, and what to do about it."""
    if isinstance(error, TooManyClosed):
        return str(error.strerror)
    return f"there was no space for it: {error}: free some"


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
