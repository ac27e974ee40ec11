"""Block sums keep their bytes, believe no damage, and tell nothing of content that nobody knows."""

import random
from itertools import pairwise

import pytest

from broadsheet.base.checksum import crc32c
from broadsheet.base.types import ByteOffset
from broadsheet.errors import Corrupt
from broadsheet.journal.core.block_sums import (
    BLOCK_BYTES,
    UNKNOWN,
    BlockSums,
    crcs_through,
    decode_sums,
    encode_sums,
)

BEGIN = ByteOffset(7)
SUMS = BlockSums(BEGIN, ByteOffset(BEGIN + BLOCK_BYTES + 1), b"s" * 20, (0xDEADBEEF, UNKNOWN))
GOLDEN = (
    "2084a5626567696e07a3656e64ce00010008a373756dc4147373737373737373737373737373737373737373a463726373"
    "92cedeadbeefff"
)


def test_block_sums_have_these_bytes() -> None:
    """A file that was written is read by every later version."""
    encoded = encode_sums(SUMS)

    assert encoded[:-4].hex() == GOLDEN
    assert encoded[-4:] == crc32c(encoded[:-4]).to_bytes(4, "little")
    assert decode_sums(encoded) == SUMS


def test_no_flipped_bit_of_block_sums_is_believed() -> None:
    """W4: they decide which bytes of a damaged file are served."""
    encoded = encode_sums(SUMS)
    for bit in range(8 * len(encoded)):
        damaged = bytearray(encoded)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            decode_sums(bytes(damaged))
    for length in range(len(encoded)):
        with pytest.raises(Corrupt):
            decode_sums(encoded[:length])
    with pytest.raises(Corrupt, match="1 block sums"):
        decode_sums(encode_sums(BlockSums(BEGIN, SUMS.end, SUMS.sum, (1,))))


def crcs_of(content: bytes) -> tuple[int, ...]:
    return tuple(crc32c(content[at : at + BLOCK_BYTES]) for at in range(0, len(content), BLOCK_BYTES))


def test_the_content_of_the_log_behind_them_goes_on_with_the_sums() -> None:
    """J2: it was written again at the start, so its blocks are as sound as any."""
    draw = random.Random("sums")
    content = draw.randbytes(5 * BLOCK_BYTES)
    for _ in range(200):
        first, end = sorted(draw.randrange(len(content) + 1) for _ in range(2))
        cuts = sorted({first, end, *(draw.randrange(first, end + 1) for _ in range(draw.randrange(4)))})
        writes = [(ByteOffset(BEGIN + begin), content[begin:stop]) for begin, stop in pairwise(cuts)]
        sums = BlockSums(BEGIN, ByteOffset(BEGIN + first), b"s" * 20, crcs_of(content[:first]))

        assert crcs_through(sums, writes, ByteOffset(BEGIN + end)) == crcs_of(content[:end])

        gap = draw.randrange(len(writes)) if writes else 0  # An append whose content is in the spool only.
        known = cuts[gap] // BLOCK_BYTES if writes else first // BLOCK_BYTES
        found = crcs_through(sums, [*writes[:gap], *writes[gap + 1 :]], ByteOffset(BEGIN + end))
        expected = crcs_of(content[:end])
        assert found[:known] == expected[:known]
        if writes:
            rest = [UNKNOWN] * (len(expected) - known)
            assert list(found[known:]) == rest or cuts[gap] % BLOCK_BYTES == 0
