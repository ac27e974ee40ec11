"""Three real nodes, each in its own process, and clients that record what they are told."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from broadsheet.control.document_chunks import receive_document, send_document
from broadsheet.control.service import CompareAndSetRequest, VersionReply
from broadsheet.errors import BroadsheetError, Refused, UnexpectedVersion, Unreachable
from broadsheet.runtime.caller import CallerPorts
from broadsheet.wire.client import ClientConnection, dial
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import EMPTY
from simulator.history import History
from tests.control.real import free_addresses
from tests.keyspace.real import crash

CALL_SECONDS = 3
START_SECONDS = 60
RUN = "from broadsheet.cli.main import main; main()"


class Processes:
    """Nodes n1 to n3."""

    def __init__(self, directory: Path, count: int = 3) -> None:
        self.directory = directory
        self.names = [f"n{n}" for n in range(1, count + 1)]
        self.addresses = dict(zip(self.names, free_addresses(count), strict=True))
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        peers = "\n".join(f'{name} = "{address}"' for name, address in self.addresses.items())
        for name in self.names:
            (directory / f"{name}.toml").write_text(
                f'[node]\nid = "{name}"\ndata_dir = "{name}"\n[node.peers]\n{peers}\n'
                f'[native]\naddress = "{self.addresses[name]}"\n[http]\naddress = "127.0.0.1:0"\n'
                "[metastore.wal]\ninitial_fill_bytes = 1048576\n"
            )

    def start(self, name: str, failpoint: str = "") -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-c", RUN, "serve", "--config", str(self.directory / f"{name}.toml")],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": "src", "BROADSHEET_FAILPOINT": failpoint},
            )

    async def started(self, name: str) -> None:
        """Start `name`, and return when it answers: otherwise the next fault might leave no majority."""
        self.start(name)
        async with asyncio.timeout(START_SECONDS):
            while True:
                try:
                    connection = await dial(
                        CallerPorts(crash=crash), self.addresses[name], limits=WireLimits()
                    )
                except Unreachable:
                    await asyncio.sleep(0.1)
                else:
                    return await connection.close()

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()

    def pause(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGCONT)

    def close(self) -> None:
        for name in list(self.running):
            self.kill(name)


class Client:
    """Reads and writes the document at whichever node answers."""

    def __init__(self, name: str, addresses: Sequence[str], history: History) -> None:
        self.name, self.addresses, self.history = name, addresses, history
        self.random = Random(name)
        self.version, self.count = 1, 0
        self.is_stopping = False
        self._connections: dict[str, ClientConnection] = {}

    async def work(self) -> None:
        while not self.is_stopping:
            await (self.read() if self.random.random() < 0.5 else self.write())
            await asyncio.sleep(self.random.random() / 50)
        for connection in self._connections.values():
            await connection.close()

    async def read(self) -> None:
        operation = self.history.invoke(self.name, "document", "read")
        try:
            async with asyncio.timeout(CALL_SECONDS):
                stream = await (await self._connection()).open("metastore.read", EMPTY)
                document = await receive_document(stream)
                self.version = (await stream.reply(VersionReply)).version
        except (BroadsheetError, TimeoutError, OSError):
            self.history.lose(operation)
        else:
            self.history.ok(operation, document, version=self.version)

    async def write(self) -> None:
        self.count += 1
        document = f"{self.name}/{self.count}".encode()
        operation = self.history.invoke(self.name, "document", "set", (self.version, document))
        try:
            async with asyncio.timeout(CALL_SECONDS):
                request = CompareAndSetRequest(self.version)
                stream = await (await self._connection()).open("metastore.compare_and_set", request)
                await send_document(stream, document)
                made = (await stream.reply(VersionReply)).version
        except UnexpectedVersion as error:
            self.history.reject(operation, str(error))
            await self.read()
        except Refused as error:
            self.history.reject(operation, str(error))
        except (BroadsheetError, TimeoutError, OSError):
            self.history.lose(operation)
        else:
            self.version = made
            self.history.ok(operation, result=True, version=made)

    async def _connection(self) -> ClientConnection:
        address = self.random.choice(self.addresses)
        found = self._connections.get(address)
        if found is None or not found.is_usable:
            found = await dial(CallerPorts(crash=crash), address, limits=WireLimits())
            self._connections[address] = found
        return found


def new_history() -> History:
    return History(time.monotonic_ns)
