"""Offsets: where a query stands in its journals, where its next batch ends, and how a batch becomes tasks.

An offset is {journal: {offset, create_revision}}: its size grows with the number of journals and not with
the number of producers. Spans are half open, in bytes. A byte limit is rounded down to an index point if one
lies below it; otherwise the batch ends at an arbitrary byte (ADR 0070). Any cut is exact, because a message
belongs to the span that holds the last byte of its acknowledgement. A cut at an index point is cheaper to
read. This module does no IO. Source: pipelines.2-5.
"""

from bisect import bisect_right
from collections.abc import Container, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

from broadsheet.errors import ConfigError, LocalProtocolError
from broadsheet.message.position import Position


class Span(NamedTuple):
    """Bytes `[begin, end)` of a journal, read as one piece by one task."""

    journal: str
    begin: int
    end: int


Positions = dict[str, Position]
UNCOMMITTED: Final = "uncommitted"
"""The key that an offset has only with option `readCommitted=false`."""


def encoded(positions: Mapping[str, Position], *, is_committed: bool = True) -> dict[str, dict[str, int]]:
    """The offset as JSON for Spark, keys in a fixed order because Spark compares offsets as text.

    Args:
        is_committed: whether the query reads only committed messages. Otherwise the offset says so.
    """
    mode = {} if is_committed else {UNCOMMITTED: 1}
    return {
        journal: {"offset": position.offset, "create_revision": position.create_revision}
        | ({"begin": position.begin} if position.begin else {})
        | mode
        for journal, position in sorted(positions.items())
    }


def refuse_other_mode(raw: Mapping[str, Any], *, is_committed: bool) -> None:
    """Refuse an offset of a query that had the other value of option `readCommitted`.

    Raises:
        LocalProtocolError: messages that were pending at this offset would be read twice, or never.
    """
    if any((UNCOMMITTED in each) == is_committed for each in raw.values()):
        now, before = ("true", "false") if is_committed else ("false", "true")
        raise LocalProtocolError(
            f"option readCommitted is {now}, and the checkpoint was written with {before}: messages that "
            "were pending between two batches would be read twice, or never. Set the option as it was, or "
            "start with a new checkpoint and a new commit journal"
        )


def decoded(raw: Mapping[str, Any]) -> Positions:
    """The inverse of `encoded`."""
    return {
        journal: Position(int(each["offset"]), int(each["create_revision"]), begin=int(each.get("begin", 0)))
        for journal, each in raw.items()
    }


def at_begin(head: Position) -> Position:
    """The first offset of a journal that can be read, of what is known of it at its end."""
    return head._replace(offset=head.begin)


def as_planned(start: Mapping[str, Position], end: Mapping[str, Position]) -> Positions:
    """`start` as it was when a batch to `end` was planned first.

    Of a first batch that is planned again Spark asks for the first offset again. A journal that was trimmed
    meanwhile begins above what that batch was to read.
    """

    def was(name: str, at: Position) -> Position:
        then = end.get(name, at)
        is_later = at.create_revision == then.create_revision and at.begin > then.begin
        return at_begin(then) if is_later and at.offset == at.begin else at

    return {name: was(name, at) for name, at in start.items()}


def starting(option: str, heads: Mapping[str, Position]) -> Positions:
    """Where a new query begins.

    Args:
        option: `earliest`, or JSON {journal: byte offset}. A journal that the JSON leaves out is read from
            its begin.
        heads: the committed end and the begin of each journal that the query reads.

    Raises:
        ConfigError: `option` has another form, names a journal that the query does not read, or has an
            offset below 0, or below the journal's begin.
    """
    if option.strip().lower() == "earliest":
        return {journal: at_begin(head) for journal, head in heads.items()}
    offsets = _explicit(
        "startingOffsets",
        option,
        heads,
        "is neither 'earliest' nor JSON of journal to byte offset. To begin at the present ends, take the "
        "options from broadsheet.spark.read_stream_options(latest=True), which pins them to byte offsets",
    )
    if below := [
        f"{each} ({at}, begin {heads[each].begin})" for each, at in offsets.items() if at < heads[each].begin
    ]:
        raise ConfigError(
            f"startingOffsets is below the begins of {below}, and what lies between was removed: give "
            "offsets from the begins on"
        )
    return {each: head._replace(offset=offsets.get(each, head.begin)) for each, head in heads.items()}


def ending(option: str, heads: Mapping[str, Position]) -> Positions:
    """Where a batch read ends.

    Args:
        option: `latest`, or JSON {journal: byte offset}. A journal that the JSON leaves out is read to its
            end.
        heads: the committed end of each journal that the query reads.

    Raises:
        ConfigError: `option` has another form, names a journal that the query does not read, or has an
            offset below 0 or above the journal's end.
    """
    if option.strip().lower() == "latest":
        return dict(heads)
    offsets = _explicit(
        "endingOffsets", option, heads, "is neither 'latest' nor JSON of journal to byte offset"
    )
    if above := [
        f"{each} ({at}, end {heads[each].offset})" for each, at in offsets.items() if at > heads[each].offset
    ]:
        raise ConfigError(f"endingOffsets is above the ends of {above}: give an offset up to each end")
    return {each: head._replace(offset=offsets.get(each, head.offset)) for each, head in heads.items()}


