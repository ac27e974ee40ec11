"""Status: the state of a node and of its roles, as the command line and the HTTP front page show it.

STARTING --every role started--> READY --a signal--> STOPPING. Whether a node that is READY can serve, its
roles say (`doors/readiness.py`).
"""

import os
from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from broadsheet.access.capability import Capability
from broadsheet.base.time import MILLISECOND, SECOND, Duration, Instant, after, in_seconds, since
from broadsheet.base.types import NodeId
from broadsheet.ports import Time
from broadsheet.runtime.identity import Identity, StatusSource
from broadsheet.runtime.role import Services
from broadsheet.wire.method import Call, Empty, Method, Reply, Shape

STATUS_METHOD: Final = "node.status"
STATUS_NUMBER: Final = 8
ROLES_AGE_MIN: Final = Duration(50 * MILLISECOND)
"""How long the roles' answers are reused, at least. Some roles look at all their streams to answer, and any
caller may ask as often as it likes: without this bound a flood of status requests would fill the loop."""
ROLES_TIME_RATIO: Final = 32
"""They are reused for at least so many times the time that it took to make them: with thousands of journals
on a busy machine that may be more than `ROLES_AGE_MIN`."""
ROLES_AGE_MAX: Final = Duration(5 * SECOND)
"""But no longer than this: the process may have been paused while it made them."""


class State(Enum):
    """The stage of a node's life."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class StatusReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `node.status`. Clients ignore unknown fields, so later versions may add some."""

    node: str
    version: str
    state: str
    pid: int
    uptime_seconds: float
    loop_lag_seconds_max: float
    """The longest delay of the loop in the last minute."""
    addresses: dict[str, str]
    """The bound address (`host:port`) of each door."""
    peers: dict[str, str]
    """The native address of each peer node."""
    roles: dict[str, dict[str, str | int | float | bool | None]]
    """The state that each role reports."""


class Status:
    """The status of this node."""

    def __init__(
        self, identity: Identity, time: Time, services: Services, *, lag: Callable[[], Duration]
    ) -> None:
        """Take the roles from `services`, and the longest delay of the loop from `lag`."""
        self.state = State.STARTING
        self._identity, self._time, self._services, self._lag = identity, time, services, lag
        self._started = time.now()
        self._addresses: dict[str, str] = {}
        self._roles: dict[str, dict[str, str | int | float | bool | None]] = {}
        self._roles_until = Instant(0)

    @property
    def node(self) -> NodeId:
        """The node's name."""
        return self._identity.node

    @property
    def version(self) -> str:
        """Of the node's release."""
        return self._identity.version

    def listens(self, door: str, address: str) -> None:
        """Note the address that a door is bound to."""
        self._addresses[door] = address

    def read(self) -> StatusReply:
        """The status now. The roles' part may be up to `ROLES_AGE_MAX` old, and mostly `ROLES_AGE_MIN`."""
        began = self._time.now()
        if not self._roles or began >= self._roles_until:
            self._roles = {each.name: dict(each.read()) for each in self._services.every(StatusSource)}
            now = self._time.now()
            age = min(ROLES_AGE_MAX, max(ROLES_AGE_MIN, ROLES_TIME_RATIO * (now - began)))
            self._roles_until = after(now, Duration(age))
        return StatusReply(
            node=self._identity.node,
            version=self._identity.version,
            state=self.state.value,
            pid=os.getpid(),
            uptime_seconds=in_seconds(since(self._started, self._time.now())),
            loop_lag_seconds_max=in_seconds(self._lag()),
            addresses=dict(self._addresses),
            peers={str(node): address for node, address in self._identity.peers.items()},
            roles=self._roles,
        )

    def metrics(self) -> list[Metric]:
        """The numbers of the roles that are metrics; as old as `read`'s roles."""
        roles = self.read().roles
        found: list[Metric] = []
        for source in self._services.every(StatusSource):
            fields = roles.get(source.name, {})
            for meanings, family in (
                (source.gauges, GaugeMetricFamily),
                (source.counters, CounterMetricFamily),
            ):
                for field, meaning in meanings.items():
                    if isinstance(value := fields.get(field), int | float):
                        name = source.name if field == source.name else f"{source.name}_{field}"
                        found.append(family(f"broadsheet_{name}", meaning, value=float(value)))
        return found

    def method(self) -> Method:
        """The row of `node.status`. It needs no capability: every authenticated caller may ask."""
        return Method(
            STATUS_METHOD,
            number=STATUS_NUMBER,
            shape=Shape.UNARY,
            capability=Capability.NONE,
            request=Empty,
            name_of=None,
            handler=self._answer,
        )

    def _answer(self, _call: Call, _request: Empty, _payload: memoryview) -> Reply:
        return Reply(body=self.read())


class StatusMetrics(Collector):
    """The numbers of a node's status as metrics, read at each scrape."""

    def __init__(self, status: Status) -> None:
        """Give the numbers of `status`."""
        self._status = status

    def collect(self) -> list[Metric]:
        """One gauge or counter for each number."""
        return self._status.metrics()
