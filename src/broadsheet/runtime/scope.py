"""Scopes: every task has an owner, and no task outlives it (STYLE 2, host rules).

A task that raises anything but its own cancellation is our bug: the node ends, it does not limp on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

Crash = Callable[[BaseException], None]
"""Ends the node: logs the error with its story, then exits. A simulation records it and stops."""


class Scope:
    """Owner of tasks, of things to close, and of narrower scopes."""

    def __init__(self, name: str, *, crash: Crash) -> None:
        self.name = name
        self._crash = crash
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._is_closed = False

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run `work` until it ends or this scope closes."""
        assert not self._is_closed, f"scope {self.name} is closed: cannot start {name}"
        task = asyncio.get_running_loop().create_task(work, name=f"{self.name}.{name}")
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def defer(self, close: Callable[[], Awaitable[None]]) -> None:
        """Await `close` when this scope closes, last deferred first, after its tasks have ended."""
        self._closers.append(close)

    def child(self, name: str) -> "Scope":
        """A narrower scope that closes with this one, or before it."""
        scope = Scope(f"{self.name}.{name}", crash=self._crash)
        self.defer(scope.close)
        return scope

    async def close(self) -> None:
        """Cancel the tasks and wait for them, then close what was deferred. Idempotent."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for task in tasks:
            try:
                await task
            except asyncio.CancelledError:
                continue  # Ours, or the task's own: either way it has ended.
            except Exception:  # noqa: BLE001, S112 - `_ended` has reported it.
                continue
        while self._closers:
            await self._closers.pop()()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crash(error)
