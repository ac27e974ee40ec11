"""Scopes: every task has an owner, and no task outlives it (code.9).

A task that raises anything but its own cancellation is our bug: the node ends, it does not limp on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

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
        """Whether it is closed or closing: nothing can be spawned any more."""
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
        """Await `close` when this scope closes, last deferred first, after its tasks have ended."""
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
        """Cancel the tasks and wait for them, then close what was deferred.

        Whoever closes it again returns when all is closed, but for its own tasks and what it closes. A task
        of its own may call it; that one is not waited for. A cancellation meanwhile waits until all is
        closed. What a deferred close raises goes to `crash`, and the rest is closed all the same.
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
                cancelled = error  # Of us, not of them: they must end first.
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
    """Do `work` to its end, also where the caller is cancelled meanwhile: it is cancelled then.

    For what must not stop half-way: a write whose outcome somebody must learn, and the state that is set
    by it. The caller keeps its locks until then (control.4). What `work` raises after a cancellation goes
    to nobody: it must act on its own errors.
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
