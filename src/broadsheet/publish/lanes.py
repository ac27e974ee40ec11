"""Lanes: the messages of one publisher on their way, in each journal in order, one append at a time.

IDLE --put--> SENDING --the last append is answered--> IDLE. What is ready leaves as one append. If its
outcome is not known, the same messages are appended again, each until it is acknowledged or its `patience` is
over: a reader drops the second copy by its clocks. The next append waits for that. If it overtook a lost one,
readers would drop the messages of the lost one, whose clocks are smaller, as duplicates. A late copy of one
that was given up is dropped in the same way, behind those that were repeated without it. Units: bytes,
seconds.
Source: pipelines.18; docs/adr/0201.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, NamedTuple

from broadsheet.base.backoff import Backoff
from broadsheet.base.time import MILLISECOND, SECOND, Duration, in_seconds
from broadsheet.errors import (
    BroadsheetError,
    Cancelled,
    LocalProtocolError,
    NotFound,
    ShuttingDown,
    Unknown,
    is_passing,
)
from broadsheet.journal.client import TIMEOUT_SECONDS, Journals
from broadsheet.journal.core.spec import framing_of
from broadsheet.journal.messages import JournalInfo
from broadsheet.message.framing import JSON_LINES
from broadsheet.message.stamper import Intent
from broadsheet.runtime.waiting_line import WaitingLine

APPEND_BYTES: Final = 1 << 20
"""An append takes messages up to this size together; a larger message is an append by itself."""
PAUSE_MIN: Final = Duration(20 * MILLISECOND)
PAUSE_MAX: Final = Duration(SECOND)


WAITING_BYTES_MAX: Final = 16 << 20
"""Bytes of messages that may wait for their journals; above them callers wait."""
LANES_MAX: Final = 10_000
"""Journals that are remembered; of the idle ones, those that were looked up first are looked up again."""

Spawn = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]
"""Runs a task that ends with the client; once that is closed, raises `LocalProtocolError`."""


class Waiting(NamedTuple):
    """A message that is not acknowledged yet."""

    content: bytes
    give_up: float
    """When its time is over, by the loop's clock."""
    done: "asyncio.Future[None]"
    behind: "asyncio.Future[None] | None"
    """Another one on the same way: if that does not arrive, this one is not sent."""


