"""Survey: which segment file is which lap, and which of them are gone, shorter, foreign, or left over.

A start that could not read the last batches of a log (EIO) goes on before them. Once they can be read again,
two files may claim a lap, or a lap may follow the head. What was written later counts, because everything
since stands on it; its numbers are greater. The rest is left over, and its bytes are set aside. All sizes are
in bytes. This module reads no frames. Source: log.14, log.20; ADR 0118, ADR 0198.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from broadsheet.base.marks import hit
from broadsheet.errors import ConfigError
from broadsheet.wal.config import BLOCK_BYTES
from broadsheet.wal.extents import EXTENTS_NAME, Told
from broadsheet.wal.format import AT_BITS, BatchHeader, SegmentHeader, aligned, read_segment_header
from broadsheet.wal.scan import Content, batches


class Found(NamedTuple):
    """One segment file, as the survey found it."""

    file: int
    size: int
    header: SegmentHeader | None
    lap: int
    """The lap of its newest batch; 0 if it has no batch."""
    batches: Sequence[int]
    """The places of whole batch headers of that lap, in order."""
    first: BatchHeader | None
    """The first of these batch headers."""
    newest: BatchHeader | None
    """The batch header with the greatest number."""

    @property
    def end(self) -> int:
        """Where its newest batch ends."""
        assert self.newest is not None, "a lap has at least one batch"
        return aligned(self.newest.at + self.newest.length)


class Left(NamedTuple):
    """Batches of a log that do not count: a start that could not read them went on before them."""

    file: int
    lap: int
    begin: int
    end: int


def lap_files(found: Sequence[Found]) -> tuple[dict[int, Found], list[Left]]:
    """The file of each lap up to the head, and the batches that are left over.

    What a start could not read has smaller numbers than what was written since. The head has the greatest.

    Raises:
        ConfigError: two files claim a lap with the same numbers.
    """
    files = sorted((segment for segment in found if segment.lap), key=_last_batch)
    chosen: dict[int, Found] = {}
    for segment in files:
        other = chosen.get(segment.lap)
        if other is not None and _last_batch(other) == _last_batch(segment):
            both = f"segments {other.file} and {segment.file} both claim lap {segment.lap}"
            raise ConfigError(f"{both}: one is a copy: move it away. Nothing was changed")
        chosen[segment.lap] = segment
    chosen = {lap: segment for lap, segment in chosen.items() if lap <= files[-1].lap}
    counted = [segment.file for segment in chosen.values()]
    left = [Left(s.file, s.lap, BLOCK_BYTES, s.end) for s in files if s.file not in counted]
    following = dict(chosen)
    for lap, segment in following.items():
        if (end := _end_of(lap, following.get(lap + 1))) is not None and end < segment.end:
            chosen[lap] = segment._replace(batches=[at for at in segment.batches if at < end])
            if not chosen[lap].batches:
                del chosen[lap]  # Its own batches cannot be read now, and its file may be of a newer lap.
            left.append(Left(segment.file, lap, end, segment.end))
    if left:
        hit("wal.recovery.lap_left_over")
    return chosen, left


def _last_batch(segment: Found) -> int:
    assert segment.newest is not None, "a lap has at least one batch"
    return segment.newest.batch


def _end_of(lap: int, after: Found | None) -> int | None:
    """Where `lap` ended for the start or the roll that began the lap `after` it; None if nothing tells."""
    if after is None or after.first is None:
        return None
    told, end = divmod(after.first.durable, 1 << AT_BITS)
    return end if told == lap else None


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
        if newest is None or (batch.lap != lap and batch.batch > newest.batch):
            lap, mine, first, newest = batch.lap, array("Q"), batch, None
        if batch.lap == lap:
            mine.append(batch.at)
            if newest is None or batch.batch > newest.batch:
                newest = batch
    return Found(index, size, header, lap, mine, first, newest)


def shorter(found: Sequence[Found], told: Told | None) -> list[int]:
    """The segment files that are gone, or shorter than they were.

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
