"""Inspection: the content and the damage of a log, read without a change to it.

Offsets count a stream's entries. `Log.open` changes a log: it makes durable what it accepts, sets damage
aside and writes a boot frame. An inspection does none of these, and repairs nothing. No process may write to
the log meanwhile: the caller holds the data directory's lock. Source: `wal.recovery`; ADR 0124.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from broadsheet.base.types import Generation, LogStreamId, Offset
from broadsheet.errors import Corrupt
from broadsheet.ports import Disk, File
from broadsheet.wal.opening import content_of, read_extents, require_batch
from broadsheet.wal.reading import read_content
from broadsheet.wal.record import suspect_records
from broadsheet.wal.recovery import Recovery
from broadsheet.wal.scan import Content
from broadsheet.wal.segments import require_readable, segment_index
from broadsheet.wal.stream import Place
from broadsheet.wal.stream_replay import FoundRun, Suspect, Verdict
from broadsheet.wal.survey import log_id_of, shorter, survey


class FoundRecord(msgspec.Struct, frozen=True, gc=False):
    """One entry of a log stream, as an inspection found it, sound or not."""

    offset: Offset
    payload: bytes
    is_whole: bool
    """Whether the checksum of its run matches."""


class Inspection:
    """One reading of a log. Made by `inspected`."""

    def __init__(
        self, verdicts: dict[int, Verdict], contents: dict[int, Content], log_id: int, *, lacks_streams: bool
    ) -> None:
        """Take over what recovery found; `contents` are the segments by lap."""
        self._verdicts, self._contents, self._log_id = verdicts, contents, log_id
        self.lacks_streams = lacks_streams
        """Whether the log may have held streams of which nothing is left."""

    def streams(self) -> list[LogStreamId]:
        """Every stream that was appended to and not dropped, sorted."""
        return sorted(LogStreamId(stream) for stream in self._verdicts)

    def verdict(self, stream: LogStreamId) -> Verdict | None:
        """What is left of a stream; None if the log has nothing of it."""
        return self._verdicts.get(stream)

    def generation(self, stream: LogStreamId) -> Generation:
        """The generation of a stream; 0 if the log has nothing of it."""
        found = self._verdicts.get(stream)
        return Generation(found.point.generation if found is not None else 0)

    def records(self, stream: LogStreamId) -> Iterator[FoundRecord]:
        """Every untrimmed entry that was inspected: sound ones by offset, then those behind the damage."""
        found = self._verdicts.get(stream)
        if found is None:
            return
        for held in found.held:
            yield from self._of(stream, held, first=found.first)
        for suspect in found.suspects:
            assert isinstance(suspect, Suspect), "recovery has read them back"
            for record in suspect_records(suspect):
                yield FoundRecord(record.offset, record.payload, suspect.is_whole)

    def last(self, stream: LogStreamId) -> FoundRecord | None:
        """The last sound entry of a stream; None if it has none."""
        found = self._verdicts.get(stream)
        if found is None or not found.held:
            return None
        return next(reversed(list(self._of(stream, found.held[-1], first=found.first))), None)

    def _of(self, stream: LogStreamId, held: FoundRun, *, first: int) -> Iterator[FoundRecord]:
        place = Place(held.offset, held.end, held.crc, held.length, held.lap, held.at)
        run = read_content(self._contents[held.lap], self._log_id, stream, place)
        if run is None:
            return  # It went bad after recovery had read it: the caller sees a gap in the offsets.
        with suppress(Corrupt):
            for record in run.records():
                if record.offset >= first:
                    yield FoundRecord(record.offset, record.payload, is_whole=True)


@contextmanager
def inspected(disk: Disk, directory: str) -> Iterator[Inspection]:
    """Inspect a log. Blocking; changes nothing.

    Raises:
        ConfigError: the directory has files of several logs, or of a newer version.
        OSError: the disk failed.
    """
    files: dict[int, File] = {}
    try:
        for name in disk.list(directory) if disk.exists(directory) else ():
            if (index := segment_index(name)) is not None:
                files[index] = disk.open(f"{directory}/{name}")
                require_readable(files[index])
        unread: dict[int, list[int]] = {index: [] for index in files}
        contents = {index: content_of(file, unread[index]) for index, file in files.items()}
        found = [
            survey(index, content, f"{directory}: segment {index}") for index, content in contents.items()
        ]
        require_batch(found, files, unread)
        told = read_extents(disk, directory)
        short = shorter(found, told)
        log_id = log_id_of(found, told)
        if log_id is None or not any(segment.lap for segment in found):
            yield Inspection({}, {}, 0, lacks_streams=told is not None and bool(short))
            return
        found = [segment for segment in found if segment.header is not None or segment.lap]
        result = Recovery(lambda index: contents[index], log_id=log_id, shorter=short).run(found)
        laps = {lap: contents[index] for lap, index in result.laps.items()}
        yield Inspection(result.verdicts, laps, log_id, lacks_streams=result.lacks_streams)
    finally:
        for file in files.values():
            file.close()
