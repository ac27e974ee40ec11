"""Troubles: which journals of a node are stopped, and whose store does not take fragments or does not answer.

Whoever changes a field that decides one of the two calls `judge` in the same turn of the loop. A scrape
therefore reads two lengths: a walk over 10,000 journals held the loop for 48 ms and more. `check` makes that
walk. A journal's own status tells the reason.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from broadsheet.journal.spool_file import SpoolFile


class Judged(Protocol):
    """The fields of an open journal that decide."""

    is_closed: bool
    closed: list[SpoolFile]

    @property
    def is_listed(self) -> bool:
        """Whether its store has answered since the start."""
        ...

    @property
    def has_stopped(self) -> bool:
        """Whether it refuses content, or some of its own is damaged."""
        ...


class Troubles:
    """The stopped and the unstored journals of a node, counted as they change."""

    def __init__(self) -> None:
        self._stopped: dict[Judged, None] = {}
        self._unstored: dict[Judged, None] = {}

    @property
    def stopped_count(self) -> int:
        """How many journals refuse content or have damaged content."""
        return len(self._stopped)

    @property
    def unstored_count(self) -> int:
        """How many journals have a silent store, or one that did not take a fragment as it is."""
        return len(self._unstored)

    def has_stopped(self, journal: Judged) -> bool:
        """Whether `journal` is among the stopped ones."""
        return journal in self._stopped

    def is_unstored(self, journal: Judged) -> bool:
        """Whether `journal` is among the unstored ones."""
        return journal in self._unstored

    def judge(self, journal: Judged) -> None:
        """Count `journal` by its fields as they are now; one that is closed counts nowhere."""
        for found, is_one in ((self._stopped, journal.has_stopped), (self._unstored, _is_unstored(journal))):
            if is_one and not journal.is_closed:
                found[journal] = None
            else:
                found.pop(journal, None)

    def check(self, journals: Sequence[Judged]) -> None:
        """Assert that the counts are those of a walk over `journals`, all that are open."""
        _same("stopped", self._stopped, [each for each in journals if each.has_stopped])
        _same("unstored", self._unstored, [each for each in journals if _is_unstored(each)])


def _same(what: str, counted: Iterable[Judged], walked: Sequence[Judged]) -> None:
    unlike = set(counted) ^ set(walked)
    assert not unlike, f"{len(unlike)} journals became {what}, or are so no longer, and were not judged"


def _is_unstored(journal: Judged) -> bool:
    return not journal.is_listed or any(spool.store_fault for spool in journal.closed)
