"""Spool file: one fragment while it is being built, and until the store has it.

Offsets are journal bytes; the byte at `begin` is byte 0 of the file. The owner moves it EMPTY -> open ->
closed -> removed. Content is appended at `end` before the log has its record; if that is refused, or a
streamed append is given up, `restore` takes it back. Two kinds of sums are kept: the SHA-1 of the whole,
which names the fragment, and the crc32c of each block, which is checked on every read, so that a damaged page
is refused and not served (W4). Over a restart the latter are in a file beside it (`spool_sums.py`).

The spool file does not decide what is committed. Its content is durable only if it was synced and the log
says so. Source: journals.6, journals.14; W4.
"""

import errno
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import sha1
from typing import Final, Protocol, Self

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import Buffer, ByteOffset
from broadsheet.errors import Corrupt
from broadsheet.journal.core.block_sums import BLOCK_BYTES, BlockSums, block_count, crcs_through
from broadsheet.journal.core.fragment import EMPTY_SUM, Codec, Fragment
from broadsheet.journal.core.records import ClosedSpool
from broadsheet.journal.core.recovery import SpoolPlan
from broadsheet.journal.spool_disk import Opener
from broadsheet.journal.spool_sums import read_sums, write_sums
from broadsheet.ports import Disk, File
from broadsheet.wal.config import BLOCK_BYTES as SECTOR_BYTES
from broadsheet.wal.segments import read_around

SPOOL_SUFFIX: Final = ".spool"
RESERVE_BYTES: Final = 1 << 20
"""Blocks that a spool reserves ahead of its end, once it is as long itself: a write into them costs less."""
_BEGIN: Final = re.compile(r"[0-9a-f]{16}")
REBUILD_BYTES: Final = 1 << 20
"""How much a rebuild reads at a time."""


class Hash(Protocol):
    """The part of a `hashlib` object that is used here."""

    def update(self, content: Buffer, /) -> None:
        """Add `content`."""
        ...

    def digest(self) -> bytes:
        """The sum of all added content."""
        ...

    def copy(self) -> Self:
        """A copy in the same state."""
        ...


class Saved:
    """The state of a spool at one end, for `restore` (journals.6)."""

    __slots__ = ("block_count", "end", "first_append", "sha", "tail_crc")

    def __init__(
        self, end: ByteOffset, sha: Hash, *, block_count: int, tail_crc: int, first_append: int
    ) -> None:
        self.end, self.sha, self.block_count = end, sha, block_count
        self.tail_crc, self.first_append = tail_crc, first_append


