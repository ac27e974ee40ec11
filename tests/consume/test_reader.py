"""A reader gives each committed message once, in one order, from any position that it ever gave.

Source: pipelines.19.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broadsheet
from broadsheet.base.types import ByteOffset, JournalName, Revision
from broadsheet.consume import reader as module
from broadsheet.consume.message import Message
from broadsheet.consume.reader import MessageReader
from broadsheet.errors import InvalidArgument, NotFound, Trimmed
from broadsheet.journal.client_reads import EncodedIndex
from broadsheet.journal.core.spec import FRAMING_LABEL, JournalSpec
from broadsheet.journal.messages import Chunk, JournalInfo, JournalStatus
from broadsheet.message import columns, producer_state
from broadsheet.message.framing import FIXED, JSON_LINES, Framing, framed, scan
from broadsheet.message.position import Position, positions_from_text, positions_to_text
from broadsheet.message.producer_state import begun
from broadsheet.message.spans import update
from broadsheet.message.stored_index import encode
from broadsheet.message.uuid import Clock, Flag, ProducerId, pack
from tests.journal.node_process import NodeProcess
from tests.message.histories import Drawn, committed, content_of, histories, rising

NAME, REVISION, PATIENCE = JournalName("read/messages"), Revision(7), 9.5


class NaiveJournals:
    """One journal in memory from `begin` on, read in steps of some bytes; it has one index point."""

    def __init__(
        self, framing: Framing, content: bytes, *, step: int = 1 << 20, point: int = 0, begin: int = 0
    ) -> None:
        self.framing, self.content, self.step, self.point = framing, content, step, point
        self.begin = begin
        self.read_bytes = 0

    async def get(self, _name: str, *, timeout: float) -> JournalInfo:
        assert timeout == PATIENCE
        spec = JournalSpec(name=NAME, labels={FRAMING_LABEL: self.framing.kind.value})
        return JournalInfo(spec, REVISION, REVISION)

    async def end(self, _name: str, *, timeout: float) -> int:
        assert timeout == PATIENCE
        return len(self.content)

    async def status(self, _name: str, *, timeout: float) -> JournalStatus:
        assert timeout == PATIENCE
        begin = ByteOffset(self.begin)
        return JournalStatus(name=NAME, state="open", create_revision=REVISION, begin=begin)

    async def producer_index(self, _name: str, offset: int, *, patience: float) -> EncodedIndex:
        assert patience == PATIENCE
        assert offset >= self.begin
        index = update(begun(self.framing), self.content[: max(self.begin, min(self.point, offset))])
        return EncodedIndex(offset=index.offset, encoded=encode(index, previous=0)[0])

    async def read(
        self, _name: str, offset: int, *, end: int | None = None, **options: Any
    ) -> AsyncGenerator[Chunk]:
        assert (options["create_revision"], options["patience"]) == (REVISION, PATIENCE)
        stop = len(self.content) if end is None else end
        if offset < self.begin:
            raise Trimmed(f"{offset} is below {self.begin}")
        for at in range(offset, stop, self.step):
            data = self.content[at : min(stop, at + self.step)]
            self.read_bytes += len(data)
            yield Chunk(offset=ByteOffset(at), data=data)


async def read(journals: NaiveJournals, start: Any = "earliest", **options: Any) -> list[Message]:
    reader = MessageReader(journals, NAME, start, patience=PATIENCE, **options)  # type: ignore[arg-type]
    return [each async for each in reader]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([JSON_LINES, FIXED]), histories(30), st.booleans(), st.data())
async def test_from_any_position_it_gives_what_the_naive_sequencer_commits(
    framing: Framing, messages: list[Drawn], is_rising: bool, data: st.DataObject
) -> None:
    """Any index point, any size of reads and blocks, any memory, and a second reader from any position."""
    if is_rising:
        messages = rising(messages)
    content = content_of(framing, messages)
    expected = committed(framing, content)
    drawn = st.sampled_from([1, 100, 300, 1 << 20])
    with pytest.MonkeyPatch.context() as patch:

        def journals() -> NaiveJournals:
            for limit in ("BLOCK_BYTES", "AHEAD_BYTES_MAX", "REPLAY_BYTES_MAX", "THIN_BYTES"):
                patch.setattr(module, limit, data.draw(drawn))
            step = data.draw(st.sampled_from([1, 37, 5000]))
            return NaiveJournals(framing, content, step=step, point=data.draw(st.integers(0, len(content))))

        found = await read(journals())
        assert [each.offset for each in found] == expected
        at = data.draw(st.integers(0, len(found)))
        if at:
            rest = await read(journals(), found[at - 1].position)
            assert [each.offset for each in rest] == expected[at:]
            again = data.draw(st.integers(0, len(rest)))
            if again:
                last = await read(journals(), rest[again - 1].position)
                assert [each.offset for each in last] == expected[at + again :]
    for each in found:
        producer, clock, flags = messages[json.loads(each.value)["n"]]
        assert each.id == (producer, clock, flags)
        body = b'{"n":%d}' % each.json()["n"]
        assert content[each.offset : each.end] == framed(framing, pack(*each.id), body)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([JSON_LINES, FIXED]), histories(30), st.booleans(), st.data())
async def test_of_a_journal_that_was_trimmed_it_gives_what_is_left_or_says_that_something_is_gone(
    framing: Framing, messages: list[Drawn], is_rising: bool, data: st.DataObject
) -> None:
    """One that began before gets what it would have got, or is told.

    It left out messages that were still there, as many as it had been given of those that were gone.
    """
    if is_rising:
        messages = rising(messages)
    content = content_of(framing, messages)
    ends = [0, *(frame.end for frame in scan(framing, content, ByteOffset(0)))]
    begin = data.draw(st.sampled_from(ends))

    def journals(begin: int) -> NaiveJournals:
        point = data.draw(st.integers(0, len(content)))
        return NaiveJournals(framing, content, step=37, point=point, begin=begin)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", data.draw(st.sampled_from([1, 100, 1 << 20])))
        before = await read(journals(0))
        left = await read(journals(begin))
        for found in (left, before):
            if not found:
                continue
            at = data.draw(st.integers(0, len(found) - 1))
            if found[at].position.offset < begin:
                continue
            try:
                rest = await read(journals(begin), found[at].position)
            except Trimmed:
                assert found is before
            else:
                assert [each.offset for each in rest] == [each.offset for each in found[at + 1 :]]
    if is_rising:
        assert [each.offset for each in left] == [each.offset for each in before if each.offset >= begin]


async def test_a_reader_that_stopped_goes_on_where_it_was() -> None:
    """A program catches an error of its own, and iterates again."""
    journals = NaiveJournals(JSON_LINES, content_of(JSON_LINES, [(1, n + 1, 0) for n in range(10)]))
    reader = MessageReader(journals, NAME, patience=PATIENCE)  # type: ignore[arg-type]
    found = []
    for _ in range(4):
        async for each in reader:
            found.append(each.json()["n"])
            if len(found) % 3 == 0:
                break

    assert found == list(range(10))
    assert reader.position == Position(len(journals.content), REVISION)


async def test_a_batch_that_nobody_took_is_given_again() -> None:
    """A blocking caller was interrupted, or its time was up, while the loop's thread made the batch."""
    journals = NaiveJournals(JSON_LINES, content_of(JSON_LINES, [(1, n, 0) for n in range(1, 9)]))
    reader = MessageReader(journals, NAME, patience=PATIENCE)  # type: ignore[arg-type]
    batches = reader.batches()
    lost = await anext(batches)
    await batches.aclose()

    assert len(lost) == 8
    assert [each.offset async for each in reader] == [each.offset for each in lost]


