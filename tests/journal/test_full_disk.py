"""A disk that fills up: on a real small file system, through a real node (journals.20, ADR 0062)."""

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import broadsheet
from broadsheet.client import Client
from broadsheet.errors import StoreUnhealthy
from broadsheet.journal.config import GIB, MIB, JournalsConfig
from broadsheet.journal.disk_space import free_bytes_wanted
from tests.journal.node_process import CONFIG, NodeProcess

SIZE_MIB = 48
NAME = "full/a"
SECONDS_MAX = 20.0


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of `SIZE_MIB`."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True, capture_output=True)


def fill(root: Path, *, leave_bytes: int) -> Path:
    """Another program's file, which takes all but `leave_bytes`; the node may be taking space meanwhile."""
    ballast = root / "ballast"
    with ballast.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(64 << 10))
        file.truncate(file.tell() - leave_bytes)
    return ballast


async def content_of(client: Client) -> bytes:
    return b"".join([chunk.data async for chunk in client.journals.read(NAME)])


async def until_state(client: Client, state: str) -> str:
    """Why the journal is in `state`, once it is."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            status = await client.journals.status(NAME)
            if status.state == state:
                return status.reason
            await asyncio.sleep(0.02)


async def until_refused(client: Client) -> tuple[bytes, StoreUnhealthy]:
    """Append until there is no space; what was acknowledged, and what the first refusal said."""
    acked = b""
    for number in range(200):
        content = b"%07d," % number * 2500
        try:
            await client.journals.append(NAME, content)
        except StoreUnhealthy as error:
            return acked, error
        acked += content
    raise AssertionError("200 appends of 20 KB fit into 1 MiB")


def test_the_watermark_is_a_share_of_the_disk_within_two_bounds_of_bytes() -> None:
    """ADR 0062: 85 % of a small disk, 4 GiB of a large one, never less than 256 MiB."""
    config = JournalsConfig()

    assert free_bytes_wanted(config, 10 * GIB) == 10 * GIB * 15 // 100
    assert free_bytes_wanted(config, 10_000 * GIB) == 4 * GIB
    assert free_bytes_wanted(config, GIB) == 256 * MIB
    assert free_bytes_wanted(JournalsConfig(used_percent_max=100, free_bytes_min=7), GIB) == 7
    with pytest.raises(ValueError, match=r"used_percent_max must be in 1\.\.100, not 0"):
        JournalsConfig(used_percent_max=0)


@pytest.mark.needs_root
async def test_above_the_watermark_appends_are_refused_until_there_is_space_again(small: Path) -> None:
    """journals.20: refused before ENOSPC, with numbers and remedy; reads go on; nobody restarts anything.

    Source: node.11.
    """
    node = NodeProcess(small)
    (small / "node.toml").write_text(CONFIG.replace("used_percent_max = 100", "used_percent_max = 85"))
    try:
        assert await node.start(), (small / "node.log").read_text()
        async with broadsheet.connect(node.address) as client:
            await client.journals.create(NAME)
            await client.journals.append(NAME, b"before ")
            ballast = fill(small, leave_bytes=5 * MIB)
            assert "journals.used_percent_max" in await until_state(client, "full")

            for content in (b"small", [b"at ", b"once"], b"streamed" * 20_000):
                with pytest.raises(StoreUnhealthy, match=r"MiB free of 4[78].*used_percent_max.*reads go on"):
                    await client.journals.append(NAME, content)
            assert await content_of(client) == b"before "
            assert (await client.journals.append(NAME)).end == 7, "a barrier needs no space"

            ballast.unlink()
            await until_state(client, "open")
            await client.journals.append(NAME, b"after")
            assert await content_of(client) == b"before after"
    finally:
        node.kill()


@pytest.mark.needs_root
async def test_a_disk_without_space_takes_appends_back_and_the_node_lives_on(small: Path) -> None:
    """journals.20: ENOSPC is roll-back, not the end of the process; a restart finds what was acknowledged."""
    node = NodeProcess(small)
    try:
        assert await node.start(), (small / "node.log").read_text()
        async with broadsheet.connect(node.address) as client:
            await client.journals.create(NAME, fragment_length=1 << 30)
            ballast = fill(small, leave_bytes=MIB)
            acked, refusal = await until_refused(client)
            assert "free" in str(refusal)
            with pytest.raises(StoreUnhealthy, match="free"):
                await client.journals.append(NAME, b"streamed" * 500_000)
            assert await content_of(client) == acked

            ballast.unlink()
            async with asyncio.timeout(SECONDS_MAX):
                while True:
                    try:
                        await client.journals.append(NAME, b"after")
                    except StoreUnhealthy:
                        await asyncio.sleep(0.05)
                    else:
                        break
            assert await content_of(client) == acked + b"after"
        node.kill()
        assert await node.start(), (small / "node.log").read_text()
        async with broadsheet.connect(node.address) as client:
            assert await content_of(client) == acked + b"after"
    finally:
        node.kill()