def _explicit(name: str, option: str, journals: Container[str], otherwise: str) -> dict[str, int]:
    """The offsets that JSON gives.

    Raises:
        ConfigError: it is no such JSON, names none of `journals`, or has an offset below 0.
    """
    try:
        offsets = msgspec.json.decode(option, type=dict[str, int])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{name} {option!r} {otherwise}") from error
    if strangers := [each for each, at in offsets.items() if each not in journals or at < 0]:
        raise ConfigError(
            f"{name} names {strangers}: the query does not read such a journal, or the offset is below 0. "
            "Name journals that the query reads, with offsets of 0 or more"
        )
    return offsets


def alive(start: Mapping[str, Position], end: Mapping[str, Position]) -> Positions:
    """Where a batch begins in each journal of `end`.

    A journal that was deleted and created again is another one, and is read from its begin, as one that
    `start` does not have.
    """
    return {journal: _alive(start.get(journal), at) for journal, at in end.items()}


def _alive(start: Position | None, end: Position) -> Position:
    if start is None or start.create_revision != end.create_revision or start.offset < end.begin:
        return at_begin(end)
    return start


def limited(
    start: Mapping[str, Position],
    heads: Mapping[str, Position],
    points: Mapping[str, Sequence[int]],
    bytes_max: int,
) -> Positions:
    """The end of the next batch: about `bytes_max` above `start`, shared among the journals.

    The journal with the least left to read comes first, so that the others share what it does not need.

    Args:
        points: index points of each journal, ascending.
    """
    ends: Positions = {}
    left = max(1, bytes_max)
    behind = sorted(heads, key=lambda journal: (heads[journal].offset - _offset(start, journal), journal))
    for place, journal in enumerate(behind):
        begin, head = _offset(start, journal), heads[journal]
        share = max(1, left // (len(behind) - place))
        end = min(head.offset, begin + share)
        if begin < end < head.offset:
            at = bisect_right(points.get(journal, ()), end) - 1
            point = points[journal][at] if at >= 0 else -1
            end = point if point > begin else end
        left = max(1, left - max(0, end - begin))
        ends[journal] = head._replace(offset=max(begin, end))
    return ends


def _offset(positions: Mapping[str, Position], journal: str) -> int:
    return positions[journal].offset if journal in positions else 0


def tasks(
    start: Mapping[str, Position],
    end: Mapping[str, Position],
    points: Mapping[str, Sequence[int]],
    task_count: int,
) -> list[list[Span]]:
    """The spans of a batch, in at most `task_count` groups of similar size. Spans are cut at index points.

    Neighbouring spans of one journal in the same group are joined, so a task sees each producer's messages
    in order.
    """
    pieces = [
        Span(whole.journal, low, high)
        for whole in _wholes(start, end)
        for low, high in pairwise(
            [
                whole.begin,
                *(at for at in points.get(whole.journal, ()) if whole.begin < at < whole.end),
                whole.end,
            ]
        )
    ]
    total = sum(piece.end - piece.begin for piece in pieces)
    groups: list[list[Span]] = []
    filled, share = 0, -(-total // max(1, task_count))
    for piece in pieces:
        if not groups or filled >= share * len(groups):
            groups.append([])
        group = groups[-1]
        if group and group[-1].journal == piece.journal and group[-1].end == piece.begin:
            group[-1] = Span(piece.journal, group[-1].begin, piece.end)
        else:
            group.append(piece)
        filled += piece.end - piece.begin
    return groups


def base_of(points: Sequence[int], begin: int) -> int:
    """The newest of a journal's index points at or below `begin`; 0, its begin, if there is none."""
    at = bisect_right(points, begin)
    return points[at - 1] if at else 0


def equal_tasks(
    start: Mapping[str, Position], end: Mapping[str, Position], task_count: int
) -> list[list[Span]]:
    """The spans of a batch in exactly `task_count` groups of equal size, cut at any byte.

    A batch of fewer bytes has a group for each byte. A task whose span begins between index points reads from
    the point below, so finer cuts cost reads (ADR 0070).
    """
    wholes = _wholes(start, end)
    total = sum(whole.end - whole.begin for whole in wholes)
    count = min(task_count, total)
    groups: list[list[Span]] = [[] for _ in range(count)]
    passed = 0  # How many bytes of the batch lie before this journal.
    for journal, begin, stop in wholes:
        at = begin
        while at < stop:
            group = ((passed + at - begin) * count) // total
            cut = begin - passed + -(-((group + 1) * total) // count)
            groups[group].append(Span(journal, at, min(stop, cut)))
            at = min(stop, cut)
        passed += stop - begin
    return groups


def _wholes(start: Mapping[str, Position], end: Mapping[str, Position]) -> list[Span]:
    """What the batch has of each journal, by name, if it has anything."""
    spans = [Span(journal, _offset(start, journal), end[journal].offset) for journal in sorted(end)]
    return [span for span in spans if span.begin < span.end]
