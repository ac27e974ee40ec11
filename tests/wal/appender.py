"""A process that appends to a log for ever and says on its standard output what became of each append.

    python -m tests.wal.appender DIRECTORY SEED synced|unsynced

Each word is 24 bytes: what (`Said`), stream, next offset. A payload is a function of stream and offset, so
that whoever reads the log can tell a wrong byte. `unsynced` is the negative control: syncs do nothing.
"""

import asyncio
import os
import random
import struct
import sys
from enum import IntEnum
from pathlib import Path

from broadsheet.base.types import LogStreamId, Offset
from broadsheet.runtime.disk import LocalDisk, LocalFile
from broadsheet.wal import LogFull
from tests.wal.harness import SMALL, Bench, open_log

WORD = struct.Struct("<QQQ")
STREAMS = (1, 2, 3, 4, 5)
KEPT = 20


class Said(IntEnum):
    """What became of an append."""

    READY = 0
    """The log is open; no append."""
    SENT = 1
    ACKNOWLEDGED = 2
    REJECTED = 3
    """Refused, with nothing written."""


def say(said: Said, stream: int = 0, end: int = 0) -> None:
    """One word, at once."""
    os.write(1, WORD.pack(said, stream, end))


def payload_of(stream: int, offset: int) -> bytes:
    draws = random.Random(stream << 40 | offset)
    return draws.randbytes(draws.randrange(20, 1500))


async def append_for_ever(bench: Bench) -> None:
    pending: list[asyncio.Event] = []
    for _ in STREAMS:
        event = asyncio.Event()
        event.set()
        pending.append(event)
    while True:
        for event, stream in zip(pending, STREAMS, strict=True):
            if not event.is_set():
                continue
            event.clear()
            name = LogStreamId(stream)
            offset = bench.log.next_offset(name)

            def done(event: asyncio.Event = event, stream: int = stream, offset: int = offset) -> None:
                say(Said.ACKNOWLEDGED, stream, offset + 1)
                event.set()

            say(Said.SENT, stream, offset + 1)
            try:
                bench.log.append(name, [payload_of(stream, offset)], done=done)
            except LogFull:
                say(Said.REJECTED, stream, offset + 1)
                event.set()  # Segments are small here: the next ones are being filled.
                await asyncio.sleep(0.001)
                continue
            bench.log.trim(name, Offset(max(0, offset - KEPT)))
        await asyncio.sleep(0)


async def main(directory: Path, seed: int) -> None:
    bench = await open_log(LocalDisk(directory), config=SMALL, seed=seed)
    say(Said.READY)
    await append_for_ever(bench)


if __name__ == "__main__":
    if sys.argv[3] == "unsynced":
        setattr(LocalFile, "sync", lambda _self: None)  # noqa: B010 - what is planted is no method of it.
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
