"""Opening: a start locks a log, reads it, sets damage aside and makes durable what it accepts. Blocking.

LOCK -> SURVEY -> RECOVER -> SET ASIDE -> REWRITE. A crash may interrupt any step; the next start repeats all
of them from the first (W3). Nothing is changed before every file was found to be of this log and version.
This module does not write the boot frame: `Log` does, as its first batch. Source: log.15, W3, W7.
"""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from broadsheet.base.checksum import crc32c
from broadsheet.base.marks import hit
from broadsheet.errors import ConfigError
from broadsheet.ports import NO_SPACE, Disk, DiskLock, File
from broadsheet.runtime.failpoints import passed
from broadsheet.wal.config import BLOCK_BYTES, MIB, WALConfig
from broadsheet.wal.extents import EXTENTS_NAME, SLOT_BYTES, SLOTS, Extents, Told, extents_path, unpack
from broadsheet.wal.format import (
    ERA_MAX,
    VERSION,
    BatchHeader,
    FrameHeader,
    Kind,
    RowFlag,
    SegmentHeader,
    aligned,
    batch_after,
    era_of,
)
from broadsheet.wal.recovery import Damage, Recovery, Result
from broadsheet.wal.scan import Content, frames
from broadsheet.wal.segments import (
    LATER,
    LOCK_NAME,
    QUARANTINE_PREFIX,
    Segments,
    read_around,
    require_readable,
    segment_index,
    segment_name,
    unreadable,
)
from broadsheet.wal.stream_replay import FoundRun, Suspect, suspect_of
from broadsheet.wal.survey import Found, log_id_of, shorter, survey

JOIN_GAP_BYTES: Final = MIB
"""Damaged places that are no further apart are set aside in one file."""


class OpenedLog:
    """The files of a locked log, and what its recovery found."""

    def __init__(
        self,
        lock: DiskLock,
        segments: Segments,
        result: Result | None,
        free: list[int],
        next_batch: int,
        *,
        lacks_streams: bool,
    ) -> None:
        self.lock, self.segments = lock, segments
        self.result = result
        """None if the log holds nothing."""
        self.free = free
        self.next_batch = next_batch
        """The number of the boot batch."""
        self.lacks_streams = lacks_streams
        """Whether the log may have held streams of which nothing is left."""
        self.kept: list[Damage] = []
        """Damage that was not set aside, because the disk was full. Nothing may be written over it."""
        self.quarantine_files: list[str] = []

    def close(self) -> None:
        """Close the files and release the lock."""
        self.segments.close()
        self.lock.release()


async def open_files(disk: Disk, directory: str, config: WALConfig, new_log_id: int) -> OpenedLog:
    """Call `open_blocking` in a thread. On cancellation the files are closed and the lock is released."""
    made: list[OpenedLog] = []
    try:
        await disk.run(lambda: made.append(open_blocking(disk, directory, config, new_log_id)))
    except BaseException:
        for opened in made:
            opened.close()
        raise
    return made[0]


def open_blocking(disk: Disk, directory: str, config: WALConfig, new_log_id: int) -> OpenedLog:
    """All steps of a log's start except the boot frame.

    Raises:
        ConfigError: the log is locked, foreign, or of another version. Nothing was changed.
        OSError: the disk failed.
    """
    disk.make_dir(directory)
    try:
        lock = disk.lock(f"{directory}/{LOCK_NAME}")
    except BlockingIOError as error:
        raise ConfigError(
            f"{directory} is in use by another process: stop that one first. Nothing was changed"
        ) from error
    opened_files: list[File] = []
    try:
        opened = _open_locked(disk, directory, config, new_log_id, lock=lock, opened_files=opened_files)
        opened.segments.write_ends()
    except BaseException:
        for file in opened_files:
            file.close()
        lock.release()
        raise
    return opened


