"""A process that may open no more files: nothing dies of it, and it goes on when it may again."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import broadsheet
from broadsheet.client import Client
from broadsheet.errors import StoreUnhealthy
from tests.journal.node_process import NodeProcess

NAME = "files/a"
ROLL = b"x" * 2000
SECONDS_MAX = 20.0


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeProcess]:
    node = NodeProcess(tmp_path)
    try:
        assert await node.start()
        yield node
    finally:
        node.kill()


async def start_with(node: NodeProcess, *, files: int) -> None:
    """Start the node with so low a soft limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, hard), hard))
    try:
        assert await node.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def allow(node: NodeProcess, files: int) -> None:
    """Let the node have so many open files from now on."""
    assert node.pid is not None
    _, hard = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (files, hard))


async def until_appended(client: Client, content: bytes, name: str = NAME) -> None:
    """Append once that is possible again."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                await client.journals.append(name, content)
            except StoreUnhealthy:
                await asyncio.sleep(0.05)
            else:
                return


async def until_made(client: Client, name: str) -> None:
    """Make a journal, and wait until it is open."""
    await client.journals.create(name)
    await client.journals.end(name, timeout=SECONDS_MAX)


async def test_a_roll_without_a_file_to_open_is_refused_and_the_node_lives_on(node: NodeProcess) -> None:
    """It ended the node as a failed disk does, and so did the next start's first roll."""
    async with broadsheet.connect(node.address) as client:
        await client.journals.create(NAME, fragment_length=1 << 10)
        await client.journals.append(NAME, ROLL)
        limit, _ = resource.prlimit(node.pid or 0, resource.RLIMIT_NOFILE)
        allow(node, 4)
        for content in (b"small", b"large" * 20_000):
            with pytest.raises(StoreUnhealthy, match=r"no file could be opened.*ulimit -n"):
                await client.journals.append(NAME, content)
        allow(node, limit)

        await until_appended(client, b"after")
        found = b"".join([chunk.data async for chunk in client.journals.read(NAME)])
    assert found == ROLL + b"after"


@pytest.mark.parametrize("how", ["checkpoint", "stream", "upload"])
async def test_a_node_without_a_file_to_open_lives_on_whatever_it_does(
    node: NodeProcess, tmp_path: Path, how: str
) -> None:
    """A checkpoint, the sync of a streamed append, the removal of a stored file: each ended the node."""
    async with broadsheet.connect(node.address) as client:
        await client.journals.create(NAME, fragment_length=1 << 20)
        await client.journals.append(NAME, b"x" * 2000)
        limit, _ = resource.prlimit(node.pid or 0, resource.RLIMIT_NOFILE)
        if how != "checkpoint":
            for _ in range(2):
                await client.journals.append(NAME, [b"y" * 600_000])
            await client.journals.append(NAME, b"roll")
        allow(node, 4)
        contents: list[list[bytes]] = [[b"y" * 30_000]] * 6 if how == "checkpoint" else [[b"z" * 200_000]]
        for content in contents if how != "upload" else ():
            with contextlib.suppress(StoreUnhealthy):
                await client.journals.append(NAME, content)
        assert await node.died(1) is None, (tmp_path / "node.log").read_text()[-2000:]
        allow(node, limit)
        await until_appended(client, b"after")
        found = b"".join([chunk.data async for chunk in client.journals.read(NAME)])
    assert found.startswith(b"x" * 2000)
    assert found.endswith(b"after")


async def test_more_journals_than_descriptors_are_served_before_and_after_a_restart(
    node: NodeProcess,
) -> None:
    """Each open journal cost a descriptor: the limit was a limit of journals."""
    files, count = 160, 240
    names = [f"many/{number:03}" for number in range(count)]
    allow(node, files)  # Lower than it knows of: it learns.
    async with broadsheet.connect(node.address) as client:
        for name in names:
            await until_made(client, name)
            await until_appended(client, name.encode(), name)
    node.kill()
    await start_with(node, files=max(files, _few(64)))
    allow(node, files)
    async with broadsheet.connect(node.address) as client:
        for name in names:
            await until_appended(client, b" again", name)
            found = b"".join([chunk.data async for chunk in client.journals.read(name)])
            assert found == name.encode() + b" again"
    assert await node.died(0.1) is None


