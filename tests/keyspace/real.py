"""A key space on a real disk, that can be ended as kill -9 would and opened again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from broadsheet.keyspace.core.transaction import Limits
from broadsheet.keyspace.local.keyspace import KeyspaceConfig, LocalKeyspace
from broadsheet.keyspace.local.role import open_keyspace
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.entropy import Entropy
from broadsheet.runtime.network import TCPNetwork
from broadsheet.runtime.objects import LocalObjects
from broadsheet.runtime.role import Ports
from broadsheet.runtime.scope import Scope
from broadsheet.runtime.time import LoopTimers, SystemTime
from broadsheet.wal.config import KIB, WALConfig

SMALL_LOG = WALConfig(
    segment_bytes=1024 * KIB,
    segments_initial=3,
    segments_max=6,
    initial_fill_bytes=64 * KIB,
    record_bytes_max=256 * KIB,
)
SMALL = KeyspaceConfig(
    wal=SMALL_LOG,
    limits=Limits(
        key_bytes_max=64, value_bytes_max=4096, transaction_bytes_max=12_000, map_bytes_max=100_000
    ),
    history_transactions_max=8,
    snapshot_chunk_bytes=8 * KIB,
)


def crash(error: BaseException) -> None:
    raise error


def ports_of(directory: Path) -> Ports:
    return Ports(
        time=SystemTime(),
        timers=LoopTimers(asyncio.get_running_loop()),
        disk=LocalDisk(directory / "disk"),
        network=TCPNetwork(),
        objects=lambda _: LocalObjects(directory / "objects"),
        random=Entropy(),
        crash=crash,
    )


@asynccontextmanager
async def opened(directory: Path, config: KeyspaceConfig | None = None) -> AsyncIterator[LocalKeyspace]:
    """A key space in `directory`, closed at the end."""
    scope = Scope("test", crash=crash)
    ports = ports_of(directory)
    try:
        yield await open_keyspace(scope, ports, config or KeyspaceConfig())
    finally:
        await scope.close()
