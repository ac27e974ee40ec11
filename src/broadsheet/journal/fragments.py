"""Fragments: a journal's closed spans in its store: writing them, reading them back, and serving reads.

Offsets are bytes of the journal. A fragment is stored under `<journal>/<content name>`, and counts as stored
only after it was read back with its length and sum. A fragment is never whole in memory: it is written and
read a range at a time, and readers get checked blocks (`stored_fragment`), which are kept for a while. Kept
blocks, blocks being fetched and decoders share one budget, `cache_bytes_max` (`block_cache`). Every method is
restartable. Source: journals.8, journals.14, journals.25; J10; access.7; ADR 0141.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from broadsheet.base.time import MILLISECOND, SECOND, Duration, WallTime, in_seconds
from broadsheet.base.types import Buffer, ByteOffset, JournalName
from broadsheet.errors import Corrupt
from broadsheet.journal.block_cache import Block, Budget, Flights
from broadsheet.journal.codecs import DECODER_BYTES, compress
from broadsheet.journal.core.fragment import Codec, Fragment, parse_name
from broadsheet.journal.core.spec import SIDE_DIRECTORY
from broadsheet.journal.core.stored_times import StoredTimes
from broadsheet.journal.spool_file import SpoolFile, contents
from broadsheet.journal.stored_fragment import (
    BLOCK_BYTES,
    Decoding,
    Sums,
    block_bytes,
    raw_block,
    summed,
    verify_block,
)
from broadsheet.ports import ObjectStore
from broadsheet.runtime.failpoints import passed

T = TypeVar("T")

PIECE_BYTES: Final = 1 << 20
SUMMING_MAX: Final = 2
"""Fragments whose whole content is summed at a time."""
SUMS_COUNT_MAX: Final = 1 << 20
"""Sums of blocks that are remembered: 4 bytes each, for 256 GiB of content."""
DECODINGS_MAX: Final = 4
"""Decoders that are kept for one compressed fragment, each at its own position."""
DAMAGED_MAX: Final = 1_000
"""Damaged fragments of one store that are noted, at most: each with its error."""
LISTED_MAX: Final = 256
"""Names of fragments that are parsed in one turn of the loop: a journal may have 100,000."""
LIST_RETRY_MIN: Final = Duration(SECOND // 2)
"""Pause before a store that is down is asked again; doubles up to `LIST_RETRY_MAX`."""
LIST_RETRY_MAX: Final = Duration(60 * SECOND)
"""The longest pause. It ends early when the store answers any listing, or a reader wants it."""
LIST_PAUSE_MIN: Final = Duration(50 * MILLISECOND)
"""The shortest pause before a store that is down is asked again because a reader wants it."""


class StoredAt(NamedTuple):
    """A stored fragment, and when its store got it."""

    fragment: Fragment
    modified: WallTime
    """By the store's clock; 0: the store does not know."""


