"""Offsets of a query over several journals, and how a span of them is cut.

An offset is {journal: {offset, create_revision}}: as small as the number of journals, whatever the number
of producers. Spans are half open in bytes. A limit rounds down to an index point where one lies inside it;
else it cuts at bytes (ADR 0070): a message belongs to the span that holds the last byte of its
acknowledgement, so any cut is exact, and an index point is only cheaper. It reads nothing. Source:
pipelines.2-5.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from broadsheet.errors import ConfigError, LocalProtocolError


class Position(NamedTuple):
    """Where a query stands in one journal."""

    offset: int
    create_revision: int


class Span(NamedTuple):
    """Bytes `[begin, end)` of a journal, one work item of a task."""

    journal: str
    begin: int
    end: int


Positions = dict[str, Position]


def encoded(positions: Mapping[str, Position]) -> dict[str, dict[str, int]]:
    """For Spark, which compares texts: keys in a fixed order."""
    return {
        journal: {"offset": position.offset, "create_revision": position.create_revision}
        for journal, position in sorted(positions.items())
    }


def decoded(raw: Mapping[str, Any]) -> Positions:
    """What `encoded` gave."""
    return {
        journal: Position(int(each["offset"]), int(each["create_revision"])) for journal, each in raw.items()
    }


def starting(option: str, revisions: Mapping[str, int]) -> Positions:
    """Where a new query begins.

    Args:
        option: `earliest`, or JSON {journal: byte offset}; a journal that is not named begins at its
        beginning.
        revisions: the journals with their create revisions.

    Raises:
        ConfigError: neither, or it names a journal that the query does not read.
    """
    if option == "earliest":
        return {journal: Position(0, revision) for journal, revision in revisions.items()}
    try:
        offsets = msgspec.json.decode(option, type=dict[str, int])
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"startingOffsets {option!r} is neither 'earliest' nor JSON of journal to byte offset. "
            f"'latest' and times "
            "must be pinned before the query starts: broadsheet.spark.read_stream_options(latest=True) "
            "does so"
        ) from error
    if strangers := [each for each, at in offsets.items() if each not in revisions or at < 0]:
        raise ConfigError(f"startingOffsets: {strangers} not read by this query, or below 0")
    return {journal: Position(offsets.get(journal, 0), revision) for journal, revision in revisions.items()}


def refuse_remade(start: Mapping[str, Position], revisions: Mapping[str, int]) -> None:
    """Raise where a journal was deleted and made again since the checkpoint.

    Raises:
        LocalProtocolError: its offsets mean other bytes now.
    """
    for journal, position in start.items():
        now = revisions.get(journal, position.create_revision)
        if now != position.create_revision:
            raise LocalProtocolError(
                f"journal {journal} was deleted and made again (create revision "
                f"{position.create_revision}, now {now}): "
                "start with a new checkpoint and a new commit journal"
            )


def limited(
    start: Mapping[str, Position],
    heads: Mapping[str, Position],
    points: Mapping[str, Sequence[int]],
    bytes_max: int,
) -> Positions:
    """The end of the next batch: at most `bytes_max` above `start`, shared among the journals.

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
    """The spans of a batch in about `task_count` groups of like size, cut at index points.

    Spans of one journal that fall into one group are one span, in order; so order per producer holds
    within a group.
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