def _open_locked(
    disk: Disk,
    directory: str,
    config: WALConfig,
    new_log_id: int,
    *,
    lock: DiskLock,
    opened_files: list[File],
) -> OpenedLog:
    names = disk.list(directory)
    refuse_foreign(directory, names)
    files: dict[int, File] = {}
    found: list[Found] = []
    unread: dict[int, list[int]] = {}
    for name in names:
        if (index := segment_index(name)) is not None:
            files[index] = file = disk.open(f"{directory}/{name}")
            opened_files.append(file)
            require_readable(file)
            found.append(survey(index, content_of(file, unread.setdefault(index, [])), f"{directory}/{name}"))
    require_batch(found, files, unread)
    told = read_extents(disk, directory)
    short = shorter(found, told)
    known_id = log_id_of(found, told)
    log_id = new_log_id if known_id is None else known_id
    segments = Segments(disk, directory, log_id=log_id, segment_bytes=config.segment_bytes, told=told)
    for segment in _ours(segments, found, files, told):
        if segment.header is None:
            wanted = max(config.segment_bytes, segment.size - segment.size % BLOCK_BYTES)
        else:
            wanted = segment.header.segment_bytes
        segments.adopt(segment.file, files[segment.file], wanted=wanted)
        # New segments are as large as the largest old one: its records must fit when they are copied.
        segments.segment_bytes = max(segments.segment_bytes, wanted)
    found = [segment for segment in found if segment.file in segments.files]
    damage: list[Damage] = []
    result, lacks_streams = None, told is not None and bool(short)
    if any(segment.lap for segment in found):

        def content(index: int) -> Content:
            return content_of(segments.files[index], unread[index], segments.wanted[index])

        result = Recovery(content, log_id=log_id, shorter=short).run(found)
        lacks_streams, damage = result.lacks_streams, result.damage
    free = _usable(segments, result, unread)
    boot = next_batch(found, result.last if result else None, segments.extents, is_blind=any(unread.values()))
    opened = OpenedLog(lock, segments, result, free, boot, lacks_streams=lacks_streams)
    remains = result.remains if result is not None else []
    if result is None and lacks_streams:
        remains = [Damage(s.file, 0, BLOCK_BYTES, max(BLOCK_BYTES, s.size)) for s in found]
        damage = [each for each in remains if _has_content(segments, each)]
    segments.remains = remains
    segments.shortened = dict.fromkeys(short if lacks_streams else ())
    damage += [Damage(s.file, s.lap, 0, BLOCK_BYTES) for s in found if s.header is None and s.size]
    try:
        set_aside(segments, damage)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        hit("wal.recovery.set_aside_refused")
        opened.kept = damage
    _repair_headers(segments, [s for s in found if all(s.file != each.file for each in opened.kept)])
    if result is not None:
        _rewrite(segments, result)
        _recall(segments, result)
    elif told is not None and not lacks_streams:
        segments.extents.renew()
    opened.quarantine_files = [name for name in disk.list(directory) if name.startswith(QUARANTINE_PREFIX)]
    return opened


def _usable(segments: Segments, result: Result | None, unread: Mapping[int, Sequence[int]]) -> list[int]:
    """The free files without those that may begin with a newer lap, which this start could not read.

    Those that it has read whole come first: what is acknowledged should be readable at the next start.
    """
    free = result.free if result is not None else list(segments.files)
    segments.unread = {index: None for index in free if BLOCK_BYTES in unread[index]}
    if segments.unread:
        hit("wal.segment_unread")
    usable = [index for index in free if index not in segments.unread]
    if result is not None and any(at >= result.tail_at for at in unread[result.laps[result.last.lap]]):
        hit("wal.tail_unread")
        segments.unread[result.laps[result.last.lap]] = None
    return sorted(usable, key=lambda index: bool(unread[index]))


def next_batch(found: Sequence[Found], last: BatchHeader | None, extents: Extents, *, is_blind: bool) -> int:
    """The number of the boot batch: in an era of its own, if the disk could not read all blocks."""
    if last is None:
        return 1
    era = max(extents.era, *(era_of(each.newest.batch) for each in found if each.newest is not None))
    if is_blind and era < ERA_MAX:
        era += 1
        extents.begin_era(era)
    return batch_after(last.batch, era)


