"""crc32c, the checksum of our own records (log.3): unsigned 32 bits, Castagnoli's polynomial.

A *chained* checksum is seeded with its predecessor's, so that a record vouches for all records before it in
its chain. Works on any buffer without a copy. Does not defend against a forger: SHA-256 does, where a name
is a promise. Source: RFC 3720 B.4 for the polynomial and its test vectors.
"""

from collections.abc import Iterable
from typing import Final, Protocol

import crc32c as _native

from broadsheet.base.types import Buffer


class _Crc32c(Protocol):
    def __call__(self, content: Buffer, seed: int = 0, /) -> int: ...


crc32c: Final[_Crc32c] = _native.crc32c
"""`crc32c(content, seed=0)`: the crc32c of `content`, continued from the checksum `seed` of the bytes before.

The native function itself: a wrapper in Python would double what it takes for a header.
"""


def crc32c_of(parts: Iterable[Buffer], seed: int = 0) -> int:
    """The crc32c of `parts` back to back, without joining them."""
    for part in parts:
        seed = _native.crc32c(part, seed)
    return seed
