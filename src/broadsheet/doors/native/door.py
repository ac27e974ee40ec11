"""Door: the role `native`, which collects the methods of all roles, authorizes callers, and listens.

Without a key file every caller on loopback may do everything. With one, each caller must show a token
(ADR 0003).
"""

from pathlib import Path
from typing import Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from broadsheet.access.authorizer import Authorizer
from broadsheet.access.tokens import LIFETIME_MAX, Tokens, parse_keys
from broadsheet.base.time import SECOND, Duration
from broadsheet.config import Place
from broadsheet.doors.status import Status
from broadsheet.errors import ConfigError
from broadsheet.journal.client_batches import FRAME_BYTES_MAX, FRAME_COUNT_MAX
from broadsheet.observe.logs import Logs
from broadsheet.observe.metrics import Metrics
from broadsheet.runtime.identity import Identity
from broadsheet.runtime.network import check_address
from broadsheet.runtime.role import Ports, Services
from broadsheet.runtime.scope import Scope
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.method import Method
from broadsheet.wire.server import Server

RUN_FRAME_BYTES: Final = FRAME_BYTES_MAX + 4 * FRAME_COUNT_MAX + 8
"""The longest frame of a client of journals: a run with its table of lengths."""


class NativeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section `native` of the configuration."""

    address: str = "127.0.0.1:6640"
    """Where to listen; port 0 takes a free one."""
    keys_file: Place = ""
    """File of the keys that sign tokens, in base64: the first signs, any verifies. Empty: no tokens."""
    token_life_max: Duration = LIFETIME_MAX
    """The longest life of a token; one that lives longer is refused. A stolen token is good for that long."""
    limits: WireLimits = WireLimits()
    """Bounds of connections, frames, streams and time."""

    def __post_init__(self) -> None:
        """Refuse an address that cannot be parsed, and limits below what clients of journals send."""
        check_address("native.address", self.address)
        if self.token_life_max < SECOND:
            raise ValueError(f"native.token_life_max is {self.token_life_max} ns: set it to 1s or more")
        for name, value, least in (
            ("frame_bytes_max", self.limits.frame_bytes_max, RUN_FRAME_BYTES),
            ("run_count_max", self.limits.run_count_max, FRAME_COUNT_MAX),
        ):
            if value < least:
                raise ValueError(
                    f"native.limits.{name} is {value}: set it to {least} or more, because clients gather "
                    "small appends into frames of that size"
                )


class NativeDoor:
    """The role `native`."""

    name = "native"

    async def start(self, scope: Scope, ports: Ports, config: NativeConfig, services: Services) -> None:
        """Listen, and report the bound address to the status.

        Raises:
            ConfigError: the address cannot be bound, it is beyond loopback without `--insecure`, or the keys
                cannot be read.
        """
        identity = services.one(Identity)
        logger = services.one(Logs).of(self.name)
        server = Server(
            ports,
            scope.child("calls"),  # Closed after the server, whose close lets calls end by themselves.
            services.every(Method),
            authorizer=Authorizer(_tokens(config, identity), time=ports.time),
            limits=bounded(config.limits, ports.open_files_max),
            node=identity.node,
            cluster=identity.cluster,
            peers=tuple(identity.peers),
            failed=lambda error: logger.error("handler.failed", exc_info=error),
        )
        services.one(Metrics).registry.register(_Counts(server))
        try:
            address = await server.listen(config.address, is_insecure=identity.is_insecure)
        except OSError as error:
            raise ConfigError(
                f"the native door cannot listen at {config.address}: {error.strerror}. Set native.address "
                "to a free address of this machine"
            ) from error
        scope.defer(server.close)
        services.one(Status).listens(self.name, address)


def bounded(limits: WireLimits, open_files_max: int) -> WireLimits:
    """`limits` with fewer connections if the process may open few files, so that journals have some left."""
    return msgspec.structs.replace(
        limits,
        connections_max=min(limits.connections_max, max(1, open_files_max // 4)),
        ungreeted_max=min(limits.ungreeted_max, max(1, open_files_max // 16)),
    )


def _tokens(config: NativeConfig, identity: Identity) -> Tokens | None:
    if not config.keys_file:
        return None
    try:
        text = Path(config.keys_file).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read native.keys_file {config.keys_file}: {error}. `broadsheet token keys FILE` makes "
            "one"
        ) from error
    return Tokens(parse_keys(text), audience=identity.cluster, lifetime_max=config.token_life_max)


class _Counts(Collector):
    """Gives the server's counts to Prometheus, read at each scrape."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> list[Metric]:
        """One metric for each count."""
        counts, server = self._server.counts, self._server
        totals = (
            ("connections_accepted", "connections that were accepted", counts.accepted),
            ("connections_turned_away", "connections that found no place", counts.turned_away),
            ("connections_displaced", "connections that made room for others", counts.displaced),
            ("connections_broken", "connections closed because the peer broke the protocol", counts.broken),
            ("greetings_unauthenticated", "greetings refused for their token", counts.unauthenticated),
            ("calls", "calls that were begun", counts.calls),
            ("calls_refused", "calls that were answered with a refusal", counts.refused),
            ("calls_failed", "calls whose handler failed: each is a bug of ours", counts.failed),
        )
        found: list[Metric] = [
            CounterMetricFamily(f"broadsheet_wire_{name}", f"Native door: {meaning}.", value=total)
            for name, meaning, total in totals
        ]
        open_now = len(server.connections)
        return [
            *found,
            GaugeMetricFamily(
                "broadsheet_wire_connections", "Native door: connections that are open.", value=open_now
            ),
        ]
