"""Fragments: a journal's closed spans in its store, written, read back and read.

Offsets are bytes of the journal. A fragment is stored under `<journal>/<content name>` and counts as stored
only once it was read back with its length and sum. Readers get checked bytes only: a fragment is fetched
and decompressed whole, its sum compared, and kept for a while; `cache_bytes_max` bounds how much. Every
method is restartable. Source: journals.8, journals.14, journals.25; reliability J10, S8.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha1
from typing import Final

from broadsheet.base.time import SECOND, Duration, in_seconds
from broadsheet.base.types import ByteOffset, JournalName
from broadsheet.errors import Corrupt
from broadsheet.journal.codecs import compress, decompress
from broadsheet.journal.core.fragment import Codec, Fragment, parse_name
from broadsheet.journal.core.spec import SIDE_DIRECTORY
from broadsheet.journal.spool_file import SpoolFile, contents
from broadsheet.ports import ObjectStore
from broadsheet.runtime.failpoints import passed

PIECE_BYTES: Final = 1 << 20
CACHE_BYTES_MAX: Final = 128 << 20
LIST_RETRY_MIN: Final = Duration(SECOND // 2)
"""Pause before a store that is down is asked again; doubles up to `LIST_RETRY_MAX`."""
LIST_RETRY_MAX: Final = Duration(60 * SECOND)
"""The longest pause: as soon as it has answered anybody, everybody asks."""


class FragmentStore:
    """The fragments of many journals in one object store."""

    def __init__(
        self, objects: ObjectStore, run: Callable[..., Awaitable[object]], *, cache_bytes_max: int
    ) -> None:
        """Use `objects`.

        Args:
            run: does blocking work off the loop (`Disk.run`).
            cache_bytes_max: checked content that is kept for readers.
        """
        self._objects, self._run = objects, run
        self._cache_bytes_max = cache_bytes_max
        self._cache: dict[str, bytes] = {}
        self._cached_bytes = 0
        self._fetching: dict[str, asyncio.Future[bytes]] = {}
        self._answered: asyncio.Future[None] | None = None  # Where it is down: done once it answers again.
        self._late: dict[asyncio.Task[Sequence[Fragment]], None] = {}

    async def list(self, journal: JournalName) -> Sequence[Fragment]:
        """Every fragment of `journal` in the store, by name. Other objects beside them are passed over.

        Raises:
            OSError: the store does not answer.
        """
        found = []
        prefix = f"{journal}/"
        for each in await self._objects.list(prefix):
            fragment = parse_name(each.name[len(prefix) :])
            if fragment is not None:
                found.append(fragment)
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)
        self._answered = None
        return found

    async def list_soon(self, journal: JournalName, *, within: Duration) -> Sequence[Fragment] | None:
        """As `list`, but None where the store fails or does not answer in time.

        While a call hangs nobody makes another one: or each of ten thousand journals would wait by itself.
        """
        if self._answered is not None and self._late:
            return None
        asking = asyncio.ensure_future(self.list(journal))
        self._late[asking] = None  # A call that hangs is left behind: its thread cannot be taken back.
        asking.add_done_callback(self._forget)
        await asyncio.wait((asking,), timeout=in_seconds(within))
        if asking.done() and not asking.cancelled() and asking.exception() is None:
            return asking.result()
        if self._answered is None:
            self._answered = asyncio.get_running_loop().create_future()
        return None

    async def list_when_it_answers(self, journal: JournalName) -> Sequence[Fragment]:
        """As `list`, however long that takes."""
        pause = LIST_RETRY_MIN
        while True:
            try:
                return await self.list(journal)
            except OSError:
                if self._answered is None:
                    self._answered = asyncio.get_running_loop().create_future()
                await asyncio.wait((self._answered,), timeout=in_seconds(pause))
                pause = Duration(min(2 * pause, LIST_RETRY_MAX))

    def _forget(self, asking: "asyncio.Task[Sequence[Fragment]]") -> None:
        self._late.pop(asking, None)
        if not asking.cancelled():
            asking.exception()  # Seen: whoever asked has gone on without it.

    def close(self) -> None:
        """Leave nothing behind that runs."""
        for asking in list(self._late):
            asking.cancel()

    async def put(self, journal: JournalName, spool: SpoolFile, codec: Codec) -> Fragment:
        """Store `spool`'s content. It counts as stored once `read_back` has returned.

        Raises:
            OSError: the store does not answer: repeat it.
            Corrupt: the spool's content is damaged. Nothing may be deleted.
        """
        fragment = spool.fragment(codec)
        body = await self._run(lambda: compress(codec, contents(spool, PIECE_BYTES)))
        assert isinstance(body, list | tuple)
        name = f"{journal}/{fragment.name}"
        passed("journal.roll.before_put")
        await self._objects.put_if_absent(name, body)
        passed("journal.roll.after_put")
        return fragment

    async def read_back(self, journal: JournalName, fragment: Fragment) -> None:
        """Make sure that the store has `fragment`, with its length and sum.

        Raises:
            OSError: the store does not answer: repeat it.
            Corrupt: it gives back something else. Nothing may be deleted.
        """
        await self._fetch(journal, fragment)
        passed("journal.roll.after_read_back")

    async def read(self, journal: JournalName, fragment: Fragment, offset: ByteOffset, length: int) -> bytes:
        """The bytes of `[offset, offset + length)` of `fragment`.

        Raises:
            OSError: the store does not answer.
            Corrupt: the stored object is not what its name says. Nothing of it is served.
        """
        assert fragment.begin <= offset, f"offset {offset} is below {fragment.name}"
        assert offset + length <= fragment.end, f"[{offset}, +{length}) is above {fragment.name}"
        name = f"{journal}/{fragment.name}"
        content = self._cache.pop(name, None)
        if content is None:
            content = await self._fetch_once(name, journal, fragment)
            self._cached_bytes += len(content) if name not in self._cache else 0
        self._cache[name] = content  # Last in is last out.
        while self._cached_bytes > self._cache_bytes_max and len(self._cache) > 1:
            self._cached_bytes -= len(self._cache.pop(next(iter(self._cache))))
        at = offset - fragment.begin
        return content[at : at + length]

    async def delete_all(self, journal: JournalName) -> None:
        """Delete every fragment of `journal` and its side files. Restartable.

        Raises:
            OSError: the store does not answer: repeat it.
        """
        for fragment in await self.list(journal):
            await self._objects.delete(f"{journal}/{fragment.name}")
            passed("journal.delete.fragment")
        prefix = f"{SIDE_DIRECTORY}/{journal}/"
        for each in await self._objects.list(prefix):
            if "/" not in each.name[len(prefix) :]:
                await self._objects.delete(each.name)
        for name in [name for name in self._cache if name.rpartition("/")[0] == journal]:
            self._cached_bytes -= len(self._cache.pop(name))

    async def put_side(self, journal: JournalName, name: str, body: bytes) -> None:
        """Store a side file, such as a producer index, where it is not there yet.

        Raises:
            OSError: the store does not answer: repeat it.
        """
        await self._objects.put_if_absent(f"{SIDE_DIRECTORY}/{journal}/{name}", (body,))

    async def get_side(self, journal: JournalName, name: str) -> bytes:
        """A side file.

        Raises:
            FileNotFoundError: it is not there. OSError: the store does not answer.
        """
        return await self._objects.get(f"{SIDE_DIRECTORY}/{journal}/{name}")

    async def list_side(self, journal: JournalName) -> Sequence[str]:
        """The names of the side files of `journal`, sorted.

        Raises:
            OSError: the store does not answer.
        """
        prefix = f"{SIDE_DIRECTORY}/{journal}/"
        names = [each.name[len(prefix) :] for each in await self._objects.list(prefix)]
        return [name for name in names if "/" not in name]

    async def _fetch_once(self, name: str, journal: JournalName, fragment: Fragment) -> bytes:
        """Fetch, or wait for somebody who does."""
        while (other := self._fetching.get(name)) is not None:
            try:
                return await asyncio.shield(other)
            except asyncio.CancelledError:
                if not other.cancelled():
                    raise
        mine: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._fetching[name] = mine
        try:
            content = await self._fetch(journal, fragment)
        except BaseException:
            mine.cancel()
            raise
        else:
            mine.set_result(content)
            return content
        finally:
            del self._fetching[name]

    async def _fetch(self, journal: JournalName, fragment: Fragment) -> bytes:
        """The checked content of `fragment`."""
        name = f"{journal}/{fragment.name}"
        try:
            stored = await self._objects.get(name)
        except FileNotFoundError as error:
            raise Corrupt(f"fragment {name} is not in its store any more") from error
        content = await self._run(lambda: _checked(name, fragment, stored))
        assert isinstance(content, bytes)
        return content


def _checked(name: str, fragment: Fragment, stored: bytes) -> bytes:
    """Decompress and compare. Blocking."""
    digest = sha1(usedforsecurity=False)
    pieces = []
    for piece in decompress(fragment.codec, stored, length=fragment.length):
        digest.update(piece)
        if fragment.codec is not Codec.NONE:
            pieces.append(piece)
    if digest.digest() != fragment.sum:
        raise Corrupt(f"fragment {name} has the sum {digest.hexdigest()}, not its own: it is not served")
    return stored if fragment.codec is Codec.NONE else b"".join(pieces)
