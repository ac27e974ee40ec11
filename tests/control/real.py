"""Metastores on real disks and sockets, all nodes in one process."""

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from broadsheet.access.authorizer import Authorizer
from broadsheet.base.time import SECOND, Duration
from broadsheet.base.types import NodeId
from broadsheet.control.core.settings import ProposerConfig
from broadsheet.control.file import FileMetastore
from broadsheet.control.majority import MajorityMetastore
from broadsheet.control.role import MetastoreConfig, open_majority
from broadsheet.control.service import MetastoreService
from broadsheet.runtime.scope import Scope
from broadsheet.wal.config import MIB, WALConfig
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.server import Server
from tests.keyspace.real import crash, ports_of

CONFIG = MetastoreConfig(
    wal=WALConfig(initial_fill_bytes=1 * MIB),
    proposer=ProposerConfig(operation_timeout=Duration(60 * SECOND)),
)
"""Patient: a test with five nodes on a busy disk waits for many syncs."""


def free_addresses(count: int) -> list[str]:
    """Loopback addresses that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


@asynccontextmanager
async def file_metastore(directory: Path) -> AsyncIterator[FileMetastore]:
    ports = ports_of(directory)
    yield await FileMetastore.open(ports.disk, b"founded", crash=crash)


@asynccontextmanager
async def one_node(
    directory: Path,
    node: NodeId,
    peers: dict[NodeId, str],
    address: str = "",
    *,
    config: MetastoreConfig = CONFIG,
    deaf_to: str = "",
    authorizer: Authorizer | None = None,
) -> AsyncIterator[MajorityMetastore]:
    """One node of a cluster, listening; the method `deaf_to` never reaches it."""
    ports = ports_of(directory / node)
    scope = Scope(node, crash=crash)
    try:
        metastore = await open_majority(scope, ports, config, node=node, peers=peers, cluster="test")
        server = Server(
            ports,
            scope,
            [each for each in MetastoreService(node, metastore).methods() if each.name != deaf_to],
            authorizer=authorizer or Authorizer(None, time=ports.time),
            limits=WireLimits(),
            node=node,
            cluster="test",
        )
        await server.listen(address or peers[node])
        scope.defer(server.close)
        yield metastore
    finally:
        await scope.close()


@asynccontextmanager
async def majority(directory: Path, count: int = 3) -> AsyncIterator[list[MajorityMetastore]]:
    """`count` nodes."""
    names = [NodeId(f"n{n}") for n in range(1, count + 1)]
    peers = dict(zip(names, free_addresses(count), strict=True))
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(one_node(directory, node, peers)) for node in names]
