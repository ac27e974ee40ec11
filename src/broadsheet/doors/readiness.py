"""Readiness: whether the node can serve, the reasons why not, and a line in its log when one begins or ends.

A role's trouble is ABSENT --seen--> PRESENT --not seen--> ABSENT; each of the two is logged once. The roles
are looked at whenever somebody asks, and each `LOOK_INTERVAL`, so that the log has what nobody asked for.
A look calls no disk and no peer: what only an answer tells is asked by probes beside it. Source: node.12,
ADR 0203.
"""

import asyncio
from typing import Final

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from broadsheet.base.time import MILLISECOND, Duration, Instant, in_seconds, since
from broadsheet.doors.status import State, Status
from broadsheet.observe.logs import Logger
from broadsheet.ports import Time, Timer, Timers
from broadsheet.runtime.readiness import ReadinessSource, Trouble
from broadsheet.runtime.role import Services
from broadsheet.runtime.scope import Scope

LOOK_INTERVAL: Final = Duration(250 * MILLISECOND)
"""Pause between two looks at all roles. A trouble that is shorter may be missed."""
NODE_READY: Final = "broadsheet_node_ready"
ROLE_READY: Final = "broadsheet_role_ready"
ROLE_TROUBLE: Final = "broadsheet_role_trouble"


class Reason(msgspec.Struct, frozen=True):
    """A trouble as `/readyz` shows it."""

    cause: str
    text: str
    is_warning: bool


class RoleReadiness(msgspec.Struct, frozen=True):
    """One role: whether it serves, and what is wrong with it."""

    is_ready: bool
    reasons: list[Reason]


class ReadinessReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/readyz?format=json`. Later versions may add fields."""

    node: str
    version: str
    """Of the node's release."""
    state: str
    """The stage of the node's life."""
    is_ready: bool
    """Whether the node is in the stage `ready`, and every role serves."""
    roles: dict[str, RoleReadiness]


class Readiness:
    """The readiness of one node."""

    def __init__(self, status: Status, services: Services, time: Time, logger: Logger) -> None:
        """Look at the roles among `services`, and log to `logger` what begins and ends."""
        self._status, self._services, self._time, self._logger = status, services, time, logger
        self._present: dict[tuple[str, str], Instant] = {}
        """Since when each trouble is there, by role and cause."""
        self._timer: Timer | None = None

    def start(self, timers: Timers, scope: Scope) -> None:
        """Begin to look and to probe, until `close`; every role has started."""
        for source in self._services.every(ReadinessSource):
            if source.probe is not None:
                scope.spawn(_probe(source), name=f"probe.{source.name}")
        self._look_again(timers)

    def close(self) -> None:
        """Look no more; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> ReadinessReply:
        """The readiness now; logs what began or ended since the last look."""
        found = {each.name: list(each.troubles()) for each in self._services.every(ReadinessSource)}
        if self._status.state is State.READY:
            self._log({(name, each.cause): each for name, troubles in found.items() for each in troubles})
        roles = {
            name: RoleReadiness(
                all(each.is_warning for each in troubles),
                [Reason(each.cause, each.text, each.is_warning) for each in troubles],
            )
            for name, troubles in found.items()
        }
        is_ready = self._status.state is State.READY and all(each.is_ready for each in roles.values())
        return ReadinessReply(
            node=self._status.node,
            version=self._status.version,
            state=self._status.state.value,
            is_ready=is_ready,
            roles=roles,
        )

    def _log(self, found: dict[tuple[str, str], Trouble]) -> None:
        now = self._time.now()
        for (role, cause), trouble in found.items():
            if (role, cause) not in self._present:
                self._present[role, cause] = now
                tell = self._logger.warning if trouble.is_warning else self._logger.error
                told = {"detail": trouble.detail} if trouble.detail else {}
                tell("trouble.began", role=role, cause=cause, reason=trouble.text, **told)
        for role, cause in [each for each in self._present if each not in found]:
            lasted = in_seconds(since(self._present.pop((role, cause)), now))
            self._logger.info("trouble.ended", role=role, cause=cause, seconds=round(lasted, 3))

    def _look_again(self, timers: Timers) -> None:
        self.look()
        self._timer = timers.call_after(LOOK_INTERVAL, lambda: self._look_again(timers))


async def _probe(source: ReadinessSource) -> None:
    assert source.probe is not None, "only a source with a probe is probed"
    while True:
        await source.probe()
        await asyncio.sleep(in_seconds(source.pause))


class ReadinessMetrics(Collector):
    """The readiness of a node as metrics, looked at by each scrape."""

    def __init__(self, readiness: Readiness) -> None:
        """Give the gauges of `readiness`."""
        self._readiness = readiness

    def collect(self) -> list[Metric]:
        """The node's gauge, one for each role, and one for each trouble."""
        found = self._readiness.look()
        roles = GaugeMetricFamily(
            ROLE_READY, "1 if the role serves, 0 while it does not: `/readyz` says why.", labels=["role"]
        )
        troubles = GaugeMetricFamily(
            ROLE_TROUBLE,
            "1 for each trouble that a role has now, those that leave it ready included.",
            labels=["role", "cause"],
        )
        for name, role in found.roles.items():
            roles.add_metric([name], float(role.is_ready))
            for each in role.reasons:
                troubles.add_metric([name, each.cause], 1.0)
        means = "1 if the node can serve, as /readyz says; 0 while it cannot, and while it starts or stops."
        return [GaugeMetricFamily(NODE_READY, means, value=float(found.is_ready)), roles, troubles]
