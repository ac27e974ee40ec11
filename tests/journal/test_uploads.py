"""What clients pass as content: all of it is appended, or nothing is and they are told so for certain."""

import array
import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import broadsheet
from broadsheet.client import Client
from broadsheet.errors import Cancelled, InvalidArgument, TooSlow, Unreachable
from tests.journal.node_process import CONFIG, NodeProcess

LARGE = b"large " * 40_000
HURRIED = '[journals.limits]\nflow_stall = "300ms"\n'


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path_factory.mktemp("node"))
    (process.root / "node.toml").write_text(CONFIG + HURRIED)
    assert asyncio.run(process.start())
    yield process
    process.kill()


@pytest.fixture
async def client(node: NodeProcess) -> AsyncIterator[Client]:
    async with broadsheet.connect(node.address) as client:
        yield client


async def content_of(client: Client, name: str) -> bytes:
    return b"".join([chunk.data async for chunk in client.journals.read(name)])


def breaking(*pieces: object) -> Iterator[Any]:
    """Pieces, then an error."""
    yield from pieces
    raise ZeroDivisionError


async def one_by_one(pieces: Iterator[Any]) -> AsyncIterator[Any]:
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece


WRONG: dict[str, Callable[[], Any]] = {
    "text": lambda: "text",
    "a number": lambda: 5,
    "nothing": lambda: None,
    "a mapping": lambda: {b"a": b"b"},
    "text among bytes": lambda: [b"a", "b"],
    "an iterator with a number": lambda: iter([LARGE, 5]),
    "an asynchronous iterator with text": lambda: one_by_one(iter([LARGE, "x"])),
}


@pytest.mark.parametrize("what", WRONG)
async def test_what_is_no_content_is_refused_and_the_connection_goes_on(client: Client, what: str) -> None:
    """Text sent as if it were bytes broke the connection, and everybody else's requests with it."""
    journals = client.journals
    await journals.create("wrong/a", if_absent=True)
    other = asyncio.create_task(journals.read("wrong/a", None, block=True).__anext__())
    end = (await journals.append("wrong/a")).end

    with pytest.raises(InvalidArgument, match="content of type"):
        await journals.append("wrong/a", WRONG[what]())
    assert (await journals.append("wrong/a", b"right")).begin == end
    assert (await asyncio.wait_for(other, 5)).data == b"right"


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": 5},
        {"name": "wrong/b", "offset": "3"},
        {"name": "wrong/b", "offset": -1},
        {"name": "wrong/b", "check": {"a": 5}},
        {"name": "wrong/b", "union": {5: "a"}},
        {"name": "wrong/b", "subtract": "a"},
        {"name": "wrong/b", "timeout": "5"},
        {"name": "wrong/b", "timeout": -1},
        {"name": "wrong/b", "timeout": float("nan")},
    ],
)
async def test_arguments_of_other_types_are_refused_before_anything_is_sent(
    client: Client, arguments: dict[str, Any]
) -> None:
    """The message says which; a number of seconds given as text made a string of 5 GB."""
    with pytest.raises(InvalidArgument):
        await client.journals.append(content=b"x", **arguments)
    with pytest.raises(InvalidArgument):
        await client.journals.append_many("wrong/b", [b"a", "b"])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument):
        await client.journals.append_many("wrong/b", b"ab")  # type: ignore[arg-type]


async def test_anything_that_is_bytes_is_appended_as_its_bytes(client: Client) -> None:
    """A view of integers was counted by its items: what followed stood at wrong offsets."""
    await client.journals.create("bytes/a")
    numbers = array.array("i", [1, 2, 3])
    matrix = np.arange(6, dtype=np.uint16).reshape(2, 3)
    contents: list[Any] = [bytearray(b"x"), memoryview(numbers), numbers, matrix, matrix.T, np.zeros(0)]
    wanted = b"".join(memoryview(each).tobytes() for each in contents)

    for content in contents:
        await client.journals.append("bytes/a", content)
    await client.journals.append_many("bytes/a", contents)
    assert await content_of(client, "bytes/a") == wanted * 2


async def test_a_buffer_that_is_used_again_for_the_next_piece_is_sent_as_it_was(client: Client) -> None:
    """`readinto` with one buffer is how files are copied."""
    await client.journals.create("again/buffer")

    def pieces() -> Iterator[bytearray]:
        buffer = bytearray(100_000)
        for n in range(5):
            buffer[:] = bytes([65 + n]) * len(buffer)
            yield buffer

    await client.journals.append("again/buffer", pieces())
    assert await content_of(client, "again/buffer") == b"".join(bytes([65 + n]) * 100_000 for n in range(5))


