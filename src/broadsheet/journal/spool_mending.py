"""Spool mending: blocks of a spool file that fail their checksums are written again from the log's records.

Offsets are bytes. The log has the content of small appends until a checkpoint, which says that the spool file
has it. So if a reader or an upload finds a damaged block before that, there is a second copy, which the next
checkpoint would drop. A block is written only if its new content has the checksum that memory has. If the log
does not have the content, the journal's status says so and names the remedy, and other blocks are still
served. This module does not look for damage. Source: journals.14; W4, W7.
"""

import asyncio
import errno
from collections.abc import Sequence
from typing import Final

from broadsheet.base.marks import hit
from broadsheet.base.types import ByteOffset
from broadsheet.errors import BroadsheetError, Trimmed
from broadsheet.journal.core.records import Proposal, decode
from broadsheet.journal.remedies import unreadable
from broadsheet.journal.replica import Replica
from broadsheet.journal.spool_file import SpoolFile, ask_again, overwrite
from broadsheet.ports import NO_ROOM
from broadsheet.runtime.rereading import DISK_AWAY
from broadsheet.wal.segments import read_around

Piece = tuple[ByteOffset, bytes]
"""Content from the log, and its begin."""
PASSING: Final = (*NO_ROOM, errno.EBADF)
"""No space or no descriptor now; or the file was closed meanwhile, because its content is stored."""


async def mend(replica: Replica, offset: ByteOffset, end: ByteOffset) -> bool:
    """Write the damaged blocks again that hold a byte of `[offset, end)`, which one spool file has.

    Returns:
        Whether every byte of the range can be read now. If not, the file's `unreadable` is the reason. If
        that is empty, nothing is known, because no descriptor or no space was free: the call may be repeated.

    Raises:
        OSError: DISK_AWAY: the disk reads nothing at present. Nothing changed.
    """
    async with replica.context.mending:  # Each call reads what the log has of the journal: one at a time.
        spool = _spool_at(replica, offset)
        if spool is None or spool.damage or replica.is_closed:
            return False
        try:
            return await _mend(replica, spool, offset, min(end, spool.end))
        except OSError as error:
            if error.errno == DISK_AWAY:
                raise
            if error.errno not in PASSING:
                replica.context.crash(error)  # EIO: nobody knows which bytes reached the disk (W5).
            return False


async def _mend(replica: Replica, spool: SpoolFile, offset: ByteOffset, end: ByteOffset) -> bool:
    damaged = list[ByteOffset]()
    for begin in spool.blocks(offset, end):
        if not spool.is_sound(begin):
            if begin not in spool.given_up:
                await ask_again(replica.context.disk, spool, begin, spool.block_end(begin))
            if not _is_here(replica, spool):
                return False
            if not spool.is_sound(begin):
                damaged.append(begin)
        await asyncio.sleep(0)
    wanted = dict.fromkeys(begin for begin in damaged if begin not in spool.given_up)
    if not wanted:
        return not damaged  # What the log does not have now it will not have later.
    given_up = await _rewritten(replica, spool, wanted)
    if not _is_here(replica, spool):
        return False
    if len(given_up) < len(wanted):
        hit("journal.spool_mended")
        await spool.file.flush()
    spool.given_up |= given_up
    if given_up and not spool.unreadable:
        spool.unreadable = unreadable(replica.name, spool.name, min(given_up))
        replica.context.troubles.judge(replica)
    return len(wanted) == len(damaged) and not given_up


def _spool_at(replica: Replica, offset: ByteOffset) -> SpoolFile | None:
    here = (*replica.closed, replica.spool)
    return next((each for each in here if each.begin <= offset < each.end), None)


def _is_here(replica: Replica, spool: SpoolFile) -> bool:
    """Whether the file is still the journal's: neither stored nor closed meanwhile."""
    return not replica.is_closed and _spool_at(replica, spool.begin) is spool


async def _rewritten(
    replica: Replica, spool: SpoolFile, wanted: dict[ByteOffset, None]
) -> dict[ByteOffset, None]:
    """Write the `wanted` blocks of a spool again whose content the log has; returns the others.

    The log's records follow each other in offset. So a block is written as soon as a record begins behind it,
    and few blocks are in memory at a time.
    """
    pieces, left = dict[ByteOffset, list[Piece]](), dict(wanted)

    def write(begin: ByteOffset) -> None:
        if _is_here(replica, spool) and _write(spool, begin, pieces.pop(begin, ())):
            left.pop(begin, None)

    while True:
        try:
            async for record in replica.context.log.records(replica.stream):
                proposal = decode(record.payload)
                if not isinstance(proposal, Proposal) or proposal.content is None:
                    continue
                for begin in [each for each in pieces if spool.block_end(each) <= proposal.begin]:
                    write(begin)
                _collect(spool, proposal, left, pieces)
        except Trimmed:
            continue  # A checkpoint has trimmed the log meanwhile: go on with what it has left.
        except BroadsheetError:
            pass  # The log is damaged: what was found may be enough.
        break
    for begin in list(left):
        write(begin)
        await asyncio.sleep(0)
    return left


def _collect(
    spool: SpoolFile,
    proposal: Proposal,
    wanted: dict[ByteOffset, None],
    pieces: dict[ByteOffset, list[Piece]],
) -> None:
    """Add to `pieces` what a proposal has of the wanted blocks."""
    assert proposal.content is not None, "the caller has looked"
    first, last = max(proposal.begin, spool.begin), min(proposal.end, spool.end)
    for begin in spool.blocks(first, last):
        if begin in wanted:
            low, high = max(begin, first), min(spool.block_end(begin), last)
            content = proposal.content[low - proposal.begin : high - proposal.begin]
            pieces.setdefault(begin, []).append((low, bytes(content)))


def _write(spool: SpoolFile, begin: ByteOffset, pieces: Sequence[Piece]) -> bool:
    """Write a spool's block with the log's content in it, if it then has its checksum."""
    length = spool.block_end(begin) - begin
    content = bytearray(read_around(spool.file, begin - spool.begin, length).ljust(length, b"\0"))
    for at, piece in pieces:
        if begin <= at < begin + length:
            content[at - begin : at - begin + len(piece)] = piece
    if not spool.agrees(begin, content):
        return False
    overwrite(spool.file, begin - spool.begin, (content,))
    return spool.is_sound(begin)
