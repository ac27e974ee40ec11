"""Log image: what recovery would find in a log, from the bytes of its disk. Nothing is written.

It uses the product's own survey and recovery, and then reads each record. A record that recovery counts and
that cannot be read is reported as one with wrong bytes. `logmodel` and `tests/wal/histories.py` judge the
result.
"""

from typing import Final, NamedTuple

from broadsheet.base.types import Offset, Term
from broadsheet.wal.extents import EXTENTS_NAME, extents_path, unpack
from broadsheet.wal.format import BatchHeader
from broadsheet.wal.log import Log
from broadsheet.wal.reading import read_content
from broadsheet.wal.record import Record
from broadsheet.wal.recovery import Recovery
from broadsheet.wal.scan import Content, batches
from broadsheet.wal.segments import segment_index
from broadsheet.wal.stream import Place
from broadsheet.wal.stream_replay import FoundRun, Point
from broadsheet.wal.survey import log_id_of, shorter, survey

DIRECTORY: Final = "wal"
UNREADABLE: Final = b"what recovery took cannot be read"


class Kept(NamedTuple):
    """What recovery would tell of a stream, and its records, read back."""

    first: int
    point: Point
    held: list[Record]
    flags: int
    places: list[FoundRun]


def read_image(image: dict[str, bytes], directory: str = DIRECTORY) -> dict[int, Kept]:
    """What recovery would tell of the streams of a disk's content."""
    files = segments_of(image, directory)
    found = [survey(index, Content.of(content), str(index)) for index, content in files.items()]
    told = unpack(image.get(extents_path(directory), b""), EXTENTS_NAME)
    log_id, short = log_id_of(found), shorter(found, told)
    found = [segment for segment in found if segment.header is not None or segment.lap]
    if log_id is None or not any(segment.lap for segment in found):
        return {}
    result = Recovery(lambda index: Content.of(files[index]), log_id=log_id, shorter=short).run(found)
    kept: dict[int, Kept] = {}
    for stream, verdict in result.verdicts.items():
        records: list[Record] = []
        for held in verdict.held:
            place = Place(held.offset, held.end, held.crc, held.length, held.lap, held.at)
            run = read_content(Content.of(files[result.laps[held.lap]]), log_id, stream, place)
            if run is None:
                records.append(Record(Offset(held.offset), Term(0), UNREADABLE))
            else:
                records += [record for record in run.records() if record.offset >= verdict.first]
        kept[stream] = Kept(verdict.first, verdict.point, records, verdict.flags, verdict.held)
    return kept


def segments_of(image: dict[str, bytes], directory: str = DIRECTORY) -> dict[int, bytes]:
    """The segment files of a disk's content, by their index."""
    files: dict[int, bytes] = {}
    for name, content in image.items():
        if (index := segment_index(name.removeprefix(f"{directory}/"))) is not None:
            files[index] = content
    return files


def batches_of(image: dict[str, bytes], directory: str = DIRECTORY) -> list[tuple[str, BatchHeader]]:
    """Every whole batch on the disk with the name of its file, in the order of their writing."""
    found = [
        (name, header)
        for name, content in image.items()
        if segment_index(name.removeprefix(f"{directory}/")) is not None
        for header in batches(Content.of(content))
    ]
    found.sort(key=lambda each: each[1].batch)
    return found


def kept_of(log: Log, name: int, records: list[Record]) -> Kept:
    """What a running log has of a stream, in the words of an image."""
    state = log.states[name]
    point = Point(state.next, state.generation, state.crc)
    return Kept(state.first, point, records, 0, [])
