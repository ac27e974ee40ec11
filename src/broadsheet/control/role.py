"""Role: the metastore of a node: a file if the node is alone, a majority if its cluster has several nodes.

Stream 1 of the role's log is the acceptor's. If that stream is quarantined, the acceptor begins a new life in
it. The new life is no member until an operator replaces the old one with it (control.6).
Source: design/control.md control.1-7.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from broadsheet.base.types import ClusterId, Generation, Incarnation, LogStreamId, NodeId
from broadsheet.config import Place
from broadsheet.control.core.acceptor import AcceptorMachine, Memory, encoded, remembered
from broadsheet.control.core.document import Document
from broadsheet.control.core.document import encoded as encoded_document
from broadsheet.control.core.proposer import ProposerMachine
from broadsheet.control.core.settings import Founding, ProposerConfig
from broadsheet.control.core.value import DOCUMENT_BYTES_MAX, NO_BALLOT, Acceptor, acceptor_text
from broadsheet.control.file import FileMetastore
from broadsheet.control.majority import MajorityMetastore
from broadsheet.control.port import Metastore
from broadsheet.control.quorum import Quorum
from broadsheet.control.service import MetastoreService
from broadsheet.errors import ConfigError
from broadsheet.observe.logs import Logger, Logs
from broadsheet.runtime.identity import Identity, StatusSource
from broadsheet.runtime.readiness import ReadinessSource
from broadsheet.runtime.role import Ports, Services
from broadsheet.runtime.scope import Scope
from broadsheet.wal.config import MIB, WALConfig
from broadsheet.wal.log import Log
from broadsheet.wal.start_records import made_durable
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import Method
from broadsheet.wire.pool import Pool

LOG_DIRECTORY: Final = "metastore/log"
STREAM: Final = LogStreamId(1)
GAUGES: Final = {
    "version_known": "Metastore: the newest version of the document that this node has read.",
    "version_accepted": "Metastore: the version that this node's acceptor has accepted.",
    "is_member": "Metastore: 1 if this node's acceptor is one of those that vote; if not, replace it.",
    "ballot": "Metastore: the highest ballot that this node's acceptor has promised.",
    "document_bytes": "Metastore: bytes of the accepted document.",
}
"""The numbers of the role's status that are metrics."""
RECORD_BYTES_MIN: Final = DOCUMENT_BYTES_MAX + MIB
"""The log must take a record of this size: the largest document, with room for acceptors and attempts."""


class MetastoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section `metastore` of the configuration."""

    provider: str = "auto"
    """file, majority, or auto: file for a single node, majority otherwise."""
    token_file: Place = ""
    """File with a token with the capability REPLICATE, for peers that demand tokens; empty for none."""
    wal: WALConfig = WALConfig(segment_bytes=32 * MIB, initial_fill_bytes=4 * MIB)
    """The role's log. A record holds the whole document."""
    proposer: ProposerConfig = ProposerConfig()
    """Times and limits of the proposer."""

    def __post_init__(self) -> None:
        """Check the bounds of the fields."""
        if self.provider not in ("auto", "file", "majority"):
            raise ValueError(f"metastore.provider {self.provider!r} is not auto, file or majority")


class MetastoreRole:
    """The role that gives a node its metastore."""

    name = "metastore"

    async def start(self, scope: Scope, ports: Ports, config: MetastoreConfig, services: Services) -> None:
        """Recover, then offer the `Metastore` and its methods.

        Raises:
            ConfigError: the log is locked, foreign or newer.
            Corrupt: the file is damaged.
        """
        identity = services.one(Identity)
        logger = next((logs.of(self.name) for logs in services.every(Logs)), None)
        provider = config.provider
        if provider == "auto":
            provider = "file" if identity.is_alone else "majority"
        metastore: Metastore
        if provider == "file":
            assert identity.is_alone, "the node's settings refuse peers beside it"
            founding = _founding(ports)
            metastore = await FileMetastore.open(ports.disk, founding, crash=ports.crash, logger=logger)
            services.offer(StatusSource, StatusSource(name=self.name, read=lambda: {"provider": "file"}))
            services.offer(ReadinessSource, ReadinessSource(self.name, troubles=list))
        else:
            metastore = majority = await open_majority(
                scope,
                ports,
                config,
                node=identity.node,
                peers=identity.peers,
                cluster=identity.cluster,
                logger=logger,
            )
            services.offer(StatusSource, StatusSource(self.name, partial(_status, majority), GAUGES))
            services.offer(Log, majority.log)
            quorum = Quorum(majority, ports.time)
            services.offer(ReadinessSource, ReadinessSource(self.name, quorum.troubles, quorum.probe))
        services.offer(Metastore, metastore)  # type: ignore[type-abstract]  # Found under its port.
        for method in MetastoreService(identity.node, metastore).methods():
            services.offer(Method, method)


