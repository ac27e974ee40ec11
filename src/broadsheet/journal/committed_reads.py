"""Committed reads: read the committed bytes of one journal, from its spool files or the fragment store.

Offsets are bytes. A read is a coroutine without protocol state: it looks at the committed end, takes the
next chunk from the open spool, a closed one or the store, and goes on. A read never goes beyond the committed
end (journals.7), and every chunk is checked against a sum (W4). If a read needs a resting spool file and no
descriptor is free, it waits in line with the appends (journals.20; ADR 0126).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Final

from broadsheet.base.marks import hit
from broadsheet.base.time import SECOND, in_seconds
from broadsheet.base.types import ByteOffset
from broadsheet.errors import (
    BroadsheetError,
    Corrupt,
    OffsetNotYetAvailable,
    ShuttingDown,
    StoreUnhealthy,
    Trimmed,
)
from broadsheet.journal.descriptor_waits import more_files
from broadsheet.journal.messages import Chunk
from broadsheet.journal.remedies import accept_loss, disagreement
from broadsheet.journal.replica import Replica
from broadsheet.journal.spool_file import first_above
from broadsheet.journal.spool_mending import mend
from broadsheet.ports import NO_DESCRIPTOR

LAST_OFFSET: Final = ByteOffset((1 << 63) - 1)
LISTING_PATIENCE: Final = SECOND
"""How long a read waits for a store that is asked again because of it."""


async def read(
    replica: Replica,
    offset: ByteOffset | None,
    end: ByteOffset | None,
    *,
    block: bool,
    room: Callable[[int], Awaitable[int]] | None = None,
) -> AsyncIterator[Chunk]:
    """Chunks of the committed bytes `[offset, end)` of a journal, in order.

    Args:
        offset: None: from the committed end on.
        end: None: without end.
        block: True: wait at the committed end for more. False: the read ends there.
        room: waits until at least one byte may be sent, and returns how many may, up to its argument. It is
            called before anything is read, so that a reader that takes nothing costs no memory.

    Raises:
        OffsetNotYetAvailable: `offset` is above the committed end, and `block` is false.
        Trimmed: no fragment has the bytes at an offset.
        Corrupt: the bytes there are damaged.
        ShuttingDown: the journal was closed, or the node began to close, while the read waited.
    """
    at = replica.end if offset is None else offset
    stop = LAST_OFFSET if end is None else end
    if not block:
        require_committed(replica, at)
    while at < stop:
        _require_open(replica, at)
        if at >= replica.end:
            if not block:
                return
            await _more(replica, at)
            continue
        until = min(stop, replica.end)
        if room is not None:
            until = ByteOffset(at + await room(min(until - at, replica.context.config.read_bytes_max)))
            _require_open(replica, at)
        chunk = await read_chunk(replica, at, until)
        yield chunk
        at = chunk.end


async def _more(replica: Replica, at: ByteOffset) -> None:
    """Wait until a byte of the journal at `at` is committed, or the replica is closed.

    Raises:
        ShuttingDown: the node begins to close: such a read has no end, so a stop would wait for it in vain.
    """
    context, key = replica.context, object()
    if not context.is_leaving:
        context.wakes[key] = replica.wake
        try:
            await replica.wait_beyond(at)
        finally:
            del context.wakes[key]
    if context.is_leaving and replica.end <= at:
        raise ShuttingDown(f"journal {replica.name}: the node stops, and {at} is its committed end")


def require_committed(replica: Replica, offset: ByteOffset) -> None:
    """Refuse an offset that no committed byte of the journal is below.

    Raises:
        OffsetNotYetAvailable: `offset` is above the committed end.
    """
    if offset > replica.end:
        raise OffsetNotYetAvailable(
            f"journal {replica.name}: offset {offset} is above the committed end {replica.end}"
        )


def _require_open(replica: Replica, at: ByteOffset) -> None:
    if replica.is_closed:
        raise ShuttingDown(f"journal {replica.name} was closed at {at}")


async def read_chunk(
    replica: Replica, offset: ByteOffset, stop: ByteOffset, *, bytes_max: int | None = None
) -> Chunk:
    """At least one committed byte from `offset` on, and none at or above `stop`, at most the committed end.

    Args:
        bytes_max: not more of them; None: `read_bytes_max` of the configuration.

    Raises:
        Trimmed: no fragment has them. Corrupt: they are damaged, missing or not proven.
        StoreUnhealthy: no file could be opened for them within `descriptor_wait`.
        OSError: the store does not answer. ShuttingDown: the journal was closed meanwhile.
    """
    most = min(stop - offset, bytes_max or replica.context.config.read_bytes_max)
    _require_agreement(replica, offset)
    try:
        spooled = _spooled(replica, offset, most)
    except OSError as error:
        if error.errno not in NO_DESCRIPTOR:
            raise
        spooled = await _spooled_in_turn(replica, offset, most)
    except Corrupt:
        await mend(replica, offset, ByteOffset(offset + most))
        _require_open(replica, offset)
        spooled = await _spooled_in_turn(replica, offset, most)
    if spooled is not None:
        return spooled
    await _listed(replica)
    _require_agreement(replica, offset)
    fragment = replica.index.covering(offset)
    if fragment is None:
        if any(each.begin <= offset < each.end for each in (*replica.missing, *replica.unproven)):
            raise Corrupt(replica.stop_reason)  # Nobody has removed it, or accepted its loss.
        raise trimmed(replica, offset)
    length = min(most, fragment.end - offset)
    try:
        return Chunk(offset=offset, data=await replica.store.read(replica.name, fragment, offset, length))
    except Corrupt as error:
        _require_open(replica, offset)  # A deletion removes fragments while they are read: that is no damage.
        if replica.index.covering(offset) is None:
            raise trimmed(replica, offset) from None  # Nor is it if a trim has removed it meanwhile.
        replica.store.refused(replica.name, fragment, error)
        raise


def trimmed(replica: Replica, offset: ByteOffset) -> Trimmed:
    """The error of an offset that no fragment of a journal has."""
    return Trimmed(
        f"journal {replica.name}: no fragment has offset {offset}; the next that can be read is"
        f" {next_begin(replica, offset)}"
    )


def _require_agreement(replica: Replica, offset: ByteOffset) -> None:
    """Refuse a read where the store has two contents, also if a spool file has one of them (journals.10).

    Raises:
        Corrupt: it has.
    """
    if conflict := replica.index.conflict_at(offset):
        raise Corrupt(f"journal {replica.name}, at {offset}: {disagreement(conflict)}")


async def _listed(replica: Replica) -> None:
    """Have a fragment store that was down asked again now; the reader waits a moment for it.

    Raises:
        OSError: it has not answered since the start.
    """
    if not replica.is_listed:
        replica.listing_wanted.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(in_seconds(LISTING_PATIENCE)):
                await replica.listed.wait()
        _require_open(replica, replica.end)
    replica.require_listed()


def next_begin(replica: Replica, offset: ByteOffset) -> ByteOffset:
    """The first readable offset after a hole that includes `offset`; an append begins there."""
    return min(_begins_above(replica, offset))


def _spooled(replica: Replica, offset: ByteOffset, most: int) -> Chunk | None:
    """The next bytes of a read from a spool file; None if none has them.

    Raises:
        Corrupt: the bytes are damaged, or the store has other bytes there (J10).
    """
    at = first_above(replica.closed, offset)
    here = (each for each in (replica.spool, *replica.closed[at : at + 1]) if each.begin <= offset < each.end)
    spool = next(here, None)
    if spool is None:
        return None
    if spool.begin in replica.doubted:
        raise Corrupt(
            f"journal {replica.name}: spool file {spool.name} and the fragment store do not agree about"
            f" [{spool.begin}, {spool.end}), so neither is served: {accept_loss(replica.name)}"
        )
    length = min(most, spool.end - offset)
    try:
        return Chunk(offset=offset, data=spool.read(offset, length))
    except Corrupt:
        in_block = spool.block_end(next(spool.blocks(offset, spool.end))) - offset
        if in_block >= length:
            raise
        return Chunk(offset=offset, data=spool.read(offset, in_block))  # The damage may be behind this block.


async def _spooled_in_turn(replica: Replica, offset: ByteOffset, most: int) -> Chunk | None:
    """Spooled bytes of a read, once a descriptor is free: open files are synced, so that they may rest.

    Raises:
        StoreUnhealthy: no descriptor was free within `descriptor_wait`.
        ShuttingDown: the journal was closed meanwhile.
    """
    hit("journal.descriptor_awaited_by_read")
    found: asyncio.Future[Chunk | None] = asyncio.get_running_loop().create_future()

    def try_again() -> bool:
        if found.done():
            return True  # The read has given up.
        try:
            _require_open(replica, offset)
            found.set_result(_spooled(replica, offset, most))
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                return False
            found.set_exception(error)
        except BroadsheetError as error:
            found.set_exception(error)
        return True

    wait = replica.context.config.descriptor_wait
    replica.context.spools.wait(try_again)
    try:
        async with asyncio.timeout(in_seconds(wait)):
            return await found
    except TimeoutError:
        raise StoreUnhealthy(
            f"journal {replica.name}: nothing was read from {offset} on: {more_files(wait)}, or read fewer"
            " journals at a time"
        ) from None


def _begins_above(replica: Replica, offset: ByteOffset) -> Iterator[ByteOffset]:
    """The begins of the spools and of the stored fragment above `offset`, which is below the open spool."""
    yield replica.spool.begin
    at = first_above(replica.closed, offset)
    yield from (spool.begin for spool in replica.closed[at : at + 2] if spool.begin > offset)
    if (stored := replica.index.next_begin(offset)) is not None:
        yield stored
