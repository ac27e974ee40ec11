"""Role: the key space of a single node, from its log to the Keyspace port.

It offers a `Keyspace` and a status source. It serves no methods: clients reach the metadata only through the
roles that use it, such as journals. Source: control.15; log.1.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from broadsheet.base.marks import hit
from broadsheet.base.types import Offset, Revision
from broadsheet.errors import Corrupt
from broadsheet.keyspace.core.record import snapshot
from broadsheet.keyspace.core.recovery import recovered
from broadsheet.keyspace.core.store import Store
from broadsheet.keyspace.local.keyspace import STREAM, KeyspaceConfig, LocalKeyspace
from broadsheet.keyspace.local.seal_file import (
    REMEDY,
    REVISION_LEAP,
    Seal,
    begin_log,
    read_seal_durably,
    remove_seal,
    write_aside,
    write_seal,
)
from broadsheet.keyspace.port import Keyspace
from broadsheet.observe.logs import Logger, Logs
from broadsheet.runtime.identity import StatusSource
from broadsheet.runtime.readiness import ReadinessSource, Trouble
from broadsheet.runtime.role import Ports, Services
from broadsheet.runtime.scope import Scope
from broadsheet.wal.log import Log
from broadsheet.wal.record import Record, StreamQuarantined

LOG_DIRECTORY: Final = "keyspace/log"
GAUGES: Final = {
    "revision": "Key space: the revision of its last change.",
    "keys": "Key space: how many keys it has.",
    "held_bytes": "Key space: bytes of keys and values that it holds in memory, of "
    "`keyspace.limits.map_bytes_max`.",
}
"""The numbers of the role's status that are metrics."""
MAP_TENTHS_MAX: Final = 9
"""Above so many tenths of `keyspace.limits.map_bytes_max` the map is told as nearly full."""


class KeyspaceRole:
    """The role that gives a single node its key space."""

    name = "keyspace"

    async def start(self, scope: Scope, ports: Ports, config: KeyspaceConfig, services: Services) -> None:
        """Recover the key space's map and offer it.

        Raises:
            ConfigError: the log is locked, belongs to another node, or is of a newer version.
            Corrupt: the log or the seal lost durable records; the text names the remedies. Nothing changed.
        """
        logger = next((logs.of(self.name) for logs in services.every(Logs)), None)
        keyspace = await open_keyspace(scope, ports, config, logger)
        services.offer(Keyspace, keyspace)  # type: ignore[type-abstract]  # Found under its port.
        services.offer(StatusSource, StatusSource(self.name, partial(_status, keyspace), GAUGES))
        services.offer(Log, keyspace.log)
        room = config.limits.map_bytes_max * MAP_TENTHS_MAX // 10
        services.offer(ReadinessSource, ReadinessSource(self.name, partial(_troubles, keyspace, room)))


async def open_keyspace(
    scope: Scope, ports: Ports, config: KeyspaceConfig, logger: Logger | None = None
) -> LocalKeyspace:
    """Open the key space's log, recover the map, and decide about a torn last batch.

    Raises:
        ConfigError: as `KeyspaceRole.start`.
        Corrupt: as `KeyspaceRole.start`.
    """
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
    seal = await ports.disk.run(lambda: read_seal_durably(ports.disk))
    next_offset = found.next_offset
    if seal is None:
        payloads: list[bytes] = []
        with suppress(StreamQuarantined):  # New damage: the log says so from now on, so ask it afterwards.
            payloads = [record.payload async for record in log.records(STREAM)]
        if log.is_quarantined(STREAM) or log.is_unknown(STREAM):
            raise Corrupt(
                f"{LOG_DIRECTORY} lost durable records after offset {found.end_offset}: the key space does"
                f" not start without them; restore the data directory from a backup, or {REMEDY}"
            )
        store = await _recovered(ports, config, payloads, found.first_offset, found.next_offset)
        if found.is_cut_doubtful:
            seal = await _above_the_cut(ports, config, log, store, suspects=found.suspects, logger=logger)
        elif found.tail_cut:
            log.settle(STREAM)  # A power cut tore the batch: nothing of it was answered, or seen by a reader.
    if seal is not None:
        next_offset = await begin_log(log, STREAM, seal)
        await ports.disk.run(lambda: remove_seal(ports.disk))
        store = await _recovered(ports, config, seal.chunks, next_offset, next_offset)
    log.forget(STREAM)
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


async def _recovered(
    ports: Ports, config: KeyspaceConfig, payloads: Sequence[bytes], first: Offset, next_offset: Offset
) -> Store:
    """The key space's store that the log's records, or a seal's chunks, describe.

    Raises:
        Corrupt: they do not fit together; the text names the remedy.
    """
    try:
        return await ports.disk.run(
            lambda: recovered(
                payloads,
                is_trimmed=first > 0,
                next_offset=next_offset,
                limits=config.limits,
                transactions_max=config.history_transactions_max,
                bytes_max=config.history_bytes_max,
            )
        )
    except Corrupt as error:
        raise Corrupt(f"{error}; or {REMEDY}") from error


async def _above_the_cut(
    ports: Ports,
    config: KeyspaceConfig,
    log: Log,
    store: Store,
    *,
    suspects: Sequence[Record],
    logger: Logger | None,
) -> Seal:
    """Write a seal of the key space whose revisions begin above those of a torn last batch.

    Without a reboot in between, a batch that kill -9 tore cannot be told from an acknowledged batch that was
    damaged later; nor after a reboot that followed a start which had found it, and could not go on. So its
    revisions are never used again: an epoch or a journal may be named by one of them.
    A log line and a file report the revisions in doubt and the bytes that were cut.
    """
    sound = store.revision
    count = max([1, *(each.next_offset - log.next_offset(STREAM) for each in suspects)])
    revision = Revision(sound + count + REVISION_LEAP)
    hit("keyspace.leapt_over_a_cut")
    if logger is not None:
        doubtful = f"[{sound + 1}, {sound + 1 + count})"
        logger.warning("keyspace.tail_cut", sound=sound, doubtful=doubtful, goes_on=revision)
    pairs, disk = store.shown.frozen(), ports.disk
    told = {
        "reason": "the last batch is torn or damaged; its transactions may have been acknowledged",
        "sound": sound,
        "doubtful": [sound + 1, sound + 1 + count],
        "goes_on": revision,
        "records": [each.payload.hex() for each in suspects],
    }

    def write() -> Seal:
        write_aside(disk, f"cut-{sound + 1:016x}-{sound + 1 + count:016x}", msgspec.json.encode(told))
        chunks = snapshot(revision, pairs, chunk_bytes=config.snapshot_chunk_bytes)
        seal = Seal(log.generation(STREAM), [*chunks])
        write_seal(disk, seal)
        return seal

    return await disk.run(write)


def _status(keyspace: LocalKeyspace) -> Mapping[str, str | int | float | bool | None]:
    return {
        "revision": keyspace.revision,
        "keys": keyspace.key_count,
        "held_bytes": keyspace.held_bytes,
    }


def _troubles(keyspace: LocalKeyspace, room: int) -> list[Trouble]:
    found = []
    if reason := keyspace.refusal:
        found.append(Trouble("stopped", reason))
    if keyspace.held_bytes > room:
        text = (
            f"the map holds {keyspace.held_bytes} bytes, more than nine tenths of what it may: delete"
            " journals, or raise keyspace.limits.map_bytes_max"
        )
        found.append(Trouble("map_nearly_full", text, is_warning=True))
    return found
