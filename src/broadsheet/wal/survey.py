"""Survey: which segment file is which lap, and which of them are gone, shorter, foreign, or left over.

A start that could not read the only batch of a lap (EIO) begins a lap of that number in another file. Once
the first file can be read again, two files claim the lap. The later one counts, because everything since
stands on it. The other one is left over, and its bytes are set aside. All sizes are in bytes. This module
reads no frames. Source: log.14, log.20; ADR 0198.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from broadsheet.base.marks import hit
from broadsheet.errors import ConfigError
from broadsheet.wal.config import BLOCK_BYTES
from broadsheet.wal.extents import EXTENTS_NAME, Told
from broadsheet.wal.format import BatchHeader, SegmentHeader, aligned, read_segment_header
from broadsheet.wal.scan import Content, batches


class Found(NamedTuple):
    """One segment file, as the survey found it."""

    file: int
    size: int
    header: SegmentHeader | None
    lap: int
    """The greatest lap of its batches; 0 if it has no batch."""
    batches: Sequence[int]
    """The places of whole batch headers of that lap, in order."""
    first: BatchHeader | None
    """The first of these batch headers."""
    newest: BatchHeader | None
    """The batch header of that lap with the greatest number."""

    @property
    def end(self) -> int:
        """Where its newest batch ends."""
        assert self.newest is not None, "a lap has at least one batch"
        return aligned(self.newest.at + self.newest.length)


def lap_files(found: Sequence[Found]) -> tuple[dict[int, Found], list[Found]]:
    """The file of each lap, and the files that are left over.

    Raises:
        ConfigError: two files claim the same lap, and nothing tells which is the later one.
    """
    claims: dict[int, list[Found]] = {}
    for segment in found:
        if segment.lap:
            claims.setdefault(segment.lap, []).append(segment)
    chosen: dict[int, Found] = {}
    left: list[Found] = []
    oldest = min((each.newest.oldest for each in claims[max(claims)] if each.newest is not None), default=0)
    for lap in sorted(claims):
        before, after = chosen.get(lap - 1), claims.get(lap + 1, ())
        *older, newest = sorted(claims[lap], key=lambda each: _lateness(each, before, after))
        # Below the oldest lap in use, both files are free.
        if (
            older
            and lap >= oldest
            and _lateness(older[-1], before, after) == _lateness(newest, before, after)
        ):
            files = f"segments {older[-1].file} and {newest.file} both claim lap {lap}"
            raise ConfigError(f"{files}: one is a copy: move it away. Nothing was changed")
        if older:
            hit("wal.recovery.lap_left_over")
        chosen[lap] = newest
        left += older
    return chosen, left


def _lateness(segment: Found, before: Found | None, after: Sequence[Found]) -> tuple[bool, bool, bool]:
    """Greater for the later one of two files of a lap; equal if nothing tells which is the later one.

    The life that wrote the lap before went on in the file that was left over. The start that could not read
    that file may have gone on in the lap before: then the file does not follow it. Or it may have ended with
    its boot batch: then it has acknowledged nothing, and a file with more batches counts. If the lap before
    was freed and written over, the lap after tells: it goes on where the later file ends.
    """
    assert segment.first is not None, "a lap has at least one batch"
    assert segment.newest is not None, "a lap has at least one batch"
    if before is None or before.newest is None:
        next_batch = segment.newest.batch + 1
        return any(each.first is not None and each.first.batch == next_batch for each in after), True, True
    follows = segment.first.batch > before.newest.batch
    return follows, len(segment.batches) > 1, segment.first.boot != before.newest.boot


def survey(index: int, content: Content, name: str) -> Found:
    """Find out the log, the lap and the batches of one segment file.

    Raises:
        ConfigError: a version that this program does not know.
    """
    header = read_segment_header(content.read(0, BLOCK_BYTES), name)
    size = content.size
    if header is not None:
        content.size = min(size, header.segment_bytes)  # Bytes behind the segment's size are not the log's.
    lap = 0
    mine = array("Q")
    first: BatchHeader | None = None
    newest: BatchHeader | None = None
    for batch in batches(content):
        if header is not None and batch.log_id != header.log_id:
            continue
        if batch.lap > lap:
            lap, mine, first, newest = batch.lap, array("Q"), batch, None
        if batch.lap == lap:
            mine.append(batch.at)
            if newest is None or batch.batch > newest.batch:
                newest = batch
    return Found(index, size, header, lap, mine, first, newest)


def shorter(found: Sequence[Found], told: Told | None) -> list[int]:
    """The files that are gone, or shorter than they were.

    Args:
        told: how far each file was filled. None if that is lost, too: then each file must be as long as its
            header says.
    """
    sizes = {segment.file: segment.size for segment in found}
    if told is None:
        known = dict.fromkeys(range(max(sizes, default=-1) + 1), BLOCK_BYTES)
        known |= {s.file: s.header.segment_bytes for s in found if s.header is not None}
    else:
        known = told.filled
    return [index for index, end in known.items() if sizes.get(index, 0) < end]


def log_id_of(found: list[Found], told: Told | None = None) -> int | None:
    """The id of the log that all segments belong to; None if no segment was ever written.

    Raises:
        ConfigError: the segments belong to several logs.
    """
    ids: dict[int | str, int] = {
        segment.file: segment.header.log_id for segment in found if segment.header is not None
    }
    if told is not None:
        ids[EXTENTS_NAME] = told.log_id
    for segment in found:
        if segment.file not in ids and segment.newest is not None:
            ids[segment.file] = segment.newest.log_id
    different = list(dict.fromkeys(ids.values()))
    if len(different) > 1:
        claims = ", ".join(f"{file}: {log_id:016x}" for file, log_id in ids.items())
        raise ConfigError(
            f"the directory has segments of several logs ({claims}): move the foreign ones away. "
            "Nothing was changed"
        )
    return different[0] if different else None
