"""A process that may open no more files: nothing dies of it, and it goes on when it may again."""

import asyncio
import resource
from pathlib import Path

import pytest

import broadsheet
from broadsheet.client import Client
from broadsheet.errors import StoreUnhealthy
from tests.journal.node_process import NodeProcess

NAME = "files/a"
ROLL = b"x" * 2000
SECONDS_MAX = 20.0


def allow(node: NodeProcess, files: int) -> None:
    """Let the node have so many open files from now on."""
    assert node.pid is not None
    _, hard = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (files, hard))


async def until_appended(client: Client, content: bytes) -> None:
    """Append once that is possible again."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                await client.journals.append(NAME, content)
            except StoreUnhealthy:
                await asyncio.sleep(0.05)
            else:
                return


async def test_a_roll_without_a_file_to_open_is_refused_and_the_node_lives_on(tmp_path: Path) -> None:
    """It ended the node as a failed disk does, and so did the next start's first roll."""
    node = NodeProcess(tmp_path)
    try:
        assert await node.start()
        async with broadsheet.connect(node.address) as client:
            await client.journals.create(NAME, fragment_length=1 << 10)
            await client.journals.append(NAME, ROLL)
            limit, _ = resource.prlimit(node.pid or 0, resource.RLIMIT_NOFILE)
            allow(node, 4)
            for content in (b"small", b"large" * 20_000):
                with pytest.raises(StoreUnhealthy, match="no open file"):
                    await client.journals.append(NAME, content)
            allow(node, limit)

            await until_appended(client, b"after")
            found = b"".join([chunk.data async for chunk in client.journals.read(NAME)])
        assert found == ROLL + b"after"
    finally:
        node.kill()


async def test_a_node_takes_as_many_open_files_as_it_may(tmp_path: Path) -> None:
    """A thousand journals hung in being opened: the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    node = NodeProcess(tmp_path)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(_few(), hard), hard))
        try:
            assert await node.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert resource.prlimit(node.pid or 0, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        node.kill()


def _few() -> int:
    """A low limit that leaves room for what other tests left open in this process."""
    return max(512, len(list(Path("/proc/self/fd").iterdir())) + 64)
