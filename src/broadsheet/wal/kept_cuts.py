"""Kept cuts: frames of a cut batch that an earlier start could not set aside, because the disk was full.

That start keeps them where they are, and may go on in another segment. Then they are no longer behind the
last batch, but in a segment that counts as free. While a stream is marked as cut, a start looks for them
there: their records may have been acknowledged, and the domain proves that by its own sums (journals.14).
"""

from collections.abc import Iterable, Iterator, Mapping

from broadsheet.base.marks import hit
from broadsheet.wal.config import BLOCK_BYTES
from broadsheet.wal.format import FrameHeader, Kind, RowFlag, aligned
from broadsheet.wal.scan import Content, frames
from broadsheet.wal.stream_replay import StreamReplay, suspect_of


def kept_cuts(
    free: Iterable[tuple[int, Content]], replays: Mapping[int, StreamReplay], *, log_id: int, last: int
) -> Iterator[tuple[int, int, int, int]]:
    """Add what free segments have of cuts that nobody has dealt with to the suspects of their streams.

    Args:
        free: the files of free segments, and what is in them.
        last: the number of the log's last batch.

    Yields:
        The file, the lap, and the begin and end of the bytes that must be set aside.
    """
    cut = {stream: each for stream, each in replays.items() if each.flags & RowFlag.TAIL_CUT}

    def accepts(header: FrameHeader) -> bool:
        replay = cut.get(header.stream)
        return replay is not None and header.log_id == log_id and _is_of_cut(replay, header, last)

    for file, content in free if cut else ():
        data = content.read(BLOCK_BYTES, content.size)
        found = list(frames(data, 0, len(data), accepts, is_after_hole=True))
        for frame in found:
            hit("wal.recovery.kept_found")
            cut[frame.header.stream].damaged.append(suspect_of(frame, data))
        if found:
            yield file, found[-1].header.lap, BLOCK_BYTES, aligned(BLOCK_BYTES + found[-1].end)


def _is_of_cut(replay: StreamReplay, header: FrameHeader, last: int) -> bool:
    expect = replay.expect
    return (
        expect is not None
        and header.kind in (Kind.RUN, Kind.COPY)
        and header.generation >= expect.generation
        and header.offset >= expect.next
        and replay.settled <= header.batch <= last
    )
