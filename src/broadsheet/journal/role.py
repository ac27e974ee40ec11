"""Role: the journals of a node, from its log to its methods.

It needs the Keyspace and the node's Identity from earlier roles; it offers the Broker, its methods, a
status source and what must happen when the node begins to close. The log's stream 0 holds the incarnation of
this node's journal data.
"""

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from broadsheet.base.marks import hit
from broadsheet.base.time import SECOND, Duration
from broadsheet.base.types import Generation, Incarnation
from broadsheet.errors import Corrupt, StoreUnhealthy, Throttled
from broadsheet.journal.broker import Broker
from broadsheet.journal.config import JournalsConfig
from broadsheet.journal.context import Context
from broadsheet.journal.core.records import Identity as DataIdentity
from broadsheet.journal.core.records import decode, encode_identity
from broadsheet.journal.core.spec import EPOCH_PREFIX
from broadsheet.journal.keys import decode_epoch
from broadsheet.journal.opening import IDENTITY_STREAM, LOG_DIRECTORY, SPOOL_DIRECTORY
from broadsheet.journal.orphans import refuse_older_keyspace, spool_directories, write_down
from broadsheet.journal.readiness import probe_stores, troubles
from broadsheet.journal.service import Service
from broadsheet.journal.store_health import StoreTimes
from broadsheet.journal.store_settings import require_default, require_stores
from broadsheet.keyspace.port import Keyspace
from broadsheet.observe.logs import Logs
from broadsheet.runtime.identity import Identity, StatusSource
from broadsheet.runtime.readiness import ReadinessSource
from broadsheet.runtime.role import ClosingNotice, Ports, Services
from broadsheet.runtime.scope import Scope
from broadsheet.wal.log import Log
from broadsheet.wal.record import StreamQuarantined
from broadsheet.wal.start_records import made_durable
from broadsheet.wire.method import Method

GAUGES: Final = {
    "journals": "Journals that this node serves.",
    "stopped": "Journals that refuse appends or have damaged content: `broadsheet doctor` says why.",
    "unstored": "Journals whose store takes no fragments, or does not answer: `broadsheet doctor` says why.",
    "opening": "Journals of this start whose first opening has not ended.",
    "not_open": "Journals that could not be opened, and are tried again.",
    "spool_files_open": "Spool files that are open: each takes a descriptor, until it rests.",
    "is_full": "1 if appends are refused because the disk is too full (`journals.used_percent_max`).",
    "fragments_damaged": "Stored fragments that readers were refused, because they are damaged or gone.",
    "fragments_waiting": "Closed fragments that no store has yet: they are on the node's disk.",
}
"""The numbers of the role's status that are metrics."""
COUNTERS: Final = {
    "appends": "Appends with content that were committed.",
    "append_bytes": "Bytes of these appends.",
    "appends_refused": "Appends that were refused: a condition did not hold, or there was no room.",
    "read_bytes": "Content that was sent to readers, in bytes.",
    "fragments_stored": "Fragments that a store has taken and given back.",
    "fragment_bytes_stored": "Bytes of these fragments, before they were compressed.",
    "store_errors": "Calls that fragment stores did not answer.",
}
"""Those that only rise."""
PROBE_PAUSE: Final = Duration(5 * SECOND)
"""Pause between two probes of the stores: a call may cost money."""


class JournalsRole:
    """The role that gives a node its journals."""

    name = "journals"

    async def start(self, scope: Scope, ports: Ports, config: JournalsConfig, services: Services) -> None:
        """Recover the journals' log, begin to open every journal, and offer the methods.

        Raises:
            ConfigError: the log is locked, belongs to another node, or is of a newer version; or a store is
                of a kind that this node cannot reach, or cannot be used and never was.
            Corrupt: a key is damaged, or the key space is older than the journals.
        """
        identity = services.one(Identity)
        assert identity.is_alone, "a node among peers has UnavailableJournals instead"
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
        keyspace: Keyspace = services.one(Keyspace)  # type: ignore[type-abstract]  # Offered under its port.
        incarnation = await _incarnation(log, ports, keyspace)
        log.on_flush_request(IDENTITY_STREAM, lambda _: _renew_identity(log, incarnation))
        context = Context(
            node=identity.node,
            incarnation=incarnation,
            config=config,
            disk=ports.disk,
            log=log,
            keyspace=keyspace,
            time=ports.time,
            timers=ports.timers,
            random=ports.random("journals"),
            objects=ports.objects,
            scope=scope.child("work"),
            crash=ports.crash,
            open_files_max=ports.open_files_max,
            logger=next((logs.of(self.name) for logs in services.every(Logs)), None),
        )
        await require_stores(context, ports.store_notes)
        require_default(context, ports.store_notes)
        await ports.disk.run(partial(ports.disk.make_dir, SPOOL_DIRECTORY))
        # Makes the directories of all journals durable in one sync.
        await ports.disk.run(partial(ports.disk.sync_dir, SPOOL_DIRECTORY))
        refuse_older_keyspace(context, await ports.disk.run(partial(spool_directories, ports.disk)))
        await ports.disk.run(context.staging.clear)
        broker = Broker(context)
        scope.defer(broker.close)
        kept = broker.start()
        await ports.disk.run(lambda: write_down(ports.disk, kept))
        services.offer(Broker, broker)
        services.offer(ClosingNotice, ClosingNotice(context.leave))
        for method in Service(broker, config).methods():
            services.offer(Method, method)
        services.offer(
            StatusSource, StatusSource(self.name, partial(_status, broker, context), GAUGES, COUNTERS)
        )
        services.offer(Log, log)
        services.offer(StoreTimes, context.store_times)
        ready = ReadinessSource(
            self.name, partial(troubles, context, broker), partial(probe_stores, context), PROBE_PAUSE
        )
        services.offer(ReadinessSource, ready)


