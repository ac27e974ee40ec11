"""Role: the key space of a node that stands alone, from its log to the Keyspace port.

It offers a `Keyspace` and a status source; it has no methods: clients reach what it holds through the
domains. Source: design/control.md control.15; DESIGN 3 (one log for each role).
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from broadsheet.base.types import Offset
from broadsheet.errors import Corrupt
from broadsheet.keyspace.core.recovery import recovered
from broadsheet.keyspace.core.store import Store
from broadsheet.keyspace.local.keyspace import STREAM, KeyspaceConfig, LocalKeyspace
from broadsheet.keyspace.local.sealing import begin_log, read_seal
from broadsheet.keyspace.port import Keyspace
from broadsheet.observe.logs import Logger, Logs
from broadsheet.runtime.identity import StatusSource
from broadsheet.runtime.role import Ports, Services
from broadsheet.runtime.scope import Scope
from broadsheet.wal.log import Log

LOG_DIRECTORY: Final = "keyspace/log"


class KeyspaceRole:
    """`keyspace/local`."""

    name = "keyspace"

    async def start(self, scope: Scope, ports: Ports, config: KeyspaceConfig, services: Services) -> None:
        """Recover the map and offer it.

        Raises:
            ConfigError: the log is locked, foreign or newer.
            Corrupt: the log lost what was durable: restore the data directory from a backup. Nothing changed.
        """
        logger = next((logs.of(self.name) for logs in services.every(Logs)), None)
        keyspace = await open_keyspace(scope, ports, config, logger)
        services.offer(Keyspace, keyspace)  # type: ignore[type-abstract]  # Found under its port.
        services.offer(StatusSource, StatusSource(name=self.name, read=partial(_status, keyspace)))


async def open_keyspace(
    scope: Scope, ports: Ports, config: KeyspaceConfig, logger: Logger | None = None
) -> LocalKeyspace:
    """Open the log and recover the map."""
    log = await Log.open(
        ports.disk,
        LOG_DIRECTORY,
        config=config.wal,
        time=ports.time,
        random=ports.random("keyspace.log"),
        turn=ports.turn,
        scope=scope,
        crash=ports.crash,
    )
    found = log.recovered(STREAM)
    seal = await ports.disk.run(lambda: read_seal(ports.disk))
    if seal is not None:
        next_offset = await begin_log(log, ports.disk, STREAM, seal)
        store = await ports.disk.run(
            lambda: recovered(
                seal.chunks,
                is_trimmed=True,
                next_offset=next_offset,
                limits=config.limits,
                transactions_max=config.history_transactions_max,
                bytes_max=config.history_bytes_max,
            )
        )
        log.forget(STREAM)
        return _serve(scope, ports, config, log, store=store, next_offset=next_offset)
    if found.is_quarantined:
        raise Corrupt(
            f"{LOG_DIRECTORY} lost durable records after offset {found.end_offset}: "
            "the key space does not start without them; restore the data directory from a backup"
        )
    if found.tail_cut:
        log.settle(STREAM)  # Nothing was answered before it was durable: what was cut was never acknowledged.
        if logger is not None:  # Unless the disk has damaged the very last record.
            logger.warning("keyspace.tail_cut", records=found.end_offset - found.first_offset)
    payloads = [record.payload async for record in log.records(STREAM)]
    store = await ports.disk.run(
        lambda: recovered(
            payloads,
            is_trimmed=found.first_offset > 0,
            next_offset=found.next_offset,
            limits=config.limits,
            transactions_max=config.history_transactions_max,
            bytes_max=config.history_bytes_max,
        )
    )
    log.forget(STREAM)
    return _serve(scope, ports, config, log, store=store, next_offset=found.next_offset)


def _serve(
    scope: Scope, ports: Ports, config: KeyspaceConfig, log: Log, *, store: Store, next_offset: Offset
) -> LocalKeyspace:
    return LocalKeyspace(
        store,
        log,
        next_offset=next_offset,
        time=ports.time,
        timers=ports.timers,
        disk=ports.disk,
        scope=scope,
        crash=ports.crash,
        chunk_bytes=config.snapshot_chunk_bytes,
    )


def _status(keyspace: LocalKeyspace) -> Mapping[str, str | int | float | bool | None]:
    return {
        "revision": keyspace.revision,
        "keys": keyspace.key_count,
        "held_bytes": keyspace.held_bytes,
    }
