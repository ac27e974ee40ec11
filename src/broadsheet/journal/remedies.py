"""Remedies: the commands and settings that error texts about journals recommend."""

import errno
from collections.abc import Sequence

from broadsheet.base.types import JournalName
from broadsheet.journal.core.fragment import Fragment


class TooManyClosed(OSError):  # noqa: N818 - as the names of `broadsheet.errors`.
    """The allowed number of closed fragments waits for the store, so no other is closed. Nothing changed."""

    def __init__(self, count: int) -> None:
        super().__init__(
            errno.ENOSPC,
            f"{count} closed fragments of it wait for their store, as many as may"
            " (journals.closed_fragments_max), and appends go on when some are stored: look whether the store"
            " answers, and whether fragment.length is too small",
        )


def require_place(count: int, most: int) -> None:
    """Refuse to close another fragment if then `count` would wait for the store, and only `most` may.

    Raises:
        TooManyClosed: `count` is above `most`.
    """
    if count > most:
        raise TooManyClosed(most)


def shortage_of(error: Exception) -> str:
    """Why there was no room for an append, with the remedy."""
    if isinstance(error, TooManyClosed):
        return str(error.strerror)
    return f"there was no space for it: {error}: free some"


def disagreement(fragments: Sequence[Fragment]) -> str:
    """The reason and the remedy if the store has several contents for one range; empty if it has not."""
    if not fragments:
        return ""
    return (
        f"{' and '.join(each.name for each in fragments)} disagree in the fragment store, so none of them is"
        " served: find out which one is right, move the others away, and start the node again"
    )


def silent(why: str) -> str:
    """The reason in the status of a journal whose store has not listed it yet; `why` may be unknown."""
    return (
        f"the fragment store has not answered since the start, and cannot be read yet: {why or 'it is asked'}"
    )


def unproven(directory: str, names: Sequence[str]) -> str:
    """The reason in the status of a sound journal that has files moved aside; empty if it has none."""
    if not names:
        return ""
    return (
        f"{len(names)} files in {directory} keep bytes that nothing proves, {names[0]} first: an append among"
        " them may have been acknowledged. Look at them, then move them away"
    )


def accept_loss(name: JournalName) -> str:
    """The remedy if bytes of a journal are damaged or missing, or an offset above its head is known."""
    return f"`broadsheet journals accept-loss {name}` shows what is lost, and goes on without it"


def registers_lost(name: JournalName) -> str:
    """The reason in the status of a journal whose registers are lost; other appends it takes."""
    return f"its registers are lost, and no append may check or set one: {accept_loss(name)}"


def retention_rests(name: JournalName) -> str:
    """The reason in the status of a journal whose retention removes nothing after a loss of the key space."""
    return (
        "its retention rests, because the key space lost records, and a later retention may have been among"
        f" them: `broadsheet journals alter {name}` with `--retention`, `--retained-bytes` or both, as it has"
        " them, says it again, and `broadsheet keyspace drop-orphans`, while the node is stopped, has all go"
        " on as they are"
    )


def lost_index(name: JournalName) -> str:
    """The remedy if a journal's first bytes are gone, and so are its producer indexes."""
    return (
        f"no reader of its messages can begin. Put the files of .broadsheet/{name}/ back into its store, and"
        f" start the node again; or make another journal of what is left: `broadsheet journals export {name}`"
        " and `broadsheet journals import`"
    )


def unreadable(name: JournalName, file: str, begin: int) -> str:
    """The reason in the status of a journal that serves all but the damaged blocks of a spool file.

    Args:
        begin: of the first damaged block.
    """
    what = f"{file} is damaged at {begin}, and the log does not have its content any more"
    return f"journal {name}: {what}: {accept_loss(name)}"
