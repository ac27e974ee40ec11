"""A sum that stands in a damaged record is found wherever it is, with as many wrong bits as it may have."""

from random import Random

from broadsheet.journal.core.fragment import EMPTY_SUM, SUM_BYTES
from broadsheet.journal.core.spool_claims import WRONG_BITS_MAX, tells


def test_a_sum_is_found_at_every_place_with_few_wrong_bits_and_with_more_it_is_not() -> None:
    """A start searches for the sum of each spool file: it looks only where a piece of it is whole."""
    random = Random("sums")
    for wrong in (0, 1, WRONG_BITS_MAX - 1, WRONG_BITS_MAX, WRONG_BITS_MAX + 1):
        for number in range(60):
            digest = random.randbytes(SUM_BYTES)
            damaged = int.from_bytes(digest)
            for bit in random.sample(range(8 * SUM_BYTES), wrong):
                damaged ^= 1 << bit
            before, behind = (random.randbytes((0, 1, 300)[number // each % 3]) for each in (1, 3))
            record = before + damaged.to_bytes(SUM_BYTES) + behind
            assert tells(record, digest) == (wrong <= WRONG_BITS_MAX), (wrong, len(before), len(behind))


def test_a_record_without_the_sum_tells_nothing() -> None:
    """The sum of no content proves nothing, and a record may be shorter than a sum."""
    assert not tells(b"", bytes(SUM_BYTES))
    assert not tells(EMPTY_SUM, EMPTY_SUM)
    assert not tells(bytes(SUM_BYTES - 1), bytes(SUM_BYTES))
