"""Troubles: which journals of a node are stopped, or not open yet, or have a store that is silent or refuses.

Whoever changes a field that decides one of the two calls `judge` in the same turn of the loop. A scrape
therefore reads two lengths: a walk over 10,000 journals held the loop for 48 ms and more. `check` makes that
walk. A journal's own status tells the reason.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from broadsheet.base.time import SECOND, Duration, Instant, since
from broadsheet.base.types import JournalName
from broadsheet.journal.spool_file import SpoolFile

ROOM_AGE_MAX: Final = Duration(5 * SECOND)
"""How long an append that the disk had no space for counts: nobody says when there is room again."""


class Judged(Protocol):
    """The fields of an open journal that decide whether it is in trouble."""

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
        self._untried: dict[JournalName, None] = {}
        """Journals of this start whose first opening has not ended."""
        self._unopened: dict[JournalName, None] = {}
        """Journals whose last opening failed."""
        self._lacked_at: Instant | None = None

    @property
    def stopped_count(self) -> int:
        """How many journals refuse content or have damaged content."""
        return len(self._stopped)

    @property
    def unstored_count(self) -> int:
        """How many journals have a silent store, or one that did not take a fragment as it is."""
        return len(self._unstored)

    @property
    def untried_count(self) -> int:
        """How many journals of this start wait for the end of their first opening."""
        return len(self._untried)

    @property
    def unopened_count(self) -> int:
        """How many journals could not be opened, and are tried again."""
        return len(self._unopened)

    def waits(self, name: JournalName) -> None:
        """A journal of this start will be opened."""
        self._untried[name] = None

    def tried(self, name: JournalName, *, is_failed: bool) -> None:
        """An opening of the journal has ended, or the journal was deleted meanwhile."""
        self._untried.pop(name, None)
        if is_failed:
            self._unopened[name] = None
        else:
            self._unopened.pop(name, None)

    def lacked_room(self, now: Instant) -> None:
        """The disk had no space for an append."""
        self._lacked_at = now

    def lacks_room(self, now: Instant) -> bool:
        """Whether an append found no space on the disk in the last `ROOM_AGE_MAX`."""
        return self._lacked_at is not None and since(self._lacked_at, now) <= ROOM_AGE_MAX

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