def refuse_foreign(directory: str, names: Sequence[str]) -> None:
    """Refuse a log's directory that has other files.

    Raises:
        ConfigError: the text names one. Nothing was changed.
    """
    for name in names:
        is_ours = name in (LOCK_NAME, EXTENTS_NAME) or name.startswith(QUARANTINE_PREFIX)
        if not is_ours and segment_index(name) is None:
            raise ConfigError(
                f"{directory} holds {name!r}, which is none of a log's files: give the log a directory of "
                "its own. Nothing was changed"
            )


def _ours(segments: Segments, found: list[Found], files: dict[int, File], told: Told | None) -> list[Found]:
    """The segments of this log. A file without a header is removed if it is empty, and otherwise set aside.

    A crash leaves such a file if it comes before the header of a new segment is durable.
    """
    ours = []
    for segment in found:
        is_known = told is not None and segment.file in told.filled
        if segment.header is not None or segment.lap or is_known:
            ours.append(segment)
            continue
        file = files[segment.file]
        try:
            content = file.read_at(0, file.size())
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise unreadable(file, error) from error  # Zeros in place of its records would look empty.
        name = segments.path(segment_name(segment.file))
        file.close()
        if content.strip(b"\0"):
            target = f"{QUARANTINE_PREFIX}{segment_name(segment.file)}-{crc32c(content):08x}"
            segments.disk.rename(name, segments.path(target))
        else:
            segments.disk.remove(name)
        segments.disk.sync_dir(segments.directory)
    return ours


def require_batch(
    found: Sequence[Found], files: Mapping[int, File], unread: Mapping[int, Sequence[int]]
) -> None:
    """Refuse a log without a batch if a block of its files could not be read: its batches may stand there.

    Args:
        unread: by file, the places that the survey could not read. They may be readable by now.

    Raises:
        ConfigError: there is such a block. Nothing was changed.
    """
    for index in () if any(segment.lap for segment in found) else unread:
        if unread[index]:
            raise unreadable(files[index], OSError(errno.EIO, os.strerror(errno.EIO)))


def read_extents(disk: Disk, directory: str) -> Told | None:
    """How far the segments of a log were filled; None if no whole slot says so.

    Raises:
        ConfigError: a version that this program does not know.
    """
    name = extents_path(directory)
    if not disk.exists(name):
        return None
    file = disk.open(name)
    try:
        return unpack(read_around(file, 0, SLOTS * SLOT_BYTES), name)
    finally:
        file.close()


def content_of(file: File, unread: list[int], size_max: int | None = None) -> Content:
    """What is in a segment file.

    Args:
        unread: gets the places of blocks that the disk cannot read.
    """
    size = file.size() if size_max is None else min(file.size(), size_max)
    return Content(lambda begin, end: read_around(file, begin, end - begin, unread), size)


def set_aside(segments: Segments, damage: Sequence[Damage]) -> list[str]:
    """Copy damaged bytes to files of their own: bytes that were not understood are never lost (W7).

    Returns:
        The names of new files.
    """
    made: list[str] = []
    for place in _joined(damage):
        content = segments.read(place.file, place.begin, place.end - place.begin)
        name = f"{QUARANTINE_PREFIX}{place.lap:08x}-{place.begin:08x}-{crc32c(content):08x}"
        file = segments.disk.open(segments.path(name), create=True)
        try:
            if not _holds(file, content):  # An earlier start may have set the same bytes aside already.
                _put(segments, file, content)
                made.append(name)
            file.sync()  # Also an existing file: its writer may have been killed before it was durable.
        finally:
            file.close()
    if damage:
        segments.disk.sync_dir(segments.directory)
    return made


def set_aside_if_room(segments: Segments, damage: Sequence[Damage]) -> list[str]:
    """Set a log's damaged bytes aside; without space, a descriptor, or the disk's answer, they stay."""
    try:
        return set_aside(segments, damage)
    except OSError as error:
        if error.errno not in LATER:
            raise
        hit("wal.set_aside_refused")
        return []


def _put(segments: Segments, file: File, content: bytes) -> None:
    try:
        file.truncate(0)
        file.write_at(0, [content])
    except OSError:
        with suppress(OSError):
            segments.disk.remove(file.name)  # An operator would take a part of the bytes for all of them.
        raise


