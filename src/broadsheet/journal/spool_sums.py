"""Spool sums: the files beside spool files that keep the sums of their blocks over a restart.

A checkpoint writes one for each spool file that is longer than a block and has grown, before its record is in
the log. The name has begin and end of what it is of, so that the older one stays until the record is durable.
Blocking, for a thread. Without its file a spool is believed as a whole or not at all. Source: W4; ADR 0200.
"""

import re
from contextlib import suppress
from typing import Final

from broadsheet.base.types import ByteOffset
from broadsheet.errors import Corrupt
from broadsheet.journal.core.block_sums import BlockSums, decode_sums, encode_sums
from broadsheet.journal.core.records import ClosedSpool
from broadsheet.journal.spool_disk import Opener
from broadsheet.ports import NO_SPACE, Disk
from broadsheet.wal.segments import read_around

_NAME: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}\.sums")


def sums_name(directory: str, begin: ByteOffset, end: ByteOffset) -> str:
    """The name of the file with the block sums of `[begin, end)`."""
    return f"{directory}/{begin:016x}-{end:016x}.sums"


def is_sums(name: str) -> bool:
    """Whether the file of that name, without its directory, has block sums."""
    return _NAME.fullmatch(name) is not None


def write_sums(disk: Disk, directory: str, sums: BlockSums) -> bool:
    """Write and sync the file of a spool's sums; its name is durable after a sync of the directory.

    Returns:
        False: the disk has no space for it.

    Raises:
        OSError: no descriptor is free, or the disk failed.
    """
    name = sums_name(directory, sums.begin, sums.end)
    try:
        file = disk.open(name, create=True)
        try:
            file.truncate(0)  # An earlier try may have been cut short.
            file.write_at(0, (encode_sums(sums),))
            file.sync()
        finally:
            file.close()
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        with suppress(FileNotFoundError):
            disk.remove(name)
        return False
    return True


def read_sums(files: Opener, directory: str, known: ClosedSpool) -> BlockSums | None:
    """The block sums of the spool that a record names; None if there are none, or they are damaged."""
    try:
        file = files.open(sums_name(directory, known.begin, known.end))
    except FileNotFoundError:
        return None
    try:
        sums = decode_sums(read_around(file, 0, file.size()))
    except Corrupt:
        return None
    finally:
        file.close()
    return sums if (sums.begin, sums.end, sums.sum) == (known.begin, known.end, known.sum) else None
