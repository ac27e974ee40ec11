"""No flipped bit of a spool or a stored fragment is served (W4), and no file is deleted for it (W7)."""

import asyncio
from hashlib import sha1
from random import Random

import pytest

from broadsheet.base.types import ByteOffset, JournalName
from broadsheet.errors import Corrupt
from broadsheet.journal.block_cache import Budget
from broadsheet.journal.codecs import compress
from broadsheet.journal.config import CACHE_BYTES_MIN
from broadsheet.journal.core.block_sums import BLOCK_BYTES
from broadsheet.journal.core.fragment import Codec, Fragment
from broadsheet.journal.core.recovery import SpoolPlan
from broadsheet.journal.fragments import FragmentStore
from broadsheet.journal.spool_file import SpoolFile, create, rebuild
from simulator.disk import SimDisk
from tests.journal.crash_histories import Shelf

FLIPS = {Codec.NONE: 600, Codec.GZIP: 600, Codec.ZSTANDARD: 600, Codec.SNAPPY: 600}
SPOOL_FLIPS = 1_200


def content(random: Random, length: int) -> bytes:
    return b"".join(b'{"n":%d}\n' % random.randrange(1 << 30) for _ in range(length // 12))


def spool_of(disk: SimDisk, runs: list[bytes]) -> SpoolFile:
    disk.make_dir("s")
    spool = create(disk, "s", ByteOffset(100))
    for run in runs:
        spool.append((run,), wall=7)
    return spool


@pytest.mark.parametrize("codec", list(Codec))
def test_no_flipped_bit_of_a_fragment_is_served(codec: Codec) -> None:
    """Whatever codec: a reader gets the bytes that the name promises, or Corrupt."""
    random = Random(f"fragment {codec}")
    disk = SimDisk()
    spool = spool_of(disk, [content(random, 30_000)])
    fragment, whole = spool.fragment(codec), spool.read(spool.begin, spool.length)
    stored = b"".join(bytes(part) for part in compress(codec, [whole]))
    detected = 0

    for _ in range(FLIPS[codec]):
        bit = random.randrange(8 * len(stored))
        damaged = bytearray(stored)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert asyncio.run(_served(bytes(damaged), fragment)) == whole, f"bit {bit} was served"
        except Corrupt:
            detected += 1
    assert detected > 0.95 * FLIPS[codec]


async def _served(stored: bytes, fragment: Fragment) -> bytes:
    """What a reader gets, block by block."""
    store = FragmentStore(
        Shelf(None, {f"f/{fragment.name}": stored}), SimDisk().run, budget=Budget(CACHE_BYTES_MIN)
    )
    found = b""
    while len(found) < fragment.length:
        at = ByteOffset(fragment.begin + len(found))
        found += await store.read(JournalName("f"), fragment, at, fragment.end - at)
    return found


def test_no_flipped_bit_of_a_spool_is_served() -> None:
    """Under a live journal: each read is checked by block."""
    random = Random("spool")
    disk = SimDisk()
    spool = spool_of(disk, [content(random, random.randrange(20, 9_000)) for _ in range(60)])
    whole = spool.read(spool.begin, spool.length)

    for _ in range(SPOOL_FLIPS):
        bit = random.randrange(8 * len(whole))
        spool.file.write_at(bit // 8, [bytes([whole[bit // 8] ^ (1 << bit % 8)])])
        offset = max(0, min(bit // 8 - random.randrange(2 * BLOCK_BYTES), len(whole) - 1))
        length = random.randrange(1, len(whole) - offset + 1)
        touched = range(offset // BLOCK_BYTES, (offset + length - 1) // BLOCK_BYTES + 1)
        if bit // 8 // BLOCK_BYTES in touched:
            with pytest.raises(Corrupt):
                spool.read(ByteOffset(spool.begin + offset), length)
        else:
            assert spool.read(ByteOffset(spool.begin + offset), length) == whole[offset : offset + length]
        spool.file.write_at(bit // 8, [whole[bit // 8 : bit // 8 + 1]])
    assert spool.read(spool.begin, spool.length) == whole


def test_a_spool_that_does_not_have_its_sum_is_kept_and_not_served() -> None:
    """Recovery of a damaged spool quarantines it: nothing is cut, nothing deleted."""
    random = Random("rebuild")
    disk = SimDisk()
    spool = spool_of(disk, [content(random, 5_000)])
    digest, end, length = spool.digest(), spool.end, spool.length
    plan = SpoolPlan(spool.begin, end, digest, first_append=7)

    for _ in range(100):
        bit = random.randrange(8 * length)
        good = spool.file.read_at(bit // 8, 1)
        spool.file.write_at(bit // 8, [bytes([good[0] ^ (1 << bit % 8)])])
        again = rebuild(disk, "s", plan)

        assert again.damage
        assert again.file.size() == length
        with pytest.raises(Corrupt):
            again.read(again.begin, 1)
        spool.file.write_at(bit // 8, [good])
    assert not rebuild(disk, "s", plan).damage


def test_what_stands_above_the_end_of_a_rebuilt_spool_goes_only_where_nobody_may_miss_it() -> None:
    """After a reboot it was never acknowledged; otherwise it may have been, and stays."""
    disk = SimDisk()
    spool = spool_of(disk, [b"known", b" and more"])
    digest = sha1(b"known", usedforsecurity=False).digest()
    plan = SpoolPlan(spool.begin, ByteOffset(spool.begin + 5), digest, first_append=7)

    for may_cut, size in ((False, 14), (True, 5)):
        again = rebuild(disk, "s", plan, may_cut=may_cut)
        assert (again.read(again.begin, 5), again.file.size()) == (b"known", size)


def test_a_restored_spool_is_as_if_nothing_had_been_appended() -> None:
    """A broken-off append leaves neither bytes nor sums (journals.6)."""
    random = Random("restore")
    one, other = SimDisk(), SimDisk()
    spool, naive = spool_of(one, []), spool_of(other, [])

    for _ in range(200):
        saved, doomed = spool.save(), content(random, random.randrange(20, 2 * BLOCK_BYTES))
        spool.append((doomed,), wall=1)
        spool.restore(saved)
        kept = content(random, random.randrange(20, BLOCK_BYTES // 4))
        spool.append((kept,), wall=2)
        naive.append((kept,), wall=2)
    assert spool.digest() == naive.digest()
    assert spool.read(spool.begin, spool.length) == naive.read(naive.begin, naive.length)
