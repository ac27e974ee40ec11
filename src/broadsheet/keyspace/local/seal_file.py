"""Seal file: the whole map in a file beside the log, for the time in which the log's stream is begun anew.

The log does not hold the map between the reset of its stream and the sync of the map's records; after a crash
in that time the seal holds it. An operator's accepted loss reaches the next start in the same file. While the
seal exists, a start ignores the log's records. Therefore the seal is removed, durably, before the next
transaction is answered. Source: W6, W7; ADR 0122.
"""

import asyncio
import errno
from functools import partial
from typing import Final

import msgspec

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import Generation, LogStreamId, Offset
from broadsheet.errors import ConfigError, Corrupt
from broadsheet.ports import NO_SPACE, Disk
from broadsheet.wal.log import Log
from broadsheet.wal.start_records import placed

DIRECTORY: Final = "keyspace"
SEAL_NAME: Final = f"{DIRECTORY}/seal"
VERSION: Final = bytes((1,))
CRC_BYTES: Final = 4
LOST_SUFFIX: Final = ".lost"
REVISION_LEAP: Final = 1 << 20
"""How far revisions jump above the last known one when records may have been lost without a trace.

It is more than the number of transactions that can wait for one sync."""
REMEDY: Final = (
    "`broadsheet keyspace accept-loss` shows, while the node is stopped, what is left and what is lost,"
    " and has it go on without that"
)


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """The key space's whole map, and the generation of the log stream that it replaces."""

    generation: Generation
    """The stream's generation when the seal was written."""
    chunks: list[bytes]
    """One snapshot, encoded like the records of the log."""


_decoder = msgspec.msgpack.Decoder(Seal)


def read_seal(disk: Disk) -> Seal | None:
    """The key space's seal, or None if there is none. Blocking.

    Raises:
        Corrupt: the seal is damaged. Nothing was changed.
        ConfigError: the seal is of a newer version. Nothing was changed.
    """
    if not disk.exists(SEAL_NAME):
        return None
    file = disk.open(SEAL_NAME)
    try:
        content = file.read_at(0, file.size())
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        text = f"{SEAL_NAME}: the disk cannot read it ({error.strerror})"
        raise Corrupt(
            f"{text}: start again; if it stays so, restore keyspace/ from a backup, or {REMEDY}"
        ) from error
    finally:
        file.close()
    body, crc = content[:-CRC_BYTES], content[-CRC_BYTES:]
    if crc32c(body).to_bytes(CRC_BYTES, "little") != crc:
        raise Corrupt(f"{SEAL_NAME} fails its checksum: restore keyspace/ from a backup, or {REMEDY}")
    try:
        if body[:1] == VERSION:
            return _decoder.decode(memoryview(body)[1:])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{SEAL_NAME} does not decode: {error}: start the release that wrote it") from error
    raise ConfigError(f"{SEAL_NAME} has format {body[:1]!r}: start the newer release that wrote it")


def read_seal_durably(disk: Disk) -> Seal | None:
    """Read the key space's seal, and write it again: a failed sync may have left it in the page cache only.

    The log is begun anew over it, and a power cut meanwhile would leave neither. A full disk leaves it as it
    is.
    """
    seal = read_seal(disk)
    if seal is not None:
        try:
            write_seal(disk, seal)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
    return seal


def write_seal(disk: Disk, seal: Seal) -> None:
    """Replace the key space's seal, durably. Blocking."""
    body = VERSION + msgspec.msgpack.encode(seal)
    disk.make_dir(DIRECTORY)
    file = disk.open(f"{SEAL_NAME}.new", create=True)
    try:
        file.truncate(0)
        file.write_at(0, (body, crc32c(body).to_bytes(CRC_BYTES, "little")))
        file.sync()
    finally:
        file.close()
    disk.rename(f"{SEAL_NAME}.new", SEAL_NAME)
    disk.sync_dir(DIRECTORY)


def write_aside(disk: Disk, name: str, content: bytes) -> str:
    """Write `content` durably to a key space's file for operators, never removed; its path. Blocking."""
    path = f"{DIRECTORY}/{name}{LOST_SUFFIX}"
    disk.make_dir(DIRECTORY)
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        file.write_at(0, (content,))
        file.sync()
    finally:
        file.close()
    disk.sync_dir(DIRECTORY)
    return path


def remove_seal(disk: Disk) -> None:
    """Remove the key space's seal, durably, because the log holds the whole map. Blocking; repeatable."""
    if disk.exists(SEAL_NAME):
        disk.remove(SEAL_NAME)
    disk.sync_dir(DIRECTORY)  # Also if it was gone: a former try may have had no descriptor for this.


async def begin_log(log: Log, stream: LogStreamId, seal: Seal) -> Offset:
    """Begin the key space's stream anew with the map, durably; returns the next offset.

    The seal must be in its file until then: meanwhile nothing else holds the map.

    Raises:
        LogFull: the log had no room for `ROOM_WAIT`. The call may be repeated.
    """
    # Above the seal's generation too: a crash may have come between an earlier reset and the seal's removal.
    generation = Generation(max(log.generation(stream), seal.generation) + 1)
    await placed(partial(log.reset, stream, log.next_offset(stream), generation, done=lambda: None))
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def durable() -> None:
        if not written.done():
            written.set_result(None)

    for index, chunk in enumerate(seal.chunks):
        is_last = index == len(seal.chunks) - 1
        done = durable if is_last else lambda: None
        await placed(partial(log.append, stream, (chunk,), done=done, relief=True))
        await asyncio.sleep(0)  # Let other tasks run between the chunks of a large map.
    await written
    return log.next_offset(stream)
