"""Node: a configuration, and roles that start and end in order. The composition root (node.1).

STARTING --every role started--> READY --`close`--> STOPPING. Roles start in the order listed, and each finds
the services of the earlier ones. They close in the opposite order: doors first, so that no request is
accepted that no role would finish. The node opens no socket or file by itself, so that the simulator can
start it over simulated ports.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from prometheus_client import Histogram

import broadsheet
from broadsheet.base.time import Duration, in_seconds
from broadsheet.base.types import NodeId
from broadsheet.config import Place
from broadsheet.control.core.value import ACCEPTORS_MAX
from broadsheet.control.role import MetastoreConfig, MetastoreRole, require_room_for_documents
from broadsheet.doors.http.door import HTTPConfig, HTTPDoor
from broadsheet.doors.log_metrics import LogMetrics
from broadsheet.doors.native.door import NativeConfig, NativeDoor
from broadsheet.doors.readiness import Readiness, ReadinessMetrics
from broadsheet.doors.status import State, Status, StatusMetrics
from broadsheet.doors.store_metrics import StoreMetrics
from broadsheet.journal.client import INLINE_BYTES_MAX
from broadsheet.journal.config import JournalsConfig
from broadsheet.journal.role import JournalsRole
from broadsheet.journal.unavailable import UnavailableJournals
from broadsheet.keyspace.local.keyspace import KeyspaceConfig
from broadsheet.keyspace.local.role import KeyspaceRole
from broadsheet.observe.logs import Level, Logs
from broadsheet.observe.metrics import Metrics
from broadsheet.runtime.identity import Identity
from broadsheet.runtime.lag import LoopLag
from broadsheet.runtime.network import check_address
from broadsheet.runtime.role import ClosingNotice, Ports, Role, Services
from broadsheet.runtime.scope import Scope
from broadsheet.wire.method import Method

Roles = tuple[type[Role], ...]
"""In the order of their start. Each finds its section of `Settings` by its name."""

ALONE: Final[Roles] = (MetastoreRole, KeyspaceRole, JournalsRole, NativeDoor, HTTPDoor)
"""A node that is its whole cluster."""
AMONG_PEERS: Final[Roles] = (MetastoreRole, UnavailableJournals, NativeDoor, HTTPDoor)
"""A node of several: journals come here once they are replicated."""

LAG_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section `node` of the configuration."""

    id: str = "n1"
    """Unique in the cluster, and the same for the life of its data."""
    cluster: str = "local"
    """The cluster's name, the same on all its nodes; tokens are for one cluster."""
    data_dir: Place = ".broadsheet"
    """The directory of all data of the node."""
    peers: dict[str, str] = {}
    """Every node of the cluster with the address of its native door, at most 9; empty for a node alone."""
    is_insecure: bool = False
    """Whether doors may be bound beyond loopback without TLS. Without `native.keys_file` everybody who
    reaches them may do everything."""
    log_level: str = "info"
    """debug, info, warning, error or critical."""
    log_format: str = "auto"
    """json, console, or auto: console on a terminal."""

    def __post_init__(self) -> None:
        """Refuse settings of a node that cannot work."""
        if not self.data_dir:
            raise ValueError("node.data_dir is empty: name a directory")
        if self.log_level.upper() not in Level.__members__:
            names = ", ".join(level.name.lower() for level in Level)
            raise ValueError(f"node.log_level {self.log_level!r} is none of {names}")
        for peer, address in self.peers.items():
            check_address(f"node.peers.{peer}", address)
        if not self.id.isidentifier() and not self.id.replace("-", "_").replace(".", "_").isalnum():
            raise ValueError(f"node.id {self.id!r} is not made of letters, digits, dots, dashes, underscores")
        if self.peers and self.id not in self.peers:
            raise ValueError(f"node.peers names {', '.join(self.peers)}, but not node.id {self.id}")
        if len(self.peers) > ACCEPTORS_MAX:
            raise ValueError(
                f"node.peers names {len(self.peers)} nodes, and a metastore has at most"
                f" {ACCEPTORS_MAX} acceptors: name at most {ACCEPTORS_MAX}"
            )
        if self.log_format not in ("auto", "json", "console"):
            raise ValueError(f"node.log_format {self.log_format!r} is not auto, json or console")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration of a node: one section for each role."""

    node: NodeConfig = NodeConfig()
    metastore: MetastoreConfig = MetastoreConfig()
    keyspace: KeyspaceConfig = KeyspaceConfig()
    journals: JournalsConfig = JournalsConfig()
    native: NativeConfig = NativeConfig()
    http: HTTPConfig = HTTPConfig()

    def __post_init__(self) -> None:
        """Check the relations between the sections of a node's settings."""
        if self.node.peers:
            require_room_for_documents(self.metastore.wal)
        if self.metastore.provider == "file" and len(self.node.peers) > 1:
            raise ValueError(
                f"metastore.provider is file, but node.peers names {len(self.node.peers)}: use majority"
            )
        if self.journals.inline_bytes_max < INLINE_BYTES_MAX:
            raise ValueError(
                f"journals.inline_bytes_max is {self.journals.inline_bytes_max}: set it to "
                f"{INLINE_BYTES_MAX} or more, because clients send content up to that length in one request"
            )