async def crowded(node: NodeProcess) -> list[str]:
    """Restart the node with 300 journals, each holding its name, and 160 descriptors."""
    files, names = 160, [f"busy/{number:03}" for number in range(300)]
    async with broadsheet.connect(node.address) as client:
        await asyncio.gather(*(client.journals.create(name) for name in names))
        await asyncio.gather(*(client.journals.append(name, name.encode()) for name in names))
    node.kill()
    await start_with(node, files=max(files, _few(64)))
    allow(node, files)
    return names


async def test_appends_to_more_journals_than_descriptors_wait_and_none_is_refused(node: NodeProcess) -> None:
    """After a restart half of 64 concurrent appends were refused: each leaves a file that must be synced."""
    names = await crowded(node)
    async with broadsheet.connect(node.address) as client:
        refused = []
        slots = asyncio.Semaphore(64)

        async def one(name: str) -> None:
            async with slots:
                try:
                    await client.journals.append(name, b" again")
                except StoreUnhealthy as error:
                    refused.append(str(error))

        for _ in range(2):
            await asyncio.gather(*map(one, names))
    assert (len(refused), refused[:1]) == (0, [])
    assert await node.died(0.1) is None


async def test_reads_of_more_journals_than_descriptors_wait_and_none_is_refused(node: NodeProcess) -> None:
    """Two thirds of 64 concurrent readers, who append too, were told that a store did not answer."""
    names = await crowded(node)
    async with broadsheet.connect(node.address) as client:
        refused = []
        slots = asyncio.Semaphore(64)

        async def one(name: str) -> None:
            async with slots:
                try:
                    found = b"".join([chunk.data async for chunk in client.journals.read(name)])
                    assert found == name.encode()
                    await client.journals.append(name, b" again")
                except StoreUnhealthy as error:
                    refused.append(str(error))

        await asyncio.gather(*map(one, names))
    assert (len(refused), refused[:1]) == (0, [])
    assert await node.died(0.1) is None


async def test_a_read_without_a_file_to_open_names_the_limit_and_goes_on_afterwards(
    node: NodeProcess,
) -> None:
    """It named the store, which had nothing to do with it."""
    names = [f"rest/{number}" for number in range(4)]
    async with broadsheet.connect(node.address) as client:
        for name in names:
            await client.journals.create(name)
            await client.journals.append(name, b"x")
        limit, _ = resource.prlimit(node.pid or 0, resource.RLIMIT_NOFILE)
        allow(node, 4)
        await client.journals.create("rest/more")  # It finds no file again and again: the others rest.
        refused: list[str] = []
        async with asyncio.timeout(SECONDS_MAX):
            while not refused:
                for name in names:
                    try:
                        assert [chunk.data async for chunk in client.journals.read(name)] == [b"x"]
                    except StoreUnhealthy as error:
                        refused.append(str(error))
                        break
        assert "no file could be opened for it within" in refused[0]
        assert "ulimit -n" in refused[0]
        allow(node, limit)
        for name in names:
            assert [chunk.data async for chunk in client.journals.read(name)] == [b"x"]


async def test_a_node_takes_as_many_open_files_as_it_may(tmp_path: Path) -> None:
    """A thousand journals hung in being opened: the usual soft limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    node = NodeProcess(tmp_path)
    try:
        await start_with(node, files=_few())
        assert resource.prlimit(node.pid or 0, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        node.kill()


def _few(least: int = 512) -> int:
    """A low limit that leaves room for what other tests left open in this process."""
    return max(least, len(list(Path("/proc/self/fd").iterdir())) + 64)
