"""Reading back: a run of the log by its place, verified again, cut at entries. Blocking; for a thread.

A frame vouches for itself: log, lap, stream, offsets and checksum are compared with what the log remembers of
the place, so a segment that was written over meanwhile, or damaged, gives nothing. It keeps no state, and
says nothing of why a run is not there: `Log.read` finds out. Source: `docs/protocols/wal.md`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import LogStreamId, Offset, Term
from broadsheet.ports import File
from broadsheet.wal.format import FRAME_BYTES, Kind, frame_bytes
from broadsheet.wal.record import Run, after_entries
from broadsheet.wal.scan import Content, read_frame
from broadsheet.wal.segments import read_around
from broadsheet.wal.stream import Place

JOIN_GAP_BYTES = 16 << 10
"""Frames that lie no further apart are read in one go."""
JOIN_BYTES_MAX = 1 << 20
"""Read in one go at most, unless one frame is longer."""


class Entry(NamedTuple):
    """One entry, as its stream's chain knows it."""

    offset: Offset
    term: Term
    seed: int
    """The chain before it: what a truncation from its offset goes on with."""
    crc: int
    """The chain after it."""


def read_places(
    files: dict[int, File], log_id: int, stream: LogStreamId, places: Sequence[Place]
) -> list[Run | None]:
    """The runs at `places`; None for one that is not there as it was written.

    Args:
        files: by lap.
    """
    found: list[Run | None] = []
    begin = 0
    while begin < len(places):
        end, first = begin + 1, places[begin]
        stop = first.at + frame_bytes(first.length)
        while end < len(places):
            after = places[end]
            reach = after.at + frame_bytes(after.length)
            is_near = after.lap == first.lap and stop <= after.at <= stop + JOIN_GAP_BYTES
            if not is_near or reach - first.at > JOIN_BYTES_MAX:
                break
            stop, end = reach, end + 1
        data = read_around(files[first.lap], first.at, stop - first.at)
        found += [read_place(data, first.at, log_id, stream, each) for each in places[begin:end]]
        begin = end
    return found


def read_place(data: bytes, base: int, log_id: int, stream: int, place: Place) -> Run | None:
    """The run at `place`, of `data` that begins at `base` of its segment."""
    at = place.at - base
    header = read_frame(data, at)
    if (
        header is None
        or header.kind not in (Kind.RUN, Kind.COPY)
        or (header.log_id, header.lap, header.stream) != (log_id, place.lap, stream)
        or (header.offset, header.length) != (place.begin, place.length)
        or header.offset + header.entries < place.end
        or at + FRAME_BYTES + header.length > len(data)
    ):
        return None
    content = data[at + FRAME_BYTES : at + FRAME_BYTES + header.length]
    if crc32c(content, header.seed) != header.crc:
        return None
    count = place.end - place.begin
    if count < header.entries:
        cut = after_entries(content, count)
        if cut is None:
            return None
        content = content[:cut]
    crc = header.crc if count == header.entries else crc32c(content, header.seed)
    if crc != place.crc:
        return None
    return Run(Offset(place.begin), count, header.seed, crc, content)


def read_content(content: Content, log_id: int, stream: int, place: Place) -> Run | None:
    """As `read_place`, from a segment's content."""
    data = content.read(place.at, place.at + frame_bytes(place.length))
    return read_place(data, place.at, log_id, stream, place)