class SpoolFile:
    """The spool file of one fragment, with its sums."""

    def __init__(self, file: File, begin: ByteOffset) -> None:
        """Take over the spool's `file`; bytes that it already has do not count."""
        self.file = file
        self.begin = self.end = begin
        self.first_append = 0
        self.is_dir_synced = self.is_synced = self.is_released = False
        """Whether its name, and all that a closed one has, is synced; whether the file was let go."""
        self.hinted_bytes = 0
        """How many first bytes the disk was asked to begin writing (ADR 0194)."""
        self.uncached_bytes = 0
        """How many first bytes were freed from the page cache."""
        self.damage = ""
        """Why the content may not be served; empty if it may."""
        self.unreadable = ""
        """Why some of its blocks cannot be served; empty if none is known to be damaged."""
        self.given_up: dict[ByteOffset, None] = {}
        """The begins of those blocks."""
        self.summed_end = begin
        """Up to where a file beside it has the sums of its blocks; its begin if there is none."""
        self.bad_copy = ""
        """Why the stored copy is bad, so that this file stays and is served; empty if it is not."""
        self.unstored = ""
        """Why the store did not take it the last time; empty if it was not asked."""
        self._sha: Hash = sha1(usedforsecurity=False)
        self._named_sum = b""
        """SHA-1 of the content according to the log, if blocks of the file are damaged; empty if none is."""
        self._block_crcs: list[int] = []
        self._tail_crc = 0
        self._reserved = 0
        """How many first bytes of the file have blocks; those behind the end were reserved."""
        self._may_reserve = True
        self._closed: ClosedSpool | None = None

    @property
    def length(self) -> int:
        """Bytes of content."""
        return self.end - self.begin

    @property
    def name(self) -> str:
        """The file's name."""
        return self.file.name

    def digest(self) -> bytes:
        """SHA-1 of the content, as fragments are summed."""
        if self._named_sum:
            return self._named_sum
        return self._sha.digest() if self.end > self.begin else EMPTY_SUM

    def fragment(self, codec: Codec) -> Fragment:
        """The fragment of this content, if it is stored with `codec`."""
        return Fragment(begin=self.begin, end=self.end, sum=self.digest(), codec=codec)

    def as_closed(self) -> ClosedSpool:
        """What a checkpoint says of it once it is closed. Made once: a journal may have 65,536 of them."""
        if self._closed is None:
            self._closed = ClosedSpool(self.begin, self.end, self.digest())
        assert self._closed.end == self.end, "a closed spool does not grow"
        return self._closed

    def save(self) -> Saved:
        """The present state of a spool."""
        return Saved(
            self.end,
            self._sha.copy(),
            block_count=len(self._block_crcs),
            tail_crc=self._tail_crc,
            first_append=self.first_append,
        )

    def restore(self, saved: Saved) -> None:
        """Forget content that was appended after `saved`, which must not be used again."""
        assert saved.end <= self.end, "a spool goes back, not forth"
        self.end, self._sha, self._tail_crc = saved.end, saved.sha, saved.tail_crc
        self.first_append = saved.first_append
        del self._block_crcs[saved.block_count :]

    def append(self, parts: Sequence[Buffer], *, wall: int) -> None:
        """Write `parts` back to back at the spool's end, and add them to the sums.

        Raises:
            OSError: after ENOSPC and EDQUOT nothing changed; after any other the process must end.
        """
        assert not self._named_sum, "the SHA-1 of damaged content cannot go on"
        at = self.end - self.begin
        end = at + sum(map(len, parts))
        if end > self._reserved and at >= RESERVE_BYTES and self._may_reserve:
            self._reserve(at, end)
        self.file.write_at(at, parts)
        for content in parts:
            self.absorb(content, wall=wall)

    def _reserve(self, at: int, end: int) -> None:
        """Keep blocks reserved ahead of a write of [at, end), so that it need not ask for each of them."""
        self._may_reserve = self.file.reserve(max(at, self._reserved), end + RESERVE_BYTES)
        self._reserved = end + RESERVE_BYTES

    def finish(self) -> None:
        """Give back what is reserved behind the spool's end: nothing more comes.

        Raises:
            OSError: the disk failed, or no descriptor is free. Nothing changed.
        """
        if self._reserved > self.length:
            self.file.truncate(self.length)
            self._reserved = 0

    def absorb(self, content: Buffer, *, wall: int) -> None:
        """Add content that is in the spool file already to its sums."""
        if self.end == self.begin:
            self.first_append = wall
        self._sha.update(content)
        view, length = memoryview(content), len(content)
        room = BLOCK_BYTES - (self.end - self.begin) % BLOCK_BYTES
        at = 0
        while length - at >= room:
            self._block_crcs.append(crc32c(view[at : at + room], self._tail_crc))
            self._tail_crc = 0
            at, room = at + room, BLOCK_BYTES
        if at < length:
            self._tail_crc = crc32c(view[at:] if at else view, self._tail_crc)
        self.end = ByteOffset(self.end + length)

    def read(self, offset: ByteOffset, length: int) -> bytes:
        """The bytes of `[offset, offset + length)`, all of which the spool has.

        Raises:
            Corrupt: the bytes are not those that were appended. Nothing is served.
        """
        assert self.begin <= offset, f"offset {offset} is below the spool's begin {self.begin}"
        assert offset + length <= self.end, f"[{offset}, +{length}) is above the spool's end {self.end}"
        if self.damage:
            raise Corrupt(self.damage)
        start = offset - self.begin
        first = start // BLOCK_BYTES
        last = (start + length + BLOCK_BYTES - 1) // BLOCK_BYTES
        stop = min(last * BLOCK_BYTES, self.length)
        found = read_around(self.file, first * BLOCK_BYTES, stop - first * BLOCK_BYTES)
        view = memoryview(found)
        for block in range(first, last):
            at = (block - first) * BLOCK_BYTES
            if crc32c(view[at : at + BLOCK_BYTES]) != self._crc(block):
                what = f"block {block} of [{self.begin}, {self.end}) fails its checksum"
                way_out = f": {self.unreadable}" if self.unreadable else ""
                raise Corrupt(f"spool file {self.name}: {what}; its bytes are not served{way_out}")
        skip = start - first * BLOCK_BYTES
        return found[skip : skip + length] if skip or len(found) != length else found

    @property
    def fault(self) -> str:
        """Why some or all of the content may not be served; empty if it may."""
        return self.damage or self.unreadable

    @property
    def store_fault(self) -> str:
        """Why the store does not have the content, or has something else; empty if neither is known."""
        return self.bad_copy or self.unstored

    def blocks(self, offset: ByteOffset, end: ByteOffset) -> Iterator[ByteOffset]:
        """The begins of the blocks that hold a byte of `[offset, end)`."""
        first = (offset - self.begin) // BLOCK_BYTES * BLOCK_BYTES
        yield from map(ByteOffset, range(self.begin + first, end, BLOCK_BYTES))

    def block_end(self, begin: ByteOffset) -> ByteOffset:
        """The end of the block that begins there."""
        return min(ByteOffset(begin + BLOCK_BYTES), self.end)

    def is_sound(self, begin: ByteOffset) -> bool:
        """Whether the file has the content of the block that begins there."""
        length = self.block_end(begin) - begin
        return self.agrees(begin, read_around(self.file, begin - self.begin, length))

    def agrees(self, begin: ByteOffset, content: Buffer) -> bool:
        """Whether `content` is that of the block that begins there."""
        is_whole = len(content) == self.block_end(begin) - begin
        return is_whole and crc32c(content) == self._crc((begin - self.begin) // BLOCK_BYTES)

    def wanted_sums(self) -> BlockSums | None:
        """The sums of its blocks, if it has more than one, and the file beside it lacks the sums of some."""
        if self.length <= BLOCK_BYTES or self.summed_end == self.end or self.damage:
            return None
        crcs = (*self._block_crcs, self._tail_crc)[: block_count(self.length)]
        return BlockSums(self.begin, self.end, self.digest(), crcs)

    def believe(self, crcs: Sequence[int], digest: bytes) -> bool:
        """Take these sums for those of the spool's content: blocks that do not have theirs are given up.

        Returns:
            Whether there are such blocks. Then nothing can be appended, because the SHA-1 cannot go on.
        """
        assert len(crcs) == block_count(self.length), "each block has a sum"
        damaged = [block for block, crc in enumerate(crcs) if crc != self._crc(block)]
        if damaged:
            self.given_up = {ByteOffset(self.begin + block * BLOCK_BYTES): None for block in damaged}
            self._block_crcs, self._named_sum = [*crcs], digest
        return bool(damaged)

    def _crc(self, block: int) -> int:
        return self._block_crcs[block] if block < len(self._block_crcs) else self._tail_crc

    def close(self) -> None:
        """Release the file."""
        self.is_released = True
        self.file.close()


def create(files: Opener, directory: str, begin: ByteOffset, *, may_cut: bool = True) -> SpoolFile:
    """Make an empty spool file of the fragment that begins at `begin`; cut off bytes of an earlier attempt.

    Args:
        may_cut: False: bytes in the file may have been acknowledged, so they stay; nothing may be written to
            the file then.

    Raises:
        OSError: ENOSPC: nothing was created.
    """
    file = files.open(spool_name(directory, begin), create=True)
    try:
        if may_cut and file.size():
            file.truncate(0)  # These bytes were never adopted: no record of the log names them.
    except BaseException:
        file.close()
        raise
    return SpoolFile(file, begin)


def first_above(closed: Sequence[SpoolFile], offset: int) -> int:
    """The place of the first of `closed`, by offset, that ends above `offset`."""
    return bisect_right(closed, offset, key=lambda each: each.end)


def spool_name(directory: str, begin: ByteOffset) -> str:
    """The name of the file of the fragment that begins at `begin`."""
    return f"{directory}/{begin:016x}{SPOOL_SUFFIX}"


def spool_begin(name: str) -> ByteOffset | None:
    """The begin of the fragment whose spool file has that name; None if it is another file."""
    if not name.endswith(SPOOL_SUFFIX) or not _BEGIN.fullmatch(digits := name.removesuffix(SPOOL_SUFFIX)):
        return None
    return ByteOffset(int(digits, 16))


def rebuild(files: Opener, directory: str, plan: SpoolPlan, *, may_cut: bool = True) -> SpoolFile:
    """Make the spool file of `plan` from the bytes in the file and the content in the log. Blocking.

    The file is not synced: content that may not be synced stays in the log until a checkpoint has synced it.

    Content that is in the log is written again: a read of the page cache does not prove that the disk has it
    (log.15). A file whose content does not have the plan's sum is kept as it is, and the whole is marked as
    damaged. If the sums of its blocks are known, only the damaged blocks are given up.

    Args:
        may_cut: False: bytes above the plan's end may have been acknowledged, so they stay.

    Raises:
        OSError: the disk failed.
    """
    file = files.open(spool_name(directory, plan.begin), create=True)
    spool = SpoolFile(file, plan.begin)
    try:
        write_again(file, plan)
        length = plan.end - plan.begin
        for at in range(0, length, REBUILD_BYTES):
            wanted = min(REBUILD_BYTES, length - at)
            found = read_around(file, at, wanted)  # An unreadable sector is damage: it reads as zeros.
            spool.absorb(found + bytes(wanted - len(found)), wall=plan.first_append)
        if spool.digest() != plan.sum and not _is_partly_sound(files, directory, spool, plan):
            spool.damage = (
                f"spool file {spool.name} does not have the content of [{plan.begin}, {plan.end}) with the"
                f" sum {plan.sum.hex()}: it is kept, and not served"
            )
        elif may_cut and file.size() > length and _can_cut(file, length):
            file.truncate(length)
    except BaseException:
        spool.close()
        raise
    return spool


def _is_partly_sound(files: Opener, directory: str, spool: SpoolFile, plan: SpoolPlan) -> bool:
    """Whether the sums of its blocks are known, and so which ones of a damaged file may be served."""
    sums = None if plan.known is None else read_sums(files, directory, plan.known)
    return sums is not None and spool.believe(crcs_through(sums, plan.writes, plan.end), plan.sum)


def write_again(file: File, plan: SpoolPlan) -> None:
    """Write the content that the log has into the spool file again.

    Raises:
        OSError: the disk failed.
    """
    at = end = plan.begin
    parts: list[Buffer] = []
    for begin, content in plan.writes:
        if parts and begin != end:
            overwrite(file, at - plan.begin, parts)
            parts = []
        at = at if parts else begin
        end = ByteOffset(begin + len(content))
        parts.append(content)
    if parts:
        overwrite(file, at - plan.begin, parts)


def overwrite(file: File, at: int, parts: Sequence[Buffer]) -> None:
    """Write `parts` into a spool back to back, also over sectors that the disk cannot read.

    To write a part of a sector the kernel must read it; if it cannot, the write fails, and nothing is written
    to the file any more (`runtime.syncs`). So such a sector is written whole. If it has other bytes as well,
    it stays as it is, because they may be readable again later. The content is joined, because a disk writes
    many parts in several calls, and a call may end within such a sector.

    Raises:
        OSError: the disk failed.
    """
    content = b"".join(parts)
    size, end = file.size(), at + len(content)
    is_head_sound, is_tail_sound = _can_cut(file, at), _can_cut(file, end)
    if is_head_sound and is_tail_sound:
        file.write_at(at, (content,))
        return
    first = at if is_head_sound else at - at % SECTOR_BYTES + SECTOR_BYTES
    last = end if is_tail_sound or end >= size else end - end % SECTOR_BYTES
    if first >= last:
        return
    padding = 0 if is_tail_sound or last < end else -end % SECTOR_BYTES
    file.write_at(first, (content[first - at : last - at], bytes(padding)))
    if padding:
        file.truncate(max(size, end))


def _can_cut(file: File, at: int) -> bool:
    """Whether a write to a spool may begin or end at `at`: not within a sector that cannot be read."""
    if not at % SECTOR_BYTES:
        return True
    try:
        file.read_at(at - at % SECTOR_BYTES, SECTOR_BYTES)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return False
    return True


async def ask_again(disk: Disk, spool: SpoolFile, offset: ByteOffset, end: ByteOffset) -> None:
    """Have a thread read a spool's blocks of `[offset, end)`: it waits if reads fail a while (ADR 0198).

    Whoever reads on the loop does not wait. It calls this, and reads again, before it decides by a failure.

    Raises:
        OSError: DISK_AWAY: the disk still reads nothing. EBADF: the file was closed meanwhile.
    """
    blocks = [*spool.blocks(offset, end)]
    first, stop = blocks[0] - spool.begin, spool.block_end(blocks[-1]) - spool.begin
    await disk.run(lambda: read_around(spool.file, first, stop - first))


async def keep_sums(disk: Disk, directory: str, spool: SpoolFile, wanted: BlockSums | None) -> None:
    """Write the file with the sums of the spool's blocks, if it is wanted. The directory is synced later.

    Raises:
        OSError: no descriptor is free, or the disk failed.
    """
    if wanted is not None and await disk.run(lambda: write_sums(disk, directory, wanted)):
        spool.summed_end = wanted.end


def contents(spool: SpoolFile, size: int) -> Iterator[bytes]:
    """The whole checked content in pieces of `size` bytes, read as it is iterated. Blocking."""
    for at in range(spool.begin, spool.end, size):
        yield spool.read(ByteOffset(at), min(size, spool.end - at))