async def test_a_reader_that_was_given_up_reads_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread went on through all of a transaction of gigabytes, for nobody."""
    begun_far, goes_on = asyncio.Event(), asyncio.Event()

    class Slow(NaiveJournals):
        async def read(
            self, _name: str, offset: int, *, end: int | None = None, **options: Any
        ) -> AsyncGenerator[Chunk]:
            async for chunk in super().read(_name, offset, end=end, **options):
                if end is not None:
                    begun_far.set()
                    await goes_on.wait()
                yield chunk

    content = content_of(JSON_LINES, [*((1, n, 1) for n in range(1, 2000)), (1, 2000, 2)])
    for limit in ("AHEAD_BYTES_MAX", "BLOCK_BYTES"):
        monkeypatch.setattr(module, limit, 1000)
    journals = Slow(JSON_LINES, content, step=1000)
    reading = asyncio.ensure_future(read(journals))
    await begun_far.wait()
    before = journals.read_bytes
    reading.cancel()
    await asyncio.wait([reading])
    goes_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()

    assert journals.read_bytes <= before + 1000


async def test_a_position_passes_what_gives_no_message() -> None:
    """A journal that only has pending messages for hours is not read from its begin after each restart."""
    journals = NaiveJournals(JSON_LINES, content_of(JSON_LINES, [(1, n + 1, 1) for n in range(1000)]))
    reader = MessageReader(journals, NAME, patience=PATIENCE)  # type: ignore[arg-type]

    assert [each async for each in reader] == []
    assert reader.position == Position(len(journals.content), REVISION)


@pytest.mark.parametrize("framing", [JSON_LINES, FIXED])
async def test_a_long_message_is_not_searched_again_with_each_piece(
    framing: Framing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 8 MiB in pieces of 16 KiB, 512 pieces, each search would look at everything that has come."""
    body = b'{"n":"%s"}' % (b"x" * (8 << 20))
    content = framed(framing, pack(ProducerId(1), Clock(160), Flag.OUTSIDE), body)
    looks: list[int] = []
    frames_of = columns.frames_of

    def counted(framing: Framing, content: bytes, base: int) -> Any:
        looks.append(len(content))
        return frames_of(framing, content, base)

    monkeypatch.setattr(module, "frames_of", counted)
    (found,) = await read(NaiveJournals(framing, content, step=16 << 10))

    assert len(found.json()["n"]) == 8 << 20
    assert sum(looks) < 4 * len(content)