def _has_content(segments: Segments, place: Damage) -> bool:
    return any(
        segments.read(place.file, at, min(MIB, place.end - at)).strip(b"\0")
        for at in range(place.begin, place.end, MIB)
    )


def _holds(file: File, content: bytes) -> bool:
    try:
        return file.size() == len(content) and file.read_at(0, len(content)) == content
    except OSError:
        return False  # Unreadable, so it is written anew.


def _joined(damage: Sequence[Damage]) -> list[Damage]:
    """The damaged places, near ones joined: ten thousand small damaged runs must not become as many files."""
    joined: list[Damage] = []
    for place in sorted(damage, key=lambda each: (each.lap, each.file, each.begin)):
        last = joined[-1] if joined else None
        if last is not None and last[:2] == place[:2] and place.begin <= last.end + JOIN_GAP_BYTES:
            joined[-1] = last._replace(end=max(last.end, place.end))
        else:
            joined.append(place)
    return joined


def _repair_headers(segments: Segments, found: list[Found]) -> None:
    """Write damaged segment headers anew: their content is constant, and the batches tell the log id."""
    for segment in found:
        if segment.header is None:
            file, index = segments.files[segment.file], segment.file
            file.write_at(0, [SegmentHeader(VERSION, segments.log_id, segments.wanted[index]).pack()])
            file.sync()
            segments.filled[index] = max(segments.filled[index], BLOCK_BYTES)


def _recall(segments: Segments, result: Result) -> None:
    """Tell the suspects of an earlier start again, from the files in which it set them aside.

    Its first batch may stand where they stood. If that start ended before a domain had dealt with its cut
    stream, nothing else has the suspects. Those of an older cut, which was dealt with, are not told again.
    """
    cut = {stream: verdict for stream, verdict in result.verdicts.items() if verdict.flags & RowFlag.TAIL_CUT}
    if not cut:
        return

    def accepts(header: FrameHeader) -> bool:
        verdict = cut.get(header.stream)
        return (
            verdict is not None
            and header.log_id == segments.log_id
            and header.kind in (Kind.RUN, Kind.COPY)
            and header.generation >= verdict.point.generation
            and header.offset >= verdict.point.next
            and header.batch >= verdict.settled
        )

    found: dict[int, dict[int, FoundRun | Suspect]] = {}
    names = [name for name in segments.disk.list(segments.directory) if name.startswith(QUARANTINE_PREFIX)]
    for name in names:
        file = segments.disk.open(segments.path(name))
        try:
            data = read_around(file, 0, file.size())
        finally:
            file.close()
        for frame in frames(data, 0, len(data), accepts, is_after_hole=True):
            hit("wal.recovery.suspect_recalled")
            found.setdefault(frame.header.stream, {})[frame.header.offset] = suspect_of(frame, data)
    for stream, by_offset in found.items():
        by_offset |= {each.offset: each for each in cut[stream].suspects}
        suspects = [by_offset[offset] for offset in sorted(by_offset)]
        result.verdicts[stream] = cut[stream]._replace(suspects=suspects)


def _readable(file: File, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The blocks of [begin, end) with their places, without those that the disk cannot read (EIO)."""
    for at in range(begin, end, BLOCK_BYTES):
        try:
            content = file.read_at(at, BLOCK_BYTES)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            continue
        yield at, content


def _rewrite(segments: Segments, result: Result) -> None:
    """Write the log's last batch again, in place, and sync: its bytes may never have reached the disk.

    After kill -9, or after a failed sync and a restart, a read may return bytes that only the page cache has,
    and a sync that has nothing to write returns 0. Only the last batch can be in that state, because every
    earlier one has a later batch that vouches for it.
    """
    last = result.last
    file = segments.files[result.laps[last.lap]]
    passed("wal.recovery.rewrite")
    for at, content in _readable(file, last.at, aligned(last.at + last.length)):
        file.write_at(at, [content])
    file.sync()
    segments.disk.sync_dir(segments.directory)
    passed("wal.recovery.rewritten")
