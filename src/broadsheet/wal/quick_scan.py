"""Quick scan: a sound batch that holds only runs, as nearly every batch does, is read in one loop.

A start reads tens of thousands of frames before a node is ready. If anything in a batch is damaged, or is no
run, the quick scan returns None, and `scan.frames` reads that batch frame by frame. Source: W2, W4.
"""

from typing import Final

from broadsheet.base.checksum import crc32c
from broadsheet.wal.format import (
    BATCH_BYTES,
    FRAME_ALIGN,
    FRAME_BYTES,
    FRAME_MAGIC,
    HEAD,
    HEAD_BYTES,
    IDENTITY,
    IDENTITY_AT,
    ROW,
    BatchHeader,
    Kind,
)
from broadsheet.wal.stream_replay import FoundRun

KIND_RUN: Final = int(Kind.RUN)


def sound_runs(data: bytes, batch: BatchHeader) -> tuple[list[tuple[int, FoundRun]], int] | None:
    """The runs of a batch with their streams, and the physical chain after them; None if it is not sound.

    Args:
        data: the bytes of the batch.
    """
    view, unpack, base = memoryview(data), HEAD.unpack_from, batch.at
    identity = IDENTITY.pack(batch.log_id, batch.boot, batch.lap, batch.batch)
    chain, at, end = batch.chain, BATCH_BYTES + ROW.size * batch.row_count, batch.length
    found: list[tuple[int, FoundRun]] = []
    for _ in range(batch.frame_count):
        body = at + FRAME_BYTES
        if body > end:
            return None
        magic, kind, _, _, _, _, lap, number, _, stream, *run, seed, crc, told, head_crc = unpack(data, at)
        offset, generation, entries, length = run
        head = view[at : at + HEAD_BYTES]
        if (
            magic != FRAME_MAGIC
            or kind != KIND_RUN
            or data[at + IDENTITY_AT : at + IDENTITY_AT + IDENTITY.size] != identity
            or body + length > end
            or crc32c(head) != head_crc
            or crc32c(head, chain) != told
            or crc32c(view[body : body + length], seed) != crc
        ):
            return None
        place = base + at
        held = FoundRun(offset, offset + entries, generation, seed, crc, length, lap, place, number)
        found.append((stream, held))
        chain, at = told, body + length + -length % FRAME_ALIGN
    return (found, chain) if at == end else None