async def open_majority(
    scope: Scope,
    ports: Ports,
    config: MetastoreConfig,
    *,
    node: NodeId,
    peers: Mapping[NodeId, str],
    cluster: str,
    logger: Logger | None = None,
) -> MajorityMetastore:
    """Recover the acceptor of `node`, and start its proposer. The first of `peers` founds."""
    log = await Log.open(
        ports.disk,
        LOG_DIRECTORY,
        config=config.wal,
        time=ports.time,
        random=ports.random("metastore.log"),
        turn=ports.turn,
        scope=scope,
        crash=ports.crash,
    )
    memory = await _memory(log, ports, node, logger)
    seeds = tuple(sorted(peers))
    proposer = ProposerMachine(
        node,
        nonce=ports.random("metastore.nonce").getrandbits(62) | 1,
        seeds=seeds,
        random=ports.random("metastore.backoff"),
        config=config.proposer,
        founding=Founding(_founding(ports), tuple(sorted(peers.items()))) if node == seeds[0] else None,
    )
    metastore = MajorityMetastore(
        node,
        AcceptorMachine(memory, next_offset=log.next_offset(STREAM)),
        proposer,
        peers=peers,
        log=log,
        stream=STREAM,
        pool=Pool(
            ports,
            scope,
            limits=WireLimits(),
            token=_Token(config.token_file, logger),
            node=node,
            cluster=cluster,
        ),
        time=ports.time,
        timers=ports.timers,
        scope=scope,
        crash=ports.crash,
        call_timeout=config.proposer.operation_timeout,
        logger=logger,
    )
    scope.spawn(metastore.begin(), name="begin")
    return metastore


async def _memory(log: Log, ports: Ports, node: NodeId, logger: Logger | None) -> Memory:
    """What the acceptor remembers; a new life, durably begun, if it has nothing or has lost records."""
    found = log.recovered(STREAM)
    memory = (
        None if found.is_quarantined else remembered([record.payload async for record in log.records(STREAM)])
    )
    log.forget(STREAM)
    if memory is not None:
        if found.tail_cut:
            log.settle(STREAM)  # The cut record was not durable, so nobody was told of it (control.4).
            if logger is not None:  # But if the disk damaged a durable last record, it was (ADR 0051): warn.
                logger.warning("metastore.tail_cut", records=found.end_offset - found.first_offset)
        return memory
    incarnation = Incarnation(ports.random("metastore.incarnation").getrandbits(62) | 1)
    memory = Memory(Acceptor(node, incarnation), NO_BALLOT, None)
    if (found.is_quarantined or log.is_unknown(STREAM)) and logger is not None:
        own = acceptor_text(memory.acceptor)
        logger.error("metastore.acceptor_lost", remedy=f"broadsheet metastore replace {node} {own}")

    def place(done: Callable[[], None]) -> None:
        if log.is_quarantined(STREAM):
            log.reset(STREAM, found.next_offset, Generation(found.generation + 1), lambda: None)
        log.append(STREAM, [encoded(memory)], done=done, relief=True)

    await made_durable(place)
    return memory


class _Token:
    """The metastore's token for peers. Its file is read at each dial, so it can be renewed at any time."""

    def __init__(self, path: str, logger: Logger | None) -> None:
        self._path, self._logger = path, logger
        self._trouble = ""

    def __call__(self) -> str:
        """The token for the metastore's peers; empty if no file is configured.

        Raises:
            ConfigError: the file is missing or not ASCII. The dial fails; the next one reads the file again.
        """
        if not self._path:
            return ""
        try:
            token = Path(self._path).read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            if str(error) != self._trouble and self._logger is not None:
                self._logger.warning("metastore.token_unreadable", path=self._path, error=str(error))
            self._trouble = str(error)
            raise ConfigError(
                f"metastore.token_file {self._path} cannot be read: {error}: put the token there"
            ) from error
        self._trouble = ""
        return token


def require_room_for_documents(wal: WALConfig) -> None:
    """Refuse a log that has no room for the largest document that `compare_and_set` takes.

    Raises:
        ConfigError: a setting is too small; the error names it and its least value.
    """
    for name in ("record_bytes_max", "segment_bytes"):
        least = RECORD_BYTES_MIN if name == "record_bytes_max" else 2 * RECORD_BYTES_MIN
        if (found := getattr(wal, name)) < least:
            raise ConfigError(
                f"metastore.wal.{name} is {found}, and must be at least {least}: a record holds the whole"
                f" document, of up to {DOCUMENT_BYTES_MAX} bytes"
            )


def _founding(ports: Ports) -> bytes:
    cluster = ClusterId(ports.random("metastore.cluster").getrandbits(62) | 1)
    return encoded_document(Document(cluster=cluster))


def _status(metastore: MajorityMetastore) -> Mapping[str, str | int | float | bool | None]:
    known = metastore.proposer.known
    accepted = metastore.acceptor.memory.accepted
    return {
        "provider": "majority",
        "version_known": known.value.version if known else 0,
        "version_accepted": accepted.value.version if accepted else 0,
        "is_member": metastore.is_member,
        "ballot": metastore.acceptor.memory.promised.counter,
        "document_bytes": len(accepted.value.document) if accepted else 0,
    }
