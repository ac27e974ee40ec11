"""Store health: what a fragment store has answered lately, for the readiness of its node and its metrics.

A fault of a call is believed until a call of its sort succeeds, or until it is `FAULT_AGE_MAX` old: perhaps
nobody asks again for what failed, as when its journal was deleted. Source: node.12, ADR 0203.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum
from typing import Final, TypeVar

from broadsheet.base.time import MILLISECOND, SECOND, Duration, Instant, in_seconds, since
from broadsheet.base.types import Buffer
from broadsheet.errors import BroadsheetError
from broadsheet.journal.core.spec import SIDE_DIRECTORY
from broadsheet.ports import ObjectInfo, ObjectStore, Time
from broadsheet.wal.step_times import StepTimes

FAULT_AGE_MAX: Final = Duration(120 * SECOND)
"""Twice the longest pause between two tries of an upload."""
SILENCE_MAX: Final = Duration(10 * SECOND)
"""How long a listing or a read may take. A store that owes an answer for longer counts as down."""
PROBE_WAIT: Final = Duration(5 * SECOND)
"""How long a probe waits for its answer. One that hangs goes on alone, and no other is begun beside it."""
PROBE_PREFIX: Final = f"{SIDE_DIRECTORY}/-/"
"""No journal has that name, so the listing is empty."""

CALL_ENDS: Final = tuple(
    Duration(millis * MILLISECOND)
    for millis in (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000)
)
"""Of the calls to stores, the upper end of each bucket but the last."""

T = TypeVar("T")


class Call(Enum):
    """A call of an object store."""

    PUT = "put"
    GET = "get"
    LIST = "list"
    DELETE = "delete"


class StoreTimes(dict[Call, StepTimes]):
    """How long the answered calls to all stores of a node took."""

    def __init__(self) -> None:
        super().__init__((call, StepTimes(CALL_ENDS)) for call in Call)


class WatchedStore(ObjectStore):
    """A store that notes how its calls end."""

    def __init__(self, objects: ObjectStore, time: Time, times: StoreTimes, *, url: str) -> None:
        """Pass calls on to `objects`, and count in `times` how long it takes to answer them."""
        self.url = url
        """As the settings name it; empty for the node's own."""
        self.error_count = 0
        """Calls that the store did not answer."""
        self._objects, self._time, self._times = objects, time, times
        self._asked: dict[int, Instant] = {}
        """Listings and reads that it has not answered yet, the oldest first."""
        self._count = 0
        self._silence: tuple[Instant, OSError] | None = None
        self._refusal: tuple[Instant, OSError] | None = None
        self._probe: asyncio.Future[None] | None = None

    @property
    def silence(self) -> str:
        """Why it cannot be read now; empty if it can, as far as is known."""
        if self._silence is not None and self._is_young(self._silence[0]):
            return _short(self._silence[1])
        oldest = next(iter(self._asked.values()), None)
        if oldest is not None and (waited := since(oldest, self._time.now())) > SILENCE_MAX:
            return f"it owes an answer for {in_seconds(waited):.0f} s"
        return ""

    @property
    def refusal(self) -> str:
        """Why it took no object lately; empty if it did, as far as is known."""
        return _short(self._refusal[1]) if self._refusal and self._is_young(self._refusal[0]) else ""

    @property
    def detail(self) -> str:
        """The whole text of the last fault, which may name files."""
        fault = self._silence or self._refusal
        return f"{self.url or 'own store'}: {fault[1] if fault is not None else 'no answer'}"

    async def probe(self) -> None:
        """Ask the store for nothing; returns when it has answered, or after `PROBE_WAIT`."""
        await asyncio.wait((self._begin_probe(),), timeout=in_seconds(PROBE_WAIT))

    async def trial(self, within: Duration) -> str:
        """Why the store cannot be used now; empty if it answers `within` that time, and refused no object.

        A store that the node has never opened also shows by its answer that it can be written.
        """
        probe = self._begin_probe()
        await asyncio.wait((probe,), timeout=in_seconds(within))
        if not probe.done():
            return f"it does not answer within {in_seconds(within):g} s"
        fault = self._silence or self._refusal
        return str(fault[1]) if fault is not None and self._is_young(fault[0]) else ""

    def close(self) -> None:
        """Cancel a probe that is under way."""
        if self._probe is not None:
            self._probe.cancel()

    async def put_if_absent(self, name: str, body: Iterable[Buffer]) -> bool:
        """See `ObjectStore`."""
        began = self._time.now()
        try:
            is_new = await self._objects.put_if_absent(name, body)
        except OSError as error:
            self.error_count += 1
            self._refusal = self._time.now(), error
            raise
        self._refusal = None
        self._times[Call.PUT].seen(since(began, self._time.now()))
        return is_new

    async def get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """See `ObjectStore`."""
        return await self._noted(Call.GET, lambda: self._objects.get(name, begin, end))

    async def list(self, prefix: str) -> Sequence[ObjectInfo]:
        """See `ObjectStore`."""
        return await self._noted(Call.LIST, lambda: self._objects.list(prefix))

    async def delete(self, name: str) -> None:
        """See `ObjectStore`."""
        await self._noted(Call.DELETE, lambda: self._objects.delete(name))

    async def _noted(self, which: Call, call: Callable[[], Awaitable[T]]) -> T:
        self._count += 1
        number, began = self._count, self._time.now()
        self._asked[number] = began
        try:
            answer = await call()
        except FileNotFoundError:
            self._silence = None
            raise  # An answer: it does not have the object.
        except OSError as error:
            self.error_count += 1
            self._silence = self._time.now(), error
            raise
        finally:
            del self._asked[number]
        self._silence = None
        self._times[which].seen(since(began, self._time.now()))
        return answer

    def _begin_probe(self) -> "asyncio.Future[None]":
        if self._probe is None or self._probe.done():
            self._probe = asyncio.ensure_future(self._ask_for_nothing())
        return self._probe

    async def _ask_for_nothing(self) -> None:
        try:
            await self.list(PROBE_PREFIX)
        except (OSError, BroadsheetError):
            return  # Silence is noted; another error is an answer.

    def _is_young(self, at: Instant) -> bool:
        return since(at, self._time.now()) <= FAULT_AGE_MAX


def _short(error: OSError) -> str:
    """The error without the names of files, which may be those of journals."""
    return error.strerror or str(error)
