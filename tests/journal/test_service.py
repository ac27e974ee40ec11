"""Journals through a real node: what users see."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

import broadsheet
from broadsheet.base.types import ByteOffset, JournalName
from broadsheet.client import Client
from broadsheet.errors import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
    OffsetNotYetAvailable,
    RegisterMismatch,
    RemoteProtocolError,
    WrongAppendOffset,
)
from broadsheet.journal.core.attempts import ATTEMPT_BYTES, NOTHING_KNOWN, SETTLED_KEPT
from broadsheet.journal.core.fragment import parse_name
from broadsheet.journal.core.spec import FRAMING_LABEL
from broadsheet.journal.messages import (
    AppendRequest,
    Commit,
    FragmentsReply,
    FragmentsRequest,
    IndexPointsReply,
    IndexPointsRequest,
    ReadRequest,
    SettleReply,
    SettleRequest,
)
from broadsheet.message.framing import FIXED, framed
from broadsheet.message.stored_index import decode
from broadsheet.message.uuid import Clock, Flag, ProducerId, pack
from broadsheet.wire import frame as f
from broadsheet.wire.limits import WireLimits
from tests.journal.node_process import NodeProcess


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="module")
def node(root: Path) -> object:
    process = NodeProcess(root)
    assert asyncio.run(process.start())
    yield process
    process.kill()


@pytest.fixture
async def client(node: NodeProcess) -> AsyncIterator[Client]:
    async with broadsheet.connect(node.address) as client:
        yield client


async def content_of(client: Client, name: str, offset: int | None = 0, end: int | None = None) -> bytes:
    return b"".join([chunk.data async for chunk in client.journals.read(name, offset, end=end)])


async def test_appends_of_every_kind_are_read_back_in_order(client: Client) -> None:
    """Small, many, large, streamed, at an offset: one sequence."""
    journals, parts = (
        client.journals,
        [b"small", b"m" * 10, b"n" * 20, b"L" * 3_000_000, b"s1", b"s2", b"end"],
    )
    await journals.create("kinds/a", fragment_length=1 << 20, codec="gzip")

    assert (await journals.append("kinds/a", parts[0])).begin == 0
    await journals.append_many("kinds/a", parts[1:3])
    await journals.append("kinds/a", parts[3])

    async def streamed() -> AsyncIterator[bytes]:
        yield parts[4]
        yield parts[5]

    commit = await journals.append("kinds/a", streamed())
    assert (await journals.append("kinds/a", parts[6], offset=commit.end)).begin == commit.end
    assert await content_of(client, "kinds/a") == b"".join(parts)
    assert await content_of(client, "kinds/a", 3, 17) == b"".join(parts)[3:17]
    assert (await journals.append("kinds/a")).end == len(b"".join(parts)), "a barrier tells the end"


async def test_one_question_more_than_a_journal_settles_is_told_nothing_for_certain(client: Client) -> None:
    """C2: an earlier question was forgotten, and its append could still take effect after a certain no."""
    journal = await client.journals.create("settle/a")

    async def known_from(number: int) -> int:
        asked = SettleRequest(journal=journal.spec.name, attempt=number.to_bytes(ATTEMPT_BYTES))
        reply = await client.journals._ask("journal.settle", asked, SettleReply)
        assert reply.commit is None
        return reply.known_from

    for first in range(0, SETTLED_KEPT, 64):
        assert await asyncio.gather(*map(known_from, range(first, first + 64))) == [0] * 64
    assert await known_from(SETTLED_KEPT) == NOTHING_KNOWN
    assert await known_from(0) == 0, "it is refused already"


async def test_a_wrong_offset_or_register_changes_nothing_and_says_so(client: Client) -> None:
    """J6, J7."""
    journals = client.journals
    await journals.create("checks/a")
    await journals.append("checks/a", b"1", check={"author": None}, union={"author": "x", "batch": "0"})

    with pytest.raises(WrongAppendOffset, match="the head is 1"):
        await journals.append("checks/a", b"2", offset=0)
    with pytest.raises(RegisterMismatch):
        await journals.append("checks/a", b"2", check={"author": "y"})
    with pytest.raises(InvalidArgument):
        await journals.append("checks/a", b"", union={"author": "y"})
    await journals.append("checks/a", b"2", check={"author": "x"}, subtract={"batch": "0"})

    registers = await journals.registers("checks/a")
    assert (registers.values, registers.version, registers.at) == ({"author": "x"}, 2, 2)
    assert await content_of(client, "checks/a") == b"12"


async def test_a_blocking_read_wakes_at_the_commit_and_another_ends_there(client: Client) -> None:
    """journals.7: committed bytes, as soon as they are."""
    journals = client.journals
    await journals.create("block/a")
    reading = asyncio.ensure_future(anext(journals.read("block/a", 0, block=True)))
    await asyncio.sleep(0)

    await journals.append("block/a", b"now")
    assert (await asyncio.wait_for(reading, 5)).data == b"now"
    assert await content_of(client, "block/a", 3) == b""
    with pytest.raises(OffsetNotYetAvailable):
        await content_of(client, "block/a", 4)


async def test_a_closed_fragment_is_stored_under_gazettes_name(client: Client, root: Path) -> None:
    """journals.25: another broker can read this store."""
    journals = client.journals
    await journals.create("store/a", fragment_length=1 << 10)
    await journals.append("store/a", b"x" * 2000)
    await journals.append("store/a", b"y")
    for _ in range(300):
        if [each for each in await journals.fragments("store/a") if each.is_stored]:
            break
        await asyncio.sleep(0.01)

    (path,) = (root / "data" / "fragments" / "store" / "a").iterdir()
    fragment = parse_name(path.name)
    assert fragment is not None
    assert (fragment.begin, fragment.end) == (0, 2000)
    assert path.name.endswith(".raw")
    assert await content_of(client, "store/a") == b"x" * 2000 + b"y"


async def test_a_journal_with_more_fragments_than_fit_into_a_frame_tells_them_all(tmp_path: Path) -> None:
    """With some nine thousand the reply was above the limit of a frame, and so nothing was told.

    A page is small, because it costs the loop time: with 4,000 in one, a reader held `/healthz` up for 4 s.
    """
    node, count = NodeProcess(tmp_path), 9_500
    stored = tmp_path / "data" / "fragments" / "pages" / "a"
    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            await client.journals.create("pages/a")
        node.kill()
        stored.mkdir(parents=True)
        for n in range(count):
            (stored / f"{n * 100:016x}-{n * 100 + 100:016x}-{'ab' * 20}.raw").touch()
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            request = FragmentsRequest(journal=JournalName("pages/a"))
            page = await client.journals._ask("journal.fragments", request, FragmentsReply)
            found = await client.journals.fragments("pages/a")
        assert (len(page.fragments), page.has_more) == (200, True)
        assert [each.begin for each in found] == [n * 100 for n in range(count)]
    finally:
        node.kill()


async def test_a_journal_that_is_made_again_begins_anew(client: Client) -> None:
    """ADR 0064: no byte of the deleted one is ever read, and its run streams find the new one."""
    journals = client.journals
    first = await journals.create("again/a")
    await journals.append("again/a", b"old")
    with pytest.raises(AlreadyExists):
        await journals.create("again/a")
    await journals.delete("again/a")
    with pytest.raises(NotFound):
        await journals.status("again/a")

    second = await journals.create("again/a")
    assert second.create_revision > first.create_revision
    assert (await journals.append("again/a", b"new")).begin == 0
    assert await content_of(client, "again/a") == b"new"


async def test_names_that_could_leave_their_place_are_refused(client: Client) -> None:
    """S7."""
    for name in (
        "../etc/passwd",
        "/abs",
        "a//b",
        "-/kv",
        ".broadsheet/x",
        ".partial/x",
        "metrics/a",
        "a/\0b",
        "x" * 600,
    ):
        with pytest.raises(InvalidArgument):
            await client.journals.create(name)


async def test_producer_index_points_are_frame_boundaries(client: Client) -> None:
    """journals.29: at each roll, chained, and at or below the offset asked for."""
    journals = client.journals
    await journals.create("index/a", fragment_length=1 << 10, labels={"content-type": "application/x-ndjson"})
    line = b'{"n":1}\n'
    for _ in range(4):
        await journals.append("index/a", line * 200)
    points: list[int] = []
    for _ in range(300):
        points = list(await journals.index_points("index/a"))
        if len(points) >= 3:
            break
        await asyncio.sleep(0.01)

    assert points == [1600, 3200, 4800]
    assert all(point % len(line) == 0 for point in points)
    assert (await journals.producer_index("index/a", 3199)).offset == 1600
    assert (await journals.producer_index("index/a", 1599)).encoded == b""


async def test_an_index_that_is_longer_than_a_frame_is_read_in_parts(client: Client) -> None:
    """Of 110,000 producers it is: every committed read above it was refused as too large, for good."""
    journals, count = client.journals, 120_000
    await journals.create("index/wide", fragment_length=1 << 20, labels={FRAMING_LABEL: "fixed"})
    uuids = [pack(ProducerId((1 << 40) + n), Clock((1 << 60) + 160 * n), Flag.OUTSIDE) for n in range(count)]
    end = (await journals.append("index/wide", b"".join(framed(FIXED, uuid, b"") for uuid in uuids))).end
    await journals.append("index/wide", framed(FIXED, uuids[0], b""))  # It closes the fragment.
    for _ in range(600):
        if list(await journals.index_points("index/wide"))[-1:] == [end]:
            break
        await asyncio.sleep(0.05)

    found = await journals.producer_index("index/wide", end)
    assert len(found.encoded) > WireLimits().frame_bytes_max
    assert len(decode(found.encoded).states) == count


async def test_a_flush_interval_is_kept_with_the_journal_and_checked(client: Client) -> None:
    """A minute at least, as Gazette has it; what is no time is refused before it is sent."""
    info = await client.journals.create("flush/a", flush_interval=90)
    assert info.spec.fragment.flush_interval == 90_000_000_000
    for seconds in (59, -1, float("nan"), float("inf"), 1e8, "90"):
        with pytest.raises(InvalidArgument, match="flush_interval"):
            await client.journals.create("flush/b", flush_interval=seconds)  # type: ignore[arg-type]


def test_the_synchronous_client_does_the_same(node: NodeProcess) -> None:
    """Spark workers use it."""
    with broadsheet.connect_sync(node.address) as client:
        client.journals.create("sync/a", if_absent=True)
        begin = client.journals.append("sync/a", [b"a", b"b"]).begin

        assert b"".join(chunk.data for chunk in client.journals.read("sync/a", begin)) == b"ab"
        assert [info.name for info in client.journals.list("sync/")] == ["sync/a"]


def memory_bytes(node: NodeProcess) -> int:
    pages = Path(f"/proc/{node.pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def test_readers_who_take_nothing_hold_none_of_what_they_read(node: NodeProcess) -> None:
    """Each read 256 KiB and waited with them for a window of 64: 12,000 readers were 2 GiB of memory.

    One whose window never grows gets what fits into it: before, it waited for ever for the first byte.
    """
    async with broadsheet.connect(node.address) as client:
        await client.journals.create("held/a")
        for _ in range(8):
            await client.journals.append("held/a", b"h" * 60_000)
    before = memory_bytes(node)
    reader, writer = await asyncio.open_connection(*node.address.split(":"))
    hello = f.Hello(f.MAGIC, f.VERSION, f.VERSION, "", 4 << 20, 9 << 20)
    writer.write(f.frame(f.HELLO, 0, f.encode(hello)))
    length, *_ = f.HEADER.unpack(await reader.readexactly(f.HEADER_BYTES))
    numbers = msgspec.msgpack.decode(await reader.readexactly(length), type=f.Welcome).methods
    request = ReadRequest(JournalName("held/a"), offset=ByteOffset(0))
    body = f.CALL_HEAD.pack(numbers["journal.read"], 0) + f.encode(request)
    writer.write(b"".join(f.frame(f.OPEN, 2 * n + 1, body) for n in range(600)))
    seen: dict[int, int] = {}
    async with asyncio.timeout(20):
        while len(seen) < 600:
            length, stream, word, _ = f.HEADER.unpack(await reader.readexactly(f.HEADER_BYTES))
            await reader.readexactly(length)
            if word & f.KIND_MASK == f.MESSAGE:
                seen[stream] = length - (word >> f.WORD_BODY_SHIFT)
    after = memory_bytes(node)
    writer.close()

    assert all(60_000 < size < f.INITIAL_WINDOW_BYTES for size in seen.values())
    assert after - before < 100 << 20, "600 readers at 256 KiB each were 150 MiB"


@pytest.mark.parametrize("offset", [-1, 1 << 63])
async def test_an_offset_outside_of_its_range_is_refused_at_the_door(client: Client, offset: int) -> None:
    """wire.11: the index at -1 was told as the empty one at 0, and of others the first page was given."""
    await client.journals.create("ranges/a", if_absent=True)
    name, given = JournalName("ranges/a"), ByteOffset(offset)
    text = rf"offset {offset} is not in \[0, 2\*\*63\)"
    with pytest.raises(InvalidArgument, match=text):
        await client.journals.producer_index(name, offset)
    with pytest.raises(InvalidArgument, match=text):
        await client.journals._ask("journal.fragments", FragmentsRequest(name, beyond=given), FragmentsReply)
    points = IndexPointsRequest(name, beyond=given)
    with pytest.raises(InvalidArgument, match=text):
        await client.journals._ask("journal.index_points", points, IndexPointsReply)
    with pytest.raises(InvalidArgument, match=text):
        await anext(client.journals.read(name, 0, end=offset))


class Deep(msgspec.Struct):
    """A message of an append that no version sends."""

    x: msgspec.Raw


async def test_content_with_a_message_that_does_not_decode_is_refused(client: Client) -> None:
    """Of a deep one the node did not know what it was: it logged a bug of its own, and told `Unknown`."""
    await client.journals.create("deep/a")
    opened = await client.journals._caller.open("journal.append_stream", AppendRequest(JournalName("deep/a")))
    await opened.send(Deep(msgspec.Raw(b"\x91" * 5_000 + b"\xc0")))
    with pytest.raises(RemoteProtocolError, match=r"a message of journal\.append_stream is malformed"):
        await opened.reply(Commit)
    assert await client.journals.end("deep/a") == 0


async def test_journals_are_listed_by_their_labels(client: Client) -> None:
    """The set of journals that one pipeline reads is not a prefix of names."""
    await client.journals.create("labels/a", labels={"topic": "clicks", "env": "eu"})
    await client.journals.create("labels/b", labels={"topic": "clicks"})
    await client.journals.create("labels/c", labels={"topic": "views"})

    async def listed(selector: str) -> list[str]:
        return [info.name for info in await client.journals.list("labels/", selector=selector)]

    assert await listed("topic=clicks") == ["labels/a", "labels/b"]
    assert await listed("topic in (clicks, views), !env") == ["labels/b", "labels/c"]
    assert await listed("name=labels/c") == ["labels/c"]
    with pytest.raises(InvalidArgument, match="malformed from character 0 on: 'topic=clicks;env'"):
        await listed("topic=clicks;env")
