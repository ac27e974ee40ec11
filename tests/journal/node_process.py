"""A real node in a process of its own, to be killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

READY_SECONDS_MAX = 90.0
DEAD_SECONDS_MAX = 20.0

CONFIG = """
[node]
data_dir = "data"
[native]
address = "127.0.0.1:0"
[http]
address = "127.0.0.1:0"
[journals]
checkpoint_bytes = 65536
staged_memory_bytes = 65536
used_percent_max = 100
free_bytes_min = 0
[journals.wal]
segment_bytes = 1048576
segments_initial = 3
initial_fill_bytes = 65536
[keyspace]
snapshot_chunk_bytes = 16384
[keyspace.limits]
operations_max = 4096
transaction_bytes_max = 65536
value_bytes_max = 16384
map_bytes_max = 131072
[keyspace.wal]
segment_bytes = 1048576
segments_initial = 3
initial_fill_bytes = 65536
"""


class NodeProcess:
    """`broadsheet serve` over one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.address = ""
        self._process: subprocess.Popen[bytes] | None = None
        (root / "node.toml").write_text(CONFIG)

    @property
    def pid(self) -> int | None:
        """The process that was started last."""
        return self._process.pid if self._process is not None else None

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The process that was started last."""
        assert self._process is not None, "start it first"
        return self._process

    async def start(self, failpoint: str = "") -> bool:
        """Start it; False where it died before it was ready."""
        ready, write = os.pipe()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("BROADSHEET_")}
        environment["BROADSHEET_CHECK"] = "1"
        if failpoint:
            environment["BROADSHEET_FAILPOINT"] = failpoint
        command = [sys.executable, "-m", "broadsheet", "serve"]
        command += ["--config", str(self.root / "node.toml"), "--ready-fd", str(write)]
        with (self.root / "node.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - our own command, started at once.
                command, pass_fds=[write], env=environment, stdout=log, stderr=log
            )
        os.close(write)
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                told = await asyncio.to_thread(os.read, ready, 65536)
        finally:
            os.close(ready)
        if told:
            self.address = json.loads(told)["addresses"]["native"]
        return bool(told)

    async def died(self, within: float = DEAD_SECONDS_MAX) -> int | None:
        """Its exit status, once it has one; None where it lives on."""
        assert self._process is not None
        process = self._process
        try:
            return await asyncio.to_thread(process.wait, within)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End it as kill -9 does."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
