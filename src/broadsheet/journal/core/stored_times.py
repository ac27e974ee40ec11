"""Stored times: up to where all of a journal was in its store before a time.

They are made of one listing, which costs a microsecond and more for each fragment; a question costs little,
however many there are. Offsets are bytes, times those of the store's clock. Source: journals.32.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from broadsheet.base.time import WallTime
from broadsheet.base.types import ByteOffset
from broadsheet.journal.core.fragment import Fragment

NEVER: Final = WallTime(1 << 64)
"""Above every time that is asked about."""


class StoredTimes:
    """The times at which a store got the fragments of one journal."""

    __slots__ = ("_ends", "_latest")

    def __init__(self, stored: Iterable[tuple[Fragment, WallTime]]) -> None:
        """Take fragments, each with its time; 0: the store does not know it, so that it counts as new."""
        self._ends: list[ByteOffset] = []
        self._latest: list[WallTime] = []
        """The latest time of the fragment with that end, and of all before it."""
        latest = WallTime(0)
        for end, _, time in sorted([(each.end, each.begin, time) for each, time in stored]):
            latest = max(latest, time if time > 0 else NEVER)
            self._ends.append(end)
            self._latest.append(latest)

    def before(self, time: WallTime) -> ByteOffset:
        """The greatest end of a fragment below which all was stored before `time`; 0 if nothing was."""
        count = bisect_left(self._latest, time)
        return self._ends[count - 1] if count else ByteOffset(0)