async def test_uncommitted_reading_gives_everything_in_journal_order() -> None:
    """Repetitions and what is pending or rolled back, but no acknowledgement."""
    messages = [(1, 1, 1), (2, 1, 0), (2, 1, 0), (1, 2, 2), (3, 5, 1)]
    journals = NaiveJournals(JSON_LINES, content_of(JSON_LINES, messages))

    found = await read(journals, is_committed=False)
    assert [each.json()["n"] for each in found] == [0, 1, 2, 4]
    rest = await read(journals, found[1].position, is_committed=False)
    assert [each.json()["n"] for each in rest] == [2, 4]


async def test_a_start_that_means_nothing_is_refused() -> None:
    """A position of a deleted journal would skip or repeat messages of the one that has its name now."""
    journals = NaiveJournals(JSON_LINES, content_of(JSON_LINES, [(1, 1, 0)]))

    with pytest.raises(NotFound, match="deleted and made again"):
        await read(journals, Position(0, REVISION - 1))
    with pytest.raises(InvalidArgument, match="'newest': 'earliest', 'latest'"):
        await read(journals, "newest")
    for wrong in (None, (0, REVISION, 1), [0, REVISION, 1], 0.0):  # Of a position only its numbers are left.
        with pytest.raises(InvalidArgument, match="an offset, or a kept position"):
            await read(journals, wrong)
    with pytest.raises(InvalidArgument, match="0 or more"):
        await read(journals, -1)


