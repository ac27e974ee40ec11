"""The index of fragments: what covers what, however they come."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.base.types import ByteOffset
from broadsheet.journal.core.fragment import Codec, Fragment, parse_name
from broadsheet.journal.core.fragment_index import Index


def fragment(begin: int, end: int, content: int = 0) -> Fragment:
    return Fragment(ByteOffset(begin), ByteOffset(end), bytes([content]) * 20, Codec.NONE)


spans = st.tuples(st.integers(0, 12), st.integers(1, 8), st.integers(0, 1))


@given(st.lists(spans, max_size=12))
def test_fragments_in_any_order_make_the_cover_that_a_naive_search_finds(
    wanted: list[tuple[int, int, int]],
) -> None:
    """Oracle: what no other one contains stays, by the first of each range; the rest is passed over."""
    fragments = [fragment(begin, begin + length, content) for begin, length, content in wanted]
    index = Index()
    for each in fragments:
        index.add(each)
        index.check()
    ranges = dict.fromkeys((f.begin, f.end) for f in fragments)
    cover = sorted(r for r in ranges if not any(o != r and o[0] <= r[0] and r[1] <= o[1] for o in ranges))

    assert [(f.begin, f.end) for f in index.fragments()] == cover
    for offset in map(ByteOffset, range(22)):
        reach = [end for begin, end in cover if begin <= offset < end]
        found = index.covering(offset)
        assert (found.end if found else None) == (max(reach) if reach else None)
        assert index.next_begin(offset) == next((begin for begin, _ in cover if begin > offset), None)
        assert [f.end for f in index.page(offset, 2)] == [end for _, end in cover if end > offset][:2]
        assert index.next_end(offset) == next((end for _, end in cover if end > offset), None)


def test_two_contents_of_one_range_are_a_conflict_there_and_nowhere_else() -> None:
    """journals.10: neither is forgotten."""
    index = Index([fragment(0, 4), fragment(4, 8), fragment(4, 8, 1), fragment(4, 8, 2), fragment(4, 8, 1)])

    assert len(index.first_conflict()) == 3
    assert index.conflict_at(ByteOffset(5)) == index.first_conflict()
    assert index.conflict_at(ByteOffset(3)) == ()


def test_a_journal_with_many_fragments_is_indexed_without_looking_at_all_of_them_each_time() -> None:
    """The loop is sacred (node.2): this took a minute of it at the start of a node, in one callback."""
    begun = time.process_time()
    index = Index(fragment(n, n + 1) for n in range(40_000))

    assert len(index) == 40_000
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("begin", "end", "suffix"),
    [(0, 9, ".lzo"), (9, 9, ".raw"), (10, 9, ".raw"), (0, 1 << 63, ".raw"), (5, 5, ".lzo")],
)
def test_a_file_of_another_codec_or_of_no_span_is_no_fragment(begin: int, end: int, suffix: str) -> None:
    """A store may hold what others put there: whoever took it for content would serve it, or end."""
    name = f"{begin:016x}-{end:016x}-{bytes(20).hex()}{suffix}"

    assert parse_name(name) is None
    assert parse_name(fragment(3, 9).name) == fragment(3, 9)
