"""Stored fragments: read by blocks within one budget, whatever the number of readers."""

import asyncio
import tracemalloc
import zlib
from collections.abc import Sequence
from hashlib import sha1
from random import Random

import pytest

from broadsheet.base.types import ByteOffset, JournalName
from broadsheet.errors import Corrupt
from broadsheet.journal.block_cache import Block, Budget
from broadsheet.journal.codecs import PIECE_BYTES, Fed, compress, decompress
from broadsheet.journal.config import CACHE_BYTES_MIN
from broadsheet.journal.core.fragment import Codec, Fragment
from broadsheet.journal.fragments import LISTED_MAX, FragmentStore
from broadsheet.journal.stored_fragment import BLOCK_BYTES
from broadsheet.runtime.waiting_line import WOKEN_MAX
from simulator.disk import SimDisk
from tests.journal.crash_histories import Shelf, Stored

JOURNAL = JournalName("f")
MIB = 1 << 20


class Counting(Shelf):
    """A store that counts what it gives, and looks after the budget meanwhile."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(None, {})
        self.budget, self.given, self.calls = budget, 0, 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        self.budget.check()
        await self.answers.wait()
        found = await super().get(name, begin, end)
        self.given += len(found)
        self.calls += 1
        return found


class Bench:
    """A fragment store over objects in memory."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MIN, shared: Budget | None = None) -> None:
        self.budget = shared or Budget(bytes_max)
        self.objects = Counting(self.budget)
        share = bytes_max if shared is None else shared.bytes_max // 2
        self.store = FragmentStore(self.objects, SimDisk().run, budget=self.budget, share_bytes=share)

    def add(self, content: bytes, codec: Codec = Codec.NONE, begin: int = 0) -> Fragment:
        """A stored fragment."""
        fragment = Fragment(
            begin=ByteOffset(begin),
            end=ByteOffset(begin + len(content)),
            sum=sha1(content, usedforsecurity=False).digest(),
            codec=codec,
        )
        stored = b"".join(map(bytes, compress(codec, [content])))
        self.objects.objects[f"{JOURNAL}/{fragment.name}"] = stored
        return fragment

    async def read(self, fragment: Fragment, begin: int, length: int) -> bytes:
        """`[begin, begin + length)` of a fragment's content."""
        found = b""
        while len(found) < length:
            at = ByteOffset(fragment.begin + begin + len(found))
            found += await self.store.read(JOURNAL, fragment, at, length - len(found))
        return found


def text(seed: int, length: int) -> bytes:
    """What compresses as messages do."""
    random = Random(f"content {seed}")
    unit = b"".join(b'{"n":%d,"of":"%x"}\n' % (n, random.getrandbits(64)) for n in range(1_000))
    return (unit * (length // len(unit) + 1))[:length]


@pytest.mark.parametrize("codec", list(Codec))
async def test_readers_get_the_bytes_of_a_fragment_wherever_they_read(codec: Codec) -> None:
    """Blocks are cut and decoded by us: each byte is the one that was stored."""
    bench, content, random = Bench(), text(1, 3 * MIB + 12_345), Random("reads")
    fragment = bench.add(content, codec)
    reads = [(0, 1), (len(content) - 1, 1), (BLOCK_BYTES - 1, 2), (0, len(content))]
    reads += [(at, random.randrange(1, len(content) - at)) for at in [random.randrange(len(content) - 1)] * 5]
    for begin, length in reads:
        assert await bench.read(fragment, begin, length) == content[begin : begin + length]
    bench.budget.check()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTANDARD])
