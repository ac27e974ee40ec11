"""Batches cover journals without a gap and without an overlap, whatever limits and index points say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.errors import ConfigError
from broadsheet.message.position import Position
from broadsheet.spark.offsets import (
    Positions,
    alive,
    decoded,
    encoded,
    ending,
    equal_tasks,
    limited,
    starting,
    tasks,
)

journals = st.dictionaries(st.sampled_from(["a/1", "a/2", "b/1"]), st.integers(0, 1000), min_size=1)


@given(
    journals, st.lists(st.integers(1, 1000), unique=True).map(sorted), st.integers(1, 400), st.integers(1, 5)
)
def test_batches_and_their_tasks_tile_every_journal(
    heads: dict[str, int], points: list[int], bytes_max: int, task_count: int
) -> None:
    """A gap loses messages, an overlap repeats them, and a batch without progress never ends.

    Source: pipelines.3.
    """
    end: Positions = {journal: Position(0, 1) for journal in heads}
    goal = {journal: Position(head, 1) for journal, head in heads.items()}
    at_points = dict.fromkeys(heads, points)
    covered = dict.fromkeys(heads, 0)
    while end != goal:
        start, end = end, limited(end, goal, at_points, bytes_max)
        assert end != start
        for group in tasks(start, end, at_points, task_count):
            for span in group:
                assert covered[span.journal] == span.begin < span.end
                covered[span.journal] = span.end
        assert covered == {journal: position.offset for journal, position in end.items()}


def test_a_batch_has_no_more_groups_than_tasks_though_its_last_span_is_one_byte() -> None:
    """Spark starts a task for each group, and runs as many at once as were asked for."""
    start, end = {"a/1": Position(0, 1)}, {"a/1": Position(10, 1)}

    assert [len(tasks(start, end, {"a/1": [9]}, count)) for count in (1, 2, 3)] == [1, 2, 2]


@given(journals, journals, st.integers(1, 12))
def test_equal_tasks_tile_the_batch_and_differ_by_one_byte(
    begins: dict[str, int], heads: dict[str, int], count: int
) -> None:
    """As many as were asked for, while there is a byte for each."""
    start = {journal: Position(at, 1) for journal, at in begins.items()}
    end = {journal: Position(at, 1) for journal, at in heads.items()}
    wanted = {name: (begins.get(name, 0), at) for name, at in heads.items() if at > begins.get(name, 0)}
    total = sum(stop - begin for begin, stop in wanted.values())

    groups = equal_tasks(start, end, count)
    sizes = [sum(span.end - span.begin for span in group) for group in groups]
    assert len(groups) == min(count, total)
    assert not sizes or max(sizes) - min(sizes) <= 1
    spans = [span for group in groups for span in group]
    for name, (begin, stop) in wanted.items():
        ours = [span for span in spans if span.journal == name]
        assert [ours[0].begin, *(span.end for span in ours)] == [*(span.begin for span in ours), stop]
        assert ours[0].begin == begin
    assert {span.journal for span in spans} == set(wanted)


def test_a_batch_read_ends_where_it_is_told() -> None:
    """A journal that is left out is read to its end, and no offset is taken that no journal has."""
    heads = {"a/1": Position(10, 1), "a/2": Position(20, 2)}

    assert ending("Latest", heads) == heads
    assert ending('{"a/1": 7}', heads) == {"a/1": Position(7, 1), "a/2": Position(20, 2)}
    for wrong in ("earliest", "[]", '{"x/y": 1}', '{"a/1": -1}', '{"a/1": 11}', '{"a/1": "7"}'):
        with pytest.raises(ConfigError, match="endingOffsets"):
            ending(wrong, heads)


def test_a_limit_ends_at_an_index_point_where_one_is_inside() -> None:
    """There the next batch knows all producers without reading anything twice; elsewhere it still goes on."""
    start, head = {"a/1": Position(0, 1)}, {"a/1": Position(1000, 1)}

    assert limited(start, head, {"a/1": [300, 700]}, 400)["a/1"].offset == 300
    assert limited(start, head, {"a/1": [700]}, 400)["a/1"].offset == 400


def test_what_one_journal_does_not_use_the_others_get() -> None:
    """A quiet journal must not slow a busy one."""
    heads = {"a/1": Position(10, 1), "a/2": Position(1000, 1)}

    ends = limited({}, heads, {}, 200)
    assert (ends["a/1"].offset, ends["a/2"].offset) == (10, 190)


def test_a_journal_that_was_made_again_is_read_from_its_begin() -> None:
    """The same offsets mean other bytes now (pipelines.2)."""
    start = {"a/1": Position(7, 1), "a/2": Position(7, 1), "a/3": Position(7, 1)}

    end = {"a/1": Position(9, 1), "a/2": Position(3, 2), "a/4": Position(9, 1, begin=5)}
    assert alive(start, end) == {
        "a/1": Position(7, 1),
        "a/2": Position(0, 2),
        "a/4": Position(5, 1, begin=5),
    }


def test_a_starting_point_is_explicit() -> None:
    """Spark asks again after a crash in the first batch; 'latest' would then be another place.

    Source: pipelines.4.
    """
    heads = {"a/1": Position(9, 1), "a/2": Position(9, 1, begin=5)}
    assert starting('{"a/1": 7}', heads) == {"a/1": Position(7, 1), "a/2": Position(5, 1, begin=5)}
    assert decoded(encoded(starting("earliest", heads))) == {
        "a/1": Position(0, 1),
        "a/2": Position(5, 1, begin=5),
    }
    with pytest.raises(ConfigError, match=r"below the begins of \['a/2 \(4, begin 5\)'\]"):
        starting('{"a/2": 4}', heads)
    wrongs = (
        "latest",
        "[]",
        '{"x/y": 1}',
        '{"a/1": -1}',
        '{"a/1": 1.9}',
        '{"a/1": "7"}',
        '{"a/1": true}',
        "7",
    )
    for wrong in wrongs:
        with pytest.raises(ConfigError, match="startingOffsets"):
            starting(wrong, {"a/1": Position(9, 1)})


def test_a_limit_of_a_byte_is_a_byte() -> None:
    """The smallest one there is, and what a limit below it means."""
    heads = {"a/1": Position(10, 1)}

    for bytes_max in (1, 0, -5):
        assert limited({}, heads, {}, bytes_max) == {"a/1": Position(1, 1)}
    assert limited({}, heads, {}, 2) == {"a/1": Position(2, 1)}