def test_positions_are_kept_as_text() -> None:
    """In a register, a file or a database."""
    positions = {"b/two": Position(12, 3, 1), "a/one": Position(0, 1)}

    assert positions_from_text(positions_to_text(positions)) == positions
    assert positions_to_text(positions) == positions_to_text(dict(reversed(positions.items())))
    assert positions_from_text("") == {}
    for wrong in ("12", '{"a/one": 12}', "[]", "{"):
        with pytest.raises(InvalidArgument, match="positions are JSON"):
            positions_from_text(wrong)


async def test_what_a_node_has_dropped_is_dropped_by_its_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower of months would otherwise remember every producer that ever wrote (journals.30)."""
    content = content_of(JSON_LINES, [(producer, 1, 0) for producer in range(1, 2000)])
    kept: list[int] = []
    thinned = producer_state.thinned

    def seen(*given: Any) -> Any:
        index = thinned(*given)
        kept.append(len(index.states))
        return index

    class Pruning(NaiveJournals):
        async def producer_index(self, _name: str, offset: int, *, patience: float) -> EncodedIndex:
            assert patience == PATIENCE
            cut = content.rfind(b"\n", 0, offset) + 1
            return EncodedIndex(offset=cut, encoded=encode(begun(JSON_LINES, ByteOffset(cut)), previous=0)[0])

    monkeypatch.setattr(module, "thinned", seen)
    monkeypatch.setattr(module, "THIN_BYTES", 10_000)
    monkeypatch.setattr(module, "BLOCK_BYTES", 5_000)
    found = await read(Pruning(JSON_LINES, content, step=1_000))

    assert len(found) == 1999
    assert len(kept) > 5
    assert max(kept) == 0


async def test_it_follows_a_journal_through_a_kill_of_the_node(tmp_path: Path) -> None:
    """A follower waits at the end, sees what comes, each once, and survives the node's restart."""
    node = NodeProcess(tmp_path)
    assert await node.start()
    labels = {FRAMING_LABEL: "json-lines"}
    async with broadsheet.connect(node.address) as client, client.publisher() as publisher:
        await client.journals.create("follow/one", labels=labels)
        await publisher.publish_many("follow/one", [{"n": n} for n in range(3)])
        reader = client.messages("follow/one", block=True)
        found = []
        async for each in reader:
            found.append(each.json()["n"])
            if found[-1] == 2:
                break
        late = client.messages("follow/one", "latest", block=True)
        batches = late.batches()
        first = asyncio.ensure_future(anext(batches))
        async with asyncio.timeout(10):
            while late.position is None:  # noqa: ASYNC110 - its own event would be one for this test.
                await asyncio.sleep(0.001)
        await publisher.publish("follow/one", {"n": 3})
        async for each in reader:
            found.append(each.json()["n"])
            break
        assert found == [0, 1, 2, 3]
        assert [each.json()["n"] for each in await first] == [3]
        await batches.aclose()
    node.kill()
    assert await node.start()
    async with broadsheet.connect(node.address) as client, client.publisher() as publisher:
        await publisher.publish("follow/one", {"n": 4})
        assert reader.position is not None
        rest = [each.json()["n"] async for each in client.messages("follow/one", reader.position)]
        assert rest == [4]
    node.kill()


async def test_a_block_of_many_messages_is_given_in_portions() -> None:
    """Half a million of two bytes held the loop for two seconds, and took 270 MiB at once."""
    journals = NaiveJournals(JSON_LINES, b"1\n" * 20_000)
    reader = MessageReader(journals, NAME, patience=PATIENCE)  # type: ignore[arg-type]
    others, found = 0, list[Message]()

    async def other() -> None:
        nonlocal others
        while len(found) < 20_000:
            others += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(other())
    async for batch in reader.batches():
        assert len(batch) <= module.MESSAGES_IN_A_ROW
        found += batch
    await beside

    assert [message.offset for message in found] == list(range(0, 40_000, 2))
    assert [message.position.delivered for message in found] == list(range(1, 20_001))
    assert others >= 4
