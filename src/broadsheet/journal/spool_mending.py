"""Spool mending: blocks of a spool file that fail their checksums are written again from the log's records.

Offsets are bytes. The log has the content of small appends until a checkpoint, which says that the spool file
has it. So if a reader or an upload finds a damaged block before that, there is a second copy, which the next
checkpoint would drop. A block is written only if its new content has the checksum that memory has. If the log
does not have the content, the journal's status says so and names the remedy, and other blocks are still
served. This module does not look for damage. Source: journals.14; W4, W7.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from broadsheet.base.marks import hit
from broadsheet.base.types import ByteOffset
from broadsheet.errors import BroadsheetError
from broadsheet.journal.core.records import Proposal, decode
from broadsheet.journal.remedies import accept_loss
from broadsheet.journal.replica import NO_SPACE, Replica
from broadsheet.journal.spool_file import SpoolFile
from broadsheet.wal.segments import read_around

Piece = tuple[ByteOffset, bytes]
"""Content from the log, and its begin."""
BLOCKS_MAX: Final = 64
"""Damaged blocks that are mended in one call: 4 MiB in memory. More of them are given up."""


async def mend(replica: Replica, offset: ByteOffset, end: ByteOffset) -> bool:
    """Write the damaged blocks again that hold a byte of `[offset, end)`, which one spool file has.

    Returns:
        Whether every byte of the range can be read now. If not, the file's `unreadable` is the reason.
    """
    async with replica.context.mending:  # Each call reads what the log has of the journal: one at a time.
        spool = _spool_at(replica, offset)
        if spool is None or spool.damage or replica.is_closed:
            return False
        try:
            return await _mend(replica, spool, offset, min(end, spool.end))
        except OSError as error:
            if error.errno not in NO_SPACE and not replica.is_closed:
                replica.context.crash(error)  # EIO: nobody knows which bytes reached the disk (W5).
            return False


async def _mend(replica: Replica, spool: SpoolFile, offset: ByteOffset, end: ByteOffset) -> bool:
    damaged = list[ByteOffset]()
    for begin in spool.blocks(offset, end):
        if not spool.is_sound(begin):
            damaged.append(begin)
        await asyncio.sleep(0)
    wanted = [begin for begin in damaged if begin not in spool.given_up]
    if not wanted:
        return not damaged  # What the log does not have now it will not have later.
    pieces = await _logged(replica, spool, wanted) if len(wanted) <= BLOCKS_MAX else ()
    if replica.is_closed or _spool_at(replica, offset) is not spool:
        return False
    given_up = dict.fromkeys(begin for begin in wanted if not _write(spool, begin, pieces))
    if len(given_up) < len(wanted):
        hit("journal.spool_mended")
        await spool.file.flush()
    spool.given_up |= given_up
    if given_up and not spool.unreadable:
        told = f"{spool.name} is damaged at {min(given_up)}, and the log does not have its content any more"
        spool.unreadable = f"journal {replica.name}: {told}: {accept_loss(replica.name)}"
    return len(wanted) == len(damaged) and not given_up


def _spool_at(replica: Replica, offset: ByteOffset) -> SpoolFile | None:
    here = (*replica.closed, replica.spool)
    return next((each for each in here if each.begin <= offset < each.end), None)


async def _logged(replica: Replica, spool: SpoolFile, blocks: Sequence[ByteOffset]) -> Sequence[Piece]:
    """The log's content of the blocks that begin at `blocks`."""
    pieces, wanted = list[Piece](), dict.fromkeys(blocks)
    try:
        async for record in replica.context.log.records(replica.stream):
            proposal = decode(record.payload)
            if not isinstance(proposal, Proposal) or proposal.content is None:
                continue
            first, last = max(proposal.begin, spool.begin), min(proposal.end, spool.end)
            for begin in spool.blocks(first, last):
                if begin in wanted:
                    low, high = max(begin, first), min(spool.block_end(begin), last)
                    content = proposal.content[low - proposal.begin : high - proposal.begin]
                    pieces.append((low, bytes(content)))
    except BroadsheetError:
        return pieces  # The log is damaged, or a checkpoint has trimmed it: what was found may be enough.
    return pieces


def _write(spool: SpoolFile, begin: ByteOffset, pieces: Sequence[Piece]) -> bool:
    """Write a block with the log's content in it, if it then has its checksum."""
    length = spool.block_end(begin) - begin
    content = bytearray(read_around(spool.file, begin - spool.begin, length).ljust(length, b"\0"))
    for at, piece in pieces:
        if begin <= at < begin + length:
            content[at - begin : at - begin + len(piece)] = piece
    if not spool.agrees(begin, content):
        return False
    spool.file.write_at(begin - spool.begin, (content,))
    return True