async def _incarnation(log: Log, ports: Ports, keyspace: Keyspace) -> Incarnation:
    """The incarnation of the journals' data: from its record, from the keys if that is damaged, or new.

    A log that holds journals had an identity record. If that record is lost, the newest epoch key names the
    incarnation.
    """
    found = log.recovered(IDENTITY_STREAM)
    async for record in log.records(IDENTITY_STREAM):
        with contextlib.suppress(Corrupt):
            identity = decode(record.payload)
            if isinstance(identity, DataIdentity):
                _mend_identity(log, identity.incarnation)
                log.forget(IDENTITY_STREAM)
                return identity.incarnation
    is_damaged = found.is_quarantined or found.tail_cut or found.end_offset > found.first_offset
    known = _incarnation_of_keys(keyspace) if is_damaged or log.streams() else None
    incarnation = known or Incarnation(ports.random("journals.incarnation").getrandbits(63) or 1)
    generation = Generation(log.generation(IDENTITY_STREAM) + 1)

    def place(done: Callable[[], None]) -> None:
        if is_damaged and log.generation(IDENTITY_STREAM) < generation:
            hit("journal.identity_repaired")
            log.reset(IDENTITY_STREAM, log.next_offset(IDENTITY_STREAM), generation, done=lambda: None)
        log.append(IDENTITY_STREAM, [encode_identity(DataIdentity(incarnation))], done=done, relief=True)

    await made_durable(place)
    log.forget(IDENTITY_STREAM)
    return incarnation


def _mend_identity(log: Log, incarnation: Incarnation) -> None:
    """End what the log holds against the identity's stream: a whole record tells all that there is."""
    if log.is_quarantined(IDENTITY_STREAM):
        generation = Generation(log.generation(IDENTITY_STREAM) + 1)
        with contextlib.suppress(StoreUnhealthy):  # The log is full: the next start mends it.
            log.reset(IDENTITY_STREAM, log.next_offset(IDENTITY_STREAM), generation, done=lambda: None)
            _renew_identity(log, incarnation)
    log.settle(IDENTITY_STREAM)


def _renew_identity(log: Log, incarnation: Incarnation) -> None:
    """Write the journals' identity record anew, as it pins the oldest segment; then let go of the old one.

    Otherwise a whole segment would be read to copy its 43 bytes, again and again (ADR 0194).
    """
    begin = log.next_offset(IDENTITY_STREAM)
    with contextlib.suppress(StoreUnhealthy, Throttled, StreamQuarantined):  # It is asked for again.
        log.append(
            IDENTITY_STREAM,
            [encode_identity(DataIdentity(incarnation))],
            done=lambda: log.trim(IDENTITY_STREAM, begin),
            relief=True,
        )


def _incarnation_of_keys(keyspace: Keyspace) -> Incarnation | None:
    """The incarnation of the journals' data in the epoch key that was written last; None if there is none."""
    pairs = sorted(keyspace.range(EPOCH_PREFIX), key=lambda pair: pair.mod_revision)
    return decode_epoch(pairs[-1]).members[0].incarnation if pairs else None


def _status(broker: Broker, context: Context) -> Mapping[str, str | int | float | bool | None]:
    log, counts = context.log, context.counts
    status = log.status()
    return {
        "journals": broker.count,
        "stopped": broker.troubles.stopped_count,
        "unstored": broker.troubles.unstored_count,
        "opening": broker.troubles.untried_count,
        "not_open": broker.troubles.unopened_count,
        "is_full": broker.is_full,
        "spool_files_open": context.spools.open_count,
        "fragments_damaged": len(context.damaged),
        "fragments_waiting": sum([len(each.closed) for each in broker.replicas]),
        "appends": counts.appends,
        "append_bytes": counts.append_bytes,
        "appends_refused": counts.appends_refused,
        "read_bytes": counts.read_bytes,
        "fragments_stored": counts.fragments_stored,
        "fragment_bytes_stored": counts.fragment_bytes_stored,
        "store_errors": sum(each.error_count for each in context.watched),
        "log_segments": status.segment_count,
        "log_segments_max": log.config.segments_max,
        "log_segments_free": status.segment_free_count,
        "log_pending_bytes": status.pending_bytes,
        "log_sync_seconds": status.sync_ns_last / SECOND,
        "log_quarantined": len(status.quarantined),
    }
