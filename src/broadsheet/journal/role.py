"""Role: the journals of a node, from its log to its methods.

Needs a Keyspace and the node's Identity of earlier roles; offers the Broker, its methods and a status
source. The log's stream 0 holds the incarnation of this node's journal data, written once.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final

from broadsheet.base.types import Incarnation, LogStreamId
from broadsheet.errors import Unsupported
from broadsheet.journal.broker import Broker
from broadsheet.journal.config import JournalsConfig
from broadsheet.journal.context import Context
from broadsheet.journal.core.records import Identity as DataIdentity
from broadsheet.journal.core.records import decode, encode_identity
from broadsheet.journal.service import Service
from broadsheet.keyspace.port import Keyspace
from broadsheet.runtime.identity import Identity, StatusSource
from broadsheet.runtime.role import Ports, Services
from broadsheet.runtime.scope import Scope
from broadsheet.wal.log import Log
from broadsheet.wire.method import Method, Reply

LOG_DIRECTORY: Final = "journals/log"
IDENTITY_STREAM: Final = LogStreamId(0)


class JournalsRole:
    """One-node journals."""

    name = "journals"

    async def start(self, scope: Scope, ports: Ports, config: JournalsConfig, services: Services) -> None:
        """Recover the log, take up every journal, and offer the methods.

        Raises:
            ConfigError: the log is locked, foreign or newer.
            Corrupt: the log's identity record is damaged.
        """
        identity = services.one(Identity)
        if not identity.is_alone:
            _offer_refusals(services)
            return
        log = await Log.open(
            ports.disk,
            LOG_DIRECTORY,
            config=config.wal,
            time=ports.time,
            random=ports.random("journals.log"),
            turn=ports.turn,
            scope=scope,
            crash=ports.crash,
        )
        context = Context(
            node=identity.node,
            incarnation=await _incarnation(log, ports),
            config=config,
            disk=ports.disk,
            log=log,
            keyspace=services.one(Keyspace),  # type: ignore[type-abstract]  # Offered under its port.
            time=ports.time,
            timers=ports.timers,
            random=ports.random("journals"),
            objects=ports.objects,
            scope=scope.child("work"),
            crash=ports.crash,
        )
        broker = Broker(context)
        scope.defer(broker.close)
        broker.start()
        services.offer(Broker, broker)
        for method in Service(broker, config).methods():
            services.offer(Method, method)
        services.offer(StatusSource, StatusSource(name=self.name, read=partial(_status, broker, log)))


def _offer_refusals(services: Services) -> None:
    """Say why a node of several serves no journals yet."""

    async def refuse(*_request: object) -> Reply:
        raise Unsupported(
            "this release serves journals on a node that stands alone, and of a cluster the metastore only:"
            " start one with `broadsheet up --nodes 1`"
        )

    for row in Service.rows():
        services.offer(Method, row.method(refuse))


async def _incarnation(log: Log, ports: Ports) -> Incarnation:
    """Which life of the data this is: read, or drawn and written down."""
    for record in log.recovered(IDENTITY_STREAM).records:
        found = decode(record.payload)
        if isinstance(found, DataIdentity):
            return found.incarnation
    drawn = Incarnation(ports.random("journals.incarnation").getrandbits(63) or 1)
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    log.append(IDENTITY_STREAM, [encode_identity(DataIdentity(drawn))], done=lambda: written.set_result(None))
    await written
    return drawn


def _status(broker: Broker, log: Log) -> Mapping[str, str | int | float | bool | None]:
    status = log.status()
    return {
        "journals": broker.count,
        "is_full": broker.is_full,
        "log_segments": status.segment_count,
        "log_segments_free": status.segment_free_count,
        "log_quarantined": len(status.quarantined),
    }