@pytest.mark.parametrize("first", [b"small", LARGE])
async def test_an_iterator_that_fails_appends_nothing_and_its_error_is_the_callers(
    client: Client, first: bytes
) -> None:
    """J3: whether anything was sent by then or not."""
    await client.journals.create("fails/a", if_absent=True)
    for source in (breaking(first), one_by_one(breaking(first))):
        with pytest.raises(ZeroDivisionError):
            await client.journals.append("fails/a", source)
    assert (await client.journals.append("fails/a")).end == 0


async def test_a_client_that_stalls_is_told_so_and_holds_nobody(client: Client) -> None:
    """journals.17: refused for certain, also while its own source is silent."""
    await client.journals.create("slow/a")

    async def stalling() -> AsyncIterator[bytes]:
        yield LARGE
        await asyncio.Event().wait()

    appending = asyncio.create_task(client.journals.append("slow/a", stalling()))
    await asyncio.sleep(0)
    others = [await client.journals.append("slow/a", b"others go on") for _ in range(5)]
    with pytest.raises(TooSlow, match="nothing was appended"):
        await asyncio.wait_for(appending, 10)
    assert (await client.journals.append("slow/a")).end == others[-1].end == 60


@pytest.mark.parametrize("first", [b"small", LARGE])
async def test_content_that_is_not_whole_in_time_is_refused_for_certain(client: Client, first: bytes) -> None:
    """C2: the node has not appended it, and no deadline makes that a doubt."""
    await client.journals.create("late/a", if_absent=True)

    async def late() -> AsyncIterator[bytes]:
        while True:
            yield first
            await asyncio.sleep(0.05)

    with pytest.raises((Cancelled, TooSlow)):
        await client.journals.append("late/a", late(), timeout=0.4)
    assert (await client.journals.append("late/a")).end == 0


async def test_a_node_that_dies_before_all_was_sent_leaves_no_doubt(tmp_path: Path) -> None:
    """C2: without the last message nothing of a stream is appended."""
    node = NodeProcess(tmp_path)
    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            await client.journals.create("dies/a")

            async def cut_short() -> AsyncIterator[bytes]:
                yield LARGE
                node.kill()
                await asyncio.Event().wait()

            with pytest.raises(Unreachable, match="not yet whole"):
                await client.journals.append("dies/a", cut_short())
            for content in (b"small", LARGE):  # Of either length: it may be sent again later.
                with pytest.raises(Unreachable, match=r"could not be sent in 0\.\d+ s, and is not appended"):
                    await client.journals.append("dies/a", content, timeout=0.3)
    finally:
        node.kill()


async def test_a_journal_that_is_made_again_leaves_no_stream_behind(
    client: Client, node: NodeProcess
) -> None:
    """After some hundred deletions the connection had no stream left for anything."""
    assert client._pool is not None
    connection = await client._pool.connection(node.address)
    for _ in range(6):
        await client.journals.create("leak/a")
        await client.journals.append("leak/a", b"x")
        await client.journals.delete("leak/a")

    for _ in range(500):
        if len(connection.machine.streams) <= 1:
            break
        await asyncio.sleep(0.01)
    assert len(connection.machine.streams) <= 1


def test_a_synchronous_iterator_runs_in_its_callers_thread(node: NodeProcess) -> None:
    """On the client's loop it stopped every other call, and one to the same client never returned."""
    threads = []
    with broadsheet.connect_sync(node.address) as client:
        client.journals.create("sync/iterator")

        def pieces() -> Iterator[bytes]:
            for n in range(4):
                threads.append(threading.get_ident())
                yield b"%d" % client.journals.append("sync/iterator", b"inside ").begin
                yield b"p" * (50_000 * n)

        commit = client.journals.append("sync/iterator", pieces())
        assert set(threads) == {threading.get_ident()}
        assert commit.begin == 4 * 7
        assert commit.end - commit.begin == 6 * 50_000 + len("071421")
        with pytest.raises(ZeroDivisionError):
            client.journals.append("sync/iterator", breaking(LARGE))
        with pytest.raises(InvalidArgument):
            client.journals.append("sync/iterator", breaking(LARGE, "text"))
        with pytest.raises(InvalidArgument):
            client.journals.append("sync/iterator", "text")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="asynchronous client"):
            client.journals.append("sync/iterator", one_by_one(iter([b"x"])))  # type: ignore[arg-type]
        assert client.journals.append("sync/iterator").end == commit.end
