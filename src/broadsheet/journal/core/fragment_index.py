"""Fragment index: which fragments of a journal are stored, and which of them covers an offset.

Offsets are bytes. Fragments are sorted by begin and by end, and none lies within another; a larger fragment
replaces those that it covers. Two fragments of equal range with different sums are a conflict. The index
keeps both and never picks one: reads of the range are refused (journals.10). Source: journals.10,
journals.15.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from broadsheet.base.types import ByteOffset
from broadsheet.journal.core.fragment import Fragment


def _by_begin(fragment: Fragment) -> tuple[int, int]:
    return fragment.begin, -fragment.end


def _begin(fragment: Fragment) -> ByteOffset:
    return fragment.begin


def _end(fragment: Fragment) -> ByteOffset:
    return fragment.end


class Index:
    """The stored fragments of one journal."""

    def __init__(self, fragments: Iterable[Fragment] = ()) -> None:
        """Index `fragments`."""
        self._cover: list[Fragment] = []
        self._conflicts: dict[tuple[int, int], list[Fragment]] = {}
        for fragment in sorted(fragments, key=_by_begin):
            self.add(fragment)

    def __len__(self) -> int:
        return len(self._cover)

    @property
    def begin(self) -> ByteOffset:
        """The begin of the first fragment; 0 if there is none."""
        return self._cover[0].begin if self._cover else ByteOffset(0)

    @property
    def end(self) -> ByteOffset:
        """The greatest end of any fragment; 0 if there is none."""
        return self._cover[-1].end if self._cover else ByteOffset(0)

    def fragments(self) -> list[Fragment]:
        """The fragments, by offset, without those that a larger one covers."""
        return list(self._cover)

    def page(self, beyond: ByteOffset, count: int) -> list[Fragment]:
        """The first `count` of `fragments` that end above `beyond`."""
        at = bisect_right(self._cover, beyond, key=_end)
        return self._cover[at : at + count]

    def everything(self) -> list[Fragment]:
        """`fragments`, and all of each conflict."""
        return [*self._cover, *(each for found in self._conflicts.values() for each in found)]

    def first_conflict(self) -> tuple[Fragment, ...]:
        """The first group of fragments of one range with different sums; empty if there is none."""
        return tuple(next(iter(self._conflicts.values()), ()))

    def add(self, fragment: Fragment) -> None:
        """Add a stored `fragment` to the index; nothing changes if another one covers it."""
        # Begins and ends rise together. So of all that begin at or below it, the last one reaches furthest.
        at = bisect_right(self._cover, fragment.begin, key=_begin)
        if at and fragment.end <= self._cover[at - 1].end:
            other = self._cover[at - 1]
            if (other.begin, other.end) == (fragment.begin, fragment.end) and other.sum != fragment.sum:
                found = self._conflicts.setdefault((other.begin, other.end), [other])
                if fragment.sum not in [each.sum for each in found]:
                    found.append(fragment)
            return
        first = bisect_left(self._cover, fragment.begin, key=_begin)
        stop = bisect_right(self._cover, fragment.end, lo=first, key=_end)
        self._cover[first:stop] = [fragment]

    def forget(self, below: ByteOffset) -> None:
        """Leave out every fragment that ends at or below an offset: nobody finds it here any more."""
        del self._cover[: bisect_right(self._cover, below, key=_end)]
        self._conflicts = {span: found for span, found in self._conflicts.items() if span[1] > below}

    def last_end(self, at_most: ByteOffset) -> ByteOffset | None:
        """The greatest end of a fragment at or below an offset; None if there is none."""
        at = bisect_right(self._cover, at_most, key=_end)
        return self._cover[at - 1].end if at else None

    def covering(self, offset: ByteOffset) -> Fragment | None:
        """Of the fragments that contain `offset`, the one that reaches furthest; None if there is none."""
        at = bisect_right(self._cover, offset, key=_begin)
        if at and offset < self._cover[at - 1].end:
            return self._cover[at - 1]
        return None

    def next_begin(self, offset: ByteOffset) -> ByteOffset | None:
        """Where the first fragment above `offset` begins; None if there is none."""
        at = bisect_right(self._cover, offset, key=_begin)
        return self._cover[at].begin if at < len(self._cover) else None

    def next_end(self, offset: ByteOffset) -> ByteOffset | None:
        """Where the first fragment that reaches beyond `offset` ends; None if none does."""
        at = bisect_right(self._cover, offset, key=_end)
        return self._cover[at].end if at < len(self._cover) else None

    def conflict_at(self, offset: ByteOffset) -> tuple[Fragment, ...]:
        """The fragments whose conflict includes `offset`; empty if there is none."""
        for (begin, end), found in self._conflicts.items():
            if begin <= offset < end:
                return tuple(found)
        return ()

    def check(self) -> None:
        """Assert the invariants."""
        for low, high in zip(self._cover, self._cover[1:], strict=False):
            assert low.begin < high.begin, "begins rise"
            assert low.end < high.end, "ends rise"
