"""Offsets: where a query stands in its journals, where its next batch ends, and how a batch becomes tasks.

An offset is {journal: {offset, create_revision}}: its size grows with the number of journals and not with
the number of producers. Spans are half open, in bytes. A byte limit is rounded down to an index point if one
lies below it; otherwise the batch ends at an arbitrary byte (ADR 0070). Any cut is exact, because a message
belongs to the span that holds the last byte of its acknowledgement. A cut at an index point is cheaper to
read. This module does no IO. Source: pipelines.2-5.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
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
        journal: {"offset": position.offset, "create_revision": position.create_revision} | mode
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
        journal: Position(int(each["offset"]), int(each["create_revision"])) for journal, each in raw.items()
    }


def starting(option: str, revisions: Mapping[str, int]) -> Positions:
    """Where a new query begins.

    Args:
        option: `earliest`, or JSON {journal: byte offset}. A journal that the JSON leaves out begins at 0.
        revisions: the create revision of each journal that the query reads.

    Raises:
        ConfigError: `option` has another form, names a journal that the query does not read, or has an
            offset below 0.
    """
    if option == "earliest":
        return {journal: Position(0, revision) for journal, revision in revisions.items()}
    try:
        offsets = msgspec.json.decode(option, type=dict[str, int])
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"startingOffsets {option!r} is neither 'earliest' nor JSON of journal to byte offset. To begin "
            "at the present ends, take the options from broadsheet.spark.read_stream_options(latest=True), "
            "which pins them to byte offsets"
        ) from error
    if strangers := [each for each, at in offsets.items() if each not in revisions or at < 0]:
        raise ConfigError(
            f"startingOffsets names {strangers}: the query does not read such a journal, or the offset is "
            "below 0. Name journals that the query reads, with offsets of 0 or more"
        )
    return {journal: Position(offsets.get(journal, 0), revision) for journal, revision in revisions.items()}


def alive(start: Mapping[str, Position], end: Mapping[str, Position]) -> Positions:
    """The positions of `start` that are of the same lives of the journals as those of `end`.

    A journal that was deleted and created again is another one, and is read from its begin.
    """
    return {
        journal: position
        for journal, position in start.items()
        if journal in end and end[journal].create_revision == position.create_revision
    }


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
        ends[journal] = Position(max(begin, end), head.create_revision)
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
    pieces: list[Span] = []
    for journal in sorted(end):
        begin, stop = _offset(start, journal), end[journal].offset
        cuts = [begin, *(point for point in points.get(journal, ()) if begin < point < stop), stop]
        pieces += [Span(journal, low, high) for low, high in pairwise(cuts) if low < high]
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
