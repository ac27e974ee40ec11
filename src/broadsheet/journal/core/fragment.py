"""Fragment: an immutable span `[begin, end)` of a journal, named by its content.

`begin` and `end` are byte offsets. The sum is the SHA-1 of the *uncompressed* content, as in Gazette. Names
are exactly Gazette's, so that each system can read the other's store. This module opens no file and
compresses nothing. Source: journals.25.
"""

import re
from enum import Enum
from typing import Final

import msgspec

from broadsheet.base.types import ByteOffset

SUM_BYTES: Final = 20
EMPTY_SUM: Final = bytes(SUM_BYTES)
"""The sum of a fragment without content: never SHA1(b"")."""


class Codec(Enum):
    """How a stored fragment is compressed."""

    NONE = "none"
    GZIP = "gzip"
    ZSTANDARD = "zstandard"
    SNAPPY = "snappy"


SUFFIX: Final[dict[Codec, str]] = {
    Codec.NONE: ".raw",
    Codec.GZIP: ".gz",
    Codec.ZSTANDARD: ".zst",
    Codec.SNAPPY: ".sz",
}
"""The suffix of a fragment's name, by codec."""

_BY_SUFFIX: Final[dict[str, Codec]] = {
    **{suffix: codec for codec, suffix in SUFFIX.items()},
    ".gzip": Codec.GZIP,
    ".zstandard": Codec.ZSTANDARD,
    ".snappy": Codec.SNAPPY,
}
_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{40})(\.[a-z]+)", re.IGNORECASE)


class Fragment(msgspec.Struct, frozen=True):
    """A closed span of a journal and the sum of its content."""

    begin: ByteOffset
    end: ByteOffset
    sum: bytes
    codec: Codec

    @property
    def length(self) -> int:
        """Bytes of content, uncompressed."""
        return self.end - self.begin

    @property
    def name(self) -> str:
        """The content name, as Gazette writes it."""
        return f"{self.begin:016x}-{self.end:016x}-{self.sum.hex()}{SUFFIX[self.codec]}"


def parse_name(name: str) -> Fragment | None:
    """The fragment that `name` names; None if `name` is not a fragment's name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    begin, end, digest, suffix = match.groups()
    codec = _BY_SUFFIX.get(suffix.lower())
    span = ByteOffset(int(begin, 16)), ByteOffset(int(end, 16))
    if codec is None or span[0] >= span[1] or span[1] >= 1 << 63:
        return None
    return Fragment(begin=span[0], end=span[1], sum=bytes.fromhex(digest), codec=codec)
