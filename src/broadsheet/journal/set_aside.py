"""Set aside: unproven bytes of a journal's spools are moved to files of their own, never deleted.

Offsets are bytes. Blocking, for a thread; every function may be cut short by a crash and repeated. The bytes
may have been acknowledged; `spool_repair` decides what is proven. The module also knows which files in the
directory are the journal's. Source: journals.3; W7.
"""

import re
from collections.abc import Iterable
from typing import Final

from broadsheet.base.checksum import crc32c
from broadsheet.base.marks import hit
from broadsheet.base.types import ByteOffset
from broadsheet.journal.core.recovery import RecoveryPlan
from broadsheet.journal.core.seal import Lost
from broadsheet.journal.core.spool_claims import Claims
from broadsheet.journal.seal_file import SEAL_NAME
from broadsheet.journal.spool_file import spool_begin
from broadsheet.journal.spool_sums import is_sums
from broadsheet.ports import Disk, File
from broadsheet.wal.segments import read_around

LOST_SUFFIX: Final = ".lost"
_GIVEN_UP: Final = re.compile(r"[0-9a-f]{16}-([0-9a-f]{16})(-[0-9]{1,7})?\.lost")
"""The name of what is moved aside because its loss is accepted, or of a damaged file that the store has. Of
what a start copies out after kill -9 the name has a checksum of 8 digits as well: that moves no head."""
PIECE_BYTES: Final = 1 << 20
LOST_CLAIMS_MAX: Final = 64
"""Records whose sums an operator is shown. The log may have a hundred thousand: neither a seal nor a reply
has room for each."""


def may_go(name: str) -> bool:
    """Whether a start may remove a file that the log does not name: not a seal, nor one that is not ours."""
    return spool_begin(name) is not None or is_sums(name) or name == f"{SEAL_NAME}.new"


def is_ours(name: str) -> bool:
    """Whether a file in a spool directory is the journal's: a spool file, its sums, or a seal."""
    return may_go(name) or name == SEAL_NAME or name.endswith(LOST_SUFFIX)


def lost_files(disk: Disk, directory: str) -> list[str]:
    """The files that were moved aside."""
    return lost_among(disk.list(directory))


def lost_among(names: Iterable[str]) -> list[str]:
    """Those of `names` that were moved aside."""
    return [name for name in names if name.endswith(LOST_SUFFIX)]


def ends_of_given_up(names: Iterable[str]) -> list[tuple[ByteOffset, str]]:
    """The end and the name of each of `names` that no start has copied out."""
    found = (match for name in names if (match := _GIVEN_UP.fullmatch(name)) is not None)
    return [(ByteOffset(int(each.group(1), 16)), each.group(0)) for each in found]


def move_aside(disk: Disk, directory: str, name: str, *, begin: int) -> None:
    """Rename a damaged spool file, durably, to a name that a start never removes."""
    file = disk.open(name)
    try:
        size = file.size()
    finally:
        file.close()
    disk.rename(name, unused_name(disk, directory, begin=begin, size=size))
    disk.sync_dir(directory)


def unused_name(disk: Disk, directory: str, *, begin: int, size: int) -> str:
    """A free name for a file of that span that is moved aside.

    The name may be taken: an earlier attempt that the disk refused half-way leaves a file, and the next
    opening makes the spool file again.
    """
    span = f"{directory}/{begin:016x}-{begin + size:016x}"
    name, number = f"{span}{LOST_SUFFIX}", 1
    while disk.exists(name):
        name, number = f"{span}-{number}{LOST_SUFFIX}", number + 1
    return name


def sync_files(disk: Disk, names: Iterable[str]) -> None:
    """Sync the files, through whichever descriptor they were written."""
    for name in names:
        file = disk.open(name)
        try:
            file.sync()
        finally:
            file.close()


def set_aside(disk: Disk, directory: str, plan: RecoveryPlan) -> list[str]:
    """Copy the spool bytes above the plan's end into separate files, then cut them off the spools.

    Returns:
        The names of the new files, which a start keeps and `doctor` lists.
    """
    made: list[str] = []
    for name, begin, size in spools_in(disk, directory):
        mine = next((each for each in plan.spools if each.begin == begin), None)
        length = mine.end - mine.begin if mine is not None else 0
        if mine is None and begin < plan.end:
            continue  # A closed spool that was stored: `opening` removes it.
        file = disk.open(f"{directory}/{name}")
        try:
            if size > length:
                made.append(copy_out(disk, directory, file, begin=begin, skip=length, size=size))
                file.truncate(length)
                file.sync()
        finally:
            file.close()
    if made:
        hit("journal.set_aside")
    return made


def copy_out(disk: Disk, directory: str, file: File, *, begin: int, skip: int, size: int) -> str:
    """Copy the bytes of a spool file after the first `skip` to a new file, durably; returns its name."""
    crc = 0
    partial = f"{directory}/partial{LOST_SUFFIX}"
    target = disk.open(partial, create=True)
    try:
        target.truncate(0)
        for at in range(skip, size, PIECE_BYTES):
            piece = read_around(file, at, min(PIECE_BYTES, size - at))
            crc = crc32c(piece, crc)
            target.write_at(at - skip, (piece,))
        target.sync()
    finally:
        target.close()
    name = f"{begin + skip:016x}-{begin + size:016x}-{crc:08x}{LOST_SUFFIX}"
    disk.rename(partial, f"{directory}/{name}")
    disk.sync_dir(directory)
    return name


def lost_of(
    disk: Disk,
    directory: str,
    plan: RecoveryPlan,
    claims: Claims,
    *,
    reach: ByteOffset,
    length_max: int,
) -> tuple[Lost, ...]:
    """The spans above the plan's end that records name, or that spool files have bytes of.

    Args:
        reach: how far the undecodable records reached, as far as their bytes tell.
        length_max: of one append; it bounds the claims, because a damaged record may name any span.
    """
    most = plan.end + length_max * max(1, len(claims.claims))
    sums = {claim.end: claim.sum for claim in claims.claims if plan.end < claim.end <= most}
    lost = [
        Lost(plan.end, end, "a record of the log that is damaged or unproven names it", sums[end])
        for end in sorted(sums)[-LOST_CLAIMS_MAX:]  # They begin at one place: the furthest say it all.
    ]
    if reach > plan.end:
        lost.append(Lost(plan.end, reach, "a record of the log that does not decode may have reached it"))
    for name, begin, size in spools_in(disk, directory):
        end = ByteOffset(begin + size)
        if end > plan.end:
            lost.append(Lost(max(plan.end, begin), end, f"{name} has bytes of it that no sum proves"))
    return tuple(dict.fromkeys(lost))


def spools_in(disk: Disk, directory: str) -> list[tuple[str, ByteOffset, int]]:
    """Name, begin and size of each spool file, by offset."""
    found: list[tuple[str, ByteOffset, int]] = []
    for name in disk.list(directory):
        if (begin := spool_begin(name)) is not None:
            file = disk.open(f"{directory}/{name}")
            try:
                found.append((name, begin, file.size()))
            finally:
                file.close()
    return found
