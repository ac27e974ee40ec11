"""A stored index is chained and checksummed, and comes back as it was stored."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.base.types import ByteOffset
from broadsheet.errors import Corrupt
from broadsheet.message.framing import FIXED, JSON_LINES, Framing
from broadsheet.message.producer_state import NOT_OPEN, ProducerIndex, ProducerState, begun
from broadsheet.message.stored_index import BEGIN_BYTES, decode, encode, verify
from broadsheet.message.uuid import Clock, ProducerId

clocks = st.integers(0, (1 << 63) - 1).map(Clock)
offsets = st.integers(NOT_OPEN, (1 << 62) - 1).map(ByteOffset)
producers = st.integers(0, (1 << 48) - 1).map(ProducerId)
indexes = st.builds(
    ProducerIndex,
    framing=st.sampled_from([JSON_LINES, FIXED, Framing(kind=JSON_LINES.kind, uuid_field="näme")]),
    offset=st.integers(0, (1 << 62) - 1).map(ByteOffset),
    newest=clocks,
    states=st.dictionaries(
        producers,
        st.builds(ProducerState, last_ack=clocks, last=clocks, begin=offsets, seen=offsets),
        max_size=5,
    ),
    forgotten=st.dictionaries(producers, st.integers(0, (1 << 32) - 1), max_size=3),
)


@given(indexes, st.integers(0, (1 << 32) - 1))
def test_an_index_comes_back_as_it_was_stored(index: ProducerIndex, previous: int) -> None:
    """A reader that starts at an index point goes on with the owner's states, and with no other."""
    stored, _ = encode(index, previous=previous)

    verify(stored[:BEGIN_BYTES], len(stored), crc32c(stored))
    assert decode(stored, previous=previous) == index


@given(indexes, st.data())
def test_a_damaged_index_is_never_believed(index: ProducerIndex, data: st.DataObject) -> None:
    """Starting from a wrong state would lose or repeat messages in silence."""
    stored = bytearray(encode(index, previous=0)[0])
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    with pytest.raises(Corrupt):
        verify(bytes(stored[:BEGIN_BYTES]), len(stored), crc32c(stored))
    with pytest.raises(Corrupt):
        decode(bytes(stored))


def test_an_index_out_of_its_chain_is_refused() -> None:
    """One of another history may have a good checksum."""
    stored, _ = encode(begun(FIXED), previous=1)

    with pytest.raises(Corrupt, match="follows"):
        decode(stored, previous=2)
    with pytest.raises(Corrupt, match="short"):
        decode(stored[:10])
