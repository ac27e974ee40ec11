"""Stored fragment: its content, fetched by ranges, decoded in pieces, checked by block.

Offsets are bytes of the fragment's content. A fragment's name has one sum, of the whole. So before the first
read the whole is fetched and summed once, a range at a time, and the crc32c of each block is kept; each block
that is fetched later is compared with its crc32c. A compressed fragment can be decoded only from its begin
on: a `Decoding` is kept at its position, and later reads continue it. Source: W4; access.7; ADR 0141.
"""

from array import array
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha1
from typing import Final, TypeVar

from broadsheet.base.checksum import crc32c
from broadsheet.errors import Corrupt
from broadsheet.journal.codecs import DECODER_BYTES, FED_BYTES_MIN, Fed, decompress
from broadsheet.journal.core.fragment import Codec, Fragment
from broadsheet.ports import ObjectStore

T = TypeVar("T")
Run = Callable[[Callable[[], object]], Awaitable[object]]
"""Does blocking work in a thread."""

BLOCK_BYTES: Final = 256 << 10
"""Length of a block: blocks are fetched, checked and kept as a whole."""

RESTORE: Final = (
    "it is not served: restore it from a copy of the store, or move it away and start the node again, and"
    " reads go on behind it; `broadsheet doctor --fragments` finds all that are damaged"
)
"""The remedy for a damaged stored fragment."""

Sums = array
"""The crc32c of each block, by number."""


class Decoding:
    """Decodes a stored fragment block by block, from its begin on."""

    def __init__(self, objects: ObjectStore, run: Run, name: str, fragment: Fragment) -> None:
        """Start to decode at the fragment's begin."""
        self.size = DECODER_BYTES[fragment.codec]
        self.number = 0
        """The block that comes next."""
        self._objects, self._run, self._name = objects, run, name
        self._fed, self._at = Fed(), 0
        self._pieces = decompress(fragment.codec, self._fed, length=fragment.length)
        self._rest = b""

    async def next_block(self) -> bytes:
        """The next block of the stored fragment; empty after the last one.

        Raises:
            OSError: the store does not answer. Corrupt: the content is not what the name says. After either
                error this object must not be used again.
        """
        while len(self._rest) < BLOCK_BYTES:
            while self._fed.is_hungry:
                stored = await fetched(self._objects, self._name, self._at, self._at + FED_BYTES_MIN)
                self._at += len(stored)
                self._fed.feed(stored)
            found = await self._run(self._gather)
            if found is None:
                break
            assert isinstance(found, bytes)
            self._rest += found
        block, self._rest = self._rest[:BLOCK_BYTES], self._rest[BLOCK_BYTES:]
        self.number += 1
        return block

    def _gather(self) -> bytes | None:
        """Decode up to a block of the fragment's content; None at the end. Blocking."""
        found: list[bytes] = []
        wanted = BLOCK_BYTES - len(self._rest)
        while wanted > 0:
            piece = next(self._pieces, None)
            if piece is None:
                return b"".join(found) if found else None
            found.append(piece)
            wanted -= len(piece)
            if self._fed.is_hungry:
                break
        return b"".join(found)


async def fetched(objects: ObjectStore, name: str, begin: int, end: int) -> bytes:
    """The stored bytes of `[begin, end)` of a fragment, or fewer if the object ends before.

    Raises:
        Corrupt: the object is gone or damaged. OSError: the store does not answer.
    """
    try:
        return await objects.get(name, begin, end)
    except Corrupt as error:
        raise Corrupt(f"fragment {name} is damaged in its store: {error}: {RESTORE}") from error
    except FileNotFoundError as error:
        raise Corrupt(f"fragment {name} is not in its store any more: {RESTORE}") from error


async def summed(objects: ObjectStore, run: Run, name: str, fragment: Fragment) -> "Sums[int]":
    """Fetch the fragment, a range at a time, and compare it with its name; returns the sum of each block.

    Raises:
        Corrupt: the content is not what the name says. Nothing of it may be served.
        OSError: the store does not answer.
    """
    digest, sums = sha1(usedforsecurity=False), array("I")

    def take(content: bytes) -> None:
        digest.update(content)
        view = memoryview(content)
        sums.extend(crc32c(view[at : at + BLOCK_BYTES]) for at in range(0, len(content), BLOCK_BYTES))

    if fragment.codec is Codec.NONE:
        # Ask for one byte more: an object that is longer than its name says has other content.
        for at in range(0, fragment.length + 1, FED_BYTES_MIN):
            end = min(at + FED_BYTES_MIN, fragment.length + 1)
            stored = await fetched(objects, name, at, end)
            await run(partial(take, stored))
            if len(stored) < end - at:
                break
    else:
        decoding = Decoding(objects, run, name, fragment)
        while block := await decoding.next_block():
            await run(partial(take, block))
    if digest.digest() != fragment.sum:
        raise Corrupt(f"fragment {name} has the sum {digest.hexdigest()}, not its own: {RESTORE}")
    return sums


async def raw_block(objects: ObjectStore, name: str, fragment: Fragment, number: int) -> bytes:
    """A block of a fragment that is stored uncompressed.

    Raises:
        Corrupt: the object is gone. OSError: the store does not answer.
    """
    assert fragment.codec is Codec.NONE, "compressed bytes are not content"
    begin = number * BLOCK_BYTES
    return await fetched(objects, name, begin, min(begin + BLOCK_BYTES, fragment.length))


def verify_block(content: bytes, sums: "Sums[int]", name: str, fragment: Fragment, number: int) -> None:
    """Compare a block that was fetched with the sum that it had when the whole was summed.

    Raises:
        Corrupt: it is another block now, and so is not to be served.
    """
    if len(content) != block_bytes(fragment, number) or crc32c(content) != sums[number]:
        raise Corrupt(f"fragment {name} changed in its store: block {number} fails its checksum: {RESTORE}")


def block_bytes(fragment: Fragment, number: int) -> int:
    """The length of a block; the last one may be shorter."""
    return min(BLOCK_BYTES, fragment.length - number * BLOCK_BYTES)
