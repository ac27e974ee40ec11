"""crc32c agrees with its standard's vectors and chains over any split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.base.checksum import crc32c, crc32c_of

POLYNOMIAL = 0x82F63B78


def naive(content: bytes, seed: int) -> int:
    """Bit by bit, as the polynomial is defined."""
    crc = seed ^ 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
        (b"", 0),
    ],
)
def test_vectors_of_rfc_3720(content: bytes, expected: int) -> None:
    """Files outlive the library that wrote them."""
    assert crc32c(content) == expected


@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(0, 2**32 - 1))
def test_parts_chain_to_the_whole(parts: list[bytes], seed: int) -> None:
    """A batch is summed without joining it, from any kind of buffer."""
    whole = b"".join(parts)
    views = [memoryview(bytearray(part)) for part in parts]

    assert crc32c_of(views, seed) == crc32c(whole, seed) == naive(whole, seed)
