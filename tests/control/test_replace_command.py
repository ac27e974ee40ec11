"""`broadsheet metastore replace` on real nodes: one only cut off, then one that lost its data (control.6)."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broadsheet.cli.running import wait_until_ended
from broadsheet.control.document_chunks import receive_document, send_document
from broadsheet.control.service import CompareAndSetRequest, VersionReply
from broadsheet.runtime.caller import CallerPorts
from broadsheet.wire.client import ClientConnection, dial
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import EMPTY
from tests.cli.processes import broadsheet, cluster, environment, pids
from tests.control.real import free_addresses
from tests.keyspace.real import crash

SERVE_SECONDS_MAX = 20.0


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[ClientConnection]:
    connection = await dial(CallerPorts(crash=crash), address, limits=WireLimits())
    try:
        yield connection
    finally:
        await connection.close()


async def read(address: str) -> tuple[int, bytes]:
    async with asyncio.timeout(20), connected(address) as connection:
        stream = await connection.open("metastore.read", EMPTY)
        document = await receive_document(stream)
        return (await stream.reply(VersionReply)).version, document


async def write(address: str, version: int, document: bytes) -> int:
    async with asyncio.timeout(20), connected(address) as connection:
        stream = await connection.open("metastore.compare_and_set", CompareAndSetRequest(version))
        await send_document(stream, document)
        return (await stream.reply(VersionReply)).version


@asynccontextmanager
async def spare(root: Path, peers: dict[str, str]) -> AsyncIterator[str]:
    """A fourth node, started by `serve`: its native address."""
    address = free_addresses(1)[0]
    lines = "\n".join(f'{name} = "{at}"' for name, at in {**peers, "n4": address}.items())
    (root / "spare.toml").write_text(
        f'[node]\nid = "n4"\ndata_dir = "n4"\n[node.peers]\n{lines}\n'
        f'[native]\naddress = "{address}"\n[http]\naddress = "127.0.0.1:0"\n'
    )
    command = [sys.executable, "-m", "broadsheet", "serve", "--config", str(root / "spare.toml")]
    with (root / "n4.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, env=environment())
    try:
        await answering(address)
        yield address
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def answering(address: str) -> None:
    """Wait until the node at `address` takes connections."""
    for _ in range(int(SERVE_SECONDS_MAX / 0.1)):
        try:
            async with connected(address):
                return
        except Exception:  # noqa: BLE001 - not yet.
            await asyncio.sleep(0.1)
    raise AssertionError(f"nobody at {address} after {SERVE_SECONDS_MAX} s")


async def command(*arguments: str | Path) -> str:
    done = await asyncio.to_thread(broadsheet, "metastore", *arguments)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


async def acceptors(root: Path) -> list[str]:
    found: dict[str, Any] = json.loads(await command("status", "--data-dir", root, "--json"))
    assert found["pending"] == []
    return sorted(member.partition("#")[0] for member in found["acceptors"])


async def test_a_node_that_is_cut_off_and_one_that_lost_its_data_are_replaced(tmp_path: Path) -> None:
    """First n2, which is only stopped, by n4; then n3, whose directory is gone, by its own new life."""
    root = tmp_path / "c"
    with cluster(root, nodes=3) as up:
        doors = {each["node"]: each["addresses"]["native"] for each in up["nodes"]}
        version, _ = await read(doors["n1"])
        version = await write(doors["n2"], version, b"one")

        os.kill(pids(root)["n2"], signal.SIGSTOP)
        async with spare(root, doors) as n4:
            said = await command("replace", "n2", "n4", "--added-address", n4, "--data-dir", root)
            assert "was replaced by n4#" in said
            assert await acceptors(root) == ["n1", "n3", "n4"]
            version = await write(doors["n1"], version + 2, b"two")
            os.kill(pids(root)["n2"], signal.SIGCONT)
            assert await read(doors["n2"]) == (version, b"two")
            again = await asyncio.to_thread(
                broadsheet, "metastore", "replace", "n1", "n4", "--added-address", n4, "--data-dir", root
            )
            assert again.returncode != 0
            assert "already" in again.stdout + again.stderr

            os.kill(pids(root)["n3"], signal.SIGKILL)
            wait_until_ended(root / "n3", seconds=10)
            shutil.rmtree(root / "n3")
            assert (await asyncio.to_thread(broadsheet, "up", "--data-dir", root, "--detach")).returncode == 0
            elsewhere = ["--address", doors["n1"], "--data-dir", tmp_path / "none"]
            unknown = await asyncio.to_thread(broadsheet, "metastore", "replace", "n3", "n3", *elsewhere)
            assert unknown.returncode != 0
            assert "--added-address" in unknown.stderr, "with a node named, its directory is no remedy"
            said = await command("replace", "n3", "n3", "--data-dir", root)
            assert "was replaced by n3#" in said
            version += 2
            os.kill(pids(root)["n1"], signal.SIGSTOP)
            assert await read(doors["n3"]) == (version, b"two")
            version = await write(doors["n3"], version, b"three")
            os.kill(pids(root)["n1"], signal.SIGCONT)
            assert await read(doors["n1"]) == (version, b"three")
