"""Stored fragment: its content, fetched by ranges, decoded in pieces, checked by block.

Offsets are bytes of the fragment's content. A fragment's name has one sum, of the whole. So the first who
wants any of it has the whole fetched and summed once, a range at a time, and the crc32c of each block kept;
each block that is fetched later is compared with its own. A compressed fragment is decoded from its begin on:
a `Decoding` that has come some way is kept, and goes on for whoever reads on. Source: W4; access.7;
ADR 0141.
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
"""Does blocking work off the loop."""

BLOCK_BYTES: Final = 256 << 10
"""The unit of fetching, of checking and of keeping."""

RESTORE: Final = (
    "it is not served: restore it from a copy of the store, or move it away and start the node again, and"
    " reads go on behind it; `broadsheet doctor --fragments` finds all that are damaged"
)
"""What an operator does about a stored fragment that is damaged."""

Sums = array
"""The crc32c of each block, by number."""


class Decoding:
    """One way through a stored fragment, from its begin to wherever it has come."""

    def __init__(self, objects: ObjectStore, run: Run, name: str, fragment: Fragment) -> None:
        """Begin at the begin."""
        self.size = DECODER_BYTES[fragment.codec]
        self.number = 0
        """The block that comes next."""
        self._objects, self._run, self._name, self._fragment = objects, run, name, fragment
        self._fed, self._at = Fed(), 0
        self._pieces = decompress(fragment.codec, self._fed, length=fragment.length)
        self._rest = b""

    async def next_block(self) -> bytes:
        """The next block; nothing behind the last one.

        Raises:
            OSError: the store does not answer. Corrupt: it is not what its name says. Either way this one
                is of no use any more.
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
        """Some content; None at the end. Blocking."""
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
    """The stored bytes of `[begin, end)`, fewer at their end.

    Raises:
        Corrupt: the object is gone. OSError: the store does not answer.
    """
    try:
        return await objects.get(name, begin, end)
    except FileNotFoundError as error:
        raise Corrupt(f"fragment {name} is not in its store any more: {RESTORE}") from error


async def summed(objects: ObjectStore, run: Run, name: str, fragment: Fragment) -> "Sums[int]":
    """Fetch all of it, a range at a time, and compare the whole with its name; the sum of each block.

    Raises:
        Corrupt: it is not what its name says. Nothing of it may be served.
        OSError: the store does not answer.
    """
    digest, sums = sha1(usedforsecurity=False), array("I")

    def take(content: bytes) -> None:
        digest.update(content)
        view = memoryview(content)
        sums.extend(crc32c(view[at : at + BLOCK_BYTES]) for at in range(0, len(content), BLOCK_BYTES))

    if fragment.codec is Codec.NONE:
        # One byte more: an object that is longer than its name says has another content.
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
    """A block of a fragment that is stored as it is.

    Raises:
        Corrupt: the object is gone. OSError: the store does not answer.
    """
    assert fragment.codec is Codec.NONE, "a range of what is compressed is no content"
    begin = number * BLOCK_BYTES
    return await fetched(objects, name, begin, min(begin + BLOCK_BYTES, fragment.length))


def block_bytes(fragment: Fragment, number: int) -> int:
    """How long a block is: the last one is shorter."""
    return min(BLOCK_BYTES, fragment.length - number * BLOCK_BYTES)