class Lane:
    """The way to one journal."""

    def __init__(
        self,
        journals: Journals,
        info: JournalInfo,
        *,
        patience: float,
        spawn: Spawn,
        freed: Callable[[int], None],
    ) -> None:
        """Append to the journal of `info`, and to no later one of its name; arguments as `Lanes`.

        Args:
            freed: is told how many bytes do not wait any more.
        """
        self.name, self.revision = info.name, info.create_revision
        self.framing = framing_of(info.spec) or JSON_LINES
        self.is_gone = False
        """Whether the journal was deleted."""
        self._journals, self._patience, self._spawn, self._freed = journals, patience, spawn, freed
        self._waiting: deque[Waiting] = deque()
        self._is_sending = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way."""
        return not self._is_sending

    def put(self, content: bytes, *, behind: "asyncio.Future[None] | None" = None) -> "asyncio.Future[None]":
        """Append `content` behind everything that was put before; must be called as it was stamped.

        Args:
            behind: what an earlier call returned. If that ends with an error, or its caller was cancelled,
                `content` is not sent.

        Returns:
            A future that ends when the content is durable, or with the error that ended its way: a `Refused`
            if it is certainly not in the journal, `Unknown` if it may be.

        Raises:
            LocalProtocolError: the client is closed. Nothing changed.
        """
        loop = asyncio.get_running_loop()
        if not self._is_sending:
            self._spawn(self._send(), f"lane.{self.name}").add_done_callback(self._ended)
            self._is_sending = True
        waiting = Waiting(content, loop.time() + self._patience, loop.create_future(), behind)
        self._waiting.append(waiting)
        return waiting.done

    async def _send(self) -> None:
        """Append what waits until nothing does."""
        batch: list[Waiting] = []
        try:
            await asyncio.sleep(0)  # What is put in this turn of the loop leaves together.
            while batch := self._take():
                await self._append(batch)
        except asyncio.CancelledError:
            self._answer(batch, Unknown(f"the client was closed while it appended to {self.name}"))
            raise
        finally:
            self._is_sending = False

    def _ended(self, sending: "asyncio.Task[None]") -> None:
        """Answer what waits if the client was closed, perhaps before `_send` took its first step."""
        if sending.cancelled():
            self._is_sending = False
            unsent = ShuttingDown(f"the client was closed before this was sent to {self.name}")
            self._answer(self._waiting, unsent)

    def _take(self) -> list[Waiting]:
        """What the next append takes; nothing if nothing waits."""
        batch: list[Waiting] = []
        size = 0
        while self._waiting and (not batch or size + len(self._waiting[0].content) <= APPEND_BYTES):
            each = self._waiting.popleft()
            if (error := _failure(each.behind)) is not None:
                self._answer([each], error)
                continue
            batch.append(each)
            size += len(each.content)
        return batch

    def _answer(self, batch: list[Waiting] | deque[Waiting], error: BaseException | None) -> None:
        self._freed(sum(len(each.content) for each in batch))
        for each in batch:
            if each.done.done():
                continue  # Its caller was cancelled.
            if error is None:
                each.done.set_result(None)
            else:
                each.done.set_exception(error)
                each.done.exception()  # A transaction looks at it when it ends, or not at all.
        batch.clear()

    async def _append(self, batch: list[Waiting]) -> None:
        """Append `batch` once, or again while the cause of the failure passes, and answer it.

        `Refused`: none of the tries appended it; `Unknown`: one may have. A message whose time is over is
        left out of the next try, so that each of the others has its own whole patience.
        """
        loop, backoff = asyncio.get_running_loop(), Backoff(PAUSE_MIN, PAUSE_MAX)
        lost: Exception | None = None
        while True:
            content = b"".join([each.content for each in batch])
            left = max(batch[0].give_up - loop.time(), in_seconds(PAUSE_MIN))
            try:
                await self._journals.append(
                    self.name, content, create_revision=self.revision, timeout=min(TIMEOUT_SECONDS, left)
                )
            except (BroadsheetError, OSError) as error:
                self.is_gone |= isinstance(error, NotFound)
                told: Exception = error
                if isinstance(error, Unknown | OSError):
                    lost = error
                elif lost is not None:
                    told = Unknown(
                        f"{len(content)} bytes of messages may be in {self.name}: {lost}; then: {error}"
                    )
                    told.__cause__ = error
                next_try = loop.time() + in_seconds(backoff.pause) if is_passing(error) else math.inf
                self._give_up(batch, told, next_try=next_try)
            else:
                self._answer(batch, None)
            if not batch:
                return
            await asyncio.sleep(in_seconds(backoff.next()))

    def _give_up(self, batch: list[Waiting], error: Exception, *, next_try: float) -> None:
        """Answer with `error` those of `batch` whose time is over then, and those behind them."""
        tried = batch.copy()
        batch.clear()
        for each in tried:
            if each.give_up <= next_try or _failure(each.behind) is not None:
                self._answer([each], error)
            else:
                batch.append(each)


def _failure(sent: "asyncio.Future[None] | None") -> BaseException | None:
    """Why what follows `sent` is not sent; None if it is."""
    if sent is None or not sent.done():
        return None
    return Cancelled("its caller was cancelled") if sent.cancelled() else sent.exception()


class Lanes:
    """The ways to all journals of one publisher, and the room that they share."""

    def __init__(self, journals: Journals, *, patience: float, spawn: Spawn) -> None:
        """Append to `journals`.

        Args:
            patience: how many seconds a message may take, restarts of the node included.
        """
        self._journals, self._patience, self._spawn = journals, patience, spawn
        self._lanes: dict[str, Lane] = {}
        self._finding = asyncio.Lock()
        """Held while a journal is looked up: two lanes to one journal would break its order."""
        self._bytes = 0
        self._room = WaitingLine()
        self._asking = asyncio.Lock()
        """Held by the one that waits for room: the others are behind it, in the order in which they came."""

    async def lane(self, name: str) -> Lane:
        """The way to a journal; the journal is looked up if it is new or was deleted.

        Raises:
            NotFound: there is none of that name.
        """
        give_up = asyncio.get_running_loop().time() + self._patience
        async with self._finding:  # Whoever is before us gives up before us.
            lane = self._lanes.get(name)
            if lane is None or lane.is_gone:
                left = max(give_up - asyncio.get_running_loop().time(), in_seconds(PAUSE_MIN))
                info = await self._journals.get(name, timeout=left)
                lane = self._lanes[name] = Lane(
                    self._journals, info, patience=self._patience, spawn=self._spawn, freed=self._freed
                )
                self._thin(but=lane)
            return lane

    async def room(self) -> None:
        """Return when another message may be put; put it at once, before the next one that waited."""
        await asyncio.sleep(0)  # Others have their turn.
        async with self._asking:
            while self._bytes > WAITING_BYTES_MAX:
                await self._room.wait()

    def put(
        self, lane: Lane, content: bytes, *, behind: "asyncio.Future[None] | None" = None
    ) -> "asyncio.Future[None]":
        """Append `content` as `Lane.put` does."""
        known = self._lanes.setdefault(lane.name, lane)
        if known.revision == lane.revision:
            lane = known  # It was forgotten, and looked up again, while its caller waited for room.
        sent = lane.put(content, behind=behind)
        self._bytes += len(content)
        return sent

    def put_again(self, intent: Intent) -> None:
        """Append an acknowledgement where its messages went, if that journal is still there."""
        lane = self._lanes.get(intent.journal)
        if lane is not None and lane.revision == intent.create_revision and not lane.is_gone:
            with suppress(LocalProtocolError):  # The client is closed.
                self.put(lane, intent.content())

    def _thin(self, *, but: Lane) -> None:
        if len(self._lanes) > LANES_MAX:
            idle = (name for name, lane in self._lanes.items() if lane.is_idle and lane is not but)
            if (oldest := next(idle, None)) is not None:
                del self._lanes[oldest]

    def _freed(self, length: int) -> None:
        self._bytes -= length
        self._room.wake()
