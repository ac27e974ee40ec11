"""Contradiction: whether a journal's fragment store and its spool files agree about the bytes that both have.

Offsets are bytes. They differ if an older copy of the data directory, or of the store, was put back. This
module only compares: it changes no file, and does not decide which bytes are served. Source: J10.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from hashlib import sha1
from itertools import islice, takewhile
from typing import Final, NamedTuple

from broadsheet.base.types import ByteOffset, JournalName
from broadsheet.errors import Corrupt
from broadsheet.journal.core.fragment import Fragment
from broadsheet.journal.remedies import accept_loss
from broadsheet.journal.spool_file import SpoolFile, ask_again, first_above
from broadsheet.ports import Disk

READ_BYTES: Final = 1 << 20
"""How much of a spool file is compared at a time."""


class Contradiction(NamedTuple):
    """The result of comparing a journal's fragment store with its spool files."""

    reason: str
    """Why they contradict each other; empty if they do not."""
    spools: dict[ByteOffset, None]
    """The begins of the spool files whose bytes differ from the store's."""


async def contradiction(
    disk: Disk, name: JournalName, spools: Sequence[SpoolFile], fragments: Sequence[Fragment]
) -> Contradiction:
    """Compare the spans that a journal's store and its spool files both have.

    The store may have the first part of a fragment that has grown since, because a restart continues the open
    fragment. If an older copy of the data directory was put back, its bytes differ from the stored ones
    (J10).

    Args:
        spools: by offset.

    Raises:
        OSError: no descriptor is free, or the disk reads nothing, so a file cannot be compared now. That is
            not a contradiction.
    """
    reason, doubted = "", dict[ByteOffset, None]()
    begin = spools[0].begin if spools else max((each.end for each in fragments), default=0)
    fragments = [each for each in fragments if each.end > begin]  # Of 100,000 few are left: 5 ms, not 140.
    stored = dict.fromkeys((each.begin, each.end, each.sum) for each in fragments)
    for fragment in fragments:
        # The spool of a stored fragment may have been removed. Then nothing contradicts the fragment.
        from_here = islice(spools, first_above(spools, fragment.begin), None)
        shared = [*takewhile(partial(_begins_below, fragment.end), from_here)]
        if not shared:
            continue
        span = fragment.begin, fragment.end
        same = next((each for each in shared if (each.begin, each.end) == span), None)
        if same is not None and (same.damage or (*span, same.digest()) in stored):
            continue  # Damage has its own reason. If the store has two contents, the index reports that.
        is_within = shared[0].begin <= fragment.begin and fragment.end <= shared[-1].end
        try:
            if is_within and await _digest(disk, shared, fragment) == fragment.sum:
                continue
            text = (
                f"journal {name}: the fragment store has {fragment.name}, which is not what the spool files"
                " have there: was an older copy of the data directory put back? Nothing is overwritten:"
                f" put the newer copy back, or go on with the store's: {accept_loss(name)}"
            )
        except Corrupt as error:
            text = str(error)
        reason = reason or text
        doubted |= dict.fromkeys(each.begin for each in shared)
    return Contradiction(reason, doubted)


def _begins_below(end: ByteOffset, spool: SpoolFile) -> bool:
    return spool.begin < end


async def _digest(disk: Disk, spools: Sequence[SpoolFile], fragment: Fragment) -> bytes:
    """The SHA-1 of a fragment's range in the spool files."""
    digest = sha1(usedforsecurity=False)
    for spool in spools:
        for at in range(max(spool.begin, fragment.begin), min(spool.end, fragment.end), READ_BYTES):
            length = min(READ_BYTES, spool.end - at, fragment.end - at)
            try:
                piece = spool.read(ByteOffset(at), length)
            except Corrupt:
                await ask_again(disk, spool, ByteOffset(at), ByteOffset(at + length))
                piece = spool.read(ByteOffset(at), length)
            digest.update(piece)
            # Read on the loop, not in a thread: each append changes the last block of the open spool.
            await asyncio.sleep(0)
    return digest.digest()
