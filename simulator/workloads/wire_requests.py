"""What the wire workload asks, is told, and what its nodes count: shared by its parts.

Values and counters. Source: C1, C2.
"""

from collections.abc import Callable
from zlib import crc32

import msgspec

from broadsheet.errors import BroadsheetError, Refused
from broadsheet.ports import Random
from broadsheet.wire.client import ClientConnection, dial
from broadsheet.wire.limits import WireLimits
from broadsheet.wire.routed import Routed
from simulator.services import ServiceContext
from simulator.workload import Episode, Violation


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """One request."""

    id: str
    pause_ms: int = 0
    count: int = 0


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What was received."""

    id: str
    size: int
    crc: int


def is_early(name: str) -> bool:
    """Whether the upload of that name is done with its first message, and not with its last."""
    return crc32(name.encode()) % 2 == 0


class Deeds:
    """What the nodes did, by request: it outlives them."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.given_up: dict[str, bool] = {}
        """Requests that their client gave up on purpose, and whether it was told that nothing was done."""
        self.acknowledged: dict[str, None] = {}
        """Requests outside the history whose client was told that they were done."""
        self.sinks: list[tuple[Callable[[], bool], str, list[str]]] = []
        """Of each RUN stream that was opened: whether its node is dead, its name, and when its sink was told
        of the end."""

        self._places: dict[str, int] = {}
        self._disorder: list[str] = []

    def placed(self, name: str, number: int) -> None:
        """Run `number` of `name` was placed: runs stand in the order in which they were submitted."""
        before = self._places.get(name, -1)
        self._places[name] = number
        if number <= before:
            self._disorder.append(f"run {number} of {name} was placed after run {before}")

    def did(self, name: str) -> None:
        """Count one."""
        self.counts[name] = self.counts.get(name, 0) + 1

    def ended(self, name: str, error: BroadsheetError | None) -> None:
        """The client of `name` was told how it ended."""
        if error is None:
            self.acknowledged[name] = None
        self.given_up[name] = isinstance(error, Refused)

    def judge(self) -> None:
        """Once, never, or once at most, as the clients were told.

        Raises:
            Violation: one was told otherwise.
        """
        if self._disorder:
            raise Violation(self._disorder[0])
        for name, is_refused in self.given_up.items():
            count = self.counts.get(name, 0)
            least, most = int(name in self.acknowledged), 0 if is_refused else 1
            if not least <= count <= most:
                told = "done" if least else "refused" if is_refused else "unknown"
                raise Violation(f"{name}, which its client knows as {told}, was done {count} times")
        for is_dead, name, ends in self.sinks:
            if len(ends) > 1 or not (ends or is_dead()):
                raise Violation(f"the sink of {name} was told {len(ends)} times that no more runs will come")


class ClientSide:
    """The client's side of one part of the workload."""

    def __init__(
        self,
        context: ServiceContext,
        run: Episode,
        routed: Routed,
        deeds: Deeds,
        *,
        random: Random,
        limits: WireLimits,
        token: Callable[..., str],
    ) -> None:
        self._context, self._run, self._routed, self._deeds = context, run, routed, deeds
        self._random, self._limits, self._token = random, limits, token

    async def _dial(self, token: str | None = None) -> ClientConnection | None:
        """A connection of its own; None if the node cannot be reached."""
        address = self._routed.address
        token = self._token() if token is None else token
        try:
            return await dial(self._context.ports, address, token=token, limits=self._limits)
        except BroadsheetError:
            return None
