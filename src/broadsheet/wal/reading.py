"""Reading: a run is read back by its place, verified again, and cut at entries. Blocking; for a thread.

Log, lap, stream, offsets and checksum of the frame are compared with what the log remembers of the place. So
a segment that was damaged, or written over meanwhile, gives no run. This module keeps no state, and does not
find out why a run is missing: `Log.read` does. Source: `docs/protocols/wal.md`.
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
"""Frames with no larger gap between them are read in one go."""
JOINED_READ_BYTES_MAX = 1 << 20
"""Bytes that are read in one go at most, unless one frame is longer."""


class EntryChain(NamedTuple):
    """The term of one entry, and its stream's chain around it."""

    offset: Offset
    term: Term
    seed: int
    """The chain before the entry. A truncation from its offset needs this value."""
    crc: int
    """The chain after the entry."""


def read_places(
    files: dict[int, File], log_id: int, stream: LogStreamId, places: Sequence[Place]
) -> list[Run | None]:
    """The runs at `places`, in order; None for each that is not there as it was written.

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
            if not is_near or reach - first.at > JOINED_READ_BYTES_MAX:
                break
            stop, end = reach, end + 1
        data = read_around(files[first.lap], first.at, stop - first.at)
        found += [read_place(data, first.at, log_id, stream, each) for each in places[begin:end]]
        begin = end
    return found


def read_place(data: bytes, base: int, log_id: int, stream: int, place: Place) -> Run | None:
    """The run at `place`; None if it is not there as it was written.

    Args:
        base: where `data` begins in the segment.
    """
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
    """Like `read_place`, from a segment's content."""
    data = content.read(place.at, place.at + frame_bytes(place.length))
    return read_place(data, place.at, log_id, stream, place)
