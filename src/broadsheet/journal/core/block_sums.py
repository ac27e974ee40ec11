"""Block sums: the checksums of a spool file's blocks up to one end, as a file beside the spool keeps them.

Offsets are bytes; a sum of a block is its crc32c, or `UNKNOWN`. They name the SHA-1 of the content, and count
only where a record of the log names the same: so they are of content that was adopted, and of nothing else.

This module reads no file. Source: W4; ADR 0200; `docs/protocols/journals.md` "Fragments and the store".
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import Buffer, ByteOffset
from broadsheet.errors import Corrupt

BLOCK_BYTES: Final = 64 << 10
"""Length of a block; the last one of a file may be shorter."""
UNKNOWN: Final = -1
"""The sum of a block of whose content nothing is known: no content has it."""
SUMS: Final = 32
"""First byte of the file: version 1 of its format."""
CRC_BYTES: Final = 4


class BlockSums(msgspec.Struct, frozen=True):
    """The sums of the blocks of the fragment that begins at `begin`, up to `end`, as its spool keeps them."""

    begin: ByteOffset
    end: ByteOffset
    sum: bytes
    """SHA-1 of the content."""
    crcs: tuple[int, ...]
    """By offset."""


_decoder = msgspec.msgpack.Decoder(BlockSums)


def encode_sums(sums: BlockSums) -> bytes:
    """The whole file."""
    body = bytes((SUMS,)) + msgspec.msgpack.encode(sums)
    return body + crc32c(body).to_bytes(CRC_BYTES, "little")


def decode_sums(content: bytes) -> BlockSums:
    """The block sums of a spool in a file's `content`.

    Raises:
        Corrupt: the file is damaged, or of a newer version.
    """
    body, crc = content[:-CRC_BYTES], content[-CRC_BYTES:]
    if crc32c(body).to_bytes(CRC_BYTES, "little") != crc or body[:1] != bytes((SUMS,)):
        raise Corrupt(f"block sums of {len(content)} bytes fail their checksum, or are of a newer version")
    try:
        sums = _decoder.decode(memoryview(body)[1:])
    except msgspec.DecodeError as error:
        raise Corrupt(f"block sums do not decode: {error}: written by a newer version?") from error
    if len(sums.crcs) != block_count(sums.end - sums.begin):
        raise Corrupt(f"{len(sums.crcs)} block sums of [{sums.begin}, {sums.end})")
    return sums


def block_count(length: int) -> int:
    """How many blocks hold `length` bytes."""
    return -(-length // BLOCK_BYTES)


def crcs_through(
    sums: BlockSums, writes: Iterable[tuple[ByteOffset, Buffer]], end: ByteOffset
) -> tuple[int, ...]:
    """The sum of each block of a spool up to `end`, by `sums` and the log's content behind them.

    Args:
        writes: by offset. They may lack content that only the spool file has: nothing is known from there on.
    """
    crcs, at = [*sums.crcs], sums.end
    for begin, content in writes:
        if begin != at:
            break
        view = memoryview(content)
        while view:
            in_block = (at - sums.begin) % BLOCK_BYTES
            piece, view = view[: BLOCK_BYTES - in_block], view[BLOCK_BYTES - in_block :]
            before = crcs.pop() if in_block else 0
            crcs.append(UNKNOWN if before == UNKNOWN else crc32c(piece, before))
            at = ByteOffset(at + len(piece))
    if at < end and (at - sums.begin) % BLOCK_BYTES:
        crcs[-1] = UNKNOWN
    return (*crcs, *(UNKNOWN for _ in range(block_count(end - sums.begin) - len(crcs))))