class FragmentStore:
    """The fragments of many journals in one object store."""

    def __init__(
        self,
        objects: ObjectStore,
        run: Callable[..., Awaitable[object]],
        *,
        budget: Budget,
        share_bytes: int | None = None,
        tell: Callable[[str, str], None] = lambda _name, _why: None,
    ) -> None:
        """Keep fragments in the object store `objects`.

        Args:
            run: does blocking work in a thread (`Disk.run`).
            budget: for the memory of stored fragments; stores may share one.
            share_bytes: how much of it calls to this store may hold at a time, so that a store that hangs
                leaves the rest to the others; None: all. What is kept counts in no share.
            tell: is told each damaged fragment once, with the error.
        """
        self._objects, self._run, self._budget = objects, run, budget
        self._share = Budget(budget.bytes_max if share_bytes is None else share_bytes)
        self._flights = Flights()
        self._sums: dict[str, Sums[int]] = {}  # By last use.
        self._sums_count = 0
        self._summing = asyncio.Semaphore(SUMMING_MAX)
        self._listing = asyncio.Lock()
        self._decoders: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._answered: asyncio.Future[None] | None = None  # While the store is down: done when it answers.
        self._late: dict[asyncio.Task[Any], None] = {}
        self.silence = ""
        """The error of the newest listing; empty if it did not fail."""
        self._tell, self.damaged = tell, dict[str, str]()
        """The fragments whose content a reader was refused, each with the error, until it is served again."""

    async def list(self, journal: JournalName) -> Sequence[Fragment]:
        """Every fragment of `journal` in the store, by name. Objects with other names are ignored.

        Raises:
            OSError: the store does not answer.
        """
        return [each.fragment for each in await self.listed(journal)]

    async def listed(self, journal: JournalName) -> Sequence[StoredAt]:
        """Like `list` of fragments, with the time at which each was stored."""
        found: list[StoredAt] = []
        prefix = f"{journal}/"
        try:
            listed = await self._objects.list(prefix)
        except OSError as error:
            self.silence = str(error)
            raise
        self.silence = ""
        for number, each in enumerate(listed, 1):
            fragment = parse_name(each.name[len(prefix) :])
            if fragment is not None:
                found.append(StoredAt(fragment, each.modified))
            if not number % LISTED_MAX:
                await asyncio.sleep(0)
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)
        self._answered = None
        return found

    async def stored_times(self, journal: JournalName) -> StoredTimes:
        """When the store got a journal's fragments, for callers.

        One journal is listed at a time, and once for all that ask about it meanwhile.
        """

        async def list_it() -> object:
            async with self._listing:
                return await self._run(partial(StoredTimes, await self.listed(journal)))

        found: object = await self._flights.join((journal, "listed"), list_it)
        assert isinstance(found, StoredTimes), "listings are joined under the journal"
        return found

    async def list_soon(self, journal: JournalName, *, within: Duration) -> Sequence[Fragment] | None:
        """Like `list` of fragments, but None if the store fails or does not answer in time.

        While one call hangs, all others return None at once; otherwise each of ten thousand journals would
        wait for its own call.
        """
        if self._answered is not None and self._late:
            return None
        found = await self._soon(self.list(journal), within)
        if found is None and self._answered is None:
            self._answered = asyncio.get_running_loop().create_future()
        return found

    async def list_side_soon(self, journal: JournalName, *, within: Duration) -> Sequence[str] | None:
        """Like `list_side`, but None if the store fails or does not answer in time."""
        return await self._soon(self.list_side(journal), within)

    async def _soon(self, asked: Coroutine[Any, Any, T], within: Duration) -> T | None:
        asking = asyncio.ensure_future(asked)
        self._late[asking] = None  # A call that hangs goes on alone: its thread cannot be stopped.
        asking.add_done_callback(self._forget)
        await asyncio.wait((asking,), timeout=in_seconds(within))
        if asking.done() and not asking.cancelled() and asking.exception() is None:
            return asking.result()
        return None

    async def list_when_it_answers(
        self, journal: JournalName, *, wanted: asyncio.Event
    ) -> Sequence[Fragment]:
        """Like `list` of fragments, but tries until the store answers.

        Args:
            wanted: a reader sets it to have the store asked again at once.
        """
        pause = LIST_RETRY_MIN
        while True:
            try:
                return await self.list(journal)
            except OSError:
                if self._answered is None:
                    self._answered = asyncio.get_running_loop().create_future()
                answered = self._answered  # Another journal's listing may end the outage during the pause.
                await asyncio.sleep(in_seconds(LIST_PAUSE_MIN))  # However many readers come.
                asked = asyncio.ensure_future(wanted.wait())
                try:
                    await asyncio.wait(
                        (answered, asked),
                        timeout=in_seconds(pause),
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                finally:
                    asked.cancel()
                    wanted.clear()
                pause = Duration(min(2 * pause, LIST_RETRY_MAX))

    def _forget(self, asking: "asyncio.Task[Any]") -> None:
        self._late.pop(asking, None)
        if not asking.cancelled():
            asking.exception()  # Marked as seen: the caller has gone on without the answer.

    def close(self) -> None:
        """Cancel the listings that are still under way."""
        for asking in list(self._late):
            asking.cancel()

    async def put(self, journal: JournalName, spool: SpoolFile, codec: Codec) -> Fragment:
        """Store `spool`'s content as a fragment. It counts as stored once `read_back` has returned.

        Raises:
            OSError: the store does not answer: repeat the call.
            Corrupt: the spool's content is damaged. Nothing may be deleted.
        """
        fragment = spool.fragment(codec)
        name = f"{journal}/{fragment.name}"
        passed("journal.roll.before_put")
        await self._objects.put_if_absent(name, StoredForm(spool, codec))
        passed("journal.roll.after_put")
        return fragment

    async def read_back(self, journal: JournalName, fragment: Fragment) -> None:
        """Make sure that the store has `fragment`, with its length and sum.

        Raises:
            OSError: the store does not answer: repeat the call.
            Corrupt: the store returned other content. Nothing may be deleted.
        """
        await self._sum(f"{journal}/{fragment.name}", fragment)
        passed("journal.roll.after_read_back")

    async def read(self, journal: JournalName, fragment: Fragment, offset: ByteOffset, length: int) -> bytes:
        """The bytes of `fragment` from `offset` on: at least one, at most `length` or up to the block's end.

        Raises:
            OSError: the store does not answer.
            Corrupt: the stored object is not what its name says. Nothing of it is served.
        """
        assert fragment.begin <= offset, f"offset {offset} is below {fragment.name}"
        assert offset + length <= fragment.end, f"[{offset}, +{length}) is above {fragment.name}"
        name = f"{journal}/{fragment.name}"
        number, at = divmod(offset - fragment.begin, BLOCK_BYTES)
        key = (name, number)
        block: object = self._budget.use(key)
        if block is None:
            block = await self._flights.join(key, partial(self._fetch, name, fragment, number))
        assert isinstance(block, Block), "blocks are kept under (name, number)"
        if self.damaged:
            self.damaged.pop(name, None)  # It was restored.
        return block.content[at : at + length]

    def refused(self, journal: JournalName, fragment: Fragment, error: Corrupt) -> None:
        """Note that a reader was refused a damaged fragment; `DAMAGED_MAX` are noted at most.

        Nothing of it is kept, so that whoever is served its bytes later proves that its store has it whole.
        """
        self.let_go(journal, (fragment,))
        name = f"{journal}/{fragment.name}"
        if name not in self.damaged and len(self.damaged) < DAMAGED_MAX:
            self.damaged[name] = str(error)
            self._tell(name, str(error))

    def forget_damage(self, journal: JournalName, *, below: ByteOffset | None = None) -> None:
        """Note no damage of a journal's fragments any more, or of those that end at `below` or before."""
        for name in list(self.damaged):
            directory, _, last = name.rpartition("/")
            fragment = parse_name(last)
            if directory == journal and fragment and (below is None or fragment.end <= below):
                del self.damaged[name]

    async def delete(self, journal: JournalName, fragment: Fragment) -> None:
        """Remove a fragment from the store; no error if it is absent.

        Raises:
            OSError: the store does not answer, and may have removed it: repeat the call.
        """
        await self._objects.delete(f"{journal}/{fragment.name}")

    async def delete_side(self, journal: JournalName, name: str) -> None:
        """Remove a side file of `journal`; no error if it is absent. Raises as `delete`."""
        await self._objects.delete(f"{SIDE_DIRECTORY}/{journal}/{name}")

    def let_go(self, journal: JournalName, fragments: Iterable[Fragment]) -> None:
        """Keep no block, decoder or sum of these fragments in memory any more."""
        names = {f"{journal}/{each.name}": None for each in fragments}

        def is_of_them(key: Hashable) -> bool:
            assert isinstance(key, tuple)
            return key[0] in names

        self._budget.drop(is_of_them)
        for name in names:
            self._sums_count -= len(self._sums.pop(name, ()))

    async def delete_all(self, journal: JournalName) -> None:
        """Delete every fragment of `journal` and its side files. Restartable.

        Raises:
            OSError: the store does not answer: repeat the call.
        """
        for fragment in await self.list(journal):
            await self._objects.delete(f"{journal}/{fragment.name}")
            passed("journal.delete.fragment")
        prefix = f"{SIDE_DIRECTORY}/{journal}/"
        for each in await self._objects.list(prefix):
            if "/" not in each.name[len(prefix) :]:
                await self._objects.delete(each.name)

        def is_of_it(key: Hashable) -> bool:
            assert isinstance(key, tuple)
            return str(key[0]).rpartition("/")[0] == journal

        self._budget.drop(is_of_it)
        self.forget_damage(journal)
        for name in [name for name in self._sums if name.rpartition("/")[0] == journal]:
            self._sums_count -= len(self._sums.pop(name))

    async def put_side(self, journal: JournalName, name: str, body: bytes) -> None:
        """Store a side file, such as a producer index, unless the store has it already.

        Raises:
            OSError: the store does not answer: repeat the call.
        """
        await self._objects.put_if_absent(f"{SIDE_DIRECTORY}/{journal}/{name}", (body,))

    async def get_side(
        self, journal: JournalName, name: str, begin: int = 0, end: int | None = None
    ) -> bytes:
        """The bytes [begin, end) of a journal's side file in the store, or fewer if it ends before.

        Raises:
            FileNotFoundError: the store does not have it. OSError: the store does not answer.
        """
        return await self._objects.get(f"{SIDE_DIRECTORY}/{journal}/{name}", begin, end)

    async def list_side(self, journal: JournalName) -> Sequence[str]:
        """The names of the side files of `journal`, sorted.

        Raises:
            OSError: the store does not answer.
        """
        prefix = f"{SIDE_DIRECTORY}/{journal}/"
        names = [each.name[len(prefix) :] for each in await self._objects.list(prefix)]
        return [name for name in names if "/" not in name]

    async def _fetch(self, name: str, fragment: Fragment, number: int) -> Block:
        """Get a fragment's block, check and keep it, unless it is kept: its first reader may have left."""
        if isinstance(kept := self._budget.use((name, number)), Block):
            return kept
        sums: object = self._sums.get(name)
        if sums is None:
            sums = await self._flights.join(name, partial(self._sum, name, fragment))
        assert isinstance(sums, Sums), "sums are joined under the name"
        is_raw = fragment.codec is Codec.NONE
        held = block_bytes(fragment, number) + (0 if is_raw else DECODER_BYTES[fragment.codec])
        await self._share.take(held)
        try:
            content = await (self._raw if is_raw else self._decoded)(name, fragment, number)
        finally:
            self._share.give(held)
        block = Block(content)
        try:
            verify_block(content, sums, name, fragment, number)
        except Corrupt:
            self._budget.give(block_bytes(fragment, number))
            # The object changed in the store: the next reader must sum the whole again.
            self._sums_count -= len(self._sums.pop(name, ()))
            raise
        self._budget.put((name, number), block)
        return block

    async def _raw(self, name: str, fragment: Fragment, number: int) -> bytes:
        """A block's bytes of an uncompressed fragment, taken from the budget."""
        size = block_bytes(fragment, number)
        await self._budget.take(size)
        try:
            return await raw_block(self._objects, name, fragment, number)
        except BaseException:
            self._budget.give(size)
            raise

    async def _decoded(self, name: str, fragment: Fragment, number: int) -> bytes:
        """A compressed fragment's block, taken from the budget, from the nearest kept decoder."""
        size = block_bytes(fragment, number)
        lock = self._decoders.setdefault(name, asyncio.Lock())
        async with lock:  # A second reader waits for this decoder, instead of decoding everything again.
            await self._budget.take(size)
            decoding = self._take_decoding(name, number)
            if decoding is None:
                decoding = Decoding(self._objects, self._run, name, fragment)
                self._budget.give(size)  # A holder of bytes must not wait for more (`Budget.take`).
                await self._budget.take(size + decoding.size)
            held = size + decoding.size
            try:
                while decoding.number < number:
                    await decoding.next_block()
                content = await decoding.next_block()
            except BaseException:
                self._budget.give(held)
                raise
            self._keep_decoding(name, decoding)
            return content

    def _take_decoding(self, name: str, number: int) -> Decoding | None:
        """Take out a kept decoder that has not passed the block; None if there is none."""
        for place in range(DECODINGS_MAX):
            held = self._budget.use((name, "decoding", place))
            if isinstance(held, Decoding) and held.number <= number:
                self._budget.take_out((name, "decoding", place))
                return held
        return None

    def _keep_decoding(self, name: str, decoding: Decoding) -> None:
        for place in range(DECODINGS_MAX):
            if self._budget.use((name, "decoding", place)) is None:
                self._budget.put((name, "decoding", place), decoding)
                return
        self._budget.give(decoding.size)

    async def _sum(self, name: str, fragment: Fragment) -> "Sums[int]":
        """Compare the whole fragment with its name, and keep the sums of its blocks."""
        size = DECODER_BYTES[fragment.codec] + BLOCK_BYTES
        async with self._summing:
            await self._share.take(size)
            try:
                await self._budget.take(size)
                try:
                    sums = await summed(self._objects, self._run, name, fragment)
                finally:
                    self._budget.give(size)
            finally:
                self._share.give(size)
        self._sums_count += len(sums) - len(self._sums.pop(name, ()))
        self._sums[name] = sums
        while self._sums_count > SUMS_COUNT_MAX and len(self._sums) > 1:
            self._sums_count -= len(self._sums.pop(next(iter(self._sums))))
        return sums


class StoredForm:
    """The stored form of a spool, in pieces; every iteration makes it anew, so that a store may try again."""

    def __init__(self, spool: SpoolFile, codec: Codec) -> None:
        self._spool, self._codec = spool, codec

    def __iter__(self) -> Iterator[Buffer]:
        """Blocking: iterate in a thread."""
        return compress(self._codec, contents(self._spool, PIECE_BYTES))