async def test_many_cold_readers_stay_within_the_budget(codec: Codec) -> None:
    """Forty readers of 4 KiB each held forty whole fragments, whatever `cache_bytes_max` said."""
    bench = Bench()
    contents = [text(n, 4 * MIB) for n in range(24)]
    fragments = [bench.add(content, codec, n << 32) for n, content in enumerate(contents)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        await asyncio.gather(*(bench.read(each, 3 * MIB, 4096) for each in fragments))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < bench.budget.bytes_max
    bench.budget.check()


@pytest.mark.parametrize(("codec", "count"), [(Codec.NONE, 160), (Codec.GZIP, 16), (Codec.ZSTANDARD, 6)])
async def test_a_store_that_hangs_leaves_the_readers_of_another_their_part_of_the_budget(
    codec: Codec, count: int
) -> None:
    """Fourteen readers of compressed fragments in it held all of `cache_bytes_max`, and all others waited."""
    budget = Budget(2 * CACHE_BYTES_MIN)
    hanging, other = Bench(shared=budget), Bench(shared=budget)
    content = text(1, 2 * MIB)
    fragments = [hanging.add(text(n, MIB // 2), codec, n << 32) for n in range(count)]
    fragment = other.add(content, codec)
    for each in fragments:
        await hanging.read(each, 0, 10)  # The whole is summed: only then many blocks are fetched at a time.
    budget.drop(lambda _key: True)
    hanging.objects.answers.clear()
    readers = [asyncio.ensure_future(hanging.read(each, 0, 10)) for each in fragments]
    await asyncio.sleep(0.01)

    async with asyncio.timeout(10):
        assert await other.read(fragment, 0, len(content)) == content
    hanging.objects.answers.set()
    assert [len(found) for found in await asyncio.gather(*readers)] == [10] * count
    budget.check()


async def test_two_readers_of_fragments_larger_than_the_cache_fetch_each_byte_twice_at_most() -> None:
    """Each chunk of 256 KiB fetched, copied and hashed a whole fragment: 8.5 MiB/s for two readers."""
    bench = Bench()
    contents = [text(n, 10 * MIB) for n in range(2)]
    fragments = [bench.add(content, Codec.NONE, n << 32) for n, content in enumerate(contents)]

    async def reader(fragment: Fragment, content: bytes) -> None:
        for at in range(0, len(content), BLOCK_BYTES):
            assert await bench.read(fragment, at, BLOCK_BYTES) == content[at : at + BLOCK_BYTES]

    await asyncio.gather(*map(reader, fragments, contents))
    assert bench.objects.given == 2 * sum(map(len, contents)), "once to sum it, once to serve it"


async def test_one_who_reads_on_has_a_compressed_fragment_decoded_once() -> None:
    """Whoever goes on uses the decoder that has come that far; a second one close behind does too."""
    bench, content = Bench(), text(1, 8 * MIB)
    fragment = bench.add(content, Codec.ZSTANDARD)
    stored = len(bench.objects.objects[f"{JOURNAL}/{fragment.name}"])
    for at in range(0, len(content), BLOCK_BYTES):
        found = await asyncio.gather(*(bench.read(fragment, at, BLOCK_BYTES) for _ in range(3)))
        assert found == [content[at : at + BLOCK_BYTES]] * 3
    assert bench.objects.given == 2 * stored


async def test_readers_of_one_block_fetch_it_once() -> None:
    """And a reader that leaves in the middle leaves nobody waiting."""
    bench, content = Bench(), text(1, MIB)
    fragment = bench.add(content)
    readers = [asyncio.create_task(bench.read(fragment, 0, 100)) for _ in range(20)]
    await asyncio.sleep(0)
    readers[0].cancel()
    found = await asyncio.gather(*readers[1:])
    assert found == [content[:100]] * 19
    assert bench.objects.given <= 2 * len(content) + BLOCK_BYTES
    bench.budget.check()


async def test_a_fragment_that_changes_in_its_store_is_not_served() -> None:
    """W4: each block is compared with what it was when the whole was compared with its name."""
    bench, content = Bench(), text(1, 4 * MIB)
    fragment = bench.add(content)
    name = f"{JOURNAL}/{fragment.name}"
    assert await bench.read(fragment, 0, 10) == content[:10]
    bench.objects.objects[name] = content[: 2 * MIB] + b"?" + content[2 * MIB + 1 :]
    with pytest.raises(Corrupt, match="changed in its store"):
        await bench.read(fragment, 2 * MIB, 10)
    with pytest.raises(Corrupt, match="not its own"):
        await bench.read(fragment, 2 * MIB, 10)
    bench.objects.objects[name] = content
    assert await bench.read(fragment, 2 * MIB, 10) == content[2 * MIB : 2 * MIB + 10]
    bench.budget.check()


async def test_a_damaged_fragment_is_noted_until_its_store_has_it_whole_again() -> None:
    """A kept block of it proves nothing: health, an alert and `verify` said that nothing was damaged."""
    bench, content = Bench(), text(6, 3 * BLOCK_BYTES)
    fragment = bench.add(content)
    name = f"{JOURNAL}/{fragment.name}"
    assert await bench.read(fragment, 0, BLOCK_BYTES) == content[:BLOCK_BYTES]
    bench.objects.objects[name] = content[:-1] + bytes([content[-1] ^ 1])
    with pytest.raises(Corrupt) as met:
        await bench.read(fragment, 2 * BLOCK_BYTES, BLOCK_BYTES)
    bench.store.refused(JOURNAL, fragment, met.value)

    with pytest.raises(Corrupt):
        await bench.read(fragment, 0, BLOCK_BYTES)
    assert list(bench.store.damaged) == [name]

    bench.objects.objects[name] = content
    assert await bench.read(fragment, 0, BLOCK_BYTES) == content[:BLOCK_BYTES]
    assert not bench.store.damaged
    bench.budget.check()


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("extra", [b"", b"more"])
async def test_a_fragment_of_another_length_than_its_name_says_is_refused(codec: Codec, extra: bytes) -> None:
    """S8: too short or too long; whatever the stored bytes claim of themselves."""
    bench, content = Bench(), text(1, MIB)
    fragment = bench.add(content, codec)
    other = content + extra if extra else content[:-1]
    stored = b"".join(map(bytes, compress(codec, [other])))
    bench.objects.objects[f"{JOURNAL}/{fragment.name}"] = stored
    with pytest.raises(Corrupt):
        await bench.read(fragment, 0, 1)
    assert bench.budget.used == 0


def fed(stored: bytes, codec: Codec, length: int) -> tuple[int, Exception | None]:
    """How much a decoder gives of `stored`, a piece at a time, and how it ended."""
    source, at, got = Fed(), 0, 0
    pieces = decompress(codec, source, length=length)
    while True:
        while source.is_hungry:
            part = stored[at : at + 1000]
            source.feed(part)
            at += len(part)
        try:
            piece = next(pieces, None)
        except Corrupt as error:
            return got, error
        if piece is None:
            return got, None
        assert len(piece) <= PIECE_BYTES
        got += len(piece)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTANDARD, Codec.SNAPPY])
def test_a_bomb_is_given_up_at_the_length_that_its_name_says(codec: Codec) -> None:
    """S8: 64 MiB of zeros pack into some KiB (access.7)."""
    bomb = b"".join(map(bytes, compress(codec, [bytes(MIB)] * 64)))
    got, error = fed(bomb, codec, length=MIB)
    assert got <= MIB
    assert error is not None


def test_gzip_members_and_what_zlib_holds_back_are_all_read() -> None:
    """Gazette writes many members; zlib may have a piece ready without any input left."""
    content = [text(n, length) for n, length in enumerate([0, 1, PIECE_BYTES, 3 * MIB, 0, 17])]
    stored = b""
    for part in content:
        member = zlib.compressobj(9, zlib.DEFLATED, 31)
        stored += member.compress(part) + member.flush()
    zeros = zlib.compressobj(9, zlib.DEFLATED, 31)
    stored += zeros.compress(bytes(4 * MIB)) + zeros.flush()
    length = sum(map(len, content)) + 4 * MIB
    assert fed(stored, Codec.GZIP, length) == (length, None)


async def test_a_budget_is_given_in_the_order_of_asking_and_to_nobody_who_left() -> None:
    """A large one that waits is not starved by small ones; a cancelled one leaves its bytes."""
    budget, order = Budget(10), []

    async def take(name: str, size: int) -> None:
        await budget.take(size)
        order.append(name)

    await budget.take(8)
    budget.put("kept", Block(b"xx"))
    large, gone, small = (
        asyncio.create_task(take(n, s)) for n, s in (("large", 9), ("gone", 5), ("small", 1))
    )
    await asyncio.sleep(0)
    assert order == []
    gone.cancel()
    budget.give(6)
    await asyncio.gather(large, small)
    assert order == ["large", "small"]
    assert (budget.use("kept"), budget.used) == (None, 10)
    budget.give(10)
    assert budget.used == 0


async def test_who_is_cancelled_in_the_turn_in_which_room_comes_is_only_cancelled() -> None:
    """It looked for itself in the line, which it had left, and a node ends with a task that fails."""
    budget = Budget(10)
    await budget.take(10)
    leaving = asyncio.create_task(budget.take(5))
    await asyncio.sleep(0)
    leaving.cancel()
    budget.give(10)
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert budget.used == 0


class Outage(Shelf):
    """A store that is down."""

    is_down = True

    async def list(self, prefix: str) -> Sequence[Stored]:
        if self.is_down:
            raise OSError("the store is down")
        return await super().list(prefix)


async def test_a_store_that_answers_one_journal_answers_those_that_pause() -> None:
    """The outage ended while another journal paused: its task waited for nothing, and ended the node."""
    objects = Outage(None, {})
    store = FragmentStore(objects, SimDisk().run, budget=Budget(CACHE_BYTES_MIN))
    waiting = asyncio.ensure_future(store.list_when_it_answers(JOURNAL, wanted=asyncio.Event()))
    for _ in range(3):
        await asyncio.sleep(0)
    objects.is_down = False
    assert await store.list(JOURNAL) == []
    async with asyncio.timeout(5):
        assert await waiting == []


async def test_of_many_fragments_that_a_store_lists_few_are_parsed_in_a_turn() -> None:
    """100,000 of one journal held the loop for 0.7 s."""
    bench, turns = Bench(), 0
    names = [f"{JOURNAL}/{at:016x}-{at + 1:016x}-{at:040x}.raw" for at in range(2_000)]
    bench.objects.objects = dict.fromkeys(names, b"")

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.ensure_future(count())
    assert len(await bench.store.list(JOURNAL)) == 2_000
    counting.cancel()
    assert turns >= 2_000 // LISTED_MAX - 1


async def test_readers_of_one_block_that_are_cancelled_together_all_end() -> None:
    """The second took its cancellation for that of the first, and asked the store again.

    So a node that stopped waited for as long as a store was silent.
    """
    bench = Bench()
    fragment = bench.add(Random("silent").randbytes(1000))
    asked: list[tuple[str, int, int | None]] = []
    begun = asyncio.Event()

    async def silent(name: str, begin: int = 0, end: int | None = None) -> bytes:
        asked.append((name, begin, end))
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError("never set")

    bench.objects.get = silent  # type: ignore[method-assign]
    reads = [
        asyncio.ensure_future(bench.store.read(JOURNAL, fragment, ByteOffset(at), 100)) for at in range(3)
    ]
    await begun.wait()
    for read in reads:
        read.cancel()
    await asyncio.wait(reads, timeout=10)
    assert [read.cancelled() for read in reads] == [True] * 3
    assert len(asked) == 1
    bench.budget.check()


async def test_the_next_reader_of_a_block_asks_again_when_the_first_is_cancelled() -> None:
    """A reader that leaves takes nobody with it."""
    bench, begun, may_go_on = Bench(), asyncio.Event(), asyncio.Event()
    content = Random("left").randbytes(1000)
    fragment, get = bench.add(content), bench.objects.get

    async def late(name: str, begin: int = 0, end: int | None = None) -> bytes:
        begun.set()
        await may_go_on.wait()
        return await get(name, begin, end)

    bench.objects.get = late  # type: ignore[method-assign]
    first, second = (
        asyncio.ensure_future(bench.store.read(JOURNAL, fragment, ByteOffset(0), 1000)) for _ in range(2)
    )
    await begun.wait()
    first.cancel()
    may_go_on.set()
    assert await second == content
    assert first.cancelled()


async def test_a_block_that_many_readers_wait_for_is_kept_once_when_the_first_leaves() -> None:
    """They go on a few in each turn, so one of them has the block before the last ones go on.

    These kept it again, and that assertion ended the node.
    """
    bench, begun, asked = Bench(), asyncio.Event(), list[tuple[str, int, int | None]]()
    content = Random("twice").randbytes(1000)
    fragment, get = bench.add(content), bench.objects.get
    assert await bench.read(fragment, 0, 1000) == content  # The sums are known from now on.
    bench.budget.drop(lambda _: True)

    async def late(name: str, begin: int = 0, end: int | None = None) -> bytes:
        bench.objects.get = get  # type: ignore[method-assign]
        asked.append((name, begin, end))
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError("never set")

    bench.objects.get = late  # type: ignore[method-assign]
    first, *others = (asyncio.ensure_future(bench.read(fragment, 0, 1000)) for _ in range(2 + WOKEN_MAX))
    await begun.wait()
    given = bench.objects.given
    first.cancel()
    assert set(await asyncio.gather(*others)) == {content}
    assert bench.objects.given - given == len(content)
    bench.budget.check()
