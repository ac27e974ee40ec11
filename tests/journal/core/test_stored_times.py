"""Up to where all was stored before a time: what a listing tells, and what a walk through it would tell."""

from hypothesis import given
from hypothesis import strategies as st

from broadsheet.base.time import WallTime
from broadsheet.base.types import ByteOffset
from broadsheet.journal.core.fragment import Codec, Fragment
from broadsheet.journal.core.stored_times import StoredTimes

TIME = st.integers(0, 6).map(WallTime)


def fragment(begin: int, end: int) -> Fragment:
    return Fragment(begin=ByteOffset(begin), end=ByteOffset(end), sum=bytes(20), codec=Codec.NONE)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), TIME), max_size=8), TIME)
def test_it_is_the_end_of_the_last_fragment_before_the_first_that_is_as_young(
    given: list[tuple[int, int, WallTime]], time: WallTime
) -> None:
    """One without a time counts as young: a trim to a time must not remove it."""
    stored = [(fragment(begin, begin + length), modified) for begin, length, modified in given]
    below = 0
    for each, modified in sorted(stored, key=lambda one: (one[0].end, one[0].begin, one[1])):
        if not 0 < modified < time:
            break
        below = each.end
    assert StoredTimes(stored).before(time) == below
