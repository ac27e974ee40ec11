"""Status: what a node says of itself, to the command line and to the front page.

STARTING --every role started--> READY --a signal--> STOPPING. Only READY is healthy.
"""

import os
from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec

from broadsheet.access.capability import Capability
from broadsheet.base.time import MILLISECOND, Duration, Instant, in_seconds, since
from broadsheet.base.types import NodeId
from broadsheet.ports import Time
from broadsheet.runtime.identity import Identity, StatusSource
from broadsheet.runtime.role import Services
from broadsheet.wire.method import Call, Empty, Method, Reply, Shape

STATUS_METHOD: Final = "node.status"
STATUS_NUMBER: Final = 8
ROLES_AGE_MAX: Final = Duration(50 * MILLISECOND)
"""Roles are read this often at most: some look at every stream of theirs, and anybody may ask without end."""


class State(Enum):
    """Where a node is in its life."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class StatusReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `node.status`. Unknown fields are ignored, so that it may grow."""

    node: str
    version: str
    state: str
    pid: int
    uptime_seconds: float
    loop_lag_seconds_max: float
    """Of the last minute."""
    addresses: dict[str, str]
    """Door to `host:port`."""
    peers: dict[str, str]
    """Node to the address of its native door."""
    roles: dict[str, dict[str, str | int | float | bool | None]]
    """What each role says of itself."""


class Status:
    """The status of this node."""

    def __init__(
        self, identity: Identity, time: Time, services: Services, *, lag: Callable[[], Duration]
    ) -> None:
        """Read the roles' own words from `services`, and the loop's worst lag of late from `lag`."""
        self.state = State.STARTING
        self._identity, self._time, self._services, self._lag = identity, time, services, lag
        self._started = time.now()
        self._addresses: dict[str, str] = {}
        self._roles: dict[str, dict[str, str | int | float | bool | None]] = {}
        self._roles_at: Instant | None = None

    @property
    def node(self) -> NodeId:
        """The node's name."""
        return self._identity.node

    def listens(self, door: str, address: str) -> None:
        """Note where a door is bound."""
        self._addresses[door] = address

    def read(self) -> StatusReply:
        """How things are right now, or were for the roles `ROLES_AGE_MAX` ago."""
        now = self._time.now()
        if self._roles_at is None or now >= self._roles_at + ROLES_AGE_MAX:
            self._roles_at = now
            self._roles = {each.name: dict(each.read()) for each in self._services.every(StatusSource)}
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

    def method(self) -> Method:
        """The row of `node.status`: any authenticated caller may know how the node does."""
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
