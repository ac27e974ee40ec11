"""Request tasks: the requests of one accepted connection that run as tasks.

A task ends with its answer, by its deadline, its caller's CANCEL or the connection's loss; in every case the
stream ends with it, and its bytes are no longer in flight. Tasks belong to the server's scope. What a
handler raises is judged by the connection (`ServerConnection.refuse`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from broadsheet.base.marks import hit
from broadsheet.base.time import Duration
from broadsheet.errors import BroadsheetError, DeadlineExceeded, ShuttingDown, Throttled
from broadsheet.ports import Timer
from broadsheet.wire.method import Call, Reply, RunOpened
from broadsheet.wire.turns import START_UNITS

if TYPE_CHECKING:
    from broadsheet.wire.serving import ServerConnection


class Work:
    """A request that runs as a task."""

    __slots__ = ("handler", "size", "task", "timer")

    def __init__(self, handler: Any, size: int) -> None:  # noqa: ANN401 - an awaitable.
        self.handler, self.size = handler, size
        self.task: asyncio.Task[None] | None = None
        self.timer: Timer | None = None


class RequestTasks:
    """The tasks of one connection, by stream."""

    def __init__(self, connection: "ServerConnection") -> None:
        self._connection = connection
        self._works: dict[int, Work] = {}

    def answer(self, stream: int, handler: Awaitable[Any], call: Call, size: int) -> None:
        """Reply with what `handler` brings. `size` bytes are in flight until then."""
        self._start(stream, self._answer, handler, call, size)

    def open_run(self, stream: int, handler: Awaitable[Any], call: Call, size: int) -> None:
        """Open a RUN stream with what `handler` brings."""
        self._start(stream, self._open_run, handler, call, size)

    def __contains__(self, stream: int) -> bool:
        """Whether a task runs for `stream`."""
        return stream in self._works

    def __len__(self) -> int:
        """How many run."""
        return len(self._works)

    @property
    def size(self) -> int:
        """Request bytes that they work on."""
        return sum([work.size for work in self._works.values()])

    def cancel(self, stream: int) -> None:
        """End one, where it runs. It keeps its slot until it has ended."""
        entry = self._works.get(stream)
        if entry is not None and entry.task is not None:
            hit("wire.cancelled")
            self._connection.base.lingers(stream)
            entry.task.cancel()

    def cancel_all(self) -> None:
        """End all."""
        for stream in list(self._works):
            self.cancel(stream)

    def _start(
        self,
        stream: int,
        work: Callable[[int, Any], Coroutine[Any, Any, None]],
        handler: Any,  # noqa: ANN401 - an awaitable.
        call: Call,
        size: int,
    ) -> None:
        connection = self._connection
        accounts, holding = connection.server.accounts, connection.backpressure.holding
        assert holding is not None, "who asks has greeted"
        if connection.share is not None:
            connection.share.units -= START_UNITS
        refusal: BroadsheetError | None = None
        if connection.server.scope.is_closed:
            refusal = ShuttingDown("the node shuts down: nothing was done")
        elif not accounts.may_start(holding):
            refusal = Throttled(
                f"{holding.account.task_count} requests of this caller are worked on: wait for one to end"
            )
        if refusal is not None:
            if isinstance(handler, Coroutine):
                handler.close()  # It was not begun, for certain.
            connection.refuse(stream, refusal)
            connection.on_stopped(stream)
            return
        accounts.started(holding)
        entry = self._works[stream] = Work(handler, size)
        connection.backpressure.take(size)
        entry.task = connection.server.scope.spawn(work(stream, handler), name=call.method.name)
        entry.task.add_done_callback(lambda _task: self._stopped(stream))
        if call.deadline is not None:
            delay = Duration(max(0, call.deadline - connection.ports.time.now()))
            entry.timer = connection.ports.timers.call_after(delay, lambda: self._late(stream))

    def _late(self, stream: int) -> None:
        entry = self._works.get(stream)
        if entry is not None and entry.task is not None:
            hit("wire.late")
            error = DeadlineExceeded("the deadline passed while the node was working on it")
            self._connection.refuse(stream, error)
            self._connection.base.lingers(stream)
            entry.task.cancel()

    def _stopped(self, stream: int) -> None:
        """A task has ended, in whatever way."""
        entry = self._works.pop(stream)
        holding = self._connection.backpressure.holding
        assert holding is not None, "who asked had greeted"
        self._connection.server.accounts.stopped(holding)
        if entry.timer is not None:
            entry.timer.cancel()
        if isinstance(entry.handler, Coroutine):
            entry.handler.close()  # Where the task was cancelled before its first step.
        self._connection.on_stopped(stream)
        self._connection.backpressure.give(entry.size)  # Last: the connection may be read on in here.

    async def _answer(self, stream: int, work: Awaitable[Reply]) -> None:
        try:
            self._connection.reply(stream, await work)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the RPC edge (code.16).
            self._connection.refuse(stream, error)

    async def _open_run(self, stream: int, work: Awaitable[RunOpened]) -> None:
        try:
            self._connection.runs.accept(stream, await work)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the RPC edge (code.16).
            self._connection.refuse(stream, error)