class Node:
    """One node over its ports."""

    def __init__(self, settings: Settings, ports: Ports, *, logs: Logs) -> None:
        """Make the node; nothing starts before `start`."""
        node = NodeId(settings.node.id)
        self.services = Services()
        self._settings, self._ports, self._logs = settings, ports, logs
        self._scope = Scope(node, crash=ports.crash)
        self._metrics = Metrics(version=broadsheet.__version__, node=node)
        lag_seconds = Histogram(
            "broadsheet_loop_lag_seconds",
            "How late the loop ran a timer that was due.",
            buckets=LAG_BUCKETS,
            registry=self._metrics.registry,
        )
        self._lag = LoopLag(ports.time, ports.timers, seen=lambda lag: lag_seconds.observe(in_seconds(lag)))
        peers = {NodeId(name): address for name, address in settings.node.peers.items()} or {node: ""}
        identity = Identity(
            node=node,
            cluster=settings.node.cluster,
            peers=peers,
            version=broadsheet.__version__,
            is_insecure=settings.node.is_insecure,
        )
        self.status = Status(identity, ports.time, self.services, lag=self._lag.worst)
        self._metrics.registry.register(StatusMetrics(self.status))
        self._readiness = Readiness(self.status, self.services, ports.time, logs.of("node"))
        self._metrics.registry.register(ReadinessMetrics(self._readiness))
        self._metrics.registry.register(LogMetrics(self.services))
        self._metrics.registry.register(StoreMetrics(self.services))
        self.services.offer(Identity, identity)
        self.services.offer(Logs, logs)
        self.services.offer(Metrics, self._metrics)
        self.services.offer(Status, self.status)
        self.services.offer(Readiness, self._readiness)
        self.services.offer(Method, self.status.method())

    async def start(self) -> Mapping[str, str]:
        """Start every role; the address of each door, by its name.

        Raises:
            ConfigError: a role cannot start with this configuration; the earlier ones are closed again.
            Corrupt: a role's data are damaged; the earlier ones are closed again.
        """
        self._lag.start()
        logger = self._logs.of("node")
        try:
            is_alone = self.services.one(Identity).is_alone  # Also where node.peers names this node only.
            for kind in ALONE if is_alone else AMONG_PEERS:
                role = kind()
                config: Any = getattr(self._settings, role.name)
                before = self._ports.time.now()
                await role.start(self._scope.child(role.name), self._ports, config, self.services)
                took = Duration(self._ports.time.now() - before)
                logger.debug("role.started", role=role.name, seconds=in_seconds(took))
        except BaseException:
            await self.close()
            raise
        self.status.state = State.READY
        addresses = self.status.read().addresses
        logger.info("node.ready", version=broadsheet.__version__, **addresses)
        self._readiness.start(self._ports.timers, self._scope)
        return addresses

    async def close(self) -> None:
        """Close every role, last started first; idempotent."""
        if self.status.state is State.STOPPING:
            return
        self.status.state = State.STOPPING
        self._logs.of("node").info("node.stopping")
        self._lag.close()
        self._readiness.close()
        for notice in self.services.every(ClosingNotice):
            notice.act()
        await self._scope.close()
