"""Scope: the owner of tasks, which end with it (code.9).

A task that raises anything except its own cancellation is a bug of ours, and ends the node.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from broadsheet.errors import BroadsheetError

T = TypeVar("T")

Crash = Callable[[BaseException], None]
"""Ends the node: logs the error with its story, then exits. A simulation records it and stops."""

Close = Callable[[], Awaitable[None]]


class Scope:
    """Owner of tasks, of things to close, and of narrower scopes."""

    def __init__(self, name: str, *, crash: Crash) -> None:
        self.name = name
        self._crash = crash
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closers: dict[int, Close] = {}
        self._deferred = 0
        self._forget: Callable[[], object] | None = None
        self._is_closed = False
        self._closing: tuple[asyncio.Task[Any] | None, asyncio.Future[None]] | None = None

    @property
    def is_closed(self) -> bool:
        """Whether the scope is closed or closing, so that nothing can be spawned."""
        return self._is_closed

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run `work` until it ends or this scope closes."""
        if self._is_closed:
            work.close()
            raise AssertionError(f"scope {self.name} is closed: cannot start {name}")
        task = asyncio.get_running_loop().create_task(work, name=f"{self.name}.{name}")
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def defer(self, close: Close) -> None:
        """Await `close` when this scope closes: after its tasks have ended, and the last deferred first."""
        self._deferred += 1
        self._closers[self._deferred] = close

    def child(self, name: str) -> "Scope":
        """A narrower scope that closes with this one, or before it, and is then forgotten."""
        scope = Scope(f"{self.name}.{name}", crash=self._crash)
        self.defer(scope.close)
        number = self._deferred
        scope._forget = lambda: self._closers.pop(number, None)
        return scope

    async def close(self) -> None:
        """Cancel the tasks and wait for them, then await the deferred closes.

        A second call returns when everything is closed; a second call from a task of the scope, or from a
        deferred close, returns at once. A task of the scope may make the first call, and is not waited for.
        If the caller is cancelled, this is raised when everything is closed. An exception of a deferred close
        goes to `crash`, and the other closes still run.
        """
        current = asyncio.current_task()
        if self._closing is not None:
            closer, closed = self._closing
            if current is not closer and current not in self._tasks:
                await asyncio.shield(closed)
            return
        closed = asyncio.get_running_loop().create_future()
        self._closing = current, closed
        try:
            await self._close()
        finally:
            closed.set_result(None)

    async def _close(self) -> None:
        self._is_closed = True
        if self._forget is not None:
            self._forget()
        cancelled: asyncio.CancelledError | None = None
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        while pending := [task for task in tasks if not task.done()]:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError as error:
                cancelled = error  # Our caller was cancelled, but the tasks must end first.
        while self._closers:
            _, close = self._closers.popitem()
            try:
                await close()
            except asyncio.CancelledError as error:
                cancelled = error
            except Exception as error:  # noqa: BLE001 - the rest must be closed too.
                self._crash(error)
        if cancelled is not None:
            raise cancelled

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crash(error)


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end; if the caller is cancelled meanwhile, the cancellation waits for that end.

    This is for work that must not stop half-way, such as a write and the change of state that follows it. The
    caller keeps its locks until then (control.4). After a cancellation an exception of `work` is dropped, so
    `work` must act on its own errors.
    """
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # Retrieved, so that the loop does not report it: the caller is gone.
    raise cancelled


async def carried(
    work: Coroutine[Any, Any, T],
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    *,
    cut_off: Callable[[], BroadsheetError],
) -> T:
    """Run `work` as a task that `spawn` begins; it goes on if the caller is cancelled, who does not wait.

    Raises:
        BroadsheetError: raised by `work`; or that of `cut_off`, if the task was cancelled or has failed.
    """
    result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def carry() -> None:
        try:
            outcome = await work
        except BroadsheetError as error:
            if not result.done():  # Otherwise the caller was cancelled.
                result.set_exception(error)
        else:
            if not result.done():
                result.set_result(outcome)

    def ended(_task: asyncio.Task[None]) -> None:
        work.close()  # It never began if the task was cancelled at once.
        if not result.done():
            result.set_exception(cut_off())

    spawn(carry()).add_done_callback(ended)
    return await result


class OneByOne:
    """Carried works, one at a time. Callers wait for one another themselves, and may leave meanwhile.

    If works waited instead, each caller that comes and leaves would leave one behind.
    """

    def __init__(self) -> None:
        self._asking = asyncio.Lock()
        self._last: asyncio.Task[None] | None = None
        """The last work that was begun, whose caller may have left."""

    async def carried(
        self,
        begin: Callable[[], Coroutine[Any, Any, T]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        *,
        cut_off: Callable[[], BroadsheetError],
    ) -> T:
        """Do as `carried` with the work that `begin` makes, when those that were asked for before have ended.

        Raises:
            BroadsheetError: raised by `begin` too.
        """
        async with self._asking:
            if self._last is not None:
                await asyncio.wait((self._last,))

            def spawned(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
                self._last = spawn(work)
                return self._last

            return await carried(begin(), spawned, cut_off=cut_off)
